"""A trained ensemble: what prediction, evaluation, model files and export share.

`Model` in `model.py` adds the methods that users call. It is a class of its own because they use
prediction, files and export, which in turn use this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from sparrowboost.model.forest import Forest, add_rounds
from sparrowboost.model.losses import half_of
from sparrowboost.model.own_loss import OwnLoss
from sparrowboost.model.regression import REGRESSION_LOSSES, RegressionLoss, regression_loss
from sparrowboost.model.softmax import Softmax, softmax_of
from sparrowboost.model.tree import Tree
from sparrowboost.readers.sparse import number_of
from sparrowboost.runtime.errors import DataError
from sparrowboost.store.binning import Binning
from sparrowboost.store.lookup import Bins
from sparrowboost.store.sparse import MIN_COLUMNS
from sparrowboost.store.storage import check_offset

Offsets = npt.NDArray[np.float32] | None  # (n,) of the rows of a block
_LOCK = Lock()


@dataclass(frozen=True, eq=False, repr=False)
class Ensemble:
    """A base score and trees, and how raw values become bins. Immutable.

    Ensembles that grow from each other share one forest, which may hold more trees than theirs.
    """

    binning: Binning
    # The negative and the positive label; None: any other. Or more than two; () for numbers.
    classes: tuple[Any, ...]
    loss: str
    # Before any tree: H, half the log odds; or a number as the loss has it; or one for each of more
    # than two classes.
    base_score: float | tuple[float, ...]
    trees: tuple[Tree, ...] = ()  # of more than two classes, one of each, and so on
    label_name: str = "label"
    loss_options: Mapping[str, float] = field(default_factory=dict)  # of a loss of numbers
    own_loss: OwnLoss | None = None  # the user's, while training; files do not have it
    offset_name: str | None = None  # the column of the offsets with which it was trained

    @property
    def forest(self) -> Forest:
        """The trees in flat arrays, for the kernels; made when first needed, by one thread."""
        own = vars(self)
        with _LOCK:
            if "_forest" not in own:
                own["_forest"] = Forest(self.trees)
        return own["_forest"]

    @property
    def task(self) -> Literal["classification", "regression"]:
        numbers = self.loss in REGRESSION_LOSSES or self.loss == OwnLoss.name
        return "regression" if numbers else "classification"

    @property
    def regression(self) -> RegressionLoss | None:
        """The loss, if the model predicts numbers."""
        if self.loss == OwnLoss.name:
            return self.own_loss or OwnLoss()
        return regression_loss(self.loss, self.loss_options) if self.task == "regression" else None

    @property
    def softmax(self) -> Softmax | None:
        """The loss, if the model tells more than two classes apart."""
        return softmax_of(self.classes)

    @property
    def n_scores(self) -> int:
        """Scores of a row: one, or one for each of more than two classes."""
        return len(self.classes) if len(self.classes) > 2 else 1

    @property
    def n_trees(self) -> int:
        """Rounds of boosting: each adds a tree, or one for each of more than two classes."""
        return len(self.trees) // self.n_scores

    @property
    def feature_names(self) -> list[str]:
        return self.binning.names

    def with_tree(self, *trees: Tree) -> Self:
        """The model with one more tree; of more than two classes, with one more of each."""
        forest = self.forest
        if forest.n_trees != len(self.trees):  # another model grew from this one already
            forest = Forest(self.trees)
        for tree in trees:
            forest.add(tree)
        return self._sharing(forest, (*self.trees, *trees))

    def first(self, n_trees: int | None) -> Self:
        """The model with only its first trees; None: with all."""
        if n_trees is None:
            return self
        if not 0 <= n_trees <= self.n_trees:
            raise DataError(f"n_trees={n_trees}: the model has {self.n_trees} trees.")
        return self._sharing(self.forest, self.trees[: n_trees * self.n_scores])

    def _sharing(self, forest: Forest, trees: tuple[Tree, ...]) -> Self:
        new = replace(self, trees=trees)
        vars(new)["_forest"] = forest
        return new

    @property
    def lean(self) -> Self:
        """The same model of those features alone that its trees split on, if it has very many.

        Where columns have numbers instead of names; rows to predict then need no others.
        """
        own = vars(self)
        if "_lean" not in own:
            own["_lean"] = self._made_lean() if self._is_wide else self
        return own["_lean"]

    @property
    def _is_wide(self) -> bool:
        binning = self.binning
        if len(binning.columns) < MIN_COLUMNS or binning.statistics:
            return False
        return all(number_of(name) >= 0 for name in binning.column_names)

    def _made_lean(self) -> Self:
        used = np.unique(np.concatenate([[0], *(tree.feature for tree in self.trees)]))
        columns = tuple(self.binning.columns[j] for j in used.tolist())
        trees = [
            replace(tree, feature=np.searchsorted(used, tree.feature).astype(np.int32))
            for tree in self.trees
        ]
        return replace(self, binning=Binning(columns), trees=tuple(trees))

    def start_scores(self, n: int, offset: Offsets = None) -> npt.NDArray[np.float32]:
        """(n,) scores of rows before any tree; (n, K) of more than two classes.

        `offset` (n,) is in the unit in which users give it.
        """
        shape = n if self.n_scores == 1 else (n, self.n_scores)
        score = np.full(shape, self.base_score, np.float32)
        if offset is not None:
            check_offset(True, len(self.classes))
            score += offset if self.task == "regression" else half_of(offset)
        return score

    def score(self, bins: Bins, offset: Offsets = None) -> npt.NDArray[np.float32]:
        """(n,) scores H of binned rows; (n, K) of more than two classes."""
        score = self.start_scores(len(bins), offset)
        add_rounds(self.forest.arrays, bins, 0, self.n_trees, score.T)
        return score
