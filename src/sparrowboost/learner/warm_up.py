"""Loads the kernels of training, so that their memory counts when the limit is divided."""

from __future__ import annotations

import numpy as np

from sparrowboost.sampling.strata import Rows


def warm_up(*, some_columns: bool = False) -> None:
    """Load all kernels of training, or compile them, by calling each on two rows.

    With `some_columns`, also those that add some columns of a row to evidence.
    """
    from sparrowboost.kernels import draws, evidence, metrics, partition, scores, splits

    bins, label = np.zeros((2, 1), np.uint8), np.zeros(2, np.uint8)
    w, score, u = np.ones(2, np.float32), np.zeros(2, np.float32), np.ones(2, np.float32)
    order, blocks = np.zeros(2, np.uint16), np.zeros(1, np.int64)
    begin, count = np.zeros((1, 2), np.int32), np.zeros((1, 2), np.int32)
    partition.start_rows(2, order, begin, count, blocks, 2)
    n_bins, offset = np.full(1, 2, np.int64), np.zeros(1, np.uint64)
    category, mask = np.zeros(1, np.uint8), np.zeros(4, np.uint64)
    hist, v = np.zeros((2, 2)), np.zeros(2)
    rows = order, begin, count, blocks, 2
    for columns in (None, offset) if some_columns else (None,):
        of = *rows, 0, offset, columns
        evidence.add_rows(bins, label, w, *of, hist, v)
        evidence.add_curved_rows(bins, label, w, u, False, *of, hist.reshape(-1), v)
    evidence.add_leaf_sums(label, w, u, *rows, 1, np.zeros((1, 3)))
    evidence.add_squares(label, 0, 1, w, *rows, 0, mask, np.zeros(1))
    some, sign = np.zeros(1, np.int64), np.zeros(1, np.int8)
    features = hist, offset, n_bins, category, some
    work, found = np.empty((2, 256)), np.empty(5)
    splits.best_split(*features, 1.0, 1.0, 1e-9, v[:1], sign, -1.0, 1.0, work, found, mask)
    spare = np.empty(2, np.uint16)
    partition.split_rows(label, 0, 1, order, begin, count, blocks, 2, 0, 1, mask, spare)
    scores.add_values(w, order, begin, count, blocks, 2, 1, score)
    one = np.zeros(1, np.int64)
    scores.apply_trees(bins, np.zeros((1, 8), np.uint64), w, one, one, one, 0, 1, score)
    splits.best_edge(*features, sign, np.ones(2), np.empty(3), mask)
    scores.weigh_logistic(label, u, score, w, v)
    scores.weigh_exponential(label, u, score, np.float32(1), w, v)
    metrics.add_losses(label, score, w, 1.0, np.zeros(3))
    metrics.add_falls(label, score, score, u, 1.0, True, np.zeros(2))
    metrics.count_pairs(score, score)
    draws.pick_rows(w, 1.0, 1.0, 0.5, 0, np.empty(2, np.int64), u, 2)
    draws.weigh_draw(w, u, 1.0)
    stratum = np.zeros(2, np.uint16)
    draws.find_strata(w, 0, 80, stratum)
    seen, none, place = np.zeros(2, np.int32), np.empty(0, np.float32), np.zeros(2, np.uint32)
    chunks = Rows.chunks(np.zeros((2, 40), np.uint8), 2, 1, weighted=True, targeted=True)
    given = bins, label, none, score
    draws.put_rows(*given, seen, none, stratum, place, 2, *chunks, np.zeros(2, np.int64))
    draws.keep_rows(*given, none, blocks, 0, bins, label, none, score, none)
    draws.shuffle_rows(np.uint64(1), bins, label, u, none, score, none)


def warm_up_packed() -> None:
    """Load the kernels of training on packed rows, too, and of prediction for sparse ones."""
    from sparrowboost.kernels import packed

    words, label = np.zeros((2, 1), np.uint16), np.zeros(2, np.uint8)
    rows = words, np.empty(0, np.int64), np.empty(0, np.uint16), 1
    (w, u), one = np.ones((2, 2), np.float32), np.ones(1, np.int64)
    order, blocks = np.zeros(2, np.uint16), np.zeros(1, np.int64)
    begin, count = np.zeros((1, 2), np.int32), np.zeros((1, 2), np.int32)
    of, sums = (order, begin, count, blocks, 2, 0), np.zeros(4)
    hist, v = np.zeros((2, 2)), np.zeros(4)
    packed.add_packed_rows(*rows, label, w, *of, hist, v)
    packed.add_curved_packed_rows(*rows, label, w, u, False, *of, sums, v)
    packed.add_packed_numbers(*rows, w, u, u, False, *of, sums, v)
    start, entries, base = np.zeros((1, 2), np.int32), np.zeros(2, np.uint16), np.zeros(1, np.int64)
    packed.count_codes(*rows, 2, base.copy())
    packed.index_block(*rows, 0, 2, start[0], entries[:0])
    packed.unpack_column(start, entries, base, 1, 2, 0, blocks, 2, label)
    packed.unpack_features(*rows, one, one + 1, label[:1], np.zeros((2, 1), np.uint8))
    slots, rule = (one, one + 1, one + 2, label[:1], blocks), (1.0, 1.0, np.zeros(1, np.int8))
    found, mask = np.empty(5), np.empty(4, np.uint64)
    for each in (hist, sums.reshape(-1, 2).T):
        work = np.empty((2, 256)), found, mask
        packed.best_packed_split(each, *slots, *rule, -1.0, 1.0, *work)


def warm_up_numbers(*, some_columns: bool = False) -> None:
    """Load the kernels of training on rows with numbers to predict, too."""
    from sparrowboost.kernels import numbers

    bins, y, f = np.zeros((2, 1), np.uint8), np.ones(2, np.float32), np.zeros(2, np.float32)
    g, h, w = np.zeros((3, 2), np.float32)
    order, blocks = np.zeros(2, np.uint16), np.zeros(1, np.int64)
    begin, count = np.zeros((1, 2), np.int32), np.zeros((1, 2), np.int32)
    rows, mask = (order, begin, count, blocks, 2), np.zeros(4, np.uint64)
    numbers.add_slopes(0, 0.0, 0.0, y, f, g, h)
    numbers.weigh_derivatives(y, False, 1.0, 1.0, 1.0, 1.0, g, h, w, np.zeros(5))
    offset, four = np.zeros(1, np.uint64), np.zeros(4)
    for columns in (None, offset) if some_columns else (None,):
        of = *rows, 0, offset, columns
        numbers.add_number_rows(bins, g, h, y, False, *of, np.zeros(4), four)
    numbers.add_number_sums(g, h, *rows, 1, np.zeros((1, 2)))
    numbers.add_number_squares(bins.reshape(-1), 0, 1, g, h, *rows, 0, mask, np.zeros(3))
    found, one = np.zeros((1, 2)), np.zeros(1)
    cells = np.zeros((1, numbers.RADIX))
    numbers.add_to_cells(y, f, y, *rows, 1, 0, np.zeros(1, np.uint64), cells)
    numbers.find_previous(y, f, y, *rows, 1, y[:1], f[:1])
    numbers.add_clipped(y, f, y, *rows, 1, one, 1.0, found)
    numbers.add_number_losses(0, 0.0, 0.0, y, f, y, 0.0, np.zeros(6))
    numbers.add_number_falls(0, 0.0, 0.0, y, f, f, y, np.zeros(2))


def warm_up_classes(n_classes: int = 3) -> None:
    """Load the kernels of training on rows of several classes, too."""
    from sparrowboost.kernels import classes, draws, scores

    k = n_classes
    bins, label, one = np.zeros((2, 1), np.uint8), np.zeros(2, np.uint8), np.zeros(k, np.int64)
    u, (y, w, norm, g, h) = np.ones(2, np.float32), np.zeros((5, 2), np.float32)
    score, rows = np.zeros((k, 2), np.float32), np.zeros((2, k), np.float32)
    factor, sums = np.ones(k, np.float32), (np.zeros(2), np.zeros((k, 5)))
    for each in (score, rows.T, np.zeros((k, 3), np.float32)[:, :2]):
        classes.weigh_classes(y, each, u, False, factor, 1.0, 1.0, norm, w, *sums)
        forest = np.zeros((1, 8), np.uint64), np.zeros(1, np.float32), one, one, one
        scores.apply_trees(bins, *forest, 0, k, each)
    scores.apply_trees(bins, *forest, 0, 1, score[0], k)
    classes.fill_class_slopes(0, k, y, score[0], norm, u, g, h)
    classes.add_class_losses(y, score, u, np.zeros(3))
    classes.add_class_falls(y, score, score, u, np.zeros(2))
    seen, none, place = np.zeros(2, np.int32), np.empty(0, np.float32), np.zeros(2, np.uint32)
    stratum, which = np.zeros(2, np.uint16), np.zeros(1, np.int64)
    data = np.zeros((2, 120), np.uint8)
    chunks = Rows.chunks(data, 2, 1, weighted=True, targeted=True, n_scores=k)
    given = bins, label, none, rows, seen, y, stratum, place
    draws.put_rows(*given, 2, *chunks, np.zeros(2, np.int64))
    draws.keep_rows(bins, label, none, rows, y, which, 0, bins, label, none, score.T, y)
    draws.shuffle_rows(np.uint64(1), bins, label, u, none, score[:, :2].T, y)
