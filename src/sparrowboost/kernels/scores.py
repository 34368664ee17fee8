"""Scores of rows under trees, and the weights that follow from them.

A forest is a flat array of nodes; a node is one cache line, eight words of 64 bits:

    0 ... 3   bins that go left, one bit each
    4         right child in the lower half, left child in the upper
    5         feature
    6         the same bins as two ranges, four bytes: start, length, start, length; the highest bit
              is set. Or 0 if there are more than two ranges
    7         group of the rows at this node

There are two ways to send rows through a tree.

All splits at once, for many rows. All rows start in group 0; split k moves those rows of its group
that go right to group k + 1; after all splits, a group is a leaf. No step of a row depends on its
previous one, and a group is a byte, so SIMD instructions take 64 rows at once: all 30 splits of a
tree take less time than a walk along 5 of them.

Or a walk from the root, row by row, for large trees and few rows. A leaf is a node that sends every
row to itself, so after depth[t] steps from root[t] every row is in its leaf, and no branch can be
mispredicted. Four rows walk at once, so that their cache misses overlap.
"""

from __future__ import annotations

import numpy as np

from sparrowboost.kernels._jit import kernel
from sparrowboost.kernels.exponential import exp32, rounded

BLOCK = 256  # rows that stay in the first-level cache for all trees
FEW = 48  # rows of a block below which walks are faster


@kernel
def _step(nodes, bins, i, node):
    """The child of `node` to which row i goes."""
    record = nodes[node]
    b = np.uint64(bins[i, record[np.uint64(5)]])
    left = (record[b >> np.uint64(6)] >> (b & np.uint64(63))) & np.uint64(1)
    return (record[np.uint64(4)] >> (left << np.uint64(5))) & np.uint64(0xFFFFFFFF)


@kernel
def _walk(bins, nodes, value, top, depth, start, stop, score):
    """Add the value of one tree's leaf to the score of each row from start to stop."""
    fours = start + (stop - start) // 4 * 4
    for i in range(start, fours, 4):
        n0 = top
        n1 = top
        n2 = top
        n3 = top
        for _ in range(depth):
            n0 = _step(nodes, bins, i, n0)
            n1 = _step(nodes, bins, i + 1, n1)
            n2 = _step(nodes, bins, i + 2, n2)
            n3 = _step(nodes, bins, i + 3, n3)
        score[i] += value[n0]
        score[i + 1] += value[n1]
        score[i + 2] += value[n2]
        score[i + 3] += value[n3]
    for i in range(fours, stop):
        n0 = top
        for _ in range(depth):
            n0 = _step(nodes, bins, i, n0)
        score[i] += value[n0]


@kernel
def _split_by_ranges(ranges, column, f, here, there, group):
    """Move the rows that are `here`, and whose bin is in neither range, `there`."""
    first = np.uint8(ranges)
    n_first = np.uint8(ranges >> np.uint64(8))
    second = np.uint8(ranges >> np.uint64(16))
    n_second = np.uint8(ranges >> np.uint64(24))
    for i in range(BLOCK):
        b = column[f, i]
        right = (np.uint8(b - first) >= n_first) & (np.uint8(b - second) >= n_second)
        group[i] = there if right & (group[i] == here) else group[i]


@kernel
def _split_by_words(word0, word1, word2, word3, column, f, here, there, group):
    """Move the rows that are `here`, and whose bin has no bit in the words, `there`."""
    for i in range(BLOCK):
        b = np.uint64(column[f, i])
        low = word0 if b < np.uint64(64) else word1
        high = word2 if b < np.uint64(192) else word3
        word = low if b < np.uint64(128) else high
        right = (word >> (b & np.uint64(63))) & np.uint64(1) == np.uint64(0)
        group[i] = there if right & (group[i] == here) else group[i]


@kernel
def apply_trees(bins, nodes, value, root, depth, splits, first, last, score, step=1):
    """Add the values of trees first, first + step, ..., below last to the score of each row.

    bins   (n, d)  uint8    IN
    nodes  (k, 8)  uint64   IN
    value  (k,)    float32  IN
    root   (t,)    int64    IN
    depth  (t,)    int64    IN
    splits (t,)    int64    IN   number of a tree's splits if they are done at once, else -1
    score  (n,)    float32  OUT  added to, one tree after the other; or (k, n), of k classes:
                                 tree t is of class t % k
    """
    n, d = bins.shape
    column = np.empty((d, BLOCK), np.uint8)  # a block's bins by feature, once used
    met = np.empty(d, np.uint8)
    group = np.empty(BLOCK, np.uint8)
    for start in range(0, n, BLOCK):
        m = min(BLOCK, n - start)
        for f in range(d):
            met[f] = 0
        for t in range(first, last, step):
            if score.ndim == 1:  # noqa: SIM108 - known when this is compiled; types differ
                own = score
            else:
                own = score[t % score.shape[0]]
            k = splits[t]
            if k < 0 or m < FEW:
                _walk(bins, nodes, value, np.uint64(root[t]), depth[t], start, start + m, own)
                continue
            for i in range(BLOCK):
                group[i] = 0
            for split in range(k):
                node = np.uint64(root[t] + split)
                f = nodes[node, 5]
                if not met[f]:
                    met[f] = 1
                    for i in range(m):
                        column[f, i] = bins[start + i, f]
                ranges, here, there = nodes[node, 6], np.uint8(nodes[node, 7]), np.uint8(split + 1)
                if ranges:
                    _split_by_ranges(ranges, column, f, here, there, group)
                else:
                    _split_by_words(
                        nodes[node, 0],
                        nodes[node, 1],
                        nodes[node, 2],
                        nodes[node, 3],
                        column,
                        f,
                        here,
                        there,
                        group,
                    )
            leaves = np.uint64(root[t] + k)
            for i in range(m):
                own[start + i] += value[leaves + np.uint64(group[i])]


@kernel
def add_values(value, order, begin, count, blocks, blocis, n_leaves, score):
    """Add a tree's values to the scores of the rows on which it was grown.

    value  (leaves,) float32  IN
    order, begin, count, blocks, blocis: as in `evidence.py`
    score  (n,)      float32  OUT  added to
    """
    for k in range(blocks.shape[0]):
        block = blocks[k]
        first = block * blocis
        for leaf in range(n_leaves):
            start = first + begin[block, leaf]
            for i in range(start, start + count[block, leaf]):
                score[np.uint64(first) + np.uint64(order[i])] += value[leaf]


@kernel
def weigh_logistic(label, u, score, w, total):
    """Weights under the logistic loss, w = u p with p = 1 / (1 + exp(2 y H)).

    p is rounded to 16 bits. Its product with an integer u up to 256 is then exact, and so are sums
    of some thousand weights in float64: they depend neither on the order of rows, nor on whether
    a row is repeated u times. The error, 1e-5 of a weight, is far below the noise of any sample.

    label (n,) uint8    IN
    u     (n,) float32  IN   importance
    score (n,) float32  IN   H
    w     (n,) float32  OUT
    total (2,) float64  OUT  sum of w, sum of w**2
    """
    one = np.float32(1.0)
    for i in range(label.shape[0]):
        m = score[i] if label[i] else -score[i]
        # Beyond 80, u / (1 + exp) is 0 or u anyway.
        x = min(max(np.float32(2.0) * m, np.float32(-80.0)), np.float32(80.0))
        w[i] = u[i] * rounded(one / (one + exp32(x)))
    s = 0.0
    q = 0.0
    for i in range(label.shape[0]):
        wi = np.float64(w[i])
        s += wi
        q += wi * wi
    total[0] = s
    total[1] = q


@kernel
def weigh_exponential(label, u, score, limit, w, total):
    """Weights under the exponential loss, w = u * exp(-y H), y H clipped to -limit ... limit.

    The other arguments are those of `weigh_logistic`.
    """
    s = 0.0
    q = 0.0
    for i in range(label.shape[0]):
        m = score[i] if label[i] else -score[i]
        wi = u[i] * np.exp(min(max(-m, -limit), limit))
        w[i] = wi
        s += np.float64(wi)
        q += np.float64(wi) * np.float64(wi)
    total[0] = s
    total[1] = q
