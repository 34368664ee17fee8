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

from sparrowboost.readers.targets import Target
from sparrowboost.runtime.errors import DataError
from sparrowboost.store.appended import Appended
from sparrowboost.store.binning import Binning
from sparrowboost.store.lookup import Bins
from sparrowboost.store.packing import Packing


class Block(NamedTuple):
    """Some rows of a data set, all of one band: a label, some classes, or a range of numbers."""

    bins: Bins  # (n, d); of packed rows (n, width)
    label: npt.NDArray[np.uint8]  # (n,) 1 = positive; of targets, the band
    weight: npt.NDArray[np.float32] | None  # (n,)
    target: Target | None = None  # (n,) numbers to predict, or which of more than two classes
    offset: npt.NDArray[np.float32] | None = None  # (n,) of the score, as the user gave it

    def part(self, rows: slice) -> Block:
        """Some of the rows, over the same memory."""
        return Block._make(None if part is None else part[rows] for part in self)

    def take(self, rows: npt.NDArray[np.integer]) -> Block:
        """The rows of these numbers, copied."""
        # `take` copies rows of bins several times as fast as an index or a mask does.
        return Block._make(None if part is None else part.take(rows, axis=0) for part in self)


CLASSIFICATION, REGRESSION = "classification", "regression"


def task_of_classes(n_classes: int) -> str:
    """What labels of so many classes are for: 0 stands for numbers to predict."""
    return CLASSIFICATION if n_classes else REGRESSION


def check_offset(has_offset: bool, n_classes: int) -> None:
    """A DataError if there is an offset, and more than one score that it could be of."""
    if has_offset and n_classes > 2:
        raise DataError(
            f"offset= is for two classes or numbers, and the labels are of {n_classes} classes; "
            "leave it out, or train one class against the rest with positive=."
        )


class BlockStorage(Protocol):
    """Blocks of binned rows, read by number.

    `path`, `binning`, `label_name`, `offset_name`, `task`, `n_classes`, `weighted`, `targeted`,
    `n_bands` and `summary` are known before any row is read. Where rows are still being read, all
    else may wait for them.
    """

    @property
    def path(self) -> Path:
        """The store's folder."""
        ...

    @property
    def binning(self) -> Binning: ...

    @property
    def packing(self) -> Packing | None:
        """How rows are packed; None if they have a byte for each feature."""
        ...

    @property
    def label_name(self) -> str: ...

    @property
    def weighted(self) -> bool: ...

    @property
    def offset_name(self) -> str | None:
        """The column that offsets of the score came from; None if there are none."""
        ...

    @property
    def task(self) -> str:
        """Whether labels are classes or numbers to predict."""
        ...

    @property
    def targeted(self) -> bool:
        """Whether rows have a target: a number to predict, or which of more than two classes."""
        ...

    @property
    def n_bands(self) -> int:
        """Bands of the rows: the two labels, groups of classes, or ranges of the target."""
        ...

    @property
    def target_span(self) -> tuple[float, float] | None:
        """The least and the greatest target; None for classes."""
        ...

    @property
    def summary(self) -> str:
        """What it holds, in a few words."""
        ...

    @property
    def classes(self) -> tuple[Any, ...]:
        """The labels as they were in the source: negative and positive, or all; none of numbers."""
        ...

    @property
    def n_classes(self) -> int:
        """0 of numbers. Before any row is read, of more than two classes those of a sample."""
        ...

    @property
    def class_rows(self) -> npt.NDArray[np.int64]:
        """(n_classes,) rows of each class, where there are more than two."""
        ...

    @property
    def class_band(self) -> npt.NDArray[np.int64]:
        """(n_classes,) the band that each class is in, where there are more than two."""
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
        """(n_blocks,) the label that all rows of a block have, or their band."""
        ...

    @property
    def segment_ends(self) -> npt.NDArray[np.int64]:
        """(n_segments,) where the blocks of each segment end: of rows that were stored at once."""
        ...

    @property
    def appended(self) -> tuple[Appended, ...]:
        """What was appended after the first rows: the segments but the first."""
        ...

    @property
    def largest_block(self) -> int:
        """Rows of the largest block that is read, or about as many."""
        ...

    def read_block(self, index: int, *, shuffled: bool = True) -> Block:
        """One block; its rows are in a random order, always the same, if `shuffled`."""
        ...
