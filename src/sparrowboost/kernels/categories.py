"""Hashes of texts, a table of them, and sums of the target by category and fold.

The table has open addressing: a hash is looked for at its lowest bits, then at the next places, up
to the first empty one. A category's slot is its number in the order in which they were found.

    keys  (2^p,)  the hash at each place
    slots (2^p,)  the slot of that hash, -1 = empty place
"""

from __future__ import annotations

import numpy as np

from sparrowboost.kernels._jit import helper, kernel

FNV_START, FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
SPACE, DELETE, DOT, ZERO = 0x20, 0x7F, 0x2E, 0x30
T, F, LOWER = 0x74, 0x66, 0x20  # t, f, and the bit of lower case
SHORTEST_TRUTH, LONGEST_TRUTH = 4, 6  # bytes of true and false, whatever their case


@helper
def _mix(z):
    """The output function of splitmix64."""
    z = (z ^ (z >> np.uint64(30))) * MIX_1
    z = (z ^ (z >> np.uint64(27))) * MIX_2
    return z ^ (z >> np.uint64(31))


@kernel
def hash_texts(offsets, data, hashes, odd):
    """64-bit hashes of texts: FNV-1a of their bytes, mixed.

    offsets (n+1,) int32   IN   where texts begin and end in `data`
    data    (m,)   uint8   IN
    hashes  (n,)   uint64  OUT
    odd     (n,)   uint8   OUT  0: the text surely is in its plain form (`plain_words`)
    """
    for i in range(hashes.shape[0]):
        start, stop = offsets[i], offsets[i + 1]
        h = FNV_START
        dotted = False
        for k in range(start, stop):
            h = (h ^ np.uint64(data[k])) * FNV_PRIME
            dotted |= data[k] == DOT
        hashes[i] = _mix(h)
        odd[i] = 0
        if stop > start:
            first, last = data[start], data[stop - 1]
            spaces = first <= SPACE or first >= DELETE or last <= SPACE or last >= DELETE
            letter = first | LOWER
            truth = letter in (T, F) and SHORTEST_TRUTH <= stop - start <= LONGEST_TRUTH
            odd[i] = spaces or truth or (dotted and last == ZERO)


@helper
def _place(h, keys, slots):
    """The place of a hash, or the empty one where it belongs."""
    mask = np.uint64(keys.shape[0] - 1)
    at = h & mask
    while slots[at] >= 0 and keys[at] != h:
        at = (at + np.uint64(1)) & mask
    return at


@kernel
def insert_hashes(hashes, keys, slots, found, n):
    """Slots of hashes; those that are new get the next ones.

    hashes (m,)    uint64  IN
    keys   (2^p,)  uint64  IN OUT  with more than n + m places
    slots  (2^p,)  int32   IN OUT
    found  (c,)    uint64  IN OUT  the hash of each slot; c >= n + m
    n      int             IN      slots in use

    Returns how many are in use now.
    """
    for i in range(hashes.shape[0]):
        h = hashes[i]
        at = _place(h, keys, slots)
        if slots[at] < 0:
            keys[at], slots[at] = h, n
            found[n] = h
            n += 1
    return n


@kernel
def find_hashes(hashes, keys, slots, out):
    """Slots of hashes, -1 of those that are not in the table.

    hashes (m,)    uint64  IN
    keys   (2^p,)  uint64  IN
    slots  (2^p,)  int32   IN
    out    (m,)    int32   OUT
    """
    for i in range(hashes.shape[0]):
        out[i] = slots[_place(hashes[i], keys, slots)]


@kernel
def draw_folds(first_row, seed, n_folds, folds):
    """The fold of each row: a hash of its number in the source.

    first_row uint64       IN   number of the first row
    seed      uint64       IN
    n_folds   uint64       IN
    folds     (n,) uint8   OUT
    """
    for i in range(folds.shape[0]):
        z = _mix(seed + (first_row + np.uint64(i + 1)) * GOLDEN)
        folds[i] = ((z >> np.uint64(32)) * n_folds) >> np.uint64(32)


@kernel
def add_to_folds(codes, slots, folds, values, sums):
    """Add rows to the sums of their categories and folds.

    codes  (n,)      int32    IN   indices into `slots`
    slots  (m,)      int32    IN   the slot of each code; -1 = no category
    folds  (n,)      uint8    IN
    values (k, n)    float64  IN   what to sum: the weight, and it times each target
    sums   (c, f, k) float64  OUT  added to
    """
    for i in range(codes.shape[0]):
        slot = slots[codes[i]]
        if slot >= 0:
            fold = folds[i]
            for j in range(values.shape[0]):
                sums[slot, fold, j] += values[j, i]


@kernel
def bin_by_fold(codes, folds, table, out):
    """Bins of categories where each fold has bins of its own.

    codes (n,)    int32  IN   indices into `table`
    folds (n,)    uint8  IN
    table (m, f)  uint8  IN   the bin of each code in each fold
    out   (n,)    uint8  OUT  any stride
    """
    for i in range(codes.shape[0]):
        out[i] = table[codes[i], folds[i]]
