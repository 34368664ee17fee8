"""The rows of a block, kept sorted by leaf while a tree grows; `evidence.py` shows the layout."""

from __future__ import annotations

import numpy as np

from sparrowboost.kernels._jit import kernel


@kernel
def start_rows(n, order, begin, count, blocks, block_rows):
    """Put all rows of some blocks in leaf 0.

    n      int                        IN   rows of the sample
    order  (n,)             uint16    OUT
    begin  (blocks, leaves) int32     OUT
    count  (blocks, leaves) int32     OUT
    blocks (k,)             int64     IN
    """
    for k in range(blocks.shape[0]):
        block = blocks[k]
        first = block * block_rows
        m = min(block_rows, n - first)
        for i in range(m):
            order[first + i] = i
        for leaf in range(begin.shape[1]):
            begin[block, leaf] = 0
            count[block, leaf] = 0
        count[block, 0] = m


@kernel
def split_rows(values, at, step, order, begin, count, blocks, block_rows, leaf, right, mask, spare):
    """Split a leaf: rows whose bin is in `mask` stay, the others go to leaf `right`.

    values  (n d,)           uint8   IN   bins, by rows or by columns
    at      int                      IN   index of the first row's bin of the feature to split by
    step    int                      IN   from a row's bin to the next row's
    order   (n,)             uint16  IN/OUT
    begin   (blocks, leaves) int32   IN/OUT
    count   (blocks, leaves) int32   IN/OUT
    blocks  (k,)             int64   IN
    leaf    int                      IN
    right   int                      IN   a new leaf
    mask    (4,)             uint64  IN   bit b: bin b stays
    spare   (block_rows,)    uint16  OUT  work space

    Returns the number of rows that stay. Both sides keep their order.
    """
    stayed = 0
    for k in range(blocks.shape[0]):
        block = blocks[k]
        first = block * block_rows
        base = np.uint64(at + first * step)
        start = first + begin[block, leaf]
        m = count[block, leaf]
        left = 0
        gone = 0
        for index in range(start, start + m):
            i = order[index]
            b = np.uint64(values[base + np.uint64(i) * np.uint64(step)])
            stays = np.int64((mask[b >> np.uint64(6)] >> (b & np.uint64(63))) & np.uint64(1))
            order[start + left] = i  # never beyond the index just read
            spare[gone] = i
            left += stays
            gone += 1 - stays
        for index in range(gone):
            order[start + left + index] = spare[index]
        count[block, leaf] = left
        begin[block, right] = begin[block, leaf] + left
        count[block, right] = gone
        stayed += left
    return stayed
