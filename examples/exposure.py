"""Counts that were observed for different times: claims of policies, by their exposure.

The logarithm of the exposure is an offset: a policy that was insured for half a year is expected to
have half as many claims. The model learns the rest, the claims per year.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

import sparrowboost


def make_policies(n: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """A synthetic portfolio, and the true number of claims per year of each policy."""
    rng = np.random.default_rng(seed)
    age, town = rng.integers(18, 90, n), rng.choice(["village", "town", "city"], n)
    years = np.where(age < 30, rng.uniform(0.05, 0.5, n), rng.uniform(0.2, 1, n)).round(2)
    rate = 0.1 * np.where(age < 26, 3, 1) * np.where(town == "city", 1.8, 1)
    policies = {"age": age, "town": town, "years": years, "claims": rng.poisson(rate * years)}
    return pd.DataFrame(policies).assign(log_years=np.log(years)), rate


def main(rows: int = 50_000) -> pd.DataFrame:
    """Train with and without exposures; claims per year beside the truth, by age."""
    policies, _ = make_policies(rows, 0)
    others, rate = make_policies(10_000, 1)
    how = {"label": "claims", "task": "regression", "columns": ["age", "town"], "verbose": 0}
    data = sparrowboost.ingest(policies, offset="log_years", **how)
    model = sparrowboost.train(data, loss="poisson", verbose=0)
    blind = sparrowboost.train(sparrowboost.ingest(policies, **how), loss="poisson", verbose=0)
    claims = model.predict(others)  # finds the column log_years
    print(f"{others['claims'].sum()} claims, {claims.sum():.0f} predicted")
    young = others["age"].to_numpy() < 26
    result = pd.DataFrame(
        {
            "true": rate,
            "with offset": model.predict(others, offset=False),  # of a year
            "without": blind.predict(others),
        }
    )
    shown = result.groupby(np.where(young, "young", "older")).mean().round(3)
    print(shown.to_string())
    return shown


if __name__ == "__main__":
    main()
