"""Rows that are still being read: training begins with those that are stored already.

The rows come in stages, each a random part of the source. After each stage, the rows stored so far
are a data set of their own.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.readers.labels import OtherClassesError
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.progress import Progress, make_progress
from sparrowboost.store.appended import Appended
from sparrowboost.store.dataset import Dataset
from sparrowboost.store.packing import Packing
from sparrowboost.store.reading import Expected, Reading
from sparrowboost.store.storage import Block
from sparrowboost.store.stored import open_store


class StagedRows:
    """The storage of ``sparrowboost.ingest(..., wait=False)``: rows that come stage by stage.

    `train` reads the rows while it trains. Anything else that needs more than is known beforehand
    waits until all rows are read.

    Parameters
    ----------
    reading : Reading
        Reads the rows.
    close : ExitStack
        What is left to do if nothing is read.
    verbose : int
        As of `ingest`.

    Attributes
    ----------
    stage_rows : (s,) int
        Rows that are stored after each stage; the last is all.
    reading_bytes : int
        About what reading takes in memory.
    """

    def __init__(self, reading: Reading, *, close: ExitStack, verbose: int) -> None:
        self._reading, self._verbose = reading, verbose
        self.stage_rows = np.cumsum([stage.n_rows for stage in reading.stages]).tolist()
        self.reading_bytes = reading.plan.n_bytes
        self.path, self.binning = reading.store.path, reading.binning
        self.label_name, self.weighted = reading.table.label.name, reading.store.layout.weighted
        self.offset_name = reading.expected.offset_name
        self._in_use = False  # whether anyone has a stage but the last
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
    def known(self) -> bool:
        """Whether all that a memory plan depends on is known before any row is read."""
        return self._reading.table.source.exact_rows

    @property
    def expected(self) -> Expected:
        """What can be said of all rows without reading them."""
        return self._reading.expected

    # -- as any storage of blocks; most of it waits for all rows -----------------------------------

    @property
    def packing(self) -> Packing | None:
        return self.expected.packing

    @property
    def task(self) -> str:
        return self.expected.task

    @property
    def targeted(self) -> bool:
        return self.expected.targeted

    @property
    def n_bands(self) -> int:
        return self.expected.n_bands

    @property
    def summary(self) -> str:
        return f"rows still to be read, features={len(self.binning.features)}"

    @property
    def n_rows(self) -> int:
        # Of a source that is not read in stages, the number may be an estimate.
        return self.stage_rows[-1] if self.in_stages else self.wait().n_rows

    @property
    def largest_block(self) -> int:
        return self.expected.largest_block if self.in_stages else self.wait().largest_block

    @property
    def classes(self) -> tuple[Any, ...]:
        return self.wait().classes

    @property
    def n_classes(self) -> int:
        return self.expected.n_classes

    @property
    def class_rows(self) -> npt.NDArray[np.int64]:
        return self.wait().class_rows

    @property
    def class_band(self) -> npt.NDArray[np.int64]:
        return self.wait().storage.class_band

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

    @property
    def segment_ends(self) -> npt.NDArray[np.int64]:
        return self.wait().segment_ends

    @property
    def appended(self) -> tuple[Appended, ...]:
        return self.wait().appended

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
            read = self._reading.run(progress, self._stop, self._forget)
            with closing(read) as stages:  # type: ignore[type-var]
                for dataset in stages:
                    with self._changed:
                        self._stages.append(dataset)
                        self._changed.notify_all()
                        self._changed.wait_for(self._next_is_wanted)
        except BaseException as error:  # raised to all that wait
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _forget(self, error: OtherClassesError) -> None:
        """Drop the stages so far, since all rows are read again."""
        with self._changed:
            if self._in_use:
                raise error
            self._stages.clear()

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
                self._in_use |= self._stages[number] is not None
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
