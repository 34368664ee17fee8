from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from builders import assert_same_trees, clean
from constants import set_constants
from helpers import python_path
from sparrowboost import DataError, Model, StoreError, ingest, train
from sparrowboost.learner.checkpoint import Checkpoint
from sparrowboost.learner.events import SampleDrawn, TreeAdded

N, D = 20_000, 5


CHUNK_ROWS = 100  # strata of so small a table are on the disk, too
CHUNK_BYTES = CHUNK_ROWS * (D + 9)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    set_constants(monkeypatch, chunk_rows=CHUNK_ROWS)


class CrashError(Exception):
    pass


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D)).astype(np.float32)
    kind = rng.integers(0, 60, N)
    X[:, -1] = kind
    X[rng.random((N, D)) < 0.05] = np.nan
    score = np.nan_to_num(X) @ [1.0, -0.5, 0.5, 0.25, 0.0] + np.nan_to_num(X[:, 0] * X[:, 1])
    score += rng.normal(size=60)[kind]
    return X, score + rng.normal(size=N) > 1.5


@pytest.fixture(scope="module")
def dataset(rows, tmp_path_factory):
    X, y = rows
    store = tmp_path_factory.mktemp("checkpoint") / "store"
    return ingest(X, label=y, categorical=[f"f{D - 1}"], path=store, verbose=0)


KINDS = {
    "whole": {},
    "sampled": {"sample_size": 3_000, "theta": 0.8},
    "exponential": {"sample_size": 3_000, "theta": 0.8, "loss": "exponential"},
    "paper": {"sample_size": 3_000, "theta": 0.8, "loss": "exponential", "stopping": "paper"},
}
COMMON = {"n_estimators": 24, "max_leaves": 6, "learning_rate": 0.3, "random_state": 3}


def run(dataset, kind, **more):
    """The model; masks as a file has them, for some trees have been in one."""
    model = train(dataset, verbose=0, **{**COMMON, **KINDS[kind], **more})
    cleaned = Model(model.binning, model.classes, model.loss, model.base_score)
    for tree in model.trees:
        cleaned = cleaned.with_tree(clean(tree, model.binning.features))
    return cleaned


def crash_at(tree):
    def callback(event):
        if isinstance(event, TreeAdded) and event.n_trees == tree:
            raise CrashError

    return callback


@pytest.fixture(params=list(KINDS))
def kind(request, monkeypatch):
    set_constants(monkeypatch, save_seconds=0.0)
    return request.param


@pytest.mark.slow
def test_a_training_that_crashes_again_and_again_gives_the_same_model(dataset, kind, tmp_path):
    last = []
    straight = run(dataset, kind, callbacks=[last.append])
    assert straight.n_trees > 15
    folder = tmp_path / "run"
    for tree in (1, 2, 7, 8, 14):
        with pytest.raises(CrashError):
            run(dataset, kind, checkpoint=folder, callbacks=[crash_at(tree)])
    events = []
    resumed = run(dataset, kind, checkpoint=folder, callbacks=[events.append])
    assert_same_trees(resumed, straight)
    assert isinstance(events[0], SampleDrawn)
    assert events[0].reason == "resumed"
    assert events[0].n_trees > 0, "began anew"
    # What was counted before the crash is counted once.
    assert events[-1].rows_scanned == last[-1].rows_scanned
    assert events[-1].rows_read == last[-1].rows_read
    assert events[-1].n_samples == last[-1].n_samples or kind == "whole"


def test_scans_of_a_whole_table_go_on_where_they_were(dataset, tmp_path, monkeypatch):
    # The paper's rules end a scan within the sample, and the next one begins there.
    set_constants(monkeypatch, save_seconds=0.0, sample_block_rows=256)
    how = {"sample_size": "auto"}
    straight = run(dataset, "paper", **how)
    with pytest.raises(CrashError):
        run(dataset, "paper", checkpoint=tmp_path, callbacks=[crash_at(9)], **how)
    assert_same_trees(run(dataset, "paper", checkpoint=tmp_path, **how), straight)


@pytest.mark.slow
def test_a_training_that_has_ended_gives_its_model_again(dataset, kind, tmp_path):
    first = run(dataset, kind, checkpoint=tmp_path)
    events = []
    again = run(dataset, kind, checkpoint=tmp_path, callbacks=[events.append])
    assert events == []
    assert_same_trees(first, again)


@pytest.mark.slow
def test_more_trees_may_be_asked_for(dataset, kind, tmp_path):
    run(dataset, kind, checkpoint=tmp_path, n_estimators=13)
    more = run(dataset, kind, checkpoint=tmp_path, n_estimators=25)
    assert_same_trees(more, run(dataset, kind, n_estimators=25))


@pytest.mark.slow
def test_with_fewer_trees_the_first_ones_are_returned_and_the_checkpoint_stays(
    dataset, kind, tmp_path
):
    whole = run(dataset, kind, checkpoint=tmp_path, n_estimators=25)
    few = run(dataset, kind, checkpoint=tmp_path, n_estimators=9)
    assert_same_trees(few, run(dataset, kind, n_estimators=9))
    assert_same_trees(run(dataset, kind, checkpoint=tmp_path, n_estimators=25), whole)


def test_fewer_trees_with_early_stopping_are_the_best_ones_or_refused(
    dataset, rows, tmp_path, monkeypatch
):
    set_constants(monkeypatch, save_seconds=0.0)
    X, y = rows
    noise = np.random.default_rng(1).random(N) < 0.4
    how = {"valid": (X, y ^ noise), "early_stopping_rounds": 4, "eval_metric": "auc"}
    folder = tmp_path / "run"
    ended = run(dataset, "whole", checkpoint=folder, n_estimators=60, **how)
    assert 4 < ended.n_trees < 56, "it did not stop early"
    few = run(dataset, "whole", checkpoint=folder, n_estimators=ended.n_trees, **how)
    assert_same_trees(few, ended)
    with pytest.raises(
        DataError, match=r"more than the 2 requested.*pass n_estimators of at least"
    ):
        run(dataset, "whole", checkpoint=folder, n_estimators=2, **how)


@pytest.mark.slow
def test_the_best_tree_is_remembered(dataset, rows, kind, tmp_path):
    X, y = rows
    noise = np.random.default_rng(1).random(N) < 0.4
    kwargs = {"valid": (X, y ^ noise), "early_stopping_rounds": 4, "eval_metric": "auc",
              "n_estimators": 40}  # fmt: skip
    straight = run(dataset, kind, **kwargs)
    with pytest.raises(CrashError):
        run(dataset, kind, checkpoint=tmp_path, callbacks=[crash_at(5)], **kwargs)
    assert_same_trees(run(dataset, kind, checkpoint=tmp_path, **kwargs), straight)


@pytest.mark.slow
def test_strata_on_the_disk_are_those_of_the_checkpoint(dataset, tmp_path):
    # Crash while rows are on their way between strata, after many draws.
    straight = run(dataset, "sampled", n_estimators=70)
    for tree in range(5, 70, 5):
        with pytest.raises(CrashError):
            run(dataset, "sampled", n_estimators=70, checkpoint=tmp_path,
                callbacks=[crash_at(tree)])  # fmt: skip
    assert (tmp_path / "strata.bin").stat().st_size > 0
    resumed = run(dataset, "sampled", n_estimators=70, checkpoint=tmp_path)
    assert_same_trees(resumed, straight)


@pytest.mark.slow
def test_scratch_is_at_most_twice_the_rows(dataset, tmp_path):
    events = []
    run(dataset, "sampled", n_estimators=60, checkpoint=tmp_path, callbacks=[events.append])
    assert events[-1].rows_read > 5 * N  # each was written again
    row = D + 1 + 4 + 4
    assert N * row / 2 < (tmp_path / "strata.bin").stat().st_size <= 2.5 * N * row


def test_a_checkpoint_of_another_run_is_refused(dataset, rows, tmp_path):
    with pytest.raises(CrashError):
        run(dataset, "sampled", checkpoint=tmp_path, callbacks=[crash_at(3)])
    with pytest.raises(DataError, match=r"other parameters \(max_leaves was 6, now 7\)"):
        run(dataset, "sampled", checkpoint=tmp_path, max_leaves=7)
    with pytest.raises(DataError, match="other random_state"):
        run(dataset, "sampled", checkpoint=tmp_path, random_state=4)
    with pytest.raises(DataError, match="other validation data"):
        run(dataset, "sampled", checkpoint=tmp_path, valid=rows)
    X, y = rows
    other = ingest(X[:-1], label=y[:-1], verbose=0)
    with pytest.raises(DataError, match="other data"):
        run(other, "sampled", checkpoint=tmp_path)


def test_only_one_training_at_a_time_uses_a_checkpoint(dataset, tmp_path):
    with Checkpoint(tmp_path, {}), pytest.raises(StoreError, match="another training uses"):
        run(dataset, "sampled", checkpoint=tmp_path)


@pytest.mark.parametrize("name", ["lock", "strata.bin", "state-0.npz"])
def test_links_out_of_the_folder_are_refused(dataset, tmp_path, name):
    (tmp_path / "run").mkdir()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "run" / name).symlink_to("../victim")
    with pytest.raises(StoreError, match=rf"{name}: is a symbolic link.* remove it") as caught:
        run(dataset, "sampled", checkpoint=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert victim.read_text() == "precious"
    (tmp_path / "run" / name).unlink()
    os.mkfifo(tmp_path / "run" / name)
    with pytest.raises(StoreError, match=f"{name}: is not an ordinary file"):
        run(dataset, "sampled", checkpoint=tmp_path / "run")


def test_a_folder_that_cannot_be_made_is_told(dataset, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="checkpoint cannot be written"):
        run(dataset, "sampled", checkpoint=tmp_path / "file/run")


@pytest.mark.parametrize("what", ["checkpoint.json", "model", "state"])
def test_damage_is_told_and_nothing_is_trained_on_it(dataset, tmp_path, what):
    with pytest.raises(CrashError):
        run(dataset, "sampled", checkpoint=tmp_path, callbacks=[crash_at(3)])
    meta = json.loads((tmp_path / "checkpoint.json").read_text())
    file = tmp_path / meta.get(what, what)
    good = file.read_bytes()
    rng = np.random.default_rng(0)
    for k in range(12):
        bad = bytearray(good)
        if k % 3 == 0:
            del bad[int(rng.integers(len(bad))) :]
        else:
            bad[int(rng.integers(len(bad)))] ^= 1 << int(rng.integers(8))
        file.write_bytes(bad)
        try:
            run(dataset, "sampled", checkpoint=tmp_path, callbacks=[crash_at(4)])
        except StoreError as error:
            assert (
                "damaged" in str(error)
                or "not a checkpoint" in str(error)
                or "version" in str(error)
            )
        except (DataError, CrashError):  # of other bytes than those that matter
            assert what == "checkpoint.json"
        file.write_bytes(good)
        (tmp_path / "checkpoint.json").write_text(json.dumps(meta))


def test_damage_to_the_strata_is_told_when_they_are_read(dataset, tmp_path):
    with pytest.raises(CrashError):
        run(dataset, "sampled", checkpoint=tmp_path, callbacks=[crash_at(12)])
    file = tmp_path / "strata.bin"
    bad = bytearray(file.read_bytes())
    assert len(bad) > 10 * CHUNK_BYTES
    for at in range(0, len(bad), CHUNK_BYTES):
        bad[at] ^= 1  # the last bit of a row's score, in each chunk
    file.write_bytes(bad)
    with pytest.raises(StoreError, match="scratch file is damaged"):
        run(dataset, "sampled", checkpoint=tmp_path)


KILLS = f"""
import random, sys, time
from pathlib import Path
from constants import set_constants
from helpers import python_path
from forks import killed, load, run
from sparrowboost import Dataset, train

store, folder = map(Path, sys.argv[1:])
set_constants(None, chunk_rows={CHUNK_ROWS})

def job(checkpoint=folder / "run", out="model.json"):
    model = train(
        Dataset(store), checkpoint=checkpoint, verbose=0, n_estimators=100, max_leaves=6,
        learning_rate=0.3, random_state=3, sample_size=3_000, theta=0.8,
    )
    model.save_model(folder / out)

load()
start = time.monotonic()
run(lambda: job(None, "straight.json"))
longest = (time.monotonic() - start) / 6  # so that many kills are needed on any machine
dice = random.Random(0)
n_kills = 0
begun = (folder / "run/checkpoint.json").exists
while n_kills < 12 and killed(job, begun, dice.uniform(0, longest)):
    n_kills += 1
run(job)
print(n_kills)
"""


@pytest.mark.slow
def test_killed_at_random_moments_it_goes_on_to_the_same_model(dataset, tmp_path):
    call = [sys.executable, "-c", KILLS, str(dataset.path), str(tmp_path)]
    done = subprocess.run(call, env=python_path(), check=True, stdout=subprocess.PIPE)
    assert int(done.stdout) >= 8
    assert (tmp_path / "model.json").read_bytes() == (tmp_path / "straight.json").read_bytes()
    left = set(os.listdir(tmp_path / "run"))
    assert {"checkpoint.json", "result.json", "strata.bin", "lock"} <= left
    assert len(left) == 6
