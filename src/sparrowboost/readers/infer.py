"""Whether a column of strings holds numbers, dates or categories; and conversion to these."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from sparrowboost.readers.arrays import from_numpy, strings
from sparrowboost.readers.columns import STRINGS, Kind, is_text
from sparrowboost.readers.notation import DATE, NUMBER, PLAIN, TIME, Notation

# A column is numeric (or a time) if this share of its values are numbers (or dates): the others are
# then errors. Below it the column is categories, some of which look like numbers.
NUMERIC_SHARE = 0.5
ZONE = r"[ T].*[0-9](Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
FINE = r"\.[0-9]{7,9}"  # more digits of a second than microseconds have
EXACT = 2**53  # above, float64 no longer represents every whole number


class Meaning(NamedTuple):
    """What a column of strings is."""

    kind: Kind
    type: pa.DataType  # of its values
    as_text: bool = False  # the parser returns strings, `cast_texts` converts them
    notation: Notation = PLAIN  # of these strings


CATEGORY = Meaning("category", STRINGS)
TEXT = Meaning("category", pa.string())  # unchanged


def infer_meaning(texts: pa.ChunkedArray, notation: Notation = PLAIN) -> Meaning:
    """The meaning of a column, decided by most of its strings.

    Date formats of the user come first: his 20241231 is a date.

    Examples
    --------
    >>> infer_meaning(pa.chunked_array([["1", "2.5", None]])).kind
    'float64'
    >>> infer_meaning(pa.chunked_array([["2001-01-31", "2001-02-01 10:00:00"]])).kind
    'time'
    >>> infer_meaning(pa.chunked_array([["1", "x", "y"]])).kind
    'category'
    """
    texts = texts.drop_null()
    if len(texts) == 0:
        return Meaning("null", pa.float64())
    trimmed = pc.utf8_trim_whitespace(texts)
    if notation.date_formats:
        there = pc.is_valid(notation.to_times(trimmed.combine_chunks()))
        if _mean(there) >= NUMERIC_SHARE:
            return Meaning("time", TIME, as_text=True, notation=notation)
    numeric = notation.are_numbers(trimmed)
    if _mean(numeric) >= NUMERIC_SHARE:
        return _number(trimmed.filter(numeric), notation)
    dates = pc.match_substring_regex(trimmed, DATE)
    if _mean(dates) < NUMERIC_SHARE:
        return CATEGORY
    # The parser trims numbers, but not dates.
    return _time(trimmed.filter(dates), as_text=not pc.all(pc.equal(texts, trimmed)).as_py())


def _mean(flags: pa.ChunkedArray) -> float:
    return pc.mean(flags).as_py()


def _number(texts: pa.ChunkedArray, notation: Notation) -> Meaning:
    """Whole numbers that float64 cannot represent stay exact; all others are float64."""
    texts = notation.to_plain(texts)
    for kind, type_ in (("int64", pa.int64()), ("uint64", pa.uint64())):
        try:
            bounds = pc.min_max(texts.cast(type_)).as_py()
        except pa.ArrowInvalid:
            continue
        if max(-bounds["min"], bounds["max"]) > EXACT:
            # As strings, so that a later 1.5 is not an error.
            exact: Kind = "int64" if kind == "int64" else "uint64"
            return Meaning(exact, type_, as_text=True, notation=notation)
        break
    return Meaning("float64", pa.float64(), as_text=not notation.plain, notation=notation)


def _time(dates: pa.ChunkedArray, *, as_text: bool) -> Meaning:
    zoned = _mean(pc.match_substring_regex(dates, ZONE)) >= NUMERIC_SHARE
    unit = "ns" if pc.any(pc.match_substring_regex(dates, FINE)).as_py() else "us"
    return Meaning("time", pa.timestamp(unit, "UTC" if zoned else None), as_text)


def cast_texts(
    texts: pa.Array, type_: pa.DataType, notation: Notation = PLAIN
) -> tuple[pa.Array, int | None]:
    """Strings as values of `type_`, and the index of the first that is not one (None: all are).

    Strings that cannot be converted become null.

    Examples
    --------
    >>> values, junk = cast_texts(pa.array(["1", " 2", "x", None]), pa.int64())
    >>> values.to_pylist(), junk
    ([1, 2, None, None], 2)
    """
    if pt.is_binary(texts.type):
        texts = _decode(texts)
    if is_text(type_):
        return texts, None
    if pt.is_dictionary(type_):
        return texts.dictionary_encode(), None
    texts = pc.utf8_trim_whitespace(texts)
    if pt.is_timestamp(type_) and notation.date_formats:
        times = notation.to_times(texts)
        junk = pc.index(pc.and_(texts.is_valid(), times.is_null()), True).as_py()
        return times, None if junk < 0 else junk
    texts = texts if pt.is_timestamp(type_) else notation.to_plain(texts)
    # Arrow reads 0x10 as sixteen in whole numbers, but not in others.
    if not pc.any(pc.match_substring(texts, "x", ignore_case=True)).as_py():
        try:
            return texts.cast(type_), None
        except pa.ArrowInvalid:
            pass
    # One by one, for a block with an odd cell.
    values: list[Any] = []
    junk = None
    for index, text in enumerate(texts.to_pylist()):
        value = None
        if text is not None:
            try:
                value = _cast_one(text, type_)
            except (ValueError, pa.ArrowInvalid):
                junk = index if junk is None else junk
        values.append(value)
    return _array(values, type_), junk


def _array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Numbers or timestamps of a type, some of them None."""
    null = np.array([value is None for value in values])
    if pt.is_timestamp(type_):
        whole = [0 if value is None else value.value for value in values]
        return from_numpy(np.array(whole, np.int64), null).view(type_)
    plain = [0 if value is None else value for value in values]
    return from_numpy(np.array(plain, type_.to_pandas_dtype()), null)


def _cast_one(text: str, type_: pa.DataType) -> Any:
    if pt.is_timestamp(type_):
        return pa.scalar(text).cast(type_)
    if not re.match(NUMBER, text):
        raise ValueError(text)
    return _whole(text, type_) if pt.is_integer(type_) else float(text)


def _whole(text: str, type_: pa.DataType) -> int | None:
    """A number rounded up to a whole number, clipped to the range of the type.

    A value is in the bin after all thresholds below it. The whole thresholds below 1.5 and below 2
    are the same, so rounding up keeps each value in its bin, and so does clipping.
    """
    value = Decimal(text)
    if value.is_nan():
        return None
    bounds = np.iinfo(type_.to_pandas_dtype())
    if value <= bounds.min or value >= bounds.max:  # also avoids expanding 1e999999
        return int(bounds.min if value < 0 else bounds.max) if value else 0
    whole = int(value)
    return whole + (value > whole)


def _decode(texts: pa.Array) -> pa.Array:
    """Bytes as strings; invalid UTF-8 becomes a replacement character."""
    try:
        return texts.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [None if t is None else t.decode(errors="replace") for t in texts.to_pylist()]
        return strings(decoded)


def trim_categories(values: pa.DictionaryArray, *, shorten: bool = False) -> pa.DictionaryArray:
    """Categories without surrounding spaces; empty ones are missing.

    With `shorten`, whole numbers lose their ".0", which some writers add to columns with missing
    values: the same numbers in a frame have none.

    Examples
    --------
    >>> trim_categories(pa.array([" a", "a", " "]).dictionary_encode()).to_pylist()
    ['a', 'a', None]
    >>> trim_categories(pa.array(["1.0", "1.5"]).dictionary_encode(), shorten=True).to_pylist()
    ['1', '1.5']
    """
    trimmed = pc.utf8_trim_whitespace(values.dictionary)
    if shorten:
        trimmed = pc.replace_substring_regex(trimmed, r"^(-?\d+)\.0+$", r"\1")
    if pc.all(pc.equal(trimmed, values.dictionary)).as_py():
        return values
    texts = trimmed.take(values.indices)
    return pc.if_else(pc.equal(texts, ""), None, texts).dictionary_encode()
