"""libsvm (svmlight) files: sparse rows of ``label index:value ...``; what is not there is zero."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa

from sparrowboost.errors import DataError
from sparrowboost.sources.columns import Kind
from sparrowboost.sources.text import CHUNK_BYTES, line_ranges

READING_CHUNKS = 12  # text, tokens and values of one chunk
LABEL = "label"  # the column that the first token of each line makes


class LibsvmFile:
    """One libsvm file (plain text) as a source: column ``label``, and ``f<i>`` for index i."""

    exact_rows = True
    in_memory = False

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self._path = path
        self._size = path.stat().st_size
        self.n_rows, low, high = self._survey()
        if self.n_rows and high < 0:
            raise DataError(f"{name}: no line has a feature (index:value).")
        # As the format has it: indices start at 1, unless the file itself uses 0.
        self._first = min(low, 1)
        self._width = high + 1 - self._first
        self.columns = [LABEL, *(f"f{i}" for i in range(self._first, high + 1))]

    def _survey(self) -> tuple[int, int, int]:
        """Rows, lowest and highest index: how wide the table is, only the whole file can say."""
        n_rows, low, high = 0, 1, -1
        for offset, data in self._all():
            index, _ = self._tokens(data, offset)
            n_rows += int(np.count_nonzero(index < 0))
            features = index[index >= 0]
            if len(features):
                low, high = min(low, int(features.min())), max(high, int(features.max()))
        return n_rows, low, high

    def _all(self) -> Iterator[tuple[int, bytes]]:
        return line_ranges(self._path, 0, self._size, np.random.default_rng(0))

    def kind(self, column: str) -> Kind:
        return "float64"

    def reading_bytes(self, columns: Sequence[str]) -> int:
        return READING_CHUNKS * CHUNK_BYTES

    def blocks(self, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        for offset, data in self._all():
            yield from self._dense(offset, data, columns, rows)

    def peek(
        self, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch]:
        wanted = self._size
        if rows < self.n_rows:
            wanted = round(rows * self._size / self.n_rows)
        for offset, data in line_ranges(self._path, 0, wanted, rng):
            yield from self._dense(offset, data, columns, rows)

    def _tokens(self, data: bytes, offset: int) -> tuple[np.ndarray, pa.StringArray]:
        """The feature index (-1: label) and the text of each token."""
        from sparrowboost.kernels.libsvm import split_tokens

        bytes_ = np.frombuffer(data, np.uint8)
        index = np.empty(len(data), np.int32)
        text = np.empty(len(data), np.uint8)
        end = np.empty(len(data) + 1, np.int32)
        n = split_tokens(bytes_, index, text, end)
        if n < 0:
            self._explain(offset, data, -1 - n)
        texts = pa.StringArray.from_buffers(n, pa.py_buffer(end[: n + 1]), pa.py_buffer(text))
        return index[:n], texts

    def _dense(
        self, offset: int, data: bytes, columns: Sequence[str], rows: int
    ) -> Iterator[pa.RecordBatch]:
        index, texts = self._tokens(data, offset)
        try:
            values = texts.cast(pa.float64()).to_numpy()
        except pa.ArrowInvalid as error:
            self._explain(offset, data, self._find_bad(data), str(error))
        starts = np.flatnonzero(index < 0)
        # Position of each feature among the wanted columns; the last place takes the others.
        place = np.full(self._width, len(columns), np.int64)
        for j, column in enumerate(columns):
            if column != LABEL:
                place[int(column[1:]) - self._first] = j
        for first in range(0, len(starts), rows):
            last = min(first + rows, len(starts))
            a, b = starts[first], starts[last] if last < len(starts) else len(index)
            row = np.cumsum(index[a:b] < 0) - 1
            feature = index[a:b] >= 0
            dense = np.zeros((len(columns) + 1, last - first))
            dense[place[index[a:b][feature] - self._first], row[feature]] = values[a:b][feature]
            arrays = [
                pa.array(values[a:b][~feature] if c == LABEL else dense[j])
                for j, c in enumerate(columns)
            ]
            yield pa.RecordBatch.from_arrays(arrays, list(columns))

    def _find_bad(self, data: bytes) -> int:
        """Position of the first token that is not a number, found the slow way."""
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

    def _explain(self, offset: int, data: bytes, position: int, why: str = "") -> NoReturn:
        with open(self._path, "rb") as file:
            before, left = 0, offset
            while left > 0:
                chunk = file.read(min(CHUNK_BYTES, left))
                before += chunk.count(b"\n")
                left -= len(chunk)
        row = before + data.count(b"\n", 0, position) + 1
        line = data[data.rfind(b"\n", 0, position) + 1 :].split(b"\n")[0][:60]
        raise DataError(
            f"{self.name}: row {row} is not a libsvm line (label index:value ...): "
            f"{line.decode(errors='replace')!r}. {why}".rstrip()
        )
