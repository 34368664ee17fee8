"""Rare positives: what class weights change, and what they do not.

Rare positives need no help to be learned: from the start they have half of the total weight. Class
weights change what a probability means, and so which rows are above 1/2. They hardly change the
order of the rows, which average precision measures.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import sparrowboost
from sparrowboost.datasets import make_large
from sparrowboost.model.evaluation import Evaluation

RATE = 0.005  # one row in 200 is positive


def main(rows: int = 200_000) -> dict[str, Evaluation]:
    """Train with and without class weights, and compare."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        train = make_large(Path(folder) / "train.parquet", rows, positive_rate=RATE)
        test = make_large(Path(folder) / "test.parquet", rows, positive_rate=RATE, stream=1)
        data = sparrowboost.ingest(train, label="y", verbose=0)
        print(f"{data.n_positive:,} positives in {data.n_rows:,} rows")
        params = {"max_leaves": 8, "n_estimators": 60, "learning_rate": 0.2}
        for name, class_weight in (
            ("none", None),
            ("ten times", {1: 10.0}),
            ("balanced", "balanced"),
        ):
            model = sparrowboost.train(data, class_weight=class_weight, verbose=0, **params)
            result = results[name] = sparrowboost.evaluate(model, test, verbose=0)
            above = sum(part.weight for part in result.calibration if part.low >= 0.5)
            print(
                f"{name:>10}: average precision {result.average_precision:.3f}, "
                f"AUC {result.auc:.3f}, log loss {result.log_loss:.4f}, "
                f"{above:,.0f} rows above 1/2"
            )
    return results


if __name__ == "__main__":
    main()
