"""The memory plan: how a limit is divided, and what each part of a job takes of it.

    limit = libraries + reading + buffers                                   an ingest
    limit = libraries + blocks + strata + evidence + validation + samples   a training

Only plain numbers come in here: rows, features, bins, threads. `store/ingest.py`,
`learner/planning.py` and `model/predict.py` bring these, and refuse a limit by `Budget.check`
before any row is read. Numbers that say how large a buffer is are used where it is made, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sparrowboost.runtime.errors import MemoryLimitError
from sparrowboost.runtime.memory import format_size

LIBRARIES = "Python and its libraries"
MARGIN = 1.05  # of a limit that a refusal names: what is measured differs a little from run to run

SAMPLE_ROW_BYTES = (
    1 + 4 + 4 + 4 + 2
)  # label, importance, score, weight, order; and a byte a feature
SPARE_ROWS = 1.1  # rows that a draw makes room for, over those expected
ESTIMATE_BYTES = 4 + 1  # of a weight estimate, for each row of the sample that it is made of
CHUNK_ROWS = 256  # so few that draws of thousands read many chunks, so many that handling one pays
BATCH_BYTES = 256 << 10  # of chunks that are read together; a chunk is no larger
CHUNK_ROW_BYTES = 9  # score, trees seen, label; and a byte a feature
MAX_PARTS = 16  # of a scan, each with evidence of its own
PART_BYTES = 32 << 20  # of all parts' evidence
DEFAULT_LEAVES = 31
STRATA_IN_USE = 44  # of both labels, each with a chunk that is being filled
MIN_ROWS = 10_000  # of a sample, below which training makes no sense
BLOCK_STATE = 32  # bytes of a row on the way from a block: order, label, score, weights, places
TRAINING_BYTES = 40_000_000  # of training's kernels and modules, and what reading leaves behind
FULL_BINS = 256  # of a feature


@dataclass(frozen=True)
class Budget:
    """How a memory limit is divided: what each part of a job may take.

    Parameters
    ----------
    limit : int
        Bytes.
    parts : mapping of str to int
        Bytes by what takes them. What is left of the limit is nobody's.

    Examples
    --------
    >>> print(Budget(512_000_000, {"libraries": 250_000_000, "reading": 27_000_000}))
    libraries    250 MB
    reading       27 MB
    sum          277 MB
    limit        512 MB
    """

    limit: int
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def __str__(self) -> str:
        parts = {what: n for what, n in self.parts.items() if n}
        lines = {**parts, "sum": self.total, "limit": self.limit}
        width = max(map(len, lines))
        return "\n".join(f"{what:<{width}}  {format_size(n):>8}" for what, n in lines.items())

    def check(self) -> None:
        """Refuse a limit that the parts do not fit in, with one that would do."""
        if self.total > self.limit:
            most = sorted(self.parts.items(), key=lambda part: -part[1])
            takes = ", ".join(f"{what} ({format_size(n)})" for what, n in most if n)
            raise MemoryLimitError(
                f"memory_limit {format_size(self.limit)} is too small: it has to hold {takes}; "
                f"give at least {format_up(MARGIN * self.total)}."
            )


def format_up(n_bytes: float) -> str:
    """A size in whole megabytes, never less than what it stands for.

    Examples
    --------
    >>> format_up(331_200_001)
    '332 MB'
    """
    return f"{-int(-n_bytes // 10**6)} MB"


def chunk_bytes(
    n_features: int,
    chunk_rows: int = CHUNK_ROWS,
    batch_bytes: int = BATCH_BYTES,
    *,
    weighted: bool,
) -> int:
    """Bytes of a chunk of a stratum.

    Examples
    --------
    >>> chunk_bytes(20, weighted=False)
    7424
    """
    row = n_features + CHUNK_ROW_BYTES + 4 * weighted
    return row * max(1, min(chunk_rows, batch_bytes // row))


def evidence_bytes(n_slots: int, max_leaves: int) -> int:
    """Bytes of the evidence for so many slots and leaves, and of the parts that are added to it."""
    one = 16 * n_slots
    return one * max_leaves + max(one, min(MAX_PARTS * one, PART_BYTES))


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
        "evidence": evidence_bytes(n_slots, max_leaves),
    }


def pair_bytes(n_features: int, *, weighted: bool) -> int:
    """Bytes of a row of two samples; a draw also holds what guides it, of the sample in use."""
    row_bytes = n_features + SAMPLE_ROW_BYTES + 4 * weighted
    return math.ceil(2 * SPARE_ROWS * row_bytes + ESTIMATE_BYTES)


def default_parts(
    n_features: int, largest_block: int, n_jobs: int, *, weighted: bool
) -> dict[str, int]:
    """What a training by default is sure to do with, beside the libraries that reading needs."""
    n_slots, max_leaves = FULL_BINS * n_features, DEFAULT_LEAVES
    return {
        "code of training": TRAINING_BYTES,
        **least_parts(n_features, n_slots, largest_block, n_jobs, max_leaves, weighted=weighted),
        "samples": MIN_ROWS * pair_bytes(n_features, weighted=weighted),
    }
