from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparrowboost.kernels.categories import (
    add_to_folds,
    bin_by_fold,
    draw_folds,
    find_hashes,
    hash_texts,
    insert_hashes,
)
from sparrowboost.readers.columns import plain_words
from sparrowboost.store.category_statistics import hash_words

pytestmark = pytest.mark.kernel

MASK = 2**64 - 1
TEXTS = st.lists(
    st.text(max_size=12) | st.from_regex(r"\A\s?-?\d{1,3}(\.\d?0{0,2})?\s?\Z")
    | st.sampled_from(["true", "False", "TRUE", "falſe", " true", "1.0", "\u00a0x", "10", "a.0"])
)  # fmt: skip


def mixed(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def naive_hash(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return mixed(h)


def parts(words):
    _, offsets, data = words.buffers()
    starts = np.frombuffer(offsets, np.int32, len(words) + 1, 4 * words.offset)
    return starts, np.frombuffer(data or b"", np.uint8)


@given(TEXTS, st.integers(0, 3))
@example(["x", "y"], 1)
def test_texts_have_the_hash_of_the_naive_twin(texts, start):
    words = pa.array(["before", *texts], pa.string())[min(start, len(texts)) :]
    hashes, odd = np.zeros(len(words), np.uint64), np.zeros(len(words), np.uint8)
    hash_texts(*parts(words), hashes, odd)
    assert hashes.tolist() == [naive_hash(text) for text in words.to_pylist()]


@given(TEXTS)
def test_a_text_that_is_not_called_odd_is_in_its_plain_form(texts):
    words = pa.array(texts, pa.string())
    hashes, odd = np.zeros(len(words), np.uint64), np.zeros(len(words), np.uint8)
    if texts:
        hash_texts(*parts(words), hashes, odd)
    plain = plain_words(words).to_pylist()
    assert all(o or a == b for a, b, o in zip(texts, plain, odd, strict=True))
    assert hash_words(words).tolist() == [naive_hash(text) for text in plain]


def test_ordinary_texts_are_not_called_odd():
    words = pa.array(["shop 120", "10", "1200", "-3", "Boston", "x.y", "tea"])
    odd = np.ones(len(words), np.uint8)
    hash_texts(*parts(words), np.zeros(len(words), np.uint64), odd)
    assert odd.tolist() == [0] * len(words)


@given(st.lists(st.lists(st.integers(0, 40), max_size=9), max_size=6))
def test_a_table_of_hashes_numbers_them_in_the_order_in_which_they_come(blocks):
    # All at the same place of 64: each is found by going on to the next places.
    keys, slots = np.zeros(64, np.uint64), np.full(64, -1, np.int32)
    found, n = np.zeros(64, np.uint64), 0
    expected: dict[int, int] = {}
    for block in blocks:
        hashes = np.array([64 * value for value in block], np.uint64)
        n = insert_hashes(hashes, keys, slots, found, n)
        for value in block:
            expected.setdefault(64 * value, len(expected))
    assert n == len(expected)
    assert found[:n].tolist() == list(expected)
    wanted = np.arange(0, 64 * 45, 32, dtype=np.uint64)
    out = np.zeros(len(wanted), np.int32)
    find_hashes(wanted, keys, slots, out)
    assert out.tolist() == [expected.get(value, -1) for value in wanted.tolist()]


@given(st.integers(0, 2**40), st.integers(0, 2**63), st.integers(1, 200))
def test_the_fold_of_a_row_is_a_hash_of_its_number(first, seed, n_folds):
    folds = np.zeros(20, np.uint8)
    draw_folds(np.uint64(first), np.uint64(seed), np.uint64(n_folds), folds)
    for i, fold in enumerate(folds.tolist()):
        z = mixed((seed + (first + i + 1) * 0x9E3779B97F4A7C15) & MASK)
        assert fold == ((z >> 32) * n_folds) >> 32


@given(st.integers(0, 50), st.integers(1, 6), st.integers(1, 4), st.integers(1, 3))
def test_sums_by_category_and_fold_are_those_of_the_naive_twin(n, m, f, k):
    rng = np.random.default_rng([n, m, f, k])
    codes = rng.integers(0, m, n).astype(np.int32)
    slots = rng.integers(-1, 5, m).astype(np.int32)
    folds = rng.integers(0, f, n).astype(np.uint8)
    values = rng.integers(0, 9, (k, n)).astype(np.float64)
    sums = np.ones((5, f, k))
    add_to_folds(codes, slots, folds, values, sums)
    expected = defaultdict(float)
    for i in range(n):
        for j in range(k):
            expected[slots[codes[i]], folds[i], j] += values[j, i]
    for at in np.ndindex(*sums.shape):
        assert sums[at] == 1 + expected[at]


@given(st.integers(0, 50), st.integers(1, 6), st.integers(1, 4))
def test_bins_by_fold_are_those_of_the_naive_twin(n, m, f):
    rng = np.random.default_rng([n, m, f])
    codes, folds = rng.integers(0, m, n).astype(np.int32), rng.integers(0, f, n).astype(np.uint8)
    table = rng.integers(0, 256, (m, f)).astype(np.uint8)
    out = np.zeros((n, 2), np.uint8)
    bin_by_fold(codes, folds, table, out[:, 1])
    assert out[:, 1].tolist() == [table[c, g] for c, g in zip(codes, folds, strict=True)]
    assert not out[:, 0].any()
