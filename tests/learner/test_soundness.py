from __future__ import annotations

import logging
import tracemalloc

import numpy as np
import pytest

from builders import DRAWN, recorded
from constants import set_constants
from sparrowboost import History, Model
from sparrowboost.learner.events import Converged, Finished, SampleDrawn, TreeAdded
from sparrowboost.learner.soundness import SoundnessMonitor, label_deviation
from sparrowboost.sampling.lookback import LookBack
from sparrowboost.sampling.sampler import Sampler
from sparrowboost.store.binning import Binning


def drawn_of(dataset, **kwargs):
    """Train; the samples' events and the history."""
    history, events = recorded(dataset, **kwargs)
    return [event for event in events if isinstance(event, SampleDrawn)], history


# -- how far a draw is from the rows there are ----------------------------------------------------


def naive_deviation(copies, label, rows):
    found = []
    for y in (0, 1):
        c = [float(c) for c, of in zip(copies, label, strict=True) if of == y]
        variance = sum(c * (c - 1) for c in c)
        found.append((sum(c) - rows[y]) / variance**0.5 if variance > 0 else 0.0)
    return tuple(found)


@pytest.mark.parametrize("n", [0, 1, 63, 64, 1_000])
def test_the_deviation_of_labels_is_that_of_the_naive_sum(n, monkeypatch):
    set_constants(monkeypatch, soundness_part_rows=64)
    rng = np.random.default_rng(n)
    copies = (1 / rng.uniform(0.01, 1, n)).astype(np.float32)
    label = (rng.random(n) < 0.2).astype(np.uint8)
    rows = (5_000, 700)
    found = label_deviation(copies, label, rows)
    assert found == pytest.approx(naive_deviation(copies, label, rows))
    assert all(type(of) is float for of in found)


def test_draws_of_independent_rows_deviate_by_one_standard_deviation():
    rng = np.random.default_rng(0)
    chance = rng.uniform(0.02, 0.5, 20_000)
    label = (rng.random(20_000) < 0.3).astype(np.uint8)
    rows = (int((label == 0).sum()), int(label.sum()))
    found = []
    for _ in range(400):
        drawn = rng.random(20_000) < chance
        found.append(label_deviation((1 / chance[drawn]).astype("f4"), label[drawn], rows))
    # Of 400 draws, the mean deviates by 1 / 20, and the deviation by 1 / sqrt(800) = 0.035.
    assert np.abs(np.mean(found, 0)).max() < 0.2
    np.testing.assert_allclose(np.std(found, 0), 1, atol=0.15)


def test_rows_that_stand_for_themselves_do_not_deviate():
    label = np.array([0, 0, 1], np.uint8)
    assert label_deviation(np.ones(3, np.float32), label, (2, 1)) == (0.0, 0.0)
    # One that is 1 but for rounding has a variance below 0.
    assert label_deviation(np.full(3, 0.99999994, np.float32), label, (2, 1)) == (0.0, 0.0)


def test_the_deviation_of_many_rows_takes_little_memory():
    n = 1 << 22
    copies, label = np.full(n, 2, np.float32), np.zeros(n, np.uint8)
    tracemalloc.start()
    try:
        assert label_deviation(copies, label, (2 * n, 0)) == (0.0, 0.0)
        assert tracemalloc.get_traced_memory()[1] < n
    finally:
        tracemalloc.stop()


# -- what events and the history have of it -------------------------------------------------------


def test_each_sample_tells_how_far_its_draw_is_off(dataset, monkeypatch):
    seen = []

    def remember(copies, label, rows):
        seen.append((copies.copy(), label.copy(), rows))
        return label_deviation(copies, label, rows)

    monkeypatch.setattr("sparrowboost.learner.notifier.label_deviation", remember)
    drawn, history = drawn_of(dataset, **DRAWN)
    assert len(drawn) > 2
    true = (dataset.n_rows - dataset.n_positive, dataset.n_positive)
    for event, (copies, label, rows) in zip(drawn, seen, strict=True):
        assert tuple(rows) == true
        assert len(copies) == event.sample_rows
        assert event.label_deviation == pytest.approx(naive_deviation(copies, label, true))
        assert max(np.abs(event.label_deviation)) < 5
    columns = history.samples["deviation_negative"], history.samples["deviation_positive"]
    assert list(zip(*columns, strict=True)) == [event.label_deviation for event in drawn]


def test_later_samples_look_back_at_the_trees_before(dataset):
    drawn, history = drawn_of(dataset, **DRAWN | {"theta": 0.6, "n_estimators": 60})
    assert drawn[0].look is None
    looks = [event.look for event in drawn if event.look is not None]
    assert looks
    for look in looks:
        assert isinstance(look, LookBack)
        assert 0 < look.n_trees < 60
        assert 0 <= look.gamma_certified <= look.gamma <= 0.5
        assert 0 < look.error < 0.1
    for name in LookBack._fields:
        column = history.samples["look_trees" if name == "n_trees" else name]
        assert column == [event.look and getattr(event.look, name) for event in drawn]


def test_where_all_rows_are_in_memory_nothing_is_off_or_looked_back_at(dataset):
    drawn, _ = drawn_of(dataset, n_estimators=3)
    assert [(event.look, event.label_deviation) for event in drawn] == [(None, (0.0, 0.0))]


# -- warnings -------------------------------------------------------------------------------------

WHERE = {
    "seconds": 1.0, "rows_scanned": 1, "rows_read": 1, "rows_kept": 1, "n_samples": 2,
    "bytes_read": 1, "sample_rows": 1, "n_eff": 1.0,
}  # fmt: skip
GOOD = LookBack(5, 0.01, 0.009, 0.001, 0.02, 0.01, 0.02)
BAD = LookBack(5, 0.01, 0.0049, 0.001, 0.02, 0.0, 0.02)


def sample(n_trees=0, deviation=(0.0, 0.0), look=None):
    return SampleDrawn(
        n_trees=n_trees, reason="rules", strata={0: 1.0}, look=look, label_deviation=deviation,
        **WHERE,
    )  # fmt: skip


def tree(n_rules, n_proved):
    return TreeAdded(
        n_trees=1, model=Model(Binning(()), (0, 1), "logistic", 0.0), gamma=0.1,
        gamma_certified=0.0, n_rules=n_rules, n_proved=n_proved,
        run_rows=10, scores={}, **WHERE,
    )  # fmt: skip


def warned(events, caplog, end=Finished):
    """What is logged by the end of a training, and the same from its history."""
    auditor, history = SoundnessMonitor(), History()
    for event in events:
        auditor(event)
        history(event)
    assert caplog.records == [], "a warning before the end"
    auditor(end(n_trees=9, reason="converged", **WHERE))
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    assert list(SoundnessMonitor.of(history.samples, history.trees).doubts()) == caplog.messages
    return caplog.messages


def test_a_draw_that_stands_for_too_many_rows_is_told_once(caplog):
    events = [sample(0), sample(10, (5.2, 0.0)), sample(1200, (-1.0, 7.25)), sample(1300, (6, 6))]
    (message,) = warned(events, caplog)
    assert "after 1,200 trees stands for more positive rows" in message
    assert "by 7.2 standard deviations" in message
    assert "please report it" in message


@pytest.mark.parametrize("deviation", [(5.0, 4.9), (-100.0, -6.0)])
def test_what_chance_or_very_light_rows_do_to_draws_is_not_told(deviation, caplog):
    assert warned([sample(0), sample(3, deviation, GOOD)], caplog) == []


@pytest.mark.parametrize("end", [Finished, Converged])
def test_samples_that_are_too_small_are_told(end, caplog):
    events = [sample(), tree(50, 0), sample(1, look=GOOD), tree(50, 0), sample(2, look=BAD)]
    (message,) = warned([*events, sample(3)], caplog, end)
    assert "0 of 100 splits were proved" in message
    assert "0.01 on the rows that they were grown on, but by 0.0049 on fresh" in message
    for remedy in ("memory_limit", "learning_rate", "fewer trees"):
        assert remedy in message


@pytest.mark.parametrize(
    ("trees", "looks"),
    [
        ([(99, 0)], [BAD]),  # too few splits to say anything
        ([(50, 0), (50, 1)], [BAD]),  # 1 % are proved
        ([(100, 0)], [BAD, GOOD]),  # the last look counts
        ([(100, 0)], [LookBack(5, 0.01, 0.005, 0.001, 0.02, 0.0, 0.02)]),  # half is not less
        ([(100, 0)], []),  # all rows in memory, or one sample
    ],
)
def test_samples_that_may_do_are_not_complained_of(trees, looks, caplog):
    events = [sample(), *(tree(*of) for of in trees), *(sample(1, look=look) for look in looks)]
    assert warned(events, caplog) == []


def test_a_sound_training_says_nothing(dataset, caplog):
    drawn, _ = drawn_of(dataset, **DRAWN)
    assert len(drawn) > 2
    assert caplog.messages == []


def test_a_training_whose_draws_are_off_warns_at_its_end(dataset, monkeypatch, caplog):
    # As if each row had come twice.
    monkeypatch.setattr(Sampler, "band_rows", dataset.band_rows // 2)
    drawn_of(dataset, **DRAWN)
    (message,) = caplog.messages
    assert message.startswith("a draw is off: the sample put in use after ")


def test_a_history_of_an_older_sparrow_is_not_complained_of():
    data = History().to_json() | {"version": 1}
    data["samples"] |= {"n_trees": [0, 5], "strata": [{}, {}]}
    data["samples"] |= {name: [0, 0] for name in ("seconds", "reason", "rows", "n_eff")}
    data["trees"] |= {"n_rules": [100], "n_proved": [0]}
    older = History.from_json(data)
    assert list(SoundnessMonitor.of(older.samples, older.trees).doubts()) == []
