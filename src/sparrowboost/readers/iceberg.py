"""Iceberg tables: pyiceberg tells which files are in a snapshot, and which rows were deleted.

Data files of which all rows are there are read by Sparrow's own reader, at random positions and in
parts. Those with deleted rows, or whose columns have other types now, are read by pyiceberg, one
after the other, and written to scratch. So are those in object stores.
"""

from __future__ import annotations

import gzip
import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse
from urllib.request import url2pathname

import pyarrow as pa

from sparrowboost.readers.base import ConcatenatedSource, GuardedSource, Source, read_errors, stamp
from sparrowboost.readers.inmemory import from_table
from sparrowboost.readers.ipc import spill
from sparrowboost.readers.lakes import HINT
from sparrowboost.readers.mapped import MappedSource, alike
from sparrowboost.readers.optional import first_line, need, reserve
from sparrowboost.readers.parquet import ParquetFile
from sparrowboost.runtime.errors import DataError

if TYPE_CHECKING:
    from sparrowboost.readers.formats import OpenOptions

METADATA = ".metadata.json"
OLD_PACKED = METADATA + ".gz"  # how Java's library named packed ones; pyiceberg does not read it
SUFFIXES = METADATA, ".gz" + METADATA, OLD_PACKED, ""
NUMBER = re.compile(r"v?(\d+)(?:-.*)?(?:\.gz\.metadata\.json|\.metadata\.json(?:\.gz)?)")
FIELD_ID = b"PARQUET:field_id"
SHOWN = 5  # snapshots in a message
# pyiceberg holds a data file with deleted rows as a whole, and again the rows that are left.
COPIES = 2


def open_iceberg_folder(path: Path, options: OpenOptions) -> Source:
    """An Iceberg table by its folder, or by one of its metadata files."""
    tables = need("pyiceberg.table", "iceberg", f"{path}: is an Iceberg table; to read one")
    metadata = newest_metadata(path) if path.is_dir() else path
    try:
        packed = metadata.name.endswith(OLD_PACKED)
        file = _unpacked(metadata, options.scratch) if packed else metadata
        table = tables.StaticTable.from_metadata(str(file.absolute()))
    except (ValueError, OSError, EOFError, zlib.error, _failure()) as error:
        raise DataError(
            f"{metadata}: the Iceberg table cannot be read ({first_line(error)})."
        ) from None
    return open_iceberg(table.scan(**_snapshot(table, path, options)), str(path), options)


def _failure() -> type[Exception]:
    """What pyiceberg raises for metadata that it cannot read."""
    from pyiceberg.exceptions import ValidationError

    return ValidationError


def newest_metadata(folder: Path) -> Path:
    """The metadata file of a table's last commit, as far as can be told without its catalog."""
    place = folder / "metadata"
    with read_errors(str(place)):
        hint = place / HINT
        if hint.is_file():
            version = hint.read_text().strip()
            named = later = _of_version(place, version)
            while later and version.isdecimal():  # the hint is written after the metadata
                named, version = later, str(int(version) + 1)
                later = _of_version(place, version)
            if named:
                return named
        found: dict[int, list[Path]] = {}
        for file in place.iterdir():
            if number := NUMBER.fullmatch(file.name):
                found.setdefault(int(number[1]), []).append(file)
    if not found:
        raise DataError(f"{place}: has no numbered {METADATA} file; pass the path of one.")
    newest = found[max(found)]
    if len(newest) > 1:
        names = " and ".join(sorted(file.name for file in newest)[:2])
        raise DataError(
            f"{place}: which commit is the last one? It may be {names}; pass the path of one, or "
            "the table as its catalog loads it."
        )
    return newest[0]


def _of_version(place: Path, version: str) -> Path | None:
    """The metadata file that a version is the number or the name of."""
    names = (f"{v}{version}{suffix}" for suffix in SUFFIXES for v in ("v", ""))
    return next((place / name for name in names if (place / name).is_file()), None)


def _unpacked(metadata: Path, scratch: Path) -> Path:
    """The metadata in a file with a name that pyiceberg reads."""
    made = scratch / metadata.name.removesuffix(".gz")
    with gzip.open(metadata) as packed, open(made, "wb") as plain:
        shutil.copyfileobj(packed, plain)
    return made


def _snapshot(table: Any, path: Path, options: OpenOptions) -> dict[str, int]:
    """The snapshot that the options name, as a keyword of a scan; none for the current one."""
    wanted, when = options.read.table_version, options.read.moment
    if wanted is None and when is None:
        return {}
    snapshot = None
    if when is not None:
        snapshot = table.snapshot_as_of_timestamp(round(1000 * when.timestamp()))
    elif str(wanted).isdecimal():
        snapshot = table.snapshot_by_id(int(str(wanted)))
    else:
        snapshot = table.snapshot_by_name(str(wanted))
    if snapshot is None:
        what = (
            f"as_of={when.isoformat()} (--as-of)"
            if when
            else f"table_version={wanted} (--table-version)"
        )
        there = [str(entry.snapshot_id) for entry in table.history()][-SHOWN:]
        raise DataError(
            f"{path}: the Iceberg table has no snapshot for {what}; the last ones are "
            f"{', '.join(there) or 'none'}."
        )
    return {"snapshot_id": snapshot.snapshot_id}


def open_iceberg(scan: Any, name: str, options: OpenOptions) -> Source:
    """A scan of pyiceberg's as a source."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    try:
        tasks = list(scan.plan_files())
    except (ValueError, OSError, _failure()) as error:
        raise DataError(f"{name}: pyiceberg cannot read it ({first_line(error)}).") from None
    schema = schema_to_pyarrow(scan.projection(), include_field_ids=False)
    if not tasks:
        return from_table(schema.empty_table(), name)
    parts = list[Source]()
    for task in tasks:
        file = _local(task.file.file_path)
        if file is None:  # in an object store; pyiceberg would fetch all files at once
            parts.append(_by_task(scan, task, schema, options))
            continue
        if not file.exists():
            raise DataError(
                f"{name}: its file {file} is gone; read a later snapshot, or where the table was "
                "moved, pass it as its catalog loads it."
            )
        parts.append(_plain_file(scan, task, file, schema) or _by_task(scan, task, schema, options))
    return parts[0] if len(parts) == 1 else ConcatenatedSource(parts)


def _local(location: str) -> Path | None:
    where = urlparse(location)
    if where.scheme not in ("", "file"):
        return None
    return Path(url2pathname(where.path)) if where.scheme else Path(location)


def _plain_file(scan: Any, task: Any, path: Path, schema: pa.Schema) -> Source | None:
    """A data file with the columns that the snapshot has; None if it is not plain."""
    from pyiceberg.expressions import AlwaysTrue

    if task.delete_files or task.residual != AlwaysTrue() or task.file.file_format != "PARQUET":
        return None
    with read_errors(str(path)):
        was = stamp(path)
    file = ParquetFile(path)
    ids = {int((field.metadata or {}).get(FIELD_ID, -1)): field for field in file.schema}
    if -1 in ids:
        return None
    spec = scan.table_metadata.specs().get(task.file.spec_id)
    parts = {field.source_id for field in spec.fields} if spec is not None else set()
    columns: dict[str, str | pa.Scalar] = {}
    for field, arrow in zip(scan.projection().fields, schema, strict=True):
        own = ids.get(field.field_id)
        if own is None:  # it was added after this file was written
            if field.field_id in parts:  # or is in the names of folders only
                return None
            columns[field.name] = pa.scalar(field.initial_default, arrow.type)
        elif alike(own.type, arrow.type):
            columns[field.name] = own.name
        else:
            return None
    return GuardedSource(MappedSource(file, columns), path, was)


def _by_task(scan: Any, task: Any, schema: pa.Schema, options: OpenOptions) -> Source:
    """The rows of a data file as pyiceberg gives them, through scratch."""
    from pyiceberg.io.pyarrow import ArrowScan

    path = task.file.file_path
    values = task.file.record_count * 8 * len(schema)
    sizes = [task.file.file_size_in_bytes, values]
    reserve(options.limit, f"pyiceberg, for {path}", COPIES * max(sizes))
    of = scan.table_metadata, scan.io, scan.projection(), scan.row_filter

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for batch in ArrowScan(*of).to_record_batches([task]):
                yield batch.cast(schema)
        except (ValueError, NotImplementedError) as error:
            if isinstance(error, pa.ArrowException):
                raise
            raise pa.ArrowInvalid(first_line(error)) from None

    reader = pa.RecordBatchReader.from_batches(schema, batches())
    return spill(reader, str(path), options.scratch, options.check)
