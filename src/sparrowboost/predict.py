"""Prediction: rows of any source in, scores out, block by block. Knows nothing of training."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost.binning import Binning, CategoryFeature
from sparrowboost.errors import DataError
from sparrowboost.forest import Forest
from sparrowboost.sources import OpenOptions, Source, open_source
from sparrowboost.threads import check_jobs, ordered_map, prefetch

BLOCK_ROWS = 16_384
AHEAD = 2  # blocks that wait between reading and scoring


def stream_scores(
    binning: Binning,
    forest: Forest,
    base_score: float,
    n_trees: int,
    data: Any,
    *,
    n_jobs: int | None = None,
) -> Iterator[npt.NDArray[np.float32]]:
    """Scores of all rows of a source, in their order, under the first trees of a forest."""
    from sparrowboost.kernels.scores import apply_trees

    n_jobs = check_jobs(n_jobs)
    arrays = forest.arrays

    def work(batch: pa.RecordBatch) -> npt.NDArray[np.float32]:
        bins = np.empty((batch.num_rows, len(binning.features)), np.uint8)
        binning.apply(batch, bins)
        score = np.full(batch.num_rows, base_score, np.float32)
        apply_trees(bins, *arrays, 0, n_trees, score)
        return score

    with tempfile.TemporaryDirectory(prefix="sparrow-predict-") as scratch:
        batches = read_features(binning, data, Path(scratch))
        with (
            closing(prefetch(batches, AHEAD)) as ahead,
            closing(ordered_map(work, ahead, n_jobs, n_jobs + AHEAD)) as results,
        ):
            yield from results


def reading(binning: Binning, scratch: Path) -> OpenOptions:
    """How to open a source whose features are known."""
    return OpenOptions(
        scratch=scratch,
        rng=np.random.default_rng(0),
        header=True,
        categorical=[f.name for f in binning.features if isinstance(f, CategoryFeature)],
        format=None,
    )


def read_features(binning: Binning, data: Any, scratch: Path) -> Iterator[pa.RecordBatch]:
    """The columns that a model needs, of any source that ingest reads."""
    source = open_source(data, reading(binning, scratch))
    names = _find(binning, source, data)
    for batch in source.blocks(names, BLOCK_ROWS):
        yield batch if names == binning.names else batch.rename_columns(binning.names)


def _find(binning: Binning, source: Source, data: Any) -> list[str]:
    """What the source calls the model's features."""
    have = list(source.columns)
    lacking = [name for name in binning.names if name not in have]
    if not lacking:
        return binning.names
    if (
        isinstance(data, np.ndarray)
        and data.dtype.names is None
        and len(have) == len(binning.names)
    ):
        return have  # an array's columns have no names but their places
    more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
    raise DataError(
        f"{source.name}: lacks column {lacking[0]!r}{more}, which the model was trained on."
    )
