"""Sums of the target by category and fold, and the statistics that follow from them.

Rows are dealt out to folds by a hash of their number. A row that training sees has the statistics
of its category from the rows of all other folds, so that its own label is not among them:

    mean = (S - S_fold + a * prior) / (n - n_fold + a),      count = n - n_fold

Rows that are predicted have them from all rows. For these, S and n are multiplied by 1 - 1 / folds,
so that a mean and a count say the same as in training.

More folds give more rows to each mean. But a tree that tells a category's folds apart, by their
slightly different means, learns from them which labels a fold has itself: what a mean lacks.
docs/ingest.md has what was measured.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.store.binning import Binning, RowFolds
from sparrowboost.store.category_statistics import CategoryStatistics, CodedWords, Hashes, MadeOf
from sparrowboost.store.lookup import Bins

N_FOLDS = 4
MAX_MEANS = 8  # classes whose shares are features, of more than two: the most frequent ones
SMOOTHING = 10.0  # rows of the prior that are added to each category
FIRST_CATEGORIES = 1 << 12  # that the table is made for at first
LOAD = 2  # places of the table for each category, at least
SAMPLED_SUMS = 1 << 18  # of which thresholds are made
CHUNK = 1 << 14  # categories whose bins are found at once
KEPT = 0.5  # share of the categories that may stay when there are too many
KEPT_SHARE = 16  # of the memory limit, for the statistics of all columns while rows are read
MIN_KEPT = 1_000  # categories of a column that these are of, if it has so many
LEAST_HASHES = 1 << 12  # by which categories are counted that were dropped: to 1.6 %

Floats = npt.NDArray[np.float64]
# Values and how often each occurs -> thresholds.
FindThresholds = Callable[[npt.NDArray[Any], npt.NDArray[Any]], npt.NDArray[Any]]


def category_bytes(n_targets: int) -> int:
    """Bytes that a category of a column takes while its sums are made."""
    table = 12 * 2 * LOAD  # twice as many places as needed, at most
    return 8 * N_FOLDS * (1 + n_targets) + 8 + table + table // 2  # while it is made anew


def kept_bytes(n_targets: int) -> int:
    """Bytes that a category of a column takes when its statistics are made."""
    return 12 * 2 * LOAD + (N_FOLDS + 1) * (1 + n_targets) + 8


def kept_categories(limit: int, n_columns: int, n_targets: int) -> int:
    """Categories of which each of some columns may keep statistics."""
    return max(MIN_KEPT, limit // (KEPT_SHARE * n_columns * kept_bytes(n_targets)))


@dataclass(frozen=True, eq=False)
class FoldedStatistics:
    """The statistics of a column for rows that they were made from.

    Parameters
    ----------
    keys, slots : arrays
        The table of hashes, as in `kernels/categories.py`.
    bins : (n + 1, f, k) uint8
        Of each category in each fold; last, those of one that is not in the table.
    """

    keys: Hashes
    slots: npt.NDArray[np.int32]
    bins: Bins

    def bins_of(self, hashes: Hashes) -> Bins:
        """(m, f, k) bins of categories."""
        return self.bins[find(hashes, self.keys, self.slots)]


def find(hashes: Hashes, keys: Hashes, slots: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Slots of hashes; -1 of those that are not in the table."""
    from sparrowboost.kernels.categories import find_hashes

    out = np.empty(len(hashes), np.int32)
    find_hashes(hashes, keys, slots, out)
    return out


def folds_of(first_row: int, n: int, seed: int) -> npt.NDArray[np.uint8]:
    """(n,) the folds of the rows from a number on."""
    from sparrowboost.kernels.categories import draw_folds

    folds = np.empty(n, np.uint8)
    # Another seed than that of the shuffle, whose hash is the same.
    mixed = np.random.SeedSequence([seed, N_FOLDS]).generate_state(1, np.uint64)[0]
    draw_folds(np.uint64(first_row), mixed, np.uint64(N_FOLDS), folds)
    return folds


class FoldSums:
    """Sums of weights and targets of a column, by category and fold.

    Where there are more categories than may be, the rarest are dropped, with what was counted of
    them so far.

    Parameters
    ----------
    column : str
    n_targets : int
        1, or a number of classes.
    max_categories : int
        More than any block has.

    Attributes
    ----------
    most : int
        Categories that may be kept for now, at most `max_categories`.
    n_categories : int
        That are kept.
    peak : int
        The most that were kept at any time: what memory was written to.
    drops : bool
        Whether some were dropped.
    """

    def __init__(self, column: str, n_targets: int, max_categories: int) -> None:
        self.column, self.n_categories, self.drops = column, 0, False
        self.most, self.peak = max_categories, 0
        self._k = 1 + n_targets
        self._least = np.empty(0, np.uint64)  # the least of all hashes, ascending
        self._rows = self._checksum = 0
        self.max_categories = max_categories
        self._hashes = lazy_zeros(max_categories).view(np.uint64)
        self._sums = lazy_zeros(max_categories, N_FOLDS, self._k)
        self._make_table(FIRST_CATEGORIES)

    def _make_table(self, n: int) -> None:
        """Make the table anew, for n categories."""
        places = 1 << (LOAD * n - 1).bit_length()
        self._keys, self._slots = np.zeros(places, np.uint64), np.full(places, -1, np.int32)
        known, self.n_categories = self._hashes[: self.n_categories].copy(), 0
        self._insert(known)

    def _insert(self, hashes: Hashes) -> None:
        from sparrowboost.kernels.categories import insert_hashes

        table = self._keys, self._slots, self._hashes, self.n_categories
        self.n_categories = insert_hashes(hashes, *table)

    def add(self, words: CodedWords, folds: npt.NDArray[np.uint8], values: Floats) -> None:
        """Add the rows of a block: their weights and targets are the `values` (k, n)."""
        from sparrowboost.kernels.categories import add_to_folds

        n_new = int(np.count_nonzero(find(words.hashes, self._keys, self._slots) < 0))
        if self.n_categories + n_new > self.most:
            self._drop_rarest(len(words.hashes))
        if LOAD * (self.n_categories + len(words.hashes)) > len(self._keys):
            self._make_table(self.n_categories + len(words.hashes))
        self._insert(words.hashes)
        self.peak = max(self.peak, self.n_categories)
        self._keep_least(words.hashes)
        self._rows += len(words.codes)
        self._checksum = (self._checksum + words.checksum()) % 2**64
        slots = np.append(find(words.hashes, self._keys, self._slots), np.int32(-1))
        add_to_folds(words.codes, slots, folds, values, self._sums)

    def _keep_least(self, hashes: Hashes) -> None:
        if len(self._least) == LEAST_HASHES:
            hashes = hashes[hashes < self._least[-1]]
        if len(hashes):
            self._least = np.union1d(self._least, hashes)[:LEAST_HASHES]

    @property
    def n_found(self) -> int:
        """Categories that there were; if some were dropped, about so many.

        Of n hashes, which are as random numbers below 2**64, the k-th least is about k / n of that.
        """
        if not self.drops or len(self._least) < LEAST_HASHES:
            return max(self.n_categories, len(self._least))
        return round((LEAST_HASHES - 1) * 2.0**64 / float(self._least[-1]))

    def _drop_rarest(self, n_more: int) -> None:
        """Drop the rarest categories, so that there is room for some more."""
        self.keep(min(int(KEPT * self.most), self.most - n_more), n_more)

    def keep(self, most: int, n_more: int = 0) -> None:
        """Keep the most frequent categories, at most so many, with room for some more."""
        n = self.n_categories
        if n <= most:
            return
        count = self._sums[:n, :, 0].sum(1)
        rare = np.partition(count, n - most - 1)[n - most - 1]
        kept = np.flatnonzero(count > rare)
        self._hashes[: len(kept)] = self._hashes[kept]
        self._sums[: len(kept)] = self._sums[kept]
        self._sums[len(kept) : n] = 0
        self.drops = True
        self.n_categories = len(kept)
        self._make_table(len(kept) + n_more)

    def flip(self) -> None:
        """Let the target be 1 where it was 0."""
        sums = self._sums[: self.n_categories]
        np.subtract(sums[..., 0], sums[..., 1], out=sums[..., 1])

    def finish(
        self, names: Sequence[str], prior: Floats, scale: float, find_thresholds: FindThresholds
    ) -> tuple[CategoryStatistics, FoldedStatistics]:
        """The statistics, as features of these names: the means, then the count.

        `prior` (k,) has the mean of each target over all rows, `scale` is their mean weight.
        `find_thresholds` is called for one feature after the other.
        """
        n = self.n_categories
        kinds = [*(_Mean(scale, j, prior[j - 1]) for j in range(1, self._k)), _Count(scale)]
        some = self._sums[: n : max(1, n * N_FOLDS // SAMPLED_SUMS)]
        rows = some[..., 0].ravel()
        thresholds = tuple(
            find_thresholds(kind.without_fold(some).ravel()[rows > 0], rows[rows > 0])
            for kind in kinds
        )
        folded = np.empty((n + 1, N_FOLDS, self._k), np.uint8)
        whole = np.empty((n + 1, self._k), np.uint8)
        for start in range(0, n, CHUNK):
            part = slice(start, min(start + CHUNK, n))
            for j, (kind, cuts) in enumerate(zip(kinds, thresholds, strict=True)):
                folded[part, :, j] = np.searchsorted(cuts, kind.without_fold(self._sums[part]))
                whole[part, j] = np.searchsorted(cuts, kind.of_all(self._sums[part]))
        nothing = np.zeros((1, N_FOLDS, self._k))
        for j, (kind, cuts) in enumerate(zip(kinds, thresholds, strict=True)):
            folded[n, :, j] = whole[n, j] = np.searchsorted(cuts, kind.of_all(nothing))[0]
        order = np.argsort(self._hashes[:n])
        hashes = self._hashes[:n][order]
        made_of = MadeOf(self._rows, self._checksum, tuple(prior.tolist()))
        of_all = CategoryStatistics(
            self.column, tuple(names), thresholds, whole[n], hashes, whole[:n][order], made_of
        )
        return of_all, FoldedStatistics(self._keys, self._slots, folded)


def share_out(all_sums: Sequence[FoldSums], total: int) -> None:
    """Say how many categories each column may keep, of so many together.

    Half of them is shared equally. The other half is for columns that have more.
    """
    own = total // (2 * len(all_sums))
    more = [max(sums.peak - own, 0) for sums in all_sums]
    free = max(total - own * len(all_sums) - sum(more), 0) // len(all_sums)
    for sums, used in zip(all_sums, more, strict=True):
        sums.most = min(own + used + free, sums.max_categories)


def lazy_zeros(*shape: int) -> Floats:
    """Zeros of which pages that are never written to take no memory.

    Those of an allocator do: it clears memory that was in use before, and pages may be huge.
    """
    pages = mmap.mmap(-1, 8 * math.prod(shape))
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # of systems without huge pages
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, np.float64).reshape(shape)


@dataclass(frozen=True)
class _Count:
    """The rows of a category."""

    scale: float

    def without_fold(self, sums: Floats) -> npt.NDArray[np.float32]:
        """(n, f) for the rows of each fold, from the rows of all others."""
        return self._value(sums.sum(1, keepdims=True) - sums)

    def of_all(self, sums: Floats) -> npt.NDArray[np.float32]:
        """(n,) for rows that are predicted."""
        return self._value((1 - 1 / N_FOLDS) * sums.sum(1))

    def _value(self, sums: Floats) -> npt.NDArray[np.float32]:
        return (sums[..., 0] / self.scale).astype(np.float32)


@dataclass(frozen=True)
class _Mean(_Count):
    """The smoothed mean of target j."""

    j: int
    prior: float

    def _value(self, sums: Floats) -> npt.NDArray[np.float32]:
        some = SMOOTHING * self.scale
        mean = (sums[..., self.j] + some * self.prior) / (sums[..., 0] + some)
        return mean.astype(np.float32)


@dataclass(frozen=True)
class RowStatistics:
    """The statistics of some columns for the rows that they were made from."""

    tables: Mapping[str, FoldedStatistics]
    seed: int

    def of_rows(self, binning: Binning, first_row: int, n: int) -> RowFolds:
        """What `Binning.apply` needs for n rows from a number on."""
        tables = [self.tables[some.column] for some in binning.statistics]
        return RowFolds(folds_of(first_row, n, self.seed), tables)
