from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrowboost import DataError
from sparrowboost.model.losses import LEAF_L2, MAX_STEP
from sparrowboost.model.regression import (
    MAX_DERIVATIVE,
    MAX_LOG,
    REGRESSION_LOSSES,
    AbsoluteError,
    Gamma,
    Huber,
    Poisson,
    Quantile,
    SquaredError,
    Tweedie,
    fit_loss,
    quantile,
    regression_loss,
)

LOSSES = [
    SquaredError(), AbsoluteError(), Huber(1.5), Quantile(0.9), Quantile(0.25), Poisson(), Gamma(),
    Tweedie(1.1), Tweedie(1.9),
]  # fmt: skip
BY_ROWS = [loss for loss in LOSSES if loss.by_rows]
BY_SUMS = [loss for loss in LOSSES if not loss.by_rows]


def name_of(loss):
    return "-".join([loss.name, *(f"{value:g}" for value in loss.options.values())])


every = pytest.mark.parametrize("loss", LOSSES, ids=name_of)


def targets(loss, n, seed=0):
    """Targets that the loss allows; where it allows zeros, a third of them."""
    rng = np.random.default_rng(seed)
    if not loss.log_link:
        return rng.normal(3, 2, n).astype(np.float32)
    y = rng.lognormal(0.5, 1, n).astype(np.float32)
    return y if isinstance(loss, Gamma) else np.where(rng.random(n) < 1 / 3, 0, y).astype("f4")


def slope(loss, y, score, step=1e-5):
    return (loss.losses(y, score - step) - loss.losses(y, score + step)) / (2 * step)


def lowest(total, low, high):
    """Where a function with one minimum has it, by trying ever finer grids."""
    for _ in range(12):
        grid = np.linspace(low, high, 41)
        best = int(np.argmin([total(x) for x in grid]))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, 40)]
    return (low + high) / 2


# -- derivatives ---------------------------------------------------------------------------------


@every
def test_derivatives_are_those_of_the_loss(loss):
    y = targets(loss, 20_000)  # more than are computed at once
    score = np.random.default_rng(1).normal(1, 1.5, len(y)).astype(np.float32)
    g, h = loss.derivatives(y, score)
    assert g.dtype == h.dtype == np.float32
    # Where the slope jumps, or its slope does, no difference quotient tells it.
    kinks = np.abs(np.abs(y - score)[:, None] - [0, loss.options.get("delta", 0)]).min(1)
    smooth = slice(None) if loss.log_link else kinks > 1e-3
    y, score = y[smooth].astype(np.float64), score[smooth].astype(np.float64)
    np.testing.assert_allclose(g[smooth], slope(loss, y, score), rtol=1e-5, atol=1e-5)
    bend = (slope(loss, y, score - 1e-3) - slope(loss, y, score + 1e-3)) / 2e-3
    if loss.log_link:
        np.testing.assert_allclose(h[smooth], bend, rtol=1e-4, atol=1e-4)
    else:
        assert (h == 1).all() and bend.max() < 1 + 1e-4  # a bound of it, or a count of rows


@every
@pytest.mark.parametrize("size", [20, 60, 87])
def test_derivatives_are_right_for_extreme_scores(loss, size):
    y, score = targets(loss, 100), np.repeat([-size, size], 50).astype(np.float32)
    g, h = loss.derivatives(y, score)
    assert np.isfinite(g).all() and np.isfinite(h).all() and (h >= 0).all()
    exact = slope(loss, y.astype(np.float64), score.astype(np.float64))
    exact = np.clip(exact, -MAX_DERIVATIVE, MAX_DERIVATIVE)
    # The difference of two losses has 16 digits of the larger one, over a step of 2e-5.
    size = np.abs(loss.losses(y, score)) * 1e-10
    np.testing.assert_allclose(g / (1 + size), exact / (1 + size), rtol=1e-5, atol=1e-5)


@every
@given(y=st.floats(0, 2.0**127, width=32), score=st.floats(-(2.0**126), 2.0**126, width=32))
def test_derivatives_and_predictions_are_finite_whatever_the_score(loss, y, score):
    if isinstance(loss, Gamma) and y == 0:
        y = 1e-45
    y, score = np.array([y], np.float32), np.array([score], np.float32)
    g, h = loss.derivatives(y, score)
    assert np.isfinite(g).all() and np.isfinite(h).all() and (h >= 0).all()
    assert np.isfinite(loss.predictions(score)).all()
    assert not np.isnan(loss.losses(y, score)).any()


@every
def test_a_loss_is_zero_where_the_prediction_is_right_and_positive_elsewhere(loss):
    y = targets(loss, 500)
    y = y[y > 0] if loss.log_link else y
    score = np.log(y.astype(np.float64)) if loss.log_link else y.astype(np.float64)
    np.testing.assert_allclose(loss.predictions(score.astype(np.float32)), y, rtol=1e-6)
    np.testing.assert_allclose(loss.losses(y, score), 0, atol=1e-12)
    assert (loss.losses(y, score + 0.1) > 0).all() and (loss.losses(y, score - 0.1) > 0).all()


# -- base score, leaves --------------------------------------------------------------------------


@every
def test_the_base_score_is_the_constant_with_the_lowest_loss(loss):
    y, w = targets(loss, 401), np.random.default_rng(1).random(401).astype(np.float32)
    for weight in (None, w):
        base = loss.base_score(y, weight)
        best = lowest(lambda F, w=weight: np.average(loss.losses(y, F), weights=w), -5, 10)
        if isinstance(loss, Huber):  # one step from the median: near the best

            def mean(F, w=weight):
                return np.average(loss.losses(y, F), weights=w)

            # 45 % of the rows are beyond delta: as much of the way to the best is left, and the
            # square of it of the loss.
            assert mean(base) - mean(best) < 0.25 * (mean(quantile(y, weight, 0.5)) - mean(best))
        else:
            assert base == pytest.approx(best, abs=2e-3)


@pytest.mark.parametrize("loss", BY_SUMS, ids=name_of)
def test_a_leaf_takes_the_step_with_the_lowest_loss(loss):
    y, rng = targets(loss, 300), np.random.default_rng(2)
    score = (loss.base_score(y) + rng.normal(0.5, 0.3, 300)).astype(np.float32)
    w = rng.random(300)
    g, h = loss.derivatives(y, score)
    unit = 1e-9 / LEAF_L2  # nothing shrinks the value
    step = loss.steps([w @ g], [w @ h], unit)
    assert step.shape == (1,) and step.dtype == np.float64
    best = lowest(lambda s: w @ loss.losses(y, score + s), -MAX_STEP, MAX_STEP)
    assert step[0] == pytest.approx(best, abs=1e-4)


def test_leaves_are_shrunk_as_by_some_rows_without_error():
    assert SquaredError().steps(10.0, 7.0, unit=1.0) == pytest.approx(10 / (7 + LEAF_L2))
    assert SquaredError().steps(20.0, 14.0, unit=2.0) == pytest.approx(10 / (7 + LEAF_L2))
    # 12 events where 6 were expected.
    step = Poisson().steps(6.0, 6.0, unit=0.5)
    assert step == pytest.approx(np.log((12 + LEAF_L2 / 2) / (6 + LEAF_L2 / 2)))


@pytest.mark.parametrize("loss", BY_SUMS, ids=name_of)
@given(st.lists(st.tuples(*[st.floats(0, 1e30)] * 2), min_size=1), st.floats(1e-6, 1e6))
def test_steps_are_finite_and_go_where_the_gradient_does(loss, sums, unit):
    up, down = np.array(sums).T
    p = getattr(loss, "p", 1)
    g, h = up - down, (p - 1) * up + (2 - p) * down
    step = loss.steps(g, h, unit)
    assert np.isfinite(step).all()
    assert (step * g >= 0).all()
    assert not loss.log_link or (np.abs(step) <= MAX_STEP).all()


@pytest.mark.parametrize("loss", BY_SUMS, ids=name_of)
def test_an_empty_leaf_is_worth_nothing(loss):
    np.testing.assert_array_equal(loss.steps(np.zeros(3), np.zeros(3), 0.0), 0)
    np.testing.assert_array_equal(loss.steps(np.zeros(3), np.zeros(3), 1.0), 0)


def test_a_leaf_of_zero_counts_takes_a_bounded_step():
    step = Poisson().steps([-5e6], [5e6])
    assert step == -MAX_STEP


@pytest.mark.parametrize("loss", BY_ROWS, ids=name_of)
@pytest.mark.parametrize("n", [1, 2, 9, 10, 100])
def test_the_rows_of_a_leaf_give_the_value_with_the_lowest_loss(loss, n):
    rng = np.random.default_rng(n)
    r, w = rng.standard_t(2, n).astype(np.float32), rng.random(n).astype(np.float32)
    for weight in (None, w):

        def total(s, w=weight):
            return np.average(loss.losses(r, s), weights=w)

        value = loss.leaf_value(r, weight)
        best = lowest(total, float(r.min()), float(r.max()))
        if isinstance(loss, Huber):
            assert total(value) <= total(quantile(r, weight, 0.5)) + 1e-12
            assert total(value) <= total(best) * 1.02 + 1e-12
        else:
            assert total(value) <= total(best) + 1e-9


@pytest.mark.parametrize("loss", BY_ROWS, ids=name_of)
def test_a_leaf_without_rows_is_worth_nothing(loss):
    empty = np.empty(0, np.float32)
    assert loss.leaf_value(empty) == loss.leaf_value(empty, empty) == 0
    assert loss.leaf_value(np.ones(2, np.float32), np.zeros(2, np.float32)) == 0


@every
def test_weights_are_repeated_rows(loss):
    y, times = targets(loss, 200), np.random.default_rng(3).integers(0, 5, 200)
    w, many = times.astype(np.float32), np.repeat(y, times)
    assert loss.base_score(y, w) == pytest.approx(loss.base_score(many), rel=1e-12)
    if loss.by_rows:
        assert loss.leaf_value(y, w) == pytest.approx(loss.leaf_value(many), rel=1e-12)
    assert Huber.of(0.9, y, w).delta == pytest.approx(Huber.of(0.9, many).delta)


def test_targets_of_zero_only_have_a_finite_base_score():
    for loss in (Poisson(), Tweedie(1.5)):
        base = loss.base_score(np.zeros(1_000, np.float32))
        assert np.exp(base) == pytest.approx(0.5 / 1_000)  # as if half a row had a 1


# -- quantiles -----------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 4)), min_size=1, max_size=30),
    st.sampled_from([0.05, 0.1, 0.25, 0.3, 0.5, 0.7, 0.9, 0.95]),
)
def test_a_quantile_is_the_middle_of_the_numbers_with_the_lowest_pinball_loss(rows, level):
    values, weight = np.array(rows, np.float64).T
    if weight.sum() == 0:
        return
    there = values[weight > 0]
    loss = Quantile(level)
    total = np.array([weight @ loss.losses(values, value) for value in there])
    best = there[total <= total.min() + 1e-9]  # the loss is flat between two values at most
    got = quantile(values, weight, level)
    assert got == (best.min() + best.max()) / 2
    assert quantile(np.repeat(values, weight.astype(int)), None, level) == got


# -- options and targets -------------------------------------------------------------------------


def test_every_loss_comes_back_from_its_name_and_options():
    assert {type(loss).name for loss in LOSSES} == set(REGRESSION_LOSSES)
    for loss in LOSSES:
        assert regression_loss(loss.name, loss.options) == loss


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("logistic", {}, "loss='logistic' is unknown; regression has squared_error, absolute_"),
        ("quantile", {}, "loss='quantile' needs alpha; given: none"),
        ("poisson", {"alpha": 0.5}, "loss='poisson' needs no option; given: alpha"),
        ("quantile", {"alpha": 1.0}, r"alpha=1\.0: give a number above 0 and below 1"),
        ("tweedie", {"power": 2}, "power=2: give a number above 1 and below 2"),
        ("huber", {"delta": 0.0}, r"delta=0\.0: give a number above 0\."),
        ("huber", {"delta": float("nan")}, "delta=nan: give"),
        ("huber", {"delta": float("inf")}, "delta=inf: give"),
    ],
)
def test_an_option_that_a_loss_does_not_have_is_refused(name, options, match):
    with pytest.raises(DataError, match=match):
        regression_loss(name, options)


def test_training_begins_with_the_options_that_users_give():
    y = targets(SquaredError(), 999)
    given = {"alpha": 0.8, "power": 1.3}
    assert fit_loss("quantile", y, **given) == Quantile(0.8)
    assert fit_loss("tweedie", y, **given) == Tweedie(1.3)
    assert fit_loss("poisson", y, **given) == Poisson()
    delta = fit_loss("huber", y, **given).delta
    assert np.mean(np.abs(y - np.median(y)) <= delta) == pytest.approx(0.8, abs=2e-3)
    with pytest.raises(DataError, match="alpha"):
        fit_loss("quantile", y, alpha=2.0, power=1.5)


def test_huber_needs_labels_that_differ():
    y = np.array([0.0] * 95 + [7.0] * 5, np.float32)
    with pytest.raises(DataError, match=r"alpha=0\.9 .* equals the median\. Pass a larger alpha"):
        Huber.of(0.9, y)
    assert Huber.of(0.99, y).delta == 7


@pytest.mark.parametrize(
    ("loss", "low", "match"),
    [
        (Poisson(), -2.0, "'y' has the value -2; loss='poisson' needs labels of 0 or more. Remove"),
        (Tweedie(1.5), -0.5, "has the value -0.5; loss='tweedie' needs .* or use loss='squared_e"),
        (Gamma(), -1.0, "has the value -1; loss='gamma' needs labels above 0"),
        (Gamma(), 0.0, "has the value 0; loss='gamma' needs .* or use loss='tweedie' or loss='sq"),
    ],
)
def test_labels_that_a_loss_does_not_allow_are_refused(loss, low, match):
    with pytest.raises(DataError, match=match):
        loss.check(low, 10.0, "y")


def test_labels_that_a_loss_allows_are_not_refused():
    for loss in LOSSES:
        loss.check(0.5, 10.0, "y")
    for loss in (SquaredError(), AbsoluteError(), Huber(1.0), Quantile(0.5)):
        loss.check(-10.0, 10.0, "y")
    Poisson().check(0.0, 1.0, "y")
    Tweedie(1.5).check(0.0, 1.0, "y")


def test_predictions_of_a_logarithm_are_positive():
    score = np.array([-200, -1, 0, 1, 200], np.float32)
    got = Poisson().predictions(score)
    assert got.dtype == np.float32 and (got > 0).all()
    np.testing.assert_allclose(got, np.exp(np.clip(score, -MAX_LOG, MAX_LOG)), rtol=1e-6)
    assert Quantile(0.5).predictions(score) is score
