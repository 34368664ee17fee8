"""What reading a column of a Parquet file takes in memory, from the headers of its pages.

Arrow unpacks a page at a time, however few rows are asked for. Page sizes are up to the writer:
1 MB by the default of most, a whole column of a row group (100 MB and more) with some. The footer
does not tell them, but each page has a header with its size, and headers are read in no time:

    column chunk = dictionary page, data page, data page, ...
    page         = header, packed values
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from sparrowboost.readers.base import Reading

BUFFER_BYTES = 1 << 16  # of a column's file buffer
HEADER_BYTES = 256  # read first; a header with long minimum and maximum values takes more
MAX_HEADER = 1 << 20
WORD_BYTES = 16  # of a string of a dictionary: where it begins, and how long it is
STRINGS = "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"
TEXT_PAGES = 2  # of strings read as such: room for a whole page, and the copy that is cut to size
ALLOCATORS = 1.1  # what they take in addition


class ChunkSizes(NamedTuple):
    """The sizes of a column chunk, in bytes; each is the maximum over its pages."""

    page: int  # unpacked
    packed: int
    dictionary: int  # unpacked; 0 without one
    words: int  # strings in the dictionary
    value: float  # of a value that is not an index, with its share of levels

    def reading(self, row: float, *, text: bool = False) -> Reading:
        """What reading takes, if a row takes `row` bytes; `text`: as strings, not as indices."""
        dictionary = self.dictionary + WORD_BYTES * self.words
        page, packed = self.page, self.packed
        if text:
            page, packed = (1 + TEXT_PAGES) * page, 2 * packed
        return Reading(ALLOCATORS * (BUFFER_BYTES + page + dictionary), ALLOCATORS * packed, row)


def chunk_sizes(file: int, meta: Any, max_pages: int) -> ChunkSizes:
    """The sizes of a column chunk of an open file, from its first pages.

    Parameters
    ----------
    file : int
        Descriptor of the Parquet file.
    meta : pyarrow.parquet.ColumnChunkMetaData
    max_pages : int
        Pages to look at.
    """
    from sparrowboost.kernels import pages

    unpacked, packed = meta.total_uncompressed_size, meta.total_compressed_size
    whole = ChunkSizes(unpacked, packed, 0, 0, unpacked / max(meta.num_values, 1))
    page = most = dictionary = words = 0
    value = 0.0
    for (kind, n, encoding), size, stored in _headers(file, meta, max_pages):
        if size < 0:
            return whole  # no header that is understood: as if the chunk were one page
        page, most = max(page, size), max(most, stored)
        if kind == pages.DICTIONARY_PAGE:
            dictionary = size
            words = n if meta.physical_type in STRINGS else 0
        if encoding not in (pages.PLAIN_DICTIONARY, pages.RLE_DICTIONARY) or (
            kind == pages.DICTIONARY_PAGE
        ):
            value = max(value, size / max(n, 1))
    return ChunkSizes(page, most, dictionary, words, value) if page else whole


def _headers(
    file: int, meta: Any, max_pages: int
) -> Iterator[tuple[tuple[int, int, int], int, int]]:
    """Of each page: its kind, number of values and encoding; its size unpacked, and in the file.

    A size of -1 stands for a header that is not understood.
    """
    from sparrowboost.kernels import pages

    at = min(o for o in (meta.dictionary_page_offset, meta.data_page_offset) if o)
    end = at + meta.total_compressed_size
    said = np.empty(pages.N_SAID, np.int64)
    for _ in range(max_pages):
        if at >= end:
            return
        ahead = HEADER_BYTES
        length = pages.MORE
        while length == pages.MORE and ahead <= MAX_HEADER:
            data = os.pread(file, min(ahead, end - at), at)
            length = pages.read_header(np.frombuffer(data, np.uint8), said)
            ahead *= 16
        of = said.tolist()
        stored, size = of[pages.PACKED], of[pages.UNPACKED]
        if length < 0 or stored < 0 or size < 0:
            yield (-1, 0, 0), -1, -1
            return
        yield (of[pages.KIND], of[pages.VALUES], of[pages.ENCODING]), size, stored
        at += length + stored
