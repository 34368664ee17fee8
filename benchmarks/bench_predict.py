"""Prediction: rows per second of sparrow and of LightGBM, on the same rows.

    python benchmarks/bench_predict.py                                  -> results/predict.json
    python benchmarks/bench_predict.py --rows 50000 --train 20000 --rounds 2   (smoke)

    array      1 M x 20 float32 in a numpy matrix
    frame      the same in a pandas frame
    parquet    the same in a file: sparrow streams it, LightGBM reads it whole, then predicts

Models of 500 trees x 31 leaves, each library's own, trained on a small table of the same kind; 100
trees are the first 100. Both give raw scores on every core. They take turns, after a first
prediction that is not timed, and the median round counts; the file is in the page cache.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from rich.table import Table

import measure
import peers
import tables

LEAVES = 31
TREES = (100, 500)


def train_sparrow(table: Path, trees: int) -> Any:
    import sparrowboost

    data = sparrowboost.ingest(str(table), label="y", verbose=0)
    return sparrowboost.train(data, n_estimators=trees, max_leaves=LEAVES, verbose=0)


def train_lightgbm(table: Path, trees: int) -> Any:
    import lightgbm as lgb

    from contestants.lightgbm import make_params

    rows = pq.read_table(table)
    data = lgb.Dataset(rows.drop_columns(["y"]), label=rows.column("y"))
    return lgb.train(make_params(num_leaves=LEAVES), data, trees)


def contestants(
    sparrow: Any, lightgbm: Any, table: Path, trees: int
) -> dict[tuple[str, str], Callable[[], np.ndarray]]:
    """{(what is predicted, who predicts): how}."""
    columns = [f"f{j}" for j in range(tables.FEATURES)]
    rows = pq.read_table(table, columns=columns)
    array = np.column_stack([rows.column(name).to_numpy() for name in columns])
    frame = rows.to_pandas()

    def by_sparrow(source: Any) -> np.ndarray:
        return np.asarray(sparrow.decision_function(source, n_trees=trees))

    def by_lightgbm(source: Any) -> np.ndarray:
        return lightgbm.predict(source, num_iteration=trees, raw_score=True)

    return {
        ("array", "sparrow"): lambda: by_sparrow(array),
        ("array", "lightgbm"): lambda: by_lightgbm(array),
        ("frame", "sparrow"): lambda: by_sparrow(frame),
        ("frame", "lightgbm"): lambda: by_lightgbm(frame),
        ("parquet", "sparrow"): lambda: by_sparrow(str(table)),
        ("parquet", "lightgbm"): lambda: by_lightgbm(pq.read_table(table, columns=columns)),
    }


def compare(runs: dict[tuple[str, str], Callable[[], np.ndarray]], rounds: int) -> dict[str, Any]:
    n_rows = len(next(iter(runs.values()))())
    for run in runs.values():
        run()
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    for _ in range(rounds):
        for key, run in runs.items():
            start = perf_counter()
            run()
            seconds[key].append(perf_counter() - start)
    out: dict[str, Any] = {}
    for what in dict.fromkeys(what for what, _ in runs):
        pairs = zip(seconds[what, "lightgbm"], seconds[what, "sparrow"], strict=True)
        out[what] = {
            **{
                who: round(n_rows / statistics.median(seconds[what, who]))
                for who in ("sparrow", "lightgbm")
            },
            "ratio": round(statistics.median(theirs / ours for theirs, ours in pairs), 3),
        }
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="to predict")
    parser.add_argument("--train", type=int, default=200_000, help="rows to train on")
    parser.add_argument("--trees", type=int, nargs="+", default=TREES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "bench-data")
    parser.add_argument("--out", type=Path, default=peers.RESULTS / "predict.json")
    args = parser.parse_args()
    console = peers.make_console()
    table, train = tables.large(args.data, args.rows, stream=1), tables.large(args.data, args.train)
    result: dict[str, dict[str, Any]] = {}
    with console.status("training"):
        sparrow = train_sparrow(train, max(args.trees))
        lightgbm = train_lightgbm(train, max(args.trees))
    for trees in args.trees:
        with console.status(f"{trees} trees"):
            runs = contestants(sparrow, lightgbm, table, trees)
            result[f"{trees} trees"] = compare(runs, args.rounds)
    shown = Table(title=f"rows per second, {args.rows:,} x {tables.FEATURES}, {LEAVES} leaves")
    for header in ("", "", "sparrow", "lightgbm", "sparrow's / lightgbm's"):
        shown.add_column(header, justify="right" if header else "left")
    for trees_of, rows in result.items():
        for what, row in rows.items():
            cells = (f"{row['sparrow']:,}", f"{row['lightgbm']:,}", f"{row['ratio']:.2f}")
            shown.add_row(trees_of, what, *cells)
    console.print(shown)
    payload = {**peers.context(), "rows": args.rows, "features": tables.FEATURES, "leaves": LEAVES}
    trained = {"sparrow": len(sparrow.trees), "lightgbm": lightgbm.num_trees()}
    payload |= {"train_rows": args.train, "trained_trees": trained, "rows_per_second": result}
    measure.write_json(args.out, payload)


if __name__ == "__main__":
    main()
