"""Delta tables: deltalake tells which files are in a version, and which rows were deleted.

Files of which all rows are there are read by Sparrow's own reader, at random positions and in
parts. If some rows of a table are deleted in place (deletion vectors), or its columns are mapped or
have changed their types, deltalake reads it, and its stream goes to scratch.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse
from urllib.request import url2pathname

from sparrowboost.readers.base import ConcatenatedSource, GuardedSource, Source, read_errors, stamp
from sparrowboost.readers.inmemory import from_table
from sparrowboost.readers.ipc import spill_stream
from sparrowboost.readers.mapped import MappedSource, match_columns
from sparrowboost.readers.optional import first_line, need, reserve
from sparrowboost.readers.parquet import ParquetFile
from sparrowboost.runtime.errors import DataError

if TYPE_CHECKING:
    from sparrowboost.readers.formats import OpenOptions

# Measured: what deltalake's engine holds while it reads a table with deletion vectors.
SCAN_BYTES = 280_000_000


def open_delta_folder(path: Path, options: OpenOptions) -> Source:
    """A Delta table by its folder, in the version that the options name."""
    deltalake = need("deltalake", "delta", f"{path}: is a Delta table; to read one")
    read, errors = options.read, deltalake.exceptions
    try:
        table = deltalake.DeltaTable(str(path), version=_number(path, read.table_version))
        if read.moment is not None:
            load_as_of(table, path, read.moment)
    except (errors.DeltaError, OSError) as error:
        which = f" in version {read.table_version}" if read.table_version is not None else ""
        raise DataError(
            f"{path}: the Delta table cannot be read{which} ({first_line(error)}); "
            "DeltaTable.history() lists its versions."
        ) from None
    return open_delta(table, str(path), options)


def _number(path: Path, version: int | str | None) -> int | None:
    if version is None:
        return None
    if not str(version).isdecimal():
        raise DataError(
            f"{path}: table_version={version!r} (--table-version): versions of a Delta table are "
            "numbered from 0."
        )
    return int(version)


def load_as_of(table: Any, path: Path, when: datetime) -> None:
    """Go to the version that was current then; a DataError if there was none yet."""
    times = {commit["version"]: commit.get("timestamp") for commit in table.history()}
    table.load_as_version(when)  # the first one if it is later
    made = times.get(table.version())
    if made is not None and made > 1000 * when.timestamp():
        first = datetime.fromtimestamp(made / 1000, UTC).isoformat(timespec="milliseconds")
        raise DataError(
            f"{path}: as_of={when.isoformat()} (--as-of) is before the first version that is "
            f"there, of {first}."
        )


def open_delta(table: Any, name: str, options: OpenOptions) -> Source:
    """A `deltalake.DeltaTable` as a source."""
    errors = need("deltalake.exceptions", "delta", "a Delta table")
    try:
        dataset = table.to_pyarrow_dataset()
    except errors.DeltaProtocolError:  # it has deletion vectors, or the like
        dataset = None
    if dataset is not None:
        parts = _plain_files(dataset, table, name)
        if parts is not None:
            if not parts:
                return from_table(dataset.schema.empty_table(), name)
            return parts[0] if len(parts) == 1 else ConcatenatedSource(parts)
    if not hasattr(table, "scan"):
        raise DataError(
            f"{name}: rows of this Delta table were deleted in place, or its columns mapped, which "
            "needs a newer deltalake; pip install --upgrade 'sparrowboost[delta]'."
        )
    reserve(options.limit, "deltalake", SCAN_BYTES)
    try:
        rows = table.scan()
    except (errors.DeltaError, OSError) as error:
        raise DataError(f"{name}: deltalake cannot read it ({first_line(error)}).") from None
    return spill_stream(rows, name, options.scratch, options.check)


def _plain_files(dataset: Any, table: Any, name: str) -> list[Source] | None:
    """The table's files with the columns that the version has; None if they are not plain."""
    where = urlparse(table.table_uri)
    if where.scheme not in ("", "file"):
        return None
    from pyarrow.dataset import get_partition_keys

    root, parts = Path(url2pathname(where.path)), list[Source]()
    for fragment in dataset.get_fragments():
        if "://" in fragment.path:
            return None
        path = root / fragment.path
        if not path.exists():
            raise DataError(
                f"{name}: its file {fragment.path} is gone, as after VACUUM; read a later version."
            )
        with read_errors(str(path)):
            was = stamp(path)
        part = ParquetFile(path)
        keys = get_partition_keys(fragment.partition_expression)
        columns = match_columns(part.schema, dataset.schema, keys)
        if columns is None:
            return None
        parts.append(GuardedSource(MappedSource(part, columns), path, was))
    return parts
