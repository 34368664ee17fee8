from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import roc_auc_score

from helpers import small_table
from sparrowboost import evaluate, load_model


def test_an_evaluation_is_that_of_scikit_learn(folder, sparrow):
    from sklearn import metrics

    code, out, _ = sparrow("evaluate", folder / "model.json", folder / "t.csv", "--json", "-q")
    assert code == 0
    got = json.loads(out)
    y = small_table().column("y").to_numpy()
    p = load_model(folder / "model.json").predict_proba(folder / "t.csv")[:, 1]
    assert got["n_rows"] == 3_000
    assert got["n_positive"] == y.sum()
    assert got["auc"] == pytest.approx(roc_auc_score(y, p), abs=1e-6)
    assert got["average_precision"] == pytest.approx(
        metrics.average_precision_score(y, p), abs=1e-6
    )
    assert got["log_loss"] == pytest.approx(metrics.log_loss(y, p))
    assert got["brier"] == pytest.approx(metrics.brier_score_loss(y, p))
    assert got["accuracy"] == pytest.approx(((p > 0.5) == y).mean())
    parts = got["calibration"]
    assert sum(part["weight"] for part in parts) == 3_000
    here = (p >= parts[0]["low"]) & (p < parts[0]["high"])
    assert parts[0]["predicted"] == pytest.approx(p[here].mean())
    assert parts[0]["observed"] == pytest.approx(y[here].mean())
    code, out, _ = sparrow("evaluate", folder / "model.json", folder / "t.csv", "-q")
    assert code == 0
    assert f"auc                {got['auc']:.6f}" in out
    assert "observed" in out


def test_weights_count_in_an_evaluation(folder):
    model = load_model(folder / "model.json")
    table = small_table()
    twice = pa.concat_tables([table, table.slice(0, 1_000)])
    weighted = table.append_column("u", pa.array(np.repeat([2.0, 1.0], [1_000, 2_000])))
    a, b = evaluate(model, twice, verbose=0), evaluate(model, weighted, weight="u", verbose=0)
    for name in ("auc", "average_precision", "log_loss", "exponential_loss", "accuracy"):
        assert getattr(a, name) == pytest.approx(getattr(b, name)), name


def test_an_evaluation_of_one_label_has_no_auc(folder):
    table = small_table()
    ones = table.filter(pa.array(table.column("y").to_numpy() == 1))
    result = evaluate(load_model(folder / "model.json"), ones, verbose=0)
    assert np.isnan(result.auc)
    assert result.to_json()["auc"] is None
    json.dumps(result.to_json(), allow_nan=False)
