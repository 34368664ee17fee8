from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrowboost.kernels.rows import columns_to_rows, gather_rows, random_order, scatter_rows

pytestmark = pytest.mark.kernel

MASK = 2**64 - 1


def bucket_of(row, seed, n_buckets):
    """The hash in Python's unbounded integers."""
    z = (seed + (row + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    z ^= z >> 31
    return ((z >> 32) * n_buckets) >> 32


@given(
    st.integers(0, 60), st.integers(1, 5), st.integers(1, 8), st.integers(1, 7),
    st.integers(1, 20), st.integers(0, 2**63), st.integers(0, 2**40),
)  # fmt: skip
def test_rows_go_where_the_hash_says_until_a_bucket_is_full(n, width, bands, b, slots, seed, first):
    rng = np.random.default_rng(0)
    records = rng.integers(0, 256, (n, width), dtype=np.uint8)
    code = rng.integers(0, bands, n).astype(np.uint8)
    buckets = np.zeros((bands * b, slots, width), np.uint8)
    fill = np.zeros(bands * b, np.int64)
    stop = scatter_rows(records, code, bands, 0, np.uint64(first), np.uint64(seed), buckets, fill)
    expected: list[list[list[int]]] = [[] for _ in range(bands * b)]
    for i in range(n):
        k = code[i] * b + bucket_of(first + i, seed, b)
        if len(expected[k]) == slots:
            assert stop == i
            break
        expected[k].append(records[i].tolist())
    else:
        assert stop == n
    assert [buckets[k, : fill[k]].tolist() for k in range(bands * b)] == expected


@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 2), st.integers(0, 9))
def test_gathered_rows_are_the_records_taken_apart(n, d, n_extra, seed):
    rng = np.random.default_rng(seed)
    records = rng.integers(0, 256, (n, d + 4 * n_extra), dtype=np.uint8)
    order = rng.permutation(n)[: max(1, n // 2)].astype(np.uint32)
    for run in (gather_rows, gather_rows.py_func):
        bins = np.empty((len(order), d), np.uint8)
        extra = np.empty((len(order), 4 * n_extra), np.uint8)
        run(records, order, bins, extra)
        np.testing.assert_array_equal(bins, records[order, :d])
        np.testing.assert_array_equal(extra, records[order, d:])


def naive_order(seed, n):
    order, state = list(range(n)), seed
    for i in range(n - 1, 0, -1):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        j = (((z ^ (z >> 31)) >> 32) * (i + 1)) >> 32
        order[i], order[j] = order[j], order[i]
    return order


@given(st.integers(0, 50), st.integers(0, MASK))
def test_an_order_is_the_permutation_that_python_makes(n, seed):
    order = np.empty(n, np.uint32)
    random_order(np.uint64(seed), order)
    assert order.tolist() == naive_order(seed, n)
    assert sorted(order.tolist()) == list(range(n))


def test_all_orders_of_four_are_equally_likely():
    counts: dict[tuple[int, ...], int] = {}
    order = np.empty(4, np.uint32)
    for seed in range(24_000):
        random_order(np.uint64(seed * 0x2545F4914F6CDD1D & MASK), order)
        key = tuple(order.tolist())
        counts[key] = counts.get(key, 0) + 1
    # Chi-square with 23 degrees of freedom: 99.99 % below 58.
    assert len(counts) == 24
    assert sum((c - 1000) ** 2 / 1000 for c in counts.values()) < 58


@pytest.mark.parametrize(("d", "n"), [(1, 1), (3, 127), (5, 128), (2, 300), (4, 0)])
def test_columns_become_rows(d, n):
    columns = np.random.default_rng(0).integers(0, 256, (d, n), dtype=np.uint8)
    rows, wider = np.zeros((n, d), np.uint8), np.zeros((n, d + 4), np.uint8)
    columns_to_rows(columns, rows)
    columns_to_rows(columns, wider[:, :d])
    np.testing.assert_array_equal(rows, columns.T)
    np.testing.assert_array_equal(wider[:, :d], columns.T)
    assert not wider[:, d:].any()
