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

It needs the right to make a cgroup; duckdb, polars, deltalake and pyiceberg with a catalog
(pyiceberg[sql-sqlite]) for the files of other writers; and 10 GB of disk. All shapes
take two hours on a busy machine. Results are written after each shape.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console

import measure
import readings
from bench_memory import CHILD, RESULTS
from cap_shapes import SHAPES
from cgroups import memory_group
from sparrowboost.runtime.memory import format_size, parse_size

LIMITS = ("512MB", "1GB")
NAMED = re.compile(r"give at least ([\d.]+ \w+)")
PACKAGES = ("sparrowboost", "pyarrow", "numpy", "numba", "llvmlite", "duckdb", "polars",
            "deltalake", "pyiceberg")  # fmt: skip
TREES = "10"


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
    shape = SHAPES[name]
    source, small = place / f"t{shape.suffix}", place / f"small{shape.suffix}"
    model, label = place / "model.json", ["--label", "y"]
    shape.make(source, shape.rows, 0)
    shape.make(small, min(shape.model_rows, shape.rows), 1)
    learn = ["--n-estimators", TREES, "-o"]
    known = [*label, *shape.options]
    fit = ["train", str(small), *known, *learn, str(model)]
    said = run_free(parse_size("20GB"), fit)
    if not model.exists():
        raise SystemExit(f"{name}: no model was trained:\n{said}")
    store, out = str(place / "store"), str(place / "out.parquet")
    words = {
        "ingest": ["ingest", str(source), *known, "--overwrite", "-o", store],
        "train": ["train", str(source), *known, *learn, str(place / "m.json")],
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
