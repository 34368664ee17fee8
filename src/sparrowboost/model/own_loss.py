"""A loss of numbers that the user brings: a function of derivatives, or an object with more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.model.losses import PART_ROWS
from sparrowboost.model.regression import (
    AnyFloats,
    Floats,
    Kind,
    Numbers,
    RegressionLoss,
    Weights,
)
from sparrowboost.runtime.errors import DataError

STEPS = 100  # of Newton's method, towards the best constant
CLOSE = 1e-9  # relative, at which it ends
MOST = 1e30  # of a derivative, as in kernels/numbers.py

Derivatives = Callable[[Numbers, Numbers], tuple[npt.ArrayLike, npt.ArrayLike]]


class OwnLoss(RegressionLoss):
    """A loss of the user's: predictions are scores.

    Parameters
    ----------
    given : callable or object
        ``given(target, score)`` or ``given.derivatives(target, score)`` returns the first and the
        second derivative of each row's loss by its score, as two arrays (n,): the slope, which is
        negative where a higher score is better, and the curvature, 0 or more. Both arguments are
        (n,) float64. An object may also have ``losses(target, score)``, (n,), which is reported
        and used to choose the size of samples, and ``name``.
    """

    name = "own"

    def __init__(self, given: Any = None) -> None:
        object.__setattr__(self, "given", given)  # the base class is frozen

    given: Any

    @property
    def kind(self) -> Kind:
        raise TypeError("kernels do not know a loss of the user's")

    @property
    def called(self) -> str:
        """What the user calls it."""
        given = self.given
        return str(getattr(given, "name", getattr(given, "__name__", type(given).__name__)))

    def _slopes(self, y: Numbers, score: Numbers) -> tuple[Numbers, Numbers]:
        if self.given is None:
            raise DataError(
                "the model was trained with a loss of its own, which its file does not have; pass "
                "that as loss=."
            )
        find: Derivatives = getattr(self.given, "derivatives", self.given)
        found = find(y, score)
        try:
            first, second = found
        except (TypeError, ValueError):
            raise DataError(
                f"the loss {self.called!r} returned {type(found).__name__}; it must return two "
                "arrays, the first and the second derivatives of the rows."
            ) from None
        slope, curvature = self._checked(first, y), self._checked(second, y)
        return np.clip(-slope, -MOST, MOST), np.clip(curvature, 0, MOST)

    def _checked(self, values: npt.ArrayLike, y: Numbers) -> Numbers:
        try:
            array = np.asarray(values, np.float64)
        except (TypeError, ValueError):
            raise DataError(
                f"the loss {self.called!r} returned values that are no numbers; it must return one "
                "number for each row."
            ) from None
        if array.shape != y.shape:
            raise DataError(
                f"the loss {self.called!r} returned an array of shape {array.shape} for "
                f"{len(y)} rows; it must return one number for each row."
            )
        if np.isnan(array).any():
            row = int(np.argmax(np.isnan(array)))
            raise DataError(
                f"the loss {self.called!r} returned NaN for the target {y[row]:g}; it must return "
                "numbers."
            )
        return array

    def fill_slopes(self, target: Floats, score: Floats, g: Floats, h: Floats) -> None:
        for start in range(0, len(target), PART_ROWS):
            rows = slice(start, start + PART_ROWS)
            slopes = self._slopes(target[rows].astype(np.float64), score[rows].astype(np.float64))
            for out, values in zip((g, h), slopes, strict=True):
                out[rows] = values

    def base_score(self, target: AnyFloats, weight: Weights = None) -> float:
        return self.base_score_beside(target, weight, None)

    def base_score_beside(self, target: AnyFloats, weight: Weights, offset: Floats | None) -> float:
        """The constant with the lowest loss, by Newton's method."""
        y, w = target.astype(np.float64), np.ones(len(target)) if weight is None else weight
        beside = np.zeros(len(y)) if offset is None else offset.astype(np.float64)
        score = 0.0
        for k in range(STEPS):
            g, h = self._slopes(y, beside + score)
            curvature = float(w @ h)
            if curvature <= 0:
                if k == 0:  # without any, no split and no value of a leaf can be found
                    raise DataError(
                        f"the loss {self.called!r} has a second derivative of 0 in all rows; "
                        "return ones for a loss that has none."
                    )
                break
            step = float(w @ g) / curvature
            score += step
            if abs(step) <= CLOSE * (1 + abs(score)):
                break
        return score if np.isfinite(score) else 0.0

    @property
    def has_losses(self) -> bool:
        return hasattr(self.given, "losses")

    def losses(self, target: npt.ArrayLike, score: npt.ArrayLike) -> Numbers:
        y, f = np.asarray(target, np.float64), np.asarray(score, np.float64)
        if not self.has_losses:
            return np.full(y.shape, np.nan)
        return self._checked(self.given.losses(y, f), y)

    def add_losses(
        self, target: Floats, score: Floats, weight: Floats, middle: float, total: Numbers
    ) -> None:
        y, f = target.astype(np.float64), score.astype(np.float64)
        w = weight.astype(np.float64) if len(weight) else np.ones(len(y))
        error, away = y - f, y - middle
        total += [w.sum(), *(w @ x for x in (
            self.losses(y, f), np.abs(error), error**2, away, away**2
        ))]  # fmt: skip

    def add_falls(
        self, target: Floats, before: Floats, after: Floats, u: Floats, total: Numbers
    ) -> None:
        y, a, b = (array.astype(np.float64) for array in (target, before, after))
        if self.has_losses:
            fall = self.losses(y, a) - self.losses(y, b)
        else:  # the mean slope between both scores, by their ends
            fall = (self._slopes(y, a)[0] + self._slopes(y, b)[0]) / 2 * (b - a)
        fall *= u
        total += fall.sum(), (fall**2).sum()
