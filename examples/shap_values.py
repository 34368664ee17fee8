"""SHAP values of a model, through XGBoost: which features moved a row's score, and how far.

Needs xgboost, shap and pandas.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import sparrowboost
from sparrowboost.datasets import make_large


def explain(model: sparrowboost.Model, background: Any, rows: Any) -> Any:
    """An explanation of the rows; values are relative to the mean of the background."""
    import shap
    import xgboost

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.json"
        model.to_xgboost(file, data=background)
        explainer = shap.TreeExplainer(xgboost.Booster(model_file=file))
    return explainer(model.xgboost_frame(rows))


def main(rows: int = 50_000) -> Any:
    """Train, explain a thousand rows, and check that the values add up."""
    with tempfile.TemporaryDirectory() as folder:
        train = make_large(Path(folder) / "train.parquet", rows)
        test = make_large(Path(folder) / "test.parquet", 1_000, stream=1)
        data = sparrowboost.ingest(train, label="y", verbose=0)
        model = sparrowboost.train(data, n_estimators=50, max_leaves=8, verbose=0)
        explanation = explain(model, train, test)
        margin = model.decision_function(test)  # log odds
    added = explanation.values.sum(1) + explanation.base_values
    print(f"values add up to the log odds within {np.abs(added - margin).max():.1e}")
    mean = np.abs(explanation.values).mean(0)
    for j in np.argsort(-mean)[:5]:
        print(f"{model.feature_names[j]:>4} moves the log odds by {mean[j]:.2f} on average")
    return explanation


if __name__ == "__main__":
    main()
