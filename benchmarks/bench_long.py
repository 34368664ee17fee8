"""A long training: memory, open files and scratch, looked at every so many trees.

    python benchmarks/bench_long.py      2,000 trees on 5 M rows x 20   -> results/long.json
    python benchmarks/bench_long.py --rows 200000 --trees 100 --every 10

The training runs in a process of its own, with samples that are drawn again and again: no data set
is taken as a whole. It asserts nothing.

    RSS       what the process holds, free memory given back before
    files     that it has open
    scratch   what the strata's file takes of the disk; with --checkpoint, all of the run's folder
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

import measure
import sparrowboost
import sparrowboost.learner.planning
from sparrowboost.datasets import make_large
from sparrowboost.learner.events import Event, TreeAdded
from sparrowboost.runtime.memory import release, rss

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from helpers import open_files  # the tests of long runs count by the same means

ROWS, TREES, EVERY = 5_000_000, 2_000, 100
SAMPLE_ROWS = 200_000
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("sparrowboost", "pyarrow", "numpy", "numba", "llvmlite")


def run(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Ingest and train; what was seen on the way."""
    sparrowboost.learner.planning.WHOLE_VALUES = 0
    source = make_large(folder / "train.parquet", args.rows)
    dataset = sparrowboost.ingest(
        source, label="y", path=folder / "store", memory_limit=args.memory, verbose=0
    )
    source.unlink()
    kept = folder / "run" if args.checkpoint else None
    seen: list[dict[str, Any]] = []
    start = perf_counter()

    def look(event: Event) -> None:
        if isinstance(event, TreeAdded) and event.n_trees % args.every == 0:
            release()
            files, scratch = open_files(folder)
            if kept is not None:
                scratch = sum(512 * file.stat().st_blocks for file in kept.iterdir())
            seen.append(
                {
                    "trees": event.n_trees,
                    "seconds": round(perf_counter() - start, 1),
                    "samples": event.n_samples,
                    "rss_mb": round(rss() / measure.MB, 1),
                    "files": files,
                    "scratch_mb": round(scratch / measure.MB, 1),
                }
            )

    model = sparrowboost.train(
        dataset,
        n_estimators=args.trees,
        sample_size=SAMPLE_ROWS,
        memory_limit=args.memory,
        checkpoint=kept,
        callbacks=[look],
        verbose=0,
    )
    return {
        "rows": dataset.n_rows,
        "features": dataset.n_features,
        "trees": model.n_trees,
        "binned_mb": round(dataset.n_bytes / measure.MB, 1),
        "peak_rss_mb": round(measure.peak_rss_mb(), 1),
        "seen": seen,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--trees", type=int, default=TREES)
    parser.add_argument("--every", type=int, default=EVERY, help="trees between two looks")
    parser.add_argument("--memory", default="1GB", help="memory limit")
    parser.add_argument("--checkpoint", action="store_true", help="keep a checkpoint, too")
    parser.add_argument("--data", type=Path, help="folder for the data (default: a temporary one)")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        sys.stdout.write(json.dumps(run(args.child, args)))
        return
    with tempfile.TemporaryDirectory(prefix="sparrow-long-", dir=args.data) as folder:
        result = measure.run_child([__file__, *sys.argv[1:], "--child", folder])
    table = Table("trees", "seconds", "samples", "RSS", "files", "scratch", box=None)
    for look in result["seen"]:
        table.add_row(
            f"{look['trees']:,}", str(look["seconds"]), str(look["samples"]),
            f"{look['rss_mb']} MB", str(look["files"]), f"{look['scratch_mb']} MB",
        )  # fmt: skip
    console = Console()
    console.print(table)
    most = max((look["scratch_mb"] for look in result["seen"]), default=0.0)
    result["scratch_by_binned"] = round(most / result["binned_mb"], 3)
    console.print(
        f"{result['trees']:,} trees; peak RSS {result['peak_rss_mb']} MB; scratch is "
        f"{result['scratch_by_binned']} times the {result['binned_mb']} MB of binned rows"
    )
    about = {"command": measure.command(), "machine": measure.machine(PACKAGES)}
    measure.write_json(RESULTS / "long.json", {**about, "memory_limit": args.memory, **result})


if __name__ == "__main__":
    main()
