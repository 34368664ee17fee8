"""Sparrow, from the file, in the memory that it is given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import peers
import sparrowboost
from contestants import Job
from tables import Test


def train(job: Job, **options: Any) -> peers.Trained:
    return peers.train_sparrow(
        job.table,
        job.scratch,
        memory_limit=job.memory,
        seconds=job.seconds,
        categorical=job.categorical,
        random_state=job.seed,
        n_estimators=job.trees,
        learning_rate=job.rate,
        max_leaves=job.leaves,
        **job.options,
        **options,
    )


def save(model: sparrowboost.Model, path: Path) -> None:
    model.save_model(path)


def load(path: Path) -> sparrowboost.Model:
    return sparrowboost.load_model(path)


def log_odds(model: sparrowboost.Model, test: Test, trees: Sequence[int]) -> Iterator[np.ndarray]:
    rows = pq.read_table(test.path)
    for n in trees:
        yield peers.sparrow_log_odds(model, rows, n)
