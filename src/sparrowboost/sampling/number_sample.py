"""Rows with numbers to predict: how they are weighed, and the sample of such rows.

What is a label's weight for classes is here a gradient and a curvature for each row. The weight w
only decides which rows are drawn, and when a sample is worn out; trees are grown on g and h.

    w = u / unit * sqrt(min(|g|, most)**2 + (floor h)**2)

That is minimal variance sampling (Ibragimov and Gusev, NeurIPS 2019): the totals of g and of h over
a leaf are both estimated well. `most` and `floor` follow the mean of |g| and h as the model grows.

Evidence has sums of h - g / 2 and of h + g / 2, in which h is lost if g is far larger. So where g
has the unit of the target, it is divided by a power of two near its mean, `slope_unit`, and values
of leaves are multiplied by that: fares in cents or in millions give the same trees.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from sparrowboost.model.regression import RegressionLoss
from sparrowboost.model.tree import Grown, GrownTree
from sparrowboost.sampling.sample import Sample, Scores, first_sides
from sparrowboost.store.lookup import Bins
from sparrowboost.store.packing import Packing

FLOOR = 0.5  # weight of h against that of |g|, in units of their means
MOST = 10.0  # times the mean: |g| above it draws a row no more often. Heavy tails would fill draws
NUMBER_STATE = "sample_target", "sample_draw_scale"


class DrawScale(NamedTuple):
    """The constants of the weights by which rows are drawn."""

    most: float  # largest |g| that counts
    floor: float  # weight of h
    unit: float  # mean of |g| before the first tree, so that weights are about 1
    factors: tuple[float, ...] = ()  # of the derivatives of each of several classes

    @classmethod
    def of_means(cls, slope: float, curvature: float, unit: float) -> DrawScale:
        """Those for rows with these means of |g| and h."""
        if slope <= 0 or curvature <= 0:  # every row is predicted exactly
            return cls(1.0, 1.0, unit if unit > 0 else 1.0)
        return cls(MOST * slope, FLOOR * slope / curvature, unit if unit > 0 else slope)

    def to_array(self) -> npt.NDArray[np.float64]:
        """For a checkpoint."""
        return np.array([self.most, self.floor, self.unit, *self.factors])

    @classmethod
    def of_array(cls, numbers: npt.NDArray[np.float64]) -> DrawScale:
        most, floor, unit, *factors = numbers.tolist()
        return cls(most, floor, unit, tuple(factors))


def slope_unit(loss: Any, scale: DrawScale) -> float:
    """The power of two that g is divided by: dividing by it is exact."""
    return math.ldexp(1.0, math.frexp(scale.unit)[1]) if loss.has_unit else 1.0


def weigh_numbers(
    loss: RegressionLoss,
    scale: DrawScale,
    target: Scores,
    u: Scores,
    score: Scores,
    g: Scores,
    h: Scores,
    w: Scores,
    total: npt.NDArray[np.float64],
    *,
    counted: bool = False,
) -> None:
    """Fill g and h, times u, and w of some rows, and `total` as `weigh_derivatives` does."""
    from sparrowboost.kernels.numbers import weigh_derivatives

    loss.fill_slopes(target, score, g, h)
    unit = slope_unit(loss, scale)
    most, floor = scale.most / unit, scale.floor / unit
    weigh_derivatives(u, counted, unit, most, floor, unit / scale.unit, g, h, w, total)


def edge_of_slopes(
    grown: GrownTree, bins: Bins, g: Scores, packing: Packing | None = None
) -> float:
    """The advantage that a tree's first split has on other rows, of these gradients."""
    right, left = np.bincount(first_sides(grown, bins, packing), g, 2).tolist()
    size = float(np.abs(g).sum(dtype=np.float64))
    edge = grown.sides[0] * left + grown.sides[1] * right
    return 0.5 * edge / size if size > 0 else 0.0


class NumberSample(Sample):
    """A sample of rows that have a number to predict.

    Parameters
    ----------
    target : (n,) float32
    scale : DrawScale
        Of the draw that the sample is from.

    The others are those of `Sample`; `label` (n,) has the bands of the target.

    Attributes
    ----------
    g, h : (n,) float32
        By how much the loss falls when a score grows, and its curvature, times the importance.
    slope_unit : float
        The unit of g.
    """

    def __init__(
        self,
        bins: Bins,
        label: npt.NDArray[np.uint8],
        u: Scores,
        score: Scores,
        n_trees: int,
        loss: Any,
        *,
        target: Scores,
        scale: DrawScale,
        whole: bool,
        copies: Scores,
        counted: bool = False,
        of_rows: int | None = None,
    ) -> None:
        self.target, self.scale, self.number_loss = target, scale, loss
        self.slope_unit = slope_unit(loss, scale)
        super().__init__(
            bins,
            label,
            u,
            score,
            n_trees,
            loss,
            whole=whole,
            copies=copies,
            counted=counted,
            of_rows=of_rows,
        )

    def _allocate(self) -> None:
        self.g, self.h = np.empty(self.n, np.float32), np.empty(self.n, np.float32)
        self._block_masses = np.zeros((self.n_blocks, 2))  # sums of 2 h and of its squares

    def _weigh(self, block: int) -> None:
        rows, total = self.rows(block), np.empty(5)
        weigh_numbers(
            self.number_loss,
            self.scale,
            self.target[rows],
            self.u[rows],
            self.score[rows],
            self.g[rows],
            self.h[rows],
            self.w[rows],
            total,
            counted=self.counted,
        )
        self._totals[block], self._block_masses[block] = total[:2], total[2:4]
        self._heaviest[block] = total[4]

    def _masses(self) -> tuple[float, float]:
        mass, squares = self._block_masses.sum(0).tolist()
        return mass, squares

    def next_scale(self) -> DrawScale:
        """The constants for the next draw, by the gradients now."""
        slope = curvature = weight = 0.0
        for block in range(self.n_blocks):
            rows = self.rows(block)
            slope += float(np.abs(self.g[rows]).sum(dtype=np.float64))
            curvature += float(self.h[rows].sum(dtype=np.float64))
            weight += float(self.u[rows].sum(dtype=np.float64))
        weight = max(weight, np.finfo(np.float64).tiny)
        slope *= self.slope_unit
        return DrawScale.of_means(slope / weight, curvature / weight, self.scale.unit)

    def weights_at(self, scale: DrawScale, rows: slice) -> Scores:
        """(n,) the weights of some rows at another scale."""
        unit = self.slope_unit
        factor = np.float32(unit / scale.unit)  # first, as in `weigh_derivatives`
        slope, base = np.abs(self.g[rows]), np.float32(scale.floor / unit) * self.h[rows]
        most = np.float32(scale.most / unit) * self.u[rows]
        return np.sqrt(np.square(factor * np.minimum(slope, most)) + np.square(factor * base))

    # -- what its rows say of trees ----------------------------------------------------------------

    def loss_of(self, block: int) -> float:
        rows, total = self.rows(block), np.zeros(6)
        self.number_loss.add_losses(self.target[rows], self.score[rows], self.u[rows], 0.0, total)
        return float(total[1])

    def add_falls(self, block: int, before: Scores, total: npt.NDArray[np.float64]) -> None:
        rows = self.rows(block)
        target, score, u = self.target[rows], self.score[rows], self.u[rows]
        self.number_loss.add_falls(target, before, score, u, total)

    def first_edge(self, grown: Grown, n: int, score: Scores) -> float:
        assert isinstance(grown, GrownTree)
        g, h = np.empty(n, np.float32), np.empty(n, np.float32)
        self.number_loss.fill_slopes(self.target[:n], score, g, h)
        g *= self.u[:n]
        return edge_of_slopes(grown, self.bins[:n], g, self.packing)

    # -- checkpoint --------------------------------------------------------------------------------

    def state(self) -> dict[str, npt.NDArray[Any]]:
        values = self.target, self.scale.to_array()
        return super().state() | dict(zip(NUMBER_STATE, values, strict=True))

    @classmethod
    def restored(cls, state: Mapping[str, npt.NDArray[Any]], loss: Any, **more: Any) -> Self:
        target, scale = (state[name] for name in NUMBER_STATE)
        return super().restored(state, loss, target=target, scale=DrawScale.of_array(scale))
