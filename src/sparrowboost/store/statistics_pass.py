"""The pass over labels and columns of many categories, in which their statistics are made.

It comes before the pass over all columns, which needs them for every row.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.readers.classes import ClassReader
from sparrowboost.readers.formats import Kind
from sparrowboost.readers.known_labels import ModelClasses
from sparrowboost.readers.labels import LabelReader, OtherClassesError
from sparrowboost.readers.table import CodedBlock, Table
from sparrowboost.readers.targets import TargetReader
from sparrowboost.runtime.memory import release
from sparrowboost.runtime.progress import Progress, Task, log
from sparrowboost.store.bin_finder import find_thresholds
from sparrowboost.store.binning import Binning
from sparrowboost.store.category_statistics import CategoryStatistics, CodedWords
from sparrowboost.store.fold_statistics import (
    MAX_MEANS,
    FoldedStatistics,
    FoldSums,
    RowStatistics,
    category_bytes,
    folds_of,
    kept_categories,
    share_out,
)
from sparrowboost.store.label_sample import LabelSample, read_as_classes, read_as_two
from sparrowboost.store.plan import IngestPlan
from sparrowboost.store.text_check import ALL_DIFFER, ID_ROWS

BLOCK_ROWS = 16_384
LIMIT_SHARE = 8  # of the memory limit, for the sums of all columns
# Of a column, the least as a mean. A model file has 10 bytes for each, as text 14.
MIN_CATEGORIES, MAX_CATEGORIES = 4_000, 2_000_000
# By which means of the same rows may differ. Extreme numbers are cut off, where a sample says so.
MEAN_SLACK, CLIP_SLACK = 1e-9, 0.01  # the latter of the range that is left

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Means:
    """What statistics are means of."""

    names: list[str]  # of the means
    values: Callable[[CodedBlock], list[npt.NDArray[Any]]]  # of each row of a block
    flips: bool = False  # whether it may turn out that 0 and 1 stand for the other class

    def of(self, block: CodedBlock) -> Floats:
        """(1 + k, n) weights of rows, and their product with the values."""
        weights = np.ones(len(block.codes))
        if block.weights is not None:
            weights = block.weights.astype(np.float64)
        return np.stack([weights, *(weights * value for value in self.values(block))])


def make_statistics(
    binning: Binning,
    columns: Sequence[str],
    table: Table,
    sample: LabelSample,
    plan: IngestPlan,
    limit: int,
    seed: int,
    progress: Progress,
) -> tuple[Binning, RowStatistics | None]:
    """The binning with the statistics of some columns, and these statistics for the table's rows.

    Labels that differ from their sample change how the table's labels are read.
    """
    if not columns:
        return binning, None
    made = StatisticsPass(columns, table, sample, plan, limit, seed).run(progress)
    release()
    if not made:
        return binning, None
    taken = {*binning.column_names}
    statistics = [
        replace(whole, names=tuple(unique(name, taken) for name in whole.names))
        for whole, _ in made
    ]
    tables = {whole.column: folded for whole, folded in made}
    return binning.with_statistics(statistics), RowStatistics(tables, seed)


def unique(name: str, taken: set[str]) -> str:
    """A name that no other feature has, which is then taken.

    Examples
    --------
    >>> unique("x (mean)", {"x", "x (mean)"})
    'x (mean) 2'
    """
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name} {number}"
    taken.add(found)
    return found


@dataclass(frozen=True)
class StatisticsPass:
    """Reads labels, weights and some columns of a table, and makes the statistics of these.

    Parameters
    ----------
    columns : list of str
    table : Table
    sample : LabelSample
    plan : IngestPlan
    limit : int
        Of the memory of the whole ingest.
    seed : int
        Of the folds.
    known : tuple of CategoryStatistics
        Whose thresholds to use; by default, they are found.
    """

    columns: Sequence[str]
    table: Table
    sample: LabelSample
    plan: IngestPlan
    limit: int
    seed: int
    known: tuple[CategoryStatistics, ...] = ()

    @classmethod
    def again(
        cls,
        binning: Binning,
        table: Table,
        sample: LabelSample,
        plan: IngestPlan,
        limit: int,
        seed: int,
    ) -> StatisticsPass:
        """One over the rows that the statistics of a binning were made from."""
        name_of = dict(zip(binning.column_names, table.features, strict=True))
        known = tuple(replace(some, column=name_of[some.column]) for some in binning.statistics)
        columns = [some.column for some in known]
        return cls(columns, table, sample, plan, limit, seed, known)

    def of_rows(self, progress: Progress, *, sure: bool) -> RowStatistics | None:
        """The statistics of the rows by fold; None if there are none, or these are other rows.

        `sure`: these rows need not be compared with those that the known statistics are of.
        """
        if not self.columns or not (sure or self._may_be_same()):
            return None
        made = self.run(progress)
        release()
        if not made or not (sure or self._are_same([whole for whole, _ in made])):
            return None
        return RowStatistics({whole.column: folded for whole, folded in made}, self.seed)

    def _may_be_same(self) -> bool:
        """Whether the number of rows, if the source tells it, is that of the known statistics."""
        source, known = self.table.source, {some.made_of.rows for some in self.known}
        return not source.exact_rows or known == {source.n_rows}

    def _are_same(self, made: Sequence[CategoryStatistics]) -> bool:
        low, high = self.sample.clip
        is_target = isinstance(self.table.labels, TargetReader)
        slack = CLIP_SLACK * (high - low) if is_target else MEAN_SLACK
        pairs = zip(made, self.known, strict=True)
        return all(new.made_of.is_like(old.made_of, slack) for new, old in pairs)

    def run(self, progress: Progress) -> list[tuple[CategoryStatistics, FoldedStatistics]]:
        """The statistics of the columns that have any: for other rows, and for these.

        None if known ones are of another kind of label.
        """
        try:
            return self._run(progress)
        except OtherClassesError as error:
            if error.many:
                read_as_classes(self.table, self.sample)
            else:
                read_as_two(self.table)
            return self._run(progress)

    def _run(self, progress: Progress) -> list[tuple[CategoryStatistics, FoldedStatistics]]:
        n_features = len(means_of(self.table.labels, self.sample, self.known).names) + 1
        if any(len(some.names) != n_features for some in self.known):
            return []
        source = self.table.source
        groups = list(self._groups(n_features - 1))
        made = []
        with progress.task("statistics of categories", len(groups) * source.n_rows) as task:
            for group in groups:
                # Of its own: labels of the table are read by the pass over all columns.
                labels = copy.deepcopy(self.table.labels)
                made += self._read(group, labels, task)
                release()
        return made

    def _groups(self, n_targets: int) -> Iterator[list[str]]:
        """Columns that are read together: their readers and the least of their sums fit."""
        parts, source = [slice(None)], self.table.source
        if self.plan.columns is not None and (reading := source.reading(self.columns)) is not None:
            parts = self.plan.columns.parts(reading)
        most = max(1, self.sum_bytes // (MIN_CATEGORIES * category_bytes(n_targets)))
        for part in parts:
            names = list(self.columns[part])
            yield from (names[at : at + most] for at in range(0, len(names), most))

    def _read(
        self, columns: list[str], labels: LabelReader, task: Task
    ) -> list[tuple[CategoryStatistics, FoldedStatistics]]:
        """Statistics of columns that are read together."""
        features: dict[str, Kind] = dict.fromkeys(columns, "category")
        table = replace(self.table, features=features, labels=labels, offset=None)
        means = means_of(labels, self.sample, self.known)
        total = self.max_categories(len(columns), len(means.names))
        most = min(total, MAX_CATEGORIES)
        all_sums = [FoldSums(name, len(means.names), most) for name in columns]
        totals, n_rows = np.zeros(1 + len(means.names)), 0
        row_bytes = max(table.source.row_bytes(table.read_columns), 1)
        # A column has room for twice the categories of a block, see `share_out`.
        room = min(total // (4 * len(columns)), most // 2)
        rows = min(self.plan.block_rows(row_bytes, BLOCK_ROWS), room)
        with (
            closing(table.blocks(rows)) as blocks,
            ThreadPoolExecutor(min(self.plan.n_jobs, len(columns))) as pool,
        ):
            for block in blocks:
                values = means.of(block)
                folds = folds_of(block.row, len(block.codes), self.seed)
                share_out(all_sums, total)
                # Each column has its rows in order, whatever the number of threads.
                for _ in pool.map(partial(_add, block, folds, values), all_sums):
                    pass
                totals += values.sum(1)
                n_rows += len(block.codes)
                task.advance(len(block.codes))
        kept = kept_categories(self.limit, len(self.columns), len(means.names))
        for sums in all_sums:
            # Where all columns are counted together, they have fewer.
            if len(columns) < len(self.columns):
                sums.keep(kept)
        if labels.order()[0] and means.flips:
            totals[1] = totals[0] - totals[1]
            for sums in all_sums:
                sums.flip()
        if self.known:
            return list(self._finish_known(all_sums, means, totals, n_rows))
        return list(_finish(all_sums, means, totals, n_rows))

    def _finish_known(
        self, all_sums: Sequence[FoldSums], means: Means, totals: Floats, n_rows: int
    ) -> Iterator[tuple[CategoryStatistics, FoldedStatistics]]:
        known = {some.column: some for some in self.known}
        for sums in all_sums:
            some = known[sums.column]
            cuts = iter(some.thresholds)
            yield sums.finish(
                some.names, totals[1:] / totals[0], totals[0] / n_rows, lambda *_, c=cuts: next(c)
            )

    def max_categories(self, n_columns: int, n_targets: int) -> int:
        """Categories that are counted exactly, of some of the columns together.

        By the limit alone, where that allows it, so that the same limit gives the same statistics.
        """
        n_bytes = self.sum_bytes // len(self.columns)
        return n_columns * max(n_bytes // category_bytes(n_targets), MIN_CATEGORIES)

    @property
    def sum_bytes(self) -> int:
        """What the sums of columns that are read together may take."""
        return min(self.limit // LIMIT_SHARE, self.plan.sample_bytes)


def _add(block: CodedBlock, folds: npt.NDArray[np.uint8], values: Floats, sums: FoldSums) -> None:
    """Add the rows of a block to the sums of a column."""
    sums.add(CodedWords.of(sums.column, block.batch.column(sums.column)), folds, values)


def means_of(
    labels: LabelReader, sample: LabelSample, known: Sequence[CategoryStatistics] = ()
) -> Means:
    """What statistics are means of, for such labels: `known` ones have the same classes."""
    if isinstance(labels, TargetReader):
        low, high = sample.clip
        return Means(["mean"], lambda block: [np.clip(_targets(block), low, high)])
    if isinstance(labels, ClassReader):
        rows = sample.rows
        classes: Sequence[Any] = labels.known
        codes = sorted(range(len(classes)), key=lambda code: -rows[classes[code]])[:MAX_MEANS]
    elif isinstance(labels, ModelClasses):
        classes = labels.classes
        shares = known[0].names[:-1]
        marks = [f"(share of {label})" for label in classes]
        codes = [code for name in shares for code, mark in enumerate(marks) if mark in name]
    else:
        return Means(["mean"], lambda block: [block.codes], flips=True)
    return Means(
        [f"share of {classes[code]}" for code in codes],
        lambda block: [_targets(block) == code for code in codes],
    )


def _targets(block: CodedBlock) -> npt.NDArray[np.float64]:
    assert block.targets is not None
    return block.targets.astype(np.float64)


def _finish(
    all_sums: Sequence[FoldSums], means: Means, totals: Floats, n_rows: int
) -> Iterator[tuple[CategoryStatistics, FoldedStatistics]]:
    scale = totals[0] / n_rows
    if not scale:  # all weights are zero, which training refuses
        return
    for sums in all_sums:
        n = min(sums.n_found, n_rows)
        if n_rows >= ID_ROWS and n >= ALL_DIFFER * n_rows:
            log.warning(
                "column %r: nearly all values differ (%d in %d rows): it is an id, of which "
                "nothing can be learned; leave it out (exclude=%r).",
                sums.column, n, n_rows, [sums.column],
            )  # fmt: skip
            continue
        if sums.drops:
            log.info(
                "column %r: has about %d categories, more than fit into the memory limit; "
                "statistics are of %d of the most frequent ones",
                sums.column, n, sums.n_categories,
            )  # fmt: skip
        names = [f"{sums.column} ({name})" for name in (*means.names, "count")]
        yield sums.finish(names, totals[1:] / totals[0], scale, find_thresholds)
