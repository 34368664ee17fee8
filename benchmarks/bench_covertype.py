"""The paper's figure: forest cover type, test accuracy against the part of the rows in memory.

    python benchmarks/bench_covertype.py               -> results/covertype.json, covertype.png
    python benchmarks/bench_covertype.py --rows 20000 --seeds 1 --trees 20   (smoke)

    sparrow          all rows on disk, a sample of this part of them in memory, drawn by weight
    xgboost          hist on a uniform random part of the rows
    lightgbm-goss    (--goss) all rows in memory, each tree grown on this part of them: one half
                     those with the largest gradients, the other half random
    xgboost at 1.0   hist on all rows, for reference

500 trees of up to 32 leaves and depth 5, one learning rate for all; each seed is a random 80/20
split of the table, and of whatever the models draw.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import curves
import measure
import peers
import tables

SHARED = Path(__file__).parents[2] / "shared" / "data"
FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5)
TRAIN_SHARE = 0.8
WARM_UP_ROWS = 2_000
DEPTH, LEAVES = 5, 32

# (rows, labels, part, seed, options) -> rows -> log odds
Score = Callable[[np.ndarray], np.ndarray]


def sparrow(
    X: np.ndarray, y: np.ndarray, fraction: float, seed: int, args: argparse.Namespace
) -> Score:
    import sparrowboost

    data = sparrowboost.ingest(X, label=y, random_state=seed, verbose=0)
    model = sparrowboost.train(
        data,
        n_estimators=args.trees,
        learning_rate=args.rate,
        max_leaves=LEAVES,
        max_depth=DEPTH,
        loss=args.loss,
        stopping=args.stopping,
        rho=args.rho,
        sample_size=int(fraction * len(y)),
        random_state=seed,
        verbose=0,
    )
    return lambda rows: peers.sparrow_log_odds(model, rows)


def xgboost(
    X: np.ndarray, y: np.ndarray, fraction: float, seed: int, args: argparse.Namespace
) -> Score:
    import xgboost as xgb

    from contestants.xgboost import make_params

    rows = np.random.default_rng(seed).permutation(len(y))[: int(fraction * len(y))]
    data = xgb.QuantileDMatrix(X[rows], y[rows], max_bin=256)
    params = make_params(max_depth=DEPTH, learning_rate=args.rate, seed=seed)
    booster = xgb.train(params, data, args.trees)
    return lambda rows: booster.predict(xgb.DMatrix(rows), output_margin=True)


def lightgbm_goss(
    X: np.ndarray, y: np.ndarray, fraction: float, seed: int, args: argparse.Namespace
) -> Score:
    import lightgbm as lgb

    from contestants.lightgbm import make_params

    params = make_params(
        num_leaves=LEAVES,
        max_depth=DEPTH,
        learning_rate=args.rate,
        data_sample_strategy="goss",
        top_rate=fraction / 2,
        other_rate=fraction / 2,
        seed=seed,
    )
    booster = lgb.train(params, lgb.Dataset(X, y), args.trees)
    return lambda rows: booster.predict(rows, raw_score=True)


CONTESTANTS = {"sparrow": sparrow, "xgboost": xgboost, "lightgbm-goss": lightgbm_goss}


def read(shared: Path, rows: int | None) -> tuple[np.ndarray, np.ndarray]:
    frame = tables.read_csv(shared / "covtype.csv.gz", rows).astype(np.float32)
    y = frame.pop("y").to_numpy().astype(np.uint8)
    return np.ascontiguousarray(frame.to_numpy()), y


def run(args: argparse.Namespace, console: Console) -> list[peers.Run]:
    X, y = read(args.shared, args.rows)
    cut = int(TRAIN_SHARE * len(y))
    who = [name for name in CONTESTANTS if name != "lightgbm-goss" or args.goss]
    plan = [(name, fraction) for fraction in args.fractions for name in who] + [("xgboost", 1.0)]
    few = np.random.default_rng(0).permutation(len(y))[:WARM_UP_ROWS]
    for name in who:
        warm_up = argparse.Namespace(**{**vars(args), "trees": 3})
        CONTESTANTS[name](X[few], y[few], 0.5, 0, warm_up)
    runs = []
    for seed in range(args.seeds):
        order = np.random.default_rng(seed).permutation(len(y))
        train, test = order[:cut], order[cut:]
        X_train, y_train = X[train], y[train]
        for name, fraction in plan:
            with console.status(f"seed {seed}: {name} with {fraction}"):
                load = round(os.getloadavg()[0], 2)
                start = perf_counter()
                score = CONTESTANTS[name](X_train, y_train, fraction, seed, args)
                seconds = perf_counter() - start
                log_odds = score(X[test])
            runs.append(
                {
                    "contestant": name,
                    "fraction": fraction,
                    "seed": seed,
                    "accuracy": round(float(np.mean((log_odds > 0) == y[test])), 6),
                    **tables.judge(y[test], log_odds),
                    "seconds": round(seconds, 3),
                    "load_before": load,
                }
            )
    return runs


def summarize(runs: list[peers.Run]) -> list[dict[str, Any]]:
    out = []
    for name, fraction in dict.fromkeys((run["contestant"], run["fraction"]) for run in runs):
        mine = [run for run in runs if (run["contestant"], run["fraction"]) == (name, fraction)]
        accuracy = [run["accuracy"] for run in mine]
        out.append(
            {
                "contestant": name,
                "fraction": fraction,
                "accuracy": round(statistics.mean(accuracy), 5),
                "accuracy_sd": round(statistics.stdev(accuracy), 5) if len(mine) > 1 else None,
                "log_loss": round(statistics.mean(run["log_loss"] for run in mine), 5),
                "seconds": round(statistics.median(run["seconds"] for run in mine), 3),
            }
        )
    return out


def report(summary: list[dict[str, Any]], console: Console) -> None:
    table = Table(title="test accuracy (and its spread over seeds), log loss, seconds")
    table.add_column("part in memory", justify="right")
    names = list(dict.fromkeys(row["contestant"] for row in summary))
    for name in names:
        table.add_column(name, justify="right")
    for fraction in sorted({row["fraction"] for row in summary}):
        cells = {
            row["contestant"]: f"{row['accuracy']:.4f} ({row['accuracy_sd'] or 0:.4f}), "
            f"{row['log_loss']:.4f}, {row['seconds']:.1f} s"
            for row in summary
            if row["fraction"] == fraction
        }
        table.add_row(str(fraction), *(cells.get(name, "") for name in names))
    console.print(table)


def draw(path: Path, summary: list[dict[str, Any]], args: argparse.Namespace) -> None:
    plot = curves.pyplot()
    if plot is None:
        return
    figure, axes = plot.subplots(figsize=(8, 5))
    for name in dict.fromkeys(row["contestant"] for row in summary):
        rows = [r for r in summary if r["contestant"] == name and r["fraction"] < 1]
        axes.errorbar(
            [row["fraction"] for row in rows],
            [row["accuracy"] for row in rows],
            [row["accuracy_sd"] or 0 for row in rows],
            capsize=3,
            linewidth=2.5 if name == "sparrow" else 1.2,
            label=name,
        )
    everything = next(row["accuracy"] for row in summary if row["fraction"] == 1)
    axes.axhline(everything, color="gray", linestyle=":", label="xgboost on all rows")
    axes.set(
        xlabel="part of the training rows in memory",
        ylabel=f"test accuracy, mean and spread of {args.seeds} seeds",
        title=f"cover type, {args.trees} trees of depth {DEPTH}, learning rate {args.rate}",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    curves.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, help="only so many rows of the table")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fractions", type=float, nargs="+", default=FRACTIONS)
    parser.add_argument("--trees", type=int, default=500)
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate")
    parser.add_argument("--loss", default="logistic", help="sparrow's")
    parser.add_argument("--stopping", default="adaptive", help="sparrow's")
    parser.add_argument("--rho", type=float, default=0.3, help="sparrow's")
    parser.add_argument("--goss", action="store_true", help="LightGBM's GOSS as well")
    parser.add_argument("--shared", type=Path, default=SHARED, help="where the table is")
    parser.add_argument("--out", type=Path, default=peers.RESULTS / "covertype.json")
    args = parser.parse_args()
    console = peers.make_console()
    runs = run(args, console)
    summary = summarize(runs)
    report(summary, console)
    payload = {
        **peers.context(),
        "trees": args.trees,
        "learning_rate": args.rate,
        "depth": DEPTH,
        "loss": args.loss,
        "stopping": args.stopping,
        "rho": args.rho,
        "summary": summary,
        "runs": runs,
    }
    measure.write_json(args.out, payload)
    draw(args.out.with_suffix(".png"), summary, args)


if __name__ == "__main__":
    main()
