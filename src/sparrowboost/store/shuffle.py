"""An external shuffle: rows in any order in, blocks of random rows of one band out, in one pass.

    rows --band, hash of row number--> buckets in memory --full--> the bucket's extent of the file

A band is one of two labels, or a range of a target. Each row goes to a bucket of its band, picked
independently and uniformly. When a block is read, its rows are put in a uniformly random order
(`permuted`). The blocks of a band, read one after the
other, are thus a uniform permutation of its rows, in whatever order the source had them. Nothing is
written twice.

A bucket grows by extents of the file. At the end of a stage, buckets become blocks, small ones
together; later rows go to new buckets. The rows of a stage can be read while others are written.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparrowboost.runtime.disk import guard_disk, read_all, write_all

Records = npt.NDArray[np.uint8]  # (n, width), C order

BUCKET_BYTES = 1 << 20  # so that a block is permuted within the second-level cache
SEGMENT_BYTES = 64 << 10  # that a bucket collects before it is written, if memory allows
MIN_SEGMENT_BYTES = 8 << 10  # with less memory than that, there are fewer and larger buckets
EXTENT_BYTES = 256 << 10  # read at once; larger extents would leave larger holes in the file
MIN_MEMORY = 4 << 20
LARGEST = 1.1  # rows of the largest bucket of a band, relative to the average


class Run(NamedTuple):
    """Consecutive rows of the file."""

    start: int
    n_rows: int
    crc32: int


class StoredBlock(NamedTuple):
    """Where the rows of a block are in the file, and their band."""

    code: int
    runs: list[Run]

    @property
    def n_rows(self) -> int:
        return sum(run.n_rows for run in self.runs)


class Shuffle:
    """Takes rows block by block and writes them to a file, bucket by bucket.

    Parameters
    ----------
    path : the file to make
    width : bytes of a row
    n_rows : rows that are expected in a stage; a wrong guess makes blocks larger or smaller
    memory : bytes that the buckets' buffers may take
    seed : of the permutation
    n_bands : at most 8
    largest_share : share of the rows in the largest band, if it is known
    """

    def __init__(
        self,
        path: Path,
        width: int,
        n_rows: int,
        memory: int,
        seed: int,
        n_bands: int = 2,
        largest_share: float = 1.0,
    ) -> None:
        n_buckets, self._slots, self._extent_rows = _sizes(width, n_rows, memory, n_bands)
        self._expected = largest_share * n_rows
        self._n_bands = n_bands
        self._of_band = n_buckets // n_bands  # buckets of each; those of band 0 come first
        self._buckets = np.empty((n_buckets, self._slots, width), np.uint8)
        self._fill = np.zeros(n_buckets, np.int64)
        self._runs: list[list[Run]] = [[] for _ in range(n_buckets)]
        self._file_rows = 0  # length of the file so far
        self._seed = np.uint64(seed)
        self._n_rows = 0
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)

    def put(self, records: Records, codes: npt.NDArray[np.uint8]) -> None:
        """Take the next rows of the source, and the band of each."""
        from sparrowboost.kernels.rows import scatter_rows

        done = 0
        while done < len(records):
            first = np.uint64(self._n_rows)
            to = self._buckets, self._fill
            done = scatter_rows(records, codes, self._n_bands, done, first, self._seed, *to)
            if done < len(records):
                for b in np.flatnonzero(self._fill == self._slots):
                    self._write(int(b))
        self._n_rows += len(records)

    def _write(self, b: int) -> None:
        """Write what a bucket has in memory to the end of its last extent."""
        runs, rows = self._runs[b], self._buckets[b, : self._fill[b]]
        if not runs or runs[-1].n_rows == self._extent_rows:
            runs.append(Run(self._file_rows, 0, 0))
            self._file_rows += self._extent_rows
        start, n, crc32 = runs[-1]
        self._write_rows(rows, start + n)
        runs[-1] = Run(start, n + len(rows), zlib.crc32(rows.data, crc32))
        self._fill[b] = 0

    def _write_rows(self, rows: Records, at: int) -> None:
        with guard_disk(self._path, rows.nbytes):
            write_all(self._file, rows, at * rows.shape[1])

    @property
    def block_rows(self) -> int:
        """About the rows of the largest block, if a stage has as many rows as expected."""
        return _largest(self._expected, self._of_band)

    def end_stage(self) -> list[StoredBlock]:
        """Write what is left in the buckets; the blocks of all rows of this stage."""
        blocks = [block for code in range(self._n_bands) for block in self._blocks(code)]
        self._fill[:] = 0
        self._runs = [[] for _ in self._runs]
        return blocks

    def finish(self, *, sync: bool) -> None:
        """Close the file; with `sync`, after it has reached the disk."""
        if sync:
            with guard_disk(self._path, self._buckets.nbytes):
                os.fsync(self._file)
        self.close()
        self._buckets = self._buckets[:0].copy()  # frees the memory, even if this object lives on

    def _blocks(self, code: int) -> Iterator[StoredBlock]:
        """Blocks of a band: a bucket each, or several small ones."""
        width = self._buckets.shape[2]
        runs: list[Run] = []
        held: list[Records] = []  # of buckets that were never written
        n_bytes = 0
        last = (code + 1) * self._of_band - 1
        for b in range(code * self._of_band, last + 1):
            rows = self._buckets[b, : self._fill[b]]
            n_bytes += rows.nbytes + width * sum(run.n_rows for run in self._runs[b])
            if not self._runs[b]:
                held.append(rows)
            elif len(rows):
                self._write(b)
            runs += self._runs[b]
            if n_bytes and (2 * n_bytes >= BUCKET_BYTES or b == last):
                together = np.concatenate(held) if held else rows[:0]
                if len(together):
                    runs.append(Run(self._file_rows, len(together), zlib.crc32(together.data)))
                    self._write_rows(together, self._file_rows)
                    self._file_rows += len(together)
                yield StoredBlock(code, runs)
                runs, held, n_bytes = [], [], 0

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def largest_block(
    width: int, n_rows: int, memory: int, n_bands: int = 2, largest_share: float = 1.0
) -> int:
    """About the rows of the largest block of a stage of n rows."""
    of_band = _sizes(width, n_rows, memory, n_bands)[0] // n_bands
    return _largest(largest_share * n_rows, of_band)


def _largest(n_rows: float, n_buckets: int) -> int:
    return math.ceil(LARGEST * n_rows / n_buckets)


def _sizes(width: int, n_rows: int, memory: int, n_bands: int) -> tuple[int, int, int]:
    """The number of buckets, rows that each holds in memory, and rows of an extent."""
    n_buckets = math.ceil(max(n_rows, 1) * width / BUCKET_BYTES)
    n_buckets = min(n_buckets, max(memory // MIN_SEGMENT_BYTES, 1))
    n_buckets = n_bands * math.ceil(n_buckets / n_bands)
    buffers = min(memory, max(MIN_MEMORY, n_buckets * SEGMENT_BYTES))
    slots = max(1, buffers // (n_buckets * width))
    return n_buckets, slots, slots * max(1, EXTENT_BYTES // (slots * width))


def file_bytes(blocks: Iterable[StoredBlock], width: int) -> int:
    """The length of a file of these blocks."""
    ends = [run.start + run.n_rows for block in blocks for run in block.runs]
    return max(ends, default=0) * width


def read_block(file: int, block: StoredBlock, width: int) -> Records | None:
    """The rows of a block in the order of the source; None if they are not what was written."""
    out = np.empty((block.n_rows, width), np.uint8)
    n = 0
    for run in block.runs:
        rows = out[n : n + run.n_rows]
        n += run.n_rows
        if read_all(file, rows, run.start * width) < rows.nbytes:
            return None
        if zlib.crc32(rows.data) != run.crc32:
            return None
    return out


def permuted(n: int, seed: int, index: int) -> npt.NDArray[np.uint32]:
    """The random order of the n rows of block number `index`."""
    from sparrowboost.kernels.rows import random_order

    order = np.empty(n, np.uint32)
    state = np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0]
    random_order(state, order)
    return order
