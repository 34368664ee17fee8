"""Kinds of columns, and Arrow arrays as plain numbers or categories.

A row block is a `pyarrow.RecordBatch`. Its columns may have any Arrow type; the rest of the package
knows only these kinds:

    float32, float64    numbers as they are (NaN and null: missing)
    int64, uint64       whole numbers, kept exact beyond 2**53
    time                dates, times and durations, as int64 microseconds
    category            strings, dictionaries, UUIDs and other bytes of fixed size, or any column
                        that the user calls categorical
    null                a column without a type, because it has no values
"""

from __future__ import annotations

from typing import Literal
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from sparrowboost.readers.arrays import nulls, strings, to_numpy
from sparrowboost.readers.notation import look_like_dates, look_like_numbers
from sparrowboost.runtime.errors import DataError

Kind = Literal["float32", "float64", "int64", "uint64", "time", "category", "null"]
Numbers = npt.NDArray[np.generic]  # (n,) of a native number type, read-only
Mask = npt.NDArray[np.bool_]  # (n,) True where missing

STRINGS = pa.dictionary(pa.int32(), pa.string())


class RowError(DataError):
    """A row of a block is wrong; a caller that knows the block's position adds it."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(what)
        self.row = row


def kind_of(name: str, type_: pa.DataType) -> Kind:
    """The kind of a column of Arrow type `type_`; a DataError for a type without one."""
    if pt.is_float16(type_) or pt.is_float32(type_):
        return "float32"
    if pt.is_float64(type_) or pt.is_decimal(type_):
        return "float64"
    if pt.is_uint64(type_):
        return "uint64"
    if pt.is_integer(type_) or pt.is_boolean(type_):
        return "int64"
    if pt.is_temporal(type_) and not pt.is_interval(type_):
        return "time"
    if pt.is_null(type_):
        return "null"
    if is_text(type_) or (pt.is_dictionary(type_) and not pt.is_nested(type_.value_type)):
        return "category"
    if pt.is_fixed_size_binary(type_) or _is_uuid(type_):
        return "category"
    if isinstance(type_, pa.BaseExtensionType):
        return kind_of(name, type_.storage_type)
    if pt.is_nested(type_):
        raise DataError(
            f"column {name!r} has type {type_}, with several values in a row; flatten it into "
            "columns of their own (in SQL, or a struct with pyarrow's Table.flatten()), or leave "
            f"it out with exclude=[{name!r}] (--exclude {name})."
        )
    raise DataError(
        f"column {name!r} has type {type_}, which is neither a number, a date nor a category; "
        "leave it out with exclude=, or convert it first."
    )


def _is_uuid(type_: pa.DataType) -> bool:
    """Whether values of this type are UUIDs (older versions of pyarrow have no such type)."""
    return isinstance(type_, pa.BaseExtensionType) and type_.extension_name == "arrow.uuid"


def is_text(type_: pa.DataType) -> bool:
    """Whether values of this type are strings."""
    return pt.is_string(type_) or pt.is_large_string(type_) or pt.is_string_view(type_)


def join_kinds(a: Kind, b: Kind) -> Kind | None:
    """The kind that can hold the values of both; None if there is none."""
    if a == b or b == "null":
        return a
    if a == "null":
        return b
    if {a, b} <= {"float32", "float64", "int64", "uint64"}:
        return "float64"
    return None


def numbers(name: str, array: pa.Array) -> tuple[Numbers, Mask | None]:
    """Values of a number or time column, and a mask of missing ones (None: NaNs, if any).

    Values keep the column's own width, so that small integers stay small.
    """
    array = stored(array)
    type_ = array.type
    if pt.is_dictionary(type_):
        array = array.dictionary_decode()
        type_ = array.type
    if is_text(type_) or pt.is_null(type_):
        array = _parse(name, array)
    elif pt.is_boolean(type_):
        array = array.cast(pa.uint8())
    elif pt.is_float16(type_):
        array = array.cast(pa.float32())
    elif pt.is_decimal(type_):
        array = array.cast(pa.float64())
    elif pt.is_temporal(type_):
        array = _microseconds(array)
    elif not (pt.is_integer(type_) or pt.is_floating(type_)):
        raise DataError(f"column {name!r} has type {type_} where numbers are needed.")
    mask = None
    if array.null_count and not pt.is_floating(array.type):
        mask = nulls(array)
    return to_numpy(array, fill=0 if mask is not None else np.nan), mask


def stored(array: pa.Array) -> pa.Array:
    """An array of an extension type as it is stored; any other unchanged."""
    return array.storage if isinstance(array.type, pa.BaseExtensionType) else array


def _microseconds(array: pa.Array) -> pa.Array:
    """A date, time or duration as int64 microseconds, truncated."""
    if pt.is_duration(array.type):
        return array.cast(pa.duration("us"), safe=False).cast(pa.int64())
    if pt.is_time(array.type):
        return array.cast(pa.time64("us"), safe=False).cast(pa.int64())
    zone = array.type.tz if pt.is_timestamp(array.type) else None
    return array.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64())


def _parse(name: str, array: pa.Array) -> pa.Array:
    """Strings as numbers, or as true and false."""
    for type_ in (pa.float64(), pa.bool_()):
        try:
            values = array.cast(type_)
        except pa.ArrowInvalid:
            continue
        return values if type_ == pa.float64() else values.cast(pa.uint8())
    row = next(row for row, text in enumerate(array) if not _is_number(text))
    advice = "leave the cell empty if the value is missing"
    cell = array.slice(row, 1).cast(pa.string())
    if pc.or_(look_like_numbers(cell), look_like_dates(cell))[0].as_py():
        advice = (
            "convert the column, or of CSV files pass decimal=, thousands= or date_format= "
            "(--decimal, --thousands, --date-format) as for the training data"
        )
    raise RowError(
        row, f"column {name!r} is {array[row].as_py()!r} where numbers are needed; {advice}."
    )


def _is_number(text: pa.Scalar) -> bool:
    try:
        text.cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def categories(name: str, array: pa.Array) -> pa.DictionaryArray:
    """A column as categories: a dictionary array of strings, null where missing.

    A number is written in its shortest form (5, not 5.0), so that a category learned from one
    source is found in another that types it differently.
    """
    if pt.is_dictionary(array.type) and pt.is_string(array.type.value_type):
        return array
    uuid = _is_uuid(array.type)
    array = stored(array)
    if pt.is_nested(array.type):
        raise DataError(f"column {name!r} of type {array.type} cannot be read as categories.")
    if not pt.is_dictionary(array.type):
        array = array.dictionary_encode()
    words = _uuid_words(array.dictionary) if uuid else _as_strings(name, array.dictionary)
    return pa.DictionaryArray.from_arrays(array.indices, words)


def _uuid_words(values: pa.Array) -> pa.Array:
    """16 bytes each as UUIDs are usually written."""
    return strings([None if v is None else str(UUID(bytes=v)) for v in values.to_pylist()])


def _text_or_hex(value: bytes | None) -> str | None:
    """Bytes of fixed size: the text that they are, without what fills it up, or hexadecimal."""
    if value is None:
        return None
    try:
        text = value.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        return value.hex()
    return text if text.isprintable() else value.hex()


def _as_strings(name: str, values: pa.Array) -> pa.Array:
    type_ = values.type
    if pt.is_decimal(type_):
        values = values.cast(pa.float64())
        type_ = values.type
    if pt.is_floating(type_):
        own = type_.to_pandas_dtype()  # 0.1 has fewer digits as a float32 than as the same float64
        return strings(
            [None if x is None or x != x else str(int(x)) if x.is_integer() else str(own(x))
             for x in values.to_pylist()]
        )  # fmt: skip
    if pt.is_fixed_size_binary(type_):
        return strings(list(map(_text_or_hex, values.to_pylist())))
    if pt.is_timestamp(type_):
        values = values.cast(pa.timestamp("us", type_.tz), safe=False)
    if pt.is_time(type_):
        values = values.cast(pa.time64("us"), safe=False)
    try:
        words = values.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise DataError(f"column {name!r} of type {type_} cannot be read as categories.") from None
    if pt.is_temporal(type_):  # whole seconds, as text files usually have them
        words = pc.replace_substring_regex(words, r"\.0+(Z?)$", r"\1")
    return words


def plain_words(words: pa.Array) -> pa.Array:
    """Category names in one form for all sources, typed or text.

    Without surrounding spaces, whole numbers without ".0", true and false in lower case.

    Examples
    --------
    >>> plain_words(pa.array([" a ", "1.0", "1.50", "True"])).to_pylist()
    ['a', '1', '1.50', 'true']
    """
    words = pc.utf8_trim_whitespace(words)
    words = pc.replace_substring_regex(words, r"^(-?\d+)\.0+$", r"\1")
    truth = pc.match_substring_regex(words, "^(?i:true|false)$")
    return pc.if_else(truth, pc.utf8_lower(words), words)
