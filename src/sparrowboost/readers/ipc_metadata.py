"""Where the values of an Arrow IPC file lie, so that some rows of a record batch can be read.

Arrow reads record batches as a whole, and one may be the whole file. But its metadata says where
each buffer is, and a row is found in a buffer by its number:

    file         = "ARROW1", padding, messages, footer, its length (int32), "ARROW1"
    footer       = version, schema, blocks of dictionaries, blocks of record batches
    block        = place of a message (int64), bytes of its metadata (int32), of its body (int64)
    message      = -1 (int32), length of the metadata (int32), metadata, body
    metadata     = version, kind, record batch, bytes of the body
    record batch = rows, nodes, buffers, compression, for each column of views how many more buffers
    node         = rows, nulls (int64)
    buffer       = place in the body, bytes (int64)

Footer and metadata are flatbuffers (`Fields`). What is not just as it should be raises
`pa.ArrowInvalid`.
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
    """A table of a flatbuffer: fields that are there or not, found by number."""

    def __init__(self, data: bytearray, at: int) -> None:
        self._data, self._at = data, at
        self._entries = at - self._read("<i", at)
        self._n_bytes = self._read("<H", self._entries)

    @classmethod
    def root(cls, data: bytearray) -> Fields:
        return cls(data, int.from_bytes(data[:4], "little"))

    def _read(self, form: str, at: int) -> int:
        if at < 0:  # which would count from the end
            raise struct.error
        return int(struct.unpack_from(form, self._data, at)[0])

    def place(self, field: int) -> int | None:
        """Where a field is, None if it is not."""
        entry = 4 + 2 * field
        offset = self._read("<H", self._entries + entry) if entry < self._n_bytes else 0
        return self._at + offset if offset else None

    def has(self, field: int) -> bool:
        return self.place(field) is not None

    def number(self, field: int, form: str) -> int:
        place = self.place(field)
        return 0 if place is None else self._read(form, place)

    def table(self, field: int) -> Fields:
        place = self.place(field)
        if place is None:
            raise struct.error
        return Fields(self._data, place + self._read("<I", place))

    def vector(self, field: int, dtype: Any) -> npt.NDArray[Any]:
        """The items of a vector, over the same memory."""
        place = self.place(field)
        if place is None:
            return np.empty(0, dtype)
        start = place + self._read("<I", place)
        return np.frombuffer(self._data, dtype, self._read("<I", start), start + 4)


class Footer(NamedTuple):
    """What the end of a file says, over the same memory."""

    data: bytearray
    dictionaries: Blocks
    batches: Blocks
    big_endian: bool


class Layout(NamedTuple):
    """Where the buffers of a record batch are, and what they are of."""

    n_rows: int
    version: int
    packed: bool  # compressed
    body: int  # place in the file
    nodes: Pairs  # rows, nulls
    buffers: Pairs  # place in the body, bytes
    views: npt.NDArray[np.int64]  # how many more buffers each column of views has


class Extent(NamedTuple):
    """How many nodes, buffers and numbers of views a column has."""

    nodes: int
    buffers: int
    views: int


def read_footer(file: int, size: int) -> Footer:
    """The footer of a file of `size` bytes."""
    tail = read_bytes(file, size - TAIL_BYTES, TAIL_BYTES) if size >= TAIL_BYTES else bytearray()
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or length > size - TAIL_BYTES:
        raise pa.ArrowInvalid("it does not end as such a file does")
    footer = _parse_footer(read_bytes(file, size - TAIL_BYTES - length, length))
    for blocks in (footer.dictionaries, footer.batches):
        for part in ("at", "metadata", "body"):
            wrong = (blocks[part] < 0) | (blocks[part] > size) | (blocks[part] % 8 != 0)
            if wrong.any():
                raise pa.ArrowInvalid("a block is not where it can be")
    return footer


def _parse_footer(data: bytearray) -> Footer:
    with _parsing():
        footer = Fields.root(data)
        big_endian = footer.table(1).number(0, "<h") != 0
        return Footer(data, footer.vector(2, BLOCK), footer.vector(3, BLOCK), big_endian)


def read_layout(file: int, block: np.void, extent: Extent | None = None) -> Layout:
    """The layout of the record batch in a block; `extent` is what all its columns have to have."""
    at, length, body = (int(block[part]) for part in ("at", "metadata", "body"))
    layout = _parse_layout(read_bytes(file, at, length), body)
    parts = len(layout.nodes), len(layout.buffers) - layout.views.sum(), len(layout.views)
    if extent is not None and layout.version == V5 and parts != extent:
        raise pa.ArrowInvalid("a record batch has other columns than the file")
    return layout._replace(body=at + length)


def _parse_layout(head: bytearray, body_bytes: int) -> Layout:
    """The layout that a message tells whose body has so many bytes; `head` is what is before it."""
    with _parsing():
        mark, length = struct.unpack_from("<ii", head)
        metadata = Fields.root(head[HEAD_BYTES:])
        _verify(head, metadata)
        batch = metadata.table(2)
        told = mark, length, metadata.number(1, "<B"), metadata.number(3, "<q")
        layout = Layout(
            n_rows=batch.number(0, "<q"),
            version=metadata.number(0, "<h"),
            packed=batch.has(3),
            body=0,
            nodes=batch.vector(1, "<2i8"),
            buffers=batch.vector(2, "<2i8"),
            views=batch.vector(4, "<i8"),
        )
    places, sizes = layout.buffers.T
    if (
        told != (-1, len(head) - HEAD_BYTES, RECORD_BATCH, body_bytes)
        or layout.n_rows < 0
        or ((places < 0) | (places % 8 != 0) | (sizes < 0) | (sizes > body_bytes - places)).any()
        or (layout.views < 0).any()
    ):
        raise pa.ArrowInvalid("a record batch is not as it can be")
    return layout


def _verify(head: bytearray, metadata: Fields) -> None:
    """Let Arrow look whether the metadata is sound, as that of a message without a body."""
    alone, place = bytearray(head), metadata.place(3)
    if place is not None:
        struct.pack_into("<q", alone, HEAD_BYTES + place, 0)
    pa.ipc.read_message(pa.py_buffer(alone))


@lru_cache(maxsize=1024)
def extent_of(type_: pa.DataType) -> Extent:
    """What a column of a type has, as Arrow itself lays one out.

    Examples
    --------
    >>> extent_of(pa.float32()), extent_of(pa.string_view())
    (Extent(nodes=1, buffers=2, views=0), Extent(nodes=1, buffers=2, views=1))
    """
    layout = _parse_layout(*_without_rows(pa.schema([("", type_)])))
    return Extent(len(layout.nodes), len(layout.buffers), len(layout.views))


def extents(schema: pa.Schema) -> list[Extent] | None:
    """Of each column what those before it have; and last, what all have.

    None, if there is a type that pyarrow has no arrays of.
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
    """The words of columns that are places in a dictionary, by name of the column.

    Arrow reads them, from the same file with no rows in its record batches.
    """
    data, dictionaries, batches, _ = _parse_footer(bytearray(footer.data))
    head, body_bytes = _without_rows(schema)
    sizes = dictionaries["metadata"].astype(np.int64) + dictionaries["body"]
    starts = len(START) + np.cumsum(sizes) - sizes
    end = len(START) + int(sizes.sum())
    places = dictionaries["at"].tolist()
    dictionaries["at"] = starts
    batches["at"], batches["metadata"], batches["body"] = end, len(head), body_bytes
    rest = b"".join((head, bytes(body_bytes), data, len(data).to_bytes(4, "little"), MAGIC))
    small = np.empty(end + len(rest), np.uint8)
    small[: len(START)] = np.frombuffer(START, np.uint8)
    for place, start, size in zip(places, starts.tolist(), sizes.tolist(), strict=True):
        read_exactly(file, small[start : start + size], place)
    small[end:] = np.frombuffer(rest, np.uint8)
    batch = pa.ipc.open_file(pa.py_buffer(small)).get_batch(0)
    found = {name: batch.column(name).dictionary for name in columns}
    for words in found.values():
        words.validate(full=True)  # which Arrow does not do by itself
    return found


def _without_rows(schema: pa.Schema) -> tuple[bytearray, int]:
    """The message of a record batch without rows up to its body, and the bytes of that."""
    columns = [pa.nulls(0, field.type) for field in schema]
    message = pa.RecordBatch.from_arrays(columns, schema=schema).serialize().to_pybytes()
    end = HEAD_BYTES + int.from_bytes(message[4:HEAD_BYTES], "little")
    return bytearray(message[:end]), len(message) - end


def read_bytes(file: int, offset: int, n: int) -> bytearray:
    """Some bytes of a file; an OSError if it ends before."""
    data = bytearray(n)
    read_exactly(file, np.frombuffer(data, np.uint8), offset)
    return data


@contextmanager
def _parsing() -> Iterator[None]:
    """Turn the errors of who looks for numbers where there are none into Arrow's."""
    try:
        yield
    except pa.ArrowException:  # some of which are ValueErrors
        raise
    except (struct.error, ValueError, EOFError):
        raise pa.ArrowInvalid("its metadata makes no sense") from None
