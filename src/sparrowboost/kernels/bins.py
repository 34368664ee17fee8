"""Values to bins: bin = number of thresholds below the value, so a value at a threshold goes left.

`bin_by_grid`, `bin_by_bits` and `bin_by_search` return what ``numpy.searchsorted(thresholds, x)``
does; they differ in the first guess. The first two use a key, a non-decreasing function of the
value. All thresholds with a smaller key than x are below x, so that

    lut[key(x)] = number of thresholds with a smaller key,     then step over those of the same key

is exact, however coarse the key is. With a good key there is only one step.
"""

from __future__ import annotations

import numpy as np

from sparrowboost.kernels._jit import kernel


@kernel
def bin_by_grid(x, thresholds, lut, low, scale, steps, missing, out):
    """Bins by a grid of equal cells over the thresholds' range.

    x          (n,)    float32, float64 or int64  IN   NaN: missing
    thresholds (256,)  as x                       IN   ascending, padded with the largest value
    lut        (cells,) uint8                     IN
    low, scale                                    IN   key = (x - low) * scale, clipped to the grid
    steps                                         IN   maximum number of thresholds in a cell
    missing    uint8                              IN   the bin of missing values
    out        (n,)    uint8                      OUT  any stride
    """
    zero = scale * 0
    top = zero + (lut.shape[0] - 1)
    for i in range(x.shape[0]):
        v = x[i]
        key = (v - low) * scale
        key = key if key > zero else zero  # also of NaN
        key = key if key < top else top
        pos = np.uint64(lut[np.uint32(key)])
        for _ in range(steps):
            pos += np.uint64(thresholds[pos] < v)
        out[i] = np.uint8(pos) if v == v else missing


@kernel
def bin_by_bits(x, thresholds, lut, steps, missing, out):
    """Bins by the sign, exponent and first seven fraction bits of the value as float32.

    The arguments are those of `bin_by_grid`; lut is (65536,).
    """
    for i in range(x.shape[0]):
        v = x[i]
        bits = np.float32(v).view(np.int32)
        # Negative floats have the opposite order as integers: flip all bits, else only the sign.
        flip = (bits >> np.int32(31)) | np.int32(-(2**31))
        key = np.uint32(bits ^ flip) >> np.uint32(16)
        pos = np.uint64(lut[key])
        for _ in range(steps):
            pos += np.uint64(thresholds[pos] < v)
        out[i] = np.uint8(pos) if v == v else missing


@kernel
def bin_by_search(x, thresholds, missing, out):
    """Bins by a binary search without branches: eight steps for 256 bins.

    The arguments are those of `bin_by_grid`.
    """
    for i in range(x.shape[0]):
        v = x[i]
        pos = np.uint64(128) * np.uint64(thresholds[127] < v)
        pos += np.uint64(64) * np.uint64(thresholds[pos + np.uint64(63)] < v)
        pos += np.uint64(32) * np.uint64(thresholds[pos + np.uint64(31)] < v)
        pos += np.uint64(16) * np.uint64(thresholds[pos + np.uint64(15)] < v)
        pos += np.uint64(8) * np.uint64(thresholds[pos + np.uint64(7)] < v)
        pos += np.uint64(4) * np.uint64(thresholds[pos + np.uint64(3)] < v)
        pos += np.uint64(2) * np.uint64(thresholds[pos + np.uint64(1)] < v)
        pos += np.uint64(thresholds[pos] < v)
        out[i] = np.uint8(pos) if v == v else missing


@kernel
def bin_by_table(x, table, out):
    """Bins of small integers, or of indices into a dictionary, by a table.

    x     (n,) uint8, uint16 or int32  IN   below len(table)
    table (k,) uint8                   IN   the bin of each value
    out   (n,) uint8                   OUT  any stride
    """
    for i in range(x.shape[0]):
        out[i] = table[np.uint32(x[i])]


@kernel
def bin_codes(codes, tables, column, out):
    """Bins of many columns of byte codes at once, by tables; columns become rows.

    codes  (k, n)   uint8  IN
    tables (k, 256) uint8  IN   the bin of each code of a column
    column (k,)     int64  IN   the column of `out` for each
    out    (n, d)   uint8  OUT  any strides
    """
    k, n = codes.shape
    # Enough rows to use up a cache line of each column, and few enough for those of `out` to stay
    # in the first-level cache meanwhile.
    for start in range(0, n, 128):
        stop = min(start + 128, n)
        for c in range(k):
            j, x, table = np.uint64(column[c]), codes[c], tables[c]
            for row in range(start, stop):
                i = np.uint64(row)
                out[i, j] = table[x[i]]


@kernel
def count_bins(bins, counts):
    """Count the rows in each bin.

    bins   (n, r)   uint8  IN   r >= d: numbers may follow the bins
    counts (d, 256) int64  OUT  added to
    """
    n, d = bins.shape[0], counts.shape[0]
    for i in range(n):
        for j in range(d):
            counts[j, bins[i, j]] += 1
