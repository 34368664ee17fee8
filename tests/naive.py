"""Slow and plain twins for tests of several kernels: masks, charges, trees, a sample's order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sparrowboost.model.tree import TreeBuilder


def make_mask(bins):
    """The mask with these bins in it."""
    words = [0, 0, 0, 0]
    for b in bins:
        words[b // 64] |= 1 << (b % 64)
    return np.array(words, np.uint64)


def in_mask(mask, b):
    return bool(int(mask[b // 64]) >> (b % 64) & 1)


def subset_charge(weights, noise):
    """What is taken off the gain of subsets of categories of these weights, above 0."""
    k = np.sum(np.sqrt(weights)) ** 2 / np.sum(weights) if len(weights) else 0  # if all were equal
    return noise * 2 / np.pi * max(k - 2, 0)


def lay_out(leaf_of, block_rows, n_leaves, rng):
    """order, begin, count of rows whose leaves are known; in a block, leaves lie in any order."""
    n = len(leaf_of)
    n_blocks = -(-n // block_rows)
    order = np.zeros(n, np.uint16)
    begin, count = np.zeros((2, n_blocks, n_leaves), np.int32)
    for block in range(n_blocks):
        first, place = block * block_rows, 0
        leaves = leaf_of[first : first + block_rows]
        for leaf in rng.permutation(n_leaves):
            mine = np.flatnonzero(leaves == leaf)
            order[first + place : first + place + len(mine)] = mine
            begin[block, leaf], count[block, leaf] = place, len(mine)
            place += len(mine)
    return order, begin, count


def random_mask(rng):
    """Any bins; or those up to a threshold and perhaps a missing one; or a stretch of them."""
    low, high = np.sort(rng.integers(0, 257, 2)).tolist()
    kind = rng.integers(3)
    if kind == 0:
        return rng.integers(0, 2**64, 4, np.uint64)
    if kind == 1:
        return make_mask({*range(low), min(high, 255)})
    return make_mask(range(low, high))


def random_tree(rng, n_features, n_leaves, make=random_mask):
    """A tree of random shape, masks and values; any leaf may have any number."""
    builder = TreeBuilder(n_leaves)
    while builder.n_leaves < n_leaves:
        leaf, feature = rng.integers(builder.n_leaves), rng.integers(n_features)
        builder.split(int(leaf), int(feature), make(rng), 1.0)
    tree = builder.finish(rng.normal(size=n_leaves).astype(np.float32))
    number = rng.permutation(n_leaves).astype(np.int32)
    child = np.where(tree.child < 0, ~number[~tree.child], tree.child)
    return replace(tree, child=child.astype(np.int32))


def find_leaf(tree, row):
    """The leaf that a row of bins gets to."""
    if len(tree.feature) == 0:
        return 0
    node = 0
    while node >= 0:
        left = in_mask(tree.mask[node], int(row[tree.feature[node]]))
        node = int(tree.child[node, int(left)])
    return ~node


def add_trees(trees, bins, score):
    """Scores with the trees' values added one after the other, in float32."""
    out = []
    for row, s in zip(bins, score, strict=True):
        for tree in trees:
            s = np.float32(s + tree.value[find_leaf(tree, row)])
        out.append(s)
    return np.array(out, np.float32)
