"""The model: a base score and trees, with all that is needed to read raw values."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.model.check import Contents
from sparrowboost.model.file import read_model, write_model
from sparrowboost.model.forest import Forest
from sparrowboost.model.losses import probability
from sparrowboost.model.predict import stream_scores
from sparrowboost.model.tree import Tree
from sparrowboost.model.xgboost_export import make_frame, write_xgboost
from sparrowboost.runtime.errors import DataError
from sparrowboost.store.binning import Binning


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
    label_name : str
        The column that the labels came from.

    Examples
    --------
    >>> import numpy as np, sparrowboost
    >>> X = np.arange(200.0).reshape(100, 2)
    >>> ds = sparrowboost.ingest(X, label=X[:, 0] > 80, verbose=0)
    >>> model = sparrowboost.train(ds, n_estimators=20, verbose=0)
    >>> model.predict_proba(X[[0, -1]]).round(2)
    array([[0.91, 0.09],
           [0.07, 0.93]])
    """

    binning: Binning
    classes: tuple[Any, Any]
    loss: str
    base_score: float
    trees: tuple[Tree, ...] = ()
    label_name: str = "label"
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
        self,
        data: Any,
        *,
        n_trees: int | None = None,
        n_jobs: int | None = None,
        header: bool = True,
        format: str | None = None,
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
        header, format : as in `ingest`

        Returns
        -------
        (n,) float32
        """
        how = {"n_jobs": n_jobs, "header": header, "format": format}
        parts = list(self.iter_scores(data, n_trees=n_trees, **how))
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def iter_scores(
        self, data: Any, *, n_trees: int | None = None, **options: Any
    ) -> Iterator[npt.NDArray[np.float32]]:
        """The scores of `decision_function`, block by block in the order of the rows."""
        last = self._check(n_trees)
        return stream_scores(self.binning, self.forest, self.base_score, last, data, **options)

    def predict_proba(self, data: Any, **options: Any) -> npt.NDArray[np.float64]:
        """(n, 2) probabilities of the negative and the positive label.

        The options are those of `decision_function`.
        """
        positive = probability(self.decision_function(data, **options))
        return np.column_stack((1 - positive, positive))

    def save_model(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file that `sparrowboost.load_model` reads, exact to the bit.

        Parameters
        ----------
        path : str or path
            JSON that a person can read; packed by gzip if the name ends in .gz. A file that is
            there is replaced, in one step. See docs/model-files.md.
        """
        parts = self.binning, self.classes, self.loss, self.base_score, self.trees, self.label_name
        write_model(path, Contents(*parts))

    def to_xgboost(
        self,
        path: str | os.PathLike[str],
        *,
        data: Any = None,
        header: bool = True,
        format: str | None = None,
    ) -> None:
        """Write the model as one of XGBoost's, which gives the same probabilities.

        XGBoost compares numbers as float32, and knows categories by their codes: `xgboost_frame`
        makes of any data what it has to be given. Numbers that are float32 already, and small
        whole numbers, may be given as they are. See docs/model-files.md.

        Parameters
        ----------
        path : str or path
            Must end in .json.
        data : anything that `ingest` reads, optional
            Rows by which to weigh the leaves (XGBoost's "cover"): SHAP values are relative to their
            mean, and some thousand rows will do. Default: every leaf counts as one row.
        header, format : as in `ingest`
            Of that data.
        """
        how = {"header": header, "format": format}
        write_xgboost(path, self.binning, self.base_score, self.trees, data, **how)

    def xgboost_frame(self, data: Any, *, header: bool = True, format: str | None = None) -> Any:
        """Data as the model of `to_xgboost` reads them.

        Parameters
        ----------
        data : anything that `ingest` reads
        header, format : as in `ingest`

        Returns
        -------
        pandas.DataFrame
            (n, d) float32: numbers rounded without leaving their bin, times in microseconds,
            categories as codes (the last is for all that the model does not know), NaN where
            missing.
        """
        return make_frame(self.binning, data, header=header, format=format)

    def __repr__(self) -> str:
        leaves = max((tree.n_leaves for tree in self.trees), default=1)
        return (
            f"Model({self.n_trees} trees of up to {leaves} leaves, "
            f"{len(self.binning.features)} features, loss={self.loss!r})"
        )


def check_model(model: Any) -> None:
    """A DataError if this is not a Model, such as the classifier that has one."""
    if not isinstance(model, Model):
        to_do = "pass its model_" if hasattr(model, "model_") else "open a file with load_model"
        raise DataError(f"a Model is needed, got {type(model).__name__}; {to_do}.")


def load_model(path: str | os.PathLike[str]) -> Model:
    """The model in a file that `Model.save_model` wrote, by this or an older sparrowboost.

    The file is checked in full; nothing in it is run. A ModelFileError says why it cannot be used.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    Model

    Examples
    --------
    >>> import numpy as np, sparrowboost, tempfile
    >>> X = np.arange(200.0).reshape(100, 2)
    >>> ds = sparrowboost.ingest(X, label=X[:, 0] > 80, verbose=0)
    >>> model = sparrowboost.train(ds, n_estimators=20, verbose=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save_model(f"{folder}/model.json")
    ...     loaded = sparrowboost.load_model(f"{folder}/model.json")
    >>> bool((loaded.predict_proba(X) == model.predict_proba(X)).all())
    True
    """
    contents = read_model(path)
    return Model(*contents, forest=Forest(contents.trees))
