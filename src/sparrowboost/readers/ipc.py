"""Arrow IPC files, and streams: these can be read only once, so they are written to such a file."""

from __future__ import annotations

import bisect
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sparrowboost.readers.base import (
    JoinedColumns,
    RandomAccessSource,
    check_names,
    random_runs,
    read_errors,
)
from sparrowboost.readers.columns import Kind, is_text, kind_of
from sparrowboost.readers.inmemory import from_table
from sparrowboost.readers.ipc_metadata import (
    V5,
    Extent,
    extents,
    read_dictionaries,
    read_footer,
    read_layout,
)
from sparrowboost.readers.ipc_rows import FlatBatch, flat_columns, form_of
from sparrowboost.runtime.disk import guard_disk
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.memory import release

SPILL_BYTES = 4 << 20  # of a record batch in scratch, before dictionaries are decoded
VALUE_BYTES = 8  # of most columns
SAMPLE_BATCH_ROWS, SAMPLE_BATCH_BYTES = 16_384, 4 << 20  # at most

STREAM_MARK = b"\xff\xff\xff\xff"  # before each message of a stream; a file begins with ARROW1

Rows = Callable[[int, int], pa.RecordBatch]  # of a record batch: first row, number of rows


class IpcFile(JoinedColumns):
    """One Arrow IPC (Feather) file as a source.

    Arrow reads record batches as a whole, and one may be the whole file. So the wanted rows of
    uncompressed batches are read directly from their offsets in the file. Arrow reads compressed
    batches, lists and the like.
    """

    exact_rows = True
    in_memory = False

    def __init__(self, path: Path, name: str) -> None:
        self.name, self._path = name, path
        with read_errors(name), open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise DataError(f"{name}: the file is empty.")
            with _readable(name), self._opened() as native:
                reader = pa.ipc.open_file(native)
                self._schema = reader.schema
                self.columns = list(self._schema.names)
                self._footer = read_footer(file.fileno(), size)
                if len(self._footer.batches) != reader.num_record_batches:
                    raise pa.ArrowInvalid("its footer is damaged")
                counts, self._positions = self._look_through(file.fileno())
        self._ends = list(itertools.accumulate(counts))
        check_names(name, self.columns)
        self.n_rows = sum(counts)

    def _look_through(self, file: int) -> tuple[list[int], list[Extent] | None]:
        """Rows of each record batch, and where columns lie if rows can be read directly."""
        positions = extents(self._schema)
        flat = self._footer.big_endian == (sys.byteorder == "big")
        counts = []
        for block in self._footer.batches:
            layout = read_layout(file, block, positions[-1] if positions else None)
            counts.append(layout.n_rows)
            flat = flat and layout.version == V5 and not layout.packed
        return counts, positions if flat else None

    def _types(self, columns: Sequence[str]) -> list[pa.DataType]:
        return [self._schema.field(c).type for c in columns]

    def _whole(self, columns: Sequence[str]) -> bool:
        """Whether Arrow must read these columns of a whole record batch at once."""
        return self._positions is None or None in map(form_of, self._types(columns))

    def kind(self, column: str) -> Kind:
        return kind_of(column, self._schema.field(column).type)

    def reading_bytes(self, columns: Sequence[str]) -> int:
        """Dictionaries, and columns that Arrow reads, packed and unpacked."""
        coded = any(map(pa.types.is_dictionary, self._types(columns)))
        dictionaries = int(self._footer.dictionaries["body"].sum()) if coded else 0
        if not self._ends or not self._whole(columns):
            return dictionaries
        rows = max(b - a for a, b in itertools.pairwise([0, *self._ends]))
        packed = int(self._footer.batches["body"].max()) // len(self.columns)
        return dictionaries + (rows * VALUE_BYTES + packed) * len(columns)

    def row_bytes(self, columns: Sequence[str]) -> float:
        """Bytes of a row; of texts, which may be long, as the record batches are large."""
        row = float(VALUE_BYTES * len(columns))
        if self._ends and any(map(is_text, self._types(columns))):
            rows = np.diff([0, *self._ends])
            row += float(np.max(self._footer.batches["body"] / np.maximum(rows, 1)))
        return row

    def partitions(self) -> list[int]:
        return []

    def blocks(
        self, columns: Sequence[str], rows: int, only: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        return self._runs([(0, self.n_rows)], columns, rows)

    def sample(
        self, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch]:
        most = max(1, min(SAMPLE_BATCH_ROWS, int(SAMPLE_BATCH_BYTES / self.row_bytes(columns))))
        return self._runs(random_runs(self.n_rows, rows, rng), columns, most)

    def _runs(
        self, runs: Iterable[tuple[int, int]], columns: Sequence[str], rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Ascending runs of rows, split at record batches and after `rows` rows."""
        way = self._by_arrow if self._whole(columns) else self._flat
        with read_errors(self.name), _readable(self.name), way(columns) as opener:
            held = -1
            batch: Rows | None = None
            for start, stop in runs:
                while start < stop:
                    index = bisect.bisect_right(self._ends, start)
                    if batch is None or index != held:
                        batch = None  # freed before the next one is read
                        batch, held = opener(index), index
                    first = self._ends[index - 1] if index else 0
                    n = min(rows, stop - start, self._ends[index] - start)
                    yield batch(start - first, n)
                    start += n

    def _opened(self) -> pa.OSFile:
        """The file for Arrow, whose threads should not call a Python file."""
        return pa.OSFile(os.fsencode(self._path))

    @contextmanager
    def _flat(self, columns: Sequence[str]) -> Iterator[Callable[[int], Rows]]:
        """A function from a batch's number to its rows, read on demand."""
        coded = [c for c in columns if pa.types.is_dictionary(self._schema.field(c).type)]
        assert self._positions is not None
        with open(self._path, "rb", buffering=0) as opened:
            file, dictionaries = opened.fileno(), {}
            if coded:
                dictionaries = read_dictionaries(file, self._footer, self._schema, coded)
            wanted = flat_columns(self._schema, self._positions, columns, dictionaries)

            def batch(index: int) -> Rows:
                layout = read_layout(file, self._footer.batches[index])
                return FlatBatch(file, layout, wanted).rows

            yield batch

    @contextmanager
    def _by_arrow(self, columns: Sequence[str]) -> Iterator[Callable[[int], Rows]]:
        """A function from a batch's number to its rows, whose columns Arrow has loaded."""
        fields = sorted(self.columns.index(c) for c in columns)
        with self._opened() as native:
            reader = pa.ipc.open_file(native, options=pa.ipc.IpcReadOptions(included_fields=fields))

            def batch(index: int) -> Rows:
                read = reader.get_batch(index).select(list(columns))
                read.validate()  # Arrow does not by itself
                return lambda start, n: _checked(read.slice(start, n))

            yield batch


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch; an ArrowInvalid if an index is out of bounds or a string is not UTF-8."""
    for column in batch.columns:
        if not pa.types.is_primitive(column.type):
            column.validate(full=True)
    return batch


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Turn errors of Arrow or the system into a DataError that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(_unreadable(name, error)) from None


def _unreadable(name: str, error: Exception) -> str:
    return (
        f"{name}: not a readable Arrow IPC file ({error}); it may be truncated or damaged; write "
        "it again or leave it out."
    )


def open_arrow(
    path: Path, name: str, scratch: Path, check: Callable[[RandomAccessSource], object]
) -> IpcFile:
    """An Arrow file; by way of scratch if it is a stream, which has no index of its batches.

    Hugging Face's libraries write streams.
    """
    with read_errors(name), open(path, "rb") as file:
        start = file.read(len(STREAM_MARK))
    if start != STREAM_MARK:
        return IpcFile(path, name)
    with read_errors(name), pa.OSFile(os.fsencode(path)) as native:
        with _readable(name):
            reader = pa.ipc.open_stream(native)
        return spill(reader, name, scratch, check)


def spill_stream(
    data: Any, name: str, scratch: Path, check: Callable[[RandomAccessSource], object]
) -> IpcFile:
    """The rows of any object with ``__arrow_c_stream__``, written to scratch."""
    if isinstance(data, pa.RecordBatchReader):  # not wrapped: its errors keep their type
        return spill(data, name, scratch, check)
    try:
        reader = pa.RecordBatchReader.from_stream(data)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{name}: not a stream of rows ({error}); pass a table, or a stream of record batches."
        ) from None
    return spill(reader, name, scratch, check)


def spill(
    reader: pa.RecordBatchReader,
    name: str,
    scratch: Path,
    check: Callable[[RandomAccessSource], object],
) -> IpcFile:
    """A stream written to scratch, so that it can be sampled and then read.

    `check` gets its columns, as a source without rows, before any row is fetched.
    """
    check_columns(reader.schema, name, check)
    plain = pa.schema([(f.name, _without_dictionary(f.type)) for f in reader.schema])
    path = _unused(scratch)
    # The length of a stream is unknown; there must be room for one more piece.
    with (
        guard_disk(path, SPILL_BYTES, only_space=True),
        pa.ipc.new_file(path, plain) as writer,
    ):
        for batch in _pieces(reader, plain, name):
            with guard_disk(path, SPILL_BYTES):
                writer.write_batch(batch)
    del reader
    release()  # the stream's memory, before the rest is divided
    return IpcFile(path, name)


def check_columns(
    schema: pa.Schema, name: str, check: Callable[[RandomAccessSource], object]
) -> None:
    """Check the columns of a stream, as a source without rows."""
    rows = from_table(schema.empty_table(), name)
    check(replace(rows, exact_rows=False, in_memory=False))


def _unused(scratch: Path) -> Path:
    """A path for a stream: several may be spilled to the same folder."""
    names = itertools.chain(["stream.arrow"], map("stream-{}.arrow".format, itertools.count(1)))
    return next(path for path in map(scratch.joinpath, names) if not path.exists())


def _pieces(reader: pa.RecordBatchReader, plain: pa.Schema, name: str) -> Iterator[pa.RecordBatch]:
    """The stream's rows, a few at a time; errors of Arrow become a DataError."""
    try:
        for batch in reader:
            rows = max(1, batch.num_rows * SPILL_BYTES // max(batch.nbytes, 1))
            for start in range(0, batch.num_rows, rows):
                # A stream may change dictionaries, an IPC file has one per column: decode.
                yield batch.slice(start, rows).cast(plain)
    except pa.ArrowException as error:
        raise DataError(_broken(name, error)) from error
    except OSError as error:
        # This is how a stream through the C interface reports errors of its producer.
        if type(error) is OSError and error.errno is None:
            raise DataError(_broken(name, error)) from error
        raise


def _broken(name: str, error: Exception) -> str:
    why = str(error).split(". Detail: Python exception", maxsplit=1)[0]
    why = " ".join(why.split())  # some are of several lines
    return f"{name}: the stream failed before its end ({why}); check what produces it."


def _without_dictionary(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_
