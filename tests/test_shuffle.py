from __future__ import annotations

import os
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sparrowboost.shuffle
from sparrowboost.shuffle import Shuffle, file_bytes, permuted, read_bucket


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch):
    monkeypatch.setattr(sparrowboost.shuffle, "BUCKET_BYTES", 4_000)
    monkeypatch.setattr(sparrowboost.shuffle, "SEGMENT_BYTES", 100)
    monkeypatch.setattr(sparrowboost.shuffle, "MIN_SEGMENT_BYTES", 40)
    monkeypatch.setattr(sparrowboost.shuffle, "EXTENT_BYTES", 300)
    monkeypatch.setattr(sparrowboost.shuffle, "MIN_MEMORY", 1_000)


def rows(n):
    """Rows that hold their own number."""
    return np.arange(n, dtype=np.uint32)[:, None].view(np.uint8)


def shuffled(path, n, *, seed=0, expected=None, memory=20_000, block=1_000):
    """All rows in their random order, and the number of buckets."""
    file = path / f"rows-{seed}-{block}.bin"
    shuffle = Shuffle(file, 4, n if expected is None else expected, memory, seed)
    for start in range(0, n, block):
        shuffle.put(rows(n)[start : start + block])
    buckets = shuffle.finish(sync=False)
    assert file.stat().st_size == file_bytes(buckets, shuffle.extent_rows, 4)
    assert 4 * n <= file.stat().st_size < 4 * n + len(buckets) * 4 * shuffle.extent_rows
    out = []
    with open(file, "rb") as opened:
        for i, bucket in enumerate(buckets):
            records = read_bucket(opened.fileno(), bucket, shuffle.extent_rows, 4)
            assert zlib.crc32(records.data) == bucket.crc32
            out.append(records[permuted(len(records), seed, i)].view(np.uint32)[:, 0])
    return np.concatenate(out), len(out)


def test_rows_come_back_in_another_order(tmp_path):
    out, n_buckets = shuffled(tmp_path, 10_000)
    assert n_buckets == 10
    assert sorted(out.tolist()) == list(range(10_000))


def test_few_rows_are_one_bucket(tmp_path):
    out, n_buckets = shuffled(tmp_path, 200)
    assert n_buckets == 1
    assert sorted(out.tolist()) == list(range(200))


def test_little_memory_makes_larger_buckets_not_shorter_segments(tmp_path):
    out, n_buckets = shuffled(tmp_path, 100_000, memory=400)
    assert n_buckets == 10
    assert sorted(out.tolist()) == list(range(100_000))


def test_a_file_that_ends_early_is_told(tmp_path):
    shuffle = Shuffle(tmp_path / "rows", 4, 1_000, 20_000, 0)
    shuffle.put(rows(1_000))
    (bucket,) = shuffle.finish(sync=True)
    os.truncate(tmp_path / "rows", 3_999)
    with open(tmp_path / "rows", "rb") as file:
        assert read_bucket(file.fileno(), bucket, shuffle.extent_rows, 4) is None


@pytest.mark.parametrize("expected", [1, 100, 1_000_000])
def test_a_wrong_guess_at_the_number_of_rows_does_no_harm(tmp_path, expected):
    out, _ = shuffled(tmp_path, 5_000, expected=expected)
    assert sorted(out.tolist()) == list(range(5_000))


def test_the_order_depends_on_the_seed_and_not_on_the_blocks(tmp_path):
    a, b, c = (
        shuffled(tmp_path, 5_000, seed=seed, block=block)[0]
        for seed, block in ((1, 1_000), (1, 77), (2, 1_000))
    )
    np.testing.assert_array_equal(a, b)
    assert (a != c).mean() > 0.99


def test_every_row_is_as_likely_anywhere(tmp_path):
    # Place of each of 20 stretches of rows, over 20 stretches of places: 400 cells of 250 each.
    # Chi-square has 19 * 19 = 361 degrees of freedom, standard deviation sqrt(722) = 27.
    n, cells = 100_000, 20
    out, _ = shuffled(tmp_path, n)
    table = np.histogram2d(out, np.arange(n), bins=cells)[0]
    expected = n / cells**2
    assert abs(((table - expected) ** 2 / expected).sum() - 361) < 4.5 * 27


def test_neighbours_are_parted(tmp_path):
    # In a random order, neighbours differ by 1 about twice in all.
    out, _ = shuffled(tmp_path, 50_000)
    assert (np.abs(np.diff(out.astype(int))) == 1).sum() < 12
    # ... and the order has no trend: serial correlation is 0 with deviation 1 / sqrt(n).
    assert abs(np.corrcoef(out[:-1], out[1:])[0, 1]) < 4.5 / np.sqrt(50_000)


@settings(max_examples=30)
@given(st.integers(1, 3_000), st.integers(1, 500), st.integers(500, 50_000), st.integers(0, 99))
def test_no_row_is_lost_or_doubled(tmp_path_factory, n, block, memory, seed):
    out, _ = shuffled(tmp_path_factory.mktemp("s"), n, block=block, memory=memory, seed=seed)
    assert sorted(out.tolist()) == list(range(n))
