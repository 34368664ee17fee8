"""Files in use that others change: removed, truncated, replaced, forbidden, or shared."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

import sparrowboost.readers.formats
import sparrowboost.store.ingest
from builders import assert_same_trees, made_rows
from constants import set_constants
from helpers import python_path, small_table
from sparrowboost import (
    DataError,
    Dataset,
    ModelFileError,
    SparrowError,
    StoreError,
    ingest,
    load_model,
    train,
    write_predictions,
)
from sparrowboost.cli import main

NOBODY = 65_534
TABLE = small_table(20_000).drop(["w"])

# -- input that changes ----------------------------------------------------------------------------


def write_arrow(table, path, rows=5_000, **how):
    options = pa.ipc.IpcWriteOptions(**how)
    with pa.ipc.new_file(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)


def write_gz(table, path):
    with pa.CompressedOutputStream(str(path), "gzip") as out:
        pcsv.write_csv(table, out)


def write_svm(table, path):
    rows = zip(table["y"].to_pylist(), table["count"].to_pylist(), strict=True)
    path.write_text("".join(f"{y} 1:{0 if x is None else x} 2:1\n" for y, x in rows))


def write_npy(table, path, order="C"):
    rows = np.column_stack([np.arange(len(table)) % 1000, table["y"].to_numpy()]) * 1.0
    np.save(path, np.asarray(rows, order=order))


WRITERS = {
    "t.parquet": lambda table, path: pq.write_table(table, path, row_group_size=2_000),
    "t.csv": pcsv.write_csv,
    "t.csv.gz": write_gz,
    "t.arrow": write_arrow,
    "t.svm": write_svm,
    "t.npy": write_npy,
}
LABELS = dict.fromkeys(WRITERS, "y") | {"t.svm": None, "t.npy": 1}


def remove(path):
    path.unlink()


def cut(path):
    os.truncate(path, path.stat().st_size // 3)


def append(path):
    with path.open("ab") as file:
        file.write(b"0,0,red,1\n")


def replace(path):
    other = path.with_name(f"other-{path.name}")
    WRITERS[path.name](TABLE.slice(0, 9_000), other)
    os.replace(other, path)


CHANGES = [remove, cut, append, replace]


@pytest.fixture(params=list(WRITERS))
def source(request, tmp_path, monkeypatch):
    set_constants(monkeypatch, max_block_rows=1_000)
    WRITERS[request.param](TABLE, tmp_path / request.param)
    return tmp_path / request.param


def during_reading(monkeypatch, source, change):
    """Change a file when its second block has been read."""
    suffix = "".join(source.suffixes)
    name = sparrowboost.readers.formats.SUFFIXES[suffix]
    opener = sparrowboost.readers.formats.FORMATS[name]

    def changed(path, options):
        opened = opener(path, options)
        blocks = opened.blocks

        def changing(columns, rows, only=None):
            for i, batch in enumerate(blocks(columns, rows, only)):
                if i == 1:
                    change(path)
                yield batch

        opened.blocks = changing
        return opened

    monkeypatch.setitem(sparrowboost.readers.formats.FORMATS, name, changed)


def refused(source, store, **more):
    with pytest.raises(DataError, match=rf"{source.name}: .* while it was in use") as caught:
        ingest(source, label=LABELS[source.name], path=store, verbose=0, **more)
    assert "\n" not in str(caught.value)
    assert not store.exists()


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_after_the_bins_were_found_is_reported(
    source, tmp_path, monkeypatch, change
):
    find_bins = sparrowboost.store.ingest.find_bins

    def then_change(*args, **more):
        found = find_bins(*args, **more)
        change(source)
        return found

    monkeypatch.setattr(sparrowboost.store.ingest, "find_bins", then_change)
    refused(source, tmp_path / "store")


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_while_its_rows_are_stored_is_reported(
    source, tmp_path, monkeypatch, change
):
    during_reading(monkeypatch, source, change)
    refused(source, tmp_path / "store")


@pytest.mark.parametrize("change", [remove, cut, append])
@pytest.mark.parametrize("what", ["label", "weight"])
def test_labels_and_weights_beside_the_source_that_change_are_reported(
    tmp_path, monkeypatch, what, change
):
    set_constants(monkeypatch, max_block_rows=1_000)
    source, values = tmp_path / "t.parquet", tmp_path / "values.npy"
    WRITERS[source.name](TABLE, source)
    np.save(values, np.arange(len(TABLE)) % 2)
    during_reading(monkeypatch, source, lambda path: change(values))
    asked = {"label": "y", "path": tmp_path / "store", "verbose": 0, what: values}
    with pytest.raises(DataError, match=r"values\.npy: .* while it was in use") as caught:
        ingest(source, **asked)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "store").exists()


CUTTER = """
import os, random, shutil, sys, threading, time
from pathlib import Path
from sparrowboost import DataError, ingest

folder = Path(sys.argv[1])

def run(source, label):
    start = time.perf_counter()
    ingest(source, label=label, path=folder / "store", n_jobs=1, verbose=0)
    shutil.rmtree(folder / "store")
    return time.perf_counter() - start

def cut(source, label):
    data = source.read_bytes()
    run(source, label)  # loads kernels
    seconds, reported, dice = run(source, label), 0, random.Random(0)
    for _ in range(8):
        source.write_bytes(data)
        cutter = threading.Timer(
            dice.uniform(0, seconds), os.truncate, (source, dice.randrange(len(data)))
        )
        cutter.start()
        try:
            run(source, label)
        except DataError as error:
            assert source.name in str(error) and "\\n" not in str(error), error
            assert os.listdir(folder) == [], "something is left"
            reported += 1
        cutter.join()
    return reported

for argument in sys.argv[2:]:
    label, _, source = argument.partition(":")
    print(source, end=" ", flush=True)
    print(cut(Path(source), int(label) if label.isdigit() else label))
"""

READ_ON = """
import os, sys
from pathlib import Path
import numpy as np
from sparrowboost import DataError
from sparrowboost.readers.formats import FORMATS, SUFFIXES, OpenOptions

for path in map(Path, sys.argv[1:]):
    options = OpenOptions(scratch=path.parent, rng=np.random.default_rng(0))
    source = FORMATS[SUFFIXES[path.suffix]](path, options)
    blocks = source.blocks(source.columns, 1_000)
    next(blocks)
    maps = Path("/proc/self/maps")
    assert not maps.exists() or path.name not in maps.read_text(), f"{path.name} is mapped"
    os.truncate(path, path.stat().st_size // 3)
    print("of", path.name, end=": ", flush=True)
    try:
        for block in blocks:
            block.validate(full=True)
    except DataError as error:
        print(error)
"""


def child(code, *argv):
    """What a child of Python prints; it must not be killed by the system."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, argv)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (
        f"exit code {done.returncode} after {done.stdout!r}: {done.stderr[-2000:]}"
    )
    return done.stdout


CUT = {
    "rows.npy": (write_npy, "1"),
    "columns.npy": (lambda table, path: write_npy(table, path, "F"), "1"),
    "flat.arrow": (write_arrow, "y"),
    "one.arrow": (lambda table, path: write_arrow(table, path, len(table)), "y"),
    "packed.arrow": (lambda table, path: write_arrow(table, path, compression="zstd"), "y"),
}


@pytest.mark.slow
def test_reading_beyond_the_new_end_of_a_file_is_reported_and_kills_no_process(tmp_path):
    for name, (write, _) in CUT.items():
        write(TABLE, tmp_path / name)
    # In a child: a memory map would take the tests with it.
    lines = child(READ_ON, *(tmp_path / name for name in CUT)).splitlines()
    for name, line in zip(CUT, lines, strict=True):
        assert line.startswith(f"of {name}: ") and line.count(name) == 2


@pytest.mark.slow
def test_a_file_that_a_thread_truncates_at_any_moment_kills_no_process(tmp_path):
    table = small_table(400_000).drop(["w"])
    for name, (write, _) in CUT.items():
        write(table, tmp_path / name)
    (tmp_path / "out").mkdir()
    files = [f"{label}:{tmp_path / name}" for name, (_, label) in CUT.items()]
    lines = child(CUTTER, tmp_path / "out", *files).splitlines()
    for name, line in zip(CUT, lines, strict=True):
        file, reported = line.split()
        assert file == str(tmp_path / name) and int(reported) > 0, line


def test_nothing_is_left_of_a_file_that_changed(tmp_path, monkeypatch):
    source = tmp_path / "t.parquet"
    WRITERS[source.name](TABLE, source)
    set_constants(monkeypatch, max_block_rows=1_000)
    during_reading(monkeypatch, source, append)
    refused(source, tmp_path / "store", resume=True)


def test_a_file_that_is_listed_and_then_removed_is_reported(tmp_path, monkeypatch):
    for name in ("a.parquet", "b.parquet"):
        pq.write_table(TABLE, tmp_path / name)
    expand = sparrowboost.readers.formats._expand

    def then_remove(given, storage):
        found = expand(given, storage)
        (tmp_path / "b.parquet").unlink()
        return found

    monkeypatch.setattr(sparrowboost.readers.formats, "_expand", then_remove)
    with pytest.raises(DataError, match=r"b\.parquet: no such file"):
        ingest(tmp_path, label="y", path=tmp_path / "out/store", verbose=0)
    assert not (tmp_path / "out").exists()


def test_a_file_that_changes_while_it_is_predicted_or_validated_on_is_reported(
    tmp_path, monkeypatch
):
    source = tmp_path / "t.csv"
    WRITERS[source.name](TABLE, source)
    dataset = ingest(source, label="y", verbose=0)
    model = train(dataset, n_estimators=2, verbose=0)
    during_reading(monkeypatch, source, lambda path: os.utime(path))
    with pytest.raises(DataError, match=r"t\.csv: was changed while it was in use"):
        write_predictions(model, source, tmp_path / "out.csv", verbose=0)
    assert os.listdir(tmp_path) == ["t.csv"]
    with pytest.raises(DataError, match=r"t\.csv: was changed while it was in use"):
        train(dataset, valid=source, n_estimators=2, verbose=0)


# -- files that are forbidden ----------------------------------------------------------------------


@pytest.fixture
def forbidding():
    """A folder in which what is forbidden is so: root may do everything, so be somebody else."""
    warm = ingest(TABLE, label="y", verbose=0)  # as long as compiled kernels may be kept
    train(warm, n_estimators=1, sample_size=10_000, verbose=0)
    folder = Path(tempfile.mkdtemp(prefix="sparrow-test-"))
    folder.chmod(0o777)
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    yield folder
    if root:
        os.seteuid(0)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o700)
    shutil.rmtree(folder)


def denied(error, says, call, *args, **kwargs):
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert says in message and "Permission denied" in message
    assert "\n" not in message


def test_input_that_may_not_be_read_is_named(forbidding):
    for name, write in WRITERS.items():
        path = forbidding / name
        write(TABLE, path)
        path.chmod(0)
        store = forbidding / "store"
        denied(DataError, name, ingest, path, label=LABELS[name], path=store, verbose=0)
        assert not store.exists()
    (forbidding / "closed").mkdir(mode=0)
    denied(DataError, "closed", ingest, forbidding / "closed", label="y", verbose=0)


def test_folders_that_may_not_be_written_are_named(forbidding):
    closed, data = forbidding / "closed", forbidding / "store"
    closed.mkdir(mode=0o500)
    denied(StoreError, "closed", ingest, TABLE, label="y", path=closed / "store", verbose=0)
    dataset = ingest(TABLE, label="y", path=data, verbose=0)
    few = {"n_estimators": 6, "sample_size": 5_000, "theta": 0.95, "verbose": 0}
    denied(StoreError, "closed", train, dataset, scratch=closed, **few)
    denied(StoreError, "closed", train, dataset, checkpoint=closed / "run", **few)
    model = train(dataset, **few)
    denied(ModelFileError, "closed", model.save_model, closed / "model.json")
    denied(SparrowError, "closed", write_predictions, model, TABLE, closed / "out.csv", verbose=0)
    assert os.listdir(closed) == []


def test_a_store_that_may_be_read_only_is_trained_on_with_scratch_elsewhere(
    forbidding, monkeypatch, caplog
):
    dataset = ingest(TABLE, label="y", path=forbidding / "store", verbose=0)
    dataset.path.chmod(0o500)
    (forbidding / "tmp").mkdir()
    few = {"n_estimators": 6, "sample_size": 5_000, "theta": 0.95, "verbose": 0}
    caplog.set_level(logging.INFO, "sparrowboost")
    model = train(dataset, scratch=forbidding, **few)
    assert not caplog.records
    monkeypatch.setattr(tempfile, "tempdir", str(forbidding / "tmp"))
    assert_same_trees(train(dataset, **few), model)
    (record,) = caplog.records
    assert f"scratch data is written to {forbidding}/tmp" in record.getMessage()
    (forbidding / "tmp").chmod(0o500)
    denied(StoreError, "pass another folder as scratch=", train, dataset, **few)
    assert sorted(os.listdir(forbidding)) == ["store", "tmp"]


def test_a_store_that_may_only_be_read_is_not_appended_to(forbidding):
    dataset = ingest(TABLE, label="y", path=forbidding / "store", verbose=0)
    dataset.path.chmod(0o500)
    denied(StoreError, "store: cannot be written", ingest, TABLE, append=dataset, verbose=0)
    assert len(os.listdir(dataset.path)) == 2
    dataset.path.chmod(0o700)
    assert ingest(TABLE, append=dataset, verbose=0).n_rows == 2 * dataset.n_rows


def test_a_store_that_may_not_be_read_is_named(forbidding):
    dataset = ingest(TABLE, label="y", path=forbidding / "store", verbose=0)
    next(dataset.path.glob("rows-*")).chmod(0)
    denied(StoreError, "rows-", train, dataset, n_estimators=1, verbose=0)
    (dataset.path / "manifest.json").chmod(0)
    denied(StoreError, "manifest.json", Dataset, dataset.path)


def test_the_command_says_so_before_the_work(forbidding, capsys):
    pq.write_table(TABLE, forbidding / "t.parquet")
    (forbidding / "closed").mkdir(mode=0o500)
    words = ["train", str(forbidding / "t.parquet"), "--label", "y", "-q", "-o"]
    assert main([*words, str(forbidding / "closed/model.json")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "closed" in error


# -- disks that fail, and files that may not grow --------------------------------------------------


@pytest.mark.parametrize("name", ["t.parquet", "t.csv.gz"])
def test_a_disk_that_fails_is_named_in_one_line(tmp_path, monkeypatch, name):
    def fail(*args):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    WRITERS[name](TABLE, tmp_path / name)
    monkeypatch.setattr(os, "pwrite", fail)
    store = tmp_path / "store"
    with pytest.raises(StoreError, match="disk or the connection to it has failed") as caught:
        ingest(tmp_path / name, label="y", path=store, verbose=0)
    assert str(store) in str(caught.value) and "Input/output error" in str(caught.value)
    assert "\n" not in str(caught.value) and not store.exists()


LIMITED = """
import json, os, resource, sys
from forks import fork, load
from sparrowboost.cli import main

def limited(folder, words, out):
    os.dup2(out, 2)
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))
    code = main([*words, "-q"])
    sys.stderr.flush()
    os._exit(code)

load()
said = {}
for name, words in json.loads(sys.argv[2]).items():
    back, out = os.pipe()
    pid = fork(lambda: limited(f"{sys.argv[1]}/{name}", words, out))
    os.close(out)
    with open(back) as stream:
        lines = stream.read()
    said[name] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), lines
print(json.dumps(said))
"""

# A command, and the file that becomes too long for it.
TOO_LONG = {
    "store": ("ingest t.parquet --label y -o store", "store/rows-"),
    "scratch": ("ingest t.csv.gz --label y -o store", "store/scratch/"),
    "model": ("train data -o n.json", "n.json"),
    "checkpoint": ("train data -o n.json --checkpoint run", "run/"),
    "csv": ("predict m.json t.parquet -o p.csv", "p.csv"),
    "parquet": ("predict m.json t.parquet -o p.parquet", "p.parquet"),
}


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    """The commands' folders, each below this one; their exit codes and what they say."""
    folder = tmp_path_factory.mktemp("limited")
    first, *others = (folder / name for name in TOO_LONG)
    first.mkdir()
    write_gz(TABLE, first / "t.csv.gz")
    pq.write_table(TABLE, first / "t.parquet")
    dataset = ingest(first / "t.parquet", label="y", path=first / "data", verbose=0)
    train(dataset, n_estimators=20, verbose=0).save_model(first / "m.json")
    for other in others:
        shutil.copytree(first, other)
    words = json.dumps({name: command.split() for name, (command, _) in TOO_LONG.items()})
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, folder, words], env=python_path(), capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    return folder, json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("what", TOO_LONG)
def test_a_limit_on_file_sizes_is_named_with_the_file(limited, what):
    folder, said = limited
    code, lines = said[what]
    assert code == 1
    *before, line = lines.splitlines()
    assert not [words for words in before if "compiled kernels" not in words]
    assert line.startswith(f"sparrow: error: {folder / what / TOO_LONG[what][1]}"), line
    assert "than this process may write (1 KB); raise that limit (`ulimit -f unlimited`)." in line
    left = {"data", "m.json", "t.parquet", "t.csv.gz"} | (
        {"run"} if what == "checkpoint" else set()
    )
    assert set(os.listdir(folder / what)) == left


# -- file systems without locks --------------------------------------------------------------------


@pytest.fixture
def flock(monkeypatch):
    """Lets locking fail with an error of the system."""

    def fail(code):
        def refuse(file, how):
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(fcntl, "flock", refuse)

    return fail


FEW = {"n_estimators": 6, "sample_size": 5_000, "theta": 0.95, "verbose": 0}


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_there_are_no_locks_work_is_done_with_a_warning(tmp_path, flock, caplog, code):
    flock(code)
    dataset = ingest(TABLE, label="y", path=tmp_path / "store", verbose=0)
    train(dataset, checkpoint=tmp_path / "run", **FEW)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 2
    for folder, line in zip(("store", "run"), said, strict=True):
        assert line.startswith(f"{tmp_path / folder}: this file system has no locks")
        assert os.strerror(code) in line


def test_other_errors_of_locks_are_not_taken_for_another_process(tmp_path, flock):
    dataset = ingest(TABLE, label="y", path=tmp_path / "store", verbose=0)
    flock(errno.EIO)
    with pytest.raises(StoreError, match=r"ingest\.lock: cannot be locked \(Input/output error\)"):
        ingest(TABLE, label="y", path=tmp_path / "other", verbose=0)
    with pytest.raises(StoreError, match=r"run/lock: cannot be locked \(Input/output error\)"):
        train(dataset, checkpoint=tmp_path / "run", **FEW)


def test_a_lock_file_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store/ingest.lock").symlink_to("../victim")
    with pytest.raises(StoreError, match=r"ingest\.lock: is a symbolic link"):
        ingest(TABLE, label="y", path=tmp_path / "store", verbose=0)
    assert not (tmp_path / "victim").exists()


# -- two at once -----------------------------------------------------------------------------------

LEARNER = {"n_estimators": 60, "max_leaves": 6, "sample_size": 4_000, "theta": 0.8, "verbose": 0}
CHILD = f"""
import sys
from sparrowboost import Dataset, train
train(Dataset(sys.argv[1]), random_state=int(sys.argv[2]), **{LEARNER!r}).save_model(sys.argv[3])
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    X, y = made_rows()
    path = tmp_path_factory.mktemp("faults") / "store"
    ingest(X, label=y, path=path, verbose=0)
    return path


@pytest.fixture(scope="module")
def alone(store):
    """The models that trainings give one after the other, by seed."""
    return [train(Dataset(store), random_state=seed, **LEARNER) for seed in (0, 1)]


@pytest.mark.slow
def test_two_threads_train_on_one_store_as_each_would_alone(store, alone):
    dataset = Dataset(store)
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(train, dataset, random_state=seed, **LEARNER) for seed in (0, 1, 0, 1)]
        models = [job.result() for job in jobs]
    for model, expected in zip(models, alone * 2, strict=True):
        assert_same_trees(model, expected)
    assert len(os.listdir(store)) == 2


@pytest.mark.slow
def test_two_processes_train_on_one_store_as_each_would_alone(store, alone, tmp_path):
    files = [tmp_path / f"{seed}.json" for seed in (0, 1)]
    children = [
        subprocess.Popen([sys.executable, "-c", CHILD, store, str(seed), file])
        for seed, file in enumerate(files)
    ]
    assert [child.wait() for child in children] == [0, 0]
    for file, expected in zip(files, alone, strict=True):
        expected.save_model(tmp_path / "expected.json")
        assert file.read_bytes() == (tmp_path / "expected.json").read_bytes()
        assert load_model(file).n_trees == 60
    assert len(os.listdir(store)) == 2
