"""CSV files as people write them: what is read, and what an error says of what cannot be."""

from __future__ import annotations

import errno
import gzip
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constants import set_constants
from sparrowboost import DataError, DiskFullError, ingest
from sparrowboost.readers.csv import CsvFile
from sparrowboost.readers.infer import cast_texts, infer_meaning
from sparrowboost.readers.text import QuoteWatch


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def fails(path, *says, error=DataError, **kwargs):
    with pytest.raises(error) as caught:
        ingest(path, **({"label": "y", "verbose": 0} | kwargs))
    for words in says:
        assert words in str(caught.value)


def opened(path, **kwargs):
    return CsvFile(path, path.name, np.random.default_rng(0), **kwargs)


def values(source, column):
    return pa.Table.from_batches(source.blocks([column], 10_000)).column(0).to_pylist()


def feature_of(path):
    return ingest(path, label="y", verbose=0).binning.features[0]


# Quotes


@pytest.mark.parametrize("n, bad", [(300_000, 200_000), (2000, 1000), (2000, 2), (2000, 2001)])
def test_an_unclosed_quote_is_named_by_its_row(tmp_path, n, bad):
    lines = ["t,y\n", *(f"a{i % 5},{i % 2}\n" for i in range(n))]
    lines[bad - 1] = '"abc,1\n'
    fails(write(tmp_path / "u.csv", "".join(lines)), f"row {bad}:", "quote opens and is not closed")


def test_an_unclosed_quote_is_named_although_a_later_cell_seems_to_close_it(tmp_path):
    lines = ["t,y\n", *(f'"a ""{i % 5}"" b",{i % 2}\n' for i in range(2000))]
    lines[999] = '"abc,1\n'
    path = write(tmp_path / "u.csv", "".join(lines))
    fails(path, "row 1000:", "quote opens and is not closed")


def test_an_unclosed_quote_before_more_text_than_a_block_is_named(tmp_path, monkeypatch):
    set_constants(monkeypatch, csv_block_bytes=1000, csv_max_block_bytes=8000)
    lines = ["t,y\n", *(f"a{i % 5},{i % 2}\n" for i in range(5000))]
    lines[299] = '"abc,1\n'
    fails(write(tmp_path / "u.csv", "".join(lines)), "row 300:", "quote opens and is not closed")


def test_stray_quotes_within_cells_are_text(tmp_path):
    rows = "".join(f'{i % 3}" pipe,{i % 2}\n' for i in range(3001))
    dataset = ingest(write(tmp_path / "s.csv", "t,y\n" + rows), label="y", verbose=0)
    assert dataset.n_rows == 3001
    assert set(dataset.binning.features[0].categories) == {'0" pipe', '1" pipe', '2" pipe'}


def naive_swallowing(data):
    """The first quote of a cell that spans lines and is not closed, byte by byte."""
    opened_at, spans, place = None, False, 0
    while place < len(data):
        char = data[place : place + 1]
        if opened_at is None:
            if char == b'"' and (place == 0 or data[place - 1 : place] in (b",", b"\n")):
                opened_at, spans = place, False
        elif char == b'"':
            if data[place + 1 : place + 2] == b'"':
                place += 1
            else:
                if spans and data[place + 1 : place + 2] not in (b",", b"\n", b""):
                    return opened_at
                opened_at = None
        else:
            spans |= char == b"\n"
        place += 1
    return opened_at


@given(st.text('",\na', max_size=40), st.integers(1, 9))
def test_quotes_are_followed_as_their_naive_twin_does_whatever_the_chunks(text, size):
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "t", "x\n" + text)
        with QuoteWatch(path, 2, ",") as file:
            while file.read(size):
                pass
            naive = naive_swallowing(text.encode())
            assert file.swallowing == (None if naive is None else naive + 2)


def test_cells_over_lines_do_not_poison_the_sample(tmp_path):
    # Lines within the text look like rows of the table.
    rows = "".join(f'{i % 3},"text\n77,phantom,1\nmore",{i % 2}\n' for i in range(60_000))
    path = write(tmp_path / "m.csv", "x,t,y\n" + rows)
    dataset = ingest(path, label="y", verbose=0)
    x, t = dataset.binning.features
    assert dataset.n_rows == 60_000
    assert x.thresholds.tolist() == [0.5, 1.5]
    assert t.categories == ("text\n77,phantom,1\nmore",)
    source = opened(path)
    assert 0.9 < source.n_rows / 60_000 < 1.1
    sampled = sum(b.num_rows for b in source.sample(["x"], 20_000, np.random.default_rng(0)))
    assert 0.9 < sampled / 20_000 < 1.1


# Whole numbers


def test_junk_among_large_whole_numbers_is_named_by_row_and_column(tmp_path):
    lines = ["id,y\n", *(f"{2**60 + i},{i % 2}\n" for i in range(5000))]
    for junk in ("oops", "0x10"):
        lines[3000] = f"{junk},1\n"
        path = write(tmp_path / "j.csv", "".join(lines))
        fails(path, "row 3001", "column 'id'", f"'{junk}' is not a number", "categorical=['id']")


def test_a_late_fraction_leaves_large_whole_numbers_exact(tmp_path):
    n = 60_000
    ids = [str(2**60 + i) for i in range(n)] + ["1.5", "inf", "nan", "1e30", "+7", " 8"]
    path = write(tmp_path / "l.csv", "id,y\n" + "".join(f"{t},0\n" for t in ids))
    source = opened(path)
    assert source.kind("id") == "int64"
    top = 2**63 - 1
    assert values(source, "id") == [2**60 + i for i in range(n)] + [2, top, None, top, 7, 8]


def test_whole_numbers_up_to_2_to_the_64_stay_apart(tmp_path):
    lines = [f"{2**64 - 1 - i},{i % 2}\n" for i in range(9)]
    path = write(tmp_path / "u.csv", "id,y\n" + "".join(lines))
    feature = feature_of(path)
    assert (feature.kind, feature.n_values) == ("uint64", 9)
    assert values(opened(path), "id") == [2**64 - 1 - i for i in range(9)]


@given(st.decimals(-(2**64), 2**64, allow_nan=False), st.integers(-(2**63), 2**63 - 2))
def test_rounding_up_and_clipping_keep_a_number_on_its_side_of_a_threshold(number, threshold):
    text = format(number, "f")
    whole = cast_texts(pa.array([text, "1.5"]), pa.int64())[0][0].as_py()
    assert (threshold < whole) == (threshold < number)


# Dates


@pytest.mark.parametrize(
    "cells",
    [
        ["2020-01-01T10:00:00Z", "2021-06-30T12:00:00.25Z"],
        ["2020-01-01T10:00:00+02:00", "2021-06-30 12:00:00-0530"],
        ["2020-01-01 10:00:00.123456789", "2021-06-30 12:00:00.1"],
        [" 2020-01-01", "2021-06-30 "],
    ],
)
def test_iso_times_are_times_with_zones_fine_digits_or_spaces(tmp_path, cells):
    rows = "".join(f"{cells[i % 2]},{i % 2}\n" for i in range(10))
    feature = feature_of(write(tmp_path / "z.csv", "t,y\n" + rows))
    assert (feature.kind, feature.n_values) == ("time", 2)


def test_a_zone_offset_counts(tmp_path):
    path = write(tmp_path / "z.csv", "t,y\n2020-01-01T10:00:00+02:00,0\n2020-01-01T08:00:00Z,1\n")
    assert feature_of(path).n_values == 1


@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize("bad", ["soon", "2021-02-30", "2021-02-03T10:00Z"])
def test_a_bad_date_among_many_is_named_by_row_and_column(tmp_path, bad, space):
    lines = ["day,y\n", *(f"{space}2020-01-{i % 28 + 1:02},{i % 2}\n" for i in range(500))]
    lines[300] = f"{bad},1\n"
    path = write(tmp_path / "d.csv", "".join(lines))
    fails(path, "row 301", "column 'day'", f"{bad!r} is not a date", "categorical=['day']")


def test_few_dates_among_words_are_categories():
    texts = pa.chunked_array([["soon", "later", "2020-01-01", None]])
    assert infer_meaning(texts).kind == "category"


# Messages


def test_rows_that_all_have_another_number_of_cells_than_the_header(tmp_path):
    path = write(tmp_path / "m.csv", "x,y\n" + "1,0,\n" * 3000)
    fails(path, "row 2 has 3 values where the header has 2")
    path = write(tmp_path / "l.csv", "x,y,z\n" + "1,0\n" * 3000)
    fails(path, "row 2 has 2 values where the header has 3")


@pytest.mark.parametrize("other", ["caf", "7"])
def test_text_that_is_not_utf8_is_named_by_row(tmp_path, other):
    lines = [b"t,y\n", *(f"{other},{i % 2}\n".encode() for i in range(5000))]
    lines[3000] = "é,1\n".encode("latin1")
    path = write(tmp_path / "l.csv", b"".join(lines))
    fails(path, "row 3001", "column 't'", "UTF-8", "iconv")


def test_blank_lines_before_the_header_are_skipped(tmp_path):
    path = write(tmp_path / "b.csv", "\n  \r\nx,y\n1,0\n2,1\n")
    assert ingest(path, label="y", verbose=0).n_rows == 2
    bad = write(tmp_path / "c.csv", "\n\nx,y\n" + "1,0\n" * 9 + "oops,1\n")
    fails(bad, "row 13", "'oops'")
    bare = write(tmp_path / "n.csv", "\n1,0\n2,1\n")
    assert ingest(bare, label="f1", header=False, verbose=0).n_rows == 2
    fails(write(tmp_path / "e.csv", "\n\n\n"), "the file is empty")


@pytest.mark.slow
def test_a_cell_longer_than_a_block_is_read(tmp_path):
    rows = "".join(f"a{i % 3},{i % 2}\n" for i in range(200_000))
    long = "z" * 3_000_000
    path = write(tmp_path / "w.csv", f"t,y\n{rows}{long},1\n{rows}")
    assert ingest(path, label="y", verbose=0).n_rows == 400_001
    assert values(opened(path), "t")[199_999:200_002] == ["a1", long, "a0"]


def test_a_row_too_long_to_be_read_is_refused_with_the_limit(tmp_path, monkeypatch):
    set_constants(monkeypatch, csv_block_bytes=1 << 17, csv_max_block_bytes=1 << 20)
    path = write(tmp_path / "w.csv", "t,y\n" + "a,0\nb,1\n" * 200_000 + "z" * 3_000_000 + ",1\n")
    fails(path, "longer than 1 MB")


def test_rows_around_one_that_is_nearly_all_of_the_file_are_found(tmp_path):
    rows = "".join(f"{i},a{i % 3},{i % 2}\n" for i in range(2_000))
    path = write(tmp_path / "w.csv", f"x,t,y\n{rows}5,{'z' * 20_000_000},1\n{rows}")
    data = ingest(path, label="y", verbose=0)
    assert (data.n_rows, data.n_positive) == (4_001, 2_001)
    assert [feature.kind for feature in data.binning.features] == ["float64", "category"]


def test_one_huge_row_in_a_small_packed_file_is_refused_without_being_held(tmp_path, monkeypatch):
    set_constants(
        monkeypatch, csv_block_bytes=1 << 17, csv_max_block_bytes=1 << 20,
        libsvm_max_line_bytes=1 << 20,
    )  # fmt: skip
    rows = b"".join(b"%d,%d\n" % (i, i % 2) for i in range(1_000))
    lines = b"".join(b"%d 1:%d\n" % (i % 2, i) for i in range(1_000))
    files = {
        "t.csv.gz": (b"x,y\n" + rows, b"after row 1001, a row"),
        "t.svm.gz": (lines, b"a line"),
    }
    for name, (text, what) in files.items():
        with gzip.open(tmp_path / name, "wb") as file:
            file.write(text + b"1 1:" + bytes(100_000_000) + b"\n")
        assert (tmp_path / name).stat().st_size < 200_000
        label = "y" if "csv" in name else None
        tracemalloc.start()
        with pytest.raises(DataError, match=f"{what.decode()} is longer than 1 MB"):
            ingest(tmp_path / name, label=label, verbose=0)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000  # with what is loaded meanwhile
        tracemalloc.stop()


def test_carriage_returns_alone_are_named(tmp_path):
    fails(write(tmp_path / "r.csv", "x,y\r1,0\r2,1\r"), "carriage return")


def test_a_header_that_goes_over_lines_is_named(tmp_path):
    fails(write(tmp_path / "h.csv", 'x,"a\nb",y\n1,2,0\n'), "first line", "not closed")


# Names, spaces, files


def test_a_column_without_a_name_is_called_by_its_place(tmp_path):
    path = write(tmp_path / "e.csv", ",x, ,y\n1,2,3,0\n2,3,4,1\n")
    assert ingest(path, label="y", verbose=0).feature_names == ["f0", "x", "f2"]
    fails(write(tmp_path / "t.csv", ",f0,y\n1,2,0\n"), "'f0' more than once")


def test_spaces_around_names_and_categories_do_not_count(tmp_path):
    path = write(tmp_path / "s.csv", "c , y\n c0,no\nc0 , yes\nc1,no\n ,yes\n")
    dataset = ingest(path, label="y", verbose=0)
    assert dataset.binning.features[0].categories == ("c0", "c1")
    assert dataset.classes == ("no", "yes")
    assert values(opened(path), "c") == ["c0", "c0", "c1", None]


def test_gzip_is_known_in_capitals_and_in_several_members(tmp_path):
    packed = gzip.compress(b"x,y\n1,0\n2,1\n") + gzip.compress(b"3,1\n")
    assert ingest(write(tmp_path / "X.CSV.GZ", packed), label="y", verbose=0).n_rows == 3


def test_a_disk_that_fills_while_unzipping_is_named(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = write(tmp_path / "x.csv.gz", gzip.compress(b"x,y\n1,0\n2,1\n"))
    monkeypatch.setattr(os, "pwrite", full)
    fails(path, "disk is full", error=DiskFullError)


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "x.csv", "x,y\n1,0\n2,1\n")

    def denied(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("sparrowboost.readers.files.open", denied, raising=False)
    fails(path, "x.csv", "Permission denied")


def test_equal_random_states_sample_the_same_rows(tmp_path):
    rows = "".join(f"{i},{'x' * (i // 3000)}\n" for i in range(60_000))
    source = opened(write(tmp_path / "p.csv", "i,t\n" + rows))

    def sampled():
        rng = np.random.default_rng(3)
        return pa.Table.from_batches(source.sample(["i"], 1000, rng)).column(0).to_pylist()

    first = sampled()
    list(source.sample(["t"], 50_000, np.random.default_rng(4)))
    assert sampled() == first


CHILD = """
import sys, sparrowboost
from sparrowboost.runtime.memory import peak_rss
assert sparrowboost.ingest(sys.argv[1], label="y", memory_limit=sys.argv[2], verbose=0).n_rows
print(peak_rss())
"""


@pytest.mark.slow
def test_reading_fifty_columns_stays_below_the_memory_limit(tmp_path):
    rng = np.random.default_rng(0)
    n, limit = 100_000, 360_000_000
    table = pa.table({f"x{j}": rng.random(n) for j in range(50)} | {"y": np.arange(n) % 2})
    pcsv.write_csv(table, tmp_path / "w.csv")
    out = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "w.csv"), str(limit)],
        check=True,
        capture_output=True,
    )
    assert int(out.stdout) < limit


def test_no_thread_reads_on_after_reading_has_ended(tmp_path, monkeypatch):
    # Arrow's own thread would: if the interpreter ends meanwhile, it aborts the process.
    path = write(tmp_path / "t.csv", "x,y\n" + "1,2\n" * 500_000)
    read, inside, calls = QuoteWatch.read, [], []

    def slowly(self, size=-1):
        inside.append(1)
        calls.append(1)
        time.sleep(0.02)
        data = read(self, size)
        inside.pop()
        return data

    monkeypatch.setattr(QuoteWatch, "read", slowly)
    source = CsvFile(path, "t", np.random.default_rng(0))
    blocks = source.blocks(["x"], 1_000)
    next(blocks)
    while not inside:  # a busy machine may not read yet
        assert next(blocks, None) is not None, "nothing is read ahead: this tests nothing"
    blocks.close()
    assert not inside
    before = len(calls)
    time.sleep(0.1)
    assert len(calls) == before


def test_as_many_columns_as_wide_tables_have_are_named_quickly(tmp_path):
    names = [f"a{j}" for j in range(200_000)]  # with a search of all names for each: hours
    path = write(tmp_path / "t.csv", ",".join([*names, "a7"]) + "\n")
    fails(path, "'a7' more than once")


def test_a_line_of_too_many_cells_is_no_header(tmp_path, monkeypatch):
    set_constants(monkeypatch, csv_columns=1_000)
    fails(write(tmp_path / "t.csv", "a," * 1_000 + "y\n1\n"), "more than 1,000 cells, the maximum")
