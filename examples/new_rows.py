"""Rows that come every month: appended to a store, on which training goes on from the last model.

In May, prices double and a new product comes: the log says which features the bins suit no longer.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import sparrowboost

PRODUCTS = ["chair", "lamp", "table"]


def make_month(path: Path, month: int, rows: int) -> Path:
    """Orders of a month, and which of them were returned; customers get pickier."""
    rng = np.random.default_rng(month)
    price = rng.gamma(3, 20, rows) * (2 if month >= 5 else 1)
    product = rng.choice([*PRODUCTS, "sofa"] if month >= 5 else PRODUCTS, rows)
    days = rng.integers(1, 15, rows)
    logit = 0.01 * price + 0.1 * month * (days > 7) + (product == "lamp") - 2.5
    returned = rng.random(rows) < 1 / (1 + np.exp(-logit))
    pd.DataFrame(
        {"price": price, "product": product, "days": days, "returned": returned}
    ).to_parquet(path)
    return path


def main(rows: int = 50_000) -> list[float]:
    """Train on a month, then on more and more; return the loss on the month that follows."""
    losses = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store, model = folder / "store", None
        for month in range(1, 6):
            orders = make_month(folder / f"{month}.parquet", month, rows)
            where = {"append": store} if model else {"path": store, "label": "returned"}
            data = sparrowboost.ingest(orders, **where, verbose=0)
            model = sparrowboost.train(data, init_model=model, n_estimators=30, verbose=0)
            following = make_month(folder / "next.parquet", month + 1, rows)
            losses.append(sparrowboost.evaluate(model, following, verbose=0).log_loss)
            print(f"month {month}: {data.n_rows:,} rows, {model.n_trees} trees,", end=" ")
            print(f"log loss of the next month {losses[-1]:.4f}")
        for feature in data.appended[-1].features:
            print(f"{feature.name}: PSI {feature.psi:.2f}{', large' if feature.large else ''}")
    return losses


if __name__ == "__main__":
    main()
