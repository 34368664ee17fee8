"""Evidence: what scanning has seen of a leaf so far. Evidences add up.

    hist[y][slot]   sum of w of the rows with label y and this bin of this feature
    v[y]            sum of w**2 of the rows with label y

The slots of any one feature add up to the whole leaf: W- = sum hist[0], W+ = sum hist[1].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparrowboost.store.binning import Binning, CategoryFeature


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


class Evidence:
    """The evidence of one leaf.

    In `paired` evidence both labels' sums of a slot are adjacent in memory: `pairs`.
    """

    def __init__(self, slots: Slots, *, paired: bool = False) -> None:
        sums = np.zeros(2 * slots.n)
        self.hist = sums.reshape(-1, 2).T if paired else sums.reshape(2, -1)
        self.pairs = sums if paired else np.empty(0)
        self.v = np.zeros(2)
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
    def n_bytes(self) -> int:
        return self.hist.nbytes + self.v.nbytes
