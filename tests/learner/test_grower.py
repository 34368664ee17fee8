from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from builders import forbid_endless_scans, make_sample, make_slots
from constants import set_constants
from naive import subset_charge
from sparrowboost.kernels.scores import apply_trees
from sparrowboost.learner.grower import AdaptiveGrower
from sparrowboost.learner.leaf_values import label_values
from sparrowboost.learner.monotone import Monotone
from sparrowboost.learner.paper_grower import PaperGrower
from sparrowboost.learner.params import Params
from sparrowboost.learner.scanner import Scanner
from sparrowboost.learner.stopping import CATEGORY_L2, Adaptive, Paper, SplitFinder
from sparrowboost.model.forest import Forest
from sparrowboost.model.losses import LEAF_L2, MAX_STEP, get_loss
from sparrowboost.runtime.threads import WorkerPool


class GrownTree:
    """What growers need of a model."""

    def __init__(self, trees=()):
        self.forest, self.n_trees = Forest(trees), len(trees)


@pytest.fixture
def scan():
    """Makes a scanner of a sample."""
    with WorkerPool(1) as workers:

        def make(sample, n_bins, max_leaves=31, category=()):
            scanner = Scanner(make_slots(n_bins, category), max_leaves, workers)
            scanner.load(sample)
            return scanner

        yield make


def adaptive(scanner, params, *, exact=True, monotone=None):
    finder = SplitFinder(scanner.slots, sigma=params.sigma, l2=params.l2, monotone=monotone)
    return AdaptiveGrower(
        scanner,
        finder,
        Adaptive(params.rho),
        label_values(get_loss(params.for_task("classification").loss)),
        params,
        exact=exact,
    )


def leaves_of(tree, bins):
    """The leaf of each row."""
    numbered = replace(tree, value=np.arange(tree.n_leaves, dtype=np.float32))
    leaf = np.zeros(len(bins), np.float32)
    apply_trees(np.ascontiguousarray(bins, np.uint8), *Forest([numbered]).arrays, 0, 1, leaf)
    return leaf.astype(int)


# -- best-first growth against a naive twin -------------------------------------------------------


def naive_candidates(column, n_bins, category, w, y, noise, l2, category_l2, sign, bounds):
    """Every split of a leaf by one feature: rows that go left, gain, the lighter side's weight,
    whether it is no cut between numbers, and whether it is a subset of categories."""
    if category:
        l2 = category_l2
        used = [b for b in range(n_bins) if w[column == b].sum() > 0]
        rate = {b: (w * y)[column == b].sum() / (w[column == b].sum() + l2) for b in used}
        order = sorted(used, key=rate.get)
        charge = subset_charge([w[column == b].sum() for b in used], noise)
        sides = [(set(order[: k + 1]), charge, True) for k in range(n_bins)]
        sides += [({b}, 0.0, False) for b in order]
    else:
        last = n_bins - 1
        sides = [(set(range(b + 1)), 0.0, False) for b in range(last)]
        sides += [(set(range(b + 1)) | {last}, 0.0, False) for b in range(last - 1)]
    for bins, penalty, subset in sides:
        left = np.isin(column, list(bins))
        if left.all() or not left.any():
            continue
        values, removed = [], []
        for rows in (left, ~left, left | ~left):
            edge, weight = (w * y)[rows].sum(), w[rows].sum() + l2
            values.append(np.clip(edge / weight, *bounds))
            removed.append(2 * edge * values[-1] - weight * values[-1] ** 2)
        if n_bins - 2 in bins or sign * (values[1] - values[0]) >= 0:
            gain = removed[0] + removed[1] - removed[2] - penalty
            yield left, gain, min(w[left].sum(), w[~left].sum()), n_bins - 2 in bins, subset


def naive_value(sample, params, rows):
    """The best value of a leaf."""
    w, y = sample.w[rows].astype(float), sample.label[rows]
    plus, minus = w[y == 1].sum(), w[y == 0].sum()
    if params.loss == "logistic":
        curve = (w * (1 - w / sample.u[rows])).sum()
        step = (plus - minus) / (2 * curve + LEAF_L2 * sample.unit)
    else:
        step = 0.5 * np.log((plus + sample.unit / 2) / (minus + sample.unit / 2))
    return np.clip(step, -MAX_STEP, MAX_STEP)


def naive_sides(bounds, sign, own, left, right):
    """Bounds of the left and of the right side of a split, by their values and that of both."""
    own, left, right = np.clip([own, left, right], *bounds)
    if sign == 0:
        return bounds, bounds
    if sign < 0:
        right_side, left_side = naive_sides(bounds, 1, own, right, left)
        return left_side, right_side
    middle = (left + right) / 2 if left <= right else own
    return (bounds[0], middle), (middle, bounds[1])


def naive_tree(sample, n_bins, category, params, signs, fitted):
    """Best-first growth by trying everything; (leaf of each row, leaf values, gains).

    What the tree fits of the noise of categories is added to `fitted`, by feature.
    """
    fits = np.zeros_like(fitted)
    bins, w = sample.bins, sample.w.astype(float)
    y = np.where(sample.label, 1.0, -1.0)
    leaf_of, gains, n_leaves = np.zeros(sample.n, int), [], 1
    l2 = params.l2 * sample.unit, (params.l2 + CATEGORY_L2) * sample.unit
    # Of each leaf: bounds by the values that gains are about, and by its final value.
    bounds, final = [(-np.inf, np.inf)], [(-np.inf, np.inf)]
    while n_leaves < params.max_leaves:
        best = 0.0, None
        for leaf in range(n_leaves):
            rows = np.flatnonzero(leaf_of == leaf)
            share = (w[rows] ** 2).sum() / (w**2).sum()
            for j, n in enumerate(n_bins):
                noise = (w[rows] ** 2).sum() / w[rows].sum() * np.exp(-fitted[j] * share)
                for left, gain, least, no_cut, subset in naive_candidates(
                    bins[rows, j],
                    n,
                    j in category,
                    w[rows],
                    y[rows],
                    noise,
                    *l2,
                    signs[j],
                    bounds[leaf],
                ):
                    if gain > best[0] and least >= params.min_child_weight * sample.unit:
                        sides = rows, rows[left], rows[~left]
                        fit = j, subset * share
                        best = gain, (leaf, 0 if no_cut else signs[j], sides, fit)
        gain, chosen = best
        if chosen is None:
            break
        leaf, sign, sides, (j, share) = chosen
        fits[j] += params.learning_rate * 2 / np.pi * share
        values = [(w * y)[rows].sum() / (w[rows].sum() + l2[0]) for rows in sides]
        bounds[leaf], other = naive_sides(bounds[leaf], sign, *values)
        bounds.append(other)
        values = [naive_value(sample, params, rows) for rows in sides]
        final[leaf], other = naive_sides(final[leaf], sign, *values)
        final.append(other)
        leaf_of[sides[2]] = n_leaves
        gains.append(gain)
        n_leaves += 1
    value = [
        params.learning_rate * np.clip(naive_value(sample, params, leaf_of == leaf), *final[leaf])
        for leaf in range(n_leaves)
    ]
    fitted += fits
    return leaf_of, value, gains


@pytest.mark.slow
@pytest.mark.parametrize("signs", [(0, 0, 0, 0), (1, 0, 0, -1), (-1, 1, 0, 1)])
@pytest.mark.parametrize("loss", ["logistic", "exponential"])
@pytest.mark.parametrize("seed", range(4))
def test_exact_growth_is_best_first_growth_by_trying_everything(scan, loss, seed, signs):
    # Uneven importances, so that no two splits gain the same. The last bin is of missing values.
    rng = np.random.default_rng(seed)
    n, n_bins, category = 400, [9, 6, 12, 5], {2}
    bins = np.column_stack([rng.integers(0, b, n) for b in n_bins])
    effect = 0.3 * (bins[:, 0] < 3) + 0.3 * (bins[:, 1] == 5) - 0.4 * np.isin(bins[:, 2], [2, 7, 9])
    several = np.isin(bins[:, 2], [0, 1, 4, 7, 9])
    label = rng.random(n) < 0.3 + effect * (bins[:, 3] % 2) + 0.35 * several
    sample = make_sample(
        bins, label, u=rng.lognormal(0, 0.5, n), score=rng.normal(0, 0.3), loss=loss, whole=True
    )
    params = Params(loss=loss, max_leaves=10, min_child_weight=8.0, learning_rate=0.3)
    scanner = scan(sample, n_bins, params.max_leaves, category)
    monotone = Monotone(np.array(signs, np.int8), np.array(n_bins)) if any(signs) else None
    grower = adaptive(scanner, params, monotone=monotone)
    fitted, trees = np.zeros(4), []
    for _ in range(4):
        model = GrownTree(trees)
        sample.refresh(0, model.forest, model.n_trees)
        leaf_of, value, gains = naive_tree(sample, n_bins, category, params, signs, fitted)
        score = sample.score.copy()
        tree = grower.grow(model).tree
        assert len(gains) >= (1 if trees else 5)
        np.testing.assert_array_equal(leaves_of(tree, bins), leaf_of)
        np.testing.assert_allclose(tree.gain, gains, rtol=1e-9)
        np.testing.assert_allclose(tree.value, value, rtol=1e-5)
        # ... and the sample's own scores have the tree in them.
        np.testing.assert_array_equal(sample.score, score + tree.value[leaf_of])
        trees.append(tree)
    assert fitted[2] > 0
    np.testing.assert_allclose(grower.state()["grower"][2:], fitted, rtol=1e-6)


# -- the adaptive grower --------------------------------------------------------------------------


def signal_sample(gamma, n=4_096, d=4, seed=0, loss="logistic"):
    """Labels that feature 0 tells with this advantage over a coin; 8 bins each."""
    rng = np.random.default_rng(seed)
    bins = rng.integers(0, 8, (n, d))
    label = np.where(rng.random(n) < 0.5 + gamma, bins[:, 0] < 4, bins[:, 0] >= 4)
    return make_sample(bins, label, loss=loss)


@pytest.fixture
def small_blocks(monkeypatch):
    set_constants(monkeypatch, sample_block_rows=64)
    set_constants(monkeypatch, start_values=64)


@pytest.mark.usefixtures("small_blocks")
def test_a_strong_rule_is_proved_by_few_rows_and_a_weak_one_by_more(scan):
    rows = []
    for gamma in (0.4, 0.2, 0.1):
        scanner = scan(signal_sample(gamma), [9] * 4, 2)
        grown = adaptive(scanner, Params(max_leaves=2), exact=False).grow(GrownTree())
        assert grown.n_proved == 1
        assert grown.tree.feature[0] == 0
        assert grown.gamma_certified < grown.gamma == pytest.approx(gamma, abs=0.08)
        assert 0 < grown.gamma_certified <= gamma
        assert grown.run_rows == scanner.n_rows == scanner.rows_scanned
        rows.append(grown.run_rows)
    assert rows == sorted(rows)
    assert rows[0] < 4_096 / 8
    assert rows[-1] > 2 * rows[0]


@pytest.mark.usefixtures("small_blocks")
def test_a_run_begins_with_half_of_what_the_last_tree_took(scan):
    scanner = scan(signal_sample(0.2), [9] * 4, 2)
    grower = adaptive(scanner, Params(max_leaves=2), exact=False)
    first = grower.grow(GrownTree())
    again = grower.grow(GrownTree())  # of the same model: the same rule, of other rows
    assert first.run_rows > 64
    assert again.run_rows in (first.run_rows // 2, first.run_rows, 2 * first.run_rows)


@pytest.mark.usefixtures("small_blocks")
def test_a_run_that_shows_no_split_at_all_is_extended(scan):
    # The first three blocks of rows are all alike.
    sample = signal_sample(0.4)
    sample.bins[: 3 * 64] = 0
    scanner = scan(sample, [9] * 4, 2)
    grown = adaptive(scanner, Params(max_leaves=2), exact=False).grow(GrownTree())
    assert grown.tree.feature[0] == 0
    assert grown.run_rows > 3 * 64


def test_on_a_drawn_sample_there_is_no_tree_before_one_stood_out_from_noise(scan):
    rng = np.random.default_rng(0)
    noise = make_sample(rng.integers(0, 2, (2_000, 3)), rng.random(2_000) < 0.5)
    assert adaptive(scan(noise, [3] * 3, 2), Params(max_leaves=2)).grow(GrownTree()) is not None
    scanner = scan(noise, [3] * 3, 2)
    grower = adaptive(scanner, Params(max_leaves=2), exact=False)
    assert grower.grow(GrownTree()) is None
    scanner.load(signal_sample(0.4))
    assert adaptive(scan(signal_sample(0.4), [9] * 4, 2), Params(max_leaves=2), exact=False).grow(
        GrownTree()
    )
    # Of what a tree stood out once, later ones may be needed to find what features do together.
    grower.restore({"grower": np.array([1.0, 1.0, 0.0, 0.0, 0.0])})
    scanner.load(noise)
    assert grower.grow(GrownTree()) is not None


def test_a_split_that_is_not_proved_is_not_counted_as_proved(scan):
    scanner = scan(signal_sample(0.3, n=500), [9] * 4)
    grown = adaptive(scanner, Params(max_leaves=12, l2=0.0)).grow(GrownTree())
    assert grown.tree.n_leaves == 12
    assert 1 <= grown.n_proved < 11


@pytest.mark.parametrize("stopping", ["adaptive", "paper"])
def test_no_leaf_is_deeper_than_allowed(scan, stopping, monkeypatch):
    forbid_endless_scans(monkeypatch)
    rng = np.random.default_rng(0)
    bins = rng.integers(0, 8, (20_000, 4))
    label = rng.random(20_000) < 1 / (1 + np.exp(-(bins - 3.5) @ [1, 0.8, -0.6, 0.4]))
    for depth in (1, 2, 3):
        params = Params(max_depth=depth, loss="exponential", stopping=stopping)
        scanner = scan(make_sample(bins, label, loss="exponential"), [9] * 4)
        if stopping == "paper":
            grown = PaperGrower(scanner, Paper(scanner.slots), params).grow(GrownTree())
        else:
            grown = adaptive(scanner, params).grow(GrownTree())
        assert grown.tree.depth() == depth
        assert grown.tree.n_leaves == 2**depth


def test_no_leaf_is_lighter_than_allowed(scan):
    sample = signal_sample(0.1, n=1_000)
    sample.unit, w = 1.0, sample.w.copy()
    scanner = scan(sample, [9] * 4)
    tree = adaptive(scanner, Params(min_child_weight=40.0, l2=0.0)).grow(GrownTree()).tree
    weight = np.bincount(leaves_of(tree, sample.bins), w)
    assert tree.n_leaves > 3
    assert weight.min() >= 40


def test_rows_that_are_all_alike_grow_nothing(scan, monkeypatch):
    forbid_endless_scans(monkeypatch)
    bins, label = np.full((500, 3), 2), np.arange(500) % 2
    sample = make_sample(bins, label, loss="exponential")
    params = Params(loss="exponential")
    assert adaptive(scan(sample, [5] * 3), params).grow(GrownTree()) is None
    scanner = scan(sample, [5] * 3)
    assert PaperGrower(scanner, Paper(scanner.slots), params).grow(GrownTree()) is None


# -- the paper's grower ---------------------------------------------------------------------------


def test_each_fired_rule_adds_its_weight_on_one_side_and_takes_it_off_the_other(scan):
    sample = signal_sample(0.3, n=4_000, loss="exponential")
    scanner = scan(sample, [9] * 4, 2)
    params = Params(
        loss="exponential", stopping="paper", max_leaves=2, learning_rate=0.5, gamma_0=0.25
    )
    grown = PaperGrower(scanner, Paper(scanner.slots), params).grow(GrownTree())
    assert grown.gamma_certified == 0.25
    assert grown.gamma == pytest.approx(0.3, abs=0.03)
    step = 0.5 * Paper.rule_weight(0.25)
    values = grown.tree.value[leaves_of(grown.tree, sample.bins)]
    np.testing.assert_allclose(values, np.where(sample.bins[:, 0] < 4, step, -step), rtol=1e-6)
    np.testing.assert_array_equal(sample.score, values)


def test_a_target_that_no_rule_reaches_is_lowered(scan):
    sample = signal_sample(0.2, n=8_000, loss="exponential")
    scanner = scan(sample, [9] * 4, 2)
    params = Params(loss="exponential", stopping="paper", max_leaves=2, gamma_0=0.45)
    grown = PaperGrower(scanner, Paper(scanner.slots), params).grow(GrownTree())
    assert grown.gamma_certified < 0.2 < 0.45
    assert grown.run_rows == 8_000
    assert scanner.rows_scanned >= 2 * 8_000


def test_the_paper_grower_gives_up_on_few_rows(scan, monkeypatch):
    # Fewer rows than the rule needs before it may fire, and none of them a coin's.
    forbid_endless_scans(monkeypatch)
    bins = np.arange(50)[:, None] % 8
    sample = make_sample(bins, bins[:, 0] < 4, loss="exponential")
    scanner = scan(sample, [9])
    params = Params(loss="exponential", stopping="paper")
    assert PaperGrower(scanner, Paper(scanner.slots), params).grow(GrownTree()) is None


def test_the_paper_grower_ends_whatever_the_advantage_of_the_best_rule(scan, monkeypatch):
    # One binary feature tells the labels of 10,000 rows with an advantage that grows from run to
    # run, through the whole range between what is never and what is always proved.
    forbid_endless_scans(monkeypatch)
    n, fired = 10_000, []
    params = Params(loss="exponential", stopping="paper", max_leaves=2)
    for right in range(5_100, 5_220, 4):
        bins = (np.arange(n) % 2)[:, None]
        label = bins[:, 0].copy()
        label[right:] = 1 - label[right:]
        order = np.random.default_rng(0).permutation(n)
        scanner = scan(make_sample(bins[order], label[order], loss="exponential"), [3], 2)
        grower = PaperGrower(scanner, Paper(scanner.slots), params)
        fired.append(grower.grow(GrownTree()) is not None)
    assert not fired[0]
    assert fired[-1]
    assert fired == sorted(fired)


def test_a_leaf_of_one_label_does_not_keep_the_paper_grower_for_ever(scan, monkeypatch):
    # 60 rows that one rule tells apart from the others, all of them positive.
    forbid_endless_scans(monkeypatch)
    rng = np.random.default_rng(0)
    bins = rng.integers(0, 4, (5_000, 2))
    label = rng.random(5_000) < np.where(bins[:, 0] < 2, 0.9, 0.1)
    bins[:60, 0], label[:60] = 3, True
    bins[60:, 0] = np.minimum(bins[60:, 0], 2)
    order = rng.permutation(5_000)
    sample = make_sample(bins[order], label[order], loss="exponential")
    scanner = scan(sample, [5, 5])
    params = Params(loss="exponential", stopping="paper", max_leaves=16)
    grown = PaperGrower(scanner, Paper(scanner.slots), params).grow(GrownTree())
    assert 2 <= grown.tree.n_leaves <= 16
