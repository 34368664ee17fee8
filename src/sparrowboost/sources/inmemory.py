"""Tables that the caller holds: arrays, sparse matrices, frames, Arrow tables."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sparrowboost.errors import DataError
from sparrowboost.sources.base import Sliced


def from_npy(path: Path, name: str) -> Sliced:
    """A .npy file, read through a memory map."""
    if not path.is_file():
        raise DataError(f"{name}: no such file.")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{name}: not a readable .npy file of numbers ({error}).") from None
    return from_array(array, name)


def from_array(array: np.ndarray, name: str = "array") -> Sliced:
    """A numpy array: (n, d) with columns f0, f1, ..., or (n,) of records with named fields."""
    if array.dtype.names:
        return _from_records(array, name)
    if array.ndim != 2:
        raise DataError(f"{name}: has shape {array.shape}; a table has rows and columns (n, d).")
    names = [f"f{j}" for j in range(array.shape[1])]
    if array.dtype == object:
        return from_table(pa.table([array[:, j].tolist() for j in range(len(names))], names), name)
    type_ = _arrow_type(array.dtype, name)
    place = {column: j for j, column in enumerate(names)}

    def read(start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        wanted = [place[c] for c in columns]
        rows = array[start:stop]
        if wanted != list(range(len(names))):
            rows = rows[:, wanted]
        block = np.ascontiguousarray(rows.T)
        _let_go(array)
        return _batch(list(block), columns, type_)

    schema = pa.schema([(c, type_) for c in names])
    return Sliced(name, schema, len(array), read, in_memory=not isinstance(array, np.memmap))


def _from_records(array: np.ndarray, name: str) -> Sliced:
    names = list(array.dtype.names or ())
    types = {c: _arrow_type(array.dtype[c], name) for c in names}

    def read(start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        arrays = [np.ascontiguousarray(array[c][start:stop]) for c in columns]
        _let_go(array)
        return pa.RecordBatch.from_arrays(
            [pa.array(_native(a), types[c]) for c, a in zip(columns, arrays, strict=True)],
            list(columns),
        )

    in_memory = not isinstance(array, np.memmap)
    return Sliced(name, pa.schema(list(types.items())), len(array), read, in_memory=in_memory)


def from_sparse(matrix: Any, name: str = "sparse matrix") -> Sliced:
    """A scipy sparse matrix; what is not stored is zero."""
    matrix = matrix.tocsr()
    names = [f"f{j}" for j in range(matrix.shape[1])]
    type_ = _arrow_type(matrix.dtype, name)
    place = {column: j for j, column in enumerate(names)}

    def read(start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        rows = matrix[start:stop][:, [place[c] for c in columns]]
        return _batch(list(rows.toarray(order="F").T), columns, type_)

    return Sliced(name, pa.schema([(c, type_) for c in names]), matrix.shape[0], read)


def from_table(table: pa.Table, name: str = "table") -> Sliced:
    """An Arrow table."""

    def read(start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        return one_batch(table.select(list(columns)).slice(start, stop - start))

    return Sliced(name, table.schema, table.num_rows, read)


def from_pandas(frame: Any, name: str = "frame") -> Sliced:
    """A pandas frame, turned into Arrow slice by slice."""
    try:
        schema = pa.Schema.from_pandas(frame, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{name}: a column mixes types ({error}); make each column one.") from None
    place = {column: j for j, column in enumerate(schema.names)}

    def read(start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        part = frame.iloc[start:stop, [place[c] for c in columns]]
        fields = [schema.field(c) for c in columns]
        arrays = [
            pa.Array.from_pandas(part.iloc[:, j], type=field.type)
            for j, field in enumerate(fields)
        ]  # fmt: skip
        return pa.RecordBatch.from_arrays(
            [a.combine_chunks() if isinstance(a, pa.ChunkedArray) else a for a in arrays],
            list(columns),
        )

    return Sliced(name, schema, len(frame), read)


def from_polars(frame: Any, name: str = "frame") -> Sliced:
    """A polars frame, turned into Arrow slice by slice."""

    def read(start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        return one_batch(frame.select(list(columns)).slice(start, stop - start).to_arrow())

    return Sliced(name, frame.head(0).to_arrow().schema, frame.height, read)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """A short table as a single batch."""
    batches = table.unify_dictionaries().combine_chunks().to_batches()
    if batches:
        return batches[0]
    return pa.RecordBatch.from_pylist([], table.schema)


def _arrow_type(dtype: np.dtype, name: str) -> pa.DataType:
    if dtype.kind == "f" and dtype.itemsize > 8:
        return pa.float64()
    try:
        return pa.from_numpy_dtype(dtype.newbyteorder("="))
    except (pa.ArrowNotImplementedError, TypeError):
        raise DataError(f"{name}: numpy type {dtype} is neither a number nor a string.") from None


def _native(array: np.ndarray) -> np.ndarray:
    """In the machine's byte order, and no wider than Arrow's floats."""
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _batch(arrays: list[np.ndarray], columns: Sequence[str], type_: pa.DataType) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(_native(a), type_) for a in arrays], list(columns))


def _let_go(array: np.ndarray) -> None:
    """Let go of the pages of a memory map: while they stay they count as this process's memory."""
    pages = getattr(array, "_mmap", None)
    if pages is not None and hasattr(pages, "madvise"):
        pages.madvise(mmap.MADV_DONTNEED)
