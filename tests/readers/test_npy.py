"""Rows of .npy files, read from where they lie: the same as numpy reads."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sparrowboost.readers.npy as npy
from constants import set_constants
from helpers import naive_rows, stored_rows
from sparrowboost import DataError, ingest
from sparrowboost.readers.inmemory import from_array

N, D = 300, 7
RNG = np.random.default_rng(0)
NUMBERS = RNG.normal(size=(N, D)) * 100
ARRAYS = {
    "float64": NUMBERS,
    "float32": NUMBERS.astype(np.float32),
    "float16": NUMBERS.astype(np.float16),
    "longdouble": NUMBERS.astype(np.longdouble),
    "int8": NUMBERS.astype(np.int8),
    "big-endian": NUMBERS.astype(">i4"),
    "bool": NUMBERS > 0,
    "words": NUMBERS.astype(np.int64).astype("U6"),
    "days": NUMBERS.astype(np.int64).astype("M8[D]"),
    "one column": NUMBERS[:, :1],
}
RECORDS = np.array(
    list(zip(NUMBERS[:, 0], NUMBERS[:, 1] > 0, NUMBERS[:, 2], strict=True)),
    [("x", "<f4"), ("flag", "?"), ("n", ">i2")],
)


def saved(path, array, order):
    np.save(path, np.asarray(array, order=order))
    return path


def rows(source, columns, n, only=None):
    return [row for batch in source.blocks(columns, n, only) for row in batch.to_pylist()]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_all_types_are_read_as_if_they_were_in_memory(tmp_path, monkeypatch, name, order):
    set_constants(monkeypatch, npy_piece_bytes=500, npy_piece_rows=1)
    array = ARRAYS[name]
    source = npy.from_npy(saved(tmp_path / "t.npy", array, order), "t.npy")
    known = from_array(array)
    assert (source.n_rows, source.in_memory, source.schema) == (N, False, known.schema)
    some = source.columns[1::2][::-1] or source.columns
    for columns in (source.columns, some):
        assert rows(source, columns, 64) == rows(known, columns, 64)
    for batch, expected in zip(
        *(s.sample(some, 40, np.random.default_rng(1)) for s in (source, known)), strict=True
    ):
        assert batch.equals(expected)


def test_records_are_read_as_if_they_were_in_memory(tmp_path, monkeypatch):
    set_constants(monkeypatch, npy_piece_bytes=100)
    source = npy.from_npy(saved(tmp_path / "t.npy", RECORDS, "C"), "t.npy")
    for columns in (["x", "flag", "n"], ["n", "x"]):
        assert rows(source, columns, 33) == rows(from_array(RECORDS), columns, 33)


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_columns_of_any_rows(tmp_path, data):
    order = data.draw(st.sampled_from("CF"))
    file = npy.NpyFile(saved(tmp_path / "t.npy", NUMBERS, order), "t.npy")
    start, stop = sorted(data.draw(st.tuples(st.integers(0, N), st.integers(0, N))))
    wanted = data.draw(st.lists(st.integers(0, D - 1), min_size=1, max_size=D, unique=True))
    with pytest.MonkeyPatch.context() as patch:
        set_constants(
            patch,
            npy_piece_bytes=data.draw(st.integers(1, 2_000)),
            npy_piece_rows=1,
            npy_gap_bytes=data.draw(st.sampled_from([0, 16, 1_000])),
        )
        np.testing.assert_array_equal(file.read(start, stop, wanted), NUMBERS[start:stop, wanted].T)


@pytest.mark.parametrize("order", ["C", "F"])
def test_of_a_wide_table_only_the_columns_in_question_are_read(tmp_path, monkeypatch, order):
    wide = np.arange(100 * 9_000.0).reshape(100, 9_000)
    file = npy.NpyFile(saved(tmp_path / "t.npy", wide, order), "t.npy")
    taken, read_exactly = [], npy.read_exactly

    def counted(descriptor, out, offset):
        taken.append(out.nbytes)
        read_exactly(descriptor, out, offset)

    monkeypatch.setattr(npy, "read_exactly", counted)
    np.testing.assert_array_equal(file.read(0, 100, [4_001, 4_000]), wide[:, [4_001, 4_000]].T)
    assert sum(taken) == 2 * 100 * 8


@pytest.mark.parametrize("shape", [(N,), (N, 1)])
@pytest.mark.parametrize("dtype", ["i1", "f8", ">i8", "?", "U3"])
def test_labels_and_weights_are_read_from_files_beside_the_source(tmp_path, shape, dtype):
    y = (NUMBERS[:, 0] > 0).astype(int)
    np.save(tmp_path / "y.npy", y.astype(dtype).reshape(shape))
    w = RNG.random(N).astype(np.float32)
    np.save(tmp_path / "w.npy", w)
    table = pa.table({"x": NUMBERS[:, 1]})
    dataset = ingest(table, label=tmp_path / "y.npy", weight=str(tmp_path / "w.npy"), verbose=0)
    assert dataset.label_name == "y.npy"
    expected = naive_rows(dataset, table.to_pydict(), y.tolist(), w.tolist())
    assert stored_rows(dataset) == expected


def test_files_that_are_no_labels_are_reported(tmp_path):
    table = pa.table({"x": NUMBERS[:, 1]})
    for array, says in (
        (NUMBERS, r"y\.npy: has shape \(300, 7\)"),
        (RECORDS, "one value per row"),
        (NUMBERS[:9, 0] > 0, r"y\.npy: has 9 values for the 300 rows"),
        (NUMBERS[:, 0] * 1j, "neither a number"),
    ):
        np.save(tmp_path / "y.npy", array)
        with pytest.raises(DataError, match=says):
            ingest(table, label=tmp_path / "y.npy", verbose=0)
    (tmp_path / "y.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(DataError, match=r"y\.npy: not a readable \.npy file"):
        ingest(table, label=tmp_path / "y.npy", verbose=0)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_file_that_became_shorter_is_reported(tmp_path, order):
    path = saved(tmp_path / "t.npy", NUMBERS, order)
    source = npy.from_npy(path, "t.npy")
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(DataError, match=r"t\.npy: cannot be read \(it ends too early\)"):
        rows(source, [f"f{D - 1}"], N // 2)
