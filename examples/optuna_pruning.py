"""Search for parameters with Optuna; unpromising trials end after a few trees."""

from __future__ import annotations

import tempfile
from typing import Any

import sparrowboost
from sparrowboost.datasets import make_large
from sparrowboost.events import Event, TreeAdded
from sparrowboost.views import split


class Pruning:
    """Reports each tree's validation loss to a trial, and ends training when the trial says so."""

    def __init__(self, trial: Any) -> None:
        self._trial = trial
        self.best, self.pruned = float("inf"), False

    def __call__(self, event: Event) -> bool:
        if isinstance(event, TreeAdded):
            loss = event.scores["log_loss"]
            self.best = min(self.best, loss)
            self._trial.report(loss, event.n_trees)
            self.pruned = self._trial.should_prune()
        return self.pruned


def try_parameters(trial: Any, data: sparrowboost.Dataset) -> Pruning:
    """Train with the parameters that a trial suggests; all trials read the same store."""
    rows, valid = split(data, 0.2)
    pruning = Pruning(trial)
    rate = trial.suggest_float("learning_rate", 0.02, 0.5, log=True)
    leaves = trial.suggest_int("max_leaves", 4, 64, log=True)
    params = {"learning_rate": rate, "max_leaves": leaves, "early_stopping_rounds": 10}
    sparrowboost.train(rows, valid=valid, callbacks=[pruning], verbose=0, **params)
    return pruning


def search(data: sparrowboost.Dataset, n_trials: int = 15) -> Any:
    """An Optuna study of `n_trials` trials."""
    import optuna

    def objective(trial: Any) -> float:
        pruning = try_parameters(trial, data)
        if pruning.pruned:
            raise optuna.TrialPruned
        return pruning.best

    study = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_startup_trials=3))
    study.optimize(objective, n_trials)
    return study


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        rows = make_large(f"{folder}/rows.parquet", 50_000)
        print(search(sparrowboost.ingest(rows, label="y")).best_params)
