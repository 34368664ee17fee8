"""CSV files: types are inferred from values all over the file, then the file is streamed once."""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
from pyarrow import types as pt

from sparrowboost.readers.arrays import strings
from sparrowboost.readers.base import JoinedColumns, thin
from sparrowboost.readers.columns import Kind
from sparrowboost.readers.files import (
    Location,
    arrow_stream,
    open_binary,
    size_of,
    streaming_bytes,
)
from sparrowboost.readers.infer import (
    CATEGORY,
    TEXT,
    cast_texts,
    infer_meaning,
    trim_categories,
)
from sparrowboost.readers.notation import (
    PLAIN,
    Notation,
    find_groups,
    look_like_dates,
    look_like_numbers,
)
from sparrowboost.readers.text import (
    CHUNK_BYTES,
    LentFile,
    LongLineError,
    QuoteWatch,
    has_open_lines,
    lend_to_arrow,
    line_ranges,
    mean_line_bytes,
)
from sparrowboost.runtime.errors import DataError

DELIMITERS = (",", "\t", ";", "|")
BLOCK_BYTES = 1 << 19  # of text that is parsed at once; more is hardly faster
MAX_BLOCK_BYTES = 1 << 26  # where a row is longer than that; also the longest possible row
# Measured with blocks of 512 KB: 27 MB with 5 numeric columns, 33 with 50, 34 with 200, 40 with 20
# of categories. It hardly depends on the columns: Arrow reads blocks ahead, and its allocator keeps
# some. A row longer than a block takes more, which is not counted.
READING_BYTES = 40_000_000
MAX_COLUMNS = 1_000_000
INFER_ROWS = 20_000  # from all over the file: most of them decide the type of a column
INFER_BYTES = 1 << 24  # of text at most: fewer rows of a wide table

Types = dict[str, pa.DataType]

# Arrow's messages for a bad cell and a bad row; rows count from 1 and include the header.
BAD_CELL = re.compile(
    r"In CSV column #(\d+): Row #(\d+): CSV conversion error to .*?: "
    r"(?:invalid value|expected (no|a) zone offset in) '(.*?)'(?:\. If these .*)?$",
    re.S,
)
BAD_TEXT = re.compile(r"In CSV column #(\d+): Row #(\d+): .*invalid UTF8")
BAD_ROW = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")
TOO_LONG = "straddl"  # in the message for a row that does not fit the parser's block


class CsvFile(JoinedColumns):
    """One CSV file (plain text) as a source.

    Spaces around names, numbers, dates and categories are ignored, as are blank lines. A column
    with an empty name is called f<i>, where i is its index.

    Parameters
    ----------
    path : the text
    name : for messages (a gzipped file's text lies elsewhere)
    rng : chooses the rows from which types are inferred
    header : whether the first line names the columns; otherwise they are f0, f1, ...
    delimiter : between cells; by default the most frequent one of the first line
    notation : of numbers and dates
    categorical : columns that are categories whatever they look like
    text : columns to return unchanged
    """

    exact_rows = False
    in_memory = False

    def __init__(
        self,
        path: Location,
        name: str,
        rng: np.random.Generator,
        *,
        header: bool = True,
        delimiter: str | None = None,
        notation: Notation = PLAIN,
        categorical: Sequence[str] = (),
        text: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._path, self._notation = path, notation
        first = self._find_body(header)
        self._delimiter = delimiter or self._guess_delimiter(first)
        if first.count(self._delimiter.encode()) >= MAX_COLUMNS:
            raise DataError(
                f"{self.name}: the first line has more than {MAX_COLUMNS:,} cells, the maximum; is "
                "this a text of rows and columns?"
            )
        cells = self._split(first)
        self.columns = [(header and cell.strip()) or f"f{i}" for i, cell in enumerate(cells)]
        if header:
            self._check_header(cells)
        self._size = size_of(path) - self._body
        # A first guess, refined once by the sample for types. Then it stays: a sample must not
        # depend on the ones drawn before it.
        self._line_bytes = mean_line_bytes(path, self._body)
        self._lines_are_rows = True
        self._categorical = set(categorical)
        strings = self._infer_sample(rng)
        self._meanings = {
            c: CATEGORY if c in categorical else infer_meaning(strings.column(c), notation)
            for c in self.columns
            if c not in text
        } | dict.fromkeys(text, TEXT)
        # Columns whose numbers may be whole, with dots between groups; and one of these.
        self.grouped = self._find_groups(strings) if notation.plain else {}

    def _find_groups(self, strings: pa.Table) -> dict[str, str]:
        found = {}
        for column, meaning in self._meanings.items():
            if meaning.kind == "float64":
                texts = pc.utf8_trim_whitespace(strings[column].drop_null())
                example = find_groups(texts.filter(self._notation.are_numbers(texts)))
                if example is not None:
                    found[column] = example
        return found

    def _find_body(self, header: bool) -> bytes:
        """The first line that is not blank; also finds where the rows begin."""
        blank, start = 0, 0
        with open_binary(self._path) as file:
            while first := file.readline(MAX_BLOCK_BYTES):
                if first.removeprefix(codecs.BOM_UTF8).strip():
                    break
                blank += 1
                start += len(first)
        self._skip_rows = blank + header
        self._body = start + len(first) if header else start
        return first

    def _split(self, first: bytes) -> list[str]:
        if not first:
            raise DataError(f"{self.name}: the file is empty.")
        try:
            line = first.decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError:
            raise DataError(f"{self.name}: not UTF-8 text; convert it first.") from None
        if "\r" in line:
            raise DataError(
                f"{self.name}: lines end in a carriage return alone, as on old Macs; convert the "
                "file first, for example with: tr '\\r' '\\n' < old.csv > new.csv"
            )
        if has_open_lines(first.removeprefix(codecs.BOM_UTF8)):
            raise DataError(
                f"{self.name}: a quote in the first line is not closed; close or remove it (a "
                "column name must not span lines)."
            )
        try:
            return next(csv.reader([line], delimiter=self._delimiter))
        except csv.Error as error:
            raise DataError(f"{self.name}: the first line is not CSV ({error}).") from None

    def _guess_delimiter(self, first: bytes) -> str:
        """The most frequent one of the first line; rather not a mark within numbers."""
        marks = (self._notation.decimal, self._notation.thousands)
        counts = {d: first.count(d.encode()) for d in DELIMITERS}
        return max(DELIMITERS, key=lambda d: (counts[d] > 0 and d not in marks, counts[d]))

    def _check_header(self, cells: Sequence[str]) -> None:
        twice = sorted(c for c, n in Counter(self.columns).items() if n > 1)
        if twice:
            raise DataError(f"{self.name}: the header names {twice[0]!r} more than once.")
        if pc.all(self._notation.are_numbers(strings([cell.strip() for cell in cells]))).as_py():
            raise DataError(
                f"{self.name}: the first line ({', '.join(cells[:4])}, ...) looks like "
                "data, not names; pass header=False (--no-header) to name the columns "
                "f0, f1, ..."
            )

    def _infer_sample(self, rng: np.random.Generator) -> pa.Table:
        """Strings from all over the file, to infer types from; also sets `n_rows`."""
        types = dict.fromkeys(self.columns, pa.string())
        with open_binary(self._path) as file:
            file.seek(self._body)
            head = file.read(CHUNK_BYTES)
        quotes, odd = b'"' in head, has_open_lines(head)
        share, n_bytes, batches = 1.0, 0, []
        rows = min(INFER_ROWS, round(INFER_BYTES / max(self._line_bytes, 1.0)))
        for data in self._ranges(rows, rng):
            some, skipped = self._parse(data, types)
            batches += some
            n_bytes += len(data)
            quotes, odd = quotes or b'"' in data, odd or skipped or has_open_lines(data)
        if quotes and odd:
            # A random position may lie within a cell that spans lines, and what follows would be
            # misread. So the rows are streamed and thinned. Files that do not get here have so few
            # such cells that neither the head nor any range shows one, and hardly any row of their
            # sample can be misread. (Stray quotes, as in 6" pipe, look the same: such a file is
            # streamed without need, which only costs time.)
            self._lines_are_rows = False
            share = min(1.0, rows * self._line_bytes / self._size)
            batches = list(self._thinned(types, share, rng))
        n_rows = sum(batch.num_rows for batch in batches)
        if n_rows == 0 and head.strip():
            # Every row is wrong, which this reports; or all ranges lie in one very long row.
            count = sum(batch.num_rows for _, batch in self._stream(types))
            self._lines_are_rows, self._line_bytes = False, self._size / max(count, 1)
            share = min(1.0, rows / max(count, 1))
            batches = list(self._thinned(types, share, rng))
            n_rows = sum(batch.num_rows for batch in batches)
        if n_rows and self._lines_are_rows:
            self._line_bytes = n_bytes / n_rows
            self.n_rows = round(self._size / self._line_bytes)
        else:
            self.n_rows = round(n_rows / share)
        return pa.Table.from_batches(batches, pa.schema(list(types.items())))

    def kind(self, column: str) -> Kind:
        return self._meanings[column].kind

    def reading_bytes(self, columns: Sequence[str]) -> int:
        return READING_BYTES + streaming_bytes(self._path)

    def partitions(self) -> list[int]:
        return []

    def blocks(
        self, columns: Sequence[str], rows: int, only: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        for row, whole in self._stream(self._parser_types(columns)):
            batch = self._finish(whole, row)
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)

    def sample(
        self, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch]:
        types = self._parser_types(columns)
        if not self._lines_are_rows:
            for batch in self._thinned(types, rows / self.n_rows, rng):
                yield self._finish(batch)
            return
        for data in self._ranges(rows, rng):
            for batch in self._parse(data, types)[0]:
                yield self._finish(batch)

    def _ranges(self, rows: int, rng: np.random.Generator) -> Iterator[bytes]:
        wanted = round(rows * self._line_bytes)
        try:
            for _, data in line_ranges(self._path, self._body, wanted, rng, MAX_BLOCK_BYTES):
                yield data
        except LongLineError as error:
            for _ in self._stream(dict.fromkeys(self.columns, pa.binary())):
                pass  # raises, with the number of the row
            self._fail_long(f"at byte {error.offset:,}")

    def _thinned(
        self, types: Types, share: float, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch]:
        """Each row with probability `share`; bad cells are left for `blocks` to report."""
        for _, batch in self._stream(dict.fromkeys(types, pa.binary())):
            yield _forgiving(thin(batch, share, rng), types)

    def _parse(self, data: bytes, types: Types) -> tuple[list[pa.RecordBatch], bool]:
        """Rows from the middle of the file, and whether some lines were not rows of this table."""
        skipped: list[int | None] = []
        data = data.decode(errors="replace").encode()  # Arrow cannot skip invalid text
        read = pcsv.ReadOptions(
            column_names=self.columns, block_size=len(data) + 1, use_threads=False
        )
        parse = self._parse_options(skipped)
        try:
            table = pcsv.read_csv(pa.BufferReader(data), read, parse, self._convert_options(types))
            return table.to_batches(), bool(skipped)
        except pa.ArrowInvalid:
            texts = self._convert_options(dict.fromkeys(types, pa.binary()))
            table = pcsv.read_csv(pa.BufferReader(data), read, parse, texts)
            return [_forgiving(batch, types) for batch in table.to_batches()], bool(skipped)

    def _stream(self, types: Types) -> Iterator[tuple[int, pa.RecordBatch]]:
        """All rows as parsed, with the number of rows before each batch."""
        done, block_bytes = 0, BLOCK_BYTES
        while True:
            row = 0
            with (
                QuoteWatch(self._path, self._body, self._delimiter) as file,
                lend_to_arrow(file) as hand,
            ):
                try:
                    for batch in self._open(hand, types, block_bytes):
                        self._check_quotes(file.swallowing)
                        new = batch.slice(min(max(done - row, 0), batch.num_rows))
                        row += batch.num_rows
                        if new.num_rows:
                            yield row - new.num_rows, new
                            done = row
                    self._check_quotes(file.swallowing)
                    return
                except pa.ArrowInvalid as error:
                    self._check_quotes(file.swallowing)
                    if TOO_LONG not in str(error):
                        self._explain(error)
                    if block_bytes >= MAX_BLOCK_BYTES:
                        self._check_quotes(file.open_at)
                        self._fail_long(f"after row {done + self._skip_rows}")
            block_bytes = min(8 * block_bytes, MAX_BLOCK_BYTES)

    def _open(
        self, hand: list[LentFile] | list[pa.NativeFile], types: Types, block_bytes: int
    ) -> pcsv.CSVStreamingReader:
        """A reader of the file in a list, which it takes out so that nothing else refers to it."""
        return pcsv.open_csv(
            hand.pop(),
            read_options=pcsv.ReadOptions(
                column_names=self.columns,
                skip_rows=self._skip_rows,
                block_size=block_bytes,
                use_threads=False,  # as fast, and errors name the row
            ),
            parse_options=self._parse_options(),
            convert_options=self._convert_options(types),
        )

    def _parse_options(self, skipped: list[int | None] | None = None) -> pcsv.ParseOptions:
        """How to split rows; those with too few or too many cells are errors, or skipped."""

        def skip(row: pcsv.InvalidRow) -> str:
            assert skipped is not None
            skipped.append(row.number)
            return "skip"

        return pcsv.ParseOptions(
            delimiter=self._delimiter,
            newlines_in_values=True,
            invalid_row_handler=None if skipped is None else skip,
        )

    def _convert_options(self, types: Types) -> pcsv.ConvertOptions:
        return pcsv.ConvertOptions(
            column_types=types, include_columns=list(types), strings_can_be_null=True
        )

    def _parser_types(self, columns: Sequence[str]) -> Types:
        meanings = {c: self._meanings[c] for c in columns}
        return {c: pa.string() if m.as_text else m.type for c, m in meanings.items()}

    def _finish(self, batch: pa.RecordBatch, row: int | None = None) -> pa.RecordBatch:
        """Convert what the parser left as strings; a bad cell raises if `row` is given."""
        for i, column in enumerate(batch.schema.names):
            values, meaning = batch.column(i), self._meanings[column]
            if pt.is_dictionary(values.type):
                coded = trim_categories(values, shorten=column in self._categorical)
                batch = batch.set_column(i, column, coded)
            elif pt.is_string(values.type):
                cast, junk = cast_texts(values, meaning.type, meaning.notation)
                if junk is not None and row is not None:
                    number = row + junk + 1 + self._skip_rows
                    self._fail_cell(column, number, values[junk].as_py())
                batch = batch.set_column(i, column, cast)
        return batch

    def _explain(self, error: pa.ArrowInvalid) -> NoReturn:
        message = str(error)
        if cell := BAD_CELL.search(message):
            self._fail_cell(self.columns[int(cell[1])], int(cell[2]), cell[4], cell[3])
        if cell := BAD_TEXT.search(message):
            self._fail_text(self.columns[int(cell[1])], int(cell[2]))
        if row := BAD_ROW.search(message):
            raise DataError(
                f"{self.name}: row {row[1]} has {row[3]} values where the header has {row[2]}; "
                "fix or remove the row."
            ) from None
        raise DataError(f"{self.name}: not a readable CSV file ({message}).") from None

    def _fail_cell(self, column: str, row: int, text: str, zone: str | None = None) -> NoReturn:
        if "\ufffd" in text:
            self._fail_text(column, row)
        what = "date" if self._meanings[column].kind == "time" else "number"
        if zone:
            what += f" with{'out' if zone == 'no' else ''} a time zone"
        advice = self._other_notation(text)
        raise DataError(
            f"{self.name}: row {row}, column {column!r}: {text!r} is not a {what}, unlike other "
            f"values of the column. Fix the row{advice}, or pass categorical=[{column!r}] "
            f"(--categorical {column}) to read the column as categories."
        ) from None

    def _other_notation(self, text: str) -> str:
        """Advice on a cell that may be a number or date in another notation."""
        cell = strings([text])
        if look_like_dates(cell)[0].as_py():
            return ", or pass date_format= (--date-format) if dates are written like this"
        if look_like_numbers(cell)[0].as_py():
            return (
                ", or pass decimal= and thousands= (--decimal, --thousands) if numbers are written "
                "like this"
            )
        return ""

    def _fail_text(self, column: str, row: int) -> NoReturn:
        raise DataError(
            f"{self.name}: row {row}, column {column!r}: not UTF-8 text; convert the file "
            "first, for example with: iconv -f latin1 -t utf-8 old.csv > new.csv"
        ) from None

    def _fail_long(self, where: str) -> NoReturn:
        raise DataError(
            f"{self.name}: {where}, a row is longer than {MAX_BLOCK_BYTES >> 20} MB, the maximum "
            "that can be read; fix or remove it."
        ) from None

    def _check_quotes(self, swallowing: int | None) -> None:
        """A DataError that names the row of a quote that swallows the lines after it."""
        if swallowing is None:
            return
        raise DataError(
            f"{self.name}: row {self._row_at(swallowing)}: a quote opens and is not closed, and "
            "swallows the lines after it; close or remove it."
        ) from None

    def _row_at(self, offset: int) -> int:
        """The number of the row that contains this byte."""
        with open_binary(self._path) as file:
            file.seek(max(self._body, offset - MAX_BLOCK_BYTES))
            line = file.read(offset - file.tell()).rpartition(b"\n")[2]
        stop, rows = offset - len(line), 0
        if stop > self._body:
            with arrow_stream(self._path, stop) as head:
                types = {self.columns[0]: pa.binary()}
                try:
                    reader = self._open([head], types, MAX_BLOCK_BYTES)
                    rows = sum(batch.num_rows for batch in reader)
                except pa.ArrowInvalid as error:  # an earlier row is wrong
                    self._explain(error)
        return rows + 1 + self._skip_rows


def _forgiving(batch: pa.RecordBatch, types: Types) -> pa.RecordBatch:
    """Bytes as values of these types; null where they cannot be converted."""
    arrays = [cast_texts(batch.column(c), type_)[0] for c, type_ in types.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(types))
