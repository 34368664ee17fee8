"""A data set whose rows are still being read: training begins with those that are there.

The rows come in stages, each of random stretches of the source. A stage that is stored is a data
set of its own, and holds those before it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.progress import Progress, make_progress
from sparrowboost.store.binning import Binning
from sparrowboost.store.dataset import Dataset

# What a data set has that is not known before all rows are read.
LATER = frozenset(
    ("classes", "n_rows", "n_positive", "block_rows", "block_label",
     "_blocks", "_layout", "_manifest", "_rows", "_seed")
)  # fmt: skip


class Expected(NamedTuple):
    """What is known of a data set before its rows are read."""

    binning: Binning
    n_features: int
    n_rows: int  # an estimate, maybe
    weighted: bool
    largest_block: int  # about its rows


class StagedDataset(Dataset):
    """A data set that comes stage by stage; made by ``sparrowboost.ingest(..., wait=False)``.

    `train` reads the rows while it trains. Whoever else asks for more than is known beforehand
    waits until all rows are read, and has a data set like any other then.

    Parameters
    ----------
    read : callable
        Reads the rows: gives a data set after each stage, or None as long as rows of one label only
        have come. It ends early, with an error, when the event that it gets is set.
    stage_rows : (s,) int
        Rows that are there after each stage; the last is all.
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
        weighted: bool,
        largest_block: int,
        verbose: int,
    ) -> None:
        # No super().__init__: there is no manifest yet.
        self._read, self._verbose = read, verbose
        self.stage_rows, self.reading_bytes = list(stage_rows), n_bytes
        self.path, self.binning, self.label_name = path, binning, label_name
        self.weighted, self._largest = weighted, largest_block
        if self.staged:  # else their number is but an estimate, maybe
            self.n_rows = self.stage_rows[-1]
        self._close = weakref.finalize(self, close.close)
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._stages: list[Dataset | None] = []
        self._wanted = 0  # number of the last stage that was asked for
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._begun = threading.Lock()  # held for good by who reads

    @property
    def staged(self) -> bool:
        """Whether rows can be trained on before all have come."""
        return len(self.stage_rows) > 1

    @property
    def n_features(self) -> int:
        return len(self.binning.features)

    @property
    def largest_block(self) -> int:
        return self._largest if self.staged else super().largest_block

    @property
    def expected(self) -> Expected:
        """What can be said of all rows without reading them."""
        n_rows = self.stage_rows[-1]
        return Expected(self.binning, self.n_features, n_rows, self.weighted, self._largest)

    def __repr__(self) -> str:
        return f"StagedDataset({str(self.path)!r}, features={self.n_features})"

    def __getattr__(self, name: str) -> Any:
        """What is not known before all rows are read."""
        if name not in LATER or "_stages" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.wait(), name)

    def __reduce__(self) -> tuple[Any, ...]:
        return Dataset, (self.wait().path,)

    def start(self, progress: Progress) -> None:
        """Begin to read, in a thread of its own."""
        if self._begun.acquire(blocking=False):
            self._thread = threading.Thread(
                target=self._run, args=(progress,), name="sparrow-arrive", daemon=True
            )
            self._thread.start()

    def _run(self, progress: Progress) -> None:
        try:
            with closing(self._read(progress, self._stop)) as stages:  # type: ignore[type-var]
                for dataset in stages:
                    with self._changed:
                        self._stages.append(dataset)
                        self._changed.notify_all()
                        self._changed.wait_for(self._asked_for_more)
        except BaseException as error:  # told to whoever waits
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _asked_for_more(self) -> bool:
        done = len(self._stages)
        return self._wanted >= done or done == len(self.stage_rows) or self._stop.is_set()

    def stage(self, number: int) -> Dataset | None:
        """The rows of a stage and those before it; waits until they have come."""
        with self._changed:
            self._wanted = max(self._wanted, number)
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(self._stages) > number or self._error is not None)
            if len(self._stages) > number:
                return self._stages[number]
            assert self._error is not None
            raise self._error

    def more(self, dataset: Dataset) -> Dataset:
        """What there is one stage after a data set of these; waits until it is there."""
        after = self._stages.index(dataset) + 1
        return self.stage(min(after, len(self.stage_rows) - 1)) or self.wait()

    def wait(self) -> Dataset:
        """All rows, as a finished data set."""
        if self._begun.acquire(blocking=False):
            with make_progress(self._verbose) as progress:
                self._wanted = len(self.stage_rows)
                self._run(progress)
        dataset = self.stage(len(self.stage_rows) - 1)
        assert dataset is not None
        return dataset

    def close(self) -> None:
        """Stop reading, if it is under way; an unfinished store is removed."""
        with self._changed:
            self._stop.set()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        if self._error is None and len(self._stages) < len(self.stage_rows):
            self._error = DataError("the reading of this data set was stopped; ingest it again.")
        self._close()
