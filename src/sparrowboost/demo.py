"""The demonstration: the main job on a data set that comes with the package."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from sparrowboost.build import ingest
from sparrowboost.datasets import write_splice
from sparrowboost.errors import StoreError
from sparrowboost.memory import peak_rss
from sparrowboost.progress import make_progress
from sparrowboost.store import Dataset


@dataclass(frozen=True)
class DemoResult:
    """What the demonstration made, and what it took."""

    dataset: Dataset
    source_bytes: int
    write_seconds: float
    ingest_seconds: float
    peak_bytes: int


def run_demo(*, memory_limit: str, keep: str | None, verbose: int) -> DemoResult:
    """Expand chromosome 21 to a Parquet file and ingest it under a memory limit."""
    with ExitStack() as stack:
        if keep is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sparrow-demo-")))
        else:
            folder = Path(keep)
            if folder.exists():
                raise StoreError(f"{folder}: exists already; choose a folder that does not.")
            folder.mkdir(parents=True)
        start = time.perf_counter()
        with make_progress(verbose) as progress, progress.task("expanding chromosome", None):
            source = write_splice(folder / "splice-train.parquet", "train")
        written = time.perf_counter()
        dataset = ingest(
            source,
            label="y",
            path=folder / "store",
            memory_limit=memory_limit,
            verbose=verbose,
        )
        done = time.perf_counter()
        return DemoResult(
            dataset, source.stat().st_size, written - start, done - written, peak_rss()
        )
