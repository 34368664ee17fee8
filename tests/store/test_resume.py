"""Ingest that is killed, and goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparrowboost.store.ingest
import sparrowboost.store.shuffle
from sparrowboost import DataError, Dataset, StoreError, ingest
from sparrowboost.cli import main

N = 60_000


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "number": rng.normal(size=N),
            "word": rng.choice(["red", "green", "blue"], N),
            "w": rng.random(N).astype("f4"),
            "y": np.where(np.arange(N) < N * 0.9, "no", rng.choice(["yes", "no"], N)),
        }
    )
    path = tmp_path_factory.mktemp("resume") / "t.parquet"
    pq.write_table(table, path, row_group_size=5_000)
    return path


@pytest.fixture(autouse=True)
def save_often_and_use_the_disk(monkeypatch):
    monkeypatch.setattr(sparrowboost.store.ingest, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(sparrowboost.store.ingest, "MAX_BLOCK_ROWS", 3_000)
    for name, value in (("BUCKET_BYTES", 20_000), ("MIN_MEMORY", 50_000), ("SEGMENT_BYTES", 500)):
        monkeypatch.setattr(sparrowboost.store.shuffle, name, value)


def make(source, path, **more):
    return ingest(source, label="y", weight="w", path=path, verbose=0, **more)


def blocks(dataset):
    return [[part.tolist() for part in block] for block in dataset.blocks()]


def fail_after(monkeypatch, rows, error):
    """Let the pass end with an error once so many rows are in the store."""
    count = sparrowboost.store.ingest.Saver.count

    def counted(self, n):
        count(self, n)
        if self._done >= rows:
            raise error

    monkeypatch.setattr(sparrowboost.store.ingest.Saver, "count", counted)


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError(), OSError("gone")])
def test_an_interrupted_ingest_goes_on_to_the_same_store(source, tmp_path, monkeypatch, error):
    straight = make(source, tmp_path / "straight")
    for rows in (3_000, 20_000, 50_000):
        with monkeypatch.context() as patch, pytest.raises(type(error)):
            fail_after(patch, rows, error)
            make(source, tmp_path / "store", resume=True)
        assert "progress.npz" in os.listdir(tmp_path / "store")
        monkeypatch.setattr(sparrowboost.store.ingest, "MAX_BLOCK_ROWS", 1_000 + rows // 7)
    looked = []
    monkeypatch.setattr(sparrowboost.store.ingest, "find_bins", lambda *args: looked.append(args))
    resumed = make(source, tmp_path / "store", resume=True)
    assert looked == [], "the bins were found again"
    assert blocks(resumed) == blocks(straight)
    assert len(os.listdir(tmp_path / "store")) == 2
    assert resumed.n_rows == N


def test_a_store_that_was_finished_is_given_again(source, tmp_path, monkeypatch):
    first = make(source, tmp_path / "store", resume=True)
    monkeypatch.setattr(sparrowboost.store.ingest, "open_table", None)  # nothing is read
    assert blocks(make(source, tmp_path / "store", resume=True)) == blocks(first)


def test_another_source_or_option_is_another_store(source, tmp_path):
    make(source, tmp_path / "store", resume=True)
    with pytest.raises(StoreError, match="a store of other files or options is there"):
        ingest(source, label="y", path=tmp_path / "store", resume=True, verbose=0)
    os.utime(source)
    with pytest.raises(StoreError, match="or the files have changed"):
        make(source, tmp_path / "store", resume=True)


def test_what_was_done_of_files_that_have_changed_is_not_used(source, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        fail_after(patch, 20_000, KeyboardInterrupt())
        make(source, tmp_path / "store", resume=True)
    os.utime(source)
    assert blocks(make(source, tmp_path / "store", resume=True)) == blocks(
        make(source, tmp_path / "straight")
    )
    assert len(os.listdir(tmp_path / "store")) == 2


def test_what_was_done_with_labels_that_have_changed_is_not_used(source, tmp_path, monkeypatch):
    def of_labels(path, **more):
        labels = tmp_path / "y.npy"
        return ingest(source, label=labels, weight="w", path=path, verbose=0, **more)

    np.save(tmp_path / "y.npy", np.arange(N) % 2)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        fail_after(patch, 20_000, KeyboardInterrupt())
        of_labels(tmp_path / "store", resume=True)
    np.save(tmp_path / "y.npy", np.arange(N) % 3 == 0)
    whole = of_labels(tmp_path / "store", resume=True)
    assert blocks(whole) == blocks(of_labels(tmp_path / "straight"))
    np.save(tmp_path / "y.npy", np.arange(N) % 5 == 0)
    with pytest.raises(StoreError, match="or the files have changed"):
        of_labels(tmp_path / "store", resume=True)


@pytest.mark.parametrize("cut", [0, 10, 2_000, -1])
def test_half_of_what_was_saved_is_not_used(source, tmp_path, monkeypatch, cut):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        fail_after(patch, 20_000, KeyboardInterrupt())
        make(source, tmp_path / "store", resume=True)
    file = tmp_path / "store/progress.npz"
    file.write_bytes(file.read_bytes()[:cut])
    assert make(source, tmp_path / "store", resume=True).n_rows == N


def test_rows_that_are_wrong_leave_nothing(source, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(DataError):
        fail_after(patch, 20_000, DataError("wrong"))
        make(source, tmp_path / "a/store", resume=True)
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_resumed_is_told(source, tmp_path):
    with pytest.raises(DataError, match="needs the path"):
        make(source, None, resume=True)
    with pytest.raises(DataError, match="needs files"):
        ingest(np.zeros((3, 1)), label="y", path=tmp_path / "s", resume=True)
    with pytest.raises(DataError, match="by name"):
        ingest(source, label=np.zeros(N), path=tmp_path / "s", resume=True)


CHILD = """
import sys, time, sparrowboost.store.ingest as build
from sparrowboost.cli import main
build.SAVE_SECONDS, build.MAX_BLOCK_ROWS = 0.02, 1_000
put = build.StoreWriter.put
def slowly(self, *args):
    time.sleep(0.01)
    return put(self, *args)
build.StoreWriter.put = slowly
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_the_whole_job_killed_at_random_moments(source, tmp_path):
    call = ["train", str(source), "--label", "y", "--weight", "w", "--n-estimators", "300",
            "--max-leaves", "6", "--sample-size", "4000", "--theta", "0.8", "-q"]  # fmt: skip
    straight = [*call, "-o", str(tmp_path / "straight.json")]
    subprocess.run([sys.executable, "-c", CHILD, *straight], check=True)
    call += ["-o", str(tmp_path / "model.json"), "--checkpoint", str(tmp_path / "run")]
    dice = random.Random(1)
    kills = 0
    for _ in range(6):
        child = subprocess.Popen([sys.executable, "-c", CHILD, *call])
        while not (tmp_path / "run").exists() and child.poll() is None:
            time.sleep(0.01)
        time.sleep(1 + dice.uniform(0.0, 2.0) if kills else dice.uniform(0.0, 0.4))
        child.send_signal(signal.SIGKILL)
        if child.wait() == 0:
            break
        kills += 1
    assert kills >= 1
    subprocess.run([sys.executable, "-c", CHILD, *call], check=True)
    assert (tmp_path / "model.json").read_bytes() == (tmp_path / "straight.json").read_bytes()
    assert Dataset(tmp_path / "run/store", verify=True).n_rows == N


def test_interrupting_the_command_says_that_it_may_go_on(source, tmp_path, monkeypatch, capsys):
    fail_after(monkeypatch, 20_000, KeyboardInterrupt())
    call = ["ingest", str(source), "--label", "y", "-o", str(tmp_path / "s"), "--resume", "-q"]
    assert main(call) == 130
    assert "run the same command again to go on" in capsys.readouterr().err
