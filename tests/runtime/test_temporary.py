"""Temporary folders: whose they are, and who removes them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from builders import made_rows
from helpers import NOBODY, as_nobody
from sparrowboost import StoreError, evaluate, ingest, load_model, train
from sparrowboost.runtime import temporary
from sparrowboost.runtime.disk import replacing
from sparrowboost.runtime.temporary import (
    FOLDER,
    PARTIAL,
    TemporaryFolder,
    make_folder,
    owner_tag,
    remove_leftovers,
)

# Python warns of forks of processes with threads, which is what users do.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

has_tags = pytest.mark.skipif(not owner_tag(), reason="who owns a folder is not known here")


@pytest.fixture
def tmp(tmp_path, monkeypatch):
    """The folder for temporary files, which has not been looked through yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(temporary, "_swept", set())
    return tmp_path


def forked(work):
    """Run in a forked process; its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# -- forked processes ------------------------------------------------------------------------------


FORK = """
import os, sys
import numpy as np
from sparrowboost import ingest, train
X = np.random.default_rng(0).random((5_000, 3))
for wait in (True, False):
    ds = ingest(X, label=X[:, 0] > 0.5, verbose=0, wait=wait)
    if (child := os.fork()) == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(train(ds, n_estimators=3, max_leaves=4, verbose=0).n_trees, ds.path.exists())
"""


@pytest.mark.slow
def test_a_forked_process_that_exits_leaves_its_parents_store_alone():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    assert done.stdout == 2 * "3 True\n"


def test_a_forked_process_that_drops_a_data_set_leaves_its_store(tmp):
    held = [ingest(np.arange(100.0)[:, None], label=np.arange(100) < 30, verbose=0)]
    path = held[0].path
    assert forked(held.clear) == 0
    assert len(list(held[0].blocks())) == held[0].n_blocks
    held.clear()
    assert not path.exists()


def test_a_forked_process_that_leaves_a_job_removes_nothing_of_it(tmp):
    this = os.getpid()
    try:
        with TemporaryFolder("predict") as folder, replacing(tmp / "file") as partial:
            partial.write_text("half")
            child = os.fork()
            if child == 0:
                raise SystemExit  # as in a callback
            os.waitpid(child, 0)
            assert partial.exists() and folder.exists()
    finally:
        if os.getpid() != this:
            os._exit(0)
    assert os.listdir(tmp) == ["file"]


def test_a_generator_that_a_forked_process_drops_removes_nothing(tmp):
    X, y = made_rows()
    model = train(ingest(X, label=y, verbose=0), n_estimators=2, verbose=0)
    held = [model.iter_scores(X)]
    next(held[0])
    (folder,) = tmp.glob("sparrow-predict-*")
    assert forked(held.clear) == 0
    assert folder.exists()
    held.clear()
    assert os.listdir(tmp) == []


# -- what dead processes left ----------------------------------------------------------------------

KILLED = """
import os, signal, sys
import numpy as np
from sparrowboost import ingest
X = np.random.default_rng(0).random((5_000, 3))
ds = ingest(X, label=X[:, 0] > 0.5, verbose=0)
print(ds.path, flush=True)
signal.pause()
"""


@has_tags
@pytest.mark.slow
def test_the_store_of_a_process_that_was_killed_is_removed_by_the_next(tmp, monkeypatch):
    env = os.environ | {"TMPDIR": str(tmp)}
    children = [
        subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, env=env)
        for _ in range(2)
    ]
    dead, alive = (Path(child.stdout.readline().strip()) for child in children)
    children[0].send_signal(signal.SIGTERM)  # whose default action ends a process at once
    assert children[0].wait() == -signal.SIGTERM
    assert dead.exists(), "nothing is left to remove"
    ours = make_folder("store")
    assert not dead.exists()
    assert alive.exists() and ours.exists()
    children[1].kill()
    children[1].wait()
    for child in children:
        child.stdout.close()


def dead_tag():
    """The tag of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        start = temporary._start_time(child.pid)
    machine, _, _, _ = owner_tag().split("-")
    return f"{machine}-{child.pid}-{start}-"


@has_tags
def test_only_what_is_certainly_abandoned_is_removed(tmp):
    machine, pid, start, _ = owner_tag().split("-")
    gone = dead_tag()
    kept = [
        f"sparrow-store-{owner_tag()}abcd",  # of this process
        f"sparrow-store-{machine}-{os.getppid()}-{temporary._start_time(os.getppid())}-abcd",
        f"sparrow-store-00000000-{pid}-1-abcd",  # of another machine
        f"sparrow-store-{gone}abcd.txt",  # not a name that Sparrow gives
        "sparrow-store-abcd",
        "other",
    ]
    removed = [
        f"sparrow-store-{gone}abcd",
        f"sparrow-predict-{gone}abcd",
        f"sparrow-store-{machine}-{pid}-{int(start) - 1}-abcd",  # the number was used again
    ]
    for name in kept + removed:
        (tmp / name).mkdir()
        (tmp / name / "rows.bin").touch()
    (tmp / "elsewhere").mkdir()
    (tmp / "elsewhere/file").touch()
    (tmp / f"sparrow-store-{gone}link").symlink_to(tmp / "elsewhere")
    make_folder("store").rmdir()
    assert sorted(os.listdir(tmp)) == sorted([*kept, "elsewhere", f"sparrow-store-{gone}link"])
    assert (tmp / "elsewhere/file").exists()


@has_tags
@as_nobody
def test_what_belongs_to_another_user_stays(tmp):
    other = tmp / f"sparrow-store-{dead_tag()}abcd"
    other.mkdir()
    os.chown(other, NOBODY, NOBODY)
    remove_leftovers(tmp, FOLDER)
    assert other.exists()


@has_tags
def test_partial_files_of_dead_processes_are_removed(tmp):
    gone = tmp / f".model.json.{dead_tag()}01234567.partial"
    gone.touch()
    with replacing(tmp / "other.json") as partial:
        assert PARTIAL.fullmatch(partial.name)
        assert os.listdir(tmp) == []
        partial.touch()
        temporary._swept.clear()
        remove_leftovers(tmp, PARTIAL)
        assert partial.exists()
    assert os.listdir(tmp) == ["other.json"]


def test_without_a_folder_for_temporary_files_the_error_says_so(tmp, monkeypatch):
    shutil.rmtree(tmp)
    with pytest.raises(StoreError, match="set TMPDIR") as caught:
        ingest(np.zeros((10, 1)), label=np.arange(10) < 5, verbose=0)
    assert str(tmp) in str(caught.value) and "\n" not in str(caught.value)


# -- another user, with no home and read-only folders ----------------------------------------------


@pytest.fixture
def installed():
    """A copy of the package that another user may only read, a table, and that user's folders."""
    import sparrowboost

    folder = Path(tempfile.mkdtemp(prefix="sparrow-test-"))
    folder.chmod(0o755)
    source = Path(sparrowboost.__file__).parent
    shutil.copytree(
        source, folder / "sparrowboost", ignore=shutil.ignore_patterns("*.tmp.*", "*.npz")
    )
    for name in ("tmp", "out"):
        (folder / name).mkdir()
        os.chown(folder / name, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
@as_nobody
def test_a_user_without_a_home_trains_from_read_only_folders(installed, nobody):
    X, y = made_rows()
    ingest(X, label=y, path=installed / "store", verbose=0)
    np.save(installed / "X.npy", X)
    np.save(installed / "y.npy", y)
    where = {"first": installed, "TMPDIR": f"{installed}/tmp"}
    imported = nobody.run("-c", "from sparrowboost import SparrowClassifier", **where)
    assert imported.stderr == ""
    few = ["--n-estimators", 20, "--sample-size", 4_000, "--theta", 0.95]
    words = ["-m", "sparrowboost", "train", f"{installed}/X.npy", "--label", f"{installed}/y.npy"]
    nobody.run(*words, "-o", f"{installed}/out/a.json", *few, **where)
    # A store that may only be read, without and with a folder for scratch data.
    words = ["-m", "sparrowboost", "train", f"{installed}/store", *few, "-o"]
    done = nobody.run(*words, f"{installed}/out/b.json", **where)
    assert f"scratch data is written to {installed}/tmp" in done.stderr
    scratch = ["--scratch", f"{installed}/out"]
    done = nobody.run(*words, f"{installed}/out/c.json", *scratch, **where)
    assert "scratch data is written" not in done.stderr
    models = [(installed / f"out/{name}.json").read_bytes() for name in "abc"]
    assert models[1] == models[2]
    assert load_model(installed / "out/a.json").n_trees == 20
    assert not list((installed / "tmp").glob("sparrow-store-*"))


def test_scratch_is_checked_before_the_work(tmp_path, capsys):
    from sparrowboost.cli import main

    np.save(tmp_path / "X.npy", np.zeros((10, 2)))
    words = ["train", f"{tmp_path}/X.npy", "--label", "1", "-o", f"{tmp_path}/m.json"]
    assert main([*words, "--scratch", f"{tmp_path}/none"]) == 1
    assert "none: the folder does not exist or is not writable" in capsys.readouterr().err
    assert main([*words, "--scratch", str(tmp_path), "--checkpoint", f"{tmp_path}/run"]) == 1
    assert "either --scratch or --checkpoint" in capsys.readouterr().err


def test_arrays_are_predicted_where_no_temporary_file_can_be_made(tmp_path, monkeypatch):
    X, y = made_rows()
    model = train(ingest(X, label=y, verbose=0), n_estimators=3, verbose=0)
    np.save(tmp_path / "X.npy", X)
    expected = model.predict_proba(X)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    np.testing.assert_array_equal(model.predict_proba(X), expected)
    np.testing.assert_array_equal(model.predict_proba(tmp_path / "X.npy"), expected)
    assert evaluate(model, X, label=y).n_rows == len(X)
    with pytest.raises(OSError, match="set TMPDIR to a folder that can be written"):
        model.predict_proba(pa.table({f"f{j}": x for j, x in enumerate(X.T)}).to_reader())
