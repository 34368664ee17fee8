"""The memory plan: how a memory limit is divided among the parts of a job.

    ingest       libraries + reading + buffers                                        <= limit
    training     libraries + blocks + strata + evidence + validation rows + samples   <= limit
    prediction   libraries + reading + results + blocks                               <= limit

Libraries are measured (`memory.held`). The other parts are computed from plain numbers: rows,
features, bins and threads. `store/plan.py`, `learner/planning.py` and `model/predict.py` supply
them, and refuse a limit with `Budget.check` before any row is read. What is left of the limit goes
to the part that can use it: row blocks in ingest and prediction, samples in training.

Constants that bound a buffer are also used where the buffer is allocated.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from sparrowboost.runtime.errors import MemoryLimitError
from sparrowboost.runtime.memory import format_size, machine_memory, name_limit

LIBRARIES = "Python and its libraries"
MARGIN = 1.05  # of the limit that a refusal names: measurements differ a little between runs

# Numbers that a row has besides its bins, in the store, in strata and in samples: weight, target.
NUMBER_BYTES = 4

# Row blocks on the way from the store.
BLOCK_STATE = 32  # bytes of a row: order, label, score, weights, positions
PIECE_BYTES = 4 << 20  # of the scores of several classes of rows that are worked on together

# Strata.
CHUNK_ROWS = 256  # few enough that small draws read many chunks, and enough that each pays off
BATCH_BYTES = 256 << 10  # of chunks that are read together, and the maximum of one chunk
CHUNK_ROW_BYTES = 1 + 4 + 4  # label, score, trees seen; and a byte per feature
SCORE_BYTES = 4  # of each more, where there are several
STRATA_IN_USE = 22  # of each label or band, each with a chunk that is being filled

# Evidence.
MAX_PARTS = 16  # of a scan, each with evidence of its own
PART_BYTES = 32 << 20  # of the evidence of all parts

# Samples.
SAMPLE_BLOCK_ROWS = 1 << 14  # brought up to date together
SAMPLE_ROW_BYTES = 1 + 4 + 4 + 4 + 2  # label, importance, score, weight, order; a byte per feature
TARGET_BYTES = 4 + 4  # of a row with a target: gradient, curvature
NORM_BYTES = 4  # of a row with several scores: from which probabilities follow
SPARE_ROWS = 1.1  # rows that a draw allocates, as a multiple of those expected
ESTIMATE_BYTES = 4 + 1  # of the weight estimate of a draw, per row of the sample in use
MIN_ROWS = 10_000  # of a sample: training makes no sense with fewer

# A training with default parameters, before anything is known of its data.
TRAINING_BYTES = 40_000_000  # training's kernels and modules, and what reading leaves behind
DEFAULT_LEAVES = 31
FULL_BINS = 256  # of a feature


@dataclass(frozen=True)
class Budget:
    """The parts of a job and the limit that they must fit in.

    Parameters
    ----------
    limit : int
        Bytes.
    parts : mapping of str to int
        Bytes by part. They may add up to less than the limit.

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
        parts = {part: n for part, n in self.parts.items() if n}
        lines = {**parts, "sum": self.total, "limit": self.limit}
        width = max(map(len, lines))
        return "\n".join(f"{name:<{width}}  {format_size(n):>8}" for name, n in lines.items())

    def check(self) -> None:
        """Raise a MemoryLimitError, with a limit that is enough, if the parts do not fit."""
        if self.total > self.limit:
            largest_first = sorted(self.parts.items(), key=lambda part: -part[1])
            parts = ", ".join(f"{part} ({format_size(n)})" for part, n in largest_first if n)
            needed, machine = int(MARGIN * self.total), machine_memory()
            more = ""
            if needed > machine:
                more = f", which is more than the {format_size(machine)} that there are"
            raise MemoryLimitError(
                f"{name_limit(self.limit)} is too small: it has to hold {parts}; "
                f"give at least {round_up(needed)}{more}."
            )


def round_up(n_bytes: float) -> str:
    """A size in whole megabytes, rounded up.

    Examples
    --------
    >>> round_up(331_200_001)
    '332 MB'
    """
    return f"{-int(-n_bytes // 10**6)} MB"


def blocks_in_flight(ahead: int, n_jobs: int) -> int:
    """Row blocks in memory while threads work on them: `ahead` wait before the work and after."""
    return 2 * ahead + n_jobs + 2


def piece_rows(n_scores: int) -> int:
    """Rows of a block that are worked on together: all, if each has one score.

    Examples
    --------
    >>> piece_rows(3), piece_rows(255)
    (349525, 4112)
    """
    return sys.maxsize if n_scores == 1 else PIECE_BYTES // (SCORE_BYTES * n_scores)


def block_bytes(
    n_features: int, largest_block: int, n_jobs: int, *, n_extra: int, n_scores: int = 1
) -> int:
    """Bytes of row blocks of a store: one per thread, and some that wait.

    Each is in memory as records and as the rows that are made of them; if rows have several scores,
    these are made for a piece of it.
    """
    width, piece = n_features + NUMBER_BYTES * n_extra, min(largest_block, piece_rows(n_scores))
    scores = SCORE_BYTES * n_scores * piece if n_scores > 1 else 0
    return (n_jobs + 2) * (largest_block * (2 * width + BLOCK_STATE) + scores)


def chunk_bytes(
    n_features: int,
    chunk_rows: int = CHUNK_ROWS,
    batch_bytes: int = BATCH_BYTES,
    *,
    n_extra: int,
) -> int:
    """Bytes of a chunk of a stratum.

    Examples
    --------
    >>> chunk_bytes(20, n_extra=0)
    7424
    """
    row = n_features + CHUNK_ROW_BYTES + NUMBER_BYTES * n_extra
    return row * max(1, min(chunk_rows, batch_bytes // row))


def strata_bytes(
    n_features: int, n_jobs: int, *, n_extra: int, n_bands: int = 2, n_scores: int = 1
) -> int:
    """Bytes of the strata's chunks in memory, and of batches that are read.

    A draw copies the rows of a chunk that is not yet full, while other threads fill it.
    """
    n_numbers = n_extra + n_scores - 1
    chunks = 2 * n_bands * STRATA_IN_USE * chunk_bytes(n_features, n_extra=n_numbers)
    return chunks + (n_jobs + 2) * 2 * BATCH_BYTES


def look_bytes(n_jobs: int, n_scores: int) -> int:
    """Bytes of scores of several classes while trees are looked back at, a block per thread."""
    scores = SCORE_BYTES * n_scores * SAMPLE_BLOCK_ROWS
    return n_jobs * (scores + min(scores, PIECE_BYTES)) if n_scores > 1 else 0


def evidence_bytes(n_slots: int, max_leaves: int) -> int:
    """Bytes of the evidence of all leaves, and of the parts that are added to it."""
    leaf = 16 * n_slots
    return leaf * max_leaves + max(leaf, min(MAX_PARTS * leaf, PART_BYTES))


def sample_row_bytes(
    n_features: int, *, n_extra: int, targeted: bool = False, n_scores: int = 1
) -> int:
    """Bytes of a row of a sample."""
    row = n_features + SAMPLE_ROW_BYTES + NUMBER_BYTES * n_extra
    several = SCORE_BYTES * (n_scores - 1) + NORM_BYTES * (n_scores > 1)
    return row + TARGET_BYTES * targeted + several


def whole_row_bytes(
    n_features: int, *, n_extra: int, targeted: bool = False, n_scores: int = 1
) -> int:
    """Bytes of a row if all rows are in memory: packing some features copies their bins."""
    row = sample_row_bytes(n_features, n_extra=n_extra, targeted=targeted, n_scores=n_scores)
    return row + n_features


def pair_bytes(n_features: int, *, n_extra: int, targeted: bool = False, n_scores: int = 1) -> int:
    """Bytes of a row of the sample in use, and of one in the sample that is drawn beside it."""
    row = sample_row_bytes(n_features, n_extra=n_extra, targeted=targeted, n_scores=n_scores)
    return math.ceil(2 * SPARE_ROWS * row + ESTIMATE_BYTES)


def fixed_parts(
    n_features: int,
    n_slots: int,
    largest_block: int,
    n_jobs: int,
    max_leaves: int,
    *,
    n_extra: int,
    offset: bool = False,
    n_bands: int = 2,
    n_scores: int = 1,
) -> dict[str, int]:
    """The parts of a training whose size does not depend on the limit.

    `offset`: whether rows of the store have one. In strata and samples it is part of the score.
    """
    rows = {"n_extra": n_extra, "n_bands": n_bands, "n_scores": n_scores}
    of_block = n_features, largest_block, n_jobs
    blocks = block_bytes(*of_block, n_extra=n_extra + offset, n_scores=n_scores)
    return {
        "blocks on the way": blocks,
        "strata": strata_bytes(n_features, n_jobs, **rows),
        "evidence": evidence_bytes(n_slots, max_leaves),
        "looking back": look_bytes(n_jobs, n_scores),
    }


def default_parts(
    n_features: int,
    largest_block: int,
    n_jobs: int,
    *,
    n_extra: int,
    offset: bool = False,
    n_bands: int = 2,
    targeted: bool = False,
    n_scores: int = 1,
) -> dict[str, int]:
    """The parts that are enough for any data in a training with default parameters.

    They come on top of the libraries that ingest needs.
    """
    n_slots = FULL_BINS * n_features
    fixed = fixed_parts(
        n_features,
        n_slots,
        largest_block,
        n_jobs,
        DEFAULT_LEAVES,
        n_extra=n_extra,
        offset=offset,
        n_bands=n_bands,
        n_scores=n_scores,
    )
    pair = pair_bytes(n_features, n_extra=n_extra, targeted=targeted, n_scores=n_scores)
    return {
        "code of training": TRAINING_BYTES,
        **fixed,
        "samples": MIN_ROWS * pair,
    }
