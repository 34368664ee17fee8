"""The model as users have it: predictions, files, and XGBoost's format."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Unpack

import numpy as np
import numpy.typing as npt

from sparrowboost.model.digest import digest
from sparrowboost.model.ensemble import Ensemble
from sparrowboost.model.file import read_model, write_model
from sparrowboost.model.losses import log_odds, probabilities
from sparrowboost.model.predict import stream_leaves, stream_scores
from sparrowboost.model.softmax import class_probabilities
from sparrowboost.model.xgboost_export import make_frame, write_xgboost
from sparrowboost.readers.options import ReadKeywords, ReadOptions
from sparrowboost.readers.table import ColumnLike
from sparrowboost.runtime.errors import DataError


class Model(Ensemble):
    """Boosted trees. Immutable: `with_tree` returns a new model.

    Attributes
    ----------
    binning : Binning
        Thresholds and categories that turn raw values into bins.
    classes : tuple
        The negative and the positive label; None stands for any label but the positive one. Or more
        than two labels. Empty if the labels are numbers.
    loss : str
    base_score : float, or a tuple of floats
        The score of a row before any tree. Of two classes, it is half the log odds of the labels;
        leaf values are in this unit, too, and `decision_function` is twice their sum. Of numbers,
        it is in the unit of the labels, or their logarithm (loss "poisson", "gamma" and "tweedie").
        Of more than two classes, each has one: the logarithm of its share.
    trees : tuple of Tree
        Of K > 2 classes, each round of boosting has added one for each: tree t is of class t % K.
    n_trees : int
        Trees, or rounds of boosting if there are more than two classes.
    label_name : str
        The column that the labels came from.
    offset_name : str or None
        The column of the offsets with which it was trained; None if there were none.
    loss_options : dict
        Numbers that belong to the loss: "alpha" of "quantile", "delta" of "huber", "power" of
        "tweedie".
    task : {"classification", "regression"}

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

    @property
    def digest(self) -> str:
        """SHA-256 of all that the model's file says about it: the same for equal models."""
        return digest(self)

    def decision_function(
        self,
        data: Any,
        *,
        offset: ColumnLike | Literal[False] = None,
        n_trees: int | None = None,
        n_jobs: int | None = None,
        **read: Unpack[ReadKeywords],
    ) -> npt.NDArray[np.float32]:
        """The log odds of the positive label, as in scikit-learn: above 0, it is the likelier one.

        Of more than two classes, a score for each: the highest is that of the likeliest, and their
        softmax is `predict_proba`. Models of numbers have `predict` instead.

        Parameters
        ----------
        data : anything that `ingest` reads
            Read block by block, so files may be of any size.
        offset : column name, column number, array, .npy file, or False, optional
            What to add to the score of each row, as in `ingest`: in log odds here; of models of
            numbers in the unit of the score, such as the logarithm of the exposure. Default: the
            column of this name if the model was trained with offsets, which is an error if the
            data has none. False: 0 for all rows, so that a model of counts predicts rates.
        n_trees : int, optional
            Use only the first trees.
        n_jobs : int, optional
            Threads; default: as many as this process may use.
        **read
            header, format, delimiter, decimal, thousands, date_format, storage_options: as in
            `ingest`.

        Returns
        -------
        (n,) float32, or (n, classes) of more than two
        """
        self._check_task("classification", "decision_function", "predict")
        scores = self.iter_scores(data, offset=offset, n_trees=n_trees, n_jobs=n_jobs, **read)
        return self._joined(scores)

    def predict(
        self,
        data: Any,
        *,
        offset: ColumnLike | Literal[False] = None,
        n_trees: int | None = None,
        n_jobs: int | None = None,
        **read: Unpack[ReadKeywords],
    ) -> npt.NDArray[np.float32]:
        """Predictions of a model of numbers, in the unit of its labels.

        The parameters are those of `decision_function`, which is for models of classes.

        Returns
        -------
        (n,) float32
        """
        self._check_task("regression", "predict", "decision_function or predict_proba")
        scores = self.iter_scores(data, offset=offset, n_trees=n_trees, n_jobs=n_jobs, **read)
        return self._joined(scores)

    def iter_scores(
        self,
        data: Any,
        *,
        offset: ColumnLike | Literal[False] = None,
        n_trees: int | None = None,
        n_jobs: int | None = None,
        **read: Unpack[ReadKeywords],
    ) -> Iterator[npt.NDArray[np.float32]]:
        """What `decision_function` or `predict` returns, block by block in the order of rows."""
        model, options = self.first(n_trees), ReadOptions(**read)
        scores = stream_scores(model, data, n_jobs, options, offset)
        return (self.output_of(score) for score in scores)

    def output_of(self, score: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """What `decision_function` or `predict` gives for scores as they are inside."""
        if self.softmax is not None:
            return score
        loss = self.regression
        return log_odds(score) if loss is None else loss.predictions(score)

    def predict_proba(self, data: Any, **options: Any) -> npt.NDArray[np.float64]:
        """(n, 2) probabilities of the negative and the positive label; (n, classes) of more.

        The options are those of `decision_function`.
        """
        self._check_task("classification", "predict_proba", "predict")
        return self.probabilities_of(self.decision_function(data, **options))

    def probabilities_of(self, output: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """(n, classes) probabilities from what `decision_function` gives."""
        return probabilities(output) if self.softmax is None else class_probabilities(output)

    def apply(
        self,
        data: Any,
        *,
        n_trees: int | None = None,
        n_jobs: int | None = None,
        **read: Unpack[ReadKeywords],
    ) -> npt.NDArray[np.int32]:
        """The leaf of each tree that rows end in, as in scikit-learn.

        The parameters are those of `decision_function`. Leaves of a tree are numbered from 0, as
        its values are: `model.trees[t].value[leaf]` is what tree t adds to the score. Of K > 2
        classes, tree t is of class t % K.

        Returns
        -------
        (n, trees) int32
        """
        model = self.first(n_trees)
        parts = list(stream_leaves(model, data, n_jobs, ReadOptions(**read)))
        return np.concatenate(parts) if parts else np.empty((0, len(model.trees)), np.int32)

    def save_model(
        self, path: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        """Write the model to a file that `sparrowboost.load_model` reads, exact to the bit.

        Parameters
        ----------
        path : str or path
            JSON that a person can read; compressed by gzip if the name ends in .gz. An existing
            file is replaced in one step. See docs/model-files.md. It may be an address of remote
            storage, such as s3://bucket/model.json.
        storage_options : dict, optional
            For remote storage, as in `ingest`.
        """
        write_model(path, self, storage_options)

    def to_xgboost(
        self,
        path: str | os.PathLike[str],
        *,
        data: Any = None,
        **read: Unpack[ReadKeywords],
    ) -> None:
        """Write an XGBoost model file that gives the same probabilities or predictions.

        A model of numbers gets the objective that XGBoost has for its loss. For Huber's loss there
        is only a similar one, reg:pseudohubererror; predictions are the same even so.

        XGBoost compares numbers as float32 and takes categories as codes; `xgboost_frame` converts
        any data to that. Columns that are float32 already, or small integers, need no conversion.
        See docs/model-files.md.

        XGBoost knows no column of offsets. If the model was trained with one, pass the offsets as
        `base_margin` of XGBoost's predictions.

        Parameters
        ----------
        path : str or path
            Must end in .json.
        data : anything that `ingest` reads, optional
            Rows to count in each leaf (XGBoost's "cover"), which SHAP values depend on; a few
            thousand are enough. Default: every leaf counts as one row.
        **read : as in `decision_function`
            For that data.
        """
        write_xgboost(path, self, data, ReadOptions(**read))

    def xgboost_frame(self, data: Any, **read: Unpack[ReadKeywords]) -> Any:
        """Data as the model of `to_xgboost` needs them: the features, without offsets.

        Parameters
        ----------
        data : anything that `ingest` reads
        **read : as in `decision_function`

        Returns
        -------
        pandas.DataFrame
            (n, d) float32: numbers rounded without leaving their bin, times in microseconds,
            categories as codes (the last for all that the model does not know), NaN where missing.
        """
        return make_frame(self.binning, data, ReadOptions(**read))

    def _joined(self, parts: Iterator[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
        """Scores of all blocks."""
        made = list(parts)
        return np.concatenate(made) if made else self.start_scores(0)

    def _check_task(self, task: str, name: str, other: str) -> None:
        """A DataError if this is a model of the other task, which has another method."""
        if self.task != task:
            kind = "numbers" if self.task == "regression" else "classes"
            raise DataError(
                f"this is a model of {kind} (loss={self.loss!r}), which has no {name}; use {other}."
            )

    def __repr__(self) -> str:
        leaves = max((tree.n_leaves for tree in self.trees), default=1)
        each = "" if self.softmax is None else f" for each of {self.n_scores} classes,"
        options = "".join(f", {name}={value:g}" for name, value in self.loss_options.items())
        return (
            f"Model({self.n_trees} trees{each} of up to {leaves} leaves, "
            f"{len(self.binning.features)} features, loss={self.loss!r}{options})"
        )


def check_model(model: Any) -> None:
    """A DataError if this is not a Model, such as the classifier that has one."""
    if not isinstance(model, Model):
        to_do = "pass its model_" if hasattr(model, "model_") else "load a file with load_model"
        raise DataError(f"expected a Model, got {type(model).__name__}; {to_do}.")


def load_model(
    path: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> Model:
    """Load a model that `Model.save_model` wrote, in this or an older version.

    The file is checked completely, and nothing in it is executed. A ModelFileError says what is
    wrong with it.

    Parameters
    ----------
    path : str or path
    storage_options : dict, optional
        For remote storage, as in `ingest`.

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
    return Model(**vars(read_model(path, storage_options)))
