"""Bins of a table that is too wide to be read row by row: column by column, through scratch.

Reading a column of a Parquet file takes a page and a dictionary, 2 MB and more, however few rows
are asked for. Those of thousands of columns, or of twenty with pages of 100 MB, exceed a memory
limit. So some columns are read at a time, of some row groups, and binned. Their bins go to a
temporary file, from which they return row by row:

    row groups  ->  some columns   ->  bins  ->  tile = (d, n) bins of n rows, one after another
                    other columns  ->  bins  ->  in the same tiles

A tile is read back at once. The memory that this takes does not depend on the number of columns. It
is also faster where columns are many: each array that Arrow makes takes 20 us, however short it is.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sparrowboost.readers.base import Reading, reading_bytes
from sparrowboost.readers.formats import RowError, Source
from sparrowboost.readers.table import locate
from sparrowboost.runtime.disk import guard_disk, read_all, write_all
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.memory import release
from sparrowboost.runtime.threads import ordered_map
from sparrowboost.store.binning import BinnedBatch, Binning
from sparrowboost.store.fold_statistics import RowStatistics
from sparrowboost.store.lookup import Bins

WIDE = 400  # columns above which reading them apart is faster in any case
ARRAY_BYTES = 2 << 20  # of a batch of the columns that are read together
READER_ARRAYS = 4 * ARRAY_BYTES  # two batches, one of them growing, and their bins
READER_BYTES = 48_000_000  # of the columns that a thread reads together; more is not faster
MAX_ROWS = 65_536  # of a batch
SCRATCH_BYTES = 256 << 20  # of bins in scratch, unless a row group has more


@dataclass(frozen=True)
class ColumnPlan:
    """How columns are read apart."""

    reader_bytes: int  # that the columns which a thread reads together may take
    n_readers: int  # threads

    @property
    def n_bytes(self) -> int:
        """Memory that reading takes."""
        return self.n_readers * (self.reader_bytes + READER_ARRAYS)

    def parts(self, columns: Sequence[Reading]) -> list[slice]:
        """Which columns to read together; at least one."""
        parts, start = [], 0
        for stop in range(1, len(columns) + 1):
            too_many = reading_bytes(columns[start:stop]) > self.reader_bytes
            if too_many and stop - start > 1:
                parts.append(slice(start, stop - 1))
                start = stop - 1
        return [*parts, slice(start, len(columns))]


def least_reading(source: Source, columns: Sequence[str]) -> int:
    """The least memory in which these columns of a source can be read."""
    together, apart = source.reading_bytes(columns), source.reading(columns)
    if not apart:
        return together
    return min(together, _largest(apart) + READER_ARRAYS)


def plan_columns(
    source: Source, columns: Sequence[str], n_bytes: int, n_jobs: int
) -> ColumnPlan | None:
    """How to read columns in about `n_bytes`, but at least `least_reading`.

    None: together, because that fits, or because the source has no other way.
    """
    apart = source.reading(columns)
    if not apart or (len(columns) <= WIDE and source.reading_bytes(columns) <= n_bytes):
        return None
    largest = _largest(apart)
    n_readers = max(1, min(n_jobs, n_bytes // (largest + READER_ARRAYS)))
    share = min(READER_BYTES, n_bytes // n_readers - READER_ARRAYS)
    return ColumnPlan(max(largest, share), n_readers)


def _largest(columns: Sequence[Reading]) -> int:
    """Bytes of the column whose reading takes the most."""
    return max(reading_bytes([column]) for column in columns)


class Tile(NamedTuple):
    """Rows whose bins lie side by side in scratch: those of a column, then those of the next."""

    start: int  # number of its first row among those in scratch
    n_rows: int


class BinnedColumns:
    """A source read column by column.

    Parameters
    ----------
    source : Source
        With partitions.
    binning : Binning
    names : list of str
        The columns of the features in the source.
    plan : ColumnPlan
    scratch : Path
        The folder for the temporary file.
    keep : list of str
        Columns to return as they are, too, if they are features.
    statistics : RowStatistics, optional
        Of rows that the binning's statistics were made from.
    """

    def __init__(
        self,
        source: Source,
        binning: Binning,
        names: Sequence[str],
        plan: ColumnPlan,
        scratch: Path,
        keep: Sequence[str] = (),
        statistics: RowStatistics | None = None,
    ) -> None:
        self._statistics = statistics
        self._features = {*names} - {*keep}
        self._source, self._binning, self._names = source, binning, list(names)
        self._plan, self._scratch = plan, scratch
        reading = source.reading(self._names)
        assert reading is not None
        self._parts = [
            (part, sum(column.row for column in reading[part])) for part in plan.parts(reading)
        ]

    def blocks(
        self, columns: Sequence[str], rows: int, only: Sequence[int] | None = None
    ) -> Iterator[BinnedBatch]:
        """As `Source.blocks`: those of the columns that are features are binned."""
        others = [name for name in columns if name not in self._features]
        lengths = self._source.partitions()
        for numbers in self._groups(lengths, range(len(lengths)) if only is None else only):
            yield from self._group(numbers, lengths, others, rows)

    def _groups(self, lengths: Sequence[int], numbers: Sequence[int]) -> Iterator[list[int]]:
        """Partitions in groups whose bins are in scratch at the same time."""
        most = SCRATCH_BYTES // len(self._binning.features)
        group: list[int] = []
        n = 0
        for number in numbers:
            if group and n + lengths[number] > most:
                yield group
                group, n = [], 0
            group.append(number)
            n += lengths[number]
        if group:
            yield group

    def _group(
        self, numbers: Sequence[int], lengths: Sequence[int], others: Sequence[str], rows: int
    ) -> Iterator[BinnedBatch]:
        """The rows of some partitions."""
        ends = list(accumulate(lengths[number] for number in numbers))
        tiles = [
            Tile(at, min(rows, end - at))
            for end, number in zip(ends, numbers, strict=True)
            for at in range(end - lengths[number], end, rows)
        ]
        with (
            guard_disk(
                self._scratch / "bins", ends[-1] * len(self._binning.features), only_space=True
            ),
            tempfile.TemporaryFile(dir=self._scratch, buffering=0) as opened,
        ):
            file = opened.fileno()
            scratch = _Scratch(file, tiles, rows, len(self._binning.features))

            def read(part: tuple[slice, float]) -> None:
                self._bin_part(*part, numbers, lengths, scratch)

            n = self._plan.n_readers
            with closing(ordered_map(read, self._parts, n, n)) as done:
                for _ in done:
                    pass
            release()  # what readers leave behind, before blocks are on the way
            empty = pa.RecordBatch.from_arrays([], names=[])
            with_others = self._source.blocks(others, rows, numbers) if others else None
            for tile in tiles:
                batch = empty if with_others is None else next(with_others, None)
                if batch is None or (batch is not empty and batch.num_rows != tile.n_rows):
                    raise self._too_short()
                yield BinnedBatch(scratch.read(tile), batch)

    def _bin_part(
        self,
        part: slice,
        row_bytes: float,
        numbers: Sequence[int],
        lengths: Sequence[int],
        scratch: _Scratch,
    ) -> None:
        """Bin some columns of some partitions into scratch."""
        names = self._names[part]
        binning, d = self._binning.part(part), len(names)
        # The statistics of these columns, too, are side by side.
        first = len(self._names) + int(
            (self._binning.column_of[len(self._names) :] < part.start).sum()
        )
        rows = max(1, min(MAX_ROWS, int(ARRAY_BYTES / max(row_bytes, 1))))
        rows -= rows % scratch.rows if rows > scratch.rows else 0
        at = 0
        for batch in self._source.blocks(names, rows, numbers):
            bins = np.empty((len(binning.features), batch.num_rows), np.uint8)
            rows_of = None
            if self._statistics is not None:
                row = _row_in_source(at, numbers, lengths)
                rows_of = self._statistics.of_rows(binning, row, batch.num_rows)
            try:
                named = batch.select(names).rename_columns(binning.column_names)
                binning.apply(named, bins.T, rows_of)
            except RowError as error:
                row = _row_in_source(at, numbers, lengths)
                place = locate(self._source, row + error.row)
                raise DataError(f"{place}: {error}") from None
            scratch.write(bins[:d], part.start, at)
            if len(bins) > d:
                scratch.write(bins[d:], first, at)
            at += batch.num_rows
        if at != scratch.n_rows:
            raise self._too_short()

    def _too_short(self) -> DataError:
        return DataError(f"{self._source.name}: has fewer rows than it says; write it again.")


def _row_in_source(row: int, numbers: Sequence[int], lengths: Sequence[int]) -> int:
    """The number of a row of some partitions among all rows."""
    for number in numbers:
        if row < lengths[number]:
            return row + sum(lengths[:number])
        row -= lengths[number]
    raise IndexError(row)


class _Scratch:
    """Tiles in a file."""

    def __init__(self, file: int, tiles: Sequence[Tile], rows: int, n_columns: int) -> None:
        self._file, self._tiles, self._n_columns = file, tiles, n_columns
        self._starts = [tile.start for tile in tiles]
        self.rows = rows  # of most tiles
        self.n_rows = sum(tile.n_rows for tile in tiles)

    def write(self, bins: Bins, first: int, at: int) -> None:
        """Write bins (k, n) of columns from `first` on, of rows from `at` on."""
        stop = at + bins.shape[1]
        row = at
        while row < stop:
            tile = self._tiles[bisect_right(self._starts, row) - 1]
            n = min(stop, tile.start + tile.n_rows) - row
            offset = tile.start * self._n_columns + first * tile.n_rows
            piece = np.ascontiguousarray(bins[:, row - at : row - at + n])
            if n == tile.n_rows:
                write_all(self._file, piece, offset)
            else:
                for j, column in enumerate(piece):
                    write_all(self._file, column, offset + j * tile.n_rows + row - tile.start)
            row += n

    def read(self, tile: Tile) -> Bins:
        """The bins (d, n) of a tile."""
        bins = np.empty((self._n_columns, tile.n_rows), np.uint8)
        if read_all(self._file, bins, tile.start * self._n_columns) < bins.nbytes:
            raise OSError("a temporary file was cut off")
        return bins
