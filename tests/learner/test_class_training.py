"""Training on more than two classes, from a table to a model and what is done with it."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import accuracy_score, average_precision_score, log_loss, roc_auc_score

import sparrowboost
from builders import forbid_endless_scans, listen, recorded
from constants import set_constants
from sparrowboost import (
    DataError,
    History,
    SparrowClassifier,
    load_model,
    write_report,
)
from sparrowboost.cli import main
from sparrowboost.learner.events import SampleDrawn, TreeAdded
from sparrowboost.learner.soundness import SoundnessMonitor
from sparrowboost.model.losses import LEAF_L2
from sparrowboost.model.softmax import MAX_STEP, class_probabilities
from sparrowboost.store.views import folds

cv, ingest, train, evaluate, write_predictions = (
    partial(call, verbose=0)
    for call in (
        sparrowboost.cv, sparrowboost.ingest, sparrowboost.train, sparrowboost.evaluate,
        sparrowboost.write_predictions,
    )
)  # fmt: skip

LABELS = np.array(["blue", "green", "red"])
K = len(LABELS)
HOW = {"n_estimators": 12, "max_leaves": 6, "learning_rate": 0.3}
SAMPLED = {"sample_size": 2_000, "theta": 0.8}
both = pytest.mark.parametrize("sampled", [{}, SAMPLED], ids=["whole", "drawn"])


@pytest.fixture(autouse=True)
def no_hanging(monkeypatch):
    forbid_endless_scans(monkeypatch)


def make_rows(n=6_000, seed=0):
    """Rows of four numbers, the last of which says nothing, and classes; red is less frequent."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)).astype(np.float32)
    odds = np.column_stack((X[:, 0], -X[:, 0] + (X[:, 1] > 0), 1.5 * X[:, 1] * (X[:, 2] > 0) - 1.5))
    return X, LABELS[(1.5 * odds + rng.gumbel(size=odds.shape)).argmax(axis=1)]


@pytest.fixture(scope="module")
def data():
    X, y = make_rows()
    return ingest(X, label=y)


@pytest.fixture(scope="module")
def fresh():
    return make_rows(20_000, 1)


@pytest.fixture(scope="module")
def frame():
    """The rows as a table, with a category."""
    X, y = make_rows(3_000)
    kind = pd.Categorical(np.where(X[:, 2] > 0, "up", "down"))
    return pd.DataFrame(X, columns=list("abcd")).assign(kind=kind, y=y)


@pytest.fixture(scope="module")
def of_frame(frame):
    return train(ingest(frame, label="y"), **HOW)


def loss_of(model, rows):
    X, y = rows
    return log_loss(y, model.predict_proba(X), labels=LABELS)


# -- what is learned ------------------------------------------------------------------------------


def test_leaves_have_the_newton_steps_of_softmax(data):
    """The naive twin: probabilities, gradients and steps of each round from the one before."""
    model = train(data, **HOW)
    X, y = make_rows()
    mine = y[:, None] == LABELS
    score = np.log(mine.mean(0)) * np.ones((len(y), 1))
    p = class_probabilities(score)
    unit = (p**2 * (1 - p) ** 2).sum(0) / (p * (1 - p)).sum(0) * K / (K - 1)
    np.testing.assert_allclose(model.base_score, score[0], rtol=1e-6)
    for number, leaves in enumerate(model.apply(X).reshape(len(y), -1, K).transpose(1, 2, 0)):
        p = class_probabilities(score)
        g, h = mine - p, K / (K - 1) * p * (1 - p)
        for c in range(K):
            tree = model.trees[number * K + c]
            sums = [np.bincount(leaves[c], each[:, c], tree.n_leaves) for each in (g, h)]
            step = np.clip(sums[0] / (sums[1] + LEAF_L2 * unit[c]), -MAX_STEP, MAX_STEP)
            np.testing.assert_allclose(tree.value, 0.3 * step, rtol=2e-3, atol=2e-4)
            score[:, c] += tree.value[leaves[c]]
    np.testing.assert_allclose(model.decision_function(X), score, atol=1e-4)


@both
def test_a_model_is_as_good_as_scikit_learns(data, fresh, sampled):
    X, y = make_rows()
    other = HistGradientBoostingClassifier(
        max_iter=20, max_leaf_nodes=6, learning_rate=0.3, early_stopping=False
    )
    theirs = log_loss(fresh[1], other.fit(X, y).predict_proba(fresh[0]))
    model, events = listen(data, **{**HOW, "n_estimators": 20}, **sampled)
    n_draws = sum(isinstance(event, SampleDrawn) for event in events)
    assert (n_draws > 2) == bool(sampled)
    # 2,000 rows know less than 6,000.
    assert loss_of(model, fresh) < (1.05 if sampled else 1.01) * theirs


def test_a_class_of_one_row_in_eight_thousand_is_learned_on_draws():
    n, n_rare = 400_000, 50
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    y = np.where(X[:, 0] + 0.3 * rng.normal(size=n) > 0, "more", "less")
    y[:n_rare], X[:n_rare, 1] = "rare", X[:n_rare, 1] + 4
    rows = ingest(X, label=y)
    model = train(rows, n_estimators=15, max_leaves=4, learning_rate=0.3, sample_size=30_000)
    p = model.predict_proba(X)
    # By their gradients alone, four of the rare rows would be in a sample.
    assert roc_auc_score(y == "rare", p[:, 2]) > 0.99
    assert 0.5 < p[:, 2].sum() / n_rare < 2
    assert roc_auc_score(y == "more", p[:, 1]) > 0.97


def test_classes_of_noise_get_no_tree_on_draws():
    """A false first tree has a chance of 0.001 a round: of 40 tables of noise, 0.04 have one."""
    false = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        shares = rng.dirichlet(np.full(5, 0.7))
        y = np.r_[np.arange(5), rng.choice(5, 5_000, p=shares)]  # each class has a row
        rows = ingest(rng.normal(size=(len(y), 3)), label=y.astype(str))
        model = train(rows, n_estimators=1, sample_size=1_500)
        false += sum(tree.n_leaves > 1 for tree in model.trees) > 0
    assert false <= 1  # more by chance in one run of 1,000


def test_classes_without_a_tree_are_told(caplog):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 3))
    y = np.where(X[:, 0] > 1, "high", np.char.add("k", (np.arange(20_000) % 60).astype(str)))
    rows, few, history = ingest(X, label=y), {**HOW, "n_estimators": 2}, History()
    model = train(rows, **few, sample_size=1_500, callbacks=[history])
    without = sum(all(tree.n_leaves == 1 for tree in model.trees[c::61]) for c in range(61))
    assert 0 < without < 61
    (message,) = caplog.messages
    assert message.startswith(f"{without} of 61 classes got no tree: in samples of 1,5")
    assert " tells them ('k0', 'k1', " in message and ", ...) from" in message
    of_report = SoundnessMonitor.of(history.samples, history.trees, 61, model)
    assert list(of_report.doubts()) == [message]
    caplog.clear()
    train(rows, **few)  # all rows: no tree needs to stand out
    train(rows, **few, init_model=model, sample_size=1_500, callbacks=[lambda _: True])
    assert caplog.messages == []


def test_a_class_of_twenty_rows_gets_trees_on_all_rows_and_is_named_on_draws(caplog):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(10_000, 2)).astype(np.float32)
    y = np.where(X[:, 0] > 0, "more", "less")
    y[:20], X[:20, 1] = "rare", X[:20, 1] + 7
    rows, few = ingest(X, label=y), {**HOW, "n_estimators": 5}
    drawn, whole = train(rows, **few, sample_size=1_500), train(rows, **few)
    assert all(tree.n_leaves == 1 for tree in drawn.trees[2::3])
    (message,) = caplog.messages
    assert "tells them ('rare') from the others" in message and "40 rows needs all" in message
    # The class keeps its share of the rows; trees are grown on all rows without proof.
    np.testing.assert_allclose(drawn.predict_proba(X)[:20, 2], 20 / 10_000, rtol=0.5)
    assert whole.predict_proba(X)[:20, 2].mean() > 0.1


@both
def test_blocks_in_pieces_are_the_same_rows(data, fresh, sampled, monkeypatch):
    one = train(data, **HOW, **sampled)
    set_constants(monkeypatch, piece_bytes=4 * K * 300)  # 300 rows, of blocks of 1,000 and more
    many, events = listen(data, **HOW, **sampled)
    if sampled:
        off = [event.label_deviation for event in events if isinstance(event, SampleDrawn)]
        assert len(off) > 2 and np.abs(off).max() < 5
        assert loss_of(many, fresh) == pytest.approx(loss_of(one, fresh), rel=0.03)
    else:
        assert many.digest == one.digest


# -- going on -------------------------------------------------------------------------------------


class CrashError(Exception):
    pass


@both
def test_a_training_that_crashes_gives_the_same_model(data, tmp_path, monkeypatch, sampled):
    set_constants(monkeypatch, chunk_rows=100, save_seconds=0.0)

    def crash(event):
        if isinstance(event, TreeAdded) and event.n_trees == 7:
            raise CrashError

    straight = train(data, **HOW, **sampled)
    with pytest.raises(CrashError):
        train(data, **HOW, **sampled, checkpoint=tmp_path / "run", callbacks=[crash])
    resumed, events = listen(data, **HOW, **sampled, checkpoint=tmp_path / "run")
    assert resumed.digest == straight.digest
    assert events[0].n_trees > 0, "began anew"


def test_two_halves_are_the_whole(data, frame):
    whole = train(data, **HOW)
    half = train(data, **{**HOW, "n_estimators": 6})
    again = train(data, **{**HOW, "n_estimators": 6}, init_model=half)
    X, _ = make_rows()
    assert again.n_trees == whole.n_trees == 12
    np.testing.assert_allclose(again.decision_function(X), whole.decision_function(X), atol=1e-5)
    warm = SparrowClassifier(n_estimators=3, warm_start=True, random_state=0)
    features, y = frame.drop(columns="y"), frame["y"]
    warm.fit(features, y).set_params(n_estimators=6).fit(features, y)
    straight = SparrowClassifier(n_estimators=6, random_state=0).fit(features, y)
    np.testing.assert_allclose(
        warm.predict_proba(features), straight.predict_proba(features), atol=1e-5
    )


# -- validation -----------------------------------------------------------------------------------


def test_training_stops_early_and_the_last_set_decides(data, fresh):
    X, y = fresh
    sets = [(X[:500], y[:500]), (X[500:1_500], y[500:1_500], np.linspace(0.1, 2, 1_000))]
    how = {**HOW, "n_estimators": 150, "learning_rate": 1.0, "early_stopping_rounds": 4}
    history, _ = recorded(data, valid=sets, **how)
    of_sets = history.scores["log_loss"]
    best = int(np.argmin(of_sets))
    assert len(of_sets) < 150
    model = train(data, valid=sets, **how)
    assert model.n_trees == best + 1
    expected = log_loss(sets[1][1], model.predict_proba(sets[1][0]), sample_weight=sets[1][2])
    assert of_sets[best] == pytest.approx(expected, rel=1e-4)
    first = log_loss(sets[0][1], model.predict_proba(sets[0][0]))
    assert history.other_scores[0]["log_loss"][best] == pytest.approx(first, rel=1e-4)


def test_cross_validation_scores_are_those_of_training_on_each_fold(data):
    how = {**HOW, "n_estimators": 3}
    result = cv(data, n_folds=2, **how)
    assert result.metric == "log_loss"
    for (rows, valid), curve in zip(folds(data, 2, 0), result.scores["log_loss"], strict=True):
        history = History()
        train(rows, valid=valid, callbacks=[history], **how)
        assert history.scores["log_loss"] == curve.tolist()


# -- parameters that say what trees may be --------------------------------------------------------


def test_trees_use_the_features_that_were_drawn_or_may_interact(data):
    model = train(data, **HOW, colsample_bytree=0.5)
    assert all(len(set(tree.feature.tolist())) <= 2 for tree in model.trees)
    assert {int(f) for tree in model.trees for f in tree.feature} >= {0, 1, 2}
    alone = train(data, **HOW, interaction_constraints="no_interactions")
    assert all(len(set(tree.feature.tolist())) <= 1 for tree in alone.trees)
    with pytest.raises(DataError, match="monotone"):
        train(data, **HOW, monotone_constraints={"f0": 1})


# -- what is done with a model --------------------------------------------------------------------


def test_the_stages_and_leaves_of_an_estimator(frame):
    features, y = frame.drop(columns="y"), frame["y"]
    clf = SparrowClassifier(n_estimators=4, max_leaves=4).fit(features, y)
    stages = list(clf.staged_predict_proba(features))
    assert len(stages) == 4
    np.testing.assert_array_equal(stages[-1], clf.predict_proba(features))
    np.testing.assert_array_equal(
        list(clf.staged_predict(features))[-1], clf.classes_[stages[-1].argmax(axis=1)]
    )
    losses = [log_loss(y, stage) for stage in stages]
    assert losses == sorted(losses, reverse=True)
    leaves = clf.apply(features).reshape(len(y), 4 * K)
    values = np.stack([t.value[leaves[:, i]] for i, t in enumerate(clf.model_.trees)], axis=1)
    score = clf.model_.base_score + values.reshape(len(y), 4, K).sum(axis=1)
    np.testing.assert_allclose(clf.decision_function(features), score, atol=1e-5)


def test_an_evaluation_is_that_of_scikit_learn(of_frame, frame):
    p, y = of_frame.predict_proba(frame), frame["y"]
    found = evaluate(of_frame, frame, label="y")
    assert found.log_loss == pytest.approx(log_loss(y, p), rel=1e-6)
    assert found.accuracy == accuracy_score(y, LABELS[p.argmax(axis=1)])
    for c, of_class in enumerate(found.classes):
        assert of_class.label == LABELS[c]
        assert of_class.auc == pytest.approx(roc_auc_score(y == LABELS[c], p[:, c]), abs=1e-4)
        ap = average_precision_score(y == LABELS[c], p[:, c])
        assert of_class.average_precision == pytest.approx(ap, abs=1e-3)


def test_predictions_are_written_and_a_file_has_the_model(of_frame, frame, tmp_path):
    write_predictions(of_frame, frame, tmp_path / "p.parquet", keep=["a"])
    written = pd.read_parquet(tmp_path / "p.parquet")
    numbers = written.select_dtypes("float").drop(columns="a").to_numpy()
    np.testing.assert_allclose(numbers, of_frame.predict_proba(frame), rtol=1e-6)
    of_frame.save_model(tmp_path / "m.json")
    assert load_model(tmp_path / "m.json").digest == of_frame.digest


def test_xgboost_has_the_same_margins_probabilities_and_shap_values(of_frame, frame, tmp_path):
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    of_frame.to_xgboost(tmp_path / "x.json", data=frame)
    booster = xgboost.Booster(model_file=tmp_path / "x.json")
    rows = xgboost.DMatrix(of_frame.xgboost_frame(frame))
    margin = booster.predict(rows, output_margin=True)
    np.testing.assert_allclose(margin, of_frame.decision_function(frame), atol=1e-5)
    np.testing.assert_allclose(booster.predict(rows), of_frame.predict_proba(frame), atol=1e-6)
    shap = booster.predict(rows, pred_contribs=True)  # (n, K, d + 1), the last of the base score
    assert shap.shape == (len(frame), K, 6)
    np.testing.assert_allclose(shap.sum(axis=2), margin, atol=1e-4)
    assert np.abs(shap[:, :, 3]).mean() < 0.1 * np.abs(shap[:, :, 0]).mean()  # d says nothing


def test_commands_train_evaluate_predict_and_export(frame, tmp_path, capsys):
    frame.to_csv(tmp_path / "t.csv", index=False)
    source, model = str(tmp_path / "t.csv"), str(tmp_path / "m.json")
    few = ["--n-estimators", "5", "--learning-rate", "0.3", "-q"]
    assert main(["train", source, "--label", "y", *few, "-o", model]) == 0
    assert main(["evaluate", model, source, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    p = load_model(model).predict_proba(source)
    assert said["log_loss"] == pytest.approx(log_loss(frame["y"], p), rel=1e-6)
    assert main(["predict", model, source, "-o", str(tmp_path / "p.csv"), "-q"]) == 0
    written = pd.read_csv(tmp_path / "p.csv").select_dtypes("float").to_numpy()
    np.testing.assert_allclose(written, p, atol=1e-6)
    assert main(["export", model, "-o", str(tmp_path / "x.json"), "--data", source]) == 0
    exported = json.loads((tmp_path / "x.json").read_text())
    assert exported["learner"]["objective"]["name"] == "multi:softprob"


def test_a_report_and_plots_are_drawn(data, fresh, tmp_path):
    from sparrowboost import plots

    valid = fresh[0][:500], fresh[1][:500]
    history, events = recorded(data, valid=valid, **HOW, **SAMPLED)
    again = History.from_json(json.loads(json.dumps(history.to_json(), allow_nan=False)))
    assert vars(again) == vars(history)
    model = next(event.model for event in reversed(events) if isinstance(event, TreeAdded))
    write_report(tmp_path / "r.html", model, history, dataset=data)
    page = (tmp_path / "r.html").read_text()
    assert "3 classes" in page and "'red'" in page.replace("&#x27;", "'")
    for plot in (plots.plot_training, plots.plot_draws):
        ax = Figure().add_subplot()
        plot(history, ax=ax)
        assert ax.lines or ax.collections or ax.child_axes
