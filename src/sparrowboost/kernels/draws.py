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
def find_strata(w, lowest, n_strata, stratum):
    """Stratum of each row: floor(log2 w) - lowest, cut to the strata there are.

    w       (n,) float32  IN
    stratum (n,) uint8    OUT
    """
    for i in range(w.shape[0]):
        power = np.int32(np.float32(w[i]).view(np.int32) >> np.int32(23)) - np.int32(127)
        stratum[i] = min(max(power - lowest, 0), n_strata - 1)


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
