"""Real tables that fit in memory, default parameters on both sides: accuracy and seconds.

    python benchmarks/bench_small.py                                   -> results/small.json
    python benchmarks/bench_small.py --rows 5000 --seeds 1 --trees 10   (smoke)

    sparrow    ingest(frame) and train
    lightgbm   LGBMClassifier().fit(frame)

Both get the same pandas frame, with pandas categories where the column was a word, and all cores.
Each seed is a random 80/20 split; flights are split by date, and the seed is the models' alone.
Both fit once on a few rows before the clock starts, then take turns, and who begins alternates.
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
import pandas as pd
from rich.console import Console
from rich.table import Table

import measure
import peers
import tables

SHARED = Path(__file__).parents[2] / "shared" / "data"
TRAIN_SHARE = 0.8
WARM_UP_ROWS = 2_000
CATEGORIES: dict[str, tuple[str, ...]] = {
    "covtype": (),  # its categories are columns of 0 and 1
    "adult": (
        "workclass", "education", "marital", "occupation", "relationship", "race", "sex", "country",
    ),
    "bank": (
        "job", "marital", "education", "default", "housing", "loan", "contact", "month",
        "day_of_week", "poutcome",
    ),
    "magic04": (),
    "flights3m": ("origin", "dest"),
}  # fmt: skip
BY_DATE = ("flights3m",)

# (frame, labels, trees, seed) -> frame -> log odds
Fit = Callable[[pd.DataFrame, np.ndarray, int, int], Callable[[pd.DataFrame], np.ndarray]]


def sparrow(
    X: pd.DataFrame, y: np.ndarray, trees: int, seed: int
) -> Callable[[pd.DataFrame], np.ndarray]:
    import sparrowboost

    data = sparrowboost.ingest(X, label=y, random_state=seed, verbose=0)
    model = sparrowboost.train(data, n_estimators=trees, random_state=seed, verbose=0)
    return lambda rows: peers.sparrow_log_odds(model, rows)


def lightgbm(
    X: pd.DataFrame, y: np.ndarray, trees: int, seed: int
) -> Callable[[pd.DataFrame], np.ndarray]:
    from lightgbm import LGBMClassifier

    model = LGBMClassifier(
        n_estimators=trees, random_state=seed, n_jobs=measure.cores(), verbose=-1
    ).fit(X, y)
    return lambda rows: model.predict(rows, raw_score=True)


CONTESTANTS: dict[str, Fit] = {"sparrow": sparrow, "lightgbm": lightgbm}


def read(shared: Path, name: str, rows: int | None) -> tuple[pd.DataFrame, np.ndarray]:
    frame = tables.read_csv(shared / f"{name}.csv.gz", rows)
    y = frame.pop("y").to_numpy()
    return frame.astype(dict.fromkeys(CATEGORIES[name], "category")), y


def compare(shared: Path, name: str, args: argparse.Namespace) -> list[peers.Run]:
    X, y = read(shared, name, args.rows)
    runs = []
    for seed in range(args.seeds):
        order = np.arange(len(y))
        if name not in BY_DATE:
            np.random.default_rng(seed).shuffle(order)
        cut = int(TRAIN_SHARE * len(y))
        train, test = order[:cut], order[cut:]
        X_train, X_test = X.iloc[train].reset_index(drop=True), X.iloc[test].reset_index(drop=True)
        if seed == 0:
            few = np.random.default_rng(0).permutation(cut)[:WARM_UP_ROWS]
            for fit in CONTESTANTS.values():
                fit(X_train.iloc[few].reset_index(drop=True), y[train][few], 3, 0)
        for who in sorted(CONTESTANTS, reverse=bool(seed % 2)):
            load = round(os.getloadavg()[0], 2)
            start = perf_counter()
            score = CONTESTANTS[who](X_train, y[train], args.trees, seed)
            seconds = round(perf_counter() - start, 4)
            result = tables.judge(y[test], score(X_test))
            of = {"set": name, "seed": seed, "contestant": who, "load_before": load}
            runs.append({**of, "seconds": seconds, **result})
    return runs


def summarize(runs: list[peers.Run]) -> dict[str, Any]:
    """Of one set: what each has, and the difference (or ratio) of each seed's pair."""

    def of(who: str, what: str) -> list[float]:
        return [run[what] for run in runs if run["contestant"] == who]

    out: dict[str, Any] = {}
    for who in CONTESTANTS:
        out[who] = {
            "auc": round(statistics.mean(of(who, "auc")), 5),
            "log_loss": round(statistics.mean(of(who, "log_loss")), 5),
            "seconds": round(statistics.median(of(who, "seconds")), 4),
        }
    for what in ("auc", "log_loss"):
        pairs = zip(of("sparrow", what), of("lightgbm", what), strict=True)
        out[f"{what}_differences"] = [round(a - b, 5) for a, b in pairs]
    pairs = zip(of("lightgbm", "seconds"), of("sparrow", "seconds"), strict=True)
    out["seconds_ratio"] = round(statistics.median(a / b for a, b in pairs), 3)
    return out


def report(summary: dict[str, dict[str, Any]], console: Console) -> None:
    table = Table(title="sparrow / lightgbm, default parameters")
    for header in (
        "", "AUC", "sparrow's - lightgbm's", "log loss", "sparrow's - lightgbm's", "seconds",
        "lightgbm's / sparrow's",
    ):  # fmt: skip
        table.add_column(header, justify="right" if header else "left")
    for name, result in summary.items():
        a, b = result["sparrow"], result["lightgbm"]
        table.add_row(
            name,
            f"{a['auc']:.4f} / {b['auc']:.4f}",
            f"{statistics.mean(result['auc_differences']):+.4f}",
            f"{a['log_loss']:.4f} / {b['log_loss']:.4f}",
            f"{statistics.mean(result['log_loss_differences']):+.4f}",
            f"{a['seconds']:.2f} / {b['seconds']:.2f}",
            f"{result['seconds_ratio']:.2f}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", nargs="+", choices=CATEGORIES, default=list(CATEGORIES))
    parser.add_argument("--rows", type=int, help="only so many rows of each table")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trees", type=int, default=100, help="the default of both")
    parser.add_argument("--shared", type=Path, default=SHARED, help="where the tables are")
    parser.add_argument("--out", type=Path, default=peers.RESULTS / "small.json")
    args = parser.parse_args()
    console = peers.make_console()
    summary, runs = {}, []
    for name in args.sets:
        with console.status(name):
            some = compare(args.shared, name, args)
        summary[name] = summarize(some)
        runs += some
    report(summary, console)
    payload = {**peers.context(), "trees": args.trees, "summary": summary, "runs": runs}
    measure.write_json(args.out, payload)


if __name__ == "__main__":
    main()
