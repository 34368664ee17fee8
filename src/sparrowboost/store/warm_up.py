"""Compiles the kernels of an ingest, or loads them, before memory is measured and divided."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sparrowboost.readers.arrays import strings
from sparrowboost.readers.formats import Kind
from sparrowboost.store.binning import WORK_DTYPES
from sparrowboost.store.lookup import read_only


def warm_up(kinds: Iterable[Kind]) -> None:
    """Call each kernel that features of these kinds need."""
    from sparrowboost.kernels.bins import (
        bin_by_bits,
        bin_by_grid,
        bin_by_search,
        bin_by_table,
        bin_codes,
    )
    from sparrowboost.kernels.rows import gather_rows, random_order, scatter_rows
    from sparrowboost.readers.parquet_pages import PageBuffers

    byte = np.zeros((1, 2), np.uint8)
    out, table = byte[:, 0], np.zeros(1 << 16, np.uint8)
    zero, missing = np.zeros(1, np.int64), np.uint8(0)
    for dtype in {WORK_DTYPES[kind] for kind in kinds}:
        x = read_only(np.zeros(1, dtype))
        if dtype is np.int32:
            bin_by_table(x, table, out)
            bin_codes(byte, np.zeros((1, 256), np.uint8), zero, np.empty((2, 1), np.uint8))
            PageBuffers(1).take(0)
            warm_up_categories()
            continue
        low = np.float32(1) if dtype is np.float32 else np.float64(1)
        thresholds = np.zeros(256, dtype)
        bin_by_grid(x, thresholds, table, low, low, 1, missing, out)
        bin_by_bits(x, thresholds, table, 1, missing, out)
        bin_by_search(x, thresholds, missing, out)
        if dtype is np.int64:
            bin_by_table(read_only(np.zeros(1, np.uint8)), table, out)
    first = seed = np.uint64(0)
    scatter_rows(byte, table[:1], 1, 0, first, seed, byte[None].copy(), zero.copy())
    warm_up_columns()
    order = np.zeros(1, np.uint32)
    random_order(np.uint64(0), order)
    gather_rows(byte, order, byte[:, :1].copy(), byte[:, :0].copy())


def warm_up_sparse() -> None:
    """Call the kernels of tables of sparse rows."""
    from sparrowboost.kernels import packed

    start, index, value = np.array([0, 1]), np.zeros(1, np.int32), np.ones(1)
    one, byte = np.zeros(1, np.int64), np.zeros(1, np.uint8)
    packed.count_entries(start, index, one.copy(), np.zeros(2, np.int64))
    packed.sort_by_column(index, value, index, one.copy(), np.empty(1))
    packed.find_cuts(value, start, one + 1, one, np.empty(3), one.copy())
    of = start, index, value, index, start, value, byte
    words = np.empty((1, 1), np.uint16), one.copy(), np.empty(0, np.uint16)
    packed.pack_rows(*of, one + 1, one + 2, *words)
    packed.bin_entries(*of, byte[None].copy())


def warm_up_categories() -> None:
    """Call the kernels of statistics of categories."""
    from sparrowboost.kernels.categories import bin_by_fold
    from sparrowboost.store.category_statistics import CodedWords
    from sparrowboost.store.fold_statistics import FoldSums, folds_of

    words = CodedWords.of("", strings(["a"]))
    folds = folds_of(0, 1, 0)
    FoldSums("", 1, 2).add(words, folds, np.ones((2, 1)))
    bin_by_fold(words.codes, folds, np.zeros((1, 1), np.uint8), folds)


def warm_up_columns() -> None:
    """Call the kernels that a pass column by column needs."""
    from sparrowboost.kernels.pages import N_SAID, read_header
    from sparrowboost.kernels.rows import columns_to_rows

    header, rows = np.zeros(1, np.uint8), np.zeros((3, 3), np.uint8)
    header.flags.writeable = False
    read_header(header, np.zeros(N_SAID, np.int64))
    columns_to_rows(rows, rows.copy())
    columns_to_rows(rows[:2].copy(), rows[:, :2])  # of records with weights
