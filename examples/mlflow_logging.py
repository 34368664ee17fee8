"""Log a training with MLflow: scores, sample, rows read."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import sparrowboost
from sparrowboost.datasets import make_large
from sparrowboost.events import Event, Finished, TreeAdded
from sparrowboost.views import split


class Logging:
    """Passes each tree's numbers to a function such as `mlflow.log_metrics`."""

    def __init__(self, log_metrics: Callable[..., Any], every: int = 1) -> None:
        self._log, self._every = log_metrics, every

    def __call__(self, event: Event) -> None:
        last = isinstance(event, Finished)
        if not last and not (isinstance(event, TreeAdded) and event.n_trees % self._every == 0):
            return
        numbers = {
            "n_eff": event.n_eff,
            "rows_read": event.rows_read,
            "rows_scanned": event.rows_scanned,
            "seconds": event.seconds,
        }
        if isinstance(event, TreeAdded):
            numbers |= {"gamma": event.gamma, **event.scores}
        self._log(numbers, step=event.n_trees)


def run(data: sparrowboost.Dataset, **params: Any) -> sparrowboost.Model:
    """Train within an MLflow run."""
    import mlflow

    rows, valid = split(data, 0.2)
    with mlflow.start_run():
        mlflow.log_params({"rows": len(rows), **params})
        callbacks = [Logging(mlflow.log_metrics, every=5)]
        return sparrowboost.train(rows, valid=valid, callbacks=callbacks, **params)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        path = make_large(f"{folder}/rows.parquet", 50_000)
        data = sparrowboost.ingest(path, label="y")
        print(run(data, n_estimators=40, learning_rate=0.2))
