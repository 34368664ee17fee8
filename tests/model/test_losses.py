from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrowboost import DataError
from sparrowboost.model.losses import (
    LEAF_L2,
    LOSSES,
    MAX_MARGIN,
    MAX_STEP,
    base_score,
    get_loss,
    probability,
)

NAMES = sorted(LOSSES)


def weigh(name, label, u, score):
    label, u, score = np.asarray(label, np.uint8), np.float32(u), np.float32(score)
    w, total = np.empty(len(label), np.float32), np.empty(2)
    get_loss(name).weigh(label, u, score, w, total)
    return w, total


def exact_weight(name, label, u, score):
    """The losses' formulas in float64."""
    margin = np.where(np.asarray(label), 1.0, -1.0) * np.float64(score)
    u = np.float64(u)
    return u / (1 + np.exp(2 * margin)) if name == "logistic" else u * np.exp(-margin)


def minus_derivative(name, label, u, score, h=1e-5):
    """How fast a row's loss falls when its margin grows."""

    def loss(score):
        margin = np.where(label, score, -score)
        return u * (np.logaddexp(0, -2 * margin) if name == "logistic" else np.exp(-margin))

    return np.abs(loss(score + h) - loss(score - h)) / (2 * h)


@pytest.mark.parametrize("name", NAMES)
def test_weights_follow_their_formula(name):
    rng = np.random.default_rng(0)
    label, u = rng.integers(0, 2, 5_000), rng.lognormal(size=5_000).astype(np.float32)
    score = rng.normal(0, 4, 5_000).astype(np.float32)
    w, total = weigh(name, label, u, score)
    exact = exact_weight(name, label, u, score)
    # float32 has 24 bits; the argument of exp, up to 30, is rounded too: 30 * 2**-24 = 2e-6. Of
    # the logistic loss 16 bits are kept.
    rtol = 2e-5 if name == "logistic" else 5e-6
    np.testing.assert_allclose(w, exact, rtol=rtol)
    np.testing.assert_allclose(total, [w.sum(dtype=float), (w.astype(float) ** 2).sum()])


@pytest.mark.parametrize("name", NAMES)
def test_a_weight_is_what_the_loss_falls_by(name):
    # The logistic loss falls by 2 w: its factor is the same for all rows and changes no tree.
    label, score = np.array([0, 1, 1, 0]), np.array([0.5, 0.5, -2.0, 1.5])
    u = np.array([1.0, 2.0, 0.5, 3.0])
    factor = 2 if name == "logistic" else 1
    w, _ = weigh(name, label, u, score)
    np.testing.assert_allclose(factor * w, minus_derivative(name, label, u, score), rtol=2e-5)


def test_no_row_weighs_more_than_its_importance_under_the_logistic_loss():
    score = np.array([-1e30, -100, -40, 0, 40, 100, 1e30], np.float32)
    w, _ = weigh("logistic", np.ones(7), np.full(7, 3.0), score)
    assert (w <= 3).all()
    np.testing.assert_allclose(w[:2], 3)
    assert (w[-2:] < 1e-30).all()


def test_exponential_weights_stay_finite_whatever_the_score():
    score = np.array([-1e30, -1e4, 1e4, 1e30], np.float32)
    w, total = weigh("exponential", np.ones(4), np.full(4, 1e-3), score)
    assert np.isfinite(w).all()
    assert np.isfinite(total).all()
    np.testing.assert_allclose(w[0], 1e-3 * np.exp(MAX_MARGIN), rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_leaf_value_is_the_best_step_of_rows_that_weigh_alike(name):
    # 30 positives and 10 negatives at score 0. Exponential: half the log odds, half a row added
    # to each side. Logistic: a Newton step, (15 - 5) / (2 (20 - 10) + 3), w = 1/2 for every row.
    if name == "logistic":
        value = get_loss(name).leaf_values(np.array([[5.0, 15.0, 10.0]]), 1.0)
        assert value[0] == pytest.approx(10 / (20 + LEAF_L2))
    else:
        value = get_loss(name).leaf_values(np.array([[10.0, 30.0, 40.0]]), 1.0)
        assert value[0] == pytest.approx(0.5 * np.log(30.5 / 10.5))


@pytest.mark.parametrize("name", NAMES)
@given(st.lists(st.tuples(*[st.floats(0, 1e30)] * 2), min_size=1), st.floats(1e-6, 1e6))
def test_a_leaf_value_is_finite_and_bounded_whatever_its_sums(name, sums, unit):
    # sum w**2 / u lies between 0 and the sum of w, as w is at most u (logistic).
    rows = np.array([(a, b, share * (a + b)) for a, b in sums for share in (0, 0.5, 1)])
    value = get_loss(name).leaf_values(rows, unit)
    assert np.isfinite(value).all()
    assert (np.abs(value) <= MAX_STEP).all()
    assert (value * np.sign(rows[:, 1] - rows[:, 0]) >= 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_leaf_is_worth_nothing(name):
    assert get_loss(name).leaf_values(np.zeros((1, 3)), 1.0)[0] == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_leaf_of_one_label_takes_the_longest_step_there_is(name):
    value = get_loss(name).leaf_values(np.array([[0.0, 500.0, 499.99], [500.0, 0.0, 499.99]]), 1.0)
    np.testing.assert_allclose(value, [MAX_STEP, -MAX_STEP])


@pytest.mark.parametrize("name", NAMES)
def test_the_base_score_is_the_constant_with_the_lowest_loss(name):
    # There the two labels weigh the same: to move either way is to lose by one what the other wins.
    label = np.repeat([0, 1], [970, 30])
    best = base_score(970, 30)
    w, _ = weigh(name, label, np.ones(1_000), np.full(1_000, best))
    assert w[label == 1].sum() == pytest.approx(w[label == 0].sum(), rel=1e-4)


def test_the_probability_of_the_base_score_is_the_share_of_positives():
    assert probability(np.array([base_score(970, 30)]))[0] == pytest.approx(0.03)


def test_probabilities_never_overflow():
    p = probability(np.array([-1e30, -400, 0, 400, 1e30], np.float32))
    np.testing.assert_allclose(p, [0, 0, 0.5, 1, 1], atol=1e-300)


def test_an_unknown_loss_is_refused_with_a_list():
    with pytest.raises(DataError, match="loss='hinge' is unknown; give one of logistic"):
        get_loss("hinge")
