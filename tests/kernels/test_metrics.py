from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrowboost.kernels.metrics import add_falls, add_losses, count_pairs

pytestmark = pytest.mark.kernel

MOST = 40.0
few_scores = st.lists(st.integers(-3, 3).map(lambda k: k / 4), max_size=12)  # with ties


def naive_losses(label, score, weight):
    total = [0.0, 0.0, 0.0]
    for y, h, w in zip(label.tolist(), score.tolist(), weight, strict=True):
        m = h if y else -h
        total[0] += w
        total[1] += w * (math.log1p(math.exp(-2 * m)) if m > -300 else -2 * m)
        total[2] += w * math.exp(min(max(-m, -MOST), MOST))
    return total


@pytest.mark.parametrize("n", [0, 1, 7, 300])
@pytest.mark.parametrize("weighted", [False, True])
def test_losses_are_added_to_what_is_there(n, weighted):
    rng = np.random.default_rng(n)
    label = rng.integers(0, 2, n, np.uint8)
    score = (rng.normal(size=n) * rng.choice([1, 10, 1e3], n)).astype(np.float32)
    weight = rng.integers(0, 4, n * weighted).astype(np.float32)
    expected = naive_losses(label, score, weight.tolist() if weighted else [1.0] * n)
    for run in (add_losses, add_losses.py_func):
        total = np.array([1.0, 2.0, 3.0])
        run(label, score, weight, MOST, total)
        np.testing.assert_allclose(total - (1, 2, 3), expected, rtol=1e-12, atol=1e-12)


@given(few_scores, few_scores)
def test_pairs_in_the_right_order_are_counted_and_ties_half(positive, negative):
    expected = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    arrays = [np.sort(np.array(scores, np.float32)) for scores in (positive, negative)]
    for run in (count_pairs, count_pairs.py_func):
        assert run(*arrays) == expected


@pytest.mark.parametrize("logistic", [True, False])
@pytest.mark.parametrize("n", [0, 1, 300])
def test_falls_are_the_losses_before_less_those_after(n, logistic):
    rng = np.random.default_rng(n)
    label = rng.integers(0, 2, n, np.uint8)
    before, after = rng.normal(0, 3, (2, n)).astype(np.float32)
    u = rng.lognormal(0, 1, n).astype(np.float32)
    column, falls = 1 if logistic else 2, []
    for i in range(n):
        one = (label[i : i + 1], u[i : i + 1].tolist())
        falls += [
            naive_losses(one[0], before[i : i + 1], one[1])[column]
            - naive_losses(one[0], after[i : i + 1], one[1])[column]
        ]
    expected = [sum(falls), sum(fall**2 for fall in falls)]
    for run in (add_falls, add_falls.py_func):
        total = np.array([1.0, 2.0])
        run(label, before, after, u, MOST, logistic, total)
        np.testing.assert_allclose(total - (1, 2), expected, rtol=1e-9, atol=1e-9)
