"""Columns of many categories: Sparrow against CatBoost and LightGBM.

    python benchmarks/bench_categories.py                  -> results/categories.json
    python benchmarks/bench_categories.py --task splice    -> results/categories_splice.json
    python benchmarks/bench_categories.py --rows 100000 --seeds 1 --out x.json     (smoke)

    clicks    made, in the order of time: categories of 10, 1,000, 50,000 and 500,000 values, some
              of them rare and some new, whose effects add up on the scale of the log odds, and four
              numbers; the test rows are from the last tenth of the time. The loss of the true
              probabilities is in the results ("oracle")
    splice    candidate splice sites: the 6 and the 9 letters around each as one category each; the
              model of random rows of chromosome 19 is tested on chromosome 21. It needs
              ../shared/data

Each contestant runs in a process of its own, one after the other. Seconds are from the file to the
model, loading and encoding included; imports and compilation are not: each has trained on 2,000
rows before. The file of results is written after each seed, so that a run may be stopped; no seed
is begun that would probably not end within `--minutes`.

    sparrow             from the file, in a memory limit
    sparrow-plain       the same without statistics of categories
    lightgbm            categories as such
    lightgbm-encoded    means of the target by category from four folds of the rows, and counts
    catboost            categories as such

Trees and learning rates are equal, and all have both cores; CatBoost has its default of 2**6
leaves, the others 31. Else all have their defaults.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import measure

RESULTS = Path(__file__).parent / "results"
DATA = Path(__file__).parents[2] / "shared" / "data"
TEST_ROWS = 500_000
TEST_FROM = 0.9  # of the time
CONTESTANTS = ("sparrow", "sparrow-plain", "lightgbm", "lightgbm-encoded", "catboost")
PACKAGES = ("sparrowboost", "lightgbm", "catboost", "numpy")
MEASURES = ("loss", "auc", "seconds", "cpu_seconds", "peak_mb")
LEAVES, DEPTH = 31, 6

# Of each column of clicks: values, and the standard deviation of their effects.
VALUES, EFFECTS = (10, 1_000, 50_000, 500_000), (0.4, 0.6, 0.8, 0.8)
STEEPNESS = 0.8  # the k-th most frequent value has k**-0.8 of the first one's rows
NEW = 0.3  # share of the values that are not there from the start
BASE = -2.9  # log odds
BEFORE, AFTER = {"six": 3, "nine": 5}, {"six": 3, "nine": 4}  # letters beside the AG
SMOOTHING, FOLDS = 10.0, 4  # of the encoding for LightGBM

Rows = tuple[dict[str, np.ndarray], np.ndarray]  # columns, labels


# -- tables ---------------------------------------------------------------------------------------


def clicks(rows: int, seed: int, start: float, stop: float) -> tuple[Rows, float]:
    """Rows of some time in its order, and the loss of their true probabilities."""
    fixed, rng = np.random.default_rng(7), np.random.default_rng([seed, 3])
    t = np.sort(rng.uniform(start, stop, rows))
    columns: dict[str, np.ndarray] = {}
    score = np.full(rows, BASE)
    for n, spread in zip(VALUES, EFFECTS, strict=True):
        effect, first = fixed.normal(0, spread, n), fixed.random(n)
        first *= fixed.random(n) < NEW
        share = np.cumsum(np.arange(1, n + 1) ** -STEEPNESS)
        value = np.zeros(rows, np.int32)
        left = np.arange(rows)  # whose value is not there yet
        for _ in range(4):
            drawn = np.searchsorted(share, rng.random(len(left)) * share[-1])
            value[left] = np.minimum(drawn, n - 1)
            left = left[first[value[left]] > t[left]]
        columns[f"c{n}"] = value
        score += effect[value]
    few, some = columns[f"c{VALUES[0]}"], columns[f"c{VALUES[1]}"]
    score += fixed.normal(0, 0.4, VALUES[:2])[few, some]
    x = rng.standard_normal((rows, 4), np.float32)
    score += 0.4 * x[:, 0] + 0.3 * (x[:, 1] > 0.5) * x[:, 2] + 0.3 * np.sin(6 * t)
    columns |= {f"x{j}": column for j, column in enumerate(x.T)}
    p = 1 / (1 + np.exp(-score))
    y = (rng.random(rows) < p).astype(np.int8)
    return (columns, y), log_loss(y, p)


def click_files(folder: Path, rows: int, seed: int) -> dict[str, Any]:
    """Both tables in files, and the oracle's loss on the test rows."""
    paths = {part: folder / f"clicks-{part}-{rows}-{seed}.parquet" for part in ("train", "test")}
    (columns, y), _ = clicks(rows, 2 * seed, 0, 1)
    pq.write_table(pa.table({**columns, "y": y}), paths["train"])
    (columns, y), oracle = clicks(TEST_ROWS, 2 * seed + 1, TEST_FROM, 1)
    pq.write_table(pa.table({**columns, "y": y}), paths["test"])
    return {**{part: str(path) for part, path in paths.items()}, "oracle": oracle}


def splice_files(folder: Path, rows: int, seed: int) -> dict[str, Any]:
    """The letters around the sites of two chromosomes; of the first, some rows at random."""
    from sparrowboost.datasets import splice_batches

    paths = {}
    for part, name in (("train", "chr19"), ("test", "chr21")):
        paths[part] = folder / f"kmers-{part}-{rows}-{seed}.parquet"
        pieces: dict[str, list[np.ndarray]] = {"six": [], "nine": [], "y": []}
        for batch in splice_batches("all", chromosome=DATA / f"{name}.npz"):
            pieces["y"].append(batch["y"].to_numpy())
            for column, n in BEFORE.items():
                word = np.zeros(batch.num_rows, np.int32)
                for k in (*range(-n, 0), *range(2, 2 + AFTER[column])):
                    word = 4 * word + batch[f"p{k:+d}"].indices.to_numpy()
                pieces[column].append(word)
        table = pa.table({key: np.concatenate(parts) for key, parts in pieces.items()})
        if part == "train" and rows < table.num_rows:
            some = np.random.default_rng(seed).choice(table.num_rows, rows, replace=False)
            table = table.take(np.sort(some))
        pq.write_table(table, paths[part])
    return {**{part: str(path) for part, path in paths.items()}, "oracle": None}


FILES = {"clicks": click_files, "splice": splice_files}
ROWS = {"clicks": 3_000_000, "splice": 3_000_000}
WARM_UP = {"rows": 2_000, "trees": 2}


def few_rows(path: str) -> str:
    """A file of some rows of both classes, to warm up with."""
    table, few = pq.read_table(path), Path(path).with_suffix(".few.parquet")
    y, n = table["y"].to_numpy(), WARM_UP["rows"] // 2
    pq.write_table(table.take(np.concatenate([np.flatnonzero(y == k)[:n] for k in (0, 1)])), few)
    return str(few)


def load(path: str) -> Rows:
    table = pq.read_table(path)
    columns = {name: table[name].to_numpy() for name in table.column_names}
    return columns, columns.pop("y")


def categorical(columns: dict[str, np.ndarray]) -> list[str]:
    return [name for name, values in columns.items() if values.dtype.kind == "i"]


# -- one run, in a process of its own -------------------------------------------------------------


def run_child(job: dict[str, Any]) -> dict[str, Any]:
    """Train, then measure on the test rows; seconds do not include that."""
    LIBRARIES[job["contestant"]]({**job, "train": job["few"], "trees": WARM_UP["trees"]})
    return trained(LIBRARIES[job["contestant"]], job, load)


def trained(
    train: Callable[[dict[str, Any]], Callable[[Any], np.ndarray]],
    job: dict[str, Any],
    load: Callable[[str], tuple[Any, np.ndarray]],
) -> dict[str, Any]:
    """What training takes, and how good its predictions are for the test rows."""
    start, cpu = time.perf_counter(), time.process_time()
    predict = train(job)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    peak = measure.peak_rss_mb()
    rows, y = load(job["test"])
    p = predict(rows)
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "peak_mb": round(peak, 1),
        "loss": log_loss(y, p),
        "auc": auc(y, p),
    }


def log_loss(y: np.ndarray, p: np.ndarray) -> float:
    p = np.clip(p, 1e-15, 1 - 1e-15)
    return float(-np.log(np.where(y == 1, p, 1 - p)).mean())


def auc(y: np.ndarray, p: np.ndarray) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(y, p))


Predict = Callable[[dict[str, np.ndarray]], np.ndarray]


def sparrow(job: dict[str, Any], *, statistics: bool = True) -> Predict:
    import sparrowboost

    names = pq.read_schema(job["train"])
    how = {"memory_limit": job["memory"], "random_state": job["seed"], "verbose": 0}
    rows = sparrowboost.ingest(
        job["train"],
        label="y",
        categorical=[field.name for field in names if field.type == pa.int32()],
        category_statistics=statistics,
        **how,
    )
    model = sparrowboost.train(
        rows, n_estimators=job["trees"], max_leaves=LEAVES, learning_rate=job["rate"], **how
    )
    return lambda columns: model.predict_proba(pa.table(columns))[:, 1]


def lightgbm(job: dict[str, Any]) -> Predict:
    columns, y = load(job["train"])
    names = list(columns)
    booster = lightgbm_of(job, matrix(columns), y, [names.index(c) for c in categorical(columns)])
    return lambda test: booster.predict(matrix(test))


def lightgbm_encoded(job: dict[str, Any]) -> Predict:
    columns, y = load(job["train"])
    fold = np.random.default_rng(job["seed"]).integers(0, FOLDS, len(y))
    prior, made, tables = y.mean(), dict(columns), {}
    for name in categorical(columns):
        value = columns[name]
        width = int(value.max()) + 1
        key = value.astype(np.int64) * FOLDS + fold
        count, total = (
            np.bincount(key, weight, width * FOLDS).reshape(width, FOLDS) for weight in (None, y)
        )
        n, s = count.sum(1), total.sum(1)
        share = 1 - 1 / FOLDS  # so that means and counts of test rows mean the same
        tables[name] = share * n, share * s
        others = n[value] - count[value, fold], s[value] - total[value, fold]
        made |= encoded(name, *others, prior)
        del made[name]
    booster = lightgbm_of(job, matrix(made), y, [])

    def predict(test: dict[str, np.ndarray]) -> np.ndarray:
        rows = dict(test)
        for name, (n, s) in tables.items():
            value = rows.pop(name)
            known = value < len(n)
            at = np.where(known, value, 0)
            rows |= encoded(name, n[at] * known, s[at] * known, prior)
        return booster.predict(matrix(rows))

    return predict


def encoded(name: str, n: np.ndarray, s: np.ndarray, prior: float) -> dict[str, np.ndarray]:
    """The smoothed mean of a category, and its count."""
    return {f"{name} mean": (s + SMOOTHING * prior) / (n + SMOOTHING), f"{name} count": n}


def matrix(columns: dict[str, np.ndarray]) -> np.ndarray:
    return np.column_stack([column.astype(np.float32) for column in columns.values()])


def lightgbm_of(job: dict[str, Any], x: Any, y: np.ndarray, categories: list[int]) -> Any:
    import lightgbm as lgb

    params = {
        "objective": "binary",
        "learning_rate": job["rate"],
        "num_leaves": LEAVES,
        "num_threads": measure.cores(),
        "seed": job["seed"],
        "verbose": -1,
    }
    data = lgb.Dataset(x, y, categorical_feature=categories, params={"verbose": -1})
    return lgb.train(params, data, job["trees"])


def catboost(job: dict[str, Any]) -> Predict:
    import pandas as pd
    from catboost import CatBoostClassifier

    columns, y = load(job["train"])
    model = CatBoostClassifier(
        iterations=job["trees"],
        learning_rate=job["rate"],
        depth=DEPTH,
        cat_features=categorical(columns),
        thread_count=measure.cores(),
        random_seed=job["seed"],
        verbose=0,
        allow_writing_files=False,
    )
    model.fit(pd.DataFrame(columns), y)
    return lambda test: model.predict_proba(pd.DataFrame(test))[:, 1]


LIBRARIES: dict[str, Callable[[dict[str, Any]], Predict]] = {
    "sparrow": sparrow,
    "sparrow-plain": lambda job: sparrow(job, statistics=False),
    "lightgbm": lightgbm,
    "lightgbm-encoded": lightgbm_encoded,
    "catboost": catboost,
}


def measured(job: dict[str, Any]) -> dict[str, Any]:
    """The result of a run in a fresh process."""
    return {**job, **measure.run_child([__file__, "--child", json.dumps(job)])}


def summarize(runs: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """What was measured of each contestant, by seed."""
    return {
        name: {key: [run[key] for run in runs if run["contestant"] == name] for key in MEASURES}
        for name in dict.fromkeys(run["contestant"] for run in runs)
    }


def show(summary: dict[str, dict[str, list[float]]], console: Console) -> None:
    """A line for each contestant, with the means over seeds."""
    table = Table("", "log loss", "AUC", "seconds", "CPU seconds", "peak MB")
    for name, of in summary.items():
        mean = {key: float(np.mean(values)) for key, values in of.items()}
        table.add_row(
            name, f"{mean['loss']:.5f}", f"{mean['auc']:.4f}", f"{mean['seconds']:.1f}",
            f"{mean['cpu_seconds']:.1f}", f"{mean['peak_mb']:.0f}",
        )  # fmt: skip
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--task", choices=tuple(FILES), default="clicks")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--trees", type=int, default=300)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=20, help="no seed is begun for longer")
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS)
    parser.add_argument("--data", type=Path, default=Path("/tmp/sparrow-bench"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        sys.stdout.write(json.dumps(run_child(json.loads(args.child))) + "\n")
        return
    console = Console()
    rows = args.rows or ROWS[args.task]
    how = {"trees": args.trees, "rate": args.rate, "memory": args.memory}
    args.data.mkdir(parents=True, exist_ok=True)
    name = "categories.json" if args.task == "clicks" else f"categories_{args.task}.json"
    results = {
        "command": measure.command(),
        "commit": measure.commit(),
        "machine": measure.machine(PACKAGES),
        "task": args.task,
        "rows": rows,
        **how,
    }
    runs: list[dict[str, Any]] = []
    start = time.monotonic()
    for seed in range(args.seeds):
        files = FILES[args.task](args.data, rows, seed)
        oracle = files.pop("oracle")
        files["few"] = few_rows(files["train"])
        for contestant in args.only or CONTESTANTS:
            run = measured({"contestant": contestant, "seed": seed, **how, **files})
            runs.append({key: v for key, v in run.items() if key not in files} | {"oracle": oracle})
            console.print(seed, contestant, f"{run['seconds']:.1f} s", f"{run['loss']:.5f}")
        for path in files.values():
            Path(path).unlink()
        summary = summarize(runs)
        measure.write_json(
            args.out or RESULTS / name,
            {**results, "seeds": seed + 1, "summary": summary, "runs": runs},
        )
        spent = time.monotonic() - start
        if spent * (seed + 2) / (seed + 1) > 60 * args.minutes:
            break
    if oracle is not None:
        console.print(f"the oracle's log loss is {oracle:.5f}")
    show(summary, console)


if __name__ == "__main__":
    main()
