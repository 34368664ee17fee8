"""The stopping rules: evidence in, the split that is proved out. The tests' constants are here.

A candidate is a split of a leaf. Its evidence is a sum of independent terms, one for each row: its
fluctuation after any number of rows is bounded by a law of the iterated logarithm: with chance
1 - sigma no false candidate, of all |H| of one leaf, ever exceeds

    sqrt(2 V (ln ln n + B)),   B = ln(|H| / sigma),   V = sum w**2

while rows come that no tree was fitted to. Sigma is for one leaf of one tree: with a thousand
leaves, a thousand times sigma is what may be expected of false proofs.

What a whole sample does not prove may still be more than noise. A tree's splits together tell:
`SplitFinder.noise_chance` says how often noise would show one as good, and `stand_out` whether it
would show so many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparrowboost.kernels.splits import best_edge, best_split
from sparrowboost.learner.bundles import Bundles
from sparrowboost.learner.evidence import Evidence, Slots
from sparrowboost.learner.monotone import FREE, Bounds, Floats, Monotone
from sparrowboost.model.tree import MASK_WORDS, Mask

SIGMA = 1e-3  # chance that a false split of a leaf is ever proved (paper, appendix B)
RHO = 0.3  # share of the empirical edge that must be certain; see docs/parameters.md
L2 = 40.0  # rows' weight, added to each side of a split; chosen on data, see docs/parameters.md
CATEGORY_L2 = 30.0  # the same where a category is a free number
MIN_ROWS = 16  # for ln ln
LN2 = math.log(2)
C = 1.0  # paper, after its equation of the stopping rule
T0 = 100  # examples before a rule may fire; the law needs some before it holds
SHRINK = 0.9  # of the best empirical advantage, the target after a pass in which no rule fired
# z takes weights on both sides to be spread alike. Where a few heavy rows make up a side they are
# not, and prove nothing.
SOLID_ROWS = 30
NOISE_CHANCE = 0.001  # that the first k splits of a tree of noise stand out, k = 1, 2, 4, ...
NORMAL_QUANTILE = 3.090  # of 1 - NOISE_CHANCE
NO_NEIGHBOURS = 1e9  # instead of a span: categories are not alike
MIN_SHARE = 1e-9  # of a leaf's weight on a side: less is rounding


def signs(monotone: Monotone | None, slots: Slots) -> npt.NDArray[np.int8]:
    """(d,) signs of the features' effects, 0 where they are free."""
    return np.zeros(slots.n_features, np.int8) if monotone is None else monotone.sign


class Split(NamedTuple):
    """The best split that a leaf's evidence shows."""

    gain: float  # weight's worth of loss that it removes
    feature: int
    mask: Mask
    left: tuple[float, float]  # W-, W+ that go left
    total: tuple[float, float]  # W-, W+ of the leaf
    subset_of: int  # categories among which the left ones were chosen; 0 for any other split
    v: float
    z: float  # gain in standard deviations of what noise would give
    boundary: float  # of z, below which a split may be noise
    solid: bool  # each side has the weight of many rows, even if all weighed as the heaviest

    def by_side(self, v_left: float) -> Split:
        """The same with z by each side's own variance, of which the left's is V = `v_left`.

        z compares the sides' means, L / W_L and R / W_R, of variances V_L / W_L**2 and
        V_R / W_R**2. The search takes V_L / W_L for V / W, and so the sum for V / (W_L W_R).
        """
        left = sum(self.left)
        right = sum(self.total) - left
        taken = self.v / (left * right)
        own = v_left / left**2 + max(self.v - v_left, 0.0) / right**2
        return self._replace(z=self.z * math.sqrt(taken / own)) if own > 0 else self

    @property
    def gamma(self) -> float:
        """Advantage over a coin of predicting the heavier label on each side."""
        (l0, l1), (t0, t1) = self.left, self.total
        return 0.5 * (abs(l1 - l0) + abs((t1 - l1) - (t0 - l0))) / (t0 + t1)

    @property
    def sides(self) -> tuple[float, float]:
        """The heavier label on the left and on the right: 1 or -1."""
        (l0, l1), (t0, t1) = self.left, self.total
        return (1.0 if l1 > l0 else -1.0), (1.0 if t1 - l1 > t0 - l0 else -1.0)

    @property
    def gamma_certified(self) -> float:
        """The advantage that is certain: the empirical one less its largest fluctuation."""
        t0, t1 = self.total
        return max(0.0, self.gamma - 0.5 * self.boundary * self.v**0.5 / (t0 + t1))


class SplitFinder:
    """Finds the best split of a leaf's evidence, and how far it must stand out.

    Parameters
    ----------
    slots : Slots
    sigma : float
    l2 : float
        In rows.
    charge : float
        Part of what a subset of categories gains on noise that is taken off its gain.
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
        self._sign = signs(monotone, slots)
        # Each feature gets an equal share of sigma, and its candidates equal shares of that. A
        # number is cut between any two bins, with missing values on either side; of categories
        # any one stands against the rest, or (see `b_of`) any subset.
        b = np.log(slots.n_features * np.maximum(2 * slots.n_bins, 1) / sigma)
        self._b: list[float] = b.tolist()
        self._work = np.empty((2, 256))
        self._found = np.empty(5)
        # A number's last bin is for missing values; a category stands against the rest.
        category = slots.category.astype(bool)
        self._tests = np.where(category, slots.n_bins, np.maximum(slots.n_bins - 2, 0))
        edge = 1 / np.maximum(slots.n_bins - 1, 2)
        self._span = np.where(category, NO_NEIGHBOURS, 2 * np.log((1 - edge) / edge))

    def noise_chance(self, split: Split, n_leaves: int = 1) -> float:
        """How likely the best split of some leaves of noise has such a z, or a larger one.

        Of one feature: at most that of its cuts one by one; and since neighbours are much alike,
        also that of the largest of all (Miller and Siegmund, Biometrics 1982). Of a subset of
        categories it is not known: whatever its z, noise may show it.
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
        bundles: Bundles | None = None,
        bounds: Bounds = FREE,
        fitted: Floats | None = None,
    ) -> Split | None:
        """The best split, or None where there is none that leaves weight on both sides.

        An ordinary row weighs `unit`, the heaviest in the sample `heaviest`. The evidence may be of
        bundles. The values that sides may have are within `bounds`. How far earlier
        trees fitted the noise of a feature's categories is in `fitted` (d,), for each unit of V.
        """
        w0, w1 = evidence.weights.tolist()
        v, weight = sum(evidence.v.tolist()), w0 + w1
        if weight <= 0 or v <= 0:
            return None
        mask = np.empty(MASK_WORDS, np.uint64)
        found = self._found
        noise = np.full(self._slots.n_features, self._charge * v / weight)
        hist = evidence.hist if bundles is None else bundles.unpack(evidence.hist)
        best_split(
            np.ascontiguousarray(hist),
            self._slots.offset,
            self._slots.n_bins,
            self._slots.category,
            self._l2 * unit,
            (self._l2 + CATEGORY_L2) * unit,
            max(min_weight * unit, MIN_SHARE * weight),
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
            solid=min(l0 + l1, weight - l0 - l1) >= SOLID_ROWS * heaviest,
            boundary=math.sqrt(2 * (math.log(math.log(max(n_rows, MIN_ROWS))) + b)),
        )

    def part(self, split: Split, unit: float, bounds: Bounds) -> tuple[Bounds, Bounds]:
        """Bounds of the left and of the right side of a split of a leaf with these bounds."""
        if self.monotone is None:
            return bounds, bounds
        (l0, l1), (t0, t1), l2 = split.left, split.total, self._l2 * unit
        own, left = (t1 - t0) / (t0 + t1 + l2), (l1 - l0) / (l0 + l1 + l2)
        right = (t1 - l1 - (t0 - l0)) / (t0 + t1 - (l0 + l1) + l2)
        return self.monotone.part(split.feature, split.mask, bounds, own, left, right)


def stand_out(chances: Sequence[float]) -> bool:
    """Whether splits that noise would show with these chances are together more than noise.

    Fisher's method: on noise -2 sum ln p is chi-square with two degrees of freedom for each. Its
    quantile is Wilson and Hilferty's. The first of a tree may be all that counts: so the first
    one, two, four, ... are tried, too.
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
    """Take a split when a share rho of its edge is certain. No target, no failed pass."""

    rho: float = RHO

    def proved(self, split: Split) -> bool:
        return split.solid and split.z * (1 - self.rho) >= split.boundary


@dataclass(frozen=True)
class Edge:
    """The rule of largest edge in a leaf's evidence: +1 or -1 by side, on this leaf only."""

    feature: int
    mask: Mask
    sign: float  # what the rule says where the bin is in `mask`; the other side gets the opposite
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

    over the examples that reach the leaf. Weights are taken in units of their mean, so that V / M
    is a number. With the paper's C = 1, sigma is nominal: the law needs C = sqrt(2).
    """

    slots: Slots
    sigma: float = SIGMA
    c: float = C
    monotone: Monotone | None = None

    @property
    def b(self) -> float:
        """ln(|H| / sigma): each cut or category, both signs, missing values on either side."""
        return float(np.log(4 * self.slots.n / self.sigma))

    def best(
        self, evidence: Evidence, n_rows: int, value: float, bundles: Bundles | None = None
    ) -> Edge | None:
        """The best rule on a leaf whose rows the tree so far gives this value.

        The rows' weights are of before the tree: those of a leaf all change by exp(-y value).
        """
        scale = np.exp(np.array([value, -value]))
        weight = float((evidence.weights * scale).sum())
        found, mask = np.empty(3), np.empty(MASK_WORDS, np.uint64)
        slots = self.slots
        hist = evidence.hist if bundles is None else bundles.unpack(evidence.hist)
        monotone = signs(self.monotone, slots)
        best_edge(hist, slots.offset, slots.n_bins, slots.category, monotone, scale, found, mask)
        edge, feature, sign = found.tolist()
        if edge <= 0 or weight <= 0:
            return None
        v = float((evidence.v * scale**2).sum())
        return Edge(int(feature), mask, sign, edge, weight, v, n_rows)

    def part(
        self, rule: Edge, bounds: Bounds, own: float, left: float, right: float
    ) -> tuple[Bounds, Bounds]:
        """Bounds of a rule's sides: of values `left` and `right`, where it was `own` before."""
        if self.monotone is None:
            return bounds, bounds
        return self.monotone.part(rule.feature, rule.mask, bounds, own, left, right)

    def excess(self, rule: Edge, gamma: float) -> float:
        """M less what it must exceed: the rule fires above 0."""
        mean = rule.weight / max(rule.n, 1)
        m, v = (rule.edge - 2 * gamma * rule.weight) / mean, rule.v / mean**2
        if rule.n <= T0 or m <= 0:
            return -math.inf
        return m - self.c * math.sqrt(v * (math.log(math.log(max(v / m, math.e))) + self.b))

    @staticmethod
    def rule_weight(gamma: float) -> float:
        """How much a rule of this advantage adds to the score."""
        return 0.5 * float(np.log((0.5 + gamma) / (0.5 - gamma)))
