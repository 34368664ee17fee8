from __future__ import annotations

import csv

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparrowboost
from sparrowboost import ingest, train
from sparrowboost.model.evaluation import evaluate
from sparrowboost.runtime.errors import DataError
from sparse_tables import as_narrow, as_wide, words, write_libsvm


@pytest.fixture
def wide(monkeypatch):
    as_wide(monkeypatch)
    return monkeypatch


@pytest.fixture
def model(wide):
    matrix, score = words()
    made = train(ingest(matrix, label=score > 0, verbose=0), n_estimators=8, verbose=0)
    assert len(made.lean.binning.columns) < len(made.binning.columns)
    return made


def by_all_features(patch, model, data):
    """Scores as a model without leaving out features gives them."""
    with patch.context() as narrow:
        as_narrow(narrow)
        vars(model).pop("_lean", None)
        scores = model.decision_function(data)
        del vars(model)["_lean"]
    return scores


def test_sparse_rows_are_scored_as_dense_ones(model, wide, tmp_path):
    fresh, score = words(700, seed=1)
    expected = by_all_features(wide, model, fresh.toarray())
    np.testing.assert_array_equal(model.decision_function(fresh), expected)
    np.testing.assert_array_equal(model.decision_function(fresh.tocsc()), expected)
    np.testing.assert_array_equal(model.decision_function(fresh.toarray()), expected)
    path = write_libsvm(tmp_path / "fresh.svm", fresh, (score > 0).astype(int))
    np.testing.assert_array_equal(model.decision_function(path), expected)
    table = pa.table({f"f{j}": column for j, column in enumerate(fresh.toarray().T)})
    pq.write_table(table, tmp_path / "fresh.parquet")
    np.testing.assert_array_equal(model.decision_function(tmp_path / "fresh.parquet"), expected)


def test_leaves_are_those_of_dense_rows(model, wide):
    fresh, _ = words(300, seed=1)
    leaves = model.apply(fresh)
    vars(model).pop("_lean")
    as_narrow(wide)
    np.testing.assert_array_equal(leaves, model.apply(fresh.toarray()))


def test_a_file_that_ends_with_an_earlier_column_has_zeros_there(model, tmp_path):
    fresh, score = words(300, seed=1)
    fresh = fresh[:, :200]
    path = write_libsvm(tmp_path / "a.svm", fresh, (score > 0).astype(int))
    fresh.resize(300, 400)
    expected = model.decision_function(fresh)
    np.testing.assert_array_equal(model.decision_function(path), expected)


def test_a_matrix_that_lacks_columns_is_refused(model):
    fresh, _ = words(300, seed=1)
    with pytest.raises(DataError, match="lacks column 'f"):
        model.decision_function(fresh[:, :10])


def test_columns_that_no_tree_uses_may_be_missing(model):
    fresh, _ = words(300, seed=1)
    used = model.lean.feature_names
    dense = fresh.toarray()
    table = pa.table({name: dense[:, int(name[1:])] for name in used})
    np.testing.assert_array_equal(model.decision_function(table), model.decision_function(fresh))


def test_a_matrix_stands_for_the_columns_of_a_file_that_counts_from_1(wide, tmp_path):
    matrix, score = words(values=(1,))
    matrix = matrix[:, np.flatnonzero(matrix.getnnz(axis=0) >= 10)]  # each column is a feature
    path = write_libsvm(tmp_path / "a.svm", matrix, (score > 0).astype(int), first=1)
    model = train(ingest(path, verbose=0), n_estimators=5, verbose=0)
    expected = model.decision_function(path)
    assert np.ptp(expected) > 0
    np.testing.assert_array_equal(model.decision_function(matrix), expected)
    np.testing.assert_array_equal(model.decision_function(matrix.toarray()), expected)
    narrow = matrix[:, : len(model.lean.feature_names)]
    with pytest.raises(DataError, match="lacks column 'f"):
        model.decision_function(narrow)  # not taken for the columns that trees split on


def test_estimators_find_columns_where_each_is_a_feature(wide):
    matrix, score = words()
    matrix = matrix[:, np.flatnonzero(matrix.getnnz(axis=0) >= 10)]
    model = sparrowboost.SparrowClassifier(n_estimators=5, verbose=0).fit(matrix, score > 0)
    assert len(model.model_.feature_names) == matrix.shape[1]
    expected = model.model_.decision_function(matrix)
    np.testing.assert_array_equal(model.decision_function(matrix), expected)
    np.testing.assert_array_equal(model.decision_function(matrix.toarray()), expected)


def test_a_model_of_other_names_needs_all_its_columns(wide):
    matrix, score = words(1_000, 200)
    frame = pa.table({f"word {j}": column for j, column in enumerate(matrix.toarray().T)})
    model = train(ingest(frame, label=score > 0, verbose=0), n_estimators=2, verbose=0)
    assert model.lean is model
    with pytest.raises(DataError, match="lacks column 'word 0'"):
        model.decision_function(frame.drop(["word 0"]))


def test_predictions_of_a_file_are_written_with_what_is_kept(model, tmp_path):
    fresh, score = words(300, seed=1)
    path = write_libsvm(tmp_path / "a.svm", fresh, (score > 0).astype(int))
    sparrowboost.write_predictions(model, path, tmp_path / "out.csv", keep=["label"],
                                   columns="score", verbose=0)  # fmt: skip
    with open(tmp_path / "out.csv") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["label"]) for row in rows] == (score > 0).astype(float).tolist()
    got = [float(row["score"]) for row in rows]
    np.testing.assert_allclose(got, model.decision_function(fresh), rtol=1e-6)


@pytest.mark.parametrize("limit", [None, "1GB"])
def test_rows_are_evaluated_as_dense_ones(model, tmp_path, limit):
    fresh, score = words(600, seed=1)
    label = (score > 0).astype(int)
    path = write_libsvm(tmp_path / "a.svm", fresh, label)
    how = {"memory_limit": limit, "verbose": 0}
    expected = evaluate(model, fresh.toarray(), label=score > 0, **how)
    assert evaluate(model, fresh, label=score > 0, **how).log_loss == expected.log_loss
    of_file = evaluate(
        train(ingest(path, verbose=0), n_estimators=8, verbose=0), path, label="label", **how
    )
    assert of_file.n_rows == 600


def test_a_saved_model_predicts_the_same(model, tmp_path):
    fresh, _ = words(300, seed=1)
    model.save_model(tmp_path / "model.json")
    again = sparrowboost.load_model(tmp_path / "model.json")
    assert again.feature_names == model.feature_names
    np.testing.assert_array_equal(again.decision_function(fresh), model.decision_function(fresh))


def test_xgboost_gets_the_rows_of_each_leaf_from_sparse_rows(model, tmp_path):
    fresh, _ = words(300, seed=1)
    model.to_xgboost(tmp_path / "a.json", data=fresh)
    model.to_xgboost(tmp_path / "b.json", data=fresh.toarray())
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_estimators_take_sparse_rows(wide, task):
    matrix, score = words()
    fresh, truth = words(500, seed=1)
    if task == "classes":
        model = sparrowboost.SparrowClassifier(n_estimators=10, verbose=0)
        model.fit(matrix, score > 0, eval_set=(fresh, truth > 0))
        assert model.score(fresh, truth > 0) > 0.6
        assert len(model.evals_result_["validation_0"]["log_loss"]) == 10
        staged = list(model.staged_predict_proba(fresh))
        np.testing.assert_array_equal(staged[-1], model.predict_proba(fresh))
    else:
        model = sparrowboost.SparrowRegressor(n_estimators=10, verbose=0)
        model.fit(matrix, score)
        assert model.score(fresh, truth) > 0.05
        np.testing.assert_array_equal(model.predict(fresh), model.predict(fresh.toarray()))
    assert model.n_features_in_ == 400
    importances = model.feature_importances_
    assert importances.shape == (400,) and importances.sum() == pytest.approx(1)
    assert set(np.flatnonzero(importances)) <= set(np.flatnonzero(matrix.getnnz(axis=0) >= 10))


def test_cross_validation_takes_sparse_rows(wide):
    matrix, score = words(1_500, 200)
    losses = [
        sparrowboost.cv(data, label=score > 0, n_folds=3, n_estimators=3, verbose=0).mean[
            "log_loss"
        ]
        for data in (matrix, matrix.toarray())
    ]
    assert losses[0] == pytest.approx(losses[1], abs=0.03)
