"""Early stopping in three ways: rows set aside, your own rows, and your own rule."""

from __future__ import annotations

import tempfile
from pathlib import Path

import sparrowboost
from sparrowboost import SparrowClassifier
from sparrowboost.datasets import make_large
from sparrowboost.events import Event
from sparrowboost.views import split


def main(rows: int = 200_000) -> dict[str, int]:
    """Train in each way; return the number of trees that each kept."""
    kept = {}
    with tempfile.TemporaryDirectory() as folder:
        train = make_large(Path(folder) / "train.parquet", rows)
        valid = make_large(Path(folder) / "valid.parquet", rows // 10, stream=1)
        params = {"n_estimators": 400, "learning_rate": 0.5, "random_state": 0}

        # The estimator sets aside a tenth of the rows of each label.
        clf = SparrowClassifier(early_stopping_rounds=10, **params).fit(train, y="y")
        kept["set aside"] = clf.n_iter_
        print(f"set aside: {clf.n_iter_} trees, log loss {clf.best_score_:.4f}")

        # Your own rows. Use this if rows belong together, such as those of a user or a day.
        clf = SparrowClassifier(early_stopping_rounds=10, eval_metric="auc", **params)
        clf.fit(train, y="y", eval_set=valid)
        kept["own rows"] = clf.n_iter_
        print(f"own rows: {clf.n_iter_} trees, AUC {clf.best_score_:.4f}")

        # Your own rule is a callback. `split` makes views of a store, without copying it.
        def after_a_while(event: Event) -> bool:
            return event.n_trees >= 50 or event.seconds > 20

        data = sparrowboost.ingest(train, label="y", verbose=0)
        some, others = split(data, 0.1)
        model = sparrowboost.train(
            some, valid=others, callbacks=[after_a_while], verbose=0, **params
        )
        kept["own rule"] = model.n_trees
        print(f"own rule: {model.n_trees} trees")
    return kept


if __name__ == "__main__":
    main()
