"""What drawing features for each tree or leaf is worth on wide tables, of which little matters.

    python benchmarks/bench_columns.py                                    -> results/columns.json
    python benchmarks/bench_columns.py --seeds 1 --rows 1000 --columns 20 --out x.json    (smoke)

    noise    10 useful columns, all others noise
    copies   10 numbers that matter, which no column has: each column is one of them plus noise

Each seed is a table of its own, with 20,000 rows for testing and 5,000 for early stopping, so that
every value has as many trees as help it. A difference is that value's log loss less that of all
features, on the same table; `seconds` is processor time.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import measure
import sparrowboost

USEFUL = 10
VALID_ROWS, TEST_ROWS = 5_000, 20_000
KINDS = ("noise", "copies")
SHARES = (0.5, 0.2, 0.1)
VALUES: tuple[dict[str, Any], ...] = (
    {},
    *({"colsample_bytree": share} for share in SHARES),
    *({"colsample_bynode": share} for share in SHARES),
)
COMMON: dict[str, Any] = {"n_estimators": 1_000, "early_stopping_rounds": 30, "verbose": 0}


def make_table(kind: str, n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (n, d), and labels (n,) that depend on ten numbers, two pairs of which interact."""
    rng = np.random.default_rng(seed)
    useful, X = rng.normal(size=(n, USEFUL)), rng.normal(size=(n, d))
    if kind == "copies":
        X += useful[:, np.arange(d) % USEFUL]
    else:
        X[:, :USEFUL] = useful
    odds = useful @ np.linspace(0.67, 0.2, USEFUL) + 0.5 * useful[:, 0] * useful[:, 1]
    odds += 0.5 * (useful[:, 2] > 0) * useful[:, 3]
    return X.astype(np.float32), rng.random(n) < 1 / (1 + np.exp(-odds))


def run(kind: str, args: argparse.Namespace, seed: int) -> list[dict[str, float]]:
    """Log loss, number of trees and processor time of each value on one table."""
    X, y = make_table(kind, args.rows + VALID_ROWS + TEST_ROWS, args.columns, seed)
    fit, valid, test = np.split(np.arange(len(y)), [args.rows, args.rows + VALID_ROWS])
    data = sparrowboost.ingest(X[fit], label=y[fit], verbose=0)
    found = []
    for value in VALUES:
        start = time.process_time()
        model = sparrowboost.train(
            data, valid=(X[valid], y[valid]), random_state=seed, **COMMON, **value
        )
        seconds = time.process_time() - start
        p = model.predict_proba(X[test])[:, 1].astype(np.float64)
        loss = -np.log(np.where(y[test], p, 1 - p)).mean()
        found.append({"log_loss": loss, "trees": model.n_trees, "seconds": seconds})
    return found


def main() -> None:
    """Run every value on every table, and write the means and the differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--columns", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/columns.json"))
    args = parser.parse_args()
    table = Table("table", "features", "log loss", "less all, by seed", "trees", "seconds")
    result: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        runs = [run(kind, args, seed) for seed in range(args.seeds)]
        for k, value in enumerate(VALUES):
            name = " ".join(f"{key}={share}" for key, share in value.items()) or "all"
            means = {key: float(np.mean([r[k][key] for r in runs])) for key in runs[0][k]}
            falls = [round(float(r[k]["log_loss"] - r[0]["log_loss"]), 4) for r in runs]
            means = {key: round(mean, 4) for key, mean in means.items()}
            result.setdefault(kind, {})[name] = {**means, "less_all": falls}
            shown = " ".join(f"{fall:+.4f}" for fall in falls)
            table.add_row(
                kind,
                name,
                f"{means['log_loss']:.4f}",
                shown,
                f"{means['trees']:.0f}",
                f"{means['seconds']:.1f}",
            )
    Console(width=120).print(table)
    machine = measure.machine(["sparrowboost", "numpy", "numba"])
    how = {"rows": args.rows, "columns": args.columns, "seeds": args.seeds}
    payload = {"command": measure.command(), "machine": machine, **how, "runs": result}
    measure.write_json(args.out, payload)


if __name__ == "__main__":
    main()
