"""Parquet files: read row group by row group in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparrowboost.errors import DataError
from sparrowboost.sources.base import PLACES, thin
from sparrowboost.sources.columns import Kind, is_text, kind_of, numbers

# A column reader streams through a buffer of this size instead of taking in whole column chunks.
BUFFER_BYTES = 1 << 16
PAGE_BYTES = 1 << 20  # of a page before packing, where the writer kept to the usual
# A row group can only be read from its start. With fewer groups than this the file has no
# "random places": its rows are all decoded, and some kept.
MIN_GROUPS = 8
# Rows decoded for each one that is kept, where a row group's head is peeked at: neighbours tell
# less than rows apart.
DECODED = 2
# A column wanders along the file if, of the variance of "above its quartile", more than WANDERING
# lies between stretches of the rows peeked at. Rows in random order give about 1 / STRETCH.
WANDERING = 0.05
PEEK_ROWS = 16_384  # decoded at a time
STRETCH = 500  # rows
QUARTILES = (0.25, 0.5, 0.75)


class ParquetFile:
    """One Parquet file as a source."""

    exact_rows = True
    in_memory = False

    def __init__(self, path: str, filesystem: Any = None) -> None:
        self.name = path
        self._filesystem = filesystem
        with self._open() as file:
            self._schema = file.schema_arrow
            meta = file.metadata
            self._group_rows = [meta.row_group(g).num_rows for g in range(meta.num_row_groups)]
            self.n_rows = meta.num_rows
        self.columns = list(self._schema.names)

    def _open(self, read_dictionary: Sequence[str] = ()) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(
                self.name,
                filesystem=self._filesystem,
                read_dictionary=list(read_dictionary),
                buffer_size=BUFFER_BYTES,
                page_checksum_verification=True,  # where the writer left any
                pre_buffer=False,  # the default holds whole row groups in memory
            )
        except FileNotFoundError:
            raise DataError(f"{self.name}: no such file.") from None
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(_unreadable(self.name, error)) from None

    def kind(self, column: str) -> Kind:
        return kind_of(column, self._schema.field(column).type)

    def _read(
        self, columns: Sequence[str], rows: int, heads: Mapping[int, int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """All rows, or of some row groups (`heads`: group to number) the first ones."""
        texts = [c for c in columns if is_text(self._schema.field(c).type)]
        with self._open(read_dictionary=texts) as file:
            try:
                if heads is None:
                    yield from file.iter_batches(rows, columns=list(columns), use_threads=False)
                    return
                for group, left in heads.items():
                    for batch in file.iter_batches(
                        min(rows, left), [group], list(columns), use_threads=False
                    ):
                        yield batch.slice(0, left)
                        left -= batch.num_rows
                        if left <= 0:
                            break
            except (pa.ArrowInvalid, OSError) as error:
                raise DataError(_unreadable(self.name, error)) from None

    def reading_bytes(self, columns: Sequence[str]) -> int:
        """Each column's reader holds a page twice, packed and unpacked, and its buffer."""
        if not self._group_rows:
            return 0
        with self._open() as file:
            group = file.metadata.row_group(0)
            chunks = [group.column(i) for i in range(group.num_columns)]
        wanted = set(columns)
        return sum(
            2 * min(chunk.total_uncompressed_size, PAGE_BYTES) + BUFFER_BYTES
            for chunk in chunks
            if chunk.path_in_schema.split(".")[0] in wanted
        )

    def blocks(self, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        return self._read(columns, rows)

    def peek(
        self, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch]:
        if len(self._group_rows) < MIN_GROUPS or rows >= self.n_rows:
            yield from self._thinned(columns, rows, rng)
            return
        batches = list(self._group_heads(columns, rows, rng))
        wandering = [c for c in columns if self._wanders(c, batches)]
        steady = [c for c in columns if c not in wandering]
        yield from (batch.select(steady) for batch in batches)
        del batches
        if wandering:
            yield from self._thinned(wandering, rows, rng)

    def _thinned(
        self, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch]:
        """A part of the rows, having decoded all of them."""
        share = rows / max(self.n_rows, 1)
        return (thin(batch, share, rng) for batch in self._read(columns, PEEK_ROWS))

    def _group_heads(
        self, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch]:
        """A part of the first rows of random row groups."""
        n_groups = len(self._group_rows)
        groups = np.arange(n_groups)
        if n_groups > PLACES:
            groups = np.sort(rng.choice(groups, PLACES, replace=False))
        head = math.ceil(DECODED * rows / len(groups))
        heads = {int(g): min(head, self._group_rows[g]) for g in groups if self._group_rows[g]}
        share = rows / sum(heads.values())
        for batch in self._read(columns, PEEK_ROWS, heads):
            yield thin(batch, share, rng)

    def _wanders(self, column: str, batches: Sequence[pa.RecordBatch]) -> bool:
        """Whether the rows peeked at show that this column changes along the file."""
        if self.kind(column) in ("category", "null"):
            return False
        parts = [numbers(column, batch.column(column))[0] for batch in batches]
        values = np.concatenate(parts).astype(np.float64)
        values = values[~np.isnan(values)]
        stretches = len(values) // STRETCH
        if stretches < 2:
            return True
        values = values[: stretches * STRETCH].reshape(stretches, STRETCH)
        for cut in np.unique(np.quantile(values[:, ::10], QUARTILES, method="lower")):
            above = (values > cut).mean(1)
            if above.var() > WANDERING * above.mean() * (1 - above.mean()):
                return True
        return False


def _unreadable(name: str, error: Exception) -> str:
    return (
        f"{name}: not a readable Parquet file ({str(error).splitlines()[0]}); it may be cut short "
        "or damaged, so write it again or leave it out."
    )
