"""Measures how appended rows differ from those that the bins of a store were made for.

All new rows are counted by their bins, while they are stored. They are compared with some blocks of
each band of the rows that the store began with. Labels are compared with all of these rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.runtime.budget import NUMBER_BYTES
from sparrowboost.store.appended import Appended, Change, FeatureDrift, LabelDrift
from sparrowboost.store.binning import CategoryFeature, Feature, NumberFeature
from sparrowboost.store.shuffle import Records
from sparrowboost.store.storage import REGRESSION
from sparrowboost.store.stored import StoredRows

LARGE_PSI = 0.2  # by custom, below 0.1 is no change and from 0.25 on a large one
LARGE_ODDS = 1.5
ERRORS = 8  # standard errors: thousands of features are looked at, and none should drift by chance
REFERENCE_BLOCKS = 4  # of each band, that the new rows are compared with
GROUPS = 10  # of bins, each with a tenth of the values; chance makes more of finer ones
LEAST, MOST = 5, 20  # features that the manifest has: those of large drift, and at least a few

Counts = npt.NDArray[np.float64]


class DriftMeter:
    """Counts the bins and labels of appended rows, and compares them with those of a store.

    Parameters
    ----------
    base : StoredRows
        The store before rows are appended.
    """

    def __init__(self, base: StoredRows) -> None:
        self._base = base
        self._features = base.binning.features
        self._counts = np.zeros((len(self._features), 256), np.int64)
        self._band_rows = np.zeros(base.n_bands, np.int64)
        self._target_sum = 0.0
        _count_bins(np.zeros((0, 1), np.uint8), self._counts)  # compiles

    def add(self, records: Records, codes: npt.NDArray[np.uint8]) -> None:
        """Count the rows of some records, of these bands."""
        _count_bins(records, self._counts)
        self._band_rows += np.bincount(codes, minlength=len(self._band_rows))
        if self._base.task == REGRESSION:
            self._target_sum += float(
                records[:, -NUMBER_BYTES:].copy().view(np.float32).sum(dtype=np.float64)
            )

    def measure(self, source: str, class_rows: Sequence[int] | None) -> Appended:
        """The drift of the rows counted; `class_rows` of more than two classes."""
        n = int(self._band_rows.sum())
        before, n_before, mean = self._reference()
        drifts = []
        for feature, old, new in zip(self._features, before, self._counts, strict=True):
            drifts.append(feature_drift(feature, old, n_before, new.astype(np.float64)))
        drifts.sort(key=lambda drift: -drift.psi)
        n_large = sum(drift.large for drift in drifts)
        drifts.sort(key=lambda drift: not drift.large)
        label = self._label_drift(class_rows, mean)
        return Appended(n, source, n_large, label, tuple(drifts[: min(max(n_large, LEAST), MOST)]))

    def _reference(self) -> tuple[Counts, float, float]:
        """Counts (d, 256) of the first rows, how many rows these are worth, and the mean target."""
        base, end = self._base, int(self._base.segment_ends[0])
        band_rows = self._first_bands()
        total = np.zeros(self._counts.shape)
        variance = mean = 0.0
        for band in np.flatnonzero(band_rows):
            blocks = np.flatnonzero(base.block_label[:end] == band)
            step = -(-len(blocks) // REFERENCE_BLOCKS)
            counts, n, target_sum = np.zeros(self._counts.shape, np.int64), 0, 0.0
            for block in blocks[step // 2 :: step]:
                rows = base.read_block(int(block), shuffled=False)
                _count_bins(rows.bins, counts)
                n += len(rows.bins)
                if rows.target is not None:
                    target_sum += float(rows.target.sum(dtype=np.float64))
            share = band_rows[band] / band_rows.sum()
            total += share / n * counts
            variance += share**2 / n
            mean += share * target_sum / n
        return total / variance, 1 / variance, mean

    def _first_bands(self) -> npt.NDArray[np.int64]:
        base, end = self._base, int(self._base.segment_ends[0])
        rows = np.zeros(base.n_bands, np.int64)
        np.add.at(rows, base.block_label[:end], base.block_rows[:end])
        return rows

    def _label_drift(self, class_rows: Sequence[int] | None, mean: float) -> LabelDrift:
        old, new = self._first_bands(), self._band_rows
        if self._base.task == REGRESSION:
            psi, large = stability_index(old.astype(np.float64), new.astype(np.float64))
            return LabelDrift(
                None, Change(float(mean), float(self._target_sum / new.sum())), psi, large
            )
        if class_rows is not None:
            old, new = self._base.first_class_rows, np.array(class_rows)
        classes = range(len(old)) if len(old) > 2 else [1]
        drifts = [
            class_drift(
                self._base.classes[k], int(old[k]), int(old.sum()), int(new[k]), int(new.sum())
            )
            for k in classes
        ]
        return max(drifts, key=lambda drift: (drift.large, max(drift.size, 1 / drift.size)))


def _count_bins(records: Records, counts: npt.NDArray[np.int64]) -> None:
    from sparrowboost.kernels.bins import count_bins

    count_bins(records, counts)


def feature_drift(feature: Feature, before: Counts, n_before: float, now: Counts) -> FeatureDrift:
    """The drift of a feature, by its counts (256,) of bins."""
    k, n = feature.n_values, max(now.sum(), 1.0)
    group = group_bins(before[:k], apart=isinstance(feature, CategoryFeature))
    group = np.append(group, GROUPS + 1)
    old = np.bincount(group, before[: k + 1], GROUPS + 2)
    new = np.bincount(group, now[: k + 1], GROUPS + 2)
    psi, large = stability_index(old, new)
    was, are = before / n_before, now / n
    missing, first, last = (
        Change(round(float(was[bin]), 6), round(float(are[bin]), 6)) for bin in (k, 0, k - 1)
    )
    edges = "; in categories without a bin"
    if isinstance(feature, NumberFeature):
        low, high = feature.edges()
        edges = f"up to {low}; above {high}"
    return FeatureDrift(feature.name, feature.kind, psi, large, missing, first, last, edges)


def group_bins(before: Counts, *, apart: bool) -> npt.NDArray[np.int64]:
    """The group of each bin: each has about a tenth of the rows. The last bin may be apart.

    Examples
    --------
    >>> group_bins(np.full(20, 5.0), apart=True).tolist()
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 10]
    """
    middle = np.cumsum(before) - before / 2
    group = np.floor(GROUPS * middle / max(before.sum(), 1e-300)).astype(np.int64)
    group = np.minimum(group, GROUPS - 1)
    if apart:
        group[-1] = GROUPS
    return group


def stability_index(before: npt.NDArray[Any], now: npt.NDArray[Any]) -> tuple[float, bool]:
    """The population stability index of counts, less what chance gives, and whether it is large.

    Examples
    --------
    >>> stability_index(np.array([5e5, 5e5]), np.array([1e4, 3e4]))
    (0.2746, True)
    """
    there = before + now > 0
    before, now = before[there], now[there]
    groups, n_before, n_now = len(before), before.sum(), now.sum()
    if groups < 2 or not n_before or not n_now:
        return 0.0, False
    before, now = before.astype(np.float64), now.astype(np.float64)
    # Half a row in each group: an index of shares of 0 would be infinite.
    p = (before + 0.5) / (n_before + groups / 2)
    q = (now + 0.5) / (n_now + groups / 2)
    psi = float(np.sum((q - p) * np.log(q / p)))
    # By chance, psi / noise is about chi-square with so many degrees of freedom.
    noise, freedom = 1 / n_before + 1 / n_now, groups - 1
    psi -= freedom * noise
    large = psi > max(LARGE_PSI, ERRORS * math.sqrt(2 * freedom) * noise)
    return round(float(max(psi, 0.0)), 4), bool(large)


def class_drift(of: Any, before: int, n_before: int, now: int, n_now: int) -> LabelDrift:
    """The drift of the odds of a class.

    Examples
    --------
    >>> class_drift("yes", 1_000, 100_000, 300, 10_000)
    LabelDrift(of='yes', share=Change(before=0.01, now=0.03), size=3.065, large=True)
    """
    cells = np.array([before, n_before - before, now, n_now - now], np.float64) + 0.5
    odds = float(np.log(cells[2] / cells[3]) - np.log(cells[0] / cells[1]))
    error = math.sqrt(float(np.sum(1 / cells)))
    large = abs(odds) > max(math.log(LARGE_ODDS), ERRORS * error)
    share = Change(round(before / n_before, 6), round(now / n_now, 6))
    return LabelDrift(of, share, round(math.exp(odds), 3), large)
