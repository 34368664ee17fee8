"""Losses and the AUC of scores, in one pass over the rows."""

from __future__ import annotations

import numpy as np

from sparrowboost.kernels._jit import kernel


@kernel
def add_losses(label, score, weight, limit, total):
    """Add up both losses of some rows.

    label  (n,) uint8    IN   1 = positive
    score  (n,) float32  IN   H
    weight (n,) float32  IN   of each row; empty if all count 1
    limit  float64       IN   the exponential loss clips the margin y H to -limit ... limit
    total  (3,) float64  OUT  weight, ln(1 + exp(-2 y H)) and exp(-y H), added to
    """
    weighted = weight.shape[0] > 0
    sum_w = 0.0
    sum_log = 0.0
    sum_exp = 0.0
    for i in range(label.shape[0]):
        m = np.float64(score[i]) if label[i] else -np.float64(score[i])
        w = np.float64(weight[i]) if weighted else 1.0
        size = abs(m)
        e = np.exp(-min(size, limit))
        # exp(-2 |m|) is negligible long before it is clipped. log1p would only gain digits beyond
        # the sixteenth, and take twice as long.
        sum_w += w
        sum_log += w * (np.log(1.0 + e * e) + (2.0 * size if m < 0 else 0.0))
        sum_exp += w * (1.0 / e if m < 0 else e)
    total[0] += sum_w
    total[1] += sum_log
    total[2] += sum_exp


@kernel
def add_falls(label, before, after, u, limit, logistic, total):
    """Add up the decrease of the loss of some rows from one score to another.

    label         (n,) uint8    IN   1 = positive
    before, after (n,) float32  IN   H
    u             (n,) float32  IN   importance
    limit         float64       IN   as for `add_losses`
    logistic      bool          IN   else the exponential loss
    total         (2,) float64  OUT  u times the fall, and the square of that, added to
    """
    sum_fall = 0.0
    sum_square = 0.0
    for i in range(label.shape[0]):
        sign = 1.0 if label[i] else -1.0
        a = sign * np.float64(before[i])
        b = sign * np.float64(after[i])
        if logistic:
            fall = np.log(1.0 + np.exp(-2.0 * abs(a))) - np.log(1.0 + np.exp(-2.0 * abs(b)))
            fall += 2.0 * (max(-a, 0.0) - max(-b, 0.0))
        else:
            fall = np.exp(-min(max(a, -limit), limit)) - np.exp(-min(max(b, -limit), limit))
        fall *= np.float64(u[i])
        sum_fall += fall
        sum_square += fall * fall
    total[0] += sum_fall
    total[1] += sum_square


@kernel
def count_pairs(positive, negative):
    """Pairs of a positive and a negative row where the positive scores higher; ties count half.

    positive (p,) float  IN  ascending
    negative (n,) float  IN  ascending
    """
    pairs = 0.0
    lower = 0  # negatives below this positive
    upper = 0  # negatives up to it
    for i in range(positive.shape[0]):
        s = positive[i]
        while lower < negative.shape[0] and negative[lower] < s:
            lower += 1
        upper = max(upper, lower)
        while upper < negative.shape[0] and negative[upper] <= s:
            upper += 1
        pairs += 0.5 * (lower + upper)
    return pairs
