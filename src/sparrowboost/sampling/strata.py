"""The strata: rows on disk by label and weight. This module alone knows the format of their file.

    stratum   ... [1/4, 1/2) | [1/2, 1) | [1, 2) | [2, 4) ...     by the weight when last seen,
                                                                  separately for each label or band

Each stratum is a queue: rows are appended to a buffer in memory, and a full buffer becomes a chunk
in one scratch file. Chunks are taken out whole and their slots in the file are reused, so that the
file does not outgrow the rows in it. It has no name: however the process ends, the system frees the
disk space.

    chunk   score (m,) float32 | seen (m,) int32 | weight, target (m,) float32 if any | bins | label
            or, of K classes, score (m, K)

A draw reads some chunks of a stratum, and they stand for all of them. That is as good as a draw of
independent rows only if chunks are alike. Three things make them so. A stratum has rows of one
label, or one band of the
target, so that chance does not decide how much of each is read. Chunks are small, so that many
are read. And chunks that are neighbours in the queue, which were put there by the same draw and
have drifted alike, are read in equal shares: `pick` cuts the queue into as many runs as chunks are
wanted, and takes a random one of each. (First in, first out would be biased: the rows that waited
longest have drifted most, and would stand for all that came later.)
"""

from __future__ import annotations

import os
import tempfile
import zlib
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparrowboost.kernels.draws import find_strata, put_rows
from sparrowboost.runtime import budget
from sparrowboost.runtime.budget import BATCH_BYTES, CHUNK_ROW_BYTES, CHUNK_ROWS, NUMBER_BYTES
from sparrowboost.runtime.disk import guard_disk, open_own, read_all, write_all
from sparrowboost.runtime.errors import StoreError
from sparrowboost.store.lookup import Bins

LOWEST = -40  # log2 of the lower bound of the lowest stratum
N_WEIGHTS = 80  # up to 2**40, where the exponential loss cuts its margins
N_LABELS = 2  # bands of a classification
ALIGNED = 8  # bytes, to which chunks in memory are aligned
CRC_BITS = 32


def sum_strata(weight: npt.NDArray[np.float32], total: npt.NDArray[np.float32]) -> dict[int, float]:
    """Sum of `total` over the rows whose `weight` is in [2^k, 2^(k+1)), by k; labels together.

    Examples
    --------
    >>> weight, rows = np.array([0.25, 1.0, 1.5], "f4"), np.array([8, 1, 2], "f4")
    >>> sum_strata(weight, weight * rows)
    {-2: 2.0, 0: 4.0}
    """
    stratum = np.empty(len(weight), np.uint16)
    find_strata(weight, LOWEST, N_WEIGHTS, stratum)
    sums = np.bincount(stratum, total, N_WEIGHTS)
    return {LOWEST + int(k): float(sums[k]) for k in np.flatnonzero(sums)}


def row_bytes(n_features: int, *, n_extra: int) -> int:
    """Bytes of a row in the strata."""
    return n_features + CHUNK_ROW_BYTES + NUMBER_BYTES * n_extra


def chunk_bytes(n_features: int, *, n_extra: int) -> int:
    """Bytes of a chunk.

    Examples
    --------
    >>> chunk_bytes(20, n_extra=0), chunk_bytes(20_000, n_extra=0)
    (7424, 260117)
    """
    return budget.chunk_bytes(n_features, CHUNK_ROWS, BATCH_BYTES, n_extra=n_extra)


class Rows(NamedTuple):
    """Rows with their scores: n of them, or s chunks of m."""

    bins: Bins  # (n, d)
    label: npt.NDArray[np.uint8]  # (n,) or the band
    weight: npt.NDArray[np.float32]  # (n,) the user's; (0,) if rows have none
    score: npt.NDArray[np.float32]  # (n,) H(x) under the first `seen` trees; of classes (n, K)
    seen: npt.NDArray[np.int32]  # (n,)
    target: npt.NDArray[np.float32]  # (n,) numbers to predict; (0,) of classes

    @classmethod
    def chunks(
        cls,
        data: npt.NDArray[np.uint8],
        n: int,
        d: int,
        *,
        weighted: bool,
        targeted: bool = False,
        n_scores: int = 1,
    ) -> Rows:
        """The parts of chunks of n rows of d features: (s, n, d), (s, n), ... of (s, bytes).

        Numbers come first, so that they are aligned.
        """
        s, step = len(data), data.strides[0]
        sizes = [0, 4 * n * n_scores, 4 * n, 4 * n * weighted, 4 * n * targeted, n * d]
        score, seen, weight, target, bins, label = np.cumsum(sizes).tolist()

        def part(dtype: type, first: int, rows: int = n) -> npt.NDArray[Any]:
            size = np.dtype(dtype).itemsize
            return np.ndarray((s, rows), dtype, data, first, (step, size))

        several = np.ndarray((s, n, n_scores), np.float32, data, score, (step, 4 * n_scores, 4))
        return cls(
            np.ndarray((s, n, d), np.uint8, data, bins, (step, d, 1)),
            part(np.uint8, label),
            part(np.float32, weight, n * weighted),
            part(np.float32, score) if n_scores == 1 else several,
            part(np.int32, seen),
            part(np.float32, target, n * targeted),
        )


class Picked(NamedTuple):
    """Chunks taken out of a stratum, to be read together."""

    share: float  # the probability with which each was picked
    chunks: tuple[int, ...]  # slot in the file and checksum, as in a queue
    rows: Rows | None = None  # instead of chunks: rows that waited in memory


class Strata:
    """Queues of rows on disk, one for each label or band and each power of two of their weight.

    Parameters
    ----------
    folder : where the scratch file is made
    n_features : int
    weighted : whether rows have user weights
    targeted : whether rows have numbers to predict
    n_bands : labels, or bands of the target
    n_scores : scores of a row
    keep : a name in the folder for the file, which then outlives the process; chunks that were in
        it when `state` was last called are not overwritten until `state` is called again
    """

    def __init__(
        self,
        folder: Path,
        n_features: int,
        *,
        weighted: bool,
        targeted: bool = False,
        n_bands: int = N_LABELS,
        n_scores: int = 1,
        keep: str | None = None,
    ) -> None:
        self._d, self._weighted, self._targeted = n_features, weighted, targeted
        self.n_strata, self._n_scores = n_bands * N_WEIGHTS, n_scores
        n_extra = weighted + targeted + n_scores - 1
        self._row_bytes = row_bytes(n_features, n_extra=n_extra)
        self._chunk_bytes = chunk_bytes(n_features, n_extra=n_extra)
        self.chunk_rows = self._chunk_bytes // self._row_bytes
        self._batch = max(1, BATCH_BYTES // self._chunk_bytes)
        self._folder = folder
        self._kept = keep is not None
        try:
            self._file: Any = (
                tempfile.TemporaryFile(dir=folder, prefix="sparrow-strata-")  # noqa: SIM115
                if keep is None
                else os.fdopen(open_own(folder / keep), "r+b")
            )
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(
                f"{folder}: cannot write scratch data ({error.strerror}); pass another folder as "
                "scratch= (--scratch)."
            ) from None
        # A chunk takes 64 bits here, its slot and its checksum: 1 MB for each GB of rows.
        self._queues = [array("Q") for _ in range(self.n_strata)]
        # For each stratum, the chunk that is being filled; untouched ones take no memory.
        aligned = -(-self._chunk_bytes // ALIGNED) * ALIGNED
        self._filling = np.empty((self.n_strata, aligned), np.uint8)
        self._waiting = self._chunks(self._filling)
        self._filled = np.zeros(self.n_strata, np.int64)
        self._free = array("Q")
        self._freed = array("Q")  # since the last `state`, which may still need these slots
        self._slots = 0
        self.bytes_written = 0

    def close(self) -> None:
        self._file.close()

    def size(self, stratum: int) -> int:
        """Rows in a stratum."""
        return self.n_chunks(stratum) * self.chunk_rows + int(self._filled[stratum])

    def n_chunks(self, stratum: int) -> int:
        """Chunks of a stratum in the file; some of its rows may be waiting in memory."""
        return len(self._queues[stratum])

    def upper(self, stratum: int) -> float:
        """The upper bound of a stratum: the weights of its rows were below it when last seen."""
        return 2.0 ** (LOWEST + stratum % N_WEIGHTS + 1)

    def append(
        self,
        rows: Rows,
        w: npt.NDArray[np.float32],
        order: npt.NDArray[np.uint32] | None = None,
    ) -> None:
        """Put rows into the strata of their weights, in their own or in a given order."""
        stratum = np.empty(len(w), np.uint16)
        find_strata(w, LOWEST, N_WEIGHTS, stratum)
        stratum += np.uint16(N_WEIGHTS) * rows.label
        self._put(rows, stratum, np.arange(len(w), dtype=np.uint32) if order is None else order)

    def _put(
        self, rows: Rows, stratum: npt.NDArray[np.uint16], order: npt.NDArray[np.uint32]
    ) -> None:
        """Put rows into their strata's chunks; a full chunk is written to the file."""
        given = *rows, stratum, order
        to = self._waiting
        # Unused ones; empty ones would compile it anew.
        unused = to.score if to.score.ndim == 2 else to.score[..., 0]
        if not self._weighted:
            to = to._replace(weight=unused)
        if not self._targeted:
            to = to._replace(target=unused)
        n, full = put_rows(*given, 0, *to, self._filled)
        while full >= 0:
            self._queues[full].append(self._write(self._filling[full, : self._chunk_bytes]))
            self._filled[full] = 0
            n, full = put_rows(*given, n, *to, self._filled)

    def _write(self, data: npt.NDArray[np.uint8]) -> int:
        """Write a chunk to a free slot."""
        slot = self._free.pop() if self._free else self._slots
        self._slots = max(self._slots, slot + 1)
        with guard_disk(self._folder / "scratch", data.nbytes):
            write_all(self._file.fileno(), data, slot * data.nbytes)
        self.bytes_written += data.nbytes
        return slot << CRC_BITS | zlib.crc32(data.data)

    def _chunks(self, data: npt.NDArray[np.uint8]) -> Rows:
        return Rows.chunks(
            data,
            self.chunk_rows,
            self._d,
            weighted=self._weighted,
            targeted=self._targeted,
            n_scores=self._n_scores,
        )

    def _wait(self, stratum: int) -> Rows:
        """A copy of the rows that wait in a stratum's chunk."""
        parts: Any = self._waiting
        return Rows._make(part[stratum, : self._filled[stratum]].copy() for part in parts)

    def pick(self, stratum: int, n_chunks: int, rng: np.random.Generator) -> list[Picked]:
        """Take n_chunks out of a stratum, spread over its queue, and all rows that wait in memory.

        The queue is cut into runs whose lengths differ by at most one; one chunk of each is taken.
        `read` gives the rows; call `forget` when they have been put back.
        """
        queue = self._queues[stratum]
        chosen, sizes = spread(len(queue), n_chunks, rng)
        picked = []
        for size in np.unique(sizes).tolist():
            chunks = [queue[i] for i in chosen[sizes == size].tolist()]
            picked += [
                Picked(1 / size, tuple(chunks[at : at + self._batch]))
                for at in range(0, len(chunks), self._batch)
            ]
        left = np.ones(len(queue), bool)
        left[chosen] = False
        self._queues[stratum] = array("Q", np.frombuffer(queue, np.uint64)[left].tobytes())
        if self._filled[stratum]:
            picked.append(Picked(1.0, (), self._wait(stratum)))
            self._filled[stratum] = 0
        return picked

    def read(self, picked: Picked) -> Rows:
        """The rows of chunks that were picked."""
        if picked.rows is not None:
            return picked.rows
        data = np.empty((len(picked.chunks), self._chunk_bytes), np.uint8)
        for chunk, one in zip(picked.chunks, data, strict=True):
            at = (chunk >> CRC_BITS) * self._chunk_bytes
            try:
                n_read = read_all(self._file.fileno(), one, at)
            except OSError as error:
                raise StoreError(
                    f"{self._folder}: the scratch file cannot be read ({error.strerror}); look "
                    "into the system's log, and train again with scratch= on another disk."
                ) from None
            if n_read < len(one) or zlib.crc32(one.data) != chunk & (1 << CRC_BITS) - 1:
                raise StoreError(
                    f"{self._folder}: the scratch file is damaged (at byte {at:,}); train "
                    "again, and remove the checkpoint if there is one."
                )
        parts: Any = self._chunks(data)
        n = data.shape[0] * self.chunk_rows
        return Rows._make(part.reshape(n if part.size else 0, *part.shape[2:]) for part in parts)

    def forget(self, picked: Picked) -> None:
        """Reuse the slots of chunks whose rows were read."""
        free = self._freed if self._kept else self._free
        free.extend(chunk >> CRC_BITS for chunk in picked.chunks)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything that is not in the file, for a checkpoint; the file is synced."""
        with guard_disk(self._folder / "scratch", 0):
            os.fsync(self._file.fileno())
        self._free.extend(self._freed)
        self._freed = array("Q")
        rows = [self._wait(k) for k in np.flatnonzero(self._filled).tolist()]
        names = [f"strata_{name}" for name in Rows._fields]
        parts = Rows._make(map(np.concatenate, zip(*rows, strict=True))) if rows else ()
        return {
            "strata_chunks": _joined(self._queues),
            "strata_lengths": np.array([len(queue) for queue in self._queues]),
            "strata_free": _joined([self._free]),
            "strata_waiting": self._filled.copy(),
            **dict(zip(names, parts, strict=False)),
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Resume from a state, and from the file as it was then."""
        chunks, free = state["strata_chunks"], state["strata_free"]
        ends = np.cumsum(state["strata_lengths"])
        for k, part in enumerate(np.split(chunks, ends[:-1])):
            self._queues[k] = array("Q", part.tobytes())
        self._free = array("Q", free.tobytes())
        slots = np.append(chunks >> np.uint64(CRC_BITS), free)
        self._slots = int(slots.max()) + 1 if len(slots) else 0
        waiting = state["strata_waiting"]
        if waiting.any():
            none = np.empty(0, np.float32)  # checkpoints of earlier versions have no targets
            rows = Rows._make(state.get(f"strata_{name}", none) for name in Rows._fields)
            stratum = np.repeat(np.arange(self.n_strata, dtype=np.uint16), waiting)
            self._put(rows, stratum, np.arange(len(stratum), dtype=np.uint32))

    @property
    def scratch_bytes(self) -> int:
        """Peak size of the scratch file."""
        return self._slots * self._chunk_bytes


def spread(
    n: int, n_picked: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Cut n items into n_picked runs; a random item of each run, and the length of its run.

    Examples
    --------
    >>> chosen, sizes = spread(7, 3, np.random.default_rng(0))
    >>> len(chosen), sorted(sizes.tolist())
    (3, [2, 2, 3])
    """
    n_picked = min(n, n_picked)
    if n_picked == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    sizes = rng.permutation(n // n_picked + (np.arange(n_picked) < n % n_picked))
    return np.cumsum(sizes) - sizes + rng.integers(sizes), sizes


def _joined(queues: Sequence[array[int]]) -> npt.NDArray[np.uint64]:
    return np.frombuffer(b"".join(queue.tobytes() for queue in queues), np.uint64)
