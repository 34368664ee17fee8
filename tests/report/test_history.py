from __future__ import annotations

import gc
import json
import weakref

import numpy as np
import pytest

from builders import DRAWN, made_rows, recorded
from constants import set_constants
from sparrowboost import DataError, History, train
from sparrowboost.learner.events import SampleDrawn, TreeAdded
from sparrowboost.report.history import SAMPLES, TOTALS, TREES


def test_a_history_holds_what_the_events_told(dataset):
    history, events = recorded(dataset, valid=made_rows(2_000, 1), eval_metric="auc", **DRAWN)
    trees = [event for event in events if isinstance(event, TreeAdded)]
    drawn = [event for event in events if isinstance(event, SampleDrawn)]
    assert len(trees) == 25
    assert len(drawn) > 2
    assert history.trees == {name: [getattr(event, name) for event in trees] for name in TREES}
    assert set(history.scores) == {"log_loss", "exponential_loss", "auc"}
    for name, column in history.scores.items():
        assert column == [event.scores[name] for event in trees]
    assert history.evals_result == {"valid": history.scores}
    for name in ("n_trees", "seconds", "reason", "n_eff", "strata"):
        assert history.samples[name] == [getattr(event, name) for event in drawn]
    assert history.samples["rows"] == [event.sample_rows for event in drawn]
    assert history.totals.pop("peak_bytes") > 10_000_000
    assert history.totals == {name: getattr(events[-1], name) for name in TOTALS}
    assert history.totals["rows_kept"] == sum(history.samples["rows"])
    assert history.reason == "n_estimators"


def test_without_validation_there_are_no_scores(dataset):
    history, _ = recorded(dataset, n_estimators=2)
    assert history.scores == history.evals_result == {}


def test_a_history_keeps_no_model(dataset):
    models = []

    def remember(event):
        if isinstance(event, TreeAdded):
            models.append(weakref.ref(event.model))

    history = History()
    train(dataset, callbacks=[history, remember], n_estimators=5, verbose=0)
    gc.collect()
    assert len(models) == len(history.trees["gamma"]) == 5
    assert all(model() is None for model in models)


def test_a_history_comes_back_from_json(dataset):
    history, _ = recorded(dataset, valid=made_rows(2_000, 1), **DRAWN)
    again = History.from_json(json.loads(json.dumps(history.to_json(), allow_nan=False)))
    assert vars(again) == vars(history)
    assert all(isinstance(k, int) for of in again.samples["strata"] for k in of)


def test_json_that_was_taken_does_not_change_as_training_goes_on(dataset):
    history, taken = History(), []

    def take(event):
        if event.n_trees == 2:
            taken.append(history.to_json())

    train(dataset, callbacks=[history, take], n_estimators=5, verbose=0)
    assert taken[0]["trees"]["n_trees"] == [1, 2]


@pytest.mark.parametrize("data", [{}, {"format": "sparrow-model"}, [], None])
def test_what_is_no_history_is_refused(data):
    with pytest.raises(DataError, match="not the history"):
        History.from_json(data)


@pytest.mark.parametrize("version", [0, 3, "2", None])
def test_a_history_of_another_version_is_refused(version):
    with pytest.raises(DataError, match=f"version {version}"):
        History.from_json(History().to_json() | {"version": version})


# As Sparrow wrote it before samples looked back.
VERSION_1 = """
{"format": "sparrow-history", "version": 1,
 "trees": {"n_trees": [1], "seconds": [0.5], "gamma": [0.2], "gamma_certified": [0.1],
           "n_eff": [90.0], "sample_rows": [100], "rows_scanned": [100], "rows_read": [400],
           "bytes_read": [1200], "n_rules": [3], "n_proved": [2], "run_rows": [100]},
 "scores": {"log_loss": [0.6]},
 "samples": {"n_trees": [0, 1], "seconds": [0.1, 0.6], "reason": ["first", "passes"],
             "rows": [100, 120], "n_eff": [99.0, 80.0], "strata": [{"-1": 50.0}, {"-2": 20.5}]},
 "totals": {"n_trees": 1, "seconds": 0.7, "rows_scanned": 100, "rows_read": 500, "rows_kept": 220,
            "n_samples": 2, "bytes_read": 1500, "peak_bytes": 123456789},
 "reason": "n_estimators"}
"""


def test_a_history_of_version_1_is_read_with_nothing_where_it_had_no_columns():
    data = json.loads(VERSION_1)
    history = History.from_json(data)
    assert data == json.loads(VERSION_1)
    assert repr(history) == "History(1 tree, 2 samples, reason='n_estimators')"
    assert history.trees == data["trees"]
    assert tuple(history.samples) == SAMPLES
    for name in SAMPLES:
        if name not in data["samples"]:
            assert history.samples[name] == [None, None]
        elif name != "strata":
            assert history.samples[name] == data["samples"][name]
    assert history.samples["strata"] == [{-1: 50.0}, {-2: 20.5}]
    again = history.to_json()
    assert again["version"] == 2
    assert vars(History.from_json(again)) == vars(history)


def test_a_second_training_starts_a_history_afresh(dataset):
    history = History()
    for n_estimators in (7, 3):
        train(dataset, callbacks=[history], n_estimators=n_estimators, verbose=0, **{
            "valid": made_rows(500, 1)
        } if n_estimators == 7 else {})  # fmt: skip
    assert history.trees["n_trees"] == [1, 2, 3]
    assert history.samples["n_trees"] == [0]
    assert history.scores == {}


def test_a_training_that_was_interrupted_leaves_its_history(dataset):
    def interrupt(event):
        if event.n_trees == 4:
            raise KeyboardInterrupt

    history = History()
    with pytest.raises(KeyboardInterrupt):
        train(dataset, callbacks=[history, interrupt], verbose=0)
    assert history.reason is None
    assert history.trees["n_trees"] == [1, 2, 3, 4]
    assert history.totals["n_trees"] == 4
    assert repr(history) == "History(4 trees, 1 sample, reason=None)"


# -- the strata -----------------------------------------------------------------------------------


def test_strata_hold_the_weight_of_all_data_before_the_first_tree(dataset):
    history, _ = recorded(dataset, **DRAWN)
    # Under the base score a row weighs the share of the other label, and each label half of the
    # total. So has the sample 1,500 rows of each, all of one weight, with a deviation of at most
    # sqrt(3000) / 2 = 27 rows, 2 %.
    share = dataset.n_positive / dataset.n_rows
    expected = {}
    for p, n in ((share, dataset.n_positive), (1 - share, dataset.n_rows - dataset.n_positive)):
        k = int(np.floor(np.log2(1 - p)))
        expected[k] = expected.get(k, 0) + n * (1 - p)
    assert history.samples["strata"][0] == pytest.approx(expected, rel=0.08)


def test_strata_of_later_draws_are_those_of_the_true_weights(dataset):
    history = History()
    model = train(dataset, callbacks=[history], verbose=0, **DRAWN)
    X, y = made_rows()
    margin = np.where(y, 1, -1)
    used = history.samples["n_trees"]
    assert len(used) > 2
    # A draw is for the model of some tree since the draw before: the true weights are between.
    for before, after, strata in zip(used, used[1:], history.samples["strata"][1:], strict=False):
        totals = []
        for n_trees in range(before, after + 1):
            w = 1 / (1 + np.exp(margin * model.decision_function(X, n_trees=n_trees)))
            k = np.floor(np.log2(w)).astype(int)
            totals.append([w[k == stratum].sum() for stratum in sorted(strata)])
        low, high = np.min(totals, 0), np.max(totals, 0)
        found = np.array([strata[k] for k in sorted(strata)])
        # A stratum of a share s of the weight has s * 3000 rows, with a deviation of at most the
        # root of that; a row has 1 / 3000 of the weight.
        spare = 5 * np.sqrt(found * found.sum() / 3_000) + 5 * found.sum() / 3_000
        assert (found > low - spare).all()
        assert (found < high + spare).all()


def test_strata_do_not_depend_on_threads(dataset, monkeypatch):
    set_constants(monkeypatch, sample_block_rows=512)
    one, two = (recorded(dataset, n_jobs=n_jobs, **DRAWN)[0] for n_jobs in (1, 2))
    assert one.samples["strata"] == two.samples["strata"]
    assert len(one.samples["strata"]) > 2


def test_where_all_rows_are_in_memory_there_are_no_strata(dataset):
    history, _ = recorded(dataset, n_estimators=2)
    assert history.samples["strata"] == [{}]
