"""The scanner: reads a growing run of the sample's blocks into evidence, leaf by leaf.

The run starts where the last tree's run ended, and wraps around. Each leaf's evidence is of all
rows of the run that reach the leaf: when a leaf splits, its smaller side is summed and the larger
side is the difference; when the run is extended, the new rows go through the tree so far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.kernels.evidence import add_curved_rows, add_leaf_sums, add_rows, add_squares
from sparrowboost.kernels.packed import (
    GROUP,
    add_curved_packed_rows,
    add_packed_rows,
    count_codes,
    index_block,
    unpack_column,
)
from sparrowboost.kernels.partition import split_rows, start_rows
from sparrowboost.kernels.scores import add_values
from sparrowboost.learner.bundles import Bundles, find_bundles
from sparrowboost.learner.evidence import Evidence, Slots, packed_slots
from sparrowboost.learner.interactions import Features
from sparrowboost.model.forest import Forest
from sparrowboost.model.tree import Mask, Tree, TreeBuilder
from sparrowboost.runtime.budget import MAX_PARTS, PART_BYTES
from sparrowboost.runtime.threads import WorkerPool
from sparrowboost.sampling.sample import BLOCK_ROWS
from sparrowboost.store.packing import Packing

Blocks = npt.NDArray[np.int64]
Columns = npt.NDArray[np.uint64]

# Work is cut into parts by its size, not by the number of threads, and the parts are added in
# order, so that the sums, and the model, are the same for any number of threads.
PART_VALUES = 1 << 18  # per part, if there are several: about 0.2 ms
PART_CODES = 4  # values for each code of packed rows: the evidence of a part is cleared and added


class RowIndex:
    """The rows of a sample by code, block by block; a block is listed when it is first scanned.

    Most splits of sparse rows send few of them to one side. These are found without looking at the
    others.
    """

    def __init__(self, packed: tuple[Any, ...], n_blocks: int, n_codes: int) -> None:
        self._packed, self._listed = packed, np.zeros(n_blocks, np.bool_)
        counts = np.empty(n_blocks, np.int64)
        count_codes(*packed, BLOCK_ROWS, counts)
        self._ends = np.cumsum(counts)
        start = np.zeros((n_blocks, n_codes // GROUP + 2), np.int32)
        entries = np.empty(int(counts.sum()), np.uint16)
        self.arrays = start, entries, self._ends - counts

    def add(self, block: int) -> None:
        """List the rows of a block, if they are not yet."""
        if not self._listed[block]:
            start, entries, base = self.arrays
            own = entries[base[block] : self._ends[block]]
            index_block(*self._packed, block, BLOCK_ROWS, start[block], own)
            self._listed[block] = True


class Scanner:
    """Evidence for the leaves of a growing tree.

    Parameters
    ----------
    slots : Slots
    max_leaves : int
    workers : WorkerPool
    curved : bool
        Whether evidence has the loss's curvature, at two additions a value, or weights alone.
    packing : Packing, optional
        How the rows of samples are packed, if they are.
    """

    heavy_tails = False  # whether a few rows may have most of the variance

    def __init__(
        self,
        slots: Slots,
        max_leaves: int,
        workers: WorkerPool,
        *,
        curved: bool = False,
        packing: Packing | None = None,
    ) -> None:
        self.slots, self._workers, self._curved = slots, workers, curved
        self._max_leaves, self._packing = max_leaves, packing
        self.bundles: Bundles | Packing | None = None
        self._make_room(slots if packing is None else packed_slots(packing))
        self.cursor = 0
        self.rows_scanned = 0

    def _make_room(self, slots: Slots) -> None:
        """Allocate evidence for rows of these slots."""
        self._scanned = slots
        self.evidence = [self._make_evidence(slots) for _ in range(self._max_leaves)]
        room = PART_BYTES // self.evidence[0].n_bytes
        n_parts = max(1, min(MAX_PARTS, room))
        self._parts = [self._make_evidence(slots) for _ in range(n_parts)]
        self._spare = np.empty((len(self._parts), BLOCK_ROWS), np.uint16)

    def _make_evidence(self, slots: Slots) -> Any:
        return Evidence(slots, paired=self._curved)

    def load(self, sample: Any, cursor: int = 0) -> None:
        """Scan this sample from now on, from this block."""
        self.sample, self.bundles = sample, None
        if self._packing is not None:
            self.bundles = self._packing
            self._packed = self._packing.rows(sample.bins)
            self._column = np.empty(sample.n, np.uint8)  # of the feature that a leaf is split by
            self._index = RowIndex(self._packed, sample.n_blocks, self._packing.n_codes)
            self._prepare(cursor)
            return
        bundles = None
        self._split_by, self._strides = sample.bins.reshape(-1), sample.bins.strides
        if sample.whole:
            # A split reads one column, three times as fast if that is contiguous. Evidence reads
            # rows; if those are packed in bundles, the plain ones are not needed.
            columns = np.ascontiguousarray(sample.bins.T)
            self._split_by, self._strides = columns.reshape(-1), columns.T.strides
            bundles = find_bundles(columns.T, self.slots)
            self.bundles = bundles
        if bundles is None:
            self._bins = sample.bins
        else:
            sample.bins = columns.T
            self._bins = bundles.pack(sample.bins)
            self._make_room(bundles.slots)
        self._prepare(cursor)

    def _prepare(self, cursor: int) -> None:
        """Make room for the leaves of the sample's rows."""
        sample = self.sample
        self._order = np.empty(sample.n, np.uint16)
        shape = (sample.n_blocks, len(self.evidence))
        self._begin, self._count = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        self.cursor = cursor

    def state(self) -> dict[str, Any]:
        return {"scanner": np.array([self.rows_scanned, self.cursor])}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.rows_scanned, self.cursor = state["scanner"].tolist()

    def start(self, forest: Forest, n_trees: int, features: Features | None = None) -> TreeBuilder:
        """Start a new tree, with nothing scanned yet; evidence is needed of these features only."""
        self._forest, self._n_trees = forest, n_trees
        self._columns = None if features is None else self._columns_of(features)
        self.tree = TreeBuilder(len(self.evidence))
        self.restart()
        return self.tree

    def _columns_of(self, features: Features) -> Columns | None:
        """(m,) scanned columns that these features need, or None for all."""
        if self._packing is not None:  # each row has some of the columns
            return None
        wanted = np.zeros(self.slots.n_features, np.bool_)
        wanted[features] = True
        if isinstance(self.bundles, Bundles):
            wanted = self.bundles.columns_of(wanted)
        wanted[0] = True  # from the first one follows what a leaf weighs
        return None if wanted.all() else np.flatnonzero(wanted).astype(np.uint64)

    def restart(self) -> None:
        """Forget all evidence; keep the tree so far."""
        self._blocks: Blocks = np.empty(0, np.int64)
        self._rows = [0] * self.tree.n_leaves  # of the run, in each leaf
        for leaf in range(self.tree.n_leaves):
            self.evidence[leaf].clear()

    @property
    def full(self) -> bool:
        """Whether the run is the whole sample."""
        return len(self._blocks) == self.sample.n_blocks

    @property
    def n_rows(self) -> int:
        """Rows of the run."""
        return sum(self._rows)

    @property
    def n_run(self) -> int:
        """Blocks of the run."""
        return len(self._blocks)

    @property
    def sample_per_run(self) -> float:
        """Rows of the sample per row of the run."""
        return self.sample.n / self.n_rows

    def rows_in(self, leaf: int) -> int:
        """Rows of the run that reach a leaf."""
        return self._rows[leaf]

    def extend(self, n_blocks: int) -> None:
        """Read on until the run has n_blocks, or all there are."""
        n = self.sample.n_blocks
        more = min(n_blocks, n) - len(self._blocks)
        new = (self.cursor + np.arange(more)) % n
        self.cursor = int((self.cursor + more) % n)
        self._blocks = np.concatenate((self._blocks, new))
        parts = self._cut(new, len(new) * BLOCK_ROWS)
        self._workers.run([partial(self._arrive, part, k) for k, part in enumerate(parts)])
        arrived = self._count[new, : self.tree.n_leaves].sum(0).tolist()
        for leaf, n_rows in enumerate(arrived):
            self._rows[leaf] += n_rows
            self._add(leaf, n_rows, self.evidence[leaf], new)
        self.rows_scanned += sum(arrived)

    def _arrive(self, blocks: Blocks, spare: int) -> None:
        """Bring blocks up to date and send their rows through the tree so far."""
        for block in blocks:
            self.sample.refresh(int(block), self._forest, self._n_trees)
            if self._packing is not None:
                self._index.add(int(block))
        begin, count = self._begin, self._count
        start_rows(self.sample.n, self._order, begin, count, blocks, BLOCK_ROWS)
        for node in range(self.tree.n_leaves - 1):
            self._split(blocks, spare, int(self.tree.split_leaf[node]), node + 1)

    def _split(self, blocks: Blocks, spare: int, leaf: int, right: int) -> None:
        node = right - 1
        split_rows(
            *self._bins_of(blocks, int(self.tree.feature[node])),
            self._order,
            self._begin,
            self._count,
            blocks,
            BLOCK_ROWS,
            leaf,
            right,
            self.tree.mask[node],
            self._spare[spare],
        )

    def _bins_of(self, blocks: Blocks, feature: int) -> tuple[Any, int, int]:
        """The bins of a feature in some blocks: array, index of the first row's, step."""
        if self._packing is None:
            row, column = self._strides
            return self._split_by, feature * column, row
        packing = self._packing
        of = tuple(int(each[feature]) for each in (packing.first, packing.last, packing.zero))
        unpack_column(*self._index.arrays, *of, blocks, BLOCK_ROWS, self._column)
        return self._column, 0, 1

    def split(
        self, leaf: int, feature: int, mask: Mask, gain: float, *, final: bool = False
    ) -> int:
        """Split a leaf in the tree and in the evidence; returns the new, right leaf.

        A `final` split makes no evidence: nothing will ask for that of its sides.
        """
        right = self.tree.split(leaf, feature, mask, gain)
        parts = self._cut(self._blocks, self._rows[leaf])
        jobs = [partial(self._split, part, k, leaf, right) for k, part in enumerate(parts)]
        self._workers.run(jobs)
        gone = int(self._count[self._blocks, right].sum())
        self._rows[leaf] -= gone
        self._rows.append(gone)
        if final:
            return right
        small = right if gone <= self._rows[leaf] else leaf
        if small == leaf:  # evidence of both is in `leaf`; the difference is the right side's
            pair = self.evidence[leaf], self.evidence[right]
            self.evidence[right], self.evidence[leaf] = pair
        self.evidence[small].clear()
        self._add(small, self._rows[small], self.evidence[small], self._blocks)
        self.evidence[right if small == leaf else leaf] -= self.evidence[small]
        return right

    def _add(self, leaf: int, n_rows: int, evidence: Evidence, blocks: Blocks) -> None:
        """Add the n_rows rows of a leaf in some blocks to evidence."""
        parts = self._cut(blocks, n_rows)
        if len(parts) == 1:
            self._add_part(blocks, leaf, evidence)
            return
        private = self._parts[: len(parts)]
        for part in private:
            part.clear()
        jobs = zip(parts, private, strict=True)
        self._workers.run([partial(self._add_part, blocks, leaf, own) for blocks, own in jobs])
        for own in private:
            evidence += own

    def _add_part(self, blocks: Blocks, leaf: int, evidence: Evidence) -> None:
        sample = self.sample
        rows = self._order, self._begin, self._count, blocks, BLOCK_ROWS, leaf
        at = self._scanned.offset, self._columns
        if self._packing is not None:
            self._add_packed(rows, evidence)
        elif self._curved:
            of = sample.label, sample.w, sample.u, sample.counted
            add_curved_rows(self._bins, *of, *rows, *at, evidence.pairs, evidence.v)
        else:
            hist, v = evidence.hist, evidence.v
            add_rows(self._bins, sample.label, sample.w, *rows, *at, hist, v)

    def _add_packed(self, rows: tuple[Any, ...], evidence: Evidence) -> None:
        sample = self.sample
        if self._curved:
            of = sample.label, sample.w, sample.u, sample.counted
            add_curved_packed_rows(*self._packed, *of, *rows, evidence.pairs, evidence.v)
        else:
            hist, v = evidence.hist, evidence.v
            add_packed_rows(*self._packed, sample.label, sample.w, *rows, hist, v)

    def _cut(self, blocks: Blocks, n_rows: int) -> list[Blocks]:
        """Blocks in parts of about equal work, at least PART_VALUES each."""
        columns = self._scanned.n_features if self._columns is None else len(self._columns)
        values, least = n_rows * columns, PART_VALUES
        if self._packing is not None:
            values = int(n_rows * self._packing.shape.values)
            least = max(least, PART_CODES * self._packing.n_codes)
        n = max(1, min(len(self._parts), len(blocks), values // least))
        return [blocks] if n == 1 else np.array_split(blocks, n)

    def left_squares(self, leaf: int, feature: int, mask: Mask) -> float:
        """V of the rows of a leaf, in the run, that a split would send left: the sum of w**2."""
        return float(self._sum_left(add_squares, (self.sample.w,), leaf, feature, mask, 1)[0])

    def _sum_left(
        self,
        add: Callable[..., None],
        of: tuple[Any, ...],
        leaf: int,
        feature: int,
        mask: Mask,
        k: int,
    ) -> npt.NDArray[np.float64]:
        """(k,) sums over the rows of a leaf that a split would send left, by a kernel."""
        parts = self._cut(self._blocks, self._rows[leaf])
        sums = np.zeros((len(parts), k))
        given = *of, self._order, self._begin, self._count

        def work(part: Blocks, own: npt.NDArray[np.float64]) -> None:
            bins = self._bins_of(part, feature)
            add(*bins, *given, part, BLOCK_ROWS, leaf, mask, own)

        self._workers.run([partial(work, part, own) for part, own in zip(parts, sums, strict=True)])
        return sums.sum(0)

    def leaf_sums(self) -> npt.NDArray[np.float64]:
        """(leaves, 3) W-, W+ and sum of w**2 / u over each leaf's rows in the run."""
        sample = self.sample
        return self._sum_leaves(partial(add_leaf_sums, sample.label, sample.w, sample.u), 3)

    def _sum_leaves(self, add: Callable[..., None], k: int) -> npt.NDArray[np.float64]:
        """(leaves, k) sums over each leaf's rows in the run, which a kernel adds part by part."""
        n_leaves = self.tree.n_leaves
        parts = self._cut(self._blocks, self.n_rows)
        sums = np.zeros((len(parts), n_leaves, k))
        rows = self._order, self._begin, self._count
        jobs = [
            partial(add, *rows, part, BLOCK_ROWS, n_leaves, own)
            for part, own in zip(parts, sums, strict=True)
        ]
        self._workers.run(jobs)
        return sums.sum(0)

    def finish(self, tree: Tree) -> None:
        """Add a finished tree to the scores of the run's rows, whose leaves are known."""
        value = tree.value

        def work(part: Blocks) -> None:
            add_values(
                value,
                self._order,
                self._begin,
                self._count,
                part,
                BLOCK_ROWS,
                len(value),
                self.sample.score_of_tree,
            )
            for block in part:
                self.sample.mark(int(block), self._n_trees + 1)

        parts = self._cut(self._blocks, self.n_rows)
        self._workers.run([partial(work, part) for part in parts])
