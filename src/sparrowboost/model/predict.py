"""Prediction: rows of any source in, scores out, block by block. Knows nothing of training."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost.model.forest import Forest
from sparrowboost.readers.base import ConcatenatedSource
from sparrowboost.readers.formats import OpenOptions, RowError, Source, check_format, open_source
from sparrowboost.readers.options import ReadOptions
from sparrowboost.readers.table import locate
from sparrowboost.runtime.budget import LIBRARIES, Budget
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.memory import held
from sparrowboost.runtime.threads import check_jobs, ordered_map, prefetch
from sparrowboost.store.binning import Binning, CategoryFeature
from sparrowboost.store.lookup import Bins

A = TypeVar("A")

BLOCK_ROWS = 16_384
MIN_BLOCK_ROWS = 1_024  # where a memory limit leaves no room for more
VALUE_BYTES = 8  # of a value as it was read
STATE_BYTES = 32  # of a row on the way: score, probability, label, weight, places
RESULT_BYTES = 16_000_000  # a row group of predictions, and what writing it takes
AHEAD = 2  # blocks that wait between reading and scoring
KEPT_BYTES = 1 << 26  # of bins that stay in memory between one tree and the next


class FeatureBlock(NamedTuple):
    """A block of rows: the model's features under its own names, and columns to keep."""

    batch: pa.RecordBatch
    kept: list[pa.Array]
    source: Source
    row: int  # of the source, at which the block begins

    def bins(self, binning: Binning, order: Literal["C", "F"] = "C") -> Bins:
        """(n, d) bins of the features; an error names the row."""
        bins = np.empty((self.batch.num_rows, len(binning.features)), np.uint8, order)
        try:
            binning.apply(self.batch, bins)
        except RowError as error:
            place = locate(self.source, self.row + error.row)
            raise DataError(f"{place}: {error}") from None
        return bins


def stream_scores(
    binning: Binning,
    forest: Forest,
    base_score: float,
    n_trees: int,
    data: Any,
    *,
    n_jobs: int | None = None,
    header: bool = True,
    format: str | None = None,
) -> Iterator[npt.NDArray[np.float32]]:
    """Scores of all rows of a source, in their order, under the first trees of a forest."""

    def work(bins: Bins) -> npt.NDArray[np.float32]:
        return score_bins(bins, forest, base_score, n_trees)

    rows = stream(binning, data, work, n_jobs, header=header, format=format)
    return (score for score, _ in rows)


def score_bins(
    bins: Bins, forest: Forest, base_score: float, n_trees: int
) -> npt.NDArray[np.float32]:
    """Scores of rows that are binned, under the first trees of a forest."""
    from sparrowboost.kernels.scores import apply_trees

    score = np.full(len(bins), base_score, np.float32)
    apply_trees(bins, *forest.arrays, 0, n_trees, score)
    return score


def staged_scores(
    binning: Binning,
    forest: Forest,
    base_score: float,
    n_trees: int,
    data: Any,
    *,
    n_jobs: int | None = None,
    header: bool = True,
    format: str | None = None,
) -> Iterator[npt.NDArray[np.float32]]:
    """Scores of all rows of a source after each of the first trees.

    The source is read once. What is in memory are the rows' scores, and of their bins (a byte for
    each value) up to 64 MB; more go to a temporary file, which is read again for every tree.
    """
    from sparrowboost.kernels.scores import apply_trees

    with tempfile.SpooledTemporaryFile(KEPT_BYTES, prefix="sparrow-predict-") as kept:
        sizes = []
        rows = stream(binning, data, lambda bins: bins, n_jobs, header=header, format=format)
        for bins, _ in rows:
            kept.write(bins.data)
            sizes.append(len(bins))
        score = np.full(sum(sizes), base_score, np.float32)
        buffer = np.empty((max(sizes, default=0), len(binning.features)), np.uint8)
        for tree in range(n_trees):
            kept.seek(0)
            start = 0
            for n in sizes:
                kept.readinto(buffer[:n].data)
                part = score[start : start + n]
                apply_trees(buffer[:n], *forest.arrays, tree, tree + 1, part)
                start += n
            yield score.copy()


def stream(
    binning: Binning,
    data: Any,
    work: Callable[[Bins], A],
    n_jobs: int | None = None,
    keep: Sequence[str] = (),
    *,
    header: bool = True,
    format: str | None = None,
    limit: int | None = None,
) -> Generator[tuple[A, list[pa.Array]]]:
    """The work on the bins of each block of a source, over threads, in the order of the rows.

    With it come other columns of the block, which are to be kept. With a memory limit, blocks are
    as large as it allows; the kernels should be loaded by then.
    """
    n_jobs = check_jobs(n_jobs)

    def bin_and_work(block: FeatureBlock) -> tuple[A, list[pa.Array]]:
        return work(block.bins(binning)), block.kept

    with tempfile.TemporaryDirectory(prefix="sparrow-predict-") as scratch:
        sizes = BlockSizes(limit, n_jobs)
        blocks = read_features(
            binning, data, Path(scratch), keep, header=header, format=format, sizes=sizes
        )
        with (
            closing(prefetch(blocks, AHEAD)) as ahead,
            closing(ordered_map(bin_and_work, ahead, n_jobs, n_jobs + AHEAD)) as results,
        ):
            yield from results


class BlockSizes:
    """How many rows blocks may have within a memory limit: as many as without one, or fewer.

    Parameters
    ----------
    limit : int or None
        Bytes of the whole process; beside rows that the caller holds, of what is added.
    n_jobs : int
        Threads that work on blocks.
    results : int
        Bytes of what is made of blocks, until it is written.
    """

    def __init__(self, limit: int | None, n_jobs: int, results: int = RESULT_BYTES) -> None:
        self._limit, self._results = limit, results
        self._blocks = 2 * AHEAD + n_jobs + 2  # that wait, or are worked on

    def rows(self, source: Source, columns: Sequence[str], n_features: int) -> int:
        """Rows of a block of these columns; a MemoryLimitError names a limit that would do."""
        if self._limit is None:
            return BLOCK_ROWS
        parts = {"results": self._results}
        if not source.in_memory:
            parts |= {LIBRARIES: held(), "reading": source.reading_bytes(columns)}
        row_bytes = self._blocks * (VALUE_BYTES * len(columns) + n_features + STATE_BYTES)
        Budget(self._limit, {**parts, "blocks on the way": MIN_BLOCK_ROWS * row_bytes}).check()
        return min(BLOCK_ROWS, (self._limit - sum(parts.values())) // row_bytes)


def load_kernels(binning: Binning, forest: Forest) -> None:
    """Compile or load what prediction runs, so that it counts before memory is divided."""
    types = {"category": pa.string(), "time": pa.timestamp("us")}
    columns = [
        pa.nulls(1, types.get(f.kind) or pa.type_for_alias(f.kind)) for f in binning.features
    ]
    bins = np.empty((1, len(columns)), np.uint8)
    binning.apply(pa.RecordBatch.from_arrays(columns, binning.names), bins)
    score_bins(bins, forest, 0.0, 0)


def reading(
    binning: Binning,
    names: Sequence[str],
    scratch: Path,
    *,
    keep: Sequence[str] = (),
    header: bool = True,
    format: str | None = None,
) -> OpenOptions:
    """How to open a source whose features are known, and have these names in it."""
    check_format(format)
    features = zip(binning.features, names, strict=True)
    return OpenOptions(
        scratch=scratch,
        rng=np.random.default_rng(0),
        read=ReadOptions(header=header, format=format),
        categorical=[name for f, name in features if isinstance(f, CategoryFeature)],
        text=[name for name in keep if name not in names],
    )


def read_features(
    binning: Binning,
    data: Any,
    scratch: Path,
    keep: Sequence[str] = (),
    *,
    header: bool = True,
    format: str | None = None,
    sizes: BlockSizes | None = None,
) -> Iterator[FeatureBlock]:
    """The columns that a model needs, of any source that ingest reads, and others to keep."""
    names = columns_of(binning, data)
    options = reading(binning, names, scratch, keep=keep, header=header, format=format)
    source = open_source(data, options)
    _check_there(source, names, "which the model was trained on")
    _check_there(source, keep, "which is to be kept")
    check_kinds(binning, source, names)
    columns = list(dict.fromkeys([*names, *keep]))
    rows = BLOCK_ROWS if sizes is None else sizes.rows(source, columns, len(names))
    row = 0
    for batch in source.blocks(columns, rows):
        kept = [batch.column(name) for name in keep]
        features = batch.select(names).rename_columns(binning.names)
        yield FeatureBlock(features, kept, source, row)
        row += batch.num_rows


def columns_of(binning: Binning, data: Any) -> list[str]:
    """What a source calls the model's features."""
    array = isinstance(data, np.ndarray) and data.ndim == 2 and data.dtype.names is None
    if (array or hasattr(data, "tocsr")) and data.shape[1] == len(binning.features):
        places = [f"f{j}" for j in range(data.shape[1])]  # all the names that its columns have
        if not set(binning.names) <= set(places):
            return places
    return binning.names


def check_kinds(binning: Binning, source: Source, names: Sequence[str]) -> None:
    """A DataError if a source has numbers where the model knows times, or the other way round.

    Times are numbers to the model, but in a unit of its own.
    """
    if isinstance(source, ConcatenatedSource):
        source = source.parts[0]  # there may be thousands
    for feature, name in zip(binning.features, names, strict=True):
        if isinstance(feature, CategoryFeature) or feature.blank:
            continue
        is_time, kind = feature.kind == "time", source.kind(name)
        if kind not in ("null", "category") and (kind == "time") != is_time:
            have, known = ("numbers", "times") if is_time else ("times", "numbers")
            raise DataError(
                f"{source.name}: column {name!r} has {have} where the model was trained on "
                f"{known}; turn them into {known} first."
            )


def _check_there(source: Source, names: Sequence[str], why: str) -> None:
    have = set(source.columns)
    lacking = [name for name in names if name not in have]
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise DataError(f"{source.name}: lacks column {lacking[0]!r}{more}, {why}.")
