"""The scikit-learn estimator: validates its input, then calls `ingest` and `train`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from numbers import Number
from typing import Any, Self, Unpack, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import assert_all_finite, check_array
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from sparrowboost.learner.events import Callback
from sparrowboost.learner.interactions import Given as Sets
from sparrowboost.learner.params import Params, warn_renamed
from sparrowboost.learner.stopping import L2, RHO, SIGMA
from sparrowboost.learner.training import train
from sparrowboost.model.evaluation import Evaluation, evaluate
from sparrowboost.model.importance import KINDS, feature_importances
from sparrowboost.model.losses import log_odds, probabilities
from sparrowboost.model.metrics import METRICS
from sparrowboost.model.model import Model, load_model
from sparrowboost.model.predict import staged_scores
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
from sparrowboost.readers.table import name_list
from sparrowboost.report.history import History
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.memory import resolve_limit, rss
from sparrowboost.runtime.random_state import RandomState, check_seed
from sparrowboost.store.dataset import Dataset
from sparrowboost.store.ingest import ingest
from sparrowboost.store.views import split

VALIDATION = "validation_"  # and a number: `evals_result_` calls validation sets as XGBoost does

NUMBERS = ("alpha", "power")  # parameters of losses of numbers
# Parameters that `train` has, too.
LEARNER = tuple(field.name for field in fields(Params) if field.name not in NUMBERS)


class SparrowClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Boosted trees for two classes, on tables that need not fit in memory.

    An estimator like scikit-learn's own that also takes files: `fit("train/*.parquet",
    y="clicked")` reads them block by block, within `memory_limit`. The rows are binned and shuffled
    into a temporary store on disk, which is removed when `fit` returns. To use one store for many
    fits, make it with `sparrowboost.ingest` and fit on that.

    The parameters to tune come first. Under "Other Parameters" are the paper's constants, which are
    best left alone unless you study the method.

    Parameters
    ----------
    n_estimators : int, default=100
        Maximum number of trees. 100, as in XGBoost and LightGBM; training ends earlier if even the
        largest sample shows no split that stands out from noise.
    learning_rate : float, default=0.1
        Share of each leaf's optimal step that is taken. 0.1, as in LightGBM; a smaller rate needs
        more trees.
    max_leaves : int, default=31
        Maximum number of leaves of a tree. 31, as in LightGBM.
    max_depth : int or None, default=None
        Maximum depth of a tree. None: only max_leaves bounds a tree, since trees grow best leaf
        first.
    min_child_weight : float, default=10.0
        Minimum weight on either side of a split, in rows of ordinary weight. 10 keeps small tables
        and rare labels from being overfitted.
    l2 : float, default=40.0
        L2 penalty for comparing splits, in rows of ordinary weight added to each side. Of 1 to 40,
        40 did best over six data sets.
    category_penalty : float, default=1.0
        Penalty on splits by subsets of categories, relative to what choosing the best subset gains
        on pure noise. 1, all of it, keeps columns of many meaningless categories from being
        overfitted. Use less if categories mean much and have many rows each, and with many trees.
    loss : {"logistic", "exponential"}, default="logistic"
        "logistic" has bounded weights, so wrong labels cannot dominate the sample. "exponential" is
        AdaBoost's and the paper's.
    memory_limit : int, str or None, default=None
        Bytes, or a size such as "1GB". For files and stores, it bounds the peak of the whole
        process; for data already in memory, what `fit` may add to it. None: a quarter of what the
        machine, or the cgroup of this process, allows.
    sample_size : int or "auto", default="auto"
        Rows in memory. "auto" takes all rows if they are few (80 million values); otherwise it
        starts with a sample, which grows within the memory limit as proofs need more rows.
    early_stopping_rounds : int or None, default=None
        Stop when the validation score has not improved for this many trees, and keep the best
        model. None: train all trees; no rows are set aside.
    validation_fraction : float, default=0.1
        Share of the rows of each label to set aside for early stopping if `fit` gets no `eval_set`.
        0.1, as in scikit-learn. The model is trained on the rest.
    eval_metric : {"log_loss", "auc", "average_precision", "exponential_loss"}, default="log_loss"
        The metric for early stopping. "log_loss" is what the default loss minimises.
        "average_precision" tells more than "auc" where positives are rare.
    class_weight : dict, "balanced" or None, default=None
        Factors of the weights of each label's rows, validation rows included. "balanced" gives both
        labels the same total weight. None: rare labels need no help to be learned, and
        probabilities stay those of the data.
    categorical_features : sequence of str, int or bool, default=None
        Columns of numbers to read as categories: names, indices or a mask; for files, names.
        Strings, dictionaries and the categorical types of pandas and polars are always categories.
    monotone_constraints : mapping, sequence or None, default=None
        Features whose effect has a sign: {name: 1 | -1 | 0}, or one such number per feature. 1: the
        score never falls when the feature grows. None: no constraints.
    colsample_bytree : float, default=1.0
        Share of the features, rounded up, that a tree may split on; drawn for each tree. 1: all.
    colsample_bynode : float, default=1.0
        Share of the tree's features, rounded up, that a leaf may be split on; drawn for each leaf.
        1: all.
    interaction_constraints : list, "pairwise", "no_interactions" or None, default=None
        Features that may interact, as a list of lists of names or numbers: two may be on the way to
        one leaf if a list has both. A feature of no list is used alone. "pairwise": any two
        features. None: no constraints.
    importance_type : {"gain", "splits"}, default="gain"
        What `feature_importances_` counts: the loss that a feature's splits remove, or their
        number. Features of many values are split often, so "splits" can mislead.
    n_jobs : int or None, default=None
        Threads, also for `predict`. None and -1: as many as this process may use. The model does
        not depend on it.
    random_state : int, Generator, RandomState or None, default=None
        Seed of the shuffle, the samples, the drawn features and the validation rows. The same
        number gives the same model. None draws from numpy's global generator; the model then varies
        from fit to fit, except on tables of up to 200,000 rows of which no rows are set aside and
        no features drawn.
    verbose : int, default=0
        0 is silent, as usual in scikit-learn; 1 shows progress.

    Other Parameters
    ----------------
    stopping : {"adaptive", "paper"}, default="adaptive"
        When the rows read so far prove a split. "adaptive" certifies the largest edge that they
        allow, and needs no target; "paper" is the paper's rule, for loss="exponential" only.
    theta : float, default=0.5
        A new sample is drawn when the effective size of the current one falls below this share of
        its initial value.
    rho : float, default=0.3
        With "adaptive", the share of a split's measured edge that must be certain. Less takes
        splits sooner, more reads further; from 0.1 to 0.7 little changes.
    sigma : float, default=0.001
        Probability that any false split of a leaf is ever taken as proved; the paper's.
    gamma_0 : float, default=0.25
        With "paper", the first target of the advantage over random guessing, below 0.5.
    category_charge : float, default="deprecated"
        Old name of category_penalty.

    Attributes
    ----------
    classes_ : (2,) ndarray
        The labels in ascending order, which is that of probabilities.
    n_features_in_ : int
    feature_names_in_ : (n_features_in_,) ndarray of str
        Only if all columns of the input have names that are strings.
    model_ : Model
        The model from `sparrowboost.train`.
    n_iter_ : int
        Number of trees of the model.
    feature_importances_ : (n_features_in_,) ndarray
        They sum to 1 if there is any split.
    evals_result_ : dict
        ``{"validation_0": {metric: [score after each tree]}}``; empty without validation data. Of
        several sets in `eval_set`, there are validation_1, ..., too.
    best_iteration_ : int
        Number of trees with the best validation score, of the last set; only with validation data.
    best_score_ : float
        That score, by `eval_metric`; only with validation data.

    Notes
    -----
    Binary classification only. NaN, None and nulls are missing values, which each split sends to
    the better side; infinity is a number.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(1000, 3))
    >>> y = np.where(X[:, 0] + X[:, 1] > 0, "yes", "no")
    >>> clf = SparrowClassifier(n_estimators=30).fit(X, y)
    >>> clf.predict(X[:3]), clf.score(X, y) > 0.95
    (array(['no', 'no', 'yes'], dtype='<U3'), True)
    """

    def __init__(
        self,
        *,
        n_estimators: int = 100,
        learning_rate: float = 0.1,
        max_leaves: int = 31,
        max_depth: int | None = None,
        min_child_weight: float = 10.0,
        l2: float = L2,
        category_penalty: float = 1.0,
        loss: str = "logistic",
        memory_limit: int | float | str | None = None,
        sample_size: int | str = "auto",
        early_stopping_rounds: int | None = None,
        validation_fraction: float = 0.1,
        eval_metric: str = "log_loss",
        class_weight: str | Mapping[Any, float] | None = None,
        categorical_features: Sequence[Any] | None = None,
        monotone_constraints: Mapping[str, int] | Sequence[int] | None = None,
        colsample_bytree: float = 1.0,
        colsample_bynode: float = 1.0,
        interaction_constraints: Sets = None,
        importance_type: str = "gain",
        n_jobs: int | None = None,
        random_state: RandomState = None,
        verbose: int = 0,
        stopping: str = "adaptive",
        theta: float = 0.5,
        rho: float = RHO,
        sigma: float = SIGMA,
        gamma_0: float = 0.25,
        category_charge: float | str = "deprecated",
    ) -> None:
        self.n_estimators = n_estimators
        self.learning_rate = learning_rate
        self.max_leaves = max_leaves
        self.max_depth = max_depth
        self.min_child_weight = min_child_weight
        self.l2 = l2
        self.category_penalty = category_penalty
        self.loss = loss
        self.memory_limit = memory_limit
        self.sample_size = sample_size
        self.early_stopping_rounds = early_stopping_rounds
        self.validation_fraction = validation_fraction
        self.eval_metric = eval_metric
        self.class_weight = class_weight
        self.categorical_features = categorical_features
        self.monotone_constraints = monotone_constraints
        self.colsample_bytree = colsample_bytree
        self.colsample_bynode = colsample_bynode
        self.interaction_constraints = interaction_constraints
        self.importance_type = importance_type
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.stopping = stopping
        self.theta = theta
        self.rho = rho
        self.sigma = sigma
        self.gamma_0 = gamma_0
        self.category_charge = category_charge

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
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
        exclude: str | Iterable[Any] | None = None,
        header: bool = True,
        format: str | None = None,
        delimiter: str | None = None,
        decimal: str = ".",
        thousands: str | None = None,
        date_format: str | Sequence[str] | None = None,
    ) -> Self:
        """Train.

        Parameters
        ----------
        X : array, frame, sparse matrix, Arrow table or stream, path, glob, list of paths or Dataset
            Anything that `sparrowboost.ingest` reads or returns.
        y : (n,) array, or column name
            Labels of any two values, or their column if X is a file or a table. None for a Dataset
            and for libsvm files, which contain labels.
        sample_weight : (n,) array, or column name, optional
            Not negative. A row with a small integer weight counts as that many rows; other weights
            count in proportion (docs/faq.md).
        eval_set : source, (X, y), (X, y, weights), or a list of these, optional
            Validation data, scored after each tree; y and weights are arrays or column names. A
            source alone has its labels in the column of the same name as in X. Of several sets the
            last one decides when to stop, and which number of trees is best, as in XGBoost.
        callbacks : callables, optional
            Each is called with every event of training (`sparrowboost.events`); one that returns
            True stops training.
        exclude : column name or list of them, optional
            Columns of files and tables that are no features. Columns are then found by name, and
            neither `eval_set` nor `predict` needs these.
        header, format, delimiter, decimal, thousands, date_format : as in `sparrowboost.ingest`
            For files, also those of `eval_set`.

        Returns
        -------
        self
        """
        # If this fails, no model is left: the old one may not fit the new columns and classes.
        self.__dict__.pop("model_", None)
        params = self._params()
        read = ReadOptions(
            header=header,
            format=format,
            delimiter=delimiter,
            decimal=decimal,
            thousands=thousands,
            date_format=date_format,
        )
        seed = check_seed(self.random_state)
        dataset, limit = self._open(X, y, sample_weight, name_list(exclude), seed, read)
        separate = not (isinstance(X, Dataset) or y is None or is_column(y))
        rows, valid = dataset, self._validation(eval_set, dataset, labels_separate=separate)
        if self.early_stopping_rounds is not None and eval_set is None:
            rows, valid = split(dataset, self.validation_fraction, seed)
        history = History()
        self.model_: Model = train(
            rows,
            valid=valid,
            class_weight=self.class_weight,
            callbacks=[history, *(callbacks or ())],
            memory_limit=limit,
            n_jobs=self.n_jobs,
            random_state=seed,
            verbose=self.verbose,
            **vars(read),
            **params,
        )
        if not separate:
            self._learn_classes(dataset)
        self._keep_scores([*history.other_scores, history.scores])
        return self

    def _params(self) -> dict[str, Any]:
        """The parameters of the learner, checked before any row is read."""
        params = {name: getattr(self, name) for name in LEARNER}
        if self.category_charge != "deprecated":
            if self.category_penalty != Params().category_penalty:
                raise DataError(
                    "category_charge is the old name of category_penalty; pass only "
                    "category_penalty."
                )
            warn_renamed("category_charge")
            params["category_penalty"] = self.category_charge
        Params.make(**params)
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
        self, X: Any, y: Any, sample_weight: Any, exclude: list[Any], seed: int, read: ReadOptions
    ) -> tuple[Dataset, int]:
        """The rows to train on, and the memory limit of training."""
        limit = resolve_limit(self.memory_limit)
        if isinstance(X, Dataset):
            given = (y, sample_weight, self.categorical_features, exclude or None)
            if any(each is not None for each in given):
                raise DataError(
                    "a Dataset has its labels, weights, categories and features from ingest; pass "
                    "y=None, sample_weight=None, categorical_features=None and exclude=None with "
                    "it."
                )
            self._learn_columns(X)
            return X, limit
        # As in ingest, data that the caller holds does not count.
        held = 0 if is_files(X) or isinstance(X, np.memmap) else rss()
        X, y, sample_weight = self._checked(X, y, sample_weight, by_name=bool(exclude))
        dataset = ingest(
            X,
            label=y,
            weight=sample_weight,
            exclude=exclude,
            categorical=categorical_names(self.categorical_features, X),
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
        self, X: Any, y: Any, sample_weight: Any, *, by_name: bool
    ) -> tuple[Any, Any, Any]:
        """X, y and weights after scikit-learn's checks; nothing large is copied.

        `by_name`: some columns of X are no features.
        """
        inside = is_column(y) or is_column(sample_weight)  # other columns of X are the features
        opaque = is_files(X) or is_stream(X)
        self._by_name = opaque or (is_frame(X) and (inside or by_name))
        if y is None and not is_files(X):
            raise DataError(
                f"{type(self).__name__} requires y to be passed, but the target y is None; pass "
                "labels or the name of their column."
            )
        if opaque:
            return X, y if y is None or is_column(y) else self._checked_labels(y), sample_weight
        X = pa.Table.from_batches([X]) if isinstance(X, pa.RecordBatch) else X
        if not is_frame(X):
            if inside:
                raise DataError(
                    "the columns of an array have no names; pass y and weights as arrays."
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
        return X, y, sample_weight

    def _check_columns(self, X: Any, *, reset: bool) -> None:
        """Record the columns of a frame, or compare them with those of `fit`."""
        check_names("X", [str(name) for name in column_names(X) or ()])
        validate_data(self, named_frame(X), reset=reset, skip_check_array=True)

    def _checked_labels(self, y: Any) -> npt.NDArray[Any]:
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        if not len(y):
            raise DataError("y is empty; pass a label for each row of X.")
        check_classification_targets(y)
        classes = np.unique(y)
        if len(classes) > 2:
            raise DataError(
                "Only binary classification is supported. The type of the target is "
                f"{type_of_target(y)}: it has {len(classes)} values."
            )
        if len(classes) < 2:
            raise DataError(
                f"y has only 1 class ({classes[0]!r}), so there is nothing to learn; pass rows of "
                "two classes."
            )
        self.classes_ = classes
        return y

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
        names, self._by_name = known.feature_names, True
        self.n_features_in_ = len(names)
        if names == default_names(len(names)):
            self.__dict__.pop("feature_names_in_", None)
        else:
            self.feature_names_in_ = np.array(names, object)

    def _learn_classes(self, known: Dataset | Model) -> None:
        # None stands for all other labels, if one label was trained against the rest.
        self.classes_ = np.array(known.classes, object if None in known.classes else None)

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
        if len(eval_set) not in (2, 3):
            raise DataError(f"eval_set has {len(eval_set)} parts; pass (X, y) or (X, y, weights).")
        X, y, *weights = eval_set
        inside = is_column(y) or any(map(is_column, weights))
        X = self._rows(X, dataset.feature_names, by_name=inside)
        return (X, y if is_column(y) else column_or_1d(y), *weights)

    def _keep_scores(self, sets: list[dict[str, list[float]]]) -> None:
        scores = sets[-1]  # which decide
        self.n_iter_ = self.model_.n_trees
        named = {f"{VALIDATION}{k}": each for k, each in enumerate(sets)}
        self.evals_result_ = named if scores else {}
        for name in ("best_iteration_", "best_score_"):
            self.__dict__.pop(name, None)
        if scores:
            values = scores[self.eval_metric]
            best = METRICS[self.eval_metric].best(values)
            self.best_iteration_, self.best_score_ = best + 1, float(values[best])

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

    def decision_function(self, X: Any, **read: Unpack[ReadKeywords]) -> npt.NDArray[np.float32]:
        """The log odds of the second class; above 0, it is the likelier one.

        Parameters
        ----------
        X : anything that `fit` takes except a Dataset
            Read block by block. Columns of files are found by name. So are those of frames if the
            model was trained on a file, a Dataset, or a frame with its label column; otherwise they
            must be the columns of `fit` in the same order.
        **read
            For files: header, format, delimiter, decimal, thousands, date_format, as in
            `sparrowboost.ingest`.

        Returns
        -------
        (n,) ndarray of float32
        """
        check_is_fitted(self)
        rows = self._rows(X, self.model_.feature_names)
        return self.model_.decision_function(rows, n_jobs=self.n_jobs, **read)

    def predict_proba(self, X: Any, **how: Any) -> npt.NDArray[np.float64]:
        """Probabilities of both classes.

        Parameters
        ----------
        X, **how : as in `decision_function`

        Returns
        -------
        (n, 2) ndarray
            In the order of `classes_`.
        """
        return probabilities(self.decision_function(X, **how))

    def predict(self, X: Any, **how: Any) -> npt.NDArray[Any]:
        """The likelier class of each row.

        Parameters
        ----------
        X, **how : as in `decision_function`

        Returns
        -------
        (n,) ndarray
            Values of `classes_`.
        """
        return self._labels(self.decision_function(X, **how))

    def _labels(self, score: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        return self.classes_[(score > 0).astype(np.intp)]

    def score(self, X: Any, y: Any, sample_weight: Any = None, **how: Any) -> float:
        """The accuracy: the share of rows whose class is predicted correctly.

        Parameters
        ----------
        X, **how : as in `decision_function`
        y : (n,) array, or column name
        sample_weight : (n,) array, or column name, optional

        Returns
        -------
        float
        """
        if not is_column(y):
            from sklearn.metrics import accuracy_score  # imported late, since it takes memory

            predicted = self.predict(X, **how)
            return float(accuracy_score(y, predicted, sample_weight=sample_weight))
        check_is_fitted(self)
        rows = self._rows(X, self.model_.feature_names, by_name=True)
        result = evaluate(self.model_, rows, label=y, weight=sample_weight, verbose=0, **how)
        return cast(Evaluation, result).accuracy

    def staged_decision_function(
        self, X: Any, **read: Unpack[ReadKeywords]
    ) -> Iterator[npt.NDArray[np.float32]]:
        """The values of `decision_function` after each tree.

        X is read once. Memory holds the values and up to 64 MB of bins (one byte per value); more
        bins go to a temporary file.

        Parameters
        ----------
        X, **read : as in `decision_function`

        Yields
        ------
        (n,) ndarray of float32
        """
        check_is_fitted(self)
        rows = self._rows(X, self.model_.feature_names)
        scores = staged_scores(self.model_, rows, self.n_jobs, ReadOptions(**read))
        return (log_odds(score) for score in scores)

    def staged_predict_proba(self, X: Any, **how: Any) -> Iterator[npt.NDArray[np.float64]]:
        """The probabilities of `predict_proba` after each tree, as in `staged_decision_function`.

        Yields
        ------
        (n, 2) ndarray
        """
        return map(probabilities, self.staged_decision_function(X, **how))

    def staged_predict(self, X: Any, **how: Any) -> Iterator[npt.NDArray[Any]]:
        """The classes of `predict` after each tree, as in `staged_decision_function`.

        Yields
        ------
        (n,) ndarray
        """
        return map(self._labels, self.staged_decision_function(X, **how))

    # -- the model's file ------------------------------------------------------------------------

    def save_model(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file that `load_model` reads, or `sparrowboost.load_model`.

        See `Model.save_model`. Unlike a pickle, the file runs no code when loaded, and later
        versions can read it. It does not contain parameters and validation scores.

        Parameters
        ----------
        path : str or path
        """
        check_is_fitted(self)
        self.model_.save_model(path)

    def load_model(self, path: str | os.PathLike[str]) -> Self:
        """Load a model file; the classifier then predicts like the one that was saved.

        Labels and column names come from the file; if the names are not f0, f1, ..., columns are
        found by name. Parameters are unchanged.

        Parameters
        ----------
        path : str or path
            Written by `save_model`, or by `sparrow train`.

        Returns
        -------
        self

        Examples
        --------
        >>> import tempfile
        >>> X = np.arange(200.0).reshape(100, 2)
        >>> clf = SparrowClassifier(n_estimators=20).fit(X, np.where(X[:, 0] > 80, "yes", "no"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     clf.save_model(f"{folder}/model.json")
        ...     loaded = SparrowClassifier().load_model(f"{folder}/model.json")
        >>> loaded.classes_, loaded.predict(X[[0, -1]])
        (array(['no', 'yes'], dtype='<U3'), array(['no', 'yes'], dtype='<U3'))
        """
        model = load_model(path)
        if model.task != "classification":
            raise DataError(
                f"{path}: a model of numbers (loss={model.loss!r}) cannot classify; load it with "
                "sparrowboost.load_model, and use its predict."
            )
        self._learn_columns(model)
        self._by_name = hasattr(self, "feature_names_in_")
        self._learn_classes(model)
        self.model_ = model
        self._keep_scores([{}])
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
            data = self._rows(data, self.model_.feature_names)
        self.model_.to_xgboost(path, data=data, **read)

    @property
    def feature_importances_(self) -> npt.NDArray[np.float64]:
        """(n_features_in_,) shares of the features, by `importance_type`."""
        check_is_fitted(self)
        return feature_importances(self.model_, self.importance_type)
