from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naive import lay_out
from sparrowboost.kernels.evidence import add_curved_rows, add_leaf_sums, add_rows, add_squares
from sparrowboost.learner.evidence import Evidence, Slots

pytestmark = pytest.mark.kernel


class Case:
    """Rows in blocks and leaves. Weights are multiples of 1/1024: every sum of them is exact."""

    def __init__(self, seed, n, block_rows, n_leaves, d):
        rng = np.random.default_rng(seed)
        n_bins = rng.choice([2, 3, 5, 64, 65, 256], d)
        offset = np.concatenate(([0], np.cumsum(n_bins)[:-1])).astype(np.uint64)
        self.slots = Slots(offset, n_bins.astype(np.int64), np.zeros(d, np.uint8))
        self.bins = rng.integers(0, n_bins, (n, d)).astype(np.uint8)
        self.label = rng.integers(0, 2, n, np.uint8)
        self.w = (rng.integers(0, 2048, n) / 1024).astype(np.float32)
        self.u = np.exp2(rng.integers(-3, 4, n)).astype(np.float32)
        self.leaf_of = rng.integers(0, n_leaves, n)
        if n:  # some blocks are of one leaf only: a kernel reads those another way
            for block in range(0, -(-n // block_rows), 2):
                self.leaf_of[block * block_rows : (block + 1) * block_rows] = block % n_leaves
        self.block_rows, self.n_leaves = block_rows, n_leaves
        self.layout = lay_out(self.leaf_of, block_rows, n_leaves, rng)
        self.all_blocks = rng.permutation(len(self.layout[1])).astype(np.int64)
        self.blocks = self.all_blocks[: rng.integers(0, len(self.all_blocks) + 1)]

    def add(self, run, blocks, leaf, evidence, columns=None):
        run(
            self.bins, self.label, self.w, *self.layout, blocks, self.block_rows, leaf,
            self.slots.offset, columns, evidence.hist, evidence.v,
        )  # fmt: skip

    def rows(self, blocks, leaf):
        return [
            i for i in range(len(self.w)) if i // self.block_rows in blocks
            and self.leaf_of[i] == leaf
        ]  # fmt: skip

    def naive(self, blocks, leaf):
        evidence = Evidence(self.slots)
        for i in self.rows(blocks.tolist(), leaf):
            y, w = int(self.label[i]), float(self.w[i])
            evidence.v[y] += w**2
            for j, first in enumerate(self.slots.offset.tolist()):
                evidence.hist[y, first + int(self.bins[i, j])] += w
        return evidence

    def leaf_sums(self, run, blocks, sums):
        run(
            self.label, self.w, self.u, *self.layout, blocks, self.block_rows, self.n_leaves, sums
        )  # fmt: skip
        return sums


cases = st.builds(
    Case, st.integers(0, 10**6), st.integers(0, 50), st.integers(1, 17), st.integers(1, 4),
    st.integers(1, 4),
)  # fmt: skip


def assert_same(a, b):
    np.testing.assert_array_equal(a.hist, b.hist)
    np.testing.assert_array_equal(a.v, b.v)


@given(cases)
def test_the_evidence_of_a_leaf_is_the_sum_over_its_rows_in_the_blocks_asked_for(case):
    for leaf in range(case.n_leaves):
        for run in (add_rows, add_rows.py_func):
            evidence = Evidence(case.slots)
            case.add(run, case.blocks, leaf, evidence)
            assert_same(evidence, case.naive(case.blocks, leaf))


def test_rows_that_lie_far_apart_are_added_like_others():
    case = Case(0, n=900, block_rows=400, n_leaves=30, d=70)  # 13 rows of a leaf in a block
    rng = np.random.default_rng(1)
    case.leaf_of = rng.integers(0, case.n_leaves, len(case.w))
    case.layout = lay_out(case.leaf_of, case.block_rows, case.n_leaves, rng)
    for leaf in range(case.n_leaves):
        for run in (add_rows, add_rows.py_func):
            evidence = Evidence(case.slots)
            case.add(run, case.all_blocks, leaf, evidence)
            assert_same(evidence, case.naive(case.all_blocks, leaf))


@given(cases, st.integers(1, 5))
def test_parts_of_the_blocks_merged_are_the_whole(case, n_parts):
    whole, merged = Evidence(case.slots), Evidence(case.slots)
    case.add(add_rows, case.all_blocks, 0, whole)
    for blocks in np.array_split(case.all_blocks, n_parts):
        part = Evidence(case.slots)
        case.add(add_rows, blocks, 0, part)
        merged += part
    assert_same(merged, whole)


@given(cases)
def test_rows_are_added_to_what_is_there_already(case):
    once, twice = Evidence(case.slots), Evidence(case.slots)
    case.add(add_rows, case.blocks, 0, once)
    case.add(add_rows, case.blocks, 0, twice)
    case.add(add_rows, case.blocks, 0, twice)
    np.testing.assert_array_equal(twice.hist, 2 * once.hist)
    np.testing.assert_array_equal(twice.v, 2 * once.v)


@given(cases)
def test_what_remains_of_all_rows_without_one_leaf_is_the_others(case):
    everything = Case.__new__(Case)
    everything.__dict__.update(case.__dict__)
    everything.leaf_of = np.zeros_like(case.leaf_of)
    rng = np.random.default_rng(0)
    everything.layout = lay_out(everything.leaf_of, case.block_rows, case.n_leaves, rng)
    rest, leaf = Evidence(case.slots), Evidence(case.slots)
    everything.add(add_rows, case.blocks, 0, rest)
    case.add(add_rows, case.blocks, 0, leaf)
    rest -= leaf
    others = Evidence(case.slots)
    for other in range(1, case.n_leaves):
        case.add(add_rows, case.blocks, other, others)
    assert_same(rest, others)


@given(cases)
def test_the_bins_of_any_feature_hold_every_row_once(case):
    evidence = Evidence(case.slots)
    case.add(add_rows, case.blocks, 0, evidence)
    rows = case.rows(case.blocks.tolist(), 0)
    for first, n in zip(case.slots.offset.astype(int), case.slots.n_bins, strict=True):
        for y in (0, 1):
            weight = case.w[rows][case.label[rows] == y].sum(dtype=np.float64)
            assert evidence.hist[y, first : first + n].sum() == weight == evidence.weights[y]


def test_many_rows_of_uneven_weights_sum_up_to_a_double_s_accuracy():
    rng = np.random.default_rng(3)
    n, block_rows = 40_000, 1 << 14
    bins = rng.integers(0, 256, (n, 2)).astype(np.uint8)
    label = rng.integers(0, 2, n, np.uint8)
    w = rng.lognormal(0, 5, n).astype(np.float32)
    leaf_of = rng.integers(0, 3, n)
    layout = lay_out(leaf_of, block_rows, 3, rng)
    hist, v = np.zeros((2, 512)), np.zeros(2)
    blocks, offset = np.arange(3), np.array([0, 256], np.uint64)
    add_rows(bins, label, w, *layout, blocks, block_rows, 1, offset, None, hist, v)
    for y in (0, 1):
        mine = (leaf_of == 1) & (label == y)
        for j in (0, 1):
            sums = np.bincount(bins[mine, j], w[mine].astype(np.float64), 256)
            # A sum of k positive terms is off by at most k roundings of itself: some 80 rows.
            np.testing.assert_allclose(hist[y, 256 * j : 256 * j + 256], sums, rtol=1e-13)
        np.testing.assert_allclose(v[y], np.square(w[mine], dtype=np.float64).sum(), rtol=1e-11)


@given(cases)
def test_the_sums_of_each_leaf_are_those_of_its_rows(case):
    for run in (add_leaf_sums, add_leaf_sums.py_func):
        sums = case.leaf_sums(run, case.blocks, np.full((case.n_leaves, 3), 0.5))
        for leaf in range(case.n_leaves):
            negative = positive = squares = 0.5
            for i in case.rows(case.blocks.tolist(), leaf):
                w, u = float(case.w[i]), float(case.u[i])
                negative += w if case.label[i] == 0 else 0.0
                positive += w if case.label[i] == 1 else 0.0
                squares += w**2 / u  # u is a power of 2: exact
            assert sums[leaf].tolist() == [negative, positive, squares]


@given(cases, st.integers(1, 5))
def test_leaf_sums_of_parts_merged_are_the_whole(case, n_parts):
    whole = case.leaf_sums(add_leaf_sums, case.all_blocks, np.zeros((case.n_leaves, 3)))
    merged = np.zeros((case.n_leaves, 3))
    for blocks in np.array_split(case.all_blocks, n_parts):
        case.leaf_sums(add_leaf_sums, blocks, merged)
    np.testing.assert_array_equal(merged, whole)


@given(cases)
def test_a_row_of_no_importance_adds_nothing_to_its_leaf(case):
    rows = np.arange(len(case.w)) % 3 == 0
    case.u[rows] = case.w[rows] = 0.0
    for run in (add_leaf_sums, add_leaf_sums.py_func):
        with np.errstate(all="ignore"):
            sums = case.leaf_sums(run, case.blocks, np.zeros((case.n_leaves, 3)))
        for leaf in range(case.n_leaves):
            mine = [i for i in case.rows(case.blocks.tolist(), leaf) if case.u[i] > 0]
            w, u = case.w[mine].astype(float), case.u[mine].astype(float)
            assert sums[leaf, 2] == (w**2 / u).sum()


@given(cases, st.booleans())
def test_curved_evidence_is_slope_and_curvature(case, counted):
    for leaf in range(case.n_leaves):
        hist, v = np.zeros((2, case.slots.n)), np.zeros(2)
        rows = case.rows(case.blocks.tolist(), leaf)
        for i in rows:
            y, w, u = int(case.label[i]), float(case.w[i]), float(case.u[i])
            v[y] += w**2 / (u if counted else 1)
            for j, first in enumerate(case.slots.offset.tolist()):
                slot, h = first + int(case.bins[i, j]), w * (1 - w / u)
                hist[:, slot] += h / 2 + h / 2  # twice the curvature in all,
                hist[y, slot] += w / 2  # and the slope between the labels
                hist[1 - y, slot] -= w / 2
        for run in (add_curved_rows, add_curved_rows.py_func):
            evidence = Evidence(case.slots, paired=True)
            run(
                case.bins, case.label, case.w, case.u, counted, *case.layout, case.blocks,
                case.block_rows, leaf, case.slots.offset, None, evidence.pairs, evidence.v,
            )  # fmt: skip
            np.testing.assert_allclose(evidence.hist, hist, rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(evidence.v, v, rtol=1e-6)


@given(cases, st.booleans(), st.sets(st.integers(0, 3)))
def test_of_some_columns_the_sums_are_the_same_and_of_others_none(case, curved, columns):
    columns = np.array([j for j in sorted(columns) if j < len(case.slots.offset)], np.uint64)
    wanted = np.repeat(np.isin(np.arange(len(case.slots.offset)), columns), case.slots.n_bins)
    rows = *case.layout, case.blocks, case.block_rows, 0, case.slots.offset
    kernel = add_curved_rows if curved else add_rows
    for run in (kernel, kernel.py_func):
        both = []
        for some in (None, columns):
            evidence = Evidence(case.slots, paired=curved)
            if curved:
                of = case.bins, case.label, case.w, case.u, False
                run(*of, *rows, some, evidence.pairs, evidence.v)
            else:
                run(case.bins, case.label, case.w, *rows, some, evidence.hist, evidence.v)
            both.append(evidence)
        every, of_some = both
        np.testing.assert_array_equal(of_some.hist, np.where(wanted, every.hist, 0))
        np.testing.assert_array_equal(of_some.v, every.v)


@given(cases, st.integers(0, 2**32))
def test_squares_on_the_left_are_those_of_the_rows_that_a_split_sends_there(case, seed):
    rng = np.random.default_rng(seed)
    d = case.bins.shape[1]
    feature, leaf = int(rng.integers(d)), int(rng.integers(case.n_leaves))
    mask = rng.integers(0, 2**63, 4).astype(np.uint64)
    left = {b for b in range(256) if int(mask[b >> 6]) >> (b & 63) & 1}
    expected = sum(
        float(case.w[i]) ** 2
        for i in case.rows(case.blocks.tolist(), leaf)
        if int(case.bins[i, feature]) in left
    )
    for values, at, step in (
        (case.bins.reshape(-1), feature, d),
        (np.ascontiguousarray(case.bins.T).reshape(-1), feature * len(case.bins), 1),
    ):
        for run in (add_squares, add_squares.py_func):
            v = np.ones(1)
            run(
                values, at, step, case.w, *case.layout, case.blocks, case.block_rows, leaf, mask, v
            )  # fmt: skip
            assert v[0] - 1 == pytest.approx(expected)
