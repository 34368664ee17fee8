"""SQL as data: DuckDB, SQLite and PostgreSQL, by path, address, connection, cursor and command."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparrowboost
from helpers import check_ingested, small_table
from helpers import check_refused as refused
from postgres import postgres_server
from sparrowboost import DataError, MemoryLimitError, MissingExtraError, SparrowClassifier, ingest
from sparrowboost.cli import main
from sparrowboost.readers.query import Query
from sparrowboost.runtime.memory import held

TABLE = small_table(1_000)
COLUMNS = ", ".join(f'"{name}"' for name in TABLE.column_names)


@pytest.fixture(scope="module")
def duckdb():
    return pytest.importorskip("duckdb", reason="needs duckdb")


@pytest.fixture(scope="module")
def duckdb_file(duckdb, tmp_path_factory):
    path = tmp_path_factory.mktemp("duckdb") / "t.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.register("given", TABLE)
        connection.execute("create table t as select * from given")
    return path


@pytest.fixture(scope="module")
def sqlite_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("sqlite") / "t.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"create table t ({COLUMNS})")
        rows = zip(*TABLE.to_pydict().values(), strict=True)
        connection.executemany("insert into t values (?, ?, ?, ?, ?)", rows)
        connection.commit()
    return path


@pytest.fixture(scope="module")
def postgres():
    adbc = pytest.importorskip("adbc_driver_postgresql.dbapi", reason="needs ADBC for PostgreSQL")
    with postgres_server() as uri:
        with adbc.connect(uri) as connection, connection.cursor() as cursor:
            cursor.adbc_ingest("t", TABLE)
            connection.commit()
        yield uri


def check(data, table=TABLE, **options):
    return check_ingested(data, table, **options)


def kinds(dataset):
    return {feature.name: feature.kind for feature in dataset.binning.features}


# -- all of them -----------------------------------------------------------------------------------


@pytest.fixture(params=["duckdb_file", "sqlite_file", "postgres"])
def database(request):
    return request.getfixturevalue(request.param)


def test_rows_are_those_of_the_table(database):
    dataset = check(sparrowboost.sql("select * from t", database))
    assert dataset.feature_names == TABLE.column_names[:-1]
    some = TABLE.filter(pa.compute.less(TABLE["w"], 0.5))
    check(sparrowboost.sql("with s as (select * from t where w < 0.5) select * from s;", database),
          some)  # fmt: skip


def test_a_query_is_data_for_training_prediction_and_evaluation(database, tmp_path):
    query = sparrowboost.sql("select * from t", database)
    fitted = SparrowClassifier(n_estimators=3, verbose=0).fit(query, "y", eval_set=query)
    p = fitted.predict_proba(query)
    np.testing.assert_array_equal(p, fitted.predict_proba(query))
    assert sparrowboost.evaluate(fitted.model_, query, verbose=0).n_rows == 1_000
    n = sparrowboost.write_predictions(fitted.model_, query, tmp_path / "p.parquet", keep=["w"],
                                       verbose=0)  # fmt: skip
    assert n == 1_000
    assert sparrowboost.cv(query, label="y", n_estimators=2, n_folds=2, verbose=0).best_n_trees > 0


def test_a_bad_query_is_one_line_that_names_the_database(database):
    for text in ("select * from nope", "selct 1", "select 1 as a, 2 as y from t t, nope"):
        refused(sparrowboost.sql(text, database), "the query of ", "")
    refused(sparrowboost.sql("select x, w as y from t", database), "label 'y'")
    refused(sparrowboost.sql("select * from t", database), "no column 'z'", label="z")
    refused(sparrowboost.sql("select * from t where w < 0", database), "has no rows")


def test_a_query_cannot_change_the_database(database):
    for text in ("delete from t", "insert into t select * from t", "drop table t"):
        refused(sparrowboost.sql(text, database))
    check(sparrowboost.sql("select * from t", database))


def test_commands_take_queries(database, tmp_path, capsys):
    model, query = str(tmp_path / "m.json"), ["--sql", "select * from t", "--database"]
    query.append(str(database))
    call = ["train", *query, "--label", "y", "--n-estimators", "3", "-o", model, "-q"]
    assert main([*call, "--report", str(tmp_path / "r.html")]) == 0
    assert "secret" not in (tmp_path / "r.html").read_text()
    assert main(["evaluate", model, *query, "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["n_rows"] == 1_000
    assert main(["predict", model, *query, "-o", str(tmp_path / "p.csv"), "-q"]) == 0
    assert main(["ingest", *query, "--label", "y", "-o", str(tmp_path / "s"), "-q"]) == 0
    for wrong in (["x.csv", *query], ["--database", "x"], []):
        assert main(["ingest", *wrong, "--label", "y", "-o", str(tmp_path / "s2"), "-q"]) == 1
        assert capsys.readouterr().err.count("\n") == 1


# -- DuckDB ----------------------------------------------------------------------------------------


def test_duckdb_answers_queries_of_files_without_a_database(duckdb, tmp_path):
    pq.write_table(TABLE, tmp_path / "t.parquet")
    check(sparrowboost.sql(f"select * from '{tmp_path}/*.parquet'"))


def test_relations_connections_and_cursors_of_duckdb_are_data(duckdb, duckdb_file):
    with duckdb.connect(str(duckdb_file), read_only=True) as connection:
        check(connection.sql("select * from t"))
        refused(
            connection.cursor().execute("select * from t"),
            "pass a query of it, connection.sql(query)",
        )
        check(sparrowboost.sql("select * from t", connection))
        check(connection.sql("select * from t").to_arrow_reader())
        fitted = SparrowClassifier(n_estimators=2, verbose=0)
        assert fitted.fit(connection.sql("select * from t"), "y").n_iter_ == 2
        refused(sparrowboost.sql("select * from nope", connection), "nope")


def test_types_of_duckdb_have_the_kinds_that_they_mean(duckdb):
    text = """select i::decimal(9, 2) as a, sum(i) over () as b, uuid() as c, time '12:00' as d,
        date '2024-01-01' + i::int as e, timestamptz '2024-01-01 00:00Z' as f, i % 2 = 0 as g,
        (['u', 'v'])[1 + i % 2]::enum('u', 'v') as h, i % 2 as y from range(300) t(i)"""
    wanted = {name: "float64" for name in "ab"} | dict.fromkeys("def", "time")
    wanted |= {"c": "category", "g": "int64", "h": "category"}
    assert kinds(ingest(sparrowboost.sql(text), label="y", verbose=0)) == wanted
    nested = "select {'a': i} as s, interval 1 day as v, i % 2 as y from range(9) t(i)"
    refused(sparrowboost.sql(nested), "column 's' has type struct", "in SQL")
    refused(sparrowboost.sql(nested), "column 'v' has type month_day_nano", exclude="s")


def test_duckdb_gets_a_part_of_the_memory_limit(duckdb):
    query = sparrowboost.sql("select i as x, i % 2 as y from range(1000) t(i)")
    refused(query, "DuckDB (", error=MemoryLimitError, memory_limit="100MB")
    limit = "select current_setting('memory_limit') as x, i % 2 as y from range(300) t(i)"
    # This process holds what other tests loaded.
    enough, short = held() + 1_300_000_000, int(1.25 * held()) + 200_000_000
    (feature,) = ingest(sparrowboost.sql(limit), label="y", memory_limit=enough,
                        verbose=0).binning.features  # fmt: skip
    assert 300 < float(feature.categories[0].split()[0]) < 1_000
    assert feature.categories[0].endswith("MiB")
    most = "select list(i)::text as x, 1 as y from range(100000000) t(i)"
    says = "does not fit in the", "that DuckDB gets"
    refused(sparrowboost.sql(most), *says, error=MemoryLimitError, memory_limit=short)


def test_a_file_that_is_no_database_is_named(duckdb, tmp_path):
    refused(sparrowboost.sql("select 1", tmp_path / "no.db"), "no such file")
    (tmp_path / "t.db").write_text("x,y\n1,2\n")
    refused(sparrowboost.sql("select 1", tmp_path / "t.db"), "neither a database of DuckDB nor of")


# -- SQLite ----------------------------------------------------------------------------------------


def test_columns_of_sqlite_have_the_type_that_holds_all_their_values(tmp_path):
    path = tmp_path / "t.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('create table t (a, b, c, "d ""e", y)')
        rows = [(i, i, i, None, i % 2) for i in range(3_000)]
        rows += [(2**62, 0.5, "x", None, 0), (None, None, None, None, 1)]
        connection.executemany("insert into t values (?, ?, ?, ?, ?)", rows)
        connection.commit()
    dataset = ingest(sparrowboost.sql("select * from t", path), label="y", verbose=0)
    assert kinds(dataset) == {"a": "int64", "b": "float64", "c": "category", 'd "e': "null"}
    assert dataset.n_rows == 3_002
    blob = sparrowboost.sql("select x'00ff' as v, 1 as y", path)
    refused(blob, "column 'v' holds blobs", "hex")


# -- PostgreSQL ------------------------------------------------------------------------------------


def test_types_of_postgresql_have_the_kinds_that_they_mean(postgres):
    text = """select (i / 7.0)::numeric(9, 3) as a, gen_random_uuid() as b, time '12:00' as c,
        date '2024-01-01' + i as d, timestamptz '2024-01-01 00:00Z' as e, i % 2 = 0 as f,
        ('u' || i % 2)::char(4) as g, i::smallint as h, i::real as k, i % 2 as y
        from generate_series(0, 199) i"""
    dataset = ingest(sparrowboost.sql(text, postgres), label="y", verbose=0)
    wanted = {"a": "float64", "b": "category", "f": "int64", "g": "category", "h": "int64"}
    assert kinds(dataset) == wanted | dict.fromkeys("cde", "time") | {"k": "float32"}
    ids = dict(zip(dataset.feature_names, dataset.binning.features, strict=True))["b"].categories
    assert all(len(text) == 36 and text.count("-") == 4 for text in ids)
    assert dataset.binning.features[0].thresholds[0] == pytest.approx(0.0715)
    missing = "select 'NaN'::numeric as a, i as b, i % 2 as y from generate_series(0, 99) i"
    assert ingest(sparrowboost.sql(missing, postgres), label="y", verbose=0).n_rows == 100
    nested = "select array[i] as l, i % 2 as y from generate_series(0, 9) i"
    refused(sparrowboost.sql(nested, postgres), "column 'l' has type list", "in SQL")


def test_cursors_and_connections_of_adbc_are_data(postgres):
    import adbc_driver_postgresql.dbapi as adbc

    with adbc.connect(postgres) as connection, connection.cursor() as cursor:
        cursor.execute("select * from t")
        check(cursor)
        cursor.execute("select * from t")
        check(cursor.fetch_record_batch())
        check(sparrowboost.sql("select * from t", connection))
        refused(connection, "is a connection; pass sparrowboost.sql(query, connection)")


def test_a_connection_that_is_lost_half_way_is_one_line(postgres, tmp_path):
    text = """select i as x, i % 2 as y, case when i = 400000 then
        pg_terminate_backend(pg_backend_pid()) end as lost from generate_series(1, 800000) i"""
    refused(sparrowboost.sql(text, postgres), "failed before its end", path=tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


def test_an_address_without_a_server_is_one_line_without_the_password(postgres):
    refused(
        sparrowboost.sql("select 1", f"{postgres}x"),
        "the query of postgresql://127.0.0.1/postgresx",
    )
    with pytest.raises(DataError) as caught:
        ingest(sparrowboost.sql("select 1", "postgresql://u:secret@127.0.0.1:1/d"), label="y")
    assert "secret" not in str(caught.value)
    refused(sparrowboost.sql("select 1", "mysql://h/d"), "postgresql:// is read")


# -- what is no query ------------------------------------------------------------------------------


def test_other_cursors_and_databases_say_what_to_pass(sqlite_file):
    with closing(sqlite3.connect(sqlite_file)) as connection:
        refused(connection, "is a connection")
        refused(connection.execute("select * from t"), "does not give Arrow batches")
        refused(sparrowboost.sql("select * from t", connection), "give the path of a DuckDB")
    for wrong in ("", " ", None):
        with pytest.raises(DataError, match="give a SELECT"):
            sparrowboost.sql(wrong)


def test_without_the_libraries_the_error_says_what_to_install(duckdb_file, monkeypatch):
    for module, database in (
        ("duckdb", duckdb_file),
        ("adbc_driver_postgresql.dbapi", "postgres://h/d"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtraError, match=r"is not installed; .*sparrowboost\[sql\]"):
            ingest(sparrowboost.sql("select 1", database), label="y", verbose=0)


def test_a_query_of_a_file_is_recognized_by_its_text_and_file(sqlite_file, tmp_path):
    known = {"label": "y", "verbose": 0, "path": tmp_path / "store", "resume": True}
    query = sparrowboost.sql("select * from t", sqlite_file)
    assert ingest(query, **known).path == ingest(query, **known).path
    with pytest.raises(OSError, match="other files or options"):
        ingest(sparrowboost.sql("select * from t where w < 0.5", sqlite_file), **known)
    refused(sparrowboost.sql("select 1"), "rows that can be recognized", **known)


def test_names_of_queries_have_no_password():
    name = Query("select 1", "postgresql://u:secret@host:5432/sales?x=1").name
    assert name == "the query of postgresql://host/sales"
