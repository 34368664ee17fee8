"""SQL: queries of DuckDB, SQLite and PostgreSQL, and cursors that give Arrow batches.

Rows are fetched some at a time and written to scratch. No reader fetches a whole result.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from sparrowboost.readers.base import Source, read_errors
from sparrowboost.readers.ipc import check_columns, spill, spill_stream
from sparrowboost.readers.optional import first_line, need
from sparrowboost.runtime.budget import LIBRARIES, Budget
from sparrowboost.runtime.errors import DataError, MemoryLimitError
from sparrowboost.runtime.memory import default_limit, format_size, held, machine_memory, release

if TYPE_CHECKING:
    from sparrowboost.readers.formats import OpenOptions

DUCKDB = ("duckdb", "_duckdb")  # modules of its connections and relations
POSTGRES = ("postgresql", "postgres")
SQLITE_START, DUCKDB_MARK, DUCKDB_AT = b"SQLite format 3\0", b"DUCK", 8
# DuckDB keeps to a limit of its own for most of what it holds. It gets half of what is free, and
# each of its threads needs some. The other half is for what it does not count, and for batches.
MIN_DUCKDB_BYTES, THREAD_BYTES = 48_000_000, 64_000_000
DUCKDB_SHARE = 0.5
POSTGRES_BYTES = 4 << 20  # of a batch
FETCHED_VALUES, MIN_FETCHED_ROWS = 1 << 16, 64  # of SQLite at a time
# What SQLite calls the types of values, such that the greater one holds the values of both.
SQLITE_TYPES = ("null", "integer", "real", "text", "blob")
SQLITE_ARROW = (pa.null(), pa.int64(), pa.float64(), pa.string())


@dataclass(frozen=True)
class Query:
    """A query and the database that answers it; see `sql`."""

    text: str
    database: Any = None

    @property
    def name(self) -> str:
        """What messages call it, without a password."""
        if self.database is None:
            return "the query"
        if not isinstance(self.database, str | os.PathLike):
            return f"the query of {type(self.database).__name__}"
        place = os.fspath(self.database)
        if "://" in place:
            uri = urlsplit(place)
            place = f"{uri.scheme}://{uri.hostname or ''}{uri.path}"
        return f"the query of {place}"


def sql(query: str, database: Any = None) -> Query:
    """A query as data: wherever Sparrow takes a file, it takes this, too.

    The query runs when its rows are read, each time that they are. It cannot change a database.

    Parameters
    ----------
    query : str
        A SELECT, in the SQL of the database.
    database : path, URI or connection, optional
        A file of DuckDB or SQLite; ``"postgresql://user@host/name"``, read through ADBC; or a
        connection of DuckDB or ADBC. Without one, DuckDB answers queries of files, such as
        ``select * from 'data/*.parquet'``.

    Returns
    -------
    Query

    Examples
    --------
    >>> import sparrowboost, sqlite3, tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".db") as file:
    ...     with sqlite3.connect(file.name) as connection:
    ...         _ = connection.execute("create table t as select 1.5 as x, 0 as y union "
    ...                                "select 2.5, 1")
    ...     connection.close()
    ...     rows = sparrowboost.sql("select x, y from t", file.name)
    ...     sparrowboost.ingest(rows, label="y", verbose=0).n_rows
    2
    """
    if not isinstance(query, str) or not query.strip():
        raise DataError(f"sql: the query is {query!r}; give a SELECT.")
    return Query(query.strip().rstrip(";"), database)


def open_query(query: Query, options: OpenOptions) -> Source:
    """The rows of a query as a source."""
    database = query.database
    if isinstance(database, str | os.PathLike):
        place = os.fspath(database)
        if "://" in place:
            return _from_uri(query, place, options)
        path = Path(place).expanduser()
        if _is_sqlite(path):
            return _from_sqlite(query, path, options)
        return _from_duckdb(query, path, options)
    if database is None:
        return _from_duckdb(query, None, options)
    if _module(database) in DUCKDB:
        with _said(query, Exception):
            return _spill_relation(query, database, options)
    if hasattr(database, "adbc_get_info"):
        return _from_adbc(query, database, options)
    raise DataError(
        f"{query.name}: give the path of a DuckDB or SQLite file, a postgresql:// URI, or a "
        "connection of DuckDB or ADBC."
    )


def is_cursor(data: Any) -> bool:
    """Whether this is a cursor or connection of a database."""
    if _module(data) in DUCKDB:
        return not hasattr(data, "__arrow_c_stream__")
    return (
        hasattr(data, "fetch_record_batch")
        or (hasattr(data, "cursor") and hasattr(data, "commit"))
        or (hasattr(data, "fetchmany") and hasattr(data, "description"))
    )


def open_cursor(data: Any, name: str, options: OpenOptions) -> Source:
    """The result of a query that a cursor, or a connection of DuckDB, has executed."""
    if _module(data) in DUCKDB:  # it would copy what it has executed
        raise DataError(
            f"{name}: pass a query of it, connection.sql(query) or sparrowboost.sql(query, "
            "connection), which is computed while it is read."
        )
    if hasattr(data, "fetch_record_batch"):
        with _said_as(name, Exception):
            rows = data.fetch_record_batch()
        return _spill(rows, name, options)
    if hasattr(data, "adbc_get_info") or not hasattr(data, "fetchmany"):
        raise DataError(
            f"{name}: is a connection; pass sparrowboost.sql(query, connection), or a cursor that "
            "has executed a query."
        )
    raise DataError(
        f"{name}: this cursor does not give Arrow batches; pass one of an ADBC driver, or for "
        "DuckDB, SQLite and PostgreSQL sparrowboost.sql(query, database)."
    )


def _module(data: Any) -> str:
    return type(data).__module__.partition(".")[0]


@contextmanager
def _said_as(name: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn a library's errors into a DataError of one line."""
    try:
        yield
    except DataError:
        raise
    except errors as error:
        raise DataError(f"{name}: {first_line(error)}.") from None


def _said(query: Query, *errors: type[Exception]) -> Any:
    return _said_as(query.name, *errors)


# -- DuckDB ----------------------------------------------------------------------------------------


def _from_duckdb(query: Query, path: Path | None, options: OpenOptions) -> Source:
    duckdb = need("duckdb", "sql", "SQL on files and DuckDB's databases")
    if path is not None:
        with read_errors(str(path)), open(path, "rb") as file:
            start = file.read(DUCKDB_AT + len(DUCKDB_MARK))
        if start[DUCKDB_AT:] != DUCKDB_MARK:
            raise DataError(f"{path}: is neither a database of DuckDB nor of SQLite.")
    limit = options.limit or default_limit(machine_memory())
    release()
    libraries = held()
    Budget(limit, {LIBRARIES: libraries, "DuckDB": int(MIN_DUCKDB_BYTES / DUCKDB_SHARE)}).check()
    memory = int((limit - libraries) * DUCKDB_SHARE)
    config = {
        "memory_limit": f"{memory}B",
        "threads": max(1, min(os.cpu_count() or 1, memory // THREAD_BYTES)),
        "temp_directory": str(options.scratch / "duckdb"),
        "python_enable_replacements": False,  # a table is not a variable of the caller
    }
    with _said(query, duckdb.Error), closing(duckdb.connect(config=config)) as connection:
        if path is not None:
            # Attached, not opened: a connection to the file itself would have to agree with others
            # that this process has, and would wait for their results for ever.
            place = str(path.absolute()).replace("'", "''")
            connection.execute(f"attach '{place}' as given (read_only)")
            connection.execute("use given")
        try:
            return _spill_relation(query, connection, options)
        except duckdb.OutOfMemoryException:
            raise _too_large(query, memory) from None
        except DataError as error:
            if "Out of Memory" in str(error):
                raise _too_large(query, memory) from None
            raise


def _spill_relation(query: Query, connection: Any, options: OpenOptions) -> Source:
    rows = connection.sql(query.text)
    if rows is None:
        raise DataError(f"{query.name}: has no rows to read; give a SELECT.")
    return spill_stream(rows, query.name, options.scratch, options.check)


def _too_large(query: Query, memory: int) -> MemoryLimitError:
    return MemoryLimitError(
        f"{query.name}: does not fit in the {format_size(memory)} that DuckDB gets, which is half "
        "of what memory_limit (--memory) leaves free; give more, or write its result to Parquet "
        "with DuckDB before."
    )


# -- SQLite ----------------------------------------------------------------------------------------


def _is_sqlite(path: Path) -> bool:
    with read_errors(str(path)), open(path, "rb") as file:
        return file.read(len(SQLITE_START)) == SQLITE_START


def _from_sqlite(query: Query, path: Path, options: OpenOptions) -> Source:
    """The rows of a query of SQLite, whose columns have no types: these are found before."""
    with _said(query, sqlite3.Error):
        uri = f"file:{quote(str(path.absolute()))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            connection.execute("begin")  # both passes see the same rows
            unknown = pa.schema([(column, pa.null()) for column in _columns_of(connection, query)])
            check_columns(unknown, query.name, options.check)
            schema = _sqlite_types(connection, query)
            batches = _sqlite_batches(connection, query, schema)
            reader = pa.RecordBatchReader.from_batches(schema, batches)
            return spill(reader, query.name, options.scratch, options.check)


def _columns_of(connection: sqlite3.Connection, query: Query) -> list[str]:
    return [c[0] for c in connection.execute(f"select * from ({query.text}) limit 0").description]


def _sqlite_types(connection: sqlite3.Connection, query: Query) -> pa.Schema:
    """The columns of a query, each with a type that holds all of its values."""
    names = _columns_of(connection, query)
    ranks = " ".join(f"when '{type_}' then {i}" for i, type_ in enumerate(SQLITE_TYPES))
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    greatest = ", ".join(f"max(case typeof({name}) {ranks} end)" for name in quoted)
    (found,) = connection.execute(f"select {greatest} from ({query.text})")
    types = []
    for name, rank in zip(names, found, strict=True):
        if rank is not None and SQLITE_TYPES[rank] == "blob":
            raise DataError(
                f"{query.name}: column {name!r} holds blobs, which are neither numbers nor text; "
                "leave it out of the query, or convert it there (hex)."
            )
        types.append((name, SQLITE_ARROW[rank or 0]))
    return pa.schema(types)


def _sqlite_batches(
    connection: sqlite3.Connection, query: Query, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    cursor = connection.execute(query.text)
    n = max(MIN_FETCHED_ROWS, FETCHED_VALUES // len(schema))
    while rows := cursor.fetchmany(n):
        columns = zip(zip(*rows, strict=True), schema, strict=True)
        yield pa.record_batch([_sqlite_column(values, f.type) for values, f in columns], schema)


def _sqlite_column(values: tuple[Any, ...], type_: pa.DataType) -> pa.Array:
    if type_ == pa.string():  # numbers among them, too
        return pa.array([None if v is None else str(v) for v in values], type_)
    if type_ == pa.float64():
        return pa.array([None if v is None else float(v) for v in values], type_)
    return pa.array(values, type_)


# -- ADBC ------------------------------------------------------------------------------------------


def _from_uri(query: Query, uri: str, options: OpenOptions) -> Source:
    scheme = urlsplit(uri).scheme
    if scheme not in POSTGRES:
        raise DataError(
            f"{query.name}: of addresses, postgresql:// is read; for other databases pass a "
            "connection of their ADBC driver in Python."
        )
    driver = need("adbc_driver_postgresql.dbapi", "sql", "PostgreSQL")
    with _said(query, driver.Error):
        connection = driver.connect(uri)
    with closing(connection), _said(query, driver.Error):
        with closing(connection.cursor()) as cursor:
            cursor.execute("set transaction read only")
        return _from_adbc(query, connection, options, POSTGRES_BYTES)


def _from_adbc(
    query: Query, connection: Any, options: OpenOptions, batch_bytes: int | None = None
) -> Source:
    with _said(query, Exception), closing(connection.cursor()) as cursor:
        if batch_bytes is not None:
            hint = {"adbc.postgresql.batch_size_hint_bytes": str(batch_bytes)}
            cursor.adbc_statement.set_options(**hint)
        cursor.execute(query.text)
        return _spill(cursor.fetch_record_batch(), query.name, options)


def _spill(rows: Any, name: str, options: OpenOptions) -> Source:
    """A stream written to scratch; PostgreSQL's decimals, which ADBC gives as text, as numbers."""
    if not isinstance(rows, pa.RecordBatchReader):
        rows = pa.RecordBatchReader.from_stream(rows)
    decimal = [i for i, field in enumerate(rows.schema) if _is_decimal_text(field)]
    if decimal:
        rows = _with_decimals(rows, decimal)
    return spill(rows, name, options.scratch, options.check)


def _is_decimal_text(field: pa.Field) -> bool:
    known = (field.metadata or {}).get(b"ADBC:postgresql:typname")
    return known == b"numeric"


def _with_decimals(rows: pa.RecordBatchReader, decimal: list[int]) -> pa.RecordBatchReader:
    schema = rows.schema
    for i in decimal:
        schema = schema.set(i, pa.field(schema.field(i).name, pa.float64()))

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in rows:
            arrays = batch.columns
            for i in decimal:
                text = getattr(arrays[i], "storage", arrays[i])
                arrays[i] = pc.cast(text, pa.float64())
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())
