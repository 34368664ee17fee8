"""Hard memory caps for tables of every shape: limits are held, or refused with one that is.

    python benchmarks/bench_caps.py                        all shapes     -> results/caps.json
    python benchmarks/bench_caps.py --shapes tall texts    these, beside others from before
    python benchmarks/bench_caps.py --markdown             the table of the last run

Each command (`sparrow ingest`, `train` on files, `predict`, `evaluate`) runs in a memory cgroup
whose hard limit is the memory limit, without swap: what exceeds it is killed. First the smallest
limit: the command is asked for 1 MB, refuses that, and names a size; with exactly that size it must
succeed. Then it runs at each of `--limits`, where it may refuse, but not be killed.

    held       the command succeeded (peak RSS counts code that it shares with other processes,
               which is charged to the group of the one that loaded it)
    refused    it named a larger size, before any work
    killed     the limit was exceeded: a defect
    failed     any other end: a defect, too

It needs the right to make a cgroup, duckdb and polars for the files of other writers, and 10 GB of
disk. All shapes take an hour on a busy machine. Results are written after each shape.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
from rich.console import Console

import measure
import readings
from bench_memory import CHILD, RESULTS
from cgroups import memory_group
from sparrowboost.runtime.memory import format_size, parse_size

LIMITS = ("512MB", "1GB")
NAMED = re.compile(r"give at least ([\d.]+ \w+)")
MODEL_ROWS = 20_000  # of the small table of a shape, which trains the model for predictions
PACKAGES = ("sparrowboost", "pyarrow", "numpy", "numba", "llvmlite", "duckdb", "polars")
TREES = "10"

Batches = Iterator[pa.RecordBatch]


def float_batches(rows: int, columns: int, seed: int, block: int = 20_000) -> Batches:
    """Normal float32 columns x0, x1, ... and a label y that depends on the first two."""
    rng = np.random.default_rng(seed)
    for start in range(0, rows, block):
        x = rng.standard_normal((columns, min(block, rows - start)), np.float32)
        y = (x[0] + x[1] > 1).astype(np.int8)
        arrays = [pa.array(y), *map(pa.array, x)]
        yield pa.RecordBatch.from_arrays(arrays, ["y", *(f"x{j}" for j in range(columns))])


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


def floats(columns: int, group: int, **options: Any) -> Callable[[Path, int, int], None]:
    """A writer of tables of floats."""

    def make(path: Path, rows: int, seed: int) -> None:
        write(path, float_batches(rows, columns, seed), min(group, rows), **options)

    return make


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


def categories(columns: int, values: int) -> Callable[[Path, int, int], None]:
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


def csv_file(columns: int) -> Callable[[Path, int, int], None]:
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
# Name: rows, suffix, writer. Where rows are many, row groups are as their writer makes them.
SHAPES: dict[str, tuple[int, str, Callable[[Path, int, int], None]]] = {
    "tall: 2 M x 20": (2_000_000, "parquet", floats(20, 200_000)),
    "wide: 1 M x 500": (1_000_000, "parquet", floats(500, 1 << 20)),
    "wide: 200,000 x 2,000": (200_000, "parquet", floats(2_000, 1 << 20)),
    "very wide: 50,000 x 5,000": (50_000, "parquet", floats(5_000, 1 << 20)),
    "many row groups: 100,000 x 1,000": (100_000, "parquet", floats(1_000, 1_000)),
    "texts of 10 KB": (30_000, "parquet", texts),
    "100 columns of 100,000 categories": (200_000, "parquet", categories(100, 100_000)),
    "2 columns of 2 M categories": (3_000_000, "parquet", categories(2, 2_000_000)),
    "DuckDB: a row group of 5 M": (5_000_000, "parquet", duckdb_file),
    "pages of 100 MB": (
        5_000_000,
        "parquet",
        floats(
            20,
            5_000_000,
            data_page_size=100_000_000,
            max_rows_per_page=5_000_000,
            use_dictionary=False,
        ),
    ),
    "like Spark's: row groups of 128 MB": (3_000_000, "parquet", floats(20, 1_600_000, **SPARK)),
    "polars": (2_000_000, "parquet", polars_file),
    "CSV: 20,000 x 2,000": (20_000, "csv", csv_file(2_000)),
    "Arrow: a record batch of 3 M": (3_000_000, "arrow", arrow_file),
    "Arrow: long texts, a record batch": (30_000, "arrow", arrow_texts),
}


def run(limit: int, words: list[str], scratch: Path) -> dict[str, Any]:
    """One command under a hard limit, and how it ended."""
    start = perf_counter()
    with memory_group(limit) as group:
        done = group.run(
            [sys.executable, "-c", CHILD, *words, "--memory", str(limit), "--quiet"],
            env={"TMPDIR": str(scratch)},
        )
    result: dict[str, Any] = {"limit": format_size(limit)}
    result["seconds"] = round(perf_counter() - start, 1)
    named = NAMED.search(done.stderr)
    if done.kills or done.returncode == -9:
        result["end"] = "killed"
    elif done.returncode == 0:
        result["end"] = "held"
        result["peak_rss_mb"] = round(int(done.stdout.split()[-1]) / measure.MB)
    elif named is not None:
        result |= {"end": "refused", "named": named[1]}
    else:
        result |= {"end": "failed", "error": done.stderr.strip().splitlines()[-1:]}
    return result


def smallest(words: list[str], scratch: Path) -> dict[str, Any]:
    """The command at the limit that it names when it refuses 1 MB."""
    limit = int(1e6)
    # A refusal needs some memory, too: the process is not capped while it is asked.
    asked = run_free(limit, words)
    named = NAMED.search(asked)
    if named is None:
        return {"limit": "?", "end": "failed", "error": asked.strip().splitlines()[-1:]}
    return run(parse_size(named[1]), words, scratch)


def run_free(limit: int, words: list[str]) -> str:
    """What a command says of a limit that is too small."""
    argv = [sys.executable, "-m", "sparrowboost", *words, "--memory", str(limit), "--quiet"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stderr


def try_shape(
    name: str, place: Path, limits: list[str], commands: list[str], show: Console
) -> Iterator[dict[str, Any]]:
    """All commands on a table of one shape."""
    rows, suffix, make = SHAPES[name]
    source, small = place / f"t.{suffix}", place / f"small.{suffix}"
    model, label = place / "model.json", ["--label", "y"]
    make(source, rows, 0)
    make(small, min(MODEL_ROWS, rows), 1)
    learn = ["--n-estimators", TREES, "-o"]
    fit = ["train", str(small), *label, *learn, str(model)]
    said = run_free(parse_size("20GB"), fit)
    if not model.exists():
        raise SystemExit(f"{name}: no model was trained:\n{said}")
    store, out = str(place / "store"), str(place / "out.parquet")
    words = {
        "ingest": ["ingest", str(source), *label, "--overwrite", "-o", store],
        "train": ["train", str(source), *label, *learn, str(place / "m.json")],
        "predict": ["predict", str(model), str(source), "-o", out],
        "evaluate": ["evaluate", str(model), str(source), *label],
    }
    for command in commands:
        for limit in ("smallest", *limits):
            if limit == "smallest":
                result = smallest(words[command], place)
            else:
                result = run(parse_size(limit), words[command], place)
            result = {"shape": name, "command": command, "at": limit, **result}
            show.print(result, soft_wrap=True)
            yield result
    for path in place.iterdir():
        if path.is_file():
            path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=[""], help="those whose names contain this")
    parser.add_argument("--commands", nargs="+", default=["ingest", "train", "predict", "evaluate"])
    parser.add_argument("--limits", nargs="*", default=list(LIMITS))
    parser.add_argument("--data", type=Path, help="folder for the data (default: a temporary one)")
    parser.add_argument("--out", type=Path, default=RESULTS / "caps.json")
    parser.add_argument("--markdown", action="store_true", help="print the table of --out, and end")
    args, show = parser.parse_args(), Console()
    if args.markdown:
        show.print(readings.caps(json.loads(args.out.read_text())), soft_wrap=True, markup=False)
        return
    chosen = [name for name in SHAPES if any(part in name for part in args.shapes)]
    runs: list[dict[str, Any]] = []
    if args.out.is_file():
        before = json.loads(args.out.read_text())["runs"]
        runs = [run for run in before if run["shape"] in SHAPES and run["shape"] not in chosen]
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="sparrow-caps-", dir=args.data) as folder:
            runs += try_shape(name, Path(folder), args.limits, args.commands, show)
        write_results(args.out, runs)
    show.print(readings.held_text(runs))


def write_results(path: Path, runs: list[dict[str, Any]]) -> None:
    """The runs in the order of their shapes, with what is needed to repeat them."""
    places = {name: place for place, name in enumerate(SHAPES)}
    measure.write_json(
        path,
        {
            "command": "python benchmarks/bench_caps.py",  # each run may be of some shapes
            "machine": measure.machine(PACKAGES),
            "ends": dict(Counter(run["end"] for run in runs)),
            "runs": sorted(runs, key=lambda run: places[run["shape"]]),
        },
    )


if __name__ == "__main__":
    main()
