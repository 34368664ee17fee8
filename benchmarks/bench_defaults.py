"""One parameter at a time away from its default: what that changes on rows that were not seen.

    python benchmarks/bench_defaults.py                                     -> results/defaults.json
    python benchmarks/bench_defaults.py --sets magic04 --seeds 1 --trees 10 --out x.json     (smoke)

    whole   all rows in memory, as it is for tables of this size
    drawn   small trees on samples of a seventh of the rows, drawn by weight; all of covertype. rho
            and theta are for this: smaller samples are read at once, and large trees wear them out
            before their weights do

Each seed is a random 80/20 split, of which all values get the same store and the same test rows.
A difference is that value's log loss (or AUC) less the default's, on the same split. All models
have the same number of trees, so that one of a smaller learning rate has gone less far.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import bench_small
import measure
import peers
import tables
from sparrowboost.learner.events import SampleDrawn
from sparrowboost.learner.params import Params

SETS = ("adult", "bank", "magic04", "covtype")
METRICS = ("log_loss", "auc")


@dataclass(frozen=True)
class Mode:
    """What all models of a comparison have in common, and the values to try beside the default."""

    sets: tuple[str, ...]
    rows: int | None  # of a table, at most
    params: dict[str, Any]
    values: dict[str, tuple[Any, ...]]


MODES = {
    "whole": Mode(
        SETS,
        60_000,
        {},
        {
            "learning_rate": (0.05, 0.2, 0.3),
            "max_leaves": (8, 15, 63),
            "min_child_weight": (0.5, 5.0, 20.0),
            "l2": (1.0, 10.0, 80.0, 160.0),
            "category_penalty": (0.0, 0.3),
            "loss": ("exponential",),
        },
    ),
    "drawn": Mode(
        ("covtype",),
        None,
        {"sample_size": 65_536, "max_leaves": 8, "learning_rate": 0.3},
        {"rho": (0.1, 0.2, 0.5, 0.7), "theta": (0.25, 0.75, 0.9)},
    ),
}


def run_set(name: str, mode: str, args: argparse.Namespace) -> list[peers.Run]:
    """Every value of every parameter of a mode on one table."""
    import sparrowboost

    how = MODES[mode]
    X, y = bench_small.read(args.shared, name, how.rows)
    values = [(key, value) for key, some in how.values.items() for value in some]
    runs = []
    for seed in range(args.seeds):
        order = np.random.default_rng(seed).permutation(len(y))
        cut = int(bench_small.TRAIN_SHARE * len(y))
        rows, test = (X.iloc[part].reset_index(drop=True) for part in (order[:cut], order[cut:]))
        data = sparrowboost.ingest(rows, label=y[order[:cut]], random_state=seed, verbose=0)
        for key, value in [(None, None), *values]:
            params = how.params if key is None else {**how.params, key: value}
            worn = Counter[str]()
            load = round(os.getloadavg()[0], 2)
            start = perf_counter()
            model = sparrowboost.train(
                data,
                n_estimators=args.trees,
                callbacks=[partial(count_samples, worn)],
                random_state=seed,
                verbose=0,
                **params,
            )
            seconds = round(perf_counter() - start, 4)
            result = tables.judge(y[order[cut:]], peers.sparrow_log_odds(model, test))
            of = {"set": name, "seed": seed, "mode": mode, "parameter": key, "value": value}
            more = {"trees": model.n_trees, "samples": dict(worn), "seconds": seconds}
            runs.append({**of, **result, **more, "load_before": load})
    return runs


def count_samples(worn: Counter[str], event: Any) -> None:
    """Count samples by why they were drawn."""
    if isinstance(event, SampleDrawn):
        worn[event.reason] += 1


def summarize(runs: list[peers.Run]) -> list[dict[str, Any]]:
    """Of each value, its mean difference from the default on each table, and over all tables."""
    default = {(r["set"], r["seed"], r["mode"]): r for r in runs if r["parameter"] is None}
    out = []
    for mode, how in MODES.items():
        for key, values in how.values.items():
            for value in values:
                mine = [
                    r for r in runs if (r["mode"], r["parameter"], r["value"]) == (mode, key, value)
                ]
                if not mine:
                    continue
                line: dict[str, Any] = {"mode": mode, "parameter": key, "value": value}
                for metric in METRICS:
                    of_set: dict[str, list[float]] = {}
                    for r in mine:
                        base = default[r["set"], r["seed"], mode][metric]
                        of_set.setdefault(r["set"], []).append(r[metric] - base)
                    means = {name: statistics.mean(some) for name, some in of_set.items()}
                    line[metric] = {name: round(mean, 6) for name, mean in means.items()}
                    line[metric]["mean"] = round(statistics.mean(means.values()), 6)
                out.append(line)
    return out


def report(summary: list[dict[str, Any]], sets: list[str], console: Console) -> None:
    usual = Params()
    for metric, better in zip(METRICS, ("below 0 is better", "above 0 is better"), strict=True):
        table = Table(title=f"{metric} less that of the default, in thousandths ({better})")
        for header in ("", "default", "value", *sets, "mean"):
            table.add_column(header, justify="right" if header else "left")
        last = None
        for line in summary:
            name = f"{line['parameter']} ({line['mode']})"
            table.add_row(
                "" if name == last else name,
                "" if name == last else str(getattr(usual, line["parameter"])),
                str(line["value"]),
                *(_thousandths(line[metric].get(key)) for key in (*sets, "mean")),
            )
            last = name
        console.print(table)


def _thousandths(difference: float | None) -> str:
    return "" if difference is None else f"{1000 * difference:+.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trees", type=int, default=100, help="the default")
    parser.add_argument("--shared", type=Path, default=bench_small.SHARED, help="of the tables")
    parser.add_argument("--out", type=Path, default=peers.RESULTS / "defaults.json")
    args = parser.parse_args()
    console, runs = peers.make_console(), []
    for mode, how in MODES.items():
        for name in (name for name in args.sets if name in how.sets):
            with console.status(f"{name}, {mode}"):
                runs += run_set(name, mode, args)
    summary = summarize(runs)
    report(summary, args.sets, console)
    about = {
        "trees": args.trees,
        "seeds": args.seeds,
        "modes": {mode: {"rows": how.rows, **how.params} for mode, how in MODES.items()},
    }
    measure.write_json(args.out, {**peers.context(), **about, "summary": summary, "runs": runs})


if __name__ == "__main__":
    main()
