"""More than two classes: Sparrow against LightGBM, XGBoost, CatBoost and scikit-learn.

    python benchmarks/bench_classes.py                     -> results/classes.json
    python benchmarks/bench_classes.py --task covertype    -> results/classes_covertype.json
    python benchmarks/bench_classes.py --task covertype-part   (results/classes_covertype_part.json)
    python benchmarks/bench_classes.py --rows 50000 --trees 5 --seeds 1 --out x.json     (smoke)

Each contestant runs in a process of its own, loading included, one after the other.

    made        ten classes of unequal size, 20 numbers, in a Parquet file: Sparrow from the file,
                in a memory limit; LightGBM on all rows in memory, and on a random million
    covertype   forest cover type, its seven classes, a random fifth to test on: all rows in
                memory. It needs ../shared/data
    covertype-part   60,000 of its rows, for quality only; *-set have settings that suit it

`times` are the seconds at which a peer's test log loss is within 0.01 % of its lowest, over those
at which Sparrow's is as low. A peer that exceeds `--cap` seconds is stopped there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

import measure
from bench_regression import DATA, RESULTS, STAGES, best, show, summarize

FEATURES, CLASSES, TEST_ROWS, BLOCK = 20, 10, 300_000, 250_000
PARTS = {"lightgbm-sub-1m": 1_000_000}
CONTESTANTS = {
    "made": ("sparrow", "lightgbm", "lightgbm-sub-1m"),
    "covertype": ("sparrow", "lightgbm", "xgboost", "catboost", "histgb"),
    "covertype-part": (
        "sparrow", "lightgbm", "lightgbm-set", "xgboost", "xgboost-set", "catboost", "histgb",
        "histgb-set",
    ),
}  # fmt: skip
# Settings with which losses do not rise: the curvatures of classes that are nearly learned are
# tiny, and steps are divided by them. XGBoost's curvatures are twice those of the others.
SETTINGS: dict[str, dict[str, Any]] = {
    "lightgbm-set": {"min_sum_hessian_in_leaf": 1.0},
    "xgboost-set": {"learning_rate": 0.175},
    "histgb-set": {"l2_regularization": 1.0},
}
PART_ROWS = 60_000  # of covertype-part
# Trees for each class, leaves and learning rate.
HOW = {"made": (300, 8, 0.3), "covertype": (300, 31, 0.1), "covertype-part": (100, 31, 0.1)}
PACKAGES = ("sparrowboost", "lightgbm", "xgboost", "catboost", "scikit-learn", "numpy")

Rows = tuple[np.ndarray, np.ndarray]  # features (n, d), classes (n,)
Trained = tuple[list[float], Callable[[np.ndarray, int], np.ndarray]]


# -- tables ---------------------------------------------------------------------------------------


def batches(rows: int, seed: int) -> Iterator[Rows]:
    """Classes by the scores of waves, steps and interactions, and noise; the first is frequent."""
    rng, fixed = np.random.default_rng([seed, 2]), np.random.default_rng(7)
    linear = fixed.normal(size=(6, CLASSES)) * 0.6
    wave = fixed.uniform(0, 6, (2, CLASSES))
    for start in range(0, rows, BLOCK):
        n = min(BLOCK, rows - start)
        x = rng.standard_normal((n, FEATURES), np.float32)
        score = x[:, :6] @ linear - 0.25 * np.arange(CLASSES)
        score += 1.2 * np.sin(x[:, 6:7] * 1.5 + wave[0]) + np.sin(x[:, 7:8] + wave[1])
        score += 1.5 * (x[:, 8:9] * x[:, 9:10] > 0.3) * (np.arange(CLASSES) % 3 == 0)
        score += rng.gumbel(size=score.shape)  # the highest has the probability of softmax
        yield x, score.argmax(axis=1)


def make_file(path: Path, rows: int, seed: int) -> Path:
    """The table in a Parquet file; one that is there is kept."""
    if not path.exists():
        half = path.with_suffix(".partial")
        fields = [(f"x{j}", pa.float32()) for j in range(FEATURES)]
        schema = pa.schema([*fields, ("y", pa.int8())])
        with pq.ParquetWriter(half, schema, compression="snappy") as writer:
            for x, y in batches(rows, seed):
                writer.write_table(pa.table([*x.T.copy(), y.astype(np.int8)], schema=schema))
        half.rename(path)
    return path


def load(path: str) -> Rows:
    table = pq.read_table(path)
    d = table.num_columns - 1
    x = np.empty((table.num_rows, d), np.float32)
    for j in range(d):
        x[:, j] = table.column(j).to_numpy()
    return x, table.column(d).to_numpy()


def covertype_files(folder: Path, seed: int, most: int | None = None) -> dict[str, str]:
    """Both parts of the cover types, or of some of them, cut at random by the seed."""
    name = f"covertype7-{seed}" if most is None else f"covertype7-{most}-{seed}"
    paths = {part: folder / f"{name}-{part}.parquet" for part in ("train", "test")}
    if not all(path.exists() for path in paths.values()):
        import pandas as pd

        x = pd.read_csv(DATA / "covtype.csv.gz").drop(columns="y").to_numpy(np.float32)
        y = pd.read_csv(DATA / "covtype_class7.csv.gz").to_numpy().ravel() - 1
        order = np.random.default_rng(seed).permutation(len(y))[:most]
        names = [f"x{j}" for j in range(x.shape[1])]
        for part, rows in zip(paths, np.split(order, [int(0.8 * len(order))]), strict=True):
            columns = dict(zip(names, x[rows].T, strict=True))
            pq.write_table(pa.table({**columns, "y": y[rows].astype(np.int8)}), paths[part])
    return {part: str(path) for part, path in paths.items()}


# -- one run, in a process of its own -------------------------------------------------------------


def run_child(job: dict[str, Any]) -> dict[str, Any]:
    """Train, then compute the test loss at some numbers of trees; seconds do not include that."""
    start = time.perf_counter()
    seconds, probabilities = LIBRARIES[job["contestant"].split("-")[0]](job, start)
    peak = measure.peak_rss_mb()
    n = len(seconds)
    stages = sorted({max(1, round(n * k / STAGES)) for k in range(1, STAGES + 1)})
    x, y = load(job["test"])
    curve = [
        {"trees": k, "seconds": seconds[k - 1], "loss": log_loss(probabilities(x, k), y)}
        for k in stages
    ]
    return {"peak_mb": round(peak, 1), "seconds": seconds[-1], "curve": curve}


def log_loss(probabilities: np.ndarray, y: np.ndarray) -> float:
    own = probabilities[np.arange(len(y)), y.astype(np.intp)].astype(np.float64)
    return float(-np.log(np.maximum(own, 1e-15)).mean())


def sparrow(job: dict[str, Any], start: float) -> Trained:
    import sparrowboost
    from sparrowboost.events import TreeAdded

    seconds: list[float] = []

    def note(event: Any) -> None:
        if isinstance(event, TreeAdded):
            seconds.append(time.perf_counter() - start)

    how = {"memory_limit": job["memory"], "random_state": job["seed"], "verbose": 0}
    rows = sparrowboost.ingest(job["train"], label="y", task="classification", **how)
    model = sparrowboost.train(
        rows,
        n_estimators=job["trees"],
        max_leaves=job["leaves"],
        learning_rate=job["rate"],
        callbacks=[note],
        **how,
    )
    made: dict[int, np.ndarray] = {}

    def probabilities(x: np.ndarray, k: int) -> np.ndarray:
        from sparrowboost.model.predict import staged_scores
        from sparrowboost.readers.options import ReadOptions

        if not made:
            n = len(seconds)
            wanted = {max(1, round(n * k / STAGES)) for k in range(1, STAGES + 1)}
            frame = pa.table([*x.T], names=[f"x{j}" for j in range(x.shape[1])])
            for stage, score in enumerate(staged_scores(model, frame, None, ReadOptions()), 1):
                if stage in wanted:
                    made[stage] = model.probabilities_of(score).astype(np.float32)
        return made[min(k, max(made))]

    return seconds, probabilities


class Clock:
    """Notes the seconds of each round, and ends a contestant that takes too long."""

    def __init__(self, job: dict[str, Any], start: float) -> None:
        self.seconds: list[float] = []
        self._start, self._cap = start, job["cap"]

    def note(self) -> bool:
        """Note a round; whether there is time for more."""
        self.seconds.append(time.perf_counter() - self._start)
        return self.seconds[-1] < self._cap


def part_of(job: dict[str, Any]) -> Rows:
    """The training rows, or a random part of them."""
    x, y = load(job["train"])
    part = PARTS.get(job["contestant"])
    if part is not None and part < len(y):
        rows = np.sort(np.random.default_rng(job["seed"]).choice(len(y), part, replace=False))
        x, y = x[rows], y[rows]
    return x, y


def lightgbm(job: dict[str, Any], start: float) -> Trained:
    import lightgbm as lgb

    x, y = part_of(job)
    clock = Clock(job, start)
    params = {
        "objective": "multiclass",
        "num_class": int(y.max()) + 1,
        "learning_rate": job["rate"],
        "num_leaves": job["leaves"],
        "num_threads": measure.cores(),
        "seed": job["seed"],
        "verbose": -1,
        **SETTINGS.get(job["contestant"], {}),
    }

    booster = lgb.Booster(params, lgb.Dataset(x, y, params={"verbose": -1}))
    for _ in range(job["trees"]):
        booster.update()
        if not clock.note():
            break
    return clock.seconds, lambda x, k: booster.predict(x, num_iteration=k)


def xgboost(job: dict[str, Any], start: float) -> Trained:
    import xgboost as xgb

    x, y = part_of(job)
    clock = Clock(job, start)
    params = {
        "objective": "multi:softprob",
        "num_class": int(y.max()) + 1,
        "learning_rate": job["rate"],
        "max_leaves": job["leaves"],
        "max_depth": 0,
        "grow_policy": "lossguide",
        "tree_method": "hist",
        "nthread": measure.cores(),
        "seed": job["seed"],
        **SETTINGS.get(job["contestant"], {}),
    }
    data = xgb.QuantileDMatrix(x, y)
    booster = xgb.Booster(params, [data])
    for k in range(job["trees"]):
        booster.update(data, k)
        if not clock.note():
            break
    return clock.seconds, lambda x, k: booster.predict(xgb.DMatrix(x), iteration_range=(0, k))


def catboost(job: dict[str, Any], start: float) -> Trained:
    from catboost import CatBoostClassifier

    x, y = part_of(job)
    clock = Clock(job, start)

    class Note:
        def after_iteration(self, info: Any) -> bool:
            return clock.note()

    model = CatBoostClassifier(
        iterations=job["trees"],
        learning_rate=job["rate"],
        grow_policy="Lossguide",
        max_leaves=job["leaves"],
        loss_function="MultiClass",
        thread_count=measure.cores(),
        random_seed=job["seed"],
        verbose=0,
        allow_writing_files=False,
    )
    model.fit(x, y, callbacks=[Note()])
    return clock.seconds, lambda x, k: model.predict_proba(x, ntree_end=k)


def histgb(job: dict[str, Any], start: float) -> Trained:
    from sklearn.ensemble import HistGradientBoostingClassifier

    x, y = part_of(job)
    model = HistGradientBoostingClassifier(
        max_iter=job["trees"],
        learning_rate=job["rate"],
        max_leaf_nodes=job["leaves"],
        early_stopping=False,
        random_state=job["seed"],
        **SETTINGS.get(job["contestant"], {}),
    ).fit(x, y)
    # It tells nothing of its rounds: seconds are divided evenly.
    total = time.perf_counter() - start
    seconds = [total * (k + 1) / job["trees"] for k in range(job["trees"])]
    made: dict[int, np.ndarray] = {}

    def probabilities(x: np.ndarray, k: int) -> np.ndarray:
        if not made:
            n = job["trees"]
            wanted = {max(1, round(n * k / STAGES)) for k in range(1, STAGES + 1)}
            for stage, p in enumerate(model.staged_predict_proba(x), 1):
                if stage in wanted:
                    made[stage] = p.astype(np.float32)
        return made[k]

    return seconds, probabilities


LIBRARIES = {
    "sparrow": sparrow,
    "lightgbm": lightgbm,
    "xgboost": xgboost,
    "catboost": catboost,
    "histgb": histgb,
}


def measured(job: dict[str, Any]) -> dict[str, Any]:
    """The result of a run in a fresh process."""
    return {**job, **measure.run_child([__file__, "--child", json.dumps(job)])}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--task", choices=tuple(CONTESTANTS), default="made")
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the made table")
    parser.add_argument("--trees", type=int, help="for each class")
    parser.add_argument("--leaves", type=int)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--cap", type=float, default=1_500, help="seconds of a peer")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--data", type=Path, default=Path("/tmp/sparrow-bench"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        sys.stdout.write(json.dumps(run_child(json.loads(args.child))) + "\n")
        return
    console = Console()
    defaults = dict(zip(("trees", "leaves", "rate"), HOW[args.task], strict=True))
    how = {key: getattr(args, key) or value for key, value in defaults.items()}
    how |= {"memory": args.memory, "cap": args.cap}
    args.data.mkdir(parents=True, exist_ok=True)
    runs = []
    for seed in range(args.seeds):
        if args.task != "made":
            most = PART_ROWS if args.task == "covertype-part" else None
            files = covertype_files(args.data, seed, most)
        else:
            sizes = {"train": args.rows, "test": TEST_ROWS}
            files = {
                part: str(make_file(args.data / f"classes-{part}-{n}.parquet", n, seed_of))
                for seed_of, (part, n) in enumerate(sizes.items())
            }
        for contestant in args.only or CONTESTANTS[args.task]:
            run = measured({"contestant": contestant, "seed": seed, **how, **files})
            runs.append({k: v for k, v in run.items() if k not in files})
            console.print(seed, contestant, f"{run['seconds']:.1f} s", f"{best(run['curve']):.6f}")
    summary = summarize(runs)
    show(summary, console)
    name = "classes.json" if args.task == "made" else f"classes_{args.task.replace('-', '_')}.json"
    about = {
        "command": measure.command(),
        "commit": measure.commit(),
        "machine": measure.machine(PACKAGES),
        "task": args.task,
        **how,
    }
    if args.task == "made":
        about |= {"rows": args.rows, "classes": CLASSES}
    out = args.out or RESULTS / name
    out.write_text(json.dumps({**about, "summary": summary, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
