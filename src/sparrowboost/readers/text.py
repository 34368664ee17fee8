"""Text files: plain or packed, read in random ranges of whole lines."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt

from sparrowboost.readers.base import random_runs
from sparrowboost.readers.files import Location, open_binary, open_stream, size_of, twin, will_read
from sparrowboost.readers.packed import PACKED, pieces, unpacked_bytes
from sparrowboost.readers.ranges import PART_BYTES, RANGE_BYTES, Extent
from sparrowboost.runtime.disk import guard_disk, write_all
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.remote import RemotePath

CHUNK_BYTES = 1 << 20
# Bytes at the start of a file, for a first guess at the length of a line.
HEAD_BYTES = 1 << 16
LINE_BYTES = 1 << 14  # that are read behind a run, for the end of its last line
RELEASE_SECONDS = 10.0  # to wait for Arrow's last read, which takes milliseconds
QUOTE, NEWLINE, RETURN = b'"\n\r'


class LongLineError(Exception):
    """A line is longer than a reader takes."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset  # of a byte in it


def plain(path: Location, scratch: Path) -> Location:
    """The file itself, or an unpacked copy in `scratch`: packed text has no random access.

    Call it within `read_errors`, which reports the system's errors.
    """
    if not isinstance(path, RemotePath) and not path.is_file():
        raise DataError(f"{path}: no such file.")
    if path.suffix.lower() not in PACKED:
        return path
    copy = twin(path, scratch, path.stem)
    n_bytes, at = unpacked_bytes(path), 0
    with open(copy, "wb", buffering=0) as out:
        for piece in pieces(path):
            with guard_disk(copy, n_bytes):
                write_all(out.fileno(), np.frombuffer(piece, np.uint8), at)
            at += len(piece)
    return copy


def line_ranges(
    path: Location, start: int, wanted: int, rng: np.random.Generator, longest: int
) -> Iterator[tuple[int, bytes]]:
    """About `wanted` bytes of whole lines, from random positions at or after byte `start`.

    Yields the offset and bytes of each piece; if fewer bytes are left, all of them. Of a line of
    more than `longest` bytes no more is read: that is a LongLineError.
    """
    size = size_of(path)
    runs = list(random_runs(size - start, wanted, rng))
    with open_binary(path) as file:
        will_read(file, _plans(runs, start, size))
        for low, high in runs:
            yield from _whole_lines(file, start + low, start + high, low == 0, longest)


def _plans(runs: Sequence[tuple[int, int]], start: int, size: int) -> Iterator[list[Extent]]:
    """What lines of these runs take, about a range of remote storage at a time."""
    plan: list[Extent] = []
    for low, high in runs:
        stop = min(high + LINE_BYTES, size - start)
        for first in range(low, high, PART_BYTES):
            last = stop if first + PART_BYTES >= high else first + PART_BYTES
            if plan and start + last - plan[0].start > RANGE_BYTES:
                yield plan
                plan = []
            plan.append(Extent(start + first, last - first))
    yield plan


def _whole_lines(
    file: BinaryIO, low: int, high: int, at_line: bool, longest: int
) -> Iterator[tuple[int, bytes]]:
    """Lines that begin in [low, high), a chunk at a time."""
    file.seek(low)
    if not at_line:
        low = _after_line(file, longest)  # the line that began earlier
    while low < high:
        data = file.read(min(CHUNK_BYTES, high - low))
        if not data:
            return
        if not data.endswith(b"\n"):
            end = file.readline(longest)
            if len(end) == longest and not end.endswith(b"\n"):
                raise LongLineError(low + len(data))
            data += end
        yield low, data
        low += len(data)


def _after_line(file: BinaryIO, longest: int) -> int:
    """Skip the rest of a line without keeping it; returns where the next one begins."""
    start = file.tell()
    while (piece := file.readline(CHUNK_BYTES)) and not piece.endswith(b"\n"):
        if file.tell() - start > longest:
            raise LongLineError(start)
    return file.tell()


def mean_line_bytes(path: Location, start: int) -> float:
    """Estimate the length of a line from the first ones."""
    with open_binary(path) as file:
        file.seek(start)
        head = file.read(HEAD_BYTES)
    lines = head.count(b"\n") + (not head.endswith(b"\n") and bool(head))
    return len(head) / max(lines, 1)


def has_open_lines(data: bytes) -> bool:
    """Whether a line ends within quotes, if `data` starts outside of them."""
    if b'"' not in data:
        return False
    bytes_ = np.frombuffer(data, np.uint8)
    quotes_before = np.searchsorted(
        np.flatnonzero(bytes_ == QUOTE), np.flatnonzero(bytes_ == NEWLINE)
    )
    return bool(np.any(quotes_before % 2))


class LentFile:
    """A Python file while Arrow uses it; see `lend_to_arrow`."""

    closed = False

    def __init__(self, file: QuoteWatch) -> None:
        self.read = file.read

    def close(self) -> None:
        self.closed = True


@contextmanager
def lend_to_arrow(file: QuoteWatch) -> Iterator[list[LentFile]]:
    """A file for Arrow, in a list to pop it from; waits on exit until Arrow has released it.

    Arrow reads ahead in a thread of its own that does not stop at once when its reader is deleted.
    If that thread calls Python while the interpreter shuts down, the process crashes.
    """
    loan, returned = LentFile(file), threading.Event()
    weakref.finalize(loan, returned.set)
    hand = [loan]
    del loan
    try:
        yield hand
    finally:
        hand.clear()
        returned.wait(RELEASE_SECONDS)


class QuoteWatch:
    r"""A CSV file that looks for a quote that swallows lines while it is read.

    A quote opens only at the start of a cell, and the next one closes it ("" is a quote in the
    text). If the two are on different lines and the closing one is followed by more text, it is
    really the opening quote of a later cell:

        1,"abc            <- opens, and is not closed
        2,"def"           <- closes; def" is text of the same cell
    """

    def __init__(self, path: Location, start: int, delimiter: str) -> None:
        self._file = open_stream(path)
        self.swallowing: int | None = None  # where the first such quote opens
        self._skip = start  # bytes still to skip: the header
        self._base = start  # offset of the next byte to inspect
        self._held = b""  # quotes at the end of what was read: one or two?
        self._before = NEWLINE  # the byte before the next
        self._open_at: int | None = None
        self._spans = False  # whether the open cell spans lines
        self._bounds = bytes([NEWLINE, RETURN, *delimiter.encode()])
        self._is_bound = np.zeros(256, np.bool_)
        self._is_bound[list(self._bounds)] = True

    def read(self, size: int | None = -1) -> bytes:
        data = self._file.read(-1 if size is None else size) or b""
        fresh = data[self._skip :]
        self._skip -= len(data) - len(fresh)
        self._look(self._held + fresh, last=not data)
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    @property
    def open_at(self) -> int | None:
        """Offset of a quote that is still open after a line break, if there is one."""
        return self._open_at if self._spans else None

    def _look(self, data: bytes, *, last: bool) -> None:
        rest = data if last else data.rstrip(b'"')
        self._held = data[len(rest) :]
        quoted = self._open_at is not None or b'"' in rest
        # At the end of the file the last byte may be a quote.
        if rest and quoted and (last or not self._pair_up(rest)):
            self._step(rest)
        if rest:
            self._before = rest[-1]
        self._base += len(rest)
        if last and self._open_at is not None and self.swallowing is None:
            self.swallowing = self._open_at

    def _pair_up(self, data: bytes) -> bool:
        """Follow well-formed quotes, all at once; False if some are not well-formed."""
        bytes_: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(bytes_ == QUOTE)
        inside = int(self._open_at is not None)
        opening, closing = quotes[inside::2], quotes[1 - inside :: 2]
        before = np.where(opening, bytes_[opening - 1], np.uint8(self._before))
        after = bytes_[closing + 1]  # the last byte is no quote
        starts = self._is_bound[before]
        if not np.all(starts | (before == QUOTE)):
            return False
        if not np.all(self._is_bound[after] | (after == QUOTE)):
            return False
        if len(opening) > len(closing) - inside:  # a cell is open at the end
            begun = opening[starts]
            if len(begun):
                self._open_at, self._spans = self._base + int(begun[-1]), False
            self._spans |= data.find(b"\n", int(begun[-1]) if len(begun) else 0) >= 0
        else:
            self._open_at, self._spans = None, False
        return True

    def _step(self, data: bytes) -> None:
        """The same, one quote at a time."""
        position = 0
        while True:
            found = data.find(b'"', position)
            if self._open_at is None:
                if found < 0:
                    return
                before = data[found - 1] if found else self._before
                if before in self._bounds:
                    self._open_at, self._spans = self._base + found, False
                position = found + 1
                continue
            stop = len(data) if found < 0 else found
            self._spans |= data.find(b"\n", position, stop) >= 0
            if found < 0:
                return
            position = found + 1
            if data[position : position + 1] == b'"':
                position += 1
                continue
            if self._spans and position < len(data) and data[position] not in self._bounds:
                self.swallowing = self._open_at if self.swallowing is None else self.swallowing
            self._open_at, self._spans = None, False
