"""Wrong input: an error that says what, where and what to do, and nothing half-made."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from constants import set_constants
from helpers import small_table
from sparrowboost import DataError, Dataset, DiskFullError, MemoryLimitError, StoreError, ingest

TABLE = small_table(200)


@pytest.fixture
def store(tmp_path):
    """A path for a store; after an error, nothing may be left there."""
    folder = tmp_path / "out"
    folder.mkdir()
    yield folder / "store"
    assert os.listdir(folder) == []


def fails(store, data, *says, error=DataError, **kwargs):
    kwargs = {"label": "y", "verbose": 0} | kwargs
    with pytest.raises(error) as caught:
        ingest(data, path=store, **kwargs)
    for words in says:
        assert words in str(caught.value)


def write(path, text):
    path.write_text(text)
    return path


def with_label(values):
    return pa.table({"x": np.arange(len(values), dtype=float), "y": values})


def test_no_such_file(store, tmp_path):
    for name in ("no.parquet", "no.csv", "no.npy", "no.arrow", "no.svm"):
        fails(store, tmp_path / name, name, "no such file")
    fails(store, str(tmp_path / "*.parquet"), "no file matches")
    fails(store, tmp_path, "no file of a supported format")


@pytest.mark.parametrize(("suffix", "command"), [(".gz", "gunzip"), (".zst", "unzstd")])
def test_packed_parquet_says_how_to_unpack_it(store, tmp_path, suffix, command):
    path = write(tmp_path / f"t.parquet{suffix}", "packed")
    fails(store, path, path.name, f"not read; unpack it first (`{command} ")


def test_json_that_is_not_lines_says_how_to_convert_it(store, tmp_path):
    rows = [json.dumps({"x": x, "y": x % 2}) for x in range(100)]
    path = write(tmp_path / "t.json", "[" + ",".join(rows) + "]")
    with pytest.raises(DataError, match=r"\.json files are not read; convert it") as caught:
        ingest(path, label="y", path=store, verbose=0)
    ((flag, code),) = re.findall(r'python (-c) "(.*?)"', str(caught.value))
    subprocess.run([sys.executable, flag, code], check=True)
    assert ingest(tmp_path / "t.parquet", label="y", verbose=0).n_rows == 100


@pytest.mark.parametrize("suffix", [".avro", ".xlsx", ".h5"])
def test_files_of_other_formats_say_how_to_convert_them(store, tmp_path, suffix):
    path = write(tmp_path / f"t{suffix}", "rows")
    fails(store, path, f"{suffix} files are not read; convert it to Parquet first: python -c ")


def test_unknown_suffix(store, tmp_path):
    fails(store, write(tmp_path / "data.xls", "x"), "data.xls", "format=")
    fails(store, write(tmp_path / "data.bin", "x"), "csvv", format="csvv")


@pytest.mark.parametrize("name", ["e.parquet", "e.csv", "e.npy", "e.arrow", "e.svm", "e.csv.gz"])
def test_empty_file(store, tmp_path, name):
    fails(store, write(tmp_path / name, ""), name)


def test_zero_rows(store, tmp_path):
    pq.write_table(TABLE[:0], tmp_path / "zero.parquet")
    fails(store, tmp_path / "zero.parquet", "has no rows")
    fails(store, write(tmp_path / "zero.csv", "x,y\n"), "has no rows")
    fails(store, TABLE[:0], "has no rows")
    fails(store, np.empty((0, 3)), "has no rows", label=[])


def test_label_column_missing(store):
    fails(store, TABLE, "no column 'z'", "x, count, color", label="z")
    fails(store, TABLE, "which column is the label", label=None)
    fails(store, TABLE, "no column number 9", label=9)


def test_label_constant(store):
    fails(store, with_label([1, 1, 1]), "label 'y' is 1 in every row")


def test_label_of_three_values(store):
    fails(store, with_label([0, 1, 2]), "more than 2 values (0, 1, 2", "positive=",
          "task='classification' (--task classification)")  # fmt: skip


def test_label_of_too_many_values(store):
    texts = with_label([f"id{k}" for k in range(300)])
    fails(store, texts, "more than 255 values ('id0', 'id1'", "Join rare ones into one")
    fails(store, with_label(range(300)), "more than 255 values", "pass task='regression'",
          task="classification")  # fmt: skip


def test_label_null(store):
    fails(store, with_label([0, None, 1]), "row 2: label 'y' is missing")
    fails(store, with_label([0.0, 1.0, float("nan")]), "row 3: label 'y' is missing")
    hidden = pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), pa.array([None, "a"]))
    fails(store, with_label(hidden), "row 2: label 'y' is missing")


def test_the_file_of_a_wrong_row_is_named(store, tmp_path):
    pq.write_table(with_label([0, 1]), tmp_path / "a.parquet")
    pq.write_table(with_label([0, 1, None]), tmp_path / "b.parquet")
    fails(store, tmp_path, "b.parquet: row 3: label 'y' is missing")


def test_arguments_that_cannot_be(store):
    for arguments in (
        {"n_jobs": 0}, {"n_jobs": -2}, {"n_jobs": 1.5}, {"n_jobs": "2"}, {"random_state": -1},
        {"random_state": 2**70},
        {"random_state": "x"}, {"columns": []}, {"weight": "y"}, {"label": [[1, 2]] * 200},
    ):  # fmt: skip
        fails(store, TABLE, **arguments)
    for limit in (float("inf"), [10**9], {}):
        fails(store, TABLE, error=MemoryLimitError, memory_limit=limit)


def test_positive_value_that_never_occurs(store):
    fails(store, with_label(["a", "b", "c"]), "never 'd'", "a, b, c", positive="d")
    fails(store, with_label(["a", "a"]), "in every row", positive="a")


def test_label_array_of_another_length(store, tmp_path):
    fails(store, TABLE, "199 values", "200 rows", label=np.zeros(199))
    csv = write(tmp_path / "t.csv", "x\n1\n2\n3\n")
    fails(store, csv, "values", label=[0, 1])
    fails(store, csv, "4 values for the 3 rows", label=[0, 1, 0, 1])


def test_weights_that_are_none(store):
    for bad in (-1.0, float("nan"), float("inf"), 1e300, 1e19, None):
        table = with_label([0, 1]).append_column("w", pa.array([1.0, bad]))
        fails(store, table, "row 2: weight 'w'", weight="w")


def test_columns_that_are_not_there(store):
    fails(store, TABLE, "no column 'u'", columns=["u"])
    fails(store, TABLE, "no column 'u'", exclude=["u"])
    fails(store, TABLE, "no column 'u'", categorical=["u"])
    fails(store, TABLE, "no column is left", columns=["y"])


def test_a_column_of_lists(store):
    table = TABLE.append_column("l", pa.array([[1]] * 200))
    fails(store, table, "column 'l' has type list", "exclude=")


def test_ragged_csv_rows(store, tmp_path):
    fails(store, write(tmp_path / "r.csv", "x,y\n1,0\n2,1,3\n3,1\n"), "r.csv", "row 3", "3 values")
    fails(store, write(tmp_path / "s.csv", "x,y\n1,0\n2\n3,1\n"), "s.csv", "row 3", "1 values")


def test_junk_in_a_numeric_column_is_named_by_row_and_column(store, tmp_path):
    body = "x,z,y\n" + "".join(f"{i},{i},{i % 2}\n" for i in range(50_000))
    path = write(tmp_path / "j.csv", body + "7,oops,1\n" + "8,9,1\n")
    fails(store, path, "row 50002", "column 'z'", "'oops' is not a number", "categorical=['z']")


def test_header_that_is_data(store, tmp_path):
    fails(store, write(tmp_path / "h.csv", "1,2\n3,4\n"), "looks like data", "header=False")
    fails(store, write(tmp_path / "h.csv", "x,x,y\n1,2,0\n"), "'x' more than once")


def test_csv_that_is_not_text(store, tmp_path):
    path = tmp_path / "b.csv"
    path.write_bytes(b"\xff\xfe\x00x,y\n1,2\n")
    fails(store, path, "UTF-8")


def test_truncated_files(store, tmp_path):
    pq.write_table(small_table(20_000), tmp_path / "t.parquet", write_page_checksum=True)
    data = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(data[: len(data) // 2])
    fails(store, tmp_path / "t.parquet", "not a readable Parquet file", "truncated")
    # The footer is whole, a page is not; its writer left checksums to tell by.
    (tmp_path / "t.parquet").write_bytes(data[:2000] + b"\xff" * 2000 + data[4000:])
    fails(store, tmp_path / "t.parquet", "t.parquet: not a readable Parquet file")
    with pa.ipc.new_file(tmp_path / "t.arrow", TABLE.schema) as writer:
        writer.write_table(TABLE)
    arrow = (tmp_path / "t.arrow").read_bytes()
    (tmp_path / "t.arrow").write_bytes(arrow[:-40])
    fails(store, tmp_path / "t.arrow", "not a readable Arrow IPC file")
    np.save(tmp_path / "t.npy", np.zeros((9, 9)))
    (tmp_path / "t.npy").write_bytes((tmp_path / "t.npy").read_bytes()[:-99])
    fails(store, tmp_path / "t.npy", "not a readable .npy file", label=np.arange(9) % 2)

    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"x,y\n" + b"1,0\n2,1\n" * 9999)[:-20])
    fails(store, tmp_path / "t.csv.gz", "t.csv.gz", "gzip")


def test_libsvm_lines_that_are_malformed(store, tmp_path):
    good = "1 1:2 3:4\n-1 2:1\n"
    fails(store, write(tmp_path / "a.svm", good + "1 x:3\n"), "row 3", "1 x:3", label=None)
    fails(store, write(tmp_path / "a.svm", good + "1 3:x\n"), "row 3", "1 3:x", label=None)
    fails(store, write(tmp_path / "a.svm", "1\n-1\n"), "no line has a feature", label=None)


def test_two_files_with_different_columns(store, tmp_path):
    pq.write_table(TABLE, tmp_path / "a.parquet")
    pq.write_table(TABLE.rename_columns(["x", "count", "colour", "w", "y"]), tmp_path / "b.parquet")
    fails(store, tmp_path, "a.parquet has 'color'", "b.parquet has 'colour'")
    pq.write_table(TABLE.set_column(0, "x", pa.array(["a"] * 200)), tmp_path / "b.parquet")
    fails(store, tmp_path, "column 'x' is float64 in", "category in", "b.parquet")


def test_a_limit_that_is_too_small_names_one_that_would_do(store, tmp_path):
    pq.write_table(TABLE, tmp_path / "a.parquet")
    fails(store, tmp_path, "give at least", error=MemoryLimitError, memory_limit="60MB")
    fails(store, TABLE, "not understood", error=MemoryLimitError, memory_limit="lots")
    fails(store, TABLE, "must be positive", error=MemoryLimitError, memory_limit=0)


def test_disk_that_fills_up_names_path_and_bytes(store, monkeypatch):
    set_constants(monkeypatch, min_memory=2_000, bucket_bytes=2_000, segment_bytes=200)

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    fails(
        store, small_table(3_000), str(store), "disk is full", "bytes) needed", error=DiskFullError
    )


def test_disk_that_is_too_small_is_found_out_before(store, monkeypatch):

    usage = shutil.disk_usage(store.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    fails(store, TABLE, str(store), "disk is full", "100 B free", error=DiskFullError)


def test_a_real_small_disk(tmp_path):
    mount = tmp_path / "tiny"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(mount)], capture_output=True
    )
    if made.returncode:
        pytest.skip("a small tmpfs cannot be mounted here")
    try:
        table = pa.table({f"x{j}": np.arange(50_000.0) for j in range(8)})
        with pytest.raises(DiskFullError, match="tiny"):
            ingest(table, label=np.arange(50_000) % 2, path=mount / "s", verbose=0)
        assert os.listdir(mount) == []
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_a_store_in_the_way(tmp_path):
    path = tmp_path / "store"
    ingest(TABLE, label="y", path=path, verbose=0)
    with pytest.raises(StoreError, match=r"already has a store.*overwrite=True"):
        ingest(TABLE, label="y", path=path, verbose=0)
    assert Dataset(path, verify=True).n_rows == 200
    assert ingest(TABLE[:50], label="y", path=path, overwrite=True, verbose=0).n_rows == 50
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is a file"):
        ingest(TABLE, label="y", path=tmp_path / "file", verbose=0)
    with pytest.raises(StoreError, match="has other files"):
        ingest(TABLE, label="y", path=tmp_path, overwrite=True, verbose=0)
    assert (tmp_path / "file").read_text() == "x"


KILLED_HALF_WAY = """
import sys, numpy as np, pyarrow as pa, sparrowboost
def rows():
    yield pa.record_batch({"x": np.arange(9.0), "y": np.arange(9) % 2})
    print("writing", flush=True)
    sys.stdin.read()
reader = pa.RecordBatchReader.from_batches(next(rows()).schema, rows())
sparrowboost.ingest(reader, label="y", path=sys.argv[1], verbose=0)
"""


def test_a_store_killed_half_way_cannot_be_opened_and_is_made_anew(tmp_path):
    path = tmp_path / "store"
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED_HALF_WAY, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout.readline() == b"writing\n"
    with pytest.raises(StoreError, match="another ingest is writing"):
        ingest(TABLE, label="y", path=path, verbose=0)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    with pytest.raises(StoreError, match="unfinished"):
        Dataset(path)
    assert ingest(TABLE, label="y", path=path, verbose=0).n_rows == 200
    assert len(os.listdir(path)) == 2  # manifest and rows, nothing of the first try


def test_interrupting_leaves_nothing(tmp_path):
    path = tmp_path / "store"
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED_HALF_WAY, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    time.sleep(0.1)
    child.communicate()
    assert child.returncode != 0
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"columns": 5}, "5 stands where names of columns are needed"),
        ({"exclude": 5.0}, "5.0 stands where names of columns are needed"),
        ({"header": "no"}, "header='no': give True or False"),
    ],
)
def test_arguments_of_the_wrong_type_are_told(store, arguments, says):
    fails(store, TABLE, says, **arguments)


def test_an_empty_path_is_not_the_current_folder(store, tmp_path, monkeypatch):
    pq.write_table(TABLE, tmp_path / "t.parquet")
    monkeypatch.chdir(tmp_path)
    for given in ("", ["t.parquet", ""]):
        fails(store, given, "a path is empty")


def test_what_is_no_store_is_not_opened_as_one():
    for given in (5, None, TABLE):
        with pytest.raises(DataError, match="opened by the path of a store"):
            Dataset(given)


def test_a_pipe_is_told_apart_from_a_file_that_is_not_there(store, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    fails(store, tmp_path / "pipe", "is neither a file nor a folder", "write it to a file first")


def test_long_labels_are_cut_in_messages(store):
    huge = pa.table({"x": [1.0, 2.0, 3.0], "y": [1e300, 2e300, 3e300]})
    with pytest.raises(DataError, match="has more than 2 values") as caught:
        ingest(huge, label="y", path=store, verbose=0)
    assert len(str(caught.value)) < 500


def test_python_objects_in_polars_are_not_read_as_their_addresses(store):
    pl = pytest.importorskip("polars", reason="needs polars")
    things = pl.Series("thing", [object(), object()], dtype=pl.Object)
    frame = pl.DataFrame({"x": [1.0, 2.0], "y": [0, 1]}).with_columns(things)
    fails(store, frame, "column 'thing' is Object, which Arrow cannot hold")


@pytest.mark.parametrize("role", ["weight", "offset"])
def test_dates_are_neither_weights_nor_offsets(store, role):
    days = TABLE.append_column("day", pa.array(np.arange(200).astype("M8[D]")))
    fails(store, days, f"{role} 'day' has type date32", **{role: "day"})
