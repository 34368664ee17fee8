from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sparrowboost import ingest, train
from sparrowboost.store.views import split

EXAMPLES = Path(__file__).parents[1] / "examples"
MAX_LINES = 60


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short_and_says_what_it_shows(path):
    text = path.read_text()
    assert len(text.splitlines()) < MAX_LINES
    assert text.startswith('"""')
    assert 'if __name__ == "__main__":' in text


def test_quickstart(capsys):
    clf = load("quickstart").main(3_000)
    assert set(clf.classes_) == {"stays", "leaves"}
    first, *features = capsys.readouterr().out.splitlines()
    assert float(first.rpartition(" ")[2]) > 0.7  # the AUC; of the concept itself it is near 0.8
    assert [line.split()[0] for line in features] == ["months", "bill", "plan", "calls"]


def test_files(tmp_path, monkeypatch):
    import pyarrow.parquet as pq

    example = load("files")
    monkeypatch.setattr(example, "MEMORY", "8GB")  # this process may hold what other tests loaded
    monkeypatch.chdir(tmp_path)
    rows = pq.read_table(example.main(rows=16_000))
    assert rows.num_rows == 2_000
    assert rows.column_names == ["y", "prediction", "probability"]


def test_new_rows(capsys, caplog):
    losses = load("new_rows").main(rows=4_000)
    assert len(losses) == 5 and max(losses) < 0.7
    out = capsys.readouterr().out
    assert "month 5: 20,000 rows, 150 trees" in out
    assert re.search(r"^product: PSI \d+\.\d+, large$", out, re.MULTILINE)
    assert re.search(r"^days: PSI 0.0\d$", out, re.MULTILINE)
    assert [line.split(":")[0] for line in caplog.messages if "'price' (PSI" in line]


def test_early_stopping():
    kept = load("early_stopping").main(rows=5_000)
    assert 1 <= kept["set aside"] < 100
    assert 1 <= kept["own rows"] < 100
    assert kept["own rule"] == 50


def test_own_loss():
    cost = load("own_loss").main(rows=4_000)
    assert max(cost["function"], cost["object"]) < 0.8 * cost["squared_error"]


def test_own_metric():
    assert load("own_metric").main(rows=4_000) > 1_000  # at random, calls lose money


def test_exposure():
    shown = load("exposure").main(rows=8_000)
    wrong = shown.div(shown["true"], axis=0).sub(1).abs()
    assert wrong["with offset"].max() < 0.3
    assert wrong["without"].min() > 0.3


@pytest.mark.slow
def test_imbalanced():
    results = load("imbalanced").main(rows=40_000)
    none, balanced = results["none"], results["balanced"]
    assert none.auc > 0.8
    assert abs(none.auc - balanced.auc) < 0.05
    assert none.log_loss < results["ten times"].log_loss < balanced.log_loss


def test_quantile_intervals(capsys):
    shown = load("quantile_intervals").main(rows=8_000)
    assert (shown["10%"] < shown["50%"]).all() and (shown["50%"] < shown["90%"]).all()
    below = re.findall(r"(\d+)% quantile: .* ([\d.]+)% of other prices", capsys.readouterr().out)
    assert [level for level, _ in below] == ["10", "50", "90"]
    # Of 8,000 rows, outer quantiles are overfitted by up to 0.02; a share of 10,000 has 0.003.
    assert all(abs(float(share) - float(level)) < 4 for level, share in below)


def test_cross_validation(capsys):
    model = load("cross_validation").main(rows=4_000)
    assert f"with {model.n_trees} trees" in capsys.readouterr().out


@pytest.mark.slow
def test_pictures(tmp_path, capsys):
    load("pictures").main(tmp_path, rows=20_000)
    assert "tree 100" in capsys.readouterr().out
    for name in ("pictures.png", "draws.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert "</html>" in (tmp_path / "report.html").read_text()


@pytest.mark.filterwarnings("ignore")  # of what SHAP itself uses
def test_shap_values_add_up():
    pytest.importorskip("xgboost")
    pytest.importorskip("shap")
    explanation = load("shap_values").main(rows=4_000)
    assert explanation.values.shape == (1_000, 20)


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
    assert all(0 < point.value < np.log(2) for point in history)
