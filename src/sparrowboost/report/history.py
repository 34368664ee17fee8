"""The history of a training: its events, as columns of numbers."""

from __future__ import annotations

import math
from typing import Any, Self

from sparrowboost.learner.events import Event, Finished, SampleDrawn, TreeAdded
from sparrowboost.learner.soundness import DEVIATIONS
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.memory import peak_rss

Scores = dict[str, list[float]]

FORMAT = "sparrow-history"
VERSION = 2  # version 1 had no looks back and no deviations

TREES = (
    "n_trees", "seconds", "gamma", "gamma_certified", "n_eff", "sample_rows", "rows_scanned",
    "rows_read", "bytes_read", "n_rules", "n_proved", "run_rows",
)  # fmt: skip
LOOKS = {  # column: what it is in a LookBack
    "look_trees": "n_trees", "own": "own", "fresh": "fresh", "error": "error",
    "gamma": "gamma", "gamma_certified": "gamma_certified", "gamma_fresh": "gamma_fresh",
}  # fmt: skip
SAMPLES = ("n_trees", "seconds", "reason", "rows", "n_eff", "strata", *DEVIATIONS, *LOOKS)
TOTALS = (
    "n_trees", "seconds", "rows_scanned", "rows_read", "rows_kept", "n_samples", "bytes_read",
)  # fmt: skip


class History:
    """A callback that records how training goes: numbers only, no model.

    It is cleared when another training begins. Columns have one entry per tree or sample, so
    ``pandas.DataFrame(history.trees)`` is a table.

    Attributes
    ----------
    trees : dict of str to list
        For each tree: n_trees, seconds, gamma, gamma_certified, n_eff, sample_rows, rows_scanned,
        rows_read, bytes_read, n_rules, n_proved, run_rows; see `sparrowboost.events`.
    scores : dict of str to list
        For each tree, the scores on the validation data; empty if there is none. Of several sets,
        those on the last one, which decides.
    other_scores : list of dict of str to list
        The scores on the other sets.
    samples : dict of str to list
        For each sample: n_trees and seconds when it was put in use, reason, rows, n_eff, strata;
        its label_deviation as deviation_negative and deviation_positive; look_trees, the number of
        earlier trees that its rows check; own, fresh, error, gamma, gamma_certified, gamma_fresh,
        as in `LookBack` (`sampling/lookback.py`). None where it does not look back.
    task, eval_metric : str or None
        "classification" or "regression", and the metric that decides; None before the first tree,
        and the metric without validation data.
    totals : dict
        Of the last event: n_trees, seconds, rows_scanned, rows_read, rows_kept, n_samples,
        bytes_read; and peak_bytes, the peak memory of the process.
    reason : str or None
        Why training ended; None before that.

    Examples
    --------
    >>> import numpy as np, sparrowboost
    >>> X = np.random.default_rng(0).normal(size=(1000, 3))
    >>> ds = sparrowboost.ingest(X, label=X[:, 0] > 0, verbose=0)
    >>> history = sparrowboost.History()
    >>> model = sparrowboost.train(
    ...     ds, n_estimators=3, valid=(X, X[:, 0] > 0), callbacks=[history], verbose=0
    ... )
    >>> history
    History(3 trees, 1 sample, reason='n_estimators')
    >>> history.trees["rows_scanned"]
    [1000, 2000, 3000]
    >>> [round(loss, 2) for loss in history.evals_result["valid"]["log_loss"]]
    [0.59, 0.52, 0.45]
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.trees: dict[str, list[Any]] = {name: [] for name in TREES}
        self.samples: dict[str, list[Any]] = {name: [] for name in SAMPLES}
        self.scores: dict[str, list[float]] = {}
        self.other_scores: list[dict[str, list[float]]] = []
        self.task: str | None = None
        self.n_classes: int | None = None
        self.eval_metric: str | None = None
        self.totals: dict[str, Any] = {}
        self.reason: str | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, SampleDrawn):
            if event.n_samples == 1:
                self._clear()
            self._add_sample(event)
        elif isinstance(event, TreeAdded):
            self.task, self.eval_metric = event.model.task, event.eval_metric
            self.n_classes = len(event.model.classes)
            for name, column in self.trees.items():
                column.append(getattr(event, name))
            for name, score in event.scores.items():
                self.scores.setdefault(name, []).append(score)
            self.other_scores += [{} for _ in event.other_scores[len(self.other_scores) :]]
            for columns, scores in zip(self.other_scores, event.other_scores, strict=True):
                for name, score in scores.items():
                    columns.setdefault(name, []).append(score)
        elif isinstance(event, Finished):
            self.reason = event.reason
        self.totals |= {name: getattr(event, name) for name in TOTALS}
        if not isinstance(event, TreeAdded):  # asking may take longer than a tree
            self.totals["peak_bytes"] = peak_rss()

    def _add_sample(self, event: SampleDrawn) -> None:
        row = (event.n_trees, event.seconds, event.reason, event.sample_rows, event.n_eff)
        look = [None if event.look is None else getattr(event.look, of) for of in LOOKS.values()]
        values = (*row, dict(event.strata), *event.label_deviation, *look)
        for column, value in zip(self.samples.values(), values, strict=True):
            column.append(value)

    @property
    def evals_result(self) -> dict[str, dict[str, list[float]]]:
        """``{"valid": {"log_loss": [...], ...}}``, one score per tree; {} without validation.

        Several validation sets are ``valid_0``, ``valid_1``, ..., in their order.
        """
        if not self.other_scores:
            return {"valid": self.scores} if self.scores else {}
        return {f"valid_{k}": of for k, of in enumerate((*self.other_scores, self.scores))}

    def to_json(self) -> dict[str, Any]:
        """The history as numbers, strings, lists and dicts, for `json.dump`."""
        strata = [{str(k): w for k, w in of.items()} for of in self.samples["strata"]]
        return {
            "format": FORMAT,
            "version": VERSION,
            "trees": {name: list(column) for name, column in self.trees.items()},
            "task": self.task,
            "n_classes": self.n_classes,
            "eval_metric": self.eval_metric,
            "scores": _without_nan(self.scores),
            "other_scores": [_without_nan(scores) for scores in self.other_scores],
            "samples": {name: list(column) for name, column in self.samples.items()}
            | {"strata": strata},
            "totals": dict(self.totals),
            "reason": self.reason,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The history that `to_json` returned."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise DataError("this is not the history of a training; pass what to_json returned.")
        if data["version"] not in range(1, VERSION + 1):
            raise DataError(
                f"the history has version {data['version']}, this Sparrow reads up to {VERSION}; "
                "use the Sparrow that wrote it, or a newer one."
            )
        self = cls()
        self.trees = {name: list(data["trees"][name]) for name in TREES}
        self.scores = _with_nan(data["scores"])
        # What follows is not in histories of earlier versions.
        self.other_scores = [_with_nan(scores) for scores in data.get("other_scores", [])]
        self.task, self.eval_metric = data.get("task"), data.get("eval_metric")
        self.n_classes = data.get("n_classes", 0 if self.task == "regression" else None)
        samples = data["samples"]
        if data["version"] == 1:
            nothing = [None] * len(samples["n_trees"])
            samples = samples | dict.fromkeys((*DEVIATIONS, *LOOKS), nothing)
        self.samples = {name: list(samples[name]) for name in SAMPLES}
        self.samples["strata"] = [
            {int(k): w for k, w in of.items()} for of in self.samples["strata"]
        ]
        self.totals, self.reason = dict(data["totals"]), data["reason"]
        return self

    def __repr__(self) -> str:
        trees, samples = len(self.trees["n_trees"]), len(self.samples["n_trees"])
        return (
            f"History({trees} {'tree' if trees == 1 else 'trees'}, "
            f"{samples} {'sample' if samples == 1 else 'samples'}, reason={self.reason!r})"
        )


def _without_nan(scores: Scores) -> dict[str, list[float | None]]:
    """Scores for JSON, which has no NaN: R2 is undefined if all labels are the same."""
    return {
        name: [None if math.isnan(value) else value for value in column]
        for name, column in scores.items()
    }


def _with_nan(scores: dict[str, list[float | None]]) -> Scores:
    return {
        name: [math.nan if value is None else value for value in column]
        for name, column in scores.items()
    }
