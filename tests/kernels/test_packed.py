from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naive import lay_out
from sparrowboost.kernels.evidence import add_curved_rows, add_rows
from sparrowboost.kernels.numbers import add_number_rows
from sparrowboost.kernels.packed import (
    DROPPED,
    GROUP,
    MOST_GAP,
    add_curved_packed_rows,
    add_packed_numbers,
    add_packed_rows,
    best_packed_split,
    bin_entries,
    count_codes,
    count_entries,
    find_cuts,
    index_block,
    pack_rows,
    sort_by_column,
    unpack_column,
    unpack_features,
)
from sparrowboost.kernels.splits import best_split
from sparrowboost.learner.evidence import Evidence, NumberEvidence, Slots

pytestmark = pytest.mark.kernel


class Table:
    """Random sparse rows with thresholds, packed with tails, and as naive bins.

    Where features are `far` apart in the codes, some gaps are longer than a word holds.
    """

    def __init__(self, seed, n=40, d=9, words=3, far=True):
        rng = np.random.default_rng(seed)
        self.rng, self.n, self.d, self.missing = rng, n, d, bool(rng.integers(2))
        self.columns = rng.permutation(2 * d)[:d]  # of each feature
        self.cuts = [np.unique(rng.integers(-3, 4, rng.integers(0, 4))) + 0.5 for _ in range(d)]
        self.at = np.concatenate(([0], np.cumsum([len(c) for c in self.cuts]))).astype(np.int64)
        self.zero = np.array([int((c < 0).sum()) for c in self.cuts], np.uint8)
        n_codes = np.diff(self.at) + self.missing
        gaps = rng.integers(0, 2 * MOST_GAP, d) if far else 0
        order = rng.permutation(d)
        first = np.empty(d, np.int64)
        first[order] = 1 + np.cumsum(np.append(0, (n_codes + gaps)[order]))[:-1]
        self.first, self.last = first, first + n_codes
        self.feature_of = np.full(2 * d, DROPPED, np.int32)
        self.feature_of[self.columns] = np.arange(d)
        self.rows = []
        for _ in range(n):
            own = rng.integers(0, 2 * d, rng.integers(0, 2 * d))  # in any order, some twice
            value = rng.integers(-4, 5, len(own)).astype(float)
            if self.missing:
                value[rng.random(len(own)) < 0.2] = np.nan
            self.rows.append((own, value))
        self.start = np.cumsum([0, *(len(own) for own, _ in self.rows)]).astype(np.int64)
        self.index = np.concatenate([own for own, _ in self.rows]).astype(np.int32)
        self.value = np.concatenate([value for _, value in self.rows])
        self.n_bins = np.diff(self.at) + 2
        self.bins = self.naive_bins()
        self.words = words

    def naive_bins(self):
        bins = np.tile(self.zero, (self.n, 1))
        for i, (own, value) in enumerate(self.rows):
            for column, x in zip(own.tolist(), value.tolist(), strict=True):
                f = int(self.feature_of[column])
                if f != DROPPED:
                    missing = len(self.cuts[f]) + 1
                    bins[i, f] = missing if np.isnan(x) else int((self.cuts[f] < x).sum())
        return bins

    def entries(self):
        return self.start, self.index, self.value, self.feature_of, self.at, *self.flat_cuts()

    def flat_cuts(self):
        return np.concatenate([np.empty(0), *self.cuts]).astype(float), self.zero

    def pack(self, run=pack_rows):
        """Rows of words with the number of their tail, and tails."""
        words = np.full((self.n, self.words), 9, np.uint16)
        sizes, tails = np.empty(self.n, np.int64), np.empty(99 * self.n, np.uint16)
        bad = run(*self.entries(), self.first, self.last, words, sizes, tails)
        assert bad == -1
        long = np.flatnonzero(sizes)
        number = np.zeros(self.n, np.uint32)
        number[long] = np.arange(1, len(long) + 1)
        ends = np.cumsum(np.append(0, sizes[long])).astype(np.int64)
        packed = np.concatenate((words, number[:, None].view(np.uint16)), axis=1)
        return packed, ends, tails[: ends[-1]].copy(), self.words + int(sizes.max())


tables = st.builds(Table, st.integers(0, 10**6))


@given(tables)
def test_all_bins_of_packed_rows_come_back(table):
    rows = table.pack()
    bins = np.empty_like(table.bins)
    unpack_features(*rows, table.first, table.last, table.zero, bins)
    np.testing.assert_array_equal(bins, table.bins)
    some = np.flatnonzero(table.rng.random(table.d) < 0.5)
    bins = np.empty((table.n, len(some)), np.uint8)
    of = table.first[some], table.last[some], table.zero[some]
    unpack_features(*rows, *of, bins)
    np.testing.assert_array_equal(bins, table.bins[:, some])


def test_the_plain_python_of_packing_does_the_same():
    table = Table(5)
    for fast, naive in zip(table.pack(), table.pack(pack_rows.py_func), strict=True):
        np.testing.assert_array_equal(fast, naive)


def test_rows_without_tails_have_no_number_of_one():
    table = Table(3, words=9, far=False)
    packed, _, _, longest = table.pack()
    none = np.empty(0, np.int64), np.empty(0, np.uint16)
    bins = np.empty_like(table.bins)
    of = table.first, table.last, table.zero, bins
    unpack_features(packed[:, :-2].copy(), *none, longest, *of)
    np.testing.assert_array_equal(bins, table.bins)


def test_a_missing_value_without_a_code_is_told():
    start, index, value = np.array([0, 2]), np.array([0, 1], np.int32), np.array([1.0, np.nan])
    of = np.array([0, 1], np.int32), np.array([0, 1, 2]), np.array([0.5, 0.5])
    more = np.zeros(2, np.uint8), np.array([1, 2]), np.array([2, 3])
    out = np.empty((1, 4), np.uint16), np.empty(1, np.int64), np.empty(0, np.uint16)
    assert pack_rows(start, index, value, *of, *more, *out) == 1


@given(tables)
def test_entries_are_binned_as_one_by_one(table):
    bins = np.empty_like(table.bins)
    bin_entries(*table.entries(), bins)
    np.testing.assert_array_equal(bins, table.bins)


class Leaves:
    """Rows of a table in blocks and leaves, with weights whose sums are exact."""

    def __init__(self, table, block_rows=7, n_leaves=3):
        rng, n = table.rng, table.n
        self.leaf_of = rng.integers(0, n_leaves, n)
        self.leaf_of[:block_rows] = 1  # a whole block
        self.layout = lay_out(self.leaf_of, block_rows, n_leaves, rng)
        self.blocks = rng.permutation(-(-n // block_rows)).astype(np.int64)
        self.label = rng.integers(0, 2, n).astype(np.uint8)
        self.w = (rng.integers(0, 2048, n) / 1024).astype(np.float32)
        self.u = np.exp2(rng.integers(1, 4, n)).astype(np.float32)
        self.g = (rng.integers(-2048, 2048, n) / 1024).astype(np.float32)
        self.block_rows = block_rows

    def rows(self, leaf):
        return *self.layout, self.blocks, self.block_rows, leaf


def dense_slots(table):
    offset = np.concatenate(([0], np.cumsum(table.n_bins)[:-1])).astype(np.uint64)
    return Slots(offset, table.n_bins.astype(np.int64), np.zeros(table.d, np.uint8))


def packed_evidence(kind, table, **how):
    size = np.array([1, int(table.last.max())], np.int64)
    return kind(Slots(np.array([0, 1], np.uint64), size, np.zeros(2, np.uint8)), **how)


def by_code(table, hist):
    """Sums of all bins (2, slots), from those of codes."""
    out = []
    for f in range(table.d):
        own = hist[:, table.first[f] : table.last[f]]
        z = int(table.zero[f])
        rest = hist[:, :1] - own.sum(1, keepdims=True)
        none = np.zeros((2, 1 - table.missing))
        out += [own[:, :z], rest, own[:, z:], none]
    return np.concatenate(out, axis=1)


@given(tables)
def test_evidence_of_packed_rows_is_that_of_their_bins(table):
    leaves, rows = Leaves(table), table.pack()
    slots = dense_slots(table)
    at = slots.offset, None
    for leaf in range(3):
        of = leaves.rows(leaf)
        one, two = packed_evidence(Evidence, table), Evidence(slots)
        add_packed_rows(*rows, leaves.label, leaves.w, *of, one.hist, one.v)
        add_rows(table.bins, leaves.label, leaves.w, *of, *at, two.hist, two.v)
        np.testing.assert_array_equal(by_code(table, one.hist), two.hist)
        np.testing.assert_array_equal(one.v, two.v)
        np.testing.assert_array_equal(one.weights, two.weights)
        for counted in (False, True):
            one, two = packed_evidence(Evidence, table, paired=True), Evidence(slots, paired=True)
            given_rows = leaves.label, leaves.w, leaves.u, counted
            add_curved_packed_rows(*rows, *given_rows, *of, one.pairs, one.v)
            add_curved_rows(table.bins, *given_rows, *of, *at, two.pairs, two.v)
            np.testing.assert_allclose(by_code(table, one.hist), two.hist, atol=1e-12)
            np.testing.assert_array_equal(one.v, two.v)
            one, two = packed_evidence(NumberEvidence, table), NumberEvidence(slots)
            given_rows = leaves.g, leaves.w, leaves.u, counted
            add_packed_numbers(*rows, *given_rows, *of, one.pairs, one.v)
            add_number_rows(table.bins, *given_rows, *of, *at, two.pairs, two.v)
            np.testing.assert_array_equal(by_code(table, one.hist), two.hist)
            np.testing.assert_allclose(one.v, two.v, atol=1e-12)


@given(tables, st.sampled_from([7, 100]))
def test_the_column_that_a_leaf_is_split_by_has_its_bins(table, block_rows):
    rows, n_blocks = table.pack(), -(-table.n // block_rows)
    counts = np.empty(n_blocks, np.int64)
    count_codes(*rows, block_rows, counts)
    ends = np.cumsum(counts)
    start = np.full((n_blocks, int(table.last.max()) // GROUP + 2), 9, np.int32)
    entries = np.empty(ends[-1], np.uint16)
    blocks = np.flatnonzero(table.rng.random(n_blocks) < 0.7)
    for k in blocks.tolist():
        index_block(*rows, k, block_rows, start[k], entries[ends[k] - counts[k] : ends[k]])
    here = np.isin(np.arange(table.n) // block_rows, blocks)
    for f in range(table.d):
        column = np.full(table.n, 99, np.uint8)
        of = int(table.first[f]), int(table.last[f]), int(table.zero[f])
        unpack_column(start, entries, ends - counts, *of, blocks, block_rows, column)
        np.testing.assert_array_equal(column[here], table.bins[here, f])
        assert (column[~here] == 99).all()


@given(st.integers(0, 10**6), st.sampled_from([0.5, 3.0]), st.booleans())
def test_the_best_split_is_that_of_all_bins(seed, min_weight, bounded):
    table = Table(seed, n=60, far=False)
    leaves, rows, slots = Leaves(table, n_leaves=1), table.pack(), dense_slots(table)
    one, two = packed_evidence(Evidence, table), Evidence(slots)
    of = *leaves.layout, leaves.blocks, leaves.block_rows, 0
    add_packed_rows(*rows, leaves.label, leaves.w, *of, one.hist, one.v)
    add_rows(table.bins, leaves.label, leaves.w, *of, slots.offset, None, two.hist, two.v)
    sign = table.rng.integers(-1, 2, table.d).astype(np.int8)
    bounds = (-0.4, 0.3) if bounded else (-np.inf, np.inf)
    some = np.flatnonzero(table.rng.random(table.d) < 0.8)
    found, mask = np.empty((2, 5)), np.empty((2, 4), np.uint64)
    rule = min_weight, sign, *bounds, np.empty((2, 256))
    of = table.first, table.last, slots.n_bins, table.zero, some, 2.0
    best_packed_split(one.hist, *of, *rule, found[0], mask[0])
    of = slots.offset, slots.n_bins, slots.category, some, 2.0, 2.0, min_weight
    best_split(two.hist, *of, np.zeros(table.d), *rule[1:], found[1], mask[1])
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(mask[0], mask[1])


def test_entries_and_rows_are_counted():
    table = Table(1)
    columns, lengths = np.zeros(2 * table.d, np.int64), np.zeros(2 * table.d, np.int64)
    count_entries(table.start, table.index, columns, lengths)
    np.testing.assert_array_equal(columns, np.bincount(table.index, minlength=2 * table.d))
    own = [len(index) for index, _ in table.rows]
    np.testing.assert_array_equal(lengths, np.bincount(own, minlength=2 * table.d))


def test_values_are_sorted_by_column():
    table = Table(2)
    of = [table.value[(table.index == c) & ~np.isnan(table.value)] for c in table.columns]
    start = np.cumsum([0, *map(len, of)])
    out = np.empty(start[-1])
    sort_by_column(table.index, table.value, table.feature_of, start[:-1].copy(), out)
    for f, own in enumerate(of):
        np.testing.assert_array_equal(out[start[f] : start[f + 1]], own)


def cuts_of(values, most):
    cuts, n_cuts = np.empty(most + 2), np.empty(1, np.int64)
    of = np.array([0, len(values)]), np.array([most]), np.array([0])
    find_cuts(np.array(values, float), *of, cuts, n_cuts)
    return cuts[: n_cuts[0]]


@given(st.lists(st.integers(-6, 6)), st.integers(1, 8))
def test_zero_has_a_bin_of_its_own_and_others_about_equal_ones(values, most):
    cuts = cuts_of(values, most)
    distinct = sorted(set(values) - {0})
    bins = np.searchsorted(cuts, [0.0, *distinct])
    assert bins[0] not in bins[1:]
    assert (np.diff(cuts) > 0).all()
    assert len(cuts) <= most + 1
    if distinct and len(distinct) <= most:
        assert len(set(bins.tolist())) == len(distinct) + 1
        assert len(cuts) == len(distinct)


def test_many_values_are_in_equal_bins():
    np.testing.assert_array_equal(cuts_of(range(1, 101), 4), [0.5, 25.5, 50.5, 75.5])
    np.testing.assert_array_equal(cuts_of([np.inf, 1, -np.inf], 5), [-np.inf, 0.5, 1])
    np.testing.assert_array_equal(cuts_of([], 3), [0])
