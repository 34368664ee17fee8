"""CSV files: types decided by values from all over the file, then streamed once."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from sparrowboost.errors import DataError
from sparrowboost.sources.columns import STRINGS, Kind
from sparrowboost.sources.text import CHUNK_BYTES, line_ranges, mean_line_bytes

DELIMITERS = (",", "\t", ";", "|")
READING_CHUNKS = 12  # text, cells and values of the chunks that the parser holds
INFER_ROWS = 20_000  # a column is what most of these, from all over the file, say that it is
# A column is numeric if this share of its values are numbers: the others are then junk to report,
# where below it the numbers are categories among others.
NUMERIC_SHARE = 0.5
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?(?i:inf|infinity|nan)$"
EXACT = 2**53  # beyond, float64 no longer tells whole numbers apart

# Arrow's words for a bad cell and a bad row, with the row counted from 1, the header included.
BAD_CELL = re.compile(
    r"In CSV column #(\d+): Row #(\d+): CSV conversion error to .*?: invalid value '(.*)'", re.S
)
BAD_ROW = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")


class CsvFile:
    """One CSV file (plain text) as a source.

    Parameters
    ----------
    path : where the text is
    name : what messages call it (a gzipped file's text lies elsewhere)
    rng : where to look for the types of columns
    header : whether the first line names the columns; else they are f0, f1, ...
    categorical : columns that are categories whatever they look like
    """

    exact_rows = False
    in_memory = False

    def __init__(
        self,
        path: Path,
        name: str,
        rng: np.random.Generator,
        *,
        header: bool = True,
        categorical: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._path = path
        with open(path, "rb") as file:
            first = file.readline()
        cells = self._split(first)
        self.columns = cells if header else [f"f{i}" for i in range(len(cells))]
        self._header = header
        self._body = len(first) if header else 0
        self._check_header()
        size = path.stat().st_size - self._body
        self._line_bytes = mean_line_bytes(path, self._body)
        types = dict.fromkeys(self.columns, pa.string())
        strings = pa.Table.from_batches(
            list(self._peek(INFER_ROWS, rng, types)), pa.schema(list(types.items()))
        )
        self._kinds: dict[str, Kind] = {
            c: "category" if c in categorical else infer_kind(strings.column(c))
            for c in self.columns
        }
        self.n_rows = round(size / self._line_bytes) if strings.num_rows else 0

    def _split(self, first: bytes) -> list[str]:
        if not first.strip():
            raise DataError(f"{self.name}: the file is empty.")
        try:
            line = first.decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError:
            raise DataError(f"{self.name}: not a text file in UTF-8; convert it first.") from None
        self._delimiter = max(DELIMITERS, key=line.count)
        return next(csv.reader([line], delimiter=self._delimiter))

    def _check_header(self) -> None:
        twice = sorted({c for c in self.columns if self.columns.count(c) > 1})
        if twice:
            raise DataError(f"{self.name}: the header names {twice[0]!r} more than once.")
        if self._header and all(re.match(NUMBER, cell.strip()) for cell in self.columns):
            raise DataError(
                f"{self.name}: the first line ({', '.join(self.columns[:4])}, ...) looks like "
                "data, not like names; pass header=False (--no-header) to name the columns "
                "f0, f1, ..."
            )

    def kind(self, column: str) -> Kind:
        return self._kinds[column]

    def _types(self, columns: Sequence[str]) -> dict[str, pa.DataType]:
        types: dict[Kind, pa.DataType] = {
            "category": STRINGS,
            "time": pa.timestamp("us"),
            "int64": pa.string(),  # told apart beyond 2**53, and a later 1.5 does no harm
        }
        return {c: types.get(self._kinds[c], pa.float64()) for c in columns}

    def _parse_options(self, *, strict: bool) -> pcsv.ParseOptions:
        return pcsv.ParseOptions(
            delimiter=self._delimiter,
            newlines_in_values=True,
            invalid_row_handler=None if strict else lambda row: "skip",
        )

    def _convert_options(self, types: dict[str, pa.DataType]) -> pcsv.ConvertOptions:
        return pcsv.ConvertOptions(
            column_types=types, include_columns=list(types), strings_can_be_null=True
        )

    def reading_bytes(self, columns: Sequence[str]) -> int:
        return READING_CHUNKS * CHUNK_BYTES

    def blocks(self, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        try:
            reader = pcsv.open_csv(
                self._path,
                read_options=pcsv.ReadOptions(
                    column_names=self.columns,
                    skip_rows=int(self._header),
                    block_size=CHUNK_BYTES,
                    use_threads=False,  # as fast, and errors then name the row
                ),
                parse_options=self._parse_options(strict=True),
                convert_options=self._convert_options(self._types(columns)),
            )
            for batch in reader:
                for start in range(0, batch.num_rows, rows):
                    yield self._exact_integers(batch.slice(start, rows))
        except pa.ArrowInvalid as error:
            self._explain(error)

    def peek(
        self, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch]:
        for batch in self._peek(rows, rng, self._types(columns)):
            yield self._exact_integers(batch)

    def _peek(
        self, rows: int, rng: np.random.Generator, types: dict[str, pa.DataType]
    ) -> Iterator[pa.RecordBatch]:
        wanted = round(rows * self._line_bytes)
        n_bytes = n_rows = 0
        for _, data in line_ranges(self._path, self._body, wanted, rng):
            table = self._parse(data, types)
            n_bytes += len(data)
            n_rows += table.num_rows
            yield from table.to_batches()
        if n_rows:  # lines from all over know better than the first ones how long a line is
            self._line_bytes = n_bytes / n_rows

    def _parse(self, data: bytes, types: dict[str, pa.DataType]) -> pa.Table:
        """Lines from the middle of the file; what is wrong with them, `blocks` will say."""
        options = {
            "read_options": pcsv.ReadOptions(
                column_names=self.columns, block_size=len(data) + 1, use_threads=False
            ),
            "parse_options": self._parse_options(strict=False),
        }
        try:
            return pcsv.read_csv(
                pa.BufferReader(data), convert_options=self._convert_options(types), **options
            )
        except pa.ArrowInvalid:
            texts = self._convert_options(dict.fromkeys(types, pa.binary()))
            table = pcsv.read_csv(pa.BufferReader(data), convert_options=texts, **options)
            return pa.table({c: _forgiving_cast(table.column(c), t) for c, t in types.items()})

    def _exact_integers(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for i, column in enumerate(batch.schema.names):
            if self._kinds[column] == "int64" and pa.types.is_string(batch.column(i).type):
                values = pc.utf8_trim_whitespace(batch.column(i))
                try:
                    values = values.cast(pa.int64())
                except pa.ArrowInvalid:
                    values = _forgiving_cast(values, pa.float64())
                batch = batch.set_column(i, column, values)
        return batch

    def _explain(self, error: pa.ArrowInvalid) -> NoReturn:
        message = str(error)
        if cell := BAD_CELL.search(message):
            column = self.columns[int(cell[1])]
            raise DataError(
                f"{self.name}: row {cell[2]}, column {column!r}: {cell[3]!r} is not a "
                f"{'date' if self._kinds[column] == 'time' else 'number'}, as other values of the "
                f"column are. Mend the row, or pass categorical=[{column!r}] "
                f"(--categorical {column}) to read the column as categories."
            ) from None
        if row := BAD_ROW.search(message):
            raise DataError(
                f"{self.name}: row {row[1]} has {row[3]} values where the header has {row[2]}; "
                "mend or remove the row."
            ) from None
        raise DataError(f"{self.name}: not a readable CSV file ({message}).") from None


def _forgiving_cast(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Values as `type_`, those that are not of it as null."""
    if type_ == pa.float64():
        texts = pc.utf8_trim_whitespace(values.cast(pa.string(), safe=False))
        values = pc.if_else(pc.match_substring_regex(texts, NUMBER), texts, None)
    try:
        return values.cast(pa.string()).cast(type_)
    except pa.ArrowInvalid:
        return pa.nulls(len(values), type_)


def infer_kind(texts: pa.ChunkedArray) -> Kind:
    """What a column of strings means: numbers, dates or categories.

    Examples
    --------
    >>> infer_kind(pa.chunked_array([["1", "2.5", None]]))
    'float64'
    >>> infer_kind(pa.chunked_array([["2001-01-31", "2001-02-01 10:00:00"]]))
    'time'
    >>> infer_kind(pa.chunked_array([["1", "x", "y"]]))
    'category'
    """
    texts = pc.utf8_trim_whitespace(texts.drop_null())
    if len(texts) == 0:
        return "null"
    numeric = pc.match_substring_regex(texts, NUMBER)
    if pc.mean(numeric).as_py() >= NUMERIC_SHARE:
        return "int64" if _beyond_exact(texts.filter(numeric)) else "float64"
    try:
        texts.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return "category"
    return "time"


def _beyond_exact(texts: pa.ChunkedArray) -> bool:
    """Whether these are whole numbers, and float64 would mix some of them up."""
    try:
        bounds = pc.min_max(texts.cast(pa.int64())).as_py()
    except pa.ArrowInvalid:
        return False
    return max(-bounds["min"], bounds["max"]) > EXACT
