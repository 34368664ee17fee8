"""Arrays in .npy files, of which some rows are read at a time.

rows one after another (C order)           consecutive rows are one piece of the file
columns one after another (Fortran order)  consecutive rows are a piece of each column
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost.readers.arrays import arrow_column, arrow_type, check_shape, field_types
from sparrowboost.readers.base import RandomAccessSource, read_errors, read_exactly
from sparrowboost.runtime.errors import DataError

PIECE_BYTES = 1 << 18  # of rows read at once: they are still in the cache when columns are picked
PIECE_ROWS = 16  # at least: fewer values of a column are written no faster
GAP_BYTES = 1 << 14  # between the wanted bytes of two rows: above this, skipping is faster

Values = npt.NDArray[Any]


class NpyFile:
    """The array of a .npy file: (n, d) values, or (n,) values or records."""

    def __init__(self, path: Path, name: str) -> None:
        try:
            with read_errors(name):
                # The map is used to check the header and the length; it is never read.
                array = np.load(path, mmap_mode="r", allow_pickle=False)
        except DataError:  # a ValueError with a message of its own
            raise
        except Exception as error:  # of many types: numpy parses the header as Python
            raise DataError(
                f"{name}: not a readable .npy file of numbers ({error}); it may be truncated or "
                "damaged; save it again with numpy.save."
            ) from None
        if not isinstance(array, np.memmap):
            raise DataError(
                f"{name}: holds several arrays (.npz); save one of them with numpy.save."
            )
        self.name, self.dtype, self.shape = name, array.dtype, array.shape
        self._path, self._offset = path, array.offset
        self._by_column = not array.flags.c_contiguous

    def read(self, start: int, stop: int, wanted: Sequence[int]) -> Values:
        """Values (k, n) of the wanted columns of some rows."""
        d = self.shape[1] if len(self.shape) > 1 else 1
        out = np.empty((len(wanted), stop - start), self.dtype)
        if self._by_column:
            with read_errors(self.name), open(self._path, "rb", buffering=0) as file:
                for column, values in zip(wanted, out, strict=True):
                    position = column * self.shape[0] + start
                    read_exactly(
                        file.fileno(), _bytes(values), self._offset + position * values.itemsize
                    )
            return out
        low, high = min(wanted), max(wanted) + 1
        if (d - (high - low)) * self.dtype.itemsize <= GAP_BYTES:
            low, high = 0, d
        picked = [column - low for column in wanted]
        all_of_them = picked == list(range(high - low))
        for at, rows in self._pieces(start, stop, d, low, high):
            out[:, at] = (rows if all_of_them else rows[:, picked]).T
        return out

    def read_fields(self, start: int, stop: int, wanted: Sequence[str]) -> list[Values]:
        """The wanted fields of some records."""
        out = [np.empty(stop - start, self.dtype[name]) for name in wanted]
        for at, records in self._pieces(start, stop, 1, 0, 1):
            for name, values in zip(wanted, out, strict=True):
                values[at] = records[name][:, 0]
        return out

    def _pieces(
        self, start: int, stop: int, d: int, low: int, high: int
    ) -> Iterator[tuple[slice, Values]]:
        """Columns [low, high) of rows in C order, piece by piece: a slice of rows, their values."""
        width, size = high - low, self.dtype.itemsize
        n = max(PIECE_ROWS, PIECE_BYTES // max(width * size, 1))
        piece = np.empty((min(n, max(stop - start, 1)), width), self.dtype)
        with read_errors(self.name), open(self._path, "rb", buffering=0) as file:
            for first in range(start, stop, len(piece)):
                rows = piece[: stop - first]
                position = self._offset + (first * d + low) * size
                if width == d:
                    read_exactly(file.fileno(), _bytes(rows), position)
                else:
                    for i, row in enumerate(_bytes(rows).reshape(len(rows), -1)):
                        read_exactly(file.fileno(), row, position + i * d * size)
                yield slice(first - start, first - start + len(rows)), rows


def from_npy(path: Path, name: str) -> RandomAccessSource:
    """A table in a .npy file: (n, d) with columns f0, f1, ..., or (n,) records."""
    array = NpyFile(path, name)
    check_shape(array.dtype, array.shape, name)
    if array.dtype.names:
        types = field_types(array.dtype, name)

        def read_fields(start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
            pairs = zip(array.read_fields(start, stop, columns), columns, strict=True)
            return _batch([arrow_column(values, types[c]) for values, c in pairs], columns)

        schema = pa.schema(list(types.items()))
        return RandomAccessSource(name, schema, array.shape[0], read_fields, in_memory=False)
    type_ = arrow_type(array.dtype, name)
    position = {f"f{j}": j for j in range(array.shape[1])}

    def read(start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        values = array.read(start, stop, [position[c] for c in columns])
        return _batch([arrow_column(column, type_) for column in values], columns)

    schema = pa.schema([(column, type_) for column in position])
    return RandomAccessSource(name, schema, array.shape[0], read, in_memory=False)


def column_from_npy(path: Path, name: str) -> RandomAccessSource:
    """A .npy file of one value per row, as a table of one column."""
    array = NpyFile(path, name)
    if array.dtype.names or array.shape[1:] not in ((), (1,)) or not array.shape:
        raise DataError(
            f"{name}: has shape {array.shape} of {array.dtype}; it must have one value per row."
        )
    type_ = arrow_type(array.dtype, name)

    def read(start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        return _batch([arrow_column(array.read(start, stop, [0])[0], type_)], columns)

    return RandomAccessSource(
        name, pa.schema([("values", type_)]), array.shape[0], read, in_memory=False
    )


def _bytes(values: Values) -> npt.NDArray[np.uint8]:
    """The memory of values in C order."""
    return values.reshape(-1).view(np.uint8)


def _batch(arrays: list[pa.Array], columns: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(arrays, list(columns))
