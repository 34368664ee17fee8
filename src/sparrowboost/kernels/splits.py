"""The best split of a leaf, found in its evidence."""

from __future__ import annotations

import numpy as np

from sparrowboost.kernels._jit import helper, kernel

# Part of the gain that one free number gives on noise, by which each further category among which
# a subset is chosen raises the gain on noise: for k normal variables sorted by size, the best cut
# keeps 2 / pi of their spread.
SUBSET_NOISE = 2 / np.pi
MIN_SHARE = 1e-9  # of a leaf's weight: less on a side is rounding


@helper
def _worth(edge, weight, value):
    """What a value removes of the loss of rows of this edge and weight, l2 included."""
    return value * (2 * edge - weight * value)


@helper
def _worth_within(edge, weight, lower, upper):
    """What the best value within bounds removes."""
    if lower > -np.inf or upper < np.inf:
        return _worth(edge, weight, min(max(edge / weight, lower), upper))
    return edge * edge / weight


@helper
def _worth_of_sides(left, left_weight, right, right_weight, sign, lower, upper):
    """What the best values of two sides within bounds remove; -inf if there is no such split.

    sign  int  1: the right side's value must not be lower, -1: not higher, 0: any
    """
    v_left = min(max(left / left_weight, lower), upper)
    v_right = min(max(right / right_weight, lower), upper)
    if v_left == v_right or (v_right - v_left) * sign < 0:  # what equal values gain is rounding
        return -np.inf
    return _worth(left, left_weight, v_left) + _worth(right, right_weight, v_right)


@helper
def _set_range(mask, stop):
    """Set the bits of bins 0 ... stop - 1."""
    for b in range(stop):
        mask[b >> 6] |= np.uint64(1) << np.uint64(b & 63)


@helper
def _cut_number(
    hist, first, last, total, weight, l2, min_weight, monotone, lower, upper, found, mask
):
    """Put the best cut between the bins of a numeric feature into `found` and `mask`.

    The arguments are those of `best_split`, of one feature: its first slot, its last bin (the one
    of missing values), and its W+ - W- and W. Returns whether the cut gains more than found[0].
    """
    best = found[0]
    cut = -1  # the last bin that goes left
    missing_left = False
    base = _worth_within(total, weight + l2, lower, upper)
    miss0 = hist[0, first + last]
    miss1 = hist[1, first + last]
    missing = miss0 + miss1 > MIN_SHARE * weight
    # Constraints only lower a gain, so they are checked for a cut that is the best without.
    constrained = lower > -np.inf or upper < np.inf or monotone != 0
    for side in range(2 if missing else 1):  # missing values right, then left
        w0 = miss0 * side
        w1 = miss1 * side
        for b in range(last if missing and side == 0 else last - 1):
            w0 += hist[0, first + b]
            w1 += hist[1, first + b]
            wl = w0 + w1
            wr = weight - wl
            if wl < min_weight or wr < min_weight:
                continue
            left = w1 - w0
            right = total - left
            a = wl + l2
            c = wr + l2
            gain = (left * left * c + right * right * a) / (a * c) - base
            if gain > best and constrained:
                # The cut after all values only separates missing ones from them.
                sign = monotone if b < last - 1 else 0
                gain = _worth_of_sides(left, a, right, c, sign, lower, upper) - base
            if gain > best:
                best = gain
                cut = b
                missing_left = side == 1 if missing else wl > wr
                found[2] = w0
                found[3] = w1
    if cut < 0:
        return False
    found[0] = best
    found[4] = 0.0
    mask[:] = np.uint64(0)
    _set_range(mask, cut + 1)
    if missing_left:
        mask[last >> 6] |= np.uint64(1) << np.uint64(last & 63)
    return True


@helper
def _list_categories(hist, first, last, weight, l2, work):
    """List the categories of a leaf that have weight.

    work (2, 256) float64  OUT  of each, L / (W + l2) and its bin

    Returns their number, and how many free numbers a subset of them counts for (`best_split`).
    """
    used = 0
    roots = 0.0
    for b in range(last + 1):
        w0 = hist[0, first + b]
        w1 = hist[1, first + b]
        if w0 + w1 > MIN_SHARE * weight:  # less is what rounding left
            work[0, used] = (w1 - w0) / (w0 + w1 + l2)
            work[1, used] = b
            used += 1
            roots += np.sqrt(w0 + w1)
    return used, max(roots * roots / weight - 2, 0.0)


@helper
def _cut_categories(
    hist, first, last, total, weight, l2, min_weight, noise, lower, upper, work, found, mask
):
    """Put the best subset of categories into `found` and `mask`: as `_cut_number`."""
    best = found[0]
    cut = -1  # the last category that goes left, in their order, or the only one
    single = False
    heavier = False
    base = _worth_within(total, weight + l2, lower, upper)
    used, charged = _list_categories(hist, first, last, weight, l2, work)
    rank = np.argsort(work[0, :used])
    bounded = lower > -np.inf or upper < np.inf
    for alone in range(2):
        penalty = 0.0 if alone else noise * SUBSET_NOISE * charged
        w0 = 0.0
        w1 = 0.0
        for k in range(used - 1 + alone):
            s = first + np.int64(work[1, rank[k]])
            w0 = hist[0, s] + (0.0 if alone else w0)
            w1 = hist[1, s] + (0.0 if alone else w1)
            wl = w0 + w1
            wr = weight - wl
            if wl < min_weight or wr < min_weight:
                continue
            left = w1 - w0
            right = total - left
            gain = left * left / (wl + l2) + right * right / (wr + l2)
            gain -= base + penalty
            if gain > best and bounded:
                gain = _worth_of_sides(left, wl + l2, right, wr + l2, 0, lower, upper)
                gain -= base + penalty
            if gain > best:
                best = gain
                cut = k
                single = alone == 1
                heavier = wl > wr
                found[2] = w0
                found[3] = w1
    if cut < 0:
        return False
    found[0] = best
    found[4] = 0.0 if single else used
    mask[:] = ~np.uint64(0) if heavier else np.uint64(0)
    for k in range(used):
        b = np.uint64(work[1, rank[k]])
        bit = np.uint64(1) << (b & np.uint64(63))
        if (k == cut) if single else (k <= cut):
            mask[b >> np.uint64(6)] |= bit
        else:
            mask[b >> np.uint64(6)] &= ~bit
    return True


@kernel
def best_split(
    hist,
    offset,
    n_bins,
    category,
    l2,
    category_l2,
    min_weight,
    noise,
    monotone,
    lower,
    upper,
    work,
    found,
    mask,
):
    """The split that removes most loss, over all features.

        gain = L**2 / (W_L + l2) + R**2 / (W_R + l2) - T**2 / (W + l2)

    with L = W+ - W- on the left. Numbers are cut between bins, missing values on either side.
    Categories (a missing one is a category, too) are ordered by L / (W + l2); prefixes of that
    order and single ones are tried. A subset chosen among k categories of equal weight fits noise
    as k - 1 free numbers would: what more than one of them would give is taken off its gain. Of
    unequal ones, each adds the root of its weight to what noise puts on a side, so they count as
    (sum of roots)**2 / sum.

    L**2 / (W_L + l2) is what the best value of a side, v = L / (W_L + l2), removes. Where values
    are bounded, the best within bounds removes 2 L v - (W_L + l2) v**2 instead; and a cut between
    values of a monotone feature whose sides' values are in the wrong order is none.

    hist        (2, slots) float64  IN   sum of w by label
    offset      (d,)       uint64   IN   first slot of each feature
    n_bins      (d,)       int64    IN   the last bin of each feature holds missing values
    category    (d,)       uint8    IN   whether a feature is categorical
    l2          float               IN
    category_l2 float               IN   the same for categories
    min_weight  float               IN   least weight of a side, above 0
    noise       (d,)       float64  IN   gain that one free number gives on noise, V / W, as far as
                                         it was not fitted before
    monotone    (d,)       int8     IN   1: the right side has no lower value, -1: no higher; 0: any
    lower       float               IN   bounds of both sides' values, infinite where there are none
    upper       float               IN
    work        (2, 256)   float64  OUT  for work
    found       (5,)       float64  OUT  gain (0: none), feature, W- and W+ on the left, and the
                                         number of categories among which a subset was chosen
    mask        (4,)       uint64   OUT  bins that go left

    A category without weight in this leaf goes with the heavier side, and so do missing values if
    there were none.
    """
    found[:] = 0.0
    mask[:] = np.uint64(0)
    for j in range(n_bins.shape[0]):
        first = np.int64(offset[j])
        last = n_bins[j] - 1  # the bin of missing values
        negative = 0.0
        positive = 0.0
        for s in range(first, first + last + 1):
            negative += hist[0, s]
            positive += hist[1, s]
        weight = negative + positive
        total = positive - negative
        if weight < 2 * min_weight:
            continue
        if category[j]:
            better = _cut_categories(
                hist, first, last, total, weight, category_l2, min_weight, noise[j], lower, upper,
                work, found, mask,
            )  # fmt: skip
        else:
            better = _cut_number(
                hist, first, last, total, weight, l2, min_weight, monotone[j], lower, upper,
                found, mask,
            )  # fmt: skip
        if better:
            found[1] = j


@kernel
def best_edge(hist, offset, n_bins, category, monotone, scale, found, mask):
    """The rule of +1 on one side and -1 on the other with the largest edge, |L - R|.

    Both sides have weight: a rule that says the same of all rows is not one. A rule that says the
    opposite of what a monotone feature may do is none.

    hist, offset, n_bins, category, monotone: as for `best_split`; of categories, single ones are
    tried
    scale (2,) float64  IN   factor of the weights of each label
    found (3,) float64  OUT  edge, feature, and the sign of the side whose bins are in `mask`
    mask  (4,) uint64   OUT
    """
    one = np.uint64(1)
    found[:] = 0.0
    mask[:] = np.uint64(0)
    best = 0.0
    for j in range(n_bins.shape[0]):
        first = np.int64(offset[j])
        last = n_bins[j] - 1
        total = 0.0
        weight = 0.0
        for s in range(first, first + last + 1):
            total += hist[1, s] * scale[1] - hist[0, s] * scale[0]
            weight += hist[1, s] * scale[1] + hist[0, s] * scale[0]
        least = MIN_SHARE * weight
        miss0 = hist[0, first + last] * scale[0]
        miss1 = hist[1, first + last] * scale[1]
        cut = -1
        kind = 0
        if category[j]:
            for b in range(last + 1):
                w0 = hist[0, first + b] * scale[0]
                w1 = hist[1, first + b] * scale[1]
                edge = 2 * (w1 - w0) - total
                if abs(edge) > best and least < w0 + w1 < weight - least:
                    best = abs(edge)
                    cut = b
                    found[2] = 1.0 if edge > 0 else -1.0
        else:
            for side in range(2 if miss0 + miss1 > least else 1):
                w0 = miss0 * side
                w1 = miss1 * side
                for b in range(last):
                    w0 += hist[0, first + b] * scale[0]
                    w1 += hist[1, first + b] * scale[1]
                    edge = 2 * (w1 - w0) - total
                    if abs(edge) > best and least < w0 + w1 < weight - least:
                        # With all values on one side, only missing ones are parted from them.
                        if b < last - 1 and edge * monotone[j] > 0:
                            continue
                        best = abs(edge)
                        cut = b
                        kind = side
                        found[2] = 1.0 if edge > 0 else -1.0
        if cut < 0:
            continue
        found[0] = best
        found[1] = j
        mask[:] = np.uint64(0)
        if category[j]:
            mask[cut >> 6] |= one << np.uint64(cut & 63)
        else:
            for b in range(cut + 1):
                mask[b >> 6] |= one << np.uint64(b & 63)
            if kind:
                mask[last >> 6] |= one << np.uint64(last & 63)
