"""How files are to be read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How to read files; sources in memory ignore it.

    Parameters
    ----------
    header : bool
        Whether the first line of a CSV file names the columns; otherwise they are f0, f1, ...
    format : {"parquet", "csv", "arrow", "libsvm", "npy"}, optional
        The format of all files. By default the suffix of each file decides.
    """

    header: bool = True
    format: str | None = None
