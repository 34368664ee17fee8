"""Tables of every shape for hard memory caps, and the files of many writers."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

Batches = Iterator[pa.RecordBatch]


Make = Callable[[Path, int, int], None]  # path, rows, seed
Label = Callable[[Any, Any], Any]  # of the first two columns


def two_classes(a: Any, b: Any) -> Any:
    return (a + b > 1).astype(np.int8)


def ten_classes(a: Any, b: Any) -> Any:
    return np.clip(2 * (a + b) + 5, 0, 9).astype(np.int8)


def number(a: Any, b: Any) -> Any:
    return a + b


def float_batches(
    rows: int, columns: int, seed: int, block: int = 20_000, label: Label = two_classes
) -> Batches:
    """Normal float32 columns x0, x1, ... and a label y that depends on the first two."""
    rng = np.random.default_rng(seed)
    for start in range(0, rows, block):
        x = rng.standard_normal((columns, min(block, rows - start)), np.float32)
        arrays = [pa.array(label(x[0], x[1])), *map(pa.array, x)]
        yield pa.RecordBatch.from_arrays(arrays, ["y", *(f"x{j}" for j in range(columns))])


def with_gaps(batches: Batches, share: float, seed: int) -> Batches:
    """Features of which a share is missing."""
    rng = np.random.default_rng(seed)
    for batch in batches:
        arrays = [batch["y"]]
        for column in batch.columns[1:]:
            mask = rng.random(batch.num_rows, np.float32) < share
            arrays.append(pa.array(column.to_numpy(), mask=mask))
        yield pa.RecordBatch.from_arrays(arrays, batch.schema.names)


def rounded(batches: Batches) -> Batches:
    """Features of some hundred values each, of which writers make dictionaries."""
    for batch in batches:
        arrays = [batch["y"], *(pa.array(x.to_numpy().round(2)) for x in batch.columns[1:])]
        yield pa.RecordBatch.from_arrays(arrays, batch.schema.names)


def write(path: Path, batches: Batches, group: int, **options: Any) -> None:
    """One Parquet file with row groups of `group` rows."""
    first = next(batches)
    held, n = [first], first.num_rows
    with pq.ParquetWriter(path, first.schema, **options) as writer:
        for batch in batches:
            if n >= group:
                writer.write_table(pa.Table.from_batches(held), row_group_size=group)
                held, n = [], 0
            held.append(batch)
            n += batch.num_rows
        writer.write_table(pa.Table.from_batches(held), row_group_size=group)


def floats(
    columns: int, group: int, label: Label = two_classes, gaps: float = 0, **options: Any
) -> Make:
    """A writer of tables of floats, of which a share may be missing."""

    def make(path: Path, rows: int, seed: int) -> None:
        batches = float_batches(rows, columns, seed, label=label)
        batches = with_gaps(batches, gaps, seed) if gaps else batches
        write(path, batches, min(group, rows), **options)

    return make


def dictionaries(group: int, **options: Any) -> Make:
    """A writer of 20 columns of few values, with dictionary pages."""

    def make(path: Path, rows: int, seed: int) -> None:
        write(path, rounded(float_batches(rows, 20, seed)), min(group, rows), **options)

    return make


def hive_folder(path: Path, rows: int, seed: int) -> None:
    """A folder of partitions, k=0 to k=9, each of one file."""
    for k in range(10):
        part = path / f"k={k}"
        part.mkdir(parents=True)
        write(part / "t.parquet", float_batches(rows // 10, 20, 10 * seed + k), 200_000)


def delta_table(path: Path, rows: int, seed: int) -> None:
    """A Delta table of ten files, after some rows were deleted."""
    import deltalake

    for k in range(10):
        batches = float_batches(rows // 10, 20, 10 * seed + k)
        deltalake.write_deltalake(path, pa.Table.from_batches(batches), mode="append")
    deltalake.DeltaTable(path).delete("x2 > 2")


def iceberg_table(path: Path, rows: int, seed: int) -> None:
    """An Iceberg table of ten appends, after some rows were deleted."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("c", uri="sqlite:///:memory:", warehouse=f"file://{path.parent}")
    catalog.create_namespace("caps")
    made = None
    for k in range(10):
        batches = float_batches(rows // 10, 20, 10 * seed + k)
        some = pa.Table.from_batches(batches)
        some = some.set_column(0, "y", some["y"].cast(pa.int32()))  # it has no smaller numbers
        if made is None:
            made = catalog.create_table("caps.t", schema=some.schema, location=f"file://{path}")
        made.append(some)
    assert made is not None
    made.delete("x2 > 2")
    catalog.close()


def json_lines(path: Path, rows: int, seed: int) -> None:
    """A line for each row."""
    with open(path, "w") as file:
        for batch in float_batches(rows, 20, seed):
            columns = [column.to_pylist() for column in batch.columns]
            line = ", ".join(f'"{name}": {{:.6g}}' for name in batch.schema.names)
            for row in zip(*columns, strict=True):
                file.write(f"{{{line.format(*row)}}}\n")


def packed_csv(path: Path, rows: int, seed: int) -> None:
    """A CSV file, packed by gzip."""
    plain = path.with_suffix(".plain")
    csv_file(20)(plain, rows, seed)
    with open(plain, "rb") as source, gzip.open(path, "wb", compresslevel=1) as packed:
        shutil.copyfileobj(source, packed, 1 << 20)
    plain.unlink()


def text_batches(rows: int, seed: int) -> Batches:
    """A text of 10 KB in each row, and numbers."""
    rng = np.random.default_rng(seed)
    for batch in float_batches(rows, 4, seed, block=2_000):
        letters = rng.integers(97, 123, (batch.num_rows, 10_000), np.uint8)
        texts = pa.array([row.tobytes().decode() for row in letters])
        yield batch.append_column("text", texts)


def texts(path: Path, rows: int, seed: int) -> None:
    """Long texts in one row group."""
    write(path, text_batches(rows, seed), 200_000)


def arrow_texts(path: Path, rows: int, seed: int) -> None:
    """Long texts in an Arrow file of one record batch."""
    write_arrow(path, text_batches(rows, seed))


def categories(columns: int, values: int) -> Make:
    """A writer of string columns with many values."""

    def make(path: Path, rows: int, seed: int) -> None:
        names = pa.array([f"value-{k:08d}" for k in range(values)])

        def batches() -> Batches:
            rng = np.random.default_rng(seed)
            for batch in float_batches(rows, 2, seed):
                for j in range(columns):
                    codes = pa.array(rng.integers(0, values, batch.num_rows, np.int32))
                    batch = batch.append_column(f"c{j}", names.take(codes))
                yield batch

        write(path, batches(), 1 << 20)

    return make


def duckdb_file(path: Path, rows: int, seed: int) -> None:
    """One row group, as DuckDB writes it: pages of up to 100 MB."""
    import duckdb

    plain = path.with_suffix(".plain")
    write(plain, float_batches(rows, 20, seed), 200_000)
    duckdb.sql(
        f"copy (from read_parquet('{plain}')) to '{path}' (format parquet, row_group_size {rows})"
    )
    plain.unlink()


def polars_file(path: Path, rows: int, seed: int) -> None:
    """As polars writes by default."""
    import polars

    batches = list(float_batches(rows, 20, seed))
    polars.DataFrame(pa.Table.from_batches(batches)).write_parquet(path)


def csv_file(columns: int) -> Make:
    """A writer of CSV files."""

    def make(path: Path, rows: int, seed: int) -> None:
        batches = float_batches(rows, columns, seed, block=2_000)
        first = next(batches)
        with pcsv.CSVWriter(path, first.schema) as writer:
            writer.write_batch(first)
            for batch in batches:
                writer.write_batch(batch)

    return make


def arrow_file(path: Path, rows: int, seed: int) -> None:
    """An Arrow file of one record batch."""
    write_arrow(path, float_batches(rows, 20, seed))


def write_arrow(path: Path, batches: Batches) -> None:
    table = pa.Table.from_batches(list(batches)).combine_chunks()
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


SPARK = {"compression": "snappy", "use_deprecated_int96_timestamps": True}
CLASSES = ("--task", "classification")
REGRESSION = ("--task", "regression")


@dataclass(frozen=True)
class Shape:
    """A table, and what commands need to know of it."""

    rows: int
    suffix: str  # "": a folder
    make: Make
    options: tuple[str, ...] = ()  # of ingest and train
    model_rows: int = 20_000  # of the small table that trains the model for predictions


# Where rows are many, row groups are as their writer makes them.
SHAPES: dict[str, Shape] = {
    "tall: 2 M x 20": Shape(2_000_000, ".parquet", floats(20, 200_000)),
    "two classes: 10 M x 20": Shape(10_000_000, ".parquet", floats(20, 1 << 20)),
    "numbers: 10 M x 20": Shape(
        10_000_000, ".parquet", floats(20, 1 << 20, number), options=REGRESSION
    ),
    "ten classes: 10 M x 20": Shape(
        10_000_000, ".parquet", floats(20, 1 << 20, ten_classes), CLASSES
    ),
    "wide: 1 M x 500": Shape(1_000_000, ".parquet", floats(500, 1 << 20)),
    "wide: 200,000 x 2,000": Shape(200_000, ".parquet", floats(2_000, 1 << 20)),
    "wide, a fifth missing: 200,000 x 2,000": Shape(
        200_000, ".parquet", floats(2_000, 1 << 20, gaps=0.2)
    ),
    "very wide: 50,000 x 5,000": Shape(50_000, ".parquet", floats(5_000, 1 << 20)),
    "many row groups: 100,000 x 1,000": Shape(100_000, ".parquet", floats(1_000, 1_000)),
    "texts of 10 KB": Shape(30_000, ".parquet", texts),
    "100 columns of 100,000 categories": Shape(200_000, ".parquet", categories(100, 100_000)),
    "500 columns of 10,000 categories": Shape(30_000, ".parquet", categories(500, 10_000)),
    "3 columns of 500,000 categories": Shape(
        3_000_000, ".parquet", categories(3, 500_000), model_rows=1_500_000
    ),
    "2 columns of 2 M categories": Shape(3_000_000, ".parquet", categories(2, 2_000_000)),
    "DuckDB: a row group of 5 M": Shape(5_000_000, ".parquet", duckdb_file),
    "pages of 100 MB": Shape(
        5_000_000,
        ".parquet",
        floats(
            20,
            5_000_000,
            data_page_size=100_000_000,
            max_rows_per_page=5_000_000,
            use_dictionary=False,
        ),
    ),
    "like Spark's: row groups of 128 MB": Shape(
        3_000_000, ".parquet", floats(20, 1_600_000, **SPARK)
    ),
    "like Spark's: dictionaries, gzip": Shape(
        3_000_000, ".parquet", dictionaries(1_600_000, compression="gzip")
    ),
    "dictionaries, pages v2, zstd": Shape(
        3_000_000, ".parquet", dictionaries(3_000_000, compression="zstd", data_page_version="2.0")
    ),
    "polars": Shape(2_000_000, ".parquet", polars_file),
    "folder of partitions: 2 M x 20": Shape(2_000_000, "", hive_folder),
    "Delta: 2 M x 20": Shape(2_000_000, "", delta_table),
    "Iceberg: 2 M x 20": Shape(2_000_000, "", iceberg_table),
    "CSV: 20,000 x 2,000": Shape(20_000, ".csv", csv_file(2_000)),
    "CSV, gzip: 2 M x 20": Shape(2_000_000, ".csv.gz", packed_csv),
    "JSON lines: 1 M x 20": Shape(1_000_000, ".jsonl", json_lines),
    "Arrow: a record batch of 3 M": Shape(3_000_000, ".arrow", arrow_file),
    "Arrow: long texts, a record batch": Shape(30_000, ".arrow", arrow_texts),
}
