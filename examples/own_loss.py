"""A loss of your own, as a function and as an object.

Empty shelves cost more than full ones: an order that is too small costs four times what one that is
too large does. The loss is squared, so that large errors cost more than their share.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from sparrowboost import SparrowRegressor

TOO_SMALL = 4.0


def costs(sold, ordered):
    """First and second derivative of the loss, by what is ordered."""
    factor = np.where(ordered < sold, TOO_SMALL, 1.0)
    return factor * (ordered - sold), factor


class Cost:
    """The same as an object, which can also say what a row costs: early stopping goes by that."""

    name = "cost"

    def derivatives(self, sold, ordered):
        return costs(sold, ordered)

    def losses(self, sold, ordered):
        return costs(sold, ordered)[1] * (ordered - sold) ** 2 / 2


def make_sales(n: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """A synthetic table of days in a bakery, and the loaves sold."""
    rng = np.random.default_rng(seed)
    weekday, degrees = rng.integers(0, 7, n), rng.normal(15, 8, n)
    mean = 80 + 30 * (weekday > 4) - 0.8 * np.abs(degrees - 18)
    return pd.DataFrame({"weekday": weekday, "degrees": degrees}), rng.poisson(mean)


def main(rows: int = 20_000) -> dict[str, float]:
    """What a day costs by the orders of three models."""
    (days, sold), (others, truth) = make_sales(rows, 0), make_sales(5_000, 1)
    found = {}
    for name, loss in (("squared_error", "squared_error"), ("function", costs), ("object", Cost())):
        early = {"early_stopping_rounds": 10} if name == "object" else {"n_estimators": 40}
        reg = SparrowRegressor(loss=loss, **early).fit(days, sold)
        ordered = reg.predict(others)
        found[name] = float(Cost().losses(truth, ordered).mean())
        print(f"{name}: a day costs {found[name]:.0f}, {np.mean(ordered < truth):.0%} sold out")
    return found


if __name__ == "__main__":
    main()
