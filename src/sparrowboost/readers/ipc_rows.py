"""Some rows of an uncompressed record batch, read directly from their offsets in the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as pt

from sparrowboost.readers.base import read_exactly
from sparrowboost.readers.ipc_metadata import Extent, Layout

INLINE_BYTES = 12  # of a string that is stored in its view
VIEW_BITS = 128
NEAR_BYTES = 1 << 14  # of a gap between two strings: smaller ones are read, larger ones skipped

Form = Literal["values", "strings", "large strings", "views", "nothing"]
N_BUFFERS = {"values": 2, "strings": 3, "large strings": 3, "views": 2, "nothing": 0}
Buffer = Sequence[int]  # offset in the body, bytes
Array = npt.NDArray[Any]


def form_of(type_: pa.DataType) -> Form | None:
    """What the buffers of a column of this type hold; None for nested types."""
    if pt.is_null(type_):
        return "nothing"
    if pt.is_string(type_) or pt.is_binary(type_):
        return "strings"
    if pt.is_large_string(type_) or pt.is_large_binary(type_):
        return "large strings"
    if pt.is_string_view(type_) or pt.is_binary_view(type_):
        return "views"
    fixed = pt.is_primitive(type_) or pt.is_decimal(type_) or pt.is_fixed_size_binary(type_)
    return "values" if fixed or pt.is_dictionary(type_) else None


class FlatColumn(NamedTuple):
    """A column of a file, and the position of its nodes and buffers among those of all columns."""

    name: str
    type: pa.DataType
    form: Form
    at: Extent
    dictionary: pa.Array | None


def flat_columns(
    schema: pa.Schema,
    positions: Sequence[Extent],
    wanted: Sequence[str],
    dictionaries: Mapping[str, pa.Array],
) -> list[FlatColumn]:
    """The wanted columns, none of them nested, of a schema that may have nested ones."""
    at = dict(zip(schema.names, positions, strict=False))  # the last one is the end of all columns
    found = []
    for name in wanted:
        type_ = schema.field(name).type
        form = form_of(type_)
        assert form is not None
        found.append(FlatColumn(name, type_, form, at[name], dictionaries.get(name)))
    return found


class FlatBatch:
    """A record batch; an ArrowInvalid or an OSError if it is damaged."""

    def __init__(self, file: int, layout: Layout, columns: Sequence[FlatColumn]) -> None:
        self._file, self._body = file, layout.body
        self._names = [column.name for column in columns]
        self._columns: list[tuple[FlatColumn, bool, list[Buffer]]] = []
        nodes, buffers = layout.nodes.tolist(), layout.buffers.tolist()
        more = [0, *np.cumsum(layout.views).tolist()]  # variadic buffers before each view column
        for column in columns:
            rows, nulls = nodes[column.at.nodes]
            if rows != layout.n_rows or nulls > rows:
                raise pa.ArrowInvalid(f"column {column.name!r} has a different number of rows")
            first = column.at.buffers + more[column.at.views]
            last = first + N_BUFFERS[column.form]
            if column.form == "views":  # and its variadic buffers
                last += more[column.at.views + 1] - more[column.at.views]
            self._columns.append((column, nulls != 0, buffers[first:last]))

    def rows(self, start: int, n: int) -> pa.RecordBatch:
        """The n rows from `start` on."""
        arrays = [self._read(*column, start, n) for column in self._columns]
        return pa.RecordBatch.from_arrays(arrays, self._names)

    def _read(
        self,
        column: FlatColumn,
        nulls: bool,
        buffers: Sequence[Buffer],
        start: int,
        n: int,
    ) -> pa.Array:
        type_, form, dictionary = column.type, column.form, column.dictionary
        if form == "nothing":
            return pa.nulls(n)
        skip = start % 8  # reading begins at a whole byte of validity bits
        start, n = start - skip, n + skip
        bits = self._values(buffers[0], 1, start, n) if nulls else None
        if form == "values":
            parts = [self._values(buffers[1], type_.bit_width, start, n)]
        elif form == "views":
            parts = self._views(buffers, bits, start, n)
        else:
            parts = self._strings(buffers, np.int32 if form == "strings" else np.int64, start, n)
        memory = [None if bits is None else pa.py_buffer(bits), *map(pa.py_buffer, parts)]
        plain = type_ if dictionary is None else type_.index_type
        array = pa.Array.from_buffers(plain, n - skip, memory, offset=skip)
        if dictionary is not None:  # checks the bounds of indices
            return pa.DictionaryArray.from_arrays(array, dictionary, ordered=type_.ordered)
        if not pt.is_primitive(type_):
            array.validate(full=True)
        return array

    def _bytes(self, buffer: Buffer, start: int, n: int) -> npt.NDArray[np.uint8]:
        """N bytes of a buffer from `start` on."""
        position, size = buffer
        if start < 0 or n < 0 or n > size - start:
            raise pa.ArrowInvalid("a buffer is too short")
        out = np.empty(n, np.uint8)
        read_exactly(self._file, out, self._body + position + start)
        return out

    def _values(self, buffer: Buffer, bits: int, start: int, n: int) -> npt.NDArray[np.uint8]:
        """Values of some rows, `bits` bits each."""
        return self._bytes(buffer, start * bits // 8, -(-n * bits // 8))

    def _strings(self, buffers: Sequence[Buffer], dtype: type, start: int, n: int) -> list[Array]:
        """Offsets and strings of some rows."""
        bits = 8 * np.dtype(dtype).itemsize
        ends: Array = self._values(buffers[1], bits, start, n + 1).view(dtype)
        first, last = int(ends[0]), int(ends[-1])
        return [ends - ends[0], self._bytes(buffers[2], first, last - first)]

    def _views(
        self, buffers: Sequence[Buffer], bits: Array | None, start: int, n: int
    ) -> list[Array]:
        """Views of some rows (length, prefix, buffer, offset in it), and their strings.

        Strings that lie near to each other are read at once, into a buffer of their own.
        """
        views = self._values(buffers[1], VIEW_BITS, start, n).view(np.int32).reshape(n, 4)
        if bits is not None:  # the view of a null may be anything
            views[np.unpackbits(bits, count=n, bitorder="little") == 0] = 0
        rows = np.flatnonzero(views[:, 0] > INLINE_BYTES)
        if not len(rows):
            return [views.reshape(-1)]
        length, buffer, position = (views[rows, part].astype(np.int64) for part in (0, 2, 3))
        if not ((buffer >= 0) & (buffer < len(buffers) - 2)).all():
            raise pa.ArrowInvalid("a view refers to a missing buffer")
        begin = (buffer << 32) + position  # keeps buffers far apart
        order = np.argsort(begin, kind="stable")  # usually in order already
        ends = np.maximum.accumulate((begin + length)[order])
        rows, begin = rows[order], begin[order]
        cuts = np.append(False, begin[1:] > ends[:-1] + NEAR_BYTES)
        firsts = begin[np.append(0, np.flatnonzero(cuts))]
        lasts = ends[np.append(np.flatnonzero(cuts), len(rows)) - 1]
        number = np.cumsum(cuts)
        views[rows, 2], views[rows, 3] = number, begin - firsts[number]
        strings: list[Array] = []
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            which, at = divmod(first, 1 << 32)
            strings.append(self._bytes(buffers[2 + which], at, last - first))
        return [views.reshape(-1), *strings]
