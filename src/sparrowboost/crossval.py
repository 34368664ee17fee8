"""Cross-validation: rows are ingested once, and each fold is a view of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.learner.events import Event, Finished, TreeAdded
from sparrowboost.learner.params import Params
from sparrowboost.learner.training import train
from sparrowboost.model.metrics import METRICS, Metric, find_metric
from sparrowboost.readers.table import ColumnLike
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.progress import Task, make_progress
from sparrowboost.runtime.random_state import RandomState, check_seed
from sparrowboost.store.dataset import Dataset
from sparrowboost.store.ingest import ingest
from sparrowboost.store.views import class_factors, folds, with_class_weight

Curves = npt.NDArray[np.float64]  # (n_folds, trees)


@dataclass(frozen=True, eq=False)
class CVResult:
    """The result of cross-validation.

    Column t of an array is for models of t + 1 trees.

    Attributes
    ----------
    scores : dict of str to (n_folds, trees) array
        Each metric's score on each fold. A fold that converged keeps its last score; one that
        stopped early has NaN from there on.
    mean, std : dict of str to (trees,) array
        Over the folds; NaN where a fold has no score.
    metric : str
        The metric that selects the best number of trees.
    best_n_trees : int
        The number of trees with the best mean.
    best_score : float
        That mean.
    seconds : float
        Total time, including ingest if there was one.
    """

    scores: dict[str, Curves] = field(repr=False)
    metric: str
    seconds: float
    own_metric: Metric | None = field(default=None, repr=False)  # if not one of Sparrow's
    mean: dict[str, npt.NDArray[np.float64]] = field(init=False, repr=False)
    std: dict[str, npt.NDArray[np.float64]] = field(init=False, repr=False)
    best_n_trees: int = field(init=False)
    best_score: float = field(init=False)

    def __post_init__(self) -> None:
        mean = {name: curves.mean(0) for name, curves in self.scores.items()}
        values = mean[self.metric]
        best = (self.own_metric or METRICS[self.metric]).best(values)
        for name, value in (
            ("mean", mean),
            ("std", {name: curves.std(0) for name, curves in self.scores.items()}),
            ("best_n_trees", best + 1),
            ("best_score", float(values[best])),
        ):
            object.__setattr__(self, name, value)


def cv(
    data: Any,
    *,
    label: ColumnLike = None,
    weight: ColumnLike = None,
    offset: ColumnLike = None,
    task: str | None = None,
    exclude: str | Iterable[Any] | None = None,
    categorical: str | Iterable[Any] | None = None,
    category_statistics: bool = True,
    header: bool = True,
    format: str | None = None,
    delimiter: str | None = None,
    decimal: str = ".",
    thousands: str | None = None,
    date_format: str | Sequence[str] | None = None,
    table_version: int | str | None = None,
    as_of: str | datetime | None = None,
    storage_options: Mapping[str, Any] | None = None,
    n_folds: int = 5,
    class_weight: str | Mapping[Any, float] | None = None,
    memory_limit: int | float | str | None = None,
    n_jobs: int | None = None,
    random_state: RandomState = 0,
    verbose: int = 1,
    **params: Any,
) -> CVResult:
    """Cross-validate boosted trees on data that need not fit in memory.

    Rows are ingested once. Each fold is a view of the same files with its share of each label.
    Folds are trained one after the other, each with all threads and the whole memory limit. Bins
    are found on all rows, since they depend on values, not on labels.

    With `early_stopping_rounds`, each fold stops by its own score. Means are over all folds, so the
    best number of trees is at most that of the fold that stopped first.

    Parameters
    ----------
    data : Dataset, or anything that `ingest` reads
    label, weight, offset, task, exclude, categorical, category_statistics : as in `ingest`
        None, and True, for a Dataset, which has its own.
    header, format, delimiter, decimal, thousands, date_format, storage_options : as in `ingest`
        For files.
    table_version, as_of : as in `ingest`
        Of Delta and Iceberg tables by path.
    n_folds : int
        Number of folds. 5, as in scikit-learn.
    class_weight : as in `train`
    memory_limit, n_jobs, random_state, verbose : as in `train`
    **params
        See `sparrowboost.Params`.

    Returns
    -------
    CVResult

    Examples
    --------
    >>> import numpy as np, sparrowboost
    >>> X = np.random.default_rng(0).normal(size=(1000, 3))
    >>> result = sparrowboost.cv(X, label=X[:, 0] + X[:, 1] > 0, n_estimators=40, verbose=0)
    >>> result.scores["log_loss"].shape, result.best_n_trees
    ((5, 40), 40)
    """
    start = time.perf_counter()
    p, seed = Params.make(**params), check_seed(random_state)
    if not isinstance(data, Dataset):
        data = ingest(
            data,
            label=label,
            weight=weight,
            offset=offset,
            task=task,
            exclude=exclude,
            categorical=categorical,
            category_statistics=category_statistics,
            header=header,
            format=format,
            delimiter=delimiter,
            decimal=decimal,
            thousands=thousands,
            date_format=date_format,
            table_version=table_version,
            as_of=as_of,
            storage_options=storage_options,
            memory_limit=memory_limit,
            n_jobs=n_jobs,
            random_state=seed,
            verbose=verbose,
        )
    elif any(each is not None for each in (label, weight, offset, task, exclude, categorical)):
        raise DataError(
            "a Dataset has its labels, weights, offsets, categories and features from ingest; pass "
            "label=None, weight=None, offset=None, task=None, exclude=None and categorical=None "
            "with it."
        )
    p = p.for_task(data.task, data.n_classes)
    factors = class_factors(data, class_weight)
    if factors is not None:
        data = with_class_weight(data, factors)
    parts = folds(data, n_folds, seed)
    curves = []
    with (
        make_progress(verbose) as progress,
        progress.task(f"training {len(parts)} folds", len(parts) * p.n_estimators, "trees") as bar,
    ):
        for rows, valid in parts:
            curves.append(_Curve(bar, p.n_estimators))
            train(
                rows,
                valid=valid,
                callbacks=[curves[-1]],
                memory_limit=memory_limit,
                n_jobs=n_jobs,
                random_state=seed,
                verbose=0,
                **params,
            )
    metric = find_metric(p.eval_metric)
    return CVResult(_joined(curves), metric.name, time.perf_counter() - start, metric)


class _Curve:
    """The scores of a fold after each tree."""

    def __init__(self, task: Task, n_estimators: int) -> None:
        self._task, self._n_estimators = task, n_estimators
        self.scores: dict[str, list[float]] = {}
        self.n_trees, self.reason = 0, ""

    def __call__(self, event: Event) -> None:
        if isinstance(event, TreeAdded):
            self.n_trees = event.n_trees
            for name, value in event.scores.items():
                self.scores.setdefault(name, []).append(value)
            self._task.advance(1)
        if isinstance(event, Finished):
            self.reason = event.reason
            self._task.advance(self._n_estimators - self.n_trees)


def _joined(curves: list[_Curve]) -> dict[str, Curves]:
    """The scores of all folds, padded to the longest."""
    longest = max(curve.n_trees for curve in curves)
    if not all(curve.n_trees for curve in curves):
        raise DataError("a fold has no split that stands out from noise; pass more rows.")
    scores = {name: np.full((len(curves), longest), np.nan) for name in curves[0].scores}
    for k, curve in enumerate(curves):
        for name, values in curve.scores.items():
            scores[name][k, : curve.n_trees] = values
            if curve.reason == "converged":  # more trees would not have changed the model
                scores[name][k, curve.n_trees :] = values[-1]
    return scores
