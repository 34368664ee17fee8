"""The bins of wide and sparse tables, and how their rows will be packed.

A survey of all entries has told how many each column has. Columns of fewer than `MIN_ENTRIES`, on
which no tree with default parameters could split, are no features. Of the others, bins are found in
a sample of the rows: zero has a bin of its own, and other values have few if they are few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparrowboost.kernels.packed import DROPPED, find_cuts, sort_by_column
from sparrowboost.readers.sparse import SparseRows, Survey, number_of, sparse_rows
from sparrowboost.readers.table import Table
from sparrowboost.runtime.budget import MAX_PARTS
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.progress import Progress, log
from sparrowboost.store.binning import Binning, NumberFeature
from sparrowboost.store.packing import Packing, Shape, choose_words, has_numbers

MIN_COLUMNS = 1_000  # narrower tables are stored as others are
MAX_DENSITY = 1 / 8  # of entries; rows of more are smaller, and read faster, with a byte a column
MIN_ENTRIES = 10  # of a feature: as many rows as the default min_child_weight
MIN_BIN_ENTRIES = 20  # of a bin, where a column has many values
MOST_BINS = 253  # of values that are not zero; with zero and one more between signs, 255
# Of the memory limit, for the evidence of all leaves: about 16 bytes for each bin and leaf.
EVIDENCE_SHARE = 4
EVIDENCE_BYTES = 16 * (31 + MAX_PARTS // 2)
TAIL_SHARE = 16  # of the memory limit, for tails
SAMPLE_VALUES = 10_000_000
SAMPLE_SHARE = 8  # of the memory limit, for sampled values
VALUE_BYTES = 32  # of a sampled value: number of its column, sorted, and its threshold
PACKED_FEATURE_BYTES = 1_000  # of a feature: its object, and its text in the manifest


class SparseTable(NamedTuple):
    """A table whose rows are stored packed."""

    rows: SparseRows
    survey: Survey

    def shape(self, plan: SparsePlan) -> Shape:
        """How long packed rows will be, nearly, before bins are known."""
        return choose_words(self.survey.lengths, 0, plan.most_tails)


def as_sparse(table: Table, known: Binning | None) -> SparseTable | None:
    """A table as one of sparse rows, if it is wide and sparse enough to be stored packed."""
    if len(table.features) < MIN_COLUMNS or table.categorical:
        return None
    if known is not None and not all(map(has_numbers, known.columns)):
        return None
    rows = sparse_rows(table.source)
    survey = None if rows is None else rows.survey()
    if rows is None or survey is None:
        return None
    most = MAX_DENSITY * survey.n_rows * len(table.features)
    return SparseTable(rows, survey) if survey.n_values <= most else None


@dataclass(frozen=True)
class SparsePlan:
    """What the bins of a sparse table, and what does not fit into its rows, may take."""

    most_codes: int
    most_tails: int  # bytes
    sample_values: int

    @classmethod
    def make(cls, limit: int) -> SparsePlan:
        return cls(
            limit // (EVIDENCE_SHARE * EVIDENCE_BYTES),
            limit // TAIL_SHARE,
            min(SAMPLE_VALUES, limit // (SAMPLE_SHARE * VALUE_BYTES)),
        )


def packed_as(binning: Binning, survey: Survey, plan: SparsePlan) -> Packing:
    """How rows with these bins will be packed."""
    numbers = np.array([number_of(name) for name in binning.column_names], np.int64)
    there = numbers < len(survey.columns)
    entries = np.where(there, survey.columns[np.where(there, numbers, 0)], 0)
    order, missing = np.argsort(-entries, kind="stable"), survey.missing
    thresholds = [f.thresholds for f in binning.features if isinstance(f, NumberFeature)]
    n_codes = sum(map(len, thresholds)) + missing * len(thresholds)
    shape = choose_words(survey.lengths, n_codes, plan.most_tails)
    return Packing(binning, shape, order, missing=missing)


def find_sparse_bins(
    table: Table, sparse: SparseTable, plan: SparsePlan, seed: int, progress: Progress
) -> Binning:
    """The bins of the columns that have enough entries to be features."""
    survey = sparse.survey
    numbers = _columns(table, survey)
    n_rows = min(survey.n_rows, plan.sample_values * survey.n_rows // max(survey.n_values, 1))
    with progress.task("finding bins", max(n_rows, 1)) as task:
        number_of_column = np.full(len(survey.columns), DROPPED, np.int32)
        number_of_column[numbers] = np.arange(len(numbers))
        index, value = [], []
        for batch in sparse.rows.sample(max(n_rows, 1), np.random.default_rng([seed, 1])):
            index.append(batch.index)
            value.append(batch.value)
            task.advance(batch.num_rows)
        found = _sorted(np.concatenate(index), np.concatenate(value), number_of_column, numbers)
        del index, value
        cuts = _find_cuts(*found, survey.columns[numbers], plan.most_codes)
    features = [
        NumberFeature(f"f{number}", "float64", own)
        for number, own in zip(numbers.tolist(), cuts, strict=True)
    ]
    left_out = int(np.count_nonzero(survey.columns)) - len(features)
    if left_out > 0 and len(table.features) == len(table.source.columns) - len(table.others):
        log.info(
            "columns of fewer than %d values that are not zero, which are no features: %s",
            MIN_ENTRIES, f"{left_out:,}",
        )  # fmt: skip
    return Binning(tuple(features))


def _columns(table: Table, survey: Survey) -> npt.NDArray[np.int64]:
    """The numbers of the columns that become features, ascending."""
    wanted = np.zeros(len(survey.columns), bool)
    known = np.array([number_of(name) for name in table.features], np.int64)
    wanted[known[known < len(wanted)]] = True
    counts = np.where(wanted, survey.columns, 0)
    for least in (MIN_ENTRIES, 1):
        numbers = np.flatnonzero(counts >= least)
        if len(numbers):
            return numbers
    raise DataError(f"{table.source.name}: all values of all columns are zero.")


def _sorted(
    index: npt.NDArray[np.int32],
    value: npt.NDArray[np.float64],
    number_of_column: npt.NDArray[np.int32],
    numbers: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """The sampled values of each column, end to end, and where those of each start."""
    there = np.bincount(index[~np.isnan(value)], minlength=len(number_of_column))[numbers]
    start = np.concatenate(([0], np.cumsum(there)))
    out = np.empty(start[-1])
    sort_by_column(index, value, number_of_column, start[:-1].copy(), out)
    return out, start


def _find_cuts(
    value: npt.NDArray[np.float64],
    start: npt.NDArray[np.int64],
    entries: npt.NDArray[np.int64],
    most_codes: int,
) -> list[npt.NDArray[np.float64]]:
    """The thresholds of each column: so few that their bins fit in the evidence of a training."""
    share = MIN_BIN_ENTRIES
    while True:
        most = np.clip(entries // share, 1, MOST_BINS)
        most = np.minimum(most, np.maximum(np.diff(start), 1))
        room = np.cumsum(most + 2) - (most + 2)
        cuts, n_cuts = np.empty(int((most + 2).sum())), np.empty(len(most), np.int64)
        find_cuts(value, start, most, room, cuts, n_cuts)
        if n_cuts.sum() <= most_codes or most.max(initial=1) == 1:
            break
        share *= 2
    kept = np.arange(len(cuts)) - np.repeat(room, most + 2) < np.repeat(n_cuts, most + 2)
    return np.split(cuts[kept], np.cumsum(n_cuts)[:-1])
