"""The paper's way to grow a tree: rule by rule, each proved to exceed a target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sparrowboost.learner.features import FeatureDraws, TreeFeatures
from sparrowboost.learner.grower import GROWTH, max_depth
from sparrowboost.learner.monotone import FREE, Bounds
from sparrowboost.learner.params import Params
from sparrowboost.learner.scanner import Scanner
from sparrowboost.learner.stopping import SHRINK, Edge, Paper
from sparrowboost.model.model import Model
from sparrowboost.model.tree import GrownTree


class PaperGrower:
    """Grows trees rule by rule, as the paper does: each rule that fires splits one leaf.

    For each rule the sample is scanned from where the last scan stopped, until some leaf has a rule
    whose advantage certainly exceeds the target gamma. If a whole pass finds none, the target
    becomes a little less than the best advantage seen, and the pass is repeated. A later tree
    starts from the largest advantage of the tree before.

    A rule is applied as it was proved or not at all: a leaf is skipped if the step would take its
    value out of the bounds of monotone constraints.
    """

    def __init__(
        self,
        scanner: Scanner,
        rule: Paper,
        params: Params,
        draws: FeatureDraws | None = None,
    ) -> None:
        self._draws = draws or FeatureDraws(scanner.slots.n_features)
        self._scanner, self._rule, self._rate = scanner, rule, params.learning_rate
        self._max_leaves, self._max_depth = params.max_leaves, max_depth(params)
        self._gamma = params.gamma_0  # the first target of the next tree

    def state(self) -> dict[str, Any]:
        """The first target of the next tree."""
        return {"grower": np.array([self._gamma])}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._gamma = float(state["grower"][0])

    def grow(self, model: Model) -> GrownTree | None:
        trees = (self._grow(model, features) for features in self._draws.of_tree(model.n_trees))
        return next((tree for tree in trees if tree is not None), None)

    def _grow(self, model: Model, features: TreeFeatures) -> GrownTree | None:
        """The next tree, of these features."""
        scanner = self._scanner
        tree = scanner.start(model.forest, model.n_trees, features.features)
        depth, value, bounds, used = [0], [0.0], [FREE], [frozenset[int]()]
        self._features = [features.of_leaf(0, used[0])]  # that each leaf may be split on
        fired: list[tuple[Edge, float]] = []
        run_rows = 0
        gamma = self._gamma
        while tree.n_leaves < self._max_leaves:
            found = self._scan(gamma, depth, value, bounds)
            run_rows += scanner.n_rows
            if found is None:
                break
            leaf, rule, gamma = found
            fired.append((rule, gamma))
            gain = rule.edge**2 / rule.weight * scanner.sample_per_run
            scanner.split(leaf, rule.feature, rule.mask, gain, final=True)  # scanned anew anyway
            depth[leaf] += 1
            depth.append(depth[leaf])
            used[leaf] |= {rule.feature}
            used.append(used[leaf])
            node = 2 * tree.n_leaves - 2  # the right side; the left one comes before it
            self._features[leaf] = features.of_leaf(node - 1, used[leaf])
            self._features.append(features.of_leaf(node, used[leaf]))
            step = rule.sign * self._step(gamma)
            own, left, right = value[leaf], value[leaf] + step, value[leaf] - step
            bounds[leaf], other = self._rule.part(rule, bounds[leaf], own, left, right)
            bounds.append(other)
            value[leaf] = left
            value.append(right)
        if not fired:
            return None
        self._gamma = max(rule.gamma for rule, _ in fired)
        finished = tree.finish(np.array(value, np.float32))
        scanner.finish(finished)
        rule, gamma = fired[0]
        sides = (rule.sign, -rule.sign)
        return GrownTree(finished, rule.gamma, gamma, len(fired), run_rows, sides)

    def _step(self, gamma: float) -> float:
        """By how much a rule moves the values of a leaf's two sides."""
        return self._rate * self._rule.rule_weight(gamma)

    def _fits(self, value: float, bounds: Bounds, gamma: float) -> bool:
        """Whether a rule at this target keeps both sides of a leaf within its bounds."""
        if bounds == FREE:
            return True
        step, (lower, upper) = self._step(gamma), bounds
        return lower <= value - step and value + step <= upper

    def _scan(
        self, gamma: float, depth: list[int], value: list[float], bounds: list[Bounds]
    ) -> tuple[int, Edge, float] | None:
        """Scan until a rule fires; returns the leaf, the rule, and the target that it exceeds."""
        scanner = self._scanner
        while True:
            open_leaves = [
                leaf
                for leaf, d in enumerate(depth)
                if d < self._max_depth and self._fits(value[leaf], bounds[leaf], gamma)
            ]
            if not open_leaves:
                return None
            scanner.restart()
            rules: dict[int, Edge] = {}
            while not scanner.full:
                scanner.extend(max(scanner.n_run + 1, int(GROWTH * scanner.n_run)))
                rules.clear()
                for leaf in open_leaves:
                    rule = self._rule.best(
                        scanner.evidence[leaf],
                        scanner.rows_in(leaf),
                        value[leaf],
                        scanner.bundles,
                        self._features[leaf],
                    )
                    if rule is not None:
                        rules[leaf] = rule
                excess = {leaf: self._rule.excess(rule, gamma) for leaf, rule in rules.items()}
                leaf = max(excess, key=excess.__getitem__, default=0)
                if excess.get(leaf, 0.0) > 0:
                    return leaf, rules[leaf], gamma
            # Rules that would fire at some target; another pass over the same rows finds no others.
            left = [rule.gamma for rule in rules.values() if self._rule.excess(rule, 0.0) > 0]
            if not left:
                return None
            gamma = SHRINK * min(max(left), gamma)
