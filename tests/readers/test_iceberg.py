"""Iceberg tables by path and as objects: snapshots, deleted rows, renamed and added columns."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import check_ingested as check
from helpers import check_refused as refused
from helpers import small_table
from sparrowboost import MissingExtraError, ingest
from sparrowboost.cli import main
from sparrowboost.readers.formats import OpenOptions, open_source

pytest.importorskip("pyiceberg", reason="needs pyiceberg")
sql = pytest.importorskip("pyiceberg.catalog.sql", reason="needs pyiceberg[sql-sqlite]")

from pyiceberg.io.pyarrow import ArrowScan  # noqa: E402
from pyiceberg.manifest import (  # noqa: E402
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestWriterV2,
)
from pyiceberg.table.snapshots import Operation  # noqa: E402
from pyiceberg.table.update.snapshot import _FastAppendFiles  # noqa: E402
from pyiceberg.typedef import Record  # noqa: E402
from pyiceberg.types import LongType  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of older interfaces that it uses itself

OLD, LIVE = small_table(300, seed=1), small_table(200, seed=2)


@pytest.fixture
def catalog(tmp_path):
    made = sql.SqlCatalog(
        "c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/warehouse"
    )
    made.create_namespace("db")
    yield made
    made.close()


@pytest.fixture
def table(catalog):
    """A table of two snapshots: OLD, and LIVE in its place."""
    made = catalog.create_table("db.t", schema=LIVE.schema)
    made.append(OLD)
    made.overwrite(LIVE)
    return made


@pytest.fixture
def folder(table, tmp_path):
    return tmp_path / "warehouse" / "db" / "t"


def test_the_current_snapshot_is_read_by_path_and_as_an_object(table, folder):
    check(folder, LIVE)
    check(table, LIVE)
    check(table.scan(), LIVE)
    check(table.scan().to_arrow_batch_reader(), LIVE)
    check(table.scan(row_filter="w < 0.5"), LIVE.filter(pa.compute.less(LIVE["w"], 0.5)))
    newest = table.metadata_location.removeprefix("file://")
    check(newest, LIVE)


def test_files_in_object_stores_are_fetched_one_after_the_other(table, monkeypatch):
    table.append(OLD)
    table.append(LIVE)
    fetched, read = [], ArrowScan.to_record_batches

    def fetch(self, tasks):
        fetched.append(len(tasks))
        return read(self, tasks)

    monkeypatch.setattr(
        "sparrowboost.readers.iceberg._local", lambda location: None
    )  # as of s3://...
    monkeypatch.setattr(ArrowScan, "to_record_batches", fetch)
    whole = pa.concat_tables([LIVE, OLD, LIVE])
    check(table, whole)
    assert fetched == [1, 1, 1]
    check(table.scan(row_filter="w < 0.5"), whole.filter(pa.compute.less(whole["w"], 0.5)))


def test_a_snapshot_is_read_by_number_name_and_time(table, folder):
    first = table.history()[0]
    table.manage_snapshots().create_tag(first.snapshot_id, "before").commit()
    for wanted in (first.snapshot_id, str(first.snapshot_id), "before"):
        check(folder, OLD, table_version=wanted)
    check(folder, OLD, as_of=f"{np.datetime64(first.timestamp_ms, 'ms')}")
    check(folder, LIVE, as_of="2999-01-01")


def test_a_snapshot_that_is_not_there_is_said_in_one_line(table, folder):
    refused(folder, "no snapshot for table_version=5", str(table.history()[-1].snapshot_id),
            table_version=5)  # fmt: skip
    refused(folder, "no snapshot for table_version=main2", table_version="main2")
    refused(folder, "no snapshot for as_of=1999", as_of="1999-01-01")


def test_columns_that_were_renamed_or_added_are_found_in_older_files(table, folder, tmp_path):
    with table.update_schema() as update:
        update.rename_column("x", "renamed")
        update.add_column("late", LongType())
    more = OLD.rename_columns(["renamed", "count", "color", "w", "y"])
    more = more.append_column("late", pa.array(range(300)))
    table.append(more.select(["renamed", "count", "color", "w", "y", "late"]))
    whole = pa.concat_tables(
        [more, LIVE.rename_columns(["renamed", "count", "color", "w", "y"])],
        promote_options="default",
    )
    check(folder, whole)
    options = OpenOptions(scratch=tmp_path, rng=np.random.default_rng(0))
    assert sum(open_source(folder, options).partitions()) == 500


class DeletesWriter(ManifestWriterV2):
    def content(self):
        return ManifestContent.DELETES

    @property
    def _meta(self):
        return {**super()._meta, "content": "deletes"}


class Deletes(_FastAppendFiles):
    def new_manifest_writer(self, spec):
        of = spec, self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression
        return DeletesWriter(*of)


def test_rows_that_were_deleted_in_place_are_not_read(catalog, tmp_path):
    made = catalog.create_table("db.d", schema=LIVE.schema, properties={"format-version": "2"})
    made.append(LIVE)
    made.append(OLD)
    delete_in_place(made, [0, 7, 8, 150])
    left = LIVE.filter(pa.array([i not in (0, 7, 8, 150) for i in range(200)]))
    whole = pa.concat_tables([left, OLD])
    made = catalog.load_table("db.d")
    assert made.scan().to_arrow().num_rows == 496
    check(made, whole)
    check(tmp_path / "warehouse" / "db" / "d", whole)


def delete_in_place(table, rows):
    """Commit a file of positions of deleted rows, as Spark does (pyiceberg writes none)."""
    first = min(table.scan().plan_files(), key=lambda task: task.file.record_count).file
    path = f"{table.location()}/data/deleted.parquet"
    local = Path(path.removeprefix("file://"))
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
            pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
        ]
    )
    pq.write_table(pa.table([[first.file_path] * len(rows), rows], schema=schema), local)
    deleted = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES, file_path=path, file_format=FileFormat.PARQUET,
        partition=Record(), record_count=len(rows), file_size_in_bytes=local.stat().st_size,
    )  # fmt: skip
    deleted.spec_id = table.spec().spec_id
    with table.transaction() as transaction:
        append = Deletes(Operation.DELETE, transaction, table.io)
        append.append_data_file(deleted)
        append.commit()


def test_which_commit_is_the_last_one_must_be_known(table, folder):
    newest = max((folder / "metadata").glob("*.metadata.json"))
    twin = newest.with_name(f"{newest.name[:5]}-another.metadata.json")
    twin.write_bytes(newest.read_bytes())
    refused(folder, "which commit is the last one?", twin.name)
    check(newest, LIVE)
    (folder / "metadata" / "version-hint.text").write_text(newest.name)
    check(folder, LIVE)


@pytest.mark.parametrize("suffix", [".metadata.json.gz", ".gz.metadata.json"])
@pytest.mark.parametrize("hint", ["1", "2", None])
def test_a_table_with_packed_metadata_is_read_as_one(table, folder, suffix, hint):
    plain = sorted((folder / "metadata").glob("*.metadata.json"))
    for number, file in enumerate(plain):
        packed = file.with_name(f"v{number}{suffix}")
        packed.write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    if hint is not None:
        (folder / "metadata" / "version-hint.text").write_text(hint)
    check(folder, LIVE)
    check(packed, LIVE)


def test_packed_metadata_that_is_damaged_is_named(table, folder):
    (newest := folder / "metadata" / "v9.metadata.json.gz").write_bytes(b"\x1f\x8b\x08")
    refused(folder, f"{newest}: the Iceberg table cannot be read")


def test_metadata_that_cannot_be_read_is_named(tmp_path):
    place = tmp_path / "t" / "metadata"
    place.mkdir(parents=True)
    (place / "00003-2011a52f.metadata.json").write_text("{}")
    refused(tmp_path / "t", "00003-2011a52f.metadata.json: the Iceberg table cannot be read")
    (place / "00003-2011a52f.metadata.json").rename(place / "last.metadata.json")
    refused(tmp_path / "t", "has no numbered .metadata.json file")


def test_a_data_file_that_is_gone_is_named(table, folder):
    for path in (folder / "data").rglob("*.parquet"):
        path.unlink()
    refused(folder, "is gone; read a later snapshot")


def test_an_empty_table_is_said_to_have_no_rows(catalog):
    refused(catalog.create_table("db.e", schema=LIVE.schema), "has no rows")


def test_commands_take_tables_and_snapshots(table, folder, tmp_path, capsys):
    number = str(table.history()[0].snapshot_id)
    call = ["ingest", str(folder), "--label", "y", "-o", str(tmp_path / "s"), "-q", "--json"]
    assert main([*call, "--table-version", number]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 300


def test_without_the_library_the_error_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyiceberg.table", None)
    with pytest.raises(MissingExtraError, match=r"pyiceberg, which .*sparrowboost\[iceberg\]"):
        ingest(folder, label="y", verbose=0)
