from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naive import add_trees, find_leaf, lay_out, make_mask, random_mask, random_tree
from sparrowboost.kernels.scores import (
    add_values,
    apply_trees,
    weigh_exponential,
    weigh_logistic,
)
from sparrowboost.model.forest import Forest
from sparrowboost.model.losses import MAX_MARGIN
from sparrowboost.model.tree import TreeBuilder

pytestmark = pytest.mark.kernel

D = 5
# Around four rows at once, the fewest whose splits are done at once, and 256 of one cache.
COUNTS = [*range(10), 47, 48, 49, *range(255, 261), 303, 304]
SUBNORMAL = 1.5e-45  # float32's smallest number: below 1e-38 digits are lost, one after the other
BITS = 2.0**-16 + 1e-6  # half of the last of 16 bits, and what float32 adds
CUT = 80.0  # of 2 y H, beyond which weigh_logistic takes the weight at the cut


def random_rows(rng, n):
    bins = rng.integers(0, 256, (n, D)).astype(np.uint8)
    return bins, rng.normal(size=n).astype(np.float32)


@pytest.fixture(scope="module")
def trees():
    rng = np.random.default_rng(0)
    return [random_tree(rng, D, n_leaves) for n_leaves in (4, 1, 9, 2, 1, 6)]


@pytest.mark.parametrize("n", COUNTS)
def test_every_row_gets_the_values_of_the_leaves_that_it_walks_to(trees, n):
    bins, score = random_rows(np.random.default_rng(n), n)
    expected = add_trees(trees, bins, score)
    for run in (apply_trees, apply_trees.py_func):
        got = score.copy()
        run(bins, *Forest(trees).arrays, 0, len(trees), got)
        assert got.tobytes() == expected.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("n", COUNTS)
def test_trees_in_two_parts_give_the_bits_of_all_at_once(trees, n):
    bins, score = random_rows(np.random.default_rng(n), n)
    arrays = Forest(trees).arrays
    at_once = score.copy()
    apply_trees(bins, *arrays, 0, len(trees), at_once)
    for cut in range(len(trees) + 1):
        parts = score.copy()
        apply_trees(bins, *arrays, 0, cut, parts)
        assert parts.tobytes() == add_trees(trees[:cut], bins, score).tobytes()
        apply_trees(bins, *arrays, cut, len(trees), parts)
        assert parts.tobytes() == at_once.tobytes()


@pytest.mark.parametrize("n", COUNTS)
def test_rows_in_two_parts_give_the_bits_of_all_at_once(trees, n):
    bins, score = random_rows(np.random.default_rng(n), n)
    arrays = Forest(trees).arrays
    at_once, parts, cut = score.copy(), score.copy(), n // 3
    apply_trees(bins, *arrays, 0, len(trees), at_once)
    apply_trees(bins[:cut], *arrays, 0, len(trees), parts[:cut])
    apply_trees(bins[cut:], *arrays, 0, len(trees), parts[cut:])
    assert parts.tobytes() == at_once.tobytes()


@pytest.mark.parametrize("n", COUNTS)
def test_trees_of_several_classes_add_to_the_scores_of_their_class(trees, n):
    bins, score = random_rows(np.random.default_rng(n), n)
    before = np.stack((score, score + 1, score - 2))
    expected = np.stack([add_trees(trees[k::3], bins, before[k]) for k in range(3)])
    arrays = Forest(trees).arrays
    for run in (apply_trees, apply_trees.py_func):
        by_class, by_row, one_by_one = before.copy(), before.T.copy(), before.copy()
        run(bins, *arrays, 0, len(trees), by_class)
        run(bins, *arrays, 0, len(trees), by_row.T)
        for k, own in enumerate(one_by_one):
            run(bins, *arrays, k, len(trees), own, 3)
        for got in (by_class, by_row.T, one_by_one):
            np.testing.assert_array_equal(got, expected)


def test_a_forest_without_trees_leaves_scores_alone():
    bins, score = random_rows(np.random.default_rng(0), 9)
    for run in (apply_trees, apply_trees.py_func):
        got = score.copy()
        run(bins, *Forest().arrays, 0, 0, got)
        assert got.tobytes() == score.tobytes()


def test_each_of_256_bins_goes_the_way_of_its_own_bit():
    every = np.arange(256).astype(np.uint8)[:, None]
    for word in range(4):
        for bit in (0, 1, 31, 32, 62, 63):
            builder = TreeBuilder(2)
            builder.split(0, 0, make_mask([64 * word + bit]), 1.0)
            forest = Forest([builder.finish(np.array([1, 2], np.float32))])
            score = np.zeros(256, np.float32)
            apply_trees(every, *forest.arrays, 0, 1, score)
            assert np.flatnonzero(score == 1).tolist() == [64 * word + bit]
            assert (score == 2).sum() == 255


def random_words(rng):
    return rng.integers(0, 2**64, 4, np.uint64)


def prefix(rng):
    return make_mask(range(rng.integers(257)))


@pytest.mark.parametrize("n_leaves", [1, 2, 3, 8, 40, 256, 257, 300])
@pytest.mark.parametrize("make", [random_words, prefix, random_mask])
def test_trees_of_all_sizes_and_masks_lead_to_their_leaves(make, n_leaves):
    rng = np.random.default_rng(n_leaves)
    trees = [random_tree(rng, D, n_leaves, make) for _ in range(3)]
    forest = Forest(trees)
    at_once = forest.arrays[-1][:3] >= 0
    assert not (n_leaves > 256 and at_once.any())  # a byte cannot tell them apart
    assert at_once.all() or make is not prefix or n_leaves in (1, 2, 257, 300)
    bins, score = random_rows(rng, 300)
    expected = add_trees(trees, bins, score)
    apply_trees(bins, *forest.arrays, 0, 3, score)
    assert score.tobytes() == expected.tobytes()


def test_a_chain_of_255_splits_is_walked_to_its_end():
    builder = TreeBuilder(256)
    for b in range(255):  # bin b leaves the chain at split b, to the left
        builder.split(b, 0, make_mask([b]), 1.0)
    tree = builder.finish(np.arange(256).astype(np.float32))
    assert tree.depth() == 255
    score = np.zeros(256, np.float32)
    apply_trees(np.arange(256).astype(np.uint8)[:, None], *Forest([tree]).arrays, 0, 1, score)
    assert score.tolist() == list(range(256))


@given(st.integers(0, 10**6), st.integers(0, 50), st.integers(1, 17), st.integers(1, 5))
def test_values_added_by_leaf_are_those_that_the_walk_adds(seed, n, block_rows, n_leaves):
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, D, n_leaves)
    bins, score = random_rows(rng, n)
    leaf_of = np.array([find_leaf(tree, row) for row in bins], int)
    layout = lay_out(leaf_of, block_rows, n_leaves, rng)
    blocks = rng.permutation(len(layout[1])).astype(np.int64)
    walked = score.copy()
    apply_trees(bins, *Forest([tree]).arrays, 0, 1, walked)
    some = blocks[: len(blocks) // 2]
    asked = np.isin(np.arange(n) // block_rows, some)
    for run in (add_values, add_values.py_func):
        got = score.copy()
        run(tree.value, *layout, some, block_rows, n_leaves, got)
        np.testing.assert_array_equal(got[asked], walked[asked])
        np.testing.assert_array_equal(got[~asked], score[~asked])
        run(tree.value, *layout, blocks[len(some) :], block_rows, n_leaves, got)
        assert got.tobytes() == walked.tobytes()


def margins_and_weights(run, score, u, positive, *more):
    """y H and w of scores that all have one label; checks the sums of the weights."""
    score = np.asarray(score, np.float32)
    u = np.broadcast_to(np.float32(u), score.shape).copy()
    label = np.full(len(score), positive, np.uint8)
    w, total = np.full(len(score), np.nan, np.float32), np.full(2, np.nan)
    with np.errstate(all="raise", under="ignore"):
        run(label, u, score, *more, w, total)
    w64 = w.astype(np.float64)
    np.testing.assert_allclose(total, [w64.sum(), (w64**2).sum()], rtol=1e-12)
    margin = np.where(positive, score, -score).astype(np.float64)
    return margin, w


SCORES = np.concatenate(
    [np.linspace(-200, 200, 20_001), np.random.default_rng(0).normal(0, 3, 5_000), [0.0, -0.0]]
)


@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("u", [1.0, 3.7, 1e-6, 1e6])
def test_logistic_weights_are_right_to_16_bits(u, positive):
    for run, scores in ((weigh_logistic, SCORES), (weigh_logistic.py_func, SCORES[::50])):
        margin, w = margins_and_weights(run, scores, u, positive)
        exact = np.float64(np.float32(u)) / (1 + np.exp(2 * margin))
        inside = np.abs(2 * margin) <= CUT
        np.testing.assert_allclose(w[inside], exact[inside], rtol=BITS, atol=SUBNORMAL)
        # Beyond the cut the weight stays what it is there, exp(-80) = 2e-35 of the importance.
        np.testing.assert_allclose(w, exact, rtol=BITS, atol=2e-35 * u)
        assert np.isfinite(w).all() and (w >= 0).all() and (w <= np.float32(u)).all()


@given(st.integers(0, 256), st.floats(-20, 20, width=32), st.integers(0, 1))
def test_a_whole_importance_multiplies_a_logistic_weight_exactly(u, score, positive):
    for run in (weigh_logistic, weigh_logistic.py_func):
        one, many = (
            float(margins_and_weights(run, [score], importance, positive)[1][0])
            for importance in (1, u)
        )
        assert many == u * one


def test_logistic_weights_never_rise_with_the_margin():
    # Neighbours are 0.01 apart: their weights differ by far more than rounding, until the cut.
    margin, w = margins_and_weights(weigh_logistic, np.linspace(-200, 200, 40_001), 1.0, 1)
    assert (np.diff(w) <= 0).all()
    falling = (margin > -3) & (margin < CUT / 2)  # below, a weight is all of u but a rounding
    assert (np.diff(w[falling]) < 0).all()
    margin, w = margins_and_weights(weigh_logistic, np.linspace(-200, 200, 40_001), 1.0, 0)
    assert (np.diff(w) >= 0).all()


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20)
)
def test_no_finite_score_breaks_a_weight(scores):
    for positive in (0, 1):
        for run, more in ((weigh_logistic, ()), (weigh_exponential, (np.float32(MAX_MARGIN),))):
            label = np.full(len(scores), positive, np.uint8)
            u, w = np.ones(len(scores), np.float32), np.empty(len(scores), np.float32)
            total = np.empty(2)
            run(label, u, np.array(scores, np.float32), *more, w, total)
            assert np.isfinite(w).all() and (w > 0).all() and np.isfinite(total).all()


@pytest.mark.parametrize("positive", [0, 1])
def test_weights_of_rows_of_no_importance_are_zero(positive):
    for run, more in (
        (weigh_logistic, ()), (weigh_logistic.py_func, ()),
        (weigh_exponential, (np.float32(MAX_MARGIN),)),
        (weigh_exponential.py_func, (np.float32(MAX_MARGIN),)),
    ):  # fmt: skip
        _, w = margins_and_weights(run, [-200, -1, 0, 1, 200], 0.0, positive, *more)
        assert w.tolist() == [0] * 5


def test_weights_of_no_rows_sum_to_zero():
    none, total = np.empty(0, np.float32), np.full(2, np.nan)
    weigh_logistic(np.empty(0, np.uint8), none, none, none.copy(), total)
    assert total.tolist() == [0, 0]
    total[:] = np.nan
    weigh_exponential(np.empty(0, np.uint8), none, none, np.float32(MAX_MARGIN), none.copy(), total)
    assert total.tolist() == [0, 0]


@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("u", [1.0, 3.7, 1e-6, 1e6])
@pytest.mark.parametrize("most", [MAX_MARGIN, 5.0])
def test_exponential_weights_are_right_to_one_millionth_and_cut(u, positive, most):
    most = np.float32(most)
    for run, scores in ((weigh_exponential, SCORES), (weigh_exponential.py_func, SCORES[::50])):
        margin, w = margins_and_weights(run, scores, u, positive, most)
        exact = np.float64(np.float32(u)) * np.exp(np.clip(-margin, -most, most))
        np.testing.assert_allclose(w, exact, rtol=1e-6)
        order = np.argsort(margin, kind="stable")
        assert (np.diff(w[order]) <= 0).all()


def test_labels_of_one_call_are_told_apart():
    rng = np.random.default_rng(4)
    label, score = rng.integers(0, 2, 101, np.uint8), rng.normal(size=101).astype(np.float32)
    u = rng.random(101).astype(np.float32)
    y = 2.0 * label - 1
    w, total = np.empty(101, np.float32), np.empty(2)
    weigh_logistic(label, u, score, w, total)
    np.testing.assert_allclose(w, u / (1 + np.exp(2 * y * score)), rtol=BITS)
    weigh_exponential(label, u, score, np.float32(MAX_MARGIN), w, total)
    np.testing.assert_allclose(w, u * np.exp(-y * score), rtol=1e-6)
