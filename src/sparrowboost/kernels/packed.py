"""Packed rows: of wide and sparse tables, only the bins that are not those of zero.

Each bin of each feature, but for that of zero, has a *code*, from 1 on, feature by feature, in any
order of these. A row is the ascending codes of its bins, as gaps between them, of 16 bits each:

    codes   3  17  70005                                  (of feature f: first[f] ... last[f] - 1)
    words   3  14  SKIP  4454  END  ...                   SKIP: MOST_GAP further, and no code there

All rows of a table have the same number of words. Where some rows are longer, the last two words
of each are the number of its *tail*, from 1 on, or 0: the gaps that follow, in one array for all.

Evidence of packed rows has a pair of sums for each code, and a pair 0 for the whole leaf.
"""

from __future__ import annotations

import numpy as np

from sparrowboost.kernels._jit import helper, kernel
from sparrowboost.kernels.evidence import AHEAD, SPARSE, add_pair
from sparrowboost.kernels.prefetch import LINE, prefetch
from sparrowboost.kernels.splits import _cut_number, _worth_within

END = 0
SKIP = 65_535
MOST_GAP = 65_534  # the largest that is a word, and how far SKIP goes
TAIL_WORDS = 2  # the number of a row's tail
ROW_BITS = 14  # of the number of a row in its block
ROW_MASK = (1 << ROW_BITS) - 1
GROUP = 1 << 16 - ROW_BITS  # codes whose rows are listed together: what else 16 bits can tell
SEARCHED_AHEAD = 16  # features between one and that whose sums are prefetched
DROPPED = -1  # instead of a feature: the column is none


@helper
def _decode(packed, i, ends, tails, codes):
    """Write the codes of row i; returns their number.

    packed (n, k)    uint16  IN
    ends   (t + 1,)  int64   IN   tail t is tails[ends[t - 1]:ends[t]]; (0,) if there are none
    tails  (m,)      uint16  IN
    codes  (longest,) uint32 OUT
    """
    width = np.uint64(packed.shape[1])
    tail = np.uint64(0)
    if ends.shape[0] > 0:
        width -= np.uint64(TAIL_WORDS)
        low = np.uint64(packed[i, width])
        tail = low | np.uint64(packed[i, width + np.uint64(1)]) << np.uint64(16)
    n = np.uint64(0)
    code = np.uint32(0)
    for k in range(width):
        gap = np.uint32(packed[i, k])
        if gap == np.uint32(END):
            break
        if gap == np.uint32(SKIP):
            code += np.uint32(MOST_GAP)
        else:
            code += gap
            codes[n] = code
            n += np.uint64(1)
    if tail > np.uint64(0):
        for k in range(np.uint64(ends[tail - np.uint64(1)]), np.uint64(ends[tail])):
            gap = np.uint32(tails[k])
            if gap == np.uint32(SKIP):
                code += np.uint32(MOST_GAP)
            else:
                code += gap
                codes[n] = code
                n += np.uint64(1)
    return n


@helper
def _prefetch_packed(packed, i):
    for k in range(0, packed.shape[1], LINE // 2):
        prefetch(packed, (i, np.uint64(k)))


@kernel
def add_packed_rows(
    packed, ends, tails, longest, label, w, order, begin, count, blocks, block_rows, leaf, hist, v
):
    """Add the packed rows of one leaf to its evidence: `add_rows` for packed rows.

    packed, ends, tails: as for `_decode`
    longest int                      IN   codes of the longest row, at most
    label, w, order, begin, count, blocks, block_rows, leaf, v: as for `add_rows`
    hist   (2, codes + 1)   float64  OUT  sum of w by label, added to
    """
    n = packed.shape[0]
    flat = hist.reshape(-1)
    slots = np.uint64(hist.shape[1])
    codes = np.empty(longest, np.uint32)
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
                prefetch(label, ahead)
                prefetch(w, ahead)
                _prefetch_packed(packed, ahead)
            wi = np.float64(w[i])
            y = np.uint64(label[i])
            v[y] += wi * wi
            base = y * slots
            flat[base] += wi
            for c in range(_decode(packed, i, ends, tails, codes)):
                flat[base + np.uint64(codes[c])] += wi


@kernel
def add_curved_packed_rows(
    packed,
    ends,
    tails,
    longest,
    label,
    w,
    u,
    counted,
    order,
    begin,
    count,
    blocks,
    block_rows,
    leaf,
    pairs,
    v,
):
    """Add packed rows so that W+ + W- is twice the curvature: `add_curved_rows` for packed rows.

    pairs (2 (codes + 1),) float64  OUT  the histogram, both labels of a slot side by side
    The other arguments are those of `add_packed_rows` and `add_curved_rows`.
    """
    n = packed.shape[0]
    codes = np.empty(longest, np.uint32)
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
                prefetch(label, ahead)
                prefetch(w, ahead)
                prefetch(u, ahead)
                _prefetch_packed(packed, ahead)
            wi = np.float64(w[i])
            if wi <= 0:
                continue
            ui = np.float64(u[i])
            p = wi / ui
            v[np.uint64(label[i])] += ui * np.float64(np.float32(p * p)) if counted else wi * wi
            h = ui * np.float64(np.float32(p * (1.0 - p)))
            half = (np.float64(label[i]) - 0.5) * wi
            add_pair(pairs, np.uint64(0), h - half, h + half)
            for c in range(_decode(packed, i, ends, tails, codes)):
                add_pair(pairs, np.uint64(codes[c]), h - half, h + half)


@kernel
def add_packed_numbers(
    packed,
    ends,
    tails,
    longest,
    g,
    h,
    u,
    counted,
    order,
    begin,
    count,
    blocks,
    block_rows,
    leaf,
    pairs,
    v,
):
    """Add packed rows with numbers to predict: `add_number_rows` for packed rows.

    The arguments are those of `add_packed_rows` and `add_number_rows`.
    """
    n = packed.shape[0]
    codes = np.empty(longest, np.uint32)
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
                prefetch(g, ahead)
                prefetch(h, ahead)
                _prefetch_packed(packed, ahead)
            gi = np.float64(g[i])
            hi = np.float64(h[i])
            over = 1.0
            if counted:
                over = 1.0 / np.float64(u[i]) if u[i] > 0 else 0.0
            v[0] += gi * gi * over
            v[1] += gi * hi * over
            v[2] += hi * hi * over
            v[3] += abs(gi)
            low = hi - 0.5 * gi
            high = hi + 0.5 * gi
            add_pair(pairs, np.uint64(0), low, high)
            for c in range(_decode(packed, i, ends, tails, codes)):
                add_pair(pairs, np.uint64(codes[c]), low, high)


@kernel
def count_codes(packed, ends, tails, longest, block_rows, counts):
    """Count the codes of the rows of each block.

    packed, ends, tails, longest: as for `add_packed_rows`
    block_rows int                IN
    counts     (blocks,)   int64  OUT
    """
    n = packed.shape[0]
    codes = np.empty(longest, np.uint32)
    for block in range(counts.shape[0]):
        total = 0
        for i in range(block * block_rows, min((block + 1) * block_rows, n)):
            total += np.int64(_decode(packed, np.uint64(i), ends, tails, codes))
        counts[block] = total


@kernel
def index_block(packed, ends, tails, longest, block, block_rows, start, entries):
    """List the rows of a block by code: those of `GROUP` neighbouring codes together.

    packed, ends, tails, longest: as for `add_packed_rows`
    block      int                IN
    block_rows int                IN   at most ROW_MASK + 1
    start      (groups + 1,) int32  OUT  where the entries of each group of codes begin
    entries    (m,)   uint16      OUT  number of the row in its block; above, that of the code in
                                       its group
    """
    n = packed.shape[0]
    codes = np.empty(longest, np.uint32)
    first = block * block_rows
    last = min(first + block_rows, n)
    start[:] = 0
    for i in range(first, last):
        for c in range(_decode(packed, np.uint64(i), ends, tails, codes)):
            start[np.uint64(codes[c] // np.uint32(GROUP)) + np.uint64(1)] += 1
    for g in range(1, start.shape[0]):
        start[g] += start[g - 1]
    for i in range(last - 1, first - 1, -1):
        for c in range(_decode(packed, np.uint64(i), ends, tails, codes)):
            g = np.uint64(codes[c] // np.uint32(GROUP)) + np.uint64(1)
            start[g] -= 1
            at = np.uint64(start[g])
            entries[at] = np.uint16(i - first) | np.uint16(codes[c] % GROUP) << np.uint16(ROW_BITS)
    # Each entry of `start` is now where its own group begins, one place too far.
    for g in range(1, start.shape[0] - 1):
        start[g] = start[g + 1]
    start[start.shape[0] - 1] = entries.shape[0]


@kernel
def unpack_column(start, entries, base, first, last, zero, blocks, block_rows, column):
    """The bins of one feature, in all rows of some blocks.

    start       (blocks, groups + 1) int32  IN   as of `index_block`
    entries     (m,)      uint16  IN   those of all blocks
    base        (blocks,) int64   IN   where those of each block begin
    first, last int               IN   the codes of the feature: first ... last - 1
    zero        int               IN   its bin of zero
    blocks      (k,)      int64   IN
    block_rows  int               IN
    column      (n,)      uint8   OUT
    """
    low = first // GROUP
    high = (last - 1) // GROUP
    for k in range(blocks.shape[0]):
        block = blocks[k]
        row = block * block_rows
        column[row : min(row + block_rows, column.shape[0])] = zero
        for group in range(low, high + 1):
            for at in range(start[block, group], start[block, group + 1]):
                entry = entries[base[block] + at]
                code = group * GROUP + np.int64(entry >> np.uint16(ROW_BITS))
                if first <= code < last:
                    b = code - first
                    column[row + np.int64(entry & np.uint16(ROW_MASK))] = b + (b >= zero)


@kernel
def unpack_features(packed, ends, tails, longest, first, last, zero, bins):
    """The bins of some features.

    packed, ends, tails, longest: as for `add_packed_rows`
    first, last (k,)   int64  IN   the codes of each feature; of fewer than 65,536
    zero        (k,)   uint8  IN   the bin of zero of each
    bins        (n, k) uint8  OUT
    """
    k = first.shape[0]
    codes = np.empty(longest, np.uint32)
    number_of = np.zeros(last.max() if k else 1, np.uint16)  # of each code, from 1 on
    for j in range(k):
        for code in range(first[j], last[j]):
            number_of[code] = j + 1
    most = np.uint32(number_of.shape[0])
    for i in range(packed.shape[0]):
        for j in range(k):
            bins[i, j] = zero[j]
        for c in range(_decode(packed, np.uint64(i), ends, tails, codes)):
            code = codes[c]
            if code >= most:
                break
            number = number_of[code]
            if number:
                j = np.uint64(number) - np.uint64(1)
                b = np.int64(code) - first[j]
                bins[i, j] = b + (b >= np.int64(zero[j]))


@helper
def _bin_of(x, cuts, low, high):
    """The bin of a number among the thresholds low ... high - 1; NaN is in the last."""
    if np.isnan(x):
        return high - low + 1
    a = low
    b = high
    while a < b:
        middle = (a + b) >> 1
        if cuts[middle] < x:
            a = middle + 1
        else:
            b = middle
    return a - low


@kernel
def pack_rows(start, index, value, feature_of, at, cuts, zero, first, last, packed, n_tail, tails):
    """Pack rows of (column, value) entries; of a column that comes twice, the last value counts.

    start      (n + 1,) int64    IN   row i has the entries start[i] ... start[i + 1] - 1
    index      (m,)     int32    IN   column of each
    value      (m,)     float64  IN
    feature_of (cols,)  int32    IN   feature of each column, or DROPPED
    at         (d + 1,) int64    IN   thresholds of feature f are cuts[at[f]:at[f + 1]]
    cuts       (c,)     float64  IN
    zero       (d,)     uint8    IN   bin of zero
    first, last (d,)    int64    IN   the codes of each feature
    packed     (n, k)   uint16   OUT  words of each row, END if there are fewer
    n_tail     (n,)     int64    OUT  how many more there are
    tails      (t,)     uint16   OUT  these, end to end

    Returns -1, or the entry that has no code: a missing value in a table that should have none.
    """
    n, width = packed.shape
    longest = 0
    for i in range(n):
        longest = max(longest, start[i + 1] - start[i])
    key = np.empty(longest, np.int64)  # of an entry: first code of its feature, and position
    in_tails = 0
    for i in range(n):
        m = 0
        ascending = True
        for e in range(start[i], start[i + 1]):
            f = np.int64(feature_of[index[e]])
            if f != DROPPED and first[f] < last[f]:
                key[m] = first[f] << 32 | (e - start[i])
                ascending = ascending and (m == 0 or key[m - 1] < key[m])
                m += 1
        if not ascending:
            key[:m].sort()
        before = np.int64(0)
        words = 0
        more = 0
        for j in range(m):
            if j + 1 < m and key[j + 1] >> 32 == key[j] >> 32:
                continue
            e = start[i] + (key[j] & 0xFFFFFFFF)
            f = np.int64(feature_of[index[e]])
            b = _bin_of(value[e], cuts, at[f], at[f + 1])
            z = np.int64(zero[f])
            if b == z:
                continue
            code = first[f] + b - (b > z)
            if code >= last[f]:
                return e
            gap = code - before
            before = code
            while gap > 0:
                word = gap if gap <= MOST_GAP else SKIP
                gap -= min(gap, MOST_GAP)
                if words < width:
                    packed[i, words] = word
                    words += 1
                else:
                    tails[in_tails] = word
                    in_tails += 1
                    more += 1
        for k in range(words, width):
            packed[i, k] = END
        n_tail[i] = more
    return -1


@kernel
def bin_entries(start, index, value, feature_of, at, cuts, zero, bins):
    """The bins of all features, of rows of (column, value) entries.

    bins (n, d) uint8  OUT
    The other arguments are those of `pack_rows`.
    """
    for i in range(bins.shape[0]):
        for f in range(bins.shape[1]):
            bins[i, f] = zero[f]
        for e in range(start[i], start[i + 1]):
            f = np.int64(feature_of[index[e]])
            if f != DROPPED:
                bins[i, f] = _bin_of(value[e], cuts, at[f], at[f + 1])


@kernel
def count_entries(start, index, columns, lengths):
    """Count the entries of each column, and the rows of each number of entries.

    start   (n + 1,) int64  IN   as for `pack_rows`
    index   (m,)     int32  IN
    columns (cols,)  int64  OUT  added to
    lengths (l,)     int64  OUT  added to
    """
    for i in range(start.shape[0] - 1):
        lengths[start[i + 1] - start[i]] += 1
    for e in range(start[0], start[start.shape[0] - 1]):
        columns[index[e]] += 1


@kernel
def sort_by_column(index, value, number_of, fill, out):
    """Sort values by column.

    index     (m,)    int32    IN   column of each
    value     (m,)    float64  IN
    number_of (cols,) int32    IN   of each column, or DROPPED
    fill      (k,)    int64    IN/OUT  where the next value of each number goes
    out       (t,)    float64  OUT
    """
    for e in range(index.shape[0]):
        f = np.int64(number_of[index[e]])
        if f != DROPPED and not np.isnan(value[e]):
            out[fill[f]] = value[e]
            fill[f] += 1


@helper
def _between(a, b):
    """A threshold t with a <= t < b, halfway if there is such a number."""
    middle = a / 2 + b / 2
    return (middle if a <= middle < b else a) + 0.0


@kernel
def find_cuts(value, start, most, room, cuts, n_cuts):
    """Thresholds of columns of which a sample of the values that are not zero is known.

    Zero has a bin of its own. The others are in bins of about equal count, one for each different
    value if there are few.

    value  (m,)     float64  IN/OUT  those of column f are value[start[f]:start[f + 1]]; sorted here
    start  (k + 1,) int64    IN
    most   (k,)     int64    IN   bins of values that are not zero
    room   (k,)     int64    IN   where the thresholds of each column go, most + 2 of them
    cuts   (t,)     float64  OUT
    n_cuts (k,)     int64    OUT
    """
    for f in range(start.shape[0] - 1):
        own = value[start[f] : start[f + 1]]
        own.sort()
        n = own.shape[0]
        different = 0
        others = 0
        for e in range(n):
            if own[e] != 0:
                others += 1
                different += e == 0 or own[e] != own[e - 1]
        to = room[f]
        if different == 0:  # nothing is known: what is there is above zero
            cuts[to] = 0.0
            n_cuts[f] = 1
            continue
        share = 1.0 if different <= most[f] else most[f] / others
        done = 0  # values that are not zero so far
        closed = 0  # bins of them, of `share` each
        last = 0.0  # the value before
        begun = False
        for e in range(n):
            x = own[e]
            if x == 0 or (begun and x == last):
                done += x != 0
                continue
            if begun and last < 0 < x:
                cuts[to] = _between(last, 0.0)
                cuts[to + 1] = _between(0.0, x)
                to += 2
                closed = np.int64(done * share)
            elif not begun and x > 0:
                cuts[to] = _between(0.0, x)
                to += 1
            elif begun and (different <= most[f] or np.int64(done * share) > closed):
                cuts[to] = _between(last, x)
                to += 1
                closed = np.int64(done * share)
            begun = True
            last = x
            done += 1
        if last < 0:
            cuts[to] = _between(last, 0.0)
            to += 1
        n_cuts[f] = to - room[f]


@kernel
def best_packed_split(
    hist,
    first,
    last,
    n_bins,
    zero,
    features,
    l2,
    min_weight,
    monotone,
    lower,
    upper,
    cell,
    found,
    mask,
):
    """The split that reduces the loss most: `best_split` in the evidence of packed rows.

    hist     (2, codes + 1) float64  IN   sums by code; the first are those of the whole leaf
    first, last (d,)        int64    IN   the codes of each feature
    n_bins   (d,)           int64    IN   with that of missing values, which may have no code
    zero     (d,)           uint8    IN   the bin that has no code: what the others leave
    cell     (2, 256)       float64  OUT  work space
    features, l2, min_weight, monotone, lower, upper, found, mask: as for `best_split`
    """
    found[:] = 0.0
    mask[:] = np.uint64(0)
    negative = hist[0, 0]
    positive = hist[1, 0]
    weight = negative + positive
    if weight < 2 * min_weight:
        return
    total = positive - negative
    base = _worth_within(total, weight + l2, lower, upper)
    for k in range(features.shape[0]):
        # Neighbouring features are far apart in the codes, which are in order of frequency.
        ahead = np.uint64(first[features[min(k + SEARCHED_AHEAD, features.shape[0] - 1)]])
        prefetch(hist, (np.uint64(0), ahead))
        prefetch(hist, (np.uint64(1), ahead))
        f = features[k]
        low = first[f]
        high = last[f]
        if high == low + 1 and n_bins[f] == 3:  # one value besides zero: most are soon passed over
            w0 = hist[0, low]
            w1 = hist[1, low]
            if w0 + w1 < min_weight:
                continue
            if zero[f] == 0:
                w0 = negative - w0
                w1 = positive - w1
            left = w1 - w0
            right = total - left
            a = w0 + w1 + l2
            c = weight - (w0 + w1) + l2
            if (left * left * c + right * right * a) / (a * c) - base <= found[0]:
                continue
        w0 = 0.0
        w1 = 0.0
        for s in range(low, high):
            w0 += hist[0, s]
            w1 += hist[1, s]
        if w0 + w1 < min_weight:  # every cut has a side without zero
            continue
        missing = n_bins[f] - 1
        z = np.int64(zero[f])
        cell[0, missing] = 0.0  # if it has no code
        cell[1, missing] = 0.0
        for s in range(low, high):
            b = s - low
            b += b >= z
            cell[0, b] = hist[0, s]
            cell[1, b] = hist[1, s]
        cell[0, z] = negative - w0
        cell[1, z] = positive - w1
        if _cut_number(
            cell, 0, missing, total, weight, l2, min_weight, monotone[f], lower, upper,
            found, mask,
        ):  # fmt: skip
            found[1] = f
