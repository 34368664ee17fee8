"""A tree grown on the sample: the leaf that promises most is split, once its split is proved."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Protocol

import numpy as np

from sparrowboost.kernels.splits import SUBSET_NOISE
from sparrowboost.losses import Loss
from sparrowboost.model import Model
from sparrowboost.monotone import FREE, Bounds, Floats
from sparrowboost.params import Params
from sparrowboost.sample import BLOCK_ROWS
from sparrowboost.scanner import Scanner
from sparrowboost.stopping import SHRINK, Adaptive, Edge, Paper, Split, SplitFinder, stand_out
from sparrowboost.tree import Tree, TreeBuilder

gain_of = attrgetter("gain")

START_VALUES = 1 << 20  # scanned before the first check: less is hardly quicker
GROWTH = 2.0  # of the run, between checks
TINY = 1e-300  # instead of 0


@dataclass
class Leaf:
    """A leaf of the tree that grows."""

    number: int
    depth: int
    bounds: Bounds = FREE  # of the values of splits
    split: Split | None = None
    gain: float = 0.0  # of that split

    def see(self, split: Split | None) -> None:
        self.split, self.gain = split, 0.0 if split is None else split.gain


@dataclass(frozen=True)
class Grown:
    """A tree and what is known of how it was found."""

    tree: Tree
    gamma: float  # advantage of the first split, as measured
    gamma_certified: float  # what is certain of it
    n_proved: int  # splits that the rule proved; the others were taken after a full pass
    run_rows: int
    sides: tuple[float, float]  # what the first split says of its left and right: 1 or -1


def max_depth(params: Params) -> int:
    """The depth that no leaf may pass; without a limit, what the number of leaves allows."""
    return params.max_leaves if params.max_depth is None else params.max_depth


class Grower(Protocol):
    """Grows one tree after the other on whatever sample the scanner has."""

    memory: Floats  # what it knows of the trees so far: all that the next one depends on

    def grow(self, model: Model) -> Grown | None:
        """The next tree, or None if the sample shows nothing that stands out from noise."""
        ...


class AdaptiveGrower:
    """Grows trees best-first on a run of the sample that is as long as the proof takes.

    All leaves' evidence is of the same rows, so that their gains compare. The leaf of the largest
    gain is split if its split is proved; if not, the run is extended. When the run is the whole
    sample, splits are taken without a proof: some may be needed to find one that counts, since what
    features do together shows only when one of them was split by. But there is no tree before one
    stood out from noise.

    With `exact`, every tree is grown on the whole sample: where that is all the data and it is not
    much, less costs accuracy and saves little. The noise of these rows stays the same from tree to
    tree, and what is fitted of it is gone: subsets of categories are charged for what is left. A
    subset's step takes rate * 2 / pi of the noise of its rows; of two sets of rows that have to do
    nothing with each other, shares p and q of all, p q of the one's noise is the other's.
    """

    def __init__(
        self,
        scanner: Scanner,
        finder: SplitFinder,
        rule: Adaptive,
        loss: Loss,
        params: Params,
        *,
        exact: bool,
    ) -> None:
        self._scanner, self._finder, self._rule, self._loss = scanner, finder, rule, loss
        self._exact = exact
        self._rate, self._max_leaves = params.learning_rate, params.max_leaves
        self._max_depth = max_depth(params)
        self._min_weight = params.min_child_weight
        values = BLOCK_ROWS * scanner.slots.n_features
        self._least = max(1, -(-START_VALUES // values))
        self._start = self._least
        self._fitted = np.zeros(scanner.slots.n_features)
        self._stood_out = exact  # whether a tree ever did

    @property
    def memory(self) -> Floats:
        """Blocks to begin with, whether a tree ever stood out, and each feature's fitted noise."""
        return np.array([self._start, self._stood_out, *self._fitted], np.float64)

    @memory.setter
    def memory(self, memory: Floats) -> None:
        self._start, self._stood_out = int(memory[0]), bool(memory[1])
        self._fitted = memory[2:].copy()

    def grow(self, model: Model) -> Grown | None:
        scanner = self._scanner
        tree = scanner.start(model.forest, model.n_trees)
        scanner.extend(scanner.sample.n_blocks if self._exact else self._start)
        self._heaviest = scanner.sample.heaviest
        all_v = max(float(scanner.evidence[0].v.sum()), TINY)
        self._fitted_per_v = self._fitted / all_v
        leaves = [self._look(Leaf(0, 0))]
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
                chances.append(0.0 if certain else self._finder.noise_chance(split, len(leaves)))
            root = root or split
            proved += int(certain)
            gain = split.gain * scanner.sample_per_run
            if split.subset_of:
                fitted[split.feature] += split.v / all_v
            leaf.depth += 1
            final = tree.n_leaves + 1 == self._max_leaves or leaf.depth == self._max_depth
            right = scanner.split(leaf.number, split.feature, split.mask, gain, final=final)
            leaf.bounds, bounds = self._finder.part(split, scanner.sample.unit, leaf.bounds)
            other = Leaf(right, leaf.depth, bounds)
            leaves.append(other)
            if final:
                leaf.see(None)
            else:
                self._look(leaf)
                self._look(other)
        # Half of what this tree took: if that is enough the next one may do with less again.
        self._start = max(self._least, -(-scanner.n_run // 2))
        if scanner.full and proved < tree.n_leaves - 1:
            self._start = scanner.n_run
        self._stood_out = self._stood_out or stand_out(chances)
        if root is None or not self._stood_out:
            return None
        finished = tree.finish((self._rate * self._values(tree)).astype(np.float32))
        scanner.finish(finished)
        if self._exact:
            self._fitted += self._rate * SUBSET_NOISE * fitted
        return Grown(finished, root.gamma, root.gamma_certified, proved, scanner.n_rows, root.sides)

    def _proved(self, leaf: int, split: Split) -> bool:
        """Whether a leaf's split is proved, also by the variance on each of its sides."""
        if not self._rule.proved(split):
            return False
        if self._exact:  # of all rows no proof is asked for
            return True
        v_left = self._scanner.left_squares(leaf, split.feature, split.mask)
        return self._rule.proved(split.by_side(v_left))

    def _values(self, tree: TreeBuilder) -> Floats:
        """(leaves,) best values that the constraints allow."""
        best = partial(self._loss.leaf_values, unit=self._scanner.sample.unit)
        sums, monotone = self._scanner.leaf_sums(), self._finder.monotone
        if monotone is None:
            return best(sums)
        return np.clip(best(sums), *monotone.bounds(tree, sums, best).T)

    def _look(self, leaf: Leaf) -> Leaf:
        """Find the leaf's best split in its evidence as it is now; a deepest leaf has none."""
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
        )
        leaf.see(split)
        return leaf


class PaperGrower:
    """Grows trees rule by rule, as the paper does: each fired rule splits one leaf.

    For each rule the sample is scanned from where the last one stopped, until some leaf has a rule
    whose advantage is certain to exceed the target gamma. If a whole pass shows none, the target
    becomes a little less than the best advantage seen, and the pass is repeated. Later trees start
    from the largest advantage that the tree before found.

    A rule is applied as it was proved or not at all: where its step would take a leaf's value out
    of the bounds that monotone constraints set, the leaf is not looked at.
    """

    def __init__(
        self,
        scanner: Scanner,
        rule: Paper,
        params: Params,
    ) -> None:
        self._scanner, self._rule, self._rate = scanner, rule, params.learning_rate
        self._max_leaves, self._max_depth = params.max_leaves, max_depth(params)
        self._gamma = params.gamma_0  # the first target of the next tree

    @property
    def memory(self) -> Floats:
        """The first target of the next tree."""
        return np.array([self._gamma])

    @memory.setter
    def memory(self, memory: Floats) -> None:
        self._gamma = float(memory[0])

    def grow(self, model: Model) -> Grown | None:
        scanner = self._scanner
        tree = scanner.start(model.forest, model.n_trees)
        depth, value, bounds = [0], [0.0], [FREE]
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
        return Grown(finished, rule.gamma, gamma, len(fired), run_rows, sides)

    def _step(self, gamma: float) -> float:
        """How far a rule moves the values of a leaf's two sides."""
        return self._rate * self._rule.rule_weight(gamma)

    def _fits(self, value: float, bounds: Bounds, gamma: float) -> bool:
        """Whether a rule at this target would leave both sides of a leaf within its bounds."""
        if bounds == FREE:
            return True
        step, (lower, upper) = self._step(gamma), bounds
        return lower <= value - step and value + step <= upper

    def _scan(
        self, gamma: float, depth: list[int], value: list[float], bounds: list[Bounds]
    ) -> tuple[int, Edge, float] | None:
        """Scan until a rule fires; the leaf, the rule, and the target that it is above."""
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
                    )
                    if rule is not None:
                        rules[leaf] = rule
                excess = {leaf: self._rule.excess(rule, gamma) for leaf, rule in rules.items()}
                leaf = max(excess, key=excess.__getitem__, default=0)
                if excess.get(leaf, 0.0) > 0:
                    return leaf, rules[leaf], gamma
            # Those that would fire at some target; passes over the same rows show no others.
            left = [rule.gamma for rule in rules.values() if self._rule.excess(rule, 0.0) > 0]
            if not left:
                return None
            gamma = SHRINK * min(max(left), gamma)
