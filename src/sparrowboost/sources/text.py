"""Text files that are made of lines: opened plain or gzipped, read in random byte ranges."""

from __future__ import annotations

import gzip
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from sparrowboost.errors import DataError
from sparrowboost.sources.base import random_runs

CHUNK_BYTES = 1 << 20
# Bytes at the start of a file from which the first guess at a line's length is made.
HEAD_BYTES = 1 << 16


def plain(path: Path, scratch: Path) -> Path:
    """The file itself, or its unzipped twin in `scratch`: a gzip stream has no random access."""
    if not path.is_file():
        raise DataError(f"{path}: no such file.")
    if path.suffix != ".gz":
        return path
    # The folder keeps two files of one name apart.
    twin = scratch / f"{zlib.crc32(str(path.resolve()).encode()):08x}-{path.stem}"
    try:
        with gzip.open(path, "rb") as packed, open(twin, "wb") as out:
            shutil.copyfileobj(packed, out, CHUNK_BYTES)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: not a whole gzip file ({error}); write it again.") from None
    return twin


def line_ranges(
    path: Path, start: int, wanted: int, rng: np.random.Generator
) -> Iterator[tuple[int, bytes]]:
    """About `wanted` bytes of whole lines, from random places at or after byte `start`.

    Yields the offset of each piece and its bytes; the whole rest, in pieces, if that is less.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        for low, high in random_runs(size - start, wanted, rng):
            yield from _whole_lines(file, start + low, start + high, at_line=low == 0)


def _whole_lines(file: BinaryIO, low: int, high: int, at_line: bool) -> Iterator[tuple[int, bytes]]:
    """Lines that begin in [low, high), a chunk at a time."""
    file.seek(low)
    if not at_line:
        low += len(file.readline())  # the line that began before this place
    while low < high:
        data = file.read(min(CHUNK_BYTES, high - low))
        if not data:
            return
        if not data.endswith(b"\n"):
            data += file.readline()
        yield low, data
        low += len(data)


def mean_line_bytes(path: Path, start: int) -> float:
    """A guess at the length of a line, from the first ones."""
    with open(path, "rb") as file:
        file.seek(start)
        head = file.read(HEAD_BYTES)
    lines = head.count(b"\n") + (not head.endswith(b"\n") and bool(head))
    return len(head) / max(lines, 1)
