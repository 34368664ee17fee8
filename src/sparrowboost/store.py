"""The store: a shuffled, binned data set on disk, and the only code that knows its files.

    store/
      rows-<id>.bin   blocks end to end, each: weights (n,) float32 if any
                                               bins    (n, d) uint8
                                               labels  (n,) uint8
      manifest.json   what the blocks hold, with a checksum of each, and in which file they are;
                      written last, in one step: until then an older store stays as it was
      ingest.lock     only while an ingest is writing here

Rows lie in uniformly random order, so any run of blocks is a random sample of the data.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparrowboost.binning import Binning, Bins
from sparrowboost.disk import check_room, guard_disk
from sparrowboost.errors import StoreError
from sparrowboost.shuffle import Shuffle, read_all, write_all
from sparrowboost.threads import ordered_map

FORMAT = "sparrow-store"
VERSION = 1
MANIFEST, LOCK, SCRATCH = "manifest.json", "ingest.lock", "scratch"
ROWS = re.compile(r"rows-[0-9a-f]{8}\.bin")
BLOCK_BYTES = 2 << 20  # one sequential read, and a few blocks fit in the smallest memory limit
WEIGHT_BYTES = 4


class Block(NamedTuple):
    """Some rows of a store."""

    bins: Bins  # (n, d)
    label: npt.NDArray[np.uint8]  # (n,) 1 = positive
    weight: npt.NDArray[np.float32] | None  # (n,)


@dataclass(frozen=True)
class Layout:
    """How a row's bytes are laid out, before and after the shuffle."""

    n_features: int
    weighted: bool

    @property
    def row_bytes(self) -> int:
        return self.n_features + 1 + WEIGHT_BYTES * self.weighted

    @property
    def block_rows(self) -> int:
        return max(1, BLOCK_BYTES // self.row_bytes)

    def views(self, data: npt.NDArray[np.uint8], n: int) -> Block:
        """The parts of a block of n rows. Weights come first, so that they are aligned."""
        w = n * WEIGHT_BYTES * self.weighted
        b = w + n * self.n_features
        weight = data[:w].view(np.float32) if self.weighted else None
        return Block(data[w:b].reshape(n, self.n_features), data[b : b + n], weight)


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
        manifest = _read_manifest(self.path)
        self._manifest = manifest
        self.n_rows: int = manifest["rows"]
        self.n_positive: int = manifest["positives"]
        self.weighted: bool = manifest["weighted"]
        self.classes: tuple[Any, Any] = tuple(manifest["classes"])
        self.label_name: str = manifest["label"]
        self.binning = Binning.from_json(manifest["features"])
        self._rows = self.path / manifest["file"]
        self._layout = Layout(len(self.binning.features), self.weighted)
        self._block_rows: list[int] = manifest["blocks"]["rows"]
        self._block_crc: list[int] = manifest["blocks"]["crc32"]
        self._offsets = np.concatenate(([0], np.cumsum(self._block_rows, dtype=np.int64)))
        self._offsets *= self._layout.row_bytes
        self._check_size()
        if verify:
            self.verify()

    def _check_size(self) -> None:
        rows = self._rows
        try:
            size = rows.stat().st_size
        except OSError as error:
            raise StoreError(f"{rows}: cannot be read ({error.strerror}); ingest again.") from None
        if size != self.n_bytes:
            raise StoreError(
                f"{rows}: has {size:,} bytes where the manifest says {self.n_bytes:,}; "
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
        return len(self._block_rows)

    @property
    def n_bytes(self) -> int:
        """Bytes of the rows on disk."""
        return int(self._offsets[-1])

    def __len__(self) -> int:
        return self.n_rows

    def __repr__(self) -> str:
        return f"Dataset({str(self.path)!r}, rows={self.n_rows:,}, features={self.n_features})"

    def read_block(self, index: int) -> Block:
        """One block of rows; a StoreError if its bytes are not those that were written."""
        if not 0 <= index < self.n_blocks:
            raise IndexError(f"block {index} of a store that has {self.n_blocks}")
        size = int(self._offsets[index + 1] - self._offsets[index])
        data = np.empty(size, np.uint8)
        rows = self._rows
        try:
            file = os.open(rows, os.O_RDONLY)
        except OSError as error:
            raise StoreError(f"{rows}: cannot be read ({error.strerror}).") from None
        try:
            n = read_all(file, data, int(self._offsets[index]))
        except OSError as error:
            raise StoreError(f"{rows}: block {index} cannot be read ({error.strerror}).") from None
        finally:
            os.close(file)
        if n < size or zlib.crc32(data.data) != self._block_crc[index]:
            raise StoreError(
                f"{rows}: block {index} of {self.n_blocks} is damaged "
                f"(bytes {self._offsets[index]:,} to {self._offsets[index + 1]:,}); ingest again."
            )
        return self._layout.views(data, self._block_rows[index])

    def blocks(self, random_state: int | np.random.Generator | None = None) -> Iterator[Block]:
        """All rows, block by block.

        Parameters
        ----------
        random_state : int, Generator or None
            Shuffles the order of the blocks. None keeps the order on disk, which is random, too,
            but the same each time.
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


def _read_manifest(path: Path) -> dict[str, Any]:
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
    if manifest.pop("crc32", None) != _manifest_crc(manifest):
        raise StoreError(f"{file}: is damaged (its checksum does not match); ingest again.")
    return manifest


def _no_manifest(path: Path) -> str:
    if not path.exists():
        return f"{path}: no such store; make one with `sparrow ingest` or sparrowboost.ingest()."
    if (path / LOCK).exists():
        return f"{path}: the store is unfinished, its ingest stopped half-way; ingest again."
    return f"{path}: not a Sparrow store (it has no {MANIFEST})."


def _manifest_crc(manifest: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())


class StoreWriter:
    """Writes a store: a context that leaves a finished store, or what was there before.

    Parameters
    ----------
    path : the store's folder; None makes a temporary one that goes with the Dataset
    overwrite : replace a store that is there
    """

    def __init__(self, path: str | os.PathLike[str] | None, *, overwrite: bool = False) -> None:
        self._temporary = path is None
        self.path = Path(tempfile.mkdtemp(prefix="sparrow-") if path is None else path)
        self.path = self.path.expanduser().absolute()
        self._rows = self.path / f"rows-{secrets.token_hex(4)}.bin"
        self.scratch = self.path / SCRATCH
        self._shuffle: Shuffle | None = None
        self._finished = False
        self._made = [self.path] if self._temporary else []
        try:
            self._take_folder(overwrite)
        except StoreError:
            raise
        except OSError as error:
            self._remove_folders()
            raise StoreError(f"{self.path}: cannot be written ({error.strerror}).") from None

    def _take_folder(self, overwrite: bool) -> None:
        self._check_the_way(overwrite)
        # Folders to remove again, innermost first, if nothing comes of it.
        self._made += [p for p in (self.path, *self.path.parents) if not p.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise StoreError(f"{self.path}: another ingest is writing a store here now.") from None
        self._remove_leftovers()
        self.scratch.mkdir()

    def _check_the_way(self, overwrite: bool) -> None:
        """Stop at what is not ours to replace."""
        path = self.path
        if path.exists() and not path.is_dir():
            raise StoreError(f"{path}: is a file; a store is a folder, choose another path.")
        names = self._names()
        if MANIFEST in names and not overwrite:
            raise StoreError(
                f"{path}: a store is there already; open it with Dataset({str(path)!r}), choose "
                "another path, or pass overwrite=True (--overwrite)."
            )
        ours = {MANIFEST, LOCK, SCRATCH, MANIFEST + ".tmp"}
        foreign = sorted(n for n in names if n not in ours and not ROWS.fullmatch(n))
        if foreign:
            raise StoreError(
                f"{path}: the folder has other files in it ({foreign[0]!r}); "
                "choose a path that does not exist yet."
            )

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except OSError:  # not there, or not to be read: making it will tell
            return []

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        if not self._finished:
            if self._shuffle is not None:
                self._shuffle.close()
            self._remove_leftovers()
            self._unlock()
            self._remove_folders()

    def _remove_leftovers(self) -> None:
        """Remove what no finished store needs: of this ingest, or of one that was killed."""
        names = self._names()
        in_use = set(names) - {self._rows.name} if MANIFEST in names else set()
        try:
            in_use = {_read_manifest(self.path)["file"]}
        except StoreError:  # none, or of a store that is damaged or newer: replaced, not judged
            pass
        for name in names:
            if name == MANIFEST + ".tmp" or (ROWS.fullmatch(name) and name not in in_use):
                (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _unlock(self) -> None:
        (self.path / LOCK).unlink(missing_ok=True)
        os.close(self._lock)

    def _remove_folders(self) -> None:
        for folder in self._made:
            try:
                folder.rmdir()
            except OSError:  # was never made, or somebody put something there
                pass

    def start(
        self, binning: Binning, *, weighted: bool, n_rows: int, memory: int, seed: int
    ) -> None:
        """Make ready for about `n_rows` rows, shuffled within `memory` bytes."""
        self._binning = binning
        self.layout = Layout(len(binning.features), weighted)
        # Twice: once scattered, once in order.
        check_room(self.path, 2 * n_rows * self.layout.row_bytes)
        self._shuffle = Shuffle(
            self.scratch / "shuffle.bin", self.layout.row_bytes, n_rows, memory, seed
        )

    def put(self, records: npt.NDArray[np.uint8]) -> None:
        """Take rows as records (n, row_bytes): bins, label code, weight."""
        assert self._shuffle is not None
        self._shuffle.put(records)

    def finish(
        self,
        label_of: npt.NDArray[np.uint8],
        about: dict[str, Any],
        *,
        n_jobs: int,
        advance: Callable[[int, int], None],
    ) -> Dataset:
        """Shuffle the rows into blocks and write the manifest.

        `label_of` says what label each code means, `about` goes into the manifest.
        """
        shuffle = self._shuffle
        assert shuffle is not None
        counts = [shuffle.count(b) for b in range(shuffle.n_buckets)]
        starts = np.concatenate(([0], np.cumsum(counts))) * self.layout.row_bytes
        rows = self._rows
        file = os.open(rows, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        blocks: list[tuple[int, int, int]] = []  # rows, positives, checksum
        try:

            def work(b: int) -> list[tuple[int, int, int]]:
                with guard_disk(rows, int(starts[-1])):
                    return self._write_bucket(file, b, int(starts[b]), label_of)

            with closing(ordered_map(work, range(len(counts)), n_jobs, n_jobs)) as results:
                for done in results:
                    blocks += done
                    n = sum(block[0] for block in done)
                    advance(n, n * self.layout.row_bytes)
            with guard_disk(rows, int(starts[-1])):
                os.fsync(file)
        finally:
            os.close(file)
        shuffle.close()
        return self._publish(blocks, about)

    def _write_bucket(
        self, file: int, b: int, offset: int, label_of: npt.NDArray[np.uint8]
    ) -> list[tuple[int, int, int]]:
        """One bucket's rows, permuted, as blocks of about the same size."""
        from sparrowboost.kernels.rows import gather_rows

        assert self._shuffle is not None
        records = self._shuffle.bucket(b)
        order = self._shuffle.order(b)
        blocks = []
        n_blocks = -(-len(order) // self.layout.block_rows)
        for part in np.array_split(order, n_blocks) if n_blocks else []:
            n = len(part)
            data = np.empty(n * self.layout.row_bytes, np.uint8)
            bins, label, weight = self.layout.views(data, n)
            weight_bytes = (
                np.empty((0, WEIGHT_BYTES), np.uint8)
                if weight is None
                else weight.view(np.uint8).reshape(n, WEIGHT_BYTES)
            )
            positives = gather_rows(records, part, label_of, bins, label, weight_bytes)
            blocks.append((n, int(positives), zlib.crc32(data.data)))
            write_all(file, data, offset)
            offset += len(data)
        return blocks

    def _publish(self, blocks: list[tuple[int, int, int]], about: dict[str, Any]) -> Dataset:
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            **about,
            "file": self._rows.name,
            "rows": sum(block[0] for block in blocks),
            "positives": sum(block[1] for block in blocks),
            "weighted": self.layout.weighted,
            "features": self._binning.to_json(),
            "blocks": {"rows": [b[0] for b in blocks], "crc32": [b[2] for b in blocks]},
        }
        manifest["crc32"] = _manifest_crc(manifest)
        temporary = self.path / (MANIFEST + ".tmp")
        with guard_disk(temporary, 0), open(temporary, "w") as file:
            json.dump(manifest, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path / MANIFEST)
        self._remove_leftovers()
        self._unlock()
        self._finished = True
        dataset = Dataset(self.path)
        if self._temporary:
            weakref.finalize(dataset, shutil.rmtree, self.path, ignore_errors=True)
        return dataset
