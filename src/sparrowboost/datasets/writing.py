"""Write a stream of batches to one Parquet file, which gets its name when it is complete."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparrowboost.runtime.disk import guard_disk, output_path, replacing
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.threads import prefetch

ROW_GROUP_ROWS = 131_072  # 4.6 MB of splice windows, 10 MB of 20 floats: few seeks, little memory


def check(holds: bool, message: str) -> None:
    """Raise a DataError with `message` unless it holds."""
    if not holds:
        raise DataError(message)


def write_parquet(
    path: str | os.PathLike[str],
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    row_group_rows: int,
    options: Mapping[str, Any],
) -> Path:
    """Write batches to one file: a thread makes the next row groups while this one is written.

    `options` are of `pyarrow.parquet.ParquetWriter`.
    """
    path = output_path(path)
    check(path.parent.is_dir(), f"{path}: there is no folder {path.parent}; create it first.")
    made = prefetch(_row_groups(batches, row_group_rows), 1)
    with (
        replacing(path) as partial,
        guard_disk(path, schema.serialize().size),  # the footer: the schema, and little more
        pq.ParquetWriter(partial, schema, **options) as writer,
        closing(made) as groups,  # otherwise its thread outlives an error
    ):
        for group in groups:
            with guard_disk(path, group.nbytes):
                writer.write_table(group, row_group_size=row_group_rows)
    return path


def _row_groups(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Cut and join batches to tables of `rows` rows each; the last may have fewer."""
    held: list[pa.RecordBatch] = []
    n_held = 0
    for batch in batches:
        while n_held + batch.num_rows >= rows:
            head = rows - n_held
            yield pa.Table.from_batches([*held, batch.slice(0, head)])
            held, n_held, batch = [], 0, batch.slice(head)
        if batch.num_rows:
            held.append(batch)
            n_held += batch.num_rows
    if held:
        yield pa.Table.from_batches(held)
