"""How training divides the memory limit: what each part takes, and what is left for samples.

    limit = libraries + blocks + strata + evidence + validation + samples + what is left

All but the last three do not depend on the limit, so that a limit that is too small is refused
before any row is read, with one that suffices.

The memory of the process is measured, and differs a little from run to run; models must not. So
samples are planned beside a fixed allowance for libraries, if these take less, and their sizes are
rounded down to steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sparrowboost.learner.params import Params
from sparrowboost.learner.validation import VALIDATION_SHARE, sets_of, validation_row_bytes
from sparrowboost.model.predict import BLOCK_ROWS
from sparrowboost.runtime.budget import (
    LIBRARIES,
    MIN_ROWS,
    Budget,
    fixed_parts,
    pair_bytes,
    sample_row_bytes,
    whole_row_bytes,
)
from sparrowboost.runtime.errors import MemoryLimitError
from sparrowboost.runtime.memory import held
from sparrowboost.sampling.schedule import FIRST_ROWS, FIRST_TARGETS, Sizes
from sparrowboost.store.dataset import Dataset
from sparrowboost.store.reading import Expected

WHOLE_VALUES = 80_000_000  # rows times features up to which all rows are used, without draws
ALLOWANCE = 224_000_000  # bytes for libraries: `sparrow train` takes 192 MB, in Python 208 MB
ALLOWANCE_SHARE = 5 / 8  # maximum share of the limit: small limits are planned as measured
STEP = 2**0.25  # factor between two sizes of samples, where the limit bounds them


@dataclass(frozen=True)
class TrainPlan:
    """The memory plan of a training; prints as a table."""

    budget: Budget
    sizes: Sizes  # rows of samples
    valid_bytes: int  # that validation rows may take

    def __str__(self) -> str:
        first, most, whole = self.sizes.first, self.sizes.most, self.sizes.whole
        rows = f"all {most:,} rows in memory" if whole else (
            f"samples of {first:,} rows at first, of up to {most:,} later"
        )  # fmt: skip
        return f"{self.budget}\n{rows}"


def plan_training(
    dataset: Dataset | Expected,
    params: Params,
    limit: int,
    n_jobs: int,
    valid: Any = None,
    reading: int = 0,
) -> TrainPlan:
    """Divide the limit; a MemoryLimitError names one that suffices.

    `reading`: bytes that an ingest takes meanwhile.
    """
    params = params.for_task(dataset.task, dataset.n_classes)
    n_scores = dataset.n_classes if dataset.n_classes > 2 else 1
    libraries = held()
    packing, n = dataset.packing, dataset.n_rows
    listed = 0  # bytes of a row of the sample in use, that lists of rows by code take
    if packing is None:
        d, values = dataset.n_features, float(dataset.n_features)
        n_slots = int(dataset.binning.n_bins.sum())
    else:  # a byte more a row, for the feature that a leaf is split by
        d, values, n_slots = packing.width + 1, packing.shape.values, packing.n_codes + 1
        listed = packing.width + math.ceil(packing.n_codes / BLOCK_ROWS)
    n_extra, targeted = dataset.n_extra, dataset.targeted
    fixed = {
        LIBRARIES: max(libraries, min(ALLOWANCE, int(ALLOWANCE_SHARE * limit))),
        **fixed_parts(
            d,
            n_slots,
            dataset.largest_block,
            n_jobs,
            params.max_leaves,
            n_extra=n_extra,
            offset=dataset.offset_name is not None,
            n_bands=dataset.n_bands,
            n_scores=n_scores,
        ),
        **({"reading": reading} if reading else {}),
        **({} if packing is None else {"long rows": packing.tail_bytes}),
    }
    row: dict[str, Any] = {"n_extra": n_extra, "targeted": targeted, "n_scores": n_scores}
    pair, wanted = pair_bytes(d, **row) + listed, params.sample_size
    least = min(n, MIN_ROWS if wanted == "auto" else wanted)
    # Validation rows are thinned out where there is little room: samples may have the other half,
    # or what they need.
    sets, watched = sets_of(valid), validation_row_bytes(d, params.eval_metric, n_scores)
    # Of sources that are no data sets it is not known yet.
    n_valid = sum(each.n_rows if isinstance(each, Dataset) else limit for each in sets)
    least_valid = watched * BLOCK_ROWS * len(sets)
    free = limit - sum(fixed.values())
    valid_bytes = min(watched * n_valid, limit // VALIDATION_SHARE, free // 2, free - pair * least)
    valid_bytes = max(valid_bytes, least_valid)
    room = free - valid_bytes
    small = n * values <= WHOLE_VALUES if wanted == "auto" else wanted >= n
    whole = n * ((whole_row_bytes if packing is None else sample_row_bytes)(d, **row) + listed)
    if small and whole <= room:
        return _made(limit, fixed, valid_bytes, whole, Sizes(n, n, whole=True))
    auto = FIRST_TARGETS if targeted else FIRST_ROWS
    first, most = (auto, n) if wanted == "auto" else (wanted, wanted)
    needed = {"validation": least_valid, f"two samples of {least:,} rows": pair * least}
    Budget(limit, {**fixed, LIBRARIES: libraries, **needed}).check()
    two = room // pair
    bound = max(least, round_down(two))
    sizes = Sizes(first if first <= two else bound, most if most <= two else bound)
    return _made(limit, fixed, valid_bytes, pair * sizes.most, sizes)


def check_training(
    expected: Expected, params: Params, limit: int, n_jobs: int, valid: Any = None
) -> None:
    """Refuse a limit that cannot suffice before any row is read, with one that will in any case.

    The largest block is of the label that has more rows, at least half of them.
    """
    half = expected._replace(largest_block=math.ceil(expected.largest_block / 2))
    try:
        plan_training(half, params, limit, n_jobs, valid)
    except MemoryLimitError:
        plan_training(expected, params, limit, n_jobs, valid)
        raise


def round_down(rows: int) -> int:
    """Round down to one of a few sizes, each about 19 % above the one before.

    Examples
    --------
    >>> round_down(436_183), round_down(440_529), round_down(2**18)
    (370727, 370727, 262144)
    """
    if rows < 1:
        return 0
    step = math.floor(math.log(rows, STEP) + 1e-9)  # so that a size is its own
    return int(STEP**step + 1e-6)


def _made(
    limit: int, fixed: dict[str, int], valid_bytes: int, samples: int, sizes: Sizes
) -> TrainPlan:
    what = "all rows" if sizes.whole else "two samples"
    parts = {**fixed, "validation": valid_bytes, what: samples}
    return TrainPlan(Budget(limit, parts), sizes, valid_bytes)
