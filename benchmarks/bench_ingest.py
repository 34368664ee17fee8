"""From a Parquet file to binned data that can be trained on: seconds and peak memory.

    python benchmarks/bench_ingest.py            all contestants      -> results/ingest.json
    python benchmarks/bench_ingest.py --flat     memory against rows  -> results/ingest_memory.json
    python benchmarks/bench_ingest.py --wide     many columns         -> results/ingest_wide.json

    read-table     pq.read_table() into memory; with --wide only
    read           ParquetFile.iter_batches() as it comes: reads ahead, whole row groups in memory
    read-bounded   the same without reading ahead; this is how sparrow and xgboost read
    sparrow        ingest() into a finished store, under memory_limit
    xgboost        ExtMemQuantileDMatrix, cache on disk; it walks through the file four times
    lightgbm       read_table, then Dataset.construct(), all in memory

Each run has a process of its own and all cores. It imports, runs once on a tiny table (so that code
is compiled and threads are up), then the clock starts. The file is in the page cache before the
first round. Stores and caches are written beside the data.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from rich.console import Console
from rich.table import Table

import measure

ROWS = 10_000_000
FLAT_ROWS = (1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000)
TINY_ROWS = 20_000
FEATURES = 20
MEMORY_LIMIT = "512MB"
# Rows and columns of wide tables: float32, one row group.
WIDE = ((200_000, 500), (100_000, 2_000))
WIDE_SECONDS = ("cpu_seconds", "user_seconds", "seconds")
WIDE_CEILING = 5.0  # sparrow's processor time / that of pyarrow's read, at most
XGBOOST_BATCH = 1 << 20  # rows; CPU time at 4 M rows: the same with 2 M, 4 % more with 256 k
BUFFER_BYTES = 1 << 18  # of a bounded Parquet reader
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("sparrowboost", "pyarrow", "numpy", "numba", "xgboost", "lightgbm")
PAGE_CACHE = "warm: the file is read once before the first round"

# seconds / sparrow's seconds must be at least this
FLOORS = {
    "xgboost": 3.0,
    "lightgbm": 1.0,
    # A target: sparrow takes at most 2.5 times a bare read. It is easily met at 10 M rows, where
    # reading ahead makes the bare read several times slower than read-bounded.
    "read": 1 / 2.5,
}
FLAT_RATIO = 1.10  # largest / smallest peak RSS

Run = dict[str, Any]


# -- contestants: (table, scratch folder) -> result, its rows ------------------------------
#    The result is returned so that freeing it is not timed.


def read(table: Path, scratch: Path) -> tuple[object, int]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(table)
    return file, sum(batch.num_rows for batch in file.iter_batches())


def read_bounded(table: Path, scratch: Path) -> tuple[object, int]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(table, pre_buffer=False, buffer_size=BUFFER_BYTES)
    return file, sum(batch.num_rows for batch in file.iter_batches())


def read_table(table: Path, scratch: Path) -> tuple[object, int]:
    import pyarrow.parquet as pq

    rows = pq.read_table(table)
    return rows, rows.num_rows


def sparrow(table: Path, scratch: Path) -> tuple[object, int]:
    import sparrowboost

    store = sparrowboost.ingest(
        str(table), label="y", path=str(scratch / "store"), memory_limit=MEMORY_LIMIT, verbose=0
    )
    return store, store.n_rows


def xgboost(table: Path, scratch: Path) -> tuple[object, int]:
    import pyarrow as pa
    import pyarrow.parquet as pq
    import xgboost as xgb

    class Batches(xgb.DataIter):
        def reset(self) -> None:
            file = pq.ParquetFile(table, pre_buffer=False, buffer_size=BUFFER_BYTES)
            self.batches = file.iter_batches(XGBOOST_BATCH)

        def next(self, input_data: Callable[..., None]) -> bool:
            batch = next(self.batches, None)
            if batch is None:
                return False
            # An Arrow table is taken as it is; a numpy matrix costs 10 % more CPU time.
            rows = pa.Table.from_batches([batch])
            input_data(data=rows.drop_columns(["y"]), label=batch.column("y").to_numpy())
            return True

    data = xgb.ExtMemQuantileDMatrix(
        Batches(cache_prefix=str(scratch / "cache")), max_bin=256, nthread=measure.cores()
    )
    return data, data.num_row()


def lightgbm(table: Path, scratch: Path) -> tuple[object, int]:
    import lightgbm as lgb
    import pyarrow.parquet as pq

    rows = pq.read_table(table)
    data = lgb.Dataset(
        rows.drop_columns(["y"]),  # Arrow as it is: a numpy matrix costs a quarter more CPU time
        label=rows.column("y"),
        params={"max_bin": 255, "num_threads": measure.cores(), "verbose": -1},
    )
    return data.construct(), data.num_data()


CONTESTANTS: dict[str, Callable[[Path, Path], tuple[object, int]]] = {
    "read": read,
    "read-bounded": read_bounded,
    "read-table": read_table,
    "sparrow": sparrow,
    "xgboost": xgboost,
    "lightgbm": lightgbm,
}

DEFAULT = [name for name in CONTESTANTS if name != "read-table"]  # whose memory grows with rows


def _bytes_under(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def child(name: str, table: Path, tiny: Path) -> Run:
    """One timed run of one contestant, in this process."""
    contestant = CONTESTANTS[name]
    with tempfile.TemporaryDirectory(dir=table.parent) as scratch:
        contestant(tiny, Path(scratch))
    start_mb = measure.peak_rss_mb()
    with tempfile.TemporaryDirectory(dir=table.parent) as scratch:
        start, cpu_start, user_start = perf_counter(), process_time(), os.times().user
        made, rows = contestant(table, Path(scratch))
        seconds, cpu = perf_counter() - start, process_time() - cpu_start
        user = os.times().user - user_start
        peak_mb = measure.peak_rss_mb()
        disk = _bytes_under(Path(scratch))
        del made  # before its files go
    return {
        "seconds": round(seconds, 4),
        "cpu_seconds": round(cpu, 4),  # all threads; hardly feels what else the machine does
        "user_seconds": round(user, 4),  # the same without the system's part
        "peak_rss_mb": round(peak_mb, 1),
        "start_rss_mb": round(start_mb, 1),  # imports and warm-up
        "rows": rows,
        "disk_mb": round(disk / measure.MB, 1),
    }


# -- the parent: data, rounds, report -------------------------------------------------------------


def large(folder: Path, rows: int) -> Path:
    """The synthetic table of n rows, written at most once, in the page cache."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"large-{rows}x{FEATURES}.parquet"
    if not path.exists():
        from sparrowboost.datasets import make_large

        make_large(path, rows, features=FEATURES, random_state=0)
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass
    return path


def timed(name: str, table: Path, rows: int, tiny: Path) -> Run:
    os.sync()  # this run should not wait for writes of the one before
    load = os.getloadavg()[0]
    argv = [__file__, "--child", name, "--table", str(table), "--tiny", str(tiny)]
    run = measure.run_child(argv)
    if run["rows"] != rows:
        raise RuntimeError(f"{name} read {run['rows']} of the {rows} rows of {table}.")
    return {"contestant": name, **run, "load_before": round(load, 2)}


def context() -> dict[str, Any]:
    return {
        "command": measure.command(),
        "machine": measure.machine(PACKAGES),
        "features": FEATURES,
        "memory_limit": MEMORY_LIMIT,
        "page_cache": PAGE_CACHE,
    }


def compare(
    folder: Path, rows: int, names: list[str], rounds: int, console: Console
) -> dict[str, Any]:
    """Every contestant, round by round, on one table."""
    table, tiny = large(folder, rows), large(folder, TINY_ROWS)
    runs: list[Run] = []
    with console.status("") as status:
        for number, name in measure.interleave(names, rounds):
            status.update(f"round {number} of {rounds}: {name}")
            runs.append({"round": number, **timed(name, table, rows, tiny)})
    summary = {name: summarize(name, runs) for name in names}
    console.print(comparison(summary, rows, rounds))
    console.print(f"page cache {PAGE_CACHE}; memory_limit {MEMORY_LIMIT} is sparrow's alone")
    return {
        **context(),
        "rows": rows,
        "table_mb": round(table.stat().st_size / measure.MB, 1),
        "rounds": rounds,
        "summary": summary,
        "runs": runs,
    }


def summarize(name: str, runs: list[Run]) -> dict[str, Any]:
    mine = [run for run in runs if run["contestant"] == name]
    sparrows = {run["round"]: run["seconds"] for run in runs if run["contestant"] == "sparrow"}
    ratios = [run["seconds"] / sparrows[run["round"]] for run in mine if run["round"] in sparrows]
    ratio = statistics.median(ratios) if ratios else None
    floor = FLOORS.get(name)
    return {
        "seconds": round(statistics.median(run["seconds"] for run in mine), 4),
        "peak_rss_mb": max(run["peak_rss_mb"] for run in mine),
        "ratios": [round(value, 3) for value in ratios],  # its seconds / sparrow's, per round
        "ratio": None if ratio is None else round(ratio, 3),
        "floor": floor,
        "met": None if ratio is None or floor is None else ratio >= floor,
    }


def verdict(met: bool | None) -> str:
    return {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[met]


def comparison(summary: dict[str, dict[str, Any]], rows: int, rounds: int) -> Table:
    table = Table(
        title=f"{rows:,} x {FEATURES} float32, {rounds} rounds: median seconds, highest peak"
    )
    for header in ("", "seconds", "peak RSS, MB", "seconds / sparrow's", "at least", "met"):
        table.add_column(header, justify="right" if header else "left")
    for name, result in summary.items():
        ratio, floor = result["ratio"], result["floor"]
        table.add_row(
            name,
            f"{result['seconds']:.2f}",
            f"{result['peak_rss_mb']:.0f}",
            "" if ratio is None else f"{ratio:.2f}",
            "" if floor is None else f"{floor:.2f}",
            verdict(result["met"]),
        )
    return table


def flat(folder: Path, sizes: list[int], rounds: int, console: Console) -> dict[str, Any]:
    """Sparrow alone, on tables of growing size."""
    tiny = large(folder, TINY_ROWS)
    runs: list[Run] = []
    with console.status("") as status:
        for number, name in measure.interleave([str(size) for size in sizes], rounds):
            status.update(f"round {number} of {rounds}: {name} rows")
            run = timed("sparrow", large(folder, int(name)), int(name), tiny)
            runs.append({"round": number, **run})
    table = Table(
        title=f"sparrow, memory_limit {MEMORY_LIMIT}, {rounds} rounds: median seconds, highest peak"
    )
    for header in ("rows", "seconds", "peak RSS, MB"):
        table.add_column(header, justify="right")
    peaks = []
    for size in sizes:
        mine = [run for run in runs if run["rows"] == size]
        peaks.append(max(run["peak_rss_mb"] for run in mine))
        seconds = statistics.median(run["seconds"] for run in mine)
        table.add_row(f"{size:,}", f"{seconds:.2f}", f"{peaks[-1]:.0f}")
    ratio = max(peaks) / min(peaks)
    met = ratio <= FLAT_RATIO
    console.print(table)
    console.print(f"largest / smallest {ratio:.3f}, at most {FLAT_RATIO:.2f}: {verdict(met)}")
    return {
        **context(),
        "rounds": rounds,
        "peak_rss_mb": dict(zip(map(str, sizes), peaks, strict=True)),
        "ratio": round(ratio, 3),
        "ceiling": FLAT_RATIO,
        "met": met,
        "runs": runs,
    }


def wide_table(folder: Path, rows: int, columns: int) -> Path:
    """A table of many columns, written at most once, in the page cache."""
    from bench_caps import float_batches, write

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"wide-{rows}x{columns}.parquet"
    if not path.exists():
        write(path, float_batches(rows, columns, seed=0), rows)
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass
    return path


def wide(folder: Path, names: list[str], rounds: int, console: Console) -> dict[str, Any]:
    """Sparrow against pyarrow's reads, on tables of many columns."""
    runs: list[Run] = []
    tables = []
    for rows, columns in WIDE:
        table, tiny = wide_table(folder, rows, columns), wide_table(folder, 1_000, 500)
        mine = []
        for number, name in measure.interleave(names, rounds):
            run = timed(name, table, rows, tiny)
            mine.append({"round": number, "columns": columns, **run})
            console.print(rows, columns, number, name, run["cpu_seconds"], run["seconds"])
        runs += mine
        middle = {
            name: {
                key: statistics.median(run[key] for run in mine if run["contestant"] == name)
                for key in WIDE_SECONDS
            }
            for name in names
        }
        ratios = {
            key: round(middle["sparrow"][key] / middle["read-table"][key], 2)
            for key in WIDE_SECONDS
        }
        met = ratios["cpu_seconds"] <= WIDE_CEILING
        tables.append(
            {"rows": rows, "columns": columns, "medians": middle, "ratios": ratios, "met": met}
        )
    console.print(tables)
    about = {key: value for key, value in context().items() if key != "features"}
    return {**about, "rounds": rounds, "tables": tables, "runs": runs}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", help="several only with --flat")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=DEFAULT)
    parser.add_argument("--flat", action="store_true", help="sparrow's memory against rows")
    parser.add_argument("--wide", action="store_true", help="tables of many columns")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "bench-data")
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    for internal in ("--child", "--table", "--tiny"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.rows = args.rows or (list(FLAT_ROWS) if args.flat else [ROWS])
    if len(args.rows) > 1 and not args.flat:
        parser.error("more than one number of rows needs --flat")
    return args


def main() -> None:
    args = arguments()
    if args.child:
        result = child(args.child, Path(args.table), Path(args.tiny))
        sys.stdout.write(json.dumps(result) + "\n")
        return
    console = Console()
    if args.wide:
        names = ["read-table", "read-bounded", "sparrow"]
        payload = wide(args.data, names, args.rounds, console)
    elif args.flat:
        payload = flat(args.data, args.rows, args.rounds, console)
    else:
        payload = compare(args.data, args.rows[0], args.only, args.rounds, console)
    name = f"ingest{'_wide' if args.wide else '_memory' if args.flat else ''}.json"
    measure.write_json(args.out or RESULTS / name, payload)


if __name__ == "__main__":
    main()
