"""The two losses: weights of rows, values of leaves, probabilities.

H(x) is the score, y = -1 or +1 the label, u a row's importance:

    exponential   u exp(-y H)               weight u exp(-y H)             the paper's
    logistic      u ln(1 + exp(-2 y H))     weight u / (1 + exp(2 y H))    at most u

Under both, the log odds of a positive label are 2 H, and its probability is 1 / (1 + exp(-2 H)).
What users get is in log odds, as in scikit-learn; scores inside are H, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sparrowboost.runtime.errors import DataError

Floats = npt.NDArray[np.float32]
Sums = npt.NDArray[np.float64]

MAX_STEP = 2.0  # of one leaf, before the learning rate: from even odds to 98 %
LEAF_L2 = 3.0  # rows of ordinary weight, added to the curvature of a leaf
PART_ROWS = 16_384  # turned into probabilities at a time
STEPS = 50  # of the search for the constant beside offsets, each of which halves the range
MAX_MARGIN = 40.0  # exp(40), times an importance, is far below float32's maximum


class Loss(Protocol):
    """What training needs to know of a loss."""

    @property
    def name(self) -> str: ...

    def weigh(
        self, label: npt.NDArray[np.uint8], u: Floats, score: Floats, w: Floats, total: Sums
    ) -> None:
        """Fill `w`, and `total` with its sum and its sum of squares."""
        ...

    def leaf_values(self, sums: Sums, unit: float) -> npt.NDArray[np.float64]:
        """Best steps for leaves with the sums (W-, W+, sum w**2 / u); one row weighs `unit`."""
        ...


@dataclass(frozen=True)
class Logistic:
    """Bounded weights: a row with a wrong label weighs at most its importance."""

    name: str = "logistic"

    def weigh(
        self, label: npt.NDArray[np.uint8], u: Floats, score: Floats, w: Floats, total: Sums
    ) -> None:
        from sparrowboost.kernels.scores import weigh_logistic

        weigh_logistic(label, u, score, w, total)

    def leaf_values(self, sums: Sums, unit: float) -> npt.NDArray[np.float64]:
        negative, positive, squares = sums.T
        # A Newton step: the first derivative over the second, sum of 2 w (1 - w / u).
        curvature = 2 * np.maximum(negative + positive - squares, 0)
        step = (positive - negative) / (curvature + LEAF_L2 * unit)
        return np.clip(step, -MAX_STEP, MAX_STEP)


@dataclass(frozen=True)
class Exponential:
    """The loss of AdaBoost and the paper. On noisy labels its weights grow without bound."""

    name: str = "exponential"

    def weigh(
        self, label: npt.NDArray[np.uint8], u: Floats, score: Floats, w: Floats, total: Sums
    ) -> None:
        from sparrowboost.kernels.scores import weigh_exponential

        weigh_exponential(label, u, score, np.float32(MAX_MARGIN), w, total)

    def leaf_values(self, sums: Sums, unit: float) -> npt.NDArray[np.float64]:
        negative, positive = sums[:, 0], sums[:, 1]
        # Half a row on each side keeps the value of a pure leaf finite.
        half = 0.5 * unit
        value = 0.5 * np.log((positive + half) / (negative + half))
        return np.clip(value, -MAX_STEP, MAX_STEP)


LOSSES: dict[str, Loss] = {"logistic": Logistic(), "exponential": Exponential()}


def get_loss(name: str) -> Loss:
    """The loss of this name."""
    if name not in LOSSES:
        raise DataError(f"loss={name!r} is unknown; give one of {', '.join(LOSSES)}.")
    return LOSSES[name]


def base_score(negative: float, positive: float) -> float:
    """The constant score with the lowest loss (either one), given each label's total importance."""
    return 0.5 * float(np.log(positive / negative))


def log_odds(score: Floats) -> Floats:
    """The log odds of a positive label, 2 H; exact, since doubling rounds nothing."""
    return np.float32(2) * score


def half_of(log_odds: Floats) -> Floats:
    """The score H of log odds; exact, unless it is so small that it has fewer bits."""
    return np.float32(0.5) * log_odds


def base_score_beside(loss: Loss, label: npt.NDArray[np.uint8], u: Floats, offset: Floats) -> float:
    """The constant that, added to the offsets (n,) of rows, has the lowest loss.

    At it, negatives and positives weigh the same. More of it makes positives lighter.
    """
    low, high = -MAX_MARGIN - float(offset.max()), MAX_MARGIN - float(offset.min())
    w, total = np.empty(len(label), np.float32), np.empty(2)
    for _ in range(STEPS):
        middle = (low + high) / 2
        loss.weigh(label, u, (offset + middle).astype(np.float32), w, total)
        negative, positive = np.bincount(label, w, 2)
        low, high = (middle, high) if positive > negative else (low, middle)
    return (low + high) / 2


def probability(score: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """The probability of a positive label."""
    return _logistic(2 * score.astype(np.float64))


def probabilities(log_odds: Floats) -> npt.NDArray[np.float64]:
    """(n, 2) probabilities of both labels; what it takes besides these does not grow with n."""
    both = np.empty((len(log_odds), 2))
    for start in range(0, len(log_odds), PART_ROWS):
        rows = slice(start, start + PART_ROWS)
        both[rows, 1] = _logistic(log_odds[rows].astype(np.float64))
        both[rows, 0] = 1 - both[rows, 1]
    return both


def _logistic(log_odds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return 1 / (1 + np.exp(np.clip(-log_odds, -700, 700)))
