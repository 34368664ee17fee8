"""Delta, Iceberg and Hudi tables: never read as a folder of files, but by their own libraries."""

from __future__ import annotations

import os

import pyarrow.csv as pcsv
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import pytest

from helpers import check_refused as refused
from helpers import small_table
from sparrowboost import DataError, ingest, train, write_predictions
from sparrowboost.cli import main

OLD, LIVE = small_table(300, seed=1), small_table(200, seed=2)


def with_file(folder, name, text):
    """A folder with one of the files that such tables have beside their data."""
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text(text)
    return folder


def make_delta(folder):
    return with_file(folder, "_delta_log/00000000000000000000.json", "{}")


def make_iceberg(folder):
    return with_file(folder, "metadata/00003-2011a52f.metadata.json", "{}")


def make_packed_iceberg(folder):
    return with_file(folder, "metadata/v1.metadata.json.gz", "")


def make_iceberg_of_hint(folder):
    return with_file(folder, "metadata/version-hint.text", "1")


def make_hudi(folder):
    return with_file(folder, ".hoodie/hoodie.properties", "")


KINDS = {
    make_delta: ("is a Delta table", "pass the table as a whole"),
    make_iceberg: ("is an Iceberg table", "pass the table as a whole"),
    make_packed_iceberg: ("is an Iceberg table", "pass the table as a whole"),
    make_iceberg_of_hint: ("is an Iceberg table", "pass the table as a whole"),
    make_hudi: ("is a Hudi table", "write its current rows to Parquet files"),
}


@pytest.mark.parametrize("make", KINDS)
def test_a_table_of_a_lake_is_refused_wherever_its_files_are_named(tmp_path, make):
    table = make(tmp_path / "lake" / "t")
    part = table / "data" / "g=1" / "part-0.parquet"
    part.parent.mkdir(parents=True)
    pq.write_table(LIVE, part)
    (tmp_path / "plain").mkdir()
    pq.write_table(LIVE, tmp_path / "plain" / "p.parquet")
    (tmp_path / "link").symlink_to(table / "data", target_is_directory=True)
    for data in (
        tmp_path / "lake",  # a folder above it
        tmp_path,
        part.parent,  # a folder within it
        part,
        f"{table}/**/*.parquet",
        [tmp_path / "plain", part],
        tmp_path / "link" / "g=1",
    ):
        refused(data, f"{table}: ", *KINDS[make])
    assert ingest(tmp_path / "plain", label="y", verbose=0).n_rows == 200


def test_a_hudi_table_is_refused_as_a_whole_too(tmp_path):
    refused(make_hudi(tmp_path / "t"), *KINDS[make_hudi])


def test_a_text_file_that_lies_in_such_a_table_is_not_part_of_it(tmp_path):
    table = make_delta(tmp_path / "t")
    pcsv.write_csv(LIVE, table / "notes.csv")
    assert ingest(table / "notes.csv", label="y", verbose=0).n_rows == 200


def test_folders_that_only_look_like_one_are_read(tmp_path):
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "columns.json").write_text("{}")
    (tmp_path / "_delta_log").write_text("a file")
    pq.write_table(LIVE, tmp_path / "t.parquet")
    assert ingest(tmp_path, label="y", verbose=0).n_rows == 200


def test_prediction_and_the_command_line_refuse_such_a_table_too(tmp_path, capsys):
    model = train(ingest(LIVE, label="y", verbose=0), n_estimators=1, verbose=0)
    table = make_hudi(tmp_path / "t")
    pq.write_table(LIVE, table / "a.parquet")
    with pytest.raises(DataError, match="is a Hudi table"):
        write_predictions(model, table, tmp_path / "p.csv", verbose=0)
    assert main(["ingest", str(table), "--label", "y", "-o", str(tmp_path / "s"), "-q"]) == 1
    assert "is a Hudi table" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["t"]


def test_a_dataset_that_the_user_made_of_its_files_is_read_with_a_warning(tmp_path, caplog):
    table = make_delta(tmp_path / "t")
    pq.write_table(LIVE, table / "a.parquet")
    for rows in (pds.dataset(table), pds.dataset(table).filter(pds.field("w") >= 0)):
        caplog.clear()
        assert ingest(rows, label="y", verbose=0).n_rows == 200
        (record,) = caplog.records
        assert record.levelname == "WARNING"
        assert record.getMessage().startswith(f"{table}: is a Delta table")
