"""Values to bins: bin = number of thresholds below the value, so a value at a threshold is left.

Every kernel but the last gives what ``numpy.searchsorted(thresholds, x)`` gives; they differ in how
they get near the answer. `key` below stands for any function that never falls as its argument
grows. All thresholds with a smaller key than x lie below x, so that

    lut[key(x)] = thresholds whose key is smaller     then     step over those of the same key

is exact however coarse the key is; a good key leaves one step.
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
    low, scale                                    IN   key = (x - low) * scale, cut to the grid
    steps                                         IN   most thresholds that share a cell
    missing    uint8                              IN   the bin of missing values
    out        (n,)    uint8                      OUT  any stride
    """
    zero = scale * 0
    top = zero + (lut.shape[0] - 1)
    for i in range(x.shape[0]):
        v = x[i]
        key = (v - low) * scale
        key = key if key > zero else zero  # NaN goes here, too
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
        # Negative floats order backwards as integers: flip all their bits, else the sign only.
        flip = (bits >> np.int32(31)) | np.int32(-(2**31))
        key = np.uint32(bits ^ flip) >> np.uint32(16)
        pos = np.uint64(lut[key])
        for _ in range(steps):
            pos += np.uint64(thresholds[pos] < v)
        out[i] = np.uint8(pos) if v == v else missing


@kernel
def bin_by_search(x, thresholds, missing, out):
    """Bins by a binary search without branches: eight steps find one of 256 places.

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
    """Bins of small integers, or of places in a dictionary: looked up.

    x     (n,) uint8, uint16 or int32  IN   at most len(table) - 1
    table (k,) uint8                   IN   the bin of each value
    out   (n,) uint8                   OUT  any stride
    """
    for i in range(x.shape[0]):
        out[i] = table[np.uint32(x[i])]


@kernel
def bin_codes(codes, tables, column, out):
    """Bins of many columns of byte codes at once: looked up, and turned from columns into rows.

    codes  (k, n)   uint8  IN
    tables (k, 256) uint8  IN   the bin of each code of a column
    column (k,)     int64  IN   which column of `out` each is
    out    (n, d)   uint8  OUT  any strides
    """
    k, n = codes.shape
    # So many rows that a cache line of each column is used up, and few enough that those of `out`
    # stay in the nearest cache meanwhile.
    for start in range(0, n, 128):
        stop = min(start + 128, n)
        for c in range(k):
            j, x, table = np.uint64(column[c]), codes[c], tables[c]
            for row in range(start, stop):
                i = np.uint64(row)
                out[i, j] = table[x[i]]
