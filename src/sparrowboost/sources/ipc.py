"""Arrow IPC files, and streams that can be read only once and so are kept as such a file."""

from __future__ import annotations

import bisect
import itertools
import mmap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sparrowboost.disk import guard_disk
from sparrowboost.errors import DataError
from sparrowboost.memory import release
from sparrowboost.sources.base import check_names, random_runs, reading
from sparrowboost.sources.columns import Kind, kind_of

SPILL_BYTES = 4 << 20  # of a record batch of the spill file, before dictionaries are decoded
VALUE_BYTES = 8  # of most columns
PEEK_ROWS = 16_384


class IpcFile:
    """One Arrow IPC (Feather) file as a source.

    The file is mapped into memory, and after each block the system is told to let its pages go:
    a mapped page counts as memory of the process for as long as it stays.
    """

    exact_rows = True
    in_memory = False
    _packed = True  # until it is known not to be

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        with reading(name), open(path, "rb") as file:
            if path.stat().st_size == 0:
                raise DataError(f"{name}: the file is empty.")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self._packed = self._is_packed()
            self._schema = self._reader([]).schema
            # One column is enough to count rows by: in a packed file, each is unpacked to be read.
            reader = self._reader([0])
            counts = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
            self.columns = list(self._schema.names)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(_unreadable(name, error)) from None
        self._ends = list(itertools.accumulate(counts))
        check_names(name, self.columns)
        self.n_rows = sum(counts)

    def _reader(self, fields: Sequence[int]) -> pa.RecordBatchFileReader:
        """A reader that unpacks some columns; of a file that is not packed, it maps them all.

        Arrow copies a record batch of which it is to read some columns only.
        """
        options = pa.ipc.IpcReadOptions(included_fields=list(fields) if self._packed else [])
        return pa.ipc.open_file(pa.BufferReader(pa.py_buffer(self._map)), options=options)

    def _is_packed(self) -> bool:
        """Whether values are compressed: then they lie in memory of their own once they are read.

        Else they are slices of the record batch that was read.
        """
        reader = self._reader([0])
        if not reader.num_record_batches:
            return False
        buffers = [b for b in reader.get_batch(0).column(0).buffers() if b is not None and b.size]
        return bool(buffers) and buffers[-1].parent is None

    def kind(self, column: str) -> Kind:
        return kind_of(column, self._schema.field(column).type)

    def reading_bytes(self, columns: Sequence[str]) -> int:
        if not self._packed:  # pages come and go
            return 0
        rows = max((b - a for a, b in itertools.pairwise([0, *self._ends])), default=0)
        return rows * VALUE_BYTES * len(columns)

    def stretches(self) -> list[int]:
        return []

    def blocks(
        self, columns: Sequence[str], rows: int, only: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        return self._runs([(0, self.n_rows)], columns, rows)

    def peek(
        self, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch]:
        return self._runs(random_runs(self.n_rows, rows, rng), columns, PEEK_ROWS)

    def _runs(
        self, runs: Iterable[tuple[int, int]], columns: Sequence[str], rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Ascending runs of rows, cut where record batches end and after `rows` rows."""
        reader = self._reader(sorted(self.columns.index(c) for c in columns))
        held = -1
        batch: pa.RecordBatch = None
        for start, stop in runs:
            while start < stop:
                index = bisect.bisect_right(self._ends, start)
                if index != held:
                    batch = None  # gone before the next one comes
                    batch = self._batch(reader, index).select(list(columns))
                    held = index
                first = self._ends[index - 1] if index else 0
                n = min(rows, stop - start, self._ends[index] - start)
                part = self._checked(batch.slice(start - first, n))
                if hasattr(self._map, "madvise"):  # not on Windows
                    self._map.madvise(mmap.MADV_DONTNEED)
                yield part
                start += n

    def _batch(self, reader: pa.RecordBatchFileReader, index: int) -> pa.RecordBatch:
        try:
            batch = reader.get_batch(index)
            batch.validate()  # which Arrow does not do by itself
            return batch
        except (pa.ArrowException, OSError) as error:
            raise DataError(_unreadable(self.name, error)) from None

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch in memory; a DataError if some words of it are not there, or are no text.

        What was mapped is copied: nobody touches the map later on, when the file may be shorter.
        """
        try:
            for column in batch.columns:
                if not pa.types.is_primitive(column.type):
                    column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise DataError(_unreadable(self.name, error)) from None
        if self._packed:
            return batch
        copies = [pa.concat_arrays([column]) for column in batch.columns]
        return pa.RecordBatch.from_arrays(copies, schema=batch.schema)


def _unreadable(name: str, error: Exception) -> str:
    return (
        f"{name}: not a readable Arrow IPC file ({error}); it may be cut short, damaged, or in the "
        "stream format (pass pyarrow.ipc.open_stream(...) instead)."
    )


def spill_stream(data: Any, name: str, scratch: Path) -> IpcFile:
    """The rows of any object with ``__arrow_c_stream__``, kept in scratch."""
    if isinstance(data, pa.RecordBatchReader):  # as it is: its producer's errors keep their type
        return spill(data, name, scratch)
    try:
        reader = pa.RecordBatchReader.from_stream(data)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{name}: not a stream of rows ({error}); pass a table, or a stream of record batches."
        ) from None
    return spill(reader, name, scratch)


def spill(reader: pa.RecordBatchReader, name: str, scratch: Path) -> IpcFile:
    """A stream written to scratch, so that it can be peeked at and then read."""
    check_names(name, reader.schema.names)
    plain = pa.schema([(f.name, _without_dictionary(f.type)) for f in reader.schema])
    path = scratch / "stream.arrow"
    # How long a stream is nobody knows; what is needed is room for one more piece.
    with guard_disk(path, SPILL_BYTES), pa.ipc.new_file(path, plain) as writer:
        for batch in _pieces(reader, plain, name):
            writer.write_batch(batch)
    del reader
    release()  # the stream's batches are gone, and memory is divided next
    return IpcFile(path, name)


def _pieces(reader: pa.RecordBatchReader, plain: pa.Schema, name: str) -> Iterator[pa.RecordBatch]:
    """The stream's rows, a few at a time; what Arrow says against them is a DataError."""
    try:
        for batch in reader:
            rows = max(1, batch.num_rows * SPILL_BYTES // max(batch.nbytes, 1))
            for start in range(0, batch.num_rows, rows):
                # An IPC file has one dictionary a column, a stream may change it: decode.
                yield batch.slice(start, rows).cast(plain)
    except pa.ArrowException as error:
        raise DataError(_broken(name, error)) from error
    except OSError as error:
        # So does a stream through the C interface report what went wrong on its other side.
        if type(error) is OSError and error.errno is None:
            raise DataError(_broken(name, error)) from error
        raise


def _broken(name: str, error: Exception) -> str:
    why = str(error).split(". Detail: Python exception", maxsplit=1)[0]
    return f"{name}: the stream broke off before its end ({why}); look to what produces it."


def _without_dictionary(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_
