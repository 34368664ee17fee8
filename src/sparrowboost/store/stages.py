"""Stages: random parts of a source, read one after the other.

Training may begin with the rows of the first stage, while those of the others are still being read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparrowboost.readers.formats import Source
from sparrowboost.store.plan import STAGING


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
