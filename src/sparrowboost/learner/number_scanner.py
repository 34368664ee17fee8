"""The scanner of rows with numbers to predict: evidence of gradients, and quantiles of leaves."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.kernels.numbers import (
    RADIX,
    RADIX_BITS,
    add_clipped,
    add_number_rows,
    add_number_squares,
    add_number_sums,
    add_to_cells,
    find_previous,
)
from sparrowboost.kernels.packed import add_packed_numbers
from sparrowboost.learner.evidence import NumberEvidence, Slots
from sparrowboost.learner.scanner import Blocks, Scanner
from sparrowboost.model.regression import TOLERANCE
from sparrowboost.model.tree import Mask
from sparrowboost.runtime.threads import WorkerPool
from sparrowboost.sampling.number_sample import NumberSample
from sparrowboost.sampling.sample import BLOCK_ROWS
from sparrowboost.store.packing import Packing

Floats = npt.NDArray[np.float64]

KEY_BITS = 32  # of a residual
HALF = np.uint64(1 << KEY_BITS - 1)


class NumberScanner(Scanner):
    """Evidence for the leaves of a growing tree, from gradients and curvatures."""

    sample: NumberSample
    heavy_tails = True

    def __init__(
        self,
        slots: Slots,
        max_leaves: int,
        workers: WorkerPool,
        *,
        packing: Packing | None = None,
    ) -> None:
        super().__init__(slots, max_leaves, workers, curved=True, packing=packing)

    def _make_evidence(self, slots: Slots) -> NumberEvidence:
        return NumberEvidence(slots)

    def _add_part(self, blocks: Blocks, leaf: int, evidence: Any) -> None:
        sample = self.sample
        if self._packing is not None:
            of = sample.g, sample.h, sample.u, sample.counted
            rows = self._order, self._begin, self._count, blocks, BLOCK_ROWS, leaf
            add_packed_numbers(*self._packed, *of, *rows, evidence.pairs, evidence.v)
            return
        add_number_rows(
            self._bins,
            sample.g,
            sample.h,
            sample.u,
            sample.counted,
            self._order,
            self._begin,
            self._count,
            blocks,
            BLOCK_ROWS,
            leaf,
            self._scanned.offset,
            self._columns,
            evidence.pairs,
            evidence.v,
        )

    def split(
        self, leaf: int, feature: int, mask: Mask, gain: float, *, final: bool = False
    ) -> int:
        # The gain that a tree keeps is in the unit of the loss.
        return super().split(leaf, feature, mask, gain * self.sample.slope_unit**2, final=final)

    def left_squares(self, leaf: int, feature: int, mask: Mask) -> float:
        of = self.sample.g, self.sample.h
        sums = self._sum_left(add_number_squares, of, leaf, feature, mask, 3)
        evidence: NumberEvidence = self.evidence[leaf]
        return evidence.variance_of(sums)

    def leaf_sums(self) -> Floats:
        """(leaves, 2) sums of g and h over each leaf's rows in the run."""
        return self._sum_leaves(partial(add_number_sums, self.sample.g, self.sample.h), 2)

    # -- values that depend on a leaf's rows, not on sums ------------------------------------------

    def leaf_quantiles(self, level: float) -> Floats:
        """(leaves,) quantiles of the residuals of each leaf's rows in the run, by importance.

        As `quantile` in `model/regression.py`, but in memory that does not grow with rows: the
        bits of the result are found eight at a time, from the sums of importances by these bits.
        """
        n_leaves = self.tree.n_leaves
        prefix, below = np.zeros(n_leaves, np.uint64), np.zeros(n_leaves)
        goal = np.zeros(n_leaves)
        leaves = np.arange(n_leaves)
        for shift in range(KEY_BITS - RADIX_BITS, -1, -RADIX_BITS):
            cells = self._sum_leaves(partial(self._add_to_cells, shift, prefix), RADIX)
            if shift == KEY_BITS - RADIX_BITS:
                goal = level * cells.sum(1)
            sums = below[:, None] + np.cumsum(cells, axis=1)
            above = sums > (goal * (1 + TOLERANCE))[:, None]
            last = RADIX - 1 - np.argmax(cells[:, ::-1] > 0, axis=1)
            digit = np.where(above.any(1), np.argmax(above, axis=1), last)
            below = sums[leaves, digit] - cells[leaves, digit]
            prefix = prefix << np.uint64(RADIX_BITS) | digit.astype(np.uint64)
        high = np.where(goal > 0, _numbers_of(prefix), np.float32(0))  # 0 where no row counts
        # If exactly this share of the importance is below, all numbers from the previous residual
        # on are as good: the middle.
        exact = (below > 0) & (below >= goal * (1 - TOLERANCE))
        if not exact.any():
            return high.astype(np.float64)
        low = self._previous(high)
        return np.where(exact, (low.astype(np.float64) + high) / 2, high)

    def leaf_clipped_means(self, middle: Floats, delta: float) -> Floats:
        """(leaves,) `middle`, and the mean of how far residuals are from it, at most `delta`."""
        sample = self.sample

        def add(*rows_and_sums: Any) -> None:
            *rows, sums = rows_and_sums
            add_clipped(sample.target, sample.score, sample.u, *rows, middle, delta, sums)

        weight, moved = self._sum_leaves(add, 2).T
        return middle + moved / np.where(weight > 0, weight, 1.0)

    def _add_to_cells(self, shift: int, prefix: npt.NDArray[np.uint64], *rows: Any) -> None:
        *where, cells = rows
        sample = self.sample
        add_to_cells(sample.target, sample.score, sample.u, *where, shift, prefix, cells)

    def _previous(self, high: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """(leaves,) the largest residual of each leaf below these."""
        sample, n_leaves = self.sample, self.tree.n_leaves
        parts = self._cut(self._blocks, self.n_rows)
        found = np.full((len(parts), n_leaves), -np.inf, np.float32)
        rows = sample.target, sample.score, sample.u, self._order, self._begin, self._count
        jobs = [
            partial(find_previous, *rows, part, BLOCK_ROWS, n_leaves, high, own)
            for part, own in zip(parts, found, strict=True)
        ]
        self._workers.run(jobs)
        return found.max(0)


def _numbers_of(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    """The float32 of integers that are in the order of numbers.

    Examples
    --------
    >>> _numbers_of(np.array([0x403FFFFF, 0x80000000, 0xBFC00000], np.uint64)).tolist()
    [-1.5, 0.0, 1.5]
    """
    bits = np.where(keys & HALF, keys ^ HALF, keys ^ np.uint64(0xFFFFFFFF))
    return bits.astype(np.uint32).view(np.float32)
