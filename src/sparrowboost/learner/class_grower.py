"""Grows a round of trees, one for each of several classes, on the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparrowboost.learner.grower import AdaptiveGrower
from sparrowboost.learner.number_scanner import NumberScanner
from sparrowboost.model.model import Model
from sparrowboost.model.tree import GrownRound
from sparrowboost.sampling.class_sample import ClassSample

STATE = "grower"


class ClassGrower:
    """Grows the trees of a round one after the other, each from the gradients of its class.

    All of them begin at the same block, so that a block's weights are computed once for a round;
    the next round begins where the longest run has ended. A class of which nothing stands out from
    noise gets no tree, that is a leaf of value 0.

    Parameters
    ----------
    scanner : NumberScanner
        With a `ClassSample`.
    growers : sequence of AdaptiveGrower
        One for each class, all with this scanner: runs have other lengths for other classes.
    """

    def __init__(self, scanner: NumberScanner, growers: Sequence[AdaptiveGrower]) -> None:
        self._scanner, self._growers = scanner, growers

    def state(self) -> dict[str, Any]:
        """The states of all growers."""
        return {STATE: np.array([grower.state()[STATE] for grower in self._growers])}

    def restore(self, state: Mapping[str, Any]) -> None:
        for grower, own in zip(self._growers, state[STATE], strict=True):
            grower.restore({STATE: own})

    def grow(self, model: Model) -> GrownRound | None:
        """A tree for each class, or None if nothing stands out from noise in any."""
        scanner, sample = self._scanner, self._scanner.sample
        assert isinstance(sample, ClassSample)
        start, longest, k, parts = scanner.cursor, 0, len(self._growers), []
        for number, grower in enumerate(self._growers):
            sample.turn_to(number)
            scanner.cursor = start
            begun = any(tree.n_leaves > 1 for tree in model.trees[number::k])
            parts.append(grower.grow_tree(model, model.n_trees * k + number, begun=begun))
            longest = max(longest, scanner.n_run)
        scanner.cursor = (start + longest) % sample.n_blocks
        return GrownRound(tuple(parts)) if any(part is not None for part in parts) else None
