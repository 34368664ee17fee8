"""Arrow arrays as numpy arrays and back, without copying.

Arrow's own conversions import pandas wherever it is installed: 36 MB that a memory limit may not
have to spare, for nothing that is needed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost.runtime.errors import DataError

# numpy's time units that Arrow lacks, and the nearest that it has; months are of mean length.
ARROW_UNITS = {
    "Y": "s",
    "M": "s",
    "W": "s",
    "D": "s",
    "h": "s",
    "m": "s",
    "ps": "ns",
    "fs": "ns",
    "as": "ns",
}


def to_numpy(array: pa.Array, fill: float = 0) -> npt.NDArray[Any]:
    """Numbers or booleans as a read-only view; a copy with `fill` for nulls if there are any.

    Examples
    --------
    >>> to_numpy(pa.array([1.5, 2.5, 3.5]).slice(1))
    array([2.5, 3.5])
    >>> to_numpy(pa.array([True, False]))
    array([ True, False])
    >>> to_numpy(pa.array([1, None, 3]), fill=-1)
    array([ 1, -1,  3])
    """
    if pa.types.is_boolean(array.type):
        return to_numpy(array.cast(pa.uint8())).view(np.bool_)
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        return array.to_numpy(zero_copy_only=False)
    dtype = np.dtype(array.type.to_pandas_dtype())
    if len(array) == 0:
        return np.empty(0, dtype)
    values = np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
    if array.null_count:
        values = np.where(nulls(array), values.dtype.type(fill), values)
    values.flags.writeable = False  # so that kernels compile for one signature
    return values


def nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Where an array is null.

    Examples
    --------
    >>> nulls(pa.array([1, None, 3]).slice(1))
    array([ True, False])
    """
    return to_numpy(array.is_null())


def strings(values: Sequence[str | bytes | None]) -> pa.Array:
    """An array of strings; bytes are assumed to be UTF-8 and not checked.

    Examples
    --------
    >>> strings(["red", None, b"blue"]).to_pylist()
    ['red', None, 'blue']
    """
    data = [v.encode() if isinstance(v, str) else v or b"" for v in values]
    ends = np.cumsum([0, *map(len, data)], dtype=np.int64)
    bits = None
    if any(v is None for v in values):
        bits = _bits(np.array([v is not None for v in values]))
    buffers = [bits, pa.py_buffer(ends), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(pa.large_string(), len(data), buffers).cast(pa.string())


def from_numpy(values: npt.NDArray[Any], null: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """An array of these numbers or booleans, some of them null, over the same memory.

    Examples
    --------
    >>> from_numpy(np.array([1, 2], np.int8)).to_pylist(), from_numpy(np.array([True, False]))[0]
    ([1, 2], <pyarrow.BooleanScalar: True>)
    """
    n, type_ = len(values), pa.from_numpy_dtype(values.dtype)
    data = _bits(values) if values.dtype == np.bool_ else pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(type_, n, [None if null is None else _bits(~null), data])


def _bits(values: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def _arrow_dtype(dtype: np.dtype) -> np.dtype:
    """The nearest type that Arrow supports: native byte order, and a time unit that it has."""
    if dtype.kind == "f" and dtype.itemsize > 8:
        return np.dtype(np.float64)
    if dtype.kind in "mM":
        unit, _ = np.datetime_data(dtype)  # such as "s", 10 for periods of ten seconds
        return np.dtype(f"{dtype.kind}8[{ARROW_UNITS.get(unit, unit)}]")
    return dtype.newbyteorder("=")


def arrow_type(dtype: np.dtype, name: str) -> pa.DataType:
    """The Arrow type of an array's values; a DataError if there is none."""
    try:
        return pa.from_numpy_dtype(_arrow_dtype(dtype))
    except (pa.ArrowNotImplementedError, TypeError):
        raise DataError(
            f"{name}: numpy type {dtype} is neither a number, a date nor a string."
        ) from None


def field_types(dtype: np.dtype, name: str) -> dict[str, pa.DataType]:
    """The Arrow types of the fields of records."""
    return {c: arrow_type(dtype[c], f"{name}, field {c!r}") for c in dtype.names or ()}


def arrow_column(
    values: np.ndarray, type_: pa.DataType, mask: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """(n,) values as an Arrow array of the type that `arrow_type` found for them."""
    values = values.astype(_arrow_dtype(values.dtype), copy=False)
    if values.dtype.kind in "iufb":
        return from_numpy(values, mask)
    return pa.array(values, type_, mask=mask)


def check_shape(dtype: np.dtype, shape: tuple[int, ...], name: str) -> None:
    """A DataError if an array of this shape is not a table."""
    if dtype.names:
        if len(shape) != 1:
            raise DataError(f"{name}: has shape {shape}; an array of records must be (n,).")
    elif len(shape) != 2:
        raise DataError(
            f"{name}: has shape {shape}; a table has rows and columns (n, d)"
            + (": pass array.reshape(-1, 1) for one column." if len(shape) == 1 else ".")
        )
