"""A source whose columns have other names than in its file, or the same value in all rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from sparrowboost.readers.base import DiscardSample, Reading, Source
from sparrowboost.readers.columns import Kind, is_text, kind_of
from sparrowboost.runtime.errors import DataError

INDEX_BYTES = 1  # of a constant text, in a dictionary


class MappedSource:
    """A source under other column names, and with columns that are constant.

    Folders such as ``year=2024`` say what a column is in all rows of their files; a table whose
    columns were renamed or added since has older files without them.

    Parameters
    ----------
    source : Source
    columns : mapping of str to str or pyarrow.Scalar
        For each column its name in the source, or its value.
    """

    def __init__(self, source: Source, columns: Mapping[str, str | pa.Scalar]) -> None:
        self._source = source
        self._names = {new: old for new, old in columns.items() if isinstance(old, str)}
        self._values = {
            name: value for name, value in columns.items() if not isinstance(value, str)
        }
        self.columns = list(columns)
        self.name, self.n_rows, self.exact_rows = source.name, source.n_rows, source.exact_rows
        self.in_memory, self.limit_reading = source.in_memory, source.limit_reading
        self.partitions = source.partitions

    def kind(self, column: str) -> Kind:
        if column in self._values:
            return kind_of(column, self._values[column].type)
        return self._source.kind(self._names[column])

    def reading_bytes(self, columns: Sequence[str]) -> int:
        return self._source.reading_bytes(self._read(columns))

    def reading(self, columns: Sequence[str]) -> list[Reading] | None:
        found = self._source.reading([self._names[c] for c in columns if c in self._names])
        if found is None:
            return None
        known = iter(found)
        return [
            Reading(0, 0, self._value_bytes(c)) if c in self._values else next(known)
            for c in columns
        ]

    def row_bytes(self, columns: Sequence[str]) -> float:
        constant = sum(self._value_bytes(c) for c in columns if c in self._values)
        return self._source.row_bytes(self._read(columns)) + constant

    def blocks(
        self, columns: Sequence[str], rows: int, only: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        for batch in self._source.blocks(self._read(columns), rows, only):
            yield self._of(batch, columns)

    def sample(
        self, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch | DiscardSample]:
        """The source's sample; constants come, and go, with the first column that is read."""
        read = self._read(columns)
        constants = [c for c in columns if c in self._values]
        new = {old: name for name, old in self._names.items()}
        for batch in self._source.sample(read, rows, rng):
            if isinstance(batch, DiscardSample):
                with_first = constants if read[0] in batch.columns else []
                names = [new[old] for old in batch.columns if new.get(old) in columns]
                yield DiscardSample((*names, *with_first))
                continue
            here = set(batch.schema.names)
            names = [c for c in columns if self._names.get(c) in here]
            yield self._of(batch, [*names, *(constants if read[0] in here else [])])

    def _read(self, columns: Sequence[str]) -> list[str]:
        """What to read for these columns: at least one column, which has the number of rows."""
        read = [self._names[c] for c in columns if c in self._names]
        return read or [self._any_column]

    @cached_property
    def _any_column(self) -> str:
        for column in self._source.columns:
            with suppress(DataError):  # it is nested
                self._source.kind(column)
                return column
        return self._source.columns[0]

    def _value_bytes(self, column: str) -> float:
        type_ = self._values[column].type
        return type_.bit_width / 8 if pt.is_primitive(type_) else INDEX_BYTES

    def _of(self, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        arrays = [
            repeated(self._values[c], batch.num_rows)
            if c in self._values
            else batch.column(self._names[c])
            for c in columns
        ]
        return pa.RecordBatch.from_arrays(arrays, list(columns))


def repeated(value: pa.Scalar, n: int) -> pa.Array:
    """The same value n times; text as a dictionary."""
    if not value.is_valid:
        return pa.nulls(n, value.type)
    if pt.is_string(value.type):
        index = pa.array(np.zeros(n, np.int8))
        return pa.DictionaryArray.from_arrays(index, pa.array([value.as_py()], pa.string()))
    return pa.repeat(value, n)


def match_columns(
    own: pa.Schema, schema: pa.Schema, keys: Mapping[str, Any]
) -> dict[str, str | pa.Scalar] | None:
    """Where each column of a table comes from in one of its files.

    From a column of the same name; or it is constant: a partition's value, or missing, if the file
    is older than the column. None if a column has changed its type.
    """
    columns: dict[str, str | pa.Scalar] = {}
    for field in schema:
        if field.name in own.names:
            if not alike(own.field(field.name).type, field.type):
                return None
            columns[field.name] = field.name
        else:
            columns[field.name] = pa.scalar(keys.get(field.name), field.type)
    return columns


def alike(a: pa.DataType, b: pa.DataType) -> bool:
    """Whether values of both types are the same to everyone who reads them."""
    if a == b or (is_text(a) and is_text(b)) or (pt.is_nested(a) and pt.is_nested(b)):
        return True
    try:
        kinds = kind_of("", a), kind_of("", b)
    except DataError:  # nested
        return False
    return kinds[0] == kinds[1] != "category"
