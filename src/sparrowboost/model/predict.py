"""Prediction: rows of any source in, scores out, block by block."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost.model.ensemble import Ensemble, Offsets
from sparrowboost.model.forest import Forest, add_rounds
from sparrowboost.readers.formats import OpenOptions, RowError, Source, check_format, open_source
from sparrowboost.readers.labels import offsets
from sparrowboost.readers.options import ReadOptions
from sparrowboost.readers.sparse import (
    NumberedColumns,
    SparseBatch,
    SparseRows,
    number_of,
    sparse_rows,
)
from sparrowboost.readers.table import (
    Column,
    ColumnLike,
    OffsetChoice,
    ReadBlocks,
    locate,
    located,
)
from sparrowboost.runtime.budget import LIBRARIES, Budget, blocks_in_flight
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.memory import held
from sparrowboost.runtime.temporary import TemporaryFolder
from sparrowboost.runtime.threads import check_jobs, ordered_map, prefetch
from sparrowboost.store.binning import BinnedBatch, Binning, CategoryFeature
from sparrowboost.store.column_pass import (
    BinnedColumns,
    ColumnPlan,
    least_reading,
    plan_columns,
)
from sparrowboost.store.known_bins import check_kinds
from sparrowboost.store.lookup import Bins
from sparrowboost.store.packing import FeatureNumbers, Thresholds, has_numbers
from sparrowboost.store.storage import check_offset
from sparrowboost.store.warm_up import warm_up_columns

A = TypeVar("A")
E = TypeVar("E", bound=Ensemble)

BLOCK_ROWS = 16_384
MIN_BLOCK_ROWS = 1_024  # a memory limit must allow for these, or, where rows are long,
MIN_BLOCK_BYTES = 4 << 20  # for so many bytes of them
VALUE_BYTES = 8  # of a value as read, at least
# Of the texts of a block while it is read, and while they become categories: distinct, trimmed.
COPIES = 6
STATE_BYTES = 32  # of a row in progress: score, probability, label, weight, positions
CLASS_BYTES = 12  # more of each of more than two classes: score, probability
RESULT_BYTES = 16_000_000  # of a row group of predictions while it is written
AHEAD = 2  # blocks that wait between reading and scoring
KEPT_BYTES = 1 << 26  # of bins kept in memory from tree to tree
SPARSE_BLOCK_BYTES = 8 << 20  # of a block of sparse rows, with their bins


class SparseFeatures(NamedTuple):
    """The features of a block of sparse rows."""

    batch: SparseBatch
    thresholds: Thresholds
    numbers: FeatureNumbers

    @property
    def num_rows(self) -> int:
        return self.batch.num_rows

    def bins(self) -> Bins:
        return self.thresholds.bins(self.batch, self.numbers)


class SparseReader(NamedTuple):
    """Reads the features of a model from sparse rows."""

    rows: SparseRows
    thresholds: Thresholds
    numbers: FeatureNumbers

    def features(self, batch: SparseBatch) -> SparseFeatures:
        return SparseFeatures(batch, self.thresholds, self.numbers)


def sparse_reader(
    source: Source, binning: Binning, names: Sequence[str], others: Sequence[str]
) -> SparseReader | None:
    """What reads the features from columns of these names, if a source has sparse rows.

    `others` are the columns that are read besides.
    """
    numbered = all(number_of(name) >= 0 for name in names)
    if not numbered or any(number_of(name) >= 0 for name in others):
        return None
    rows = sparse_rows(source) if all(map(has_numbers, binning.features)) else None
    return (
        None if rows is None else SparseReader(rows, Thresholds.of(binning), FeatureNumbers(names))
    )


class FeatureBlock(NamedTuple):
    """A block of rows: features under the model's names, or binned; columns to keep; offsets."""

    batch: pa.RecordBatch | BinnedBatch | SparseFeatures
    kept: list[pa.Array]
    source: Source
    row: int  # the first one's number in the source
    offset: Offsets = None

    def bins(self, binning: Binning, order: Literal["C", "F"] = "C") -> Bins:
        """(n, d) bins of the features; an error names the row."""
        if isinstance(self.batch, SparseFeatures):
            return np.asarray(self.batch.bins(), order=order)
        bins = np.empty((self.batch.num_rows, len(binning.features)), np.uint8, order)
        try:
            binning.apply(self.batch, bins)
        except RowError as error:
            place = locate(self.source, self.row + error.row)
            raise DataError(f"{place}: {error}") from None
        return bins


def stream_scores(
    ensemble: Ensemble,
    data: Any,
    n_jobs: int | None,
    read: ReadOptions,
    offset: ColumnLike | Literal[False] = None,
) -> Iterator[npt.NDArray[np.float32]]:
    """Scores H of all rows of a source, in their order; (n, K) of more than two classes."""
    choice, ensemble = offset_choice(ensemble, offset), lean_for(ensemble, data)
    rows = stream(ensemble.binning, data, ensemble.score, n_jobs, read, offset=choice)
    return (score for score, _ in rows)


def offset_choice(ensemble: Ensemble, given: ColumnLike | Literal[False]) -> OffsetChoice:
    """Which offsets rows to predict have: those given, or the column that the model knows."""
    if given is not None and given is not False:
        check_offset(True, len(ensemble.classes))
    return OffsetChoice(given, ensemble.offset_name, ensemble.feature_names)


def stream_leaves(
    ensemble: Ensemble, data: Any, n_jobs: int | None, read: ReadOptions
) -> Iterator[npt.NDArray[np.int32]]:
    """(n, trees) the leaf of each tree that rows end in, block by block in their order."""
    from sparrowboost.kernels.scores import apply_trees

    ensemble = lean_for(ensemble, data)
    numbered = [
        replace(tree, value=np.arange(tree.n_leaves, dtype=np.float32)) for tree in ensemble.trees
    ]
    forest = Forest(numbered).arrays

    def leaves_of(bins: Bins, offset: Offsets) -> npt.NDArray[np.int32]:
        leaf = np.zeros((len(numbered), len(bins)), np.float32)
        for tree, column in enumerate(leaf):
            apply_trees(bins, *forest, tree, tree + 1, column)
        return leaf.T.astype(np.int32)

    for leaves, _ in stream(ensemble.binning, data, leaves_of, n_jobs, read):
        yield leaves


def staged_scores(
    ensemble: Ensemble,
    data: Any,
    n_jobs: int | None,
    read: ReadOptions,
    offset: ColumnLike | Literal[False] = None,
) -> Iterator[npt.NDArray[np.float32]]:
    """Scores H of all rows of a source after each tree, or each round of more than two classes.

    The source is read once. Memory holds the rows' scores and up to 64 MB of their bins (one byte
    per value); more bins go to a temporary file, which is read again for every tree.
    """
    with tempfile.SpooledTemporaryFile(KEPT_BYTES, prefix="sparrow-predict-") as kept:
        sizes, given = [], []
        choice, ensemble = offset_choice(ensemble, offset), lean_for(ensemble, data)
        blocks = stream(ensemble.binning, data, lambda *block: block, n_jobs, read, offset=choice)
        for (bins, of_block), _ in blocks:
            kept.write(bins.data)
            sizes.append(len(bins))
            if of_block is not None:
                given.append(of_block)
        score = ensemble.start_scores(sum(sizes), np.concatenate(given) if given else None)
        del given
        buffer = np.empty((max(sizes, default=0), len(ensemble.feature_names)), np.uint8)
        for tree in range(ensemble.n_trees):
            kept.seek(0)
            start = 0
            for n in sizes:
                kept.readinto(buffer[:n].data)
                part = score[start : start + n].T
                add_rounds(ensemble.forest.arrays, buffer[:n], tree, tree + 1, part)
                start += n
            yield score.copy()


def stream(
    binning: Binning,
    data: Any,
    work: Callable[[Bins, Offsets], A],
    n_jobs: int | None,
    read: ReadOptions,
    keep: Sequence[str] = (),
    limit: int | None = None,
    offset: OffsetChoice | None = None,
) -> Generator[tuple[A, list[pa.Array]]]:
    """The work on the bins and offsets of each block of a source, over threads, in their order.

    With it come the columns of the block that are to be kept. With a memory limit, blocks are as
    large as it allows; load the kernels first.
    """
    n_jobs = check_jobs(n_jobs)

    def bin_and_work(block: FeatureBlock) -> tuple[A, list[pa.Array]]:
        return work(block.bins(binning), block.offset), block.kept

    with TemporaryFolder("predict", needed=False) as scratch:
        budget = BlockBudget(limit, n_jobs)
        blocks = read_features(binning, data, scratch, read, keep, budget, offset)
        with (
            closing(prefetch(blocks, AHEAD)) as ahead,
            closing(ordered_map(bin_and_work, ahead, n_jobs, n_jobs + AHEAD)) as results,
        ):
            yield from results


class BlockPlan(NamedTuple):
    """How a source is read in blocks."""

    rows: int  # of a block, at most
    columns: ColumnPlan | None = None  # how columns are read apart; None: together

    def reader(
        self,
        source: Source,
        binning: Binning,
        names: Sequence[str],
        scratch: Path,
        keep: Sequence[str] = (),
    ) -> ReadBlocks:
        """What reads the blocks, for features that have these names in the source."""
        if self.columns is None:
            return source.blocks
        return BinnedColumns(source, binning, names, self.columns, scratch, keep).blocks


class BlockBudget:
    """How a source is read within a memory limit: in blocks of 16,384 rows or fewer.

    Parameters
    ----------
    limit : int or None
        Bytes of the whole process; for data that the caller holds, of what is added.
    n_jobs : int
        Threads that work on blocks.
    others : mapping of str to int, optional
        Bytes of what else the limit has to hold. Default: results that wait to be written.
    """

    def __init__(
        self, limit: int | None, n_jobs: int, others: Mapping[str, int] | None = None
    ) -> None:
        self.limit, self._n_jobs = limit, n_jobs
        self._others = {"results": RESULT_BYTES} if others is None else others
        self._blocks = blocks_in_flight(AHEAD, n_jobs)

    def plan(
        self,
        source: Source,
        columns: Sequence[str],
        n_features: int,
        sparse: SparseRows | None = None,
    ) -> BlockPlan:
        """How to read these columns; a MemoryLimitError names a limit that suffices."""
        if sparse is not None:
            return self._plan_sparse(source, sparse, n_features)
        if self.limit is None:
            return BlockPlan(BLOCK_ROWS)
        # Texts may be long: what they take is measured.
        values = max(source.row_bytes(columns), VALUE_BYTES * len(columns))
        row_bytes = self._blocks * (values + n_features + STATE_BYTES)
        row_bytes += COPIES * (self._n_jobs + 1) * max(values - VALUE_BYTES * len(columns), 0)
        least = max(1, min(MIN_BLOCK_ROWS, int(self._blocks * MIN_BLOCK_BYTES / row_bytes)))
        parts = {**self._others, "blocks on the way": int(least * row_bytes)}
        apart = None
        if not source.in_memory:
            reading = least_reading(source, columns)
            parts |= {LIBRARIES: held(), "reading": reading}
            Budget(self.limit, parts).check()
            free = self.limit - sum(parts.values()) + reading
            apart = plan_columns(source, columns, max(reading, free // 2), self._n_jobs)
            parts["reading"] = source.reading_bytes(columns) if apart is None else apart.n_bytes
        Budget(self.limit, parts).check()
        free = self.limit - sum(parts.values()) + parts["blocks on the way"]
        return BlockPlan(min(BLOCK_ROWS, int(free / row_bytes)), apart)

    def _plan_sparse(self, source: Source, rows: SparseRows, n_features: int) -> BlockPlan:
        """How to read rows as they are: a block has the entries of its rows, and all bins."""
        row_bytes = self._blocks * (rows.row_bytes() + n_features + STATE_BYTES)
        most = max(1, min(BLOCK_ROWS, int(SPARSE_BLOCK_BYTES * self._blocks / row_bytes)))
        if self.limit is None:
            return BlockPlan(most)
        least = max(1, min(MIN_BLOCK_ROWS, int(self._blocks * MIN_BLOCK_BYTES / row_bytes)))
        parts = {**self._others, "blocks on the way": int(least * row_bytes)}
        if not source.in_memory:
            parts |= {LIBRARIES: held(), "reading": source.reading_bytes(())}
        Budget(self.limit, parts).check()
        free = self.limit - sum(parts.values()) + parts["blocks on the way"]
        return BlockPlan(max(least, min(most, int(free / row_bytes))))


def load_kernels(ensemble: Ensemble) -> None:
    """Compile or load what prediction runs, so that it is counted before memory is divided."""
    binning = ensemble.binning
    types = {"category": pa.string(), "time": pa.timestamp("us")}
    columns = [pa.nulls(1, types.get(f.kind) or pa.type_for_alias(f.kind)) for f in binning.columns]
    bins = np.empty((1, len(binning.features)), np.uint8)
    binning.apply(pa.RecordBatch.from_arrays(columns, binning.column_names), bins)
    ensemble.first(0).score(bins)
    warm_up_columns()


def open_options(
    binning: Binning,
    names: Sequence[str],
    scratch: Path,
    read: ReadOptions,
    keep: Sequence[str] = (),
    limit: int | None = None,
) -> OpenOptions:
    """How to open a source in which the known features have these names."""
    check_format(read.format)
    features = zip(binning.columns, names, strict=True)
    return OpenOptions(
        scratch=scratch,
        rng=np.random.default_rng(0),
        read=read,
        categorical=[name for f, name in features if isinstance(f, CategoryFeature)],
        text=[name for name in keep if name not in names],
        needed=[*names, *keep],
        limit=limit,
    )


def read_features(
    binning: Binning,
    data: Any,
    scratch: Path,
    read: ReadOptions,
    keep: Sequence[str] = (),
    budget: BlockBudget | None = None,
    offset: OffsetChoice | None = None,
    *,
    by_column: bool = False,
) -> Iterator[FeatureBlock]:
    """The columns that a model needs from any source that `ingest` reads, and others to keep.

    `by_column`: blocks are to have the values of columns, not only their bins.
    """
    names, budget = column_names(binning, data), budget or BlockBudget(None, 1)
    offset = offset or OffsetChoice()

    def plan_reading(
        source: Source,
    ) -> tuple[Column | None, list[str], SparseReader | None, BlockPlan]:
        column = offset.find(source, options)
        _check_columns(source, names, "which the model was trained on")
        _check_columns(source, keep, "which is to be kept")
        check_kinds(binning, source, names)
        others = [*keep, *([column.name] if column is not None and column.external is None else [])]
        columns = list(dict.fromkeys([*names, *others]))
        sparse = None if by_column else sparse_reader(source, binning, names, others)
        rows = None if sparse is None else sparse.rows
        return column, others, sparse, budget.plan(source, columns, len(binning.features), rows)

    as_text = [name for name in keep if name != offset.name]
    options = open_options(binning, names, scratch, read, as_text, budget.limit)
    source = open_source(data, replace(options, check=plan_reading))
    column, others, sparse, plan = plan_reading(source)
    columns = list(dict.fromkeys([*names, *others]))
    batches: Iterator[Any]
    if sparse is None:
        read_blocks = plan.reader(source, binning, names, scratch, others)
        batches = read_blocks(columns, plan.rows, None)
    else:
        batches = sparse.rows.blocks(others, plan.rows)
    row = 0
    for batch in batches:
        features: Any = batch
        kept, values = [batch.column(name) for name in keep], None
        if column is not None:
            with located(source, row):
                values = offsets(column.name, column.values(batch, row))
        if sparse is not None:
            features = sparse.features(batch)
        elif plan.columns is None:
            features = features.select(names).rename_columns(binning.column_names)
        yield FeatureBlock(features, kept, source, row, values)
        row += batch.num_rows
    if column is not None:
        column.check_end(row, source)


def lean_for(ensemble: E, data: Any) -> E:
    """The ensemble of those features alone that its trees split on, where that does for the data.

    The columns of an array may stand for all features of the model, in their order; and one that
    lacks some is refused by their names.
    """
    if not hasattr(data, "shape") or not hasattr(data, "dtype"):
        return ensemble.lean
    own = ensemble.binning
    lacks = any(number_of(name) >= data.shape[-1] for name in ensemble.lean.feature_names)
    return ensemble if lacks or column_names(own, data) != own.column_names else ensemble.lean


def column_names(binning: Binning, data: Any) -> list[str]:
    """The names of the model's features in a source."""
    array = isinstance(data, np.ndarray) and data.ndim == 2 and data.dtype.names is None
    if (array or hasattr(data, "tocsr")) and data.shape[1] == len(binning.columns):
        numbered = [f"f{j}" for j in range(data.shape[1])]  # an array has no other names
        if not set(binning.column_names) <= set(numbered):
            return numbered
    return binning.column_names


def _check_columns(source: Source, names: Sequence[str], why: str) -> None:
    found: Collection[str] = source.columns
    if not isinstance(found, NumberedColumns):  # of which there may be a million
        found = set(found)
    missing = [name for name in names if name not in found]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise DataError(f"{source.name}: lacks column {missing[0]!r}{more}, {why}.")
