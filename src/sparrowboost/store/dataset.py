"""The store: a shuffled, binned data set on disk. This file and the writer know its files.

    store/
      rows-<id>.bin   rows end to end: d bins, and a float32 weight if there are any; those of a
                      block lie in some runs of the file, see shuffle.py
      manifest.json   where the blocks are and which label they have, with checksums, and in which
                      file; written last, in one step: until then an older store stays as it was
      ingest.lock     only while an ingest is writing here
      progress.npz    of an ingest that may be resumed: what it has done so far

All rows of a block have one label: who wants more of the rare one need not read all of the other.
Each row is in a block of its label that was picked at random, and the rows of a block are read in
random order: any run of blocks of a label is a random sample of its rows. Where the source was read
in stages (`staged.py`), that holds within each stage, and stages are random parts of the source.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparrowboost.runtime.errors import StoreError
from sparrowboost.store.binning import Binning
from sparrowboost.store.lookup import Bins
from sparrowboost.store.shuffle import Records, Run, StoredBlock, file_bytes, permuted, read_block

FORMAT = "sparrow-store"
VERSION = 2
MANIFEST, LOCK, SCRATCH, PROGRESS = "manifest.json", "ingest.lock", "scratch", "progress.npz"
ROWS = re.compile(r"rows-[0-9a-f]{8}\.bin")
WEIGHT_BYTES = 4


class Block(NamedTuple):
    """Some rows of a store, all of one label."""

    bins: Bins  # (n, d)
    label: npt.NDArray[np.uint8]  # (n,) 1 = positive
    weight: npt.NDArray[np.float32] | None  # (n,)


@dataclass(frozen=True)
class Layout:
    """How a row's bytes are laid out."""

    n_features: int
    weighted: bool

    @property
    def row_bytes(self) -> int:
        return self.n_features + WEIGHT_BYTES * self.weighted


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
    n_rows, n_features, n_positive, n_blocks, n_bytes : int
    feature_names : list of str
    binning : Binning
        Thresholds and categories of each feature.
    classes : tuple
        The negative and the positive label as they were in the source; None stands for "any
        other" when one value was trained against several.
    weighted : bool
        Whether rows have sample weights.
    block_rows, block_label : (n_blocks,) int
        Rows of each block, and the label that they all have.

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

    def __init__(self, path: str | os.PathLike[str], *, verify: bool = False) -> None:
        path = Path(path).expanduser().absolute()
        manifest = read_manifest(path)
        self._take(path, manifest, Binning.from_json(manifest["features"]))
        self._check_size()
        if verify:
            self.verify()

    @classmethod
    def unfinished(cls, path: Path, manifest: dict[str, Any], binning: Binning) -> Dataset:
        """The rows that an ingest has stored so far, by the manifest that it would write now."""
        self = cls.__new__(cls)
        self._take(path, manifest, binning)
        return self

    def _take(self, path: Path, manifest: dict[str, Any], binning: Binning) -> None:
        self.path, self._manifest, self.binning = path, manifest, binning
        self.weighted: bool = manifest["weighted"]
        self.classes: tuple[Any, Any] = tuple(manifest["classes"])
        self.label_name: str = manifest["label"]
        self._rows = self.path / manifest["file"]
        self._seed: int = manifest["random_state"]
        self._layout = Layout(len(self.binning.features), self.weighted)
        label_of = manifest["label_of"]
        self._blocks = [
            StoredBlock(label_of[code], [Run(*run) for run in runs])
            for code, runs in manifest["blocks"]
        ]
        self.block_rows = np.array([block.n_rows for block in self._blocks])
        self.block_label = np.array([block.code for block in self._blocks])
        self.n_rows = int(self.block_rows.sum())
        self.n_positive = int(self.block_rows @ self.block_label)

    def _check_size(self) -> None:
        rows = self._rows
        try:
            size = rows.stat().st_size
        except OSError as error:
            raise StoreError(f"{rows}: cannot be read ({error.strerror}); ingest again.") from None
        expected = file_bytes(self._blocks, self._layout.row_bytes)
        if size != expected:
            raise StoreError(
                f"{rows}: has {size:,} bytes where the manifest says {expected:,}; "
                "the store is damaged, ingest again."
            )

    @property
    def n_features(self) -> int:
        return self._layout.n_features

    @property
    def feature_names(self) -> list[str]:
        return self.binning.names

    @property
    def n_blocks(self) -> int:
        return len(self._blocks)

    @property
    def n_bytes(self) -> int:
        """Bytes of the rows on disk."""
        return self.n_rows * self._layout.row_bytes

    @property
    def largest_block(self) -> int:
        """Rows of the largest block."""
        return int(self.block_rows.max())

    def __len__(self) -> int:
        return self.n_rows

    def __repr__(self) -> str:
        return f"Dataset({str(self.path)!r}, rows={self.n_rows:,}, features={self.n_features})"

    def read_block(self, index: int, *, shuffled: bool = True) -> Block:
        """One block of rows; a StoreError if its bytes are not those that were written.

        Its rows come in a random order, always the same. Who does not mind may have them as they
        lie, which is faster.
        """
        if not 0 <= index < self.n_blocks:
            raise IndexError(f"block {index} of a store that has {self.n_blocks}")
        block, width = self._blocks[index], self._layout.row_bytes
        rows = self._rows
        try:
            file = os.open(rows, os.O_RDONLY)
        except OSError as error:
            raise StoreError(f"{rows}: cannot be read ({error.strerror}).") from None
        try:
            records = read_block(file, block, width)
        except OSError as error:
            raise StoreError(f"{rows}: block {index} cannot be read ({error.strerror}).") from None
        finally:
            os.close(file)
        if records is None:
            at = block.runs[0].start * width
            raise StoreError(
                f"{rows}: block {index} of {self.n_blocks} is damaged (from byte {at:,} on); "
                "ingest again."
            )
        order = permuted(len(records), self._seed, index) if shuffled else None
        bins, weight = self._take_apart(records, order)
        return Block(bins, np.full(len(bins), block.code, np.uint8), weight)

    def _take_apart(
        self, records: Records, order: npt.NDArray[np.uint32] | None
    ) -> tuple[Bins, npt.NDArray[np.float32] | None]:
        from sparrowboost.kernels.rows import gather_rows

        if order is None:
            if not self.weighted:
                return records, None
            order = np.arange(len(records), dtype=np.uint32)
        n = len(order)
        bins = np.empty((n, self._layout.n_features), np.uint8)
        weight = np.empty(n * self.weighted, np.float32)
        gather_rows(records, order, bins, weight.view(np.uint8).reshape(-1, WEIGHT_BYTES))
        return bins, weight if self.weighted else None

    def blocks_of(self, label: int) -> npt.NDArray[np.int64]:
        """Numbers of the blocks that hold the rows of a label, 0 or 1."""
        return np.flatnonzero(self.block_label == label)

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


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a store; a StoreError if there is none that can be trusted."""
    file = path / MANIFEST
    try:
        manifest = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise StoreError(_no_manifest(path)) from None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{file}: cannot be read ({error}); ingest again.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise StoreError(f"{path}: not a Sparrow store.")
    if manifest.get("version") != VERSION:
        raise StoreError(
            f"{path}: is of store version {manifest.get('version')}, this Sparrow reads version "
            f"{VERSION}; ingest again with this one."
        )
    if manifest.pop("crc32", None) != manifest_crc(manifest):
        raise StoreError(f"{file}: is damaged (its checksum does not match); ingest again.")
    return manifest


def _no_manifest(path: Path) -> str:
    if not path.exists():
        return f"{path}: no such store; make one with `sparrow ingest` or sparrowboost.ingest()."
    if (path / LOCK).exists():
        return f"{path}: the store is unfinished, its ingest stopped half-way; ingest again."
    return f"{path}: not a Sparrow store (it has no {MANIFEST})."


def manifest_crc(manifest: dict[str, Any]) -> int:
    """The checksum of a manifest without its own."""
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())
