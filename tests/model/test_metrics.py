from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import (
    average_precision_score,
    mean_absolute_error,
    mean_poisson_deviance,
    mean_squared_error,
    r2_score,
    roc_auc_score,
)
from sklearn.metrics import log_loss as sklearn_log_loss

from sparrowboost import Params
from sparrowboost.model.losses import LOSSES, probability
from sparrowboost.model.metrics import (
    METRICS,
    auc,
    average_precision,
    default_metric,
    exponential_loss,
    log_loss,
    regression_scores,
    regression_sums,
)
from sparrowboost.model.regression import REGRESSION_LOSSES, Huber, Poisson, SquaredError


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
        if metric.regression:
            continue
        assert metric.name == name and Params(eval_metric=name).eval_metric == name
        good, bad = (metric.compute(label, s, None) for s in (score, -score))
        assert metric.better(good, bad) and not metric.better(bad, good)
        assert metric.better(good, metric.worst) and not metric.better(good, good)
        assert metric.best([bad, good, float("nan"), good]) == 1


# -- numbers -----------------------------------------------------------------------------------


@pytest.fixture(params=["plain", "weighted"])
def numbers(request):
    """Targets far from 0, scores near them, and weights."""
    rng = np.random.default_rng(0)
    y = rng.normal(1e4, 3, 2_000).astype(np.float32)
    score = (y + rng.normal(0, 2, 2_000)).astype(np.float32)
    return y, score, rng.random(2_000).astype(np.float32) if request.param == "weighted" else None


def test_metrics_of_numbers_are_those_of_scikit_learn(numbers):
    y, score, weight = numbers
    got = {
        name: metric.compute(y, score, weight, SquaredError())
        for name, metric in METRICS.items()
        if metric.regression
    }
    squared = mean_squared_error(y, score, sample_weight=weight)
    assert got["rmse"] == pytest.approx(squared**0.5)
    assert got["loss"] == pytest.approx(squared / 2)
    assert got["mae"] == pytest.approx(mean_absolute_error(y, score, sample_weight=weight))
    assert got["r2"] == pytest.approx(r2_score(y, score, sample_weight=weight))


def test_sums_of_blocks_add_up_to_those_of_all_rows(numbers):
    y, score, weight = numbers
    blocks = [slice(0, 300), slice(300, None)]
    parts = [
        regression_sums(
            y[rows], score[rows], Huber(1.0), None if weight is None else weight[rows], 1e4
        )
        for rows in blocks
    ]
    whole = regression_sums(y, score, Huber(1.0), weight, 1e4)
    assert regression_scores(sum(parts)) == pytest.approx(regression_scores(whole))


def test_metrics_of_a_logarithm_are_of_the_predictions():
    y, loss = np.array([1, 2, 5], np.float32), Poisson()
    score = np.log(np.array([2, 2, 4], np.float32))
    got = {name: METRICS[name].compute(y, score, None, loss) for name in ("mae", "rmse", "loss")}
    deviance = mean_poisson_deviance(y, np.exp(score.astype(np.float64)))
    assert got == pytest.approx({"mae": 2 / 3, "rmse": (2 / 3) ** 0.5, "loss": deviance / 2})


def test_numbers_that_are_all_the_same_have_no_r2():
    y = np.full(5, 3, np.float32)
    assert np.isnan(METRICS["r2"].compute(y, y + 1, None, SquaredError()))


def test_the_default_metric_is_what_the_loss_minimises():
    assert {default_metric(loss) for loss in LOSSES} == {"log_loss"}
    assert {default_metric(loss) for loss in REGRESSION_LOSSES} == {"rmse", "mae", "loss"}
    assert default_metric("squared_error") == "rmse" and default_metric("absolute_error") == "mae"
    assert all(METRICS[default_metric(loss)].regression for loss in REGRESSION_LOSSES)


def test_metrics_of_numbers_know_which_direction_is_better(numbers):
    y, score, _ = numbers
    for metric in METRICS.values():
        if metric.regression:
            good, bad = (metric.compute(y, s, None, SquaredError()) for s in (score, score + 9))
            assert metric.better(good, bad) and not metric.better(bad, good)
