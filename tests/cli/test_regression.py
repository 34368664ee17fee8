"""The commands on labels that are numbers, from ingest to a report."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from sparrowboost import load_model

FEW = ["--n-estimators", 8, "--max-leaves", 4]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Rows to train on and to test on, with a label of numbers."""
    folder = tmp_path_factory.mktemp("regression")
    for name, seed, n in (("t", 0, 3_000), ("v", 1, 1_000)):
        rng = np.random.default_rng(seed)
        x, color = rng.normal(size=n), rng.choice(["red", "green"], n)
        y = rng.poisson(np.exp(0.7 * x + (color == "red")))
        frame = pd.DataFrame({"x": x, "color": color, "z": rng.normal(size=n), "y": y})
        frame.to_parquet(folder / f"{name}.parquet")
        frame.to_csv(folder / f"{name}.csv", index=False)
    return folder


def train_call(files, out, *more, task=("--task", "regression")):
    return ["train", files / "t.parquet", "--label", "y", *task, "-o", out, *FEW, *more]


def test_a_model_of_numbers_is_trained_evaluated_and_predicts(files, tmp_path, sparrow):
    valid = ["--valid", files / "v.csv"]
    code, out, _ = sparrow(*train_call(files, tmp_path / "m.json", *valid, "--loss", "poisson"))
    assert code == 0
    model = load_model(tmp_path / "m.json")
    assert (model.loss, model.task, model.n_trees) == ("poisson", "regression", 8)
    assert "m.json: Model(8 trees of up to 4 leaves, 3 features, loss='poisson')" in out
    for name in ("loss", "mae", "rmse", "r2"):
        assert f"validation {name}: " in out
    code, out, _ = sparrow("evaluate", tmp_path / "m.json", files / "v.parquet", "--json", "-q")
    assert code == 0
    result = json.loads(out)
    assert result["r2"] > 0.3 and result["n_rows"] == 1_000
    out = tmp_path / "p.parquet"
    assert sparrow("predict", tmp_path / "m.json", files / "v.csv", "-o", out, "-q")[0] == 0
    predicted = pq.read_table(out)["prediction"].to_numpy()
    np.testing.assert_array_equal(predicted, model.predict(files / "v.parquet"))


def test_without_a_task_the_error_names_the_option(files, tmp_path, sparrow):
    call = train_call(files, tmp_path / "m.json", task=())
    code, _, err = sparrow(*call, "-q")
    assert code == 1 and err.count("\n") == 1
    assert "to predict numbers, --task regression;" in err
    assert not (tmp_path / "m.json").exists()


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (["--balanced"], "--balanced is for classes"),
        (["--loss", "logistic"], "--loss logistic is for two classes"),
        (["--loss", "gamma"], "has the value 0; --loss gamma needs labels above 0"),
        (["--eval-metric", "auc"], "--eval-metric auc does not judge predictions of numbers"),
        (["--loss", "quantile", "--alpha", "2"], "--alpha 2.0: give a number above 0 and below 1"),
        (["--label", "color"], "label 'color' has type string; regression needs numbers"),
        (["--positive", "3"], "--positive names a class, and with --task regression there is none"),
    ],
)
def test_what_does_not_fit_numbers_is_one_line(files, tmp_path, sparrow, more, what):
    code, _, err = sparrow(*train_call(files, tmp_path / "m.json"), *more, "-q")
    assert code == 1 and err.count("\n") == 1
    assert what in err
    assert not (tmp_path / "m.json").exists()


def test_options_of_losses_reach_the_model(files, tmp_path, sparrow):
    for more, options in (
        (["--loss", "quantile", "--alpha", "0.25"], {"alpha": 0.25}),
        (["--loss", "tweedie", "--power", "1.3"], {"power": 1.3}),
        (["--loss", "absolute_error"], {}),
    ):
        assert sparrow(*train_call(files, tmp_path / "m.json", *more), "-q")[0] == 0
        assert load_model(tmp_path / "m.json").loss_options == options


def test_a_store_of_numbers_says_so_and_is_trained_on_without_a_task(files, tmp_path, sparrow):
    call = ["ingest", files / "t.csv", "--label", "y", "--task", "regression"]
    code, out, _ = sparrow(*call, "-o", tmp_path / "store")
    top = pd.read_csv(files / "t.csv").y.max()
    assert code == 0
    assert f"store: 3,000 rows, 3 features, y: numbers from 0 to {top}, " in out
    facts = json.loads(sparrow(*call, "-o", tmp_path / "store", "--overwrite", "--json", "-q")[1])
    assert (facts["task"], facts["positives"], facts["classes"]) == ("regression", None, [])
    assert facts["label_span"] == [0, top]
    assert f"y: numbers from 0 to {top}, " in sparrow("inspect", tmp_path / "store")[1]
    model = tmp_path / "m.json"
    assert sparrow("train", tmp_path / "store", "-o", model, *FEW, "-q")[0] == 0
    assert load_model(model).loss == "squared_error"
    code, _, err = sparrow("train", tmp_path / "store", "--task", "regression", "-o", model, "-q")
    assert code == 1 and "leave out --task" in err


def test_json_of_a_training_on_numbers(files, tmp_path, sparrow):
    call = train_call(files, tmp_path / "m.json", "--validation-fraction", "0.2", "--json", "-q")
    got = json.loads(sparrow(*call)[1])
    assert (got["loss"], got["positives"], got["eval_metric"]) == ("squared_error", None, "rmse")
    assert set(got["scores"]) == {"loss", "mae", "rmse", "r2"}
    assert got["rows"] == pytest.approx(2_400, abs=4)  # half a row for each range of the label


def test_the_plan_of_a_training_on_numbers_is_not_carried_out(files, tmp_path, sparrow):
    call = train_call(files, tmp_path / "m.json", "--plan", "--memory", "2GB")
    code, out, _ = sparrow(*call, "-q")
    assert code == 0
    assert "all 3,000 rows in memory" in out
    assert not (tmp_path / "m.json").exists()


def test_the_history_and_report_of_a_training_on_numbers(files, tmp_path, sparrow):
    call = train_call(files, tmp_path / "m.json", "--valid", files / "v.csv", "-q")
    code, _, err = sparrow(
        *call, "--history", tmp_path / "h.json", "--report", tmp_path / "r.html", "--sample-size",
        600,
    )  # fmt: skip
    assert code == 0, err
    history = json.loads((tmp_path / "h.json").read_text())
    assert (history["task"], history["eval_metric"]) == ("regression", "rmse")
    assert len(history["scores"]["rmse"]) == 8
    page = (tmp_path / "r.html").read_text()
    assert "<svg" in page and "labels are numbers from 0 to" in page
