"""Rows that are still being read: training begins with those that are stored already.

The rows come in stages, each a random part of the source. After each stage, the rows stored so far
are a data set of their own.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.progress import Progress, make_progress
from sparrowboost.store.binning import Binning
from sparrowboost.store.dataset import Dataset
from sparrowboost.store.storage import Block
from sparrowboost.store.stored import Layout, open_store


class Expected(NamedTuple):
    """What is known of a data set before its rows are read."""

    binning: Binning
    n_features: int
    n_rows: int  # may be an estimate
    layout: Layout
    n_bands: int
    largest_block: int  # rows, about

    @property
    def weighted(self) -> bool:
        return self.layout.weighted

    @property
    def targeted(self) -> bool:
        return self.layout.targeted

    @property
    def n_classes(self) -> int:
        return 0 if self.targeted else 2

    @property
    def task(self) -> str:
        return "regression" if self.targeted else "classification"

    @property
    def n_extra(self) -> int:
        return self.layout.n_extra


class StagedRows:
    """The storage of ``sparrowboost.ingest(..., wait=False)``: rows that come stage by stage.

    `train` reads the rows while it trains. Anything else that needs more than is known beforehand
    waits until all rows are read.

    Parameters
    ----------
    read : callable
        Reads the rows: yields a data set after each stage, or None as long as all rows have the
        same label or target. It ends early, with an error, when the event that it gets is set.
    stage_rows : (s,) int
        Rows that are stored after each stage; the last is all.
    n_bytes : int
        About what reading takes in memory.
    close : ExitStack
        What is left to do if nothing is read.
    largest_block : int
        About the rows of the largest block.
    """

    def __init__(
        self,
        read: Callable[[Progress, threading.Event], Iterator[Dataset | None]],
        *,
        stage_rows: Sequence[int],
        n_bytes: int,
        close: ExitStack,
        path: Path,
        binning: Binning,
        label_name: str,
        layout: Layout,
        n_bands: int,
        largest_block: int,
        verbose: int,
    ) -> None:
        self._read, self._verbose = read, verbose
        self.stage_rows, self.reading_bytes = list(stage_rows), n_bytes
        self.path, self.binning, self.label_name = path, binning, label_name
        self.layout, self.n_bands, self._largest = layout, n_bands, largest_block
        self.weighted, self.targeted = layout.weighted, layout.targeted
        self._close = weakref.finalize(self, close.close)
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._stages: list[Dataset | None] = []
        self._wanted = 0  # number of the last stage that was asked for
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Lock()  # never released by the thread that reads

    @property
    def in_stages(self) -> bool:
        """Whether training can begin before all rows are read."""
        return len(self.stage_rows) > 1

    @property
    def expected(self) -> Expected:
        """What can be said of all rows without reading them."""
        d, n = self.layout.n_features, self.stage_rows[-1]
        return Expected(self.binning, d, n, self.layout, self.n_bands, self._largest)

    # -- as any storage of blocks; most of it waits for all rows -----------------------------------

    @property
    def summary(self) -> str:
        return f"rows still to be read, features={len(self.binning.features)}"

    @property
    def n_rows(self) -> int:
        # Of a source that is not read in stages, the number may be an estimate.
        return self.stage_rows[-1] if self.in_stages else self.wait().n_rows

    @property
    def largest_block(self) -> int:
        return self._largest if self.in_stages else self.wait().largest_block

    @property
    def classes(self) -> tuple[Any, ...]:
        return self.wait().classes

    @property
    def target_span(self) -> tuple[float, float] | None:
        return self.wait().target_span if self.targeted else None

    @property
    def n_bytes(self) -> int:
        return self.wait().n_bytes

    @property
    def block_rows(self) -> npt.NDArray[np.int64]:
        return self.wait().block_rows

    @property
    def block_label(self) -> npt.NDArray[np.int64]:
        return self.wait().block_label

    def read_block(self, index: int, *, shuffled: bool = True) -> Block:
        return self.wait().read_block(index, shuffled=shuffled)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_store, (self.wait().path,)

    # -- reading ----------------------------------------------------------------------------------

    def start(self, progress: Progress) -> None:
        """Begin to read, in a thread of its own."""
        if self._started.acquire(blocking=False):
            self._thread = threading.Thread(
                target=self._run, args=(progress,), name="sparrow-ingest", daemon=True
            )
            self._thread.start()

    def _run(self, progress: Progress) -> None:
        try:
            with closing(self._read(progress, self._stop)) as stages:  # type: ignore[type-var]
                for dataset in stages:
                    with self._changed:
                        self._stages.append(dataset)
                        self._changed.notify_all()
                        self._changed.wait_for(self._next_is_wanted)
        except BaseException as error:  # raised to all that wait
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _next_is_wanted(self) -> bool:
        done = len(self._stages)
        return self._wanted >= done or done == len(self.stage_rows) or self._stop.is_set()

    def stage(self, number: int) -> Dataset | None:
        """The rows of a stage and those before it; waits until they are stored."""
        with self._changed:
            self._wanted = max(self._wanted, number)
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(self._stages) > number or self._error is not None)
            if len(self._stages) > number:
                return self._stages[number]
            assert self._error is not None
            raise self._error

    def more(self, dataset: Dataset) -> Dataset:
        """The data set of the stage after that of `dataset`; waits until it is stored."""
        after = self._stages.index(dataset) + 1
        return self.stage(min(after, len(self.stage_rows) - 1)) or self.wait()

    def wait(self) -> Dataset:
        """All rows, as a finished data set."""
        if self._started.acquire(blocking=False):
            with make_progress(self._verbose) as progress:
                self._wanted = len(self.stage_rows)
                self._run(progress)
        dataset = self.stage(len(self.stage_rows) - 1)
        assert dataset is not None
        return dataset

    def close(self) -> None:
        """Stop reading, if it has begun and not ended; an unfinished store is removed."""
        with self._changed:
            self._stop.set()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        if self._error is None and len(self._stages) < len(self.stage_rows):
            self._error = DataError("the reading of this data set was stopped; ingest it again.")
        self._close()
