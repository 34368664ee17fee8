"""Folders that are Delta Lake, Iceberg or Hudi tables: their files hold more than their rows.

Such a table keeps the files of older versions, and only its metadata tells which rows are in the
current one. Read as a folder of Parquet files, it would give deleted and replaced rows, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from sparrowboost.runtime.errors import DataError

# The files of Iceberg's metadata, packed or not, and the one that names the newest of them.
METADATA = r"[^/]*\.metadata\.json(\.gz)?"
HINT = "version-hint.text"
OF_ICEBERG = re.compile(rf"{METADATA}|{re.escape(HINT)}")


class Lake(NamedTuple):
    """A table format that keeps metadata beside its Parquet files."""

    name: str
    made: Callable[[Path], bool]  # whether a folder is such a table
    advice: str  # {folder} is the table's


def _has_folder(folder: Path, name: str) -> bool:
    try:
        return (folder / name).is_dir()
    except OSError:  # it may not be looked into: reading its files fails, too
        return False


def _has_iceberg_metadata(folder: Path) -> bool:
    try:
        return any(map(OF_ICEBERG.fullmatch, os.listdir(folder / "metadata")))
    except OSError:  # there is none, or it may not be read
        return False


LAKES = (
    Lake(
        "a Delta table",
        lambda folder: _has_folder(folder, "_delta_log"),
        "pass the table as a whole, {folder!r}.",
    ),
    Lake(
        "an Iceberg table",
        _has_iceberg_metadata,
        "pass the table as a whole, {folder!r}.",
    ),
    Lake(
        "a Hudi table",
        lambda folder: _has_folder(folder, ".hoodie"),
        "write its current rows to Parquet files elsewhere (for example with Spark), and pass "
        "those.",
    ),
)


def lake_at(path: Path) -> Lake | None:
    """The format of a table, if this is the folder of one whose library reads it.

    Of Iceberg, it may also be one of the files of metadata.
    """
    if path.parent.name == "metadata" and re.fullmatch(METADATA, path.name) and path.is_file():
        return LAKES[1]
    made = (lake for lake in LAKES if lake.made(path))
    return next((lake for lake in made if lake.name != "a Hudi table"), None)


def check_no_lake(paths: Iterable[Path]) -> None:
    """A DataError if a file or folder is, or is part of, a table of one of these formats."""
    message = find_lake(paths)
    if message is not None:
        raise DataError(message)


def find_lake(paths: Iterable[Path]) -> str | None:
    """What is wrong with reading these files or folders as they are, and what to do; or None."""
    seen: set[Path] = set()
    for path in paths:
        for place in (path.absolute(), Path(os.path.realpath(path))):
            for folder in (place, *place.parents):
                if folder in seen:
                    break  # and so are all above it
                seen.add(folder)
                for lake in LAKES:
                    if lake.made(folder):
                        return (
                            f"{folder}: is {lake.name}, whose files also hold rows that were "
                            f"deleted or replaced; {lake.advice.format(folder=str(folder))}"
                        )
    return None
