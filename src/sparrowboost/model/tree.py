"""One tree: node arrays that do not change once it is grown."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.uint64]  # (4,) bit b: bin b goes left
MASK_WORDS = 4


def goes_left(mask: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """(k, 256): which bins go left, for each of k masks.

    Examples
    --------
    >>> np.flatnonzero(goes_left(np.array([[6, 0, 1, 0]], np.uint64))[0]).tolist()
    [1, 2, 128]
    """
    data = mask.astype("<u8").view(np.uint8)
    return np.unpackbits(data, axis=1, bitorder="little").astype(bool)


@dataclass(frozen=True, eq=False)
class Tree:
    """Splits by sets of bins, and a value for each leaf.

    Node k sends a row to ``child[k, 1]`` if its bin of ``feature[k]`` is in ``mask[k]``, otherwise
    to ``child[k, 0]``; a child below zero is leaf ``~child``. Node 0 is the root; a tree without
    nodes is one leaf.
    """

    feature: npt.NDArray[np.int32]  # (k,)
    mask: npt.NDArray[np.uint64]  # (k, 4)
    child: npt.NDArray[np.int32]  # (k, 2) right, left
    value: npt.NDArray[np.float32]  # (k + 1,) learning rate included
    gain: npt.NDArray[np.float64]  # (k,) loss that a split removes from all data, see docs

    @property
    def n_leaves(self) -> int:
        return len(self.value)

    def depth(self) -> int:
        """Splits on the longest path from the root to a leaf."""
        depths = np.zeros(len(self.feature), np.int64)
        for node, children in enumerate(self.child):  # children come after their parent
            for child in children[children >= 0]:
                depths[child] = depths[node] + 1
        return int(depths.max(initial=-1)) + 1


class TreeBuilder:
    """A tree while it grows, leaf by leaf; each new leaf takes the next number."""

    def __init__(self, max_leaves: int) -> None:
        nodes = max(max_leaves - 1, 1)
        self.n_leaves = 1
        self.feature = np.zeros(nodes, np.int32)
        self.mask = np.zeros((nodes, MASK_WORDS), np.uint64)
        self.child = np.zeros((nodes, 2), np.int32)
        self.gain = np.zeros(nodes, np.float64)
        self.split_leaf = np.zeros(nodes, np.int64)  # which leaf each node split
        self._link: list[tuple[int, int] | None] = [None] * max(max_leaves, 1)

    def split(self, leaf: int, feature: int, mask: Mask, gain: float) -> int:
        """Split a leaf, which keeps its number as the left one; returns that of the right one."""
        node, right = self.n_leaves - 1, self.n_leaves
        link = self._link[leaf]
        if link is not None:
            self.child[link] = node
        self.feature[node], self.mask[node], self.gain[node] = feature, mask, gain
        self.child[node] = ~right, ~leaf
        self.split_leaf[node] = leaf
        self._link[leaf], self._link[right] = (node, 1), (node, 0)
        self.n_leaves += 1
        return right

    def finish(self, value: npt.NDArray[np.float32]) -> Tree:
        k = self.n_leaves - 1
        return Tree(
            self.feature[:k].copy(),
            self.mask[:k].copy(),
            self.child[:k].copy(),
            value,
            self.gain[:k].copy(),
        )


@dataclass(frozen=True)
class GrownTree:
    """A tree, and how it was found."""

    tree: Tree
    gamma: float  # measured advantage of the first split
    gamma_certified: float  # the part of it that is certain
    n_proved: int  # splits that the rule proved; others were taken after a full pass
    run_rows: int
    sides: tuple[float, float]  # prediction of the first split on its left and right: 1 or -1

    @property
    def trees(self) -> tuple[Tree, ...]:
        """What the model gets: this tree."""
        return (self.tree,)

    @property
    def n_rules(self) -> int:
        """Splits."""
        return len(self.tree.feature)


@dataclass(frozen=True)
class GrownRound:
    """The trees of one round of boosting, one for each of several classes; some may be a leaf."""

    parts: tuple[GrownTree | None, ...]  # None: no tree stood out from noise

    @property
    def trees(self) -> tuple[Tree, ...]:
        return tuple(constant(0.0) if part is None else part.tree for part in self.parts)

    @property
    def grown(self) -> list[GrownTree]:
        """The trees that have splits."""
        return [part for part in self.parts if part is not None]

    @property
    def n_rules(self) -> int:
        """Splits of all trees."""
        return sum(part.n_rules for part in self.grown)

    @property
    def n_proved(self) -> int:
        return sum(part.n_proved for part in self.grown)

    @property
    def run_rows(self) -> int:
        """Rows of the longest run."""
        return max(part.run_rows for part in self.grown)

    @property
    def gamma(self) -> float:
        """The mean over the trees."""
        return float(np.mean([part.gamma for part in self.grown]))

    @property
    def gamma_certified(self) -> float:
        """The mean over the trees."""
        return float(np.mean([part.gamma_certified for part in self.grown]))


Grown = GrownTree | GrownRound


def constant(value: float) -> Tree:
    """A tree of one leaf."""
    return TreeBuilder(1).finish(np.array([value], np.float32))
