"""The supply of samples: how many rows each has, and when the next one is due."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparrowboost.grower import Grown
from sparrowboost.model import Model
from sparrowboost.sample import Sample
from sparrowboost.sampler import Guide, Sampler

FIRST_ROWS = 1 << 15  # of the first sample: early edges are large and need few rows
MAX_PASSES = 64.0  # over one sample: then its own noise has been learned often enough
ROWS_PER_RULE = 500  # of a sample: more rules than it has such, and they fit its own noise
LARGEST_ROWS_PER_RULE = 1_500  # the same where it cannot grow, and only fresh rows tell more
EARLY = 0.5  # how worn the sample is when the next one is begun, in the background
UNPROVED = 0.8  # share of trees without any proof from which on the next sample is larger
GROWTH = 2
AGAIN = 1.0  # rows drawn from, to those that have come of the data set: then it is time for more
FILLED = 0.5  # of the rows asked for, that a sample should have
WORTH = 3.0  # rows scanned or drawn from that cost as much as to read and store one


@dataclass(frozen=True)
class Sizes:
    """Rows that a sample may have."""

    first: int
    most: int
    whole: bool = False  # all rows of the data are taken, once


class Supply:
    """Gives a sample, and the next one when it is worn out.

    A sample wears out in two ways. Its weights diverge: n_eff falls below theta times what the draw
    started with. Or it is read too often, so that the model learns the sample instead of the data.
    Half-way there, the next one is begun in the background, for the model as it is then: at a tree
    that depends on the sample alone, so that the same seed gives the same samples.

    Parameters
    ----------
    sampler : Sampler
    sizes : Sizes
    theta : float
    """

    def __init__(self, sampler: Sampler, sizes: Sizes, theta: float) -> None:
        self._sampler, self._sizes, self._theta = sampler, sizes, theta
        self._rows = sizes.first
        self._fresh = True
        self._all_scanned = 0

    def first(self) -> Sample:
        if self._sizes.whole:
            return self._use(self._sampler.all_rows())
        return self._use(self._sampler.first(self._sampler.weigh_base(), self._rows))

    def state(self) -> dict[str, Any]:
        """All that the next samples depend on; asked for when a sample was just put in use."""
        return {"supply_rows": np.array(self._rows), **self._sampler.state(self._sample)}

    def restore(self, state: Mapping[str, Any]) -> Sample:
        """Go on from a state; the sample that was in use."""
        self._rows = int(state["supply_rows"])
        return self._use(self._sampler.restore(state))

    def _use(self, sample: Sample) -> Sample:
        self._sample, self._fresh = sample, True
        self._scanned = self._rules = self._trees = self._unproved = 0
        return sample

    def after_tree(
        self, model: Model, grown: Grown, rows_scanned: int
    ) -> tuple[Sample, str] | None:
        """Take note of a tree; the next sample and why, if the one in use is worn out."""
        if self._sizes.whole:
            return None
        self._fresh = False
        self._scanned += rows_scanned
        self._all_scanned += rows_scanned
        self._rules += len(grown.tree.feature)
        self._trees += 1
        self._unproved += grown.n_proved == 0
        sample = self._sample
        left = sample.n_eff / sample.n_eff_drawn
        diverged = (1 - left) / (1 - self._theta)
        largest = self._rows >= self._sizes.most and self._filled
        per_rule = LARGEST_ROWS_PER_RULE if largest else ROWS_PER_RULE
        read = max(self._scanned / MAX_PASSES, self._rules * per_rule) / sample.n
        if max(diverged, read) >= EARLY and not self._sampler.requested:
            if self._unproved > UNPROVED * self._trees and self._filled:
                self._grow()
            self._sampler.request(model, Guide.of(sample), self._rows, more=self._short())
        if max(diverged, read) < 1:
            return None
        return self._use(self._sampler.take()), "n_eff" if diverged >= 1 else "passes"

    def after_failure(self, model: Model) -> tuple[Sample, str] | None:
        """A new sample when the one in use shows no split; None if that would change nothing."""
        if self._sizes.whole:
            return None
        if self._fresh and self._rows >= self._sizes.most and self._sampler.complete:
            return None
        if self._sampler.requested:
            sample = self._sampler.take()
        else:
            if self._fresh:
                self._grow()
            sample = self._sampler.again(model, Guide.of(self._sample), self._rows, more=True)
        return self._use(sample), "no split stands out"

    def _short(self) -> bool:
        """Whether it is time for more rows, where the data set's are still being read.

        Draws run short of rows when many are met again, or when those that weigh most are so few
        that the sample stayed smaller than it might be. Even so, to go on with what there is may
        be the faster way: more are read when training has cost as much as reading did. This
        depends on samples only, not on the time that anything took: same seed, same model.
        """
        read, rows = self._sampler.counts.rows_read, self._sampler.n_rows
        short = read > AGAIN * rows or not self._filled
        return short and self._all_scanned + read > WORTH * rows

    @property
    def _filled(self) -> bool:
        """Whether the sample has about as many rows as it may: not so where heavy rows are few."""
        return self._sample.n >= FILLED * self._rows

    def _grow(self) -> None:
        self._rows = min(GROWTH * self._rows, self._sizes.most)
