"""How texts write numbers and dates: as the user says, or whether they look like any."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparrowboost.readers.arrays import from_numpy, strings, to_numpy
from sparrowboost.runtime.errors import DataError

INFINITE = r"[+-]?(?i:inf|infinity|nan)"
NUMBER = rf"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$|^{INFINITE}$"
DATE = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([ T][0-9]{2}(:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)?)?$"
)
TIME = pa.timestamp("us")
FORMAT = re.compile(r"[^%]*(%[YymbBdHIpMS][^%]*)+")  # what both Python and Arrow can read
SAMPLE = datetime(2003, 11, 24, 17, 45, 36)  # to try date formats with
# What other characters may stand for a mark of thousands.
TWINS = {" ": " \u00a0\u202f", "'": "'\u2019"}


@dataclass(frozen=True)
class Notation:
    """How a file writes numbers and dates.

    Examples
    --------
    >>> notation = Notation(",", ".")
    >>> texts = pa.array(["1.234,5", "12", "1.5", "x"])
    >>> notation.are_numbers(texts).to_pylist(), notation.to_plain(texts).to_pylist()
    ([True, True, False, False], ['1234.5', '12', '?1.5', '?x'])
    """

    decimal: str = "."
    thousands: str | None = None
    date_formats: tuple[str, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether numbers are written as usual in CSV files."""
        return self.decimal == "." and self.thousands is None

    @cached_property
    def _number(self) -> str:
        """A pattern of numbers. Groups have three digits, or two as in 1,23,456."""
        if self.plain:
            return NUMBER
        mark, whole = _any_of(self.decimal), "[0-9]+"
        if self.thousands is not None:
            group = _any_of(TWINS.get(self.thousands, self.thousands))
            whole = f"(?:[0-9]{{1,3}}(?:{group}[0-9]{{2,3}})*{group}[0-9]{{3}}|[0-9]+)"
        return f"^[+-]?(?:{whole}(?:{mark}[0-9]*)?|{mark}[0-9]+)(?:[eE][+-]?[0-9]+)?$|^{INFINITE}$"

    def are_numbers(self, texts: Any) -> Any:
        """Which of the texts, without surrounding spaces, are numbers."""
        return pc.match_substring_regex(texts, self._number)

    def to_plain(self, texts: Any) -> Any:
        """Numbers as usual in CSV files; what is none here begins with a question mark.

        With a decimal comma 1.5 is no number: that it would be one elsewhere must not count.
        """
        if self.plain:
            return texts
        good = self.are_numbers(texts)
        plain = texts
        if self.thousands is not None:
            group = _any_of(TWINS.get(self.thousands, self.thousands))
            plain = pc.replace_substring_regex(plain, group, "")
        if self.decimal != ".":
            plain = pc.replace_substring(plain, self.decimal, ".")
        if pc.all(good).as_py() is not False:
            return plain
        return pc.if_else(good, plain, pc.binary_join_element_wise("?", texts, ""))

    def to_times(self, texts: pa.Array) -> pa.Array:
        """Times of texts in one of the formats; null for the others.

        Examples
        --------
        >>> texts = pa.array(["31.12.2024", "31.02.2024", "31.12.24"])
        >>> [time and str(time.date()) for time in
        ...  Notation(date_formats=("%d.%m.%Y",)).to_times(texts).to_pylist()]
        ['2024-12-31', None, None]
        """
        coded = texts.dictionary_encode()
        times = pa.nulls(len(coded.dictionary), TIME)
        for date_format in self.date_formats:
            times = pc.coalesce(times, _read_times(coded.dictionary, date_format))
        return times.take(coded.indices)


PLAIN = Notation()


def _any_of(characters: str) -> str:
    """A pattern of any of these characters."""
    return "[" + "".join(f"\\x{{{ord(c):x}}}" for c in characters) + "]"


def _read_times(texts: pa.Array, date_format: str) -> pa.Array:
    """Times of distinct texts in a format, null for the others."""
    times = pc.strptime(texts, format=date_format, unit="us", error_is_null=True).cast(TIME)
    if re.fullmatch("(%[a-zA-Z])+", date_format):  # 123456 is no %Y%m%d
        whole = pc.equal(pc.utf8_length(texts), len(SAMPLE.strftime(date_format)))
        times = pc.if_else(whole, times, None)
    # The system's strptime takes 31.02. for the 2nd of March, and 24 for the year 24. Python's is
    # strict, but slow, so it gets only what may be such a case.
    odd = pc.or_(pc.less_equal(pc.day(times), 3), pc.less(pc.year(times), 1000))
    wrong = np.zeros(len(texts), bool)
    for index in np.flatnonzero(to_numpy(odd.fill_null(False).cast(pa.uint8()))).tolist():
        try:
            datetime.strptime(texts[index].as_py(), date_format)
        except ValueError:
            wrong[index] = True
    return pc.if_else(from_numpy(wrong), None, times) if wrong.any() else times


def check_date_format(date_format: Any) -> None:
    """A DataError unless this is a format in which dates can be read."""
    good = isinstance(date_format, str) and FORMAT.fullmatch(date_format) is not None
    if good:
        text = SAMPLE.strftime(date_format)
        try:
            again = datetime.strptime(text, date_format)
        except (ValueError, re.error):  # such as a directive given twice
            good = False
        else:
            good = _read_times(strings([text]), date_format)[0].as_py() == again
    if not good:
        raise DataError(
            f"date_format={date_format!r} (--date-format): not a format of dates; give one such as "
            "'%d.%m.%Y' or '%m/%d/%Y %H:%M', with any of %Y %y %m %b %B %d %H %I %p %M %S."
        )


CURRENCY = r"(?:[$€£¥₹]|USD|EUR|GBP|CHF|JPY)"
# 1,234.5 or 1.234,5 or 1 234,5 or 1'234.5, in groups of three or as in India; 1234,5 and plain.
DIGITS = (
    r"(?:[0-9]{1,3}(?:[.,'’ \x{00a0}\x{202f}][0-9]{2,3})*[.,'’ \x{00a0}\x{202f}][0-9]{3}"
    r"(?:[.,][0-9]+)?|[0-9]+(?:[.,][0-9]*)?|[.,][0-9]+)(?:[eE][+-]?[0-9]+)?"
)
SIGN = r"[+\-\x{2212}]?"
ANY_NUMBER = (
    rf"^\(?{SIGN}\s*(?:{CURRENCY}\s*)?{SIGN}{DIGITS}\s*(?:{CURRENCY}|[%\x{{2030}}])?-?\)?$|{NUMBER}"
)
CLOCK = r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?(?: ?[AaPp]\.?[Mm]\.?)?"
DAY = r"(?:0?[1-9]|[12][0-9]|3[01])"
MONTH = r"(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[A-Za-z]*\.?"
YEAR = r"(?:[12][0-9]{3}|[0-9]{2})"
ANY_DATE = (
    rf"^(?:{DAY}[./-]{DAY}[./-]{YEAR}|[12][0-9]{{3}}[./]{DAY}[./]{DAY}"
    rf"|{DAY}[ .-]+{MONTH}[ ,-]*{YEAR}|{MONTH} {DAY},? {YEAR})(?:[, T]+{CLOCK})?$"
    rf"|^{CLOCK}$|{DATE}"
)


def find_groups(texts: Any) -> str | None:
    """A text such as 1.250 among numbers of which all may be whole ones with dots between groups.

    That is so if every fraction has three digits, some of which end in 0, and no number below 1 has
    one, but others are whole: neither a fixed nor the shortest number of digits gives that.

    Examples
    --------
    >>> find_groups(pa.array(["1.250", "12.345", "999"]))
    '1.250'
    >>> find_groups(pa.array(["1.25", "12.345", "999"])), find_groups(pa.array(["1.250", "5.000"]))
    (None, None)
    """
    whole = pc.match_substring_regex(texts, "^[+-]?[0-9]{1,3}$")
    grouped = pc.match_substring_regex(texts, r"^[+-]?[1-9][0-9]{0,2}\.[0-9]{3}$")
    round_ = pc.and_(grouped, pc.ends_with(texts, "0"))
    if not pc.all(pc.or_(whole, grouped)).as_py() or not pc.any(whole).as_py():
        return None
    examples = texts.filter(round_)
    return str(examples[0].as_py()) if len(examples) else None


def look_like_numbers(texts: pa.Array) -> pa.Array:
    """Which of the texts may be numbers in some notation: 1,234.5 or 3,5 % or $5.

    Examples
    --------
    >>> texts = pa.array(["1,234", "1.234,5", "-3,5 %", "$5", "12", "A12", "1.2.3", "10-20"])
    >>> look_like_numbers(texts).to_pylist()
    [True, True, True, True, True, False, False, False]
    """
    return pc.match_substring_regex(pc.utf8_trim_whitespace(texts), ANY_NUMBER)


def are_plain_numbers(texts: pa.Array) -> pa.Array:
    """Which of the texts are numbers as Python and CSV files without options have them."""
    return pc.match_substring_regex(pc.utf8_trim_whitespace(texts), NUMBER)


def look_like_dates(texts: pa.Array) -> pa.Array:
    """Which of the texts may be dates or times in some notation.

    Examples
    --------
    >>> texts = pa.array(["31.12.2024", "12/31/24 10:00", "31 Dec 2024", "2024-12-31", "99.99.24"])
    >>> look_like_dates(texts).to_pylist()
    [True, True, True, True, False]
    """
    return pc.match_substring_regex(pc.utf8_trim_whitespace(texts), ANY_DATE)
