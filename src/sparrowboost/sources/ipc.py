"""Arrow IPC files, and streams that can be read only once and so are kept as such a file."""

from __future__ import annotations

import bisect
import itertools
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from sparrowboost.errors import DataError
from sparrowboost.sources.base import random_runs
from sparrowboost.sources.columns import Kind, kind_of

SPILL_ROWS = 1 << 16
ROW_VALUE_BYTES = 8  # of a value, at most


class IpcFile:
    """One Arrow IPC (Feather) file as a source.

    The file is mapped into memory, and after each block the system is told to let its pages go:
    a mapped page counts as memory of the process for as long as it stays.
    """

    exact_rows = True
    in_memory = False

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        if not path.is_file():
            raise DataError(f"{name}: no such file.")
        if path.stat().st_size == 0:
            raise DataError(f"{name}: the file is empty.")
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self._file = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(self._map)))
            counts = [self._batch(i).num_rows for i in range(self._file.num_record_batches)]
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(
                f"{name}: not a readable Arrow IPC file ({error}); it may be cut short, damaged, "
                "or in the stream format (pass pyarrow.ipc.open_stream(...) instead)."
            ) from None
        self._ends = list(itertools.accumulate(counts))
        self._schema = self._file.schema
        self.columns = list(self._schema.names)
        self.n_rows = sum(counts)

    def kind(self, column: str) -> Kind:
        return kind_of(column, self._schema.field(column).type)

    def _batch(self, index: int) -> pa.RecordBatch:
        batch = self._file.get_batch(index)
        self._forget()
        return batch

    def _forget(self) -> None:
        if hasattr(self._map, "madvise"):  # not on Windows
            self._map.madvise(mmap.MADV_DONTNEED)

    def reading_bytes(self, columns: Sequence[str]) -> int:
        # A batch that is packed is unpacked as a whole; if it is not, its pages come and go.
        return max((b - a for a, b in itertools.pairwise([0, *self._ends])), default=0) * (
            ROW_VALUE_BYTES * len(columns)
        )

    def blocks(self, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        yield from self._run(0, self.n_rows, columns, rows)

    def peek(
        self, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch]:
        for start, stop in random_runs(self.n_rows, rows, rng):
            yield from self._run(start, stop, columns, stop - start)

    def _run(
        self, start: int, stop: int, columns: Sequence[str], rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Rows [start, stop), cut where record batches end and after `rows` rows."""
        index = bisect.bisect_right(self._ends, start)
        while start < stop:
            first = self._ends[index - 1] if index else 0
            last = min(stop, self._ends[index])
            batch = self._batch(index).select(list(columns))
            while start < last:
                n = min(rows, last - start)
                yield batch.slice(start - first, n)
                self._forget()
                start += n
            index += 1


def spill(reader: pa.RecordBatchReader, name: str, scratch: Path) -> IpcFile:
    """A stream written to scratch, so that it can be peeked at and then read."""
    plain = pa.schema([(f.name, _without_dictionary(f.type)) for f in reader.schema])
    path = scratch / "stream.arrow"
    with pa.ipc.new_file(path, plain) as writer:
        for batch in reader:
            for start in range(0, batch.num_rows, SPILL_ROWS):
                # An IPC file has one dictionary a column, a stream may change it: decode.
                writer.write_batch(batch.slice(start, SPILL_ROWS).cast(plain))
    return IpcFile(path, name)


def _without_dictionary(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_
