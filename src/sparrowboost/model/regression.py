"""Losses of numbers: base scores, derivatives, values of leaves, predictions.

y is the target, F the score, p the power of Tweedie's variance. Each loss l(y, F) is zero where
the prediction is right. It falls by g = -dl/dF, its curvature is h:

    squared_error   (y - F)**2 / 2                          g = y - F            h = 1
    huber           the same up to delta, linear beyond     g, at most delta     h = 1, a bound
    absolute_error  |y - F|                                 g = sign of y - F    h = 1
    quantile        alpha (y - F), or (1 - alpha) (F - y)   g = alpha or -(1 - alpha)   h = 1
    poisson, gamma, tweedie   half the deviance, for the prediction exp(F); p = 1, 2, 1 < p < 2
                              g = up - down              up = y exp((1 - p) F)
                              h = (p - 1) up + (2 - p) down    down = exp((2 - p) F)

The steep losses, absolute error and quantile, have no curvature: their h only counts rows, and the
value of a leaf comes from its rows, as it does for Huber's loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from sparrowboost.model.losses import LEAF_L2, MAX_STEP, PART_ROWS
from sparrowboost.runtime.errors import DataError

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]
AnyFloats = npt.NDArray[np.floating]  # float32 as stored, or float64
Weights = npt.NDArray[np.floating] | None  # (n,) of the rows; None: all count 1
Kind = tuple[int, float, float]  # of a loss and its options, for kernels

SQUARED, HUBER, STEEP, LOG = range(4)  # kinds of losses, as in kernels/numbers.py
MAX_LOG = 88.0  # exp(88) = 1.7e38 fits a float32
MAX_DERIVATIVE = 3e38  # so does this
TINY = 1e-300  # instead of a unit of 0, so that an empty leaf has the value 0
TOLERANCE = 1e-9  # relative, to which a sum of weights is a share of all
NO_EVENT = 0.5  # rows with a target of 1, if all targets are 0: their logarithm would be infinite

# Open ranges of the options.
OPTION_RANGES = {"alpha": (0.0, 1.0), "power": (1.0, 2.0), "delta": (0.0, np.inf)}


@dataclass(frozen=True)
class RegressionLoss(ABC):
    """A loss of numbers; its fields are its options."""

    name: ClassVar[str]
    log_link: ClassVar[bool] = False  # the prediction is exp(F), not F
    allows_zero: ClassVar[bool] = True  # where targets may not be negative
    has_unit: ClassVar[bool] = False  # g has the unit of the target, and h has none
    by_rows: ClassVar[bool] = False  # `leaf_value` of a leaf's rows, not `steps` of their sums
    level: ClassVar[float] = 0.5  # the quantile that this value is, if it is one

    @property
    def options(self) -> dict[str, float]:
        """The loss's options by name, as a model file has them."""
        return asdict(self)

    @abstractmethod
    def base_score(self, target: AnyFloats, weight: Weights = None) -> float:
        """The constant score with the lowest loss."""

    def base_score_beside(self, target: Floats, weight: Weights, offset: Floats | None) -> float:
        """The constant that, added to the offsets (n,) of rows, has the lowest loss."""
        return self.base_score(target if offset is None else _residuals(target, offset), weight)

    def score_of(self, prediction: float) -> float:
        """The score with this prediction."""
        return float(prediction)

    @abstractmethod
    def losses(self, target: npt.ArrayLike, score: npt.ArrayLike) -> Numbers:
        """(n,) l(y, F) of each row: 0 or more."""

    @abstractmethod
    def _slopes(self, y: Numbers, score: Numbers) -> tuple[Numbers, Numbers]:
        """(n,) g and (n,) h of each row."""

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """What the kernels of this loss need to know (`kernels/numbers.py`)."""

    def fill_slopes(self, target: Floats, score: Floats, g: Floats, h: Floats) -> None:
        """Write (n,) g and (n,) h of each row, as `derivatives` does, but faster."""
        from sparrowboost.kernels.numbers import add_slopes

        add_slopes(*self.kind, target, score, g, h)

    def add_losses(
        self, target: Floats, score: Floats, weight: Floats, middle: float, total: Numbers
    ) -> None:
        """Add up what metrics need: the sums (6,) of `regression_sums` in `metrics.py`."""
        from sparrowboost.kernels.numbers import add_number_losses

        add_number_losses(*self.kind, target, score, weight, middle, total)

    def add_falls(
        self, target: Floats, before: Floats, after: Floats, u: Floats, total: Numbers
    ) -> None:
        """Add up (2,) u times the fall of the loss between scores, and the square of that."""
        from sparrowboost.kernels.numbers import add_number_falls

        add_number_falls(*self.kind, target, before, after, u, total)

    def derivatives(self, target: Floats, score: Floats) -> tuple[Floats, Floats]:
        """(n,) g and (n,) h of each row, finite whatever the score.

        What it takes besides these does not grow with n.
        """
        g, h = np.empty((2, len(target)), np.float32)
        for start in range(0, len(target), PART_ROWS):
            rows = slice(start, start + PART_ROWS)
            slopes = self._slopes(target[rows].astype(np.float64), score[rows].astype(np.float64))
            for out, values in zip((g, h), slopes, strict=True):
                np.clip(values, -MAX_DERIVATIVE, MAX_DERIVATIVE, out=out[rows], casting="same_kind")
        return g, h

    def steps(self, g: npt.ArrayLike, h: npt.ArrayLike, unit: float = 1.0) -> Numbers:
        """Best steps of leaves with these sums of g and h.

        Parameters
        ----------
        g, h : (leaves,)
            Sums over a leaf's rows, each times its weight.
        unit : float
            What an ordinary row adds to the sum of h. A leaf's value is shrunk as by LEAF_L2 such
            rows without any error.
        """
        if self.by_rows:
            raise TypeError(f"leaves of {self.name} take their values from their rows")
        return np.asarray(g, np.float64) / (np.asarray(h, np.float64) + max(LEAF_L2 * unit, TINY))

    def leaf_value(self, residual: npt.NDArray[np.floating], weight: Weights = None) -> float:
        """Best step of a leaf whose rows have these residuals, y - F."""
        raise TypeError(f"leaves of {self.name} take their values from sums")

    def check(self, low: float, high: float, name: str) -> None:
        """A DataError if the loss does not allow targets from `low` to `high`.

        Parameters
        ----------
        low, high : float
            The smallest and the largest target.
        name : str
            The column of the targets.
        """
        if low > 0 or not self.log_link or (low == 0 and self.allows_zero):
            return
        need = "of 0 or more" if self.allows_zero else "above 0"
        zero = "loss='tweedie' or " if low == 0 else ""
        raise DataError(
            f"label {name!r} has the value {low:g}; loss={self.name!r} needs labels {need}. "
            f"Remove such rows, or use {zero}loss='squared_error'."
        )

    def predictions(self, score: Floats) -> Floats:
        """(n,) predictions in the unit of the target."""
        return score


@dataclass(frozen=True)
class SquaredError(RegressionLoss):
    """The mean; its gradients grow with the error."""

    name = "squared_error"
    has_unit = True

    @property
    def kind(self) -> Kind:
        return SQUARED, 0.0, 0.0

    def base_score(self, target: AnyFloats, weight: Weights = None) -> float:
        return _mean(target, weight)

    def losses(self, target: npt.ArrayLike, score: npt.ArrayLike) -> Numbers:
        return np.square(_residuals(target, score)) / 2

    def _slopes(self, y: Numbers, score: Numbers) -> tuple[Numbers, Numbers]:
        return y - score, np.ones_like(y)


@dataclass(frozen=True)
class AbsoluteError(RegressionLoss):
    """The median; large errors count no more than small ones."""

    name = "absolute_error"
    by_rows = True
    level = 0.5

    @property
    def kind(self) -> Kind:
        return STEEP, 1.0, 1.0

    def base_score(self, target: AnyFloats, weight: Weights = None) -> float:
        return quantile(target, weight, 0.5)

    def losses(self, target: npt.ArrayLike, score: npt.ArrayLike) -> Numbers:
        return np.abs(_residuals(target, score))

    def _slopes(self, y: Numbers, score: Numbers) -> tuple[Numbers, Numbers]:
        return np.sign(y - score), np.ones_like(y)

    def leaf_value(self, residual: npt.NDArray[np.floating], weight: Weights = None) -> float:
        return quantile(residual, weight, 0.5)


@dataclass(frozen=True)
class Quantile(RegressionLoss):
    """The quantile of this level: a share `alpha` of the targets should be below."""

    alpha: float

    name = "quantile"
    by_rows = True

    @property
    def kind(self) -> Kind:
        return STEEP, self.alpha, 1 - self.alpha

    @property
    def level(self) -> float:  # type: ignore[override]
        return self.alpha

    def base_score(self, target: AnyFloats, weight: Weights = None) -> float:
        return quantile(target, weight, self.alpha)

    def losses(self, target: npt.ArrayLike, score: npt.ArrayLike) -> Numbers:
        r = _residuals(target, score)
        return np.maximum(self.alpha * r, (self.alpha - 1) * r)

    def _slopes(self, y: Numbers, score: Numbers) -> tuple[Numbers, Numbers]:
        r = y - score
        # 0 at the kink, which is between both slopes.
        return np.where(r > 0, self.alpha, np.where(r < 0, self.alpha - 1, 0)), np.ones_like(y)

    def leaf_value(self, residual: npt.NDArray[np.floating], weight: Weights = None) -> float:
        return quantile(residual, weight, self.alpha)


@dataclass(frozen=True)
class Huber(RegressionLoss):
    """Squared error up to `delta`, and linear beyond: a mean that outliers do not move."""

    delta: float

    name = "huber"
    has_unit = True
    by_rows = True

    @property
    def kind(self) -> Kind:
        return HUBER, self.delta, 0.0

    @classmethod
    def of(cls, alpha: float, target: AnyFloats, weight: Weights = None) -> Self:
        """The loss that is quadratic for a share `alpha` of the rows, seen from their median."""
        deviation = np.abs(target.astype(np.float64) - quantile(target, weight, 0.5))
        delta = quantile(deviation, weight, alpha)
        if delta == 0:
            raise DataError(
                f"loss='huber' with alpha={alpha:g} takes its unit from the deviations of the "
                "labels from their median, but that share of the labels or more equals the median. "
                "Pass a larger alpha, or loss='squared_error'."
            )
        return cls(delta)

    def base_score(self, target: AnyFloats, weight: Weights = None) -> float:
        return self.leaf_value(target, weight)

    def losses(self, target: npt.ArrayLike, score: npt.ArrayLike) -> Numbers:
        r = np.abs(_residuals(target, score))
        inner = np.minimum(r, self.delta)
        return inner * (r - inner / 2)

    def _slopes(self, y: Numbers, score: Numbers) -> tuple[Numbers, Numbers]:
        return np.clip(y - score, -self.delta, self.delta), np.ones_like(y)

    def leaf_value(self, residual: npt.NDArray[np.floating], weight: Weights = None) -> float:
        # One step from the median, of the mean gradient: Friedman's (Annals of Statistics, 2001).
        median = quantile(residual, weight, 0.5)
        gradient = np.clip(residual.astype(np.float64) - median, -self.delta, self.delta)
        return median + _mean(gradient, weight)


class _LogLoss(RegressionLoss):
    """The loss of a mean that is positive: the score is its logarithm."""

    log_link = True

    @property
    @abstractmethod
    def p(self) -> float:
        """The variance of a target is proportional to its mean to this power."""

    @property
    def kind(self) -> Kind:
        return LOG, self.p, 0.0

    def base_score(self, target: AnyFloats, weight: Weights = None) -> float:
        mean = _mean(target, weight) or NO_EVENT / max(len(target), 1)
        with np.errstate(invalid="ignore"):  # labels below 0 are refused when all are read
            return float(np.log(mean))

    def base_score_beside(self, target: Floats, weight: Weights, offset: Floats | None) -> float:
        if offset is None:
            return self.base_score(target, weight)
        # Beside the constant c, the derivative is the sum of
        #     w (y exp((1 - p) offset) exp((1 - p) c) - exp((2 - p) offset) exp((2 - p) c))
        # That of rates, y / exp(offset), of weight w exp((2 - p) offset), is the same.
        rate, down = self._up_and_down(target.astype(np.float64), offset.astype(np.float64))
        w = down if weight is None else weight * down
        return self.base_score(rate / down, w)

    def score_of(self, prediction: float) -> float:
        return float(np.log(prediction))

    def _up_and_down(self, y: Numbers, score: Numbers) -> tuple[Numbers, Numbers]:
        score = np.clip(score, -MAX_LOG, MAX_LOG)
        return y * np.exp((1 - self.p) * score), np.exp((2 - self.p) * score)

    def _slopes(self, y: Numbers, score: Numbers) -> tuple[Numbers, Numbers]:
        up, down = self._up_and_down(y, score)
        return up - down, (self.p - 1) * up + (2 - self.p) * down

    def steps(self, g: npt.ArrayLike, h: npt.ArrayLike, unit: float = 1.0) -> Numbers:
        # After a step s, the sums are up exp((1 - p) s) and down exp((2 - p) s); the best makes
        # them equal. g = up - down and h = (p - 1) up + (2 - p) down give both back.
        g = np.asarray(g, np.float64)
        down = np.maximum(np.asarray(h, np.float64) - (self.p - 1) * g, 0)
        up = np.maximum(down + g, 0)
        some = max(LEAF_L2 * unit, TINY)
        return np.clip(np.log(up + some) - np.log(down + some), -MAX_STEP, MAX_STEP)

    def predictions(self, score: Floats) -> Floats:
        return np.exp(np.clip(score, -MAX_LOG, MAX_LOG)).astype(np.float32)


@dataclass(frozen=True)
class Poisson(_LogLoss):
    """The mean of counts, whose variance is their mean."""

    name = "poisson"

    @property
    def p(self) -> float:
        return 1.0

    def losses(self, target: npt.ArrayLike, score: npt.ArrayLike) -> Numbers:
        y, score = _numbers(target, score)
        return _y_log(y, score) - y + np.exp(score)


@dataclass(frozen=True)
class Gamma(_LogLoss):
    """The mean of positive numbers, whose deviation is proportional to their mean."""

    name = "gamma"
    allows_zero = False

    @property
    def p(self) -> float:
        return 2.0

    def losses(self, target: npt.ArrayLike, score: npt.ArrayLike) -> Numbers:
        y, score = _numbers(target, score)
        return y * np.exp(-score) - 1 - (np.log(y) - score)


@dataclass(frozen=True)
class Tweedie(_LogLoss):
    """The mean of sums of a few positive numbers, which are often exactly 0: between both."""

    power: float

    name = "tweedie"

    @property
    def p(self) -> float:
        return self.power

    def losses(self, target: npt.ArrayLike, score: npt.ArrayLike) -> Numbers:
        p = self.power
        y, score = _numbers(target, score)
        up, down = self._up_and_down(y, score)
        return np.maximum(y ** (2 - p) / ((1 - p) * (2 - p)) - up / (1 - p) + down / (2 - p), 0)


_CLASSES: tuple[type[RegressionLoss], ...] = (
    SquaredError, AbsoluteError, Huber, Quantile, Poisson, Gamma, Tweedie,
)  # fmt: skip
REGRESSION_LOSSES = {cls.name: cls for cls in _CLASSES}


def regression_loss(name: str, options: Mapping[str, float]) -> RegressionLoss:
    """The loss of this name, with these options: exactly those that it has, within their ranges."""
    if name not in REGRESSION_LOSSES:
        known = ", ".join(REGRESSION_LOSSES)
        raise DataError(f"loss={name!r} is unknown; regression has {known}.")
    cls = REGRESSION_LOSSES[name]
    names = [field.name for field in fields(cls)]
    if sorted(options) != sorted(names):
        needed, given = ", ".join(names) or "no option", ", ".join(options) or "none"
        raise DataError(f"loss={name!r} needs {needed}; given: {given}.")
    for key, value in options.items():
        low, high = OPTION_RANGES[key]
        if not low < value < high:
            below = f" and below {high:g}" if high < np.inf else ""
            raise DataError(f"{key}={value!r}: give a number above {low:g}{below}.")
    return cls(**options)


def fit_loss(
    name: str,
    target: AnyFloats,
    weight: Weights = None,
    offset: Floats | None = None,
    *,
    alpha: float,
    power: float,
) -> RegressionLoss:
    """The loss for training on these targets, from the parameters that users give.

    Parameters
    ----------
    offset : (n,), optional
        Of the scores of the rows.
    alpha : float
        The level of "quantile"; the share of rows that "huber" does not treat as outliers.
    power : float
        Of "tweedie".
    """
    if name == Huber.name:
        return Huber.of(alpha, target if offset is None else _residuals(target, offset), weight)
    given = {"alpha": alpha, "power": power}
    names = [field.name for field in fields(REGRESSION_LOSSES[name])]
    return regression_loss(name, {key: given[key] for key in names})


def quantile(values: npt.NDArray[np.floating], weight: Weights, level: float) -> float:
    """The weighted quantile: the number q with the lowest sum of pinball losses.

    The share `level` of the weight is below q. If that is so for all q between two values, it is
    the point half-way. Rows of weight w count like w rows; 0 if there are none.

    Examples
    --------
    >>> quantile(np.array([3.0, 1.0, 2.0, 4.0]), None, 0.5)
    2.5
    >>> quantile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 5.0, 1.0]), 0.5)
    1.0
    """
    if weight is not None:
        values, weight = values[weight > 0], weight[weight > 0]
    n = len(values)
    if n == 0:
        return 0.0
    if weight is None:
        k, exact = _index(n * level, n)
        around = [max(k - 1, 0), k] if exact else [k]
        parted = np.partition(values, around)
    else:
        order = np.argsort(values)
        parted, below = values[order], np.cumsum(weight[order], dtype=np.float64)
        goal = level * below[-1]
        k = min(int(np.searchsorted(below, goal * (1 + TOLERANCE), "right")), n - 1)
        exact = k > 0 and below[k - 1] >= goal * (1 - TOLERANCE)
    low = float(parted[k - 1]) if exact else float(parted[k])
    return (low + float(parted[k])) / 2


def _index(goal: float, n: int) -> tuple[int, bool]:
    """Which of n sorted values has `goal` of them below it, and whether goal is a whole number."""
    k = min(int(goal * (1 + TOLERANCE)), n - 1)
    return k, k > 0 and k >= goal * (1 - TOLERANCE)


def _mean(values: npt.NDArray[np.floating], weight: Weights) -> float:
    """The weighted mean in float64; 0 if there is no weight."""
    if weight is None:
        return float(values.mean(dtype=np.float64)) if len(values) else 0.0
    w = weight.astype(np.float64)
    return float(w @ values.astype(np.float64)) / (float(w.sum()) or 1.0)


def _residuals(target: npt.ArrayLike, score: npt.ArrayLike) -> Numbers:
    return np.asarray(target, np.float64) - np.asarray(score, np.float64)


def _numbers(target: npt.ArrayLike, score: npt.ArrayLike) -> tuple[Numbers, Numbers]:
    """Targets, and scores whose exponential is a finite float32."""
    score = np.clip(np.asarray(score, np.float64), -MAX_LOG, MAX_LOG)
    return np.asarray(target, np.float64), score


def _y_log(y: Numbers, score: Numbers) -> Numbers:
    """(n,) y (ln y - F); 0 where y is."""
    return y * (np.log(np.where(y > 0, y, 1.0)) - score)
