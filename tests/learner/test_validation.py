from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

from builders import assert_same_trees, listen, make_model, make_stump, recorded
from constants import set_constants
from sparrowboost import DataError, History, MemoryLimitError, ingest, plan, train
from sparrowboost.learner.events import Finished, TreeAdded
from sparrowboost.learner.validation import Validation, make_validation, validation_row_bytes
from sparrowboost.readers.options import ReadOptions
from sparrowboost.runtime.threads import WorkerPool
from sparrowboost.store.views import split


def make_frame(n, seed, flipped=0.0):
    """A label that two of three columns tell, some of its values turned round."""
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=(2, n))
    color = rng.choice(["red", "green", "blue"], n)
    y = (x + z + (color == "red") + rng.normal(size=n) > 0.5) ^ (rng.random(n) < flipped)
    return pd.DataFrame({"x": x, "z": z, "color": color, "y": np.where(y, "yes", "no")})


@pytest.fixture(scope="module")
def dataset():
    return ingest(make_frame(2_000, 0, flipped=0.1), label="y", verbose=0)


@pytest.fixture(scope="module")
def valid():
    return make_frame(3_000, 1, flipped=0.1)


def scores_of(events, name):
    return [event.scores[name] for event in events if isinstance(event, TreeAdded)]


def test_scores_are_those_of_scikit_learn_after_every_tree(dataset, valid):
    model, events = listen(dataset, valid=valid, n_estimators=8, eval_metric="auc")
    label = (valid["y"] == "yes").to_numpy()
    for n_trees in (1, 4, 8):
        scores = events[n_trees].scores
        h = model.decision_function(valid, n_trees=n_trees).astype(float) / 2
        p = model.predict_proba(valid, n_trees=n_trees)[:, 1]
        assert set(scores) == {"log_loss", "auc", "exponential_loss"}
        assert scores["log_loss"] == pytest.approx(log_loss(label, p))
        assert scores["auc"] == pytest.approx(roc_auc_score(label, p))
        assert scores["exponential_loss"] == pytest.approx(np.exp(np.where(label, -h, h)).mean())


def test_validation_data_may_come_in_any_form(dataset, valid, tmp_path):
    valid.to_parquet(tmp_path / "valid.parquet")
    valid.to_csv(tmp_path / "valid.csv", index=False)
    features = valid.drop(columns="y")
    forms = [
        valid,
        valid[["y", "color", "z", "x"]].assign(more=1.0),
        (features, valid["y"]),
        (features, valid["y"].tolist()),
        (valid, "y"),
        pa.Table.from_pandas(valid),
        tmp_path / "valid.parquet",
        str(tmp_path / "valid.csv"),
    ]
    found = [
        scores_of(listen(dataset, valid=form, n_estimators=3)[1], "log_loss") for form in forms
    ]
    assert len(found[0]) == 3
    for scores in found[1:]:
        assert scores == pytest.approx(found[0], rel=1e-6)


def test_arrays_may_be_validation_data_of_arrays():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1_000, 2))
    y = X[:, 0] + rng.normal(size=1_000) > 0
    _, events = listen(ingest(X, label=y, verbose=0), valid=(X, y), n_estimators=5)
    scores = scores_of(events, "log_loss")
    assert scores == sorted(scores, reverse=True)


def test_training_stops_when_the_score_has_not_improved_and_keeps_the_best_model(dataset, valid):
    rounds = 7
    kwargs = {"valid": valid, "n_estimators": 500, "learning_rate": 0.5}
    model, events = listen(dataset, early_stopping_rounds=rounds, **kwargs)
    scores = scores_of(events, "log_loss")
    best = int(np.argmin(scores)) + 1
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "early_stopping"
    assert model.n_trees == best < len(scores) == best + rounds < 500
    # What is kept predicts as the model did when it was best, and as one never trained further.
    p = model.predict_proba(valid)[:, 1]
    assert log_loss(valid["y"] == "yes", p) == pytest.approx(min(scores))
    shorter, _ = listen(dataset, n_estimators=best, learning_rate=0.5)
    assert_same_trees(model, shorter)


@pytest.mark.parametrize("weighted", [False, True])
def test_average_precision_is_that_of_scikit_learn_after_every_tree(dataset, valid, weighted):
    label = (valid["y"] == "yes").to_numpy()
    w = np.random.default_rng(3).random(len(valid)) if weighted else None
    data = valid.drop(columns="y"), valid["y"], *([w] if weighted else [])
    model, events = listen(dataset, valid=data, n_estimators=5, eval_metric="average_precision")
    for n_trees in (1, 3, 5):
        h = model.decision_function(valid, n_trees=n_trees)
        expected = average_precision_score(label, h, sample_weight=w)
        assert events[n_trees].scores["average_precision"] == pytest.approx(expected, rel=1e-5)


def test_metrics_that_rank_have_memory_for_it():
    sizes = {m: validation_row_bytes(10, m) for m in ("log_loss", "auc", "average_precision")}
    assert sizes["average_precision"] == sizes["auc"] > sizes["log_loss"]


@pytest.mark.parametrize("metric", ["auc", "average_precision", "exponential_loss", "log_loss"])
def test_the_best_is_the_highest_auc_and_the_lowest_loss(dataset, valid, metric):
    model, events = listen(
        dataset, valid=valid, n_estimators=60, early_stopping_rounds=5, eval_metric=metric,
        learning_rate=0.5,
    )  # fmt: skip
    scores = scores_of(events, metric)
    best = np.argmin(scores) if metric.endswith("loss") else np.argmax(scores)
    assert model.n_trees == best + 1


def test_without_early_stopping_all_trees_are_kept(dataset, valid):
    model, events = listen(dataset, valid=valid, n_estimators=40, learning_rate=1.0)
    assert model.n_trees == 40
    scores = scores_of(events, "log_loss")
    assert np.argmin(scores) < 39, "validation was best at the end: this tests nothing"
    assert events[-1].reason == "n_estimators"


def test_too_many_validation_rows_are_thinned_out_evenly(monkeypatch):
    set_constants(monkeypatch, validation_block_rows=100)
    n = 2_345
    X = np.arange(n, dtype=float)[:, None] % 250
    dataset = ingest(X, label=np.arange(n) % 3 == 0, verbose=0)
    model = make_model(dataset)
    everything = Validation((X, np.arange(n) % 3 == 0), model, "log_loss", 10**9)
    assert everything.n_rows == n
    row_bytes = validation_row_bytes(1, "log_loss")
    for most in (1_200, 600, 300, 100):
        validation = Validation((X, np.arange(n) % 3 == 0), model, "log_loss", most * row_bytes)
        step = round(n / validation.n_rows)
        assert step in (2, 4, 8, 16, 32)
        assert validation.n_rows == len(range(0, n, step)) <= most
        # Every second, fourth, ... row of the source, not the first ones.
        np.testing.assert_array_equal(validation._bins, everything._bins[::step])
        np.testing.assert_array_equal(validation._label, everything._label[::step])


def test_scores_are_brought_up_to_date_by_the_new_trees_only(dataset, valid):
    model = make_model(dataset)
    validation = Validation(valid, model, "log_loss", 10**9)
    seen = []
    for k in range(3):
        model = model.with_tree(make_stump(0, range(100), 0.1 * k, -0.2))
        seen.append(validation.look(model)["log_loss"])
    label = (valid["y"] == "yes").to_numpy()
    assert seen[-1] == pytest.approx(log_loss(label, model.predict_proba(valid)[:, 1]))
    again = Validation(valid, model.first(0), "log_loss", 10**9)
    assert again.look(model)["log_loss"] == pytest.approx(seen[-1])


@pytest.mark.parametrize("metric", ["log_loss", "auc"])
def test_scores_are_the_same_to_the_bit_whoever_does_the_work(dataset, valid, metric, monkeypatch):
    set_constants(monkeypatch, validation_part_rows=100)
    model = train(dataset, n_estimators=5, verbose=0)
    with WorkerPool(3) as workers:
        seen = [
            Validation(valid, model.first(0), metric, 10**9, None, who).look(model)
            for who in (None, workers)
        ]
    assert seen[0] == seen[1]


def test_validation_data_that_lacks_a_column_is_refused(dataset, valid):
    for lacking in ("x", "y"):
        with pytest.raises(DataError, match=f"'{lacking}'"):
            train(dataset, valid=valid.drop(columns=lacking), verbose=0)


def test_validation_labels_that_training_has_never_seen_are_refused(dataset, valid):
    # Taken for negatives, they would make every score, and early stopping, meaningless.
    strange = valid.assign(y=np.where(valid["y"] == "yes", "Yes", "No"))
    with pytest.raises(DataError, match=r"Yes|No"):
        train(dataset, valid=strange, early_stopping_rounds=3, verbose=0)


@pytest.mark.parametrize(
    ("trained", "met"),
    [
        (["0", "1"], [0, 1]),
        ([0, 1], ["0", "1"]),
        (["False", "True"], [False, True]),
        ([False, True], ["false", "true"]),
    ],
)
def test_labels_may_be_typed_otherwise_than_in_training(valid, trained, met):
    positive = (valid["y"] == "yes").to_numpy().astype(int)
    rows, labels = valid[["x", "z"]], np.array(trained)[positive]
    data = ingest(rows, label=labels, verbose=0)
    expected = listen(data, valid=(rows, labels), n_estimators=3)[1]
    got = listen(data, valid=(rows, np.array(met)[positive]), n_estimators=3)[1]
    assert scores_of(got, "log_loss") == scores_of(expected, "log_loss")


def test_an_auc_of_one_label_is_refused(dataset, valid):
    # It has no value, and so no tree would be the best.
    only = valid[valid["y"] == "yes"]
    with pytest.raises(DataError, match="yes"):
        train(dataset, valid=only, eval_metric="auc", early_stopping_rounds=3, verbose=0)


def test_validation_leaves_no_file_behind(dataset, valid, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    valid.to_csv(tmp_path / "valid.csv", index=False)
    listen(dataset, valid=tmp_path / "valid.csv", n_estimators=2)
    assert [p.name for p in tmp_path.iterdir()] == ["valid.csv"]


def test_a_parquet_file_in_another_order_is_read_by_name(dataset, valid, tmp_path):
    table = pa.Table.from_pandas(valid).select(["y", "z", "color", "x"])
    pq.write_table(table, tmp_path / "v.parquet")
    a, b = (
        scores_of(listen(dataset, valid=form, n_estimators=2)[1], "log_loss")
        for form in (valid, tmp_path / "v.parquet")
    )
    assert a == pytest.approx(b)


def test_validation_sets_share_the_memory_by_their_rows(dataset):
    model = make_model(dataset)
    large, small = split(dataset, 0.1, 0)
    row_bytes = validation_row_bytes(3, "log_loss")
    both = make_validation(
        [large, small], model, "log_loss", 2_000 * row_bytes, None, WorkerPool(1), ReadOptions()
    )
    assert [each.n_rows for each in both._sets] == [large.n_rows, small.n_rows]


def test_the_plan_counts_every_validation_set(dataset, valid):
    def least(sets):
        with pytest.raises(MemoryLimitError) as refusal:
            plan(dataset, valid=sets, memory_limit="1MB")
        return int(re.search(r"validation \((\d+) KB\)", str(refusal.value))[1])

    assert least([valid, valid, valid]) == pytest.approx(3 * least([valid]), rel=0.01)
    assert least([valid]) == least(valid)


def test_a_list_of_paths_is_one_validation_set(dataset, valid, tmp_path):
    half = len(valid) // 2
    valid[:half].to_parquet(tmp_path / "a.parquet")
    valid[half:].to_parquet(tmp_path / "b.parquet")
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    one, _ = recorded(dataset, valid=paths, n_estimators=3)
    two, _ = recorded(dataset, valid=[(path, "y") for path in paths], n_estimators=3)
    assert list(one.evals_result) == ["valid"]
    assert list(two.evals_result) == ["valid_0", "valid_1"]
    again = History.from_json(json.loads(json.dumps(two.to_json())))
    assert again.evals_result == two.evals_result
    halves = [of["log_loss"][-1] for of in two.evals_result.values()]
    assert np.mean(halves) == pytest.approx(one.scores["log_loss"][-1])


def test_a_training_with_several_validation_sets_goes_on_from_a_checkpoint(
    dataset, valid, tmp_path, monkeypatch
):
    set_constants(monkeypatch, save_seconds=0.0)
    how = {"valid": [valid[:1_000], valid[1_000:]], "n_estimators": 8, "checkpoint": tmp_path / "c"}

    def crash(event):
        if event.n_trees == 5:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        recorded(dataset, **how | {"callbacks": [crash]})
    later, _ = recorded(dataset, **how)
    whole, _ = recorded(dataset, **how | {"checkpoint": None})
    n = len(later.trees["n_trees"])
    assert 0 < n < 8
    for name, scores in whole.evals_result.items():
        assert later.evals_result[name]["log_loss"] == pytest.approx(scores["log_loss"][-n:])
