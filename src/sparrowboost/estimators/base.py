"""What the estimators share: `fit` validates its input, then calls `ingest` and `train`."""

from __future__ import annotations

import os
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from numbers import Number
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from sparrowboost.learner.events import Callback, Event, TreeAdded
from sparrowboost.learner.params import Params, warn_renamed
from sparrowboost.learner.training import train
from sparrowboost.model.importance import KINDS, feature_importances
from sparrowboost.model.model import Model, check_model, load_model
from sparrowboost.readers.base import check_names
from sparrowboost.readers.inputs import (
    as_numbers,
    categorical_names,
    column_names,
    default_names,
    is_column,
    is_files,
    is_frame,
    is_stream,
    named_frame,
    renamed,
)
from sparrowboost.readers.options import ReadKeywords, ReadOptions
from sparrowboost.readers.query import Query
from sparrowboost.readers.sparse import number_of
from sparrowboost.readers.table import name_list
from sparrowboost.report.history import History
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.memory import resolve_limit, rss
from sparrowboost.runtime.random_state import RandomState, check_seed
from sparrowboost.store.dataset import Dataset
from sparrowboost.store.ingest import ingest
from sparrowboost.store.known_bins import SameRows
from sparrowboost.store.views import split

VALIDATION = "validation_"  # and a number: `evals_result_` calls validation sets as XGBoost does

# What either task is called, the estimator that is for it, and what its labels are.
TASKS = {
    "classification": ("SparrowClassifier", "classes"),
    "regression": ("SparrowRegressor", "numbers"),
}


class _Best:
    """A callback that knows the best validation score, and of how many trees it is."""

    def __init__(self) -> None:
        self.n_trees: int | None = None
        self.score: float | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, TreeAdded):
            self.n_trees, self.score = event.best_trees, event.best_score


class SparrowEstimator(BaseEstimator):  # type: ignore[misc]
    """Fits a model on anything that `ingest` reads; subclasses say what labels are."""

    _task: ClassVar[str]

    # Parameters that both have, and that are used here.
    memory_limit: Any
    early_stopping_rounds: int | None
    validation_fraction: float
    n_estimators: int
    warm_start: bool
    loss: str
    eval_metric: str
    importance_type: str
    categorical_features: Sequence[Any] | None
    category_statistics: bool
    random_state: RandomState
    n_jobs: int | None
    verbose: int

    @abstractmethod
    def _checked_labels(self, y: Any) -> npt.NDArray[Any]:
        """The labels of an array, after scikit-learn's checks."""

    def _learn_labels(self, known: Dataset | Model) -> None:
        """Take what labels are from a data set or model."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.input_tags.categorical = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    # -- fit -------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        eval_set: Any = None,
        callbacks: Iterable[Callback] | None = None,
        *,
        offset: Any = None,
        init_model: Any = None,
        exclude: str | Iterable[Any] | None = None,
        header: bool = True,
        format: str | None = None,
        delimiter: str | None = None,
        decimal: str = ".",
        thousands: str | None = None,
        date_format: str | Sequence[str] | None = None,
        table_version: int | str | None = None,
        as_of: str | datetime | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Train.

        Parameters
        ----------
        X : array, frame, sparse matrix, Arrow table or stream, path, glob, list of paths or Dataset
            Anything that `sparrowboost.ingest` reads or returns.
        y : (n,) array, or column name
            Labels, or their column if X is a file or a table: any values, up to 255 of them, for
            SparrowClassifier, numbers for SparrowRegressor. None for a Dataset and for libsvm
            files, which contain labels.
        sample_weight : (n,) array, or column name, optional
            Not negative. A row with a small integer weight counts as that many rows; other weights
            count in proportion (docs/faq.md).
        eval_set : source, (X, y), (X, y, weights), (X, y, weights, offsets), or a list, optional
            Validation data, scored after each tree; y, weights (or None) and offsets are arrays or
            column names. A source alone has its labels in the column of the same name as in X. Of
            several sets the last one decides when to stop, and which number of trees is best, as in
            XGBoost.
        callbacks : callables, optional
            Each is called with every event of training (`sparrowboost.events`); one that returns
            True stops training.
        offset : (n,) array, or column name, optional
            What to add to the score of each row: for two classes in log odds; for numbers in their
            unit, or its logarithm where the loss has one, such as the logarithm of the exposure.
            Not for more than two classes. Predictions then need offsets, too.
        init_model : estimator, Model or path, optional
            Add `n_estimators` trees to those of this model. X has the columns that it was trained
            on; its bins are kept.
        exclude : column name or list of them, optional
            Columns of files and tables that are no features. Columns are then found by name, and
            neither `eval_set` nor `predict` needs these.
        header, format, delimiter, decimal, thousands, date_format, storage_options
            As in `sparrowboost.ingest`, for files, also those of `eval_set`.
        table_version, as_of : as in `sparrowboost.ingest`
            Of Delta and Iceberg tables by path, also in validation data.

        Returns
        -------
        self
        """
        params = self._params()
        init = self._init_model(init_model, params, storage_options)
        if init is not None and params["n_estimators"] == 0:
            return self
        # If this fails, no model is left: the old one may not fit the new columns and classes.
        self.__dict__.pop("model_", None)
        read = ReadOptions(
            header=header,
            format=format,
            delimiter=delimiter,
            decimal=decimal,
            thousands=thousands,
            date_format=date_format,
            table_version=table_version,
            as_of=as_of,
            storage_options=storage_options,
        )
        seed = check_seed(self.random_state)
        columns = y, sample_weight, offset
        dataset, limit = self._open(
            X, columns, name_list(exclude), init, seed, read,
            same_rows=init is not None and init_model is None,  # warm_start
        )  # fmt: skip
        separate = not (isinstance(X, Dataset) or y is None or is_column(y))
        rows, valid = dataset, self._validation(eval_set, dataset, labels_separate=separate)
        if self.early_stopping_rounds is not None and eval_set is None:
            rows, valid = split(dataset, self.validation_fraction, seed)
        history, best = History(), _Best()
        self.model_: Model = train(
            rows,
            valid=valid,
            init_model=init,
            class_weight=getattr(self, "class_weight", None),
            callbacks=[history, best, *(callbacks or ())],
            memory_limit=limit,
            n_jobs=self.n_jobs,
            random_state=seed,
            verbose=self.verbose,
            **vars(read),
            **params,
        )
        if not separate or init is not None:  # rows with which training goes on may lack a class
            self._learn_labels(dataset)
        self._keep_scores([*history.other_scores, history.scores], best)
        return self

    def _init_model(
        self, given: Any, params: dict[str, Any], storage: Mapping[str, Any] | None
    ) -> Model | None:
        """The model to go on from, if any; with `warm_start`, sets how many trees are missing."""
        if given is not None:
            if isinstance(given, SparrowEstimator):
                check_is_fitted(given)
            model = getattr(given, "model_", given)
            if isinstance(model, str | os.PathLike):
                model = load_model(model, storage_options=storage)
            check_model(model)
            return model
        if not self.warm_start or not hasattr(self, "model_"):
            return None
        missing = self.n_estimators - self.model_.n_trees
        if missing < 0:
            raise DataError(
                f"n_estimators={self.n_estimators} must be at least {self.model_.n_trees}, the "
                "trees that the model has, with warm_start=True; set it to the total, or "
                "warm_start=False."
            )
        if missing == 0:
            warnings.warn(
                "n_estimators has not grown since the last fit with warm_start=True, so that no "
                "tree is added.",
                stacklevel=3,
            )
        params["n_estimators"] = missing
        return self.model_

    def _params(self) -> dict[str, Any]:
        """The parameters of the learner, checked before any row is read."""
        names = {field.name for field in fields(Params)} & set(self.get_params(deep=False))
        params = {name: getattr(self, name) for name in sorted(names)}
        if getattr(self, "category_charge", "deprecated") != "deprecated":
            if params["category_penalty"] != Params().category_penalty:
                raise DataError(
                    "category_charge is the old name of category_penalty; pass only "
                    "category_penalty."
                )
            warn_renamed("category_charge")
            params["category_penalty"] = self.category_charge
        Params.make(**params).for_task(self._task, None)
        fraction = self.validation_fraction
        if not isinstance(fraction, int | float | np.number) or not 0 < fraction < 1:
            raise DataError(f"validation_fraction={fraction!r}: give a number above 0 and below 1.")
        if self.importance_type not in KINDS:
            raise DataError(
                f"importance_type={self.importance_type!r} is unknown; give one of "
                f"{', '.join(KINDS)}."
            )
        return params

    def _open(
        self,
        X: Any,
        columns: tuple[Any, Any, Any],
        exclude: list[Any],
        init: Model | None,
        seed: int,
        read: ReadOptions,
        *,
        same_rows: bool = False,
    ) -> tuple[Dataset, int]:
        """The rows to train on, and the memory limit of training.

        `columns`: y, weights and offsets. `same_rows`: those that the model to go on from was
        trained on.
        """
        limit = resolve_limit(self.memory_limit)
        if isinstance(X, Dataset):
            given = (*columns, self.categorical_features, exclude or None)
            if any(each is not None for each in given):
                raise DataError(
                    "a Dataset has its labels, weights, offsets, categories and features from "
                    "ingest; pass y=None, sample_weight=None, offset=None, "
                    "categorical_features=None and exclude=None with it."
                )
            if X.task != self._task:
                other, what = TASKS[X.task]
                raise DataError(f"the labels of this data set are {what}; use {other}.")
            self._learn_columns(X)
            return X, limit
        # As in ingest, data that the caller holds does not count.
        held = 0 if is_files(X) or isinstance(X, np.memmap | Query) else rss()
        by_name = bool(exclude)
        if init is not None and is_frame(X):  # ingest with bins_of finds columns by name
            by_name |= [str(name) for name in column_names(X) or ()] != init.binning.column_names
        X, (y, sample_weight, offset) = self._checked(X, columns, by_name=by_name)
        dataset = ingest(
            X,
            label=y,
            task=self._task,
            weight=sample_weight,
            offset=offset,
            exclude=exclude if init is None else None,
            categorical=(categorical_names(self.categorical_features, X) if init is None else None),
            category_statistics=self.category_statistics,
            bins_of=SameRows(init) if same_rows else init,
            memory_limit=self.memory_limit,
            n_jobs=self.n_jobs,
            random_state=seed,
            verbose=self.verbose,
            wait=False,
            **vars(read),
        )
        if self._by_name:
            self._learn_columns(dataset)
        return dataset, resolve_limit(self.memory_limit, held)

    def _checked(
        self, X: Any, columns: tuple[Any, Any, Any], *, by_name: bool
    ) -> tuple[Any, tuple[Any, Any, Any]]:
        """X, and y, weights and offsets after scikit-learn's checks; nothing large is copied.

        `by_name`: some columns of X are no features.
        """
        y, sample_weight, offset = columns
        inside = any(map(is_column, columns))  # other columns of X are the features
        opaque = is_files(X) or is_stream(X)
        self._by_name = opaque or (is_frame(X) and (inside or by_name))
        if y is None and not is_files(X):
            raise DataError(
                f"{type(self).__name__} requires y to be passed, but the target y is None; pass "
                "labels or the name of their column."
            )
        if opaque:
            y = y if y is None or is_column(y) else self._checked_labels(y)
            return X, (y, sample_weight, offset)
        X = pa.Table.from_batches([X]) if isinstance(X, pa.RecordBatch) else X
        if not is_frame(X):
            if inside:
                raise DataError(
                    "the columns of an array have no names; pass y, weights and offsets as arrays."
                )
            if by_name:
                raise DataError(
                    "the columns of an array have no names; leave them out of X instead of passing "
                    "exclude=, or pass a frame."
                )
            X = self._checked_array(X, reset=True)
        elif not self._by_name:
            self._check_columns(X, reset=True)
        if not is_column(y):
            y = self._checked_labels(y)
            check_consistent_length(X, y)
        if sample_weight is not None and not is_column(sample_weight):
            sample_weight = self._checked_weights(sample_weight, X)
        if offset is not None and not is_column(offset):
            offset = column_or_1d(offset)
            check_consistent_length(X, offset)
        return X, (y, sample_weight, offset)

    def _check_columns(self, X: Any, *, reset: bool) -> None:
        """Record the columns of a frame, or compare them with those of `fit`."""
        check_names("X", [str(name) for name in column_names(X) or ()])
        validate_data(self, named_frame(X), reset=reset, skip_check_array=True)

    def _checked_weights(self, sample_weight: Any, X: Any) -> npt.NDArray[Any]:
        if isinstance(sample_weight, Number):  # one for all rows, which scikit-learn allows
            sample_weight = np.full(X.shape[0], sample_weight)
        weights: npt.NDArray[Any] = check_array(
            sample_weight,
            ensure_2d=False,
            dtype=[np.float64, np.float32],
            order="C",
            input_name="sample_weight",
        )
        if weights.ndim != 1:
            raise DataError("sample_weight must be a 1D array or a number; pass one per row.")
        check_consistent_length(X, weights)
        if not weights.any():
            raise DataError("sample_weight is zero for all rows; pass some that are positive.")
        return weights

    def _checked_array(self, X: Any, *, reset: bool) -> Any:
        """X as an array; lists become one, arrays stay as they are."""
        # With these arguments nothing is copied. A memory map or masked array would lose its type,
        # so the original is used.
        checked = validate_data(
            self, X, reset=reset, accept_sparse=True, dtype=None, ensure_all_finite=False
        )
        X = X if isinstance(X, np.ndarray) or hasattr(X, "tocsr") else checked
        return as_numbers(X) if X.dtype == object else X

    def _learn_columns(self, known: Dataset | Model) -> None:
        """Take the names and number of features from a data set or model."""
        names, self._by_name = known.binning.column_names, True
        self.n_features_in_ = len(names)
        if names == default_names(len(names)):
            self.__dict__.pop("feature_names_in_", None)
        else:
            self.feature_names_in_ = np.array(names, object)

    def _validation(self, eval_set: Any, dataset: Dataset, *, labels_separate: bool) -> Any:
        """Validation data as `train` takes it."""
        if isinstance(eval_set, list) and not is_files(eval_set):
            return [
                self._validation(each, dataset, labels_separate=labels_separate)
                for each in eval_set
            ]
        if eval_set is None or isinstance(eval_set, Dataset):
            return eval_set
        if not isinstance(eval_set, tuple):
            if labels_separate:
                raise DataError("eval_set has no labels; pass (X, y).")
            return eval_set
        if len(eval_set) not in (2, 3, 4):
            raise DataError(
                f"eval_set has {len(eval_set)} parts; pass (X, y), (X, y, weights) or "
                "(X, y, weights, offsets)."
            )
        X, y, *others = eval_set
        inside = is_column(y) or any(map(is_column, others))
        X = self._rows(X, dataset.binning.column_names, by_name=inside)
        return (X, y if is_column(y) else column_or_1d(y), *others)

    def _keep_scores(self, sets: list[dict[str, list[float]]], best: _Best) -> None:
        self.n_iter_ = self.model_.n_trees
        named = {f"{VALIDATION}{k}": each for k, each in enumerate(sets)}
        self.evals_result_ = named if sets[-1] else {}  # the last set decides
        for name in ("best_iteration_", "best_score_"):
            self.__dict__.pop(name, None)
        if best.n_trees is not None and best.score is not None:
            self.best_iteration_, self.best_score_ = best.n_trees, best.score

    # -- predict ---------------------------------------------------------------------------------

    def _rows(self, X: Any, names: list[str], *, by_name: bool = False) -> Any:
        """Rows to predict, with columns under the given names."""
        if isinstance(X, Dataset):
            raise DataError(
                "the rows of a Dataset are shuffled, and so would be its predictions; pass the "
                "source that it was made from."
            )
        if is_files(X) or is_stream(X):
            return X
        if not is_frame(X):
            X = self._checked_array(X, reset=False)
            here = default_names(len(names))
            if names != here and set(names) == set(here):  # by index, not by name
                X = (X.tocsr() if hasattr(X, "tocsr") else X)[:, [names.index(c) for c in here]]
            return X
        X = pa.Table.from_batches([X]) if isinstance(X, pa.RecordBatch) else X
        if by_name or self._by_name:
            return X
        self._check_columns(X, reset=False)
        return renamed(X, names)

    # -- the model's file ------------------------------------------------------------------------

    def apply(self, X: Any, **read: Unpack[ReadKeywords]) -> npt.NDArray[np.int32]:
        """The leaf of each tree that rows end in.

        Parameters
        ----------
        X : anything that `fit` takes except a Dataset
        **read
            For files: header, format, delimiter, decimal, thousands, date_format, storage_options,
            as in `sparrowboost.ingest`.

        Returns
        -------
        (n, n_iter_) ndarray of int32
            Leaves are numbered from 0 in each tree.
        """
        check_is_fitted(self)
        rows = self._rows(X, self.model_.binning.column_names)
        return self.model_.apply(rows, n_jobs=self.n_jobs, **read)

    def save_model(
        self, path: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        """Write the model to a file that `load_model` reads, or `sparrowboost.load_model`.

        See `Model.save_model`. Unlike a pickle, the file runs no code when loaded, and later
        versions can read it. It does not contain parameters and validation scores.

        Parameters
        ----------
        path : str or path
        storage_options : dict, optional
            For remote storage, as in `fit`.
        """
        check_is_fitted(self)
        self.model_.save_model(path, storage_options=storage_options)

    def load_model(
        self, path: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
    ) -> Self:
        """Load a model file; the estimator then predicts like the one that was saved.

        Labels and column names come from the file; if the names are not f0, f1, ..., columns are
        found by name. Parameters are unchanged.

        Parameters
        ----------
        path : str or path
            Written by `save_model`, or by `sparrow train`.
        storage_options : dict, optional
            For remote storage, as in `fit`.

        Returns
        -------
        self
        """
        model = load_model(path, storage_options=storage_options)
        if model.task != self._task:
            other, what = TASKS[model.task]
            raise DataError(
                f"{path}: this model predicts {what} (loss={model.loss!r}); load it with {other} "
                "or sparrowboost.load_model."
            )
        self._learn_columns(model)
        self._by_name = hasattr(self, "feature_names_in_")
        self._learn_labels(model)
        self.model_ = model
        self._keep_scores([{}], _Best())
        return self

    def to_xgboost(
        self,
        path: str | os.PathLike[str],
        *,
        data: Any = None,
        **read: Unpack[ReadKeywords],
    ) -> None:
        """Write an XGBoost model file that gives the same probabilities.

        See `Model.to_xgboost`; `model_.xgboost_frame` converts data to what XGBoost needs.

        Parameters
        ----------
        path : str or path
            Must end in .json.
        data : anything that `fit` takes but a Dataset, optional
            Rows to count in each leaf (XGBoost's "cover"), which SHAP values depend on; a few
            thousand are enough. Default: every leaf counts as one row.
        **read : as in `decision_function`
            For that data.
        """
        check_is_fitted(self)
        if data is not None:
            data = self._rows(data, self.model_.binning.column_names)
        self.model_.to_xgboost(path, data=data, **read)

    @property
    def feature_importances_(self) -> npt.NDArray[np.float64]:
        """(n_features_in_,) shares of the features, by `importance_type`."""
        check_is_fitted(self)
        shares = feature_importances(self.model_, self.importance_type)
        binning = self.model_.binning
        own = np.zeros(len(binning.columns))
        np.add.at(own, binning.column_of, shares)  # with those of statistics
        if len(own) == self.n_features_in_:
            return own
        every = np.zeros(self.n_features_in_)  # of a sparse matrix, some columns are no features
        every[[number_of(name) for name in binning.column_names]] = own
        return every
