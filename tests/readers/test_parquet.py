"""Pages decoded here, against Arrow's decoding of the same files."""

from __future__ import annotations

import gc
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constants import set_constants
from sparrowboost import DataError
from sparrowboost.kernels import pages
from sparrowboost.readers.parquet import ParquetFile
from sparrowboost.readers.parquet_pages import CodedGroup


@pytest.fixture(autouse=True)
def page_by_page(monkeypatch):
    # however few rows a row group has
    set_constants(monkeypatch, min_paged=1)


def words(rng, n, distinct, missing, runs):
    """Words of a small alphabet, some missing, some repeated."""
    values = rng.integers(0, distinct, n)
    if runs:
        values = np.repeat(values, rng.integers(1, 40, n))[:n]
    text = np.array([f"w{'x' * (k % 5)}{k}" for k in range(distinct)])[values]
    return pa.array(text.tolist(), pa.string(), mask=rng.random(n) < missing)


def some_table(seed, n=5_000):
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "number": rng.normal(size=n),
            "two": words(rng, n, 2, 0.0, False),
            "four": words(rng, n, 4, 0.0, True),
            "five": words(rng, n, 5, 0.2, True),
            "many": words(rng, n, 300, 0.1, False),
            "same": pa.array(["a"] * n),
            "empty": pa.nulls(n, pa.string()),
            "coded": words(rng, n, 9, 0.05, False).dictionary_encode(),
            "y": rng.integers(0, 2, n).astype("i1"),
        }
    )


def count_metadata():
    # Not isinstance, which asks the object: it may be a weak proxy of one that is gone.
    return sum(type(one) is pq.FileMetaData for one in gc.get_objects())


def test_the_metadata_of_a_file_that_is_read_again_and_again_is_kept_once_at_most(tmp_path):
    pq.write_table(some_table(0), tmp_path / "t.parquet", row_group_size=500)
    gc.collect()
    before = count_metadata()
    gc.disable()  # a schema and its metadata form a reference cycle
    try:
        source = ParquetFile(str(tmp_path / "t.parquet"))
        for _ in range(3):
            assert sum(batch.num_rows for batch in source.blocks(["four", "number"], 400)) == 5_000
        assert count_metadata() - before <= 1
    finally:
        gc.enable()


def as_words(table):
    """The table with its dictionaries decoded."""
    columns = [c.cast(pa.string()) if pa.types.is_dictionary(c.type) else c for c in table.columns]
    return pa.table([c.combine_chunks() for c in columns], table.column_names)


def read(path, names, rows):
    batches = list(ParquetFile(str(path)).blocks(names, rows))
    assert all(0 < batch.num_rows <= rows for batch in batches)
    return pa.concat_tables([as_words(pa.Table.from_batches([b])) for b in batches])


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 99),
    st.sampled_from(["NONE", "SNAPPY", "ZSTD", "GZIP", "BROTLI", "LZ4"]),
    st.sampled_from(["1.0", "2.0"]),
    st.sampled_from([40, 300, 1 << 20]),  # bytes of a page
    st.sampled_from([700, 2_000, 10_000]),  # rows of a row group
    st.sampled_from([150, 999, 6_000]),  # rows asked for
    st.booleans(),
    st.sampled_from([100, 1 << 20]),  # bytes of a dictionary, beyond which values are written plain
)
def test_files_of_all_sorts_are_read_as_arrow_reads_them(
    tmp_path_factory, seed, codec, version, page, group, rows, checksum, dictionary
):
    path = tmp_path_factory.mktemp("pages") / "t.parquet"
    table = some_table(seed % 3)
    pq.write_table(
        table, path, compression=codec, data_page_version=version, data_page_size=page,
        row_group_size=group, write_page_checksum=checksum, dictionary_pagesize_limit=dictionary,
        write_batch_size=64,
    )  # fmt: skip
    names = list(np.random.default_rng(seed).permutation(table.column_names))
    assert read(path, names, rows).equals(as_words(table.select(names)))


def test_most_columns_are_decoded_here(tmp_path, monkeypatch):
    pq.write_table(some_table(0), tmp_path / "t.parquet", compression="NONE")
    asked = []
    monkeypatch.setattr(CodedGroup, "_read", lambda self, name: asked.append(name))
    batches = ParquetFile(str(tmp_path / "t.parquet")).blocks(["two", "four", "five", "many"], 999)
    assert sum(batch.num_rows for batch in batches) == 5_000
    assert asked == []


def test_required_columns_have_no_levels(tmp_path):
    schema = pa.schema([pa.field("a", pa.string(), nullable=False)])
    table = pa.table({"a": ["x", "y", "y", "z"] * 500}, schema=schema)
    pq.write_table(table, tmp_path / "t.parquet")
    assert read(tmp_path / "t.parquet", ["a"], 300).column("a").equals(table.column("a"))


@pytest.mark.parametrize("least", [1, 1 << 30])  # decoded here, and by Arrow
@pytest.mark.parametrize("codec", ["NONE", "LZ4"])
@pytest.mark.parametrize("first", [0, 1])
def test_a_dot_in_a_name_is_no_field_of_another_column(tmp_path, monkeypatch, least, codec, first):
    set_constants(monkeypatch, min_paged=least)
    rng = np.random.default_rng(0)
    inner = pa.StructArray.from_arrays([words(rng, 2_000, 2, 0.0, False)], ["b"])
    fields = [
        (pa.field("a.b", pa.string()), words(rng, 2_000, 3, 0.0, False)),
        (pa.field("a", inner.type, nullable=False), inner),
    ]
    schema, columns = zip(*(fields[first], fields[1 - first]), strict=True)
    table = pa.Table.from_arrays(list(columns), schema=pa.schema(list(schema)))
    pq.write_table(table, tmp_path / "t.parquet", compression=codec)
    assert read(tmp_path / "t.parquet", ["a.b"], 300).equals(table.select(["a.b"]))


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
@pytest.mark.parametrize("least", [1, 1 << 30])
def test_words_stored_as_differences_are_read(tmp_path, monkeypatch, least, encoding):
    set_constants(monkeypatch, min_paged=least)
    table = some_table(0).select(["five", "number", "two"])
    pq.write_table(
        table, tmp_path / "t.parquet", use_dictionary=["five"], column_encoding={"two": encoding}
    )
    assert read(tmp_path / "t.parquet", table.column_names, 300).equals(table)


def test_a_damaged_page_is_reported(tmp_path):
    path = tmp_path / "t.parquet"
    table = some_table(1).select(["four", "five"])
    pq.write_table(table, path, compression="NONE", write_page_checksum=True)
    good = bytearray(path.read_bytes())
    rng = np.random.default_rng(0)
    body = len(good) - int.from_bytes(good[-8:-4], "little") - 8
    for position in rng.integers(4, body, 60):
        bad = good.copy()
        bad[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(bad)
        try:
            assert read(path, table.column_names, 700).equals(as_words(table))
        except DataError as error:
            assert "t.parquet: not a readable Parquet file" in str(error)


def test_damage_without_checksums_never_hangs_or_crashes(tmp_path):
    path = tmp_path / "t.parquet"
    table = some_table(2).select(["two", "four", "five", "many"])
    pq.write_table(table, path, compression="NONE", data_page_size=300, write_batch_size=64)
    good = bytearray(path.read_bytes())
    rng = np.random.default_rng(0)
    body = len(good) - int.from_bytes(good[-8:-4], "little") - 8
    refused = 0
    for _ in range(150):
        bad = good.copy()
        for position in rng.integers(4, body, rng.integers(1, 20)):
            bad[position] = rng.integers(256)
        path.write_bytes(bad)
        try:
            assert read(path, table.column_names, 700).num_rows == table.num_rows
        except DataError:
            refused += 1
    assert refused > 0


def varint(number):
    out = []
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def naive_pack(values, width):
    """Numbers packed from the lowest bit on, to whole bytes."""
    word = sum(int(v) << (width * i) for i, v in enumerate(values))
    return word.to_bytes((len(values) * width + 7) // 8, "little")


@pytest.mark.slow
@pytest.mark.kernel
@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 20),
    st.lists(st.tuples(st.booleans(), st.integers(1, 70)), min_size=1, max_size=8),
    st.lists(st.integers(1, 40), min_size=1, max_size=20),
    st.integers(0, 999),
)
def test_runs_are_taken_in_pieces_of_any_size(width, runs, pieces, seed):
    rng = np.random.default_rng(seed)
    data, expected = b"", []
    for repeated, n in runs:
        if repeated:
            value = int(rng.integers(1 << width))
            data += varint(n << 1) + value.to_bytes((width + 7) // 8, "little")
            expected += [value] * n
        else:
            values = rng.integers(1 << width, size=8 * n).tolist()
            data += varint(n << 1 | 1) + naive_pack(values, width)
            expected += values
    dtype = np.uint8 if width <= 8 else np.int32
    padded = np.frombuffer(data + bytes(pages.SPARE), np.uint8)
    state = np.zeros(pages.N_STATE, np.int64)
    got: list[int] = []
    while True:
        out = np.zeros(pieces[len(got) % len(pieces)], dtype)
        n = pages.take_runs(padded, len(data), width, state, out)
        got += out[:n].tolist()
        if n < len(out):
            break
    assert got == expected


@pytest.mark.kernel
def test_a_run_that_says_too_much_is_cut_where_its_bytes_end():
    # The last packed run of a page may lack the bytes of numbers that are only filling.
    data = np.frombuffer(varint(3 << 1 | 1) + naive_pack([1, 2, 3, 0, 1, 2, 3, 0, 1], 2), np.uint8)
    padded = np.append(data, np.zeros(pages.SPARE, np.uint8))
    out = np.zeros(12, np.uint8)
    assert pages.take_runs(padded, len(data), 2, np.zeros(pages.N_STATE, np.int64), out) == 12
    assert out[:9].tolist() == [1, 2, 3, 0, 1, 2, 3, 0, 1]


@pytest.mark.kernel
@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_as_a_header_are_read_or_refused(data):
    said = np.empty(pages.N_SAID, np.int64)
    end = pages.read_header(np.frombuffer(data, np.uint8), said)
    assert end in (pages.MORE, pages.WRONG) or 0 < end <= len(data) + (1 << 30)


@pytest.mark.kernel
@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80), st.integers(0, 24), st.integers(0, 50))
def test_any_bytes_as_runs_give_no_more_than_was_asked_for(data, width, n):
    padded = np.frombuffer(data + bytes(pages.SPARE), np.uint8)
    out = np.zeros(n, np.int32)
    got = pages.take_runs(padded, len(data), width, np.zeros(pages.N_STATE, np.int64), out)
    assert 0 <= got <= n
    assert (out >= 0).all() and (out < 1 << width).all()


@pytest.mark.kernel
def test_a_header_is_taken_in(tmp_path):
    path = tmp_path / "t.parquet"
    table = pa.table({"a": ["x", "yy", "x", None] * 100})
    pq.write_table(table, path, compression="NONE", write_page_checksum=True)
    data = np.frombuffer(path.read_bytes(), np.uint8)
    said = np.empty(pages.N_SAID, np.int64)
    end = pages.read_header(data[4:], said)
    assert said[pages.KIND] == pages.DICTIONARY_PAGE
    assert said[pages.VALUES] == 2
    assert said[pages.PACKED] == said[pages.UNPACKED] == 4 + 1 + 4 + 2
    body = data[4 + end : 4 + end + said[pages.PACKED]]
    assert zlib.crc32(body.tobytes()) == said[pages.CRC]
    at = 4 + end + len(body)
    assert pages.read_header(data[at:], said) > 0
    assert said[pages.KIND] == pages.DATA_PAGE
    assert said[pages.VALUES] == 400
    assert said[pages.ENCODING] == pages.RLE_DICTIONARY
    assert said[pages.LEVEL_ENCODING] == pages.RLE
    # A header cut short asks for more.
    assert all(pages.read_header(data[4 : 4 + k], said) == pages.MORE for k in range(end))
