"""Numbers to predict: Sparrow against LightGBM, XGBoost and scikit-learn.

    python benchmarks/bench_regression.py                  -> results/regression.json
    python benchmarks/bench_regression.py --quality        -> results/regression_quality.json
    python benchmarks/bench_regression.py --rows 50000 --trees 20 --seeds 1 --out x.json    (smoke)

Speed: a made table of numbers with noise, in a Parquet file. Each contestant runs in a process of
its own, loading included, one after the other with each seed:

    sparrow            from the file, in a memory limit
    lightgbm           all rows in memory
    lightgbm-sub-1m    a random million of them, another one for each seed
    lightgbm-sub-3m    three millions

`times` are the seconds at which a peer's test loss is within 0.01 % of its lowest, over those at
which Sparrow's is as low.

Quality: real tables, all rows in memory, equal trees; the test loss of each library, on one random
part for each seed, and two of diamonds. It needs ../shared/data.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import measure

RESULTS = Path(__file__).parent / "results"
DATA = Path(__file__).parents[2] / "shared" / "data"
FEATURES, TEST_ROWS, BLOCK = 20, 500_000, 250_000
NOISE = 1.0  # standard deviation; the rest of the target has about 2
STAGES = 40  # at which the test loss is computed
NEAR = 1e-4  # of its lowest loss, at which a contestant counts as at its best
CONTESTANTS = ("sparrow", "lightgbm", "lightgbm-sub-1m", "lightgbm-sub-3m")
PARTS = {"lightgbm-sub-1m": 1_000_000, "lightgbm-sub-3m": 3_000_000}
PACKAGES = ("sparrowboost", "lightgbm", "xgboost", "catboost", "scikit-learn", "numpy")
TREES, RATE, LEAVES = 200, 0.1, 31  # of the quality runs
MOST = 1_000_000  # rows of a real table
MORE_PARTS = {"diamonds": 2}  # times the seeds: a small table, on which chance decides more

Curve = list[dict[str, float]]


# -- the made table -------------------------------------------------------------------------------


def batches(rows: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Features (n, d) and targets (n,): waves, steps and interactions of ten, and noise."""
    rng = np.random.default_rng([seed, 1])
    for start in range(0, rows, BLOCK):
        n = min(BLOCK, rows - start)
        x = rng.standard_normal((n, FEATURES), np.float32)
        y = np.sin(2 * x[:, 0]) + (x[:, 1] + 0.5) * x[:, 2] + 1.5 * (x[:, 3] > 0.5) + 0.5 * x[:, 4]
        y += 0.7 * np.abs(x[:, 5]) * (x[:, 6] > 0) + 0.4 * (x[:, 7] - 0.5) * np.maximum(
            x[:, 8], x[:, 9]
        )
        yield x, (y + NOISE * rng.standard_normal(n, np.float32)).astype(np.float32)


def make_file(path: Path, rows: int, seed: int) -> Path:
    """The table in a Parquet file; one that is there is kept."""
    if not path.exists():
        half = path.with_suffix(".partial")
        names = [f"x{j}" for j in range(FEATURES)]
        schema = pa.schema([(name, pa.float32()) for name in (*names, "y")])
        with pq.ParquetWriter(half, schema, compression="snappy") as writer:
            for x, y in batches(rows, seed):
                writer.write_table(pa.table([*x.T.copy(), y], schema=schema))
        half.rename(path)
    return path


def load(path: Path) -> tuple[np.ndarray, np.ndarray]:
    table = pq.read_table(path)
    x = np.empty((table.num_rows, FEATURES), np.float32)
    for j in range(FEATURES):
        x[:, j] = table.column(j).to_numpy()
    return x, table.column(FEATURES).to_numpy()


# -- one run, in a process of its own -------------------------------------------------------------


def run_child(job: dict[str, Any]) -> dict[str, Any]:
    """Train, then compute the test loss at some numbers of trees; seconds do not include that."""
    train_one = sparrow if job["contestant"] == "sparrow" else lightgbm
    start = time.perf_counter()
    seconds, losses_at = train_one(job, start)
    peak = measure.peak_rss_mb()
    n = len(seconds)
    stages = sorted({max(1, round(n * k / STAGES)) for k in range(1, STAGES + 1)})
    test = load(Path(job["test"]))
    curve = [{"trees": k, "seconds": seconds[k - 1], "loss": losses_at(test, k)} for k in stages]
    return {"peak_mb": round(peak, 1), "seconds": seconds[-1], "curve": curve}


def sparrow(job: dict[str, Any], start: float) -> tuple[list[float], Callable[..., float]]:
    import sparrowboost
    from sparrowboost.events import TreeAdded

    seconds: list[float] = []

    def note(event: Any) -> None:
        if isinstance(event, TreeAdded):
            seconds.append(time.perf_counter() - start)

    how = {"memory_limit": job["memory"], "random_state": job["seed"], "verbose": 0}
    rows = sparrowboost.ingest(job["train"], label="y", task="regression", wait=False, **how)
    model = sparrowboost.train(
        rows,
        n_estimators=job["trees"],
        max_leaves=job["leaves"],
        learning_rate=job["rate"],
        callbacks=[note],
        **how,
    )
    staged: dict[int, float] = {}

    def loss(test: tuple[np.ndarray, np.ndarray], k: int) -> float:
        if not staged:
            from sparrowboost.model.predict import staged_scores
            from sparrowboost.readers.options import ReadOptions

            frame = pa.table([*test[0].T], names=[f"x{j}" for j in range(FEATURES)])
            for n, score in enumerate(staged_scores(model, frame, None, ReadOptions()), 1):
                staged[n] = half_mse(score, test[1])
        return staged[min(k, max(staged))]

    return seconds, loss


def lightgbm(job: dict[str, Any], start: float) -> tuple[list[float], Callable[..., float]]:
    import lightgbm as lgb

    x, y = load(Path(job["train"]))
    part = PARTS.get(job["contestant"])
    if part is not None and part < len(y):
        rows = np.random.default_rng(job["seed"]).choice(len(y), part, replace=False)
        x, y = x[np.sort(rows)], y[np.sort(rows)]
    seconds: list[float] = []
    params = {
        "objective": "l2",
        "learning_rate": job["rate"],
        "num_leaves": job["leaves"],
        "num_threads": measure.cores(),
        "seed": job["seed"],
        "verbose": -1,
    }

    def note(env: Any) -> None:
        seconds.append(time.perf_counter() - start)

    model = lgb.train(params, lgb.Dataset(x, y), job["trees"], callbacks=[note])

    def loss(test: tuple[np.ndarray, np.ndarray], k: int) -> float:
        return half_mse(model.predict(test[0], num_iteration=k), test[1])

    return seconds, loss


def half_mse(prediction: np.ndarray, target: np.ndarray) -> float:
    return float(np.mean(np.square(prediction.astype(np.float64) - target)) / 2)


def measured(job: dict[str, Any]) -> dict[str, Any]:
    """The result of a run in a fresh process."""
    return {**job, **measure.run_child([__file__, "--child", json.dumps(job)])}


# -- summaries ------------------------------------------------------------------------------------


def best(curve: Curve) -> float:
    return min(stage["loss"] for stage in curve)


def seconds_to(curve: Curve, loss: float) -> float | None:
    return next((stage["seconds"] for stage in curve if stage["loss"] <= loss), None)


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    ours = {run["seed"]: run["curve"] for run in runs if run["contestant"] == "sparrow"}
    out: dict[str, Any] = {}
    for name in dict.fromkeys(run["contestant"] for run in runs):
        mine = [run for run in runs if run["contestant"] == name]
        times = []
        for run in mine:
            goal = best(run["curve"]) * (1 + NEAR)
            theirs, our = seconds_to(run["curve"], goal), seconds_to(ours[run["seed"]], goal)
            times.append(None if our is None or theirs is None else theirs / our)
        out[name] = {
            "lowest_loss": [best(run["curve"]) for run in mine],
            "seconds": [round(run["seconds"], 2) for run in mine],
            "peak_mb": max(run["peak_mb"] for run in mine),
            "times": [None if t is None else round(t, 2) for t in times],
        }
    return out


def show(summary: dict[str, Any], console: Console) -> None:
    table = Table("", "lowest loss", "seconds", "peak MB", "times as fast")
    for name, one in summary.items():
        cells = [", ".join("-" if v is None else f"{v:.5g}" for v in one[key])
                 for key in ("lowest_loss", "seconds", "times")]  # fmt: skip
        table.add_row(name, cells[0], cells[1], f"{one['peak_mb']:.0f}", cells[2])
    console.print(table)


# -- quality on real tables -----------------------------------------------------------------------


def real_table(name: str) -> tuple[pd.DataFrame, np.ndarray]:
    if name == "diamonds":
        frame = pd.read_csv(DATA / "diamonds.csv.gz")
        target = frame.pop("price").to_numpy(np.float64)
        categories = ["cut", "color", "clarity"]
    else:
        frame = pd.read_csv(DATA / "flights3m.csv.gz").drop(columns="y")
        target = pd.read_csv(DATA / "flights3m_delay.csv.gz")["delay"].to_numpy(np.float64)
        categories = ["origin", "dest"]
    for column in categories:
        frame[column] = frame[column].astype("category")
    return frame, target


def fitted(library: str, loss: str, x: pd.DataFrame, y: np.ndarray, seed: int) -> Any:
    """A model of one library, by its defaults but for trees, rate and leaves."""
    steep = loss == "absolute_error"
    if library == "sparrow":
        from sparrowboost import SparrowRegressor

        return SparrowRegressor(loss=loss, n_estimators=TREES, random_state=seed).fit(x, y)
    if library == "lightgbm":
        from lightgbm import LGBMRegressor

        how = {"objective": "l1" if steep else "l2", "verbose": -1}
        return LGBMRegressor(n_estimators=TREES, random_state=seed, **how).fit(x, y)
    if library == "xgboost":
        from xgboost import XGBRegressor

        return XGBRegressor(
            objective="reg:absoluteerror" if steep else "reg:squarederror",
            n_estimators=TREES, learning_rate=RATE, max_leaves=LEAVES, max_depth=0,
            grow_policy="lossguide", tree_method="hist", enable_categorical=True,
        ).fit(x, y)  # fmt: skip
    if library == "catboost":
        from catboost import CatBoostRegressor

        return CatBoostRegressor(
            loss_function="MAE" if steep else "RMSE", iterations=TREES, learning_rate=RATE,
            grow_policy="Lossguide", max_leaves=LEAVES, random_seed=seed, verbose=0,
            cat_features=list(x.select_dtypes("category")), allow_writing_files=False,
        ).fit(x, y)  # fmt: skip
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(
        loss=loss, max_iter=TREES, early_stopping=False, categorical_features="from_dtype"
    ).fit(x, y)


def quality(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Test losses by table, loss and library; and the mean excess over the best library."""
    out: dict[str, Any] = {}
    for name in args.tables:
        frame, target = real_table(name)
        for loss in ("squared_error", "absolute_error"):
            losses: dict[str, list[float]] = {}
            for seed in range(args.seeds * MORE_PARTS.get(name, 1)):
                order = np.random.default_rng(seed).permutation(len(target))[: args.most]
                fit, test = np.split(order, [int(0.8 * len(order))])
                x, held = frame.iloc[fit].reset_index(drop=True), frame.iloc[test]
                for library in ("sparrow", "lightgbm", "xgboost", "catboost", "histgb"):
                    model = fitted(library, loss, x, target[fit], seed)
                    error = model.predict(held.reset_index(drop=True)) - target[test]
                    steep = loss == "absolute_error"
                    value = np.abs(error) if steep else np.square(error) / 2
                    losses.setdefault(library, []).append(float(value.mean()))
                    console.print(name, loss, seed, library, losses[library][-1])
            means = {library: statistics.mean(of) for library, of in losses.items()}
            best_other = min((key for key in means if key != "sparrow"), key=means.__getitem__)
            excess = 100 * (means["sparrow"] / means[best_other] - 1)
            error = standard_error(losses["sparrow"], losses[best_other])
            out[f"{name}, {loss}"] = {
                "losses": losses,
                "best_other": best_other,
                "excess_percent": round(excess, 3),
                "standard_error": error,
            }
            console.print(f"{name}, {loss}: {excess:+.3f} % above {best_other}, +- {error}")
    return out


def standard_error(ours: list[float], theirs: list[float]) -> float | None:
    """Of the mean difference in per cent; both have the same parts. None of one part."""
    if len(ours) < 2:
        return None
    differences = [100 * (a / b - 1) for a, b in zip(ours, theirs, strict=True)]
    return round(statistics.stdev(differences) / math.sqrt(len(ours)), 3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--trees", type=int, default=400)
    parser.add_argument("--leaves", type=int, default=8)
    parser.add_argument("--rate", type=float, default=0.3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=CONTESTANTS)
    parser.add_argument("--data", type=Path, default=Path("/tmp/sparrow-bench"))
    parser.add_argument("--quality", action="store_true")
    parser.add_argument("--tables", nargs="+", default=("diamonds", "flights"))
    parser.add_argument("--most", type=int, default=MOST, help="rows of a real table")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        sys.stdout.write(json.dumps(run_child(json.loads(args.child))) + "\n")
        return
    console = Console()
    about = {"commit": measure.commit(), "machine": measure.machine(PACKAGES)}
    if args.quality:
        path = args.out or RESULTS / "regression_quality.json"
        command = f"python benchmarks/bench_regression.py --quality --seeds {args.seeds}"
        command += f" --most {args.most}" * (args.most != MOST)
        found = quality(args, console)
        payload = {"command": command, **about, "seeds": args.seeds, "most_rows": args.most}
        payload["tables"] = found
        path.write_text(json.dumps(payload, indent=1) + "\n")
        return
    args.data.mkdir(parents=True, exist_ok=True)
    files = {
        "train": str(make_file(args.data / f"numbers-{args.rows}.parquet", args.rows, 0)),
        "test": str(make_file(args.data / f"numbers-test-{TEST_ROWS}.parquet", TEST_ROWS, 1)),
    }
    runs = []
    for seed in range(args.seeds):
        for contestant in args.only:
            job = {
                "contestant": contestant, "seed": seed, "trees": args.trees, "rate": args.rate,
                "leaves": args.leaves, "memory": args.memory, **files,
            }  # fmt: skip
            run = measured(job)
            runs.append({k: v for k, v in run.items() if k not in files})
            console.print(seed, contestant, f"{run['seconds']:.1f} s", f"{best(run['curve']):.6f}")
    summary = summarize(runs)
    show(summary, console)
    out = args.out or RESULTS / "regression.json"
    how = {key: getattr(args, key) for key in ("rows", "trees", "leaves", "rate", "memory")}
    given = f" --trees {args.trees}" * (args.trees != 400) + f" --seeds {args.seeds}" * (
        args.seeds != 3
    )
    about = {"command": f"python benchmarks/bench_regression.py{given}", **about}
    out.write_text(json.dumps({**about, **how, "summary": summary, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
