"""The demonstration: the main job on a data set that comes with the package."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparrowboost.datasets import write_splice
from sparrowboost.learner.events import Event
from sparrowboost.learner.training import train
from sparrowboost.model.metrics import auc, average_precision
from sparrowboost.model.model import Model
from sparrowboost.runtime.errors import StoreError
from sparrowboost.runtime.memory import peak_rss, release
from sparrowboost.runtime.progress import make_progress
from sparrowboost.store.dataset import Dataset
from sparrowboost.store.ingest import ingest

N_ESTIMATORS, MAX_LEAVES, LEARNING_RATE = 150, 4, 0.2


@dataclass(frozen=True)
class DemoResult:
    """What the demonstration made, and what it took."""

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
    with ExitStack() as stack:
        if keep is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sparrow-demo-")))
        else:
            folder = Path(keep)
            if folder.exists():
                raise StoreError(f"{folder}: exists already; choose a folder that does not.")
            folder.mkdir(parents=True)
        marks = [time.perf_counter()]
        with make_progress(verbose) as progress, progress.task("expanding chromosome", None):
            source = write_splice(folder / "splice-train.parquet", "train")
            test = write_splice(folder / "splice-test.parquet", "test")
        marks.append(time.perf_counter())
        dataset = ingest(
            source,
            label="y",
            path=folder / "store",
            memory_limit=memory_limit,
            verbose=verbose,
        )
        release()
        marks.append(time.perf_counter())
        events: list[Event] = []
        model = train(
            dataset,
            memory_limit=memory_limit,
            callbacks=[events.append],
            verbose=verbose,
            n_estimators=N_ESTIMATORS,
            max_leaves=MAX_LEAVES,
            learning_rate=LEARNING_RATE,
        )
        marks.append(time.perf_counter())
        with make_progress(verbose) as progress, progress.task("predicting", None) as task:
            scores = []
            for part in model.iter_scores(test):
                scores.append(part)
                task.advance(len(part))
        marks.append(time.perf_counter())
        label, score = _labels(test), np.concatenate(scores)
        write, read, fit, predict = np.diff(marks)
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
            write_seconds=write,
            ingest_seconds=read,
            train_seconds=fit,
            predict_seconds=predict,
            peak_bytes=peak_rss(),
        )


def _labels(path: Path) -> np.ndarray:
    import pyarrow.parquet as pq

    return np.asarray(pq.read_table(path, columns=["y"]).column(0))
