"""How good the last trees are, measured on fresh rows.

A tree is chosen on a sample, so that it also fits the sample's noise and seems to gain more than it
does. While trees are added, the next sample is drawn in the background, independently of the rows
that they are grown on. When it arrives, the fall of the loss that they brought is measured twice:
on the sample that they were grown on, and on the fresh one, which stands for all data.

For a step that takes a share r (the learning rate) of what a leaf's rows ask for, where g is what
they would gain if they were all data and e is what their noise adds:

    own    (2 r - r**2) (g + e)         the fall on the rows that the leaf was fitted to
    fresh  (2 r - r**2) g - r**2 e      on others: the share r of the noise that was fitted costs
                                        its square
    own - fresh = 2 r e

So noise costs (own - fresh) r / 2, out of the fresh + (own - fresh) r / 2 that would be gained
without it. The cost falls as 1 / rows: twice the rows, half the cost.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from sparrowboost.model.forest import add_rounds
from sparrowboost.model.model import Model
from sparrowboost.model.tree import Grown
from sparrowboost.runtime.budget import piece_rows
from sparrowboost.runtime.threads import WorkerPool
from sparrowboost.sampling.sample import Sample, Scores

EDGE_ROWS = 1 << 14  # fresh rows on which the advantage of each tree's first split is measured
MAX_COST = 1.0  # if fresh rows gain nothing


class LookBack(NamedTuple):
    """The last trees, measured on their own rows and on fresh ones."""

    n_trees: int  # how many
    own: float  # fall of the loss per row of the data, on the rows on which they were grown
    fresh: float  # on rows that had no part in them
    error: float  # standard deviation of `fresh`
    gamma: float  # mean advantage of the trees' first splits, when they were found
    gamma_certified: float  # the part of it that was certain
    gamma_fresh: float  # on fresh rows

    def cost(self, rate: float) -> float:
        """The share of the possible gain that was lost to the sample's noise, from 0 to 1."""
        lost = max(self.own - self.fresh, 0.0) * rate / 2
        gained = max(self.fresh, 0.0)
        return lost / (gained + lost) if gained + lost > 0 else MAX_COST


class Mark:
    """The state of a sample from which on trees can be looked back at."""

    def __init__(self, sample: Sample, model: Model | None, workers: WorkerPool) -> None:
        """Brings the sample up to date with the model, if one is given."""
        self._sample, self._workers = sample, workers
        self._first = sample.n_trees if model is None else model.n_trees
        self._before = self._loss_of_all(model)
        self._grown: list[Grown] = []

    def note(self, grown: Grown) -> None:
        """Note a tree that was added."""
        self._grown.append(grown)

    def look_back(self, fresh: Sample, model: Model) -> LookBack | None:
        """Compare both samples, and bring them up to date; None if there was no tree."""
        if not self._grown or not fresh.n:
            return None
        gamma_fresh = self._fresh_edges(fresh, model)
        own = self._before - self._loss_of_all(model)
        totals = np.zeros((fresh.n_blocks, 2))

        def work(block: int) -> None:
            before = self._before_trees(fresh, fresh.rows(block), model)
            fresh.refresh(block, model.forest, model.n_trees)
            fresh.add_falls(block, before, totals[block])

        self._workers.run([partial(work, block) for block in range(fresh.n_blocks)])
        fall, squares = totals.sum(0).tolist()
        # Divided by the true number of rows: the number for which a draw stands is off where most
        # rows have hardly any weight and are in no draw.
        return LookBack(
            n_trees=len(self._grown),
            own=own / self._sample.of_rows,
            fresh=fall / fresh.of_rows,
            error=squares**0.5 / fresh.of_rows,
            gamma=float(np.mean([grown.gamma for grown in self._grown])),
            gamma_certified=float(np.mean([grown.gamma_certified for grown in self._grown])),
            gamma_fresh=gamma_fresh,
        )

    def _before_trees(self, fresh: Sample, rows: slice, model: Model) -> Scores:
        """Scores of some fresh rows without the trees that were noted."""
        before = fresh.score[..., rows].copy()
        if fresh.n_trees > self._first:  # drawn when some of these trees were there
            bins, trees = fresh.bins[rows], (self._first, fresh.n_trees)
            n_scores = 1 if before.ndim == 1 else len(before)
            step = min(piece_rows(n_scores), len(bins))
            for start in range(0, len(bins), step):
                part = slice(start, start + step)
                values = np.zeros_like(before[..., part])
                add_rounds(model.forest.arrays, bins[part], *trees, values, fresh.packing)
                before[..., part] -= values
        return before

    def _fresh_edges(self, fresh: Sample, model: Model) -> float:
        """Mean advantage of the trees' first splits, each under the model before it."""
        n, edges = min(fresh.n, EDGE_ROWS), []
        score = self._before_trees(fresh, slice(0, n), model)
        for number, grown in enumerate(self._grown, self._first):
            edges.append(fresh.first_edge(grown, n, score))
            of_tree = model.forest.arrays, fresh.bins[:n], number, number + 1, score
            add_rounds(*of_tree, fresh.packing)
        return float(np.mean(edges))

    def _loss_of_all(self, model: Model | None) -> float:
        """The loss of all rows of the data, as the sample tells when brought up to date."""
        sample = self._sample
        losses = np.zeros(sample.n_blocks)

        def work(block: int) -> None:
            if model is not None:
                sample.refresh(block, model.forest, model.n_trees)
            losses[block] = sample.loss_of(block)

        self._workers.run([partial(work, block) for block in range(sample.n_blocks)])
        return float(np.cumsum(losses)[-1])  # one after the other, always in the same order
