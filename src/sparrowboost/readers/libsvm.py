"""libsvm (svmlight) files: sparse rows of ``label index:value ...``; absent values are zero."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost.readers.arrays import from_numpy, strings, to_numpy
from sparrowboost.readers.base import JoinedColumns, read_errors
from sparrowboost.readers.columns import Kind
from sparrowboost.readers.files import Location, open_binary, size_of, streaming_bytes
from sparrowboost.readers.sparse import NumberedColumns, SparseBatch, Survey
from sparrowboost.readers.text import CHUNK_BYTES, LongLineError, line_ranges
from sparrowboost.runtime.errors import DataError

READING_CHUNKS = 12  # memory for text, tokens and values of one chunk, in chunks
LABEL = "label"  # the column that the first token of each line makes
# Of each column, or of each that has some values, something is in memory.
MAX_INDEX = 1_000_000
MAX_LINE_BYTES = 1 << 25  # so many features take up to 26 bytes each
NO_LINE = "is not a libsvm line (label index:value ...)"
TOO_WIDE = (
    f"has a feature index above {MAX_INDEX:,}, the maximum; renumber the features, or hash them to "
    "fewer"
)


def align(files: Sequence[LibsvmFile]) -> None:
    """Make all files of a table as wide as the widest; a DataError if none has a feature."""
    first, last = min(file.first for file in files), max(file.last for file in files)
    with_rows = [file for file in files if file.n_rows]
    if with_rows and last < 0:
        raise DataError(f"{with_rows[0].name}: no line has a feature (index:value).")
    columns = NumberedColumns(first, last, (LABEL,), MAX_INDEX)
    for file in files:
        file.widen(first, last, columns)


class _TokenBuffers:
    """Arrays for the tokens of a chunk of text, reused for the next chunk."""

    def __init__(self) -> None:
        self._held: tuple[npt.NDArray[Any], ...] = ()

    def arrays(self, n: int) -> tuple[npt.NDArray[Any], ...]:
        """Index (n,) int32, text (n,) uint8 and end (n + 1,) int32 for `split_tokens`."""
        if not self._held or len(self._held[0]) < n:
            self._held = np.empty(n, np.int32), np.empty(n, np.uint8), np.empty(n + 1, np.int32)
        return self._held


class LibsvmFile(JoinedColumns):
    """One libsvm file (plain text) as a source: column ``label``, and ``f<i>`` for index i."""

    exact_rows = True
    in_memory = False

    def __init__(self, path: Location, name: str, survey: Survey | None = None) -> None:
        self.name = name
        self._path = path
        self._seen = survey or Survey()  # which all files of a table share
        with read_errors(name):
            self._size = size_of(path)
            self.n_rows, low, self.last = self._survey()
        # By convention indices start at 1, unless the file itself uses 0.
        self.first = min(low, 1)
        # Load Arrow's kernels before memory is divided, so that they are counted.
        strings(["0"]).cast(pa.float64())

    @cached_property
    def columns(self) -> Sequence[str]:
        return NumberedColumns(self.first, self.last, (LABEL,), MAX_INDEX)

    def widen(self, first: int, last: int, columns: Sequence[str]) -> None:
        """Give this file the features of a wider table; those that it lacks are zero."""
        self.first, self.last = first, last
        self.columns = columns  # one list shared by all files

    def _survey(self) -> tuple[int, int, int]:
        """Rows, lowest and highest index; only a pass over the whole file can tell."""
        n_rows, low, high = 0, 1, -1
        buffers = _TokenBuffers()
        for offset, data in self._all():
            index, texts = self._tokens(data, offset, buffers)
            start, features = _rows_of(index)
            n_rows += len(start) - 1
            if len(features):
                low, high = min(low, int(features.min())), max(high, int(features.max()))
            if high > MAX_INDEX:
                row = int(np.count_nonzero(index[: index.argmax()] < 0)) - 1
                self._refuse(offset, data, _start_of_row(data, row), TOO_WIDE)
            self._seen.add(start, features)
            self._seen.missing |= _may_have_nan(texts)
        return n_rows, low, high

    def _all(self) -> Iterator[tuple[int, bytes]]:
        return self._ranges(self._size, np.random.default_rng(0))

    def _ranges(self, wanted: int, rng: np.random.Generator) -> Iterator[tuple[int, bytes]]:
        try:
            yield from line_ranges(self._path, 0, wanted, rng, MAX_LINE_BYTES)
        except LongLineError as error:
            raise DataError(
                f"{self.name}: at byte {error.offset:,}, a line is longer than "
                f"{MAX_LINE_BYTES >> 20} MB, the maximum that can be read; fix or remove it."
            ) from None

    def kind(self, column: str) -> Kind:
        return "float64"

    def reading_bytes(self, columns: Sequence[str]) -> int:
        return READING_CHUNKS * CHUNK_BYTES + streaming_bytes(self._path)

    def partitions(self) -> list[int]:
        return []

    def blocks(
        self, columns: Sequence[str], rows: int, only: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        target, buffers = self._targets(columns), _TokenBuffers()
        for offset, data in self._all():
            yield from self._dense(offset, data, columns, target, rows, buffers)

    def sample(
        self, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch]:
        wanted = self._size
        if rows < self.n_rows:
            wanted = round(rows * self._size / self.n_rows)
        target, buffers = self._targets(columns), _TokenBuffers()
        for offset, data in self._ranges(wanted, rng):
            yield from self._dense(offset, data, columns, target, rows, buffers)

    def sparse_rows(self) -> _LibsvmRows:
        return _LibsvmRows(self)

    def sparse_sample(self, rows: int, rng: np.random.Generator) -> Iterator[SparseBatch]:
        wanted = self._size
        if rows < self.n_rows:
            wanted = round(rows * self._size / self.n_rows)
        yield from self._sparse(self._ranges(wanted, rng), (), rows)

    def sparse_blocks(self, others: Sequence[str], rows: int) -> Iterator[SparseBatch]:
        yield from self._sparse(self._all(), others, rows)

    def _sparse(
        self, chunks: Iterator[tuple[int, bytes]], others: Sequence[str], rows: int
    ) -> Iterator[SparseBatch]:
        buffers = _TokenBuffers()
        for offset, data in chunks:
            index, texts = self._tokens(data, offset, buffers)
            values = self._values(texts, offset, data)
            labels = np.flatnonzero(index < 0)
            for first in range(0, len(labels), rows):
                last = min(first + rows, len(labels))
                part = slice(labels[first], labels[last] if last < len(labels) else None)
                start, features = _rows_of(index[part])
                arrays = [from_numpy(values[labels[first:last]])] * len(others)
                batch = pa.RecordBatch.from_arrays(arrays, list(others))
                yield SparseBatch(start, features, values[part][index[part] >= 0], batch)

    @property
    def seen(self) -> Survey:
        """What reading the file for its size has told, and that of the table's other files."""
        return self._seen

    def _targets(self, columns: Sequence[str]) -> npt.NDArray[np.int64]:
        """The index of each feature among the wanted columns; for others, one past the end."""
        target = np.full(self.last + 1 - self.first, len(columns), np.int64)
        for j, column in enumerate(columns):
            if column != LABEL and int(column[1:]) <= self.last:
                target[int(column[1:]) - self.first] = j
        return target

    def _tokens(
        self, data: bytes, offset: int, buffers: _TokenBuffers
    ) -> tuple[npt.NDArray[np.int32], pa.StringArray]:
        """The feature index (-1: label) and the text of each token."""
        from sparrowboost.kernels.libsvm import split_tokens

        index, text, end = buffers.arrays(len(data))
        n = split_tokens(np.frombuffer(data, np.uint8), index, text, end)
        if n < 0:
            bad = -1 - n
            wide = re.match(rb"[0-9]{9,}", data[bad : bad + 9])
            self._refuse(offset, data, bad, TOO_WIDE if wide else NO_LINE)
        texts = pa.StringArray.from_buffers(n, pa.py_buffer(end[: n + 1]), pa.py_buffer(text))
        return index[:n], texts

    def _dense(
        self,
        offset: int,
        data: bytes,
        columns: Sequence[str],
        target: npt.NDArray[np.int64],
        rows: int,
        buffers: _TokenBuffers,
    ) -> Iterator[pa.RecordBatch]:
        index, texts = self._tokens(data, offset, buffers)
        values = self._values(texts, offset, data)
        starts = np.flatnonzero(index < 0)
        for first in range(0, len(starts), rows):
            last = min(first + rows, len(starts))
            a, b = starts[first], starts[last] if last < len(starts) else len(index)
            row = np.cumsum(index[a:b] < 0) - 1
            feature = index[a:b] >= 0
            dense = _zeros(len(columns) + 1, last - first)
            dense[target[index[a:b][feature] - self.first], row[feature]] = values[a:b][feature]
            arrays = [
                from_numpy(values[a:b][~feature] if c == LABEL else dense[j])
                for j, c in enumerate(columns)
            ]
            yield pa.RecordBatch.from_arrays(arrays, list(columns))

    def _values(self, texts: pa.StringArray, offset: int, data: bytes) -> npt.NDArray[np.float64]:
        """The number of each token."""
        try:
            return to_numpy(texts.cast(pa.float64()))
        except pa.ArrowInvalid as error:
            self._refuse(offset, data, self._find_bad(data), NO_LINE, str(error))

    def _find_bad(self, data: bytes) -> int:
        """Position of the first token that is not a number."""
        position = 0
        for line in data.splitlines(keepends=True):
            for token in line.split(b"#")[0].split():
                try:
                    if not token.startswith(b"qid:"):
                        float(token.rpartition(b":")[2])
                except ValueError:
                    return position
            position += len(line)
        return 0

    def _refuse(
        self, offset: int, data: bytes, position: int, what: str, why: str = ""
    ) -> NoReturn:
        with open_binary(self._path) as file:
            before, left = 0, offset
            while left > 0:
                chunk = file.read(min(CHUNK_BYTES, left))
                before += chunk.count(b"\n")
                left -= len(chunk)
        row = before + data.count(b"\n", 0, position) + 1
        line = data[data.rfind(b"\n", 0, position) + 1 :].split(b"\n")[0][:60]
        raise DataError(
            f"{self.name}: row {row} {what}: {line.decode(errors='replace')!r}. {why}".rstrip()
        )


class _LibsvmRows(NamedTuple):
    """The rows of a file as they are."""

    file: LibsvmFile

    def survey(self) -> Survey:
        return self.file.seen

    def row_bytes(self) -> float:
        return self.file.seen.row_bytes

    def blocks(self, others: Sequence[str], rows: int) -> Iterator[SparseBatch]:
        return self.file.sparse_blocks(others, rows)

    def sample(self, rows: int, rng: np.random.Generator) -> Iterator[SparseBatch]:
        return self.file.sparse_sample(rows, rng)


def _rows_of(
    index: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Where the entries of each row are, and their features; of tokens with -1 for each label."""
    labels = np.flatnonzero(index < 0)
    start = np.append(labels, len(index)) - np.arange(len(labels) + 1)
    return start, index[index >= 0]


def _may_have_nan(texts: pa.StringArray) -> bool:
    """Whether some texts may be that of no number: they have the letter n, as infinity does."""
    _, ends, data = texts.buffers()
    letters = np.frombuffer(data, np.uint8)[: np.frombuffer(ends, np.int32)[len(texts)]]
    return bool(((letters | 32) == ord("n")).any())


def _zeros(d: int, n: int) -> npt.NDArray[np.float64]:
    """Zeros (d, n) from Arrow's allocator: C's keeps more of what other threads free."""
    zeros = np.frombuffer(pa.allocate_buffer(8 * d * n), np.float64).reshape(d, n)
    zeros[:] = 0
    return zeros


def _start_of_row(data: bytes, row: int) -> int:
    """Position of a row's line; lines without a token are not rows."""
    position = 0
    for line in data.splitlines(keepends=True):
        if line.split(b"#")[0].strip():
            if row == 0:
                break
            row -= 1
        position += len(line)
    return position
