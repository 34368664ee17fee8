"""What a training starts from: the model before the first new tree, and rows still being read."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparrowboost.learner.params import AUTO, Params
from sparrowboost.learner.planning import TrainPlan, check_training, plan_training
from sparrowboost.model.losses import base_score, base_score_beside, get_loss, half_of
from sparrowboost.model.model import Model, check_model, load_model
from sparrowboost.model.own_loss import OwnLoss
from sparrowboost.model.regression import RegressionLoss, fit_loss
from sparrowboost.model.softmax import softmax_of
from sparrowboost.readers.labels import MAX_WEIGHT
from sparrowboost.runtime.errors import DataError, MemoryLimitError
from sparrowboost.runtime.progress import Progress, log
from sparrowboost.store.dataset import Dataset
from sparrowboost.store.staged import StagedRows
from sparrowboost.store.views import ReweightedRows

FIRST_OF_LABEL = 1_000  # rows of each label that the first stage must have
BASE_BLOCKS = 4  # of each band, from which the constant score for numbers is found
BASE_ROWS = 1 << 18  # of them
SHOWN = 10  # labels in a message
FINE = 0.05  # of a tree's step for an ordinary error: rounding of scores that does no harm
LARGE_SAMPLE = 1 << 20  # rows that must fit in samples beside the reading of the source


def starting_model(
    given: Model | str | os.PathLike[str],
    dataset: Dataset,
    params: Params,
    storage: Mapping[str, Any] | None = None,
) -> Model:
    """The model to go on from; a DataError if it does not suit the data set or the parameters."""
    if isinstance(given, str | os.PathLike):
        model = load_model(given, storage_options=storage)
    else:
        model = given
    check_model(model)
    same = model.binning is dataset.binning
    if not same and model.binning.to_json() != dataset.binning.to_json():
        raise DataError(
            "the data set has other bins than init_model; ingest its rows with bins_of=init_model "
            "(--bins-of)."
        )
    if model.task != dataset.task:
        raise DataError(
            f"init_model is for {model.task}, but the data set is for {dataset.task}; ingest with "
            f"task={model.task!r}."
        )
    if model.loss == OwnLoss.name and not isinstance(params.loss, str):
        return replace(model, own_loss=OwnLoss(params.loss))
    if model.loss == OwnLoss.name and model.own_loss is None:
        raise DataError(
            "init_model was trained with a loss of its own, which its file does not have; pass "
            "that as loss=."
        )
    if (model.offset_name is None) != (dataset.offset_name is None):
        had = model.offset_name is not None
        raise DataError(
            f"init_model was trained {'with' if had else 'without'} offsets, but the data set has "
            f"{'none' if had else 'some'}; ingest its rows as those before."
        )
    if params.loss not in (AUTO, model.loss):
        raise DataError(
            f"loss={params.loss!r}, but init_model was trained with {model.loss!r}; pass that, or "
            "leave loss out."
        )
    for name in ("alpha", "power"):
        option, known = getattr(params, name), model.loss_options.get(name)
        asked = params.loss != AUTO or option != getattr(Params, name)
        if asked and known not in (None, option):
            raise DataError(
                f"{name}={option:g}, but init_model was trained with {name}={known:g}; pass that."
            )
    return model


def check_base_score(model: Model, params: Params) -> None:
    """A DataError if a model to go on from starts from another constant than was asked for."""
    if params.base_score is not None and score_of(params.base_score, model) != model.base_score:
        raise DataError(
            f"base_score={params.base_score!r}, but init_model starts from another one; leave it "
            "out."
        )


def score_of(prediction: float, model: Model) -> float:
    """The score with this prediction; of two classes, the probability of the positive one."""
    loss = model.regression
    if loss is not None:
        return loss.score_of(prediction)
    return base_score(1 - prediction, prediction)


def check_classes(model: Model, dataset: Dataset) -> None:
    """A DataError if a model to go on from has other classes than the data set."""
    if model.classes != dataset.classes:
        raise DataError(
            f"init_model tells {_named(model.classes)} apart, but the data set has "
            f"{_named(dataset.classes)}; labels must be the same."
        )


def _named(classes: tuple[Any, ...]) -> str:
    """Labels for messages: the first ones, if they are many."""
    shown = [*map(repr, classes[:SHOWN]), *(["..."] if len(classes) > SHOWN else [])]
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def start_model(dataset: Dataset, params: Params) -> Model:
    """The model without trees: the constant that was given, or that with the lowest loss."""
    model = best_constant(dataset, params)
    if params.base_score is None:
        return model
    return replace(model, base_score=score_of(params.base_score, model))


def best_constant(dataset: Dataset, params: Params) -> Model:
    """The model without trees: the constant score with the lowest loss, beside the offsets."""
    of, name = (dataset.binning, dataset.classes), dataset.label_name
    offset_name = dataset.offset_name
    if not dataset.targeted:
        base = base_score(*label_weights(dataset))
        if offset_name is not None:
            label, weight, offset = some_rows(dataset)
            rows = label.astype(np.uint8), weight, half_of(offset)
            base = base_score_beside(get_loss(params.loss), *rows)
        return Model(*of, params.loss, base, label_name=name, offset_name=offset_name)
    target, weight, offset = some_rows(dataset)
    softmax = softmax_of(dataset.classes)
    if softmax is not None:
        return Model(*of, softmax.name, softmax.base_scores(target, weight), label_name=name)
    own = None if isinstance(params.loss, str) else OwnLoss(params.loss)
    given = target, weight, None if offset_name is None else offset
    loss = own or fit_loss(params.loss, *given, alpha=params.alpha, power=params.power)
    base = loss.base_score_beside(*given)
    if doubt := doubt_of_rounding(loss, base, *given, params.learning_rate, name):
        log.warning(doubt)
    return Model(*of, loss.name, base, (), name, loss.options, own, offset_name)


def doubt_of_rounding(
    loss: RegressionLoss,
    base: float,
    target: npt.NDArray[np.float32],
    weight: npt.NDArray[np.float32],
    offset: npt.NDArray[np.float32] | None,
    rate: float,
    name: str,
) -> str | None:
    """A warning if labels are so far from 0 that float32 scores there miss the steps of trees."""
    if loss.log_link:
        return None
    error, level, of = target.astype(np.float64), base, "labels"
    if offset is not None:
        error -= offset
        level += float(np.average(offset, weights=weight))
        of = "labels" if abs(base) > abs(level) / 2 else "labels and the offsets"
    error -= np.average(error, weights=weight)
    spread = float(np.sqrt(np.average(np.square(error), weights=weight)))
    rounding = float(np.spacing(np.float32(abs(level))))
    if rounding <= FINE * rate * spread or spread == 0:
        return None
    return (
        f"label {name!r} is near {level:.4g} and varies by only {spread:.2g}: scores, which are "
        f"float32, have steps of {rounding:.2g} there, and steps of trees are lost. Subtract "
        f"{level:.4g} from the {of} before, and add it to predictions."
    )


def check_targets(model: Model, dataset: Dataset) -> None:
    """A DataError if the loss does not allow some of the numbers to predict."""
    if model.regression is not None and dataset.target_span is not None:
        model.regression.check(*dataset.target_span, dataset.label_name)


class SomeRows(NamedTuple):
    """What the constant score is found from."""

    label: npt.NDArray[np.float32]  # (n,) or the number to predict
    weight: npt.NDArray[np.float32]  # (n,) how much each counts
    offset: npt.NDArray[np.float32]  # (n,) or (0,)


def some_rows(dataset: Dataset) -> SomeRows:
    """Up to BASE_ROWS rows; all, if there are not more."""
    bands = [dataset.some_blocks_of(band, BASE_BLOCKS) for band in range(dataset.n_bands)]
    chosen = sum(int(dataset.block_rows[blocks].sum()) for blocks in bands)
    step = -(-chosen // BASE_ROWS)
    labels, weights, offsets = [], [], [np.empty(0, np.float32)]
    for blocks, n_rows in zip(bands, dataset.band_rows.tolist(), strict=True):
        parts = [dataset.read_block(int(block)).part(slice(0, None, step)) for block in blocks]
        each = n_rows / max(sum(len(part.label) for part in parts), 1)
        for part in parts:
            label = part.label.astype(np.float32) if part.target is None else part.target.copy()
            u = np.ones(len(label), np.float32) if part.weight is None else part.weight
            labels.append(label)
            weights.append(np.float32(each) * u)
            if part.offset is not None:
                offsets.append(part.offset.copy())
    weight = np.concatenate(weights)
    if not weight.any():
        raise DataError("the rows have weight 0; there is nothing to learn from.")
    return SomeRows(np.concatenate(labels), weight, np.concatenate(offsets))


def label_weights(dataset: Dataset) -> tuple[float, float]:
    """The total user weight of negatives and of positives; 1 a row without weights."""
    factors: tuple[float, ...] = (1.0, 1.0)
    if isinstance(dataset.storage, ReweightedRows):
        factors, dataset = dataset.storage.factors, dataset.storage.base
    sums = np.array([dataset.n_rows - dataset.n_positive, dataset.n_positive], np.float64)
    if dataset.weighted:
        sums[:] = 0
        heaviest = 0.0
        for block in dataset.blocks():
            label, weight = block.label, block.weight
            assert weight is not None
            sums += np.bincount(label, weight, 2)
            heaviest = max(heaviest, float((weight * np.array(factors)[label]).max(initial=0)))
        if heaviest > MAX_WEIGHT:
            raise DataError(
                f"a row has weight {heaviest:g}, with the weight of its label; it must be at most "
                f"{MAX_WEIGHT:g}."
            )
    sums *= factors
    if not sums.all():
        raise DataError(
            "all rows of one label have weight 0, so that one class is left; there is nothing to "
            "tell apart."
        )
    return float(sums[0]), float(sums[1])


def begin_reading(
    staged: StagedRows,
    params: Params,
    limit: int,
    n_jobs: int,
    valid: Any,
    progress: Progress,
    may_begin: bool,
) -> tuple[Dataset, TrainPlan | None]:
    """Start reading a data set: returns its first stage, and the memory plan meanwhile.

    Where training has to wait, returns all rows and no plan.
    """
    check_training(staged.expected, params, limit, n_jobs, valid)
    division = None
    if may_begin:
        division = plan_while_reading(staged, params, limit, n_jobs, valid)
    staged.start(progress)
    first = staged.stage(0) if division is not None else None
    if first is not None and fewest(first) >= FIRST_OF_LABEL:
        return first, division
    return staged.wait(), None


def plan_while_reading(
    staged: StagedRows, params: Params, limit: int, n_jobs: int, valid: Any
) -> TrainPlan | None:
    """The memory plan of a training that begins before all rows are read, or None."""
    if not staged.in_stages:
        return None
    try:
        plan = plan_training(staged.expected, params, limit, n_jobs, valid, staged.reading_bytes)
    except MemoryLimitError:
        return None
    large = plan.sizes.most >= min(LARGE_SAMPLE, staged.n_rows)
    return plan if large and not plan.sizes.whole else None


def plan_before_reading(
    staged: StagedRows, params: Params, limit: int, n_jobs: int, valid: Any
) -> TrainPlan:
    """The memory plan from what is known of rows before they are read.

    The largest block is of the label that has more rows, at least half of them.
    """
    expected = staged.expected
    try:
        return plan_training(expected, params, limit, n_jobs, valid)
    except MemoryLimitError:
        half = expected._replace(largest_block=math.ceil(expected.largest_block / 2))
        return plan_training(half, params, limit, n_jobs, valid)


def fewest(dataset: Dataset) -> int:
    """Rows of the rarer label; of numbers, all rows."""
    if dataset.targeted:
        return dataset.n_rows
    return min(dataset.n_positive, dataset.n_rows - dataset.n_positive)
