"""Rows of Arrow IPC files, read by offset: the same as Arrow reads."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sparrowboost.readers.ipc as ipc
import sparrowboost.readers.ipc_rows
from constants import set_constants
from sparrowboost import DataError
from sparrowboost.readers.ipc_metadata import extents, read_footer, read_layout

N = 500
WORDS = ["", "red", "a word of more than twelve bytes", "ünï", "x" * 300, None]


def table_of_all_types(n=N, seed=0):
    """Columns of all types that can be features, with nulls, between some that cannot."""
    rng = np.random.default_rng(seed)

    def some(values, type_):
        picked = [values[i] for i in rng.integers(len(values), size=n)]
        return pa.array(picked, type_)

    words = pa.array([WORDS[i] for i in rng.integers(len(WORDS), size=n)])
    days = [datetime.date(2020, 1, d) for d in range(1, 20)]
    columns = {
        "int8": some([1, -2, 3], pa.int8()),
        "list": some([[1, 2], [], None, [3]], pa.list_(pa.int32())),
        "float32": some([0.5, None, 1.5], pa.float32()),
        "half": some([np.float16(0.5), None], pa.float16()),
        "bool": some([True, False], pa.bool_()),
        "bool or null": some([True, False, None], pa.bool_()),
        "null": pa.nulls(n),
        "struct": some([{"a": "x" * 20}, None], pa.struct({"a": pa.string_view(), "b": "i1"})),
        "day": some(days, pa.date32()),
        "time": some([None, 10**15, 5], pa.timestamp("us", "UTC")),
        "decimal": some([decimal.Decimal("1.25"), None], pa.decimal128(9, 2)),
        "string": words,
        "large": words.cast(pa.large_string()),
        "view": words.cast(pa.string_view()),
        "binary": words.cast(pa.binary()),
        "dense": pa.UnionArray.from_dense(
            pa.array([0] * n, pa.int8()), pa.array(range(n), pa.int32()), [pa.array(range(n))]
        ),
        "fixed": some([b"abc", None], pa.binary(3)),
        "coded": words.dictionary_encode(),
        "coded times": some([None, *days], pa.date32()).dictionary_encode(),
        "uint64": pa.array(rng.integers(2**63, size=n, dtype=np.uint64) * 2),
    }  # fmt: skip
    return pa.table(columns)


TABLE = table_of_all_types()
NESTED = ("list", "struct", "dense")
FLAT = [name for name in TABLE.column_names if name not in NESTED]


def write(path, table, rows=None, **how):
    options = pa.ipc.IpcWriteOptions(unify_dictionaries=True, **how)
    with pa.ipc.new_file(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def read(source, columns, rows, runs=None):
    batches = list(source._runs(runs or [(0, source.n_rows)], columns, rows))
    for batch in batches:
        batch.validate(full=True)
        assert batch.num_rows <= rows
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ipc")
    return {
        "one": write(folder / "one.arrow", TABLE),
        "many": write(folder / "many.arrow", TABLE, 37),
        "packed": write(folder / "packed.arrow", TABLE, 37, compression="zstd"),
        "old": write(folder / "old.arrow", TABLE.drop_columns("dense"), 37,
                     metadata_version=pa.ipc.MetadataVersion.V4),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["one", "many", "packed", "old"])
@pytest.mark.parametrize("rows", [1_000, 37, 10])
def test_columns_of_all_types_are_read_as_arrow_reads_them(files, name, rows):
    source = ipc.IpcFile(files[name], name)
    assert source.n_rows == N
    plain = [column for column in FLAT if not column.startswith("coded")]
    assert (source.reading_bytes(plain) == 0) == (name in ("one", "many"))
    assert source.reading_bytes(["coded"]) > 0
    assert read(source, FLAT, rows) == TABLE.select(FLAT).to_pylist()
    for column in FLAT:
        assert read(source, [column], rows) == TABLE.select([column]).to_pylist()
    batch = next(source.blocks(FLAT, rows))
    assert batch.schema.types == TABLE.select(FLAT).schema.types


@pytest.mark.parametrize("name", ["one", "many", "packed"])
def test_lists_and_the_like_may_be_kept_and_take_memory(files, name):
    source = ipc.IpcFile(files[name], name)
    for columns in (["list"], ["coded", "struct", "int8"], ["dense"]):
        assert read(source, columns, 33) == TABLE.select(columns).to_pylist()
        assert source.reading_bytes(columns) > 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, N), min_size=2, max_size=12), st.integers(1, 200), st.data())
def test_any_runs_of_rows_of_any_columns(files, edges, rows, data):
    columns = data.draw(st.lists(st.sampled_from(FLAT), min_size=1, max_size=5, unique=True))
    name = data.draw(st.sampled_from(["one", "many"]))
    edges = sorted(edges)
    runs = list(zip(edges[::2], edges[1::2], strict=False))
    expected = [row for a, b in runs for row in TABLE.select(columns)[a:b].to_pylist()]
    assert read(ipc.IpcFile(files[name], name), columns, rows, runs) == expected


def test_no_more_is_read_than_is_asked_for(files, monkeypatch):
    source, taken = ipc.IpcFile(files["one"], "one"), []
    read_exactly = sparrowboost.readers.ipc_rows.read_exactly

    def counted(file, out, offset):
        taken.append(out.nbytes)
        read_exactly(file, out, offset)

    monkeypatch.setattr(sparrowboost.readers.ipc_rows, "read_exactly", counted)
    read(source, ["uint64"], 100, [(200, 300)])
    assert sum(taken) == 100 * 8
    taken.clear()
    read(source, ["string"], 10, [(203, 206)])  # from 200 on: a byte of validity, places, words
    words = TABLE["string"].to_pylist()[200:206]
    assert sum(taken) == 1 + 7 * 4 + sum(len((word or "").encode()) for word in words)


def test_words_that_views_have_far_apart_are_read_one_by_one(tmp_path, monkeypatch):
    long = pa.array([f"{i:04d}" * 2_000 for i in range(100)], pa.string_view())
    order = np.random.default_rng(0).permutation(100)
    _, views, *words = long.buffers()
    views = np.frombuffer(views, "V16")[order].copy()  # in another order, of the same words
    shuffled = pa.Array.from_buffers(long.type, 100, [None, pa.py_buffer(views), *words])
    table = pa.table({"view": shuffled})
    source = ipc.IpcFile(write(tmp_path / "t.arrow", table), "t")
    set_constants(monkeypatch, ipc_near_bytes=100)
    before = pa.total_allocated_bytes()
    batch = next(source._runs([(40, 44)], ["view"], 100))
    assert batch.column(0).to_pylist() == [f"{i:04d}" * 2_000 for i in order[40:44]]
    assert sum(b.size for b in batch.column(0).buffers() if b) < 5 * 8_000
    assert pa.total_allocated_bytes() - before < 50_000
    assert read(source, ["view"], 7) == table.to_pylist()


def test_files_of_polars_are_read_as_polars_reads_them(tmp_path):
    words = [None if word is None else f"{word}{i % 7}" for i, word in enumerate(WORDS * 50)]
    frame = pl.DataFrame({"word": words, "n": range(300)}).with_columns(
        pl.col("word").cast(pl.Categorical).alias("coded"),
        pl.col("n").cast(pl.Datetime("us")).alias("time"),
    )
    frame.write_ipc(tmp_path / "t.arrow", record_batch_size=64)
    source = ipc.IpcFile(tmp_path / "t.arrow", "t")
    assert source.reading_bytes(["word", "n"]) == 0
    assert read(source, ["word", "coded", "n", "time"], 50) == frame.select(
        "word", "coded", "n", "time"
    ).to_dicts()  # fmt: skip


def test_a_dictionary_that_grows_is_read_with_all_its_words(tmp_path):
    parts = [pa.array(words).dictionary_encode() for words in (["a", "b"], ["a", "b", "c"])]
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    schema = pa.schema({"coded": parts[0].type})
    with pa.ipc.new_file(tmp_path / "t.arrow", schema, options=options) as writer:
        for part in parts:
            writer.write_batch(pa.record_batch([part], schema=schema))
    source = ipc.IpcFile(tmp_path / "t.arrow", "t")
    assert [row["coded"] for row in read(source, ["coded"], 9)] == ["a", "b", "a", "b", "c"]


@pytest.mark.parametrize("name", ["one", "many", "packed"])
def test_a_file_that_is_cut_off_while_it_is_read_is_reported(files, tmp_path, name):
    path = tmp_path / "t.arrow"
    path.write_bytes(files[name].read_bytes())
    source = ipc.IpcFile(path, "t.arrow")
    rows = source.blocks(FLAT, 37)
    next(rows)
    with path.open("r+b") as file:
        file.truncate(4_000)
    with pytest.raises(DataError, match=r"t\.arrow: not a readable Arrow IPC file") as caught:
        list(rows)
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="not a readable"):
        list(source.sample(FLAT, 37, np.random.default_rng(0)))


def test_a_layout_tells_what_arrow_wrote(files):
    *before, total = extents(TABLE.schema)
    # Lists, structs and unions have columns below them.
    assert (total.nodes, total.views) == (len(TABLE.column_names) + 1 + 2 + 1, 2)
    with files["one"].open("rb") as file:
        footer = read_footer(file.fileno(), files["one"].stat().st_size)
        assert (len(footer.batches), len(footer.dictionaries)) == (1, 2)
        layout = read_layout(file.fileno(), footer.batches[0], total)
    assert layout.n_rows == N and not layout.packed
    for name, at in zip(TABLE.column_names, before, strict=True):
        nulls = 0 if name == "dense" else TABLE[name].null_count
        assert layout.nodes[at.nodes].tolist() == [N, nulls]
