"""Losses of numbers: derivatives, draw weights, evidence, and quantiles of leaves.

A loss is told by its kind and up to two options (`model/regression.py` has the equations):

    kind 0   squared error
    kind 1   Huber's                       first = delta
    kind 2   absolute error, quantile      first = slope above the score, second = slope below
    kind 3   Poisson, gamma, Tweedie       first = p, the power of the variance

g and h are times the importance u, and rounded to 16 bits before. Their products with an integer u
up to 256 are then exact, so that a row of importance 3 adds what three rows add. The error, 1e-5 of
a row's gradient, is far below the noise of any sample.

Rows, leaves and blocks are as in `evidence.py`.
"""

from __future__ import annotations

import numpy as np

from sparrowboost.kernels._jit import helper, kernel
from sparrowboost.kernels.evidence import add_pair
from sparrowboost.kernels.exponential import rounded
from sparrowboost.kernels.prefetch import LINE, prefetch

SQUARED, HUBER, STEEP, LOG = 0, 1, 2, 3

SPARSE = 8  # prefetch where a leaf has less than 1 in 8 rows of a block, as in evidence.py
AHEAD = 8
MAX_LOG = 88.0  # exp(88) = 1.7e38 fits a float32
MOST = 1e30  # of a derivative, so that rounding it and products with u stay finite
RADIX_BITS = 8  # of a number, found in one pass over the rows: 32 bits take four
RADIX = 1 << RADIX_BITS


@kernel
def add_slopes(kind, first, second, target, score, g, h):
    """The derivatives of some rows: g = -dl/dF, and the curvature h or a bound of it.

    kind          int          IN
    first, second float        IN   options of the loss
    target        (n,) float32 IN
    score         (n,) float32 IN
    g, h          (n,) float32 OUT
    """
    n = target.shape[0]
    if kind == SQUARED:
        for i in range(n):
            g[i] = target[i] - score[i]
            h[i] = np.float32(1.0)
    elif kind == HUBER:
        most = np.float32(first)
        for i in range(n):
            g[i] = min(max(target[i] - score[i], -most), most)
            h[i] = np.float32(1.0)
    elif kind == STEEP:
        above, below = np.float32(first), np.float32(second)
        for i in range(n):
            r = target[i] - score[i]
            # 0 at the kink, which is between both slopes.
            g[i] = above if r > 0 else (-below if r < 0 else np.float32(0.0))
            h[i] = np.float32(1.0)
    else:
        for i in range(n):
            f = min(max(np.float64(score[i]), -MAX_LOG), MAX_LOG)
            up = np.float64(target[i]) * np.exp((1.0 - first) * f)
            down = np.exp((2.0 - first) * f)
            g[i] = min(max(up - down, -MOST), MOST)
            h[i] = min((first - 1.0) * up + (2.0 - first) * down, MOST)


@kernel
def weigh_derivatives(u, counted, unit, most, floor, scale, g, h, w, total):
    """Multiply derivatives by importances, and compute the weights by which rows are drawn.

        w = u scale sqrt(min(|g / unit|, most)**2 + (floor h)**2)

    With |g| alone, rows that are predicted well would hardly ever be drawn, and stand for too many
    when they are. Of heavy tails, `most` bounds the weight but not g.

    u       (n,) float32  IN      importance
    counted bool          IN      whether importances count rows
    unit    float         IN      of g
    most    float         IN
    floor   float         IN
    scale   float         IN
    g, h    (n,) float32  IN/OUT  of a row -> times u; g in the unit
    w       (n,) float32  OUT
    total   (5,) float64  OUT     sums of w, w**2, 2 h, (2 h)**2 (for counts, over u), and the
                                  largest 2 h
    """
    weights = 0.0
    squares = 0.0
    mass = 0.0
    mass_squares = 0.0
    heaviest = np.float32(0.0)
    top = np.float32(most)
    shrink = np.float32(1.0 / unit)
    low = np.float32(floor)
    factor = np.float32(scale)  # first: squares of what is far from 1 leave the range of float32
    for i in range(u.shape[0]):
        gi = rounded(g[i] * shrink)
        hi = rounded(h[i])
        slope = factor * min(abs(gi), top)
        base = factor * (low * hi)
        wi = u[i] * np.sqrt(slope * slope + base * base)
        g[i] = u[i] * gi
        h[i] = u[i] * hi
        w[i] = wi
        weights += np.float64(wi)
        squares += np.float64(wi) * np.float64(wi)
        two = np.float32(2.0) * h[i]
        mass += np.float64(two)
        q = np.float64(two) * np.float64(two)
        if counted:
            q = q / np.float64(u[i]) if u[i] > 0 else 0.0
        mass_squares += q
        heaviest = max(heaviest, two)
    total[0] = weights
    total[1] = squares
    total[2] = mass
    total[3] = mass_squares
    total[4] = heaviest


@kernel
def _prefetch_number(bins, g, h, i):
    prefetch(g, i)
    prefetch(h, i)
    for j in range(0, bins.shape[1], LINE):
        prefetch(bins, (i, np.uint64(j)))


@kernel
def add_number_rows(
    bins, g, h, u, counted, order, begin, count, blocks, block_rows, leaf, offset, columns, pairs, v
):
    """Add the rows of one leaf to its evidence: two additions per value.

    A row adds h - g / 2 to the first histogram and h + g / 2 to the second, so that their
    difference is the sum of g, and their sum twice that of h: the same roles as W+ - W- and
    W+ + W- of classes, so that everything after the sums is the same.

    bins    (n, d)      uint8    IN
    g, h    (n,)        float32  IN   times u
    u       (n,)        float32  IN
    counted bool                 IN   whether u is a number of rows: squares are then over u
    order, begin, count, blocks, block_rows, leaf: as for `add_rows`
    offset  (d,)        uint64   IN   first slot of each feature
    columns (m,)        uint64   IN   columns of `bins` to add; None: all, as for `add_rows`
    pairs   (2 slots,)  float64  OUT  the histogram, both sums of a slot side by side
    v       (4,)        float64  OUT  sums of g**2, g h, h**2 and |g|, added to
    """
    n, d = bins.shape
    gg = 0.0
    gh = 0.0
    hh = 0.0
    size = 0.0
    for k in range(blocks.shape[0]):
        block = blocks[k]
        first = block * block_rows
        m = count[block, leaf]
        whole = m == min(block_rows, n - first)
        start = first + begin[block, leaf]
        sparse = m * SPARSE < block_rows
        for index in range(start, start + m):
            i = np.uint64(index) if whole else np.uint64(first) + np.uint64(order[index])
            if sparse:
                ahead = np.uint64(first) + np.uint64(order[min(index + AHEAD, start + m - 1)])
                _prefetch_number(bins, g, h, ahead)
            gi = np.float64(g[i])
            hi = np.float64(h[i])
            over = 1.0
            if counted:
                over = 1.0 / np.float64(u[i]) if u[i] > 0 else 0.0
            gg += gi * gi * over
            gh += gi * hi * over
            hh += hi * hi * over
            size += abs(gi)
            low = hi - 0.5 * gi
            high = hi + 0.5 * gi
            if columns is None:
                for j in range(d):
                    add_pair(pairs, offset[j] + np.uint64(bins[i, j]), low, high)
            else:
                for j in columns:
                    add_pair(pairs, offset[j] + np.uint64(bins[i, j]), low, high)
    v[0] += gg
    v[1] += gh
    v[2] += hh
    v[3] += size


@kernel
def add_number_sums(g, h, order, begin, count, blocks, block_rows, n_leaves, sums):
    """Add up g and h over the rows of each leaf.

    g, h, order, begin, count, blocks, block_rows: as for `add_number_rows`
    sums (leaves, 2) float64  OUT  added to
    """
    for k in range(blocks.shape[0]):
        block = blocks[k]
        first = block * block_rows
        for leaf in range(n_leaves):
            start = first + begin[block, leaf]
            slope = 0.0
            curvature = 0.0
            for index in range(start, start + count[block, leaf]):
                i = np.uint64(first) + np.uint64(order[index])
                slope += np.float64(g[i])
                curvature += np.float64(h[i])
            sums[leaf, 0] += slope
            sums[leaf, 1] += curvature


@kernel
def add_number_squares(
    values, at, step, g, h, order, begin, count, blocks, block_rows, leaf, mask, v
):
    """Add up g**2, g h and h**2 over the rows of a leaf that a split sends left.

    values, at, step, mask: as for `split_rows` in `partition.py`
    g, h, order, begin, count, blocks, block_rows, leaf: as for `add_number_rows`
    v (3,) float64  OUT  added to
    """
    gg = 0.0
    gh = 0.0
    hh = 0.0
    for k in range(blocks.shape[0]):
        block = blocks[k]
        first = block * block_rows
        base = np.uint64(at + first * step)
        start = first + begin[block, leaf]
        for index in range(start, start + count[block, leaf]):
            i = np.uint64(order[index])
            b = np.uint64(values[base + i * np.uint64(step)])
            left = np.float64((mask[b >> np.uint64(6)] >> (b & np.uint64(63))) & np.uint64(1))
            gi = np.float64(g[np.uint64(first) + i])
            hi = np.float64(h[np.uint64(first) + i])
            gg += left * gi * gi
            gh += left * gi * hi
            hh += left * hi * hi
    v[0] += gg
    v[1] += gh
    v[2] += hh


@helper
def _ordered(x):
    """The bits of a float32 as an integer of the same order; both zeros are 0.0."""
    bits = np.uint64(np.float32(x + np.float32(0.0)).view(np.uint32))
    if bits >> np.uint64(31):
        return bits ^ np.uint64(0xFFFFFFFF)
    return bits | np.uint64(0x80000000)


@kernel
def add_to_cells(
    target, score, u, order, begin, count, blocks, block_rows, n_leaves, shift, prefix, cells
):
    """Add up u by the residual's next digits, over each leaf's rows with the digits found so far.

    A residual is target - score, as an integer of 32 bits in the order of numbers. The digits are
    those from bit `shift` on; `prefix` has all digits above them.

    target, score, u (n,) float32  IN
    order, begin, count, blocks, block_rows: as for `add_rows`
    shift  int                       IN
    prefix (leaves,)       uint64    IN
    cells  (leaves, RADIX) float64   OUT  added to
    """
    digits = np.uint64(shift)
    above = np.uint64(shift + RADIX_BITS)
    last = np.uint64(RADIX - 1)
    for k in range(blocks.shape[0]):
        block = blocks[k]
        first = block * block_rows
        for leaf in range(n_leaves):
            start = first + begin[block, leaf]
            wanted = prefix[leaf]
            for index in range(start, start + count[block, leaf]):
                i = np.uint64(first) + np.uint64(order[index])
                key = _ordered(target[i] - score[i])
                if key >> above == wanted:
                    cells[np.uint64(leaf), (key >> digits) & last] += np.float64(u[i])


@kernel
def find_previous(target, score, u, order, begin, count, blocks, block_rows, n_leaves, most, found):
    """The largest residual below a given one, over each leaf's rows that count.

    most  (leaves,) float32  IN
    found (leaves,) float32  IN/OUT  starts at minus infinity
    The other arguments are those of `add_to_cells`.
    """
    for k in range(blocks.shape[0]):
        block = blocks[k]
        first = block * block_rows
        for leaf in range(n_leaves):
            start = first + begin[block, leaf]
            for index in range(start, start + count[block, leaf]):
                i = np.uint64(first) + np.uint64(order[index])
                r = target[i] - score[i]
                if u[i] > 0 and found[leaf] < r < most[leaf]:
                    found[leaf] = r


@kernel
def add_clipped(
    target, score, u, order, begin, count, blocks, block_rows, n_leaves, middle, delta, sums
):
    """Add up u and u times the residual's difference from `middle`, at most delta either way.

    middle (leaves,)   float64  IN
    delta  float                IN
    sums   (leaves, 2) float64  OUT  added to
    The other arguments are those of `add_to_cells`.
    """
    for k in range(blocks.shape[0]):
        block = blocks[k]
        first = block * block_rows
        for leaf in range(n_leaves):
            start = first + begin[block, leaf]
            for index in range(start, start + count[block, leaf]):
                i = np.uint64(first) + np.uint64(order[index])
                away = np.float64(target[i] - score[i]) - middle[leaf]
                ui = np.float64(u[i])
                sums[leaf, 0] += ui
                sums[leaf, 1] += ui * min(max(away, -delta), delta)


@helper
def _number_loss(kind, first, second, y, f):
    """l(y, F) of one row; 0 where the prediction is right."""
    if kind == SQUARED:
        return 0.5 * (y - f) * (y - f)
    if kind == HUBER:
        r = abs(y - f)
        inner = min(r, first)
        return inner * (r - 0.5 * inner)
    if kind == STEEP:
        r = y - f
        return max(first * r, -second * r)
    f = min(max(f, -MAX_LOG), MAX_LOG)
    if first == 1.0:
        loss = np.exp(f) - y
        return loss + y * (np.log(y) - f) if y > 0 else loss
    if first == 2.0:
        return y * np.exp(-f) - 1.0 - (np.log(y) - f)
    up = y * np.exp((1.0 - first) * f)
    down = np.exp((2.0 - first) * f)
    best = y ** (2.0 - first) / ((1.0 - first) * (2.0 - first))
    return max(best - up / (1.0 - first) + down / (2.0 - first), 0.0)


@kernel
def add_number_losses(kind, first, second, target, score, weight, middle, total):
    """Add up what the metrics of numbers need.

    kind, first, second: as for `add_slopes`
    target (n,) float32  IN
    score  (n,) float32  IN   F
    weight (n,) float32  IN   of each row; empty if all count 1
    middle float         IN   near the mean target
    total  (6,) float64  OUT  sums of the weight, and of these times the weight: the loss, the
                              absolute and the squared error of the prediction, the target's
                              difference from `middle`, and its square; added to
    """
    weighted = weight.shape[0] > 0
    for i in range(target.shape[0]):
        wi = np.float64(weight[i]) if weighted else 1.0
        y = np.float64(target[i])
        f = np.float64(score[i])
        prediction = np.exp(min(max(f, -MAX_LOG), MAX_LOG)) if kind == LOG else f
        error = y - prediction
        away = y - middle
        total[0] += wi
        total[1] += wi * _number_loss(kind, first, second, y, f)
        total[2] += wi * abs(error)
        total[3] += wi * error * error
        total[4] += wi * away
        total[5] += wi * away * away


@kernel
def add_number_falls(kind, first, second, target, before, after, u, total):
    """Add up by how much scores lower the loss.

    kind, first, second: as for `add_slopes`
    target (n,) float32  IN
    before (n,) float32  IN   scores
    after  (n,) float32  IN   scores
    u      (n,) float32  IN
    total  (2,) float64  OUT  sums of u times the fall, and of the squares of that; added to
    """
    for i in range(target.shape[0]):
        y = np.float64(target[i])
        fall = _number_loss(kind, first, second, y, np.float64(before[i]))
        fall -= _number_loss(kind, first, second, y, np.float64(after[i]))
        fall *= np.float64(u[i])
        total[0] += fall
        total[1] += fall * fall
