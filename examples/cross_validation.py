"""Cross-validation on files: how many trees to grow, and how certain that is.

The rows are ingested once. Folds are views of the same store, so nothing is copied, and a table
larger than memory can be cross-validated within the limit.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import sparrowboost
from sparrowboost.datasets import make_large


def main(rows: int = 100_000) -> sparrowboost.Model:
    """Choose leaves and trees by cross-validation; return a model of all rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = make_large(Path(folder) / "train.parquet", rows)
        data = sparrowboost.ingest(path, label="y", memory_limit="1GB", verbose=0)
        best = None
        for leaves in (4, 16):
            params = {"max_leaves": leaves, "learning_rate": 0.3, "n_estimators": 150}
            result = sparrowboost.cv(data, n_folds=3, early_stopping_rounds=10, verbose=0, **params)
            spread = result.std["log_loss"][result.best_n_trees - 1]
            print(
                f"{leaves} leaves: log loss {result.best_score:.4f} +- {spread:.4f} "
                f"with {result.best_n_trees} trees ({result.seconds:.1f} s)"
            )
            if best is None or result.best_score < best[0]:
                best = result.best_score, params | {"n_estimators": result.best_n_trees}
        model = sparrowboost.train(data, verbose=0, **best[1])
        print(model)
        return model


if __name__ == "__main__":
    main()
