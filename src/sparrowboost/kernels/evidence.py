"""Rows of the sample summed up: by label, feature and bin, and leaf by leaf.

The sample lies in blocks of `block_rows` rows. Within a block, `order` lists its rows leaf after
leaf, each leaf's rows in their own order:

    block 2:   order  [ 0 3 4 7 ... | 1 2 9 ... | 5 6 8 ... ]
                        leaf 0        leaf 2      leaf 1        begin[2, leaf], count[2, leaf]

A histogram has no empty slots: bin b of feature j is slot offset[j] + b.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from sparrowboost.kernels._jit import kernel
from sparrowboost.kernels.prefetch import LINE, prefetch

SPARSE = 8  # rows of a block for each of a leaf: closer ones the processor asks for by itself
AHEAD = 8  # rows from one to that which is asked for; 4 or 16 do as well


def add_pair(pairs, k, a, b):
    """Add a and b to the k-th pair, by one load, addition and store.

    pairs (2 m,) float64  IN/OUT
    """
    pairs[2 * k] += a
    pairs[2 * k + 1] += b


@intrinsic
def _add_pair(context, pairs, k, a, b):
    """The same as machine code: numba makes two additions of the above."""

    def generate(context, builder, signature, values):
        array, at, first, second = values
        data = context.make_array(signature.args[0])(context, builder, array).data
        two = ir.VectorType(ir.DoubleType(), 2)
        place = builder.bitcast(builder.gep(data, [builder.add(at, at)]), two.as_pointer())
        added = ir.Constant(two, ir.Undefined)
        for lane, value in enumerate((first, second)):
            added = builder.insert_element(added, value, ir.Constant(ir.IntType(32), lane))
        before = builder.load(place)
        after = builder.store(builder.fadd(before, added), place)
        before.align = after.align = 8  # as numpy grants
        return context.get_dummy_value()

    return types.void(pairs, types.uint64, types.float64, types.float64), generate


@overload(add_pair, inline="always")
def _compiled_add_pair(pairs, k, a, b):
    return lambda pairs, k, a, b: _add_pair(pairs, k, a, b)


@kernel
def _ask_for_row(bins, label, w, i):
    """Say that row i will be needed soon."""
    prefetch(label, i)
    prefetch(w, i)
    for j in range(0, bins.shape[1], LINE):
        prefetch(bins, (i, np.uint64(j)))


@kernel
def add_rows(bins, label, w, order, begin, count, blocks, block_rows, leaf, offset, hist, v):
    """Add the rows of one leaf to its evidence: one addition for each value.

    bins       (n, d)           uint8    IN
    label      (n,)             uint8    IN   1 = positive
    w          (n,)             float32  IN
    order      (n,)             uint16   IN   rows, counted from the start of their block
    begin      (blocks, leaves) int32    IN   of a leaf's rows in its block's part of `order`
    count      (blocks, leaves) int32    IN
    blocks     (k,)             int64    IN   which blocks to add
    block_rows int                       IN
    leaf       int                       IN
    offset     (d,)             uint64   IN   first slot of each feature
    hist       (2, slots)       float64  OUT  sum of w by label, added to
    v          (2,)             float64  OUT  sum of w**2 by label, added to
    """
    n, d = bins.shape
    flat = hist.reshape(-1)  # a part of it for each row would cost an eighth of the time
    slots = np.uint64(hist.shape[1])
    for k in range(blocks.shape[0]):
        block = blocks[k]
        first = block * block_rows
        m = count[block, leaf]
        if m == min(block_rows, n - first):  # all of the block: in the order they lie
            for i in range(first, first + m):
                y = np.uint64(label[i])
                wi = np.float64(w[i])
                v[y] += wi * wi
                for j in range(d):
                    flat[y * slots + offset[j] + np.uint64(bins[i, j])] += wi
            continue
        start = first + begin[block, leaf]
        sparse = m * SPARSE < block_rows
        for place in range(start, start + m):
            i = np.uint64(first) + np.uint64(order[place])
            if sparse:
                soon = np.uint64(first) + np.uint64(order[min(place + AHEAD, start + m - 1)])
                _ask_for_row(bins, label, w, soon)
            y = np.uint64(label[i])
            wi = np.float64(w[i])
            v[y] += wi * wi
            for j in range(d):
                flat[y * slots + offset[j] + np.uint64(bins[i, j])] += wi


@kernel
def add_curved_rows(
    bins, label, w, u, counted, order, begin, count, blocks, block_rows, leaf, offset, pairs, v
):
    """Add the rows of one leaf so that W+ + W- is twice the curvature instead of the weight.

    With p = w / u, the slope is g = w and the curvature h = u p (1 - p): a row adds h + g / 2 to
    the histogram of its label and h - g / 2 to the other: W+ - W- is the slope as ever. Two
    additions for each value. Where a row is as probable as not, h = g / 2, and both ways are the
    same. As p has few bits, and p (1 - p) is rounded, a row of u = 3 adds what three rows add.

    The arguments are those of `add_rows`, but
    u       (n,) float32         IN   importance of each row
    counted bool                 IN   whether u is a number of rows: their squares add up to u p**2
    pairs   (2 slots,) float64   OUT  the histogram, both labels of a slot beside each other
    """
    n, d = bins.shape
    for k in range(blocks.shape[0]):
        block = blocks[k]
        first = block * block_rows
        m = count[block, leaf]
        whole = m == min(block_rows, n - first)
        start = first + begin[block, leaf]
        sparse = m * SPARSE < block_rows
        for place in range(start, start + m):
            i = np.uint64(place) if whole else np.uint64(first) + np.uint64(order[place])
            if sparse:
                soon = np.uint64(first) + np.uint64(order[min(place + AHEAD, start + m - 1)])
                _ask_for_row(bins, label, w, soon)
                prefetch(u, soon)
            y = np.uint64(label[i])
            wi = np.float64(w[i])
            if wi <= 0:
                continue
            ui = np.float64(u[i])
            p = wi / ui
            v[y] += ui * np.float64(np.float32(p * p)) if counted else wi * wi
            h = ui * np.float64(np.float32(p * (1.0 - p)))
            half = (np.float64(label[i]) - 0.5) * wi
            for j in range(d):
                add_pair(pairs, offset[j] + np.uint64(bins[i, j]), h - half, h + half)


@kernel
def add_leaf_sums(label, w, u, order, begin, count, blocks, block_rows, n_leaves, sums):
    """Add up what the value of each leaf depends on.

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
            for place in range(start, start + count[block, leaf]):
                i = np.uint64(first) + np.uint64(order[place])
                wi = np.float64(w[i])
                y = np.float64(label[i])
                positive += y * wi
                negative += (1.0 - y) * wi
                if wi > 0:  # a row of importance 0 has no weight, and no share in the curvature
                    ui = np.float64(u[i])
                    p = wi / ui
                    squares += ui * np.float64(np.float32(p * p))
            sums[leaf, 0] += negative
            sums[leaf, 1] += positive
            sums[leaf, 2] += squares


@kernel
def add_squares(values, at, step, w, order, begin, count, blocks, block_rows, leaf, mask, v):
    """Add up w**2 of the rows of a leaf that a split would send left.

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
        for place in range(start, start + count[block, leaf]):
            i = np.uint64(order[place])
            b = np.uint64(values[base + i * np.uint64(step)])
            left = np.float64((mask[b >> np.uint64(6)] >> (b & np.uint64(63))) & np.uint64(1))
            wi = np.float64(w[np.uint64(first) + i])
            total += left * wi * wi
    v[0] += total
