"""The loss of several classes, softmax: derivatives, draw weights, losses.

A row has a score for each of k classes. With p = exp(score) / (sum of exp over its classes):

    g = y - p                    y is 1 for the row's class, 0 for the others
    h = k / (k - 1) p (1 - p)

Friedman's factor k / (k - 1) makes up for the sum of the k scores, which says nothing: for two
classes, steps are those of one score. Each class has trees of its own, grown on its g and h, so
that all else is as in `numbers.py`. g and h are rounded to 16 bits, as there.

Scores are by class, (k, n), or the same memory by row, transposed.
"""

from __future__ import annotations

import numpy as np

from sparrowboost.kernels._jit import kernel
from sparrowboost.kernels.exponential import exp32, rounded

TILE = 256  # rows that stay in the first-level cache for all classes
LOWEST = np.float32(-80.0)  # of a score less the highest of its row: exp of less is 0


@kernel
def weigh_classes(target, score, u, counted, factor, floor, scale, norm, w, total, masses):
    """Compute what derivatives follow from, and the weights by which rows are drawn.

        w = u scale sqrt(sum over classes of factor**2 (g**2 + (floor h)**2))

    target  (n,)   float32  IN   number of the row's class
    score   (k, n) float32  IN
    u       (n,)   float32  IN   importance
    counted bool            IN   whether importances count rows
    factor  (k,)   float32  IN   of each class
    floor   float           IN
    scale   float           IN
    norm    (n,)   float32  OUT  ln of the sum of exp(score): p is exp(score - norm)
    w       (n,)   float32  OUT
    total   (2,)   float64  OUT  sums of w and of w**2
    masses  (k, 5) float64  OUT  of each class, sums of 2 h u and of its squares (for counts, over
                                 u), the largest 2 h u, and sums of u g**2 and of u h**2
    """
    k, n = score.shape
    one = np.float32(1.0)
    steeper = np.float32(k / (k - 1.0))
    low = np.float32(floor * floor)
    shrink = np.float32(scale)
    share = np.empty((k, TILE), np.float32)
    top, norms = np.empty(TILE, np.float32), np.empty(TILE, np.float32)
    size = np.empty(TILE, np.float32)
    masses[:] = 0.0
    weights = 0.0
    squares = 0.0
    for start in range(0, n, TILE):
        m = min(TILE, n - start)
        for i in range(m):
            top[i] = score[0, start + i]
        for c in range(1, k):
            for i in range(m):
                top[i] = max(top[i], score[c, start + i])
        for i in range(m):
            norms[i] = np.float32(0.0)
        for c in range(k):
            for i in range(m):
                share[c, i] = exp32(max(score[c, start + i] - top[i], LOWEST))
                norms[i] += share[c, i]
        for i in range(m):
            norm[start + i] = top[i] + np.log(norms[i])
            norms[i] = one / norms[i]
            size[i] = np.float32(0.0)
        for c in range(k):
            sum_h = 0.0
            sum_q = 0.0
            sum_gg = 0.0
            sum_hh = 0.0
            own = factor[c] * factor[c]
            heaviest = np.float32(0.0)
            for i in range(m):
                p = share[c, i] * norms[i]
                y = one if target[start + i] == c else np.float32(0.0)
                g = rounded(y - p)
                h = rounded(steeper * p * (one - p))
                gg = g * g
                hh = h * h
                size[i] += own * (gg + low * hh)
                sum_gg += np.float64(u[start + i] * gg)
                sum_hh += np.float64(u[start + i] * hh)
                two = np.float32(2.0) * (h * u[start + i])
                q = np.float64(two) * np.float64(two)
                if counted:
                    q = q / np.float64(u[start + i]) if u[start + i] > 0 else 0.0
                sum_h += np.float64(two)
                sum_q += q
                heaviest = max(heaviest, two)
            masses[c, 0] += sum_h
            masses[c, 1] += sum_q
            masses[c, 2] = max(masses[c, 2], np.float64(heaviest))
            masses[c, 3] += sum_gg
            masses[c, 4] += sum_hh
        for i in range(m):
            wi = u[start + i] * (shrink * np.sqrt(size[i]))
            w[start + i] = wi
            weights += np.float64(wi)
            squares += np.float64(wi) * np.float64(wi)
    total[0] = weights
    total[1] = squares


@kernel
def fill_class_slopes(number, n_classes, target, score, norm, u, g, h):
    """The derivatives of one class, times u.

    number    int            IN   of the class
    n_classes int            IN
    target    (n,)  float32  IN
    score     (n,)  float32  IN   of that class
    norm      (n,)  float32  IN   as of `weigh_classes`
    u         (n,)  float32  IN
    g, h      (n,)  float32  OUT
    """
    one = np.float32(1.0)
    factor = np.float32(n_classes / (n_classes - 1.0))
    for i in range(target.shape[0]):
        p = exp32(min(max(score[i] - norm[i], LOWEST), np.float32(0.0)))
        y = one if target[i] == number else np.float32(0.0)
        g[i] = u[i] * rounded(y - p)
        h[i] = u[i] * rounded(factor * p * (one - p))


@kernel
def add_class_losses(target, score, weight, total):
    """Add up what metrics of classes need.

    target (n,)   float32  IN
    score  (k, n) float32  IN
    weight (n,)   float32  IN   of each row; empty if all count 1
    total  (3,)   float64  OUT  sums of the weight, and of these times the weight: -ln of the
                                probability of the row's class, and 1 if that class has the highest
                                score, the first of several; added to
    """
    k, n = score.shape
    weighted = weight.shape[0] > 0
    for i in range(n):
        wi = np.float64(weight[i]) if weighted else 1.0
        best = 0
        for c in range(1, k):
            if score[c, i] > score[best, i]:
                best = c
        top = np.float64(score[best, i])
        s = 0.0
        for c in range(k):
            s += np.exp(np.float64(score[c, i]) - top)
        own = np.int64(target[i])
        total[0] += wi
        total[1] += wi * (top + np.log(s) - np.float64(score[own, i]))
        if best == own:
            total[2] += wi


@kernel
def add_class_falls(target, before, after, u, total):
    """Add up by how much scores lower the loss.

    target (n,)   float32  IN
    before (k, n) float32  IN   scores
    after  (k, n) float32  IN   scores
    u      (n,)   float32  IN
    total  (2,)   float64  OUT  sums of u times the fall, and of the squares of that; added to
    """
    k, n = before.shape
    for i in range(n):
        own = np.int64(target[i])
        fall = 0.0
        for side in range(2):
            score = before if side == 0 else after
            top = np.float64(score[0, i])
            for c in range(1, k):
                top = max(top, np.float64(score[c, i]))
            s = 0.0
            for c in range(k):
                s += np.exp(np.float64(score[c, i]) - top)
            loss = top + np.log(s) - np.float64(score[own, i])
            fall += loss if side == 0 else -loss
        fall *= np.float64(u[i])
        total[0] += fall
        total[1] += fall * fall
