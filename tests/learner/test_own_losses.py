"""Losses and metrics that users bring."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, mean_absolute_error, roc_auc_score

from builders import assert_same_trees
from sparrowboost import (
    DataError,
    History,
    SparrowClassifier,
    SparrowRegressor,
    cv,
    evaluate,
    ingest,
    load_model,
    train,
)

N, N_TRAIN = 14_000, 10_000
SIZES = ("auto", 3_000)


def squared(target, score):
    return score - target, np.ones_like(target)


class LogCosh:
    """Nearly squared for small errors and absolute for large ones; in none of the libraries."""

    name = "log_cosh"

    def derivatives(self, target, score):
        t = np.tanh(score - target)
        return t, 1 - t * t

    def losses(self, target, score):
        return np.logaddexp(score - target, target - score) - np.log(2)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 5))
    return X, 2 * X[:, 0] + X[:, 1] ** 2 + rng.standard_t(3, N)


@pytest.fixture(scope="module")
def store(table):
    X, y = table
    return ingest(X[:N_TRAIN], label=y[:N_TRAIN], task="regression", verbose=0)


@pytest.mark.parametrize("size", SIZES)
def test_a_function_of_derivatives_grows_the_trees_of_the_loss_that_it_is_of(store, size):
    how = {"n_estimators": 20, "sample_size": size, "verbose": 0}
    own, known = train(store, loss=squared, **how), train(store, **how)
    assert own.base_score == pytest.approx(known.base_score)
    assert own.n_trees == known.n_trees
    for a, b in zip(own.trees, known.trees, strict=True):
        np.testing.assert_array_equal(a.feature, b.feature)
        np.testing.assert_allclose(a.value, b.value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_an_object_with_losses_is_minimized_and_reported(store, table, size):
    X, y = table
    history = History()
    how = {"valid": (X[N_TRAIN:], y[N_TRAIN:]), "sample_size": size, "verbose": 0}
    model = train(store, loss=LogCosh(), n_estimators=60, callbacks=[history], **how)
    losses = LogCosh().losses(y[N_TRAIN:], model.predict(X[N_TRAIN:]).astype(float))
    assert history.scores["loss"][-1] == pytest.approx(losses.mean(), rel=1e-6)
    before = LogCosh().losses(y[N_TRAIN:], np.full(N - N_TRAIN, model.base_score))
    # The noise alone has 0.61; of models that are fitted to squares, samples of 3,000 leave 0.70.
    assert losses.mean() < 0.71 < 0.8 * before.mean()


def test_the_constant_is_the_one_with_the_lowest_loss(store, table):
    base = train(store, loss=LogCosh(), n_estimators=1, verbose=0).base_score
    y = table[1][:N_TRAIN]
    around = [LogCosh().losses(y, base + d).mean() for d in (-0.01, 0, 0.01)]
    assert min(around) == around[1]


def test_weights_count(store, table):
    X, y = table
    weight = np.where(y > 0, 3.0, 1.0)[:N_TRAIN]
    weighted = ingest(X[:N_TRAIN], label=y[:N_TRAIN], weight=weight, task="regression", verbose=0)
    own = train(weighted, loss=squared, n_estimators=5, verbose=0)
    known = train(weighted, n_estimators=5, verbose=0)
    np.testing.assert_allclose(own.predict(X), known.predict(X), rtol=1e-4, atol=1e-4)


def test_a_file_predicts_but_training_on_asks_for_the_loss(store, table, tmp_path):
    X, y = table
    model = train(store, loss=LogCosh(), n_estimators=4, verbose=0)
    model.save_model(tmp_path / "m.json")
    loaded = load_model(tmp_path / "m.json")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    result = evaluate(loaded, X, label=y, verbose=0)
    assert result.rmse > 0
    assert np.isnan(result.loss)
    with pytest.raises(DataError, match="pass that as loss="):
        train(store, init_model=loaded, verbose=0)
    both = [
        train(store, init_model=loaded, loss=LogCosh(), n_estimators=3, verbose=0),
        train(store, init_model=model, n_estimators=3, verbose=0),
    ]
    assert_same_trees(*both)


def test_checkpoints_know_the_loss_and_the_metric_by_name(store, table, tmp_path):
    X, y = table
    how = {
        "loss": LogCosh(), "eval_metric": mean_absolute_error, "n_estimators": 12, "verbose": 0,
        "valid": (X[N_TRAIN:], y[N_TRAIN:]), "sample_size": 3_000,
    }  # fmt: skip
    whole = train(store, **how)

    def crash(event):
        if event.n_trees == 8:
            raise RuntimeError("crashed")

    with pytest.raises(RuntimeError, match="crashed"):
        train(store, checkpoint=tmp_path / "run", callbacks=[crash], **how)
    with pytest.raises(DataError, match="loss was 'log_cosh', now 'squared'"):
        train(store, checkpoint=tmp_path / "run", **how | {"loss": squared})
    for _ in range(2):  # resumed, and then what had ended
        model = train(store, checkpoint=tmp_path / "run", **how)
        assert_same_trees(model, whole)
        assert model.own_loss.given is how["loss"]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda y, f: (f - y, 1.0), r"shape \(\) for .* rows"),
        (lambda y, f: (np.nan * y, np.ones_like(y)), "returned NaN for the target"),
        (lambda y, f: (f[:5], f[:5]), r"shape \(5,\)"),
        (lambda y, f: f - y, "must return two arrays"),
        (lambda y, f: None, "returned NoneType; it must return two arrays"),
        (lambda y, f: (["a"] * len(y), f), "values that are no numbers"),
        (lambda y, f: (np.sign(f - y), np.zeros_like(y)), "second derivative of 0 in all rows"),
    ],
)
def test_what_a_loss_returns_is_checked(store, loss, message):
    with pytest.raises(DataError, match=message):
        train(store, loss=loss, n_estimators=2, verbose=0)


@pytest.mark.parametrize("most", [1e38, np.inf])
def test_derivatives_of_any_size_leave_predictions_finite(store, table, most):
    X, _ = table
    steep = lambda y, f: (np.where(y > 3, -most, 1.0), np.ones_like(y))  # noqa: E731
    model = train(store, loss=steep, n_estimators=5, verbose=0)
    assert np.isfinite(model.predict(X)).all()


def test_a_loss_without_losses_cannot_be_the_metric(store, table):
    valid = table[0][N_TRAIN:], table[1][N_TRAIN:]
    with pytest.raises(DataError, match=r"a method losses\(target, score\)"):
        train(store, loss=squared, eval_metric="loss", valid=valid, verbose=0)


def test_a_loss_of_ones_own_is_for_numbers(table):
    X, y = table
    with pytest.raises(DataError, match="is for regression"):
        SparrowClassifier(loss=squared).fit(X, y > 0)
    with pytest.raises(DataError, match="is for regression; ingest with task='regression'"):
        SparrowClassifier(loss=squared).fit(X, np.arange(len(y)) % 3)


def test_a_metric_is_called_with_labels_and_predictions(table):
    X, y = table
    how = {"early_stopping_rounds": 5, "n_estimators": 200, "random_state": 0}
    test = X[N_TRAIN:], y[N_TRAIN:]
    own = SparrowRegressor(eval_metric=mean_absolute_error, **how)
    own.fit(X[:N_TRAIN], y[:N_TRAIN], eval_set=test)
    known = SparrowRegressor(eval_metric="mae", **how)
    known.fit(X[:N_TRAIN], y[:N_TRAIN], eval_set=test)
    assert_same_trees(own.model_, known.model_)
    assert own.best_score_ == pytest.approx(known.best_score_, rel=1e-5)
    curve = own.evals_result_["validation_0"]
    np.testing.assert_allclose(curve["mean_absolute_error"], curve["mae"], rtol=1e-5)


def test_a_metric_of_classes_gets_probabilities_and_weights(table):
    X, y = table
    seen = []

    def weighted_score(label, probability, sample_weight=None):
        seen.append(sample_weight)
        assert set(np.unique(label)) == {0, 1}
        assert (probability > 0).all() and (probability < 1).all()
        return roc_auc_score(label, probability, sample_weight=sample_weight)

    weight = np.where(X[:, 2] > 0, 2.0, 1.0)
    valid = X[N_TRAIN:], y[N_TRAIN:] > 1, weight[N_TRAIN:]
    classifier = SparrowClassifier(n_estimators=10, eval_metric=weighted_score)
    classifier.fit(X[:N_TRAIN], y[:N_TRAIN] > 1, eval_set=valid)
    assert len(seen) == 10
    np.testing.assert_array_equal(seen[0], weight[N_TRAIN:].astype(np.float32))
    expected = roc_auc_score(
        valid[1], classifier.predict_proba(valid[0])[:, 1], sample_weight=valid[2]
    )
    score = classifier.evals_result_["validation_0"]["weighted_score"][-1]
    assert score == pytest.approx(expected, rel=1e-6)


def test_a_metric_says_which_way_it_is_better(store, table):
    X, y = table

    def goodness(target, prediction, sample_weight=None):
        return -np.abs(target - prediction).mean()

    with pytest.raises(DataError, match="an attribute greater_is_better"):
        train(store, eval_metric=goodness, verbose=0)
    goodness.greater_is_better = True
    result = cv(X, label=y, task="regression", eval_metric=goodness, n_estimators=5, verbose=0)
    assert result.metric == "goodness"
    assert result.best_n_trees == 5
    assert result.best_score == pytest.approx(result.mean["goodness"].max())


def test_a_metric_counts_even_if_one_of_sparrow_s_has_its_name(store, table):
    def rmse(target, prediction):
        return 42.0

    rmse.greater_is_better = False
    model = SparrowRegressor(n_estimators=2, eval_metric=rmse)
    model.fit(*table, eval_set=table)
    assert model.best_score_ == 42.0


def test_a_metric_that_is_nan_is_an_error(store, table):
    def odd_score(target, prediction):
        return float("nan")

    with pytest.raises(DataError, match="odd_score of the validation data is NaN after 1 tree"):
        train(store, valid=table, eval_metric=odd_score, n_estimators=3, verbose=0)


def test_labels_that_a_metric_gets_can_be_subtracted():
    seen = []

    def hits_score(y, p, sample_weight=None):
        seen.append(y.dtype)
        return float(y.sum() - 10_000)

    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    for classes in (2, 3):
        clf = SparrowClassifier(n_estimators=2, eval_metric=hits_score)
        clf.fit(X, rng.integers(0, classes, 400), eval_set=(X, np.arange(400) % classes))
        assert clf.best_score_ == sum(n % classes for n in range(400)) - 10_000
    assert {str(dtype) for dtype in seen} == {"int64"}


def test_a_metric_that_fails_is_named_with_what_it_is_given():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 2)), np.arange(400) % 2
    clf = SparrowClassifier(n_estimators=2, eval_metric=accuracy_score)
    with pytest.raises(DataError, match=r"eval_metric=accuracy_score: .* are probabilities: "):
        clf.fit(X, y, eval_set=(X, y))
