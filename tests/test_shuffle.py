from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sparrowboost.shuffle
from sparrowboost.shuffle import Shuffle


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch):
    monkeypatch.setattr(sparrowboost.shuffle, "BUCKET_BYTES", 4_000)
    monkeypatch.setattr(sparrowboost.shuffle, "SEGMENT_BYTES", 100)
    monkeypatch.setattr(sparrowboost.shuffle, "MIN_MEMORY", 1_000)


def rows(n):
    """Rows that hold their own number."""
    return np.arange(n, dtype=np.uint32)[:, None].view(np.uint8)


def shuffled(path, n, *, seed=0, expected=None, memory=20_000, block=1_000):
    shuffle = Shuffle(path / "spill", 4, n if expected is None else expected, memory, seed)
    for start in range(0, n, block):
        shuffle.put(rows(n)[start : start + block])
    out = [
        shuffle.bucket(b)[shuffle.order(b)].view(np.uint32)[:, 0] for b in range(shuffle.n_buckets)
    ]
    spilled = (path / "spill").exists()
    shuffle.close()
    assert not (path / "spill").exists()
    return np.concatenate(out), spilled, len(out)


def test_rows_come_back_in_another_order(tmp_path):
    out, spilled, n_buckets = shuffled(tmp_path, 10_000)
    assert spilled
    assert n_buckets == 10
    assert sorted(out.tolist()) == list(range(10_000))


def test_few_rows_never_touch_the_disk(tmp_path):
    out, spilled, n_buckets = shuffled(tmp_path, 200)
    assert not spilled
    assert n_buckets == 1
    assert sorted(out.tolist()) == list(range(200))


@pytest.mark.parametrize("expected", [1, 100, 1_000_000])
def test_a_wrong_guess_at_the_number_of_rows_does_no_harm(tmp_path, expected):
    out, _, _ = shuffled(tmp_path, 5_000, expected=expected)
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
    out, _, _ = shuffled(tmp_path, n)
    table = np.histogram2d(out, np.arange(n), bins=cells)[0]
    expected = n / cells**2
    assert abs(((table - expected) ** 2 / expected).sum() - 361) < 4.5 * 27


def test_neighbours_are_parted(tmp_path):
    # In a random order, neighbours differ by 1 about twice in all.
    out, _, _ = shuffled(tmp_path, 50_000)
    assert (np.abs(np.diff(out.astype(int))) == 1).sum() < 12
    # ... and the order has no trend: serial correlation is 0 with deviation 1 / sqrt(n).
    assert abs(np.corrcoef(out[:-1], out[1:])[0, 1]) < 4.5 / np.sqrt(50_000)


@settings(max_examples=30)
@given(st.integers(1, 3_000), st.integers(1, 500), st.integers(500, 50_000), st.integers(0, 99))
def test_no_row_is_lost_or_doubled(tmp_path_factory, n, block, memory, seed):
    out, _, _ = shuffled(tmp_path_factory.mktemp("s"), n, block=block, memory=memory, seed=seed)
    assert sorted(out.tolist()) == list(range(n))
