from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from builders import make_sample, make_stump
from sparrowboost.learner.grower import GrownTree
from sparrowboost.model.forest import Forest
from sparrowboost.runtime.threads import WorkerPool
from sparrowboost.sampling.lookback import LookBack, Mark
from sparrowboost.sampling.sample import first_edge

RATE = 0.3


class Trees:
    """What a look back needs of a model."""

    def __init__(self, trees):
        self.trees, self.forest, self.n_trees = trees, Forest(trees), len(trees)


def make_rows(seed, n=3_000):
    rng = np.random.default_rng(seed)
    bins = rng.integers(0, 4, (n, 2))
    return bins, rng.random(n) < np.where(bins[:, 0] < 2, 0.3, 0.6)


def loss(label, score, u):
    return float((u * np.log1p(np.exp(np.where(label, -2.0, 2.0) * score))).sum())


STUMPS = [make_stump(0, [0, 1], -0.2, 0.1), make_stump(1, [0], 0.05, -0.02)]
VALUES = [((0, (0, 1)), (-0.2, 0.1)), ((1, (0,)), (0.05, -0.02))]


def values_of(bins, first, last):
    score = np.zeros(len(bins))
    for (feature, left), (a, b) in VALUES[first:last]:
        score += np.where(np.isin(bins[:, feature], left), a, b)
    return score


@pytest.fixture
def workers():
    with WorkerPool(2) as workers:
        yield workers


def grown(tree, sides=(-1.0, 1.0), gamma=0.2, certified=0.1):
    return GrownTree(tree, gamma, certified, 1, 100, sides)


@pytest.mark.parametrize("seen", [0, 1, 2])
def test_the_fall_of_the_loss_is_that_of_both_samples_whenever_the_next_was_drawn(workers, seen):
    (bins, label), (new, new_label) = make_rows(0), make_rows(1, 2_000)
    u, new_u = np.random.default_rng(2).lognormal(0, 0.5, 3_000), np.full(2_000, 1.5)
    sample = make_sample(bins, label, u=u)
    sample.of_rows = 10_000
    mark = Mark(sample, None, workers)
    for stump in STUMPS:
        mark.note(grown(stump))
    fresh = make_sample(new, new_label, u=new_u, score=values_of(new, 0, seen))
    fresh._version[:] = seen
    fresh.of_rows = 9_000
    look = mark.look_back(fresh, Trees(STUMPS))
    assert look.n_trees == 2
    after, new_after = values_of(bins, 0, 2), values_of(new, 0, 2)
    own = (loss(label, 0 * after, u) - loss(label, after, u)) / 10_000
    assert look.own == pytest.approx(own, rel=1e-4)
    expected = (loss(new_label, 0 * new_after, new_u) - loss(new_label, new_after, new_u)) / 9_000
    assert look.fresh == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(fresh.score, new_after, atol=1e-6)  # up to date
    assert (look.gamma, look.gamma_certified) == pytest.approx((0.2, 0.1))


def test_without_a_tree_there_is_nothing_to_look_back_at(workers):
    sample = make_sample(*make_rows(0))
    assert Mark(sample, None, workers).look_back(sample, Trees([])) is None


def test_the_advantage_on_fresh_rows_may_be_negative_where_a_split_was_of_noise():
    bins = np.array([[0], [0], [1], [1]], np.uint8)
    label, w = np.array([0, 1, 1, 1], np.uint8), np.float32([1, 3, 1, 1])
    split = grown(make_stump(0, [0], 0, 0), sides=(-1.0, 1.0))
    assert first_edge(split, bins, label, w) == pytest.approx(0.5 * (-2 + 2) / 6)
    turned = replace(split, sides=(-1.0, -1.0))
    assert first_edge(turned, bins, label, w) == pytest.approx(0.5 * (-2 - 2) / 6)


def test_the_error_of_what_fresh_rows_say_is_how_far_it_varies(workers):
    # 200 fresh samples of 500 rows: the deviation of 200 numbers is known to 5 %.
    falls, errors = [], []
    for seed in range(200):
        sample = make_sample(*make_rows(0, 100))
        mark = Mark(sample, None, workers)
        mark.note(grown(STUMPS[0]))
        fresh = make_sample(*make_rows(seed + 1, 500))
        look = mark.look_back(fresh, Trees(STUMPS[:1]))
        falls.append(look.fresh)
        errors.append(look.error)
    # The error takes the fall for a sum of terms about 0: a little more than their deviation.
    assert np.std(falls) < 1.15 * np.mean(errors)
    assert np.std(falls) > 0.8 * np.mean(errors)


def test_noise_costs_what_the_theory_says():
    # Leaves whose sums have a true mean and noise, fitted with a rate: the loss is a parabola in
    # each. 200,000 leaves: means are known to a percent.
    rng = np.random.default_rng(0)
    true, noise = rng.normal(0, 1.0, (2, 200_000)) * np.array([[1.0], [0.7]])
    own_sum = true + noise  # what the sample shows, for each unit of curvature
    step = RATE * own_sum
    own = (2 * own_sum * step - step**2).mean()
    fresh = (2 * true * step - step**2).mean()
    perfect = (2 * RATE - RATE**2) * (true**2).mean()
    look = LookBack(1, own, fresh, 0.0, 0.0, 0.0, 0.0)
    assert look.cost(RATE) == pytest.approx(1 - fresh / perfect, abs=0.01)


def test_where_fresh_rows_gain_nothing_all_is_lost():
    assert LookBack(1, 1.0, -0.5, 0, 0, 0, 0).cost(RATE) == 1
    assert LookBack(1, 1.0, 1.2, 0, 0, 0, 0).cost(RATE) == 0
    assert LookBack(1, 0.0, 0.0, 0, 0, 0, 0).cost(RATE) == 1
