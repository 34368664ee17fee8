"""Delta tables by path and as objects: versions, times, deleted rows, columns that came later."""

from __future__ import annotations

import json
import struct
import sys

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pds
import pytest

from helpers import check_ingested as check
from helpers import check_refused as refused
from helpers import small_table
from sparrowboost import MemoryLimitError, MissingExtraError, evaluate, ingest, train
from sparrowboost.cli import main
from sparrowboost.readers.formats import OpenOptions, open_source

deltalake = pytest.importorskip("deltalake", reason="needs deltalake")

OLD, LIVE = small_table(300, seed=1), small_table(200, seed=2)
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


@pytest.fixture
def table(tmp_path):
    """A table of two versions: OLD, and LIVE in its place."""
    path = tmp_path / "t"
    deltalake.write_deltalake(path, OLD, partition_by=["color"])
    deltalake.write_deltalake(path, LIVE, mode="overwrite", partition_by=["color"])
    return path


def test_the_current_version_is_read_by_path_and_as_an_object(table, caplog):
    check(table, LIVE)
    check(str(table), LIVE)
    check(deltalake.DeltaTable(table), LIVE)
    check(deltalake.DeltaTable(table, version=0), OLD)
    check(deltalake.DeltaTable(table).to_pyarrow_dataset(), LIVE)
    check(pl.scan_delta(str(table)), LIVE)
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_a_version_is_read_by_its_number_and_by_time(table):
    check(table, OLD, table_version=0)
    check(table, LIVE, table_version="1")
    made = [entry["timestamp"] / 1000 for entry in deltalake.DeltaTable(table).history()]
    late, early = (f"{np.datetime64(int(1000 * t), 'ms')}" for t in made)
    check(table, LIVE, as_of=late)
    check(table, OLD, as_of=f"{early}+00:00")
    check(table, LIVE, as_of="2999-01-01")


def test_what_is_wrong_with_a_version_is_said_in_one_line(table, tmp_path):
    refused(table, f"{table}: ", "version 7", "history()", table_version=7)
    refused(table, "numbered from 0", table_version="last")
    refused(table, "is before the first version", table_version=None, as_of="1999-01-01")
    refused(table, "give a date or time", as_of="yesterday")
    refused(table, "give one of the two", table_version=0, as_of="2024-01-01")
    small = tmp_path / "plain.parquet"
    pl.from_arrow(LIVE).write_parquet(small)
    refused(small, "neither a Delta nor an Iceberg table", table_version=0)
    refused(LIVE, "by path", table_version=0)
    refused([table, table], "given twice")


def test_a_log_that_cannot_be_read_is_named(tmp_path):
    log = tmp_path / "t" / "_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text("{}")
    refused(tmp_path / "t", f"{tmp_path}/t: the Delta table cannot be read")


def test_a_file_that_was_removed_is_named(table):
    gone = next(table.glob("color=red/*.parquet"))
    for path in table.glob("*/*.parquet"):
        path.unlink()
    refused(table, "is gone, as after VACUUM")
    assert not gone.exists()


def test_columns_that_came_later_are_missing_in_older_rows(tmp_path):
    path = tmp_path / "t"
    deltalake.write_deltalake(path, OLD)
    more = LIVE.append_column("late", pa.array(["a", "b"] * 100))
    deltalake.write_deltalake(path, more, mode="append", schema_mode="merge")
    whole = pa.concat_tables([OLD, more], promote_options="default")
    dataset = check(path, whole)
    assert dataset.feature_names == ["x", "count", "color", "w", "late"]
    model = train(dataset, n_estimators=3, verbose=0)
    assert evaluate(model, path, verbose=0).n_rows == 500


def test_files_of_which_all_rows_are_there_are_read_in_parts(table, tmp_path):
    options = OpenOptions(scratch=tmp_path, rng=np.random.default_rng(0))
    source = open_source(table, options)
    assert sum(source.partitions()) == 200
    assert len(source.partitions()) == 4  # red, green, blue, missing
    assert source.columns == LIVE.column_names


def delete_in_place(path, rows):
    """Mark rows of the only file as deleted, as Spark does: a bitmap in the log."""
    log = path / "_delta_log"
    first = (log / "00000000000000000000.json").read_text().splitlines()
    add = next(action["add"] for action in map(json.loads, first) if "add" in action)
    bitmap = struct.pack("<IQI", 1681511377, 1, 0)
    bitmap += struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16)
    bitmap += struct.pack(f"<{len(rows)}H", *rows)
    text = ""
    for start in range(0, len(bitmap), 4):
        value = int.from_bytes(bitmap[start : start + 4], "big")
        text += "".join(Z85[value // 85**k % 85] for k in (4, 3, 2, 1, 0))
    vector = {
        "storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(bitmap),
        "cardinality": len(rows),
    }  # fmt: skip
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    actions = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"remove": {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}},
        {"add": {**add, "deletionVector": vector}},
    ]
    (log / "00000000000000000001.json").write_text("\n".join(map(json.dumps, actions)))


def test_rows_that_were_deleted_in_place_are_not_read(tmp_path):
    path = tmp_path / "t"
    deltalake.write_deltalake(path, LIVE)
    delete_in_place(path, [0, 7, 8, 150])
    left = LIVE.filter(pa.array([i not in (0, 7, 8, 150) for i in range(200)]))
    check(path, left)
    check(deltalake.DeltaTable(path), left)
    check(path, LIVE, table_version=0)
    with pytest.raises(MemoryLimitError, match=r"has to hold .*deltalake \("):
        ingest(path, label="y", memory_limit="300MB", verbose=0)


def test_an_empty_table_is_said_to_have_no_rows(tmp_path):
    deltalake.write_deltalake(tmp_path / "t", LIVE[:0])
    refused(tmp_path / "t", "has no rows")


def test_commands_take_tables_and_versions(table, tmp_path, capsys):
    model, few = str(tmp_path / "m.json"), ["--n-estimators", "3"]
    call = ["train", str(table), "--label", "y", *few, "-o", model, "-q", "--table-version", "0"]
    assert main([*call, "--valid", str(table), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 300
    assert main(["evaluate", model, str(table), "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["n_rows"] == 200
    assert (
        main(["predict", model, str(table), "-o", str(tmp_path / "p.csv"), "--as-of", "1999"]) == 1
    )
    assert "--as-of 1999: give" in capsys.readouterr().err


def test_a_finished_store_is_recognized_until_the_table_changes(table, tmp_path):
    known = {"label": "y", "verbose": 0, "path": tmp_path / "store", "resume": True}
    first = ingest(table, **known)
    assert ingest(table, **known).path == first.path
    deltalake.write_deltalake(table, OLD, mode="append")
    with pytest.raises(OSError, match="other files or options, or the files have changed"):
        ingest(table, **known)


def test_without_the_library_the_error_says_what_to_install(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(MissingExtraError, match=r"deltalake, which is not .*sparrowboost\[delta\]"):
        ingest(table, label="y", verbose=0)


def test_a_dataset_of_the_library_stays_lazy_when_it_is_filtered(table):
    rows = deltalake.DeltaTable(table).to_pyarrow_dataset().filter(pds.field("color") == "red")
    check(rows, LIVE.filter(pds.field("color") == "red"))
