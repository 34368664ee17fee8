"""`ingest(resume=True)`: a finished store is opened, an unfinished one is made again."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparrowboost.store.ingest
import sparrowboost.store.writer
from constants import set_constants
from helpers import python_path
from sparrowboost import DataError, Dataset, StoreError, ingest, load_model

N = 60_000


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    rng = np.random.default_rng(0)
    number, word = rng.normal(size=N), rng.choice(["red", "green", "blue"], N)
    high = number + (word == "red") + rng.normal(size=N) > 0
    table = pa.table(
        {
            "number": number,
            "word": word,
            "w": rng.random(N).astype("f4"),
            "y": np.where((np.arange(N) < N * 0.9) | high, "no", "yes"),
        }
    )
    path = tmp_path_factory.mktemp("resume") / "t.parquet"
    pq.write_table(table, path, row_group_size=5_000)
    return path


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    set_constants(
        monkeypatch, max_block_rows=3_000, bucket_bytes=20_000, min_memory=50_000, segment_bytes=500
    )


def make(source, path, **more):
    return ingest(source, label="y", weight="w", path=path, verbose=0, **more)


def blocks(dataset):
    return [[part.tolist() for part in block[:3]] for block in dataset.blocks()]


def fail_after(monkeypatch, rows, error):
    """Let the ingest end with an error once n rows are in the store."""
    put = sparrowboost.store.writer.StoreWriter.put
    n = 0

    def counted(self, records, codes):
        nonlocal n
        put(self, records, codes)
        n += len(records)
        if n >= rows:
            raise error

    monkeypatch.setattr(sparrowboost.store.writer.StoreWriter, "put", counted)


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), RuntimeError(), OSError("gone"), DataError("wrong")]
)
def test_an_interrupted_ingest_leaves_nothing_and_is_done_again(
    source, tmp_path, monkeypatch, error
):
    straight = make(source, tmp_path / "straight")
    for rows in (3_000, 50_000):
        with monkeypatch.context() as patch, pytest.raises(type(error)):
            fail_after(patch, rows, error)
            make(source, tmp_path / "a/store", resume=True)
        assert os.listdir(tmp_path) == ["straight"]
    assert blocks(make(source, tmp_path / "store", resume=True)) == blocks(straight)


def test_what_a_killed_ingest_leaves_is_replaced(source, tmp_path):
    store = tmp_path / "store"
    (store / "scratch").mkdir(parents=True)
    # An earlier version saved its progress.
    for name in ("ingest.lock", "rows-01234567.bin", "progress.npz", "progress.npz.tmp"):
        (store / name).write_bytes(b"half")
    with pytest.raises(StoreError, match="unfinished"):
        Dataset(store)
    whole = make(source, store, resume=True)
    assert len(os.listdir(store)) == 2
    assert blocks(whole) == blocks(make(source, tmp_path / "straight"))


def test_a_store_that_was_finished_is_given_again(source, tmp_path, monkeypatch):
    first = make(source, tmp_path / "store", resume=True)
    monkeypatch.setattr(sparrowboost.store.ingest, "open_table", None)  # nothing is read
    assert blocks(make(source, tmp_path / "store", resume=True)) == blocks(first)


def test_another_source_or_option_is_another_store(source, tmp_path):
    make(source, tmp_path / "store", resume=True)
    with pytest.raises(StoreError, match="has a store of other files or options"):
        ingest(source, label="y", path=tmp_path / "store", resume=True, verbose=0)
    os.utime(source)
    with pytest.raises(StoreError, match="or the files have changed"):
        make(source, tmp_path / "store", resume=True)


def test_a_store_of_labels_that_have_changed_is_refused(source, tmp_path):
    def of_labels():
        path = tmp_path / "store"
        labels = tmp_path / "y.npy"
        return ingest(source, label=labels, weight="w", path=path, resume=True, verbose=0)

    np.save(tmp_path / "y.npy", np.arange(N) % 2)
    first = of_labels()
    assert blocks(of_labels()) == blocks(first)
    np.save(tmp_path / "y.npy", np.arange(N) % 5 == 0)
    with pytest.raises(StoreError, match="or the files have changed"):
        of_labels()


def test_another_store_is_replaced_if_that_is_asked_for(source, tmp_path):
    make(source, tmp_path / "store", resume=True)
    os.utime(source)
    make(source, tmp_path / "store", resume=True, overwrite=True)
    (tmp_path / "store/manifest.json").write_text("{}")
    again = make(source, tmp_path / "store", resume=True, overwrite=True)
    assert again.n_rows == N
    assert blocks(make(source, tmp_path / "store", resume=True)) == blocks(again)


def test_what_cannot_be_resumed_is_told(source, tmp_path):
    with pytest.raises(DataError, match="needs the path"):
        make(source, None, resume=True)
    with pytest.raises(DataError, match="needs files"):
        ingest(np.zeros((3, 1)), label="y", path=tmp_path / "s", resume=True)
    with pytest.raises(DataError, match="by name"):
        ingest(source, label=np.zeros(N), path=tmp_path / "s", resume=True)


KILLS = """
import random, sys, time
from pathlib import Path
from constants import set_constants
from forks import killed, load, run
from sparrowboost.cli import main
from sparrowboost.store.writer import StoreWriter

source, folder = map(Path, sys.argv[1:])
set_constants(None, max_block_rows=1_000)
put = StoreWriter.put

def slowly(self, *args):
    time.sleep(0.01)
    return put(self, *args)

StoreWriter.put = slowly
words = f"train {source} --label y --weight w --n-estimators 60 --max-leaves 6 "
words += "--sample-size 4000 --theta 0.8 -q -o"

def job(out="model.json", more=("--checkpoint", str(folder / "run"))):
    assert main([*words.split(), str(folder / out), *more]) == 0

load()
run(lambda: job("straight.json", ()))
dice = random.Random(1)
while_read = while_trained = 0
manifest = folder / "run/store/manifest.json"
for k in range(12):  # the first while rows are read: 60 blocks take at least 0.6 seconds
    began = folder / "run" if k < 5 else manifest
    if not killed(job, began.exists, dice.uniform(0, 0.5 if k < 5 else 0.2)):
        break
    if manifest.exists():
        while_trained += 1
    else:
        while_read += 1
run(job)
print(while_read, while_trained)
"""


@pytest.mark.slow
def test_the_whole_job_killed_at_random_moments(source, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLS, source, tmp_path],
        env=python_path(), check=True, capture_output=True, text=True,
    )  # fmt: skip
    while_read, while_trained = map(int, done.stdout.split())
    assert while_read >= 1 and while_trained >= 1
    assert (tmp_path / "model.json").read_bytes() == (tmp_path / "straight.json").read_bytes()
    assert load_model(tmp_path / "model.json").n_trees > 20
    assert Dataset(tmp_path / "run/store", verify=True).n_rows == N


def test_resume_needs_a_seed_that_can_be_compared(source, tmp_path):
    for state in (None, np.random.default_rng(0)):
        with pytest.raises(DataError, match="whole number as random_state"):
            make(source, tmp_path / "store", resume=True, random_state=state)
