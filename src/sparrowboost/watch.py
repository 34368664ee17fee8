"""Validation: rows aside, scored after each tree, and the tree at which they were scored best."""

from __future__ import annotations

import math
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.binning import Binning
from sparrowboost.errors import DataError
from sparrowboost.kernels.scores import apply_trees
from sparrowboost.metrics import auc, exponential_loss, log_loss
from sparrowboost.model import Model
from sparrowboost.predict import BLOCK_ROWS, reading
from sparrowboost.table import open_table

FALLS = {"log_loss": True, "exponential_loss": True, "auc": False}  # whether less is better


class Watch:
    """Validation rows in memory, with their scores.

    Parameters
    ----------
    valid : source, or (source, labels)
        Anything that `ingest` reads. Without labels of its own, its label column has the name that
        the training data's had.
    model : Model
        Before its first tree.
    label_name : str
    metric : str
        By which the best tree is found.
    most_bytes : int
        Of more rows than fit, every second (fourth, ...) one is used.
    """

    def __init__(
        self, valid: Any, model: Model, label_name: str, metric: str, most_bytes: int
    ) -> None:
        self._metric = metric
        self.best_score = math.inf if FALLS[metric] else -math.inf
        self.best_trees = 0
        self._bins, self._label = _load(valid, model.binning, model.classes, label_name, most_bytes)
        if metric == "auc" and not 0 < self._label.sum() < len(self._label):
            raise DataError(
                f"the validation data has one label only ({model.classes[int(self._label[0])]!r}), "
                "of which no AUC can be told; pass rows of both, or eval_metric='log_loss'."
            )
        self._score = np.full(len(self._label), model.base_score, np.float32)
        self._seen = 0

    @property
    def n_rows(self) -> int:
        return len(self._label)

    def look(self, model: Model) -> dict[str, float]:
        """Scores under the model as it is now; remembers the best."""
        apply_trees(self._bins, *model.forest.arrays, self._seen, model.n_trees, self._score)
        self._seen = model.n_trees
        scores = {
            "log_loss": log_loss(self._label, self._score),
            "exponential_loss": exponential_loss(self._label, self._score),
        }
        if self._metric == "auc":  # needs sorting: not for nothing
            scores["auc"] = auc(self._label, self._score)
        value = scores[self._metric]
        if (value < self.best_score) if FALLS[self._metric] else (value > self.best_score):
            self.best_score, self.best_trees = value, model.n_trees
        return scores


def _load(
    valid: Any, binning: Binning, classes: tuple[Any, Any], label_name: str, most_bytes: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    data, label = valid if isinstance(valid, tuple) else (valid, label_name)
    most_rows = max(BLOCK_ROWS, most_bytes // (len(binning.features) + 1 + 4 + 16))
    parts: list[tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]] = []
    step, n, row = 1, 0, 0
    with tempfile.TemporaryDirectory(prefix="sparrow-valid-") as scratch:
        table = open_table(
            data,
            reading(binning, Path(scratch)),
            label=label,
            weight=None,
            positive=classes[1],
            columns=binning.names,
            exclude=(),
        )
        with closing(table.blocks(BLOCK_ROWS)) as blocks:
            for block in blocks:
                bins = np.empty((len(block.codes), len(binning.features)), np.uint8)
                binning.apply(block.batch, bins)
                kept = slice(-row % step, None, step)
                parts.append((bins[kept].copy(), block.codes[kept].copy()))
                row += len(block.codes)
                n += len(parts[-1][1])
                if n > most_rows:
                    step *= 2
                    bins = np.concatenate([bins for bins, _ in parts])[::2]
                    codes = np.concatenate([codes for _, codes in parts])[::2]
                    parts = [(bins.copy(), codes.copy())]
                    n = len(codes)
    strange = sorted(map(str, table.labels.others - {classes[0]}))
    if classes[0] is not None and strange:
        raise DataError(
            f"{table.source.name}: label {strange[0]!r} of the validation data is none of the "
            f"training data's, {classes[0]!r} and {classes[1]!r}."
        )
    return np.concatenate([b for b, _ in parts]), np.concatenate([c for _, c in parts])
