"""Files as readers open them: local ones as they are, those of remote storage in large ranges."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa

from sparrowboost.readers.ranges import (
    AHEAD_BYTES,
    Extent,
    RangeReader,
    RemoteFile,
    stream_of,
)
from sparrowboost.runtime.disk import guard_disk, is_remote, local_path, write_all
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.remote import Options, RemotePath, remote_path

BUFFER_BYTES = 1 << 16  # of Python, for lines
COPY_BYTES = 1 << 20  # written at a time

Location = Path | RemotePath


def location(given: str | os.PathLike[str], options: Options = None) -> Location:
    """The path that a user gave, which may be an address of remote storage."""
    return remote_path(given, options) if is_remote(given) else local_path(given)


def size_of(path: Location) -> int:
    """Bytes of a file."""
    return path.size if isinstance(path, RemotePath) else path.stat().st_size


def open_binary(path: Location) -> BinaryIO:
    """A file to read from some positions."""
    if isinstance(path, RemotePath):
        return cast(BinaryIO, io.BufferedReader(RemoteFile(RangeReader(path)), BUFFER_BYTES))
    return open(path, "rb")


def will_read(file: BinaryIO, plans: Iterable[Sequence[Extent]]) -> None:
    """Say what will be read of a file from `open_binary`: remote storage is asked for it ahead."""
    raw = getattr(file, "raw", None)
    if isinstance(raw, RemoteFile):
        raw.follow(plans)


def open_stream(path: Location) -> io.RawIOBase:
    """A file to read from front to back, without a buffer of Python's."""
    if isinstance(path, RemotePath):
        return RemoteFile(RangeReader(path, stream_of(0, path.size)))
    return io.FileIO(path, "rb")


@contextmanager
def arrow_stream(path: Location, stop: int) -> Iterator[Any]:
    """The first bytes of a file for Arrow, whose threads need not call Python if it is local."""
    if isinstance(path, RemotePath):
        with RemoteFile(RangeReader(path, stream_of(0, stop))) as file:
            yield pa.PythonFile(file, "r").get_stream(0, stop)
        return
    with pa.OSFile(str(path)) as whole:
        yield whole.get_stream(0, stop)


def streaming_bytes(path: Location) -> int:
    """Memory that reading a file ahead takes."""
    return AHEAD_BYTES if isinstance(path, RemotePath) else 0


def local(path: Location, scratch: Path) -> Path:
    """The file itself, or a copy in scratch, for formats that are read here and there.

    Call it within `read_errors`, which reports the system's errors.
    """
    if isinstance(path, Path):
        return path
    copy = twin(path, scratch, path.name)
    if copy.exists():  # of the same file, for the same source
        return copy
    n, at = path.size, 0
    with guard_disk(copy, n), open(copy, "wb", buffering=0) as out, open_stream(path) as file:
        while piece := file.read(COPY_BYTES):
            write_all(out.fileno(), np.frombuffer(piece, np.uint8), at)
            at += len(piece)
    if path.stamp() != path.known_stamp:
        raise DataError(f"{path}: was changed while it was read; try again when it is finished.")
    return copy


def twin(path: Location, scratch: Path, name: str) -> Path:
    """A name in scratch, by a checksum of the path: it keeps files of the same name apart."""
    whole = path if isinstance(path, RemotePath) else path.resolve()
    return scratch / f"{zlib.crc32(str(whole).encode()):08x}-{name}"
