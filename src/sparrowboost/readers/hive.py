"""Columns in the names of folders: day=1/part.parquet holds the rows of day 1."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

from sparrowboost.readers.files import Location

FOLDER = re.compile(r"([^=]+)=([^=]*)")
NULL = "__HIVE_DEFAULT_PARTITION__"

Keys = dict[str, str | None]  # column -> value, as it is written in the name of a folder


def keys_of(path: Location) -> Keys:
    """The columns and values that the names of a file's folders hold.

    Examples
    --------
    >>> keys_of(Path("t/year=2024/city=New%20York/part.parquet"))
    {'year': '2024', 'city': 'New York'}
    """
    found = [FOLDER.fullmatch(part) for part in path.parent.parts]
    pairs = [(unquote(m[1]), unquote(m[2])) for m in found if m is not None]
    return {name: None if value == NULL else value for name, value in pairs}


def partition_columns(
    files: Sequence[tuple[Location, Collection[str]]],
    *,
    needed: Collection[str],
    as_text: Collection[str],
) -> list[dict[str, pa.Scalar]]:
    """For each file its columns in names of folders, with their values.

    A folder that the caller has named, as part of a path, is a choice of rows. So it is a column
    only if its value is not the same in all files, or if the column is needed.

    Parameters
    ----------
    files : sequence of (path, parts)
        Parts of the path that the caller has named.
    needed : names
        Columns that a model has.
    as_text : names
        Columns that are not to become numbers.
    """
    keys = [keys_of(path) for path, _ in files]
    values: dict[str, list[str | None]] = {}
    found: set[str] = set()
    for (_, named), of_file in zip(files, keys, strict=True):
        chosen = keys_of(Path(*named, "file")) if named else {}
        for name, value in of_file.items():
            values.setdefault(name, []).append(value)
            if name in needed or name not in chosen or chosen[name] != value:
                found.add(name)
    found |= {name for name, some in values.items() if len(set(some)) > 1}
    types = {name: infer_type(values[name], name in as_text) for name in found}
    return [
        {name: to_scalar(value, types[name]) for name, value in of_file.items() if name in found}
        for of_file in keys
    ]


def infer_type(values: Sequence[str | None], as_text: bool = False) -> pa.DataType:
    """The type of a column, as pyarrow infers it: int32 if all values are such numbers, else text.

    Examples
    --------
    >>> infer_type(["1", "02", None]), infer_type(["1", "a"]), infer_type(["3000000000"])
    (DataType(int32), DataType(string), DataType(string))
    """
    if not as_text:
        try:
            pa.array(sorted({v for v in values if v is not None}), pa.string()).cast(pa.int32())
            return pa.int32()
        except pa.ArrowInvalid:
            pass
    return pa.string()


def to_scalar(value: str | None, type_: pa.DataType) -> pa.Scalar:
    """The value of a column in the name of a folder."""
    if value is None:
        return pa.scalar(None, type_)
    return pa.scalar(value, pa.string()).cast(type_)
