"""How an ingest divides its memory limit, and how many rows it samples to find bins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sparrowboost.readers.formats import Kind
from sparrowboost.readers.table import AHEAD, Table
from sparrowboost.runtime.budget import LIBRARIES, Budget, blocks_in_flight, default_parts
from sparrowboost.runtime.memory import CODE_BYTES, held
from sparrowboost.runtime.progress import log
from sparrowboost.store.binning import WORK_DTYPES
from sparrowboost.store.shuffle import MIN_MEMORY, largest_block
from sparrowboost.store.stored import Layout

# Second word of each seed: what the generator is for.
OPENING, SAMPLING, STAGING = range(3)
SAMPLE_ROWS = 200_000  # a quantile at 1/255 is then known to within a tenth of a bin
# Wide tables have a smaller sample, or finding bins would take longer than the first trees.
SAMPLE_VALUES, MIN_SAMPLE_ROWS = 10_000_000, 50_000
MAX_BLOCK_BYTES = 3 << 19  # larger ones are hardly faster, and allocators then keep more of them
COLUMN_BYTES = 1 << 16  # of a wide block: each column takes 20 us, however short it is
CATEGORY_BYTES = 600  # of a category that is counted, in two counters
MIN_CATEGORIES = 2_000  # counted at once, for 254 bins
SHUFFLE_SHARE = 32  # of the limit
MIN_BUFFERS = 32_000_000  # bytes: the smallest buffers with which ingest still makes sense


@dataclass(frozen=True)
class IngestPlan:
    """How the memory limit is divided."""

    block_bytes: int  # of a row block
    sample_bytes: int  # of the sampled columns that are held at once
    shuffle_bytes: int
    n_bytes: int  # of all that reading and binning takes
    n_jobs: int

    def block_rows(self, row_bytes: float, maximum: int) -> int:
        """Rows of a block, if each takes `row_bytes`."""
        return max(1, min(maximum, int(self.block_bytes / row_bytes)))

    def max_categories(self, n_features: int) -> int:
        """Categories that are counted at once for each of n features."""
        return max(MIN_CATEGORIES, self.sample_bytes // (CATEGORY_BYTES * n_features))

    def feature_groups(
        self, features: Mapping[str, Kind], n_rows: int, *, weighted: bool = False
    ) -> Iterator[list[str]]:
        """Features in groups whose sample fits in memory; at least one in each."""
        sample = min(sample_rows(len(features)), n_rows)
        group: list[str] = []
        n_bytes = 0
        for name, kind in features.items():
            needed = MIN_CATEGORIES * CATEGORY_BYTES
            if kind != "category":
                needed = sample * (WORK_DTYPES[kind]().itemsize + 4 * weighted)
            if group and n_bytes + needed > self.sample_bytes:
                yield group
                group, n_bytes = [], 0
            group.append(name)
            n_bytes += needed
        yield group

    @classmethod
    def make(cls, limit: int, table: Table, n_jobs: int, *, trained: bool = False) -> IngestPlan:
        """Divide the limit; a MemoryLimitError names one that is large enough.

        `trained`: the rows are trained on while they are read, which the limit must allow for, too.
        """
        libraries = held()
        reading = table.source.reading_bytes(table.read_columns)
        in_memory = table.source.in_memory
        # What the caller holds is not counted: the limit then is for what ingest adds to it.
        parts = {} if in_memory else {LIBRARIES: libraries, "reading": reading}
        # By the limit alone, so that the same limit gives the same order of rows.
        shuffle_bytes = max(MIN_MEMORY, limit // SHUFFLE_SHARE)
        budget = Budget(limit, {**parts, "buffers": MIN_BUFFERS})
        if trained and budget.total > limit:
            fixed = {"libraries": CODE_BYTES} if in_memory else {LIBRARIES: libraries}
            training = Budget(limit, {**fixed, **training_parts(table, shuffle_bytes, n_jobs)})
            budget = max(budget, training, key=lambda some: some.total)
        budget.check()
        free = limit // 2 if in_memory else limit - libraries - reading
        quarter = free // 4
        # Blocks wait before and after binning, and each thread works on one; allocators keep half
        # as much again.
        blocks = 3 * blocks_in_flight(AHEAD, n_jobs) // 2
        block_bytes = min(
            max(MAX_BLOCK_BYTES, COLUMN_BYTES * len(table.read_columns)), quarter // blocks
        )
        plan = cls(
            block_bytes=block_bytes,
            # The sample is freed before the other buffers are made; on top of it, each thread
            # joins and sorts one column.
            sample_bytes=2 * quarter,
            shuffle_bytes=shuffle_bytes,
            n_bytes=reading + blocks * block_bytes + shuffle_bytes,
            n_jobs=n_jobs,
        )
        log.debug("limit=%d libraries=%d plan=%s", limit, libraries, plan)
        return plan


def training_parts(table: Table, shuffle_bytes: int, n_jobs: int) -> dict[str, int]:
    """What training on these rows will take, in addition to libraries."""
    layout = Layout(len(table.features), table.weight is not None)
    rows = largest_block(layout.row_bytes, table.source.n_rows, shuffle_bytes)
    return default_parts(layout.n_features, rows, n_jobs, weighted=layout.weighted)


def sample_rows(n_features: int) -> int:
    """Rows to sample for the bins of a table of n features."""
    return min(SAMPLE_ROWS, max(MIN_SAMPLE_ROWS, SAMPLE_VALUES // n_features))
