"""Stages: random parts of a source, read one after the other.

Training may begin with the rows of the first stage, while those of the others are still being read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sparrowboost.readers.base import DiscardSample
from sparrowboost.readers.formats import RowError, Source
from sparrowboost.readers.labels import LabelCoder
from sparrowboost.readers.table import Table
from sparrowboost.readers.targets import TargetReader
from sparrowboost.runtime.errors import DataError
from sparrowboost.store.plan import SAMPLE_ROWS, SAMPLING, STAGING

# Share of the labels' variance that may lie between partitions; by chance it is far less.
DRIFT = 0.05
RUN_ROWS = 1_024  # read together of labels that are an array of their own


class Stage(NamedTuple):
    """Rows that are read together, before those of the next stage."""

    only: list[int] | None  # numbers of partitions of the source; None: all rows, in order
    n_rows: int


def make_stages(
    source: Source, seed: int, n_stages: int, *, min_rows: int, min_partitions: int
) -> list[Stage]:
    """Deal the partitions of a source out to stages at random.

    There is only one stage if the source has fewer rows or partitions than the minimum.
    """
    rows = np.array(source.partitions(), np.int64)
    if np.count_nonzero(rows) < min_partitions or source.n_rows < min_rows:
        return [all_rows(source)]
    order = np.random.default_rng([seed, STAGING]).permutation(np.flatnonzero(rows))
    parts = [np.sort(part) for part in np.array_split(order, n_stages)]
    return [Stage(part.tolist(), int(rows[part].sum())) for part in parts]


def all_rows(source: Source) -> Stage:
    """All rows of a source as one stage."""
    return Stage(None, source.n_rows)


def labels_drift(table: Table, seed: int) -> bool:
    """Whether a label is more frequent in some partitions than in others.

    A few partitions then do not represent all rows. Numbers are compared by their bands.
    """
    coder, sizes, means, squares = LabelCoder(table.label.name), [], [], []
    read = table.labels.sampled if isinstance(table.labels, TargetReader) else coder.encode
    try:
        for piece in label_sample(table, seed):
            codes = read(piece).astype(np.float64)
            sizes.append(len(codes))
            means.append(float(codes.mean()))
            squares.append(float(np.square(codes).mean()))
    except (RowError, DataError):
        return False  # the pass over all rows says where
    if not sizes:
        return False
    mean = np.average(means, weights=sizes)
    between = np.average(np.square(np.array(means) - mean), weights=sizes)
    return bool(between > DRIFT * (np.average(squares, weights=sizes) - mean**2))


def find_bands(table: Table, seed: int) -> None:
    """Divide the numbers to predict into bands, by a sample of them."""
    if isinstance(table.labels, TargetReader):
        with suppress(RowError):  # the pass over all rows says where
            table.labels.set_bands(label_sample(table, seed))


def label_sample(table: Table, seed: int) -> Iterator[pa.Array]:
    """Labels from all over the source."""
    if table.label.external is None:
        rng = np.random.default_rng([seed, SAMPLING])
        for piece in table.source.sample([table.label.name], SAMPLE_ROWS, rng):
            if not isinstance(piece, DiscardSample) and piece.num_rows:
                yield piece.column(0)
        return
    end = 0
    parts = table.source.partitions()
    every = max(1, sum(parts) // SAMPLE_ROWS)  # of so many runs of rows, one is read
    for rows in parts:
        start, end = end, end + rows
        for at in range(start, end, RUN_ROWS * every):
            yield table.label.external.read(at, min(at + RUN_ROWS, end))
