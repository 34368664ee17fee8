"""The strata: examples on disk by weight, sole owner of their file.

    stratum   ... [1/4, 1/2) | [1/2, 1) | [1, 2) | [2, 4) ...     by the weight when last seen

Each stratum is a queue: rows are appended to a buffer in memory, and a full buffer becomes a chunk
in one scratch file. Chunks are taken out whole and their places in the file are used again, so the
file never holds more than the rows that are in it. It has no name: whatever ends the process, the
system takes the room back.

    chunk   score (m,) float32 | seen (m,) int32 | weight (m,) float32 if any | bins | label

Which chunks are taken is drawn at random. First in, first out would be biased: what has waited
longest has drifted most, and would stand for all that came after it.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparrowboost.disk import guard_disk, read_all, write_all
from sparrowboost.errors import StoreError
from sparrowboost.kernels.draws import find_strata
from sparrowboost.kernels.rows import gather_rows
from sparrowboost.lookup import Bins

CHUNK_BYTES = 256 << 10  # read at random places about as fast as end to end
LOWEST = -40  # log2 of the lightest weight told apart
N_STRATA = 80  # up to 2**40, where the exponential loss cuts its margins
STATE_BYTES = 1 + 4 + 4  # label, score, trees seen
NO_WEIGHT = np.empty((0, 4), np.uint8)  # for the kernel that also moves weights


def sum_strata(weight: npt.NDArray[np.float32], total: npt.NDArray[np.float32]) -> dict[int, float]:
    """Sum of `total` over the rows whose `weight` is in the stratum [2^k, 2^(k+1)), by k.

    Examples
    --------
    >>> weight, rows = np.array([0.25, 1.0, 1.5], "f4"), np.array([8, 1, 2], "f4")
    >>> sum_strata(weight, weight * rows)
    {-2: 2.0, 0: 4.0}
    """
    stratum = np.empty(len(weight), np.uint8)
    find_strata(weight, LOWEST, N_STRATA, stratum)
    sums = np.bincount(stratum, total, N_STRATA)
    return {LOWEST + int(k): float(sums[k]) for k in np.flatnonzero(sums)}


class Rows(NamedTuple):
    """Rows with what is known of their score."""

    bins: Bins  # (n, d)
    label: npt.NDArray[np.uint8]  # (n,)
    weight: npt.NDArray[np.float32]  # (n,) the user's; (0,) if rows have none
    score: npt.NDArray[np.float32]  # (n,) H(x) under the first `seen` trees
    seen: npt.NDArray[np.int32]  # (n,)

    def take(self, which: Any) -> Rows:
        """Some of the rows: a slice of them, or a copy of those with these numbers."""
        return Rows._make(part[which] if len(part) else part for part in self)


class Filling:
    """A chunk that is being filled with rows, laid out as it will be in the file."""

    def __init__(self, data: npt.NDArray[np.uint8], rows: Rows) -> None:
        self.data, self._rows, self.n = data, rows, 0

    @property
    def full(self) -> bool:
        return self.n == len(self._rows.label)

    @property
    def rows(self) -> Rows:
        """The rows that are in it."""
        return self._rows.take(slice(self.n))

    def add(self, rows: Rows, which: npt.NDArray[np.uint32]) -> int:
        """Add those of the rows for which there is room; how many they are."""
        which = which[: len(self._rows.label) - self.n]
        to = self._rows.take(slice(self.n, self.n + len(which)))
        gather_rows(rows.bins, which, to.bins, NO_WEIGHT)  # other threads may run meanwhile
        others: tuple[tuple[Any, Any], ...] = tuple(zip(rows[1:], to[1:], strict=True))
        for part, out in others:
            if len(out):
                out[:] = part[which]
        self.n += len(which)
        return len(which)


class Chunk(NamedTuple):
    """A chunk's place in the file, its rows, and the checksum of their bytes."""

    place: int
    n: int
    crc32: int


class Strata:
    """Queues of rows on disk, one for each power of two of their weight.

    Parameters
    ----------
    folder : where the scratch file is made
    n_features : int
    weighted : whether rows have user weights
    keep : a name in the folder for the file, which then outlives the process; what it held when
        `state` was last asked for stays there until `state` is asked for again
    """

    def __init__(
        self, folder: Path, n_features: int, *, weighted: bool, keep: str | None = None
    ) -> None:
        self._d, self._weighted = n_features, weighted
        self._row_bytes = n_features + STATE_BYTES + 4 * weighted
        self.chunk_rows = max(1, CHUNK_BYTES // self._row_bytes)
        self._folder = folder
        self._kept = keep is not None
        try:
            self._file: Any = (
                tempfile.TemporaryFile(dir=folder, prefix="sparrow-strata-")  # noqa: SIM115
                if keep is None
                else os.fdopen(os.open(folder / keep, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
            )
        except OSError as error:
            raise StoreError(
                f"{folder}: scratch cannot be written ({error.strerror}); give scratch= a folder "
                "that can."
            ) from None
        self._free: list[int] = []
        self._freed: list[int] = []  # since the last `state`, which may need what is there
        self._places = 0
        self._chunks: list[list[Chunk]] = [[] for _ in range(N_STRATA)]
        self._filling: list[Filling | None] = [None] * N_STRATA
        self.bytes_written = self.bytes_read = 0

    def close(self) -> None:
        self._file.close()

    def size(self, stratum: int) -> int:
        """Rows in a stratum."""
        filling = self._filling[stratum]
        return sum(c.n for c in self._chunks[stratum]) + (filling.n if filling else 0)

    def n_chunks(self, stratum: int) -> int:
        """Chunks of a stratum; what waits in memory counts as one."""
        return len(self._chunks[stratum]) + (self._filling[stratum] is not None)

    def upper(self, stratum: int) -> float:
        """The weight that no row of a stratum reached when it was last seen."""
        return 2.0 ** (LOWEST + stratum + 1)

    def append(
        self,
        rows: Rows,
        w: npt.NDArray[np.float32],
        order: npt.NDArray[np.uint32] | None = None,
    ) -> None:
        """Put rows into the strata of their weights, one after the other or in another order."""
        stratum = np.empty(len(w), np.uint8)
        find_strata(w, LOWEST, N_STRATA, stratum)
        if order is None:
            order = np.arange(len(w), dtype=np.uint32)
        order = order[np.argsort(stratum[order], kind="stable")]
        ends = np.cumsum(np.bincount(stratum, minlength=N_STRATA))
        for k in np.flatnonzero(np.diff(ends, prepend=0)).tolist():
            self._add(k, rows, order[ends[k - 1] if k else 0 : ends[k]])

    def _add(self, k: int, rows: Rows, which: npt.NDArray[np.uint32]) -> None:
        """Add rows to a stratum's chunk; one that is full goes to the file."""
        while len(which):
            filling = self._filling[k]
            if filling is None:
                data = np.empty(self.chunk_rows * self._row_bytes, np.uint8)
                filling = self._filling[k] = Filling(data, self._views(data, self.chunk_rows))
            which = which[filling.add(rows, which) :]
            if filling.full:
                self._chunks[k].append(self._write(filling))
                self._filling[k] = None

    def _write(self, filled: Filling) -> Chunk:
        place = self._free.pop() if self._free else self._places
        self._places = max(self._places, place + 1)
        data = filled.data
        with guard_disk(self._folder / "scratch", data.nbytes):
            write_all(self._file.fileno(), data, place * data.nbytes)
        self.bytes_written += data.nbytes
        return Chunk(place, filled.n, zlib.crc32(data.data))

    def _views(self, data: npt.NDArray[np.uint8], n: int) -> Rows:
        """The parts of a chunk of n rows; numbers first, so that they are aligned."""
        ends = np.cumsum([4 * n, 4 * n, 4 * n * self._weighted, n * self._d, n])
        score, seen, weight, bins, label = np.split(data, ends[:-1])
        return Rows(
            bins.reshape(n, self._d),
            label,
            weight.view(np.float32),
            score.view(np.float32),
            seen.view(np.int32),
        )

    def pick(self, stratum: int, n_chunks: int, rng: np.random.Generator) -> list[Chunk | Rows]:
        """Take so many chunks out of a stratum, all equally likely; `read` gives their rows."""
        chunks = self._chunks[stratum]
        chosen = rng.permutation(self.n_chunks(stratum))[:n_chunks]
        taken: list[Chunk | Rows] = [chunks[i] for i in chosen if i < len(chunks)]
        filling = self._filling[stratum]
        if filling is not None and len(chunks) in chosen:
            taken.append(filling.rows)
            self._filling[stratum] = None
        out = set(chosen.tolist())
        self._chunks[stratum] = [c for i, c in enumerate(chunks) if i not in out]
        return taken

    def read(self, chunk: Chunk | Rows) -> Rows:
        """The rows of a chunk that was picked."""
        if isinstance(chunk, Rows):
            return chunk
        data = np.empty(chunk.n * self._row_bytes, np.uint8)
        at = chunk.place * self.chunk_rows * self._row_bytes
        n_read = read_all(self._file.fileno(), data, at)
        if n_read < len(data) or zlib.crc32(data.data) != chunk.crc32:
            raise StoreError(
                f"{self._folder}: the scratch file is damaged (from byte {at:,} on); train again, "
                "without the checkpoint if there is one."
            )
        self.bytes_read += data.nbytes
        return self._views(data, chunk.n)

    def forget(self, chunk: Chunk | Rows) -> None:
        """Use the place of a chunk, whose rows were read, for others."""
        if isinstance(chunk, Chunk):
            (self._freed if self._kept else self._free).append(chunk.place)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """All that is not in the file, to go on from; the file is on the disk when it returns."""
        os.fsync(self._file.fileno())
        self._free += self._freed
        self._freed = []
        rows = [filling.rows for filling in self._filling if filling]
        chunks = [(k, *chunk) for k, of in enumerate(self._chunks) for chunk in of]
        names = [f"strata_{name}" for name in Rows._fields]
        parts = Rows._make(map(np.concatenate, zip(*rows, strict=True))) if rows else ()
        return {
            "strata_chunks": np.array(chunks, np.int64).reshape(-1, 4),
            "strata_free": np.array(self._free, np.int64),
            "strata_waiting": np.array([filling.n if filling else 0 for filling in self._filling]),
            **dict(zip(names, parts, strict=False)),
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from a state, and from the file as it was then."""
        for k, *chunk in state["strata_chunks"].tolist():
            self._chunks[k].append(Chunk(*chunk))
            self._places = max(self._places, chunk[0] + 1)
        self._free = state["strata_free"].tolist()
        self._places = max([self._places, *(place + 1 for place in self._free)])
        ends = np.cumsum(state["strata_waiting"])
        if ends[-1]:
            rows = Rows._make(state[f"strata_{name}"] for name in Rows._fields)
            for k in np.flatnonzero(state["strata_waiting"]).tolist():
                self._add(k, rows, np.arange(ends[k - 1] if k else 0, ends[k], dtype=np.uint32))

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the scratch file at its largest."""
        return self._places * self.chunk_rows * self._row_bytes
