"""Trees end to end in flat arrays, as the kernels read them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.model.tree import MASK_WORDS, Tree, goes_left
from sparrowboost.store.packing import Packing

# Of a node's record, see kernels/scores.py.
NODE_WORDS, CHILDREN, FEATURE, RANGES, GROUP = 8, 4, 5, 6, 7
RANGED = np.uint64(1 << 63)  # the bit that tells ranges from none
MAX_GROUPS = 256  # leaves that a byte can number
# Mean nanoseconds per row (measured by benchmarks/bench_predict.py): of one step of a walk; of a
# tree whose splits are done at once, and in addition of each split by ranges and of each other.
STEP, AT_ONCE, BY_RANGES, BY_WORDS = 1.6, 0.6, 0.06, 0.4


UNPACKED_NODES = 4_096  # of trees whose features are unpacked together
UNPACKED_BYTES = 1 << 20
MIN_UNPACKED_ROWS = 256


class Forest:
    """Trees end to end in flat arrays, for the kernels; `kernels/scores.py` has the layout.

    Trees are only added at the end, so the first n trees can be read while more are added.
    """

    def __init__(self, trees: Iterable[Tree] = ()) -> None:
        self._nodes = np.zeros((64, NODE_WORDS), np.uint64)
        self._value = np.zeros(64, np.float32)
        self._root = np.zeros(16, np.int64)
        self._depth = np.zeros(16, np.int64)
        self._splits = np.zeros(16, np.int64)
        self.n_trees = self._n_nodes = 0
        for tree in trees:
            self.add(tree)

    def add(self, tree: Tree) -> None:
        first, k = self._n_nodes, len(tree.feature)
        leaves, last = first + k, first + k + tree.n_leaves
        self._nodes, self._value = _grown(self._nodes, last), _grown(self._value, last)
        self._root = _grown(self._root, self.n_trees + 1)
        self._depth = _grown(self._depth, self.n_trees + 1)
        self._splits = _grown(self._splits, self.n_trees + 1)
        group, group_of_leaf = _groups(tree)
        child = tree.child.astype(np.int64)
        child = np.where(child >= 0, first + child, leaves + group_of_leaf[~child])
        own = np.arange(leaves, last)
        nodes = self._nodes
        nodes[first:leaves, :MASK_WORDS] = tree.mask
        nodes[first:leaves, CHILDREN] = child[:, 0] | (child[:, 1] << 32)
        nodes[first:leaves, FEATURE] = tree.feature
        nodes[first:leaves, RANGES] = ranges = _as_ranges(tree.mask)
        nodes[first:leaves, GROUP] = group
        nodes[leaves:last, CHILDREN] = own | (own << 32)
        self._value[leaves + group_of_leaf] = tree.value
        depth, n_ranged = tree.depth(), np.count_nonzero(ranges)
        at_once = AT_ONCE + BY_RANGES * n_ranged + BY_WORDS * (k - n_ranged)
        walked = tree.n_leaves > MAX_GROUPS or STEP * depth < at_once
        self._root[self.n_trees], self._depth[self.n_trees] = first, depth
        self._splits[self.n_trees] = -1 if walked else k
        self._n_nodes = last
        self.n_trees += 1

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """nodes, value, root, depth, splits: what the kernels take."""
        return self._nodes, self._value, self._root, self._depth, self._splits


Arrays = tuple[npt.NDArray[Any], ...]  # of a forest


def add_rounds(
    arrays: Arrays,
    bins: npt.NDArray[np.uint8],
    first: int,
    last: int,
    score: npt.NDArray[np.float32],
    packing: Packing | None = None,
) -> None:
    """Add the trees of rounds first, ..., last - 1 of boosting to scores.

    Scores are (n,), and a round is a tree; or (k, n) of k classes, and a round has a tree for each:
    tree r k + c is that of class c in round r. `packing`: how rows are packed, if they are.
    """
    k = 1 if score.ndim == 1 else len(score)
    _apply(arrays, bins, first * k, last * k, score, 1, packing)


def add_class_rounds(
    arrays: Arrays,
    bins: npt.NDArray[np.uint8],
    first: int,
    last: int,
    score: npt.NDArray[np.float32],
    number: int,
    packing: Packing | None = None,
) -> None:
    """The same for the trees of one class; scores are those of all, (k, n)."""
    k = len(score)
    _apply(arrays, bins, first * k + number, last * k, score[number], k, packing)


def _apply(
    arrays: Arrays,
    bins: npt.NDArray[np.uint8],
    first: int,
    last: int,
    score: npt.NDArray[np.float32],
    step: int,
    packing: Packing | None,
) -> None:
    """Add the trees first, first + step, ... below last; of packed rows, some at a time."""
    from sparrowboost.kernels.scores import apply_trees

    more = [] if step == 1 else [step]  # the default is compiled apart
    if packing is None:
        apply_trees(bins, *arrays, first, last, score, *more)
        return
    if first >= last:
        return
    # Trees are taken so many at a time that their features, unpacked, stay in the caches.
    unit = step if score.ndim == 1 else len(score)
    units, n_nodes = -(-(last - first) // unit), _end(arrays, last - 1) - int(arrays[2][first])
    taken = unit * max(1, units * UNPACKED_NODES // n_nodes)
    for start in range(first, last, taken):
        stop = min(start + taken, last)
        features, part = narrowed(arrays, start, stop)
        rows = max(MIN_UNPACKED_ROWS, UNPACKED_BYTES // max(len(features), 1))
        for at in range(0, len(bins), rows):
            some = slice(at, at + rows)
            unpacked = packing.unpack(bins[some], features)
            apply_trees(unpacked, *part, 0, stop - start, score[..., some], *more)


def _end(arrays: Arrays, tree: int) -> int:
    """Where the nodes of a tree end: k splits, and k + 1 leaves that lead to themselves."""
    nodes, start = arrays[0], int(arrays[2][tree])
    left = (nodes[start:, CHILDREN] >> np.uint64(32)).astype(np.int64)
    n_splits = int((left == np.arange(start, len(nodes))).argmax())
    return start + 2 * n_splits + 1


def narrowed(arrays: Arrays, first: int, last: int) -> tuple[npt.NDArray[np.int64], Arrays]:
    """The features that some trees split on, and these trees alone, of these features alone."""
    nodes, value, root, depth, splits = arrays
    start, stop = int(root[first]), _end(arrays, last - 1)
    own = nodes[start:stop].copy()
    own[:, CHILDREN] -= np.uint64(start) | np.uint64(start << 32)
    leads = (own[:, CHILDREN] >> np.uint64(32)).astype(np.int64)
    splitting = leads != np.arange(len(own))
    features, number = np.unique(own[splitting, FEATURE], return_inverse=True)
    own[:, FEATURE] = 0
    own[splitting, FEATURE] = number
    some = slice(first, last)
    part = own, value[start:stop], root[some] - start, depth[some], splits[some]
    return features.astype(np.int64), part


def _groups(tree: Tree) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The group of the rows at each node and each leaf.

    Rows that go left stay; those that go right at node k move to group k + 1.
    """
    node, leaf = np.zeros(len(tree.feature), np.int64), np.zeros(tree.n_leaves, np.int64)
    for k, (right, left) in enumerate(tree.child):  # children come after their parent
        for child, group in ((left, node[k]), (right, k + 1)):
            if child >= 0:
                node[child] = group
            else:
                leaf[~child] = group
    return node, leaf


def _as_ranges(mask: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Each mask's bins as up to two ranges, packed into one word; 0 if there are more."""
    row, edge = np.nonzero(np.diff(goes_left(mask), axis=1, prepend=False, append=False))
    nth = np.arange(len(row)) - np.searchsorted(row, row)  # of its row's edges
    few = nth < 4
    edges = np.zeros((len(mask), 4), np.uint64)
    edges[row[few], nth[few]] = edge[few]
    start, length = edges[:, ::2], edges[:, 1::2] - edges[:, ::2]
    fits = length.max(axis=1) < 256
    fits[row[~few]] = False
    words = np.concatenate((start, length), axis=1) << np.array([0, 16, 8, 24], np.uint64)
    return np.where(fits, np.bitwise_or.reduce(words, axis=1) | RANGED, np.uint64(0))


def _grown(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    if size <= len(array):
        return array
    larger = np.zeros((2 * size, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
