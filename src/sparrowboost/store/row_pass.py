"""The pass over the source in which every row is binned and written to the store."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost import __version__
from sparrowboost.readers.table import AHEAD, CodedBlock, Table, located
from sparrowboost.runtime.budget import NUMBER_BYTES
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.progress import Progress, Task, log
from sparrowboost.runtime.threads import ordered_map
from sparrowboost.store.binning import Binning
from sparrowboost.store.column_pass import BinnedColumns, ColumnPlan
from sparrowboost.store.dataset import Dataset
from sparrowboost.store.drift import DriftMeter
from sparrowboost.store.fold_statistics import RowStatistics
from sparrowboost.store.packing import Packer
from sparrowboost.store.shuffle import Records
from sparrowboost.store.stages import Stage
from sparrowboost.store.writer import StoreWriter

SHOWN_EMPTY = 8  # columns without values whose names are in the warning


@dataclass(frozen=True)
class RowPass:
    """One pass over the source: rows are binned, and put into the store.

    Parameters
    ----------
    table : Table
    binning : Binning
    store : StoreWriter
        Started, and still empty; a context that the caller is in.
    stages : list of Stage
    block_rows : int
        Rows that are binned at once.
    n_jobs : int
        Threads that bin.
    seed : int
        The random state that goes into the manifest.
    columns : ColumnPlan, optional
        How to read columns apart; by default, they are read together.
    meter : DriftMeter, optional
        Compares rows that are appended with those of the store.
    statistics : RowStatistics, optional
        Of the columns of which the binning has any.
    packer : Packer, optional
        Packs rows, if the table is read as one of sparse rows.
    """

    table: Table
    binning: Binning
    store: StoreWriter
    stages: Sequence[Stage]
    block_rows: int
    n_jobs: int
    seed: int
    columns: ColumnPlan | None = None
    meter: DriftMeter | None = None
    statistics: RowStatistics | None = None
    packer: Packer | None = None

    def run(self, progress: Progress, stop: threading.Event) -> Iterator[Dataset | None]:
        """Read all rows: yields the data set after each stage, at last the finished one.

        None stands for a stage after which all rows have the same label or target.
        """
        seen = None if self.packer is not None else SeenValues(self.binning)
        labels, store = self.table.labels, self.store
        with progress.task("binning rows", self.table.source.n_rows) as task:
            with closing(self._fill_store(task, seen, stop)) as stages:
                for _ in stages:
                    store.end_stage()
                    # The reader is ahead of the rows in the store, by how much depends on time.
                    span = store.target_span
                    ready = labels.trainable if span is None else span[0] < span[1]
                    yield store.snapshot(labels.order(), self._about()) if ready else None
            store.end_stage()
            order = labels.order()
            if seen is not None:
                seen.warn_of_empty()
            if self.packer is not None:
                self.packer.finish()
            if self.meter is None:
                yield store.finish(order, self._about())
                return
            about = self._about()
            appended = self.meter.measure(about["source"], about.get("class_rows"))
            dataset = store.finish(order, {**about, "appended": appended.to_json()})
            appended.warn(dataset.label_name)
            yield dataset

    def _about(self) -> dict[str, Any]:
        """What the manifest says of the source."""
        return {
            "label": self.table.label.name,
            **({} if self.table.offset is None else {"offset": self.table.offset.name}),
            "classes": self.table.labels.classes,
            **self.table.labels.facts,
            "source": self.table.source.name,
            "random_state": self.seed,
            "sparrowboost": __version__,
        }

    def _fill_store(
        self, task: Task, seen: SeenValues | None, stop: threading.Event
    ) -> Generator[None]:
        """Bin all rows and put them into the store; yields after each stage but the last."""
        only = [number for stage in self.stages for number in stage.only or ()] or None
        ends = [stage.n_rows for stage in self.stages] if only else []
        read = None
        if self.columns is not None:
            names, scratch = list(self.table.features), self.store.scratch
            source = self.table.source
            read = BinnedColumns(
                source, self.binning, names, self.columns, scratch, statistics=self.statistics
            ).blocks
        with (
            closing(self.table.blocks(self.block_rows, only, read)) as blocks,
            closing(ordered_map(self._bin, blocks, self.n_jobs, self.n_jobs + AHEAD)) as results,
        ):
            for records, codes, tails in results:
                if self.packer is not None and tails is not None:
                    self.packer.take(records[:, : self.store.layout.bin_bytes], *tails)
                self.store.put(records, codes)
                task.advance(len(records), records.nbytes)
                if seen is not None:
                    seen.add(records)
                if self.meter is not None:
                    self.meter.add(records, codes)
                if stop.is_set():
                    raise DataError("ingest was stopped.")
                if ends:
                    ends[0] -= len(records)
                    if ends[0] == 0:  # no block is in two stages
                        del ends[0]
                        if ends:
                            yield
        if ends:
            name = self.table.source.name
            raise DataError(f"{name}: has fewer rows than it says; write it again.")

    def _bin(self, block: CodedBlock) -> tuple[Records, npt.NDArray[np.uint8], Any]:
        """A block as records, its label codes or bands, and the tails of packed rows."""
        layout = self.store.layout
        records = np.empty((len(block.codes), layout.row_bytes), np.uint8)
        rows = None
        if self.statistics is not None:
            rows = self.statistics.of_rows(self.binning, block.row, len(block.codes))
        bins, tails = records[:, : layout.bin_bytes], None
        if self.packer is not None:
            batch: Any = block.batch
            tails = self.packer.pack(batch, bins)
        else:
            with located(self.table.source, block.row):  # of bins that were found in other rows
                self.binning.apply(block.batch, bins, rows)
        at = layout.bin_bytes
        for numbers in (block.weights, block.offsets, block.targets):
            if numbers is not None:
                records[:, at : at + NUMBER_BYTES] = numbers[:, None].view(np.uint8)
                at += NUMBER_BYTES
        return records, block.codes, tails


class SeenValues:
    """Which columns have any value so far."""

    def __init__(self, binning: Binning) -> None:
        self._names = binning.names
        self._missing = binning.n_bins.astype(np.uint8) - 1
        self._seen = np.zeros(len(self._names), bool)

    def add(self, records: Records) -> None:
        if not self._seen.all():
            unseen = np.flatnonzero(~self._seen)
            self._seen[unseen] = (records[:, unseen] != self._missing[unseen]).any(0)

    def warn_of_empty(self) -> None:
        """Warn of columns without any value: no tree can use them, and they may be a mistake."""
        empty = [name for name, seen in zip(self._names, self._seen, strict=True) if not seen]
        if empty:
            more = f" and {len(empty) - SHOWN_EMPTY} more" if len(empty) > SHOWN_EMPTY else ""
            log.warning("no values, all missing: %s%s", ", ".join(empty[:SHOWN_EMPTY]), more)
