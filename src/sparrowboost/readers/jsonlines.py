"""JSON lines: an object in each line, whose members are columns.

Any line may be the first to have a member, or a value of another type. So types are found on all
lines, and the rows are then written to scratch in Arrow's format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
from pyarrow import types as pt

from sparrowboost.readers.base import RandomAccessSource
from sparrowboost.readers.columns import is_text
from sparrowboost.readers.ipc import IpcFile, spill
from sparrowboost.readers.text import CHUNK_BYTES
from sparrowboost.runtime.errors import DataError

MAX_LINE_BYTES = 1 << 26
BAD_ROW = re.compile(r" in row (\d+)")
CHANGED = re.compile(r"Column\(/(.*?)\) changed from (\w+) to (\w+)")
TWICE = re.compile(r"Column\(/(.*?)\) was specified twice")
UNITS = ("s", "ms", "us", "ns")


def open_json_lines(
    path: Path, name: str, scratch: Path, check: Callable[[RandomAccessSource], object]
) -> IpcFile:
    """A file of JSON lines (plain text) as a source; `name` is for messages."""
    lines = _JsonLines(path, name)
    schema = lines.find_types()
    batches = (batch for table in lines.tables(schema) for batch in table.to_batches())
    return spill(pa.RecordBatchReader.from_batches(schema, batches), name, scratch, check)


class _JsonLines:
    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name

    def find_types(self) -> pa.Schema:
        """The columns of all lines, in the order in which they were found."""
        types: dict[str, pa.DataType] = {}
        for first, data in self._blocks():
            self._check_text(first, data)
            for field in self._parse(first, data).schema:
                known = types.setdefault(field.name, field.type)
                joined = join_types(known, field.type)
                if joined is None:
                    self._fail(
                        f"column {field.name!r} is {known} before line {first + 1:,} and "
                        f"{field.type} at or after it; make its values one type."
                    )
                types[field.name] = joined
        if not types:
            self._fail("has no rows.")
        return pa.schema(list(types.items()))

    def tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """All rows, with columns of these types."""
        for first, data in self._blocks():
            yield self._parse(first, data, schema).select(schema.names)

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """Whole lines, with the number of those before."""
        first = 0
        with open(self._path, "rb") as file:
            while data := file.read(CHUNK_BYTES):
                if not data.endswith(b"\n"):
                    rest = file.readline(MAX_LINE_BYTES)
                    if len(rest) == MAX_LINE_BYTES and not rest.endswith(b"\n"):
                        line = first + data.count(b"\n") + 1
                        self._fail(
                            f"line {line:,} is longer than {MAX_LINE_BYTES >> 20} MB, the maximum "
                            "that can be read; fix or remove it."
                        )
                    data += rest
                if data.strip():
                    yield first, data
                first += data.count(b"\n")

    def _parse(self, first: int, data: bytes, schema: pa.Schema | None = None) -> pa.Table:
        import pyarrow.json as pj

        how = pj.ParseOptions()
        if schema is not None:
            how = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
        read = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
        try:
            return pj.read_json(pa.BufferReader(data), read_options=read, parse_options=how)
        except pa.ArrowInvalid as error:
            self._explain(first, data, str(error))

    def _explain(self, first: int, data: bytes, message: str) -> NoReturn:
        row = BAD_ROW.search(message)
        where = f"after line {first:,}"
        if row is not None:
            full = [i for i, line in enumerate(data.split(b"\n")) if line.strip()]
            where = f"line {first + full[min(int(row[1]), len(full) - 1)] + 1:,}"
        if changed := CHANGED.search(message):
            column, was, now = changed.groups()
            self._fail(
                f"{where}, column {column!r}: a value is {now}, and one before is {was}; make its "
                "values one type."
            )
        if twice := TWICE.search(message):
            self._fail(f"{where}: {twice[1]!r} is there twice; keep one of the two.")
        if "Column() changed" in message:
            self._fail(
                f"{where}: not an object; each line has to be one, such as "
                '{"x": 1.5, "color": "red"}. A JSON array can be converted: python -c "import '
                f"polars; polars.read_json({str(self._path)!r}).write_parquet('new.parquet')\""
            )
        what = message.removeprefix("JSON parse error: ").partition(" in row")[0].rstrip(".")
        self._fail(f"{where}: not JSON ({what}); fix or remove the line.")

    def _check_text(self, first: int, data: bytes) -> None:
        try:
            data.decode()
        except UnicodeDecodeError as error:
            line = first + data.count(b"\n", 0, error.start) + 1
            self._fail(f"line {line:,}: not UTF-8 text; convert the file first.")

    def _fail(self, what: str) -> NoReturn:
        raise DataError(f"{self._name}: {what}") from None


def join_types(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of both, as Arrow's parser finds them; None if none does.

    Examples
    --------
    >>> join_types(pa.int64(), pa.float64()), join_types(pa.timestamp("s"), pa.string())
    (DataType(double), DataType(string))
    """
    if a == b or pt.is_null(b):
        return a
    if pt.is_null(a):
        return b
    if {a, b} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pt.is_timestamp(a) and pt.is_timestamp(b):
        return a if UNITS.index(a.unit) > UNITS.index(b.unit) else b
    if all(is_text(type_) or pt.is_timestamp(type_) for type_ in (a, b)):
        return pa.string()
    if pt.is_list(a) and pt.is_list(b):
        values = join_types(a.value_type, b.value_type)
        return None if values is None else pa.list_(values)
    if pt.is_struct(a) and pt.is_struct(b):
        return _join_structs(a, b)
    return None


def _join_structs(a: pa.StructType, b: pa.StructType) -> pa.DataType | None:
    types: dict[str, pa.DataType] = {}
    for field in (*a, *b):
        joined = join_types(types.get(field.name, field.type), field.type)
        if joined is None:
            return None
        types[field.name] = joined
    return pa.struct(list(types.items()))
