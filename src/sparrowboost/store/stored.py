"""The files of a store. This module and the writer are the only ones that know them.

    store/
      rows-<id>.bin   the rows, end to end: d bins each, a float32 weight if there are weights, a
                      float32 offset if there are offsets, and a float32 target if labels are
                      numbers, or the code of the class if there are more than two. The rows of a
                      block are in one or more runs of the file, see shuffle.py
      tails-<id>.bin  of packed rows (packing.py), what does not fit into those that are long: where
                      each tail ends, as int64, and their words
      manifest.json   the blocks: where they are, their bands and checksums, and the name of the
                      file. Written last, in one step: until then, an older store stays valid
      ingest.lock     only while an ingest is writing here

Rows that are appended are a *segment*: a file of their own, with blocks of their own. The manifest
then has a list of segments besides what it had before, and a version that says so. A file is never
written to again once a manifest names it, so that whoever has the store open goes on with the rows
that it had. To a draw, a segment is what a stage is (`staged.py`): a random sample of all rows has
blocks of each.

All rows of a block are of one band: of one label, so that more of the rare label can be read
without reading all of the other; of some classes that are about as frequent; or of one range of the
target. Each row is in a random block of its band, and the rows of a block are read in random order:
any run of blocks of a band is a random sample of its rows. Where the source was read in stages
(`staged.py`), this holds within each stage, and stages are random parts of the source.

Classes have codes in the order in which they were found. The manifest has the class of each code.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.runtime.budget import NUMBER_BYTES
from sparrowboost.runtime.errors import StoreError
from sparrowboost.store.appended import Appended
from sparrowboost.store.binning import Binning
from sparrowboost.store.lookup import Bins
from sparrowboost.store.packing import WORD_BYTES, Packing, Shape, Tails
from sparrowboost.store.shuffle import Records, Run, StoredBlock, file_bytes, permuted, read_block
from sparrowboost.store.storage import Block, task_of_classes

FORMAT = "sparrow-store"
VERSION = 2
TARGET_VERSION = 3  # of stores whose labels are numbers
CLASS_VERSION = 4  # of stores whose labels are of more than two classes
OFFSET_VERSION = 5  # of stores whose rows have offsets
APPENDED_VERSION = 6  # of stores of any rows to which others were appended
STATISTICS_VERSION = 7  # of stores with statistics of categories, of any rows
PACKED_VERSION = 8  # of stores of packed rows, which have no segments and no statistics
VERSIONS = (
    VERSION, TARGET_VERSION, CLASS_VERSION, OFFSET_VERSION, APPENDED_VERSION, STATISTICS_VERSION,
    PACKED_VERSION,
)  # fmt: skip
MANIFEST, LOCK, SCRATCH = "manifest.json", "ingest.lock", "scratch"
PROGRESS = ("progress.npz", "progress.npz.tmp")  # of unfinished ingests by earlier versions
ROWS = re.compile(r"(rows|tails)-[0-9a-f]{8}\.bin")


@dataclass(frozen=True)
class Layout:
    """How a row's bytes are laid out."""

    n_features: int
    weighted: bool
    targeted: bool = False
    offset: bool = False
    packed_bytes: int | None = None  # of the bins of a row; a byte for each feature by default

    @property
    def bin_bytes(self) -> int:
        """Bytes of the bins of a row."""
        return self.n_features if self.packed_bytes is None else self.packed_bytes

    @property
    def n_extra(self) -> int:
        """Numbers that follow the bins: weight, offset, target."""
        return self.weighted + self.offset + self.targeted

    @property
    def row_bytes(self) -> int:
        return self.bin_bytes + NUMBER_BYTES * self.n_extra


class Lifetime:
    """A temporary store is removed when nobody refers to this any more."""


class StoredRows:
    """The rows of a store on disk, or those that an ingest has stored so far.

    Parameters
    ----------
    path : Path
        The store's folder.
    manifest : dict
    binning : Binning
        The features of the manifest.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], binning: Binning) -> None:
        self.path, self.binning = path, binning
        segments = segments_of(manifest)
        self.weighted: bool = manifest["weighted"]
        self.offset_name: str | None = manifest.get("offset")
        self.classes: tuple[Any, ...] = tuple(manifest["classes"])
        self.n_classes = len(self.classes)
        self.targeted = self.n_classes != 2
        self.task = task_of_classes(self.n_classes)
        self.target_span: tuple[float, float] | None = None
        if "target_span" in manifest:
            low, high = zip(*(segment["target_span"] for segment in segments), strict=True)
            self.target_span = min(low), max(high)
        class_rows = [segment.get("class_rows", ()) for segment in segments]
        self.class_rows = np.array(class_rows, np.int64).sum(axis=0)
        self.first_class_rows = np.array(class_rows[0], np.int64)  # of the first segment
        self.class_band = np.array(manifest.get("class_band", ()), np.int64)
        class_of = np.array(manifest.get("class_of", ()), np.float32)
        in_order = np.array_equal(class_of, np.arange(len(class_of)))
        self._class_of = None if in_order else class_of  # of each code
        self.label_name: str = manifest["label"]
        self._seed: int = manifest["random_state"]
        has_offset = self.offset_name is not None
        self._packed: dict[str, Any] | None = manifest.get("packed")
        shape = None if self._packed is None else Shape(*self._packed["shape"])
        packed_bytes = None if shape is None else WORD_BYTES * shape.words
        of_row = self.weighted, self.targeted, has_offset, packed_bytes
        self._layout = Layout(len(binning.features), *of_row)
        self.n_bands = len(manifest["label_of"])
        self._files = [path / segment["file"] for segment in segments]
        self._blocks: list[StoredBlock] = []
        ends = []
        for segment in segments:
            label_of = segment["label_of"]
            self._blocks += [
                StoredBlock(label_of[code], [Run(*run) for run in runs])
                for code, runs in segment["blocks"]
            ]
            ends.append(len(self._blocks))
        self.segment_ends = np.array(ends, np.int64)
        self._appended = [segment["appended"] for segment in segments[1:]]
        self.band_starts: list[float] | None = segments[-1].get("band_starts")
        self.lifetime: Lifetime | None = None  # of a temporary store
        self.block_rows = np.array([block.n_rows for block in self._blocks], np.int64)
        self.block_label = np.array([block.code for block in self._blocks], np.int64)
        self.n_rows = int(self.block_rows.sum())

    @cached_property
    def appended(self) -> tuple[Appended, ...]:
        return tuple(map(Appended.from_json, self._appended))

    @cached_property
    def packing(self) -> Packing | None:
        """How rows are packed, if they are, with the tails of long ones."""
        if self._packed is None:
            return None
        shape, order = Shape(*self._packed["shape"]), self._packed["order"]
        packing = Packing(self.binning, shape, order, missing=self._packed["missing"])
        if shape.tailed:
            packing.tails = self._read_tails(**self._packed["tails"])
        return packing

    def _read_tails(self, file: str, n: int, words: int, crc32: int) -> Tails:
        tails = Tails(np.empty(n + 1, np.int64), np.empty(words, np.uint16))
        path = self.path / file
        try:
            with open(path, "rb", buffering=0) as source:
                data = [part.view(np.uint8) for part in tails]
                n_read = [source.readinto(part.data) for part in data]
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror}); ingest again.") from None
        if n_read != [len(part) for part in data] or tails_crc(tails) != crc32:
            raise StoreError(f"{path}: is damaged; ingest again.")
        return tails

    @property
    def summary(self) -> str:
        return f"rows={self.n_rows:,}, features={self._layout.n_features}"

    @property
    def n_bytes(self) -> int:
        return self.n_rows * self._layout.row_bytes

    @property
    def largest_block(self) -> int:
        return int(self.block_rows.max())

    @property
    def code_of(self) -> npt.NDArray[np.int64]:
        """(n_classes,) the code of each class, where there are more than two."""
        if self._class_of is None:
            return np.arange(self.n_classes)
        # A code of no row may stand for the first class, too: which one it gets does not matter.
        found, codes = np.unique(self._class_of, return_index=True)
        assert len(found) == self.n_classes
        return codes

    def check_size(self) -> None:
        """A StoreError if a file is not as long as the manifest says."""
        if self._packed is not None and self._packed["tails"] is not None:
            assert self.packing is not None  # few bytes, so that they are read
        starts = [0, *self.segment_ends.tolist()]
        for file, start, stop in zip(self._files, starts, starts[1:], strict=False):
            try:
                size = file.stat().st_size
            except OSError as error:
                raise StoreError(
                    f"{file}: cannot be read ({error.strerror}); ingest again."
                ) from None
            expected = file_bytes(self._blocks[start:stop], self._layout.row_bytes)
            if size != expected:
                raise StoreError(
                    f"{file}: has {size:,} bytes where the manifest says {expected:,}; "
                    "the store is damaged, ingest again."
                )

    def read_block(self, index: int, *, shuffled: bool = True) -> Block:
        n_blocks, width = len(self._blocks), self._layout.row_bytes
        if not 0 <= index < n_blocks:
            raise IndexError(f"block {index} of a store that has {n_blocks}")
        block = self._blocks[index]
        path = self._files[int(np.searchsorted(self.segment_ends, index, side="right"))]
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror}).") from None
        try:
            records = read_block(file, block, width)
        except OSError as error:
            raise StoreError(f"{path}: block {index} cannot be read ({error.strerror}).") from None
        finally:
            os.close(file)
        if records is None:
            start = block.runs[0].start * width
            raise StoreError(
                f"{path}: block {index} of {n_blocks} is damaged (from byte {start:,} on); "
                "ingest again."
            )
        order = permuted(len(records), self._seed, index) if shuffled else None
        bins, extra = self._split_records(records, order)
        label = np.full(len(bins), block.code, np.uint8)
        weight = np.ascontiguousarray(extra[:, 0]) if self.weighted else None
        offset = None
        if self.offset_name is not None:
            offset = np.ascontiguousarray(extra[:, int(self.weighted)])
        target = np.ascontiguousarray(extra[:, -1]) if self.targeted else None
        if target is not None and self._class_of is not None:
            target = self._class_of[target.astype(np.intp)]
        return Block(bins, label, weight, target, offset)

    def _split_records(
        self, records: Records, order: npt.NDArray[np.uint32] | None
    ) -> tuple[Bins, npt.NDArray[np.float32]]:
        """Bins of records, and the numbers (n, n_extra) that follow them, in the order given."""
        from sparrowboost.kernels.rows import gather_rows

        n, e = len(records), self._layout.n_extra
        extra = np.empty((n, e), np.float32)
        if order is None:
            if e == 0:
                return records, extra
            order = np.arange(n, dtype=np.uint32)
        bins = np.empty((n, self._layout.bin_bytes), np.uint8)
        gather_rows(records, order, bins, extra.view(np.uint8).reshape(n, NUMBER_BYTES * e))
        return bins, extra


def tails_crc(tails: Tails) -> int:
    """The checksum of a file of tails."""
    return zlib.crc32(tails.words.view(np.uint8).data, zlib.crc32(tails.ends.view(np.uint8).data))


def open_store(path: str | os.PathLike[str]) -> StoredRows:
    """The rows of a finished store; a StoreError if it is missing or damaged."""
    folder = Path(path).expanduser().absolute()
    manifest = read_manifest(folder)
    rows = StoredRows(folder, manifest, Binning.from_json(manifest["features"]))
    rows.check_size()
    return rows


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a store; a StoreError if there is no valid one."""
    file = path / MANIFEST
    try:
        manifest = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise StoreError(_no_manifest(path)) from None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{file}: cannot be read ({error}); ingest again.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise StoreError(f"{path}: not a Sparrow store.")
    if manifest.get("version") not in VERSIONS:
        raise StoreError(
            f"{path}: has store version {manifest.get('version')}, this Sparrow reads versions "
            f"{VERSIONS[0]} to {VERSIONS[-1]}; ingest again with this one."
        )
    if manifest.pop("crc32", None) != manifest_crc(manifest):
        raise StoreError(f"{file}: is damaged (its checksum does not match); ingest again.")
    return manifest


def segments_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that a store began with, and those of each time that rows were appended."""
    return [manifest, *manifest.get("segments", ())]


def _no_manifest(path: Path) -> str:
    if not path.exists():
        return f"{path}: no such store; make one with `sparrow ingest` or sparrowboost.ingest()."
    if (path / LOCK).exists():
        return f"{path}: the store is unfinished, its ingest was interrupted; ingest again."
    return f"{path}: not a Sparrow store (it has no {MANIFEST})."


def manifest_crc(manifest: dict[str, Any]) -> int:
    """The checksum of a manifest without its own: of `json.dumps` with sorted keys."""
    crc = 0
    for piece in json_pieces(manifest, sort_keys=True):
        crc = zlib.crc32(piece.encode(), crc)
    return crc


def json_pieces(document: Mapping[str, Any], *, sort_keys: bool = False) -> Iterator[str]:
    """What `json.dumps` makes, in pieces: that of thousands of features takes 10 MB and more.

    Examples
    --------
    >>> "".join(json_pieces({"b": [1, {"d": 2, "c": 3}], "a": "x"}, sort_keys=True))
    '{"a": "x", "b": [1, {"c": 3, "d": 2}]}'
    """
    yield "{"
    for i, key in enumerate(sorted(document) if sort_keys else document):
        yield f"{', ' if i else ''}{json.dumps(key)}: "
        value = document[key]
        if not isinstance(value, list):
            yield json.dumps(value, sort_keys=sort_keys)
            continue
        yield "["
        for k, item in enumerate(value):
            yield (", " if k else "") + json.dumps(item, sort_keys=sort_keys)
        yield "]"
    yield "}"
