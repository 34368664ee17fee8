"""What sources make of odd tables, shards, maps, masks and streams."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import pytest

import sparrowboost.readers.ipc as ipc
from helpers import naive_rows, small_table, stored_rows
from sparrowboost import DataError, DiskFullError, ingest
from sparrowboost.readers.base import PART_DONE, ConcatenatedSource
from sparrowboost.readers.formats import OpenOptions, open_source
from sparrowboost.readers.inmemory import from_array, from_table
from sparrowboost.readers.libsvm import MAX_INDEX

TABLE = small_table(1_000)
X = np.random.default_rng(0).normal(size=(400, 3))
Y = (X[:, 0] > 0).astype("i1")


@pytest.fixture
def options(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return OpenOptions(scratch=scratch, rng=np.random.default_rng(0))


def check(dataset, table, label="y"):
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    assert stored_rows(dataset) == naive_rows(dataset, columns, columns[label])


def fails(data, *says, error=DataError, **kwargs):
    with pytest.raises(error) as caught:
        ingest(data, **({"label": "y", "verbose": 0} | kwargs))
    for words in says:
        assert words in str(caught.value)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# Arrays and memory maps


@pytest.mark.parametrize("mode", ["c", "r+", "w+", "r"])
def test_a_memory_map_holds_after_ingest_what_its_owner_wrote_into_it(mode, tmp_path):
    if mode != "w+":
        np.save(tmp_path / "x.npy", np.zeros_like(X) if mode != "r" else X)
    array = np.lib.format.open_memmap(tmp_path / "x.npy", mode, X.dtype, X.shape)
    if mode != "r":
        array[:] = X
    table = pa.table({f"f{j}": X[:, j] for j in range(3)} | {"y": Y})
    check(ingest(array, label=Y, verbose=0), table)
    check(ingest(array[:, :2], label=Y, verbose=0), table)
    np.testing.assert_array_equal(array, X)
    assert from_array(array).in_memory == (mode != "r")


def test_masked_cells_are_missing():
    mask = np.random.default_rng(1).random(X.shape) < 0.2
    mask[0] = False
    table = pa.table({f"f{j}": pa.array(X[:, j], mask=mask[:, j]) for j in range(3)} | {"y": Y})
    check(ingest(np.ma.array(X, mask=mask), label=Y, verbose=0), table)
    check(ingest(np.ma.array(X.astype(object), mask=mask), label=Y, verbose=0), table)
    whole = (X * 100).astype("i4")
    counts = {f"f{j}": pa.array(whole[:, j], mask=mask[:, j]) for j in (2, 0)}
    dataset = ingest(
        np.ma.array(whole, mask=mask), label=Y, columns=["f2", "f0"], verbose=0
    )  # fmt: skip
    check(dataset, pa.table(counts | {"y": Y}))
    check(ingest(np.ma.array(X), label=Y, verbose=0), pa.table(dict(zip(
        ["f0", "f1", "f2", "y"], [*X.T, Y], strict=True))))  # fmt: skip


def test_masked_fields_of_records_are_missing():
    records = np.ma.array(
        [(1.5, 3, 0), (2.5, 4, 1), (0.5, 5, 1)],
        mask=[(0, 1, 0), (1, 0, 0), (0, 0, 0)],
        dtype=[("x", "f4"), ("n", "i8"), ("y", "i1")],
    )
    table = pa.table({"x": [1.5, None, 0.5], "n": [None, 4, 5], "y": [0, 1, 1]})
    check(ingest(records, label="y", verbose=0), table)


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["Y", "M", "W", "D", "h", "m", "s", "10s", "ms", "us", "ns", "ps"])
@pytest.mark.parametrize("kind", ["M8", "m8"])
def test_numpy_times_of_any_unit_are_times(kind, unit):
    times = np.arange(1, 9).astype(f"{kind}[{unit}]")
    times[3] = "NaT"
    feature = ingest(times[:, None], label=np.arange(8) % 2, verbose=0).binning.features[0]
    assert (feature.kind, feature.n_values) == ("time", 1 if unit in ("ns", "ps") else 7)
    records = np.array(list(zip(times, range(8), strict=True)), [("t", times.dtype), ("y", "i1")])
    assert from_array(records).kind("t") == "time"


def test_numpy_times_mean_what_they_say():
    days = np.array([["2020-01-01"], ["2021-03-01"]], "M8[D]")
    for unit in ("D", "h", "m"):
        batch = next(from_array(days.astype(f"M8[{unit}]")).blocks(["f0"], 9))
        assert [str(t) for t in batch.column(0).to_pylist()] == [
            "2020-01-01 00:00:00", "2021-03-01 00:00:00",
        ]  # fmt: skip


def test_arrays_that_are_no_table_are_refused_with_advice():
    fails(X[:, 0], "shape (400,)", "reshape(-1, 1)", label=Y)
    fails(np.array([[1, "a"], ["b", 2]], object), "column 'f0' mixes types", label=[0, 1])
    fails(np.array([[1j]]), "neither a number", label=[0])
    fails(np.array([["NaT"]], "M8"), "neither a number", label=[0])
    fails(pd.Series(X[:, 0]), "pandas Series is one column", "to_frame()", label=Y)
    fails(pl.Series(X[:, 0]), "polars Series is one column", "to_frame()", label=Y)
    fails(pa.chunked_array([[1, 2]]), "not a stream of rows", label=[0, 1])


# Frames and names


def test_two_columns_of_one_name_are_refused_by_name(tmp_path):
    twice = pa.table([[1, 2], [3, 4], [0, 1]], ["a", "a", "y"])
    says = "column 'a' appears more than once"
    fails(twice, says)
    fails(twice.to_batches()[0], says)
    fails(twice.to_reader(), says)
    fails(pd.DataFrame(np.zeros((2, 3)), columns=["a", "a", "y"]), says)
    fails(pd.DataFrame(np.zeros((2, 3)), columns=[1, "1", "y"]), "column '1'")
    with pa.ipc.new_file(tmp_path / "t.arrow", twice.schema) as writer:
        writer.write_table(twice)
    fails(tmp_path / "t.arrow", "t.arrow", says)


def test_frames_that_cannot_be_read_are_refused_with_advice():
    sparse = pd.DataFrame({"a": pd.arrays.SparseArray([0, 0, 1]), "y": [0, 1, 1]})
    fails(sparse, "column 'a' is sparse", "to_dense()")
    fails(pd.DataFrame({"a": [1, "x", 2.5], "y": [0, 1, 1]}), "'a'", "make each column one type")
    fails(pd.DataFrame({"a": [1j, 2, 3], "y": [0, 1, 1]}), "make each column one type")


def test_a_frame_knows_its_columns_by_names_that_are_no_strings(options):
    frame = pd.DataFrame({2: [1.0, 2.0], 1: [0, 1], "x": [3, 4], ("a", 1): [5, 6]})
    source = open_source(frame, options)
    assert source.lookup == {2: "2", 1: "1", ("a", 1): "('a', '1')"}
    assert source.columns == ["2", "1", "x", "('a', '1')"]
    assert ingest(frame, label=1, verbose=0).feature_names == ["2", "x", "('a', '1')"]
    assert open_source(X, options).lookup == {}


# Datasets and streams


def test_a_dataset_of_some_row_groups_gives_their_rows_only(tmp_path):
    pq.write_table(TABLE, tmp_path / "t.parquet", row_group_size=100)
    whole = pds.dataset(tmp_path / "t.parquet")
    fragment = next(whole.get_fragments()).subset(row_group_ids=[0, 1])
    some = pds.FileSystemDataset([fragment], whole.schema, whole.format, whole.filesystem)
    check(ingest(some, label="y", verbose=0), TABLE[:200])


def test_a_filtered_dataset_gives_the_rows_that_pass(tmp_path):
    pq.write_table(TABLE, tmp_path / "t.parquet")
    some = pds.dataset(tmp_path / "t.parquet").filter(pds.field("w") < 0.5)
    check(ingest(some, label="y", verbose=0), some.to_table())


def test_a_dataset_gives_columns_of_the_types_it_says(tmp_path):
    pq.write_table(TABLE, tmp_path / "t.parquet")
    types = [pa.string() if f.name == "count" else f.type for f in TABLE.schema]
    schema = pa.schema(list(zip(TABLE.column_names, types, strict=True)))
    dataset = ingest(pds.dataset(tmp_path / "t.parquet", schema=schema), label="y", verbose=0)
    assert dataset.binning.features[1].kind == "category"


def stream(error):
    def batches():
        yield TABLE.to_batches()[0]
        raise error

    return pa.RecordBatchReader.from_batches(TABLE.schema, batches())


class Foreign:
    def __init__(self, reader):
        self.__arrow_c_stream__ = reader.__arrow_c_stream__


def test_a_stream_that_breaks_off_is_named(tmp_path):
    for source in (stream(pa.ArrowInvalid("bad page")), Foreign(stream(KeyError("bad page")))):
        fails(
            source, type(source).__name__, "failed before its end", "bad page", path=tmp_path / "s"
        )
        assert not (tmp_path / "s").exists()
    fails(Foreign(stream(OSError("bad page"))), "failed before its end", "bad page")


def test_an_error_of_ones_own_producer_comes_through_unchanged():
    fails(stream(KeyError("mine")), "mine", error=KeyError)
    fails(stream(ConnectionError(5, "mine")), "mine", error=ConnectionError)


def test_a_disk_that_fills_while_a_stream_is_kept_is_reported(tmp_path, monkeypatch):
    class Full:
        def __enter__(self):
            return self

        def __exit__(self, *exc):
            raise OSError(errno.ENOSPC, "No space left on device")

        def write_batch(self, batch):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ipc.pa.ipc, "new_file", lambda *args: Full())
    fails(TABLE.to_reader(), "stream.arrow", "disk is full", error=DiskFullError)


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_one_column_of_a_wide_arrow_file_is_copied_or_unpacked_alone(tmp_path, compression):
    table = pa.table({f"x{j}": np.arange(100_000.0) for j in range(20)})
    written = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(tmp_path / "t.arrow", table.schema, options=written) as writer:
        writer.write_table(table)
    source = ipc.IpcFile(tmp_path / "t.arrow", "t")
    before = pa.total_allocated_bytes()
    batch = next(source.blocks(["x7"], 100_000))
    assert batch.column(0).equals(table["x7"].chunk(0))
    taken = pa.total_allocated_bytes() - before
    assert taken < 2_000_000
    assert (source.reading_bytes(["x7"]) == 0) == (compression is None)


# Files


def test_libsvm_shards_have_the_width_of_the_widest(tmp_path):
    write(tmp_path / "a.svm", "1 1:2\n-1 2:1\n")
    write(tmp_path / "b.svm", "")
    write(tmp_path / "c.svm", "1 2:3 5:4\n# nothing\n-1\n")
    write(tmp_path / "d.svm", "1\n-1\n")
    table = pa.table(
        {
            "f1": [2.0, 0, 0, 0, 0, 0],
            "f2": [0.0, 1, 3, 0, 0, 0],
            "f3": [0.0] * 6,
            "f4": [0.0] * 6,
            "f5": [0.0, 0, 4, 0, 0, 0],
            "y": [1, 0, 1, 0, 1, 0],
        }
    )
    dataset = ingest(tmp_path, verbose=0)
    check(dataset, table)
    assert dataset.feature_names == ["f1", "f2", "f3", "f4", "f5"]
    write(tmp_path / "e.svm", "1 0:7\n")
    assert ingest(tmp_path, verbose=0).feature_names[0] == "f0"


def test_libsvm_shards_that_are_all_empty_have_no_rows(tmp_path):
    for name in "ab":
        write(tmp_path / f"{name}.svm", "")
    fails(tmp_path, "has no rows", label=None)
    write(tmp_path / "c.svm", "1\n-1\n")
    fails(tmp_path, "c.svm: no line has a feature", label=None)


def test_a_libsvm_index_too_large_for_dense_bins_is_named_by_row(tmp_path):
    for index in (MAX_INDEX + 1, 99_999_999, 999_999_999, 10**20):
        path = write(tmp_path / "w.svm", f"1 1:2\n\n# x\n-1 2:1\n1 1:1 {index}:1\n1 3:1\n")
        fails(path, "w.svm: row 5 ", "index above 1,000,000", f"{index}:1", label=None)


class Counted:
    """A part with rows 0, 1, ... that records how many are sampled."""

    def __new__(cls, n, seen):
        source = from_table(pa.table({"x": np.arange(n)}))
        whole = source.read

        def read(start, stop, columns):
            seen.append(stop - start)
            return whole(start, stop, columns)

        source.read = read
        return source


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [[100] * 2100, [0] * 200 + [5_000] * 100, [10] * 2000 + [100_000] * 10, [70, 900_000]]
)
def test_many_files_give_as_many_rows_to_the_sample_as_are_asked_for(sizes):
    seen = []
    files = ConcatenatedSource([Counted(n, seen) for n in sizes])
    sampled = list(files.sample(["x"], 200_000, np.random.default_rng(0)))
    # Each file cuts its share into 256 runs, whose lengths are rounded up.
    assert 200_000 <= sum(seen) <= 1.1 * 200_000
    assert sampled[-1] is PART_DONE
    again = files.sample(["x"], 200_000, np.random.default_rng(0))
    assert all(a is b or a.equals(b) for a, b in zip(sampled, again, strict=True))


def test_every_row_of_many_files_is_as_likely_in_the_sample_as_any_other():
    # A tenth of the rows is asked for; small files have a third of all. Their share of the sample
    # is off by at most a run (1/256 of it) at each of the two ends where sizes change.
    files = ConcatenatedSource([Counted(n, []) for n in [50] * 2_000 + [20_000] * 10])
    quotas = files._quotas(30_000, np.random.default_rng(0))
    assert abs(quotas[:2_000].sum() / quotas.sum() - 1 / 3) < 2 / 256


def test_parts_without_rows_are_left_out():
    seen = []
    files = ConcatenatedSource([Counted(n, seen) for n in (0, 3, 0, 2)])
    assert (files.n_rows, len(list(files.blocks(["x"], 10)))) == (5, 2)
    assert ConcatenatedSource([Counted(0, seen), Counted(0, seen)]).n_rows == 0


def test_a_file_without_rows_may_type_its_columns_otherwise(tmp_path):
    pq.write_table(TABLE.set_column(0, "x", pa.array(["a"] * 1000))[:0], tmp_path / "a.parquet")
    pq.write_table(TABLE, tmp_path / "b.parquet")
    check(ingest(tmp_path, label="y", verbose=0), TABLE)


def test_a_file_given_twice_is_refused(tmp_path):
    pq.write_table(TABLE, tmp_path / "a.parquet")
    a = tmp_path / "a.parquet"
    fails([tmp_path / "*.parquet", a], "a.parquet: the file is given twice")
    (tmp_path / "b.parquet").symlink_to(a)
    fails(tmp_path, "b.parquet", "given twice (also as", "a.parquet")


def test_paths_that_the_system_refuses_are_named_with_the_reason(tmp_path, monkeypatch):
    fails("x" * 5_000 + ".svm", "cannot be read", "name too long")
    fails("~no_such_user/x.svm", "~no_such_user")
    for name in ("t.npy", "t.arrow", "t.svm"):
        write(tmp_path / name, "1 1:1\n")
    real = open

    def refuse(file, *args, **kwargs):
        if str(file).startswith(str(tmp_path / "t.")):
            raise PermissionError(errno.EACCES, "Permission denied", str(file))
        return real(file, *args, **kwargs)

    monkeypatch.setattr("builtins.open", refuse)
    for name in ("t.npy", "t.arrow", "t.svm"):
        fails(tmp_path / name, f"{name}: cannot be read", "Permission denied", label=None)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_named(tmp_path):
    pq.write_table(TABLE, tmp_path / "a.parquet")
    (tmp_path / "closed").mkdir(mode=0)
    fails(tmp_path, "closed: cannot be read", "Permission denied")


# Memory

CHILD = """
import sys, json, numpy as np, pyarrow as pa, sparrowboost
from sparrowboost.runtime.memory import peak_rss

def batches():
    rng = np.random.default_rng(0)
    for _ in range(20):
        yield pa.record_batch(
            [rng.random(50_000, "f4") for _ in range(40)] + [rng.integers(0, 2, 50_000)],
            schema=schema,
        )

schema = pa.schema([(f"x{j}", pa.float32()) for j in range(40)] + [("label", pa.int64())])
source = sys.argv[1]
if source == "stream":
    source = pa.RecordBatchReader.from_batches(schema, batches())
ds = sparrowboost.ingest(source, memory_limit=sys.argv[2], verbose=0)
print(json.dumps([ds.n_rows, peak_rss()]))
"""


def peak_of(source, limit):
    out = subprocess.run(
        [sys.executable, "-c", CHILD, str(source), str(limit)], check=True, capture_output=True
    )
    return json.loads(out.stdout)


@pytest.mark.slow
def test_streams_stay_below_the_limit():
    n_rows, peak = peak_of("stream", 340_000_000)
    assert n_rows == 1_000_000
    assert peak < 340_000_000


@pytest.mark.slow
def test_libsvm_files_stay_below_the_limit(tmp_path):
    rng = np.random.default_rng(0)
    lines = []
    for i in range(1_000):
        pairs = zip(range(1 + i % 7, 301, 7), rng.random(60).round(4).tolist(), strict=False)
        lines.append(f"{i % 2} " + " ".join(f"{j}:{v}" for j, v in pairs) + "\n")
    write(tmp_path / "t.svm", "".join(lines) * 60)
    n_rows, peak = peak_of(tmp_path / "t.svm", 350_000_000)
    assert n_rows == 60_000
    assert peak < 350_000_000


def test_a_polars_column_that_arrow_cannot_hold_is_named():
    wide = pl.Series("wide", [1, 2, 3], dtype=pl.Int128)
    frame = pl.DataFrame({"x": [1.0, 2.0, 3.0], "y": [0, 1, 0]}).with_columns(wide)
    fails(frame, "column 'wide' is Int128", "cast it")
