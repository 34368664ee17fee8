"""How rows of one kind are weighed for draws: those of two classes, and those with numbers.

The sampler reads, picks and puts back rows whatever their kind. Here is what differs: the weight of
a row, what is known of all weights before the first draw, and the sample that a draw becomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sparrowboost.model.losses import Loss, get_loss
from sparrowboost.model.model import Model
from sparrowboost.model.regression import RegressionLoss
from sparrowboost.model.softmax import Softmax
from sparrowboost.sampling.class_sample import ClassSample, class_scale, factors_of
from sparrowboost.sampling.number_sample import DrawScale, NumberSample, weigh_numbers
from sparrowboost.sampling.sample import Sample
from sparrowboost.sampling.strata import Rows
from sparrowboost.sampling.weight_estimate import WeightEstimate
from sparrowboost.store.dataset import Dataset
from sparrowboost.store.lookup import Bins

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]
Arrays = tuple[Bins, npt.NDArray[np.uint8], Floats, Floats, int]
Part = tuple[Rows, float]  # rows with their first scores, and the rows of the data for each


class RowWeighing(Protocol):
    """What draws need to know of a loss."""

    def weigh(self, rows: Rows, scale: DrawScale | None) -> tuple[Floats, float]:
        """(n,) the weights of rows, and the sum of their squares."""
        ...

    def at_base(self, data: Dataset, parts: Callable[[], Iterable[Part]]) -> WeightEstimate:
        """The weights that rows have before the first new tree, from some of them."""
        ...

    def sample(
        self, arrays: Arrays, target: Floats, scale: DrawScale | None, **about: Any
    ) -> Sample:
        """A sample of these bins, labels, importances, scores and trees."""
        ...

    def restored(self, state: Mapping[str, npt.NDArray[Any]]) -> Sample:
        """The sample of a checkpoint."""
        ...


def row_weighing(model: Model) -> RowWeighing:
    """That for a model's loss."""
    if model.softmax is not None:
        return ClassWeighing(model.softmax)
    loss = model.regression
    return LabelWeighing(get_loss(model.loss), model) if loss is None else NumberWeighing(loss)


class LabelWeighing:
    """Rows of two classes. At the base score, without offsets, all of a label weigh the same."""

    def __init__(self, loss: Loss, model: Model) -> None:
        self._loss, self._base, self._grown = loss, model.base_score, model.n_trees > 0

    def weigh(self, rows: Rows, scale: DrawScale | None) -> tuple[Floats, float]:
        w, total = np.empty(len(rows.label), np.float32), np.empty(2)
        self._loss.weigh(rows.label, importances(rows), rows.score, w, total)
        return w, float(total[1])

    def at_base(self, data: Dataset, parts: Callable[[], Iterable[Part]]) -> WeightEstimate:
        if not data.weighted and data.offset_name is None and not self._grown:
            w, total = np.empty(2, np.float32), np.empty(2)
            label, score = np.array([0, 1], np.uint8), np.full(2, self._base, np.float32)
            self._loss.weigh(label, np.ones(2, np.float32), score, w, total)
            return WeightEstimate(w, data.band_rows.astype(np.float32), label)
        weights, counts, labels = [], [], []
        for rows, each in parts():
            weights.append(self.weigh(rows, None)[0])
            counts.append(np.full(len(rows.label), each, np.float32))
            labels.append(rows.label)
        return WeightEstimate(
            np.concatenate(weights), np.concatenate(counts), np.concatenate(labels)
        )

    def sample(
        self, arrays: Arrays, target: Floats, scale: DrawScale | None, **about: Any
    ) -> Sample:
        return Sample(*arrays, self._loss, **about)

    def restored(self, state: Mapping[str, npt.NDArray[Any]]) -> Sample:
        return Sample.restored(state, self._loss)


class NumberWeighing:
    """Rows with numbers to predict: the gradients of some rows stand for those of all."""

    def __init__(self, loss: RegressionLoss) -> None:
        self._loss = loss

    def weigh(self, rows: Rows, scale: DrawScale | None) -> tuple[Floats, float]:
        assert scale is not None
        (g, h, w), total = np.empty((3, len(rows.label)), np.float32), np.empty(5)
        given = rows.target, importances(rows), rows.score
        weigh_numbers(self._loss, scale, *given, g, h, w, total)
        return w, float(total[1])

    def at_base(self, data: Dataset, parts: Callable[[], Iterable[Part]]) -> WeightEstimate:
        sums = np.zeros(3)  # of the weight, and of |g| and h times the weight
        for rows, each in parts():
            u, (g, h) = importances(rows), np.empty((2, len(rows.label)), np.float32)
            self._loss.fill_slopes(rows.target, rows.score, g, h)
            sums += each * np.array([x.sum(dtype=np.float64) for x in (u, u * np.abs(g), u * h)])
        return estimate_of(self, parts, first_scale(sums))

    def sample(
        self, arrays: Arrays, target: Floats, scale: DrawScale | None, **about: Any
    ) -> Sample:
        assert scale is not None
        return NumberSample(*arrays, self._loss, target=target, scale=scale, **about)

    def restored(self, state: Mapping[str, npt.NDArray[Any]]) -> Sample:
        return NumberSample.restored(state, self._loss)


class ClassWeighing:
    """Rows of several classes: by the gradients of all their scores."""

    def __init__(self, loss: Softmax) -> None:
        self._loss = loss

    def weigh(self, rows: Rows, scale: DrawScale | None) -> tuple[Floats, float]:
        assert scale is not None
        w, total, _ = self._weigh(rows, scale)
        return w, float(total[1])

    def _weigh(self, rows: Rows, scale: DrawScale) -> tuple[Floats, Numbers, Numbers]:
        norm, w = np.empty((2, len(rows.label)), np.float32)
        given = rows.target, rows.score.T, importances(rows), False
        factor = factors_of(scale, self._loss.n_classes)
        return w, *self._loss.weigh(*given, factor, scale.floor, 1 / scale.unit, norm, w)

    def at_base(self, data: Dataset, parts: Callable[[], Iterable[Part]]) -> WeightEstimate:
        weight, squares = 0.0, np.zeros((self._loss.n_classes, 2))
        for rows, each in parts():
            weight += each * float(importances(rows).sum(dtype=np.float64))
            squares += each * self._weigh(rows, DrawScale(1.0, 1.0, 1.0))[2][:, 3:]
        return estimate_of(self, parts, class_scale(weight, squares, 0.0))

    def sample(
        self, arrays: Arrays, target: Floats, scale: DrawScale | None, **about: Any
    ) -> Sample:
        assert scale is not None
        return ClassSample(*arrays, self._loss, target=target, scale=scale, **about)

    def restored(self, state: Mapping[str, npt.NDArray[Any]]) -> Sample:
        return ClassSample.restored(state, self._loss)


def first_scale(sums: npt.NDArray[np.float64]) -> DrawScale:
    """The scale of the first draw, from sums of weight, slopes and curvatures."""
    slope, curvature = (sums[1:] / (sums[0] or 1.0)).tolist()
    return DrawScale.of_means(slope, curvature, 0.0)


def estimate_of(
    weighing: RowWeighing, parts: Callable[[], Iterable[Part]], scale: DrawScale
) -> WeightEstimate:
    """The weights of some rows at a scale, and how many rows each stands for."""
    weights, counts, bands = [], [], []
    for rows, each in parts():
        weights.append(weighing.weigh(rows, scale)[0])
        counts.append(np.full(len(rows.label), each, np.float32))
        bands.append(rows.label)
    return WeightEstimate(
        np.concatenate(weights), np.concatenate(counts), np.concatenate(bands), scale
    )


def importances(rows: Rows) -> Floats:
    """(n,) the user's weights, or ones."""
    return rows.weight if len(rows.weight) else np.ones(len(rows.label), np.float32)
