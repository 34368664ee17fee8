from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naive import in_mask, make_mask
from sparrowboost.kernels.partition import split_rows, start_rows
from sparrowboost.sampling.sample import BLOCK_ROWS

pytestmark = pytest.mark.kernel


class Case:
    """Rows in blocks, and splits: (leaf, feature, mask), the new leaf taking the next number."""

    def __init__(self, seed, n, block_rows, n_splits, d=3):
        rng = np.random.default_rng(seed)
        self.n, self.block_rows, self.n_leaves = n, block_rows, n_splits + 1
        self.n_blocks = -(-n // block_rows)
        self.bins = rng.integers(0, 256, (n, d)).astype(np.uint8)
        share = rng.choice([0.0, 0.2, 0.5, 1.0], n_splits)  # also splits that move all, or none
        self.splits = [
            (int(rng.integers(k + 1)), int(rng.integers(d)),
             make_mask(np.flatnonzero(rng.random(256) < share[k]).tolist()))
            for k in range(n_splits)
        ]  # fmt: skip
        self.blocks = rng.permutation(self.n_blocks).astype(np.int64)
        # Kernels may rely on nothing that these hold.
        self.order = rng.integers(0, 2**16, n).astype(np.uint16)
        self.begin = rng.integers(-9, 9, (self.n_blocks, self.n_leaves)).astype(np.int32)
        self.count = rng.integers(-9, 9, (self.n_blocks, self.n_leaves)).astype(np.int32)
        self.spare = rng.integers(0, 2**16, block_rows).astype(np.uint16)

    @property
    def layout(self):
        return self.order, self.begin, self.count

    def copy(self):
        other = Case.__new__(Case)
        other.__dict__.update(self.__dict__)
        other.order, other.begin, other.count = (part.copy() for part in self.layout)
        return other

    def start(self, run, blocks):
        run(self.n, *self.layout, blocks, self.block_rows)

    def split(self, run, blocks, k):
        leaf, feature, mask = self.splits[k]
        n, d = self.bins.shape
        where = self.bins.reshape(-1), feature, d
        if k % 2:
            where = self.bins.T.reshape(-1), feature * n, 1  # columns in one piece
        return run(*where, *self.layout, blocks, self.block_rows, leaf, k + 1, mask, self.spare)

    def grow(self, compiled, blocks):
        """Send all rows of some blocks through all splits."""
        self.start(start_rows if compiled else start_rows.py_func, blocks)
        for k in range(len(self.splits)):
            self.split(split_rows if compiled else split_rows.py_func, blocks, k)

    def leaf_of(self, i, n_splits):
        """The leaf of a row, by asking one split after the other."""
        mine = 0
        for k, (leaf, feature, mask) in enumerate(self.splits[:n_splits]):
            if mine == leaf and not in_mask(mask, int(self.bins[i, feature])):
                mine = k + 1
        return mine

    def rows_of(self, block):
        first = block * self.block_rows
        return range(first, min(first + self.block_rows, self.n))

    def listed(self, block, leaf):
        """Rows that the layout lists for a leaf, counted from the start of their block."""
        start = block * self.block_rows + int(self.begin[block, leaf])
        return self.order[start : start + int(self.count[block, leaf])].tolist()


cases = st.builds(
    Case, st.integers(0, 10**6), st.integers(0, 50), st.integers(1, 20), st.integers(0, 4)
)


@given(cases)
def test_at_the_start_all_rows_of_a_block_are_in_leaf_0_in_their_order(case):
    for run in (start_rows, start_rows.py_func):
        case = case.copy()
        some = case.blocks[: len(case.blocks) // 2 + 1]
        before = case.copy()
        case.start(run, some)
        for block in range(case.n_blocks):
            rows = case.rows_of(block)
            if block in some:
                assert case.listed(block, 0) == list(range(len(rows)))
                assert case.count[block].tolist() == [len(rows)] + [0] * (case.n_leaves - 1)
            else:
                np.testing.assert_array_equal(case.order[rows], before.order[rows])
                np.testing.assert_array_equal(case.count[block], before.count[block])
                np.testing.assert_array_equal(case.begin[block], before.begin[block])


@given(cases)
def test_splits_send_every_row_where_asking_row_by_row_does_and_keep_the_order(case):
    for run, start in ((split_rows, start_rows), (split_rows.py_func, start_rows.py_func)):
        case = case.copy()
        case.start(start, case.blocks)
        for k, (leaf, _, _) in enumerate(case.splits):
            stayed = case.split(run, case.blocks, k)
            where = [case.leaf_of(i, k + 1) for i in range(case.n)]
            assert stayed == where.count(leaf)
            for block in range(case.n_blocks):
                rows, places = case.rows_of(block), []
                for mine in range(k + 2):
                    expected = [i - rows.start for i in rows if where[i] == mine]
                    assert case.listed(block, mine) == expected
                    begin = int(case.begin[block, mine])
                    places += range(begin, begin + len(expected))
                # The leaves' parts lie end to end, and hold the block: the last one, too, which
                # is rarely full.
                assert sorted(places) == list(range(len(rows)))


@given(cases, st.integers(0, 3))
def test_blocks_that_arrive_later_lie_as_if_they_had_been_there(case, n_first):
    together, apart, python = case.copy(), case.copy(), case.copy()
    together.grow(True, case.blocks)
    apart.grow(True, case.blocks[:n_first])
    apart.grow(True, case.blocks[n_first:])
    python.grow(False, case.blocks)
    for other in (apart, python):
        for a, b in zip(together.layout, other.layout, strict=True):
            np.testing.assert_array_equal(a, b)


@given(cases)
def test_blocks_that_are_not_asked_for_stay_as_they_are(case):
    case.start(start_rows, case.blocks)
    if not case.splits:
        return
    some, others = case.blocks[::2], case.blocks[1::2]
    before = case.copy()
    stayed = case.split(split_rows, some, 0)
    for block in others:
        rows = case.rows_of(block)
        np.testing.assert_array_equal(case.order[rows], before.order[rows])
        np.testing.assert_array_equal(case.begin[block], before.begin[block])
        np.testing.assert_array_equal(case.count[block], before.count[block])
    stayed += case.split(split_rows, others, 0)
    assert stayed == sum(case.leaf_of(i, 1) == 0 for i in range(case.n))


@given(cases)
def test_an_empty_leaf_splits_into_two_empty_ones(case):
    if case.n_leaves < 3:
        return
    case.splits = [(0, 0, make_mask(range(256))), (1, 1, make_mask([]))]
    for compiled in (True, False):
        case = case.copy()
        case.grow(compiled, case.blocks)
        for block in range(case.n_blocks):
            assert case.listed(block, 0) == list(range(len(case.rows_of(block))))
            assert case.count[block, 1:3].tolist() == [0, 0]


@pytest.mark.parametrize("block_rows", [BLOCK_ROWS, 1 << 16])  # 16 bits can number no more
def test_a_full_block_and_a_few_rows_more(block_rows):
    case = Case(5, block_rows + 7, block_rows, 3)
    case.splits = [
        (leaf, feature, make_mask(range(cut)))
        for leaf, feature, cut in ((0, 0, 100), (0, 1, 200), (1, 2, 1))
    ]
    case.grow(True, case.blocks)
    left = case.bins[:, 0] < 100
    where = np.where(left, np.where(case.bins[:, 1] < 200, 0, 2), np.where(case.bins[:, 2], 3, 1))
    for block in (0, 1):
        rows = case.rows_of(block)
        for leaf in range(4):
            mine = np.flatnonzero(where[rows.start : rows.stop] == leaf)
            assert case.listed(block, leaf) == mine.tolist()
