"""How good a model of more than two classes is on labelled rows, which are read once."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.model.metrics import area, mean_precision
from sparrowboost.model.model import Model
from sparrowboost.model.softmax import class_probabilities
from sparrowboost.runtime.errors import DataError
from sparrowboost.store.dataset import Block

CELLS = 1 << 20  # log odds are rounded to these to rank rows: 16 MB for all classes together
MOST_CELLS = 1 << 16  # of one class: a rank is wrong for odds that differ by less than 0.1 %
MAX_ODDS = 30.0  # logarithm: beyond it, probabilities differ from 0 and 1 by less than 1e-13
PARTS = 10  # of the probability, for the calibration error

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ClassScores:
    """How good a model is at one class.

    Attributes
    ----------
    label : the class
    weight : float
        Rows of it, or their weight.
    precision, recall : float
        Of the rows predicted to be of it, the share that are; of those that are, the share
        predicted so. NaN where there are no such rows.
    auc, average_precision : float
        Of its probability, against all other classes; NaN where no row is of it, or all are.
    predicted : float
        The mean of its probability, which should be `observed`, its share of the rows.
    """

    label: Any
    weight: float
    precision: float
    recall: float
    auc: float
    average_precision: float
    predicted: float
    observed: float


@dataclass(frozen=True)
class ClassEvaluation:
    """How good a model of more than two classes is; weighted over the rows.

    Attributes
    ----------
    n_rows : int
    log_loss : float
    accuracy : float
        Share of the rows whose class is predicted.
    balanced_accuracy : float
        Mean of the recall of the classes that have rows.
    auc, average_precision : float
        Means over the classes that have rows, each against the rest. Scores are rounded to a
        thousandth of the odds.
    brier : float
        Sum over the classes of the squared error of the probability, as in scikit-learn.
    calibration_error : float
        Mean over the rows of the absolute difference between the probability of the predicted class
        and the share of rows for which it is right, in tenths of that probability.
    classes : tuple of ClassScores
    confusion : tuple of tuples of float
        Weight of the rows of each class (first) for which each class is predicted (second).
    """

    n_rows: int
    log_loss: float
    accuracy: float
    balanced_accuracy: float
    auc: float
    average_precision: float
    brier: float
    calibration_error: float
    classes: tuple[ClassScores, ...]
    confusion: tuple[tuple[float, ...], ...]

    def to_json(self) -> dict[str, Any]:
        """All fields for `json.dump`; NaN becomes None."""
        return to_json(self)


def to_json(evaluation: Any) -> dict[str, Any]:
    """The fields of an evaluation, and those of its parts; NaN becomes None."""
    made: dict[str, Any] = _no_nan(asdict(evaluation))
    return made


def _no_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _no_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_no_nan(item) for item in value]
    return None if isinstance(value, float) and value != value else value


class ClassSums:
    """Sums over the rows."""

    def __init__(self, classes: tuple[Any, ...]) -> None:
        k = len(classes)
        self.n_rows = 0
        self._classes = classes
        self._cells = min(MOST_CELLS, CELLS // k)
        self._ranks = np.zeros((k, 2, self._cells))  # weight of others and own rows by odds
        self._confusion = np.zeros((k, k))
        self._parts = np.zeros((3, PARTS))  # weight, probability and right, of the predicted class
        self._predicted = np.zeros(k)
        self._totals = np.zeros(2)  # log loss, brier

    def add(self, block: Block, model: Model) -> None:
        assert block.target is not None
        n, k = len(block.target), len(self._classes)
        label = block.target.astype(np.intp)
        w = np.ones(n) if block.weight is None else block.weight.astype(np.float64)
        p = class_probabilities(model.score(block.bins))
        best, own = p.argmax(axis=1), p[np.arange(n), label]
        self.n_rows += n
        self._confusion += np.bincount(label * k + best, w, k * k).reshape(k, k)
        self._predicted += w @ p
        squares = np.square(p).sum(axis=1) - 2 * own + 1
        self._totals += w @ -np.log(np.maximum(own, np.finfo(np.float64).tiny)), w @ squares
        top = p[np.arange(n), best]
        part = np.minimum((top * PARTS).astype(int), PARTS - 1)
        for sums, values in zip(self._parts, (w, w * top, w * (best == label)), strict=True):
            sums += np.bincount(part, values, PARTS)
        for number, rank in enumerate(self._ranks):
            cell = self._cell_of(p[:, number]) + self._cells * (label == number)
            rank += np.bincount(cell, w, 2 * self._cells).reshape(2, -1)

    def _cell_of(self, p: Floats) -> npt.NDArray[np.int64]:
        """(n,) cells of probabilities, by their log odds."""
        with np.errstate(divide="ignore"):
            odds = np.clip(np.log(p) - np.log1p(-p), -MAX_ODDS, MAX_ODDS)
        return ((odds / MAX_ODDS + 1) / 2 * (self._cells - 1)).astype(np.int64)

    def result(self) -> ClassEvaluation:
        total = float(self._confusion.sum())
        if total == 0:
            raise DataError("all rows to evaluate have weight 0; pass some with a positive weight.")
        log_loss, brier = (self._totals / total).tolist()
        weight, sure, right = self._parts
        classes = tuple(self._scores_of(number, total) for number in range(len(self._classes)))
        there = [scores for scores in classes if scores.weight > 0]
        means = {
            name: float(np.mean([getattr(scores, name) for scores in there]))
            for name in ("recall", "auc", "average_precision")
        }
        return ClassEvaluation(
            n_rows=self.n_rows,
            log_loss=log_loss,
            accuracy=float(np.trace(self._confusion)) / total,
            balanced_accuracy=means["recall"],
            auc=means["auc"],
            average_precision=means["average_precision"],
            brier=brier,
            calibration_error=float(np.abs(sure - right).sum() / weight.sum()),
            classes=classes,
            confusion=tuple(map(tuple, self._confusion.tolist())),
        )

    def _scores_of(self, number: int, total: float) -> ClassScores:
        confusion = self._confusion
        own, right = float(confusion[number].sum()), float(confusion[number, number])
        chosen = float(confusion[:, number].sum())
        others, owns = np.cumsum(self._ranks[number, :, ::-1], axis=1)
        return ClassScores(
            label=self._classes[number],
            weight=own,
            precision=right / chosen if chosen else float("nan"),
            recall=right / own if own else float("nan"),
            auc=area(owns, others),
            average_precision=mean_precision(owns, others),
            predicted=float(self._predicted[number]) / total,
            observed=own / total,
        )
