"""Tables in memory: arrays, sparse matrices, frames, Arrow tables."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost.readers.arrays import arrow_column, arrow_type, check_shape, field_types
from sparrowboost.readers.base import RandomAccessSource, check_names, random_runs
from sparrowboost.readers.columns import Kind, kind_of
from sparrowboost.readers.sparse import (
    ENTRY_BYTES,
    NumberedColumns,
    SparseBatch,
    SparseRows,
    Survey,
    number_of,
)
from sparrowboost.runtime.errors import DataError

SURVEYED_ROWS = 8_192  # of a sparse matrix, looked at together


def from_array(array: np.ndarray, name: str = "array") -> RandomAccessSource:
    """A numpy array: (n, d) with columns f0, f1, ..., or (n,) of records with named fields."""
    check_shape(array.dtype, array.shape, name)
    if array.dtype.names:
        return _from_records(array, name)
    names = [f"f{j}" for j in range(array.shape[1])]
    if array.dtype == object:
        return _from_objects(array, names, name)
    type_ = arrow_type(array.dtype, name)
    index = {column: j for j, column in enumerate(names)}

    def read(start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        wanted = [index[c] for c in columns]
        rows = array[start:stop]
        if wanted != list(range(len(names))):
            rows = rows[:, wanted]
        values = np.ascontiguousarray(np.ma.getdata(rows).T)
        masks = _mask(rows, values.shape)
        _drop_pages(array)
        pairs = zip(values, masks, strict=True)
        return _batch([arrow_column(column, type_, mask) for column, mask in pairs], columns)

    schema = pa.schema([(c, type_) for c in names])
    return RandomAccessSource(name, schema, len(array), read, in_memory=not _is_mapped(array))


def _from_objects(array: np.ndarray, names: Sequence[str], name: str) -> RandomAccessSource:
    """An array of Python objects, each column of one type; None and masked ones are missing."""
    arrays = []
    for j, column in enumerate(names):
        try:
            arrays.append(pa.array(array[:, j].tolist()))
        except (pa.ArrowException, OverflowError) as error:
            raise DataError(
                f"{name}: column {column!r} mixes types ({error}); make each column one type, "
                "or pass a frame."
            ) from None
    return from_table(pa.table(arrays, list(names)), name)


def _from_records(array: np.ndarray, name: str) -> RandomAccessSource:
    types = field_types(array.dtype, name)

    def read(start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        arrays = []
        for c in columns:
            field = array[c][start:stop]
            values = np.ascontiguousarray(np.ma.getdata(field))
            mask = np.ma.getmaskarray(field) if np.ma.isMaskedArray(field) else None
            arrays.append(arrow_column(values, types[c], mask))
        _drop_pages(array)
        return _batch(arrays, columns)

    schema = pa.schema(list(types.items()))
    return RandomAccessSource(name, schema, len(array), read, in_memory=not _is_mapped(array))


def from_sparse(matrix: Any, name: str = "sparse matrix") -> SparseMatrix:
    """A scipy sparse matrix; absent values are zero."""
    return SparseMatrix(matrix.tocsr(), name)


class SparseMatrix(RandomAccessSource):
    """A scipy matrix of compressed rows, of which a million columns take no memory."""

    def __init__(self, matrix: Any, name: str) -> None:
        self._matrix, self._type = matrix, arrow_type(matrix.dtype, name)
        self._names = NumberedColumns(0, matrix.shape[1] - 1)
        super().__init__(name, pa.schema([]), matrix.shape[0], self._dense)

    @property
    def columns(self) -> Sequence[str]:  # type: ignore[override]
        return self._names

    def kind(self, column: str) -> Kind:
        return kind_of(column, self._type)

    def _dense(self, start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        rows = self._matrix[start:stop][:, [number_of(c) for c in columns]]
        return _batch([arrow_column(a, self._type) for a in rows.toarray(order="F").T], columns)

    def sparse_rows(self) -> SparseRows:
        return _MatrixRows(self._matrix)


@dataclass(frozen=True)
class _MatrixRows:
    """The rows of a matrix as they are."""

    matrix: Any

    def survey(self) -> Survey:
        survey = Survey()
        for batch in self.blocks((), SURVEYED_ROWS):
            survey.add(batch.start, batch.index)
            survey.missing = survey.missing or bool(np.isnan(batch.value).any())
        return survey

    def row_bytes(self) -> float:
        n_rows = max(self.matrix.shape[0], 1)
        return ENTRY_BYTES * (self.matrix.nnz / n_rows + 1)

    def blocks(self, others: Sequence[str], rows: int) -> Iterator[SparseBatch]:
        for start in range(0, self.matrix.shape[0], rows):
            yield self._read(start, start + rows)

    def sample(self, rows: int, rng: np.random.Generator) -> Iterator[SparseBatch]:
        for start, stop in random_runs(self.matrix.shape[0], rows, rng):
            yield self._read(start, stop)

    def _read(self, start: int, stop: int) -> SparseBatch:
        rows = self.matrix[start:stop]
        rows.sum_duplicates()  # a slice is a copy
        index, value = rows.indices.astype(np.int32), rows.data.astype(np.float64)
        none = pa.RecordBatch.from_struct_array(pa.nulls(rows.shape[0], pa.struct([])))
        return SparseBatch(rows.indptr.astype(np.int64), index, value, none)


def from_table(table: pa.Table, name: str = "table") -> RandomAccessSource:
    """An Arrow table."""
    check_names(name, table.schema.names)

    def read(start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        return one_batch(table.select(list(columns)).slice(start, stop - start))

    return RandomAccessSource(name, table.schema, table.num_rows, read)


def from_pandas(frame: Any, name: str = "frame") -> RandomAccessSource:
    """A pandas frame, converted to Arrow slice by slice."""
    check_names(name, [str(c) for c in frame.columns])
    sparse = [c for c, dtype in frame.dtypes.items() if type(dtype).__name__ == "SparseDtype"]
    if sparse:
        raise DataError(
            f"{name}: column {sparse[0]!r} is sparse; pass frame.sparse.to_dense(), or "
            "frame.sparse.to_coo() if all columns are."
        )
    schema = _pandas_schema(frame, name)
    index = {column: j for j, column in enumerate(schema.names)}

    # Plain numbers are views of numpy arrays, which are sliced much faster than a frame.
    plain = {
        column: frame.iloc[:, j].to_numpy()
        for j, (column, dtype) in enumerate(zip(schema.names, frame.dtypes, strict=True))
        if isinstance(dtype, np.dtype) and dtype.kind in "iufb"
    }

    def column_of(column: str, start: int, stop: int) -> pa.Array:
        type_ = schema.field(column).type
        if column in plain:
            return pa.array(plain[column][start:stop].copy(), type=type_, from_pandas=True)
        array = pa.Array.from_pandas(frame.iloc[start:stop, index[column]], type=type_)
        return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array

    def read(start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        arrays = [column_of(column, start, stop) for column in columns]
        return pa.RecordBatch.from_arrays(arrays, list(columns))

    names = zip(frame.columns, schema.names, strict=True)
    lookup = {label: column for label, column in names if not isinstance(label, str)}
    return RandomAccessSource(name, schema, len(frame), read, lookup=lookup)


def _pandas_schema(frame: Any, name: str) -> pa.Schema:
    try:
        return pa.Schema.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if frame.shape[1] > 1:  # find the column at fault
            for j in range(frame.shape[1]):
                _pandas_schema(frame.iloc[:, [j]], name)
        raise DataError(
            f"{name}: column {frame.columns[0]!r} has mixed types, or one that cannot be read "
            f"({error}); make each column one type."
        ) from None


def from_polars(frame: Any, name: str = "frame") -> RandomAccessSource:
    """A polars frame, converted to Arrow slice by slice."""

    def read(start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        return one_batch(frame.select(list(columns)).slice(start, stop - start).to_arrow())

    return RandomAccessSource(name, polars_schema(frame, name), frame.height, read)


def polars_schema(frame: Any, name: str) -> pa.Schema:
    """The Arrow types of a polars frame; a DataError names a column that has none."""
    for column, dtype in frame.schema.items():
        if str(dtype).startswith("Object"):  # newer versions give the objects' addresses
            raise DataError(
                f"{name}: column {column!r} is {dtype}, which Arrow cannot hold; cast it to "
                "another type, or drop it."
            )
    try:
        return frame.head(0).to_arrow().schema
    except pa.ArrowException as error:
        if frame.width > 1:  # find the column at fault
            for column in frame.columns:
                polars_schema(frame.select(column), name)
        raise DataError(
            f"{name}: column {frame.columns[0]!r} is {frame.dtypes[0]}, which Arrow cannot hold "
            f"({error}); cast it to another type, or drop it."
        ) from None


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """A short table as a single batch."""
    batches = table.unify_dictionaries().combine_chunks().to_batches()
    if batches:
        return batches[0]
    return pa.RecordBatch.from_pylist([], table.schema)


def _mask(rows: np.ndarray, shape: tuple[int, ...]) -> Sequence[npt.NDArray[np.bool_] | None]:
    """The mask of each column of `rows`, None if the array has none; `shape` is (d, n)."""
    if not np.ma.isMaskedArray(rows):
        return [None] * shape[0]
    return list(np.ascontiguousarray(np.ma.getmaskarray(rows).T))


def _batch(arrays: list[pa.Array], columns: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def _is_mapped(array: np.ndarray) -> bool:
    """Whether this is a read-only memory map, whose pages can be dropped and read again.

    What is written to a private map ("c") exists only in its pages.
    """
    return isinstance(array, np.memmap) and array.mode == "r"


def _drop_pages(array: np.ndarray) -> None:
    """Drop the pages of a memory map, which count as memory of this process while they stay."""
    pages: Any = getattr(array, "_mmap", None)
    if _is_mapped(array) and hasattr(pages, "madvise"):
        pages.madvise(mmap.MADV_DONTNEED)
