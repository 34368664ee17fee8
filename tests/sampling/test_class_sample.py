"""The sample of rows of several classes: what is up to date when, and what it says of trees."""

from __future__ import annotations

import numpy as np
import pytest

from builders import make_stump
from constants import set_constants
from sparrowboost.model.forest import Forest
from sparrowboost.model.softmax import Softmax, class_probabilities
from sparrowboost.model.tree import GrownRound, GrownTree
from sparrowboost.runtime.threads import WorkerPool
from sparrowboost.sampling.class_sample import ClassSample, class_scale
from sparrowboost.sampling.lookback import Mark
from sparrowboost.sampling.number_sample import DrawScale

K = 3
STUMPS = [
    make_stump(0, [0, 1], -0.2, 0.1), make_stump(1, [0], 0.05, -0.02), make_stump(0, [2], 0.3, 0.2),
    make_stump(1, [1], 0.1, 0.0), make_stump(0, [0], -0.1, 0.1), make_stump(1, [3], 0.7, -0.7),
]  # fmt: skip


class Trees:
    """What a sample needs of a model: rounds of a tree for each class."""

    def __init__(self, trees):
        self.trees, self.forest, self.n_trees = trees, Forest(trees), len(trees) // K

    def values(self, bins, first, last):
        """(K, n) what rounds add to scores."""
        made = np.zeros((K, len(bins)), np.float32)
        for t in range(first * K, last * K):
            tree = self.trees[t]
            left = np.isin(bins[:, tree.feature[0]], bins_of(tree))
            made[t % K] += np.where(left, *tree.value)
        return made


def bins_of(tree):
    return [b for b in range(4) if int(tree.mask[0, 0]) >> b & 1]


def make_rows(n=500, seed=0):
    rng = np.random.default_rng(seed)
    bins = rng.integers(0, 4, (n, 2)).astype(np.uint8)
    target = (bins[:, 0] + rng.integers(0, 2, n)) % K
    return bins, target.astype(np.float32), rng.lognormal(size=n).astype(np.float32)


def make_sample(bins, target, u, score=None, n_trees=0, **about):
    n = len(target)
    score = np.zeros((K, n), np.float32) if score is None else score.astype(np.float32)
    about = {"whole": False, "copies": np.ones(n, np.float32)} | about
    scale = DrawScale(10.0, 0.5, 0.6)
    return ClassSample(
        bins, np.zeros(n, np.uint8), u, score, n_trees, Softmax(K), target=target, scale=scale,
        **about,
    )  # fmt: skip


def slopes(target, score, u):
    """(K, n) g and h, times u, as they should be."""
    p = class_probabilities(score.T).T
    y = target == np.arange(K)[:, None]
    return u * (y - p), u * K / (K - 1) * p * (1 - p)


def loss(target, score, u):
    p = class_probabilities(score.T)
    return float(u @ -np.log(p[np.arange(len(u)), target.astype(int)]))


@pytest.fixture
def small_blocks(monkeypatch):
    set_constants(monkeypatch, sample_block_rows=128)


def refresh_all(sample, model):
    for block in range(sample.n_blocks):
        sample.refresh(block, model.forest, model.n_trees)


def test_each_class_has_the_derivatives_of_its_scores(small_blocks):
    bins, target, u = make_rows()
    model = Trees(STUMPS[:3])
    sample = make_sample(bins, target, u)
    score = model.values(bins, 0, 1)
    g, h = slopes(target, score, u)
    for number in (0, 2, 1):
        sample.turn_to(number)
        refresh_all(sample, model)
        np.testing.assert_allclose(sample.g, g[number], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(sample.h, h[number], rtol=1e-4, atol=1e-4)
        assert sample.heaviest == pytest.approx(2 * h[number].max(), rel=1e-4)
    w = u * np.sqrt(((g / u) ** 2).sum(0) + 0.25 * ((h / u) ** 2).sum(0)) / 0.6
    np.testing.assert_allclose(sample.w, w, rtol=1e-4)
    assert sample.n_eff == pytest.approx(w.sum() ** 2 / (w**2).sum(), rel=1e-3)


def test_what_an_ordinary_row_weighs_differs_by_class_and_stays():
    bins, target, u = make_rows()
    score = np.array([[0.0], [-2.0], [1.0]]) * np.ones((K, 500))
    sample = make_sample(bins, target, u, score)
    _, h = slopes(target, score, u)
    units = (4 * h**2).sum(1) / (2 * h).sum(1)
    for number in range(K):
        sample.turn_to(number)
        assert sample.unit == pytest.approx(units[number], rel=1e-3)
    refresh_all(sample, Trees(STUMPS[:3]))
    assert sample.unit == pytest.approx(units[2], rel=1e-3)


def test_trees_of_a_round_do_not_move_the_derivatives_of_its_other_classes(small_blocks):
    """A scanner adds the first tree to the scores of its rows before the second is grown."""
    bins, target, u = make_rows()
    sample, before, after = make_sample(bins, target, u), Trees([]), Trees(STUMPS[:3])
    refresh_all(sample, before)
    g, h = slopes(target, np.zeros((K, 500)), u)
    values = after.values(bins, 0, 1)
    for number, run in enumerate(([0, 1], [0, 1, 2, 3], [1])):  # blocks that each tree was grown on
        sample.turn_to(number)
        for block in run:
            sample.refresh(block, before.forest, 0)
        rows = np.concatenate([np.r_[sample.rows(block)] for block in run])
        np.testing.assert_allclose(sample.g[rows], g[number, rows], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(sample.h[rows], h[number, rows], rtol=1e-4, atol=1e-4)
        sample.score_of_tree[rows] += values[number, rows]
        for block in run:
            sample.mark(block, 1)
    assert sample.n_trees == 0
    refresh_all(sample, after)  # adds to each block the trees that were not grown on it
    np.testing.assert_array_equal(sample.score, values)
    assert sample.n_trees == 1
    g, h = slopes(target, values, u)
    np.testing.assert_allclose(sample.g, g[2], rtol=1e-4, atol=1e-4)
    refresh_all(sample, Trees(STUMPS))
    np.testing.assert_allclose(sample.score, Trees(STUMPS).values(bins, 0, 2), rtol=1e-6)


def test_the_next_draw_divides_each_class_by_the_mean_square_of_its_gradients():
    bins, target, u = make_rows()
    score = np.random.default_rng(1).normal([[0.0], [2.0], [-5.0]], size=(K, 500))
    sample = make_sample(bins, target, u, score)
    g, h = slopes(target, score.astype(np.float32), np.ones(500))
    of_g, of_h = g**2 @ u / u.sum(), h**2 @ u / u.sum()
    scale = sample.next_scale()
    factors = np.sqrt(of_g.sum() / K / of_g)
    np.testing.assert_allclose(scale.factors, factors, rtol=1e-3)
    assert factors.max() > 1.2 * factors.min()
    assert scale.floor == pytest.approx(0.5 * (of_g.sum() / (factors**2 @ of_h)) ** 0.5, rel=1e-3)
    assert scale.unit == sample.scale.unit  # weights of later draws are in the same unit
    expected = u * np.sqrt(factors**2 @ (g**2 + (scale.floor * h) ** 2)) / scale.unit
    rows = slice(100, 300)
    np.testing.assert_allclose(sample.weights_at(scale, rows), expected[rows], rtol=1e-3)


def test_a_rare_class_is_drawn_more_than_in_proportion_and_a_learned_one_takes_no_draw():
    # At constant scores of the shares p, g of a class has the mean square p (1 - p): the rows of a
    # class of p = 1e-4 weigh sqrt(1 / 3 / 1e-4) times what others do, as each class counts a third.
    p = np.array([0.5, 0.4999, 1e-4])
    scale = class_scale(1.0, np.column_stack((p * (1 - p), (1.5 * p * (1 - p)) ** 2)), 0.0)
    of_g = [np.sqrt((np.square(scale.factors) * (np.eye(K)[c] - p) ** 2).sum()) for c in range(K)]
    assert of_g[2] / scale.unit == pytest.approx((1 / 3 / 1e-4) ** 0.5, rel=0.01)
    assert of_g[0] / scale.unit == pytest.approx((2 / 3) ** 0.5, rel=0.01)
    learned = class_scale(1.0, np.array([[0.2, 0.2], [0.2, 0.2], [0.0, 0.0]]), 0.5)
    assert np.isfinite(learned.factors).all() and learned.factors[2] < 1e3 * learned.factors[0]
    nothing_left = class_scale(1.0, np.zeros((K, 2)), 0.5)
    assert nothing_left.factors == (1.0, 1.0, 1.0)


def test_no_row_keeps_more_than_the_share_allowed():
    bins, target, u = make_rows()
    u[7] = 5_000
    sample = make_sample(bins, target, u)
    sample.bound_shares(0.02)
    assert (sample.w <= 0.02 * sample.weight * 1.001).all()
    assert sample.u[7] < 100
    _, h = slopes(target, np.zeros((K, 500)), sample.u)
    assert sample.unit == pytest.approx((4 * h[0] ** 2).sum() / (2 * h[0]).sum(), rel=1e-3)


@pytest.mark.parametrize("seen", [0, 1, 2])
def test_the_fall_of_the_loss_is_that_of_both_samples_whenever_the_next_was_drawn(seen):
    (bins, target, u), (new, new_target, new_u) = make_rows(), make_rows(400, 1)
    model = Trees(STUMPS)
    with WorkerPool(2) as workers:
        sample = make_sample(bins, target, u)
        sample.of_rows = 10_000
        mark = Mark(sample, None, workers)
        for k in (0, 3):
            parts = tuple(GrownTree(tree, 0.2, 0.1, 1, 9, (-1, 1)) for tree in STUMPS[k : k + K])
            mark.note(GrownRound(parts))
        fresh = make_sample(new, new_target, new_u, model.values(new, 0, seen), seen)
        fresh.of_rows = 9_000
        look = mark.look_back(fresh, model)
    assert look.n_trees == 2
    none, all_ = np.zeros((K, 500)), model.values(bins, 0, 2)
    own = (loss(target, none, u) - loss(target, all_, u)) / 10_000
    assert look.own == pytest.approx(own, rel=1e-4)
    none, all_ = np.zeros((K, 400)), model.values(new, 0, 2)
    assert look.fresh == pytest.approx(
        (loss(new_target, none, new_u) - loss(new_target, all_, new_u)) / 9_000, rel=1e-4
    )
    np.testing.assert_allclose(fresh.score, all_, atol=1e-6)
    edges = []
    for round_ in range(2):
        g, _ = slopes(new_target, model.values(new, 0, round_), new_u)
        for k in range(K):
            tree = STUMPS[round_ * K + k]
            left = np.isin(new[:, tree.feature[0]], bins_of(tree))
            edges.append(0.5 * (g[k, ~left].sum() - g[k, left].sum()) / np.abs(g[k]).sum())
    assert look.gamma_fresh == pytest.approx(np.mean(edges), abs=1e-4)


def test_a_class_without_a_tree_has_no_edge_and_a_tree_of_one_leaf():
    part = GrownTree(STUMPS[0], 0.2, 0.1, 1, 9, (-1.0, 1.0))
    grown = GrownRound((None, part, None))
    assert [tree.n_leaves for tree in grown.trees] == [1, 2, 1]
    assert [tree.value.tolist() for tree in grown.trees[::2]] == [[0.0], [0.0]]
    assert (grown.n_rules, grown.n_proved, grown.run_rows) == (1, 1, 9)
    assert (grown.gamma, grown.gamma_certified) == (0.2, 0.1)
    bins, target, u = make_rows()
    sample = make_sample(bins, target, u)
    g, _ = slopes(target, np.zeros((K, 500)), u)
    left = np.isin(bins[:, 0], [0, 1])
    edge = 0.5 * (g[1, ~left].sum() - g[1, left].sum()) / np.abs(g[1]).sum()
    assert sample.first_edge(grown, 500, sample.score) == pytest.approx(edge, abs=1e-4)


def test_a_sample_is_restored_as_it_was_when_it_was_put_in_use():
    bins, target, u = make_rows()
    sample = make_sample(bins, target, u, of_rows=700)
    units = sample.units.copy()
    refresh_all(sample, Trees(STUMPS[:3]))  # as a look back does
    state = {name: part.copy() for name, part in sample.state().items()}
    again = ClassSample.restored(state, Softmax(K))
    np.testing.assert_array_equal(again.units, units)
    np.testing.assert_array_equal(again.score, sample.score)
    np.testing.assert_array_equal(again.w, sample.w)
    assert (again.n_trees, again.of_rows, again.n_eff_drawn) == (1, 700, sample.n_eff_drawn)
    refresh_all(again, Trees(STUMPS))
    refresh_all(sample, Trees(STUMPS))
    np.testing.assert_array_equal(again.g, sample.g)


def test_rows_that_are_counts_are_ordinary_by_one_each():
    bins, target, _ = make_rows()
    u = np.random.default_rng(3).integers(0, 5, 500)
    each = np.repeat(np.arange(500), u)
    counted = make_sample(bins, target, u.astype(np.float32), counted=True, whole=True)
    one = np.ones(len(each), np.float32)
    repeated = make_sample(bins[each], target[each], one, counted=True, whole=True)
    np.testing.assert_allclose(counted.units, repeated.units, rtol=1e-12)
