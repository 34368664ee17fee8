from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import bins_of, make_sample, make_slots, mask_of
from constants import set_constants
from sparrowboost.kernels.scores import apply_trees
from sparrowboost.learner.scanner import Scanner
from sparrowboost.model.forest import Forest
from sparrowboost.runtime.threads import WorkerPool

N_BINS = [4, 8, 3]
N, BLOCK = 1_000, 64


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        set_constants(patch, sample_block_rows=BLOCK, part_values=600)  # a part: about four blocks
        yield


@pytest.fixture(autouse=True)
def workers():
    with WorkerPool(2) as workers:
        yield workers


def random_sample(seed=0, n=N):
    """Importances are whole and scores 0: weights are halves, and sums of them exact."""
    rng = np.random.default_rng(seed)
    bins = np.column_stack([rng.integers(0, b, n) for b in N_BINS])
    return make_sample(bins, rng.integers(0, 2, n), u=rng.integers(1, 9, n))


def test_evidence_is_of_the_features_that_a_tree_may_use_and_of_the_first(workers):
    sample = random_sample()
    scanner = make_scanner(workers, sample)
    hist, _ = naive_evidence(scanner, np.arange(N))
    for features, columns in (([2], [0, 2]), ([0, 1], [0, 1]), ([0, 1, 2], [0, 1, 2])):
        scanner.start(Forest(), 0, np.array(features))
        scanner.extend(sample.n_blocks)
        of = np.repeat(np.isin(np.arange(3), columns), N_BINS)
        np.testing.assert_array_equal(scanner.evidence[0].hist, np.where(of, hist, 0))
        np.testing.assert_array_equal(scanner.evidence[0].weights, hist[:, : N_BINS[0]].sum(1))


def make_scanner(workers, sample, max_leaves=16):
    scanner = Scanner(make_slots(N_BINS), max_leaves, workers)
    scanner.load(sample)
    scanner.start(Forest(), 0)
    return scanner


def naive_evidence(scanner, rows):
    """Evidence of these rows of the sample, value by value."""
    sample, slots = scanner.sample, scanner.slots
    hist, v = np.zeros((2, slots.n)), np.zeros(2)
    for y in (0, 1):
        mine = rows[sample.label[rows] == y]
        v[y] = (sample.w[mine].astype(float) ** 2).sum()
        for j, first in enumerate(slots.offset.astype(int)):
            np.add.at(hist[y], first + sample.bins[mine, j].astype(int), sample.w[mine])
    return hist, v


def assert_evidence(scanner, leaf, rows):
    hist, v = naive_evidence(scanner, np.asarray(rows))
    np.testing.assert_array_equal(scanner.evidence[leaf].hist, hist)
    np.testing.assert_array_equal(scanner.evidence[leaf].v, v)
    assert scanner.rows_in(leaf) == len(rows)


SPLITS = [(0, 0, [0, 3]), (1, 1, [2, 3, 4]), (0, 2, [1]), (2, 1, [0, 1, 2, 3, 7]), (3, 0, [2])]


def rows_by_leaf(bins, splits):
    """Which of the rows are in each leaf, by walking every one down."""
    leaf_of = np.zeros(len(bins), int)
    for right, (leaf, feature, left) in enumerate(splits, start=1):
        leaf_of[(leaf_of == leaf) & ~np.isin(bins[:, feature], left)] = right
    return [np.flatnonzero(leaf_of == leaf) for leaf in range(len(splits) + 1)]


def test_left_and_right_are_the_whole_on_every_feature_after_every_split(workers):
    scanner = make_scanner(workers, random_sample())
    scanner.extend(10**6)
    for leaf, feature, left in SPLITS:
        before = scanner.evidence[leaf].hist.copy()
        v, n = scanner.evidence[leaf].v.copy(), scanner.rows_in(leaf)
        right = scanner.split(leaf, feature, mask_of(left), 1.0)
        both = scanner.evidence[leaf].hist + scanner.evidence[right].hist
        np.testing.assert_array_equal(both, before)
        np.testing.assert_array_equal(scanner.evidence[leaf].v + scanner.evidence[right].v, v)
        assert scanner.rows_in(leaf) + scanner.rows_in(right) == n
    for leaf, rows in enumerate(rows_by_leaf(scanner.sample.bins, SPLITS)):
        assert_evidence(scanner, leaf, rows)
    assert sum(scanner.rows_in(leaf) for leaf in range(len(SPLITS) + 1)) == N


@settings(max_examples=40)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.permutations(range(5)))
def test_evidence_of_a_run_read_in_steps_is_that_of_the_whole_run(steps, when):
    """Splits come between the steps, some after the last one."""
    sample = random_sample()
    with WorkerPool(1) as workers:
        scanner = make_scanner(workers, sample)
        scanner.extend(1)
        done = 0
        for step, run in enumerate(np.cumsum(steps)):
            scanner.extend(int(run))
            while done < len(SPLITS) and when[done] <= step:
                leaf, feature, left = SPLITS[done]
                scanner.split(leaf, feature, mask_of(left), 1.0)
                done += 1
        n = min(int(sum(steps)) * BLOCK, N)
        assert scanner.n_rows == n
        for leaf, rows in enumerate(rows_by_leaf(sample.bins[:n], SPLITS[:done])):
            assert_evidence(scanner, leaf, rows)


def test_a_run_begins_where_the_last_one_ended_and_goes_round(workers):
    scanner = make_scanner(workers, random_sample())
    scanner.extend(10)
    assert scanner.rows_scanned == 640
    scanner.start(Forest(), 0)
    assert (scanner.n_run, scanner.n_rows, scanner.full) == (0, 0, False)
    scanner.extend(10)
    assert_evidence(scanner, 0, np.r_[640:N, : 10 * BLOCK - (16 * BLOCK - 640)])
    scanner.extend(10**6)
    assert scanner.full
    assert scanner.n_run == scanner.sample.n_blocks == 16
    assert_evidence(scanner, 0, np.arange(N))
    assert scanner.rows_scanned == 640 + N


def test_a_restart_keeps_the_tree_and_forgets_the_rows(workers):
    scanner = make_scanner(workers, random_sample())
    scanner.extend(4)
    scanner.split(0, 0, mask_of([0, 1]), 1.0)
    scanner.restart()
    assert scanner.tree.n_leaves == 2
    assert scanner.rows_in(0) == scanner.rows_in(1) == 0
    scanner.extend(2)
    for leaf, rows in enumerate(rows_by_leaf(scanner.sample.bins, [(0, 0, [0, 1])])):
        assert_evidence(scanner, leaf, rows[(rows >= 4 * BLOCK) & (rows < 6 * BLOCK)])


def test_leaf_sums_are_those_of_the_rows_of_each_leaf(workers):
    scanner = make_scanner(workers, random_sample())
    scanner.extend(10)
    for leaf, feature, left in SPLITS:
        scanner.split(leaf, feature, mask_of(left), 1.0)
    sums, sample = scanner.leaf_sums(), scanner.sample
    for leaf, rows in enumerate(rows_by_leaf(sample.bins[: 10 * BLOCK], SPLITS)):
        w, u = sample.w[rows].astype(float), sample.u[rows].astype(float)
        y = sample.label[rows] == 1
        np.testing.assert_allclose(sums[leaf], [w[~y].sum(), w[y].sum(), (w * w / u).sum()])


def test_rows_of_no_importance_add_nothing_to_a_leaf(workers):
    sample = random_sample()
    sample.u[::3] = 0
    for block in range(sample.n_blocks):
        sample.mark(block, 0)
    scanner = make_scanner(workers, sample)
    scanner.extend(10**6)
    mine = sample.u > 0
    w, y = sample.w[mine].astype(float), sample.label[mine] == 1
    expected = [w[~y].sum(), w[y].sum(), (w * w / sample.u[mine]).sum()]
    np.testing.assert_allclose(scanner.leaf_sums()[0], expected)


def test_a_finished_tree_is_added_to_the_scores_of_the_run_and_later_to_the_others(workers):
    sample = random_sample()
    scanner = make_scanner(workers, sample)
    scanner.extend(10)
    for leaf, feature, left in SPLITS:
        scanner.split(leaf, feature, mask_of(left), 1.0)
    value = np.linspace(-1, 1, len(SPLITS) + 1, dtype=np.float32)
    tree = scanner.tree.finish(value)
    scanner.finish(tree)
    expected, forest = np.zeros(N, np.float32), Forest([tree])
    apply_trees(sample.bins, *forest.arrays, 0, 1, expected)
    np.testing.assert_array_equal(sample.score[: 10 * BLOCK], expected[: 10 * BLOCK])
    assert not sample.score[10 * BLOCK :].any()
    scanner.start(forest, 1)
    scanner.extend(10**6)
    np.testing.assert_array_equal(sample.score, expected)
    w = sample.u / (1 + np.exp(np.where(sample.label, 2.0, -2.0) * expected))
    np.testing.assert_allclose(sample.w, w, rtol=2e-5)


@pytest.mark.parametrize("n_jobs", [2, 3, 7])
def test_evidence_is_the_same_bit_by_bit_for_any_number_of_threads(n_jobs):
    rng = np.random.default_rng(3)
    found = []
    u = rng.lognormal(size=N)  # sums of these depend on their order
    for jobs in (1, n_jobs):
        with WorkerPool(jobs) as workers:
            sample = random_sample()
            sample.u[:] = u
            for block in range(sample.n_blocks):
                sample.mark(block, 0)
            scanner = make_scanner(workers, sample)
            for run, (leaf, feature, left) in zip((3, 5, 9, 16, 16), SPLITS, strict=True):
                scanner.extend(run)
                scanner.split(leaf, feature, mask_of(left), 1.0)
            found.append(
                b"".join(e.hist.tobytes() + e.v.tobytes() for e in scanner.evidence[:6])
                + scanner.leaf_sums().tobytes()
            )
    assert found[0] == found[1]


def test_a_new_sample_is_read_from_its_start(workers):
    scanner = make_scanner(workers, random_sample())
    scanner.extend(3)
    scanner.load(random_sample(seed=1, n=100))
    scanner.start(Forest(), 0)
    scanner.extend(1)
    assert_evidence(scanner, 0, np.arange(BLOCK))


def test_masks_name_the_bins_that_stay():
    assert bins_of(mask_of([0, 63, 64, 255])) == {0, 63, 64, 255}
