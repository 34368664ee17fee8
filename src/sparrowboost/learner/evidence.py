"""Evidence: what scanning has seen of a leaf so far. Evidences add up.

    hist[y][slot]   sum of w of the rows with label y and this bin of this feature
    v[y]            sum of w**2 of the rows with label y

The slots of any one feature add up to the whole leaf: W- = sum hist[0], W+ = sum hist[1].

Of rows with numbers to predict, by how much g the loss falls with the score, and its curvature h:

    hist            sums of h - g / 2 and of h + g / 2: W+ - W- is the sum of g, W twice that of h
    v               sums of g**2, g h, h**2 and |g|
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparrowboost.store.binning import Binning, CategoryFeature
from sparrowboost.store.packing import Packing

TINY = 1e-300  # instead of 0
ROUNDING = 1e-12  # of a sum of squares: less is cancellation


@dataclass(frozen=True)
class Slots:
    """The position of each feature's bins in a histogram without gaps."""

    offset: npt.NDArray[np.uint64]  # (d,) first slot of each feature
    n_bins: npt.NDArray[np.int64]  # (d,)
    category: npt.NDArray[np.uint8]  # (d,)

    @classmethod
    def of(cls, binning: Binning) -> Slots:
        n_bins = binning.n_bins
        offset = np.concatenate(([0], np.cumsum(n_bins)[:-1])).astype(np.uint64)
        category = [isinstance(feature, CategoryFeature) for feature in binning.features]
        return cls(offset, n_bins, np.array(category, np.uint8))

    @property
    def n(self) -> int:
        return int(self.n_bins.sum())

    @property
    def n_features(self) -> int:
        return len(self.n_bins)


def packed_slots(packing: Packing) -> Slots:
    """Slots of the evidence of packed rows: one of the whole leaf, then one for each code."""
    n_bins = np.array([1, packing.n_codes], np.int64)
    return Slots(np.array([0, 1], np.uint64), n_bins, np.zeros(2, np.uint8))


class Evidence:
    """The evidence of one leaf.

    In `paired` evidence both labels' sums of a slot are adjacent in memory: `pairs`.
    """

    n_squares = 2  # sums besides the histogram

    def __init__(self, slots: Slots, *, paired: bool = False) -> None:
        sums = np.zeros(2 * slots.n)
        self.hist = sums.reshape(-1, 2).T if paired else sums.reshape(2, -1)
        self.pairs = sums if paired else np.empty(0)
        self.v = np.zeros(self.n_squares)
        self._first = int(slots.n_bins[0])

    def clear(self) -> None:
        self.hist[:] = 0.0
        self.v[:] = 0.0

    def __iadd__(self, other: Evidence) -> Evidence:
        self.hist += other.hist
        self.v += other.v
        return self

    def __isub__(self, other: Evidence) -> Evidence:
        self.hist -= other.hist
        self.v -= other.v
        return self

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        """W-, W+: the bins of any feature hold every row once, so the first feature will do."""
        return self.hist[:, : self._first].sum(1)

    @property
    def variance(self) -> float:
        """V: the variance of W+ - W-, if rows are noise."""
        return sum(self.v.tolist())

    def size(self, weight: float) -> float:
        """By how much W+ - W- would differ from 0 if all rows agreed; W is known."""
        return weight

    @property
    def n_bytes(self) -> int:
        return self.hist.nbytes + self.v.nbytes


class NumberEvidence(Evidence):
    """The evidence of one leaf of rows with numbers to predict."""

    n_squares = 4

    def __init__(self, slots: Slots) -> None:
        super().__init__(slots, paired=True)

    @property
    def variance(self) -> float:
        return self.variance_of(self.v[:3])

    def variance_of(self, sums: npt.NDArray[np.float64]) -> float:
        """The sum of (g - m h)**2 of some rows, from sums of g**2, g h and h**2.

        m is the leaf's mean of g for each h: what all its rows have in common is no noise.
        """
        gg, gh, hh = sums.tolist()
        low, high = self.weights.tolist()
        mean = (high - low) / max((high + low) / 2, TINY)
        return max(gg - 2 * mean * gh + mean * mean * hh, ROUNDING * gg)

    def size(self, weight: float) -> float:
        return float(self.v[3])
