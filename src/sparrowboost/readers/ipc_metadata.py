"""Where the values of an Arrow IPC file lie, so that some rows of a record batch can be read.

Arrow reads record batches as a whole, and one may be the whole file. Its metadata has the offset of
each buffer, and a row is found in a buffer by its number:

    file         = "ARROW1", padding, messages, footer, its length (int32), "ARROW1"
    footer       = version, schema, blocks of dictionaries, blocks of record batches
    block        = offset of a message (int64), bytes of its metadata (int32), of its body (int64)
    message      = -1 (int32), length of the metadata (int32), metadata, body
    metadata     = version, kind, record batch, bytes of the body
    record batch = rows, nodes, buffers, compression, number of variadic buffers of each view column
    node         = rows, nulls (int64)
    buffer       = offset in the body, bytes (int64)

Footer and metadata are flatbuffers (`Fields`). Anything unexpected raises `pa.ArrowInvalid`.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost.readers.base import read_exactly

MAGIC = b"ARROW1"
START = MAGIC + b"\0\0"
TAIL_BYTES = 4 + len(MAGIC)
HEAD_BYTES = 8  # of a message
V5 = 4  # since 2020
RECORD_BATCH = 3  # a kind of message
BLOCK = np.dtype([("at", "<i8"), ("metadata", "<i4"), ("padding", "<i4"), ("body", "<i8")])

Blocks = npt.NDArray[np.void]  # of BLOCK
Pairs = npt.NDArray[np.int64]  # (k, 2)


class Fields:
    """A table of a flatbuffer: optional fields, found by number."""

    def __init__(self, data: bytearray, at: int) -> None:
        self._data, self._at = data, at
        self._entries = at - self._read("<i", at)
        self._n_bytes = self._read("<H", self._entries)

    @classmethod
    def root(cls, data: bytearray) -> Fields:
        return cls(data, int.from_bytes(data[:4], "little"))

    def _read(self, form: str, at: int) -> int:
        if at < 0:  # it would count from the end
            raise struct.error
        return int(struct.unpack_from(form, self._data, at)[0])

    def position(self, field: int) -> int | None:
        """The offset of a field; None if it is absent."""
        entry = 4 + 2 * field
        offset = self._read("<H", self._entries + entry) if entry < self._n_bytes else 0
        return self._at + offset if offset else None

    def has(self, field: int) -> bool:
        return self.position(field) is not None

    def number(self, field: int, form: str) -> int:
        position = self.position(field)
        return 0 if position is None else self._read(form, position)

    def table(self, field: int) -> Fields:
        position = self.position(field)
        if position is None:
            raise struct.error
        return Fields(self._data, position + self._read("<I", position))

    def vector(self, field: int, dtype: Any) -> npt.NDArray[Any]:
        """The items of a vector, over the same memory."""
        position = self.position(field)
        if position is None:
            return np.empty(0, dtype)
        start = position + self._read("<I", position)
        return np.frombuffer(self._data, dtype, self._read("<I", start), start + 4)


class Footer(NamedTuple):
    """The footer of a file, as views of its bytes."""

    data: bytearray
    dictionaries: Blocks
    batches: Blocks
    big_endian: bool


class Layout(NamedTuple):
    """Where the buffers of a record batch are."""

    n_rows: int
    version: int
    packed: bool  # compressed
    body: int  # offset in the file
    nodes: Pairs  # rows, nulls
    buffers: Pairs  # offset in the body, bytes
    views: npt.NDArray[np.int64]  # number of variadic buffers of each view column


class Extent(NamedTuple):
    """How many nodes, buffers and counts of variadic buffers a column has."""

    nodes: int
    buffers: int
    views: int


def read_footer(file: int, size: int) -> Footer:
    """The footer of a file of `size` bytes."""
    tail = read_bytes(file, size - TAIL_BYTES, TAIL_BYTES) if size >= TAIL_BYTES else bytearray()
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or length > size - TAIL_BYTES:
        raise pa.ArrowInvalid("the end of the file is not that of an IPC file")
    footer = _parse_footer(read_bytes(file, size - TAIL_BYTES - length, length))
    for blocks in (footer.dictionaries, footer.batches):
        for part in ("at", "metadata", "body"):
            wrong = (blocks[part] < 0) | (blocks[part] > size) | (blocks[part] % 8 != 0)
            if wrong.any():
                raise pa.ArrowInvalid("a block lies outside the file")
    return footer


def _parse_footer(data: bytearray) -> Footer:
    with _parsing():
        footer = Fields.root(data)
        big_endian = footer.table(1).number(0, "<h") != 0
        return Footer(data, footer.vector(2, BLOCK), footer.vector(3, BLOCK), big_endian)


def read_layout(file: int, block: np.void, extent: Extent | None = None) -> Layout:
    """The layout of the record batch in a block; `extent` is that of all columns of the schema."""
    at, length, body = (int(block[part]) for part in ("at", "metadata", "body"))
    layout = _parse_layout(read_bytes(file, at, length), body)
    parts = len(layout.nodes), len(layout.buffers) - layout.views.sum(), len(layout.views)
    if extent is not None and layout.version == V5 and parts != extent:
        raise pa.ArrowInvalid("the columns of a record batch do not match the schema")
    return layout._replace(body=at + length)


def _parse_layout(head: bytearray, body_bytes: int) -> Layout:
    """The layout of a message with this head, whose body has `body_bytes` bytes."""
    with _parsing():
        mark, length = struct.unpack_from("<ii", head)
        metadata = Fields.root(head[HEAD_BYTES:])
        _verify(head, metadata)
        batch = metadata.table(2)
        header = mark, length, metadata.number(1, "<B"), metadata.number(3, "<q")
        layout = Layout(
            n_rows=batch.number(0, "<q"),
            version=metadata.number(0, "<h"),
            packed=batch.has(3),
            body=0,
            nodes=batch.vector(1, "<2i8"),
            buffers=batch.vector(2, "<2i8"),
            views=batch.vector(4, "<i8"),
        )
    positions, sizes = layout.buffers.T
    if (
        header != (-1, len(head) - HEAD_BYTES, RECORD_BATCH, body_bytes)
        or layout.n_rows < 0
        or (
            (positions < 0) | (positions % 8 != 0) | (sizes < 0) | (sizes > body_bytes - positions)
        ).any()
        or (layout.views < 0).any()
    ):
        raise pa.ArrowInvalid("the metadata of a record batch is inconsistent")
    return layout


def _verify(head: bytearray, metadata: Fields) -> None:
    """Let Arrow verify the metadata, as that of a message without a body."""
    alone, position = bytearray(head), metadata.position(3)
    if position is not None:
        struct.pack_into("<q", alone, HEAD_BYTES + position, 0)
    pa.ipc.read_message(pa.py_buffer(alone))


@lru_cache(maxsize=1024)
def extent_of(type_: pa.DataType) -> Extent:
    """The extent of a column of a type, taken from an empty one that Arrow writes.

    Examples
    --------
    >>> extent_of(pa.float32()), extent_of(pa.string_view())
    (Extent(nodes=1, buffers=2, views=0), Extent(nodes=1, buffers=2, views=1))
    """
    layout = _parse_layout(*_without_rows(pa.schema([("", type_)])))
    return Extent(len(layout.nodes), len(layout.buffers), len(layout.views))


def extents(schema: pa.Schema) -> list[Extent] | None:
    """The cumulated extent before each column; and last, that of all columns.

    None if pyarrow cannot make arrays of some type.
    """
    try:
        of_each = [extent_of(field.type) for field in schema]
    except (pa.ArrowException, KeyError):
        return None
    sums = [itertools.accumulate(part, initial=0) for part in zip(*of_each, strict=True)]
    return [Extent(*before) for before in zip(*sums, strict=True)] or [Extent(0, 0, 0)]


def read_dictionaries(
    file: int, footer: Footer, schema: pa.Schema, columns: Sequence[str]
) -> dict[str, pa.Array]:
    """The dictionaries of columns, by name of the column.

    Arrow reads them from a copy of the file whose record batches are empty.
    """
    data, dictionaries, batches, _ = _parse_footer(bytearray(footer.data))
    head, body_bytes = _without_rows(schema)
    sizes = dictionaries["metadata"].astype(np.int64) + dictionaries["body"]
    starts = len(START) + np.cumsum(sizes) - sizes
    end = len(START) + int(sizes.sum())
    positions = dictionaries["at"].tolist()
    dictionaries["at"] = starts
    batches["at"], batches["metadata"], batches["body"] = end, len(head), body_bytes
    rest = b"".join((head, bytes(body_bytes), data, len(data).to_bytes(4, "little"), MAGIC))
    small = np.empty(end + len(rest), np.uint8)
    small[: len(START)] = np.frombuffer(START, np.uint8)
    for position, start, size in zip(positions, starts.tolist(), sizes.tolist(), strict=True):
        read_exactly(file, small[start : start + size], position)
    small[end:] = np.frombuffer(rest, np.uint8)
    batch = pa.ipc.open_file(pa.py_buffer(small)).get_batch(0)
    found = {name: batch.column(name).dictionary for name in columns}
    for dictionary in found.values():
        dictionary.validate(full=True)  # Arrow does not by itself
    return found


def _without_rows(schema: pa.Schema) -> tuple[bytearray, int]:
    """The head of an empty record batch's message, and the number of bytes of its body."""
    columns = [pa.nulls(0, field.type) for field in schema]
    message = pa.RecordBatch.from_arrays(columns, schema=schema).serialize().to_pybytes()
    end = HEAD_BYTES + int.from_bytes(message[4:HEAD_BYTES], "little")
    return bytearray(message[:end]), len(message) - end


def read_bytes(file: int, offset: int, n: int) -> bytearray:
    """Bytes of a file; an OSError if it ends too early."""
    data = bytearray(n)
    read_exactly(file, np.frombuffer(data, np.uint8), offset)
    return data


@contextmanager
def _parsing() -> Iterator[None]:
    """Turn errors of parsing damaged bytes into Arrow's."""
    try:
        yield
    except pa.ArrowException:  # some of which are ValueErrors
        raise
    except (struct.error, ValueError, EOFError):
        raise pa.ArrowInvalid("its metadata is damaged") from None
