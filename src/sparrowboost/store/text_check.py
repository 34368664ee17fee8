"""Warnings of text columns that are hardly meant as categories: ids, free text, numbers, dates.

Text is read as categories, of which 254 have a bin of their own. That is judged by the sample that
bins are found on; columns that the user called categorical are not looked at.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sparrowboost.readers.arrays import strings, to_numpy
from sparrowboost.readers.notation import are_plain_numbers, look_like_dates, look_like_numbers
from sparrowboost.runtime.progress import log
from sparrowboost.store.binning import MAX_CATEGORIES

MOST = 0.5  # share of the rows that look like numbers or dates, as in readers/infer.py
SOME_LOCAL = 0.02  # of them must not be plain numbers, or plain ones are codes, such as 404
MIN_TEXTS = 3  # distinct ones: fewer are hardly numbers or dates
ID_ROWS = 100  # in fewer, that nearly all values differ means nothing
ALL_DIFFER = 0.9  # distinct values per row
# The same when the first rare ones were dropped: of 20,000 categories, 2,000 are in 2,108 rows.
ALL_DIFFERED = 0.95
MANY_OTHERS = 0.1  # of the rows: worth a word
SOME_OTHERS = 0.01  # worth statistics of the target by category
# Of the most frequent texts, which are looked at: so many, and so many characters of each.
LOOKED_AT, LOOKED_AT_CHARS = 5_000, 80
NUMBERS_TO_DO = "convert them, or for CSV files pass decimal= and thousands="
WITHOUT_SIGNS = re.compile(r"\s*[+-]?[\d.,'\u2019\s]+")  # numbers that these options can be for
SHOWN, SHOWN_CHARS = 5, 40  # columns with a line of their own; characters of an example


@dataclass
class Tally:
    """How often categories occur; the rarest are dropped when there are too many."""

    counts: Counter[str] = field(default_factory=Counter)
    n_rows: int = 0  # with a value
    weight: float = 0.0  # of these rows: their number, if they have no weights
    dropped: str | None = None  # a category that was dropped
    early: tuple[int, int] = (0, 0)  # distinct values and rows when any were first dropped

    def add(self, names: Sequence[str | None], counts: Sequence[float], n_rows: int) -> None:
        own: dict[str, float] = self.counts  # type: ignore[assignment]
        for name, count in zip(names, counts, strict=True):
            if name is not None and count:
                own[name] = own.get(name, 0) + count
                self.weight += count
        self.n_rows += n_rows

    def update(self, other: Tally) -> None:
        self.counts.update(other.counts)
        self.n_rows += other.n_rows
        self.weight += other.weight
        self.dropped = self.dropped or other.dropped
        self.early = self.early if self.early[1] else other.early

    def drop_rarest(self, maximum: int) -> None:
        """Drop the rarest categories until at most `maximum` are left."""
        rare = 1
        while len(self.counts) > maximum:
            if not self.early[1]:
                self.early = len(self.counts), self.n_rows
            for name in [name for name, count in self.counts.items() if count <= rare]:
                self.dropped = name
                del self.counts[name]
            rare += 1

    @property
    def all_differ(self) -> bool:
        """Whether nearly every row has a value of its own."""
        distinct, rows = self.early
        if rows:
            return distinct >= ALL_DIFFERED * rows
        return self.n_rows >= ID_ROWS and len(self.counts) >= ALL_DIFFER * self.n_rows

    @property
    def others(self) -> float:
        """The share of the rows whose category has no bin of its own."""
        known = sum(count for _, count in self.counts.most_common(MAX_CATEGORIES))
        return 1 - known / self.weight if self.weight else 0.0


def find_fault(name: str, tally: Tally, *, statistics: bool = False) -> str | None:
    """What to warn of a text column, or None.

    With statistics of all categories, it does not matter how many have no bin of their own, and
    their pass knows whether nearly all values differ.

    Examples
    --------
    >>> tally = Tally()
    >>> tally.add(["1,234", "999", "2,100"], [5, 3, 2], 10)
    >>> print(find_fault("price", tally).partition(";")[0])
    column 'price': text that looks like numbers ('1,234') is read as categories
    >>> tally = Tally()
    >>> tally.add(["red", "green"], [5, 3], 8)
    >>> find_fault("color", tally)
    """
    texts = tally.counts or Counter([tally.dropped] if tally.dropped is not None else [])
    if not texts:
        return None
    example = max(texts, key=lambda text: (texts[text], text))
    head, advice = f"column {name!r}: ", f"categorical={[name]!r}"
    kind = _notation(texts)
    if kind is not None:
        what, example, to_do = kind
        head += f"text that looks like {what} ({_short(example)}) is read as categories"
        advice = f"{to_do}; if they are categories, pass {advice}"
    elif statistics:
        return None
    elif tally.all_differ:
        head += f"nearly all values differ ({_short(example)}), as those of an id or of free text"
        advice = f"leave it out (exclude={[name]!r}), or pass {advice} to keep it"
    elif tally.others >= MANY_OTHERS:
        head += f"text of many values ({_short(example)}) is read as categories"
        advice = f"join rare ones, or pass {advice} to accept it"
    else:
        return None
    if tally.others >= MANY_OTHERS and not statistics:
        share = min(0.99, tally.others) if tally.counts else 1
        head += (
            f", and {share:.0%} of the rows have none of the {MAX_CATEGORIES} most frequent ones, "
            "which alone have a bin each"
        )
    return f"{head}; {advice}."


def _notation(texts: Counter[str]) -> tuple[str, str, str] | None:
    """What most rows of the texts look like, an example, and what to do; None if nothing."""
    if len(texts) < MIN_TEXTS:
        return None
    some = texts.most_common(LOOKED_AT)
    array = strings([text[:LOOKED_AT_CHARS] for text, _ in some])
    counts = np.array([count for _, count in some], np.float64)
    share = counts / counts.sum()
    for what, looks, to_do in (
        ("dates", look_like_dates, "convert them, or for CSV files pass date_format="),
        ("numbers", look_like_numbers, NUMBERS_TO_DO),
    ):
        alike = to_numpy(looks(array).cast("uint8")).astype(bool)
        if share[alike].sum() < MOST:
            continue
        odd = alike
        if what == "numbers":
            odd = alike & ~to_numpy(are_plain_numbers(array).cast("uint8")).astype(bool)
            if share[odd].sum() < SOME_LOCAL:
                odd = alike
                if len(texts) <= MAX_CATEGORIES:
                    return None
        example = array[int(np.argmax(np.where(odd, counts, -1)))].as_py()
        if what == "numbers" and not WITHOUT_SIGNS.fullmatch(example):
            to_do = "convert them: remove signs such as $ and %, units and parentheses"
        return what, example, to_do
    return None


def _short(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "...")


def warn_of_texts(faults: Iterable[tuple[str, str]]) -> None:
    """Log the faults of columns, given with their names; of many, the first ones."""
    faults = list(faults)
    for _, fault in faults[:SHOWN]:
        log.warning("%s", fault)
    if rest := [name for name, _ in faults[SHOWN:]]:
        more = ", ..." if len(rest) > SHOWN else ""
        log.warning(
            "the same goes for %d more text columns: %s%s",
            len(rest), ", ".join(map(repr, rest[:SHOWN])), more,
        )  # fmt: skip
