"""The schedule of samples: how many rows each has, and when the next one is due."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.model.model import Model
from sparrowboost.model.tree import Grown
from sparrowboost.runtime.threads import WorkerPool
from sparrowboost.sampling.lookback import LookBack, Mark
from sparrowboost.sampling.sample import Sample
from sparrowboost.sampling.sampler import Sampler
from sparrowboost.sampling.weight_estimate import WeightEstimate

FIRST_ROWS = 1 << 15  # of the first sample: early edges are large and need few rows
FIRST_TARGETS = 1 << 17  # the same of numbers and of several classes, whose noise stays for long
ROWS_PER_RULE = 500  # rows of a sample for each rule: with fewer, rules fit its noise
TARGETS_PER_RULE = 1_000  # the same of numbers and of several classes
MAX_FACTOR = 8.0  # of rows for each rule, where the sample is too small and cannot grow
FULL_RATE = 0.3  # learning rate below which fewer rows suffice, by its root
COST = 0.01  # the share of their gain that trees may lose to the noise of their sample
EARLY = 0.5  # how worn a sample is when the next draw begins, in the background
GROWTH = 2  # maximum factor from one sample to the next
LEAP = 8  # the same if trees were worth nothing; of numbers and of several classes, always
CONVERGED_TREES = 64  # on the largest samples: if they did harm, training has converged
CONVERGED_ERRORS = 2.0  # standard deviations that the harm must exceed
AGAIN = 1.0  # rows read by draws per row of the data set, above which rows run short
FILLED = 0.5  # share of the requested rows that a sample should have
NOTHING = "no split stands out"
WORTH = 3.0  # rows scanned or drawn that cost as much as reading and storing one


@dataclass(frozen=True)
class Sizes:
    """How many rows a sample may have."""

    first: int
    most: int
    whole: bool = False  # a single sample of all rows

    def state(self) -> npt.NDArray[np.int64]:
        return np.array([self.first, self.most, self.whole])

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Sizes:
        """Those of a run's checkpoint."""
        first, most, whole = state["sizes"].tolist()
        return cls(first, most, bool(whole))


class SampleSchedule:
    """Gives a sample, and the next one when it is worn out.

    A sample wears out in two ways. Its weights diverge: n_eff falls below theta times its initial
    value. Or so many rules were fitted to it that the model learns the sample instead of the data.
    Half-way to that, the next draw begins in the background, for the model as it is then: at a tree
    that depends on the sample alone, so that the same seed gives the same samples.

    Each sample decides how large the next draw is: its rows are fresh to the trees that were added
    meanwhile, and show what these are worth (lookback.py). If the noise of the previous sample cost
    more than `COST` of that, samples grow in proportion; if they cannot, each is used for fewer
    rules.

    Parameters
    ----------
    sampler : Sampler
    sizes : Sizes
    theta : float
    rate : float
        The learning rate.
    workers : WorkerPool
    """

    def __init__(
        self,
        sampler: Sampler,
        sizes: Sizes,
        theta: float,
        *,
        rate: float,
        workers: WorkerPool,
    ) -> None:
        self._sampler, self._sizes, self._theta = sampler, sizes, theta
        self._rate, self._workers = rate, workers
        self._rows = sizes.first
        self._needed = 0.0  # rows with which noise would cost `COST`
        self._factor = GROWTH  # maximum factor by which the next sample may grow
        self._falls: list[tuple[float, ...]] = []  # the last, on fresh rows: trees, fall, error
        self._all_scanned = 0
        self.lost_patience_at = 0  # trees when a sample was last renewed for lack of improvement

    def first(self) -> Sample:
        if self._sizes.whole:
            return self._use(self._sampler.all_rows())
        return self._use(self._sampler.first(self._sampler.weigh_base(), self._rows))

    def state(self) -> dict[str, Any]:
        """Everything that the next samples depend on, just after a sample was put in use."""
        numbers = (self._rows, self._needed, self._factor, self.lost_patience_at)
        return {
            "sizes": self._sizes.state(),
            "supply": np.array(numbers, np.float64),
            "supply_falls": np.array(self._falls, np.float64).reshape(-1, 3),
            **self._sampler.state(self._sample),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a state, with the sample that was in use."""
        rows, self._needed, factor, patience = state["supply"].tolist()
        self._rows, self._factor, self.lost_patience_at = int(rows), int(factor), int(patience)
        self._falls = [tuple(fall) for fall in state["supply_falls"].tolist()]
        self._use(self._sampler.restore(state))

    @property
    def sample(self) -> Sample:
        """The one in use."""
        return self._sample

    def _use(self, sample: Sample) -> Sample:
        self._sample, self._rules = sample, 0.0  # rules that were fitted to it, of each class
        self._of_largest = self._largest  # whether no sample can be larger
        rows_per_rule = TARGETS_PER_RULE if self._sampler.targeted else ROWS_PER_RULE
        self._rows_per_rule = rows_per_rule * min(self._rate / FULL_RATE, 1.0) ** 0.5
        # Noise of numbers and of several classes is not worth waiting for a sample that is larger.
        if (self._of_largest or self._sampler.targeted) and self._filled:
            lacking = self._needed / max(sample.n, 1)
            self._rows_per_rule *= min(max(lacking, 1.0), MAX_FACTOR)
        self._marks: list[Mark] = []
        if not self._sizes.whole:
            self._marks = [Mark(sample, None, self._workers)]
        self.look: LookBack | None = None  # at the trees before this sample, if any
        return sample

    def after_tree(
        self, model: Model, grown: Grown, rows_scanned: int
    ) -> tuple[Sample, str] | None:
        """Note a tree; returns the next sample and the reason if the one in use is worn out."""
        if self._sizes.whole:
            return None
        self._all_scanned += rows_scanned
        self._rules += grown.n_rules / len(grown.trees)
        for mark in self._marks:
            mark.note(grown)
        sample = self._sample
        diverged = (1 - sample.n_eff / sample.n_eff_drawn) / (1 - self._theta)
        worn = max(diverged, self._rules * self._rows_per_rule / sample.n)
        if worn >= EARLY and not self._sampler.requested:
            if self._filled:
                self._grow(self._needed)
            self._marks.append(Mark(sample, model, self._workers))
            self._sampler.request(model, WeightEstimate.of(sample), self._rows, more=self._short())
        if worn < 1:
            return None
        return self._take(model), "n_eff" if diverged >= 1 else "rules"

    def after_failure(self, model: Model) -> tuple[Sample, str] | None:
        """A new sample if the one in use shows no tree; None if that would change nothing."""
        if self._sizes.whole:
            return None
        fresh = self._rules == 0
        if fresh and self._largest:
            return None
        if self._sampler.requested:
            return self._take(model), NOTHING
        return self._renew(model, grow=fresh), NOTHING

    def after_patience(self, model: Model, best_trees: int) -> tuple[Sample, str] | None:
        """A new, larger sample if validation stopped improving; None if that was tried already.

        Trees that fit the noise of a sample worsen validation until the next sample is in use.
        """
        if self._sizes.whole:
            return None
        if self._sampler.requested:
            self._sampler.take()  # it is too small, and a third would not fit in memory
        if self._largest and self.lost_patience_at > best_trees:
            return None
        self.lost_patience_at = model.n_trees
        return self._renew(model, grow=True), "patience"

    def _renew(self, model: Model, *, grow: bool) -> Sample:
        """Draw a sample while the caller waits."""
        if grow:
            self._grow(GROWTH * self._rows)
        estimate = WeightEstimate.of(self._sample)
        return self._use(self._sampler.again(model, estimate, self._rows, more=True))

    def _take(self, model: Model) -> Sample:
        """Put the requested sample in use, after measuring the last trees on its rows.

        These are the trees added since its draw began, which its rows do not hold yet; if there are
        none, all trees grown on the previous sample.
        """
        sample = self._sampler.take()
        looks = (mark.look_back(sample, model) for mark in reversed(self._marks))
        look = next((look for look in looks if look is not None), None)
        if look is not None:
            self._needed = self._sample.n * look.cost(self._rate) / COST
            self._factor = LEAP if look.fresh <= 0 or self._sampler.targeted else GROWTH
            self._note_fall(look)
        self._use(sample)
        self.look = look
        return sample

    def _note_fall(self, look: LookBack) -> None:
        """Remember the fall on fresh rows, of the last trees on samples that cannot grow."""
        self._falls.append((look.n_trees, look.fresh, look.error))
        while sum(n_trees for n_trees, *_ in self._falls[1:]) >= CONVERGED_TREES:
            self._falls.pop(0)
        if not self._of_largest:
            self._falls.clear()

    @property
    def converged(self) -> bool:
        """Whether trees on the largest samples did more harm than good, judged by fresh rows."""
        if not self._falls:
            return False
        n_trees, fall, _ = np.sum(self._falls, axis=0)
        error = math.hypot(*(error for *_, error in self._falls))
        return bool(n_trees >= CONVERGED_TREES and fall + CONVERGED_ERRORS * error < 0)

    @property
    def _largest(self) -> bool:
        """Whether no sample can have more rows, or come from more data."""
        return self._rows >= self._sizes.most and self._sampler.complete

    def _short(self) -> bool:
        """Whether to take in more rows of a data set that is still being read.

        Draws run short of rows if they read many of them again, or if heavy rows are so few that
        the sample stayed smaller than allowed. Even then it may be faster to go on as is: more
        rows are taken in once training has cost as much as reading did. This depends on the
        samples only, not on time: same seed, same model.
        """
        read, rows = self._sampler.counts.rows_read, self._sampler.n_rows
        short = read > AGAIN * rows or not self._filled
        return short and self._all_scanned + read > WORTH * rows

    @property
    def _filled(self) -> bool:
        """Whether the sample has about as many rows as requested; not so if heavy rows are few."""
        return self._sample.n >= FILLED * self._rows

    def _grow(self, rows: float) -> None:
        """Raise the size of samples to `rows`, within the bounds for growth and memory."""
        most = min(self._factor * self._rows, self._sizes.most)
        self._rows = int(min(max(rows, self._rows), most))
