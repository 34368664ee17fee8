"""The values of a finished tree's leaves, before the learning rate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.learner.monotone import Monotone
from sparrowboost.learner.number_scanner import NumberScanner
from sparrowboost.model.losses import Loss
from sparrowboost.model.regression import Huber, RegressionLoss
from sparrowboost.model.softmax import Softmax
from sparrowboost.model.tree import TreeBuilder

Floats = npt.NDArray[np.float64]
Values = Callable[[Floats], Floats]  # the best values (m,) of sums (m, k) over rows
LeafValues = Callable[[Any], tuple[Floats, Values]]  # of a scanner: the sums of leaves, and these

MEDIAN = 0.5


def label_values(loss: Loss) -> LeafValues:
    """Those of rows of two classes."""

    def of(scanner: Any) -> tuple[Floats, Values]:
        return scanner.leaf_sums(), partial(loss.leaf_values, unit=scanner.sample.unit)

    return of


def number_values(loss: RegressionLoss | Softmax) -> LeafValues:
    """Those of rows with gradients: of numbers to predict, or of several classes."""

    def of(scanner: NumberScanner) -> tuple[Floats, Values]:
        sums = scanner.leaf_sums()
        if isinstance(loss, RegressionLoss) and loss.by_rows:
            # Of several leaves together, such as bounds need: the mean of their values.
            weight = np.maximum(sums[:, 1], np.finfo(np.float64).tiny)
            return np.column_stack((weight * row_values(loss, scanner), weight)), _ratio
        unit = scanner.sample.unit / 2  # of h: an ordinary row weighs 2 h
        slope = scanner.sample.slope_unit
        return sums, lambda sums: slope * loss.steps(sums[:, 0], sums[:, 1], unit)

    return of


def row_values(loss: RegressionLoss, scanner: NumberScanner) -> Floats:
    """(leaves,) values of a loss that depend on the rows of a leaf: quantiles of residuals."""
    if isinstance(loss, Huber):
        # One step from the median, of the mean gradient: Friedman's (Annals of Statistics, 2001).
        return scanner.leaf_clipped_means(scanner.leaf_quantiles(MEDIAN), loss.delta)
    return scanner.leaf_quantiles(loss.level)


def allowed_values(
    leaf_values: LeafValues, scanner: Any, tree: TreeBuilder, monotone: Monotone | None
) -> Floats:
    """(leaves,) best values that the constraints allow."""
    sums, best = leaf_values(scanner)
    if monotone is None:
        return best(sums)
    return np.clip(best(sums), *monotone.bounds(tree, sums, best).T)


def _ratio(sums: Floats) -> Floats:
    return sums[:, 0] / sums[:, 1]
