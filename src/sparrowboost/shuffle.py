"""An external shuffle: rows in any order in, blocks of random rows out, in one pass.

    rows --hash of row number--> buckets in memory --full--> the bucket's place in the file

Each row goes to an independent, uniform bucket. Whoever reads a bucket puts its rows in a uniformly
random order (`permuted`): buckets read so, one after the other, are a uniform permutation of all
rows, whatever order the rows came in. Nothing is written twice.

A bucket grows by extents of the file, of the same number of rows each.
"""

from __future__ import annotations

import math
import os
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparrowboost.disk import guard_disk

Records = npt.NDArray[np.uint8]  # (n, width), C order

BUCKET_BYTES = 1 << 20  # permuted within the second-level cache
SEGMENT_BYTES = 64 << 10  # what a bucket gathers before it writes, if there is memory for that
MIN_SEGMENT_BYTES = 8 << 10  # with less, buckets get larger instead
EXTENT_BYTES = 64 << 10  # a random read of this size costs little more than a sequential one
MIN_MEMORY = 4 << 20


class Bucket(NamedTuple):
    """Where the rows of a bucket are in the file."""

    n_rows: int
    crc32: int
    extents: list[int]  # numbers; all are full but the last


class Shuffle:
    """Takes rows block by block and writes them to a file, bucket by bucket.

    Parameters
    ----------
    path : the file to make
    width : bytes of a row
    n_rows : how many rows are expected; a wrong guess makes buckets larger or smaller
    memory : bytes that the buckets' buffers may take
    seed : of the permutation
    """

    def __init__(self, path: Path, width: int, n_rows: int, memory: int, seed: int) -> None:
        n_buckets = math.ceil(max(n_rows, 1) * width / BUCKET_BYTES)
        n_buckets = min(n_buckets, max(memory // MIN_SEGMENT_BYTES, 1))
        buffers = min(memory, max(MIN_MEMORY, n_buckets * SEGMENT_BYTES))
        self._slots = max(1, buffers // (n_buckets * width))
        segments = max(1, EXTENT_BYTES // (self._slots * width))
        self.extent_rows = segments * self._slots
        self._buckets = np.empty((n_buckets, self._slots, width), np.uint8)
        self._fill = np.zeros(n_buckets, np.int64)
        self._written = np.zeros(n_buckets, np.int64)  # rows
        self._crc32 = [0] * n_buckets
        self._extents: list[list[int]] = [[] for _ in range(n_buckets)]
        self._n_extents = 0
        self._seed = np.uint64(seed)
        self._n_rows = 0
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)

    def put(self, records: Records) -> None:
        """Take the next rows of the source."""
        from sparrowboost.kernels.rows import scatter_rows

        done = 0
        while done < len(records):
            done = scatter_rows(
                records, done, np.uint64(self._n_rows), self._seed, self._buckets, self._fill
            )
            if done < len(records):
                for b in np.flatnonzero(self._fill == self._slots):
                    self._write(int(b))
        self._n_rows += len(records)

    def _write(self, b: int) -> None:
        """Write what a bucket has in memory."""
        rows = self._buckets[b, : self._fill[b]]
        extent, within = divmod(int(self._written[b]), self.extent_rows)
        if extent == len(self._extents[b]):
            self._extents[b].append(self._n_extents)
            self._n_extents += 1
        row = self._extents[b][extent] * self.extent_rows + within
        with guard_disk(self._path, rows.nbytes):
            write_all(self._file, rows, row * rows.shape[1])
        self._crc32[b] = zlib.crc32(rows.data, self._crc32[b])
        self._written[b] += len(rows)
        self._fill[b] = 0

    def finish(self, *, sync: bool) -> list[Bucket]:
        """Write what is left; returns where each bucket is. `sync`: to the disk itself."""
        for b in np.flatnonzero(self._fill):
            self._write(int(b))
        if sync:
            with guard_disk(self._path, self._buckets.nbytes):
                os.fsync(self._file)
        self.close()
        parts = zip(self._written.tolist(), self._crc32, self._extents, strict=True)
        return [Bucket(n, crc32, extents) for n, crc32, extents in parts if n]

    def close(self) -> None:
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def file_bytes(buckets: list[Bucket], extent_rows: int, width: int) -> int:
    """How long the file of these buckets is."""
    ends = [0]
    for n_rows, _, extents in buckets:
        last = n_rows - (len(extents) - 1) * extent_rows
        ends.append(extents[-1] * extent_rows + last)
        ends += [(extent + 1) * extent_rows for extent in extents[:-1]]
    return max(ends) * width


def read_bucket(file: int, bucket: Bucket, extent_rows: int, width: int) -> Records | None:
    """The rows of a bucket in the order that they came; None if the file ends before they do."""
    out = np.empty((bucket.n_rows, width), np.uint8)
    for k, extent in enumerate(bucket.extents):
        rows = out[k * extent_rows : (k + 1) * extent_rows]
        if read_all(file, rows, extent * extent_rows * width) < rows.nbytes:
            return None
    return out


def permuted(n: int, seed: int, index: int) -> npt.NDArray[np.uint32]:
    """The random order in which to give the n rows of the bucket number `index`."""
    from sparrowboost.kernels.rows import random_order

    order = np.empty(n, np.uint32)
    state = np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0]
    random_order(state, order)
    return order


def write_all(file: int, data: npt.NDArray[np.uint8], offset: int) -> None:
    """Write every byte of a contiguous array at an offset: one call may write fewer."""
    view = data.data.cast("B")
    while view:
        n = os.pwrite(file, view, offset)
        view, offset = view[n:], offset + n


def read_all(file: int, out: npt.NDArray[np.uint8], offset: int) -> int:
    """Fill a contiguous array from an offset; returns the bytes read, fewer only at the end."""
    view = out.data.cast("B")
    total = 0
    while view:
        n = os.preadv(file, [view], offset + total)
        if n == 0:
            break
        view, total = view[n:], total + n
    return total
