"""The rows of a table on their way to the store: read once, or once more if labels surprise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

from sparrowboost.readers.labels import OtherClassesError
from sparrowboost.readers.table import Table
from sparrowboost.runtime.progress import Progress, log
from sparrowboost.store.binning import Binning
from sparrowboost.store.dataset import Dataset
from sparrowboost.store.drift import DriftMeter
from sparrowboost.store.fold_statistics import RowStatistics
from sparrowboost.store.label_sample import LabelSample, read_as_classes, read_as_two
from sparrowboost.store.packing import Packer, Packing
from sparrowboost.store.plan import IngestPlan, layout_of
from sparrowboost.store.row_pass import RowPass
from sparrowboost.store.stages import Stage, all_rows
from sparrowboost.store.storage import check_offset, task_of_classes
from sparrowboost.store.stored import Layout
from sparrowboost.store.writer import StoreWriter

MAX_BLOCK_ROWS = 65_536


class Expected(NamedTuple):
    """What is known of a data set before its rows are read."""

    binning: Binning
    n_features: int
    n_rows: int  # may be an estimate
    layout: Layout
    n_bands: int
    largest_block: int  # rows, about
    n_classes: int  # in a sample, if there are more than two; 0 of numbers
    offset_name: str | None = None
    packing: Packing | None = None

    @property
    def weighted(self) -> bool:
        return self.layout.weighted

    @property
    def targeted(self) -> bool:
        return self.layout.targeted

    @property
    def task(self) -> str:
        return task_of_classes(self.n_classes)

    @property
    def n_extra(self) -> int:
        return self.weighted + self.targeted


@dataclass
class Reading:
    """Reads the rows of a table, and has them binned and put into a store.

    A sample of the labels tells how many classes there are. Where rows that are read then have
    others, all rows are read again, once.

    Parameters
    ----------
    table : Table
    binning : Binning
    store : StoreWriter
    plan : IngestPlan
    stages : list of Stage
    sample : LabelSample
        Of the labels of this table.
    row_bytes : float
        Of a row as it is read.
    seed : int
    meter : DriftMeter, optional
        Of rows that are appended to a store.
    statistics : RowStatistics, optional
    packing : Packing, optional
        How rows are packed, if the table is read as one of sparse rows.
    """

    table: Table
    binning: Binning
    store: StoreWriter
    plan: IngestPlan
    stages: list[Stage]
    sample: LabelSample
    row_bytes: float
    seed: int
    meter: DriftMeter | None = None
    statistics: RowStatistics | None = None
    packing: Packing | None = None

    def __post_init__(self) -> None:
        self._start(self.stages)

    def _start(self, stages: list[Stage]) -> None:
        """Prepare a pass over the rows."""
        table, labels, plan = self.table, self.table.labels, self.plan
        check_offset(table.offset is not None, labels.n_classes)
        packed_bytes = None if self.packing is None else self.packing.width
        self.store.start(
            self.binning,
            layout_of(table, len(self.binning.features), packed_bytes),
            n_rows=table.source.n_rows,
            stage_rows=max(stage.n_rows for stage in stages),
            memory=plan.shuffle_bytes,
            seed=self.seed,
            n_bands=labels.n_bands,
            largest_share=labels.largest_share,
            packing=self.packing,
        )
        packer = None
        if self.packing is not None:
            packer = Packer(self.packing, self.binning.column_names, table.source.name)
        row_bytes = self.row_bytes
        if plan.columns is not None:
            row_bytes = 2.0 * len(self.binning.features)  # bins by column, and by row
        rows = plan.block_rows(row_bytes, MAX_BLOCK_ROWS)
        of = table, self.binning, self.store, stages, rows
        more = plan.columns, self.meter, self.statistics, packer
        self._pass = RowPass(*of, plan.n_jobs, self.seed, *more)

    @property
    def expected(self) -> Expected:
        """What can be said of all rows without reading them."""
        layout, labels = self.store.layout, self.table.labels
        n_rows = sum(stage.n_rows for stage in self.stages)
        of = self.binning, layout.n_features, n_rows, layout
        offset = None if self.table.offset is None else self.table.offset.name
        known = labels.n_bands, self.store.block_rows, labels.n_classes, offset
        return Expected(*of, *known, self.packing)

    def run(
        self,
        progress: Progress,
        stop: threading.Event,
        forget: Callable[[OtherClassesError], None],
    ) -> Iterator[Dataset | None]:
        """Yield the data set after each stage, or None as long as all rows have the same label.

        Before the rows are read again, `forget` is called to drop what was yielded. It raises the
        error that it gets if that is in use already.
        """
        with self.store:
            try:
                yield from self._pass.run(progress, stop)
                return
            except OtherClassesError as error:
                forget(error)
                many = error.many
            if many:
                read_as_classes(self.table, self.sample)
            else:
                read_as_two(self.table)
            what = "more classes than" if many else "two classes, unlike"
            name = self.table.label.name
            log.info("label %r has %s a sample of it: all rows are read again", name, what)
            self._start([all_rows(self.table.source)])
            yield from repeat(None, len(self.stages) - 1)
            yield from self._pass.run(progress, stop)
