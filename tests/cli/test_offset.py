"""Offsets and the base score in commands, from files to predictions."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from sparrowboost import load_model

N = 2_000
FEW = ["--n-estimators", 6, "--max-leaves", 4, "-q"]
COUNTS = ["--label", "counts", "--task", "regression"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    rng = np.random.default_rng(0)
    x, exposure = rng.normal(size=N), rng.uniform(0.1, 3, N)
    counts = rng.poisson(exposure * np.exp(0.5 * x))
    path = tmp_path_factory.mktemp("offset") / "t.parquet"
    table = {"x": x, "z": rng.normal(size=N), "log_e": np.log(exposure), "counts": counts}
    pd.DataFrame(table).to_parquet(path)
    return path


def test_offsets_go_from_a_store_through_a_model_to_predictions(file, tmp_path, sparrow):
    store, model, out = tmp_path / "store", tmp_path / "m.json", tmp_path / "p.parquet"
    assert sparrow("ingest", file, *COUNTS, "--offset", "log_e", "-o", store, "-q")[0] == 0
    _, shown, _ = sparrow("inspect", store)
    assert ", offset log_e, " in shown
    assert json.loads(sparrow("inspect", store, "--json")[1])["offset"] == "log_e"
    poisson = ["--loss", "poisson", "--base-score", 0.5, *FEW]
    assert sparrow("train", store, "-o", model, "--validation-fraction", 0.2, *poisson)[0] == 0
    assert load_model(model).base_score == np.log(0.5)
    assert "counts: numbers, offset log_e" in sparrow("inspect", model)[1]
    assert json.loads(sparrow("inspect", model, "--json")[1])["offset"] == "log_e"
    predicted = []
    for more in ([], ["--offset", "log_e"], ["--no-offset"]):
        assert sparrow("predict", model, file, "-o", out, "-q", *more)[0] == 0
        predicted.append(pq.read_table(out)["prediction"].to_numpy())
    assert (predicted[0] == predicted[1]).all()
    exposure = np.exp(pq.read_table(file)["log_e"].to_numpy())
    np.testing.assert_allclose(predicted[0], exposure * predicted[2], rtol=1e-5)
    good, bad = (
        json.loads(sparrow("evaluate", model, file, "--json", "-q", *more)[1])["loss"]
        for more in ([], ["--no-offset"])
    )
    assert good < bad


@pytest.mark.slow
def test_a_model_is_trained_on_files_with_an_offset(file, tmp_path, sparrow):
    report = tmp_path / "r.html"
    call = ["train", file, *COUNTS, "--offset", "log_e", "--loss", "poisson", *FEW]
    code, _, _ = sparrow(*call, "-o", tmp_path / "m.json", "--valid", file, "--report", report)
    assert code == 0
    assert load_model(tmp_path / "m.json").offset_name == "log_e"
    assert "offset column" in report.read_text()
    code, said, _ = sparrow("export", tmp_path / "m.json", "-o", tmp_path / "x.json")
    assert code == 0
    assert "predictions need the offsets, 'log_e', as XGBoost's base_margin" in said


def test_what_is_wrong_with_an_offset_or_a_base_score_is_said_in_a_line(file, tmp_path, sparrow):
    model = tmp_path / "m.json"
    call = ["train", file, *COUNTS, "-o", model, *FEW]
    code, _, said = sparrow(*call, "--loss", "poisson", "--base-score", 0)
    assert code != 0
    assert "--base-score 0.0: --loss poisson predicts numbers above 0" in said
    assert sparrow(*call, "--offset", "log_e")[0] == 0
    pd.read_parquet(file).drop(columns="log_e").to_parquet(tmp_path / "without.parquet")
    for command in (["predict", "-o", tmp_path / "p.csv"], ["evaluate"]):
        code, _, said = sparrow(command[0], model, tmp_path / "without.parquet", *command[1:], "-q")
        assert code != 0
        assert "lacks column 'log_e', the offset with which the model was trained" in said
        assert "--no-offset" in said
    store = tmp_path / "store"
    assert sparrow("ingest", file, *COUNTS, "-o", store, "-q")[0] == 0
    code, _, said = sparrow("train", store, "--offset", "log_e", "-o", model, *FEW)
    assert code != 0
    assert "leave out --offset" in said
