"""Text in packed files: read as if it were not packed; damage is named."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile

import pyarrow as pa
import pyarrow.csv as pcsv
import pytest

from helpers import naive_rows, small_table, stored_rows
from sparrowboost import DataError, ingest

TABLE = small_table(300)


def csv_bytes(table=TABLE):
    out = pa.BufferOutputStream()
    pcsv.write_csv(table, out)
    return out.getvalue().to_pybytes()


def packed(suffix, data):
    if suffix in (".zst", ".lz4"):
        out = pa.BufferOutputStream()
        with pa.CompressedOutputStream(out, {".zst": "zstd", ".lz4": "lz4"}[suffix]) as stream:
            stream.write(data)
        return out.getvalue().to_pybytes()
    return {".gz": gzip, ".bz2": bz2, ".xz": lzma}[suffix].compress(data)


def zipped(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name.replace("_csv", ".csv").replace("_in_", "/"), data)
    return path


def check(data):
    dataset = ingest(data, label="y", verbose=0)
    columns = TABLE.to_pydict()
    assert stored_rows(dataset) == naive_rows(dataset, columns, columns["y"])


def refused(data, *says):
    with pytest.raises(DataError) as caught:
        ingest(data, label="y", verbose=0)
    assert "\n" not in str(caught.value)
    for words in says:
        assert words in str(caught.value)


SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".lz4")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_packed_csv_has_the_rows_of_the_plain_file(tmp_path, suffix):
    path = tmp_path / f"t.csv{suffix}"
    path.write_bytes(packed(suffix, csv_bytes()))
    check(path)


def test_a_file_of_several_packed_parts_has_the_rows_of_all(tmp_path):
    data = csv_bytes()
    for suffix in SUFFIXES:
        path = tmp_path / f"t.csv{suffix}"
        path.write_bytes(packed(suffix, data[:5_000]) + packed(suffix, data[5_000:]))
    check(tmp_path / "t.csv.bz2")
    check(tmp_path / "t.csv.zst")
    check(tmp_path / "t.csv.xz")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_packed_file_that_is_cut_off_or_damaged_is_named(tmp_path, suffix):
    path = tmp_path / f"t.csv{suffix}"
    data = packed(suffix, csv_bytes())
    path.write_bytes(data[: len(data) // 2])
    refused(path, f"{path}: not a complete ")
    path.write_bytes(b"junk" + data)
    refused(path, f"{path}: not a complete ")


def test_a_zip_archive_of_one_csv_file_is_read(tmp_path):
    check(zipped(tmp_path / "t.csv.zip", t_csv=csv_bytes()))
    # The suffix of the member tells the format, and what systems add is ignored.
    check(zipped(tmp_path / "t.zip", a_in_t_csv=csv_bytes(), __MACOSX_in_t_csv="x"))


def test_other_zip_archives_say_what_they_hold(tmp_path):
    path = zipped(tmp_path / "t.csv.zip", a_csv="x", b_csv="x")
    refused(path, "holds 'a.csv', 'b.csv'", "unpack it")
    refused(zipped(tmp_path / "e.csv.zip"), "holds nothing")
    refused(zipped(tmp_path / "n.zip", note="x"), "(none)", "unpack it")
    path.write_bytes(b"junk")
    refused(path, "not a complete zip file")
    data = bytearray(zipped(path, t_csv=csv_bytes()).read_bytes())
    data[200] ^= 255
    path.write_bytes(data)
    refused(path, "not a complete zip file")


def test_packed_libsvm_is_read(tmp_path):
    path = tmp_path / "t.svm.xz"
    path.write_bytes(lzma.compress(b"1 1:0.5 3:2\n0 2:1\n" * 50))
    assert ingest(path, verbose=0).n_rows == 100
