"""Moves rows: into random buckets, and out of a bucket in random order."""

from __future__ import annotations

import numpy as np

from sparrowboost.kernels._jit import kernel


@kernel
def scatter_rows(records, code, n_bands, start, first_row, seed, buckets, fill):
    """Put each row into the bucket of its band that a hash of its number gives, until one is full.

    records   (n, r)    uint8   IN
    code      (n,)      uint8   IN   band: label code, 0 or 1, or band of the target
    n_bands   int               IN
    start     int               IN   first row of `records` to put
    first_row uint64            IN   number in the source of row 0 of `records`
    seed      uint64            IN
    buckets   (b, m, r) uint8   OUT  m slots for rows in each; the first b / n_bands are of band 0
    fill      (b,)      int64   OUT  slots in use

    Returns the first row that was not put, since its bucket is full, or n. The hash is splitmix64:
    its output passes tests of randomness, and depends only on the seed and the row number.
    """
    n, width = records.shape
    of_band = np.uint64(buckets.shape[0] // n_bands)
    slots = buckets.shape[1]
    for i in range(start, n):
        z = seed + (first_row + np.uint64(i + 1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
        b = np.uint64(code[i]) * of_band + (((z >> np.uint64(32)) * of_band) >> np.uint64(32))
        slot = fill[b]
        if slot == slots:
            return i
        for j in range(width):
            buckets[b, slot, j] = records[i, j]
        fill[b] = slot + 1
    return n


@kernel
def random_order(seed, order):
    """Fill `order` with a uniformly random permutation (Fisher and Yates).

    seed  uint64       IN
    order (n,) uint32  OUT

    An index is picked by 32 random bits: the relative error of its probability is below n / 2**32.
    """
    n = order.shape[0]
    for i in range(n):
        order[i] = i
    state = seed
    for i in range(n - 1, 0, -1):
        state += np.uint64(0x9E3779B97F4A7C15)
        z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
        j = ((z >> np.uint64(32)) * np.uint64(i + 1)) >> np.uint64(32)
        swapped = order[i]
        order[i] = order[j]
        order[j] = swapped


@kernel
def gather_rows(records, order, bins, extra):
    """Rows of a block in another order, split into bins and the numbers that follow them.

    records (m, r)    uint8   IN   d bins, and e float32: weight and target, of those that there are
    order   (n,)      uint32  IN   which rows
    bins    (n, d)    uint8   OUT
    extra   (n, 4 e)  uint8   OUT  bytes of float32
    """
    n, d = bins.shape
    n_bytes = extra.shape[1]
    for i in range(n):
        row = order[i]
        for j in range(d):
            bins[i, j] = records[row, j]
        for j in range(n_bytes):
            extra[i, j] = records[row, d + j]


@kernel
def columns_to_rows(columns, rows):
    """Transpose bins.

    columns (d, n) uint8  IN
    rows    (n, d) uint8  OUT  any strides
    """
    d, n = columns.shape
    # As in `bin_codes`: the rows of a block stay in the first-level cache for all columns.
    for start in range(0, n, 128):
        stop = min(start + 128, n)
        for j in range(d):
            for i in range(start, stop):
                rows[i, j] = columns[j, i]
