"""Columns of a Parquet file that are stored as indices into a dictionary, decoded page by page.

Arrow decodes such a value in about 5 ns, mostly to build its own arrays. A table of categories has
nothing else to decode; here a value takes a few tenths of a nanosecond:

    column chunk = dictionary page, data page, data page, ...
    data page    = runs of levels (1: present), width in bits, runs of indices

Anything else (another encoding, a checksum that does not match, a truncated page) raises
`NotCoded`. The column is then left to Arrow, which can read it or reports what is wrong.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from sparrowboost.kernels import pages
from sparrowboost.readers.arrays import from_numpy, strings

UINT8 = pa.uint8()
Bytes = npt.NDArray[np.uint8]

BUFFER_BYTES = 1 << 16  # read ahead of each column; usually a whole chunk
MAX_WIDTH = 64  # of no dictionary: every index is checked
MAX_HEADER = 1 << 20  # which may hold long minimum and maximum values
MAX_UNPACKED = 1 << 28  # bytes or values of a page; larger ones are left to Arrow
MAX_VECTORS = 512  # buffers filled at once; the system's limit may be 1024
CODECS = {"UNCOMPRESSED": None, "SNAPPY": "snappy", "GZIP": "gzip", "ZSTD": "zstd"}


class NotCoded(Exception):  # noqa: N818 - not an error: Arrow reads it
    """A column chunk, or the rest of it, cannot be read here."""


class PageBuffers:
    """A buffer and a reader's state for each column of a row group, side by side.

    This way one kernel call continues all columns.
    """

    def __init__(self, n_columns: int) -> None:
        self.buffer = np.zeros((n_columns, BUFFER_BYTES + pages.SPARE), np.uint8)
        self.filled = np.zeros(n_columns, np.int64)
        self.optional = np.zeros(n_columns, bool)
        self.state = np.zeros((n_columns, pages.N_STATE), np.int64)
        self.said = np.empty(pages.N_SAID, np.int64)
        self._done = np.empty(n_columns, np.int64)
        self._words = np.empty((n_columns, 3), np.int64)

    def open(self, file: int, metas: Sequence[Any]) -> list[pa.Array | None]:
        """Read whole chunks, adjacent ones at once; the dictionary of each, None if not simple."""
        row: list[memoryview] = []
        start = at = 0
        for place, meta in enumerate(metas):
            offset, size = meta.dictionary_page_offset or 0, meta.total_compressed_size
            if row and (offset != at or len(row) == MAX_VECTORS):
                os.preadv(file, row, start)
                row = []
            if 0 < size <= BUFFER_BYTES and CODECS.get(meta.compression, "") is None:
                start = start if row else offset
                row.append(self.buffer[place, :size].data)
                self.filled[place], at = size, offset + size
        if row:
            os.preadv(file, row, start)
        pages.open_all(self.buffer, self.filled, self.state, self.said, self._words)
        dictionaries: list[pa.Array | None] = []
        for place, (n, first, last) in enumerate(self._words.tolist()):
            simple = 0 <= n <= 256 and metas[place].physical_type == "BYTE_ARRAY"
            if not simple:
                self.filled[place] = 0
            words = self.buffer[place, first:last].tobytes() if simple else b""
            dictionaries.append(_strings(words, n) if simple else None)
        return dictionaries

    def take(self, n: int) -> tuple[npt.NDArray[np.uint8], list[int]]:
        """Indices (k, n) of all columns, and how many of them were read for each column."""
        out = np.empty((len(self.filled), n), np.uint8)
        pages.take_all(
            self.buffer, self.filled, self.optional, self.state, self.said, out, self._done
        )
        return out, self._done.tolist()


class Plain(NamedTuple):
    """A column that `PageBuffers` reads alone."""

    dictionary: pa.Array


class CodedGroup:
    """String columns of one row group, read some rows at a time.

    Parameters
    ----------
    path : str
    file : pyarrow.parquet.ParquetFile
        The same file: for what only Arrow can read.
    group : int
    columns : mapping of name to (number, bool)
        Of flat columns, and whether values may be missing.
    """

    def __init__(
        self,
        path: str,
        file: pq.ParquetFile,
        group: int,
        columns: Mapping[str, tuple[int, bool]],
    ) -> None:
        self._file, self._group = file, group
        self._taken = 0
        self._buffers = PageBuffers(len(columns))
        self._raw = os.open(path, os.O_RDONLY)
        meta = file.metadata.row_group(group)
        self._metas = {name: meta.column(i) for name, (i, _) in columns.items()}
        for place, (_, optional) in enumerate(columns.values()):
            self._buffers.optional[place] = optional
        # How each is read: by the buffers alone, by a reader of its own, or by Arrow, all at once.
        self._columns: dict[str, Plain | CodedChunk | pa.Array] = {}
        dictionaries = self._open(list(self._metas.values()))
        for place, (name, dictionary) in enumerate(zip(columns, dictionaries, strict=True)):
            if dictionary is None:
                self._look_closer(name, place, None)
            else:
                self._columns[name] = Plain(dictionary)

    def _open(self, metas: Sequence[Any]) -> Sequence[pa.Array | None]:
        try:
            return self._buffers.open(self._raw, metas)
        except NotCoded:
            self._buffers.filled[:] = 0
            return [None] * len(metas)

    def _look_closer(
        self, name: str, place: int, dictionary: pa.Array | None
    ) -> CodedChunk | pa.Array:
        """Give a column a reader of its own, or leave it to Arrow."""
        try:
            chunk = CodedChunk(self._raw, self._metas[name], self._buffers, place, dictionary)
        except NotCoded:
            return self._read(name)
        self._columns[name] = chunk
        return chunk

    def _read(self, name: str) -> pa.Array:
        """Read a whole column with Arrow, for this and all later rows."""
        column = self._file.read_row_group(self._group, [name], use_threads=False).column(name)
        column = column.unify_dictionaries().combine_chunks()
        column.validate(full=True)  # Arrow does not by itself
        self._columns[name] = column
        return column

    def take(self, n: int) -> dict[str, pa.Array]:
        """The next n rows, by column."""
        places, done = self._buffers.take(n)
        widest = self._buffers.state[:, pages.WIDEST].tolist()
        buffer = pa.py_buffer(places)
        arrays: dict[str, pa.Array] = {}
        for k, name in enumerate(self._columns):
            column = self._columns[name]
            if isinstance(column, Plain):
                if done[k] == n and has_all(column.dictionary, widest[k], places[k]):
                    arrays[name] = _array(buffer.slice(k * n, n), n, column.dictionary)
                    continue
                column = self._look_closer(name, k, column.dictionary)
            if isinstance(column, CodedChunk):
                try:
                    arrays[name] = column.take(places[k], done[k])
                    continue
                except NotCoded:
                    column = self._read(name)
            arrays[name] = column.slice(self._taken, n)
            if len(arrays[name]) < n:
                raise pa.ArrowInvalid(f"row group {self._group} has fewer rows than it should")
        self._taken += n
        return arrays

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._raw)


class CodedChunk:
    """One column of one row group.

    Parameters
    ----------
    file : int
        Descriptor of the Parquet file.
    meta : pyarrow.parquet.ColumnChunkMetaData
    buffers, place : PageBuffers, int
        Where to read it.
    dictionary : pyarrow.Array, optional
        Its dictionary, if it was read already.
    """

    def __init__(
        self, file: int, meta: Any, buffers: PageBuffers, place: int, dictionary: pa.Array | None
    ) -> None:
        if meta.physical_type != "BYTE_ARRAY" or meta.compression not in CODECS:
            raise NotCoded
        codec = CODECS[meta.compression]
        self._codec = pa.Codec(codec) if codec else None
        self._file, self._optional = file, bool(buffers.optional[place])
        self._at = meta.dictionary_page_offset or 0  # of the next page, in the file
        self._end = self._at + meta.total_compressed_size
        self._buffers, self._place = buffers, place
        self._buffer, self._said = buffers.buffer[place], buffers.said
        self._buffer_at = self._at  # where in the file the buffer is from
        self._filled = int(buffers.filled[place])
        self._present: Bytes | None = None  # of values still to come of a page, if some are missing
        self._in_buffer = self._codec is None
        self._state = buffers.state[place]
        self._pages, self._pages_end = self._buffer, self._filled
        if dictionary is None:
            dictionary = self._read_dictionary()
        self.dictionary = dictionary
        self._dtype = np.uint8 if len(dictionary) <= 256 else np.int32
        if self._in_buffer:
            self._return_to_buffers()

    def _read_dictionary(self) -> pa.Array:
        self._buffers.filled[self._place] = 0
        kind, n, encoding, body = self._page()
        if kind != pages.DICTIONARY_PAGE or encoding not in (pages.PLAIN, pages.PLAIN_DICTIONARY):
            raise NotCoded
        self._state = np.zeros(pages.N_STATE, np.int64)
        self._state[pages.NEXT] = self._at - self._buffer_at
        self._pages_end = self._filled if self._in_buffer else 0
        return _strings(self._unpacked(body).tobytes(), n)

    def _return_to_buffers(self) -> None:
        """Let `PageBuffers` continue with the pages in the buffer."""
        if self._dtype == np.uint8:
            here = self._buffers.state[self._place]
            here[:] = self._state
            self._state = here
            self._buffers.filled[self._place] = self._filled

    def take(self, row: Bytes, done: int) -> pa.DictionaryArray:
        """The next values; the first `done` indices are in `row` already."""
        out: npt.NDArray[Any] = row
        if self._dtype != np.uint8:
            out, done = np.empty(len(row), self._dtype), 0
        absent: npt.NDArray[np.bool_] | None = None
        while done < len(out):
            if self._present is None:
                done += pages.take_places(
                    self._pages, self._pages_end, self._optional, self._state, self._said,
                    out[done:],
                )  # fmt: skip
                if done < len(out):
                    self._turn()
                continue
            present = self._present[: len(out) - done]
            if absent is None:
                absent = np.zeros(len(out), bool)
            absent[done : done + len(present)] = present == 0
            self._take_some(present, out[done : done + len(present)])
            done += len(present)
        if (absent is None or not absent.all()) and not has_all(self.dictionary, MAX_WIDTH, out):
            raise NotCoded
        places = from_numpy(out, absent)
        return pa.DictionaryArray.from_arrays(places, self.dictionary, safe=False)

    def _take_some(self, present: Bytes, out: npt.NDArray[Any]) -> None:
        """The next values of a page in which some are missing."""
        assert self._present is not None
        codes = np.empty(np.count_nonzero(present), out.dtype)
        if len(codes):
            width, stop = int(self._state[pages.WIDTH]), int(self._state[pages.STOP])
            if width > 8 * codes.itemsize:
                raise NotCoded
            if pages.take_runs(self._pages, stop, width, self._state, codes) < len(codes):
                raise NotCoded
        pages.spread(codes, present, out)
        self._present = self._present[len(present) :]
        if not len(self._present):
            self._present = None
            self._state[pages.PAGE_LEFT] = 0

    def _turn(self) -> None:
        """Open the next page, of any supported kind."""
        if self._state[pages.PAGE_LEFT]:  # the last one had fewer places than it said
            raise NotCoded
        if self._in_buffer:
            self._at = self._buffer_at + int(self._state[pages.NEXT])
        kind, n, encoding, stored = self._page()
        while kind == pages.INDEX_PAGE:
            kind, n, encoding, stored = self._page()
        if encoding not in (pages.RLE_DICTIONARY, pages.PLAIN_DICTIONARY):
            raise NotCoded  # the dictionary had grown too large, values follow
        if kind == pages.DATA_PAGE_V2:
            stop = int(self._said[pages.LEVEL_BYTES])
            if self._said[pages.REPEAT_BYTES] != 0 or not 0 <= stop <= len(stored):
                raise NotCoded
            body, at = self._unpacked(stored, stop), 0
            self._present = self._read_levels(stored, 0, stop, n)
        elif kind == pages.DATA_PAGE:
            body, at = self._unpacked(stored), 0
            if self._optional:
                if self._said[pages.LEVEL_ENCODING] != pages.RLE or len(body) < 4:
                    raise NotCoded
                at = 4 + int.from_bytes(body[:4].tobytes(), "little")
                self._present = self._read_levels(body, 4, at, n)
        else:
            raise NotCoded
        self._in_buffer = self._codec is None and len(stored) <= BUFFER_BYTES
        self._state, self._buffers.filled[self._place] = np.zeros(pages.N_STATE, np.int64), 0
        if at >= len(body):
            if n and (self._present is None or self._present.any()):
                raise NotCoded
            self._in_buffer, self._pages_end = False, 0  # no value is there: no places either
            return
        if self._in_buffer:
            self._pages, self._pages_end = self._buffer, self._filled
        else:
            self._pages, self._pages_end = _padded(body), len(body)
        # The page is what was read last into the buffer.
        stop = self._at - self._buffer_at if self._in_buffer else len(body)
        pages.turn_to(self._state, stop - len(body) + at, stop, n, stop, self._pages)
        if self._state[pages.WIDTH] > pages.MAX_WIDTH:
            raise NotCoded
        if self._in_buffer and self._present is None:
            self._return_to_buffers()

    def _read_levels(self, body: Bytes, at: int, stop: int, n: int) -> Bytes | None:
        """1 for each value that is present; None if all are."""
        if not self._optional:
            return None
        if not at <= stop <= len(body):
            raise NotCoded
        levels = np.empty(n, np.uint8)
        state = np.zeros(pages.N_STATE, np.int64)
        state[pages.AT] = at
        if pages.take_runs(_padded(body), stop, 1, state, levels) < n:
            raise NotCoded
        return None if levels.all() else levels

    def _page(self) -> tuple[int, int, int, Bytes]:
        """The next page: its kind, number of values, encoding, and bytes as they are stored."""
        ahead = 256
        end = pages.read_header(self._bytes(ahead), self._said)
        while end == pages.MORE and ahead < MAX_HEADER:
            ahead *= 8
            end = pages.read_header(self._bytes(ahead), self._said)
        said = self._said.tolist()
        size, n = said[pages.PACKED], said[pages.VALUES]
        if end < 0 or size < 0 or not 0 <= n <= MAX_UNPACKED or self._at + end + size > self._end:
            raise NotCoded
        self._at += end
        body = self._bytes(size)
        if len(body) < size:
            raise NotCoded
        self._at += size
        if said[pages.CRC] >= 0 and zlib.crc32(body.data) != said[pages.CRC]:
            raise NotCoded
        return said[pages.KIND], n, said[pages.ENCODING], body

    def _bytes(self, n: int) -> Bytes:
        """The next n bytes of the file, or fewer if the chunk ends."""
        left = max(self._end - self._at, 0)
        n = min(n, left)
        if n > BUFFER_BYTES:
            data = np.empty(n, np.uint8)
            return data[: os.preadv(self._file, [data.data], self._at)]
        start = self._at - self._buffer_at
        if not 0 <= start <= start + n <= self._filled:
            here = self._buffer[: min(left, BUFFER_BYTES)]
            self._filled = os.preadv(self._file, [here.data], self._at)
            self._buffer_at, start = self._at, 0
        return self._buffer[start : min(start + n, self._filled)]

    def _unpacked(self, body: Bytes, plain: int = 0) -> Bytes:
        """The contents of a page after its first `plain` bytes, decompressed."""
        if self._codec is None or self._said[pages.IS_PACKED] == 0:
            return body[plain:]
        size = int(self._said[pages.UNPACKED]) - plain
        if not 0 <= size <= MAX_UNPACKED:
            raise NotCoded
        if size == 0:
            return body[:0]
        try:
            data = self._codec.decompress(pa.py_buffer(body[plain:]), size)
        except (pa.ArrowException, OSError, ValueError):
            raise NotCoded from None
        return np.frombuffer(data, np.uint8)


def _padded(body: Bytes) -> Bytes:
    """The bytes with padding, for a kernel that reads eight at a time."""
    out = np.zeros(len(body) + pages.SPARE, np.uint8)
    out[: len(body)] = body
    return out


def has_all(dictionary: pa.Array, width: int, places: npt.NDArray[Any]) -> bool:
    """Whether all of these indices, of `width` bits each, are within the dictionary."""
    n = len(dictionary)
    return 1 << width <= n or int(places.max(initial=0)) < n


def _array(places: pa.Buffer, n: int, dictionary: pa.Array) -> pa.Array:
    indices = pa.Array.from_buffers(UINT8, n, [None, places])
    return pa.DictionaryArray.from_arrays(indices, dictionary, safe=False)


_last: dict[bytes, pa.Array] = {}  # row groups and columns often share a small dictionary


def _strings(data: bytes, n: int) -> pa.Array:
    """The strings of a dictionary page: each is its length, then its bytes."""
    key = n.to_bytes(8, "little") + data
    known = _last.get(key)
    if known is not None:
        return known
    words = []
    at = 0
    for _ in range(n):
        size = int.from_bytes(data[at : at + 4], "little")
        at += 4
        if at + size > len(data):
            raise NotCoded
        words.append(data[at : at + size])
        at += size
    try:
        array = strings(words)
        array.validate(full=True)
    except pa.ArrowInvalid:  # not UTF-8
        raise NotCoded from None
    if len(data) < 1024:
        if len(_last) > 1024:
            _last.clear()
        _last[key] = array
    return array
