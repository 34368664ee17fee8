"""Splice sites: train on one human chromosome, test on another; who is how accurate when.

    python benchmarks/bench_splice.py                          -> results/splice.json, splice.png
    python benchmarks/bench_splice.py --rows 300000 --subset 5000 --trees 20 --rates 0.1   (smoke)

    sparrow             ingest and train from Parquet, under --memory-limit
    lightgbm-all        all rows in memory; stops after --cap seconds
    lightgbm-sub-300k   what a practitioner does: all positives, and so many random negatives that
    lightgbm-sub-1m     there are 300,000 (1,000,000) rows, negatives weighted by 1 / their share.
                        It chooses by the labels, then reads batch by batch and keeps its rows

All grow trees of 4 leaves on every core. The 141 columns are categories of four letters. LightGBM
gets them as uint8 codes, all declared categorical, and is told to build histograms row-wise: both
are the fastest of what it offers here (pandas categories give the same trees).

Each library tries its learning rates, each in a process of its own; the best of them counts at each
target, as if it had been known. Test rows are all positives of the other chromosome and --test
random negatives, weighted likewise: the AUC does not feel that, the other measures are put right.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import curves
import peers
import tables
from contestants import Job, train_and_score
from sparrowboost.memory import parse_size
from tasks import expand_splice

TRAIN, TEST = "chr19", "chr21"
LEAVES = 4
TARGETS = (0.940, 0.950, 0.955)
RATES = (0.05, 0.1, 0.2, 0.3)
TINY_ROWS = 40_000
SHARED = Path(__file__).parents[2] / "shared" / "data"


# -- one contestant, in a process of its own ------------------------------------------------------


def contestant(config: peers.Config) -> peers.Run:
    table, test = Path(config["table"]), tables.Test(Path(config["test"]), config["test_weight"])
    with tempfile.TemporaryDirectory(dir=table.parent) as scratch:
        job = Job(
            table=table,
            categorical=tables.feature_names(table),
            leaves=LEAVES,
            trees=config["trees"],
            rate=config["rate"],
            seconds=config["cap"],
            memory=config["memory"],
            size=config["subset"],
            scratch=Path(scratch),
            options={} if config["kind"] == "sparrow" else {"force_row_wise": True},
        )
        return train_and_score(config["kind"], job, test)


def child(config: peers.Config) -> peers.Run:
    contestant({**config, "table": config["tiny"], "test": config["tiny"], "trees": 3})
    return contestant(config)


# -- the parent -----------------------------------------------------------------------------------


def jobs(args: argparse.Namespace, table: Path) -> list[peers.Config]:
    """What each process is told, rates in turn."""
    test, test_weight = tables.thinned(
        expand_splice(args.data, args.shared, TEST, args.rows), args.test
    )
    common = {
        "table": str(table),
        "tiny": str(tables.thinned(table, TINY_ROWS)[0]),
        "test": str(test),
        "test_weight": test_weight,
        "trees": args.trees,
        "cap": args.cap,
        "memory": parse_size(args.memory_limit),
    }
    sparrow = {**common, "contestant": "sparrow", "kind": "sparrow", "subset": None}
    lightgbm = {
        "lightgbm-all": ("lightgbm", None),
        **{f"lightgbm-sub-{peers.short(n)}": ("lightgbm-rare", n) for n in args.subset},
    }
    out = []
    for rate in sorted({*args.rates, *args.sparrow_rates}):
        if rate in args.sparrow_rates:
            out.append({**sparrow, "rate": rate})
        if rate in args.rates:
            for name, (kind, rows) in lightgbm.items():
                job = {"contestant": name, "kind": kind, "subset": rows, "rate": rate}
                out.append({**common, **job})
    return [job for job in out if not args.only or job["contestant"] in args.only]


def summarize(runs: list[peers.Run]) -> dict[str, dict[str, Any]]:
    """Of each contestant, the best of its rates."""
    summary: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(run["contestant"] for run in runs):
        mine = [run for run in runs if run["contestant"] == name]
        best = max(mine, key=lambda run: curves.best_stage(run["curve"], "auc")["auc"])
        summary[name] = {
            "best": {"rate": best["rate"], **curves.best_stage(best["curve"], "auc")},
            "load_seconds": round(statistics.median(run["load_seconds"] for run in mine), 3),
            "peak_rss_mb": max(run["peak_rss_mb"] for run in mine),
            "to_auc": {str(target): reach(mine, target) for target in TARGETS},
            **({"work": best["work"]} if "work" in best else {}),
        }
    for result in summary.values():
        for target, at in result["to_auc"].items():
            curves.add_ratio(at, summary.get("sparrow", {}).get("to_auc", {}).get(target))
    return summary


def reach(runs: list[peers.Run], target: float) -> dict[str, Any]:
    """Seconds to an AUC: the quickest rate of a round, the median over rounds.

    Where no rate gets there, the seconds are those for which all of them tried, at least.
    """
    quickest, reached = [], True
    for number in {run["round"] for run in runs}:
        these = [run for run in runs if run["round"] == number]
        times = [curves.seconds_to(run["curve"], "auc", target) for run in these]
        there = [seconds for seconds in times if seconds is not None]
        reached = reached and bool(there)
        quickest.append(min(there or [run["seconds"] for run in these]))
    return {"seconds": round(statistics.median(quickest), 3), "reached": reached}


def report(summary: dict[str, dict[str, Any]], console: Console) -> None:
    table = Table(title=f"seconds to a test AUC ({TRAIN} -> {TEST}), and times sparrow's")
    targets = map(str, TARGETS)
    for header in ("", "load", "peak RSS, MB", *targets, "best AUC", "rate", "trees", "seconds"):
        table.add_column(header, justify="right" if header else "left")
    for name, result in summary.items():
        best = result["best"]
        table.add_row(
            name,
            f"{result['load_seconds']:.1f}",
            f"{result['peak_rss_mb']:.0f}",
            *(curves.reached_cell(at) for at in result["to_auc"].values()),
            f"{best['auc']:.4f}",
            f"{best['rate']}",
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
    parser.add_argument("--rows", type=int, help="only the first rows of each chromosome")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--trees", type=int, default=1000, help="at most, of everyone")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="LightGBM's")
    parser.add_argument("--sparrow-rates", type=float, nargs="+", default=[0.1])
    parser.add_argument("--subset", type=int, nargs="*", default=[300_000, 1_000_000])
    parser.add_argument("--test", type=int, default=500_000, help="negatives in the test rows")
    parser.add_argument("--cap", type=float, default=600.0, help="seconds, of everyone")
    parser.add_argument("--memory-limit", default="1GB", help="sparrow's")
    parser.add_argument("--only", nargs="+", help="contestants")
    parser.add_argument("--shared", type=Path, default=SHARED, help="where the chrN.npz are")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "bench-data")
    parser.add_argument("--out", type=Path, default=peers.RESULTS / "splice.json")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if args.child:
        sys.stdout.write(json.dumps(child(args.child)) + "\n")
        return
    console = peers.make_console()
    table = expand_splice(args.data, args.shared, TRAIN, args.rows)
    keys = ("contestant", "rate")
    runs = peers.run_all(__file__, jobs(args, table), args.rounds, console, keys)
    summary = summarize(runs)
    report(summary, console)
    payload = {
        **peers.context(),
        "train": {"name": TRAIN, "rows": pq.read_metadata(table).num_rows},
        "test": {"name": TEST, "negatives": args.test},
        "leaves": LEAVES,
        "memory_limit": args.memory_limit,
        "summary": summary,
        "runs": runs,
    }
    peers.measure.write_json(args.out, payload)
    lines = {
        name: curves.envelope([run["curve"] for run in runs if run["contestant"] == name], "auc")
        for name in summary
    }
    title = f"splice sites, {TRAIN} -> {TEST}, trees of {LEAVES} leaves"
    curves.draw(args.out.with_suffix(".png"), {title: lines}, "test AUC")


if __name__ == "__main__":
    main()
