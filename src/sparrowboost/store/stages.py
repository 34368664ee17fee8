"""Stages: random parts of a source, read one after the other.

Training may begin with the rows of the first stage, while those of the others are still being read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sparrowboost.readers.base import DiscardSample
from sparrowboost.readers.formats import RowError, Source
from sparrowboost.readers.labels import LabelCoder
from sparrowboost.readers.table import Table
from sparrowboost.runtime.errors import DataError
from sparrowboost.store.plan import SAMPLE_ROWS, SAMPLING, STAGING

# Share of the labels' variance that may lie between partitions; by chance it is far less.
DRIFT = 0.05


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

    A few partitions then do not represent all rows.
    """
    coder, sizes, positives = LabelCoder(table.label.name), [], []
    try:
        for piece in _label_pieces(table, seed):
            sizes.append(len(piece))
            positives.append(float(coder.encode(piece).mean()))
    except (RowError, DataError):
        return False  # the pass over all rows says where
    if not sizes:
        return False
    p = np.average(positives, weights=sizes)
    between = np.average(np.square(np.array(positives) - p), weights=sizes)
    return bool(between > DRIFT * p * (1 - p))


def _label_pieces(table: Table, seed: int) -> Iterator[pa.Array]:
    """Labels from all over the source."""
    if table.label.external is None:
        rng = np.random.default_rng([seed, SAMPLING])
        for piece in table.source.sample([table.label.name], SAMPLE_ROWS, rng):
            if not isinstance(piece, DiscardSample) and piece.num_rows:
                yield piece.column(0)
        return
    end = 0
    for rows in table.source.partitions():
        start, end = end, end + rows
        if rows:
            yield table.label.external.read(start, end)
