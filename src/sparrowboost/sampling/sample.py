"""The sample: rows in memory whose scores and weights are brought up to date when scanned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sparrowboost.model.forest import Forest, add_rounds
from sparrowboost.model.losses import MAX_MARGIN
from sparrowboost.model.tree import Grown, GrownTree, goes_left
from sparrowboost.runtime.budget import SAMPLE_BLOCK_ROWS
from sparrowboost.store.lookup import Bins
from sparrowboost.store.packing import Packing

# Rows of a block have 16-bit numbers, and its bins stay in a core's cache while it is split.
BLOCK_ROWS = SAMPLE_BLOCK_ROWS
Scores = npt.NDArray[np.float32]  # (n,)
STATE = tuple(f"sample_{name}" for name in ("bins", "label", "u", "score", "copies", "numbers"))


def keep_every_second(array: npt.NDArray[Any], start: int, n: int) -> None:
    """Move rows start, start + 2, ... of the first n to the front, a few at a time.

    Examples
    --------
    >>> a = np.arange(6)
    >>> keep_every_second(a, 1, 6)
    >>> a[:3]
    array([1, 3, 5])
    """
    kept = array[start:n:2]
    for at in range(0, len(kept), BLOCK_ROWS):  # at once, it would take half as much memory again
        part = slice(at, at + BLOCK_ROWS)
        array[: len(kept)][part] = kept[part]


def first_sides(
    grown: GrownTree, bins: Bins, packing: Packing | None = None
) -> npt.NDArray[np.int64]:
    """(n,) which rows go left at the first split of a tree."""
    tree = grown.tree
    own = bins[:, int(tree.feature[0])] if packing is None else (
        packing.unpack(bins, tree.feature[:1].astype(np.int64))[:, 0]
    )  # fmt: skip
    return goes_left(tree.mask[:1])[0].astype(np.int64)[own]


def first_edge(
    grown: GrownTree,
    bins: Bins,
    label: npt.NDArray[np.uint8],
    w: Scores,
    packing: Packing | None = None,
) -> float:
    """The advantage that a tree's first split has on other rows, its sides saying what they did."""
    side = first_sides(grown, bins, packing)
    (r0, r1), (l0, l1) = np.bincount(2 * side + label, w, 4).reshape(2, 2)
    left, right = grown.sides
    return float(0.5 * (left * (l1 - l0) + right * (r1 - r0)) / (l0 + l1 + r0 + r1))


class Sample:
    """Rows drawn from the data, each with an importance that makes up for how likely it was drawn.

    Parameters
    ----------
    bins : (n, d) uint8
    label : (n,) uint8
        Or the band of the target.
    u : (n,) float32
        Importance: the user's weight divided by the probability of being drawn.
    score : (n,) float32
        H(x) under the first `n_trees` trees; of several classes (K, n). The sample takes ownership.
    n_trees : int
    loss : Loss
        Of rows with numbers to predict, a RegressionLoss.
    whole : bool
        Whether these are all rows of the data.
    copies : (n,) float32
        Rows of the data that each stands for: 1 / the probability of being drawn.
    counted : bool
        Whether importances count rows, so that a row of 3 is as good as three rows.
    of_rows : int, optional
        Rows of the data that it was drawn from; by default its own.

    Attributes
    ----------
    packing : Packing or None
        How rows are packed, if they are.
    """

    packing: Packing | None = None

    def __init__(
        self,
        bins: Bins,
        label: npt.NDArray[np.uint8],
        u: npt.NDArray[np.float32],
        score: npt.NDArray[np.float32],
        n_trees: int,
        loss: Any,
        *,
        whole: bool,
        copies: npt.NDArray[np.float32],
        counted: bool = False,
        of_rows: int | None = None,
    ) -> None:
        self.of_rows = len(label) if of_rows is None else of_rows
        self.bins, self.label, self.u, self.score, self.copies = bins, label, u, score, copies
        self.n, self.whole, self.counted, self.loss = len(label), whole, counted, loss
        self.n_blocks = -(-self.n // BLOCK_ROWS)
        self.w = np.empty(self.n, np.float32)
        self._version = np.full(self.n_blocks, n_trees)
        self._totals = np.empty((self.n_blocks, 2))  # of each block: sum of w, of w**2
        self._heaviest = np.empty(self.n_blocks, np.float32)
        self._allocate()
        for block in range(self.n_blocks):
            self._weigh(block)
        self._settle()

    def _allocate(self) -> None:
        """Make room for what `_weigh` computes."""

    def _settle(self) -> None:
        """Note what holds while the sample is new: its n_eff, and what an ordinary row weighs."""
        self.n_eff_drawn = self.n_eff
        # The mean over weight, not over rows: where few rows hold most of the weight, l2 and
        # min_child_weight count those. A million light rows are no evidence.
        weight, squares = self._masses()
        self.unit = squares / weight if weight > 0 else 0.0

    def _masses(self) -> tuple[float, float]:
        """Sum of what rows weigh in the evidence, and of its squares."""
        weight, squares = self._totals.sum(0).tolist()
        if self.counted:  # a row of weight 3 is three
            squares = sum(self._squares_of_counts(block) for block in range(self.n_blocks))
        return weight, squares

    def _squares_of_counts(self, block: int) -> float:
        rows = self.rows(block)
        w, u = self.w[rows].astype(np.float64), self.u[rows]
        return float((w[u > 0] ** 2 / u[u > 0]).sum())

    # -- what its rows say of trees ----------------------------------------------------------------

    def loss_of(self, block: int) -> float:
        """The loss of a block's rows, times their importance."""
        from sparrowboost.kernels.metrics import add_losses

        rows, total = self.rows(block), np.zeros(3)
        add_losses(self.label[rows], self.score[rows], self.u[rows], MAX_MARGIN, total)
        _, logistic, exponential = total.tolist()
        return float(logistic if self.loss.name == "logistic" else exponential)

    def add_falls(self, block: int, before: Scores, total: npt.NDArray[np.float64]) -> None:
        """Add up (2,) the fall of the loss from other scores to those now, and its square."""
        from sparrowboost.kernels.metrics import add_falls

        rows, logistic = self.rows(block), self.loss.name == "logistic"
        label, score, u = self.label[rows], self.score[rows], self.u[rows]
        add_falls(label, before, score, u, MAX_MARGIN, logistic, total)

    def first_edge(self, grown: Grown, n: int, score: Scores) -> float:
        """The advantage of a tree's first split, its sides saying what they did.

        On the first n rows, whose scores were these before the tree.
        """
        assert isinstance(grown, GrownTree)
        w, label = np.empty(n, np.float32), self.label[:n]
        self.loss.weigh(label, self.u[:n], score, w, np.empty(2))
        return first_edge(grown, self.bins[:n], label, w, self.packing)

    @property
    def score_of_tree(self) -> Scores:
        """(n,) the scores to which the tree that is grown now adds."""
        return self.score

    @property
    def n_trees(self) -> int:
        """Trees that are in all of its scores, also in blocks that were not scanned lately."""
        return int(self._version.min()) if self.n else 0

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The sample for a checkpoint, before any tree was grown on it."""
        numbers = np.array([self._version[0], self.n_eff_drawn, self.unit, self.of_rows])
        arrays = (self.bins, self.label, self.u, self.score, self.copies, numbers)
        return dict(zip(STATE, arrays, strict=True))

    @classmethod
    def restored(cls, state: Mapping[str, npt.NDArray[Any]], loss: Any, **more: Any) -> Self:
        """The sample of a state; `more` are arguments of a kind of its own."""
        bins, label, u, score, copies, numbers = (state[name] for name in STATE)
        n_trees, n_eff, unit, of_rows = numbers.tolist()
        given = bins, label, u, score, int(n_trees), loss
        sample = cls(*given, whole=False, copies=copies, **more)
        sample.n_eff_drawn, sample.unit, sample.of_rows = n_eff, unit, int(of_rows)
        return sample

    def bound_shares(self, share: float) -> None:
        """Cut importances so that no row holds more than this share of all weight.

        If k rows are cut to the weight `most` and the others weigh `rest`, then
        most = share * (rest + k * most). Cutting lowers the total, so that more rows may exceed
        it. If there are so few rows that one must hold more, none is cut.
        """
        if share * np.count_nonzero(self.w) <= 1:
            return
        most, heavy = share * self.weight, np.empty(0, np.int64)
        while len(more := np.flatnonzero(self.w > most)) > len(heavy):
            heavy = more
            rest = max(self.weight - float(self.w[heavy].sum(dtype=np.float64)), 0.0)
            if share * len(heavy) >= 1 or rest == 0:  # by rounding
                break
            most = share * rest / (1 - share * len(heavy))
        if len(heavy):
            self.u = self.u.copy() if self.u is self.copies else self.u
            self.u[heavy] *= most / self.w[heavy]
            for block in np.unique(heavy // BLOCK_ROWS):
                self._weigh(int(block))
            self._settle()

    def rows(self, block: int) -> slice:
        return slice(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, self.n))

    def _weigh(self, block: int) -> None:
        rows = self.rows(block)
        self.loss.weigh(
            self.label[rows], self.u[rows], self.score[rows], self.w[rows], self._totals[block]
        )
        self._heaviest[block] = self.w[rows].max()

    def refresh(self, block: int, forest: Forest, n_trees: int) -> None:
        """Bring the scores and weights of a block up to date."""
        if self._version[block] < n_trees:
            rows, seen = self.rows(block), int(self._version[block])
            bins = np.ascontiguousarray(self.bins[rows])  # a scanner may have turned them
            add_rounds(forest.arrays, bins, seen, n_trees, self.score[rows], self.packing)
            self.mark(block, n_trees)

    def mark(self, block: int, n_trees: int) -> None:
        """Note that a block's scores hold n_trees now, and update its weights."""
        self._version[block] = n_trees
        self._weigh(block)

    @property
    def n_eff(self) -> float:
        """(sum w)**2 / sum w**2, with each block's sums as of its last scan."""
        total, squares = self._totals.sum(0)
        return float(total * total / squares) if squares > 0 else 0.0

    @property
    def heaviest(self) -> float:
        """The largest w."""
        return float(self._heaviest.max(initial=0.0))

    @property
    def weight(self) -> float:
        """Sum of w, an estimate of the sum over all data."""
        return float(self._totals[:, 0].sum())
