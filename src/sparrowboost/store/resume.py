"""`ingest(resume=True)`: recognizes the finished store of the same files and options."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparrowboost.readers.base import read_errors
from sparrowboost.readers.files import Location
from sparrowboost.readers.formats import expand, table_of
from sparrowboost.readers.query import Query
from sparrowboost.readers.table import is_values_file
from sparrowboost.runtime.disk import output_path
from sparrowboost.runtime.errors import DataError, StoreError
from sparrowboost.runtime.remote import Options, RemotePath
from sparrowboost.store.dataset import Dataset
from sparrowboost.store.stored import MANIFEST, read_manifest


def describe_run(data: Any, options: Sequence[Any], storage: Options = None) -> dict[str, Any]:
    """What is ingested, and how, as it is kept in the manifest.

    Files count as the same if path, size and time of change are; so do .npy files among `options`.
    """
    if isinstance(data, Query):
        return _describe_query(data, options)
    files = data if isinstance(data, list | tuple) else [data]
    if not files or not all(isinstance(file, str | os.PathLike) for file in files):
        raise DataError("resume=True needs files to read; data in memory cannot be recognized.")
    values = expand([option for option in options if is_values_file(option)], storage)
    tables = [table for file in files if (table := table_of(file)) is not None]
    run: dict[str, Any] = {
        "files": [_identity(path) for path in [*expand(files, storage), *values]],
        **({"tables": [_state_of(table) for table in tables]} if tables else {}),
        "options": [_to_json(option) for option in options],
    }
    return json.loads(json.dumps(run))


def _state_of(table: Path) -> tuple[str, str]:
    """A table of a lake, or a saved data set, and the last file of its metadata."""
    for folder in (table / "_delta_log", table / "metadata", table):
        if folder.is_dir():
            newest = max(folder.iterdir(), key=lambda file: (file.stat().st_mtime_ns, file.name))
            return str(table.absolute()), newest.name
    return str(table.absolute()), ""  # a file of metadata, which does not change


def _describe_query(query: Query, options: Sequence[Any]) -> dict[str, Any]:
    """The same of a query of a file."""
    database = query.database
    if not isinstance(database, str | os.PathLike) or "://" in os.fspath(database):
        raise DataError(
            "resume=True and checkpoints need rows that can be recognized; ingest the query to a "
            "store first, and train on that."
        )
    path = Path(database).expanduser().absolute()
    with read_errors(str(path)):
        stat = path.stat()
    run = {
        "query": query.text,
        "files": [(str(path), stat.st_size, stat.st_mtime_ns)],
        "options": [_to_json(option) for option in options],
    }
    return json.loads(json.dumps(run))


def _identity(path: Location) -> tuple[str | int, ...]:
    """A file as it is recognized: path, size and time of change."""
    if isinstance(path, RemotePath):
        return str(path), *path.known_stamp
    stat = path.stat()
    return str(path.absolute()), stat.st_size, stat.st_mtime_ns


def _to_json(option: Any) -> Any:
    if option is None or isinstance(option, bool | int | float | str):
        return option
    if isinstance(option, os.PathLike):
        return os.fspath(option)
    if isinstance(option, list | tuple):
        return [_to_json(part) for part in option]
    raise DataError("resume=True needs labels, weights and columns by name, or .npy files.")


def find_finished(
    path: str | os.PathLike[str] | None, run: Mapping[str, Any], *, overwrite: bool
) -> Dataset | None:
    """The store that this run would make, if there is one; an error if another is in its way."""
    if path is None:
        raise DataError("resume=True needs the path of a store.")
    folder = output_path(path)
    if not (folder / MANIFEST).is_file():
        return None
    try:
        if read_manifest(folder).get("run") == run:
            return Dataset(folder)
    except StoreError:
        if not overwrite:
            raise
    if overwrite:
        return None
    raise StoreError(
        f"{folder}: has a store of other files or options, or the files have changed; "
        "choose another path, or remove that store."
    )
