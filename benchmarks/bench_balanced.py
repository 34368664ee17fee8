"""Balanced tables, of which a random part says nearly all: Sparrow against LightGBM on such parts.

    python benchmarks/bench_balanced.py                      -> results/balanced.json
    python benchmarks/bench_balanced.py --early-stopping     -> results/early_stopping.json
    python benchmarks/bench_balanced.py --rows 20000 --trees 20 --seeds 2 --out x.json     (smoke)

    sparrow            from the Parquet file, in a memory limit
    lightgbm           all rows in memory
    lightgbm-sub-1m    a random million of them, another one for each seed

Runs are those of bench.py, with the tasks `balanced` and `balanced-31`: each in a process of its
own, loading included. All contestants have their turn with one seed, then with the next. Only
Sparrow has a memory limit; LightGBM may use what the machine has.

    equal trees    Sparrow's test loss against a peer's after as many trees
    own best       the first seconds at which a peer's loss is within 0.01 % of its lowest, and
                   those at which Sparrow's is as low

With --early-stopping, only Sparrow runs, on two tables with wrong labels: once with validation rows
that end training, once until all trees are there. The loss of the first on test rows is held
against the lowest of the second at any stage, which nobody could have chosen without those rows.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import bench
import curves
import peers
import tables
from standings import kind, loss_cell, seconds_text, write_payload
from tasks import BALANCED, BALANCED_ROWS, NOISY, NOISY_ROWS, TASKS, Files, Task, made_table

KINDS = ("sparrow", "lightgbm", "lightgbm-sub")
BY_LEAVES = {TASKS[name].leaves: TASKS[name] for name in ("balanced", "balanced-31")}
RATES = {8: 0.3, 31: 0.1}
OWN_BEST = 1e-4  # within this part of its lowest loss, a contestant is at its best
HALVINGS = 5  # of all trees: at these numbers of them losses are compared

# name: (rows, how they are made), of early stopping
NOISY_TABLES = {
    "rare-noisy": (5_000_000, {"positive_rate": 0.1, "mislabeled": 0.2}),
    "balanced-noisy": (NOISY_ROWS, NOISY),
}
NOISY_TREES = 1_500
VALID_ROWS = 500_000
ROUNDS = 20  # without a better validation score, after which training ends
SAMPLES: tuple[int | str, ...] = ("auto", 1_000_000)

# What tells two runs of a file apart.
KEYS = ("contestant", "leaves", "rate", "seed")
STOPPING_KEYS = ("table", "sample_size", "leaves", "rate", "seed", "early_stopping")

Curve = Sequence[curves.Stage]
Spread = dict[str, float]
Job = tuple[peers.Config, Task, Files]


# -- what runs ------------------------------------------------------------------------------------


def most_trees(leaves: int, args: argparse.Namespace) -> int:
    return args.trees or (NOISY_TREES if args.early_stopping else BY_LEAVES[leaves].trees)


def plan(args: argparse.Namespace) -> list[Job]:
    """Everyone with one seed, then with the next."""
    how = {**BALANCED, **({"mislabeled": args.rate_noise} if args.rate_noise else {})}
    files = made_table(BALANCED_ROWS, **how)(args.data, args.data, args.rows, args.test_rows)
    jobs = []
    for seed in range(args.seeds):
        for leaves, rate in args.rates.items():
            task = BY_LEAVES[leaves]
            task = replace(task, part=args.parts or task.part, trees=most_trees(leaves, args))
            for who in bench.plan(task, args.only or KINDS, (rate,)):
                jobs.append(({**who, "leaves": leaves, "seed": seed}, task, files))
    return jobs


def plan_stopping(args: argparse.Namespace) -> list[Job]:
    """On each table with each sample size: a training that may end early, and one that may not."""
    made = {}
    for name, (rows, how) in NOISY_TABLES.items():
        files = made_table(rows, **how)(args.data, args.data, args.rows, args.test_rows)
        made[name] = files, tables.large(args.data, args.valid_rows, stream=2, **how)
    jobs = []
    for seed, (leaves, rate), name, size, early in product(
        range(args.seeds), args.rates.items(), made, args.samples, (True, False)
    ):
        files, valid = made[name]
        ends = {"early_stopping_rounds": ROUNDS, "valid": str(valid)}
        who = {
            "contestant": "sparrow",
            "kind": "sparrow",
            "size": None,
            "rate": rate,
            "leaves": leaves,
            "seed": seed,
            "table": name,
            "sample_size": size,
            "early_stopping": early,
            "options": {"sample_size": size, **(ends if early else {})},
        }
        jobs.append((who, replace(BY_LEAVES[leaves], trees=most_trees(leaves, args)), files))
    return jobs


def run_all(
    jobs: Sequence[Job],
    args: argparse.Namespace,
    about: dict[str, Any],
    keys: Sequence[str],
    summarize: Callable[[list[peers.Run]], Any],
    console: Console,
) -> Any:
    """The summary of all runs; it is written, with what it is of, after each of them."""
    runs: list[peers.Run] = []
    if args.add:
        runs = bench.kept_runs(args.out, about, [who for who, _, _ in jobs], keys)
    payload = {**about, **peers.context(), "cap_enforced": bench.enforced()}
    summary = summarize(runs)
    with console.status("") as status:
        for number, (who, task, files) in enumerate(jobs, 1):
            status.update(f"{number} of {len(jobs)}: {[who[key] for key in keys]}")
            memory = bench.parse_cap(args.memory) if who["kind"] == "sparrow" else None
            more = argparse.Namespace(memory=memory, data=args.data, trees=None)
            runs.append(bench.measured(who, task, files, more, math.inf))
            console.print(bench.told_run(runs[-1]), markup=False)
            summary = summarize(runs)
            write_payload(args.out, {**payload, "summary": summary, "runs": runs})
    return summary


# -- summaries ------------------------------------------------------------------------------------


def spread(values: Iterable[float]) -> Spread:
    """Mean, least and most over seeds."""
    some = list(values)
    found = {"mean": statistics.mean(some), "min": min(some), "max": max(some)}
    return {name: round(value, 7) for name, value in found.items()}


def more_percent(loss: float, other: float) -> float:
    return 100 * (loss / other - 1)


def summarize(runs: Sequence[peers.Run]) -> dict[str, Any]:
    """By leaves: what each contestant reached, and Sparrow against it."""
    out = {}
    for leaves in dict.fromkeys(run["leaves"] for run in runs):
        mine: dict[str, dict[int, Curve]] = {}
        for run in runs:
            if run["leaves"] == leaves and "curve" in run:
                mine.setdefault(run["contestant"], {})[run["seed"]] = run["curve"]
        order = sorted(mine, key=lambda name: KINDS.index(kind(name)))  # sizes as they came
        found = {name: summarize_one(name, mine[name], mine) for name in order}
        parts = [name for name in found if kind(name) == "lightgbm-sub"]
        best = min(parts, key=lambda name: found[name]["lowest_loss"]["mean"], default=None)
        out[str(leaves)] = {"best_part": best, "contestants": found}
    return out


def summarize_one(
    name: str, by_seed: dict[int, Curve], everyone: dict[str, dict[int, Curve]]
) -> dict[str, Any]:
    lowest = [curves.best_stage(curve, "log_loss") for curve in by_seed.values()]
    out: dict[str, Any] = {
        "seeds": len(by_seed),
        "final_loss": spread(curve[-1]["log_loss"] for curve in by_seed.values()),
        "lowest_loss": spread(stage["log_loss"] for stage in lowest),
        "trees_of_lowest": spread(stage["trees"] for stage in lowest),
        "seconds": spread(curve[-1]["seconds"] for curve in by_seed.values()),
        "own_best_seconds": spread(map(own_best_seconds, by_seed.values())),
    }
    ours = everyone.get("sparrow", {})
    pairs = [(ours[seed], curve) for seed, curve in by_seed.items() if seed in ours]
    if name != "sparrow" and pairs:
        out["sparrow_at_equal_trees"] = at_equal_trees(pairs)
        out |= at_own_best(pairs)
    return out


def at_equal_trees(pairs: Sequence[tuple[Curve, Curve]]) -> list[dict[str, float]]:
    """By how many percent the first curve's loss is above the second's; the last line is the end.

    Only stages that all curves have count: a training that ends early has no more.
    """
    losses = [[{s["trees"]: s["log_loss"] for s in curve} for curve in pair] for pair in pairs]
    common = sorted(set.intersection(*(set(of) for pair in losses for of in pair)))
    wanted = [common[-1] / 2**k for k in range(HALVINGS, -1, -1)]
    stages = dict.fromkeys(min(common, key=lambda n, w=w: abs(n - w)) for w in wanted)
    return [
        {"trees": n, **spread(more_percent(ours[n], theirs[n]) for ours, theirs in losses)}
        for n in stages
    ]


def own_best_seconds(curve: Curve) -> float:
    seconds = curves.seconds_to(curve, "log_loss", own_best(curve))
    assert seconds is not None  # the best stage itself is within
    return seconds


def own_best(curve: Curve) -> float:
    return curves.nearly_best(curve, "log_loss", OWN_BEST)


def at_own_best(pairs: Sequence[tuple[Curve, Curve]]) -> dict[str, Any]:
    """When the first curve is as good as the second gets, and how many times as fast that is."""
    times = [
        (own_best_seconds(theirs), curves.seconds_to(ours, "log_loss", own_best(theirs)))
        for ours, theirs in pairs
    ]
    met = [(their, our) for their, our in times if our is not None]
    out: dict[str, Any] = {"sparrow_as_good": len(met), "sparrow_compared": len(times)}
    if met:
        out["sparrow_seconds"] = spread(our for _, our in met)
        out["times_as_fast"] = spread(their / our for their, our in met)
    return out


def summarize_stopping(runs: Sequence[peers.Run]) -> list[dict[str, Any]]:
    """Of each table and sample size: early stopping against the best stage without."""
    groups: dict[tuple[Any, ...], list[dict[str, float]]] = {}
    found = {tuple(run[key] for key in STOPPING_KEYS): run for run in runs if "curve" in run}
    for run in found.values():
        of = tuple(run[key] for key in STOPPING_KEYS[:-1])
        other = found.get((*of, False))
        if run["early_stopping"] and other is not None:
            end, best = run["curve"][-1], curves.best_stage(other["curve"], "log_loss")
            pair = {
                "seed": run["seed"],
                "loss": end["log_loss"],
                "trees": end["trees"],
                "lowest_loss": best["log_loss"],
                "trees_of_lowest": best["trees"],
                "trees_without": other["trees"],
                "more_percent": round(more_percent(end["log_loss"], best["log_loss"]), 4),
            }
            groups.setdefault(of[:-1], []).append(pair)
    return [
        {
            **dict(zip(STOPPING_KEYS, of, strict=False)),
            **{name: spread(pair[name] for pair in pairs) for name in pairs[0] if name != "seed"},
            "seeds": pairs,
        }
        for of, pairs in groups.items()
    ]


# -- reports --------------------------------------------------------------------------------------


def spread_text(values: Spread | None, text: Callable[[float], str]) -> str:
    if values is None:
        return ""
    if values["min"] == values["max"]:
        return text(values["mean"])
    return f"{text(values['mean'])} ({text(values['min'])} to {text(values['max'])})"


def percent_text(value: float) -> str:
    return f"{value:+.3f}"


def whole_text(value: float) -> str:
    return f"{value:,.0f}"


def make_table(title: str, *headers: str) -> Table:
    table = Table(title=title)
    for header in headers:
        table.add_column(header, justify="right" if header else "left")
    return table


def report(summary: dict[str, Any], console: Console) -> None:
    for leaves, of in summary.items():
        found = of["contestants"]
        title = f"trees of {leaves} leaves"
        table = make_table(f"{title}: test log loss", "", "after all trees", "lowest", "at trees")
        for name, one in found.items():
            losses = [spread_text(one[key], loss_cell) for key in ("final_loss", "lowest_loss")]
            table.add_row(name, *losses, spread_text(one["trees_of_lowest"], whole_text))
        console.print(table)
        against = {name: one for name, one in found.items() if "sparrow_at_equal_trees" in one}
        if not against:
            continue
        table = make_table(
            f"{title}: sparrow's loss at equal trees, in % above (+) or below (-) the peer's",
            "", "trees", "mean", "least", "most",
        )  # fmt: skip
        for name, one in against.items():
            for line in one["sparrow_at_equal_trees"]:
                cells = [percent_text(line[key]) for key in ("mean", "min", "max")]
                table.add_row(name, whole_text(line["trees"]), *cells)
            table.add_section()
        console.print(table)
        table = make_table(
            f"{title}: seconds, loading included",
            "", "all trees", "to its own best", "sparrow as good in", "times as fast",
        )  # fmt: skip
        for name, one in found.items():
            cells = [
                spread_text(one.get(key), seconds_text)
                for key in ("seconds", "own_best_seconds", "sparrow_seconds")
            ]
            table.add_row(name, *cells, speed_text(one))
        console.print(table)
        console.print(f"best part: {of['best_part']}\n", highlight=False)


def speed_text(one: dict[str, Any]) -> str:
    """Times as fast; how often Sparrow was as good at all, if not always."""
    if "sparrow_as_good" not in one:
        return ""
    met, of = one["sparrow_as_good"], one["sparrow_compared"]
    text = spread_text(one.get("times_as_fast"), lambda value: f"{value:.2f}")
    return text if met == of else f"{text} as good in {met} of {of} seeds".strip()


def report_stopping(summary: Sequence[dict[str, Any]], console: Console) -> None:
    table = make_table(
        f"early stopping after {ROUNDS} trees without a better score, against the best stage",
        "", "leaves", "sample", "loss", "trees", "lowest", "at trees", "% above",
    )  # fmt: skip
    for of in summary:
        size = of["sample_size"]
        table.add_row(
            of["table"],
            str(of["leaves"]),
            size if size == "auto" else peers.short(size),
            loss_cell(of["loss"]["mean"]),
            spread_text(of["trees"], whole_text),
            loss_cell(of["lowest_loss"]["mean"]),
            spread_text(of["trees_of_lowest"], whole_text),
            spread_text(of["more_percent"], percent_text),
        )
    console.print(table)


# -- the command ----------------------------------------------------------------------------------


def describe(jobs: Sequence[Job], args: argparse.Namespace) -> dict[str, Any]:
    """What all runs of a file have in common."""
    files = {task_files.train.name: task_files for _, _, task_files in jobs}
    return {
        "memory": args.memory,
        "tables": {name: pq.read_metadata(of.train).num_rows for name, of in files.items()},
        "test_rows": pq.read_metadata(jobs[0][2].test).num_rows,
        "most_trees": {str(leaves): most_trees(leaves, args) for leaves in BY_LEAVES},
    }


def off_or_share(text: str) -> float:
    return 0.0 if text == "off" else float(text)


def auto_or_rows(text: str) -> int | str:
    return text if text == "auto" else int(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--early-stopping", action="store_true", help="how well it chooses the number of trees"
    )
    parser.add_argument("--seeds", type=int, default=4, help="how many (default: 4)")
    parser.add_argument(
        "--leaves", type=int, nargs="+", choices=BY_LEAVES, help="of a tree (default: 8 31)"
    )
    parser.add_argument("--rates", type=float, nargs="+", help="learning rate for each of --leaves")
    parser.add_argument("--trees", type=int, help="of each model (default: as in tasks.py)")
    parser.add_argument("--rows", type=int, help="fewer training rows")
    parser.add_argument("--test-rows", type=int, help="fewer test rows")
    parser.add_argument("--memory", default="1GB", help="sparrow's limit (default: 1GB), or none")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=[], help="not everyone")
    parser.add_argument("--parts", type=int, nargs="+", help="rows of lightgbm-sub")
    parser.add_argument(
        "--rate-noise",
        type=off_or_share,
        default="off",
        help="share of the positives that are labelled wrong, and as many negatives; or off",
    )
    parser.add_argument(
        "--samples", type=auto_or_rows, nargs="+", help="sample sizes of --early-stopping"
    )
    parser.add_argument("--valid-rows", type=int, help="fewer validation rows of --early-stopping")
    parser.add_argument("--add", action="store_true", help="keep runs that are not made again")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "bench-data")
    parser.add_argument("--out", type=Path, help="the file of results")
    args = parser.parse_args()
    here = ("only", "parts", "rate_noise") if args.early_stopping else ("samples", "valid_rows")
    for name in here:
        if getattr(args, name):
            mode = "with" if args.early_stopping else "without"
            parser.error(f"--{name.replace('_', '-')} means nothing {mode} --early-stopping.")
    args.leaves = args.leaves or ([8] if args.early_stopping else list(BY_LEAVES))
    rates = args.rates or [RATES[leaves] for leaves in args.leaves]
    if len(rates) != len(args.leaves):
        parser.error(f"--rates: give one for each of --leaves, which are {len(args.leaves)}.")
    args.rates = dict(zip(args.leaves, rates, strict=True))
    args.samples = args.samples or SAMPLES
    args.valid_rows = args.valid_rows or VALID_ROWS
    name = "early_stopping" if args.early_stopping else "balanced"
    args.out = args.out or peers.RESULTS / f"{name}.json"
    return args


def main() -> None:
    args = arguments()
    console = peers.make_console()
    if args.early_stopping:
        jobs = plan_stopping(args)
        about = {**describe(jobs, args), "early_stopping_rounds": ROUNDS}
        about["valid_rows"] = args.valid_rows
        report_stopping(
            run_all(jobs, args, about, STOPPING_KEYS, summarize_stopping, console), console
        )
    else:
        jobs = plan(args)
        about = {**describe(jobs, args), **BALANCED, "mislabeled": args.rate_noise}
        report(run_all(jobs, args, about, KEYS, summarize, console), console)


if __name__ == "__main__":
    main()
