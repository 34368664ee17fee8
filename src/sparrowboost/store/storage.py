"""What a data set reads its blocks from: a store, some of its rows, or one still being written.

A `Dataset` has one storage, which is one of

    StoredRows       the files of a finished store (stored.py)
    SelectedRows     some of the rows of another data set (views.py)
    ReweightedRows   the rows of another data set, with other weights (views.py)
    StagedRows       rows that are still being read (staged.py)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sparrowboost.store.binning import Binning
from sparrowboost.store.lookup import Bins


class Block(NamedTuple):
    """Some rows of a data set, all of one label."""

    bins: Bins  # (n, d)
    label: npt.NDArray[np.uint8]  # (n,) 1 = positive
    weight: npt.NDArray[np.float32] | None  # (n,)


class BlockStorage(Protocol):
    """Blocks of binned rows, read by number.

    `path`, `binning`, `label_name`, `weighted` and `summary` are known before any row is read.
    Where rows are still being read, all else may wait for them.
    """

    @property
    def path(self) -> Path:
        """The store's folder."""
        ...

    @property
    def binning(self) -> Binning: ...

    @property
    def label_name(self) -> str: ...

    @property
    def weighted(self) -> bool: ...

    @property
    def summary(self) -> str:
        """What it holds, in a few words."""
        ...

    @property
    def classes(self) -> tuple[Any, Any]:
        """The negative and the positive label as they were in the source."""
        ...

    @property
    def n_rows(self) -> int: ...

    @property
    def n_bytes(self) -> int:
        """Bytes on disk of the rows that blocks are read from."""
        ...

    @property
    def block_rows(self) -> npt.NDArray[np.int64]:
        """(n_blocks,) rows of each block."""
        ...

    @property
    def block_label(self) -> npt.NDArray[np.int64]:
        """(n_blocks,) the label that all rows of a block have."""
        ...

    @property
    def largest_block(self) -> int:
        """Rows of the largest block that is read, or about as many."""
        ...

    def read_block(self, index: int, *, shuffled: bool = True) -> Block:
        """One block; its rows are in a random order, always the same, if `shuffled`."""
        ...
