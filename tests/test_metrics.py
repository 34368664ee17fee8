from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.metrics import log_loss as sklearn_log_loss

from sparrowboost.losses import probability
from sparrowboost.metrics import auc, average_precision, exponential_loss, log_loss


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
