from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sparrowboost import DataError, cv, ingest, train
from sparrowboost.learner.events import TreeAdded
from sparrowboost.store.views import folds, split, with_class_weight


def make_rows(n=1_500, seed=0, flipped=0.15):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    y = (X[:, 0] + X[:, 1] * X[:, 2] > 0.3) ^ (rng.random(n) < flipped)
    return X, y


@pytest.fixture(scope="module")
def dataset():
    X, y = make_rows()
    return ingest(X, label=y, weight=1 + np.arange(len(y)) % 3, verbose=0)


def curves_of(dataset, n_folds, metric, **kwargs):
    """What training on each fold by hand gives."""
    curves = []
    for rows, valid in folds(dataset, n_folds, 0):
        events = []
        train(rows, valid=valid, callbacks=[events.append], verbose=0, **kwargs)
        curves.append([e.scores[metric] for e in events if isinstance(e, TreeAdded)])
    return curves


@pytest.mark.slow
def test_scores_are_those_of_training_on_each_fold(dataset):
    result = cv(dataset, n_folds=3, n_estimators=15, eval_metric="auc", verbose=0)
    assert set(result.scores) == {"log_loss", "exponential_loss", "auc"}
    for metric, scores in result.scores.items():
        assert scores.shape == (3, 15)
        kwargs = {"n_estimators": 15, "eval_metric": "auc"}
        np.testing.assert_array_equal(scores, curves_of(dataset, 3, metric, **kwargs))
        np.testing.assert_allclose(result.mean[metric], scores.mean(0))
        np.testing.assert_allclose(result.std[metric], scores.std(0))
    assert result.metric == "auc"
    assert result.best_n_trees == np.argmax(result.mean["auc"]) + 1
    assert result.best_score == result.mean["auc"].max()
    assert result.seconds > 0
    assert f"best_n_trees={result.best_n_trees}" in repr(result)


def test_the_best_number_of_trees_is_that_of_the_lowest_mean_loss(dataset):
    result = cv(dataset, n_folds=3, n_estimators=60, learning_rate=0.5, verbose=0)
    mean = result.mean["log_loss"]
    assert result.best_n_trees == np.argmin(mean) + 1 < 60
    assert result.best_score == mean.min()


def test_folds_that_stop_early_have_no_scores_from_there_on(dataset):
    kwargs = {"n_estimators": 200, "learning_rate": 0.5, "early_stopping_rounds": 4}
    result = cv(dataset, n_folds=4, verbose=0, **kwargs)
    scores = result.scores["log_loss"]
    curves = curves_of(dataset, 4, "log_loss", **kwargs)
    lengths = [len(curve) for curve in curves]
    assert scores.shape == (4, max(lengths))
    assert max(lengths) < 200
    assert len(set(lengths)) > 1, "all folds stopped at once: this tests less than it should"
    for row, curve in zip(scores, curves, strict=True):
        np.testing.assert_array_equal(row[: len(curve)], curve)
        assert np.isnan(row[len(curve) :]).all()
    mean = result.mean["log_loss"]
    assert np.isfinite(mean).sum() == min(lengths)
    assert result.best_n_trees == np.nanargmin(mean) + 1


def test_a_fold_that_converged_keeps_its_last_score():
    # One column of two values that tell most labels: after some trees there is nothing to gain.
    X = (np.arange(300) % 2).astype(float)[:, None]
    y = (np.arange(300) % 2 == 0) ^ (np.arange(300) % 10 == 0)
    result = cv(X, label=y, n_folds=3, n_estimators=400, learning_rate=1.0, verbose=0)
    scores = result.scores["log_loss"]
    assert scores.shape[1] < 400, "nothing converged: this tests nothing"
    assert np.isfinite(scores).all()


def test_rows_are_ingested_once(monkeypatch, tmp_path):
    X, y = make_rows(600)
    frame = pd.DataFrame(X, columns=list("abc")).assign(y=np.where(y, "yes", "no"), code=1, w=2.0)
    frame["code"] = np.arange(600) % 4
    frame.to_parquet(tmp_path / "rows.parquet")
    calls = []

    def counted(*args, **kwargs):
        calls.append(kwargs)
        return ingest(*args, **kwargs)

    monkeypatch.setattr("sparrowboost.crossval.ingest", counted)
    kwargs = {"label": "y", "weight": "w", "categorical": ["code"], "n_folds": 3}
    result = cv(tmp_path / "rows.parquet", n_estimators=3, verbose=0, random_state=4, **kwargs)
    assert len(calls) == 1
    data = ingest(frame, label="y", weight="w", categorical=["code"], random_state=4, verbose=0)
    again = cv(data, n_folds=3, n_estimators=3, random_state=4, verbose=0)
    np.testing.assert_array_equal(again.scores["log_loss"], result.scores["log_loss"])
    assert len(calls) == 1


def test_weights_of_labels_weigh_folds_and_their_scores(dataset):
    result = cv(dataset, class_weight={True: 3}, n_folds=3, n_estimators=4, verbose=0)
    by_hand = curves_of(with_class_weight(dataset, (1, 3)), 3, "log_loss", n_estimators=4)
    np.testing.assert_array_equal(result.scores["log_loss"], by_hand)


def test_progress_is_one_count_of_all_trees(dataset, caplog):
    with caplog.at_level("INFO", logger="sparrowboost"):
        cv(dataset, n_folds=3, n_estimators=30, learning_rate=0.5, early_stopping_rounds=3)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "task='training 3 folds'" in lines[0]
    assert "trees=90 " in lines[0], "trees that early stopping saved are done, too"


def test_wrong_calls_are_reported(dataset):
    X, y = make_rows(50)
    for args, kwargs, what in (
        ((dataset,), {"label": "y"}, "has its labels"),
        ((dataset,), {"n_folds": 1}, "n_folds=1"),
        ((dataset,), {"n_trees": 5}, "unknown parameter 'n_trees'"),
        ((dataset,), {"class_weight": "even"}, "class_weight='even'"),
        ((X,), {"label": np.arange(50) < 3}, "too few rows of label True"),
        ((X[:, :1] * 0,), {"label": y}, "no split that stands out"),
    ):
        with pytest.raises(DataError, match=what):
            cv(*args, verbose=0, **kwargs)


def test_the_same_seed_gives_the_same_folds(dataset):
    a, again, b = (
        cv(dataset, n_folds=3, n_estimators=2, random_state=seed, verbose=0).scores["log_loss"]
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(a, again)
    assert (a != b).all()


@pytest.mark.parametrize("state", [np.random.RandomState, np.random.default_rng, np.int64])
def test_every_kind_of_random_state_is_taken_by_split_and_cv(dataset, state):
    a, b = (split(dataset, 0.3, state(3)) for _ in range(2))
    for one, two in zip(a, b, strict=True):
        same = (next(iter(part.blocks())).bins for part in (one, two))
        np.testing.assert_array_equal(*same)
    first, second = (
        cv(dataset, n_folds=2, n_estimators=2, random_state=state(3), verbose=0) for _ in range(2)
    )
    np.testing.assert_array_equal(first.scores["log_loss"], second.scores["log_loss"])


def test_nothing_is_left_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    X, y = make_rows(300)
    cv(X, label=y, n_folds=2, n_estimators=2, verbose=0)
    assert list(tmp_path.iterdir()) == []


def test_columns_that_are_no_features_may_be_excluded():
    rng = np.random.default_rng(0)
    table = pa.table({"x": rng.random(600), "leak": np.arange(600) % 2, "y": np.arange(600) % 2})
    how = {"label": "y", "n_folds": 2, "n_estimators": 3, "verbose": 0}
    assert cv(table, **how).best_score < 0.6
    assert cv(table, exclude="leak", **how).best_score > 0.68  # x tells nothing, ln 2 is 0.693
    with pytest.raises(DataError, match="exclude=None"):
        cv(ingest(table, label="y", verbose=0), exclude="leak", n_folds=2, verbose=0)
