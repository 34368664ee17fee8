from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import make_sample, make_slots
from sparrowboost import ingest
from sparrowboost.learner.evidence import Evidence, Slots
from sparrowboost.learner.scanner import Scanner
from sparrowboost.model.forest import Forest
from sparrowboost.runtime.threads import WorkerPool


@st.composite
def seen_rows(draw):
    """Rows with whole weights, whose sums are exact in any order."""
    n_bins = draw(st.lists(st.integers(1, 256), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    n = draw(st.integers(1, 60))
    bins = np.column_stack([rng.integers(0, b, n) for b in n_bins])
    return make_slots(n_bins), bins, rng.integers(0, 2, n), rng.integers(0, 9, n).astype(float)


def add_up(slots, bins, label, w) -> Evidence:
    """Evidence of some rows, value by value."""
    evidence = Evidence(slots)
    for row, y, wi in zip(bins, label, w, strict=True):
        evidence.v[y] += wi**2
        for j, b in enumerate(row):
            evidence.hist[y, int(slots.offset[j]) + b] += wi
    return evidence


@given(seen_rows(), st.data())
def test_parts_add_up_to_the_whole_wherever_it_is_cut(rows, data):
    slots, bins, label, w = rows
    part = np.array(data.draw(st.lists(st.integers(0, 4), min_size=len(w), max_size=len(w))), int)
    total = Evidence(slots)
    for k in data.draw(st.permutations(range(5))):
        mine = part == k
        total += add_up(slots, bins[mine], label[mine], w[mine])
    whole = add_up(slots, bins, label, w)
    np.testing.assert_array_equal(total.hist, whole.hist)
    np.testing.assert_array_equal(total.v, whole.v)


@given(seen_rows(), st.data())
def test_what_a_part_leaves_of_the_whole_is_the_other_part(rows, data):
    slots, bins, label, w = rows
    left = np.array(data.draw(st.lists(st.booleans(), min_size=len(w), max_size=len(w))), bool)
    rest = add_up(slots, bins, label, w)
    rest -= add_up(slots, bins[left], label[left], w[left])
    other = add_up(slots, bins[~left], label[~left], w[~left])
    np.testing.assert_array_equal(rest.hist, other.hist)
    np.testing.assert_array_equal(rest.v, other.v)


@given(seen_rows())
def test_every_feature_holds_the_whole_leaf(rows):
    slots, bins, label, w = rows
    evidence = add_up(slots, bins, label, w)
    expected = [w[label == y].sum() for y in (0, 1)]
    np.testing.assert_array_equal(evidence.weights, expected)
    for first, n in zip(slots.offset.astype(int), slots.n_bins, strict=True):
        np.testing.assert_array_equal(evidence.hist[:, first : first + n].sum(1), expected)


@given(seen_rows())
def test_scanning_sees_what_adding_by_hand_sees(rows):
    slots, bins, label, w = rows
    sample = make_sample(bins, label)
    sample.w[:] = w
    with WorkerPool(1) as workers:
        scanner = Scanner(slots, 2, workers)
        scanner.load(sample)
        scanner.start(Forest(), 0)
        scanner.extend(1)
        by_hand = add_up(slots, bins, label, w)
        np.testing.assert_array_equal(scanner.evidence[0].hist, by_hand.hist)
        np.testing.assert_array_equal(scanner.evidence[0].v, by_hand.v)


def test_cleared_evidence_has_seen_nothing():
    evidence = add_up(make_slots([2, 3]), np.ones((4, 2), int), [0, 1, 0, 1], np.ones(4))
    evidence.clear()
    assert not evidence.hist.any()
    assert not evidence.v.any()


def test_slots_have_no_gap_and_know_categories():
    table = pa.table({"x": [0.0, 1.0, 2.0, None], "c": ["a", "b", "a", "b"], "y": [0, 1, 0, 1]})
    slots = Slots.of(ingest(table, label="y", verbose=0).binning)
    assert slots.n_features == 2
    assert slots.category.tolist() == [0, 1]
    np.testing.assert_array_equal(slots.offset, np.r_[0, np.cumsum(slots.n_bins)[:-1]])
    assert slots.n == slots.n_bins.sum()
    assert Evidence(slots).n_bytes == pytest.approx(8 * (2 * slots.n + 2))
