"""A classifier on a data frame: fit, predict, and what the model uses.

Strings are categories, empty cells are missing values, and labels are any two values. There is
nothing to encode or fill in first.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from sparrowboost import SparrowClassifier


def make_customers(n: int) -> tuple[pd.DataFrame, np.ndarray]:
    """A synthetic table of customers, and whether they stay or leave."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "months": rng.integers(1, 72, n),
            "bill": rng.gamma(4, 15, n).round(2),
            "plan": rng.choice(["basic", "family", "business"], n, p=[0.6, 0.3, 0.1]),
            "calls": rng.poisson(1.5, n).astype(float),
        }
    )
    frame.loc[rng.random(n) < 0.2, "calls"] = np.nan
    logit = 0.02 * frame.bill - 0.05 * frame.months + 0.6 * frame.calls.fillna(1)
    logit = logit.to_numpy() + np.where(frame.plan == "basic", 0.0, -0.8)
    return frame, np.where(rng.random(n) < 1 / (1 + np.exp(-logit)), "leaves", "stays")


def main(n: int = 20_000) -> SparrowClassifier:
    """Fit on some customers, predict the others."""
    X, y = make_customers(n)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    clf = SparrowClassifier(random_state=0).fit(X_train, y_train)
    stays = clf.predict_proba(X_test)[:, list(clf.classes_).index("stays")]
    print(f"accuracy {clf.score(X_test, y_test):.3f}, AUC {roc_auc_score(y_test, stays):.3f}")
    for name, share in zip(clf.feature_names_in_, clf.feature_importances_, strict=True):
        print(f"{name:>8} {share:.0%}")
    return clf


if __name__ == "__main__":
    main()
