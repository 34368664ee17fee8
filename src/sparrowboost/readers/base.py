"""The interface of a source of rows, and the parts that sources share.

A source is sampled at many random positions to find bins (`sample`), then read once (`blocks`):
from front to back, or by `partitions` in random order if it has any. The first rows of a table are
never assumed to represent all of it.
"""

from __future__ import annotations

import errno
import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost.readers.arrays import from_numpy
from sparrowboost.readers.columns import Kind, join_kinds, kind_of
from sparrowboost.readers.files import Location
from sparrowboost.readers.sparse import GuardedRows, JoinedRows, SparseRows, sparse_rows
from sparrowboost.runtime.disk import read_all
from sparrowboost.runtime.errors import DataError, RemoteError, StoreError
from sparrowboost.runtime.remote import RemotePath

A = TypeVar("A")
Stamp = tuple[int | str, ...]

# As many as a feature has bins: even a sorted column gets a value near each quantile.
SAMPLE_RUNS = 256
PARTITION_ROWS = 1 << 16  # of sources with random access
VALUE_BYTES = 8  # of a value as read, if it is not measured


class Reading(NamedTuple):
    """Bytes that reading a column takes."""

    open: float  # as long as it is being read
    page: float  # while a page is unpacked: one column at a time
    row: float  # of a row that is returned


def reading_bytes(columns: Iterable[Reading]) -> int:
    """Bytes that reading these columns side by side takes, without the rows returned."""
    columns = list(columns)
    return int(sum(c.open for c in columns) + max((c.page for c in columns), default=0))


@dataclass(frozen=True)
class DiscardSample:
    """Sent while sampling: drop these columns' values since the last `PART_DONE`; better follow."""

    columns: tuple[str, ...]


PART_DONE = DiscardSample(())  # sent after each part of a source: its sample is final


class Source(Protocol):
    """A table, or a part of one, read as record batches."""

    name: str  # what messages call it
    n_rows: int  # an estimate unless exact_rows
    exact_rows: bool
    in_memory: bool  # the caller holds the rows already

    @property
    def columns(self) -> Sequence[str]: ...

    def kind(self, column: str) -> Kind:
        """The kind of a column; a DataError if it cannot be a feature."""
        ...

    def reading_bytes(self, columns: Sequence[str]) -> int:
        """Estimate of the memory that reading takes in addition to the blocks returned."""
        ...

    def reading(self, columns: Sequence[str]) -> list[Reading] | None:
        """The same by column, if columns can be read in several passes at little more cost."""
        ...

    def row_bytes(self, columns: Sequence[str]) -> float:
        """Estimate of the memory that a row of a block takes."""
        ...

    def limit_reading(self, n_bytes: int) -> None:
        """Let `sample` take no more memory than this, where columns can be read apart."""
        ...

    def partitions(self) -> list[int]:
        """Rows of each part that can be read on its own; empty if rows only come in order."""
        ...

    def blocks(
        self, columns: Sequence[str], rows: int, only: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """All rows in order, at most `rows` at a time.

        `only` lists partitions by number: these alone are read, in this order, and no batch spans
        two of them. A source without partitions never gets it.
        """
        ...

    def sample(
        self, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch | DiscardSample]:
        """About `rows` rows from all over the source, or all rows if it has fewer.

        A batch may hold only some of the columns: the aim is each column's distribution, not whole
        rows. The same state of `rng` gives the same rows.
        """
        ...


class JoinedColumns:
    """What sources say whose columns are read together."""

    def reading(self, columns: Sequence[str]) -> list[Reading] | None:
        return None

    def row_bytes(self, columns: Sequence[str]) -> float:
        return VALUE_BYTES * len(columns)

    def limit_reading(self, n_bytes: int) -> None:
        pass


@dataclass
class RandomAccessSource(JoinedColumns):
    """Rows that can be read from any position: arrays, frames, .npy files."""

    name: str
    schema: pa.Schema
    n_rows: int
    read: Callable[[int, int, Sequence[str]], pa.RecordBatch]  # start, stop, columns
    in_memory: bool = True
    exact_rows: bool = True
    # Column labels that are not strings, with the names used here.
    lookup: Mapping[Any, str] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    def kind(self, column: str) -> Kind:
        return kind_of(column, self.schema.field(column).type)

    def reading_bytes(self, columns: Sequence[str]) -> int:
        return 0

    def partitions(self) -> list[int]:
        full, rest = divmod(self.n_rows, PARTITION_ROWS)
        return [PARTITION_ROWS] * full + [rest] * (rest > 0)

    def blocks(
        self, columns: Sequence[str], rows: int, only: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        firsts = [0] if only is None else [PARTITION_ROWS * number for number in only]
        length = self.n_rows if only is None else PARTITION_ROWS
        for first in firsts:
            end = min(first + length, self.n_rows)
            for start in range(first, end, rows):
                yield self.read(start, min(start + rows, end), columns)

    def sample(
        self, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch]:
        for start, stop in random_runs(self.n_rows, rows, rng):
            yield self.read(start, stop, columns)


def random_runs(n: int, wanted: int, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Runs [start, stop) of `wanted` items in all, one at random within each of SAMPLE_RUNS parts.

    Examples
    --------
    >>> list(random_runs(3, 10, np.random.default_rng(0)))
    [(0, 3)]
    """
    if wanted >= n:
        yield 0, n
        return
    n_runs = min(SAMPLE_RUNS, wanted)
    edges = np.linspace(0, n, n_runs + 1).astype(np.int64)
    length = math.ceil(wanted / n_runs)
    for low, high in itertools.pairwise(edges):
        start = int(rng.integers(low, max(low, high - length) + 1))
        yield start, min(start + length, int(high))


def thin(batch: pa.RecordBatch, share: float, rng: np.random.Generator) -> pa.RecordBatch:
    """Each row of the batch kept with probability `share`."""
    if share >= 1:
        return batch
    return batch.filter(from_numpy(rng.random(batch.num_rows) < share))


class ChangeGuard:
    """Raises a DataError if a file changes while it is being read.

    Changed bytes need not look damaged: a text cut off at the end of a line is still a text, and
    overwritten numbers are still numbers. So the file is checked before and after each block, and
    when a block cannot be read.

    Parameters
    ----------
    path : Path or RemotePath
        In remote storage each check is a request: there, one after all blocks has to do.
    name : str
        What messages call it.
    was : tuple
        Its `stamp` before it was opened.
    """

    def __init__(self, path: Location, name: str, was: Stamp) -> None:
        self._path, self._name, self._was = path, name, was

    def check(self) -> None:
        try:
            how = "" if stamp(self._path) == self._was else "was changed"
        except OSError as error:
            how = f"cannot be read any more ({error.strerror})"
        if how:
            raise DataError(
                f"{self._name}: {how} while it was in use; try again when nothing writes to it."
            )

    def check_block(self) -> None:
        """The check beside each block."""
        if not isinstance(self._path, RemotePath):
            self.check()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Check before and after, and on a DataError, whose real cause may be a change."""
        self.check_block()
        try:
            yield
        except RemoteError:
            raise
        except DataError:
            self.check()
            raise
        self.check()


class GuardedSource:
    """A file as a source, watched by a `ChangeGuard`."""

    def __init__(self, source: Source, path: Location, was: Stamp) -> None:
        self.name, self.columns = source.name, source.columns
        self.n_rows, self.exact_rows = source.n_rows, source.exact_rows
        self.in_memory = source.in_memory
        self.kind, self.reading_bytes = source.kind, source.reading_bytes
        self.reading, self.row_bytes = source.reading, source.row_bytes
        self.limit_reading = source.limit_reading
        self._source, self._file = source, ChangeGuard(path, source.name, was)

    def partitions(self) -> list[int]:
        return self._source.partitions()

    def blocks(
        self, columns: Sequence[str], rows: int, only: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        return self._guarded(self._source.blocks(columns, rows, only))

    def sample(
        self, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch | DiscardSample]:
        return self._guarded(self._source.sample(columns, rows, rng))

    def sparse_rows(self) -> SparseRows | None:
        rows = sparse_rows(self._source)
        return None if rows is None else GuardedRows(rows, self._guarded)

    def _guarded(self, items: Iterator[A]) -> Iterator[A]:
        with self._file.watch():
            for item in items:
                yield item
                self._file.check_block()


def stamp(path: Location) -> Stamp:
    """Identity, size and time of a file: these change when it is replaced or written to."""
    if isinstance(path, RemotePath):
        return path.stamp()
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def read_exactly(file: int, out: npt.NDArray[np.uint8], offset: int) -> None:
    """Fill `out` with the bytes at an offset of a file; an OSError if the file ends before.

    Users' files are read this way, not through memory maps: touching a map behind the end of a
    truncated file kills the process.
    """
    if read_all(file, out, offset) < out.nbytes:
        raise OSError("it ends too early")


class ConcatenatedSource:
    """Several sources with the same columns, one after another; empty ones are left out."""

    in_memory = False

    def __init__(self, parts: Sequence[Source]) -> None:
        first = parts[0]
        self.name = first.name if len(parts) == 1 else f"{first.name} and {len(parts) - 1} more"
        self.columns = first.columns
        for part in parts[1:]:
            # Thousands of files may share one list of a million names.
            if part.columns is not self.columns and set(part.columns) != set(first.columns):
                raise DataError(_differing_columns(first, part))
        self.parts = [part for part in parts if part.n_rows] or [first]
        self.n_rows = sum(part.n_rows for part in self.parts)
        self.exact_rows = all(part.exact_rows for part in self.parts)

    def kind(self, column: str) -> Kind:
        kind = self.parts[0].kind(column)
        for part in self.parts[1:]:
            joined = join_kinds(kind, part.kind(column))
            if joined is None:
                raise DataError(
                    f"column {column!r} is {kind} in {self.parts[0].name} and "
                    f"{part.kind(column)} in {part.name}; make the files agree, "
                    "or pass categorical= to read it as categories in both."
                )
            kind = joined
        return kind

    @cached_property
    def _largest(self) -> Source:
        """Files of one table are much alike, and there may be thousands: one stands for all."""
        return max(self.parts, key=lambda part: max(part.partitions(), default=part.n_rows))

    def reading_bytes(self, columns: Sequence[str]) -> int:
        return self._largest.reading_bytes(columns)

    def reading(self, columns: Sequence[str]) -> list[Reading] | None:
        return self._largest.reading(columns) if self.partitions() else None

    def row_bytes(self, columns: Sequence[str]) -> float:
        return self._largest.row_bytes(columns)

    def limit_reading(self, n_bytes: int) -> None:
        for part in self.parts:
            part.limit_reading(n_bytes)

    def partitions(self) -> list[int]:
        of_parts = [part.partitions() for part in self.parts]
        return list(itertools.chain(*of_parts)) if all(of_parts) else []

    def blocks(
        self, columns: Sequence[str], rows: int, only: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        if only is None:
            for part in self.parts:
                yield from part.blocks(columns, rows)
            return
        ends = list(itertools.accumulate(len(part.partitions()) for part in self.parts))
        for i, some in itertools.groupby(only, key=lambda number: bisect_right(ends, number)):
            first = ends[i - 1] if i else 0
            yield from self.parts[i].blocks(columns, rows, [number - first for number in some])

    def sample(
        self, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch | DiscardSample]:
        quotas = self._quotas(rows, rng)
        # A seed for each part: what one of them draws does not change the sample of the next.
        seeds = rng.integers(2**63, size=len(quotas))
        for part, quota, seed in zip(self.parts, quotas, seeds, strict=True):
            if quota:
                yield from part.sample(columns, int(quota), np.random.default_rng(seed))
                yield PART_DONE

    def sparse_rows(self) -> SparseRows | None:
        rows = [sparse_rows(part) for part in self.parts]
        known = [each for each in rows if each is not None]
        return JoinedRows(known, self._quotas) if len(known) == len(rows) else None

    def _quotas(self, rows: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """How many rows to sample from each part, so that of many parts few are opened.

        Random runs are laid over all rows as if they were one file; each part contributes the rows
        that fall into it.
        """
        ends = np.cumsum([part.n_rows for part in self.parts], dtype=np.int64)
        starts = np.append(0, ends[:-1])
        quotas = np.zeros(len(ends), np.int64)
        for low, high in random_runs(self.n_rows, rows, rng):
            touched = slice(np.searchsorted(ends, low, "right"), np.searchsorted(starts, high))
            quotas[touched] += np.minimum(ends[touched], high) - np.maximum(starts[touched], low)
        return quotas


def check_names(name: str, columns: Sequence[str]) -> None:
    """A DataError if two columns of source `name` have the same name."""
    if len(set(columns)) < len(columns):
        twice = next(c for c, n in Counter(columns).items() if n > 1)
        raise DataError(
            f"{name}: column {twice!r} appears more than once; column names must be unique."
        )


@contextmanager
def read_errors(name: str) -> Iterator[None]:
    """Turn the system's errors about a file into a DataError that names it."""
    try:
        yield
    except StoreError:  # an OSError with a message of its own
        raise
    except FileNotFoundError:
        raise DataError(f"{name}: no such file.") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # concerns scratch, not this file
            raise
        raise DataError(f"{name}: cannot be read ({error.strerror or error}).") from None


def _differing_columns(a: Source, b: Source) -> str:
    only_a = sorted(set(a.columns) - set(b.columns))
    only_b = sorted(set(b.columns) - set(a.columns))
    parts = [
        f"only {source.name} has {', '.join(map(repr, names[:5]))}"
        + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        for source, names in ((a, only_a), (b, only_b))
        if names
    ]
    return (
        f"{a.name} and {b.name} have different columns: {'; '.join(parts)}. "
        "Ingest files of one table at a time, or make their columns agree."
    )
