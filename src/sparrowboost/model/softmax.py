"""The loss of more than two classes: each has a score, and the probability softmax gives it.

    p = exp(F) / (sum of exp(F) over the classes)          l = -ln p of the row's class
    g = -dl/dF = y - p                                     y is 1 for the row's class, else 0
    h = K / (K - 1) p (1 - p)                              Friedman's (Annals of Statistics, 2001)

A round of boosting adds a tree for each class, grown on the g and h of that class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from sparrowboost.model.losses import LEAF_L2, PART_ROWS

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]

MAX_STEP = 4.0  # of one leaf, before the learning rate: that of two classes, in log odds
TINY = 1e-300  # instead of a unit of 0, so that an empty leaf has the value 0
FEW_ROWS = 0.5  # of a class that the rows looked at for the constant scores lack


@dataclass(frozen=True)
class Softmax:
    """The loss of `n_classes` classes, of which a row has one; targets are its number."""

    n_classes: int

    name: ClassVar[str] = "softmax"
    has_unit: ClassVar[bool] = False  # g has none

    def base_scores(self, target: Floats, weight: npt.NDArray[np.floating]) -> tuple[float, ...]:
        """The constant scores with the lowest loss: logarithms of the classes' shares."""
        sums = np.bincount(target.astype(np.intp), weight, self.n_classes)
        per_row = float(sums.sum()) / max(len(target), 1)
        sums = np.where(sums > 0, sums, FEW_ROWS * per_row)
        return tuple(np.log(sums / sums.sum()).tolist())

    def steps(self, g: npt.ArrayLike, h: npt.ArrayLike, unit: float = 1.0) -> Numbers:
        """Best steps of leaves with these sums of g and h; an ordinary row has an h of `unit`."""
        curvature = np.asarray(h, np.float64) + max(LEAF_L2 * unit, TINY)
        return np.clip(np.asarray(g, np.float64) / curvature, -MAX_STEP, MAX_STEP)

    def weigh(
        self,
        target: Floats,
        score: Floats,
        u: Floats,
        counted: bool,
        factor: Floats,
        floor: float,
        scale: float,
        norm: Floats,
        w: Floats,
    ) -> tuple[Numbers, Numbers]:
        """Fill `norm` and `w`; returns totals (2,) and masses (K, 5).

        As `weigh_classes` in `kernels/classes.py`; scores are (K, n).
        """
        from sparrowboost.kernels.classes import weigh_classes

        total, masses = np.empty(2), np.empty((self.n_classes, 5))
        weigh_classes(target, score, u, counted, factor, floor, scale, norm, w, total, masses)
        return total, masses

    def fill_slopes(
        self, number: int, target: Floats, score: Floats, norm: Floats, u: Floats, g: Floats,
        h: Floats,
    ) -> None:  # fmt: skip
        """Write (n,) g and (n,) h of one class, times u; scores are those of the class."""
        from sparrowboost.kernels.classes import fill_class_slopes

        fill_class_slopes(number, self.n_classes, target, score, norm, u, g, h)

    def add_losses(self, target: Floats, score: Floats, weight: Floats, total: Numbers) -> None:
        """Add up (3,) the weight, and times the weight the loss and the share that is right."""
        from sparrowboost.kernels.classes import add_class_losses

        add_class_losses(target, score, weight, total)

    def add_falls(
        self, target: Floats, before: Floats, after: Floats, u: Floats, total: Numbers
    ) -> None:
        """Add up (2,) u times the fall of the loss between scores (K, n), and its square."""
        from sparrowboost.kernels.classes import add_class_falls

        add_class_falls(target, before, after, u, total)


def softmax_of(classes: tuple[object, ...]) -> Softmax | None:
    """The loss of these classes, if they are more than two."""
    return Softmax(len(classes)) if len(classes) > 2 else None


def class_probabilities(score: npt.NDArray[np.floating]) -> Numbers:
    """(n, K) probabilities from scores (n, K); what it takes besides does not grow with n.

    Examples
    --------
    >>> class_probabilities(np.log([[1.0, 1.0, 2.0]])).round(2).tolist()
    [[0.25, 0.25, 0.5]]
    """
    shares = np.empty(score.shape)
    for start in range(0, len(score), PART_ROWS):
        rows = slice(start, start + PART_ROWS)
        part = score[rows].astype(np.float64)
        np.exp(part - part.max(axis=1, keepdims=True), out=part)
        np.divide(part, part.sum(axis=1, keepdims=True), out=shares[rows])
    return shares
