"""What the own parts of the readers cost and gain: CPU seconds and peak memory of a whole ingest.

    python benchmarks/bench_readers.py

    IPC files    rows read from their offsets, against whole record batches read by pyarrow
    CSV files    quotes watched for ones that swallow lines, against not looking

Each ingest runs in a process of its own, in turn; medians of `--rounds`.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import measure

ROWS = 3_000_000
BATCH_ROWS = 65_536
FILES = ("batches.arrow", "one-batch.arrow", "plain.csv", "quoted.csv")


def write_files(folder: Path, rows: int) -> None:
    """The table of 20 float32 columns in each format; a third of the rows as text."""
    from sparrowboost.datasets import make_large

    table = pq.read_table(make_large(folder / "t.parquet", rows)).combine_chunks()
    for name, batch_rows in (("batches.arrow", BATCH_ROWS), ("one-batch.arrow", rows)):
        with pa.ipc.new_file(folder / name, table.schema) as writer:
            writer.write_table(table, max_chunksize=batch_rows)
    table = table.slice(0, rows // 3)
    pcsv.write_csv(table, folder / "plain.csv")
    words = pa.array([f"value {i % 1000}, quoted" for i in range(len(table))])
    for j in range(5):
        table = table.set_column(1 + j, f"word{j}", words)
    pcsv.write_csv(table, folder / "quoted.csv")


def leave_to_pyarrow() -> None:
    """Replace the own parts by what pyarrow does without them."""
    from sparrowboost.readers import csv, ipc

    class Unwatched(io.FileIO):
        swallowing = open_at = None

        def __init__(self, path: Path, start: int, delimiter: str) -> None:
            super().__init__(path, "rb")

    csv.QuoteWatch = Unwatched
    ipc.IpcFile._whole = lambda self, columns: True


def child(path: Path, way: str) -> dict[str, Any]:
    """One ingest in this process."""
    import sparrowboost

    if way == "pyarrow":
        leave_to_pyarrow()
    start = time.process_time()
    with tempfile.TemporaryDirectory(dir=path.parent) as store:
        sparrowboost.ingest(path, label="y", path=store + "/s", memory_limit="1GB", verbose=0)
    return {"cpu": time.process_time() - start, "rss": measure.peak_rss_mb()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        sys.stdout.write(json.dumps(child(Path(args.child[0]), args.child[1])) + "\n")
        return
    report = Table("file", "reader", "CPU seconds", "peak RSS, MB")
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), args.rows)
        for name in FILES:
            runs: dict[str, list[dict[str, Any]]] = {"own": [], "pyarrow": []}
            for _, way in measure.interleave(list(runs), args.rounds):
                argv = [__file__, "--child", f"{folder}/{name}", way]
                runs[way].append(measure.run_child(argv))
            for way, results in runs.items():
                cpu = statistics.median(run["cpu"] for run in results)
                peak = max(run["rss"] for run in results)
                report.add_row(name, way, f"{cpu:.2f}", f"{peak:.0f}")
    Console().print(report)


if __name__ == "__main__":
    main()
