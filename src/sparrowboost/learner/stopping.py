"""The stopping rules: evidence in, the proved split out. All constants of the tests are here.

A candidate is a split of a leaf. Its evidence is a sum of independent terms, one for each row. Its
fluctuation after any number of rows is bounded by a law of the iterated logarithm: with probability
1 - sigma none of the |H| false candidates of a leaf ever exceeds

    sqrt(2 V (ln ln n + B)),   B = ln(|H| / sigma),   V = sum w**2

on rows that no tree was fitted to. Sigma is for one leaf of one tree: of a thousand leaves, expect
a thousand times sigma false proofs.

A split that a whole sample does not prove may still be more than noise. A tree's splits together
decide: `SplitFinder.noise_chance` is how often noise would show a split as good as this one, and
`stand_out` says whether it would show as many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparrowboost.kernels.packed import best_packed_split
from sparrowboost.kernels.splits import best_edge, best_split
from sparrowboost.learner.bundles import Bundles
from sparrowboost.learner.evidence import Evidence, Slots
from sparrowboost.learner.interactions import Features
from sparrowboost.learner.monotone import FREE, Bounds, Floats, Monotone
from sparrowboost.model.tree import MASK_WORDS, Mask
from sparrowboost.store.packing import Packing

SIGMA = 1e-3  # probability that a false split of a leaf is ever proved (paper, appendix B)
RHO = 0.3  # the share of the empirical edge that must be certain; see docs/parameters.md
L2 = 40.0  # in rows, added to the weight of each side; chosen on data, see docs/parameters.md
CATEGORY_L2 = 30.0  # more of it for categories, each of which is a free parameter
MIN_ROWS = 16  # so that ln ln is defined
LN2 = math.log(2)
C = 1.0  # paper, below its equation of the stopping rule
T0 = 100  # examples before a rule may fire; the law is asymptotic
SHRINK = 0.9  # times the best empirical advantage: the target after a pass without a rule
# z assumes that weights are spread alike on both sides. If a few heavy rows make up a side they are
# not, and prove nothing.
SOLID_ROWS = 30  # times the heaviest row: the minimum weight of each side
NOISE_CHANCE = 0.001  # of the first k splits of a tree of noise to stand out, k = 1, 2, 4, ...
NORMAL_QUANTILE = 3.090  # at 1 - NOISE_CHANCE
NO_NEIGHBOURS = 1e9  # instead of a span: categories are not correlated
MIN_SHARE = 1e-9  # of a leaf's weight on each side: less is rounding


def signs(monotone: Monotone | None, slots: Slots) -> npt.NDArray[np.int8]:
    """(d,) signs of the features' effects, 0 if unconstrained."""
    return np.zeros(slots.n_features, np.int8) if monotone is None else monotone.sign


class Split(NamedTuple):
    """The best split in a leaf's evidence."""

    gain: float  # loss that it removes, in units of weight
    feature: int
    mask: Mask
    left: tuple[float, float]  # W-, W+ that go left
    total: tuple[float, float]  # W-, W+ of the leaf
    subset_of: int  # categories from which the left ones were chosen; 0 for any other split
    v: float
    z: float  # in standard deviations of noise
    boundary: float  # below this z a split may be noise
    solid: bool  # each side weighs at least SOLID_ROWS times the heaviest row
    size: float  # by how much W+ - W- would differ from 0 if all rows agreed

    def by_side(self, v_left: float) -> Split:
        """The same split with z by each side's own variance; `v_left` is V of the left side.

        z compares the sides' means, L / W_L and R / W_R, of variances V_L / W_L**2 and
        V_R / W_R**2. The search assumes V_L / W_L = V / W, so that the sum is V / (W_L W_R).
        """
        left = sum(self.left)
        right = sum(self.total) - left
        taken = self.v / (left * right)
        own = v_left / left**2 + max(self.v - v_left, 0.0) / right**2
        return self._replace(z=self.z * math.sqrt(taken / own)) if own > 0 else self

    @property
    def gamma(self) -> float:
        """Advantage over a coin of predicting the heavier label of each side."""
        (l0, l1), (t0, t1) = self.left, self.total
        return 0.5 * (abs(l1 - l0) + abs((t1 - l1) - (t0 - l0))) / self.size

    @property
    def sides(self) -> tuple[float, float]:
        """The heavier label of the left and of the right side: 1 or -1."""
        (l0, l1), (t0, t1) = self.left, self.total
        return (1.0 if l1 > l0 else -1.0), (1.0 if t1 - l1 > t0 - l0 else -1.0)

    @property
    def gamma_certified(self) -> float:
        """The certain advantage: the empirical one less its largest fluctuation."""
        return max(0.0, self.gamma - 0.5 * self.boundary * self.v**0.5 / self.size)


class SplitFinder:
    """Finds the best split in a leaf's evidence, and the boundary that z must exceed.

    Parameters
    ----------
    slots : Slots
    sigma : float
    l2 : float
        In rows.
    charge : float
        Share of the noise's gain that is subtracted from the gain of a subset of categories.
    monotone : Monotone, optional
    """

    def __init__(
        self,
        slots: Slots,
        *,
        sigma: float = SIGMA,
        l2: float = L2,
        charge: float = 1.0,
        monotone: Monotone | None = None,
    ) -> None:
        self._slots, self._l2, self._charge, self.monotone = slots, l2, charge, monotone
        self._sign, self._every = signs(monotone, slots), np.arange(slots.n_features)
        # Each feature has an equal share of sigma, and its candidates equal shares of that, also
        # where only some features may be split on: another draw may try the others. A
        # number is cut between any two bins, with missing values on either side; of categories,
        # one stands against the rest, or (see `b_of`) a subset.
        b = np.log(slots.n_features * np.maximum(2 * slots.n_bins, 1) / sigma)
        self._b: list[float] = b.tolist()
        self._work = np.empty((2, 256))
        self._found = np.empty(5)
        # The last bin of a number is for missing values; one category stands against the rest.
        category = slots.category.astype(bool)
        self._tests = np.where(category, slots.n_bins, np.maximum(slots.n_bins - 2, 0))
        edge = 1 / np.maximum(slots.n_bins - 1, 2)
        self._span = np.where(category, NO_NEIGHBOURS, 2 * np.log((1 - edge) / edge))

    def noise_chance(self, split: Split, n_leaves: int = 1) -> float:
        """The probability that the best split of n_leaves leaves of noise has at least this z.

        For one feature, the smaller of two bounds: the sum over its cuts, and the tail of their
        maximum, since neighbouring cuts are strongly correlated (Miller and Siegmund, Biometrics
        1982). It is not known for a subset of categories: whatever its z, noise may show it.
        """
        if split.subset_of:
            return 1.0
        z = max(split.z, 1.0)
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        one = math.erfc(z / math.sqrt(2))
        largest = density * ((z - 1 / z) * self._span + 4 / z)
        feature = np.minimum(np.minimum(self._tests * one, largest), 1 - 1e-16)
        return float(-np.expm1(n_leaves * np.log1p(-feature).sum()))

    def b_of(self, feature: int, subset_of: int) -> float:
        """B = ln(|H| / sigma) of a feature; a subset is one of 2**(k - 1)."""
        return self._b[feature] + max(subset_of - 1, 0) * LN2

    def find(
        self,
        evidence: Evidence,
        n_rows: int,
        unit: float,
        min_weight: float,
        heaviest: float = 0.0,
        bundles: Bundles | Packing | None = None,
        bounds: Bounds = FREE,
        fitted: Floats | None = None,
        features: Features | None = None,
    ) -> Split | None:
        """The best split, or None if no split leaves weight on both sides.

        An ordinary row weighs `unit`, the heaviest of the sample `heaviest`. The evidence may be of
        bundles, or of packed rows. Values of the sides are kept within `bounds`. `fitted` (d,) is
        how much of the noise of a feature's categories earlier trees have fitted, per unit of V.
        `features` (m,) are those to split on; all by default.
        """
        w0, w1 = evidence.weights.tolist()
        v, weight = evidence.variance, w0 + w1
        if weight <= 0 or v <= 0:
            return None
        mask = np.empty(MASK_WORDS, np.uint64)
        found = self._found
        least = max(min_weight * unit, MIN_SHARE * weight)
        some = self._every if features is None else features
        if isinstance(bundles, Packing):
            of = bundles.first, bundles.last, self._slots.n_bins, bundles.zero, some
            rule = self._l2 * unit, least, self._sign, *bounds
            best_packed_split(evidence.hist, *of, *rule, self._work, found, mask)
        else:
            noise = np.full(self._slots.n_features, self._charge * v / weight)
            hist = evidence.hist if bundles is None else bundles.unpack(evidence.hist)
            best_split(
                np.ascontiguousarray(hist),
                self._slots.offset,
                self._slots.n_bins,
                self._slots.category,
                some,
                self._l2 * unit,
                (self._l2 + CATEGORY_L2) * unit,
                least,
                noise if fitted is None else noise * np.exp(-fitted * v),
                self._sign,
                *bounds,
                self._work,
                found,
                mask,
            )
        gain, feature, l0, l1, subset_of = found.tolist()
        if gain <= 0:
            return None
        b = self.b_of(int(feature), int(subset_of))
        return Split(
            gain=gain,
            feature=int(feature),
            mask=mask,
            left=(l0, l1),
            total=(w0, w1),
            subset_of=int(subset_of),
            v=v,
            z=math.sqrt(gain * weight / v),
            size=evidence.size(weight),
            solid=min(l0 + l1, weight - l0 - l1) >= SOLID_ROWS * heaviest,
            boundary=math.sqrt(2 * (math.log(math.log(max(n_rows, MIN_ROWS))) + b)),
        )

    def part(self, split: Split, unit: float, bounds: Bounds) -> tuple[Bounds, Bounds]:
        """Bounds of the left and of the right side when a leaf with these bounds is split."""
        if self.monotone is None:
            return bounds, bounds
        (l0, l1), (t0, t1), l2 = split.left, split.total, self._l2 * unit
        own, left = (t1 - t0) / (t0 + t1 + l2), (l1 - l0) / (l0 + l1 + l2)
        right = (t1 - l1 - (t0 - l0)) / (t0 + t1 - (l0 + l1) + l2)
        return self.monotone.part(split.feature, split.mask, bounds, own, left, right)


def stand_out(chances: Sequence[float]) -> bool:
    """Whether splits with these probabilities under noise are, taken together, more than noise.

    Fisher's method: under noise, -2 sum ln p is chi-square with two degrees of freedom for each
    split. The quantile is Wilson and Hilferty's. Only the first splits of a tree may be real, so
    the first one, two, four, ... are tried, too.
    """
    total, done, n = 0.0, 0, 1
    while done < len(chances):
        n = min(n, len(chances))
        total -= 2 * sum(math.log(max(p, 1e-300)) for p in chances[done:n])
        k = 2 * n
        if total > k * (1 - 2 / (9 * k) + NORMAL_QUANTILE * math.sqrt(2 / (9 * k))) ** 3:
            return True
        done, n = n, 2 * n
    return False


@dataclass(frozen=True)
class Adaptive:
    """Take a split when a share rho of its edge is certain: no target, no failed pass."""

    rho: float = RHO

    def proved(self, split: Split) -> bool:
        return split.solid and split.z * (1 - self.rho) >= split.boundary


@dataclass(frozen=True)
class Edge:
    """The rule with the largest edge in a leaf's evidence: +1 or -1 by side, 0 elsewhere."""

    feature: int
    mask: Mask
    sign: float  # the prediction where the bin is in `mask`; elsewhere the opposite
    edge: float  # sum of w h y
    weight: float
    v: float
    n: int

    @property
    def gamma(self) -> float:
        """The empirical advantage: the edge is 2 gamma of the weight."""
        return 0.5 * self.edge / self.weight


@dataclass(frozen=True)
class Paper:
    """The paper's rule: fire when the edge is above a target gamma, and that is certain.

        M = sum w (h y - 2 gamma),    V = sum w**2
        fire if  t > t0  and  M > C sqrt(V (ln ln(V / M) + B))

    over the examples that reach the leaf. Weights are in units of their mean, so that V / M is
    dimensionless. With the paper's C = 1 sigma is only nominal: the law needs C = sqrt(2).
    """

    slots: Slots
    sigma: float = SIGMA
    c: float = C
    monotone: Monotone | None = None

    @property
    def b(self) -> float:
        """ln(|H| / sigma): every cut or category, both signs, missing values on either side."""
        return float(np.log(4 * self.slots.n / self.sigma))

    def best(
        self,
        evidence: Evidence,
        n_rows: int,
        value: float,
        bundles: Bundles | Packing | None = None,
        features: Features | None = None,
    ) -> Edge | None:
        """The best rule for a leaf to which the tree so far gives this value.

        The weights in the evidence are from before the tree; in a leaf, all change by
        exp(-y value). `features` (m,) are those to split on; all by default.
        """
        scale = np.exp(np.array([value, -value]))
        weight = float((evidence.weights * scale).sum())
        found, mask = np.empty(3), np.empty(MASK_WORDS, np.uint64)
        slots = self.slots
        if isinstance(bundles, Packing):
            hist = bundles.all_bins(evidence.hist)
        else:
            hist = evidence.hist if bundles is None else bundles.unpack(evidence.hist)
        some = np.arange(slots.n_features) if features is None else features
        of = slots.offset, slots.n_bins, slots.category, some, signs(self.monotone, slots)
        best_edge(hist, *of, scale, found, mask)
        edge, feature, sign = found.tolist()
        if edge <= 0 or weight <= 0:
            return None
        v = float((evidence.v * scale**2).sum())
        return Edge(int(feature), mask, sign, edge, weight, v, n_rows)

    def part(
        self, rule: Edge, bounds: Bounds, own: float, left: float, right: float
    ) -> tuple[Bounds, Bounds]:
        """Bounds of a rule's sides, whose values are `left` and `right`; before it was `own`."""
        if self.monotone is None:
            return bounds, bounds
        return self.monotone.part(rule.feature, rule.mask, bounds, own, left, right)

    def excess(self, rule: Edge, gamma: float) -> float:
        """M minus the bound that it must exceed: the rule fires if this is positive."""
        mean = rule.weight / max(rule.n, 1)
        m, v = (rule.edge - 2 * gamma * rule.weight) / mean, rule.v / mean**2
        if rule.n <= T0 or m <= 0:
            return -math.inf
        return m - self.c * math.sqrt(v * (math.log(math.log(max(v / m, math.e))) + self.b))

    @staticmethod
    def rule_weight(gamma: float) -> float:
        """What a rule with this advantage adds to the score."""
        return 0.5 * float(np.log((0.5 + gamma) / (0.5 - gamma)))
