from __future__ import annotations

import inspect
import pickle
import re
import warnings
from dataclasses import fields

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from builders import assert_same_trees
from constants import set_constants
from sparrowboost import (
    DataError,
    MemoryLimitError,
    ModelFileError,
    SparrowClassifier,
    events,
    ingest,
    train,
)
from sparrowboost.learner.params import Params
from sparrowboost.store.views import split

FEATURES = ["x", "z", "count", "color"]


def make_frame(n=1_200, seed=0):
    """Numbers, whole numbers and words, some missing; a label of two words, and weights."""
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=(2, n))
    color = rng.choice(["red", "green", "blue"], n)
    y = x + z + (color == "red") + rng.normal(size=n) > 0.5
    return pd.DataFrame(
        {
            "x": np.where(rng.random(n) < 0.1, np.nan, x),
            "z": z.astype(np.float32),
            "count": rng.integers(0, 400, n),
            "color": color,
            "w": rng.integers(1, 4, n).astype(np.float64),
            "y": np.where(y, "yes", "no"),
        }
    )


def small(**kwargs):
    return SparrowClassifier(**{"n_estimators": 8, "random_state": 0, "n_jobs": 1, **kwargs})


@pytest.fixture(scope="module")
def frame():
    return make_frame()


@pytest.fixture(scope="module")
def numbers():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(1_500, 4))
    return X, X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=1_500) > 0


@pytest.fixture(scope="module")
def forms(frame, tmp_path_factory):
    """The same rows in every form that has names."""
    folder = tmp_path_factory.mktemp("forms")
    table = pa.Table.from_pandas(frame, preserve_index=False)
    frame.to_parquet(folder / "rows.parquet")
    frame.to_csv(folder / "rows.csv", index=False)  # numbers are written so that they come back
    pa.feather.write_feather(table, folder / "rows.arrow", compression="uncompressed")
    (folder / "parts").mkdir()
    for k, start in enumerate(range(0, len(frame), 500)):
        frame[start : start + 500].to_parquet(folder / "parts" / f"{k}.parquet")
    parts = sorted((folder / "parts").iterdir())
    return {
        "frame": lambda: frame,
        "polars": lambda: pl.from_pandas(frame),
        "arrow": lambda: table,
        "batch": lambda: table.combine_chunks().to_batches()[0],
        "stream": lambda: pa.RecordBatchReader.from_batches(table.schema, table.to_batches(100)),
        "dataset": lambda: pa.dataset.dataset(folder / "parts"),
        "parquet": lambda: str(folder / "rows.parquet"),
        "csv": lambda: folder / "rows.csv",
        "ipc": lambda: folder / "rows.arrow",
        "glob": lambda: str(folder / "parts" / "*.parquet"),
        "folder": lambda: folder / "parts",
        "paths": lambda: [str(path) for path in parts],
    }


FORMS = ["frame", "polars", "arrow", "batch", "stream", "dataset", "parquet", "csv", "ipc", "glob",
         "folder", "paths"]  # fmt: skip


# -- the same rows in other forms -----------------------------------------------------------------


@pytest.fixture(scope="module")
def by_name(frame):
    return small().fit(frame, "y", sample_weight="w")


@pytest.mark.parametrize("form", FORMS)
def test_the_same_rows_predict_the_same_in_every_form(by_name, frame, forms, form):
    expected = by_name.predict_proba(frame[FEATURES])
    assert expected.shape == (len(frame), 2)
    assert by_name.predict_proba(forms[form]()).tobytes() == expected.tobytes()
    stages = list(by_name.staged_predict_proba(forms[form]()))
    assert stages[-1].tobytes() == expected.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_the_same_rows_train_the_same_model_in_every_form(by_name, frame, forms, form):
    clf = small().fit(forms[form](), y="y", sample_weight="w")
    assert_same_trees(clf.model_, by_name.model_)
    assert list(clf.feature_names_in_) == FEATURES
    assert clf.n_features_in_ == 4
    assert clf.classes_.tolist() == ["no", "yes"]
    assert set(clf.predict(frame)) == {"no", "yes"}


@pytest.mark.slow
def test_separate_labels_and_weights_train_the_same_model(by_name, frame, forms):
    X, y, w = frame[FEATURES], frame["y"], frame["w"]
    for rows, label, weight in (
        (X, y, w),
        (X, y.tolist(), w.to_numpy()),
        (pl.from_pandas(X), pl.Series(y.tolist()), pl.Series(w.tolist())),
        (pa.Table.from_pandas(X), y, w),
        (frame[[*FEATURES, "w"]], y, "w"),
        (frame[[*FEATURES, "y"]], "y", w),
    ):
        clf = small().fit(rows, label, sample_weight=weight)
        assert_same_trees(clf.model_, by_name.model_)
        assert clf.classes_.tolist() == ["no", "yes"]
        assert list(clf.feature_names_in_) == FEATURES
    # An array of objects is words and numbers, each in their column.
    clf = small().fit(X.to_numpy(), y, sample_weight=w)
    assert_same_trees(clf.model_, by_name.model_)
    assert clf.predict_proba(X.to_numpy()).tobytes() == by_name.predict_proba(X).tobytes()


@pytest.mark.slow
def test_arrays_lists_and_sparse_matrices_are_the_same_rows(numbers, tmp_path):
    X, y = numbers
    X = X.round(1)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    expected = small().fit(X, y)
    assert not hasattr(expected, "feature_names_in_")
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    masked = np.ma.masked_invalid(X)
    sparse = scipy.sparse.csr_array(X)
    for rows in (X.tolist(), np.asfortranarray(X), mapped, masked, sparse, sparse.tocoo()):
        clf = small().fit(rows, y)
        assert_same_trees(clf.model_, expected.model_)
        assert clf.predict_proba(rows).tobytes() == expected.predict_proba(X).tobytes()
    clf = small().fit(tmp_path / "X.npy", tmp_path / "y.npy")
    assert_same_trees(clf.model_, expected.model_)
    assert not hasattr(clf, "feature_names_in_")
    assert clf.predict(tmp_path / "X.npy").tolist() == expected.predict(X).tolist()


def test_a_libsvm_file_has_its_labels(tmp_path):
    from sklearn.datasets import dump_svmlight_file

    X = np.random.default_rng(0).integers(0, 3, (200, 3)).astype(float)
    dump_svmlight_file(X, np.where(X[:, 0] > 1, 1, -1), str(tmp_path / "rows.svm"))
    clf = small().fit(tmp_path / "rows.svm")
    assert clf.classes_.tolist() == [-1, 1]
    assert clf.score(tmp_path / "rows.svm", np.where(X[:, 0] > 1, 1, -1)) == 1


def test_a_data_set_is_fitted_as_it_is(frame, by_name):
    data = ingest(frame, label="y", weight="w", random_state=0, verbose=0)
    clf = small().fit(data)
    assert_same_trees(clf.model_, by_name.model_)
    assert clf.classes_.tolist() == ["no", "yes"]
    rest = ingest(frame, label="color", positive="red", exclude=["y", "w"], verbose=0)
    one = small().fit(rest)
    assert one.classes_.tolist() == [None, "red"]
    assert one.predict(frame).shape == (len(frame),)
    for kwargs in ({"y": "y"}, {"sample_weight": "w"}):
        with pytest.raises(DataError, match="labels, weights, offsets, categories and features"):
            small().fit(data, **kwargs)
    with pytest.raises(DataError, match="are shuffled"):
        clf.predict(data)


def test_missing_values_are_learned_from(numbers):
    X, _ = numbers
    y = np.arange(len(X)) % 3 == 0
    holes = X.copy()
    holes[y, 1] = np.nan
    masked = np.ma.masked_array(X, np.isnan(holes))
    objects = np.where(np.isnan(holes), None, holes)
    assert small().fit(holes, y).score(holes, y) == 1
    assert small().fit(masked, y).score(masked, y) == 1, "the mask was lost"
    assert small().fit(objects, y).score(objects, y) == 1


# -- names of columns -----------------------------------------------------------------------------


def test_columns_are_found_by_name_where_the_model_was_trained_with_its_label_column(
    by_name, frame
):
    expected = by_name.predict_proba(frame[FEATURES])
    turned = frame[["y", "color", "x", "w", "count", "z"]].assign(more=1)
    assert by_name.predict_proba(turned).tobytes() == expected.tobytes()
    with pytest.raises(DataError, match="lacks column 'color'"):
        by_name.predict(frame.drop(columns="color"))


def test_columns_of_frames_must_be_those_of_fit_as_in_scikit_learn(frame):
    X = frame[["x", "z", "count"]]
    clf = small().fit(X, frame["y"])
    with pytest.raises(ValueError, match="same order"):
        clf.predict(X[["z", "x", "count"]])
    with pytest.raises(ValueError, match="unseen at fit time"):
        clf.predict(X.assign(more=1))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        nameless = clf.predict_proba(X.to_numpy())
    np.testing.assert_array_equal(nameless, clf.predict_proba(X))


def test_columns_of_arrays_go_by_index_whatever_the_names_in_fit(numbers):
    X, y = numbers
    names = [f"f{j}" for j in reversed(range(X.shape[1]))]
    frame = pd.DataFrame(X, columns=names)
    clf = small().fit(frame, y)
    expected = clf.predict_proba(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the arrays have no names
        for rows in (X, X.tolist(), scipy.sparse.coo_array(X)):
            np.testing.assert_array_equal(clf.predict_proba(rows), expected)


def test_columns_without_names_go_by_index(numbers):
    X, y = numbers
    clf = small().fit(X, y)
    expected = clf.predict_proba(X)
    numbered = pd.DataFrame(X)
    np.testing.assert_array_equal(clf.predict_proba(numbered), expected)
    named = pd.DataFrame(X, columns=list("dcba"))
    for rows in (named, pl.from_pandas(named), pa.Table.from_pandas(named)):
        with pytest.warns(UserWarning, match="fitted without feature names"):
            np.testing.assert_array_equal(clf.predict_proba(rows), expected)
    again = small().fit(numbered, y)
    assert not hasattr(again, "feature_names_in_")
    assert_same_trees(again.model_, clf.model_)
    for rows in (X, numbered, scipy.sparse.csr_array(X)):
        np.testing.assert_array_equal(again.predict_proba(rows), expected)


# -- labels, weights, categories ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        np.array(["no", "yes"]),
        np.array(["no", "yes"], object),
        np.array([-1, 1]),
        np.array([False, True]),
        np.array([3.0, 7.0]),
        np.array([10, 200], np.uint8),
    ],
)
def test_any_two_values_are_labels(numbers, values):
    X, y = numbers
    given = values[y.astype(int)]
    clf = small().fit(X, given)
    assert clf.classes_.dtype == values.dtype
    np.testing.assert_array_equal(clf.classes_, values)
    predicted = clf.predict(X)
    assert predicted.dtype == values.dtype
    assert (predicted == given).mean() > 0.7
    assert_same_trees(clf.model_, small().fit(X, y).model_)


def test_bytes_are_no_labels(numbers):
    X, y = numbers[0], np.array([b"a", b"b"] * (len(numbers[0]) // 2))
    with pytest.raises(DataError, match="of type bytes_; pass numbers or strings"):
        SparrowClassifier().fit(X, y)


def test_labels_in_a_column_are_what_they_were(numbers):
    X, y = numbers
    columns = {f"c{j}": X[:, j] for j in range(4)}
    for label, classes in ((y, [False, True]), (y * 2 - 1, [-1, 1]), (y * 1.0, [0, 1])):
        clf = small(n_estimators=1).fit(pa.table({**columns, "y": label}), "y")
        assert clf.classes_.tolist() == classes
        assert clf.score(pa.table(columns), label) > 0.5


def test_weights_count_by_their_proportions(numbers):
    X, y = numbers
    w = np.random.default_rng(0).integers(0, 4, len(y)) / 3
    a, b = (small().fit(X, y, sample_weight=weight) for weight in (w, 8 * w))
    np.testing.assert_allclose(a.predict_proba(X), b.predict_proba(X), rtol=1e-5)
    plain = small().fit(X, y)
    assert np.abs(a.predict_proba(X) - plain.predict_proba(X)).max() > 0.01
    np.testing.assert_array_equal(
        small().fit(X, y, sample_weight=np.ones(len(y))).predict_proba(X), plain.predict_proba(X)
    )


def test_a_row_of_weight_0_has_no_effect():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2_000, 4))
    y = X[:, 0] + X[:, 1] + rng.normal(size=2_000) > 0
    w = rng.integers(0, 3, 2_000)
    there = w > 0
    a = small().fit(X, y, sample_weight=w)
    b = small().fit(X[there], y[there], sample_weight=w[there])
    np.testing.assert_array_equal(a.predict_proba(X), b.predict_proba(X))


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_tiny_and_huge_weights_train_the_model_of_weight_1(numbers, factor):
    X, y = numbers
    plain, scaled = small().fit(X, y), small().fit(X, y, sample_weight=np.full(len(y), factor))
    np.testing.assert_allclose(scaled.predict_proba(X), plain.predict_proba(X), rtol=1e-4)


def test_class_weight_moves_probabilities(numbers):
    X, _ = numbers
    y = X[:, 0] > 1.2
    plain, balanced, heavy = (
        small(class_weight=w).fit(X, y) for w in (None, "balanced", {True: 1000})
    )
    p = [clf.predict_proba(X)[:, 1].mean() for clf in (plain, balanced, heavy)]
    assert p[0] == pytest.approx(y.mean(), abs=0.02)
    assert p[0] < p[1] < p[2]
    assert balanced.model_.base_score == pytest.approx(0)


@pytest.mark.slow
@pytest.mark.parametrize("given", [["code"], "code", [1], np.array([-1]), [False, True]])
def test_categories_are_given_by_name_index_or_mask(given):
    rng = np.random.default_rng(0)
    code = rng.permutation(20)[rng.integers(0, 20, 800)]
    X = pd.DataFrame({"x": rng.normal(size=800), "code": code})
    y = (code * 7) % 5 < 2
    for rows in (X, pl.from_pandas(X), pa.Table.from_pandas(X)):
        clf = small(categorical_features=given).fit(rows, y)
        assert [f.kind for f in clf.model_.binning.features] == ["float64", "category"]
    if given != ["code"] and given != "code":
        clf = small(categorical_features=given).fit(X.to_numpy(), y)
        assert [f.kind for f in clf.model_.binning.features] == ["float64", "category"]


# -- validation -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_validation_rows_may_come_in_any_form(frame, tmp_path):
    valid = make_frame(500, seed=1)
    valid.to_parquet(tmp_path / "v.parquet")
    X, y, w = valid[FEATURES], valid["y"], valid["w"]
    apart = small().fit(frame[FEATURES], frame["y"], eval_set=(X, y))
    scores = apart.evals_result_
    assert list(scores) == ["validation_0"]
    assert len(scores["validation_0"]["log_loss"]) == 8
    p = apart.predict_proba(X)[:, 1]
    assert scores["validation_0"]["log_loss"][-1] == pytest.approx(log_loss(y == "yes", p))
    for eval_set in ([(X, y)], (X, y.tolist()), (pl.from_pandas(X), y), (valid, "y"),
                     (tmp_path / "v.parquet", "y")):  # fmt: skip
        again = small().fit(frame[FEATURES], frame["y"], eval_set=eval_set)
        assert again.evals_result_ == scores
    rows = frame[[*FEATURES, "y"]]
    for eval_set in (valid, [valid], tmp_path / "v.parquet", [str(tmp_path / "v.parquet")]):
        assert small().fit(rows, "y", eval_set=eval_set).evals_result_ == scores
    weighted = [
        small().fit(rows, "y", eval_set=eval_set).evals_result_["validation_0"]["log_loss"][-1]
        for eval_set in ((X, y, w), (valid, "y", "w"), [(tmp_path / "v.parquet", "y", "w")])
    ]
    expected = log_loss(y == "yes", p, sample_weight=w)
    assert weighted == pytest.approx([expected] * 3)
    assert expected != pytest.approx(scores["validation_0"]["log_loss"][-1], rel=1e-3)


def test_columns_that_are_excluded_are_needed_by_nothing(frame, tmp_path):
    more = frame.assign(id=[f"id {i}" for i in range(len(frame))], leak=frame["y"] == "yes")
    more.to_parquet(tmp_path / "t.parquet")
    more.to_csv(tmp_path / "t.csv", index=False)
    plain = small().fit(frame[[*FEATURES, "y"]], "y")
    valid = make_frame(300, seed=1)
    out = ["id", "leak", "w"]
    forms = [
        (tmp_path / "t.parquet", "y"),
        (str(tmp_path / "t.csv"), "y"),
        (more, "y"),
        (more.drop(columns="y"), more["y"]),
        (pa.Table.from_pandas(more), "y"),
        (pa.RecordBatchReader.from_stream(pa.Table.from_pandas(more)), "y"),
    ]
    for X, y in forms:
        clf = small().fit(X, y, exclude=out, eval_set=(valid[FEATURES], valid["y"]))
        assert list(clf.feature_names_in_) == FEATURES
        assert clf.n_features_in_ == len(FEATURES)
        assert len(clf.evals_result_["validation_0"]["log_loss"]) == 8
        p = clf.predict_proba(valid[FEATURES])
        np.testing.assert_allclose(p, plain.predict_proba(valid[FEATURES]), rtol=1e-5)
        np.testing.assert_array_equal(p, clf.predict_proba(valid[FEATURES[::-1]]))
    one = small().fit(frame[[*FEATURES, "y"]], "y", exclude=FEATURES[0])
    assert list(one.feature_names_in_) == FEATURES[1:]


def test_columns_to_exclude_that_have_no_names_or_are_not_there_are_told(numbers, frame):
    X, y = numbers
    with pytest.raises(DataError, match="leave them out of X instead of passing exclude="):
        small().fit(X, y, exclude=["f0"])
    with pytest.raises(DataError, match="'nowhere'"):
        small().fit(frame, "y", exclude=["nowhere"])
    data = ingest(X, label=y, verbose=0)
    with pytest.raises(DataError, match=r"features from ingest.*exclude=None"):
        small().fit(data, exclude=["f0"])


def test_of_several_validation_sets_all_are_scored_and_the_last_one_decides(numbers, tmp_path):
    X, y = numbers
    rng = np.random.default_rng(5)
    noise = rng.random(500) < 0.5  # labels that nothing tells: each tree does harm
    good, bad = (X[1_000:], y[1_000:]), (X[1_000:], noise)
    how = {"n_estimators": 40, "early_stopping_rounds": 4, "learning_rate": 0.3}
    alone = {}
    for name, each in (("good", good), ("bad", bad)):
        alone[name] = small(**how).fit(X[:1_000], y[:1_000], eval_set=each)
    for names, sets in ((("bad", "good"), [bad, good]), (("good", "bad"), [good, bad])):
        clf = small(**how).fit(X[:1_000], y[:1_000], eval_set=sets)
        last = alone[names[1]]
        assert list(clf.evals_result_) == ["validation_0", "validation_1"]
        assert clf.evals_result_["validation_1"] == last.evals_result_["validation_0"]
        assert (clf.n_iter_, clf.best_iteration_) == (last.n_iter_, last.best_iteration_)
        assert clf.best_score_ == last.best_score_
        n = min(len(alone[name].evals_result_["validation_0"]["log_loss"]) for name in names)
        first = alone[names[0]].evals_result_["validation_0"]["log_loss"][:n]
        assert clf.evals_result_["validation_0"]["log_loss"][:n] == first
    assert alone["good"].n_iter_ > alone["bad"].n_iter_ + 4


def test_arrays_may_validate_arrays_and_frames(numbers):
    X, y = numbers
    scores = small().fit(X, y, eval_set=[(X, y)]).evals_result_
    named = pd.DataFrame(X, columns=list("dcba"))
    with pytest.warns(UserWarning, match="valid feature names"):
        assert small().fit(named, y, eval_set=[(X, y)]).evals_result_ == scores
    with pytest.warns(UserWarning, match="fitted without feature names"):
        assert small().fit(X, y, eval_set=[(named, y)]).evals_result_ == scores


@pytest.mark.parametrize("metric", ["log_loss", "auc", "average_precision"])
def test_training_stops_early_and_keeps_the_best_model(numbers, metric):
    X, y = numbers
    clf = small(n_estimators=200, learning_rate=0.5, early_stopping_rounds=5, eval_metric=metric)
    clf.fit(X[:1_000], y[:1_000], eval_set=[(X[1_000:], y[1_000:])])
    values = clf.evals_result_["validation_0"][metric]
    best = np.argmin(values) if metric == "log_loss" else np.argmax(values)
    assert clf.n_iter_ == clf.best_iteration_ == clf.model_.n_trees == best + 1 < 200
    assert clf.best_score_ == values[best]
    p = clf.predict_proba(X[1_000:])[:, 1]
    judge = {"log_loss": log_loss, "auc": roc_auc_score}.get(metric, average_precision_score)
    assert clf.best_score_ == pytest.approx(judge(y[1_000:], p))
    clf.set_params(early_stopping_rounds=None, n_estimators=3).fit(X, y)
    assert clf.evals_result_ == {}
    assert not hasattr(clf, "best_iteration_")
    assert not hasattr(clf, "best_score_")


def test_without_validation_data_some_rows_are_set_aside_for_early_stopping(numbers):
    X, y = numbers
    clf = small(n_estimators=200, learning_rate=0.5, early_stopping_rounds=5,
                validation_fraction=0.3).fit(X, y)  # fmt: skip
    assert clf.n_iter_ == clf.best_iteration_ < 200
    rows, valid = split(ingest(X, label=y, random_state=0, verbose=0), 0.3, 0)
    model = train(rows, valid=valid, n_estimators=200, learning_rate=0.5, early_stopping_rounds=5,
                  verbose=0)  # fmt: skip
    assert_same_trees(clf.model_, model)


# -- predictions ----------------------------------------------------------------------------------


def test_the_accuracy_on_a_file_is_that_on_its_rows(by_name, frame, tmp_path):
    frame = frame.assign(u=np.arange(len(frame)) % 3)
    frame.to_parquet(tmp_path / "rows.parquet")
    y, u = frame["y"], frame["u"]
    for rows in (tmp_path / "rows.parquet", frame, pl.from_pandas(frame)):
        assert by_name.score(rows, "y") == pytest.approx(by_name.score(frame, y))
        assert by_name.score(rows, "y", "u") == pytest.approx(by_name.score(frame, y, u))
    with pytest.raises(NotFittedError):
        SparrowClassifier().score(tmp_path / "rows.parquet", "y")


def test_the_decision_function_is_the_log_odds_and_decides_the_class(numbers):
    X, y = numbers
    clf = small().fit(X, y)
    score, p = clf.decision_function(X), clf.predict_proba(X)
    np.testing.assert_allclose(score, np.log(p[:, 1] / p[:, 0]), rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(clf.predict(X), clf.classes_[p.argmax(1)])
    np.testing.assert_array_equal(clf.predict(X), score > 0)
    np.testing.assert_array_equal(score, clf.model_.decision_function(X))


@pytest.mark.parametrize("kept", [0, 10**9])
def test_stages_are_the_model_after_each_tree(numbers, kept, monkeypatch):
    set_constants(monkeypatch, kept_bytes=kept or 1, prediction_block_rows=400)
    X, y = numbers
    clf = small(max_leaves=5).fit(X, y)
    stages = list(clf.staged_decision_function(X))
    assert len(stages) == 8
    for n_trees, scores in enumerate(stages, 1):
        np.testing.assert_array_equal(scores, clf.model_.decision_function(X, n_trees=n_trees))
    for one, other in zip(clf.staged_predict(X), clf.staged_predict_proba(X), strict=True):
        np.testing.assert_array_equal(one, other[:, 1] > 0.5)


def test_a_classifier_is_exported_like_its_model(frame, tmp_path):
    clf = small().fit(frame, "y")
    for data in (None, frame):
        clf.to_xgboost(tmp_path / "a.json", data=data)
        clf.model_.to_xgboost(tmp_path / "b.json", data=data)
        assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    with pytest.raises(NotFittedError):
        SparrowClassifier().to_xgboost(tmp_path / "a.json")


@pytest.mark.parametrize("weight", [2.0, np.float32(0.5)])
def test_one_number_is_the_weight_of_all_rows(numbers, weight):
    X, y = numbers
    assert_same_trees(
        small().fit(X, y, sample_weight=weight).model_,
        small().fit(X, y, sample_weight=np.full(len(X), weight)).model_,
    )


def test_importances_are_shares_of_the_loss_removed_or_of_the_splits(numbers):
    X, y = numbers
    clf = small().fit(np.column_stack((X, np.zeros(len(X)))), y)
    gain = clf.feature_importances_
    assert gain.shape == (5,)
    assert gain.sum() == pytest.approx(1)
    assert gain.argmax() == 0
    assert gain[4] == 0
    splits = clf.set_params(importance_type="splits").feature_importances_
    used = np.concatenate([tree.feature for tree in clf.model_.trees])
    np.testing.assert_allclose(splits, np.bincount(used, minlength=5) / len(used))


# -- random state, threads, memory, callbacks -----------------------------------------------------


@pytest.mark.slow
def test_random_state_is_what_scikit_learn_means_by_it(numbers):
    X, y = numbers
    kwargs = {"sample_size": 500, "n_estimators": 3}

    def model(state):
        return small(random_state=state, **kwargs).fit(X, y).model_

    data = ingest(X, label=y, random_state=5, verbose=0)
    assert_same_trees(model(5), train(data, random_state=5, verbose=0, **kwargs))
    for generator in (np.random.RandomState, np.random.default_rng):
        assert_same_trees(model(generator(3)), model(generator(3)))
        state = generator(3)
        first, second = model(state), model(state)
        assert first.trees[0].value.tobytes() != second.trees[0].value.tobytes()
    np.random.seed(3)
    a = model(None)
    np.random.seed(3)
    assert_same_trees(a, model(None))
    assert model(None).trees[0].value.tobytes() != a.trees[0].value.tobytes()


def test_data_that_the_caller_holds_is_not_counted_against_the_memory_limit(frame, tmp_path):
    # Python and its libraries take more than this by themselves.
    clf = small(memory_limit="100MB", n_estimators=2)
    clf.fit(frame, "y")
    assert clf.n_iter_ == 2
    frame.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(MemoryLimitError):
        clf.fit(tmp_path / "rows.parquet", "y")


def test_callbacks_get_events_and_may_end_training(numbers):
    seen = []

    def stop(event):
        seen.append(event)
        return isinstance(event, events.TreeAdded) and event.n_trees == 3

    clf = small().fit(*numbers, callbacks=[stop])
    assert clf.n_iter_ == 3
    assert isinstance(seen[0], events.SampleDrawn)
    assert seen[-1].reason == "callback"


def test_fit_is_silent_unless_verbose(numbers, capfd, caplog):
    small().fit(*numbers)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    with caplog.at_level("INFO", logger="sparrowboost"):
        small(verbose=1).fit(*numbers)
    assert "task='training'" in caplog.text


def test_nothing_is_left_on_disk(numbers, frame, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    clf = small(sample_size=300, early_stopping_rounds=3).fit(*numbers)
    assert list(tmp_path.iterdir()) == []
    next(clf.staged_predict(numbers[0]))
    with pytest.raises(DataError):
        small().fit(*numbers, eval_set=(numbers[0], np.full(1_500, "other")))
    assert list(tmp_path.iterdir()) == []


# -- scikit-learn's tools -------------------------------------------------------------------------


def test_a_fitted_classifier_goes_through_pickle_and_joblib(by_name, frame, tmp_path):
    expected = by_name.predict_proba(frame)
    data = pickle.dumps(by_name)
    assert b"numba" not in data
    again = pickle.loads(data)
    fresh = pickle.dumps(again)
    assert again.predict_proba(frame).tobytes() == expected.tobytes()
    assert len(pickle.dumps(again)) == len(fresh), "what predicting made is in the pickle"
    joblib.dump(by_name, tmp_path / "model.joblib")
    loaded = joblib.load(tmp_path / "model.joblib")
    assert loaded.predict_proba(frame).tobytes() == expected.tobytes()
    assert loaded.get_params() == by_name.get_params()


def test_a_fit_that_fails_leaves_an_unfitted_classifier(numbers):
    X, y = numbers
    for clf in (SparrowClassifier(), SparrowClassifier(n_estimators=2).fit(X, y)):
        with pytest.raises(DataError):
            clf.set_params(class_weight={"nobody": 2}).fit(X[:, :2], np.where(y, "a", "b"))
        with pytest.raises(NotFittedError):
            check_is_fitted(clf)
        with pytest.raises(NotFittedError):
            clf.predict(X)


def test_a_clone_is_unfitted_and_has_the_same_parameters(by_name, numbers):
    other = clone(by_name.set_params(class_weight="balanced"))
    by_name.set_params(class_weight=None)
    assert other.class_weight == "balanced"
    assert not hasattr(other, "model_")
    assert other.fit(*numbers).n_features_in_ == 4


@pytest.mark.slow
def test_it_works_in_pipelines_searches_and_calibration(numbers):
    X, y = numbers
    pipe = make_pipeline(StandardScaler(), small())
    assert cross_val_score(pipe, X, y, cv=3, scoring="roc_auc").min() > 0.75
    with joblib.parallel_config("threading", n_jobs=2):
        search = GridSearchCV(
            small(), {"max_leaves": [2, 8], "learning_rate": [0.1, 0.3]}, cv=2, scoring="roc_auc"
        ).fit(X, y)
    alone = GridSearchCV(
        small(), {"max_leaves": [2, 8], "learning_rate": [0.1, 0.3]}, cv=2, scoring="roc_auc"
    ).fit(X, y)
    np.testing.assert_array_equal(
        search.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"]
    )
    calibrated = CalibratedClassifierCV(small(), cv=2).fit(X, y)
    assert calibrated.predict_proba(X).shape == (len(X), 2)


@pytest.mark.slow
def test_worker_processes_find_the_same_scores(numbers):
    X, y = numbers
    clf = small(n_estimators=3, n_jobs=None)
    scores = cross_val_score(clf, X, y, cv=2, n_jobs=2)
    np.testing.assert_array_equal(scores, cross_val_score(clf, X, y, cv=2))


# -- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "what"),
    [
        ({"n_estimators": 0}, "n_estimators=0"),
        ({"loss": "hinge"}, "loss='hinge'"),
        ({"stopping": "paper"}, "pass loss='exponential'"),
        ({"importance_type": "weight"}, "importance_type='weight'"),
        ({"validation_fraction": 1.5}, "validation_fraction=1.5"),
        ({"class_weight": {"maybe": 1}}, "no label 'maybe'"),
        ({"categorical_features": [9]}, "9 is not an index"),
        ({"categorical_features": [1.5]}, "1.5 is not an index"),
        ({"categorical_features": [True]}, "mask of 1 for 4"),
        ({"categorical_features": ["sky"]}, "no column 'sky'"),
        ({"memory_limit": "much"}, "'much' is not understood"),
        ({"n_jobs": 0}, "n_jobs=0"),
        ({"early_stopping_rounds": 0}, "early_stopping_rounds=0"),
    ],
)
def test_wrong_parameters_are_reported_by_fit(numbers, params, what):
    with pytest.raises(ValueError, match=re.escape(what)):
        small(**params).fit(*numbers)


def test_the_old_name_of_a_parameter_works_and_warns(frame):
    old, new = small(category_charge=0.2), small(category_penalty=0.2)
    with pytest.warns(DeprecationWarning, match="is now called category_penalty") as caught:
        old.fit(frame, "y")
    assert [warning.filename for warning in caught] == [__file__]
    assert_same_trees(old.model_, new.fit(frame, "y").model_)


def test_wrong_input_is_reported(numbers, frame, tmp_path):
    X, y = numbers
    frame.to_parquet(tmp_path / "rows.parquet")
    path = tmp_path / "rows.parquet"
    wrong = [
        ((X, np.arange(1_500) % 300), {}, "300 values; there can be at most 255 classes"),
        ((X, np.zeros(1_500)), {}, r"only 1 class \(0.0\)"),
        ((X, np.array(["a", None, "b"] * 500, object)), {}, "'a' in row 0 and None in row 1"),
        ((X, y[:9]), {}, "inconsistent numbers of samples"),
        ((frame[:0], frame["y"][:0]), {}, "y is empty"),
        ((X, None), {}, "requires y to be passed"),
        ((frame, None), {}, "requires y to be passed"),
        ((X, "f0"), {}, "columns of an array have no names"),
        ((X, y, "f0"), {}, "columns of an array have no names"),
        ((X, y, -np.ones(1_500)), {}, "not negative"),
        ((X, y, y.astype(float)), {}, "one class is left"),
        ((path, "sky"), {}, "no column 'sky'"),
        ((path, y), {}, "1,500 values for the 1,200 rows"),
        ((tmp_path / "none.parquet", "y"), {}, "no such file"),
        ((X, y), {"eval_set": []}, "list of validation sets is empty or has None"),
        ((X, y), {"eval_set": [(X, y), X]}, "eval_set has no labels"),
        ((X, y), {"eval_set": X}, "eval_set has no labels"),
        ((X, y), {"eval_set": (X, y, y, y, y)}, "5 parts"),
        ((X, y), {"eval_set": (X[:, :2], y)}, "2 features"),
        ((X, y), {"eval_set": (X, np.where(y, "a", "b"))}, "not in the training data"),
        (
            (pd.DataFrame(X).rename(columns=lambda c: f"c{c // 2}"), y),
            {},
            "'c0' appears more than",
        ),
        ((pa.table(list(X.T), ["a"] * X.shape[1]), y), {}, "'a' appears more than once"),
    ]
    for args, kwargs, what in wrong:
        with warnings.catch_warnings(), pytest.raises(ValueError, match=what):
            warnings.simplefilter("ignore")
            small().fit(*args, **kwargs)
    named = small(categorical_features=[0])
    with pytest.raises(DataError, match="give the names"):
        named.fit(path, "y")


# -- how files are read --------------------------------------------------------------------------


def test_files_without_a_header_or_a_known_suffix(by_name, frame, tmp_path):
    path, how = tmp_path / "rows.txt", {"header": False, "format": "csv"}
    order = [*FEATURES, "w", "y"]
    frame[order].to_csv(path, index=False, header=False)
    clf = small().fit(path, "f5", sample_weight="f4", eval_set=(path, "f5", "f4"), **how)
    assert_same_trees(clf.model_, by_name.model_)
    expected = by_name.predict_proba(frame)
    for got in (
        clf.predict_proba(path, **how),
        list(clf.staged_predict_proba(path, **how))[-1],
        clf.model_.predict_proba(path, **how),
    ):
        assert got.tobytes() == expected.tobytes()
    labels = clf.predict(path, **how)
    assert (labels == by_name.predict(frame)).all()
    assert (list(clf.staged_predict(path, **how))[-1] == labels).all()
    right = (labels == frame["y"]).mean()
    assert clf.score(path, "f5", **how) == pytest.approx(right)
    assert clf.score(path, frame["y"], **how) == pytest.approx(right)
    assert clf.evals_result_["validation_0"]["log_loss"][-1] < 0.69
    with pytest.raises(DataError, match=r"suffix '\.txt' is not that of a supported format"):
        clf.predict(path)


# -- a model's file -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_classifier_takes_the_model_of_a_file(by_name, numbers, frame, tmp_path):
    X, y = numbers
    words = np.where(y, "yes", "no")
    named = small().fit(frame[["x", "z"]], frame["y"])
    cases = [
        (by_name, frame),
        (named, frame[["x", "z"]]),
        (small().fit(X, y), X),
        (small().fit(X, words), X),
        (small().fit(X, y * 2 - 1), X),
        (small().fit(X, y * 1.0), X),
    ]
    for k, (clf, rows) in enumerate(cases):
        path = tmp_path / f"{k}.json"
        clf.save_model(path)
        other = SparrowClassifier(n_estimators=3, n_jobs=1)
        assert other.load_model(path) is other
        check_is_fitted(other)
        assert other.predict_proba(rows).tobytes() == clf.predict_proba(rows).tobytes()
        assert other.predict(rows).tolist() == clf.predict(rows).tolist()
        assert other.classes_.tolist() == clf.classes_.tolist()
        assert other.n_features_in_ == clf.n_features_in_
        assert hasattr(other, "feature_names_in_") == hasattr(clf, "feature_names_in_")
        if hasattr(clf, "feature_names_in_"):
            assert other.feature_names_in_.tolist() == clf.feature_names_in_.tolist()
        np.testing.assert_array_equal(other.feature_importances_, clf.feature_importances_)
        assert (other.n_iter_, other.evals_result_) == (clf.n_iter_, {})
        assert other.n_estimators == 3
    # By name, in whatever order they are.
    other = SparrowClassifier().load_model(tmp_path / "1.json")
    expected = named.predict_proba(frame[["x", "z"]])
    np.testing.assert_array_equal(other.predict_proba(frame[["z", "x"]]), expected)


def test_loading_replaces_what_was_fitted_before(numbers, tmp_path):
    X, y = numbers
    small(n_estimators=2).fit(X, y).save_model(tmp_path / "model.json")
    columns = pd.DataFrame(X[:, :2], columns=["a", "b"])
    words = np.where(y, "yes", "no")
    clf = small().fit(columns, words, eval_set=(columns, words))
    clf.load_model(tmp_path / "model.json")
    assert clf.predict(X).dtype == bool
    assert not hasattr(clf, "feature_names_in_")
    assert not hasattr(clf, "best_iteration_")


def test_only_a_fitted_classifier_is_saved(tmp_path):
    with pytest.raises(NotFittedError):
        SparrowClassifier().save_model(tmp_path / "model.json")
    with pytest.raises(ModelFileError, match="no such file"):
        SparrowClassifier().load_model(tmp_path / "model.json")


# -- the class itself -----------------------------------------------------------------------------


def test_every_parameter_is_documented_with_its_default():
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(SparrowClassifier).parameters.items()
    }
    documented = dict(
        re.findall(r"^    (\w+) : .*default=(.+)$", SparrowClassifier.__doc__, re.MULTILINE)
    )
    assert list(documented) == list(defaults)
    for name, text in documented.items():
        assert text.replace('"', "'") == repr(defaults[name]), name


def test_defaults_are_those_of_train():
    ours, defaults = SparrowClassifier().get_params(), Params().for_task("classification")
    for parameter in fields(Params):
        if parameter.name == "loss":  # by the number of classes, which `fit` finds out
            assert ours["loss"] == "auto"
        elif parameter.name not in ("alpha", "power"):  # of losses of numbers
            assert ours[parameter.name] == getattr(defaults, parameter.name), parameter.name


def test_monotone_constraints_reach_train(numbers):
    X, y = numbers
    clf = small(monotone_constraints=[-1, 0, 0, 0]).fit(X, y)
    data = ingest(X, label=y, random_state=0, verbose=0)
    model = train(data, n_estimators=8, monotone_constraints={"f0": -1}, verbose=0)
    assert_same_trees(clf.model_, model)
    assert clf.feature_importances_[0] < small().fit(X, y).feature_importances_[0]


def test_importing_the_package_does_not_import_scikit_learn():
    import subprocess
    import sys

    code = (
        "import sys, sparrowboost; sparrowboost.train; "
        "assert not any(m.split('.')[0] == 'sklearn' for m in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
