"""Sparse rows: of each row the columns that are not zero, and their values.

Sources of such rows can be read densely, as any other, or as `SparseRows`. Their columns have
numbers: column 17 is called f17.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost.readers.columns import Kind

ENTRY_BYTES = 24  # of an entry: as text, its column and its value
NUMBERED = re.compile(r"f(0|[1-9][0-9]{0,8})")


def number_of(name: str) -> int:
    """The number of a column; -1 if its name is not that of one with a number.

    Examples
    --------
    >>> number_of("f17"), number_of("f017"), number_of("label")
    (17, -1, -1)
    """
    match = NUMBERED.fullmatch(name)
    return -1 if match is None else int(match[1])


class NumberedColumns(Sequence[str]):
    """The names of numbered columns, after those of some others, as a list that takes no memory.

    `most`: columns up to that number count as there, too; all their values are zero.

    Examples
    --------
    >>> columns = NumberedColumns(1, 1_000_000, ("label",))
    >>> len(columns), columns[:3], "f1000000" in columns
    (1000001, ['label', 'f1', 'f2'], True)
    """

    def __init__(
        self, first: int, last: int, others: Sequence[str] = (), most: int | None = None
    ) -> None:
        self.first, self.last, self.others = first, last, tuple(others)
        self._most = last if most is None else most

    def __len__(self) -> int:
        return len(self.others) + self.last + 1 - self.first

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> list[str]: ...

    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        others = self.others
        return others[at] if at < len(others) else f"f{self.first + at - len(others)}"

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        return name in self.others or self.first <= number_of(name) <= self._most

    def __iter__(self) -> Iterator[str]:
        yield from self.others
        for number in range(self.first, self.last + 1):
            yield f"f{number}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class SparseBatch:
    """Some rows; it has those properties of a record batch that are asked for."""

    start: npt.NDArray[np.int64]  # (n + 1,) where the entries of each row are
    index: npt.NDArray[np.int32]  # number of the column of each entry
    value: npt.NDArray[np.float64]
    others: pa.RecordBatch  # columns without a number

    @property
    def num_rows(self) -> int:
        return len(self.start) - 1

    def column(self, name: str) -> pa.Array:
        return self.others.column(name)


@dataclass
class Survey:
    """What a pass over the entries of all rows tells.

    Attributes
    ----------
    columns : (c,) int64
        Entries of each column, by its number.
    lengths : (l,) int64
        Rows of each number of entries.
    missing : bool
        Whether some values may be missing.
    """

    columns: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    lengths: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    missing: bool = False

    @property
    def n_rows(self) -> int:
        return int(self.lengths.sum())

    @property
    def n_values(self) -> int:
        return int(self.columns.sum())

    @property
    def row_bytes(self) -> float:
        """About the memory that a row takes, and the text that it is read from."""
        return ENTRY_BYTES * (self.n_values / max(self.n_rows, 1) + 1)

    def add(self, start: npt.NDArray[np.int64], index: npt.NDArray[np.int32]) -> None:
        """Count the entries of some rows."""
        from sparrowboost.kernels.packed import count_entries

        if len(start) > 1:
            self.lengths = _grown(self.lengths, int(np.diff(start).max()) + 1)
        if len(index):
            self.columns = _grown(self.columns, int(index.max()) + 1)
        count_entries(start, index, self.columns, self.lengths)


def _grown(counts: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """The same counts with room for more, which need not grow again soon."""
    if size <= len(counts):
        return counts
    return np.concatenate((counts, np.zeros(size + size // 4 - len(counts), np.int64)))


class NumberedKinds(Mapping[str, Kind]):
    """The kinds of numbered columns, which all have the same."""

    def __init__(self, columns: NumberedColumns, kind: Kind) -> None:
        self._names, self._kind = NumberedColumns(columns.first, columns.last), kind

    def __getitem__(self, name: str) -> Kind:
        if name not in self._names:
            raise KeyError(name)
        return self._kind

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class SparseRows(Protocol):
    """The rows of a source, as they are."""

    def survey(self) -> Survey: ...

    def row_bytes(self) -> float:
        """Estimate of the memory that a row of a block takes."""
        ...

    def blocks(self, others: Sequence[str], rows: int) -> Iterator[SparseBatch]:
        """All rows in order, at most `rows` at a time, with other columns that are wanted."""
        ...

    def sample(self, rows: int, rng: np.random.Generator) -> Iterator[SparseBatch]:
        """About so many rows from all over the source."""
        ...


def sparse_rows(source: Any) -> SparseRows | None:
    """The rows of a source as they are, if they are sparse."""
    find: Callable[[], SparseRows | None] | None = getattr(source, "sparse_rows", None)
    return None if find is None else find()


@dataclass(frozen=True)
class GuardedRows:
    """Rows of a file that is watched while it is read."""

    rows: SparseRows
    watched: Callable[[Iterator[Any]], Iterator[Any]]

    def survey(self) -> Survey:
        return self.rows.survey()

    def row_bytes(self) -> float:
        return self.rows.row_bytes()

    def blocks(self, others: Sequence[str], rows: int) -> Iterator[SparseBatch]:
        return self.watched(self.rows.blocks(others, rows))

    def sample(self, rows: int, rng: np.random.Generator) -> Iterator[SparseBatch]:
        return self.watched(self.rows.sample(rows, rng))


@dataclass(frozen=True)
class JoinedRows:
    """Rows of several files of one table, which share a survey."""

    parts: Sequence[SparseRows]
    quotas: Callable[[int, np.random.Generator], npt.NDArray[np.int64]]

    def survey(self) -> Survey:
        return self.parts[0].survey()

    def row_bytes(self) -> float:
        return self.parts[0].row_bytes()

    def blocks(self, others: Sequence[str], rows: int) -> Iterator[SparseBatch]:
        for part in self.parts:
            yield from part.blocks(others, rows)

    def sample(self, rows: int, rng: np.random.Generator) -> Iterator[SparseBatch]:
        quotas = self.quotas(rows, rng)
        for part, quota in zip(self.parts, quotas.tolist(), strict=True):
            if quota:
                yield from part.sample(quota, rng)
