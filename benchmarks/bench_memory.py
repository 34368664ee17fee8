"""Peak memory of a whole job against the limit that it was given and the rows that it had.

    python benchmarks/bench_memory.py          1 M and 10 M rows x 20   -> results/memory.json
    python benchmarks/bench_memory.py --full   50 M rows, too
    python benchmarks/bench_memory.py --rows 50000000 --limits 512MB --output memory_50m.json

A job is three commands: `sparrow ingest`, `train` (with 200,000 validation rows) and `predict`.
Each runs in a memory cgroup whose hard limit is the memory limit, without swap: what exceeds it is
killed. It needs the right to make one.

    peak RSS   of the process, the code of libraries included
    group      the most that the group was charged with: page cache fills what is left, and gives
               way; code that others had loaded before is theirs
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

import measure
from cgroups import memory_group
from sparrowboost.datasets import make_large
from sparrowboost.runtime.memory import parse_size

ROWS, FULL_ROWS = (1_000_000, 10_000_000), 50_000_000
VALID_ROWS = 200_000
LIMITS = ("250MB", "512MB", "1GB")
TREES = 40
SAMPLE_ROWS = 200_000  # at most; so that no data set is taken as a whole
FLAT_RATIO = 1.10  # largest / smallest peak RSS under one limit
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("sparrowboost", "pyarrow", "numpy", "numba", "llvmlite")

# The command line itself, and what it took on the last line of its output.
CHILD = """
import sys
from sparrowboost.cli import main
code = main(sys.argv[1:])
from sparrowboost.runtime.memory import peak_rss
print(peak_rss())
sys.exit(code)
"""


def run(limit: str, words: list[str], scratch: Path) -> dict[str, Any]:
    """One command under a limit: seconds, peak RSS and peak of its group, in MB."""
    start = perf_counter()
    with memory_group(parse_size(limit)) as group:
        done = group.run([sys.executable, "-c", CHILD, *words], env={"TMPDIR": str(scratch)})
    if done.returncode != 0:
        raise SystemExit(
            f"{limit}: sparrow {words[0]}: exit code {done.returncode}, {done.kills} killed\n"
            f"{done.stderr}"
        )
    peak = None if done.peak_bytes is None else round(done.peak_bytes / measure.MB, 1)
    return {
        "seconds": round(perf_counter() - start, 1),
        "peak_rss_mb": round(int(done.stdout.split()[-1]) / measure.MB, 1),
        "group_mb": peak,
    }


def run_job(limit: str, source: Path, valid: Path, scratch: Path) -> dict[str, Any]:
    """Ingest, train and predict."""
    store, model, out = scratch / "store", scratch / "model.json", scratch / "out.parquet"
    learner = ["--n-estimators", str(TREES), "--theta", "0.7", "--sample-size", str(SAMPLE_ROWS)]
    reading = ["--valid", str(valid), *learner]
    commands = {
        "ingest": ["ingest", str(source), "--label", "y", "--overwrite", "-o", str(store)],
        "train": ["train", str(store), *reading, "-o", str(model)],
        "predict": ["predict", str(model), str(source), "-o", str(out)],
    }
    result = {}
    for name, words in commands.items():
        result[name] = run(limit, [*words, "--quiet", "--memory", limit], scratch)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--limits", nargs="+", default=list(LIMITS))
    parser.add_argument("--full", action="store_true", help=f"{FULL_ROWS:,} rows, too")
    parser.add_argument("--output", default="memory.json", help="name of the file in results/")
    parser.add_argument("--data", type=Path, help="folder for the data (default: a temporary one)")
    args = parser.parse_args()
    rows = [*args.rows, *([FULL_ROWS] if args.full else [])]
    runs = []
    table = Table("rows", "limit", "command", "seconds", "peak RSS", "group", box=None)
    with tempfile.TemporaryDirectory(prefix="sparrow-memory-", dir=args.data) as folder:
        place = Path(folder)
        valid = make_large(place / "valid.parquet", VALID_ROWS, stream=1)
        for n in rows:
            source = make_large(place / "train.parquet", n)
            for limit in args.limits:
                job = run_job(limit, source, valid, place)
                runs.append({"rows": n, "limit": limit, **job})
                for name, took in job.items():
                    sizes = [f"{took[key]} MB" for key in ("peak_rss_mb", "group_mb")]
                    table.add_row(f"{n:,}", limit, name, str(took["seconds"]), *sizes)
    console = Console()
    console.print(table)
    ratios = {limit: flatness(runs, limit) for limit in args.limits}
    for limit, ratio in ratios.items():
        verdict = "" if ratio <= FLAT_RATIO else f", more than {FLAT_RATIO}"
        console.print(
            f"{limit}: largest / smallest peak of a command over rows {ratio:.3f}{verdict}"
        )
    measure.write_json(
        RESULTS / args.output,
        {
            "command": measure.command(),
            "machine": measure.machine(PACKAGES),
            "features": 20,
            "valid_rows": VALID_ROWS,
            "runs": runs,
            "ratio_over_rows": ratios,
        },
    )


def flatness(runs: list[dict[str, Any]], limit: str) -> float:
    """By how much the peak of any command grew with the rows, under one limit."""
    mine = [run for run in runs if run["limit"] == limit]
    ratios = []
    for name in ("ingest", "train", "predict"):
        peaks = [run[name]["peak_rss_mb"] for run in mine]
        ratios.append(max(peaks) / min(peaks))
    return round(max(ratios), 3)


if __name__ == "__main__":
    main()
