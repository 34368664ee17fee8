"""scikit-learn's HistGradientBoostingClassifier, all rows in memory.

It calls nobody back: when a tree is there is read off the lines that it prints.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

import measure
import peers
import tables
from contestants import Job

BEGINS, TREE = "Fitting gradient boosted rounds", "max depth = "  # what it prints


class TimeOverError(Exception):
    """It has grown trees for as long as it may."""


class Listener(io.TextIOBase):
    """Notes when a text that tells of the first round, or of a tree, is printed."""

    def __init__(self, clock: peers.Clock, seconds: float) -> None:
        self.clock, self.limit = clock, seconds
        self.loaded = 0.0
        self.at: list[float] = []

    def write(self, text: str) -> int:
        if BEGINS in text:
            self.loaded = self.clock.seconds()
        if TREE in text:
            self.at.append(self.clock.seconds())
            if self.at[-1] >= self.limit:
                raise TimeOverError
        return len(text)


def train(job: Job, **options: Any) -> peers.Trained:
    names = tables.feature_names(job.table)
    model = HistGradientBoostingClassifier(
        learning_rate=job.rate,
        max_iter=job.trees,
        max_leaf_nodes=job.leaves,
        categorical_features=[names.index(name) for name in job.categorical] or None,
        early_stopping=False,
        random_state=job.seed,
        verbose=2,  # a line for each tree
        **job.options,
        **options,
    )
    clock = peers.Clock()
    listener = Listener(clock, job.seconds)
    X, y = tables.read_matrix(job.table, np.float32), tables.read_labels(job.table)
    try:
        with redirect_stdout(listener):
            model.fit(X, y)
    except TimeOverError:
        pass  # the trees so far are a model
    return peers.Trained(
        model=model,
        at=listener.at,
        load_seconds=listener.loaded,
        seconds=clock.seconds(),
        peak_rss_mb=measure.peak_rss_mb(),
    )


def save(model: HistGradientBoostingClassifier, path: Path) -> None:
    path.write_bytes(pickle.dumps(model))


def load(path: Path) -> HistGradientBoostingClassifier:
    return pickle.loads(path.read_bytes())


def log_odds(
    model: HistGradientBoostingClassifier, test: tables.Test, trees: Sequence[int]
) -> Iterator[np.ndarray]:
    X = tables.read_matrix(test.path, np.float32)
    for n, scores in enumerate(model.staged_decision_function(X), 1):
        if n in trees:
            yield scores
