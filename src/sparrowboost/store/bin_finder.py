"""Finds the bins of each feature, from a random sample of rows all over the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost.readers.arrays import from_numpy, to_numpy
from sparrowboost.readers.base import PART_DONE, DiscardSample
from sparrowboost.readers.formats import Kind, categories, numbers
from sparrowboost.readers.table import AHEAD, Table
from sparrowboost.runtime.memory import release
from sparrowboost.runtime.progress import Progress, Task
from sparrowboost.runtime.threads import ordered_map, prefetch
from sparrowboost.store.binning import (
    DTYPES,
    MAX_BINS,
    MAX_CATEGORIES,
    Binning,
    CategoryFeature,
    Feature,
    NumberFeature,
)
from sparrowboost.store.fold_statistics import MAX_MEANS
from sparrowboost.store.plan import CATEGORY_BYTES, SAMPLING, IngestPlan, sample_rows
from sparrowboost.store.text_check import SOME_OTHERS, Tally, find_fault, warn_of_texts

SAMPLE_BLOCK_ROWS, SAMPLE_BLOCK_BYTES = 16_384, 2 << 20  # of a block, if the sample is all rows
MIN_LONG_CATEGORIES = 64  # counted at once, however long they are
# Of a column with statistics, the categories that also have a bin of their own. Trees overfit more
# of them; docs/ingest.md has what was measured.
OWN_BINS = 16
SMALL_DICTIONARY = 64  # with more categories, those in use are picked before they are counted

Sampled = tuple[pa.RecordBatch | DiscardSample, npt.NDArray[np.float32] | None]  # and weights


def find_bins(
    table: Table, plan: IngestPlan, seed: int, progress: Progress, *, statistics: bool = True
) -> tuple[Binning, float, list[str]]:
    """The bins of all features, the bytes of a row, and the columns that need statistics.

    These have more categories than bins; without `statistics`, there are none.

    If the sample is all rows, they count by weight. Of larger sources, each column may be sampled
    in different places, and weights do not count.
    """
    n_rows = table.source.n_rows
    weighted = table.weight is not None and n_rows <= sample_rows(len(table.features))
    features: list[Feature] = []
    row_bytes = 0.0
    faults: list[tuple[str, str]] = []
    many: list[str] = []
    # Not all of many classes have statistics.
    own_bins = OWN_BINS if table.labels.n_classes <= MAX_MEANS else MAX_CATEGORIES
    with progress.task("finding bins", None) as task, ThreadPoolExecutor(plan.n_jobs) as pool:

        def find(names: list[str]) -> tuple[list[Feature], float, list[BinFinder]]:
            limit = plan.max_categories(len(names))
            how: dict[str, Any] = {"statistics": statistics, "own_bins": own_bins}
            finders = {name: BinFinder(name, table.features[name], limit, **how) for name in names}
            sample = _sample(table, names, seed, weighted=weighted)
            if plan.n_samplers == 1:
                with closing(prefetch(sample, AHEAD)) as ahead:
                    n_bytes = _add_sample(ahead, finders, task)
                found = list(pool.map(BinFinder.finish, finders.values()))
            else:
                n_bytes = _add_sample(sample, finders, task)
                found = [finder.finish() for finder in finders.values()]
            release()
            return found, n_bytes, list(finders.values())

        groups = plan.feature_groups(table, n_rows, weighted=weighted)
        n = plan.n_samplers
        results = map(find, groups) if n == 1 else ordered_map(find, groups, n, n)
        for found, n_bytes, finders in results:
            features += found
            row_bytes += n_bytes
            for finder in finders:
                if finder.fault is not None and finder.name not in table.categorical:
                    faults.append((finder.name, finder.fault))
                if finder.many:
                    many.append(finder.name)
    warn_of_texts(faults)
    return Binning(tuple(features)), max(row_bytes, 1.0), many


def _sample(table: Table, names: Sequence[str], seed: int, *, weighted: bool) -> Iterator[Sampled]:
    """A random sample of some columns, block by block."""
    if weighted:
        row_bytes = max(table.source.row_bytes(names), 1)
        rows = max(1, min(SAMPLE_BLOCK_ROWS, int(SAMPLE_BLOCK_BYTES / row_bytes)))
        yield from table.weighted_rows(names, rows)
        return
    # The same state for all groups: how columns are grouped does not change their samples.
    rng = np.random.default_rng([seed, SAMPLING])
    for piece in table.source.sample(names, sample_rows(len(table.features)), rng):
        yield piece, None


def _add_sample(sample: Iterator[Sampled], finders: dict[str, BinFinder], task: Task) -> float:
    """Add a sample to the bin finders of its columns; returns the bytes of a row of them."""
    n_bytes: Counter[str] = Counter()
    n_rows: Counter[str] = Counter()
    for piece, weight in sample:
        if isinstance(piece, DiscardSample):
            for name in piece.columns:
                finders[name].forget()
            if piece is PART_DONE:
                for finder in finders.values():
                    finder.keep()
            continue
        task.advance(round(piece.num_rows * piece.num_columns / len(finders)))
        for name, array in zip(piece.schema.names, piece.columns, strict=True):
            finders[name].add(array, weight)
            n_bytes[name] += _array_bytes(array)
            n_rows[name] += len(array)
    return sum(n_bytes[name] / max(n_rows[name], 1) for name in finders)


def _array_bytes(array: pa.Array) -> int:
    """Bytes of a column's values; Arrow's own count for a slice takes longer than reading it."""
    type_ = array.type.index_type if pa.types.is_dictionary(array.type) else array.type
    if pa.types.is_primitive(type_):
        return len(array) * max(type_.bit_width // 8, 1)
    return int(array.nbytes)


class BinFinder:
    """Finds a feature's bins from a sample of its values, block by block.

    Blocks are added, all with weights or all without; those since the last `keep` can be dropped
    again by `forget`.

    Parameters
    ----------
    name : str
    kind : Kind
    max_categories : int
        Categories that are counted at once. When there are more, the rarest are dropped. Of long
        texts fewer are counted.
    statistics : bool
        Whether columns of many categories have statistics.
    own_bins : int
        The categories that have bins of their own where there are statistics.
    """

    def __init__(
        self,
        name: str,
        kind: Kind,
        max_categories: int = 50_000,
        *,
        statistics: bool = False,
        own_bins: int = OWN_BINS,
    ) -> None:
        self.name = name
        self._statistics, self._own_bins = statistics, own_bins
        self._kind = kind
        self._max_categories = max_categories
        self._kept: list[npt.NDArray[Any]] = []
        self._fresh: list[npt.NDArray[Any]] = []
        self._weights: list[npt.NDArray[np.float32]] = []
        self._kept_counts = Tally()
        self._fresh_counts = Tally()
        self._longest = 0.0  # mean bytes of the categories of a block
        self.many = False  # whether statistics are to be made of the column, once it is finished
        self.fault: str | None = None  # what is odd about a column of text, once it is finished

    def add(self, array: pa.Array, weight: npt.NDArray[np.float32] | None = None) -> None:
        if self._kind == "category":
            self._count(array, weight)
            return
        values, present = _present(self.name, array)
        self._fresh.append(values.astype(DTYPES[self._kind], copy=False))
        if weight is not None:
            self._weights.append(weight if present is None else weight[present])

    def _count(self, array: pa.Array, weight: npt.NDArray[np.float32] | None) -> None:
        coded = categories(self.name, array)
        codes = coded.indices
        if codes.null_count:
            if weight is not None:
                weight = weight[to_numpy(codes.is_valid())]
            codes = codes.drop_null()
        counts = np.bincount(to_numpy(codes), weight, minlength=len(coded.dictionary))
        names = coded.dictionary
        if len(names) > SMALL_DICTIONARY:
            used = np.flatnonzero(counts)
            names, counts = names.take(from_numpy(used)), counts[used]
        self._longest = max(self._longest, names.nbytes / max(len(names), 1))
        self._fresh_counts.add(names.to_pylist(), counts.tolist(), len(codes))
        self._fresh_counts.drop_rarest(self._most())

    def _most(self) -> int:
        """Categories that are counted at once; fewer where texts are long."""
        n_bytes = CATEGORY_BYTES / 2 + 2 * self._longest
        fewer = int(self._max_categories * CATEGORY_BYTES / max(n_bytes, CATEGORY_BYTES))
        return max(MIN_LONG_CATEGORIES, fewer)

    def forget(self) -> None:
        """Drop what was added since the last `keep`."""
        self._fresh = []
        self._fresh_counts = Tally()

    def keep(self) -> None:
        """Keep what was added so far."""
        self._kept += self._fresh
        self._kept_counts.update(self._fresh_counts)
        self._kept_counts.drop_rarest(self._most())
        self.forget()

    def finish(self) -> Feature:
        """The feature, with its bins; the sample is freed."""
        self.keep()
        if self._kind == "category":
            self.many = self._statistics and self._kept_counts.others >= SOME_OTHERS
            self.fault = find_fault(self.name, self._kept_counts, statistics=self.many)
            counts = self._kept_counts.counts
            self._kept_counts = Tally()
            ranked = sorted(counts, key=lambda name: (-counts[name], name))
            most = self._own_bins if self.many else MAX_CATEGORIES
            return CategoryFeature(self.name, tuple(ranked[:most]))
        values = np.concatenate(self._kept) if self._kept else np.empty(0, DTYPES[self._kind])
        self._kept = []
        weight = np.concatenate(self._weights) if self._weights else None
        self._weights = []
        return NumberFeature(self.name, self._kind, find_thresholds(values, weight))


def _present(name: str, array: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """The values that are not missing, and which they are if any is missing."""
    values, mask = numbers(name, array)
    if mask is None and values.dtype.kind == "f":
        mask = np.isnan(values)
        mask = mask if mask.any() else None
    # A copy, so that a slice of a block does not hold the block.
    return (values.copy(), None) if mask is None else (values[~mask], ~mask)


def find_thresholds(
    values: npt.NDArray[Any],
    weight: npt.NDArray[np.float32] | None = None,
    max_bins: int = MAX_BINS,
) -> npt.NDArray[Any]:
    """Thresholds for values without NaN: exact for few distinct ones, else equally filled bins.

    By weight, if values have weights: one of weight 3 counts as three.

    Examples
    --------
    >>> find_thresholds(np.array([3.0, 1.0, 1.0, 2.0]))
    array([1.5, 2.5])
    """
    if weight is None:
        distinct, counts = np.unique(values, return_counts=True)
    else:
        distinct, inverse = np.unique(values, return_inverse=True)
        counts = np.bincount(inverse, weight, len(distinct))
    if len(distinct) <= max_bins:
        after = np.arange(len(distinct) - 1)
    else:
        after = _equal_cuts(counts, max_bins)
    return _between(distinct[after], distinct[after + 1])


def _equal_cuts(counts: npt.NDArray[Any], max_bins: int) -> npt.NDArray[np.int64]:
    """After which of the distinct values to cut, for at most `max_bins` bins of equal count.

    A value as frequent as a whole bin has a bin of its own; the others share what is left.
    """
    heavy = counts >= counts.sum() / max_bins
    light = np.cumsum(np.where(heavy, 0, counts))
    for alone in (heavy[:-1] | heavy[1:], heavy[:-1]):
        forced = np.flatnonzero(alone)
        for free in range(max_bins - int(heavy.sum()), 0, -1):
            # A bin ends with the first value at which the count reaches a mark.
            marks = np.searchsorted(light, light[-1] * np.arange(1, free) / free)
            cuts = np.union1d(forced, np.minimum(marks, len(counts) - 2))
            if len(cuts) < max_bins:
                return cuts
    return cuts[: max_bins - 1]


def _between(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A threshold t with a <= t < b for each pair, halfway where there is such a number."""
    if a.dtype.kind in "iu":
        return (a & b) + ((a ^ b) >> a.dtype.type(1))  # the mean, rounded down, without overflow
    with np.errstate(over="ignore", invalid="ignore"):
        middle = (a.astype(np.float64) / 2 + b.astype(np.float64) / 2).astype(a.dtype)
    fits = (a <= middle) & (middle < b)
    return np.where(fits, middle, a) + a.dtype.type(0)  # + 0: no threshold is -0.0
