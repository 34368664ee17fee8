"""How good a model is on labelled rows of any number, which are read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.model.class_evaluation import ClassEvaluation, ClassSums, to_json
from sparrowboost.model.labelled import read_labelled
from sparrowboost.model.losses import MAX_MARGIN, probability
from sparrowboost.model.metrics import (
    area,
    margins,
    mean_precision,
    regression_scores,
    regression_sums,
    row_exponential_loss,
    row_log_loss,
)
from sparrowboost.model.model import Model, check_model
from sparrowboost.model.predict import BlockBudget, lean_for, load_kernels
from sparrowboost.model.regression import RegressionLoss, quantile
from sparrowboost.readers.options import ReadOptions
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.memory import apply_limit, release
from sparrowboost.runtime.progress import make_progress
from sparrowboost.runtime.threads import prefetch
from sparrowboost.store.dataset import Block

CELLS = 1 << 20  # scores are rounded to these to rank rows: 16 MB for any number of rows
RESULT_BYTES = 7 * 8 * CELLS  # the cells of both labels, their sums, and the areas
CELL_BITS = 12  # of a float32 that do not tell its cell: 2**20 cells, each 0.05 % wide
PARTS = 10  # rows of the calibration table
AHEAD = 2


@dataclass(frozen=True)
class CalibrationPart:
    """Rows with a predicted probability in [low, high), and their mean label."""

    low: float
    high: float
    weight: float
    predicted: float
    observed: float


@dataclass(frozen=True)
class Evaluation:
    """How good a model is.

    Attributes
    ----------
    n_rows, n_positive : int
    auc, average_precision : float
        Scores are rounded to a millionth of their range; NaN if all rows have the same label.
    log_loss, exponential_loss, brier : float
        Weighted means over the rows.
    accuracy : float
        Share of rows whose label is predicted correctly.
    calibration_error : float
        Mean over the rows of the absolute difference between the predicted and the observed
        probability of their part.
    calibration : tuple of CalibrationPart
        Tenths of the predicted probability; parts without rows are left out.
    """

    n_rows: int
    n_positive: int
    auc: float
    average_precision: float
    log_loss: float
    exponential_loss: float
    brier: float
    accuracy: float
    calibration_error: float
    calibration: tuple[CalibrationPart, ...]

    def to_json(self) -> dict[str, Any]:
        """All fields for `json.dump`; NaN becomes None."""
        return to_json(self)


@dataclass(frozen=True)
class RegressionEvaluation:
    """How good a model of numbers is; weighted over the rows.

    Attributes
    ----------
    n_rows : int
    rmse, mae : float
        Root of the mean squared error, mean absolute error.
    r2 : float
        Share of the labels' variance that predictions explain; NaN if all labels are the same.
    loss : float
        Mean of the model's own loss, which is 0 for a perfect prediction: half the deviance for
        "poisson", "gamma" and "tweedie", half the squared error for "squared_error".
    mean_label, mean_prediction : float
    median_label : float
        Rounded towards 0 to 12 binary digits: exact for integers up to 4,096, otherwise to 0.05 %.
    """

    n_rows: int
    rmse: float
    mae: float
    r2: float
    loss: float
    mean_label: float
    mean_prediction: float
    median_label: float

    def to_json(self) -> dict[str, Any]:
        """All fields for `json.dump`; NaN becomes None."""
        return to_json(self)


def evaluate(
    model: Model,
    data: Any,
    *,
    label: Any = None,
    weight: Any = None,
    offset: Any = None,
    header: bool = True,
    format: str | None = None,
    delimiter: str | None = None,
    decimal: str = ".",
    thousands: str | None = None,
    date_format: str | Sequence[str] | None = None,
    table_version: int | str | None = None,
    as_of: str | datetime | None = None,
    storage_options: Mapping[str, Any] | None = None,
    memory_limit: int | float | str | None = None,
    verbose: int = 1,
) -> Evaluation | RegressionEvaluation | ClassEvaluation:
    """Score labelled rows, in bounded memory.

    Parameters
    ----------
    model : Model
    data : anything that `ingest` reads
    label : column name, or array, optional
        Default: the column with the name of the training data's label column.
    weight : like label, optional
    offset : as in `Model.decision_function`
    header, format, delimiter, decimal, thousands, date_format, storage_options : as in `ingest`
    table_version, as_of : as in `ingest`
    memory_limit : int or str, optional
        Peak memory of the process, such as "512MB"; a limit that is too small is refused before any
        row is read. Default: no limit, and blocks of 16,384 rows.
    verbose : int
        0 is silent; 1 shows progress.

    Returns
    -------
    Evaluation
        Or RegressionEvaluation, of a model of numbers, and ClassEvaluation of more than
        two classes.

    Examples
    --------
    >>> import sparrowboost
    >>> X = np.arange(200.0).reshape(100, 2)
    >>> ds = sparrowboost.ingest(X, label=X[:, 0] > 80, verbose=0)
    >>> model = sparrowboost.train(ds, n_estimators=20, verbose=0)
    >>> result = sparrowboost.evaluate(model, X, label=X[:, 0] > 80, verbose=0)
    >>> result.n_rows, result.auc, result.accuracy
    (100, 1.0, 1.0)
    """
    check_model(model)
    read = ReadOptions(
        header=header,
        format=format,
        delimiter=delimiter,
        decimal=decimal,
        thousands=thousands,
        date_format=date_format,
        table_version=table_version,
        as_of=as_of,
        storage_options=storage_options,
    )
    label = model.label_name if label is None else label
    model, limit = lean_for(model, data), None
    if memory_limit is not None:
        limit = apply_limit(memory_limit)
        load_kernels(model)
        release()
    sums: _Sums | _NumberSums | ClassSums = _Sums()
    if model.softmax is not None:
        sums = ClassSums(model.classes)
    elif model.regression is not None:
        sums = _NumberSums(model.regression)
    budget = BlockBudget(limit, 1, {"results": RESULT_BYTES})
    blocks = read_labelled((data, label, weight, offset), model, read, budget)
    with (
        make_progress(verbose) as progress,
        progress.task("evaluating", None) as task,
        closing(prefetch(blocks, AHEAD)) as ahead,
    ):
        for block in ahead:
            sums.add(block, model)
            task.advance(len(block.label))
    if sums.n_rows == 0:
        raise DataError("there are no rows to evaluate.")
    return sums.result()


class _Sums:
    """Sums over the rows."""

    def __init__(self) -> None:
        self.n_rows = self.n_positive = 0
        self._ranks = np.zeros((2, CELLS))  # weight of each label by score
        self._parts = np.zeros((3, PARTS))  # weight, predicted and observed by probability
        self._totals = np.zeros(5)  # weight, log loss, exponential loss, brier, correct

    def add(self, block: Block, model: Model) -> None:
        bins, label, weight = block.bins, block.label, block.weight
        score = model.score(bins, block.offset)
        w = np.ones(len(label)) if weight is None else weight.astype(np.float64)
        positive = label == 1
        self.n_rows += len(label)
        self.n_positive += int(positive.sum())
        p, margin = probability(score), margins(label, score)
        self._totals += (
            w.sum(),
            w @ row_log_loss(margin),
            w @ row_exponential_loss(margin),
            w @ np.square(p - positive),
            w @ ((score > 0) == positive),
        )
        scaled = np.clip(score, -MAX_MARGIN, MAX_MARGIN).astype(np.float64) / MAX_MARGIN
        cell = ((scaled + 1) / 2 * (CELLS - 1)).astype(np.int64)
        for y in (0, 1):
            rows = label == y
            self._ranks[y] += np.bincount(cell[rows], w[rows], CELLS)
        part = np.minimum((p * PARTS).astype(int), PARTS - 1)
        for sums, values in zip(self._parts, (w, w * p, w * positive), strict=True):
            sums += np.bincount(part, values, PARTS)

    def result(self) -> Evaluation:
        total, log_loss, exponential_loss, brier, correct = self._totals.tolist()
        if total == 0:
            raise DataError("all rows to evaluate have weight 0; pass some with a positive weight.")
        negatives, positives = np.cumsum(self._ranks[:, ::-1], axis=1)
        parts = []
        for k, (w, predicted, observed) in enumerate(self._parts.T.tolist()):
            if w:
                edges = (k / PARTS, (k + 1) / PARTS)
                parts.append(CalibrationPart(*edges, w, predicted / w, observed / w))
        return Evaluation(
            n_rows=self.n_rows,
            n_positive=self.n_positive,
            auc=area(positives, negatives),
            average_precision=mean_precision(positives, negatives),
            log_loss=log_loss / total,
            exponential_loss=exponential_loss / total,
            brier=brier / total,
            accuracy=correct / total,
            calibration_error=sum(p.weight * abs(p.predicted - p.observed) for p in parts) / total,
            calibration=tuple(parts),
        )


class _NumberSums:
    """Sums over the rows of a model of numbers."""

    def __init__(self, loss: RegressionLoss) -> None:
        self.n_rows = 0
        self._loss = loss
        self._middle: float | None = None  # near the mean label
        self._sums = np.zeros(6)
        self._predicted = 0.0
        self._cells = np.zeros(1 << 32 - CELL_BITS)  # weight by label

    def add(self, block: Block, model: Model) -> None:
        y, weight = block.target, block.weight
        assert y is not None
        if self._middle is None:
            self._middle = float(y.mean(dtype=np.float64))
        score = model.score(block.bins, block.offset)
        self.n_rows += len(y)
        self._sums += regression_sums(y, score, self._loss, weight, self._middle)
        w = np.ones(len(y)) if weight is None else weight.astype(np.float64)
        self._predicted += float(w @ self._loss.predictions(score).astype(np.float64))
        self._cells += np.bincount(_cell_of(y), w, len(self._cells))

    def result(self) -> RegressionEvaluation:
        total = float(self._sums[0])
        if total == 0:
            raise DataError("all rows to evaluate have weight 0; pass some with a positive weight.")
        scores = regression_scores(self._sums)
        used = np.flatnonzero(self._cells)
        return RegressionEvaluation(
            n_rows=self.n_rows,
            **scores,
            mean_label=(self._middle or 0.0) + float(self._sums[4]) / total,
            mean_prediction=self._predicted / total,
            median_label=quantile(_cell_values(used), self._cells[used], 0.5),
        )


def _cell_of(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """(n,) cells of numbers, in the order of these: their bits without the last."""
    bits = numbers.view(np.uint32)
    ordered = np.where(bits >> 31, ~bits, bits | 1 << 31)
    return (ordered >> CELL_BITS).astype(np.int64)


def _cell_values(cells: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """(n,) the number nearest to 0 in each cell.

    Examples
    --------
    >>> _cell_values(_cell_of(np.array([-3.7, 0, 17, 1e6], np.float32))).tolist()
    [-3.69921875, 0.0, 17.0, 999936.0]
    """
    ordered = (cells << CELL_BITS).astype(np.uint32)
    ends = ~(ordered | (1 << CELL_BITS) - 1)
    return np.where(ordered >> 31, ordered & ~np.uint32(1 << 31), ends).view(np.float32)
