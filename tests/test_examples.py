from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sparrowboost import ingest, train
from sparrowboost.views import split

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1_500, 4))
    y = X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=1_500) > 0
    return ingest(X, label=y, verbose=0)


def test_a_trial_hears_of_every_tree_and_may_end_training(data):
    example = load("optuna_pruning")
    for last in (3, 1_000):
        reports = []
        trial = SimpleNamespace(
            report=lambda loss, step: reports.append((step, loss)),  # noqa: B023
            should_prune=lambda: len(reports) == last,  # noqa: B023
            suggest_float=lambda name, low, high, log: 0.3,
            suggest_int=lambda name, low, high, log: 8,
        )
        pruning = example.try_parameters(trial, data)
        steps, losses = zip(*reports, strict=True)
        assert steps == tuple(range(1, len(reports) + 1))
        assert pruning.best == min(losses)
        assert pruning.pruned == (last == 3)
        assert len(reports) == 3 if last == 3 else len(reports) > 3


def test_optuna_prunes(data):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = load("optuna_pruning").search(data, n_trials=6)
    assert len(study.trials) == 6
    assert 0 < study.best_value < 0.7
    assert set(study.best_params) == {"learning_rate", "max_leaves"}


def test_every_few_trees_are_logged_and_the_end(data):
    logged = []
    log = load("mlflow_logging").Logging(
        lambda numbers, step: logged.append((step, numbers)), every=4
    )
    rows, valid = split(data, 0.2)
    train(rows, valid=valid, n_estimators=10, callbacks=[log], verbose=0)
    assert [step for step, _ in logged] == [4, 8, 10]
    assert {"log_loss", "gamma", "n_eff", "rows_scanned"} <= set(logged[0][1])
    for _, numbers in logged:
        assert all(np.isfinite(value) for value in numbers.values())


@pytest.mark.filterwarnings("ignore")  # of what MLflow itself uses
def test_mlflow_has_the_numbers_of_a_run(data, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    model = load("mlflow_logging").run(data, n_estimators=10, learning_rate=0.3, verbose=0)
    assert model.n_trees == 10
    (run,) = mlflow.MlflowClient().search_runs(["0"])
    assert run.data.params["learning_rate"] == "0.3"
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "log_loss")
    assert [point.step for point in history] == [5, 10]
    assert history[1].value < history[0].value
