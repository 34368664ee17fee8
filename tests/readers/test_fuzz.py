"""Damaged files of every sort: an error of one line or the right data, never a crash or a hang.

Readers are run in child processes, see `fuzzing.py`; model files are in `model/test_file.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparrowboost.store.ingest
from builders import assert_same_trees, made_rows
from constants import set_constants
from fuzzing import FORMATS, a_bit, damage, damaged, fuzzing
from helpers import small_table, stored_rows
from sparrowboost import Dataset, SparrowError, StoreError, ingest, load_model, train

N_CHILDREN = 3  # for all formats
READER_CASES, STORE_CASES, RESUME_CASES, CHECKPOINT_CASES = 100, 150, 60, 120
FLIPS = 500  # single bits, for each kind of file


@pytest.mark.slow
@pytest.mark.parametrize("which", range(N_CHILDREN))
def test_a_damaged_file_is_refused_or_read_as_others_read_it(tmp_path, which):
    script, names = Path(__file__).parents[1] / "fuzzing.py", list(FORMATS)[which::N_CHILDREN]
    done = subprocess.run(
        [sys.executable, script, str(READER_CASES), tmp_path, *names],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""
    for line in done.stdout.splitlines():
        name, refused, read = line.split()
        assert int(refused) > 0 and int(read) > 0, f"{name}: this tests one thing only"


def accident(data, folder, others):
    """Damage, swap or remove one file of a folder; others are of the same kind."""
    file = data.draw(st.sampled_from(sorted(p for p in folder.iterdir() if p.is_file())))
    what = data.draw(st.sampled_from(["damage", "damage", "damage", "remove", "swap", "take"]))
    if what == "damage":
        file.write_bytes(damaged(file.read_bytes(), data.draw(st.one_of(a_bit, damage))))
    elif what == "remove":
        file.unlink()
    elif what == "swap":
        other = data.draw(st.sampled_from(sorted(folder.iterdir())))
        a, b = file.read_bytes(), other.read_bytes()
        file.write_bytes(b)
        other.write_bytes(a)
    else:
        source = data.draw(st.sampled_from(sorted(others.iterdir())))
        file.write_bytes(source.read_bytes())


def fresh(folder, whole):
    """A copy of a folder to damage."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    return folder


def refused(error):
    assert "\n" not in str(error), str(error)


def survives(cases, whole, others, check, error):
    """Each accident to a copy of one of the folders is reported in one line, or changes nothing."""
    outcomes = set()

    @fuzzing(cases)
    @given(st.data())
    def run(data):
        folder = fresh(others.with_name("damaged"), data.draw(st.sampled_from(whole)))
        accident(data, folder, others)
        try:
            check(folder)
            outcomes.add("read")
        except error as said:
            refused(said)
            outcomes.add("refused")

    run()
    assert outcomes == {"read", "refused"}


@pytest.fixture
def small_buckets(monkeypatch):
    """Let a store of few rows have many blocks."""
    set_constants(
        monkeypatch, max_block_rows=400, bucket_bytes=2_000, min_memory=4_000, segment_bytes=400
    )


def classes_table(n, seed=0):
    """A table whose label `y` has one of ten values."""
    table = small_table(n, seed)
    names = [f"{count}"[-1] for count in table["count"].to_pylist()]
    return table.set_column(table.column_names.index("y"), "y", [names])


@pytest.mark.slow
@pytest.mark.parametrize("make_table", [small_table, classes_table])
def test_a_damaged_store_is_refused_or_has_its_rows(tmp_path, small_buckets, make_table):
    for seed in (0, 1):
        ingest(make_table(1_000, seed), label="y", weight="w", path=tmp_path / f"{seed}",
               verbose=0)  # fmt: skip
    whole = stored_rows(Dataset(tmp_path / "0"))

    def check(store):
        assert stored_rows(Dataset(store)) == whole

    survives(STORE_CASES, [tmp_path / "0"], tmp_path / "1", check, StoreError)


def flips(folder, whole, n, seed=0):
    """Copies of a folder with one random bit flipped, in each of its files as often."""
    rng = np.random.default_rng(seed)
    files = sorted(file.name for file in whole.iterdir() if file.stat().st_size)
    fresh(folder, whole)
    for k in range(n):
        name = files[k % len(files)]
        data = bytearray((whole / name).read_bytes())
        place = int(rng.integers(8 * len(data)))
        data[place // 8] ^= 1 << place % 8
        (folder / name).write_bytes(data)
        yield name
        (folder / name).write_bytes((whole / name).read_bytes())


@pytest.mark.parametrize("make_table", [small_table, classes_table])
def test_no_flipped_bit_gives_another_store(tmp_path, small_buckets, monkeypatch, make_table):
    set_constants(monkeypatch, extent_bytes=400, min_segment_bytes=50)  # hardly any holes
    ingest(make_table(1_000), label="y", weight="w", path=tmp_path / "whole", verbose=0)

    def contents(store):
        dataset = Dataset(store)
        facts = (dataset.label_name, dataset.classes, dataset.binning.to_json())
        facts += (dataset.class_rows.tolist(), dataset.task)
        return facts, stored_rows(dataset), dataset.block_label.tolist()

    whole, refusals = contents(tmp_path / "whole"), Counter()
    for name in flips(tmp_path / "flipped", tmp_path / "whole", FLIPS):
        try:
            assert contents(tmp_path / "flipped") == whole
        except StoreError as error:
            refused(error)
            refusals[name] += 1
    assert len(refusals) == 2 and min(refusals.values()) > 0.3 * FLIPS


@pytest.mark.slow
def test_an_ingest_into_a_damaged_store_gives_the_right_store_or_none(tmp_path, small_buckets):
    class CrashError(Exception):
        pass

    def make(folder, source):
        return ingest(source, label="y", weight="w", path=folder, resume=True, verbose=0)

    put = sparrowboost.store.ingest.StoreWriter.put
    left = [4]

    def crashing(self, *args):
        left[0] -= 1
        if not left[0]:  # what a process that is killed now leaves
            ignored = shutil.ignore_patterns("scratch")
            shutil.copytree(self.path, tmp_path / "killed", ignore=ignored)
            raise CrashError
        return put(self, *args)

    for seed in (0, 1):
        pq.write_table(small_table(3_000, seed), tmp_path / f"{seed}.parquet")
        make(tmp_path / f"{seed}", tmp_path / f"{seed}.parquet")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(CrashError):
        patch.setattr(sparrowboost.store.ingest.StoreWriter, "put", crashing)
        make(tmp_path / "crashed", tmp_path / "0.parquet")
    assert len(os.listdir(tmp_path / "killed")) == 2
    whole = stored_rows(Dataset(tmp_path / "0"))

    def check(store):
        assert stored_rows(make(store, tmp_path / "0.parquet")) == whole

    survives(RESUME_CASES, [tmp_path / "0", tmp_path / "killed"], tmp_path / "1", check, StoreError)


@pytest.fixture
def crashed(tmp_path, monkeypatch):
    """Checkpoints of two crashed trainings, one that has ended; and a function that trains."""

    class CrashError(Exception):
        pass

    def crash(event):
        if event.n_trees == 9:
            raise CrashError

    def run_training(folder, seed=0, callbacks=()):
        return train(
            dataset, checkpoint=folder, callbacks=callbacks, random_state=seed, verbose=0,
            n_estimators=12, max_leaves=4, learning_rate=0.5, sample_size=1_000, theta=0.9,
        )  # fmt: skip

    set_constants(monkeypatch, chunk_rows=75)
    X, y = made_rows(4_000)
    dataset = ingest(X, label=y, path=tmp_path / "data", verbose=0)
    for seed in (0, 1):
        with pytest.raises(CrashError):
            run_training(tmp_path / f"{seed}", seed, [crash])
    run_training(tmp_path / "ended")
    assert (tmp_path / "0/strata.bin").stat().st_size > 0
    return run_training


@pytest.mark.slow
def test_a_damaged_checkpoint_is_refused_or_leads_to_the_same_model(tmp_path, crashed):
    straight = load_model(tmp_path / "ended" / "result.json")

    def check(folder):
        assert_same_trees(crashed(folder), straight)

    whole = [tmp_path / "0", tmp_path / "ended"]
    survives(CHECKPOINT_CASES, whole, tmp_path / "1", check, SparrowError)


@pytest.mark.slow
@pytest.mark.parametrize("whole", ["0", "ended"])
def test_no_flipped_bit_of_a_checkpoint_gives_another_model(tmp_path, crashed, whole):
    straight = load_model(tmp_path / "ended" / "result.json").digest
    refusals = Counter()
    folder = tmp_path / "flipped"
    for name in flips(folder, tmp_path / whole, FLIPS):
        try:
            assert crashed(folder).digest == straight
        except SparrowError as error:
            refused(error)
            refusals[name] += 1
        else:  # it went on from there
            fresh(folder, tmp_path / whole)
    assert refusals.total() > 0.5 * FLIPS
