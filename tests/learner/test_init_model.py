"""Training that goes on from a model."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from builders import assert_same_trees
from sparrowboost import (
    DataError,
    Dataset,
    History,
    SparrowClassifier,
    SparrowRegressor,
    evaluate,
    ingest,
    train,
    write_report,
)

N, N_TRAIN = 24_000, 20_000
DRAWN = {"sample_size": 6_000, "max_leaves": 8}


def rows(seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 6))
    signal = X[:, 0] + X[:, 1] * (X[:, 2] > 0)
    return X, signal + rng.normal(size=N)


@pytest.fixture(scope="module")
def table():
    X, y = rows()
    return {
        "classification": (X, y > 0.5),
        "regression": (X, y),
    }


@pytest.fixture(scope="module")
def stores(table):
    return {
        task: ingest(X[:N_TRAIN], label=y[:N_TRAIN], task=task, verbose=0)
        for task, (X, y) in table.items()
    }


def loss_of(model, table):
    X, y = table[model.task]
    result = evaluate(model, X[N_TRAIN:], label=y[N_TRAIN:], verbose=0)
    return result.log_loss if model.task == "classification" else result.loss


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_with_all_rows_in_memory_two_halves_are_the_whole_training(stores, task):
    whole = train(stores[task], n_estimators=20, verbose=0)
    half = train(stores[task], n_estimators=10, verbose=0)
    assert_same_trees(train(stores[task], n_estimators=10, init_model=half, verbose=0), whole)
    assert half.n_trees == 10


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_on_samples_the_first_draw_is_under_the_model_and_trees_go_on(stores, table, task):
    half = train(stores[task], n_estimators=20, verbose=0, **DRAWN)
    model = train(
        stores[task], n_estimators=40, init_model=half, verbose=0, random_state=5, **DRAWN
    )
    assert model.n_trees == 60
    assert_same_trees(model.first(20), half)
    whole = train(stores[task], n_estimators=60, verbose=0, **DRAWN)
    # Of five seeds, models of 60 trees differ by less than 1 % of the loss.
    assert loss_of(model, table) < loss_of(half, table)
    assert loss_of(model, table) == pytest.approx(loss_of(whole, table), rel=0.02)


def test_new_rows_take_the_bins_of_the_model(stores, table, tmp_path):
    model = train(stores["regression"], n_estimators=5, verbose=0)
    X, y = rows(seed=1)
    new = ingest(X, label=y, task="regression", bins_of=model, verbose=0)
    assert new.binning.to_json() == model.binning.to_json()
    of_store = ingest(X, label=y, task="regression", bins_of=stores["regression"], verbose=0)
    assert of_store.binning.to_json() == model.binning.to_json()
    more = train(new, n_estimators=5, init_model=model, verbose=0)
    assert loss_of(more, table) < loss_of(model, table)
    path = tmp_path / "model.json"
    model.save_model(path)
    assert_same_trees(train(new, n_estimators=5, init_model=path, verbose=0), more)


def test_categories_and_missing_values_keep_their_bins(tmp_path):
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"c": rng.choice(["a", "b", "c"], 2_000), "x": rng.normal(size=2_000)})
    frame["y"] = (frame["c"] == "b") | (frame["x"] > 1)
    model = train(ingest(frame, label="y", verbose=0), n_estimators=10, verbose=0)
    new = frame.iloc[:1_000].assign(c=rng.choice(["b", "z"], 1_000), extra=1.0)
    new.loc[5, "x"] = np.nan
    data = ingest(new, label="y", bins_of=model, verbose=0)
    assert data.binning.to_json() == model.binning.to_json()
    assert train(data, n_estimators=3, init_model=model, verbose=0).n_trees == 13
    with pytest.raises(DataError, match="'x'"):
        ingest(new.drop(columns="x"), label="y", bins_of=model, verbose=0)


def test_early_stopping_may_keep_no_new_tree_at_all(stores, table):
    X, y = table["regression"]
    model = train(stores["regression"], n_estimators=30, verbose=0)
    noise = np.random.default_rng(0).permutation(y[:N_TRAIN])
    other = ingest(X[:N_TRAIN], label=noise, task="regression", bins_of=model, verbose=0)
    valid = X[N_TRAIN:], y[N_TRAIN:]
    stopped = train(
        other, valid=valid, init_model=model, n_estimators=50, early_stopping_rounds=5,
        learning_rate=0.5, verbose=0,
    )  # fmt: skip
    assert_same_trees(stopped, model)


def test_a_training_that_goes_on_resumes_from_its_checkpoint(stores, tmp_path):
    half = train(stores["regression"], n_estimators=5, verbose=0, **DRAWN)
    other = train(stores["regression"], n_estimators=6, verbose=0, **DRAWN)
    how = {"init_model": half, "n_estimators": 30, "verbose": 0, **DRAWN}
    whole = train(stores["regression"], **how)

    def crash(event):
        if event.n_trees == 20:
            raise RuntimeError("crashed")

    with pytest.raises(RuntimeError, match="crashed"):
        train(stores["regression"], checkpoint=tmp_path / "run", callbacks=[crash], **how)
    assert_same_trees(train(stores["regression"], checkpoint=tmp_path / "run", **how), whole)
    with pytest.raises(DataError, match="other models to go on from"):
        train(stores["regression"], checkpoint=tmp_path / "run", **how | {"init_model": other})


def test_what_does_not_fit_together_is_refused(stores, table):
    model = train(stores["regression"], n_estimators=2, verbose=0)
    X, y = table["regression"]
    with pytest.raises(DataError, match="bins_of=init_model"):
        train(ingest(X, label=y, task="regression", verbose=0), init_model=model, verbose=0)
    with pytest.raises(DataError, match="leave loss out"):
        train(stores["regression"], init_model=model, loss="huber", verbose=0)
    same = ingest(X, label=y > 0, task="classification", bins_of=model, verbose=0)
    with pytest.raises(DataError, match="task='regression'"):
        train(same, init_model=model, verbose=0)
    with pytest.raises(DataError, match="pass its model_"):
        fitted = SparrowRegressor(n_estimators=2).fit(X, y)
        train(stores["regression"], init_model=fitted, verbose=0)
    with pytest.raises(DataError, match="pass a Dataset or a Model"):
        ingest(X, label=y, task="regression", bins_of="model.json", verbose=0)
    with pytest.raises(DataError, match="leave out columns"):
        ingest(X, label=y, task="regression", bins_of=model, exclude="f0", verbose=0)
    how = {"task": "classification", "bins_of": model, "verbose": 0}
    named = ingest(X, label=np.where(y > 0, "yes", "no"), **how)
    first = train(named, n_estimators=2, verbose=0)
    other = ingest(X, label=np.where(y > 0, "yes", "never"), **how)
    with pytest.raises(DataError, match="'no' and 'yes' apart"):
        train(other, init_model=first, verbose=0)


@pytest.mark.parametrize("kind", [SparrowClassifier, SparrowRegressor])
def test_a_warm_start_adds_the_trees_that_are_missing(table, kind):
    X, y = table["classification" if kind is SparrowClassifier else "regression"]
    once = kind(n_estimators=12, random_state=0).fit(X, y)
    warm = kind(n_estimators=5, random_state=0, warm_start=True).fit(X, y)
    assert warm.n_iter_ == 5
    assert_same_trees(warm.set_params(n_estimators=12).fit(X, y).model_, once.model_)
    with pytest.warns(UserWarning, match="n_estimators has not grown"):
        warm.fit(X, y)
    assert warm.n_iter_ == 12
    with pytest.raises(DataError, match="must be at least 12"):
        warm.set_params(n_estimators=3).fit(X, y)
    assert warm.set_params(n_estimators=3, warm_start=False).fit(X, y).n_iter_ == 3


def test_an_estimator_goes_on_from_another_one_a_model_or_a_file(table, tmp_path):
    X, y = table["classification"]
    first = SparrowClassifier(n_estimators=4).fit(X, y)
    first.save_model(tmp_path / "m.json")
    models = [
        SparrowClassifier(n_estimators=3).fit(X, y, init_model=init).model_
        for init in (first, first.model_, tmp_path / "m.json")
    ]
    for model in models:
        assert model.n_trees == 7
        assert_same_trees(model, models[0])


def test_the_task_is_that_of_the_bins(stores, table):
    X, y = table["regression"]
    model = train(stores["regression"], n_estimators=2, verbose=0)
    data = ingest(X, label=y, bins_of=model, verbose=0)
    assert data.task == "regression"
    assert ingest(X, label=y > 0, bins_of=stores["classification"], verbose=0).n_positive > 0


def test_the_best_number_of_trees_counts_those_of_the_first_model(table):
    X, y = table["regression"]
    first = SparrowRegressor(n_estimators=20).fit(X[:N_TRAIN], y[:N_TRAIN])
    more = SparrowRegressor(n_estimators=4)
    more.fit(X[:N_TRAIN], y[:N_TRAIN], init_model=first, eval_set=(X[N_TRAIN:], y[N_TRAIN:]))
    assert (more.n_iter_, more.best_iteration_) == (24, 24)
    assert more.best_score_ == min(more.evals_result_["validation_0"]["rmse"])


def test_the_report_counts_the_trees_of_the_first_model(stores, table, tmp_path):
    X, y = table["regression"]
    first = train(stores["regression"], n_estimators=20, verbose=0)
    history = History()
    more = train(
        stores["regression"], init_model=first, n_estimators=4, valid=(X[N_TRAIN:], y[N_TRAIN:]),
        callbacks=[history], verbose=0,
    )  # fmt: skip
    write_report(tmp_path / "report.html", more, history)
    text = (tmp_path / "report.html").read_text()
    assert "best validation RMSE, at tree 24" in text
    assert "at tree 4" not in text


@pytest.mark.parametrize("warm", [True, False])
def test_columns_of_frames_are_found_by_name(table, warm):
    X, y = table["regression"]
    frame = pd.DataFrame(X, columns=list("abcdef"))
    turned = frame[list("fedcba")]
    model = SparrowRegressor(n_estimators=5, warm_start=warm).fit(frame, y)
    init = None if warm else model
    again = model.set_params(n_estimators=8) if warm else SparrowRegressor(n_estimators=3)
    again.fit(turned, y, init_model=init)
    expected = again.model_.predict(frame)
    np.testing.assert_array_equal(again.predict(turned), expected)
    np.testing.assert_array_equal(again.predict(frame), expected)
    assert list(again.feature_names_in_) == list("abcdef")


def test_another_level_than_that_of_the_model_is_refused(table):
    X, y = table["regression"]
    low = SparrowRegressor(loss="quantile", alpha=0.1, n_estimators=2)
    low.fit(X, y)
    with pytest.raises(DataError, match=r"alpha=0.8, but init_model was trained with alpha=0.1"):
        SparrowRegressor(loss="quantile", alpha=0.8).fit(X, y, init_model=low)
    bins = ingest(X, label=y, bins_of=low, verbose=0)
    with pytest.raises(DataError, match=r"alpha=0.8"):
        train(bins, init_model=low.model_, alpha=0.8, verbose=0)
    more = train(bins, init_model=low.model_, n_estimators=2, verbose=0)
    assert more.loss_options == {"alpha": 0.1}
    with pytest.raises(DataError, match="expected a Model, got int"):
        SparrowRegressor().fit(X, y, init_model=5)
    with pytest.raises(NotFittedError):
        SparrowRegressor().fit(X, y, init_model=SparrowRegressor())


def test_a_store_s_part_can_be_what_a_model_goes_on_with(stores, tmp_path):
    from sparrowboost.views import split

    most, rest = split(stores["classification"], 0.3)
    assert isinstance(rest, Dataset)
    model = train(most, n_estimators=4, verbose=0)
    assert train(rest, n_estimators=4, init_model=model, verbose=0).n_trees == 8


def test_new_rows_may_lack_classes_of_the_model():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3_000, 3))
    y = np.array(["a", "b", "c", "d"])[
        np.digitize(X[:, 0] + 0.3 * rng.normal(size=3_000), (-1, 0, 1))
    ]
    first = SparrowClassifier(n_estimators=5, random_state=0).fit(X, y)
    some = y != "b"
    for attempt in (
        SparrowClassifier(n_estimators=5, random_state=0).fit(X[some], y[some], init_model=first),
        SparrowClassifier(n_estimators=5, random_state=0).fit(
            ingest(X[some], label=y[some], bins_of=first, verbose=0), init_model=first
        ),
    ):
        assert attempt.classes_.tolist() == ["a", "b", "c", "d"]
        assert attempt.model_.n_trees == 10
        shares = attempt.predict_proba(X)
        assert shares.shape == (3_000, 4) and shares[:, 1].mean() < 0.9 * (y == "b").mean()
        assert np.mean(attempt.predict(X[some]) == y[some]) > 0.75
    other = ingest(X, label=np.char.upper(y), bins_of=first, verbose=0)  # bins for other labels
    assert other.classes == ("A", "B", "C", "D")
