"""How files are to be read."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, TypedDict

from sparrowboost.readers.notation import Notation, check_date_format
from sparrowboost.runtime.errors import DataError

TAB = ("\\t", "tab")  # as one may write it in a shell


class ReadKeywords(TypedDict, total=False):
    """The options as keywords, for functions that hand them on."""

    header: bool
    format: str | None
    delimiter: str | None
    decimal: str
    thousands: str | None
    date_format: str | Sequence[str] | None
    table_version: int | str | None
    as_of: str | datetime | None
    storage_options: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How to read files; sources in memory ignore it.

    Parameters
    ----------
    header : bool
        Whether the first line of a CSV file names the columns; otherwise they are f0, f1, ...
    format : {"parquet", "csv", "jsonl", "arrow", "orc", "libsvm", "npy"}, optional
        The format of all files. By default the suffix of each file decides.
    delimiter : str, optional
        The character between the cells of a CSV file. By default that of comma, tab, semicolon and
        bar which is most frequent in the first line.
    decimal : str
        The decimal mark of numbers in CSV files.
    thousands : str, optional
        The mark between groups of digits of numbers in CSV files.
    date_format : str or sequence of str, optional
        How CSV files write dates, as in `datetime.strptime`, besides ISO 8601.
    table_version : int or str, optional
        The version of a Delta table, or the snapshot, branch or tag of an Iceberg table.
    as_of : str or datetime, optional
        Instead of a version, the time at which it was the current one; without a zone, of UTC.
    storage_options : dict, optional
        How remote storage is reached: arguments of the library's class (docs/sources.md).
    """

    header: bool = True
    format: str | None = None
    delimiter: str | None = None
    decimal: str = "."
    thousands: str | None = None
    date_format: str | Sequence[str] | None = None
    table_version: int | str | None = None
    as_of: str | datetime | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)  # has secrets

    def __post_init__(self) -> None:
        if self.header not in (True, False):
            raise DataError(f"header={self.header!r}: give True or False.")
        _check_storage_options(self.storage_options)
        if self.delimiter in TAB:
            object.__setattr__(self, "delimiter", "\t")
        _check_delimiter(self.delimiter)
        _check_mark("decimal", self.decimal)
        if self.thousands is not None:
            _check_mark("thousands", self.thousands, spaces=True)
        if self.decimal == self.thousands:
            raise DataError(
                f"decimal={self.decimal!r} and thousands={self.thousands!r} (--decimal, "
                "--thousands) are the same; give two different marks."
            )
        given = self.date_format
        formats = () if given is None else (given,) if isinstance(given, str) else tuple(given)
        for one in formats:
            check_date_format(one)
        object.__setattr__(self, "date_format", formats or None)
        object.__setattr__(self, "as_of", _moment(self.as_of))
        if self.table_version is not None and self.as_of is not None:
            raise DataError(
                "table_version= and as_of= (--table-version, --as-of): give one of the two."
            )

    @property
    def dated(self) -> bool:
        """Whether a version of a table is asked for."""
        return self.table_version is not None or self.as_of is not None

    @property
    def moment(self) -> datetime | None:
        """The time whose version of a table is asked for."""
        return None if self.as_of is None else datetime.fromisoformat(str(self.as_of))

    @property
    def notation(self) -> Notation:
        """How CSV files write numbers and dates."""
        return Notation(self.decimal, self.thousands, tuple(self.date_format or ()))

    def of_text(self) -> list[tuple[str, Any]]:
        """The options about texts that are not the default, with their names."""
        return [
            (field.name, getattr(self, field.name))
            for field in fields(self)
            if field.name not in ("header", "format", "storage_options")
            and getattr(self, field.name) != field.default
        ]


def _moment(given: str | datetime | None) -> str | None:
    """A time in ISO 8601, with its zone."""
    if given is None:
        return None
    try:
        moment = given if isinstance(given, datetime) else datetime.fromisoformat(given)
    except (TypeError, ValueError):
        raise DataError(
            f"as_of={given!r} (--as-of): give a date or time, such as 2024-12-31T18:00:00."
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()


def _check_storage_options(given: Any) -> None:
    if given is not None and not isinstance(given, Mapping):
        raise DataError(
            f"storage_options: give a dict, such as {{'region': 'eu-central-1'}}, not "
            f"{type(given).__name__}."
        )


def _check_delimiter(given: Any) -> None:
    if given is None:
        return
    if (
        not isinstance(given, str)
        or len(given) != 1
        or not given.isascii()
        or given.isalnum()
        or given in '"\n\r+-.'
    ):
        raise DataError(
            f"delimiter={given!r} (--delimiter): give the one character between cells, such as "
            "';' or '|' (a tab is 'tab')."
        )


def _check_mark(name: str, given: Any, *, spaces: bool = False) -> None:
    """A DataError unless this is a single punctuation mark, or a space if these are allowed."""
    good = isinstance(given, str) and len(given) == 1 and given not in '+-"%()'
    if good:
        kind = unicodedata.category(given)
        good = kind[0] == "P" or (spaces and kind == "Zs")
    if not good:
        examples = "',', '.', ' ' or \"'\"" if spaces else "',' or '.'"
        raise DataError(f"{name}={given!r} (--{name}): give one character, such as {examples}.")
