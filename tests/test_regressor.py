from __future__ import annotations

import inspect
import pickle
import re

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from builders import assert_same_trees
from sparrowboost import (
    DataError,
    SparrowClassifier,
    SparrowRegressor,
    ingest,
    load_model,
    train,
)
from sparrowboost.learner.params import Params
from sparrowboost.model.regression import REGRESSION_LOSSES

FEATURES = ["x", "z", "count", "color"]
every_loss = pytest.mark.parametrize("loss", list(REGRESSION_LOSSES))


def make_frame(n=1_200, seed=0):
    """Numbers, whole numbers and words, some missing; a label above 0, and weights."""
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=(2, n))
    color = rng.choice(["red", "green", "blue"], n)
    y = np.exp(0.5 * (x + z + (color == "red"))) * rng.gamma(4, 0.25, n)
    return pd.DataFrame(
        {
            "x": np.where(rng.random(n) < 0.1, np.nan, x),
            "z": z.astype(np.float32),
            "count": rng.integers(0, 400, n),
            "color": color,
            "w": rng.integers(1, 4, n).astype(np.float64),
            "y": y.astype(np.float32),
        }
    )


def small(**kwargs):
    return SparrowRegressor(**{"n_estimators": 8, "random_state": 0, "n_jobs": 1, **kwargs})


@pytest.fixture(scope="module")
def frame():
    return make_frame()


@pytest.fixture(scope="module")
def numbers():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(1_500, 4))
    return X, X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=1_500)


@pytest.fixture(scope="module")
def forms(frame, tmp_path_factory):
    """The same rows in forms that have names."""
    folder = tmp_path_factory.mktemp("forms")
    table = pa.Table.from_pandas(frame, preserve_index=False)
    frame.to_parquet(folder / "rows.parquet")
    frame.to_csv(folder / "rows.csv", index=False)
    return {
        "frame": lambda: frame,
        "polars": lambda: pl.from_pandas(frame),
        "arrow": lambda: table,
        "stream": lambda: pa.RecordBatchReader.from_batches(table.schema, table.to_batches(100)),
        "parquet": lambda: str(folder / "rows.parquet"),
        "csv": lambda: folder / "rows.csv",
    }


FORMS = ["frame", "polars", "arrow", "stream", "parquet", "csv"]


# -- the same rows in other forms -----------------------------------------------------------------


@pytest.fixture(scope="module")
def by_name(frame):
    return small().fit(frame, "y", sample_weight="w")


@pytest.mark.parametrize("form", FORMS)
def test_the_same_rows_train_the_same_model_and_predict_the_same(by_name, frame, forms, form):
    again = small().fit(forms[form](), "y", sample_weight="w")
    assert_same_trees(again.model_, by_name.model_)
    expected = by_name.predict(frame)
    assert expected.dtype == np.float64 and expected.shape == (1_200,)
    np.testing.assert_array_equal(by_name.predict(forms[form]()), expected)


def test_separate_labels_and_weights_train_the_same_model(by_name, frame):
    X, y, w = frame[FEATURES], frame["y"], frame["w"]
    for labels, weights in ((y, w), (y.tolist(), w.tolist()), (y.to_numpy()[:, None].ravel(), w)):
        apart = small().fit(X, labels, sample_weight=weights)
        assert_same_trees(apart.model_, by_name.model_)
    np.testing.assert_array_equal(apart.predict(X), by_name.predict(frame))
    assert apart.feature_names_in_.tolist() == FEATURES and apart.n_features_in_ == 4


def test_arrays_lists_and_sparse_matrices_are_the_same_rows(numbers):
    X, y = numbers
    first = small().fit(X, y)
    for rows in (X.tolist(), scipy.sparse.csr_matrix(X), X.astype(object)):
        assert_same_trees(small().fit(rows, y).model_, first.model_)
        np.testing.assert_array_equal(first.predict(rows), first.predict(X))


def test_a_data_set_of_numbers_is_fitted_as_it_is(frame, by_name):
    data = ingest(frame, label="y", weight="w", task="regression", random_state=0, verbose=0)
    fitted = small().fit(data)
    assert_same_trees(fitted.model_, by_name.model_)
    np.testing.assert_array_equal(fitted.predict(frame), by_name.predict(frame))


@pytest.mark.parametrize("kind", [int, np.int8, np.float32, bool, str, object])
def test_labels_may_be_any_numbers(numbers, kind):
    X, y = numbers
    whole = np.clip(np.rint(y), 0, 1 if kind is bool else 5)
    first = small().fit(X, whole)
    assert_same_trees(small().fit(X, whole.astype(kind)).model_, first.model_)


def test_two_values_are_numbers_too(numbers):
    X, y = numbers
    regressor = small().fit(X, (y > 0).astype(int))
    assert len(np.unique(regressor.predict(X))) > 2


# -- losses, weights, validation ------------------------------------------------------------------


@every_loss
def test_every_loss_is_learned_and_saved(frame, tmp_path, loss):
    regressor = small(loss=loss, alpha=0.7, n_estimators=20, learning_rate=0.3)
    regressor.fit(frame[FEATURES], frame["y"])
    test = make_frame(seed=1)
    p = regressor.predict(test[FEATURES])
    if loss != "quantile":
        assert r2_score(test["y"], p) > 0.4
    regressor.save_model(tmp_path / "m.json")
    again = SparrowRegressor().load_model(tmp_path / "m.json")
    np.testing.assert_array_equal(again.predict(test[FEATURES]), p)
    np.testing.assert_array_equal(load_model(tmp_path / "m.json").predict(test[FEATURES]), p)
    assert again.model_.loss == loss and again.n_iter_ == 20


def test_alpha_and_power_reach_train(frame):
    X, y = frame[FEATURES], frame["y"]
    assert small(loss="quantile", alpha=0.25).fit(X, y).model_.loss_options == {"alpha": 0.25}
    assert small(loss="tweedie", power=1.2).fit(X, y).model_.loss_options == {"power": 1.2}
    low, high = (small(loss="quantile", alpha=a).fit(X, y).predict(X) for a in (0.1, 0.9))
    assert (low <= high).mean() > 0.99


def test_a_row_of_weight_k_is_k_rows():
    rng = np.random.default_rng(0)
    X, w = rng.integers(0, 5, (400, 3)).astype(float), rng.integers(0, 4, 400)
    y = X[:, 0] + rng.normal(size=400)
    rows = np.repeat(np.arange(400), w)
    weighted, repeated = small().fit(X, y, sample_weight=w), small().fit(X[rows], y[rows])
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-6)


def test_validation_rows_may_come_in_any_form(frame, tmp_path):
    valid = make_frame(500, seed=1)
    valid.to_parquet(tmp_path / "v.parquet")
    X, y, w = valid[FEATURES], valid["y"], valid["w"]
    apart = small().fit(frame[FEATURES], frame["y"], eval_set=(X, y))
    scores = apart.evals_result_
    assert list(scores) == ["validation_0"]
    assert set(scores["validation_0"]) == {"rmse", "mae", "r2", "loss"}
    p = apart.predict(X)
    last = {name: values[-1] for name, values in scores["validation_0"].items()}
    assert last["rmse"] == pytest.approx(root_mean_squared_error(y, p), rel=1e-5)
    assert last["mae"] == pytest.approx(mean_absolute_error(y, p), rel=1e-5)
    assert last["r2"] == pytest.approx(r2_score(y, p), rel=1e-5)
    assert apart.best_score_ == min(scores["validation_0"]["rmse"])
    for eval_set in ([(X, y)], (X, y.tolist()), (valid, "y"), (tmp_path / "v.parquet", "y")):
        again = small().fit(frame[FEATURES], frame["y"], eval_set=eval_set)
        assert again.evals_result_ == scores
    weighted = small().fit(frame[FEATURES], frame["y"], eval_set=[(X, y), (X, y, w)])
    assert weighted.evals_result_["validation_0"] == scores["validation_0"]
    expected = root_mean_squared_error(y, p, sample_weight=w)
    assert weighted.evals_result_["validation_1"]["rmse"][-1] == pytest.approx(expected, rel=1e-5)


def test_without_validation_data_some_rows_are_set_aside_for_early_stopping(numbers):
    X, y = numbers
    regressor = small(
        early_stopping_rounds=3, n_estimators=500, learning_rate=0.5, eval_metric="mae"
    ).fit(X, y)
    mae = regressor.evals_result_["validation_0"]["mae"]
    assert regressor.n_iter_ == regressor.best_iteration_ == int(np.argmin(mae)) + 1
    assert len(mae) == regressor.n_iter_ + 3
    assert regressor.best_score_ == min(mae)


# -- predictions ----------------------------------------------------------------------------------


def test_the_score_is_r2_by_arrays_and_by_column(by_name, frame, forms, tmp_path):
    test = make_frame(700, seed=2)
    test.to_parquet(tmp_path / "t.parquet")
    p = by_name.predict(test)
    plain = r2_score(test["y"], p)
    weighted = r2_score(test["y"], p, sample_weight=test["w"])
    assert by_name.score(test[FEATURES], test["y"]) == pytest.approx(plain)
    assert by_name.score(test[FEATURES], test["y"], test["w"]) == pytest.approx(weighted)
    for rows in (test, tmp_path / "t.parquet"):
        assert by_name.score(rows, "y") == pytest.approx(plain, rel=1e-5)
        assert by_name.score(rows, "y", "w") == pytest.approx(weighted, rel=1e-5)


@pytest.mark.parametrize("loss", ["squared_error", "poisson"])
def test_stages_are_the_predictions_after_each_tree(frame, loss):
    regressor = small(loss=loss).fit(frame, "y", exclude="w")
    stages = list(regressor.staged_predict(frame))
    assert len(stages) == regressor.n_iter_ == 8
    for k, stage in enumerate(stages):
        expected = regressor.model_.first(k + 1).predict(frame).astype(np.float64)
        np.testing.assert_array_equal(stage, expected)
    np.testing.assert_array_equal(stages[-1], regressor.predict(frame))


def test_a_regressor_has_no_probabilities(by_name):
    for name in ("predict_proba", "decision_function", "classes_"):
        assert not hasattr(by_name, name)


@pytest.mark.filterwarnings("ignore")  # of what XGBoost uses
@every_loss
def test_xgboost_predicts_the_same(frame, tmp_path, loss):
    xgboost = pytest.importorskip("xgboost")
    regressor = small(loss=loss, alpha=0.6, n_estimators=12).fit(frame[FEATURES], frame["y"])
    X = make_frame(600, seed=3)[FEATURES]
    regressor.to_xgboost(tmp_path / "x.json", data=X)
    theirs = xgboost.XGBRegressor()
    theirs.load_model(tmp_path / "x.json")
    np.testing.assert_allclose(
        theirs.predict(regressor.model_.xgboost_frame(X)), regressor.predict(X), rtol=1e-6
    )


def test_importances_are_of_the_features_that_matter(numbers):
    X, y = numbers
    share = small(n_estimators=30).fit(X, 1e9 * y).feature_importances_
    assert share.sum() == pytest.approx(1)
    assert share[3] < share[:3].min()


# -- as one of scikit-learn's own -----------------------------------------------------------------


def test_a_fitted_regressor_goes_through_pickle_and_joblib(by_name, frame, tmp_path):
    joblib.dump(by_name, tmp_path / "r.joblib")
    expected = by_name.predict(frame)
    for again in (pickle.loads(pickle.dumps(by_name)), joblib.load(tmp_path / "r.joblib")):
        np.testing.assert_array_equal(again.predict(frame), expected)
        assert again.get_params() == by_name.get_params()


def test_a_clone_is_unfitted_and_has_the_same_parameters(by_name, frame):
    copy = clone(by_name)
    assert copy.get_params() == by_name.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(frame)
    for call in (
        lambda: copy.score(frame, "y"),
        lambda: list(copy.staged_predict(frame)),
        lambda: copy.save_model("m.json"),
    ):
        with pytest.raises(NotFittedError):
            call()


def test_it_works_in_pipelines_searches_and_transformed_targets(numbers):
    X, y = numbers
    pipeline = make_pipeline(StandardScaler(), small())
    assert cross_val_score(pipeline, X, y, cv=3).min() > 0.2
    search = GridSearchCV(small(), {"loss": ["squared_error", "absolute_error"]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.2
    moved = TransformedTargetRegressor(small(), func=np.arcsinh, inverse_func=np.sinh).fit(X, y)
    assert moved.score(X, y) > 0.2


def test_every_parameter_is_documented_with_its_default():
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(SparrowRegressor).parameters.items()
    }
    documented = dict(
        re.findall(r"^    (\w+) : .*default=(.+)$", SparrowRegressor.__doc__, re.MULTILINE)
    )
    assert list(documented) == list(defaults)
    for name, text in documented.items():
        assert text.replace('"', "'") == repr(defaults[name]), name


def test_defaults_are_those_of_train_and_of_the_classifier():
    ours, classifier = SparrowRegressor().get_params(), SparrowClassifier().get_params()
    defaults = Params().for_task("regression")
    for name, value in ours.items():
        if name in ("loss", "eval_metric"):
            assert Params(**{name: value}).for_task("regression") == defaults
        elif hasattr(defaults, name):
            assert value == getattr(defaults, name), name
        if name not in ("loss", "eval_metric", "alpha", "power"):
            assert value == classifier[name], name
    # The paper's rule, its loss and class weights are for classes.
    only = set(classifier) - set(ours)
    assert only == {"stopping", "gamma_0", "class_weight", "category_charge"}


def test_a_regressor_is_what_train_makes(numbers):
    X, y = numbers
    data = ingest(X, label=y, task="regression", random_state=0, verbose=0)
    model = train(data, n_estimators=8, monotone_constraints={"f0": -1}, verbose=0)
    regressor = small(monotone_constraints=[-1, 0, 0, 0]).fit(X, y)
    assert_same_trees(regressor.model_, model)


# -- what is refused ------------------------------------------------------------------------------


def test_wrong_input_is_reported(numbers, frame, tmp_path):
    X, y = numbers
    bad = y.copy()
    bad[7] = np.nan
    small().fit(X, y).save_model(tmp_path / "numbers.json")
    SparrowClassifier(n_estimators=2).fit(X, y > 0).save_model(tmp_path / "classes.json")
    for call, what in (
        (lambda: small().fit(X, bad), "NaN"),
        (lambda: small().fit(X, np.where(np.isnan(bad), np.inf, y)), "infinity"),
        (lambda: small().fit(X, np.where(y > 0, "yes", "no")), "use SparrowClassifier"),
        (lambda: small().fit(frame, "color"), "label 'color' has type"),
        (lambda: small().fit(X, np.full(len(y), 3.0)), "is 3 in every row"),
        (lambda: small(loss="poisson").fit(X, y), "needs labels of 0 or more"),
        (lambda: small(loss="gamma").fit(X, np.maximum(y, 0)), "needs labels above 0"),
        (lambda: small(loss="log_loss").fit(X, y), "loss='log_loss' is unknown"),
        (lambda: small(loss="logistic").fit(X, y), "loss='logistic' is for two classes"),
        (lambda: small(loss="softmax").fit(X, y), "loss='softmax' is for more than two classes"),
        (lambda: small(eval_metric="auc").fit(X, y), "rmse, mae, r2, loss"),
        (lambda: small(alpha=1.5).fit(X, y), "alpha=1.5"),
        (lambda: small(power=2).fit(X, y), "power=2"),
        (lambda: small().fit(X), "requires y to be passed"),
        (lambda: small().fit(X, y[:-1]), "inconsistent numbers of samples"),
        (lambda: small().fit(X, y, sample_weight=-np.ones(len(y))), "not negative"),
        (lambda: small().load_model(tmp_path / "classes.json"), "load it with SparrowClassifier"),
        (lambda: SparrowClassifier().load_model(tmp_path / "numbers.json"), "SparrowRegressor"),
        (lambda: small().fit(X, y, eval_set=(X, np.where(y > 0, "a", "b"))), "label"),
    ):
        with pytest.raises(ValueError, match=what):
            call()


def test_a_fit_that_fails_leaves_an_unfitted_regressor(numbers):
    X, y = numbers
    regressor = small().fit(X, y)
    with pytest.raises(DataError, match="in every row"):
        regressor.fit(X, np.zeros(len(y)))
    with pytest.raises(NotFittedError):
        regressor.predict(X)
