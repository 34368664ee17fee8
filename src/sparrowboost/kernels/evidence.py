"""Sums over rows of the sample: by label, feature and bin, and by leaf.

The sample is divided into blocks of `block_rows` rows. Within a block, `order` lists the rows by
leaf, those of each leaf in ascending order:

    block 2:   order  [ 0 3 4 7 ... | 1 2 9 ... | 5 6 8 ... ]
                        leaf 0        leaf 2      leaf 1        begin[2, leaf], count[2, leaf]

A histogram has no gaps: bin b of feature j is slot offset[j] + b.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from sparrowboost.kernels._jit import kernel
from sparrowboost.kernels.prefetch import LINE, prefetch

SPARSE = 8  # prefetch where a leaf has less than 1 in 8 rows of a block
AHEAD = 8  # rows between a row and the one that is prefetched; 4 or 16 are as fast


def add_pair(pairs, k, a, b):
    """Add a and b to the k-th pair, with one vector addition.

    pairs (2 m,) float64  IN/OUT
    """
    pairs[2 * k] += a
    pairs[2 * k + 1] += b


@intrinsic
def _add_pair(context, pairs, k, a, b):
    """The same in LLVM: numba compiles the above to two additions."""

    def generate(context, builder, signature, values):
        array, at, first, second = values
        data = context.make_array(signature.args[0])(context, builder, array).data
        two = ir.VectorType(ir.DoubleType(), 2)
        address = builder.bitcast(builder.gep(data, [builder.add(at, at)]), two.as_pointer())
        added = ir.Constant(two, ir.Undefined)
        for lane, value in enumerate((first, second)):
            added = builder.insert_element(added, value, ir.Constant(ir.IntType(32), lane))
        before = builder.load(address)
        after = builder.store(builder.fadd(before, added), address)
        before.align = after.align = 8  # numpy guarantees no more
        return context.get_dummy_value()

    return types.void(pairs, types.uint64, types.float64, types.float64), generate


@overload(add_pair, inline="always")
def _compiled_add_pair(pairs, k, a, b):
    return lambda pairs, k, a, b: _add_pair(pairs, k, a, b)


@kernel
def _prefetch_row(bins, label, w, i):
    prefetch(label, i)
    prefetch(w, i)
    for j in range(0, bins.shape[1], LINE):
        prefetch(bins, (i, np.uint64(j)))


@kernel
def add_rows(
    bins, label, w, order, begin, count, blocks, block_rows, leaf, offset, columns, hist, v
):
    """Add the rows of one leaf to its evidence: one addition per value.

    bins       (n, d)           uint8    IN
    label      (n,)             uint8    IN   1 = positive
    w          (n,)             float32  IN
    order      (n,)             uint16   IN   row numbers within their block
    begin      (blocks, leaves) int32    IN   first index of a leaf in its block's part of `order`
    count      (blocks, leaves) int32    IN   rows of a leaf in a block
    blocks     (k,)             int64    IN   blocks to add
    block_rows int                       IN
    leaf       int                       IN
    offset     (d,)             uint64   IN   first slot of each feature
    columns    (m,)             uint64   IN   columns of `bins` to add; None: all, which is compiled
                                              apart, and costs nothing to tell
    hist       (2, slots)       float64  OUT  sum of w by label, added to
    v          (2,)             float64  OUT  sum of w**2 by label, added to
    """
    n, d = bins.shape
    flat = hist.reshape(-1)  # a view per row would take an eighth of the time
    slots = np.uint64(hist.shape[1])
    for k in range(blocks.shape[0]):
        block = blocks[k]
        first = block * block_rows
        m = count[block, leaf]
        if m == min(block_rows, n - first):  # all rows of the block: no need to look at `order`
            for i in range(first, first + m):
                y = np.uint64(label[i])
                wi = np.float64(w[i])
                v[y] += wi * wi
                if columns is None:
                    for j in range(d):
                        flat[y * slots + offset[j] + np.uint64(bins[i, j])] += wi
                else:
                    for j in columns:
                        flat[y * slots + offset[j] + np.uint64(bins[i, j])] += wi
            continue
        start = first + begin[block, leaf]
        sparse = m * SPARSE < block_rows
        for index in range(start, start + m):
            i = np.uint64(first) + np.uint64(order[index])
            if sparse:
                ahead = np.uint64(first) + np.uint64(order[min(index + AHEAD, start + m - 1)])
                _prefetch_row(bins, label, w, ahead)
            y = np.uint64(label[i])
            wi = np.float64(w[i])
            v[y] += wi * wi
            if columns is None:
                for j in range(d):
                    flat[y * slots + offset[j] + np.uint64(bins[i, j])] += wi
            else:
                for j in columns:
                    flat[y * slots + offset[j] + np.uint64(bins[i, j])] += wi


@kernel
def add_curved_rows(
    bins,
    label,
    w,
    u,
    counted,
    order,
    begin,
    count,
    blocks,
    block_rows,
    leaf,
    offset,
    columns,
    pairs,
    v,
):
    """Add the rows of one leaf so that W+ + W- is twice the curvature instead of the weight.

    With p = w / u, the gradient is g = w and the curvature h = u p (1 - p). A row adds h + g / 2 to
    the histogram of its label and h - g / 2 to the other, so that W+ - W- is still the gradient.
    This takes two additions per value. For p = 1 / 2, h = g / 2, and the sums are those of
    `add_rows`. As p has few bits, and p (1 - p) is rounded, a row with u = 3 adds exactly what
    three rows add.

    The arguments are those of `add_rows`, except
    u       (n,) float32         IN   importance of each row
    counted bool                 IN   whether u is a number of rows: their squares add up to u p**2
    pairs   (2 slots,) float64   OUT  the histogram, both labels of a slot side by side
    """
    n, d = bins.shape
    for k in range(blocks.shape[0]):
        block = blocks[k]
        first = block * block_rows
        m = count[block, leaf]
        whole = m == min(block_rows, n - first)
        start = first + begin[block, leaf]
        sparse = m * SPARSE < block_rows
        for index in range(start, start + m):
            i = np.uint64(index) if whole else np.uint64(first) + np.uint64(order[index])
            if sparse:
                ahead = np.uint64(first) + np.uint64(order[min(index + AHEAD, start + m - 1)])
                _prefetch_row(bins, label, w, ahead)
                prefetch(u, ahead)
            y = np.uint64(label[i])
            wi = np.float64(w[i])
            if wi <= 0:
                continue
            ui = np.float64(u[i])
            p = wi / ui
            v[y] += ui * np.float64(np.float32(p * p)) if counted else wi * wi
            h = ui * np.float64(np.float32(p * (1.0 - p)))
            half = (np.float64(label[i]) - 0.5) * wi
            if columns is None:
                for j in range(d):
                    add_pair(pairs, offset[j] + np.uint64(bins[i, j]), h - half, h + half)
            else:
                for j in columns:
                    add_pair(pairs, offset[j] + np.uint64(bins[i, j]), h - half, h + half)


@kernel
def add_leaf_sums(label, w, u, order, begin, count, blocks, block_rows, n_leaves, sums):
    """Add up the sums that the value of each leaf depends on.

    label, w, order, begin, count, blocks, block_rows: as for `add_rows`
    u    (n,)        float32  IN   importance of each row
    sums (leaves, 3) float64  OUT  sum of w over negatives, over positives, and sum of w**2 / u
    """
    for k in range(blocks.shape[0]):
        block = blocks[k]
        first = block * block_rows
        for leaf in range(n_leaves):
            start = first + begin[block, leaf]
            negative = 0.0
            positive = 0.0
            squares = 0.0
            for index in range(start, start + count[block, leaf]):
                i = np.uint64(first) + np.uint64(order[index])
                wi = np.float64(w[i])
                y = np.float64(label[i])
                positive += y * wi
                negative += (1.0 - y) * wi
                if wi > 0:  # rows of importance 0 have no weight and no curvature
                    ui = np.float64(u[i])
                    p = wi / ui
                    squares += ui * np.float64(np.float32(p * p))
            sums[leaf, 0] += negative
            sums[leaf, 1] += positive
            sums[leaf, 2] += squares


@kernel
def add_squares(values, at, step, w, order, begin, count, blocks, block_rows, leaf, mask, v):
    """Add up w**2 over the rows of a leaf that a split sends left.

    values, at, step, mask: as for `split_rows` in `partition.py`
    w, order, begin, count, blocks, block_rows, leaf: as for `add_rows`
    v (1,) float64  OUT  added to
    """
    total = 0.0
    for k in range(blocks.shape[0]):
        block = blocks[k]
        first = block * block_rows
        base = np.uint64(at + first * step)
        start = first + begin[block, leaf]
        for index in range(start, start + count[block, leaf]):
            i = np.uint64(order[index])
            b = np.uint64(values[base + i * np.uint64(step)])
            left = np.float64((mask[b >> np.uint64(6)] >> (b & np.uint64(63))) & np.uint64(1))
            wi = np.float64(w[np.uint64(first) + i])
            total += left * wi * wi
    v[0] += total
