"""Sends the events of a training to callbacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sparrowboost.learner.events import Callback, Event, SampleDrawn, TreeAdded
from sparrowboost.learner.scanner import Scanner
from sparrowboost.learner.soundness import label_deviation
from sparrowboost.model.model import Model
from sparrowboost.runtime.progress import Task, log
from sparrowboost.sampling.lookback import LookBack
from sparrowboost.sampling.sampler import Sampler
from sparrowboost.sampling.strata import sum_strata


class Notifier:
    """Sends events to callbacks."""

    def __init__(self, listeners: list[Callback], scanner: Scanner, sampler: Sampler) -> None:
        self._listeners, self._scanner, self._sampler = listeners, scanner, sampler
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds of training, including those before a crash."""
        return time.perf_counter() - self._start

    def state(self) -> dict[str, Any]:
        return {"seconds": np.array(self.seconds)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._start = time.perf_counter() - float(state["seconds"])

    def tell_sample(self, at: Model, /, reason: str, look: LookBack | None) -> bool:
        """Report that a sample was put in use, and how good the last trees are on it."""
        sample = self._scanner.sample
        strata, deviation = {}, (0.0, 0.0)
        if not sample.whole:
            strata = sum_strata(sample.w / sample.copies, sample.w)
            deviation = label_deviation(sample.copies, sample.label, self._sampler.band_rows)
        return self.tell(
            SampleDrawn, at, reason=reason, strata=strata, look=look, label_deviation=deviation
        )

    def tell(self, kind: Callable[..., Event], at: Model, /, **more: Any) -> bool:
        """Send an event of this kind; whether a callback wants training to stop."""
        counts, sample = self._sampler.counts, self._scanner.sample
        event = kind(
            n_trees=at.n_trees,
            seconds=self.seconds,
            rows_scanned=self._scanner.rows_scanned,
            rows_read=counts.rows_read,
            rows_kept=counts.rows_kept,
            n_samples=counts.n_samples,
            bytes_read=counts.bytes_read,
            sample_rows=sample.n,
            n_eff=sample.n_eff,
            **more,
        )
        log.debug("event=%s", event)
        answers = [listener(event) for listener in self._listeners]
        return any(isinstance(answer, bool | np.bool_) and answer for answer in answers)


class Bar:
    """A callback that advances the progress bar, and shows the validation score."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __call__(self, event: Event) -> None:
        if isinstance(event, TreeAdded):
            if event.eval_metric is not None:
                now = event.scores[event.eval_metric]
                assert event.best_score is not None and event.best_trees is not None
                self._task.score(event.eval_metric, now, event.best_score, event.best_trees)
            self._task.advance(1)
