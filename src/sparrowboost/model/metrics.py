"""How good scores are.

scikit-learn has these, too; importing it takes 80 MB, which a memory limit may not have to spare.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparrowboost.model.losses import MAX_MARGIN

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.uint8]  # (n,) 1 = positive
Scores = npt.NDArray[np.floating]  # (n,) H(x), half the log odds
Weights = npt.NDArray[np.floating] | None  # (n,) of the rows; None: all count alike


def log_loss(label: Labels, score: Scores, weight: Weights = None) -> float:
    """Mean of -ln p(y), with p = 1 / (1 + exp(-2 H))."""
    margin = np.where(label, score, -score).astype(np.float64)
    return float(np.average(np.logaddexp(0, -2 * margin), weights=weight))


def exponential_loss(label: Labels, score: Scores, weight: Weights = None) -> float:
    """Mean of exp(-y H), the margin cut as in training."""
    margin = np.where(label, score, -score).astype(np.float64)
    return float(np.average(np.exp(np.clip(-margin, -MAX_MARGIN, MAX_MARGIN)), weights=weight))


def auc(label: Labels, score: Scores, weight: Weights = None) -> float:
    """Chance that a positive row has a higher score than a negative one; ties count half.

    Examples
    --------
    >>> auc(np.array([0, 1, 0, 1]), np.array([0.1, 0.4, 0.4, 0.9]))
    0.875
    """
    if weight is not None:
        return area(*cumulated(label, score, weight))
    # The scores of each label are sorted without the others': faster than to rank all rows.
    from sparrowboost.kernels.metrics import count_pairs

    positive = label.astype(bool)
    above, below = np.sort(score[positive]), np.sort(score[~positive])
    pairs = len(above) * len(below)
    return count_pairs(above, below) / pairs if pairs else float("nan")


def area(positives: Floats, negatives: Floats) -> float:
    """The AUC, from the weight of positives and negatives that score at least so much.

    Both run from the highest score to the lowest. NaN where a label has no weight.
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
    """The average precision, from what `area` takes; NaN where positives have no weight."""
    if positives[-1] == 0:
        return float("nan")
    everything = positives + negatives
    # Where the highest scores have no weight at all, there is nothing to be precise about.
    precision = np.divide(positives, everything, np.zeros_like(positives), where=everything > 0)
    return float((precision * np.diff(positives, prepend=0)).sum() / positives[-1])


def cumulated(label: Labels, score: Scores, weight: Weights) -> tuple[Floats, Floats]:
    """Weight of positives and negatives that score at least each distinct score, highest first."""
    order = np.argsort(score)[::-1]
    ranked = score[order]
    last = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)
    if weight is None:
        positives = np.cumsum(label[order], dtype=np.int64)[last].astype(np.float64)
        return positives, last + 1 - positives
    w, positive = weight[order].astype(np.float64), label[order].astype(bool)
    return np.cumsum(w * positive)[last], np.cumsum(w * ~positive)[last]
