"""A trained ensemble: what prediction, evaluation, model files and export share.

`Model` in `model.py` adds what users call. It is a class of its own because its methods need those
parts, which in turn need this one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sparrowboost.model.forest import Forest
from sparrowboost.model.tree import Tree
from sparrowboost.runtime.errors import DataError
from sparrowboost.store.binning import Binning
from sparrowboost.store.lookup import Bins


@dataclass(frozen=True, eq=False, repr=False)
class Ensemble:
    """A base score and trees, and how raw values become bins. Immutable.

    The forest has the same trees in flat arrays, and maybe more: models that grow from each other
    share it.
    """

    binning: Binning
    classes: tuple[Any, Any]  # the negative and the positive label; None: any other
    loss: str
    base_score: float  # H before any tree: half the log odds
    trees: tuple[Tree, ...] = ()
    label_name: str = "label"
    forest: Forest = field(default_factory=Forest)

    def __post_init__(self) -> None:
        if self.forest.n_trees < len(self.trees):
            object.__setattr__(self, "forest", Forest(self.trees))

    @property
    def n_trees(self) -> int:
        return len(self.trees)

    @property
    def feature_names(self) -> list[str]:
        return self.binning.names

    def with_tree(self, tree: Tree) -> Self:
        """The model with one more tree."""
        forest = self.forest
        if forest.n_trees != self.n_trees:  # another model grew from this one already
            forest = Forest(self.trees)
        forest.add(tree)
        return replace(self, trees=(*self.trees, tree), forest=forest)

    def first(self, n_trees: int | None) -> Self:
        """The model with only its first trees; None: with all."""
        if n_trees is None:
            return self
        if not 0 <= n_trees <= self.n_trees:
            raise DataError(f"n_trees={n_trees}: the model has {self.n_trees} trees.")
        return replace(self, trees=self.trees[:n_trees])

    def score(self, bins: Bins) -> npt.NDArray[np.float32]:
        """(n,) scores H of binned rows."""
        from sparrowboost.kernels.scores import apply_trees

        score = np.full(len(bins), self.base_score, np.float32)
        apply_trees(bins, *self.forest.arrays, 0, self.n_trees, score)
        return score
