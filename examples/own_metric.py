"""A metric of your own decides when training stops: what is earned by calling the likeliest buyers.

A call costs 5, and a buyer brings 40. The 500 rows of the highest probability are called.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from sparrowboost import SparrowClassifier

CALLS, COST, GAIN = 500, 5, 40


def earned(buys, probability, sample_weight=None):
    """What the calls bring. Metrics are called like those of scikit-learn."""
    called = np.argsort(probability)[-CALLS:]
    return float(GAIN * np.sum(buys[called]) - COST * CALLS)


earned.greater_is_better = True


def make_customers(n: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """A synthetic table of customers, and whether they buy."""
    rng = np.random.default_rng(seed)
    age, visits = rng.integers(18, 90, n), rng.poisson(3, n)
    odds = np.exp(-2.5 + 0.5 * visits - 0.002 * (age - 45) ** 2)
    return pd.DataFrame({"age": age, "visits": visits}), rng.random(n) < odds / (1 + odds)


def main(rows: int = 20_000) -> float:
    """Train until calls have not brought more for 20 trees."""
    customers, buys = make_customers(rows, 0)
    clf = SparrowClassifier(
        n_estimators=300, eval_metric=earned, early_stopping_rounds=20, random_state=0
    )
    clf.fit(customers, buys, eval_set=make_customers(5_000, 1))
    print(f"{clf.n_iter_} trees: {CALLS} calls bring {clf.best_score_:,.0f}")
    chance = earned(make_customers(5_000, 1)[1], np.random.default_rng(0).random(5_000))
    print(f"calls at random bring {chance:,.0f}")
    return float(clf.best_score_)


if __name__ == "__main__":
    main()
