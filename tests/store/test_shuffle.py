from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constants import set_constants
from sparrowboost.store.shuffle import Shuffle, file_bytes, permuted, read_block


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch):
    set_constants(
        monkeypatch,
        bucket_bytes=4_000,
        segment_bytes=100,
        min_segment_bytes=40,
        extent_bytes=300,
        min_memory=1_000,
    )


def rows(n):
    """Rows that hold their own number."""
    return np.arange(n, dtype=np.uint32)[:, None].view(np.uint8)


def shuffled(path, n, *, code=None, seed=0, expected=None, memory=20_000, block=1_000, cuts=()):
    """The rows of each label in their random order, and the number of blocks of each."""
    file = path / f"rows-{seed}-{block}.bin"
    code = np.zeros(n, np.uint8) if code is None else code
    shuffle = Shuffle(file, 4, n if expected is None else expected, memory, seed)
    blocks = []
    for start in range(0, n, block):
        part = slice(start, start + block)
        shuffle.put(rows(n)[part], code[part])
        if start in cuts:
            blocks += shuffle.end_stage()
            with open(file, "rb") as opened:  # what was cut off is there, and nothing else
                read = [read_block(opened.fileno(), stored, 4) for stored in blocks]
            assert sorted(np.concatenate(read).view(np.uint32)[:, 0]) == list(range(part.stop))
    blocks += shuffle.end_stage()
    shuffle.finish(sync=False)
    assert file.stat().st_size == file_bytes(blocks, 4)
    out = [[np.empty(0, np.uint32)], [np.empty(0, np.uint32)]]
    with open(file, "rb") as opened:
        for i, stored in enumerate(blocks):
            records = read_block(opened.fileno(), stored, 4)
            mixed = records[permuted(len(records), seed, i)].view(np.uint32)[:, 0]
            assert (code[mixed] == stored.code).all()
            out[stored.code].append(mixed)
    return [np.concatenate(parts) for parts in out], [len(parts) - 1 for parts in out]


def test_rows_come_back_in_another_order(tmp_path):
    (out, _), n_blocks = shuffled(tmp_path, 10_000)
    assert n_blocks == [5, 0]
    assert sorted(out.tolist()) == list(range(10_000))
    assert (out == np.arange(10_000)).sum() < 10


def test_few_rows_are_one_block(tmp_path):
    (out, _), n_blocks = shuffled(tmp_path, 200)
    assert n_blocks == [1, 0]
    assert sorted(out.tolist()) == list(range(200))


def test_rows_of_each_label_are_in_blocks_of_their_own(tmp_path):
    n = 30_000
    code = (np.random.default_rng(0).random(n) < 0.02).astype(np.uint8)
    (zeros, ones), n_blocks = shuffled(tmp_path, n, code=code)
    assert n_blocks[0] == 15
    assert n_blocks[1] == 2  # not one for each of the buckets, which have 40 rows
    assert sorted(zeros.tolist()) == np.flatnonzero(code == 0).tolist()
    assert sorted(ones.tolist()) == np.flatnonzero(code == 1).tolist()


def test_little_memory_makes_larger_buckets_not_shorter_segments(tmp_path):
    (out, _), n_blocks = shuffled(tmp_path, 100_000, memory=400)
    assert n_blocks == [5, 0]
    assert sorted(out.tolist()) == list(range(100_000))


def test_rows_that_are_not_what_was_written_are_told(tmp_path):
    shuffle = Shuffle(tmp_path / "rows", 4, 1_000, 20_000, 0)
    shuffle.put(rows(1_000), np.zeros(1_000, np.uint8))
    (block,) = shuffle.end_stage()
    shuffle.finish(sync=True)
    with open(tmp_path / "rows", "r+b") as file:
        assert len(read_block(file.fileno(), block, 4)) == 1_000
        file.write(b"?")
        file.flush()
        assert read_block(file.fileno(), block, 4) is None
    os.truncate(tmp_path / "rows", 3_999)
    with open(tmp_path / "rows", "rb") as file:
        assert read_block(file.fileno(), block, 4) is None


def test_rows_before_a_cut_can_be_read_while_others_come(tmp_path):
    code = (np.arange(20_000) % 7 == 0).astype(np.uint8)
    out, n_blocks = shuffled(tmp_path, 20_000, code=code, expected=5_000, cuts=(4_000, 9_000))
    assert sorted(np.concatenate(out).tolist()) == list(range(20_000))
    assert n_blocks[0] > 10 * n_blocks[1] / 7


@pytest.mark.parametrize("expected", [1, 100, 1_000_000])
def test_a_wrong_guess_at_the_number_of_rows_does_no_harm(tmp_path, expected):
    (out, _), _ = shuffled(tmp_path, 5_000, expected=expected)
    assert sorted(out.tolist()) == list(range(5_000))


def test_the_order_depends_on_the_seed_and_not_on_the_blocks(tmp_path):
    a, b, c = (
        shuffled(tmp_path, 5_000, seed=seed, block=block)[0][0]
        for seed, block in ((1, 1_000), (1, 77), (2, 1_000))
    )
    np.testing.assert_array_equal(a, b)
    assert (a != c).mean() > 0.99


def test_every_row_is_as_likely_anywhere(tmp_path):
    # Place of each of 20 stretches of rows, over 20 stretches of places: 400 cells of 250 each.
    # Chi-square has 19 * 19 = 361 degrees of freedom, standard deviation sqrt(722) = 27.
    n, cells = 100_000, 20
    (out, _), _ = shuffled(tmp_path, n)
    table = np.histogram2d(out, np.arange(n), bins=cells)[0]
    expected = n / cells**2
    assert abs(((table - expected) ** 2 / expected).sum() - 361) < 4.5 * 27


def test_neighbours_are_parted(tmp_path):
    # In a random order, neighbours differ by 1 about twice in all.
    (out, _), _ = shuffled(tmp_path, 50_000)
    assert (np.abs(np.diff(out.astype(int))) == 1).sum() < 12
    # ... and the order has no trend: serial correlation is 0 with deviation 1 / sqrt(n).
    assert abs(np.corrcoef(out[:-1], out[1:])[0, 1]) < 4.5 / np.sqrt(50_000)


@settings(max_examples=30)
@given(st.integers(1, 3_000), st.integers(1, 500), st.integers(500, 50_000), st.integers(0, 99))
def test_no_row_is_lost_or_doubled(tmp_path_factory, n, block, memory, seed):
    code = np.random.default_rng(seed).integers(0, 2, n).astype(np.uint8) if seed % 2 else None
    out, _ = shuffled(
        tmp_path_factory.mktemp("s"), n, code=code, block=block, memory=memory, seed=seed
    )
    assert sorted(np.concatenate(out).tolist()) == list(range(n))
