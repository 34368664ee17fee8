"""Intervals instead of one number: the prices between which four sales of five lie.

One model for each end of the interval, and one for the median. All are trained on one store, which
is written once. On other sales, the share of prices below each model's predictions is counted.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

import sparrowboost
from sparrowboost import views

LEVELS = (0.1, 0.5, 0.9)


def make_sales(n: int, seed: int) -> pd.DataFrame:
    """A synthetic table of sales: the larger the flat, the less is its price known."""
    rng = np.random.default_rng(seed)
    area, floor = rng.gamma(6, 12, n).round(), rng.integers(0, 9, n)
    town = rng.choice(["north", "south", "old town"], n)
    mean = 2_000 * area * np.where(town == "old town", 1.5, 1.0) * (1 + 0.02 * floor)
    price = mean * np.exp((0.1 + area / 500) * rng.normal(size=n))
    return pd.DataFrame({"area": area, "floor": floor, "town": town, "price": price.round(-2)})


def main(rows: int = 30_000) -> pd.DataFrame:
    """Train a model for each level, and show its predictions of some sales."""
    data = sparrowboost.ingest(make_sales(rows, 0), label="price", task="regression", verbose=0)
    train, valid = views.split(data, 0.2)
    test = make_sales(10_000, 1)
    shown = test.head(5).copy()
    for level in LEVELS:
        model = sparrowboost.train(
            train,
            valid=valid,
            loss="quantile",
            alpha=level,
            n_estimators=500,
            early_stopping_rounds=20,
            verbose=0,
        )
        predicted = model.predict(test)
        below = np.mean(test["price"] <= predicted)
        print(f"{level:.0%} quantile: {model.n_trees} trees, {below:.1%} of other prices below")
        shown[f"{level:.0%}"] = predicted[:5].round(-3)
    print(shown.to_string(index=False))
    return shown


if __name__ == "__main__":
    main()
