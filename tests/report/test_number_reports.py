"""Histories, plots and reports of models of numbers."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest

from builders import DRAWN, made_rows, recorded
from sparrowboost import DataError, History, ingest, train, write_report
from sparrowboost.learner.soundness import SoundnessMonitor

pytest.importorskip("matplotlib", reason="a report has pictures, which need matplotlib")
from matplotlib.figure import Figure

from sparrowboost import plots


def rows(n=6_000, seed=0):
    X, _ = made_rows(n, seed)
    noise = np.random.default_rng(seed).normal(size=n)
    return X, 5 + X[:, 0] + X[:, 1] * (X[:, 2] > 0) + noise


@pytest.fixture(scope="module")
def dataset():
    X, y = rows()
    return ingest(X, label=y, task="regression", verbose=0)


@pytest.fixture(scope="module")
def run(dataset):
    """A model and a history of several samples, with validation."""
    history, events = recorded(dataset, valid=rows(1_000, 1), **DRAWN)
    assert len(history.samples["n_trees"]) > 2
    return next(event.model for event in reversed(events) if hasattr(event, "model")), history


def axes():
    return Figure().add_subplot()


def words_of(ax):
    """All that is written on a plot and on those in it."""
    every = [ax, *ax.child_axes, *ax.figure.axes]
    found = [text.get_text() for one in every for text in one.texts]
    found += [label for one in every for label in (one.get_ylabel(), one.get_xlabel())]
    found += [t.get_text() for one in every if one.legend_ for t in one.legend_.get_texts()]
    return " | ".join(found)


def test_a_history_of_numbers_comes_back_from_json(run):
    history = run[1]
    assert (history.task, history.eval_metric) == ("regression", "rmse")
    again = History.from_json(json.loads(json.dumps(history.to_json(), allow_nan=False)))
    assert vars(again) == vars(history)


def test_undefined_scores_are_null_in_json_and_no_reason_to_fail(dataset, tmp_path):
    X, _ = rows(500, 1)
    history = History()
    valid = X, np.full(500, 3.0)
    model = train(dataset, valid=valid, n_estimators=3, callbacks=[history], verbose=0)
    assert np.isnan(history.scores["r2"]).all()
    data = json.loads(json.dumps(history.to_json(), allow_nan=False))
    assert data["scores"]["r2"] == [None] * 3
    again = History.from_json(data)
    assert again.scores["rmse"] == history.scores["rmse"]
    np.testing.assert_array_equal(again.scores["r2"], history.scores["r2"])
    assert "R2" not in words_of(plots.plot_training(again, axes()))
    page = write_report(tmp_path / "a.html", model, again).read_text()
    assert re.search(r"<td>R2</td>.*undefined", page)
    with pytest.raises(DataError, match="labels of the validation data are 3, for which R2 is"):
        train(dataset, valid=valid, eval_metric="r2", n_estimators=1, verbose=0)


@pytest.mark.parametrize(
    ("loss", "metric", "left"),
    [("squared_error", "auto", "RMSE"), ("absolute_error", "auto", "MAE"), ("huber", "loss",
     "mean loss")],
)  # fmt: skip
def test_the_score_that_decides_is_drawn_with_r2(dataset, loss, metric, left):
    history, _ = recorded(
        dataset, valid=rows(1_000, 1), loss=loss, eval_metric=metric, n_estimators=5
    )
    words = words_of(plots.plot_training(history, axes()))
    assert left in words and "R2" in words and "log loss" not in words
    best = min(history.scores[{"RMSE": "rmse", "MAE": "mae"}.get(left, "loss")])
    assert f"{best:.4g} at tree" in words
    history, _ = recorded(dataset, valid=rows(1_000, 1), eval_metric="r2", n_estimators=5)
    assert f"{max(history.scores['r2']):.4g} at tree" in words_of(
        plots.plot_training(history, axes())
    )


def test_draws_are_of_low_and_of_high_labels(run):
    words = words_of(plots.plot_draws(run[1], axes()))
    assert "rows of low labels" in words and "rows of high labels" in words
    assert "negative" not in words and "positive" not in words


def test_a_report_of_numbers_speaks_of_numbers(run, dataset, tmp_path):
    page = write_report(
        tmp_path / "a.html", *run, dataset=dataset, params={"loss": "squared_error"}
    ).read_text()
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", page,
                  flags=re.S)))  # fmt: skip
    low, high = dataset.target_span
    assert f"6,000 rows of 4 features; labels are numbers from {low:g} to {high:g}." in text
    history = run[1]
    best = min(history.scores["rmse"])
    assert f"{best:.4g} best validation RMSE, at tree" in text
    assert f"{max(history.scores['r2']):.4g} best validation R2, at tree" in text
    assert "labels numbers from" in text and "loss squared_error" in text
    assert page.count("<svg") == 5
    for word in ("positive", "negative", "log loss", "coin", "AUC"):
        assert word not in text, word


def test_a_report_shows_the_options_of_a_loss(dataset, tmp_path):
    history = History()
    how = {"loss": "quantile", "alpha": 0.25}
    model = train(dataset, n_estimators=2, callbacks=[history], verbose=0, **how)
    page = write_report(tmp_path / "a.html", model, history, params=how).read_text()
    assert "quantile (alpha=0.25)" in page
    assert "<dt>labels</dt><dd>numbers</dd>" in page
    assert re.search(r'<dt>alpha</dt><dd class="changed">0\.25</dd>', page)


def test_a_draw_that_is_off_is_told_in_words_for_numbers(run):
    history = run[1]
    samples = history.samples | {"deviation_positive": [0.0] * 5 + [9.0]}
    samples = {name: (column * 6)[:6] for name, column in samples.items()}
    samples["deviation_positive"][5] = 9.0
    (doubt, *_) = SoundnessMonitor.of(samples, history.trees, 0).doubts()
    assert "stands for more rows of high labels than there are" in doubt
    assert "with the numbers of rows and features of the data" in doubt
    (doubt, *_) = SoundnessMonitor.of(samples, history.trees).doubts()
    assert "more positive rows than there are" in doubt and "positives of the data" in doubt


def test_columns_of_a_history_are_a_table(run):
    frame = pd.DataFrame(run[1].trees | run[1].scores)
    assert frame["rmse"].iloc[-1] < frame["rmse"].iloc[0]
    assert frame["gamma"].between(0, 0.5).all()
