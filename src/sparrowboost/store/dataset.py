"""`Dataset`: shuffled, binned rows, read block by block from any `BlockStorage`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.runtime.errors import DataError
from sparrowboost.store.appended import Appended
from sparrowboost.store.binning import Binning
from sparrowboost.store.packing import Packing
from sparrowboost.store.storage import Block, BlockStorage
from sparrowboost.store.stored import MANIFEST, manifest_crc, open_store

__all__ = ["MANIFEST", "Block", "Dataset", "manifest_crc"]

GOLDEN = (5**0.5 - 1) / 2


class Dataset:
    """A shuffled, binned data set on disk, ready for any number of trainings.

    Made by `sparrowboost.ingest`, opened again by its path. Opening checks the manifest and the
    size of the data; each block is checked against its checksum whenever it is read.

    Parameters
    ----------
    path : str or path
        The store's folder.
    verify : bool
        Check every block now, too.

    Attributes
    ----------
    n_rows, n_features, n_blocks, n_bytes : int
    feature_names : list of str
    binning : Binning
        Thresholds and categories of each feature.
    packing : Packing or None
        Of a wide and sparse table, how the bins of a row are packed: those of some features are
        ``packing.unpack(block.bins, features)``, an ascending array of their numbers.
    n_positive : int
        Rows of the positive label; 0 unless there are two classes.
    classes : tuple
        The negative and the positive label as they were in the source; None stands for "any
        other" when one value was trained against several. Of more classes, all of them in order.
        Empty for regression.
    n_classes : int
        2, the number of classes if there are more, or 0 for regression. Before all rows are read
        (``wait=False``), the classes of a sample, if there are more than two.
    class_rows : (n_classes,) int
        Rows of each class. Of a part of a data set of many classes, this may read all its rows.
    weighted : bool
        Whether rows have sample weights.
    offset_name : str or None
        The column that offsets of the score came from; None if there are none.
    task : str
        "classification" or "regression".
    targeted : bool
        Whether blocks have a `target`: the number to predict, or, of more than two classes, the
        index in `classes`.
    target_span : (float, float) or None
        Of a regression, the least and the greatest label.
    block_rows, block_label : (n_blocks,) int
        Rows of each block, and the label that they all have, 0 or 1. Of a regression and of more
        classes, the band: a number from 0 to ``n_bands - 1``, for the range that the labels are in,
        or for classes that are about as frequent.
    n_bands, band_rows : int, (n_bands,) int
        The number of bands, at most 8, and the rows of each; of two classes, negatives and
        positives.
    appended : tuple
        What was appended to the store (``ingest(..., append=)``), in order. Each has `rows`,
        `source`, and how these rows differ from those that the bins were made for: `features`, up
        to 20 that differ most, each with `name`, `psi`, `large` and the shares of `missing`,
        `first_bin` and `last_bin`, before and now; and `label`.
    segment_ends : (n_segments,) int
        Where the blocks of the first rows end, and of those appended each time.

    Examples
    --------
    >>> import numpy as np, sparrowboost
    >>> X = np.arange(20.0).reshape(10, 2)
    >>> ds = sparrowboost.ingest(X, label=X[:, 0] > 8, verbose=0)
    >>> ds.n_rows, ds.n_features, ds.n_positive
    (10, 2, 5)
    >>> block = next(ds.blocks())
    >>> block.bins.shape, block.label.tolist()
    ((5, 2), [0, 0, 0, 0, 0])
    """

    def __init__(
        self, path: str | os.PathLike[str] | BlockStorage, *, verify: bool = False
    ) -> None:
        # Views, and rows that are still being read, bring a storage of their own.
        self.storage: BlockStorage
        if not isinstance(path, str | os.PathLike) and not hasattr(path, "read_block"):
            raise DataError(f"a Dataset is opened by the path of a store, not {path!r}.")
        self.storage = open_store(path) if isinstance(path, str | os.PathLike) else path
        if verify:
            self.verify()

    @property
    def path(self) -> Path:
        """The store's folder."""
        return self.storage.path

    @property
    def binning(self) -> Binning:
        return self.storage.binning

    @property
    def packing(self) -> Packing | None:
        """How rows are packed; None if each feature takes a byte."""
        return self.storage.packing

    @property
    def feature_names(self) -> list[str]:
        return self.binning.names

    @property
    def n_features(self) -> int:
        return len(self.binning.features)

    @property
    def bin_bytes(self) -> int:
        """Bytes of the bins of a row."""
        return self.n_features if self.packing is None else self.packing.width

    @property
    def label_name(self) -> str:
        return self.storage.label_name

    @property
    def weighted(self) -> bool:
        return self.storage.weighted

    @property
    def offset_name(self) -> str | None:
        return self.storage.offset_name

    @property
    def targeted(self) -> bool:
        """Whether rows have a number to predict, or the index of a class, besides their band."""
        return self.storage.targeted

    @property
    def task(self) -> str:
        return self.storage.task

    @property
    def n_extra(self) -> int:
        """Numbers that a row has besides its bins and scores: weight, target."""
        return self.weighted + self.targeted

    @property
    def target_span(self) -> tuple[float, float] | None:
        return self.storage.target_span

    @property
    def n_bands(self) -> int:
        return self.storage.n_bands

    @property
    def band_rows(self) -> npt.NDArray[np.int64]:
        rows = np.zeros(self.n_bands, np.int64)
        np.add.at(rows, self.block_label, self.block_rows)
        return rows

    @property
    def classes(self) -> tuple[Any, ...]:
        return self.storage.classes

    @property
    def n_classes(self) -> int:
        return self.storage.n_classes

    @property
    def class_rows(self) -> npt.NDArray[np.int64]:
        # Bands are the two classes, where there are two.
        return self.storage.class_rows if self.targeted else self.band_rows

    @property
    def n_rows(self) -> int:
        return self.storage.n_rows

    @property
    def n_positive(self) -> int:
        return 0 if self.targeted else int(self.block_rows @ self.block_label)

    @property
    def n_blocks(self) -> int:
        return len(self.block_rows)

    @property
    def n_bytes(self) -> int:
        """Bytes on disk of the rows that blocks are read from."""
        return self.storage.n_bytes

    @property
    def block_rows(self) -> npt.NDArray[np.int64]:
        return self.storage.block_rows

    @property
    def block_label(self) -> npt.NDArray[np.int64]:
        return self.storage.block_label

    @property
    def segment_ends(self) -> npt.NDArray[np.int64]:
        return self.storage.segment_ends

    @property
    def appended(self) -> tuple[Appended, ...]:
        return self.storage.appended

    @property
    def largest_block(self) -> int:
        """Rows of the largest block that is read, whatever a view takes of it."""
        return self.storage.largest_block

    def __len__(self) -> int:
        return self.n_rows

    def __repr__(self) -> str:
        return f"Dataset({str(self.path)!r}, {self.storage.summary})"

    def read_block(self, index: int, *, shuffled: bool = True) -> Block:
        """One block of rows; a StoreError if its bytes are not those that were written.

        Its rows come in a random order, always the same. ``shuffled=False`` allows the order in
        which they are stored, which is faster.
        """
        return self.storage.read_block(index, shuffled=shuffled)

    def blocks_of(self, label: int) -> npt.NDArray[np.int64]:
        """Numbers of the blocks that hold the rows of a label, 0 or 1, or of a band."""
        return np.flatnonzero(self.block_label == label)

    def mixed_blocks_of(self, label: int) -> npt.NDArray[np.int64]:
        """The same blocks, so ordered that the first of them are from all segments.

        Each segment then has about its share of the rows in them. Of one segment, blocks are alike,
        and keep their order.
        """
        blocks, ends = self.blocks_of(label), self.segment_ends
        if len(ends) == 1:
            return blocks
        rows = self.block_rows[blocks]
        segment = np.searchsorted(ends, blocks, side="right")
        before = np.cumsum(rows) - rows
        before -= before[np.searchsorted(segment, segment)]
        of_segment = np.bincount(segment, rows)[segment]
        # Multiples of the golden ratio spread small segments, of one block each, over the order.
        place = (before + rows * ((segment + 1) * GOLDEN % 1)) / of_segment
        return blocks[np.argsort(place, kind="stable")]

    def some_blocks_of(self, label: int, n: int) -> npt.NDArray[np.int64]:
        """About the rows of n large blocks of a label, or of a band, from all segments."""
        blocks = self.mixed_blocks_of(label)
        if len(self.segment_ends) > 1 and len(blocks):
            rows = self.block_rows[blocks]
            n = int(np.searchsorted(np.cumsum(rows), n * rows.max())) + 1
        return blocks[:n]

    def blocks(self, random_state: int | np.random.Generator | None = None) -> Iterator[Block]:
        """All rows, block by block.

        Parameters
        ----------
        random_state : int, Generator or None
            Shuffles the order of the blocks. None: always the same order.
        """
        order = np.arange(self.n_blocks)
        if random_state is not None:
            order = np.random.default_rng(random_state).permutation(order)
        return (self.read_block(int(index)) for index in order)

    def __iter__(self) -> Iterator[Block]:
        return self.blocks()

    def verify(self) -> None:
        """Read every block; a StoreError names the first that is damaged."""
        for _ in self.blocks():
            pass
