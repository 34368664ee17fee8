"""How the rows of wide and sparse tables are packed: the bins that are not those of zero.

`kernels/packed.py` has the format. All rows of a data set have the same number of bytes, so that
they are shuffled, drawn and put back as rows of plain bins are. What does not fit is the row's
tail: `choose_words` weighs the bytes of all rows against those of tails, which stay in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparrowboost.kernels.packed import (
    DROPPED,
    MOST_GAP,
    TAIL_WORDS,
    bin_entries,
    pack_rows,
    unpack_features,
)
from sparrowboost.readers.sparse import SparseBatch, number_of
from sparrowboost.runtime.errors import DataError
from sparrowboost.store.binning import Binning, NumberFeature
from sparrowboost.store.lookup import Bins

WORD_BYTES = 2
TAIL_BYTES = 8  # where a tail ends
TAIL_COST = 4  # of a byte of a tail, which stays in memory, in bytes of rows

Words = npt.NDArray[np.uint16]
Packed = npt.NDArray[np.uint8]  # (n, width) bytes of words
Counts = npt.NDArray[np.int64]


class Tails(NamedTuple):
    """What does not fit into the rows that are longer than others."""

    ends: (
        Counts  # (t + 1,) tail k, from 1 on, is words[ends[k - 1]:ends[k]]; (0,) if there are none
    )
    words: Words

    @property
    def n_bytes(self) -> int:
        return self.ends.nbytes + self.words.nbytes


NO_TAILS = Tails(np.empty(0, np.int64), np.empty(0, np.uint16))


class Shape(NamedTuple):
    """How long packed rows are."""

    words: int  # of each row, with the number of its tail
    tailed: bool  # whether rows may have tails
    values: float  # mean number of bins of a row
    tail_bytes: int = 0  # of all tails, at most


@dataclass(frozen=True, eq=False)
class Thresholds:
    """The bins of numbers as flat arrays, for kernels."""

    at: Counts  # (d + 1,) thresholds of feature f are cuts[at[f]:at[f + 1]]
    cuts: npt.NDArray[np.float64]
    zero: npt.NDArray[np.uint8]  # (d,) the bin of zero

    @classmethod
    def of(cls, binning: Binning) -> Thresholds:
        own = [f.thresholds for f in binning.features if isinstance(f, NumberFeature)]
        assert len(own) == len(binning.features)
        at = np.concatenate(([0], np.cumsum([len(cuts) for cuts in own], dtype=np.int64)))
        cuts = np.concatenate(own).astype(np.float64) if own else np.empty(0)
        below = np.concatenate(([0], np.cumsum(cuts < 0)))
        return cls(at, cuts, np.diff(below[at]).astype(np.uint8))

    def bins(self, batch: SparseBatch, numbers: FeatureNumbers) -> Bins:
        """(n, d) bins of rows."""
        bins = np.empty((batch.num_rows, len(self.zero)), np.uint8)
        rows = batch.start, batch.index, batch.value
        bin_entries(*rows, numbers.up_to(batch), self.at, self.cuts, self.zero, bins)
        return bins


def has_numbers(feature: Any) -> bool:
    """Whether a feature can be read from sparse rows."""
    return isinstance(feature, NumberFeature) and feature.kind in ("float32", "float64")


class FeatureNumbers:
    """Which numbered column has which feature."""

    def __init__(self, names: Sequence[str]) -> None:
        numbers = np.array([number_of(name) for name in names], np.int64)
        self._of = np.full(int(numbers.max(initial=-1)) + 1, DROPPED, np.int32)
        self._of[numbers[numbers >= 0]] = np.flatnonzero(numbers >= 0)

    def up_to(self, batch: SparseBatch) -> npt.NDArray[np.int32]:
        """(columns,) the feature of each column, or DROPPED, at least of those of a batch."""
        found = self._of  # which another thread may replace
        more = int(batch.index.max(initial=-1)) + 1 - len(found)
        if more > 0:
            self._of = found = np.append(found, np.full(more, DROPPED, np.int32))
        return found


class Packing:
    """How the rows of a data set are packed.

    Parameters
    ----------
    binning : Binning
    shape : Shape
    order : (d,) int
        The features in the order of their codes, the most frequent first: what is added to evidence
        most often then lies together.
    missing : bool
        Whether bins of missing values have codes.

    Attributes
    ----------
    first, last : (d,) int64
        The codes of each feature: first, ..., last - 1.
    zero : (d,) uint8
        The bin of zero, which has none.
    """

    def __init__(
        self, binning: Binning, shape: Shape, order: npt.ArrayLike, *, missing: bool
    ) -> None:
        self.thresholds, self.shape, self.missing = Thresholds.of(binning), shape, missing
        self.zero, self.order = self.thresholds.zero, np.asarray(order, np.int64)
        n_codes = np.diff(self.thresholds.at) + missing
        self.last: Counts = np.empty_like(n_codes)
        self.last[self.order] = 1 + np.cumsum(n_codes[self.order])
        self.first: Counts = self.last - n_codes
        self.tails = NO_TAILS
        if shape.tailed:
            self.tails = Tails(np.zeros(1, np.int64), NO_TAILS.words)

    @property
    def width(self) -> int:
        """Bytes of a packed row."""
        return WORD_BYTES * self.shape.words

    @property
    def n_codes(self) -> int:
        return int(self.last.max(initial=1)) - 1

    @property
    def tail_bytes(self) -> int:
        """Bytes of all tails, at most."""
        return max(self.shape.tail_bytes, self.tails.n_bytes)

    @cached_property
    def longest(self) -> int:
        """Codes of a row, at most; once the tails are known."""
        return self.shape.words + int(np.diff(self.tails.ends).max(initial=0))

    def rows(self, packed: Packed) -> tuple[Words, Counts, Words, int]:
        """What kernels take for packed rows."""
        return packed.view(np.uint16), *self.tails, self.longest

    def unpack(self, packed: Packed, features: Counts) -> Bins:
        """(n, k) the bins of some features."""
        bins = np.empty((len(packed), len(features)), np.uint8)
        of = self.first[features], self.last[features], self.zero[features]
        unpack_features(*self.rows(packed), *of, bins)
        return bins

    def all_bins(self, sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """(2, bins) sums of all bins of all features, from those (2, n_codes + 1) of the codes."""
        d, zero = len(self.zero), self.zero.astype(np.int64)
        n_codes = self.last - self.first
        n_bins = np.diff(self.thresholds.at) + 2  # with that of missing values
        start = np.cumsum(n_bins) - n_bins
        feature = np.repeat(self.order, n_codes[self.order])
        b = np.arange(self.n_codes) + 1 - self.first[feature]
        out = np.zeros((2, int(n_bins.sum())))
        out[:, start[feature] + b + (b >= zero[feature])] = sums[:, 1:]
        for total, own in zip(sums, out, strict=True):
            own[start + zero] = total[0] - np.bincount(feature, total[1:], d)
        return out


class Packer:
    """Packs rows; the tails come in the order of the rows.

    Parameters
    ----------
    packing : Packing
    names : list of str
        Of the columns with the features.
    name : str
        Of the source, in messages.
    """

    def __init__(self, packing: Packing, names: Sequence[str], name: str) -> None:
        self.packing, self._numbers, self._name = packing, FeatureNumbers(names), name
        self._sizes: list[Counts] = [np.zeros(1, np.int64)]
        self._words: list[Words] = []
        self._n_tails = 0

    def pack(self, batch: SparseBatch, out: Packed) -> tuple[Counts, Words]:
        """Pack rows into `out` (n, width); their tails' lengths and words, for `take`."""
        of, shape = self.packing.thresholds, self.packing.shape
        rows = batch.start, batch.index, batch.value
        words = np.empty((batch.num_rows, shape.words - TAIL_WORDS * shape.tailed), np.uint16)
        sizes = np.zeros(batch.num_rows, np.int64)
        most = len(batch.index) + batch.num_rows * (self.packing.n_codes // MOST_GAP)
        tails = np.empty(most if shape.tailed else 0, np.uint16)
        limits = of.at, of.cuts, of.zero, self.packing.first, self.packing.last
        bad = pack_rows(*rows, self._numbers.up_to(batch), *limits, words, sizes, tails)
        if bad >= 0:
            raise DataError(
                f"{self._name}: column f{batch.index[bad]} has a missing value that was not there "
                "before; try again when nothing writes to it."
            )
        out[:] = 0
        out[:, : WORD_BYTES * words.shape[1]] = words.view(np.uint8)
        return sizes, tails[: sizes.sum()].copy()

    def take(self, out: Packed, sizes: Counts, tails: Words) -> None:
        """Number the tails of rows that were packed; blocks are taken in their order."""
        long = np.flatnonzero(sizes)
        if not len(long):
            return
        numbers = np.arange(1, len(long) + 1, dtype="<u4") + np.uint32(self._n_tails)
        out[long, -WORD_BYTES * TAIL_WORDS :] = numbers.view(np.uint8).reshape(-1, 4)
        self._n_tails += len(long)
        self._sizes.append(sizes[long])
        self._words.append(tails)

    def finish(self) -> Tails:
        """All tails; the packing then has them."""
        if self.packing.shape.tailed:
            ends = np.cumsum(np.concatenate(self._sizes))
            self.packing.tails = Tails(ends, np.concatenate([NO_TAILS.words, *self._words]))
        vars(self.packing).pop("longest", None)
        return self.packing.tails


def choose_words(lengths: Counts, n_codes: int, most_bytes: int) -> Shape:
    """How many words a row has, from the number of rows of each number of entries.

    A row of that many words may waste some; the words of longer ones beyond are in tails, of which
    there are at most so many bytes.

    Examples
    --------
    >>> choose_words(np.array([0, 0, 10]), 100, 1000)
    Shape(words=2, tailed=False, values=2.0, tail_bytes=0)
    >>> choose_words(np.array([0, 1000, *[0] * 97, 1]), 100, 1000)
    Shape(words=3, tailed=True, values=1.097902097902098, tail_bytes=212)
    """
    n = int(lengths.sum())
    used = np.flatnonzero(lengths)
    more = n_codes // MOST_GAP  # words that lead over large gaps, at most
    longest = max(int(used.max(initial=0)) + more, 1)
    values = float(lengths @ np.arange(len(lengths))) / max(n, 1)
    best, cost = Shape(longest, False, values), WORD_BYTES * n * longest
    for words, tails, bytes_ in _with_tails(lengths, used, more):
        if bytes_ > most_bytes or tails >= 1 << 32:
            continue
        own = WORD_BYTES * n * (words + TAIL_WORDS) + TAIL_COST * bytes_
        if own < cost:
            best, cost = Shape(words + TAIL_WORDS, True, values, bytes_), own
    return best


def _with_tails(lengths: Counts, used: Counts, more: int) -> Iterator[tuple[int, int, int]]:
    """Words of a row, and the tails beyond them with their bytes, for each length of a row."""
    rows = lengths[used]
    beyond = np.cumsum(rows[::-1])[::-1] - rows  # rows that are longer
    entries = rows * (used + more)
    total = np.cumsum(entries[::-1])[::-1] - entries  # words of these
    for length, n, words in zip(used.tolist(), beyond.tolist(), total.tolist(), strict=True):
        own = length + more
        if own and n:
            yield own, n, WORD_BYTES * (words - n * own) + TAIL_BYTES * (n + 1)
