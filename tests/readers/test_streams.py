"""What is wrong with the columns of a stream is said before any of its rows is fetched."""

from __future__ import annotations

import os
import sqlite3

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import pytest

from helpers import small_table
from sparrowboost import (
    DataError,
    MemoryLimitError,
    SparrowClassifier,
    cv,
    evaluate,
    ingest,
    sql,
    train,
    write_predictions,
)
from sparrowboost.runtime.memory import held

TABLE = small_table(300)
LISTS = pa.array([[1, 2]] * 300)
DAYS = pa.array(np.arange(300).astype("M8[D]"))
TEXT = pa.array(["1.5"] * 300)
CODED = TEXT.dictionary_encode()


def unread(table):
    """A stream whose rows nobody may ask for."""

    def rows():
        raise AssertionError("a row was fetched")
        yield

    return pa.RecordBatchReader.from_batches(table.schema, rows())


class Query:
    """What is not Arrow's own, as the result of a query."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return unread(self._table).__arrow_c_stream__(requested_schema)


@pytest.fixture(scope="module")
def model():
    return train(ingest(TABLE, label="y", verbose=0), n_estimators=2, verbose=0)


def refused(call, says):
    with pytest.raises(DataError, match=says):
        call()


WRONG = [
    (TABLE, {"label": "z"}, "no column 'z'"),
    (TABLE, {"label": None}, "which column is the label"),
    (TABLE, {"weight": "u"}, "no column 'u'"),
    (TABLE, {"weight": "y"}, "cannot be both label and weight"),
    (TABLE, {"columns": ["u"]}, "no column 'u'"),
    (TABLE, {"exclude": ["u"]}, "no column 'u'"),
    (TABLE, {"categorical": ["u"]}, "no column 'u'"),
    (TABLE, {"columns": ["y"]}, "no column is left"),
    (TABLE, {"label": 9}, "no column number 9"),
    (TABLE.append_column("l", LISTS), {}, "column 'l' has type list"),
    (TABLE.append_column("l", LISTS), {"categorical": ["l"]}, "'l' of type list.* as categories"),
    (TABLE.append_column("l", LISTS), {"label": "l"}, "label 'l' has type list"),
    (TABLE.append_column("l", LISTS), {"weight": "l"}, "column 'l' has type list.* numbers"),
    (TABLE.append_column("x", LISTS), {}, "column 'x' appears more than once"),
    (TABLE.append_column("t", TEXT), {"weight": "t"}, r"weight 't' has type string.*cast\(t as"),
    (TABLE.append_column("t", TEXT), {"offset": "t"}, "offset 't' has type string where numbers"),
    (TABLE.append_column("t", CODED), {"weight": "t"}, "weight 't' has type string where numbers"),
    (TABLE.append_column("t", DAYS), {"weight": "t"}, "weight 't' has type date32.* where numbers"),
    (TABLE.append_column("t", DAYS), {"offset": "t"}, "offset 't' has type date32.* where numbers"),
    (TABLE, {"positive": "yes"}, "label 'y' is never 'yes': it has type"),
    (TABLE.append_column("t", TEXT), {"label": "t", "task": "regression"}, "label 't' has type"),
]


@pytest.mark.parametrize("make", [unread, Query])
@pytest.mark.parametrize(("table", "arguments", "says"), WRONG)
def test_a_wrong_column_is_told_before_a_row_is_fetched(tmp_path, make, table, arguments, says):
    arguments = {"label": "y", "verbose": 0, "path": tmp_path / "store"} | arguments
    refused(lambda: ingest(make(table), **arguments), says)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "arguments", [{"label": "l"}, {"categorical": ["l"]}, {"weight": "l"}, {"exclude": []}]
)
def test_lists_in_a_table_are_refused_for_every_role(arguments):
    table = TABLE.append_column("l", LISTS)
    refused(lambda: ingest(table, **({"label": "y", "verbose": 0} | arguments)), "type list")


@pytest.mark.parametrize("make", [unread, Query])
def test_a_limit_that_never_suffices_is_told_before_a_row_is_fetched(tmp_path, model, make):
    store = ingest(TABLE, label="y", verbose=0, path=tmp_path / "store").path
    rows, limit = make(TABLE), held() // 2
    few = {"memory_limit": limit, "verbose": 0}
    for call in (
        lambda: ingest(rows, label="y", **few),
        lambda: ingest(rows, label="y", wait=False, **few),
        lambda: ingest(rows, append=store, **few),
        lambda: evaluate(model, rows, **few),
        lambda: write_predictions(model, rows, tmp_path / "p.csv", **few),
        lambda: cv(rows, label="y", **few),
        lambda: SparrowClassifier(memory_limit=limit).fit(rows, "y"),
    ):
        with pytest.raises(MemoryLimitError, match="give at least"):
            call()


def test_rows_to_append_are_checked_against_the_store_as_early(tmp_path):
    store = ingest(TABLE, label="y", verbose=0, path=tmp_path / "store").path
    days = TABLE.set_column(0, "x", DAYS)
    refused(lambda: ingest(unread(days), append=store, verbose=0), "has times where the store")
    refused(
        lambda: ingest(unread(TABLE), append=store, label="x", verbose=0), "'x' is a feature of"
    )
    refused(lambda: ingest(unread(days), label="y", bins_of=store, verbose=0), "has times where")


def test_the_columns_of_sqlite_are_checked_before_the_query_is_computed(tmp_path):
    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.execute("create table t (x, y)")
        connection.execute("insert into t values (1, 'a'), (2, 'b')")
    connection.close()
    broken = sql("select json(y) as x, y from t", tmp_path / "t.db")
    refused(lambda: ingest(broken, label="z", verbose=0), "no column 'z'")


def test_other_functions_check_streams_as_early(model, tmp_path):
    few = TABLE.drop_columns(["x"])
    days = TABLE.set_column(0, "x", DAYS)
    refused(lambda: model.predict_proba(unread(few)), "lacks column 'x'")
    refused(lambda: model.predict_proba(Query(days)), "has times where the model")
    refused(
        lambda: write_predictions(
            model, unread(TABLE), tmp_path / "p.csv", keep=["id"], verbose=0
        ),
        "lacks column 'id'",
    )  # fmt: skip
    refused(lambda: evaluate(model, unread(few), verbose=0), "no column 'x'")
    refused(lambda: evaluate(model, unread(days), verbose=0), "has times where the model")
    refused(lambda: evaluate(model, unread(TABLE), label="z", verbose=0), "no column 'z'")
    rows = ingest(TABLE, label="y", verbose=0)
    refused(lambda: train(rows, valid=unread(few), n_estimators=1, verbose=0), "no column 'x'")
    refused(lambda: cv(unread(TABLE), label="z", verbose=0), "no column 'z'")
    refused(lambda: SparrowClassifier().fit(unread(TABLE), "z"), "no column 'z'")


def test_a_filtered_dataset_is_checked_before_it_is_scanned(tmp_path):
    pq.write_table(TABLE, tmp_path / "t.parquet")
    rows = pds.dataset(tmp_path / "t.parquet").filter(pds.field("w") < 0.5)
    (tmp_path / "t.parquet").unlink()  # a scan would fail
    refused(lambda: ingest(rows, label="z", verbose=0), "no column 'z'")


def test_labels_beside_a_stream_are_counted_when_its_rows_are(model):
    reader = TABLE.drop_columns(["y"]).to_reader()
    assert ingest(reader, label=TABLE["y"], verbose=0).n_rows == 300
    reader = TABLE.drop_columns(["y"]).to_reader()
    refused(lambda: ingest(reader, label=TABLE["y"][:9], verbose=0), "has 9 values")


def test_the_result_of_a_query_in_duckdb_is_checked_before_all_rows_are_computed():
    duckdb = pytest.importorskip("duckdb", reason="needs duckdb")
    with duckdb.connect() as connection:
        last = "case when i = 3000000 then error('all rows were fetched') else i end"
        query = f"select {last} as x, i % 2 as y from range(3000001) t(i)"
        refused(lambda: ingest(connection.sql(query), label="z", verbose=0), "no column 'z'")
        good = connection.sql("select i as x, i % 2 as y from range(1000) t(i)")
        assert ingest(good, label="y", verbose=0).n_rows == 1000
