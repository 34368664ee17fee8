"""The commands, given a model of numbers."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from builders import make_number_model
from sparrowboost import evaluate, feature_importances, load_model
from sparrowboost.model.regression import Tweedie


@pytest.fixture(scope="module")
def numbers(folder, tmp_path_factory):
    """A file of a model of numbers."""
    binning = load_model(folder / "model.json").binning
    path = tmp_path_factory.mktemp("numbers") / "numbers.json"
    make_number_model(binning, Tweedie(1.25)).save_model(path)
    return path


def test_a_model_of_numbers_may_be_inspected(numbers, sparrow):
    code, out, _ = sparrow("inspect", numbers)
    assert code == 0
    assert "loss='tweedie', power=1.25)\ny: numbers\n" in out
    facts = json.loads(sparrow("inspect", numbers, "--json")[1])
    assert (facts["task"], facts["loss"]) == ("regression", "tweedie")
    assert facts["loss_options"] == {"power": 1.25} and facts["classes"] == []


def test_numbers_are_predicted_in_one_column(numbers, folder, tmp_path, sparrow):
    call = ["predict", numbers, folder / "t.parquet", "--keep", "id", "-o", tmp_path / "p.parquet"]
    code, out, _ = sparrow(*call)
    assert code == 0 and out == f"{tmp_path}/p.parquet: 3,000 rows\n"
    frame = pd.read_parquet(tmp_path / "p.parquet")
    assert list(frame) == ["id", "prediction"]
    expected = load_model(numbers).predict(folder / "t.parquet")
    np.testing.assert_array_equal(frame["prediction"], expected)
    code, _, err = sparrow(*call, "--score")
    assert code == 1 and "the model predicts numbers, without a probability or score" in err


def test_importances_and_exports_of_models_of_numbers(numbers, tmp_path, sparrow):
    code, out, _ = sparrow("importance", numbers, "--json")
    model = load_model(numbers)
    expected = dict(zip(model.feature_names, feature_importances(model), strict=True))
    assert code == 0 and json.loads(out) == expected
    code, out, _ = sparrow("export", numbers, "-o", tmp_path / "x.json")
    assert code == 0 and "loss='tweedie', power=1.25)" in out
    assert "reg:tweedie" in (tmp_path / "x.json").read_text()


def test_evaluations_of_numbers_are_those_of_the_library(numbers, folder, sparrow):
    code, out, _ = sparrow("evaluate", numbers, folder / "t.csv", "-q", "--json")
    expected = evaluate(load_model(numbers), folder / "t.csv", verbose=0)
    assert code == 0 and json.loads(out) == expected.to_json()
    code, out, _ = sparrow("evaluate", numbers, folder / "t.csv", "-q")
    assert code == 0
    assert out.startswith(f"3,000 rows\nrmse               {expected.rmse:.6g}\n")
    assert f"median label       {expected.median_label:.6g}\n" in out
