"""Metrics: name, direction, words, and how to compute them.

scikit-learn has these, too; importing it takes 80 MB, which a memory limit may not allow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.model.losses import MAX_MARGIN, probability
from sparrowboost.model.regression import REGRESSION_LOSSES, RegressionLoss
from sparrowboost.model.softmax import class_probabilities
from sparrowboost.runtime.errors import DataError

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.uint8]  # (n,) 1 = positive
Scores = npt.NDArray[np.floating]  # (n,) H(x), half the log odds
Targets = npt.NDArray[np.float32]  # (n,) numbers
Weights = npt.NDArray[np.floating] | None  # (n,) of the rows; None: all count 1


def log_loss(label: Labels, score: Scores, weight: Weights = None) -> float:
    """Mean of -ln p(y), with p = 1 / (1 + exp(-2 H)); of several classes, that of softmax."""
    if score.ndim == 2:
        return float(class_means(label, score, weight)[0])
    return float(np.average(row_log_loss(margins(label, score)), weights=weight))


def accuracy(label: Labels, score: Scores, weight: Weights = None) -> float:
    """Share of the rows whose label is predicted.

    Examples
    --------
    >>> accuracy(np.array([0, 1, 1]), np.array([-0.5, 0.5, -1.0]))
    0.6666666666666666
    """
    if score.ndim == 2:
        return float(class_means(label, score, weight)[1])
    return float(np.average((score > 0) == label.astype(bool), weights=weight))


def class_means(label: npt.NDArray[Any], score: Scores, weight: Weights = None) -> Floats:
    """(2,) the log loss and the accuracy of scores (n, K) of several classes."""
    from sparrowboost.kernels.classes import add_class_losses

    w = np.empty(0, np.float32) if weight is None else weight.astype(np.float32)
    total = np.zeros(3)
    add_class_losses(label.astype(np.float32), score.T, w, total)
    return total[1:] / total[0]


def mean_over_classes(
    metric: Callable[..., float], label: npt.NDArray[Any], score: Scores, weight: Weights
) -> float:
    """The mean of a metric of two classes: of each class that has rows, against the rest.

    The rank of a row is that of its probability of the class.
    """
    shares, labels = class_probabilities(score), label.astype(np.intp)
    present = np.bincount(labels, weight, score.shape[1]) > 0
    values = [metric(labels == k, shares[:, k], weight) for k in np.flatnonzero(present)]
    return float(np.mean(values))


def exponential_loss(label: Labels, score: Scores, weight: Weights = None) -> float:
    """Mean of exp(-y H), the margin cut as in training."""
    return float(np.average(row_exponential_loss(margins(label, score)), weights=weight))


def margins(label: Labels, score: Scores) -> Floats:
    """(n,) y H."""
    return np.where(label, score, -score).astype(np.float64)


def row_log_loss(margin: Floats) -> Floats:
    """(n,) -ln p(y)."""
    return np.logaddexp(0, -2 * margin)


def row_exponential_loss(margin: Floats) -> Floats:
    """(n,) exp(-y H)."""
    return np.exp(np.clip(-margin, -MAX_MARGIN, MAX_MARGIN))


def auc(label: Labels, score: Scores, weight: Weights = None) -> float:
    """Probability that a positive row scores higher than a negative one; ties count half.

    Examples
    --------
    >>> auc(np.array([0, 1, 0, 1]), np.array([0.1, 0.4, 0.4, 0.9]))
    0.875
    """
    if score.ndim == 2:  # of several classes: the mean over them, each against the rest
        return mean_over_classes(auc, label, score, weight)
    if weight is not None:
        return area(*cumulated(label, score, weight))
    # Sorting the scores of each label by themselves is faster than ranking all rows.
    from sparrowboost.kernels.metrics import count_pairs

    positive = label.astype(bool)
    above, below = np.sort(score[positive]), np.sort(score[~positive])
    pairs = len(above) * len(below)
    return count_pairs(above, below) / pairs if pairs else float("nan")


def area(positives: Floats, negatives: Floats) -> float:
    """The AUC from cumulated weights, highest score first (`cumulated`).

    NaN where a label has no weight.
    """
    p, n = positives[-1], negatives[-1]
    if p == 0 or n == 0:
        return float("nan")
    width = np.diff(negatives, prepend=0)
    height = positives - np.diff(positives, prepend=0) / 2
    return float((width * height).sum() / (float(p) * float(n)))


def average_precision(label: Labels, score: Scores, weight: Weights = None) -> float:
    """Mean over the positives of the precision at their score.

    Examples
    --------
    >>> average_precision(np.array([0, 1, 0, 1]), np.array([0.1, 0.4, 0.35, 0.9]))
    1.0
    """
    if score.ndim == 2:
        return mean_over_classes(average_precision, label, score, weight)
    return mean_precision(*cumulated(label, score, weight))


def mean_precision(positives: Floats, negatives: Floats) -> float:
    """The average precision from cumulated weights; NaN where positives have no weight."""
    if positives[-1] == 0:
        return float("nan")
    everything = positives + negatives
    # Precision is undefined where the highest scores have no weight.
    precision = np.divide(positives, everything, np.zeros_like(positives), where=everything > 0)
    return float((precision * np.diff(positives, prepend=0)).sum() / positives[-1])


def cumulated(label: Labels, score: Scores, weight: Weights) -> tuple[Floats, Floats]:
    """Weight of positives and of negatives at or above each distinct score, highest first."""
    order = np.argsort(score)[::-1]
    ranked = score[order]
    last = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)
    if weight is None:
        positives = np.cumsum(label[order], dtype=np.int64)[last].astype(np.float64)
        return positives, last + 1 - positives
    w, positive = weight[order].astype(np.float64), label[order].astype(bool)
    return np.cumsum(w * positive)[last], np.cumsum(w * ~positive)[last]


def regression_sums(
    target: Targets,
    score: Targets,
    loss: RegressionLoss,
    weight: Weights = None,
    middle: float = 0.0,
) -> Floats:
    """(6,) sums over rows, which add up over blocks, for `regression_scores`.

    They are of the weight, and of these times the weight: the loss, the absolute and the squared
    error, the target's difference from `middle` and its square. The nearer `middle` is to the mean,
    the more digits R2 has.
    """
    y, prediction = target.astype(np.float64), loss.predictions(score).astype(np.float64)
    error, away = y - prediction, y - middle
    w = np.ones(len(y)) if weight is None else weight.astype(np.float64)
    losses = loss.losses(y, score)
    return np.array([w.sum(), *(w @ x for x in (losses, np.abs(error), error**2, away, away**2))])


def regression_scores(sums: Floats) -> dict[str, float]:
    """The metrics of numbers by name, from the sums of `regression_sums`.

    R2 is NaN where all targets are the same.

    Examples
    --------
    >>> from sparrowboost.model.regression import SquaredError
    >>> y, score = np.array([[1, 2, 6], [2, 2, 4]], np.float32)
    >>> scores = regression_scores(regression_sums(y, score, SquaredError()))
    >>> {name: round(value, 3) for name, value in scores.items()}
    {'loss': 0.833, 'mae': 1.0, 'rmse': 1.291, 'r2': 0.643}
    """
    loss, absolute, squared, away, spread = (sums[1:] / sums[0]).tolist()
    variance = spread - away**2
    return {
        "loss": loss,
        "mae": absolute,
        "rmse": math.sqrt(squared),
        "r2": 1 - squared / variance if variance > 0 else math.nan,
    }


def regression_score(
    name: str, target: Targets, score: Targets, weight: Weights, loss: RegressionLoss
) -> float:
    """One of the metrics of `regression_scores`."""
    middle = float(target.mean(dtype=np.float64))
    return regression_scores(regression_sums(target, score, loss, weight, middle))[name]


@dataclass(frozen=True)
class Metric:
    """How a model is judged on validation data."""

    name: str
    title: str  # in reports
    lower_is_better: bool
    compute: Callable[..., float]  # from labels, scores H and weights; of numbers, and the loss
    ranks: bool = False  # needs rows of both labels, and sorts them
    own: bool = False  # the user's, of labels and predictions
    regression: bool = False  # judges predictions of numbers, not of classes
    only_two: bool = False  # classes

    @property
    def worst(self) -> float:
        return math.inf if self.lower_is_better else -math.inf

    def judges(self, numbers: bool, several: bool) -> bool:
        """Whether it judges predictions of numbers, or of two or of several classes."""
        return self.regression == numbers and not (several and self.only_two)

    def better(self, value: float, than: float) -> bool:
        return value < than if self.lower_is_better else value > than

    def best(self, values: npt.ArrayLike) -> int:
        """Index of the best value; NaN is none."""
        return int((np.nanargmin if self.lower_is_better else np.nanargmax)(values))


METRICS = {
    metric.name: metric
    for metric in (
        Metric("log_loss", "log loss", True, log_loss),
        Metric("auc", "AUC", False, auc, ranks=True),
        Metric("average_precision", "average precision", False, average_precision, ranks=True),
        Metric("accuracy", "accuracy", False, accuracy),
        Metric("exponential_loss", "exponential loss", True, exponential_loss, only_two=True),
        Metric("rmse", "RMSE", True, partial(regression_score, "rmse"), regression=True),
        Metric("mae", "MAE", True, partial(regression_score, "mae"), regression=True),
        Metric("r2", "R2", False, partial(regression_score, "r2"), regression=True),
        Metric("loss", "mean loss", True, partial(regression_score, "loss"), regression=True),
    )
}

_OF_LOSS = {"squared_error": "rmse", "absolute_error": "mae"}


Given = str | Callable[..., float]  # a metric as users give it

ENDINGS = {"_score": False, "_error": True, "_loss": True, "_deviance": True}  # lower is better?


def find_metric(given: Given, *, regression: bool = False) -> Metric:
    """The metric of a name, or one of the user's.

    A function is called with labels, predictions and, if there are weights, `sample_weight`, as
    those of scikit-learn are. Of two classes, labels are 0 and 1, and predictions probabilities of
    the positive one; of more, labels are their numbers, and predictions (n, K). Whether less is
    better is what its attribute `greater_is_better` says, or its name by scikit-learn's convention.

    Examples
    --------
    >>> def largest_error(y, prediction, sample_weight=None):
    ...     return abs(y - prediction).max()
    >>> metric = find_metric(largest_error, regression=True)
    >>> metric.name, metric.lower_is_better
    ('largest_error', True)
    """
    if isinstance(given, str):
        return METRICS[given]
    name = getattr(given, "__name__", type(given).__name__)
    greater = getattr(given, "greater_is_better", None)
    lower = not greater if isinstance(greater, bool) else None
    if lower is None:
        lower = next((less for end, less in ENDINGS.items() if name.endswith(end)), None)
    if lower is None:
        raise DataError(
            f"eval_metric={name}: is more better, or less? Give the function an attribute "
            "greater_is_better, True or False, or a name that ends in _score or _error."
        )

    def compute(
        target: npt.NDArray[Any],
        score: Scores,
        weight: Weights = None,
        loss: RegressionLoss | None = None,
    ) -> float:
        seen: npt.NDArray[np.floating]
        if not regression:  # labels are bytes here, whose sums have no sign
            target = target.astype(np.int64)
        if score.ndim == 2:
            seen = class_probabilities(score)
        else:
            seen = probability(score) if loss is None else loss.predictions(score)
        weights = {} if weight is None else {"sample_weight": weight}
        try:
            return float(given(target, seen, **weights))
        except (TypeError, ValueError) as error:
            kind = "numbers" if regression else "probabilities"
            raise DataError(
                f"eval_metric={name}: it failed on labels and predictions, which are {kind}: "
                f"{error}"
            ) from error

    return Metric(name, name, lower, compute, regression=regression, own=True)


def metric_named(name: str) -> Metric:
    """What is known of a metric by its name in a history, which may be one of the user's."""
    if name in METRICS:
        return METRICS[name]
    lower = next((less for end, less in ENDINGS.items() if name.endswith(end)), True)
    return Metric(name, name, lower, log_loss, own=True)


def default_metric(loss: Any) -> str:
    """The name of the metric that a loss minimises."""
    if not isinstance(loss, str):
        return "loss" if hasattr(loss, "losses") else "rmse"
    if loss in REGRESSION_LOSSES:
        return _OF_LOSS.get(loss, "loss")
    return "log_loss"
