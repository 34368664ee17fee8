"""Writes a store: a finished one or nothing, and only one at a time in a folder."""

from __future__ import annotations

import os
import secrets
import shutil
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.runtime.budget import NUMBER_BYTES
from sparrowboost.runtime.disk import (
    check_room,
    guard_disk,
    open_own,
    output_path,
    sync_folder,
    try_lock,
)
from sparrowboost.runtime.errors import StoreError
from sparrowboost.runtime.temporary import make_folder, only_here
from sparrowboost.store.binning import Binning
from sparrowboost.store.dataset import Dataset
from sparrowboost.store.packing import Packing, Tails
from sparrowboost.store.shuffle import Shuffle, StoredBlock
from sparrowboost.store.stored import (
    APPENDED_VERSION,
    CLASS_VERSION,
    FORMAT,
    LOCK,
    MANIFEST,
    OFFSET_VERSION,
    PACKED_VERSION,
    PROGRESS,
    ROWS,
    SCRATCH,
    STATISTICS_VERSION,
    TARGET_VERSION,
    VERSION,
    Layout,
    Lifetime,
    StoredRows,
    json_pieces,
    manifest_crc,
    open_store,
    read_manifest,
    segments_of,
    tails_crc,
)

TEMPORARY = ".tmp"  # suffix of a file that is being written


class StoreWriter:
    """Writes a store: a context that leaves a finished store, or what was there before.

    Parameters
    ----------
    path : the store's folder; None makes a temporary one, which is removed with the Dataset
    overwrite : replace an existing store
    append : add to an existing store, whose rows are then in `base`
    run : the files and options of this ingest, for the manifest
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        overwrite: bool = False,
        append: bool = False,
        run: Mapping[str, Any] | None = None,
    ) -> None:
        self._run = run
        self._append = append
        self._base: dict[str, Any] = {}  # the manifest of the store that rows are appended to
        self._temporary = path is None
        self.path = output_path(make_folder("store") if path is None else path)
        self._rows = self.path / f"rows-{secrets.token_hex(4)}.bin"
        self.scratch = self.path / SCRATCH
        self._shuffle: Shuffle | None = None
        self._blocks: list[StoredBlock] = []
        self.target_span: tuple[float, float] | None = None  # of the rows so far
        self._ended = False
        self._made_by = os.getpid()
        self._made = [self.path] if self._temporary else []
        try:
            self._take_folder(overwrite)
        except StoreError:
            raise
        except OSError as error:
            self._remove_folders()
            advice = "; copy the store to where it can, and append there" if append else ""
            raise StoreError(
                f"{self.path}: cannot be written ({error.strerror}){advice}."
            ) from None

    def _take_folder(self, overwrite: bool) -> None:
        self._check_folder(overwrite)
        # Folders to remove again, innermost first, if the ingest fails.
        self._made += [p for p in (self.path, *self.path.parents) if not p.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = open_own(self.path / LOCK)
        try:
            if not try_lock(self._lock, self.path / LOCK):
                raise StoreError(f"{self.path}: another ingest is writing to this folder.")
        except StoreError:
            os.close(self._lock)
            raise
        self._check_lock()
        try:
            self._check_folder(overwrite)  # once more: another ingest may have ended meanwhile
            if self._append:
                self._found = (self.path / MANIFEST).stat()
                self._base = read_manifest(self.path)
                self.base = StoredRows(
                    self.path, self._base, Binning.from_json(self._base["features"])
                )
                self.base.check_size()
            self._remove_leftovers()
            self.scratch.mkdir()
        except OSError:  # a StoreError, too
            self._unlock()
            raise

    def _check_lock(self) -> None:
        """Refuse a lock file that another ingest has removed since it was opened."""
        try:
            inode = (self.path / LOCK).stat().st_ino
        except FileNotFoundError:
            inode = None
        if inode != os.fstat(self._lock).st_ino:
            os.close(self._lock)
            raise StoreError(f"{self.path}: another ingest was writing to this folder; try again.")

    def _check_folder(self, overwrite: bool) -> None:
        """Refuse a path where something is that may not be replaced."""
        path = self.path
        if path.exists() and not path.is_dir():
            raise StoreError(f"{path}: is a file; a store is a folder, choose another path.")
        names = self._names()
        if self._append:
            if MANIFEST not in names:
                read_manifest(path)  # says what is there instead
            return
        if MANIFEST in names and not overwrite:
            raise StoreError(
                f"{path}: already has a store; open it with Dataset({str(path)!r}), choose "
                "another path, or pass overwrite=True (--overwrite)."
            )
        ours = {MANIFEST, MANIFEST + TEMPORARY, LOCK, SCRATCH, *PROGRESS}
        foreign = sorted(n for n in names if n not in ours and not ROWS.fullmatch(n))
        if foreign:
            raise StoreError(
                f"{path}: the folder has other files ({foreign[0]!r}); "
                "choose a path that does not exist yet."
            )

    def _check_unchanged(self) -> None:
        """Refuse to replace a manifest that another process has written: locks may not work."""
        now = (self.path / MANIFEST).stat()
        unchanged = (now.st_ino, now.st_mtime_ns) == (self._found.st_ino, self._found.st_mtime_ns)
        if not unchanged or not self._rows.exists():
            raise StoreError(
                f"{self.path}: the store was changed while rows were appended; append them again."
            )

    @property
    def runs(self) -> list[Mapping[str, Any]]:
        """Of each time that rows were appended, the files and options, where they were kept."""
        segments = self._base.get("segments", ())
        return [segment["run"] for segment in segments if segment["run"] is not None]

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except OSError:  # missing or unreadable: the attempt to make it says so
            return []

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        if not self._ended:
            self._ended = True
            if self._made_by != os.getpid():  # a forked process ends: this one goes on
                return
            if self._shuffle is not None:
                self._shuffle.close()
            self._remove_leftovers(own=self._append)
            self._unlock()
            self._remove_folders()

    def _remove_leftovers(self, *, own: bool = False) -> None:
        """Remove files of this ingest, or of one that was killed, that no finished store needs.

        `own`: only those of this ingest; where there are no locks, another one may be under way.
        """
        names = self._names()
        in_use = set(names) - {self._rows.name} if MANIFEST in names else set()
        try:  # what is on disk: an interrupt may come just after the manifest was replaced
            manifest = read_manifest(self.path)
            in_use = {segment["file"] for segment in segments_of(manifest)}
            tails = (manifest.get("packed") or {}).get("tails")
            in_use |= set() if tails is None else {tails["file"]}
        except StoreError:  # missing, damaged or of a newer version: left until it is replaced
            pass
        for name in {self._rows.name, MANIFEST + TEMPORARY} if own else names:
            unused = ROWS.fullmatch(name) is not None and name not in in_use
            if unused or name.endswith(TEMPORARY) or name in PROGRESS:
                (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _unlock(self) -> None:
        (self.path / LOCK).unlink(missing_ok=True)
        os.close(self._lock)

    def _remove_folders(self) -> None:
        for folder in self._made:
            try:
                folder.rmdir()
            except OSError:  # never made, or not empty
                pass

    def start(
        self,
        binning: Binning,
        layout: Layout,
        *,
        n_rows: int,
        stage_rows: int,
        memory: int,
        seed: int,
        n_bands: int = 2,
        largest_share: float = 1.0,
        packing: Packing | None = None,
    ) -> None:
        """Prepare for about `n_rows` rows, `stage_rows` in a stage, shuffled in `memory` bytes.

        If it was started before, rows taken since are dropped.
        """
        if self._shuffle is not None:
            self._shuffle.close()
            self._rows.unlink()
            self._blocks, self.target_span = [], None
        self._binning, self.layout, self._packing = binning, layout, packing
        width = layout.row_bytes
        check_room(self.path, n_rows * width)
        self._shuffle = Shuffle(self._rows, width, stage_rows, memory, seed, n_bands, largest_share)

    @property
    def block_rows(self) -> int:
        """About the rows of the largest block."""
        assert self._shuffle is not None
        return self._shuffle.block_rows

    def put(self, records: npt.NDArray[np.uint8], codes: npt.NDArray[np.uint8]) -> None:
        """Take rows as records (n, row_bytes) of bins and numbers, and their bands."""
        assert self._shuffle is not None
        self._shuffle.put(records, codes)
        if self.layout.targeted and len(records):
            target = records[:, -NUMBER_BYTES:].copy().view(np.float32)
            low, high = float(target.min()), float(target.max())
            if self.target_span is not None:
                low, high = min(low, self.target_span[0]), max(high, self.target_span[1])
            self.target_span = low, high

    def end_stage(self) -> None:
        """Make blocks of the rows of this stage."""
        assert self._shuffle is not None
        self._blocks += self._shuffle.end_stage()

    def snapshot(self, label_of: npt.NDArray[np.uint8], about: dict[str, Any]) -> Dataset:
        """The rows of all stages so far, which can be read while others are written."""
        return Dataset(StoredRows(self.path, self._manifest(label_of, about), self._binning))

    def _segment(self, label_of: npt.NDArray[np.uint8], about: dict[str, Any]) -> dict[str, Any]:
        """What the manifest says of appended rows."""
        span = {"target_span": self.target_span} if self._base.get("target_span") else {}
        return {
            **{
                name: said
                for name, said in about.items()
                if name not in ("label", "offset", "classes")
            },
            **span,
            "rows": sum(block.n_rows for block in self._blocks),
            "file": self._rows.name,
            "label_of": label_of.tolist(),
            "run": self._run,
            "blocks": self._blocks,
        }

    def _manifest(self, label_of: npt.NDArray[np.uint8], about: dict[str, Any]) -> dict[str, Any]:
        if self._append:
            segments = [*self._base.get("segments", ()), self._segment(label_of, about)]
            version = max(APPENDED_VERSION, self._base["version"])
            return {**self._base, "version": version, "segments": segments}
        version = VERSION
        span: dict[str, Any] = {}
        if self.layout.targeted and about["classes"]:
            version = CLASS_VERSION
        elif self.layout.targeted:
            version, span = TARGET_VERSION, {"target_span": self.target_span}
        if self.layout.offset:  # of which `about` has the name
            version, span = OFFSET_VERSION, {"targeted": self.layout.targeted, **span}
        if self._packing is not None:
            version = PACKED_VERSION
            span = {"targeted": self.layout.targeted, "packed": self._about_packing(), **span}
        if self._binning.statistics:
            version, span = STATISTICS_VERSION, {"targeted": self.layout.targeted, **span}
        return {
            "format": FORMAT,
            "version": version,
            **about,
            **span,
            "rows": sum(block.n_rows for block in self._blocks),
            "file": self._rows.name,
            "weighted": self.layout.weighted,
            "label_of": label_of.tolist(),
            "run": self._run,
            "features": self._binning.to_json(),
            "blocks": self._blocks,
        }

    def _about_packing(self) -> dict[str, Any]:
        """What the manifest says of how rows are packed."""
        packing = self._packing
        assert packing is not None
        tails = None
        if packing.shape.tailed:
            ends, words = packing.tails
            of_file = {"n": len(ends) - 1, "words": len(words), "crc32": tails_crc(packing.tails)}
            tails = {"file": self._tails.name, **of_file}
        order = packing.order.tolist()
        return {
            "shape": packing.shape, "order": order, "missing": packing.missing, "tails": tails
        }  # fmt: skip

    @property
    def _tails(self) -> Path:
        return self.path / self._rows.name.replace("rows", "tails")

    def _write_tails(self, tails: Tails) -> None:
        with guard_disk(self._tails, tails.n_bytes), open(self._tails, "xb") as file:
            for part in tails:
                file.write(part.view(np.uint8).data)
            file.flush()
            if not self._temporary:
                os.fsync(file.fileno())

    def finish(self, label_of: npt.NDArray[np.uint8], about: dict[str, Any]) -> Dataset:
        """Write the manifest; the last stage has ended.

        `label_of` has the label of each code (of bands, they themselves), `about` goes into the
        manifest.
        """
        assert self._shuffle is not None
        self._shuffle.finish(sync=not self._temporary)  # a temporary store survives no crash
        if self._packing is not None and self._packing.shape.tailed:
            self._write_tails(self._packing.tails)
        if self._append:
            sync_folder(self.path)  # the new file has its name before the manifest says so
        manifest = self._manifest(label_of, about)
        manifest["crc32"] = manifest_crc(manifest)
        temporary = self.path / (MANIFEST + TEMPORARY)
        with guard_disk(temporary, 0), open(temporary, "x") as file:
            file.writelines(json_pieces(manifest))  # json.dump takes ten times as long
            file.flush()
            os.fsync(file.fileno())
        if self._append:
            self._check_unchanged()
        os.replace(temporary, self.path / MANIFEST)
        self._ended = True
        if self._append:  # nothing but scratch is left of it
            shutil.rmtree(self.scratch, ignore_errors=True)
            self._unlock()
            return Dataset(StoredRows(self.path, manifest, self._binning))
        del manifest  # as large as the one that is read now
        self._remove_leftovers()
        self._unlock()
        rows = open_store(self.path)
        if self._temporary:
            rows.lifetime = Lifetime()
            remove = only_here(shutil.rmtree, self.path, ignore_errors=True)
            weakref.finalize(rows.lifetime, remove)
        return Dataset(rows)
