"""The parts of one draw: what is read, the rows that are kept, and the buffer that holds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparrowboost.kernels.draws import keep_rows, pick_rows
from sparrowboost.model.forest import Arrays, add_rounds
from sparrowboost.sampling.sample import keep_every_second
from sparrowboost.sampling.strata import Picked, Rows
from sparrowboost.store.dataset import Block
from sparrowboost.store.packing import Packing
from sparrowboost.store.shuffle import permuted

MAX_COUNT = 256  # rows that one row may stand for; up to there, sums are exact (kernels/scores.py)
PART_ROWS = 1 << 16  # looked at together


def are_counts(weight: npt.NDArray[np.float32]) -> bool:
    """Whether weights are counts of rows: small whole numbers.

    Larger ones count something else, such as people or money, of which a row is one observation.
    """
    parts = (weight[start : start + PART_ROWS] for start in range(0, len(weight), PART_ROWS))
    return all(part.max() <= MAX_COUNT and (part == np.floor(part)).all() for part in parts)


def catch_up(rows: Rows, forest: Arrays, n_trees: int, packing: Packing | None = None) -> None:
    """Add to each row's score the trees that it does not hold yet."""
    seen = rows.seen
    # A chunk's rows were put there by one draw, or a few: runs of rows have seen the same trees.
    starts = np.flatnonzero(np.diff(seen, prepend=-1))
    for start, stop in zip(starts, [*starts[1:], len(seen)], strict=True):
        part = slice(start, stop)
        score = rows.score[part].T
        add_rounds(forest, rows.bins[part], int(seen[start]), n_trees, score, packing)
    seen[:] = n_trees


@dataclass(frozen=True)
class DrawPart:
    """What is read at once: some chunks of one stratum, or a block of the store or part of one."""

    share: float  # chance with which it was to be read
    stratum: int = -1
    picked: Picked | None = None
    piece: BlockPiece | None = None


class SharedBlock:
    """A block that is read for the first of its pieces, and dropped with the last.

    Of many classes, the scores of all rows of a block may take more memory than there is.

    Parameters
    ----------
    number : int
    n_rows : int
    read : callable
        Reads the block of a number.
    n_pieces : int
    """

    def __init__(
        self, number: int, n_rows: int, read: Callable[[int], Block], n_pieces: int
    ) -> None:
        self.number, self.n_rows, self.n_pieces = number, n_rows, n_pieces
        self._read, self._left, self._lock = read, n_pieces, Lock()
        self._block: Block | None = None
        self._order: npt.NDArray[np.uint32] | None = None

    def pieces(self) -> list[BlockPiece]:
        """All of them; each is to be taken once."""
        ends = [i * self.n_rows // self.n_pieces for i in range(self.n_pieces + 1)]
        return [BlockPiece(self, slice(a, b)) for a, b in pairwise(ends)]

    def take(self, seed: int | None) -> tuple[Block, npt.NDArray[np.uint32] | None]:
        """The block, and a random order of its rows if a seed is given: the first one."""
        with self._lock:
            if self._block is None:
                self._block = self._read(self.number)
            if self._order is None and seed is not None:
                self._order = permuted(self.n_rows, seed, self.number)
            taken = self._block, self._order
            self._left -= 1
            if not self._left:
                self._block = self._order = None
            return taken


class BlockPiece(NamedTuple):
    """Some of the rows of a block."""

    of: SharedBlock
    rows: slice

    def take(self, seed: int | None = None) -> tuple[Block, npt.NDArray[np.uint32] | None]:
        """The rows; with a seed also the random order in which they are put back.

        That order is one of the whole block. A piece has a part of it, and its rows in it: then
        there is no other order.
        """
        block, order = self.of.take(seed)
        if self.of.n_pieces == 1:
            return block, order
        rows = block.part(self.rows) if order is None else block.take(order[self.rows])
        return rows, None


class WeighedRows(NamedTuple):
    """Rows that are up to date, their weights, and the order in which to put them back."""

    rows: Rows
    w: npt.NDArray[np.float32]
    order: npt.NDArray[np.uint32] | None
    squares: float  # sum of w**2


class DrawBuffer:
    """The rows kept so far of a sample that is being drawn."""

    def __init__(
        self,
        capacity: int,
        bin_bytes: int,
        *,
        weighted: bool,
        targeted: bool = False,
        n_scores: int = 1,
    ) -> None:
        self.n, self.capacity = 0, capacity
        self._bins = np.empty((capacity, bin_bytes), np.uint8)
        self._label = np.empty(capacity, np.uint8)
        self._copies = np.empty(capacity, np.float32)
        self._weight = np.empty(capacity * weighted, np.float32)
        self._score = np.empty((n_scores, capacity) if n_scores > 1 else capacity, np.float32)
        self._target = np.empty(capacity * targeted, np.float32)

    def add(
        self, rows: Rows, which: npt.NDArray[np.int64], copies: npt.NDArray[np.float32]
    ) -> None:
        given = rows.bins, rows.label, rows.weight, rows.score, rows.target, which, self.n
        keep_rows(*given, self._bins, self._label, self._weight, self._score.T, self._target)
        self._copies[self.n : self.n + len(which)] = copies
        self.n += len(which)

    def halve(self, odd: int) -> None:
        """Keep every second row, each for two."""
        for part in (
            self._bins, self._label, self._copies, self._weight, self._score.T, self._target,
        ):  # fmt: skip
            if len(part):
                keep_every_second(part, odd, self.n)
        self.n = len(range(odd, self.n, 2))
        self._copies[: self.n] *= 2

    def parts(self) -> tuple[npt.NDArray[Any], ...]:
        """Bins, labels, copies, weights, scores and targets of the rows kept.

        Scores of several classes are (K, n).
        """
        n = self.n
        weight, score, target = self._weight[:n], self._score[..., :n], self._target[:n]
        return self._bins[:n], self._label[:n], self._copies[:n], weight, score, target


class RowPicker:
    """Picks rows into a buffer; if the buffer is full, keeps every second row of it."""

    def __init__(self, buffer: DrawBuffer, scale: float, rng: np.random.Generator) -> None:
        self._buffer, self._scale, self._rng = buffer, scale, rng
        self._carry = float(rng.random())

    def pick(self, rows: Rows, w: npt.NDArray[np.float32], share: float) -> None:
        pick, copies = np.empty(len(w), np.int64), np.empty(len(w), np.float32)
        start = 0
        while start < len(w):
            room = self._buffer.capacity - self._buffer.n
            if room == 0:
                self._buffer.halve(int(self._rng.integers(2)))
                self._scale *= 2
                self._carry = float(self._rng.random())  # just after a pick it is not uniform
                continue
            n, start, self._carry = pick_rows(
                w, self._scale, share, self._carry, start, pick, copies, room
            )
            self._buffer.add(rows, pick[:n], copies[:n])
