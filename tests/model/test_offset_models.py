"""Models that were trained with offsets: what they predict, and their files."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from sparrowboost import (
    DataError,
    ModelFileError,
    SparrowClassifier,
    SparrowRegressor,
    evaluate,
    ingest,
    load_model,
    train,
    write_predictions,
)
from sparrowboost.runtime.memory import held

N = 3_000
FEW = {"n_estimators": 6, "max_leaves": 5, "verbose": 0}


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    x, exposure = rng.normal(size=N), rng.uniform(0.1, 3, N)
    counts = rng.poisson(exposure * np.exp(0.5 * x)).astype(float)
    columns = {"x": x, "z": rng.normal(size=N), "log_e": np.log(exposure).astype(np.float32)}
    return pd.DataFrame({**columns, "counts": counts, "any": counts > 0})


@pytest.fixture(scope="module")
def model(frame):
    given = {"label": "counts", "exclude": "any", "offset": "log_e", "task": "regression"}
    return train(ingest(frame, verbose=0, **given), loss="poisson", **FEW)


@pytest.fixture(scope="module")
def odds(frame):
    given = {"label": "any", "exclude": "counts", "offset": "log_e"}
    return train(ingest(frame, verbose=0, **given), **FEW)


@pytest.fixture(scope="module")
def nameless(frame):
    """Of arrays, whose offsets are no column."""
    X = frame[["x", "z"]].to_numpy()
    given = {"label": frame["counts"].to_numpy(), "offset": frame["log_e"].to_numpy()}
    return train(ingest(X, task="regression", verbose=0, **given), loss="poisson", **FEW)


# -- predictions -----------------------------------------------------------------------------------


def test_a_model_finds_the_column_of_offsets_by_its_name(frame, model, odds, tmp_path):
    rates = model.predict(frame, offset=False)
    exposure = np.exp(frame["log_e"].to_numpy())
    np.testing.assert_allclose(model.predict(frame), rates * exposure, rtol=1e-6)
    frame.to_csv(tmp_path / "t.csv", index=False)
    np.testing.assert_allclose(model.predict(tmp_path / "t.csv"), rates * exposure, rtol=1e-6)
    plain = odds.decision_function(frame, offset=False)
    np.testing.assert_allclose(odds.decision_function(frame), plain + frame["log_e"], atol=1e-6)


def test_offsets_to_predict_with_come_as_a_name_a_number_an_array_or_a_file(frame, model, tmp_path):
    expected = model.predict(frame)
    np.save(tmp_path / "off.npy", frame["log_e"].to_numpy())
    rest = frame.drop(columns="log_e")
    for data, offset in (
        (frame.rename(columns={"log_e": "other"}), "other"),
        (frame, 2),
        (rest, frame["log_e"].to_numpy()),
        (rest, frame["log_e"].tolist()),
        (rest, tmp_path / "off.npy"),
    ):
        assert (model.predict(data, offset=offset) == expected).all()
    twice = model.predict(frame, offset=2 * frame["log_e"].to_numpy())
    np.testing.assert_allclose(twice, expected * np.exp(frame["log_e"]), rtol=1e-5)


def test_a_model_of_arrays_asks_for_offsets(frame, nameless):
    X = frame[["x", "z"]].to_numpy()
    with pytest.raises(DataError, match=r"lacks column 'offset', .* pass offset=.* offset=False"):
        nameless.predict(X)
    rates = nameless.predict(X, offset=False)
    np.testing.assert_allclose(
        nameless.predict(X, offset=frame["log_e"].to_numpy()),
        rates * np.exp(frame["log_e"]),
        rtol=1e-6,
    )


def test_a_feature_is_not_taken_for_the_offset_of_the_same_name(frame):
    table = frame[["x", "z", "counts"]].rename(columns={"z": "offset"})
    given = {"label": "counts", "offset": frame["log_e"].to_numpy(), "task": "regression"}
    model = train(ingest(table, verbose=0, **given), **FEW)
    assert (model.offset_name, model.feature_names) == ("offset", ["x", "offset"])
    with pytest.raises(DataError, match="lacks column 'offset'"):
        model.predict(table)


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        (np.zeros(N - 1), f"offset: has {N - 1:,} values for the {N:,} rows"),
        (np.full(N, np.nan), "row 1: offset 'offset' is nan"),
        ("no", "there is no column 'no'"),
    ],
)
def test_offsets_that_do_not_fit_the_rows_are_refused(frame, model, offset, words):
    with pytest.raises(DataError, match=words):
        model.predict(frame, offset=offset)


def test_offsets_of_a_stream_must_be_as_many_as_its_rows(frame, model, tmp_path):
    frame.to_csv(tmp_path / "t.csv", index=False)
    for n in (N - 1, N + 1):
        with pytest.raises(DataError, match=f"offset: has {n:,} values"):
            model.predict(tmp_path / "t.csv", offset=np.zeros(n))


def test_a_model_without_offsets_can_be_given_some(frame):
    plain = frame[["x", "z", "counts"]]
    model = train(ingest(plain, label="counts", task="regression", verbose=0), **FEW)
    assert model.offset_name is None
    moved = model.predict(plain, offset=np.full(N, 2.0))
    np.testing.assert_allclose(moved, model.predict(plain) + 2, rtol=1e-6)


def test_leaves_and_importances_need_no_offsets(frame, model):
    assert model.apply(frame[["x", "z"]]).shape == (N, model.n_trees)


def test_predictions_are_written_with_offsets_also_of_a_column_that_is_kept(
    frame, model, odds, tmp_path
):
    frame.to_csv(tmp_path / "t.csv", index=False)
    file = tmp_path / "out.parquet"
    for keep in ((), ["log_e", "counts"]):
        write_predictions(model, tmp_path / "t.csv", file, keep=keep, verbose=0)
        written = pq.read_table(file)
        assert (written["prediction"].to_numpy() == model.predict(tmp_path / "t.csv")).all()
    np.testing.assert_allclose(written["log_e"].to_numpy(), frame["log_e"], rtol=1e-6)
    write_predictions(model, frame, file, offset=False, verbose=0)
    assert (
        pq.read_table(file)["prediction"].to_numpy() == model.predict(frame, offset=False)
    ).all()
    write_predictions(odds, frame, file, columns=["score"], verbose=0)
    assert (pq.read_table(file)["score"].to_numpy() == odds.decision_function(frame)).all()


@pytest.mark.slow
def test_predictions_are_written_with_offsets_where_columns_are_read_apart(tmp_path):
    rng = np.random.default_rng(0)
    wide = pd.DataFrame(rng.normal(size=(300, 410)).astype(np.float32)).add_prefix("c")
    wide["off"], wide["y"] = rng.normal(size=(2, 300))
    wide.to_parquet(tmp_path / "wide.parquet", row_group_size=100)
    given = {"label": "y", "offset": "off", "task": "regression", "verbose": 0}
    model = train(ingest(wide, **given), **FEW)
    out = tmp_path / "out.parquet"
    limit = int(1.25 * held()) + 200_000_000  # this process holds what other tests loaded
    write_predictions(model, tmp_path / "wide.parquet", out, memory_limit=limit, verbose=0)
    assert (pq.read_table(out)["prediction"].to_numpy() == model.predict(wide)).all()
    result = evaluate(model, tmp_path / "wide.parquet", memory_limit=limit, verbose=0)
    assert result.rmse == pytest.approx(np.std(wide["y"] - model.predict(wide)), rel=0.02)


def test_an_evaluation_counts_offsets(frame, model, odds):
    loss = model.regression.losses(frame["counts"], np.log(model.predict(frame))).mean()
    assert evaluate(model, frame, verbose=0).loss == pytest.approx(loss, rel=1e-5)
    assert evaluate(model, frame, offset=False, verbose=0).loss > 1.1 * loss
    p = odds.predict_proba(frame)[:, 1]
    log_loss = -np.log(np.where(frame["any"], p, 1 - p)).mean()
    assert evaluate(odds, frame, verbose=0).log_loss == pytest.approx(log_loss, rel=1e-5)
    given = {"offset": frame["log_e"].to_numpy(), "verbose": 0}
    assert evaluate(odds, frame.drop(columns="log_e"), **given) == evaluate(odds, frame, verbose=0)


# -- files -----------------------------------------------------------------------------------------


def test_a_file_keeps_the_name_of_the_offset(frame, model, odds, tmp_path):
    for kept in (model, odds):
        kept.save_model(tmp_path / "m.json")
        loaded = load_model(tmp_path / "m.json")
        assert (loaded.offset_name, loaded.digest) == ("log_e", kept.digest)
        assert loaded.task == kept.task
        score, again = (next(each.iter_scores(frame)) for each in (kept, loaded))
        assert (score == again).all()
        written = json.loads((tmp_path / "m.json").read_text())
        assert (written["version"], written["offset"]) == (5, "log_e")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"offset": 3}, "offset is 3 where text is needed"),
        ({"version": 3}, "has 'offset', which is not a known key"),
        ({"offset": "other"}, "do not match its digest"),
        ({"classes": [0, 1]}, "has 'loss_options', which is not a known key"),
    ],
)
def test_a_file_with_a_wrong_offset_is_refused(model, tmp_path, change, words):
    model.save_model(tmp_path / "m.json")
    contents = json.loads((tmp_path / "m.json").read_text())
    (tmp_path / "m.json").write_text(json.dumps({**contents, **change}))
    with pytest.raises(ModelFileError, match=words):
        load_model(tmp_path / "m.json")


def test_a_file_without_the_name_of_its_offset_is_refused(model, tmp_path):
    model.save_model(tmp_path / "m.json")
    contents = json.loads((tmp_path / "m.json").read_text())
    del contents["offset"]
    (tmp_path / "m.json").write_text(json.dumps(contents))
    with pytest.raises(ModelFileError, match="lacks 'offset'"):
        load_model(tmp_path / "m.json")


def test_xgboost_predicts_the_same_with_offsets_as_base_margin(frame, model, odds, tmp_path):
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    for each, given in ((model, model.predict(frame)), (odds, odds.predict_proba(frame)[:, 1])):
        each.to_xgboost(tmp_path / "x.json")
        booster = xgboost.Booster(model_file=tmp_path / "x.json")
        rows = xgboost.DMatrix(each.xgboost_frame(frame), base_margin=frame["log_e"].to_numpy())
        np.testing.assert_allclose(booster.predict(rows), given, rtol=2e-5)


# -- estimators ------------------------------------------------------------------------------------


def test_a_regressor_takes_offsets_as_arrays(frame):
    X, y, offset = frame[["x", "z"]], frame["counts"].to_numpy(), frame["log_e"].to_numpy()
    how = {"loss": "poisson", "n_estimators": 6, "max_leaves": 5}
    reg = SparrowRegressor(**how).fit(X, y, offset=offset, eval_set=(X, y, None, offset))
    expected = reg.model_.predict(X, offset=offset)
    np.testing.assert_allclose(reg.predict(X, offset=offset), expected)
    *_, last = reg.staged_predict(X, offset=offset)
    np.testing.assert_allclose(last, expected, rtol=1e-6)
    loss = reg.model_.regression.losses(y, np.log(expected)).mean()
    assert reg.evals_result_["validation_0"]["loss"][-1] == pytest.approx(loss, rel=1e-5)
    assert reg.score(X, y, offset=offset) > reg.score(X, y, offset=False) + 0.05
    with pytest.raises(DataError, match="pass offset="):
        reg.predict(X)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        SparrowRegressor(**how).fit(X, y, offset=offset[1:])


def test_an_estimator_takes_offsets_as_a_column(frame, tmp_path):
    table = frame.drop(columns="counts")
    table.to_parquet(tmp_path / "t.parquet")
    for X in (table, tmp_path / "t.parquet"):
        clf = SparrowClassifier(n_estimators=6, max_leaves=5, early_stopping_rounds=5)
        clf.fit(X, "any", offset="log_e")
        assert clf.model_.feature_names == ["x", "z"]
        p = clf.predict_proba(X)[:, 1]
        odds = clf.decision_function(X, offset=False) + frame["log_e"]
        np.testing.assert_allclose(np.log(p / (1 - p)), odds, atol=1e-4)
        *_, last = clf.staged_predict_proba(X)
        np.testing.assert_allclose(last[:, 1], p, rtol=1e-5)
        assert clf.score(X, "any") == np.mean(clf.predict(X) == frame["any"])


def test_an_estimator_goes_on_with_offsets(frame):
    X, y, offset = frame[["x", "z"]], frame["counts"].to_numpy(), frame["log_e"].to_numpy()
    reg = SparrowRegressor(loss="poisson", n_estimators=4, warm_start=True, base_score=0.5)
    reg.fit(X, y, offset=offset)
    reg.set_params(n_estimators=7).fit(X, y, offset=offset)
    assert (reg.model_.n_trees, reg.model_.base_score) == (7, np.log(0.5))
    more = SparrowRegressor(loss="poisson", n_estimators=2)
    assert more.fit(X, y, offset=offset, init_model=reg).model_.n_trees == 9


def test_a_dataset_has_offsets_of_its_own(frame):
    given = {"label": "counts", "exclude": "any", "offset": "log_e", "task": "regression"}
    dataset = ingest(frame, verbose=0, **given)
    reg = SparrowRegressor(loss="poisson", n_estimators=3).fit(dataset)
    assert reg.model_.offset_name == "log_e"
    with pytest.raises(DataError, match=r"offset=None"):
        reg.fit(dataset, offset=np.zeros(N))
