"""An external shuffle: rows in any order in, rows in uniformly random order out.

    rows --hash of row number--> buckets --full--> segments of one spill file
                                                     |
    bucket = its segments + what is still in memory  v   --permuted in memory--> out

Each row goes to an independent, uniform bucket, and each bucket is permuted uniformly: laid end to
end they are a uniform permutation of all rows, whatever order the rows came in.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sparrowboost.disk import guard_disk

Records = npt.NDArray[np.uint8]  # (n, width), C order

BUCKET_BYTES = 1 << 20  # permuted within the second-level cache
SEGMENT_BYTES = 64 << 10  # a random read of this size costs little more than a sequential one
MIN_MEMORY = 4 << 20


class Shuffle:
    """Takes rows block by block, then gives them back bucket by bucket.

    Parameters
    ----------
    path : the spill file; made when memory is full, removed by `close`
    width : bytes of a row
    n_rows : how many rows are expected; a wrong guess costs speed, not correctness
    memory : bytes that the buckets' buffers may take, and a bucket read back
    seed : of the permutation
    """

    def __init__(self, path: Path, width: int, n_rows: int, memory: int, seed: int) -> None:
        total = max(n_rows, 1) * width
        # As many buckets as make each small; fewer, if their segments would get too short.
        n_buckets = math.ceil(total / BUCKET_BYTES)
        n_buckets = min(n_buckets, max(memory // SEGMENT_BYTES, math.ceil(total / memory)))
        buffers = min(memory, max(MIN_MEMORY, n_buckets * SEGMENT_BYTES))
        self._slots = max(1, buffers // (n_buckets * width))
        self._buckets = np.empty((n_buckets, self._slots, width), np.uint8)
        self._fill = np.zeros(n_buckets, np.int64)
        self._segments: list[list[int]] = [[] for _ in range(n_buckets)]  # numbers in the file
        self._n_segments = 0
        self._seed = np.uint64(seed)
        self._n_rows = 0
        self._path = path
        self._file: int | None = None

    def put(self, records: Records) -> None:
        """Take the next rows of the source."""
        from sparrowboost.kernels.rows import scatter_rows

        done = 0
        while done < len(records):
            done = scatter_rows(
                records, done, np.uint64(self._n_rows), self._seed, self._buckets, self._fill
            )
            if done < len(records):
                self._flush()
        self._n_rows += len(records)

    def _flush(self) -> None:
        """Write the full buckets' buffers as segments."""
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        size = self._buckets[0].nbytes
        for b in np.flatnonzero(self._fill == self._slots):
            with guard_disk(self._path, size):
                write_all(self._file, self._buckets[b], self._n_segments * size)
            self._segments[b].append(self._n_segments)
            self._n_segments += 1
            self._fill[b] = 0

    @property
    def n_buckets(self) -> int:
        return len(self._segments)

    def count(self, index: int) -> int:
        """Rows of one bucket."""
        return len(self._segments[index]) * self._slots + int(self._fill[index])

    def bucket(self, index: int) -> Records:
        """The rows of one bucket, in the order that they came; threads may call this at once."""
        width = self._buckets.shape[2]
        out = np.empty((self.count(index), width), np.uint8)
        size = self._slots * width
        flat = out.reshape(-1)
        for k, segment in enumerate(self._segments[index]):
            read_all(self._file, flat[k * size : (k + 1) * size], segment * size)
        fill = self._fill[index]
        out[len(out) - fill :] = self._buckets[index, :fill]
        return out

    def order(self, index: int) -> npt.NDArray[np.uint32]:
        """The random order in which to give the rows of a bucket."""
        from sparrowboost.kernels.rows import random_order

        order = np.empty(self.count(index), np.uint32)
        seed = np.random.SeedSequence([int(self._seed), index]).generate_state(1, np.uint64)[0]
        random_order(seed, order)
        return order

    def close(self) -> None:
        """Remove the spill file."""
        if self._file is not None:
            os.close(self._file)
            self._path.unlink()
            self._file = None


def write_all(file: int, data: npt.NDArray[np.uint8], offset: int) -> None:
    """Write every byte of a contiguous array at an offset: one call may write fewer."""
    view = data.data.cast("B")
    while view:
        n = os.pwrite(file, view, offset)
        view, offset = view[n:], offset + n


def read_all(file: int | None, out: npt.NDArray[np.uint8], offset: int) -> int:
    """Fill a contiguous array from an offset; returns the bytes read, fewer only at the end."""
    assert file is not None
    view = out.data.cast("B")
    total = 0
    while view:
        n = os.preadv(file, [view], offset + total)
        if n == 0:
            break
        view, total = view[n:], total + n
    return total
