"""Validation rows: scored after each tree, and the number of trees with the best score."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.kernels.metrics import add_losses
from sparrowboost.model.forest import add_rounds
from sparrowboost.model.labelled import parts_of, read_labelled
from sparrowboost.model.losses import MAX_MARGIN
from sparrowboost.model.metrics import Given, find_metric, regression_scores
from sparrowboost.model.model import Model
from sparrowboost.model.predict import BLOCK_ROWS, BlockBudget
from sparrowboost.readers.formats import has_sparse_rows
from sparrowboost.readers.inputs import is_files
from sparrowboost.readers.options import ReadOptions
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.threads import WorkerPool
from sparrowboost.store.dataset import Block, Dataset
from sparrowboost.store.ingest import ingest
from sparrowboost.store.packing import has_numbers
from sparrowboost.store.sparse import MIN_COLUMNS

VALIDATION_SHARE = 8  # of the memory limit, for validation rows
PART_ROWS = 1 << 14  # scored by one thread at a time; sums do not depend on which
NO_WEIGHT = np.empty(0, np.float32)
RANK_BYTES = 80  # of a row while a metric ranks: its rank, cumulated sums


def validation_row_bytes(n_features: int, metric: Given, n_scores: int = 1) -> int:
    """Bytes of a validation row: bins, label, weight, scores, and memory for the metric."""
    of_metric = find_metric(metric)
    work = RANK_BYTES * (of_metric.ranks or of_metric.own)
    if n_scores > 1:  # a target; and where the metric needs them, probabilities
        work += 4 + 8 * n_scores * (of_metric.ranks or of_metric.own)
    targets = 4 * (of_metric.regression or of_metric.own)
    return n_features + 1 + 4 + 4 * n_scores + work + targets


def sets_of(valid: Any) -> list[Any]:
    """The validation sets that were passed: a list of anything but paths has several."""
    if not isinstance(valid, list) or is_files(valid):
        return [] if valid is None else [valid]
    if not valid or any(each is None for each in valid):
        raise DataError(
            "the list of validation sets is empty or has None in it; pass None instead of a list "
            "for no validation data."
        )
    return valid


def make_validation(
    valid: Any,
    model: Model,
    metric: Given,
    max_bytes: int,
    class_weight: tuple[float, ...] | None,
    workers: WorkerPool,
    read: ReadOptions,
    budget: BlockBudget | None = None,
) -> Validation | ValidationSets:
    """The validation rows of a training, of one or of several sets, which share the memory."""
    sets = sets_of(valid)
    known = all(isinstance(each, Dataset) for each in sets)
    sizes = [each.n_rows if known else 1 for each in sets]
    how = class_weight, workers, read, budget
    loaded = [
        Validation(each, model, metric, max_bytes * size // sum(sizes), *how)
        for each, size in zip(sets, sizes, strict=True)
    ]
    return loaded[0] if len(loaded) == 1 else ValidationSets(loaded)


class Validation:
    """Validation rows in memory, with their scores.

    Parameters
    ----------
    valid : Dataset, source, or (source, labels[, weights[, offsets]])
        A view of the training data, or anything that `ingest` reads. The labels of a source alone
        are in the column with the name of the training data's label column.
    model : Model
        Before its first tree.
    metric : str
        The metric that selects the best number of trees.
    max_bytes : int
        If the rows do not fit, every second (fourth, ...) one is used.
    class_weight : (classes,) float, optional
        Factors of the weights of the rows of each class.
    workers : WorkerPool, optional
        Threads that share the work; by default, the caller does all of it.
    read : ReadOptions, optional
        How to read files.
    budget : BlockBudget, optional
        What reading may take; by default, what it takes.
    """

    def __init__(
        self,
        valid: Any,
        model: Model,
        metric: Given,
        max_bytes: int,
        class_weight: tuple[float, ...] | None = None,
        workers: WorkerPool | None = None,
        read: ReadOptions | None = None,
        budget: BlockBudget | None = None,
    ) -> None:
        self._loss, self._softmax, self._workers = model.regression, model.softmax, workers
        self._metric = find_metric(metric, regression=self._loss is not None)
        self.best_score = self._metric.worst
        self.best_trees = 0
        if not isinstance(valid, Dataset):
            valid = as_packed(valid, model, read or ReadOptions(), budget)
        packing = self._packing = valid.packing if isinstance(valid, Dataset) else None
        width = len(model.binning.features) if packing is None else packing.width
        row_bytes = validation_row_bytes(width, metric, model.n_scores)
        max_rows = max(BLOCK_ROWS, max_bytes // row_bytes)
        if isinstance(valid, Dataset):
            blocks = _stored(valid, model, max_rows)
        else:
            blocks = read_labelled(valid, model, read or ReadOptions(), budget)
        rows = _load(blocks, max_rows)
        self._bins, self._label, self._weight = rows.bins, rows.label, rows.weight
        self._target = rows.target
        self._middle = 0.0 if rows.target is None else float(rows.target.mean(dtype=np.float64))
        # Which of the classes a row has; of numbers, their band.
        label = self._label
        if self._softmax is not None and rows.target is not None:
            label = rows.target.astype(np.uint8)
        if class_weight is not None:
            factor = np.array(class_weight, np.float32)[label]
            self._weight = factor if self._weight is None else factor * self._weight
        sums = np.bincount(label, self._weight, max(2, len(model.classes)))
        if not sums.any() or not len(label):
            raise DataError("all rows of the validation data have weight 0; pass positive weights.")
        if self._metric.ranks and np.count_nonzero(sums) < 2:
            raise DataError(
                f"the validation data has only one label ({model.classes[int(sums.argmax())]!r}), "
                f"for which {self._metric.title} is undefined; pass rows of others, too, or "
                "eval_metric='log_loss'."
            )
        if metric == "r2" and rows.target is not None and np.ptp(rows.target) == 0:
            raise DataError(
                f"all labels of the validation data are {rows.target[0]:g}, for which R2 is "
                "undefined; pass other rows, or eval_metric='rmse'."
            )
        self._score = np.ascontiguousarray(model.start_scores(len(self._label), rows.offset).T)
        self._seen = 0

    other_scores: tuple[dict[str, float], ...] = ()  # of sets that decide nothing

    def state(self) -> dict[str, Any]:
        return {"watch": np.array((self.best_score, self.best_trees))}

    def restore(self, state: Mapping[str, Any]) -> None:
        score, trees = state["watch"].tolist()
        self.best_score, self.best_trees = score, int(trees)

    @property
    def best(self) -> dict[str, Any]:
        """What `TreeAdded` says of the best score."""
        return {
            "eval_metric": self._metric.name,
            "best_score": self.best_score,
            "best_trees": self.best_trees,
        }

    @property
    def n_rows(self) -> int:
        return len(self._label)

    def look(self, model: Model) -> dict[str, float]:
        """Scores under the current model; remembers the best."""
        starts = range(0, self.n_rows, PART_ROWS)
        totals = np.zeros((len(starts), 3 if self._loss is None else 6))
        jobs = [
            partial(self._look_at, slice(start, start + PART_ROWS), model, total)
            for start, total in zip(starts, totals, strict=True)
        ]
        if self._workers is not None:
            self._workers.run(jobs)
        else:
            for job in jobs:
                job()
        self._seen = model.n_trees
        metric = self._metric
        scores = self._scores_of(totals.sum(0))
        if metric.own or metric.name not in scores:
            of = self._label if self._target is None else self._target
            own = {} if self._loss is None else {"loss": self._loss}
            scores[metric.name] = metric.compute(of, self._score.T, self._weight, **own)
        value = scores[metric.name]
        if math.isnan(value):
            raise DataError(
                f"{metric.title} of the validation data is NaN after {model.n_trees} trees, "
                "which is no score; pass another eval_metric, or other rows."
            )
        if metric.better(value, self.best_score):
            self.best_score, self.best_trees = value, model.n_trees
        return scores

    def _scores_of(self, sums: npt.NDArray[np.float64]) -> dict[str, float]:
        """The metrics that follow from sums over the rows."""
        if self._loss is not None:
            return regression_scores(sums)
        weight, log_loss, other = sums.tolist()
        name = "exponential_loss" if self._softmax is None else "accuracy"
        return {"log_loss": log_loss / weight, name: other / weight}

    def _look_at(self, rows: slice, model: Model, total: npt.NDArray[np.float64]) -> None:
        """Update the scores of some rows, and add up their losses."""
        score = self._score[..., rows]
        trees = self._seen, model.n_trees
        add_rounds(model.forest.arrays, self._bins[rows], *trees, score, self._packing)
        weight = NO_WEIGHT if self._weight is None else self._weight[rows]
        if self._target is None:
            add_losses(self._label[rows], score, weight, MAX_MARGIN, total)
        elif self._softmax is not None:
            self._softmax.add_losses(self._target[rows], score, weight, total)
        elif self._loss is not None:
            self._loss.add_losses(self._target[rows], score, weight, self._middle, total)


class ValidationSets:
    """Several validation sets: all are scored, and the last one decides, as in XGBoost.

    Nothing but the best score of the last one depends on trees that were seen before, so that it
    alone has a state.
    """

    def __init__(self, sets: list[Validation]) -> None:
        self._sets, self._last = sets, sets[-1]
        self.other_scores: tuple[dict[str, float], ...] = ()

    def state(self) -> dict[str, Any]:
        return self._last.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._last.restore(state)

    @property
    def best(self) -> dict[str, Any]:
        return self._last.best

    @property
    def best_trees(self) -> int:
        return self._last.best_trees

    def look(self, model: Model) -> dict[str, float]:
        """The scores of the last set; `other_scores` then has those of the others."""
        self.other_scores = tuple(each.look(model) for each in self._sets[:-1])
        return self._last.look(model)


def as_packed(valid: Any, model: Model, read: ReadOptions, budget: BlockBudget | None) -> Any:
    """Sparse rows for a model of many features as a data set with its bins; others as they are."""
    data, label, weight, offset = parts_of(valid, model.label_name)
    binning = model.binning
    if len(binning.columns) < MIN_COLUMNS or not all(map(has_numbers, binning.columns)):
        return valid
    if not has_sparse_rows(data, read):
        return valid
    if offset is None and model.offset_name is not None:
        offset = model.offset_name
    return ingest(
        data,
        label=label,
        weight=weight,
        offset=offset,
        positive=model.classes[1] if model.classes and model.classes[0] is None else None,
        bins_of=model,
        memory_limit=None if budget is None else budget.limit,
        verbose=0,
        format=read.format,
        storage_options=read.storage_options,
    )


def _load(blocks: Iterator[Block], max_rows: int) -> Block:
    """All rows, or every second (fourth, ...) one if there are too many."""
    parts: list[Block] = []
    step, n, row = 1, 0, 0
    for block in blocks:
        parts.append(_every(step, block, -row % step))
        row += len(block.label)
        n += len(parts[-1].label)
        if n > max_rows:
            step *= 2
            parts = [_joined(parts, 2)]
            n = len(parts[0].label)
    return _joined(parts, 1)


def _every(step: int, block: Block, start: int = 0) -> Block:
    """Every step-th row, copied so that the others can be freed."""
    kept = block.part(slice(start, None, step))
    return Block._make(None if part is None else part.copy() for part in kept)


def _joined(parts: list[Block], step: int) -> Block:
    """Every step-th row of all parts; each part is freed once copied."""
    n = -(-sum(len(part.label) for part in parts) // step)
    bins, label = np.empty((n, parts[0].bins.shape[1]), np.uint8), np.empty(n, np.uint8)
    weight = None if parts[0].weight is None else np.empty(n, np.float32)
    target = None if parts[0].target is None else np.empty(n, np.float32)
    offset = None if parts[0].offset is None else np.empty(n, np.float32)
    at = row = 0
    parts.reverse()
    while parts:
        part = parts.pop()
        kept = slice(-row % step, None, step)
        row += len(part.label)
        to = slice(at, at + len(part.label[kept]))
        bins[to], label[to] = part.bins[kept], part.label[kept]
        if weight is not None and part.weight is not None:
            weight[to] = part.weight[kept]
        if target is not None and part.target is not None:
            target[to] = part.target[kept]
        if offset is not None and part.offset is not None:
            offset[to] = part.offset[kept]
        at = to.stop
    return Block(bins, label, weight, target, offset)


def _stored(data: Dataset, model: Model, max_rows: int) -> Iterator[Block]:
    """Binned rows; those of a label are in random order, so the first ones will do."""
    if (data.offset_name is None) != (model.offset_name is None):
        has, have = ("offsets", "none") if model.offset_name is None else ("no offsets", "some")
        raise DataError(
            f"{data.path}: the validation data has {has}, and the training data has {have}; "
            "ingest both alike."
        )
    same = data.binning is model.binning or data.binning.to_json() == model.binning.to_json()
    if not same or data.classes != model.classes or data.task != model.task:
        raise DataError(
            f"{data.path}: the validation data was ingested separately, so its bins or labels "
            "differ from the training data's; pass its source, or a part of the training data "
            "(sparrowboost.views.split)."
        )
    share = min(1.0, max_rows / data.n_rows)
    for band in range(data.n_bands):
        blocks = data.mixed_blocks_of(band)
        left = max(1, int(share * data.block_rows[blocks].sum()))
        for index in blocks:
            if left <= 0:
                break
            block = data.read_block(index)
            yield block.part(slice(left))
            left -= len(block.label)
