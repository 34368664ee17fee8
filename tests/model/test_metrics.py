from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.metrics import log_loss as sklearn_log_loss

from sparrowboost import Params
from sparrowboost.model.losses import probability
from sparrowboost.model.metrics import (
    METRICS,
    auc,
    average_precision,
    exponential_loss,
    log_loss,
)


@pytest.fixture(params=["distinct", "ties", "rare"])
def rows(request):
    rng = np.random.default_rng(0)
    score = rng.normal(size=3_000).astype(np.float32)
    if request.param == "ties":
        score = score.round(1)
    shift = -4 if request.param == "rare" else 0
    label = (rng.random(3_000) < probability(score + shift)).astype(np.uint8)
    return label, score


def test_ranking_is_judged_as_scikit_learn_does(rows):
    label, score = rows
    assert auc(label, score) == pytest.approx(roc_auc_score(label, score))
    assert average_precision(label, score) == pytest.approx(average_precision_score(label, score))


def test_losses_are_those_of_their_formulas(rows):
    label, score = rows
    assert log_loss(label, score) == pytest.approx(sklearn_log_loss(label, probability(score)))
    y = 2.0 * label - 1
    assert exponential_loss(label, score) == pytest.approx(np.exp(-y * score).mean())


def test_extreme_scores_have_a_finite_loss():
    label, score = np.array([0, 1], np.uint8), np.array([1e6, -1e6], np.float32)
    assert np.isfinite(exponential_loss(label, score))
    assert log_loss(label, score) == pytest.approx(2e6)


def test_one_label_alone_has_no_ranking():
    score = np.arange(3.0)
    assert np.isnan(auc(np.ones(3, np.uint8), score))
    assert np.isnan(average_precision(np.zeros(3, np.uint8), score))


def test_weights_of_rows_count_as_in_scikit_learn(rows):
    label, score = rows
    weight = np.random.default_rng(1).integers(0, 4, len(label)).astype(np.float32)
    weight[np.argmax(score)] = 0  # nothing is known of precision at the highest score
    p, args = probability(score), (label, score, weight)
    assert auc(*args) == pytest.approx(roc_auc_score(label, score, sample_weight=weight))
    assert average_precision(*args) == pytest.approx(
        average_precision_score(label, score, sample_weight=weight)
    )
    assert log_loss(*args) == pytest.approx(sklearn_log_loss(label, p, sample_weight=weight))
    # A row of weight 3 is as three rows.
    again = np.repeat(np.arange(len(label)), weight.astype(int))
    for metric in (auc, average_precision, log_loss, exponential_loss):
        assert metric(*args) == pytest.approx(metric(label[again], score[again]))


def test_metrics_know_which_direction_is_better(rows):
    label, score = rows
    for name, metric in METRICS.items():
        assert metric.name == name and Params(eval_metric=name).eval_metric == name
        good, bad = (metric.compute(label, s, None) for s in (score, -score))
        assert metric.better(good, bad) and not metric.better(bad, good)
        assert metric.better(good, metric.worst) and not metric.better(good, good)
        assert metric.best([bad, good, float("nan"), good]) == 1
