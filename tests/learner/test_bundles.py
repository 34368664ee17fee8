from __future__ import annotations

import tracemalloc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparrowboost.learner.scanner
from builders import make_sample, make_slots, make_stump
from sparrowboost import ingest, train
from sparrowboost.learner.bundles import find_bundles
from sparrowboost.learner.scanner import Scanner
from sparrowboost.model.forest import Forest
from sparrowboost.runtime.threads import WorkerPool


def table(seed, n=200):
    """Two sets of columns of which one is set, columns that are set freely, and numbers."""
    rng = np.random.default_rng(seed)
    first = np.eye(5, dtype=np.uint8)[rng.integers(0, 5, n)]
    second = np.eye(4, dtype=np.uint8)[rng.integers(0, 4, n)]
    second = 1 - second  # set means 0
    free = rng.integers(0, 2, (n, 2), dtype=np.uint8)
    missing = rng.integers(0, 3, (n, 1), dtype=np.uint8)  # binary, and missing at times
    numbers = rng.integers(0, 9, (n, 2), dtype=np.uint8)
    bins = np.hstack((numbers, first, free, missing, second))
    n_bins = np.array([10, 10] + [3] * 12)
    order = rng.permutation(bins.shape[1])
    return np.ascontiguousarray(bins[:, order]), make_slots(n_bins[order])


def sums(bins, slots, w, label):
    hist = np.zeros((2, slots.n))
    for j, first in enumerate(slots.offset.tolist()):
        np.add.at(hist, (label, first + bins[:, j].astype(int)), w)
    return hist


@given(st.integers(0, 10**6))
def test_sums_of_columns_come_out_of_their_bundles(seed):
    bins, slots = table(seed)
    rng = np.random.default_rng(seed)
    w, label = rng.random(len(bins)), rng.integers(0, 2, len(bins))
    bundles = find_bundles(bins, slots)
    packed = bundles.pack(bins)
    assert packed.shape[1] == len(bundles.slots.n_bins) < bins.shape[1]
    assert (packed < bundles.slots.n_bins).all()
    unpacked = bundles.unpack(sums(packed, bundles.slots, w, label))
    np.testing.assert_allclose(unpacked, sums(bins, slots, w, label), atol=1e-9)


@given(st.integers(0, 10**6), st.sets(st.integers(0, 13)))
def test_the_packed_columns_of_some_features_hold_all_of_these(seed, features):
    bins, slots = table(seed)
    bundles = find_bundles(bins, slots)
    wanted = np.isin(np.arange(slots.n_features), list(features))
    packed = bundles.columns_of(wanted)
    assert packed.shape == (len(bundles.slots.n_bins),)
    holds = [{int(j)} for j in bundles.plain] + [set(m.tolist()) for m in bundles.members]
    assert packed.tolist() == [bool(one & features) for one in holds]


def test_columns_that_are_set_together_are_in_no_bundle():
    rng = np.random.default_rng(0)
    bins = rng.integers(0, 2, (500, 8), dtype=np.uint8)
    assert find_bundles(bins, make_slots([3] * 8)) is None


def test_numbers_alone_make_no_bundle():
    bins = np.random.default_rng(0).integers(0, 200, (500, 8), dtype=np.uint8)
    assert find_bundles(bins, make_slots([256] * 8)) is None


def test_one_row_that_has_two_set_parts_a_bundle():
    bins = np.eye(6, dtype=np.uint8)[np.random.default_rng(0).integers(0, 6, 500)]
    assert [len(m) for m in find_bundles(bins, make_slots([3] * 6)).members] == [6]
    bins[17, :2] = 1
    assert all({0, 1} - set(m) for m in find_bundles(bins, make_slots([3] * 6)).members)


@pytest.mark.parametrize("loss", ["logistic", "exponential"])
def test_bundles_do_not_change_the_model(loss, monkeypatch):
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 12, 5_000)
    X = np.column_stack((rng.normal(size=5_000), np.eye(12)[kind]))
    y = rng.random(5_000) < 1 / (1 + np.exp(-X[:, 0] - 2 * np.isin(kind, [1, 4, 7])))
    dataset = ingest(X, label=y, verbose=0)
    with_bundles = train(dataset, n_estimators=10, loss=loss, verbose=0)
    monkeypatch.setattr(sparrowboost.learner.scanner, "find_bundles", lambda bins, slots: None)
    without = train(dataset, n_estimators=10, loss=loss, verbose=0)
    for a, b in zip(with_bundles.trees, without.trees, strict=True):
        np.testing.assert_array_equal(a.feature, b.feature)
        np.testing.assert_array_equal(a.mask, b.mask)
        np.testing.assert_allclose(a.value, b.value, rtol=1e-4, atol=1e-6)


def test_rows_that_were_packed_are_kept_as_columns_only():
    bins, slots = table(0)
    sample = make_sample(bins.copy(), np.arange(len(bins)) % 2, whole=True)
    rows = weakref.ref(sample.bins)
    with WorkerPool(1) as workers:
        scanner = Scanner(slots, 4, workers, curved=True)
        scanner.load(sample)
    assert scanner.bundles is not None
    assert rows() is None
    np.testing.assert_array_equal(sample.bins, bins)
    forest = Forest([make_stump(0, [0], -1.0, 1.0)])
    before = sample.score.copy()
    sample.refresh(0, forest, 1)
    np.testing.assert_array_equal(sample.score - before, np.where(bins[:, 0] == 0, -1.0, 1.0))


def test_looking_for_bundles_takes_no_memory_for_each_column():
    n, d = 50_000, 100
    bins = np.random.default_rng(0).integers(0, 2, (n, d), dtype=np.uint8)
    tracemalloc.start()
    try:
        assert find_bundles(bins, make_slots(np.full(d, 3))) is None  # none excludes another
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < d * n / 4  # a mask for each of the last few bundles, and what counting takes
