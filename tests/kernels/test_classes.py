"""The kernels of several classes beside slow twins, and derivatives beside those of numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrowboost.kernels.classes import (
    add_class_falls,
    add_class_losses,
    fill_class_slopes,
    weigh_classes,
)

pytestmark = pytest.mark.kernel

seeds = st.integers(0, 2**32)
rows_of = st.integers(0, 600)  # of more than one tile
classes_of = st.sampled_from([2, 3, 5, 11])


def both(kernel):
    """A kernel as it is compiled, and as plain Python."""
    return kernel, kernel.py_func


def made(seed, n, k, *, by_row=False):
    """Classes and scores (k, n), some far apart; by row: the same memory transposed."""
    rng = np.random.default_rng(seed)
    score = rng.normal(size=(n, k)) * rng.choice([0.1, 1.0, 30.0, 200.0], (n, 1))
    score = score.astype(np.float32)
    target = rng.integers(0, k, n).astype(np.float32)
    return rng, target, score.T if by_row else np.ascontiguousarray(score.T)


def shares(score):
    """(k, n) the probabilities, in float64."""
    away = score.astype(np.float64) - score.max(axis=0, initial=-np.inf)
    return np.exp(away) / np.exp(away).sum(axis=0)


def losses(target, score):
    """(n,) -ln of the probability of each row's class."""
    score = score.astype(np.float64)
    top = score.max(axis=0, initial=-np.inf)
    own = score[target.astype(int), np.arange(score.shape[1])]
    return top + np.log(np.exp(score - top).sum(axis=0)) - own


def slopes(target, score):
    """(k, n) g and (k, n) h."""
    k, p = len(score), shares(score)
    return (target == np.arange(k)[:, None]) - p, k / (k - 1) * p * (1 - p)


def weighed(run, target, score, u, counted=False, factor=None, floor=0.5, scale=1.0):
    k, n = score.shape
    factor = np.ones(k, np.float32) if factor is None else factor
    norm, w = np.full((2, n), np.nan, np.float32)
    total, masses = np.full(2, np.nan), np.full((k, 5), np.nan)
    with np.errstate(all="ignore"):
        run(target, score, u, counted, factor, floor, scale, norm, w, total, masses)
    return norm, w, total, masses


@given(seeds, rows_of, classes_of, st.booleans(), st.booleans(), st.sampled_from([0.0, 0.5, 3.0]))
@settings(max_examples=30)
def test_weights_and_masses_are_those_of_the_formula(seed, n, k, by_row, counted, floor):
    rng, target, score = made(seed, n, k, by_row=by_row)
    u = (rng.integers(0, 257, n) if counted else rng.exponential(size=n)).astype(np.float32)
    g, h = slopes(target, score)
    factor = rng.exponential(size=k).astype(np.float32)
    w = u * 0.25 * np.sqrt(factor**2 @ (g**2 + (floor * h) ** 2))
    mass = 2 * u * h
    squares = mass**2
    if counted:
        squares = np.divide(squares, u, np.zeros_like(squares), where=u > 0)
    for run in both(weigh_classes) if n < 100 else (weigh_classes,):
        norm, got, total, masses = weighed(run, target, score, u, counted, factor, floor, 0.25)
        top = score.max(axis=0, initial=-np.inf).astype(np.float64)
        expected = top + np.log(np.exp(score.astype(np.float64) - top).sum(axis=0))
        np.testing.assert_allclose(norm, expected, rtol=1e-6, atol=1e-6)
        # Derivatives are rounded to 16 bits, and differences of probabilities near 1 to 24.
        np.testing.assert_allclose(got, w, rtol=2e-4, atol=1e-6 * u.max(initial=1))
        np.testing.assert_allclose(total, (w.sum(), (w**2).sum()), rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(masses[:, 0], mass.sum(1), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(masses[:, 1], squares.sum(1), rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(masses[:, 2], mass.max(1, initial=0), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(masses[:, 3], g**2 @ u, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(masses[:, 4], h**2 @ u, rtol=1e-3, atol=1e-4)


@given(seeds, st.integers(0, 60), classes_of)
@settings(max_examples=30)
def test_slopes_are_those_of_softmax(seed, n, k):
    rng, target, score = made(seed, n, k)
    u = rng.exponential(size=n).astype(np.float32)
    norm = weighed(weigh_classes, target, score, u)[0]
    g, h = slopes(target, score)
    for run in both(fill_class_slopes):
        for number in range(k):
            got = np.full((2, n), np.nan, np.float32)
            run(number, k, target, score[number], norm, u, *got)
            # The score less the norm is rounded to float32: of 200, to 1e-5.
            atol = 1e-4 * u.max(initial=1)
            np.testing.assert_allclose(got[0], u * g[number], rtol=1e-4, atol=atol)
            np.testing.assert_allclose(got[1], u * h[number], rtol=1e-4, atol=atol)


@pytest.mark.parametrize("k", [3, 7])
def test_slopes_are_the_fall_of_the_loss_for_a_small_step_of_a_score(k):
    _, target, score = made(0, 300, k)
    score = (score / 20).astype(np.float64)
    g, h = slopes(target, score)
    for number in range(k):
        up, down = score.copy(), score.copy()
        up[number] += 1e-4
        down[number] -= 1e-4
        low, here, high = (losses(target, s) for s in (down, score, up))
        np.testing.assert_allclose(g[number], (low - high) / 2e-4, atol=1e-6)
        curvature = (low - 2 * here + high) / 1e-8
        np.testing.assert_allclose(h[number], k / (k - 1) * curvature, atol=1e-6 / 1e-2)


@given(seeds, st.integers(1, 256), classes_of)
@settings(max_examples=30)
def test_a_row_of_importance_m_has_exactly_the_derivatives_of_m_rows(seed, m, k):
    _, target, score = made(seed, 8, k)
    of = {}
    for u in (1, m):
        rows = np.full(8, u, np.float32)
        norm, _, _, masses = weighed(weigh_classes, target, score, rows, counted=True)
        g, h = np.empty((2, 8), np.float32)
        fill_class_slopes(1, k, target, score[1], norm, rows, g, h)
        of[u] = g.astype(np.float64), h.astype(np.float64), masses[:, :2]
    for one, many in zip(of[1], of[m], strict=True):
        np.testing.assert_allclose(m * one, many, rtol=1e-12)


@given(seeds, rows_of, classes_of, st.booleans(), st.booleans())
@settings(max_examples=30)
def test_losses_and_what_is_right_are_those_of_all_rows(seed, n, k, by_row, is_weighted):
    rng, target, score = made(seed, n, k, by_row=by_row)
    score[:, : n // 3] = 0.5  # ties: the first class counts as predicted
    weight = rng.exponential(size=n).astype(np.float32) if is_weighted else np.empty(0, np.float32)
    w = weight.astype(np.float64) if is_weighted else np.ones(n)
    right = score.argmax(axis=0) == target if n else np.zeros(0)
    expected = 1 + np.array([w.sum(), w @ losses(target, score), w @ right])
    for run in both(add_class_losses) if n < 100 else (add_class_losses,):
        total = np.ones(3)  # added to
        run(target, score, weight, total)
        np.testing.assert_allclose(total, expected, rtol=1e-9)


@given(seeds, st.integers(0, 60), classes_of)
@settings(max_examples=30)
def test_falls_of_the_loss_are_those_of_all_rows(seed, n, k):
    rng, target, before = made(seed, n, k)
    after = before + rng.normal(size=(k, n)).astype(np.float32)
    u = rng.exponential(size=n).astype(np.float32)
    fall = u * (losses(target, before) - losses(target, after))
    for run in both(add_class_falls):
        total = np.ones(2)
        run(target, before, after, u, total)
        np.testing.assert_allclose(total - 1, (fall.sum(), (fall**2).sum()), rtol=1e-6, atol=1e-9)


def test_two_classes_have_the_weights_of_one_score():
    """Softmax of two scores F and -F is the logistic function of 2 F, and h twice as steep."""
    score = np.linspace(-5, 5, 101).astype(np.float32)
    target = np.tile([0.0, 1.0], 51)[:101].astype(np.float32)
    g, h = slopes(target, np.stack((-score, score)))
    p = 1 / (1 + np.exp(-2 * score.astype(np.float64)))
    np.testing.assert_allclose(g[1], target - p, atol=1e-12)
    np.testing.assert_allclose(h[1], 2 * p * (1 - p), atol=1e-12)
