"""A made table of 10 million rows and 20 numbers: test log loss against seconds.

    python benchmarks/bench_table.py                            -> results/table.json, table.png
    python benchmarks/bench_table.py --rows 100000 --test 50000 --subset 20000 --trees 20
        --trees-31 10 --sparrow-trees 20 --sparrow-trees-31 10   (smoke)

    sparrow-4, sparrow-31    ingest and train from Parquet, under --memory-limit
    lightgbm-4, lightgbm-31  all rows in memory
    lightgbm-4-1m, -3m       a uniform random part of the rows, kept while reading batch by batch
    xgboost-4                hist on a QuantileDMatrix, all rows in memory

The number is that of the leaves. Everyone has a learning rate of 0.1, every core, and reads the
same file. XGBoost grows leaf by leaf, as the others do.

A target is what a peer has reached: at 4 leaves its loss after --trees trees, at 31 leaves the
lowest loss of LightGBM in --trees-31 trees (found after the fact on its curve of test losses, so
that no rows are lost to early stopping). Sparrow may grow more trees, and the seconds to a target
are read off its curve: the question is when, not with how many trees.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import curves
import peers
import tables
from contestants import Job, train_and_score
from sparrowboost.memory import parse_size

ROWS, TEST_ROWS, TINY_ROWS = 10_000_000, 1_000_000, 20_000
RATE = 0.1


# -- one contestant, in a process of its own ------------------------------------------------------


def contestant(config: peers.Config) -> peers.Run:
    table, test = Path(config["table"]), tables.Test(Path(config["test"]))
    with tempfile.TemporaryDirectory(dir=table.parent) as scratch:
        job = Job(
            table=table,
            categorical=[],
            leaves=config["leaves"],
            trees=config["trees"],
            rate=RATE,
            seconds=math.inf,
            memory=config["memory"],
            size=config["subset"],
            scratch=Path(scratch),
            options={},
        )
        return train_and_score(config["kind"], job, test)


def child(config: peers.Config) -> peers.Run:
    contestant({**config, "table": config["tiny"], "test": config["tiny"], "trees": 3})
    return contestant(config)


# -- the parent -----------------------------------------------------------------------------------


def jobs(args: argparse.Namespace) -> list[peers.Config]:
    common = {
        "table": str(tables.large(args.data, args.rows)),
        "tiny": str(tables.large(args.data, TINY_ROWS)),
        "test": str(tables.large(args.data, args.test, stream=1)),
        "memory": parse_size(args.memory_limit),
    }
    subsets = [("lightgbm", 4, rows, args.trees) for rows in args.subset]
    out = []
    for library, leaves, subset, trees in (
        ("sparrow", 4, 0, args.sparrow_trees),
        ("lightgbm", 4, 0, args.trees),
        ("xgboost", 4, 0, args.trees),
        *subsets,
        ("sparrow", 31, 0, args.sparrow_trees_31),
        ("lightgbm", 31, 0, args.trees_31),
    ):
        name = f"{library}-{leaves}" + (f"-{peers.short(subset)}" if subset else "")
        kind = "lightgbm-sub" if subset else library
        job = {"kind": kind, "leaves": leaves, "subset": subset, "trees": trees}
        out.append({**common, "contestant": name, **job})
    return [job for job in out if not args.only or job["contestant"] in args.only]


def goal(name: str, runs: list[peers.Run]) -> float:
    """The loss that a peer has reached: its best at 31 leaves, its last at 4."""
    curve = next(run["curve"] for run in runs if run["contestant"] == name)  # alike in all rounds
    stage = curves.best_stage(curve, "log_loss") if name.endswith("-31") else curve[-1]
    return stage["log_loss"]


def reach(runs: list[peers.Run], target: float) -> dict[str, Any]:
    """Seconds to a loss, the median over rounds; where it is not met, those of trying."""
    times = [curves.seconds_to(run["curve"], "log_loss", target) for run in runs]
    reached = all(seconds is not None for seconds in times)
    seconds = [run["seconds"] if at is None else at for run, at in zip(runs, times, strict=True)]
    return {"seconds": round(statistics.median(seconds), 3), "reached": reached}


def summarize(runs: list[peers.Run]) -> dict[str, dict[str, Any]]:
    names = list(dict.fromkeys(run["contestant"] for run in runs))
    goals = {name: goal(name, runs) for name in names if not name.startswith("sparrow")}
    summary: dict[str, dict[str, Any]] = {}
    for name in names:
        mine = [run for run in runs if run["contestant"] == name]
        best = curves.best_stage(mine[0]["curve"], "log_loss")
        summary[name] = {
            "best": best,
            "goal": goals.get(name),
            "load_seconds": round(statistics.median(run["load_seconds"] for run in mine), 3),
            "peak_rss_mb": max(run["peak_rss_mb"] for run in mine),
            "to_goal_of": {peer: reach(mine, target) for peer, target in goals.items()},
            **({"work": mine[0]["work"]} if "work" in mine[0] else {}),
        }
    for result in summary.values():
        for peer, at in result["to_goal_of"].items():
            sparrow = "sparrow-31" if peer.endswith("-31") else "sparrow-4"
            curves.add_ratio(at, summary.get(sparrow, {}).get("to_goal_of", {}).get(peer))
    return summary


def report(summary: dict[str, dict[str, Any]], console: Console) -> None:
    goals = {name: result["goal"] for name, result in summary.items() if result["goal"]}
    table = Table(
        title="seconds to the test log loss that a peer reached, and times those of sparrow with "
        "as many leaves"
    )
    targets = (f"{name}\n{loss:.5f}" for name, loss in goals.items())
    for header in ("", "load", "MB", *targets, "lowest loss", "trees", "seconds"):
        table.add_column(header, justify="right" if header else "left")
    for name, result in summary.items():
        best = result["best"]
        table.add_row(
            name,
            f"{result['load_seconds']:.1f}",
            f"{result['peak_rss_mb']:.0f}",
            *(curves.reached_cell(result["to_goal_of"][peer]) for peer in goals),
            f"{best['log_loss']:.5f}",
            f"{best['trees']}",
            f"{best['seconds']:.1f}",
        )
    console.print(table)
    for name, result in summary.items():
        if "work" in result:
            console.print(name, result["work"])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--test", type=int, default=TEST_ROWS, help="test rows")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--subset", type=int, nargs="*", default=[1_000_000, 3_000_000])
    parser.add_argument("--trees", type=int, default=300, help="of the peers, at 4 leaves")
    parser.add_argument("--trees-31", type=int, default=500, help="of LightGBM, at 31 leaves")
    parser.add_argument("--sparrow-trees", type=int, default=600, help="at 4 leaves")
    parser.add_argument("--sparrow-trees-31", type=int, default=800, help="at 31 leaves")
    parser.add_argument("--memory-limit", default="1GB", help="sparrow's")
    parser.add_argument("--only", nargs="+", help="contestants")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "bench-data")
    parser.add_argument("--out", type=Path, default=peers.RESULTS / "table.json")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if args.child:
        sys.stdout.write(json.dumps(child(args.child)) + "\n")
        return
    console = peers.make_console()
    runs = peers.run_all(__file__, jobs(args), args.rounds, console, ("contestant",))
    summary = summarize(runs)
    report(summary, console)
    payload = {
        **peers.context(),
        "rows": args.rows,
        "test_rows": args.test,
        "features": tables.FEATURES,
        "learning_rate": RATE,
        "memory_limit": args.memory_limit,
        "summary": summary,
        "runs": runs,
    }
    peers.measure.write_json(args.out, payload)
    panels: dict[str, dict[str, curves.Line]] = {}
    for name in summary:
        title = f"{args.rows:,} x {tables.FEATURES}, {name.split('-')[1]} leaves, rate {RATE}"
        of = [run["curve"] for run in runs if run["contestant"] == name]
        panels.setdefault(title, {})[name] = curves.envelope(of, "log_loss")
    curves.draw(args.out.with_suffix(".png"), panels, "test log loss")


if __name__ == "__main__":
    main()
