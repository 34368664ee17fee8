"""Trees end to end in flat arrays, as the kernels read them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.tree import MASK_WORDS, Tree

NODE_WORDS, CHILDREN, FEATURE = 8, 4, 5  # of a node's record, see kernels/scores.py


class Forest:
    """Trees end to end in flat arrays, for the kernels; `kernels/scores.py` tells how they lie.

    Trees are only ever added at the end, so who has read how many there are may go on reading
    them while more are added.
    """

    def __init__(self, trees: Iterable[Tree] = ()) -> None:
        self._nodes = np.zeros((64, NODE_WORDS), np.uint64)
        self._value = np.zeros(64, np.float32)
        self._root = np.zeros(16, np.int64)
        self._depth = np.zeros(16, np.int64)
        self.n_trees = self._n_nodes = 0
        for tree in trees:
            self.add(tree)

    def add(self, tree: Tree) -> None:
        first, k = self._n_nodes, len(tree.feature)
        leaves, last = first + k, first + k + tree.n_leaves
        self._nodes, self._value = _grown(self._nodes, last), _grown(self._value, last)
        self._root = _grown(self._root, self.n_trees + 1)
        self._depth = _grown(self._depth, self.n_trees + 1)
        child = tree.child.astype(np.int64)
        child = np.where(child >= 0, first + child, leaves + ~child)
        own = np.arange(leaves, last)
        nodes = self._nodes
        nodes[first:leaves, :MASK_WORDS] = tree.mask
        nodes[first:leaves, CHILDREN] = child[:, 0] | (child[:, 1] << 32)
        nodes[first:leaves, FEATURE] = tree.feature
        nodes[leaves:last, CHILDREN] = own | (own << 32)
        self._value[leaves:last] = tree.value
        self._root[self.n_trees], self._depth[self.n_trees] = first, tree.depth()
        self._n_nodes = last
        self.n_trees += 1

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """nodes, value, root, depth: what the kernels take."""
        return self._nodes, self._value, self._root, self._depth


def _grown(array: npt.NDArray[Any], least: int) -> npt.NDArray[Any]:
    if least <= len(array):
        return array
    more = np.zeros((2 * least, *array.shape[1:]), array.dtype)
    more[: len(array)] = array
    return more
