"""The model: a base score and trees, with all that is needed to read raw values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.binning import Binning
from sparrowboost.errors import DataError
from sparrowboost.forest import Forest
from sparrowboost.losses import probability
from sparrowboost.predict import stream_scores
from sparrowboost.tree import Tree


@dataclass(frozen=True, eq=False)
class Model:
    """Boosted trees. Immutable: `with_tree` gives a new one.

    Attributes
    ----------
    binning : Binning
        Thresholds and categories, by which raw values become bins.
    classes : tuple
        The negative and the positive label.
    loss : str
    base_score : float
        The score of a row before any tree: half the log odds of the labels.
    trees : tuple of Tree

    Examples
    --------
    >>> import numpy as np, sparrowboost
    >>> X = np.arange(200.0).reshape(100, 2)
    >>> ds = sparrowboost.ingest(X, label=X[:, 0] > 80, verbose=0)
    >>> model = sparrowboost.train(ds, n_estimators=20, verbose=0)
    >>> model.predict_proba(X[[0, -1]]).round(2)
    array([[0.91, 0.09], [0.06, 0.94]])
    """

    binning: Binning
    classes: tuple[Any, Any]
    loss: str
    base_score: float
    trees: tuple[Tree, ...] = ()
    forest: Forest = field(default_factory=Forest, repr=False)

    @property
    def n_trees(self) -> int:
        return len(self.trees)

    @property
    def feature_names(self) -> list[str]:
        return self.binning.names

    def with_tree(self, tree: Tree) -> Model:
        """The model with one tree more."""
        forest = self.forest
        if forest.n_trees != self.n_trees:  # another model grew from this one already
            forest = Forest(self.trees)
        forest.add(tree)
        return replace(self, trees=(*self.trees, tree), forest=forest)

    def first(self, n_trees: int) -> Model:
        """The model with only its first trees."""
        return replace(self, trees=self.trees[: self._check(n_trees)])

    def _check(self, n_trees: int | None) -> int:
        """How many trees are meant; None stands for all."""
        if n_trees is None:
            return self.n_trees
        if not 0 <= n_trees <= self.n_trees:
            raise DataError(f"n_trees={n_trees}: the model has {self.n_trees} trees.")
        return n_trees

    def decision_function(
        self, data: Any, *, n_trees: int | None = None, n_jobs: int | None = None
    ) -> npt.NDArray[np.float32]:
        """Scores H(x): half the log odds of the positive label.

        Parameters
        ----------
        data : anything that `ingest` reads
            Read block by block; files of any size will do.
        n_trees : int, optional
            Use only the first trees.
        n_jobs : int, optional
            Threads; default: as many as this process may use.

        Returns
        -------
        (n,) float32
        """
        parts = list(self.iter_scores(data, n_trees=n_trees, n_jobs=n_jobs))
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def iter_scores(
        self, data: Any, *, n_trees: int | None = None, n_jobs: int | None = None
    ) -> Iterator[npt.NDArray[np.float32]]:
        """The scores of `decision_function`, block by block in the order of the rows."""
        last = self._check(n_trees)
        return stream_scores(self.binning, self.forest, self.base_score, last, data, n_jobs=n_jobs)

    def predict_proba(self, data: Any, **options: Any) -> npt.NDArray[np.float64]:
        """(n, 2) probabilities of the negative and the positive label."""
        positive = probability(self.decision_function(data, **options))
        return np.column_stack((1 - positive, positive))

    def __repr__(self) -> str:
        leaves = max((tree.n_leaves for tree in self.trees), default=1)
        return (
            f"Model({self.n_trees} trees of up to {leaves} leaves, "
            f"{len(self.binning.features)} features, loss={self.loss!r})"
        )
