"""`SparrowClassifier`: two classes or more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack, cast

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from sparrowboost.estimators.base import SparrowEstimator
from sparrowboost.learner.interactions import Given as Sets
from sparrowboost.learner.stopping import L2, RHO, SIGMA
from sparrowboost.model.class_evaluation import ClassEvaluation
from sparrowboost.model.evaluation import Evaluation, evaluate
from sparrowboost.model.model import Model
from sparrowboost.model.predict import staged_scores
from sparrowboost.readers.classes import MAX_CLASSES
from sparrowboost.readers.inputs import is_column
from sparrowboost.readers.options import ReadKeywords, ReadOptions
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.random_state import RandomState
from sparrowboost.store.dataset import Dataset


class SparrowClassifier(ClassifierMixin, SparrowEstimator):  # type: ignore[misc]
    """Boosted trees for two or more classes, on tables that need not fit in memory.

    An estimator like scikit-learn's own that also takes files: `fit("train/*.parquet",
    y="clicked")` reads them block by block, within `memory_limit`. The rows are binned and shuffled
    into a temporary store on disk, which is removed when `fit` returns. To use one store for many
    fits, make it with `sparrowboost.ingest` and fit on that.

    The parameters to tune come first. Under "Other Parameters" are the paper's constants, which are
    best left alone unless you study the method.

    Parameters
    ----------
    n_estimators : int, default=100
        Maximum number of trees; of more than two classes, of trees for each. 100, as in XGBoost and
        LightGBM; training ends earlier if even the largest sample shows no split that stands out
        from noise.
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
    loss : {"auto", "logistic", "exponential", "softmax"}, default="auto"
        "logistic", for two classes, has bounded weights, so wrong labels cannot dominate the
        sample. "exponential", for two, is AdaBoost's and the paper's. "softmax" is for more than
        two. "auto": "logistic" or "softmax".
    base_score : float or None, default=None
        The probability of the second class to start from, before the first tree. Not for more than
        two classes. None: the constant with the lowest loss.
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
    eval_metric : str or callable, default="log_loss"
        The metric for early stopping: "log_loss", which the default loss minimises, "auc",
        "average_precision", which tells more than "auc" where positives are rare, "accuracy", or
        for two classes "exponential_loss". Of more than two classes, "auc" and "average_precision"
        are means over the classes, each against the rest. Or a function of labels and
        probabilities, like those of scikit-learn.
    class_weight : dict, "balanced" or None, default=None
        Factors of the weights of each label's rows, validation rows included. "balanced" gives all
        labels the same total weight. None: rare labels need no help to be learned, and
        probabilities stay those of the data.
    categorical_features : sequence of str, int or bool, default=None
        Columns of numbers to read as categories: names, indices or a mask; for files, names.
        Strings, dictionaries and the categorical types of pandas and polars are always categories.
    category_statistics : bool, default=True
        Whether columns of more than 254 categories also have the mean of the labels of each
        category, without the row's own, and its count, as features.
    monotone_constraints : mapping, sequence or None, default=None
        Features whose effect has a sign: {name: 1 | -1 | 0}, or one such number per feature. 1: the
        score never falls when the feature grows. For two classes only. None: no constraints.
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
    warm_start : bool, default=False
        Keep the trees of the last `fit` and its bins, and add those that are missing to
        `n_estimators`.
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
    classes_ : (n_classes,) ndarray
        The labels in ascending order, which is that of probabilities. At most 255.
    n_features_in_ : int
    feature_names_in_ : (n_features_in_,) ndarray of str
        Only if all columns of the input have names that are strings.
    model_ : Model
        The model from `sparrowboost.train`.
    n_iter_ : int
        Number of trees of the model; of more than two classes, of each of them.
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
    NaN, None and nulls are missing values, which each split sends to the better side; infinity is a
    number.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(1000, 3))
    >>> y = np.where(X[:, 0] + X[:, 1] > 0, "yes", "no")
    >>> clf = SparrowClassifier(n_estimators=30).fit(X, y)
    >>> clf.predict(X[:3]), clf.score(X, y) > 0.95
    (array(['no', 'no', 'yes'], dtype='<U3'), True)
    """

    _task = "classification"

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
        loss: str = "auto",
        base_score: float | None = None,
        memory_limit: int | float | str | None = None,
        sample_size: int | str = "auto",
        early_stopping_rounds: int | None = None,
        validation_fraction: float = 0.1,
        eval_metric: str = "log_loss",
        class_weight: str | Mapping[Any, float] | None = None,
        categorical_features: Sequence[Any] | None = None,
        category_statistics: bool = True,
        monotone_constraints: Mapping[str, int] | Sequence[int] | None = None,
        colsample_bytree: float = 1.0,
        colsample_bynode: float = 1.0,
        interaction_constraints: Sets = None,
        importance_type: str = "gain",
        warm_start: bool = False,
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
        self.base_score = base_score
        self.memory_limit = memory_limit
        self.sample_size = sample_size
        self.early_stopping_rounds = early_stopping_rounds
        self.validation_fraction = validation_fraction
        self.eval_metric = eval_metric
        self.class_weight = class_weight
        self.categorical_features = categorical_features
        self.category_statistics = category_statistics
        self.monotone_constraints = monotone_constraints
        self.colsample_bytree = colsample_bytree
        self.colsample_bynode = colsample_bynode
        self.interaction_constraints = interaction_constraints
        self.importance_type = importance_type
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.stopping = stopping
        self.theta = theta
        self.rho = rho
        self.sigma = sigma
        self.gamma_0 = gamma_0
        self.category_charge = category_charge

    def _checked_labels(self, y: Any) -> npt.NDArray[Any]:
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        if not len(y):
            raise DataError("y is empty; pass a label for each row of X.")
        try:
            check_classification_targets(y)
            classes = np.unique(y)
        except TypeError:
            others = (i for i, label in enumerate(y) if type(label) is not type(y[0]))
            i = next(others, None)
            if i is None:
                raise DataError(
                    f"y has labels such as {y[0]!r}, of type {type(y[0]).__name__}; pass numbers "
                    "or strings."
                ) from None
            raise DataError(
                f"y has {y[0]!r} in row 0 and {y[i]!r} in row {i}; labels must be of one type, and "
                "none may be missing."
            ) from None
        if len(classes) > MAX_CLASSES:
            raise DataError(
                f"y has {len(classes):,} values; there can be at most {MAX_CLASSES} classes. Join "
                "rare ones, or use SparrowRegressor if they are numbers to predict."
            )
        if len(classes) < 2:
            raise DataError(
                f"y has only 1 class ({classes.tolist()[0]!r}), so there is nothing to learn; pass "
                "rows of two classes."
            )
        self.classes_ = classes
        return y

    def _learn_labels(self, known: Dataset | Model) -> None:
        # None stands for all other labels, if one label was trained against the rest.
        self.classes_ = np.array(known.classes, object if None in known.classes else None)

    # -- predict ---------------------------------------------------------------------------------

    def decision_function(
        self, X: Any, *, offset: Any = None, **read: Unpack[ReadKeywords]
    ) -> npt.NDArray[np.float32]:
        """The log odds of the second class; above 0, it is the likelier one.

        Of more than two classes, a score for each, of which the highest is the likeliest.

        Parameters
        ----------
        X : anything that `fit` takes except a Dataset
            Read block by block. Columns of files are found by name. So are those of frames if the
            model was trained on a file, a Dataset, or a frame with its label column; otherwise they
            must be the columns of `fit` in the same order.
        offset : (n,) array, column name, or False, optional
            What to add to the log odds, as in `fit`. Default: the column of this name if the model
            was trained with offsets, which is an error if X has none. False: 0 for all rows.
        **read
            For files: header, format, delimiter, decimal, thousands, date_format, storage_options,
            as in `sparrowboost.ingest`.

        Returns
        -------
        (n,) ndarray of float32, or (n, n_classes) of more than two
        """
        check_is_fitted(self)
        rows = self._rows(X, self.model_.binning.column_names, by_name=is_column(offset))
        return self.model_.decision_function(rows, offset=offset, n_jobs=self.n_jobs, **read)

    def predict_proba(self, X: Any, **how: Any) -> npt.NDArray[np.float64]:
        """Probabilities of all classes.

        Parameters
        ----------
        X, **how : as in `decision_function`

        Returns
        -------
        (n, n_classes) ndarray
            In the order of `classes_`.
        """
        score = self.decision_function(X, **how)
        return self.model_.probabilities_of(score)

    def predict(self, X: Any, **how: Any) -> npt.NDArray[Any]:
        """The likeliest class of each row.

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
        numbers = score > 0 if score.ndim == 1 else score.argmax(axis=1)
        return self.classes_[numbers.astype(np.intp)]

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
        rows = self._rows(X, self.model_.binning.column_names, by_name=True)
        result = evaluate(self.model_, rows, label=y, weight=sample_weight, verbose=0, **how)
        return cast(Evaluation | ClassEvaluation, result).accuracy

    def staged_decision_function(
        self, X: Any, *, offset: Any = None, **read: Unpack[ReadKeywords]
    ) -> Iterator[npt.NDArray[np.float32]]:
        """The values of `decision_function` after each tree.

        X is read once. Memory holds the values and up to 64 MB of bins (one byte per value); more
        bins go to a temporary file.

        Parameters
        ----------
        X, offset, **read : as in `decision_function`

        Yields
        ------
        (n,) ndarray of float32, or (n, n_classes) of more than two
        """
        check_is_fitted(self)
        rows = self._rows(X, self.model_.binning.column_names, by_name=is_column(offset))
        scores = staged_scores(self.model_, rows, self.n_jobs, ReadOptions(**read), offset)
        return (self.model_.output_of(score) for score in scores)

    def staged_predict_proba(self, X: Any, **how: Any) -> Iterator[npt.NDArray[np.float64]]:
        """The probabilities of `predict_proba` after each tree, as in `staged_decision_function`.

        Yields
        ------
        (n, n_classes) ndarray
        """
        scores = self.staged_decision_function(X, **how)
        return (self.model_.probabilities_of(score) for score in scores)

    def staged_predict(self, X: Any, **how: Any) -> Iterator[npt.NDArray[Any]]:
        """The classes of `predict` after each tree, as in `staged_decision_function`.

        Yields
        ------
        (n,) ndarray
        """
        return map(self._labels, self.staged_decision_function(X, **how))
