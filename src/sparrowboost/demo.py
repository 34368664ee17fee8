"""The demonstration: ingest, train and predict on a data set that comes with the package."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparrowboost.datasets import write_splice
from sparrowboost.learner.events import Event
from sparrowboost.learner.training import train
from sparrowboost.model.metrics import auc, average_precision
from sparrowboost.model.model import Model
from sparrowboost.runtime.disk import output_path
from sparrowboost.runtime.errors import StoreError
from sparrowboost.runtime.memory import peak_rss, release
from sparrowboost.runtime.progress import make_progress
from sparrowboost.runtime.temporary import TemporaryFolder
from sparrowboost.store.dataset import Dataset
from sparrowboost.store.ingest import ingest

N_ESTIMATORS, MAX_LEAVES, LEARNING_RATE = 150, 4, 0.2


@dataclass(frozen=True)
class DemoResult:
    """What the demonstration produced, and what it cost."""

    dataset: Dataset
    model: Model
    last: Event  # of the training
    n_rules: int
    n_test: int
    n_test_positive: int
    auc: float
    average_precision: float
    source_bytes: int
    write_seconds: float
    ingest_seconds: float
    train_seconds: float
    predict_seconds: float
    peak_bytes: int


def run_demo(*, memory_limit: str, keep: str | None, verbose: int) -> DemoResult:
    """Find splice sites: train on one part of chromosome 21, test on another, in little memory."""
    if keep is None:
        with TemporaryFolder("demo") as name:
            return _run(name, memory_limit, verbose)
    folder = output_path(keep)
    if folder.exists():
        raise StoreError(f"{folder}: exists already; choose a folder that does not.")
    folder.mkdir(parents=True)
    return _run(folder, memory_limit, verbose)


def _run(folder: Path, memory_limit: str, verbose: int) -> DemoResult:
    seconds: dict[str, float] = {}
    with (
        _timed(seconds, "write"),
        make_progress(verbose) as progress,
        progress.task("expanding chromosome", None),
    ):
        source = write_splice(folder / "splice-train.parquet", "train")
        test = write_splice(folder / "splice-test.parquet", "test")
    with _timed(seconds, "ingest"):
        dataset = ingest(
            source,
            label="y",
            path=folder / "store",
            memory_limit=memory_limit,
            verbose=verbose,
        )
        release()
    events: list[Event] = []
    with _timed(seconds, "train"):
        model = train(
            dataset,
            memory_limit=memory_limit,
            callbacks=[events.append],
            verbose=verbose,
            n_estimators=N_ESTIMATORS,
            max_leaves=MAX_LEAVES,
            learning_rate=LEARNING_RATE,
        )
    with _timed(seconds, "predict"):
        score = _predict(model, test, verbose)
    label = _labels(test)
    return DemoResult(
        dataset=dataset,
        model=model,
        last=events[-1],
        n_rules=sum(len(tree.feature) for tree in model.trees),
        n_test=len(label),
        n_test_positive=int(label.sum()),
        auc=auc(label, score),
        average_precision=average_precision(label, score),
        source_bytes=source.stat().st_size,
        **{f"{step}_seconds": of for step, of in seconds.items()},
        peak_bytes=peak_rss(),
    )


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[step] = time.perf_counter() - start


def _predict(model: Model, path: Path, verbose: int) -> np.ndarray:
    scores = []
    with make_progress(verbose) as progress, progress.task("predicting", None) as task:
        for part in model.iter_scores(path):
            scores.append(part)
            task.advance(len(part))
    return np.concatenate(scores)


def _labels(path: Path) -> np.ndarray:
    import pyarrow.parquet as pq

    return np.asarray(pq.read_table(path, columns=["y"]).column(0))
