"""The kinds of X that an estimator accepts, distinguished by what they support.

files     a path, a glob, or several
frame     a table in memory with named columns: pandas, polars, Arrow
stream    named columns that scikit-learn cannot inspect: Arrow streams and datasets, records,
          tables of lakes, queries
array     all others: numpy, scipy's sparse matrices, lists
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost.readers.query import Query, is_cursor
from sparrowboost.runtime.errors import DataError

# Libraries whose objects have named columns, and read or compute their rows on demand.
LAZY = ("polars", "deltalake", "pyiceberg", "datasets")


def is_path(X: Any) -> bool:
    """Whether X may be a path."""
    return isinstance(X, str | os.PathLike)


def is_files(X: Any) -> bool:
    """Whether X is one path or several."""
    return is_path(X) or (isinstance(X, list | tuple) and bool(X) and all(map(is_path, X)))


def is_frame(X: Any) -> bool:
    """Whether X is a table in memory with named columns."""
    return hasattr(X, "shape") and hasattr(X, "columns")


def is_stream(X: Any) -> bool:
    """Whether X has named columns that scikit-learn cannot inspect."""
    if is_frame(X):
        return False
    if isinstance(X, np.ndarray):
        return X.dtype.names is not None
    if type(X).__module__.partition(".")[0] in LAZY or isinstance(X, Query) or is_cursor(X):
        return True
    return hasattr(X, "__arrow_c_stream__") or hasattr(X, "get_fragments")


def is_column(y: Any) -> bool:
    """Whether labels or weights are a column of the rows, by name or number, or a .npy file."""
    return is_path(y) or (isinstance(y, int | np.integer) and not isinstance(y, bool))


def default_names(n: int) -> list[str]:
    """The names that `ingest` gives to the columns of an array."""
    return [f"f{j}" for j in range(n)]


def column_names(X: Any) -> list[Any] | None:
    """Names of the columns; None if that would take opening a file."""
    if is_files(X) or is_stream(X):
        return None
    if not is_frame(X):
        return default_names(X.shape[1])
    return list(X.column_names if hasattr(X, "column_names") else X.columns)


def named_frame(X: Any) -> Any:
    """A frame, possibly without rows, whose column names every scikit-learn version finds."""
    if hasattr(X, "iloc"):  # pandas
        return X
    names = column_names(X) or []
    return pa.Table.from_arrays([pa.nulls(0)] * len(names), names=names)


def categorical_names(given: Any, X: Any) -> list[Any] | None:
    """The columns of X that are given by names, indices or a mask, by name.

    Examples
    --------
    >>> X = np.zeros((1, 3))
    >>> categorical_names([0, -1], X), categorical_names([False, True, False], X)
    (['f0', 'f2'], ['f1'])
    """
    if given is None or isinstance(given, str):
        return given if given is None else [given]
    items = list(given)
    if all(isinstance(item, str) for item in items):
        return items
    names = column_names(X)
    if names is None:
        raise DataError("categorical_features: for a file or stream, give the names of columns.")
    if all(isinstance(item, bool | np.bool_) for item in items):
        if len(items) != len(names):
            raise DataError(
                f"categorical_features: a mask of {len(items)} for {len(names)} columns."
            )
        return [name for name, here in zip(names, items, strict=True) if here]
    for item in items:
        whole = isinstance(item, int | np.integer) and not isinstance(item, bool)
        if not whole or not -len(names) <= item < len(names):
            raise DataError(
                f"categorical_features: {item!r} is not an index of one of the {len(names)} "
                "columns; give names, indices or a mask."
            )
    return [names[item] for item in items]


def as_numbers(X: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An array of objects as numbers if possible; otherwise unchanged, for `ingest`."""
    missing = np.array([value is None for value in X.flat]).reshape(X.shape)
    try:
        return np.where(missing, np.nan, X).astype(np.float64)
    except ValueError:
        return X


def renamed(X: Any, names: list[str]) -> Any:
    """The frame with other column names; values are not copied."""
    have = column_names(X) or []
    if have == names:
        return X
    if hasattr(X, "rename_columns"):  # Arrow
        return X.rename_columns(names)
    if hasattr(X, "iloc"):  # pandas
        X = X.copy(deep=False)
        X.columns = names
        return X
    return X.rename(dict(zip(have, names, strict=True)))
