"""Text files in packed form: gzip, bzip2, xz, Zstandard, LZ4, or alone in a zip archive."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast

import pyarrow as pa

from sparrowboost.readers.files import (
    Location,
    open_binary,
    open_stream,
    size_of,
    will_read,
)
from sparrowboost.readers.ranges import stream_of
from sparrowboost.runtime.errors import DataError

CHUNK_BYTES = 1 << 20


def _by_arrow(codec: str) -> Callable[[BinaryIO], Any]:
    return lambda file: pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)


OPENERS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _by_arrow("zstd"),
    ".lz4": _by_arrow("lz4"),
}
PACKED = (*OPENERS, ".zip")
NAMES = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "Zstandard", ".lz4": "LZ4"}


def member_of(path: Location) -> str:
    """The name of the one file in a zip archive; a DataError if there are others."""
    with _zip_errors(path), open_binary(path) as file, zipfile.ZipFile(file) as archive:
        return _member(path, archive).filename


def pieces(path: Location) -> Iterator[bytes]:
    """The unpacked bytes of a file, some at a time; a DataError if it is damaged."""
    suffix = path.suffix.lower()
    if suffix == ".zip":
        with (
            _zip_errors(path),
            open_binary(path) as packed,
            zipfile.ZipFile(packed) as archive,
        ):
            member = _member(path, archive)
            will_read(packed, stream_of(member.header_offset, size_of(path)))
            with archive.open(member) as file:
                yield from _read(file)
        return
    try:
        with ExitStack() as stack:
            stream = stack.enter_context(open_stream(path))
            raw = cast(BinaryIO, stack.enter_context(io.BufferedReader(stream)))
            yield from _read(stack.enter_context(OPENERS[suffix](raw)))
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, pa.ArrowException) as error:
        raise _damaged(path, NAMES[suffix], error) from None
    except OSError as error:
        if error.errno is not None:  # the system's, about the file
            raise
        raise _damaged(path, NAMES[suffix], error) from None


def _read(file: Any) -> Iterator[bytes]:
    while piece := file.read(CHUNK_BYTES):
        yield piece


def unpacked_bytes(path: Location) -> int:
    """Lower bound on the unpacked size: the packed one, or what the file says."""
    size = size_of(path)
    suffix = path.suffix.lower()
    if suffix == ".gz":  # the last four bytes have it modulo 4 GB
        with open_binary(path) as file:
            file.seek(max(size - 4, 0), io.SEEK_SET)
            return max(size, int.from_bytes(file.read(4), "little"))
    if suffix == ".zip":
        with _zip_errors(path), open_binary(path) as file, zipfile.ZipFile(file) as archive:
            return max(size, _member(path, archive).file_size)
    return size


def _member(path: Location, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    found = [
        info
        for info in archive.infolist()
        if not info.is_dir()
        and not info.filename.startswith("__MACOSX/")
        and not PurePosixPath(info.filename).name.startswith(".")
    ]
    if len(found) != 1:
        some = ", ".join(repr(info.filename) for info in found[:3]) or "nothing"
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise DataError(
            f"{path}: a zip archive is read if it holds one file, and this one holds {some}{more}; "
            "unpack it, and pass its folder or files."
        )
    if found[0].flag_bits & 1:
        raise DataError(f"{path}: the archive is encrypted; unpack it first.")
    return found[0]


@contextmanager
def _zip_errors(path: Location) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, EOFError, NotImplementedError, zlib.error, lzma.LZMAError) as error:
        raise _damaged(path, "zip", error) from None


def _damaged(path: Location, name: str, error: Exception) -> DataError:
    return DataError(f"{path}: not a complete {name} file ({error}); write it again.")
