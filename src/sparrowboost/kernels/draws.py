"""Rows are drawn by weight, put into their strata, and shuffled."""

from __future__ import annotations

import numpy as np

from sparrowboost.kernels._jit import kernel


@kernel
def pick_rows(w, scale, share, carry, start, pick, copies, limit):
    """Pick rows with probability min(1, w / (share * scale)), by systematic sampling.

    A row is picked when the running sum of the probabilities passes a whole number. So the number
    of rows picked differs by less than one from its expectation (minimal variance).

    w      (n,) float32  IN
    scale  float         IN   weight of an ordinary row of the draw
    share  float         IN   probability with which these rows were read at all
    carry  float         IN   fractional part of the running sum, in [0, 1)
    start  int           IN   first row to consider
    pick   (n,) int64    OUT  rows picked
    copies (n,) float32  OUT  rows of the data that each stands for: 1 / its probability
    limit  int           IN   maximum number of rows to pick

    Returns the number of rows picked, the row to continue with, and the running sum.
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
    """Expected size of a draw at some scale.

    weight (n,) float32  IN
    rows   (n,) float32  IN   number of rows of each weight
    scale  float         IN   weight of an ordinary row of the draw

    Returns the number of rows, and the sum of their squared weights.
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
    """Stratum of each row: floor(log2 w) - lowest, clipped to 0 ... n_strata - 1.

    w       (n,) float32  IN
    stratum (n,) uint16   OUT
    """
    for i in range(w.shape[0]):
        power = np.int32(np.float32(w[i]).view(np.int32) >> np.int32(23)) - np.int32(127)
        stratum[i] = min(max(power - lowest, 0), n_strata - 1)


@kernel
def put_rows(
    bins, label, weight, score, seen, target, stratum, order, start,
    to_bins, to_label, to_weight, to_score, to_seen, to_target, filled,
):  # fmt: skip
    """Append rows to the chunks of their strata until a chunk is full.

    bins    (n, d) uint8    IN
    label   (n,)   uint8    IN
    weight  (n,)   float32  IN   the user's, or (0,)
    score   (n,)   float32  IN   or (n, k), of k classes
    seen    (n,)   int32    IN   trees in the score
    target  (n,)   float32  IN   numbers to predict, or (0,)
    stratum (n,)   uint16   IN
    order   (n,)   uint32   IN   in which rows are appended
    start   int             IN   number of rows that were appended before
    to_...  (s, m, ...)     OUT  the same arrays of the chunks, m rows per stratum
    filled  (s,)   int64    IN/OUT  rows in each chunk

    Returns the number of rows appended so far, and the stratum whose chunk is full, or -1.
    """
    d = bins.shape[1]
    chunk_rows = to_label.shape[1]
    weighted = weight.shape[0] > 0
    targeted = target.shape[0] > 0
    for at in range(start, order.shape[0]):
        i = np.uint64(order[at])
        k = np.uint64(stratum[i])
        slot = np.uint64(filled[k])
        for j in range(d):
            to_bins[k, slot, j] = bins[i, j]
        to_label[k, slot] = label[i]
        if score.ndim == 1:  # known when this is compiled
            to_score[k, slot] = score[i]
        else:
            for c in range(score.shape[1]):
                to_score[k, slot, c] = score[i, c]
        to_seen[k, slot] = seen[i]
        if weighted:
            to_weight[k, slot] = weight[i]
        if targeted:
            to_target[k, slot] = target[i]
        filled[k] += 1
        if filled[k] == chunk_rows:
            return at + 1, np.int64(k)
    return order.shape[0], -1


@kernel
def keep_rows(
    bins, label, weight, score, target, which, first,
    to_bins, to_label, to_weight, to_score, to_target,
):  # fmt: skip
    """Copy some rows into larger arrays, from row `first` on.

    bins   (n, d) uint8    IN
    label  (n,)   uint8    IN
    weight (n,)   float32  IN   or (0,)
    score  (n,)   float32  IN   or (n, k), of k classes
    target (n,)   float32  IN   or (0,)
    which  (k,)   int64    IN
    to_...                 OUT  the same arrays with more rows
    """
    d = bins.shape[1]
    weighted = weight.shape[0] > 0
    targeted = target.shape[0] > 0
    for k in range(which.shape[0]):
        i = np.uint64(which[k])
        to = np.uint64(first + k)
        for j in range(d):
            to_bins[to, j] = bins[i, j]
        to_label[to] = label[i]
        if score.ndim == 1:
            to_score[to] = score[i]
        else:
            for c in range(score.shape[1]):
                to_score[to, c] = score[i, c]
        if weighted:
            to_weight[to] = weight[i]
        if targeted:
            to_target[to] = target[i]


@kernel
def shuffle_rows(seed, bins, label, copies, weight, score, target):
    """Shuffle rows in place (Fisher and Yates).

    seed   uint64           IN
    bins   (n, d)  uint8    IN/OUT
    label  (n,)    uint8    IN/OUT
    copies (n,)    float32  IN/OUT
    weight (n,)    float32  IN/OUT  or (0,)
    score  (n,)    float32  IN/OUT  or (n, k), of k classes
    target (n,)    float32  IN/OUT  or (0,)
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
        if score.ndim == 1:
            s = score[i]
            score[i] = score[k]
            score[k] = s
        else:
            for j in range(score.shape[1]):
                s = score[i, j]
                score[i, j] = score[k, j]
                score[k, j] = s
        if weight.shape[0] > 0:
            u = weight[i]
            weight[i] = weight[k]
            weight[k] = u
        if target.shape[0] > 0:
            t = target[i]
            target[i] = target[k]
            target[k] = t
