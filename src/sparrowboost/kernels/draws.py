"""Rows picked by weight, handed to their strata, and put into random order."""

from __future__ import annotations

import numpy as np

from sparrowboost.kernels._jit import kernel


@kernel
def pick_rows(w, scale, share, carry, start, pick, copies, limit):
    """Pick rows with chance min(1, w / (share * scale)), by steps of one running sum.

    The sum of the chances is followed; a row is picked when it steps over a whole number. So the
    number picked is never further than one from what is expected (minimal variance).

    w      (n,) float32  IN
    scale  float         IN   weight of an ordinary row of the draw
    share  float         IN   chance with which the rows at hand were read at all
    carry  float         IN   where the running sum stands, in [0, 1)
    start  int           IN   first row to look at
    pick   (n,) int64    OUT  rows picked
    copies (n,) float32  OUT  for each, rows of the data that it stands for: 1 / its chance
    limit  int           IN   most rows to pick

    Returns the number picked, the row to go on with, and the running sum.
    """
    n = w.shape[0]
    picked = 0
    rate = 1.0 / (share * scale)
    for i in range(start, n):
        if picked == limit:
            return picked, i, carry
        p = min(1.0, np.float64(w[i]) * rate)
        carry += p
        if carry >= 1.0:
            carry = min(carry - 1.0, 0.9999999999999999)  # 1 + (1 - 2**-53) rounds to 2
            pick[picked] = i
            copies[picked] = np.float32(1.0 / (share * p))
            picked += 1
    return picked, n, carry


@kernel
def weigh_draw(weight, rows, scale):
    """What a draw is expected to have at some scale.

    weight (n,) float32  IN
    rows   (n,) float32  IN   of each weight
    scale  float         IN   weight of an ordinary row of the draw

    Returns its rows, and the sum of the squares of their weights.
    """
    kept = 0.0
    squares = 0.0
    for i in range(weight.shape[0]):
        w = np.float64(weight[i])
        m = np.float64(rows[i])
        kept += m * min(w / scale, 1.0)
        squares += m * w * max(w, scale)
    return kept, squares


@kernel
def find_strata(w, lowest, n_strata, stratum):
    """Stratum of each row: floor(log2 w) - lowest, cut to the strata there are.

    w       (n,) float32  IN
    stratum (n,) uint8    OUT
    """
    for i in range(w.shape[0]):
        power = np.int32(np.float32(w[i]).view(np.int32) >> np.int32(23)) - np.int32(127)
        stratum[i] = min(max(power - lowest, 0), n_strata - 1)


@kernel
def put_rows(
    bins, label, weight, score, seen, stratum, order, start,
    to_bins, to_label, to_weight, to_score, to_seen, filled,
):  # fmt: skip
    """Put rows into the chunks of their strata, one after the other, until one is full.

    bins    (n, d) uint8    IN
    label   (n,)   uint8    IN
    weight  (n,)   float32  IN   the user's, or (0,)
    score   (n,)   float32  IN
    seen    (n,)   int32    IN   trees in the score
    stratum (n,)   uint8    IN
    order   (n,)   uint32   IN   in which rows are put
    start   int             IN   how many of them are put already
    to_...  (s, m, ...)     OUT  the same of the chunks, m rows for each stratum
    filled  (s,)   int64    IN/OUT  rows in each chunk

    Returns how many rows are put, and the stratum whose chunk is full, or -1.
    """
    d = bins.shape[1]
    room = to_label.shape[1]
    weighted = weight.shape[0] > 0
    for at in range(start, order.shape[0]):
        i = np.uint64(order[at])
        k = np.uint64(stratum[i])
        slot = np.uint64(filled[k])
        for j in range(d):
            to_bins[k, slot, j] = bins[i, j]
        to_label[k, slot] = label[i]
        to_score[k, slot] = score[i]
        to_seen[k, slot] = seen[i]
        if weighted:
            to_weight[k, slot] = weight[i]
        filled[k] += 1
        if filled[k] == room:
            return at + 1, np.int64(k)
    return order.shape[0], -1


@kernel
def keep_rows(bins, label, weight, score, which, first, to_bins, to_label, to_weight, to_score):
    """Copy some rows to where there is room for them, from row `first` on.

    bins   (n, d) uint8    IN
    label  (n,)   uint8    IN
    weight (n,)   float32  IN   or (0,)
    score  (n,)   float32  IN
    which  (k,)   int64    IN
    to_...                 OUT  the same of more rows
    """
    d = bins.shape[1]
    weighted = weight.shape[0] > 0
    for k in range(which.shape[0]):
        i = np.uint64(which[k])
        to = np.uint64(first + k)
        for j in range(d):
            to_bins[to, j] = bins[i, j]
        to_label[to] = label[i]
        to_score[to] = score[i]
        if weighted:
            to_weight[to] = weight[i]


@kernel
def shuffle_rows(seed, bins, label, copies, weight, score):
    """Put rows into random order, in place (Fisher and Yates).

    seed   uint64           IN
    bins   (n, d)  uint8    IN/OUT
    label  (n,)    uint8    IN/OUT
    copies (n,)    float32  IN/OUT
    weight (n,)    float32  IN/OUT  or (0,)
    score  (n,)    float32  IN/OUT
    """
    n, d = bins.shape
    state = seed
    for i in range(n - 1, 0, -1):
        state += np.uint64(0x9E3779B97F4A7C15)
        z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
        k = np.int64(((z >> np.uint64(32)) * np.uint64(i + 1)) >> np.uint64(32))
        for j in range(d):
            b = bins[i, j]
            bins[i, j] = bins[k, j]
            bins[k, j] = b
        y = label[i]
        label[i] = label[k]
        label[k] = y
        c = copies[i]
        copies[i] = copies[k]
        copies[k] = c
        s = score[i]
        score[i] = score[k]
        score[k] = s
        if weight.shape[0] > 0:
            u = weight[i]
            weight[i] = weight[k]
            weight[k] = u
