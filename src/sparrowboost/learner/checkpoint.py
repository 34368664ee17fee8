"""Checkpoints: what training needs to resume after it was killed, to the same model.

    run/
      checkpoint.json   which of the files below are valid, with checksums, and of which run;
                        written last, atomically: until then the previous checkpoint counts
      model-<k>.json    the trees so far, a model file as any other
      state-<k>.npz     the sample in use, and what the next samples depend on
      result.json       the model, once training has ended
      strata.bin        the strata; chunks that the last checkpoint refers to are not overwritten,
                        and the state has their checksums
      lock              only one training at a time

A checkpoint is made when a sample is put in use: then no draw is under way, and no tree was grown
on it yet. Later trees are grown again, and come out the same.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from sparrowboost.learner.interactions import Interactions
from sparrowboost.learner.params import RENAMED, Params
from sparrowboost.model.model import Model, load_model
from sparrowboost.model.own_loss import OwnLoss
from sparrowboost.runtime.disk import (
    file_crc32,
    load_arrays,
    open_own,
    output_path,
    replace_file,
    save_arrays,
    try_lock,
)
from sparrowboost.runtime.errors import DataError, StoreError
from sparrowboost.store.dataset import Dataset, manifest_crc

DAMAGED = "the checkpoint is damaged; remove the folder to start again"
FORMAT = "sparrow-checkpoint"
VERSION = 4
SAVE_SECONDS = 30.0  # between two checkpoints where all rows are in memory
META, RESULT, LOCK, STRATA = "checkpoint.json", "result.json", "lock", "strata.bin"


class CheckpointState(NamedTuple):
    """A checkpoint that was found in the folder."""

    model: Model  # when the sample was put in use
    state: Mapping[str, Any]
    result: Model | None  # the final model, if training has ended
    n_estimators: int  # requested by the training that ended

    def with_loss(self, loss: OwnLoss | None) -> CheckpointState:
        """The same with a loss of the user's, which files do not have."""
        result = None if self.result is None else replace(self.result, own_loss=loss)
        return self._replace(model=replace(self.model, own_loss=loss), result=result)


def first_trees(found: CheckpointState, params: Params, folder: Path) -> Model:
    """The model of as many trees as are requested, where the checkpoint has more.

    It is what a training of so many trees gives: none depends on how many come after it. With early
    stopping the best of them is known only if it is the best of all.
    """
    n = params.n_estimators
    if params.early_stopping_rounds is None:
        return found.model.first(n)
    best = int(found.state["watch"][1])
    if best <= n:
        return found.model.first(best)
    raise DataError(
        f"{folder}: the training in this folder has {found.model.n_trees} trees, more than the {n} "
        "requested, and early stopping does not know which of the first is best; pass "
        f"n_estimators of at least {found.model.n_trees}, or choose another folder."
    )


def identity(
    dataset: Dataset, params: Params, seed: int, *, validated: bool, init: Model | None = None
) -> dict[str, Any]:
    """What must be the same for a run to be resumed. More trees may be requested."""
    given = {field.name: getattr(params, field.name) for field in fields(params)}
    for name in ("loss", "eval_metric"):  # which may be the user's
        given[name] = given[name] if isinstance(given[name], str) else name_of(given[name])
    given.pop("n_estimators")
    constraints = given.pop("monotone_constraints")
    if isinstance(constraints, Mapping):
        constraints = dict(sorted(constraints.items()))
    elif constraints is not None:
        constraints = [int(sign) for sign in constraints]
    interactions = Interactions.of(given.pop("interaction_constraints"), dataset.binning)
    sets = None if interactions is None else interactions.to_json()
    bins = json.dumps(dataset.binning.to_json(), sort_keys=True).encode()
    rows = np.column_stack((dataset.block_rows, dataset.block_label)).astype(np.int64)
    data = {
        "rows": dataset.n_rows,
        "positives": dataset.n_positive,
        "weighted": dataset.weighted,
        "bins": zlib.crc32(bins),
        "blocks": zlib.crc32(rows.tobytes()),
        **({"labels": dataset.target_span} if dataset.targeted else {}),
        **({} if dataset.offset_name is None else {"offset": dataset.offset_name}),
    }
    return {
        "data": data,
        "parameters": {
            **given,
            "monotone_constraints": constraints,
            "interaction_constraints": sets,
        },
        "random_state": seed,
        "validated": validated,
        **({} if init is None else {"init_model": init.digest}),
    }


def name_of(own: Any) -> str:
    """What a loss or a metric of the user's is called."""
    return str(getattr(own, "name", getattr(own, "__name__", type(own).__name__)))


class Checkpoint:
    """The checkpoint of a run, in a folder of its own; a context that locks the folder."""

    def __init__(self, folder: str | os.PathLike[str], run: Mapping[str, Any]) -> None:
        self.folder = output_path(folder)
        self._run = json.loads(json.dumps(run))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = open_own(self.folder / LOCK)
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(
                f"{self.folder}: the checkpoint cannot be written ({error.strerror})."
            ) from None
        try:
            if not try_lock(self._lock, self.folder / LOCK):
                raise StoreError(f"{self.folder}: another training uses this checkpoint now.")
        except StoreError:
            os.close(self._lock)
            raise
        for half in self.folder.glob(".*.partial"):  # of a process that was killed
            half.unlink(missing_ok=True)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *error: Any) -> None:
        os.close(self._lock)

    def load(self) -> CheckpointState | None:
        """The checkpoint in the folder, or None; an error if it belongs to another run."""
        meta = self._read_meta()
        if meta is None:
            return None
        self._check_run(meta["run"])
        try:
            for name, crc32 in meta["files"].items():
                if file_crc32(self.folder / name) != crc32:
                    raise ValueError(f"{name}: its checksum does not match")
            model = load_model(self.folder / meta["model"])
            result = load_model(self.folder / RESULT) if meta["n_estimators"] else None
            state = load_arrays(self.folder / meta["state"])
        except (OSError, ValueError) as error:  # ModelFileError is an OSError
            raise StoreError(f"{self.folder}: {DAMAGED} ({error}).") from None
        return CheckpointState(model, state, result, meta["n_estimators"])

    def _read_meta(self) -> dict[str, Any] | None:
        file = self.folder / META
        try:
            meta = json.loads(file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise StoreError(f"{file}: {DAMAGED} ({error}).") from None
        keys = {"format", "version", "run", "model", "state", "n_estimators", "files", "crc32"}
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise StoreError(f"{file}: not a Sparrow checkpoint; choose another folder.")
        if meta.get("version") != VERSION:
            raise StoreError(
                f"{file}: has version {meta.get('version')}, this Sparrow reads version "
                f"{VERSION}; choose another folder."
            )
        if set(meta) != keys or meta.pop("crc32") != manifest_crc(meta):
            raise StoreError(f"{file}: {DAMAGED}.")
        return meta

    def _check_run(self, run: Mapping[str, Any]) -> None:
        parameters = {RENAMED.get(name, name): value for name, value in run["parameters"].items()}
        # A version that did not have a parameter trained as its default does now.
        defaults = {field.name: field.default for field in fields(Params)}
        defaults = {name: defaults[name] for name in self._run["parameters"]}
        run = {**run, "parameters": {**defaults, **parameters}}
        words = {
            "data": "data",
            "parameters": "parameters",
            "random_state": "random_state",
            "validated": "validation data",
            "init_model": "models to go on from",
        }
        for key, what in words.items():
            if run.get(key) != self._run.get(key):
                detail = ""
                if key == "data":
                    detail = _grown(run[key].get("rows"), self._run[key]["rows"])
                if key == "parameters":
                    ours = self._run[key]
                    name = next(n for n in ours if run[key].get(n) != ours[n])
                    detail = f" ({name} was {run[key].get(name)!r}, now {ours[name]!r})"
                raise DataError(
                    f"{self.folder}: the run in this folder has other {what}{detail}; resume "
                    "with the same arguments, or choose another folder."
                )

    def save(self, model: Model, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint."""
        names = {"model": f"model-{model.n_trees}.json", "state": f"state-{model.n_trees}.npz"}
        model.save_model(self.folder / names["model"])
        save_arrays(self.folder / names["state"], state)
        self._publish(names, 0)
        for file in [*self.folder.glob("model-*.json"), *self.folder.glob("state-*.npz")]:
            if file.name not in names.values():
                file.unlink(missing_ok=True)

    def finish(self, result: Model, n_estimators: int) -> None:
        """Store the final model: training has ended."""
        meta = self._read_meta()
        assert meta is not None
        result.save_model(self.folder / RESULT)
        self._publish({"model": meta["model"], "state": meta["state"]}, n_estimators)

    def _publish(self, names: Mapping[str, str], n_estimators: int) -> None:
        meta: dict[str, Any] = {"format": FORMAT, "version": VERSION, "run": self._run, **names}
        meta["n_estimators"] = n_estimators  # 0: training has not ended
        files = [*names.values(), *([RESULT] if n_estimators else [])]
        meta["files"] = {name: file_crc32(self.folder / name) for name in files}
        data = json.dumps({**meta, "crc32": manifest_crc(meta)}, indent=1)
        replace_file(self.folder / META, data.encode())


def _grown(before: Any, now: int) -> str:
    """What to do if rows were appended since a run began."""
    if not isinstance(before, int) or now <= before:
        return ""
    return (
        f" ({before:,} rows, now {now:,}; to train on appended rows, too, go on from the last "
        "model in this folder by init_model=, --init-model)"
    )


class Owner(Protocol):
    """A part of training that the next tree depends on; it saves and restores its own state."""

    def state(self) -> Mapping[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class Saver:
    """Saves the state of a training and resumes it; does nothing without a checkpoint.

    Parameters
    ----------
    checkpoint : Checkpoint, optional
    owners : sequence of Owner
        In the order in which they are restored.
    whole : bool
        Whether all rows are in memory, so that there is never another sample.
    """

    def __init__(
        self, checkpoint: Checkpoint | None, owners: Sequence[Owner], *, whole: bool
    ) -> None:
        self._checkpoint, self._owners, self._whole = checkpoint, owners, whole
        self._saved = time.perf_counter()
        self.resumed = False

    def save(self, model: Model) -> None:
        """Save, just after a sample was put in use: no draw is under way."""
        if self._checkpoint is not None:
            states = [owner.state() for owner in self._owners]
            self._checkpoint.save(model, {k: v for state in states for k, v in state.items()})
            self._saved = time.perf_counter()

    def save_now_and_then(self, model: Model) -> None:
        """Save if there is never another sample and some time has passed."""
        if self._whole and time.perf_counter() - self._saved > SAVE_SECONDS:
            self.save(model)

    def restore(self, found: CheckpointState) -> Model:
        """Resume from a checkpoint; returns its model."""
        for owner in self._owners:
            owner.restore(found.state)
        self.resumed = True
        return found.model

    def finish(self, result: Model, n_estimators: int) -> None:
        if self._checkpoint is not None:
            self._checkpoint.finish(result, n_estimators)
