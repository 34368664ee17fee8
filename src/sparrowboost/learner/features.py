"""Which features a leaf may be split on: drawn for each tree and each leaf, and constrained.

    all features      d
    of a tree         ceil(colsample_bytree * d), drawn
    of a leaf         those of its tree that interaction constraints allow below its splits, and of
                      these ceil(colsample_bynode * number), drawn

A draw depends on the seed, the number of the tree and the number of the leaf, and on nothing else:
the same however many rows were read, by how many threads, and after a restart.

If the drawn features show no tree, the next ones are drawn, until each was a feature of the root
once: a draw of nothing but noise does not end training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from sparrowboost.learner.interactions import Features, Interactions

DRAWING = 0xC015A  # sets these random numbers apart from others of the same seed
ROUNDING = 1e-9  # of a number of features: 0.1 * 30 is 3, not 4


def share_of(n: int, share: float) -> int:
    """A share of n features, rounded up, and at least one.

    Examples
    --------
    >>> share_of(30, 0.1), share_of(31, 0.1), share_of(5, 0.001)
    (3, 4, 1)
    """
    return max(1, math.ceil(share * n * (1 - ROUNDING)))


class TreeFeatures:
    """Which features the leaves of one tree may be split on.

    Parameters
    ----------
    features : (m,) int64
        Of the tree, ascending.
    bynode : float
    interactions : Interactions, optional
    key : list of int
        Of the random numbers: seed, tree, and so on.
    turn : int
        Which part of the tree's features the root has: the first, the second, ...
    """

    def __init__(
        self,
        features: Features,
        bynode: float,
        interactions: Interactions | None,
        key: list[int],
        turn: int,
    ) -> None:
        self.features, self._bynode, self._interactions = features, bynode, interactions
        self._key, self._turn = key, turn

    def of_leaf(self, number: int, used: frozenset[int]) -> Features:
        """(m,) features of a leaf, ascending.

        Parameters
        ----------
        number : int
            Of the node that the leaf is before it is split: 0 for the root, 2 k - 1 and 2 k for the
            left and the right side of the k-th split.
        used : frozenset of int
            Features of the splits above it.
        """
        features = self.features
        if self._interactions is not None and used:
            features = np.intersect1d(features, self._interactions.allowed(used))
        if self._bynode == 1:
            return features
        rng = np.random.default_rng([*self._key, number])
        return drawn(features, self._bynode, rng, 0 if number else self._turn)


class FeatureDraws:
    """Which features each leaf of each tree may be split on.

    Parameters
    ----------
    n_features : int
    bytree : float
        Share of the features that a tree has.
    bynode : float
        Share of these that a leaf has.
    interactions : Interactions, optional
    seed : int
    """

    def __init__(
        self,
        n_features: int,
        *,
        bytree: float = 1.0,
        bynode: float = 1.0,
        interactions: Interactions | None = None,
        seed: int = 0,
    ) -> None:
        self._every = np.arange(n_features)
        self._bytree, self._bynode, self._interactions = bytree, bynode, interactions
        self._seed = seed

    def of_tree(self, n_trees: int) -> Iterator[TreeFeatures]:
        """The features for the tree after n_trees; then others, until each had its turn."""
        d = len(self._every)
        of_tree = share_of(d, self._bytree)
        of_root = share_of(of_tree, self._bynode)
        for k in range(-(-d // of_tree)):
            features = self._every
            if of_tree < d:
                rng = np.random.default_rng([DRAWING, self._seed, n_trees])
                features = drawn(features, self._bytree, rng, k)
            key = [DRAWING, self._seed, n_trees, k]
            for turn in range(-(-of_tree // of_root)):
                yield TreeFeatures(features, self._bynode, self._interactions, key, turn)


def drawn(features: Features, share: float, rng: np.random.Generator, turn: int) -> Features:
    """A share of some features in random order: the first, the second, ... of such parts.

    Examples
    --------
    >>> parts = [drawn(np.arange(5), 0.4, np.random.default_rng(0), turn) for turn in range(3)]
    >>> [len(part) for part in parts], set(np.concatenate(parts).tolist())
    ([2, 2, 2], {0, 1, 2, 3, 4})
    """
    size = share_of(len(features), share)
    part = np.arange(turn * size, (turn + 1) * size) % len(features)
    return np.sort(rng.permutation(features)[part])
