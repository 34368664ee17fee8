"""The store: a shuffled, binned data set on disk. This file and the writer know its files.

    store/
      rows-<id>.bin   rows end to end: d bins, a label code, and a float32 weight if there are any;
                      those of a block lie in some extents of the file, see shuffle.py
      manifest.json   what the blocks hold and where, with a checksum of each, and in which file
                      they are; written last, in one step: until then an older store stays as it was
      ingest.lock     only while an ingest is writing here

Each row is in a block picked at random, and the rows of a block are read in random order: any run
of blocks is a random sample of the data.
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

from sparrowboost.binning import Binning
from sparrowboost.errors import StoreError
from sparrowboost.lookup import Bins
from sparrowboost.shuffle import Bucket, Records, file_bytes, permuted, read_bucket

FORMAT = "sparrow-store"
VERSION = 2
MANIFEST, LOCK, SCRATCH = "manifest.json", "ingest.lock", "scratch"
ROWS = re.compile(r"rows-[0-9a-f]{8}\.bin")
WEIGHT_BYTES = 4


class Block(NamedTuple):
    """Some rows of a store."""

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
        return self.n_features + 1 + WEIGHT_BYTES * self.weighted


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

    Examples
    --------
    >>> import numpy as np, sparrowboost
    >>> X = np.arange(20.0).reshape(10, 2)
    >>> ds = sparrowboost.ingest(X, label=X[:, 0] > 8, verbose=0)
    >>> ds.n_rows, ds.n_features, ds.n_positive
    (10, 2, 5)
    >>> block = next(ds.blocks())
    >>> block.bins.shape, block.label.sum()
    ((10, 2), np.uint64(5))
    """

    def __init__(self, path: str | os.PathLike[str], *, verify: bool = False) -> None:
        self.path = Path(path).expanduser().absolute()
        manifest = read_manifest(self.path)
        self._manifest = manifest
        self.n_rows: int = manifest["rows"]
        self.n_positive: int = manifest["positives"]
        self.weighted: bool = manifest["weighted"]
        self.classes: tuple[Any, Any] = tuple(manifest["classes"])
        self.label_name: str = manifest["label"]
        self.binning = Binning.from_json(manifest["features"])
        self._rows = self.path / manifest["file"]
        self._layout = Layout(len(self.binning.features), self.weighted)
        blocks = manifest["blocks"]
        self._blocks = [
            Bucket(*parts)
            for parts in zip(blocks["rows"], blocks["crc32"], blocks["extents"], strict=True)
        ]
        self._extent_rows: int = blocks["extent_rows"]
        self._seed: int = blocks["seed"]
        self._label_of = np.array(manifest["label_of"], np.uint8)
        self._check_size()
        if verify:
            self.verify()

    def _check_size(self) -> None:
        rows = self._rows
        try:
            size = rows.stat().st_size
        except OSError as error:
            raise StoreError(f"{rows}: cannot be read ({error.strerror}); ingest again.") from None
        expected = file_bytes(self._blocks, self._extent_rows, self._layout.row_bytes)
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

    def __len__(self) -> int:
        return self.n_rows

    def __repr__(self) -> str:
        return f"Dataset({str(self.path)!r}, rows={self.n_rows:,}, features={self.n_features})"

    def read_block(self, index: int) -> Block:
        """One block of rows; a StoreError if its bytes are not those that were written."""
        if not 0 <= index < self.n_blocks:
            raise IndexError(f"block {index} of a store that has {self.n_blocks}")
        bucket = self._blocks[index]
        rows = self._rows
        try:
            file = os.open(rows, os.O_RDONLY)
        except OSError as error:
            raise StoreError(f"{rows}: cannot be read ({error.strerror}).") from None
        try:
            records = read_bucket(file, bucket, self._extent_rows, self._layout.row_bytes)
        except OSError as error:
            raise StoreError(f"{rows}: block {index} cannot be read ({error.strerror}).") from None
        finally:
            os.close(file)
        if records is None or zlib.crc32(records.data) != bucket.crc32:
            raise StoreError(f"{rows}: block {index} of {self.n_blocks} is damaged; ingest again.")
        return self._take_apart(records, permuted(bucket.n_rows, self._seed, index))

    def _take_apart(self, records: Records, order: npt.NDArray[np.uint32]) -> Block:
        from sparrowboost.kernels.rows import gather_rows

        n = len(order)
        bins = np.empty((n, self._layout.n_features), np.uint8)
        label = np.empty(n, np.uint8)
        weight = np.empty(n * self.weighted, np.float32)
        in_bytes = weight.view(np.uint8).reshape(-1, WEIGHT_BYTES)
        gather_rows(records, order, self._label_of, bins, label, in_bytes)
        return Block(bins, label, weight if self.weighted else None)

    def blocks(self, random_state: int | np.random.Generator | None = None) -> Iterator[Block]:
        """All rows, block by block.

        Parameters
        ----------
        random_state : int, Generator or None
            Shuffles the order of the blocks. None keeps their order, which is random, too, but the
            same each time.
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
    except (OSError, ValueError) as error:
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
