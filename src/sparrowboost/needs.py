"""What training takes at least, however small its samples are."""

from __future__ import annotations

import math

from sparrowboost.params import Params
from sparrowboost.sample import ROW_BYTES
from sparrowboost.sampler import GUIDE_BYTES, SPARE_ROOM
from sparrowboost.scanner import scanner_bytes
from sparrowboost.strata import BATCH_BYTES, chunk_bytes

STRATA_IN_USE = 44  # of both labels, each with a chunk that is being filled
MIN_ROWS = 10_000  # of a sample, below which training makes no sense
BLOCK_STATE = 32  # bytes of a row on the way from a block: order, label, score, weights, places
TRAINING_BYTES = 40_000_000  # of training's kernels and modules, and what reading leaves behind
FULL_BINS = 256  # of a feature


def least_parts(
    n_features: int,
    n_slots: int,
    largest_block: int,
    n_jobs: int,
    max_leaves: int,
    *,
    weighted: bool,
) -> dict[str, int]:
    """Bytes by what takes them, beside libraries and samples.

    A block is read by each thread, and some wait: their records, and the rows made of them. What
    waits in a stratum's chunk is copied for a draw while others fill the chunk.
    """
    width = n_features + 4 * weighted
    return {
        "blocks on the way": (n_jobs + 2) * largest_block * (2 * width + BLOCK_STATE),
        "strata": 2 * STRATA_IN_USE * chunk_bytes(n_features, weighted=weighted)
        + (n_jobs + 2) * 2 * BATCH_BYTES,
        "evidence": scanner_bytes(n_slots, max_leaves),
    }


def pair_bytes(n_features: int, *, weighted: bool) -> int:
    """Bytes of a row of two samples; a draw also holds what guides it, of the sample in use."""
    row_bytes = n_features + ROW_BYTES + 4 * weighted
    return math.ceil(2 * SPARE_ROOM * row_bytes + GUIDE_BYTES)


def default_parts(
    n_features: int, largest_block: int, n_jobs: int, *, weighted: bool
) -> dict[str, int]:
    """What a training by default is sure to do with, beside the libraries that reading needs."""
    n_slots, max_leaves = FULL_BINS * n_features, Params.make().max_leaves
    return {
        "code of training": TRAINING_BYTES,
        **least_parts(n_features, n_slots, largest_block, n_jobs, max_leaves, weighted=weighted),
        "samples": MIN_ROWS * pair_bytes(n_features, weighted=weighted),
    }
