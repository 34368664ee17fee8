"""A file of remote storage, read in large ranges, several of them in flight.

A request takes some 20 ms before its first byte, however short it is. So readers say ahead what
they will need, in plans, such as the columns of a row group. It is fetched in the background, in
pieces:

    extents of a plan    |--a--|-b-| gap |----c----|       |-----------------d-----------------|
    pieces               |--------- joined --------|       |---- part ----|---- part ----|-----|

What was not announced is fetched when it is read. Each byte of a plan is expected to be read once:
a piece is dropped when it was read, and all of a plan when the next one is read from.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparrowboost.runtime.remote import RemotePath, Storage

IN_FLIGHT = 8  # requests of a file
RANGE_BYTES = 8 << 20  # of a request at most: more is hardly faster
PART_BYTES = 4 << 20  # of a long extent: those of several columns are held side by side
# Between extents: fewer are read along, which is faster than a request; and more, up to
# MAX_GAP_BYTES, if they are no more than half of it.
GAP_BYTES, MAX_GAP_BYTES = 1 << 18, 1 << 20
BLOCK_BYTES = 1 << 18  # of a request for what was not announced
KEPT_BLOCKS = 4  # of these
AHEAD_BYTES = 4 * RANGE_BYTES  # fetched before it is read, unless a reader says otherwise
TAIL_BYTES = 1 << 16  # of the end of a file, where formats have their index
KEPT_TAILS = 128  # of the files that were read last


class Extent(NamedTuple):
    """Bytes of a file that are wanted."""

    start: int
    size: int

    @property
    def stop(self) -> int:
        return self.start + self.size


@dataclass(eq=False)
class Piece:
    """What a request fetches."""

    start: int
    stop: int
    left: int  # wanted bytes that were not read yet
    plan: int = 0  # its number
    data: Future[Any] | None = None

    @property
    def size(self) -> int:
        return self.stop - self.start


def pieces_of(extents: Iterable[Extent]) -> list[Piece]:
    """The pieces of a plan, in the order in which extents that are read side by side need them.

    Examples
    --------
    >>> pieces = pieces_of([Extent(0, 10), Extent(20, 10), Extent(5_000_000, 5_000_000)])
    >>> [(piece.start, piece.stop, piece.left) for piece in pieces]
    [(0, 30, 20), (5000000, 9194304, 4194304), (9194304, 10000000, 805696)]
    """
    found: list[tuple[int, Piece]] = []  # with the number of the part
    last: Piece | None = None
    for start, size in sorted(extents):
        if not size:
            continue
        if size > PART_BYTES:
            cuts = range(start, start + size, PART_BYTES)
            for k, cut in enumerate(cuts):
                stop = min(cut + PART_BYTES, start + size)
                found.append((k, Piece(cut, stop, stop - cut)))
            last = None
        elif (
            last is not None
            and start - last.stop <= max(GAP_BYTES, min(MAX_GAP_BYTES, last.left + size))
            and start + size - last.start <= RANGE_BYTES
        ):
            last.left += size
            last.stop = max(last.stop, start + size)
        else:
            last = Piece(start, start + size, size)
            found.append((0, last))
    return [piece for _, piece in sorted(found, key=lambda one: (one[0], one[1].start))]


def stream_of(start: int, stop: int) -> Iterator[list[Extent]]:
    """Plans for reading from front to back."""
    for first in range(start, stop, PART_BYTES):
        yield [Extent(first, min(PART_BYTES, stop - first))]


class RangeReader:
    """A file of remote storage that is open.

    Parameters
    ----------
    path : RemotePath
    plans : iterable of list of Extent
        What will be read. Taken when there is room for it.
    ahead : int
        Bytes to fetch before they are read.
    """

    def __init__(
        self, path: RemotePath, plans: Iterable[Sequence[Extent]] = (), ahead: int = AHEAD_BYTES
    ) -> None:
        self.path, self.size = path, path.size
        self._pool = ThreadPoolExecutor(IN_FLIGHT, "sparrow-fetch")
        self._blocks: OrderedDict[int, Any] = OrderedDict()  # by offset: what was not announced
        self._lock = threading.Lock()
        self._pieces: list[Piece] = []
        self._queue: deque[Piece] = deque()
        self.follow(plans, ahead)

    def follow(self, plans: Iterable[Sequence[Extent]], ahead: int = AHEAD_BYTES) -> None:
        """Fetch what is in these plans, instead of others."""
        with self._lock:
            for piece in self._pieces:
                _cancel(piece)
            self._pieces, self._queue = [], deque()  # of which some are in the queue
            self._plans, self._n_plans = iter(plans), 0
            self._current, self._held, self._ahead = 0, 0, ahead
            self._fetch_ahead()

    def _fetch_ahead(self) -> None:
        """Request pieces, as many as may be held."""
        while self._held < self._ahead:
            while not self._queue:
                plan = next(self._plans, None)
                if plan is None:
                    return
                for piece in pieces_of(plan):
                    piece.plan = self._n_plans
                    self._queue.append(piece)
                    self._pieces.append(piece)
                self._n_plans += 1
            piece = self._queue[0]
            if self._held and self._held + piece.size > self._ahead:
                return
            self._queue.popleft()
            self._request(piece)

    def _request(self, piece: Piece) -> None:
        if piece.data is None:
            self._held += piece.size
            piece.data = self._pool.submit(self.path.read, piece.start, piece.size)

    def _drop(self, piece: Piece) -> None:
        self._pieces.remove(piece)
        if piece.data is not None:
            self._held -= piece.size
            _cancel(piece)
        else:
            self._queue.remove(piece)

    def read_at(self, out: Any, offset: int) -> int:
        """Fill a buffer from an offset; returns the bytes read: fewer at the end of the file."""
        view, done = memoryview(out).cast("B"), 0
        while some := self.read_some(view[done:], offset + done):
            done += some
        return done

    def read_some(self, view: memoryview, offset: int) -> int:
        """Read what can be had at once: some bytes, unless none are left or wanted."""
        n = min(len(view), self.size - offset)
        if n <= 0:
            return 0
        piece, until = self._find(offset)
        if piece is None:
            return self._read_block(view[: min(n, until - offset)], offset)
        assert piece.data is not None
        data = memoryview(piece.data.result())
        n = min(n, piece.stop - offset)
        view[:n] = data[offset - piece.start : offset - piece.start + n]
        with self._lock:
            piece.left -= n
            if piece.left <= 0 and piece in self._pieces:
                self._drop(piece)
            self._fetch_ahead()
        return n

    def _find(self, at: int) -> tuple[Piece | None, int]:
        """The piece that has a byte, on its way; without one, where the next piece begins."""
        with self._lock:
            here = next((p for p in self._pieces if p.start <= at < p.stop), None)
            if here is None:
                later = [p.start for p in self._pieces if p.start > at]
                return None, min(later, default=self.size)
            if here.plan > self._current:
                self._current = here.plan
                for piece in [p for p in self._pieces if p.plan < here.plan]:
                    self._drop(piece)
            if here.data is None:
                self._queue.remove(here)
                self._request(here)
            return here, here.stop

    def _read_block(self, view: memoryview, at: int) -> int:
        """Read what was not announced: much of it at once, or a block around a little."""
        if len(view) >= BLOCK_BYTES:
            parts = [
                (view[a : a + PART_BYTES], self._pool.submit(self.path.read, at + a, n))
                for a in range(0, len(view), PART_BYTES)
                for n in [min(PART_BYTES, len(view) - a)]
            ]
            for part, data in parts:
                part[:] = data.result()
            return len(view)
        start = next((s for s, b in self._blocks.items() if s <= at < s + len(b)), None)
        if start is None:
            start = at
            tail = self.size - TAIL_BYTES
            if at >= tail:
                start, data = max(tail, 0), tail_of(self.path)
            else:
                data = self.path.read(at, min(BLOCK_BYTES, self.size - at))
            self._blocks[start] = memoryview(data)
            if len(self._blocks) > KEPT_BLOCKS:
                self._blocks.popitem(last=False)
        data = self._blocks[start][at - start : at - start + len(view)]
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self.follow(())
        self._pool.shutdown(cancel_futures=True)


def _cancel(piece: Piece) -> None:
    if piece.data is not None:
        piece.data.cancel()


_tails: OrderedDict[tuple[Storage, str], Any] = OrderedDict()  # with the stamp of their files
_tail_lock = threading.Lock()


def tail_of(path: RemotePath) -> Any:
    """The end of a file, which is read each time that it is opened."""
    key = path.storage, path.path
    with _tail_lock:
        stamp, data = _tails.get(key, (None, b""))
        if stamp == path.known_stamp:
            _tails.move_to_end(key)
            return data
    n = min(TAIL_BYTES, path.size)
    data = path.read(path.size - n, n)
    with _tail_lock:
        _tails[key] = path.known_stamp, data
        while len(_tails) > KEPT_TAILS:
            _tails.popitem(last=False)
    return data


class RemoteFile(io.RawIOBase):
    """The same as a Python file."""

    def __init__(self, ranges: RangeReader) -> None:
        self._ranges, self._at = ranges, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._ranges.size}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, out: Any) -> int:
        """Read some bytes: a buffer does not ask for more than was announced."""
        n = self._ranges.read_some(memoryview(out).cast("B"), self._at)
        self._at += n
        return n

    def read(self, size: int | None = -1) -> bytes:
        """Read all of these bytes, as Arrow expects it."""
        left = max(self._ranges.size - self._at, 0)
        data = bytearray(left if size is None or size < 0 else min(size, left))
        self._at += self._ranges.read_at(data, self._at)
        return bytes(data)

    def size(self) -> int:
        return self._ranges.size

    def follow(self, plans: Iterable[Sequence[Extent]], ahead: int = AHEAD_BYTES) -> None:
        self._ranges.follow(plans, ahead)

    def close(self) -> None:
        if not self.closed:
            self._ranges.close()
        super().close()
