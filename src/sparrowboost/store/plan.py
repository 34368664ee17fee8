"""How an ingest divides its memory limit, and how many rows it samples to find bins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sparrowboost.readers.base import reading_bytes
from sparrowboost.readers.table import AHEAD, Table
from sparrowboost.runtime.budget import LIBRARIES, MARGIN, Budget, blocks_in_flight, default_parts
from sparrowboost.runtime.memory import CODE_BYTES, held
from sparrowboost.runtime.progress import log
from sparrowboost.store.binning import WORK_DTYPES
from sparrowboost.store.column_pass import ColumnPlan, least_reading, plan_columns
from sparrowboost.store.fold_statistics import MAX_MEANS, MIN_KEPT, kept_bytes, kept_categories
from sparrowboost.store.shuffle import MIN_MEMORY, largest_block
from sparrowboost.store.sparse import (
    MIN_ENTRIES,
    PACKED_FEATURE_BYTES,
    VALUE_BYTES,
    SparsePlan,
    SparseTable,
)
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
# Of the thresholds of a feature, as numbers of Python, and as text: when the manifest is written.
FEATURE_BYTES = 15_000
SHUFFLE_SHARE = 32  # of the limit
MIN_BUFFERS = 32_000_000  # bytes: the smallest buffers with which ingest still makes sense
STATISTICS = "statistics of categories"
FEW_STATISTICS = 4_000_000  # bytes of statistics that fit beside the buffers


@dataclass(frozen=True)
class IngestPlan:
    """How the memory limit is divided."""

    block_bytes: int  # of a row block
    sample_bytes: int  # of the sampled columns that are held at once
    shuffle_bytes: int
    n_bytes: int  # of all that reading and binning takes
    n_jobs: int
    columns: ColumnPlan | None  # None: columns are read together
    least: Budget  # without statistics

    def block_rows(self, row_bytes: float, maximum: int) -> int:
        """Rows of a block, if each takes `row_bytes`."""
        return max(1, min(maximum, int(self.block_bytes / row_bytes)))

    @property
    def n_samplers(self) -> int:
        """Threads, each of which finds the bins of a group of features."""
        return 1 if self.columns is None else self.columns.n_readers

    def max_categories(self, n_features: int) -> int:
        """Categories that are counted at once for each of n features."""
        share = self.sample_bytes // self.n_samplers
        return max(MIN_CATEGORIES, share // (CATEGORY_BYTES * n_features))

    def feature_groups(
        self, table: Table, n_rows: int, *, weighted: bool = False
    ) -> Iterator[list[str]]:
        """Features in groups whose sample fits in memory; at least one in each."""
        sample, share = min(sample_rows(len(table.features)), n_rows), 1.0 / self.sample_bytes
        share *= self.n_samplers
        # Those of a weighted sample are read together, others a few at a time.
        reading = table.source.reading([*table.features]) if weighted and self.columns else None
        group: list[str] = []
        used = 0.0
        for j, (name, kind) in enumerate(table.features.items()):
            needed = MIN_CATEGORIES * CATEGORY_BYTES
            if kind != "category":
                needed = sample * (WORK_DTYPES[kind]().itemsize + 4 * weighted)
            part = needed * share
            if reading is not None and self.columns is not None:
                part = max(part, reading_bytes([reading[j]]) / self.columns.reader_bytes)
            if group and used + part > 1:
                yield group
                group, used = [], 0.0
            group.append(name)
            used += part
        yield group

    @classmethod
    def make(
        cls,
        limit: int,
        table: Table,
        n_jobs: int,
        *,
        trained: bool = False,
        statistics: bool = False,
    ) -> IngestPlan:
        """Divide the limit; a MemoryLimitError names one that is large enough.

        `trained`: the rows are trained on while they are read, which the limit must allow for, too.
        `statistics`: columns of many categories have statistics. Which ones do is not known yet, so
        the limit need not allow for them, but one that is named does for all columns.
        """
        source, names = table.source, table.read_columns
        reading = least_reading(source, names)
        libraries, features = held(), FEATURE_BYTES * len(table.features)
        in_memory = table.source.in_memory
        # What the caller holds is not counted: the limit then is for what ingest adds to it.
        parts = {} if in_memory else {LIBRARIES: libraries, "reading": reading}
        # By the limit alone, so that the same limit gives the same order of rows.
        shuffle_bytes = max(MIN_MEMORY, limit // SHUFFLE_SHARE)
        least = Budget(limit, {**parts, "features": features, "buffers": MIN_BUFFERS})
        if least.total > limit:
            n = list(table.features.values()).count("category") if statistics else 0
            budget = Budget(limit, {**least.parts, STATISTICS: least_statistics(table, n)})
            if trained:
                fixed = {"libraries": CODE_BYTES} if in_memory else {LIBRARIES: libraries}
                fixed |= training_parts(table, shuffle_bytes, n_jobs, n)
                fixed[STATISTICS] = most_statistics(table, n, sum(fixed.values()))
                budget = max(budget, Budget(limit, fixed), key=lambda some: some.total)
            budget.check()
        free = limit // 2 if in_memory else limit - libraries - features
        columns = plan_columns(
            source, names, max(reading, min(free // 2, free - MIN_BUFFERS)), n_jobs
        )
        reading = source.reading_bytes(names) if columns is None else columns.n_bytes
        source.limit_reading(reading if columns is None else columns.reader_bytes)
        quarter = (free - reading) // 4
        # Blocks wait before and after binning, and each thread works on one; allocators keep half
        # as much again.
        blocks = 3 * blocks_in_flight(AHEAD, n_jobs) // 2
        block_bytes = min(
            max(MAX_BLOCK_BYTES, COLUMN_BYTES * len(table.read_columns)), quarter // blocks
        )
        plan = cls(
            block_bytes=block_bytes,
            # The sample is freed before the other buffers are made; on top of it, each thread
            # joins and sorts one column. Of columns that are read apart, samples come in small
            # pieces while others are read, and allocators keep what lies between.
            sample_bytes=(2 if columns is None else 1) * quarter,
            shuffle_bytes=shuffle_bytes,
            n_bytes=reading + blocks * block_bytes + shuffle_bytes,
            n_jobs=n_jobs,
            columns=columns,
            least=least,
        )
        log.debug("limit=%d libraries=%d plan=%s", limit, libraries, plan)
        return plan

    def beside_statistics(self, table: Table, n_columns: int) -> IngestPlan:
        """The plan for a table of which so many columns have statistics.

        A MemoryLimitError names a limit that is large enough for them.
        """
        n_bytes = least_statistics(table, n_columns)
        if n_bytes <= FEW_STATISTICS:
            return self
        Budget(self.least.limit, {**self.least.parts, STATISTICS: n_bytes}).check()
        free = self.sample_bytes * (2 if self.columns is None else 4)
        share = max(1 - n_bytes / free, 0.25)
        return replace(
            self,
            block_bytes=int(share * self.block_bytes),
            sample_bytes=int(share * self.sample_bytes),
        )


def plan_sparse(limit: int, table: Table, sparse: SparseTable, n_jobs: int) -> IngestPlan:
    """Divide the limit for a table whose rows are stored packed; a MemoryLimitError as above."""
    rules, libraries = SparsePlan.make(limit), held()
    reading, in_memory = table.source.reading_bytes(table.others), table.source.in_memory
    features = PACKED_FEATURE_BYTES * int((sparse.survey.columns >= MIN_ENTRIES).sum())
    features += sparse.survey.columns.nbytes
    shuffle_bytes = max(MIN_MEMORY, limit // SHUFFLE_SHARE)
    parts = {} if in_memory else {LIBRARIES: libraries, "reading": reading}
    parts |= {
        "features": features,
        "long rows": sparse.shape(rules).tail_bytes,
        "buffers": MIN_BUFFERS,
    }
    least = Budget(limit, parts)
    least.check()
    blocks = 3 * blocks_in_flight(AHEAD, n_jobs) // 2
    free = limit - sum(parts.values()) + MIN_BUFFERS - shuffle_bytes
    block_bytes = max(1, min(MAX_BLOCK_BYTES, free // (2 * blocks)))
    return IngestPlan(
        block_bytes=block_bytes,
        sample_bytes=rules.sample_values * VALUE_BYTES,
        shuffle_bytes=shuffle_bytes,
        n_bytes=reading + blocks * block_bytes + shuffle_bytes,
        n_jobs=n_jobs,
        columns=None,
        least=least,
    )


def least_statistics(table: Table, n_columns: int) -> int:
    """The least that the statistics of some columns take while rows are read."""
    k = n_means(table)
    return n_columns * (MIN_KEPT * kept_bytes(k) + FEATURE_BYTES * (1 + k))


def most_statistics(table: Table, n_columns: int, others: int) -> int:
    """The most that they take under the limit that is named for them and other parts."""
    if not n_columns:
        return 0
    k = n_means(table)
    limit = int(MARGIN**2 * others) + n_columns * MIN_KEPT * kept_bytes(k)
    kept = kept_categories(limit, n_columns, k)
    if table.source.exact_rows:
        kept = min(kept, table.source.n_rows)
    return n_columns * (kept * kept_bytes(k) + FEATURE_BYTES * (1 + k))


def n_means(table: Table) -> int:
    """Means of the target that a column with statistics has as features."""
    n = table.labels.n_classes
    return min(n, MAX_MEANS) if n > 2 else 1


def training_parts(
    table: Table, shuffle_bytes: int, n_jobs: int, n_statistics: int = 0
) -> dict[str, int]:
    """What training on these rows will take, in addition to libraries.

    `n_statistics`: columns that may have statistics.
    """
    d = len(table.features) + n_statistics * (1 + n_means(table))
    layout, labels = layout_of(table, d), table.labels
    rows = largest_block(
        layout.row_bytes,
        table.source.n_rows,
        shuffle_bytes,
        labels.n_bands,
        labels.largest_share,
    )
    return default_parts(
        layout.n_features,
        rows,
        n_jobs,
        n_extra=layout.weighted + layout.targeted,
        offset=layout.offset,
        n_bands=labels.n_bands,
        targeted=layout.targeted,
        n_scores=labels.n_classes if labels.n_classes > 2 else 1,
    )


def layout_of(
    table: Table, n_features: int | None = None, packed_bytes: int | None = None
) -> Layout:
    """How the rows of a table are laid out in a store, by default without statistics."""
    targeted, has_offset = table.labels.targeted, table.offset is not None
    d = n_features or len(table.features)
    return Layout(d, table.weight is not None, targeted, has_offset, packed_bytes)


def sample_rows(n_features: int) -> int:
    """Rows to sample for the bins of a table of n features."""
    return min(SAMPLE_ROWS, max(MIN_SAMPLE_ROWS, SAMPLE_VALUES // n_features))
