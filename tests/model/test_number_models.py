"""Models of numbers: predictions, and what only models of classes have."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import (
    mean_absolute_error,
    mean_squared_error,
    mean_tweedie_deviance,
    r2_score,
)

from builders import make_number_model
from helpers import small_table
from sparrowboost import (
    DataError,
    Model,
    SparrowClassifier,
    evaluate,
    feature_importances,
    ingest,
    write_predictions,
)
from sparrowboost.model.evaluation import RegressionEvaluation
from sparrowboost.model.regression import (
    Gamma,
    Huber,
    Poisson,
    Quantile,
    SquaredError,
    Tweedie,
    quantile,
)

LOSSES = [SquaredError(), Quantile(0.9), Poisson(), Gamma(), Tweedie(1.5)]
every = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)


@pytest.fixture(scope="module")
def binning():
    return ingest(small_table().drop_columns(["w"]), label="y", verbose=0).binning


@every
def test_predictions_are_in_the_unit_of_the_labels(binning, loss):
    model, table = make_number_model(binning, loss), small_table()
    assert (model.task, model.regression, model.classes) == ("regression", loss, ())
    bins = np.empty((len(table), 3), np.uint8)
    binning.apply(table.select(binning.names).combine_chunks().to_batches()[0], bins)
    score = model.score(bins)
    got = model.predict(table)
    assert got.dtype == np.float32 and len(np.unique(got)) > 8
    assert got.tobytes() == (np.exp(score) if loss.log_link else score).tobytes()
    assert np.concatenate(list(model.iter_scores(table, n_jobs=1))).tobytes() == got.tobytes()
    first = model.predict(table, n_trees=0)
    np.testing.assert_allclose(first, np.exp(0.5) if loss.log_link else 0.5, rtol=1e-6)
    assert model.with_tree(model.trees[0]).regression == loss


def test_a_model_of_numbers_says_what_it_has_instead_of_probabilities(binning, tmp_path):
    model, table = make_number_model(binning, Poisson()), small_table()
    for name in ("decision_function", "predict_proba"):
        match = rf"a model of numbers \(loss='poisson'\), which has no {name}; use predict\."
        with pytest.raises(DataError, match=match):
            getattr(model, name)(table)
    model.save_model(tmp_path / "m.json")
    with pytest.raises(
        DataError, match=r"m\.json: this model predicts numbers .* with SparrowRegressor"
    ):
        SparrowClassifier().load_model(tmp_path / "m.json")
    classes = Model(binning, (0, 1), "logistic", 0.5)
    assert (classes.task, classes.regression) == ("classification", None)
    with pytest.raises(DataError, match=r"a model of classes .* no predict; use decision_function"):
        classes.predict(table)


def test_a_model_shows_its_options(binning):
    model = Model(binning, (), "huber", 0.0, loss_options=Huber(2.5).options)
    assert repr(model).endswith("3 features, loss='huber', delta=2.5)")


def test_importances_are_those_of_the_splits(binning):
    shares = feature_importances(make_number_model(binning, SquaredError()), "splits")
    np.testing.assert_allclose(shares, [0.4, 0.4, 0.2])


@every
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_predictions_of_numbers_are_written_in_one_column(binning, tmp_path, loss, suffix):
    model, table, out = make_number_model(binning, loss), small_table(), tmp_path / f"p.{suffix}"
    pcsv.write_csv(table, tmp_path / "t.csv")
    for columns in ({}, {"columns": "prediction"}):
        n = write_predictions(model, tmp_path / "t.csv", out, keep="count", **columns, verbose=0)
        assert n == 3_000
        frame = pd.read_parquet(out) if suffix == "parquet" else pd.read_csv(out)
        assert list(frame) == ["count", "prediction"]
        got = frame["prediction"].to_numpy().astype(np.float32)
        assert got.tobytes() == model.predict(table).tobytes()
    if suffix == "parquet":
        assert str(pq.read_schema(out).field("prediction").type) == "float"


@pytest.mark.parametrize("columns", [["prediction", "probability"], "score"])
def test_numbers_have_no_probability_to_write(binning, tmp_path, columns):
    model = make_number_model(binning, Poisson())
    with pytest.raises(DataError, match=r"numbers, without a probability .* leave these"):
        write_predictions(model, small_table(), tmp_path / "p.csv", columns=columns, verbose=0)
    with pytest.raises(DataError, match=r"columns=\['x'\]: give any of prediction; keep= takes"):
        write_predictions(model, small_table(), tmp_path / "p.csv", columns="x", verbose=0)


# -- evaluation --------------------------------------------------------------------------------


def labelled(n=3_000, seed=0):
    """The table with labels above 0."""
    table, rng = small_table(n, seed), np.random.default_rng(seed)
    y = rng.lognormal(1, 1, n)
    return table.set_column(table.column_names.index("y"), "y", pa.array(y)), y


@every
def test_an_evaluation_of_numbers_is_that_of_scikit_learn(binning, tmp_path, loss):
    model, (table, y) = make_number_model(binning, loss), labelled(40_000)
    pq.write_table(table, tmp_path / "t.parquet")
    w = table.column("w").to_numpy()
    for how in ({}, {"weight": "w"}):
        weight = w if how else None
        got = evaluate(model, tmp_path / "t.parquet", **how, verbose=0)
        p = model.predict(table).astype(np.float64)
        assert isinstance(got, RegressionEvaluation) and got.n_rows == 40_000
        squared = mean_squared_error(y, p, sample_weight=weight)
        assert got.rmse == pytest.approx(squared**0.5)
        assert got.mae == pytest.approx(mean_absolute_error(y, p, sample_weight=weight))
        assert got.r2 == pytest.approx(r2_score(y, p, sample_weight=weight), abs=1e-6)
        if loss.log_link:
            deviance = mean_tweedie_deviance(y, p, power=loss.p, sample_weight=weight)
            assert got.loss == pytest.approx(deviance / 2, rel=1e-5)
        else:
            assert got.loss == pytest.approx(np.average(loss.losses(y, p), weights=weight))
        assert got.mean_label == pytest.approx(np.average(y, weights=weight))
        assert got.mean_prediction == pytest.approx(np.average(p, weights=weight))
        assert got.median_label == pytest.approx(quantile(y, weight, 0.5), rel=5e-4)


def test_the_median_of_whole_numbers_is_exact(binning):
    model, table = make_number_model(binning, SquaredError()), small_table(4)
    for y, median in (([-3, -3, 0, 17], -1.5), ([4_096, 4_096, 0, 4_096], 4_096), ([0] * 4, 0)):
        result = evaluate(model, table.drop_columns(["y"]), label=np.array(y), verbose=0)
        assert result.median_label == median
    assert np.isnan(result.r2) and result.to_json()["r2"] is None
    json.dumps(result.to_json(), allow_nan=False)


def test_labels_that_cannot_be_evaluated_are_refused(binning):
    table, y = labelled(100)
    data = table.drop_columns(["y"])
    y[50] = 0
    result = evaluate(make_number_model(binning, Tweedie(1.5)), data, label=y, verbose=0)
    assert result.n_rows == 100
    with pytest.raises(DataError, match="label 'label' has the value 0; loss='gamma' needs"):
        evaluate(make_number_model(binning, Gamma()), data, label=y, verbose=0)
    y[50] = -3
    with pytest.raises(DataError, match="has the value -3; loss='poisson' needs labels of 0"):
        evaluate(make_number_model(binning, Poisson()), data, label=y, verbose=0)
    model = make_number_model(binning, SquaredError())
    y[50] = np.nan
    with pytest.raises(DataError, match="row 51: label 'label' is missing"):
        evaluate(model, data, label=y, verbose=0)
    with pytest.raises(DataError, match="label 'color' has type string"):
        evaluate(model, table, label="color", verbose=0)
    with pytest.raises(DataError, match="all rows to evaluate have weight 0"):
        evaluate(model, data, label=np.ones(100), weight=np.zeros(100), verbose=0)
