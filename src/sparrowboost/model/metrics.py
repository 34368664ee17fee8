"""Metrics: name, direction, words, and how to compute them.

scikit-learn has these, too; importing it takes 80 MB, which a memory limit may not allow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparrowboost.model.losses import MAX_MARGIN

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.uint8]  # (n,) 1 = positive
Scores = npt.NDArray[np.floating]  # (n,) H(x), half the log odds
Weights = npt.NDArray[np.floating] | None  # (n,) of the rows; None: all count 1


def log_loss(label: Labels, score: Scores, weight: Weights = None) -> float:
    """Mean of -ln p(y), with p = 1 / (1 + exp(-2 H))."""
    return float(np.average(row_log_loss(margins(label, score)), weights=weight))


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


@dataclass(frozen=True)
class Metric:
    """How a model is judged on validation data."""

    name: str
    title: str  # in reports
    lower_is_better: bool
    compute: Callable[[Labels, Scores, Weights], float]
    ranks: bool = False  # needs rows of both labels, and sorts them

    @property
    def worst(self) -> float:
        return math.inf if self.lower_is_better else -math.inf

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
        Metric("exponential_loss", "exponential loss", True, exponential_loss),
    )
}
