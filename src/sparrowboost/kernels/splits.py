"""The best split of a leaf, found in its evidence."""

from __future__ import annotations

import numpy as np

from sparrowboost.kernels._jit import helper, kernel

# What each further category adds to the gain of the best subset on noise, as a share of what one
# free parameter adds: for k sorted normal variables, the best cut keeps 2 / pi of their variance.
SUBSET_NOISE = 2 / np.pi
MIN_SHARE = 1e-9  # of a leaf's weight: a side with less has only rounding errors


@helper
def _worth(edge, weight, value):
    """By how much a value reduces the loss of rows of this edge and weight, l2 included."""
    return value * (2 * edge - weight * value)


@helper
def _worth_within(edge, weight, lower, upper):
    """By how much the best value within bounds reduces it."""
    if lower > -np.inf or upper < np.inf:
        return _worth(edge, weight, min(max(edge / weight, lower), upper))
    return edge * edge / weight


@helper
def _worth_of_sides(left, left_weight, right, right_weight, sign, lower, upper):
    """By how much the best values of two sides within bounds reduce it; -inf: not a valid split.

    sign  int  1: the right side's value must not be lower, -1: not higher, 0: any
    """
    v_left = min(max(left / left_weight, lower), upper)
    v_right = min(max(right / right_weight, lower), upper)
    if v_left == v_right or (v_right - v_left) * sign < 0:  # a gain of equal values is rounding
        return -np.inf
    return _worth(left, left_weight, v_left) + _worth(right, right_weight, v_right)


@helper
def _send_left(mask, cut, last, missing_left):
    """Set the bits of bins 0 ... cut, and that of missing values if they go left."""
    mask[:] = np.uint64(0)
    for b in range(cut + 1):
        mask[b >> 6] |= np.uint64(1) << np.uint64(b & 63)
    if missing_left:
        mask[last >> 6] |= np.uint64(1) << np.uint64(last & 63)


@helper
def _cut_number(
    hist, first, last, total, weight, l2, min_weight, monotone, lower, upper, found, mask
):
    """Write the best cut between the bins of a numeric feature to `found` and `mask`.

    The arguments are those of `best_split` for one feature: its first slot, its last bin (that of
    missing values), W+ - W- and W. Returns whether a cut gains more than found[0].
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
                # After the last value, a cut only separates missing values.
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
    _send_left(mask, cut, last, missing_left)
    return True


@helper
def _list_categories(hist, first, last, weight, l2, work):
    """List the categories that have weight in a leaf.

    work (2, 256) float64  OUT  L / (W + l2) and the bin of each

    Returns their number, and the number of free parameters that a choice among their subsets adds.
    """
    used = 0
    roots = 0.0
    for b in range(last + 1):
        w0 = hist[0, first + b]
        w1 = hist[1, first + b]
        if w0 + w1 > MIN_SHARE * weight:  # less is rounding
            work[0, used] = (w1 - w0) / (w0 + w1 + l2)
            work[1, used] = b
            used += 1
            roots += np.sqrt(w0 + w1)
    return used, max(roots * roots / weight - 2, 0.0)


@helper
def _cut_categories(
    hist, first, last, total, weight, l2, min_weight, noise, lower, upper, work, found, mask
):
    """Write the best subset of categories to `found` and `mask`, as `_cut_number` does."""
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
    features,
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
    """The split that reduces the loss most, over some features.

        gain = L**2 / (W_L + l2) + R**2 / (W_R + l2) - T**2 / (W + l2)

    with L = W+ - W- on the left. Numeric features are cut between bins, with missing values on
    either side. Categories (missing is one, too) are ordered by L / (W + l2); prefixes of that
    order and single categories are tried. A subset chosen among k categories of equal weight fits
    noise as k - 1 free parameters would: the expected gain of all but one of them is subtracted.
    With unequal weights, each category adds the root of its weight to the noise of a side, so they
    count as (sum of roots)**2 / sum.

    L**2 / (W_L + l2) is by how much the best value of a side, v = L / (W_L + l2), reduces the loss.
    Where values are bounded, the best value within bounds reduces it by 2 L v - (W_L + l2) v**2
    instead; cuts of a monotone feature with values in the wrong order are skipped.

    hist        (2, slots) float64  IN   sum of w by label
    offset      (d,)       uint64   IN   first slot of each feature
    n_bins      (d,)       int64    IN   the last bin of each feature holds missing values
    category    (d,)       uint8    IN   1 = categorical
    features    (m,)       int64    IN   features to split on, ascending
    l2          float               IN
    category_l2 float               IN   l2 of categorical features
    min_weight  float               IN   minimum weight of a side, above 0
    noise       (d,)       float64  IN   gain of one free parameter on noise, V / W, as far as it
                                         was not fitted before
    monotone    (d,)       int8     IN   1: the right side's value is not lower, -1: not higher,
                                         0: any
    lower       float               IN   bounds of both sides' values, or infinite
    upper       float               IN
    work        (2, 256)   float64  OUT  work space
    found       (5,)       float64  OUT  gain (0: no split), feature, W- and W+ on the left, and the
                                         number of categories among which a subset was chosen
    mask        (4,)       uint64   OUT  bins that go left

    A category without weight in this leaf goes to the heavier side, and so do missing values if
    the leaf has none.
    """
    found[:] = 0.0
    mask[:] = np.uint64(0)
    for j in features:
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
def best_edge(hist, offset, n_bins, category, features, monotone, scale, found, mask):
    """The rule with the largest edge, |L - R|: +1 on one side of a split and -1 on the other.

    Both sides must have weight. Rules against the direction of a monotone feature are skipped.

    hist, offset, n_bins, category, features, monotone: as for `best_split`; of categories, only
    single ones are tried
    scale (2,) float64  IN   factor of the weights of each label
    found (3,) float64  OUT  edge, feature, and the sign of the side whose bins are in `mask`
    mask  (4,) uint64   OUT
    """
    found[:] = 0.0
    mask[:] = np.uint64(0)
    best = 0.0
    for j in features:
        first = np.int64(offset[j])
        last = n_bins[j] - 1
        total = 0.0
        weight = 0.0
        for s in range(first, first + last + 1):
            total += hist[1, s] * scale[1] - hist[0, s] * scale[0]
            weight += hist[1, s] * scale[1] + hist[0, s] * scale[0]
        minimum = MIN_SHARE * weight
        miss0 = hist[0, first + last] * scale[0]
        miss1 = hist[1, first + last] * scale[1]
        cut = -1
        missing_left = False
        if category[j]:
            for b in range(last + 1):
                w0 = hist[0, first + b] * scale[0]
                w1 = hist[1, first + b] * scale[1]
                edge = 2 * (w1 - w0) - total
                if abs(edge) > best and minimum < w0 + w1 < weight - minimum:
                    best = abs(edge)
                    cut = b
                    found[2] = 1.0 if edge > 0 else -1.0
        else:
            for side in range(2 if miss0 + miss1 > minimum else 1):
                w0 = miss0 * side
                w1 = miss1 * side
                for b in range(last):
                    w0 += hist[0, first + b] * scale[0]
                    w1 += hist[1, first + b] * scale[1]
                    edge = 2 * (w1 - w0) - total
                    if abs(edge) > best and minimum < w0 + w1 < weight - minimum:
                        # After the last value, a cut only separates missing values.
                        if b < last - 1 and edge * monotone[j] > 0:
                            continue
                        best = abs(edge)
                        cut = b
                        missing_left = side == 1
                        found[2] = 1.0 if edge > 0 else -1.0
        if cut < 0:
            continue
        found[0] = best
        found[1] = j
        if category[j]:
            mask[:] = np.uint64(0)
            mask[cut >> 6] = np.uint64(1) << np.uint64(cut & 63)
        else:
            _send_left(mask, cut, last, missing_left)
