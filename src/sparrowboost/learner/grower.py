"""Grows a tree on the sample: the leaf with the largest gain is split, once that is proved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

import numpy as np

from sparrowboost.kernels.splits import SUBSET_NOISE
from sparrowboost.learner.features import FeatureDraws, TreeFeatures
from sparrowboost.learner.interactions import Features
from sparrowboost.learner.leaf_values import LeafValues, allowed_values
from sparrowboost.learner.monotone import FREE, Bounds
from sparrowboost.learner.params import Params
from sparrowboost.learner.scanner import Scanner
from sparrowboost.learner.stopping import (
    Adaptive,
    Split,
    SplitFinder,
    stand_out,
)
from sparrowboost.model.model import Model
from sparrowboost.model.tree import Grown, GrownTree
from sparrowboost.runtime.errors import DataError
from sparrowboost.sampling.sample import BLOCK_ROWS

gain_of = attrgetter("gain")

START_VALUES = 1 << 20  # scanned before the first check: fewer is hardly faster
GROWTH = 2.0  # of the run, between checks
TINY = 1e-300  # instead of 0


@dataclass
class Leaf:
    """A leaf of the growing tree."""

    number: int
    depth: int
    features: Features  # that it may be split on
    used: frozenset[int] = frozenset()  # features of the splits above it
    bounds: Bounds = FREE  # of the values of splits
    split: Split | None = None
    gain: float = 0.0  # of that split

    def see(self, split: Split | None) -> None:
        self.split, self.gain = split, 0.0 if split is None else split.gain


def max_depth(params: Params) -> int:
    """The maximum depth of a leaf; without a limit, what the number of leaves allows."""
    return params.max_leaves if params.max_depth is None else params.max_depth


class Grower(Protocol):
    """Grows one tree after another on the sample that the scanner has."""

    def state(self) -> dict[str, Any]:
        """What the next tree depends on, besides model and sample."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a state."""
        ...

    def grow(self, model: Model) -> Grown | None:
        """The next tree, or None if nothing in the sample stands out from noise.

        Of more than two classes, the next tree of each.
        """
        ...


class AdaptiveGrower:
    """Grows trees best-first on a run of the sample that is as long as proofs require.

    All leaves' evidence is of the same rows, so that gains are comparable. The leaf with the
    largest gain is split if its split is proved; if not, the run is extended. Once the run is the
    whole sample, splits are taken without a proof: an interaction of features shows only after one
    of them was split on. But the first tree must stand out from noise.

    With `exact`, every tree is grown on the whole sample: on a small table, less would cost
    accuracy and save little. The noise of these rows is the same for every tree, and what was
    fitted of it is gone: subsets of categories are penalized for what is left. A subset's step
    takes rate * 2 / pi of the noise of its rows; two unrelated sets of rows with shares p and q of
    all noise have p q of it in common.
    """

    def __init__(
        self,
        scanner: Scanner,
        finder: SplitFinder,
        rule: Adaptive,
        leaf_values: LeafValues,
        params: Params,
        *,
        exact: bool,
        draws: FeatureDraws | None = None,
        n_classes: int = 1,
    ) -> None:
        self._n_classes = n_classes  # trees of a round, of which any may stand out by chance
        self._scanner, self._finder, self._rule = scanner, finder, rule
        self._leaf_values = leaf_values
        self._draws = draws or FeatureDraws(scanner.slots.n_features)
        self._exact = exact
        self._rate, self._max_leaves = params.learning_rate, params.max_leaves
        self._max_depth = max_depth(params)
        self._min_weight = params.min_child_weight
        values = BLOCK_ROWS * scanner.slots.n_features
        self._least = max(1, -(-START_VALUES // values))
        self._start = self._least
        self._fitted = np.zeros(scanner.slots.n_features)
        self._stood_out = exact  # whether any tree stood out from noise

    def state(self) -> dict[str, Any]:
        """Blocks to start with, whether a tree stood out, and each feature's fitted noise."""
        return {"grower": np.array([self._start, self._stood_out, *self._fitted], np.float64)}

    def restore(self, state: Mapping[str, Any]) -> None:
        start, stood_out, *_ = state["grower"].tolist()
        self._start, self._stood_out = int(start), bool(stood_out)
        self._fitted = state["grower"][2:].copy()

    def grow(self, model: Model) -> GrownTree | None:
        return self.grow_tree(model, model.n_trees, begun=model.n_trees > 0)

    def grow_tree(self, model: Model, number: int, *, begun: bool) -> GrownTree | None:
        """The next tree; its number decides which features are drawn.

        `begun`: whether there is one before it, so that it need not stand out from noise.
        """
        self._stood_out = self._stood_out or begun
        trees = (self._grow(model, features) for features in self._draws.of_tree(number))
        return next((tree for tree in trees if tree is not None), None)

    def _grow(self, model: Model, features: TreeFeatures) -> GrownTree | None:
        """The next tree, of these features."""
        scanner = self._scanner
        tree = scanner.start(model.forest, model.n_trees, features.features)
        scanner.extend(scanner.sample.n_blocks if self._exact else self._start)
        self._heaviest = scanner.sample.heaviest
        all_v = max(scanner.evidence[0].variance, TINY)
        self._fitted_per_v = self._fitted / all_v
        leaves = [self._look(Leaf(0, 0, features.of_leaf(0, frozenset())))]
        fitted = np.zeros_like(self._fitted)
        root: Split | None = None
        proved, chances = 0, []
        while tree.n_leaves < self._max_leaves:
            leaf = max(leaves, key=gain_of)
            split = leaf.split
            if split is None:
                if scanner.full or tree.n_leaves > 1:
                    break
                certain = False
            else:
                certain = self._proved(leaf.number, split)
            if not certain and not scanner.full:
                scanner.extend(int(np.ceil(GROWTH * scanner.n_run)))
                for leaf in leaves:
                    self._look(leaf)
                continue
            assert split is not None
            if not self._stood_out:
                chances.append(
                    0.0 if certain else self._noise_chance(leaf.number, split, len(leaves))
                )
            root = root or split
            proved += int(certain)
            gain = split.gain * scanner.sample_per_run
            if split.subset_of:
                fitted[split.feature] += split.v / all_v
            leaf.depth += 1
            final = tree.n_leaves + 1 == self._max_leaves or leaf.depth == self._max_depth
            right = scanner.split(leaf.number, split.feature, split.mask, gain, final=final)
            leaf.bounds, bounds = self._finder.part(split, scanner.sample.unit, leaf.bounds)
            leaf.used |= {split.feature}
            other = Leaf(right, leaf.depth, leaf.features, leaf.used, bounds)
            leaves.append(other)
            if final:
                leaf.see(None)
            else:
                leaf.features = features.of_leaf(2 * right - 1, leaf.used)
                other.features = features.of_leaf(2 * right, leaf.used)
                self._look(leaf)
                self._look(other)
        # Half of what this tree took; if that suffices, the next tree starts with half of it again.
        self._start = max(self._least, -(-scanner.n_run // 2))
        if scanner.full and proved < tree.n_leaves - 1:
            self._start = scanner.n_run
        self._stood_out = self._stood_out or stand_out(chances)
        if root is None or not self._stood_out:
            return None
        values = allowed_values(self._leaf_values, scanner, tree, self._finder.monotone)
        with np.errstate(over="ignore"):
            finished = tree.finish((self._rate * values).astype(np.float32))
        if not np.isfinite(finished.value).all():
            raise DataError(
                "a leaf's value is too large for a float32; pass a smaller learning_rate, or "
                "labels in a larger unit."
            )
        scanner.finish(finished)
        if self._exact:
            self._fitted += self._rate * SUBSET_NOISE * fitted
        return GrownTree(
            finished, root.gamma, root.gamma_certified, proved, scanner.n_rows, root.sides
        )

    def _proved(self, leaf: int, split: Split) -> bool:
        """Whether a leaf's split is proved, also with the variance of each side."""
        if not self._rule.proved(split):
            return False
        if self._exact:  # all rows need no proof
            return True
        v_left = self._scanner.left_squares(leaf, split.feature, split.mask)
        return self._rule.proved(split.by_side(v_left))

    def _noise_chance(self, leaf: int, split: Split, n_leaves: int) -> float:
        """How often noise would show such a split; where tails are heavy, by either variance."""
        if self._scanner.heavy_tails:
            v_left = self._scanner.left_squares(leaf, split.feature, split.mask)
            split = split._replace(z=min(split.z, split.by_side(v_left).z))
        return self._finder.noise_chance(split, n_leaves * self._n_classes)

    def _look(self, leaf: Leaf) -> Leaf:
        """Find the best split in the leaf's current evidence; a leaf at maximum depth has none."""
        if leaf.depth >= self._max_depth:
            leaf.see(None)
            return leaf
        scanner = self._scanner
        split = self._finder.find(
            scanner.evidence[leaf.number],
            scanner.rows_in(leaf.number),
            scanner.sample.unit,
            self._min_weight,
            self._heaviest,
            scanner.bundles,
            leaf.bounds,
            self._fitted_per_v,
            leaf.features,
        )
        leaf.see(split)
        return leaf
