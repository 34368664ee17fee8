"""What every source of rows can do, and what sources are put together from.

A source is read once from front to back for its rows (`blocks`), and peeked at in many random
places for its bins (`peek`). The head of a table is never taken for the whole of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from sparrowboost.errors import DataError
from sparrowboost.sources.columns import Kind, join_kinds, kind_of

# As many places as a feature has bins: even a sorted column gets a value near each quantile.
PLACES = 256


class Source(Protocol):
    """A table, or a part of one, read as record batches."""

    name: str  # what messages call it
    n_rows: int  # an estimate unless exact_rows
    exact_rows: bool
    in_memory: bool  # the caller holds the rows already

    @property
    def columns(self) -> Sequence[str]: ...

    def kind(self, column: str) -> Kind:
        """The kind of a column; a DataError if it can be no feature."""
        ...

    def reading_bytes(self, columns: Sequence[str]) -> int:
        """About what reading takes in memory beside the blocks that it gives."""
        ...

    def blocks(self, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """All rows in order, at most `rows` at a time."""
        ...

    def peek(
        self, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch]:
        """About `rows` rows from all over the source (all of them, if it has no more).

        A batch may hold some of the columns only: what is asked for is each column's
        distribution, not whole rows.
        """
        ...


@dataclass
class Sliced:
    """Rows that can be read from any place: arrays, frames, memory maps."""

    name: str
    schema: pa.Schema
    n_rows: int
    read: Callable[[int, int, Sequence[str]], pa.RecordBatch]  # start, stop, columns
    in_memory: bool = True
    exact_rows: bool = True

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    def kind(self, column: str) -> Kind:
        return kind_of(column, self.schema.field(column).type)

    def reading_bytes(self, columns: Sequence[str]) -> int:
        return 0

    def blocks(self, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        for start in range(0, self.n_rows, rows):
            yield self.read(start, min(start + rows, self.n_rows), columns)

    def peek(
        self, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch]:
        for start, stop in random_runs(self.n_rows, rows, rng):
            yield self.read(start, stop, columns)


def random_runs(n: int, wanted: int, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Runs [start, stop) of `wanted` items in all, one at a random place of each of PLACES parts.

    Examples
    --------
    >>> list(random_runs(3, 10, np.random.default_rng(0)))
    [(0, 3)]
    """
    if wanted >= n:
        yield 0, n
        return
    places = min(PLACES, wanted)
    edges = np.linspace(0, n, places + 1).astype(np.int64)
    length = math.ceil(wanted / places)
    for low, high in itertools.pairwise(edges):
        start = int(rng.integers(low, max(low, high - length) + 1))
        yield start, min(start + length, int(high))


def thin(batch: pa.RecordBatch, share: float, rng: np.random.Generator) -> pa.RecordBatch:
    """Each row of the batch kept with probability `share`."""
    if share >= 1:
        return batch
    return batch.filter(pa.array(rng.random(batch.num_rows) < share))


class Files:
    """Several sources with the same columns, one after the other."""

    in_memory = False

    def __init__(self, parts: Sequence[Source]) -> None:
        first = parts[0]
        self.parts = parts
        self.name = first.name if len(parts) == 1 else f"{first.name} and {len(parts) - 1} more"
        self.columns = first.columns
        self.n_rows = sum(part.n_rows for part in parts)
        self.exact_rows = all(part.exact_rows for part in parts)
        for part in parts[1:]:
            if set(part.columns) != set(first.columns):
                raise DataError(_differing_columns(first, part))

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

    def reading_bytes(self, columns: Sequence[str]) -> int:
        # Files of one table are much alike; one is looked into, there may be thousands.
        return self.parts[0].reading_bytes(columns)

    def blocks(self, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        for part in self.parts:
            yield from part.blocks(columns, rows)

    def peek(
        self, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch]:
        sizes = np.array([part.n_rows for part in self.parts], dtype=np.float64)
        chosen = np.arange(len(self.parts))
        if len(chosen) > PLACES and rows < self.n_rows:
            chosen = np.sort(rng.choice(chosen, PLACES, replace=False, p=sizes / sizes.sum()))
            sizes = np.ones(len(chosen))  # the choice went by size already
        else:
            sizes = sizes[chosen]
        quotas = np.ceil(rows * sizes / sizes.sum()).astype(np.int64)
        for index, quota in zip(chosen, quotas, strict=True):
            yield from self.parts[int(index)].peek(columns, int(quota), rng)


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
