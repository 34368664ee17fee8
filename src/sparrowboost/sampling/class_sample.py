"""The sample of rows that have one of several classes.

A row has a score for each class, and each class has trees of its own. A round of boosting grows one
tree after another on the same rows, each from the gradients of its class:

    round   refresh: scores of all classes, `norm`, weights       once for each block
            class 0: g, h of class 0 -> tree -> score[0]
            class 1: g, h of class 1 -> tree -> score[1]           from the same `norm`
            ...

`g` and `h` have room for one class, and are made anew for each from its scores and `norm`, which
takes 0.4 ns a row. So they and the scores take 4 (K + 3) bytes a row for K classes, not 12 K.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sparrowboost.model.forest import Forest, add_class_rounds, add_rounds
from sparrowboost.model.softmax import Softmax
from sparrowboost.model.tree import Grown, GrownRound
from sparrowboost.sampling.number_sample import DrawScale, NumberSample, edge_of_slopes
from sparrowboost.sampling.sample import Scores

Numbers = npt.NDArray[np.float64]

LEAST_SHARE = 1e-6  # of all squared gradients, that a class counts with: it may be fully learned
UNITS = "sample_units"
NOT_MADE = -1  # instead of the class whose g and h a block has


def class_scale(weight: float, squares: Numbers, unit: float) -> DrawScale:
    """The scale of draws of rows of several classes.

    Gradients of each class are divided by their root mean square, so that a draw tells as much of
    each class's sums as of another's, relative to what is left to learn of it. The mean square of
    the weights is that of the gradients, and falls with them.

    Parameters
    ----------
    weight : float
        Sum of the importances u of some rows.
    squares : (K, 2) float64
        Of each class, sums of u g**2 and of u h**2.
    unit : float
        As in `DrawScale`; 0 before the first tree.
    """
    slopes, curvatures = (squares / max(weight, np.finfo(np.float64).tiny)).T
    total = float(slopes.sum())
    if total <= 0:
        return DrawScale.of_means(0.0, 0.0, unit)._replace(factors=(1.0,) * len(slopes))
    squared = total / np.maximum(slopes, LEAST_SHARE * total)
    squared *= total / float(squared @ slopes)
    scale = DrawScale.of_means(total**0.5, float(squared @ curvatures) ** 0.5, unit)
    return scale._replace(factors=tuple(np.sqrt(squared).tolist()))


def factors_of(scale: DrawScale, n_classes: int) -> Scores:
    """(K,) the factors of a scale; ones if it has none."""
    return np.array(scale.factors or (1.0,) * n_classes, np.float32)


class ClassSample(NumberSample):
    """A sample of rows of several classes; `score` is (K, n), `target` the number of the class.

    Attributes
    ----------
    number : int
        The class whose tree is grown now. `g`, `h`, `unit` and `heaviest` are those of this class.
    """

    loss: Softmax

    def _allocate(self) -> None:
        super()._allocate()
        k = self.loss.n_classes
        self.number = 0
        self.norm = np.empty(self.n, np.float32)
        self._made = np.full(self.n_blocks, NOT_MADE)
        self._masses_of = np.zeros((self.n_blocks, k, 5))
        self._factor = factors_of(self.scale, k)
        self._class_version = np.repeat(self._version[None], k, axis=0)

    def _weigh(self, block: int) -> None:
        rows, of_loss = self.rows(block), self.loss
        given = self.target[rows], self.score[:, rows], self.u[rows], self.counted
        scale = self._factor, self.scale.floor, 1 / self.scale.unit
        total, masses = of_loss.weigh(*given, *scale, self.norm[rows], self.w[rows])
        self._totals[block], self._masses_of[block] = total, masses
        self._made[block] = NOT_MADE

    def _settle(self) -> None:
        self.n_eff_drawn = self.n_eff
        mass, squares = self._masses_of[..., :2].sum(0).T
        self.units = np.divide(squares, mass, np.zeros_like(mass), where=mass > 0)
        self.unit = float(self.units[self.number])

    def turn_to(self, number: int) -> None:
        """Go on to the tree of another class."""
        self.number, self.unit = number, float(self.units[number])

    @property
    def heaviest(self) -> float:
        return float(self._masses_of[:, self.number, 2].max(initial=0.0))

    @property
    def score_of_tree(self) -> Scores:
        return self.score[self.number]

    def refresh(self, block: int, forest: Forest, n_trees: int) -> None:
        """Bring a block up to date, and make g and h of the class whose tree is grown."""
        rows = self.rows(block)
        if self._version[block] < n_trees:
            seen = self._class_version[:, block]
            if seen.min() < n_trees:
                bins = np.ascontiguousarray(self.bins[rows])
                score = self.score[:, rows]
                if seen.min() == seen.max():
                    add_rounds(forest.arrays, bins, int(seen[0]), n_trees, score, self.packing)
                else:
                    for number, done in enumerate(seen.tolist()):
                        of = forest.arrays, bins, done, n_trees, score, number
                        add_class_rounds(*of, self.packing)
                seen[:] = n_trees
            self._version[block] = n_trees
            self._weigh(block)
        if self._made[block] != self.number:
            score, norm, u = self.score[self.number, rows], self.norm[rows], self.u[rows]
            given = self.number, self.target[rows], score, norm, u
            self.loss.fill_slopes(*given, self.g[rows], self.h[rows])
            self._made[block] = self.number

    def mark(self, block: int, n_trees: int) -> None:
        """Note that a block's scores of this class hold n_trees now."""
        self._class_version[self.number, block] = n_trees

    # -- draws -------------------------------------------------------------------------------------

    def next_scale(self) -> DrawScale:
        weight = float(self.u.sum(dtype=np.float64))
        return class_scale(weight, self._masses_of[..., 3:].sum(0), self.scale.unit)

    def weights_at(self, scale: DrawScale, rows: slice) -> Scores:
        norm, w = np.empty((2, len(self.target[rows])), np.float32)
        given = self.target[rows], self.score[:, rows], self.u[rows], self.counted
        factor = factors_of(scale, self.loss.n_classes)
        self.loss.weigh(*given, factor, scale.floor, 1 / scale.unit, norm, w)
        return w

    # -- what its rows say of trees ----------------------------------------------------------------

    def loss_of(self, block: int) -> float:
        rows, total = self.rows(block), np.zeros(3)
        self.loss.add_losses(self.target[rows], self.score[:, rows], self.u[rows], total)
        return float(total[1])

    def add_falls(self, block: int, before: Scores, total: npt.NDArray[np.float64]) -> None:
        rows = self.rows(block)
        score, u = self.score[:, rows], self.u[rows]
        self.loss.add_falls(self.target[rows], before, score, u, total)

    def first_edge(self, grown: Grown, n: int, score: Scores) -> float:
        """The mean over the trees of a round."""
        assert isinstance(grown, GrownRound)
        (norm, w), (g, h) = np.empty((2, n), np.float32), np.empty((2, n), np.float32)
        target, u = self.target[:n], self.u[:n]
        self.loss.weigh(target, score, u, False, self._factor, 1.0, 1.0, norm, w)
        edges = []
        for number, part in enumerate(grown.parts):
            if part is not None:
                self.loss.fill_slopes(number, target, score[number], norm, u, g, h)
                edges.append(edge_of_slopes(part, self.bins[:n], g, self.packing))
        return float(np.mean(edges))

    # -- checkpoint --------------------------------------------------------------------------------

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return super().state() | {UNITS: self.units}

    @classmethod
    def restored(cls, state: Mapping[str, npt.NDArray[Any]], loss: Any, **more: Any) -> Self:
        sample = super().restored(state, loss, **more)
        sample.units = state[UNITS]
        sample.turn_to(0)
        return sample
