from __future__ import annotations

import json
import os
import pickle

import numpy as np
import pyarrow as pa
import pytest

from constants import set_constants
from helpers import small_table, stored_rows
from sparrowboost import DataError, Dataset, StoreError, ingest


@pytest.fixture
def path(tmp_path, monkeypatch):
    set_constants(
        monkeypatch,
        bucket_bytes=2_000,
        min_segment_bytes=100,
        min_memory=1,
        segment_bytes=400,
        extent_bytes=1_000,
    )
    ingest(small_table(), label="y", weight="w", path=tmp_path / "store", verbose=0)
    return tmp_path / "store"


def rows_of(path):
    return next(path.glob("rows-*.bin"))


def flip(file, position):
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


def test_a_store_is_opened_again_as_it_was_made(path):
    dataset = Dataset(path, verify=True)
    assert (dataset.n_rows, dataset.n_features, len(dataset)) == (3_000, 3, 3_000)
    assert dataset.n_blocks > 5
    assert dataset.n_bytes == 3_000 * (3 + 4)
    assert dataset.n_positive == sum(int(b.label.sum()) for b in dataset)
    assert dataset.classes == (0, 1)
    assert repr(dataset).startswith("Dataset(")
    assert sorted(os.listdir(path)) == ["manifest.json", rows_of(path).name]


def test_blocks_come_in_another_order_for_each_state_and_hold_the_same_rows(path):
    dataset = Dataset(path)
    orders = [[b.label.tolist() for b in dataset.blocks(seed)] for seed in (None, 1, 1, 2)]
    assert orders[1] == orders[2]
    assert orders[0] != orders[1] != orders[3]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)


def test_arrays_of_a_block_are_aligned_and_typed(path):
    block = Dataset(path).read_block(3)
    assert block.bins.dtype == block.label.dtype == np.uint8
    assert block.weight.dtype == np.float32
    assert block.weight.flags.aligned
    assert block.bins.flags.c_contiguous


def test_a_dataset_may_be_pickled(path):
    dataset = Dataset(path)
    assert stored_rows(pickle.loads(pickle.dumps(dataset))) == stored_rows(dataset)


@pytest.mark.parametrize("position", [0, 7_000, 20_000, -1])
def test_a_flipped_byte_is_found_when_its_block_is_read(path, position):
    flip(rows_of(path), position)
    dataset = Dataset(path)
    with pytest.raises(StoreError, match=r"block \d+ of \d+ is damaged"):
        list(dataset.blocks())
    with pytest.raises(StoreError, match="is damaged"):
        Dataset(path, verify=True)


def test_a_truncated_store_is_found_when_opened(path):
    data = rows_of(path).read_bytes()
    rows_of(path).write_bytes(data[:-1])
    with pytest.raises(StoreError, match=rf"{len(data) - 1:,} bytes where the manifest says"):
        Dataset(path)
    rows_of(path).unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        Dataset(path)


def test_a_store_that_shrinks_while_open_is_found_when_read(path):
    dataset = Dataset(path)
    os.truncate(rows_of(path), 100)
    with pytest.raises(StoreError, match="is damaged"):
        dataset.verify()
    rows_of(path).unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        dataset.verify()


def test_a_damaged_manifest_is_found_when_opened(path):
    manifest = path / "manifest.json"
    good = manifest.read_text()
    for bad, says in (
        (good[: len(good) // 2], "cannot be read"),
        (good.replace('"rows": 3000', '"rows": 3001'), "checksum does not match"),
        ("[]", "not a Sparrow store"),
        (json.dumps({"format": "other"}), "not a Sparrow store"),
        (good.replace('"version": 2', '"version": 99'), "store version 99"),
    ):
        manifest.write_text(bad)
        with pytest.raises(StoreError, match=says):
            Dataset(path)


def test_what_is_not_a_store_is_told_apart(tmp_path):
    with pytest.raises(StoreError, match="no such store"):
        Dataset(tmp_path / "nothing")
    with pytest.raises(StoreError, match="not a Sparrow store"):
        Dataset(tmp_path)


def test_a_temporary_store_goes_with_its_dataset():
    dataset = ingest(pa.table({"x": [1.0, 2.0]}), label=[0, 1], verbose=0)
    path = dataset.path
    assert path.exists()
    del dataset
    assert not path.exists()


def test_a_store_stays_open_when_the_working_folder_changes(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    dataset = Dataset("store")
    monkeypatch.chdir("/")
    dataset.verify()
    assert Dataset(path).path.is_absolute()


def test_a_block_that_is_not_there_is_refused(path):
    for index in (-1, 10**6):
        with pytest.raises(IndexError):
            Dataset(path).read_block(index)


def test_replacing_a_store_that_fails_leaves_the_old_one(path):
    before = stored_rows(Dataset(path))
    with pytest.raises(DataError, match="no column 'typo'"):
        ingest(small_table(100), label="typo", path=path, overwrite=True, verbose=0)
    assert stored_rows(Dataset(path, verify=True)) == before
    ingest(small_table(100), label="y", path=path, overwrite=True, verbose=0)
    assert Dataset(path).n_rows == 100
    assert len(os.listdir(path)) == 2


def test_a_failed_ingest_removes_every_folder_that_it_made(tmp_path):
    with pytest.raises(DataError):
        ingest(small_table(100), label="typo", path=tmp_path / "a/b/c", verbose=0)
    assert os.listdir(tmp_path) == []


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for bad in (tmp_path / "file/store", "/proc/store", tmp_path / ("x" * 300)):
        with pytest.raises(StoreError, match="cannot be written"):
            ingest(small_table(100), label="y", path=bad, verbose=0)


def test_a_home_folder_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    ingest(small_table(100), label="y", path="~/store", verbose=0)
    assert Dataset("~/store").path == tmp_path / "store"


def test_others_may_read_a_store_as_the_umask_says(path):
    modes = {file.stat().st_mode & 0o777 for file in path.iterdir()}
    assert len(modes) == 1
