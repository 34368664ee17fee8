"""Statistics of the target by category, as features of numbers beside the category's own feature.

Of a column with more categories than bins, most rows are in the bin of all others. For each
category, found by a hash of its text, there are

    mean     of the target, smoothed: (S + a * prior) / (n + a); of classes, the share of one
    count    n, the rows that the mean is of

in bins, like the values of any number. Here they are as they are kept in a store and in a model,
from all rows. In the pass over these same rows, `fold_statistics.py` takes their place.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as pt

from sparrowboost.readers.arrays import from_numpy, nulls, to_numpy
from sparrowboost.readers.columns import categories, plain_words
from sparrowboost.store.lookup import Bins, read_only

Hashes = npt.NDArray[np.uint64]
# Of a category feature's JSON form; no object is within another, so that files can be cut apart.
KEYS = ("statistics", "statistics_thresholds", "unknown", "hashes", "bins", "made_of")


class FoldTable(Protocol):
    """What has the bins of categories, in each of f folds of the rows."""

    def bins_of(self, hashes: Hashes) -> Bins:
        """(m, f, k) bins of k features."""
        ...


class MadeOf(NamedTuple):
    """Which rows statistics were made from: the same rows in any order have equal ones."""

    rows: int
    checksum: int  # of the categories of all rows
    means: tuple[float, ...]  # of the targets over all rows

    def is_like(self, other: MadeOf, slack: float) -> bool:
        """Whether these are the same rows, with means that differ by no more than `slack`."""
        same = self[:2] == other[:2] and len(self.means) == len(other.means)
        return same and all(
            abs(a - b) <= slack for a, b in zip(self.means, other.means, strict=True)
        )


class CodedWords(NamedTuple):
    """A column as indices into hashes of its categories; the last index stands for missing."""

    codes: npt.NDArray[np.int32]  # (n,)
    hashes: Hashes  # (m,)

    def checksum(self) -> int:
        """Of the categories of all rows, in any order; that of rows together is the sum."""
        rows = np.bincount(self.codes, minlength=len(self.hashes) + 1)[:-1]
        return int((rows.astype(np.uint64) * self.hashes).sum(dtype=np.uint64))

    @classmethod
    def of(cls, name: str, array: pa.Array) -> CodedWords:
        """The categories of a column that are in use.

        Examples
        --------
        >>> CodedWords.of("x", pa.array(["b", None, "a", "b "])).codes
        array([0, 3, 1, 2], dtype=int32)
        """
        coded = categories(name, array)
        words = coded.dictionary
        m = len(words)
        codes = to_numpy(coded.indices.cast(pa.int32()), m)
        if words.null_count:
            codes = np.where(np.append(nulls(words), True)[codes], np.int32(m), codes)
        if m > len(codes):  # of a file's whole dictionary, a block has few
            used = np.flatnonzero(np.bincount(codes, minlength=m + 1)[:m])
            number = np.full(m + 1, len(used), np.int32)
            number[used] = np.arange(len(used))
            codes, words = number[codes], words.take(from_numpy(used))
        return cls(read_only(codes), hash_words(words))


def hash_words(words: pa.Array) -> Hashes:
    """64-bit hashes of texts in their plain form: FNV-1a of the UTF-8 bytes, mixed.

    Examples
    --------
    >>> hash_words(pa.array(["a", " a "])).tolist()
    [198367012849983736, 198367012849983736]
    """
    hashes, odd = _hashes(words)
    rows = np.flatnonzero(odd)
    if len(rows):
        hashes[rows] = _hashes(plain_words(words.take(from_numpy(rows))))[0]
    return hashes


def _hashes(words: pa.Array) -> tuple[Hashes, Bins]:
    from sparrowboost.kernels.categories import hash_texts

    assert pt.is_string(words.type)
    hashes, odd = np.zeros(len(words), np.uint64), np.zeros(len(words), np.uint8)
    if len(words) and words.null_count < len(words):
        _, offsets, data = words.buffers()
        first = 4 * words.offset
        starts = np.frombuffer(offsets, np.int32, len(words) + 1, first)
        text = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        hash_texts(read_only(starts), read_only(text), hashes, odd)
    return hashes, odd


@dataclass(frozen=True, eq=False)
class CategoryStatistics:
    """The statistics of a column, from all rows of the training data.

    Parameters
    ----------
    column : str
    names : tuple of k str
        Of the features.
    thresholds : tuple of k arrays
        Between the bins of each, float32.
    unknown : (k,) uint8
        The bins of a category that was not seen: those of the prior, and of 0.
    hashes : (n,) uint64
        Of the categories, ascending.
    bins : (n, k) uint8
    made_of : MadeOf

    Examples
    --------
    >>> statistics = CategoryStatistics(
    ...     "x", ("x (mean)", "x (count)"), (np.float32([0.5]), np.float32([0.5, 1.5])),
    ...     np.uint8([0, 0]), np.sort(hash_words(pa.array(["red", "blue"]))),
    ...     np.uint8([[0, 2], [1, 1]]), MadeOf(3, 0, (0.5,)))
    >>> statistics.bins_of(hash_words(pa.array(["green", "red"])))[:, 0].tolist()
    [[0, 0], [0, 2]]
    """

    column: str
    names: tuple[str, ...]
    thresholds: tuple[npt.NDArray[np.float32], ...]
    unknown: Bins
    hashes: Hashes
    bins: Bins
    made_of: MadeOf

    def bins_of(self, hashes: Hashes) -> Bins:
        """(m, 1, k) bins of categories, the same for all rows."""
        return self.table[self._find(hashes)][:, None]

    def _find(self, hashes: Hashes) -> npt.NDArray[np.intp]:
        """Rows of `table`."""
        if not len(self.hashes):
            return np.zeros(len(hashes), np.intp)
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.where(self.hashes[at] == hashes, at, len(self.hashes))

    @cached_property
    def table(self) -> Bins:
        """(n + 1, k) the bins of each category, then those of one that was not seen."""
        return np.concatenate((self.bins, self.unknown[None]))

    @property
    def missing(self) -> Bins:
        """(k,) the bin of missing values of each feature."""
        return np.array([len(cuts) + 1 for cuts in self.thresholds], np.uint8)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "table"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)

    def to_json(self) -> dict[str, Any]:
        return {
            "statistics": list(self.names),
            "statistics_thresholds": [cuts.tolist() for cuts in self.thresholds],
            "unknown": self.unknown.tolist(),
            "hashes": b64encode(self.hashes.astype("<u8").tobytes()).decode(),
            "bins": b64encode(self.bins.tobytes()).decode(),
            "made_of": [self.made_of.rows, f"{self.made_of.checksum:016x}", *self.made_of.means],
        }

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> CategoryStatistics:
        """Of the JSON form of a category feature that has statistics."""
        k = len(item["statistics"])
        rows, checksum, *means = item["made_of"]
        return cls(
            item["name"],
            tuple(item["statistics"]),
            tuple(np.array(cuts, np.float32) for cuts in item["statistics_thresholds"]),
            np.array(item["unknown"], np.uint8),
            np.frombuffer(b64decode(item["hashes"], validate=True), "<u8").astype(np.uint64),
            np.frombuffer(b64decode(item["bins"], validate=True), np.uint8).reshape(-1, k),
            MadeOf(rows, int(checksum, 16), tuple(means)),
        )
