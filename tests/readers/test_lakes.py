"""Delta, Iceberg and Hudi tables: never read as a folder of files, and what to pass instead."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import pytest

from helpers import naive_rows, small_table, stored_rows
from sparrowboost import DataError, ingest, train, write_predictions
from sparrowboost.cli import main

OLD, LIVE = small_table(300, seed=1), small_table(200, seed=2)


def make_delta(folder):
    (folder / "_delta_log").mkdir(parents=True)
    (folder / "_delta_log" / "00000000000000000000.json").write_text("{}")
    return folder


def make_iceberg(folder):
    (folder / "metadata").mkdir(parents=True)
    (folder / "metadata" / "00003-2011a52f.metadata.json").write_text("{}")
    return folder


def make_hudi(folder):
    (folder / ".hoodie").mkdir(parents=True)
    (folder / ".hoodie" / "hoodie.properties").write_text("")
    return folder


KINDS = {
    make_delta: ("is a Delta table", "to_pyarrow_dataset()"),
    make_iceberg: ("is an Iceberg table", "to_arrow_batch_reader()"),
    make_hudi: ("is a Hudi table", "write its current rows to Parquet files"),
}


def refused(data, *says, read=ingest, **kwargs):
    with pytest.raises(DataError) as caught:
        read(data, **({"label": "y", "verbose": 0} | kwargs))
    for words in says:
        assert words in str(caught.value)
    assert "\n" not in str(caught.value)


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
        table,
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


def test_a_table_of_a_lake_without_parquet_files_is_called_what_it_is(tmp_path):
    refused(make_iceberg(tmp_path / "orc"), "is an Iceberg table")


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
    table = make_delta(tmp_path / "t")
    pq.write_table(LIVE, table / "a.parquet")
    with pytest.raises(DataError, match="is a Delta table"):
        write_predictions(model, table, tmp_path / "p.csv", verbose=0)
    assert main(["ingest", str(table), "--label", "y", "-o", str(tmp_path / "s"), "-q"]) == 1
    assert "is a Delta table" in capsys.readouterr().err
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


# With the libraries that make such tables: what the advice says gives the live rows.


def check_live(data):
    dataset = ingest(data, label="y", verbose=0)
    columns = LIVE.to_pydict()
    assert stored_rows(dataset) == naive_rows(dataset, columns, columns["y"])


@pytest.mark.parametrize("by", [None, ["color"]])
def test_a_delta_table_gives_its_live_rows_as_advised(tmp_path, by, caplog):
    deltalake = pytest.importorskip("deltalake", reason="needs deltalake")
    deltalake.write_deltalake(tmp_path / "t", OLD, partition_by=by)
    deltalake.write_deltalake(tmp_path / "t", LIVE, mode="overwrite", partition_by=by)
    refused(tmp_path / "t", *KINDS[make_delta], f"DeltaTable('{tmp_path}/t')")
    check_live(deltalake.DeltaTable(tmp_path / "t").to_pyarrow_dataset())
    assert caplog.records == []
    pds.write_dataset(
        deltalake.DeltaTable(tmp_path / "t").to_pyarrow_dataset(), tmp_path / "out",
        format="parquet",
    )  # fmt: skip
    check_live(tmp_path / "out")


def test_a_delta_table_gives_its_live_rows_through_polars_and_duckdb(tmp_path):
    deltalake = pytest.importorskip("deltalake", reason="needs deltalake")
    import polars as pl

    deltalake.write_deltalake(tmp_path / "t", OLD)
    deltalake.write_deltalake(tmp_path / "t", LIVE, mode="overwrite")
    check_live(pl.read_delta(str(tmp_path / "t")))
    duckdb = pytest.importorskip("duckdb", reason="needs duckdb")
    rows = deltalake.DeltaTable(tmp_path / "t").to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        check_live(connection.sql("select * from rows"))


@pytest.mark.filterwarnings("ignore")  # its own, of older interfaces that it uses
def test_an_iceberg_table_gives_its_live_rows_as_advised(tmp_path):
    pytest.importorskip("pyiceberg", reason="needs pyiceberg[sql-sqlite,pyarrow]")
    sql = pytest.importorskip("pyiceberg.catalog.sql", reason="needs pyiceberg[sql-sqlite]")
    catalog = sql.SqlCatalog(
        "c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/warehouse"
    )
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", schema=LIVE.schema)
    table.append(OLD)
    gone = LIVE.set_column(3, "w", pa.array(np.full(len(LIVE), 7, np.float32)))
    table.overwrite(pa.concat_tables([LIVE, gone]))
    table.delete("w > 5")
    place = tmp_path / "warehouse" / "db" / "t"
    refused(place, f"{place}: ", *KINDS[make_iceberg])
    check_live(table.scan().to_arrow_batch_reader())
    catalog.close()
