"""The sampler draws a new sample by weight: from the store at first, from the strata later.

One draw is for one version of the model. A row of weight w is expected in it w / scale times:

    1  from each stratum, read a random share of the chunks: upper weight / scale, at most all
    2  bring the rows read up to date with the trees that they do not hold yet, and weigh them
    3  keep a row with probability min(1, w / (share * scale)); it then stands for
       1 / (share * probability) rows. This holds although weights have drifted.
    4  append every row read to the stratum of its label and new weight

Such a draw is as good as one of independent rows: chance decides for a chunk of rows at once, but
evenly by label, and nearly so for rows that have waited equally long (strata.py). So the variance
of a total over the draw is not above that of its rows, which n_eff and the proofs of splits assume.

Rows never read lie in the store, whose blocks of each label are one more stratum: at the base
score, without offsets, all rows of a label weigh the same, and the last sample estimates what they
weigh later. A row's offset is part of its score from the start, and takes no room of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sparrowboost.kernels.draws import shuffle_rows
from sparrowboost.model.model import Model
from sparrowboost.runtime.budget import CHUNK_ROW_BYTES, SPARE_ROWS, piece_rows
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.temporary import scratch_folder
from sparrowboost.runtime.threads import ordered_map
from sparrowboost.sampling.draw import (
    BlockPiece,
    DrawBuffer,
    DrawPart,
    RowPicker,
    SharedBlock,
    WeighedRows,
    are_counts,
    catch_up,
)
from sparrowboost.sampling.number_sample import DrawScale
from sparrowboost.sampling.sample import Sample
from sparrowboost.sampling.strata import N_WEIGHTS, Rows, Strata
from sparrowboost.sampling.weighing import row_weighing
from sparrowboost.sampling.weight_estimate import WeightEstimate
from sparrowboost.store.dataset import Block, Dataset
from sparrowboost.store.staged import StagedRows

A = TypeVar("A")

MAX_SHARE = 0.01  # of a draw's weight that one row may hold
MIN_SHARE_ROWS = 10  # or, in small draws, the weight of 10 rows
ESTIMATE_BLOCKS = 4  # of each label of a weighted store, from which its weights are estimated
MEMORY_OF_SPREAD = 0.5  # weight of the last draw in the estimate of a stratum's spread
# Minimum chunks read of a stratum: one for each 16 rows that it gives to the draw, up to 16. Fewer
# could have drifted unlike the others, and no row of the draw would show it.
ROWS_PER_CHUNK = 16
MANY_CHUNKS = 16


@dataclass
class Counts:
    """What drawing took, over all draws."""

    rows_read: int = 0
    bytes_read: int = 0
    rows_kept: int = 0
    n_samples: int = 0


class Sampler:
    """Draws samples of a data set by weight.

    Parameters
    ----------
    dataset : Dataset
    model : Model
        Before the first new tree: the scores of rows that were never read.
    folder : Path, optional
        Where the strata's scratch file goes; by default the store's folder, or that for temporary
        files if it cannot be written.
    keep : a name for that file, if training may be resumed from it
    seed : int
    n_jobs : int
        Threads of a draw, also of one in the background.
    staged : StagedRows, optional
        Where more rows of the data set come from.
    """

    def __init__(
        self,
        dataset: Dataset,
        model: Model,
        *,
        folder: Path | None = None,
        seed: int,
        n_jobs: int,
        keep: str | None = None,
        staged: StagedRows | None = None,
    ) -> None:
        self._keep, self._staged = keep, staged
        self._dataset, self._model, self._folder = dataset, model, folder
        self._n_scores = model.n_scores
        self._weighing = row_weighing(model)
        self._seed, self._n_jobs = seed, n_jobs
        self._strata: Strata | None = None
        self._unread = [dataset.blocks_of(band) for band in range(dataset.n_bands)]
        self._stages = dataset.segment_ends  # where the blocks of each stage or segment end
        self._n_strata = dataset.n_bands * N_WEIGHTS
        self._spread = np.zeros(
            self._n_strata
        )  # root mean square of each stratum's weights, when read
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="sparrow-sample")
        self._next: Future[tuple[Sample, int]] | None = None
        self._draws = 0
        self.counts = Counts()

    def close(self) -> None:
        if self._staged is not None:
            self._staged.close()  # a draw may be waiting for rows that are no longer needed
        if self._next is not None:
            self._next.cancel()
        self._pool.shutdown()
        if self._strata is not None:
            self._strata.close()

    # -- the next sample, in the background ------------------------------------------------------

    def request(
        self, model: Model, estimate: WeightEstimate, most_rows: int, *, more: bool = False
    ) -> None:
        """Begin to draw the next sample in the background, for the model as it is now.

        `more`: take in the next stage of rows, where the data set is still being read.
        """
        if self._next is None:
            self._next = self._pool.submit(self.draw, model, estimate, most_rows, more)

    @property
    def requested(self) -> bool:
        return self._next is not None

    def take(self) -> Sample:
        """The sample that was requested; waits until it is drawn."""
        assert self._next is not None
        (sample, n_read), self._next = self._next.result(), None
        return self._count(sample, n_read)

    def _count(self, sample: Sample, n_read: int) -> Sample:
        self.counts.rows_read += n_read
        self.counts.bytes_read += n_read * (self._dataset.bin_bytes + CHUNK_ROW_BYTES)
        self.counts.rows_kept += sample.n
        self.counts.n_samples += 1
        return sample

    # -- checkpoint ------------------------------------------------------------------------------

    def state(self, sample: Sample) -> dict[str, npt.NDArray[Any]]:
        """All that the next draws depend on, and the sample that was drawn last."""
        assert self._next is None, "a draw is under way"
        strata = {} if self._strata is None else self._strata.state()
        return {
            "sampler_draws": np.array(self._draws),
            "sampler_counts": np.array(astuple(self.counts)),
            "sampler_spread": self._spread.copy(),
            **{f"sampler_unread_{band}": of for band, of in enumerate(self._unread)},
            "sampler_stages": self._stages,
            **strata,
            **({} if sample.whole else sample.state()),
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> Sample:
        """Go on from a state; the sample that was drawn last."""
        self._draws = int(state["sampler_draws"])
        self._spread[:] = state["sampler_spread"]
        bands = range(self._dataset.n_bands)
        self._unread = [state[f"sampler_unread_{band}"] for band in bands]
        self._stages = state.get("sampler_stages", self._stages)
        if "strata_chunks" in state:
            self._strata = self._make_strata()
            self._strata.restore(state)
        drawn = "sample_bins" in state
        sample = self._weighing.restored(state) if drawn else self.all_rows()
        sample.packing = self._dataset.packing
        self.counts = Counts(*state["sampler_counts"].tolist())
        return sample

    # -- one draw --------------------------------------------------------------------------------

    @property
    def targeted(self) -> bool:
        """Whether rows have numbers to predict, or more than two classes."""
        return self._dataset.targeted

    def all_rows(self) -> Sample:
        """All rows of the data as one sample, nothing left out."""
        data = self._dataset
        buffer = self._buffer(data.n_rows)
        pieces = [piece for block in range(data.n_blocks) for piece in self._pieces(block)]
        for rows in self._map(self._rows_of_piece, pieces):
            n = len(rows.label)
            buffer.add(rows, np.arange(n), np.ones(n, np.float32))
        # Always in the same random order: a model of all rows does not depend on the seed.
        scale = self.weigh_base().draw_scale if data.targeted else None
        return self._count(self._finish(buffer, 0, scale, whole=True, seed=0), data.n_rows)

    def first(self, estimate: WeightEstimate, most_rows: int) -> Sample:
        """The first sample: from the store's random blocks, under the base score."""
        return self.again(self._model, estimate, most_rows, more=False)

    def again(
        self, model: Model, estimate: WeightEstimate, most_rows: int, *, more: bool = False
    ) -> Sample:
        """A new sample for the model as it is now; the caller waits."""
        return self._count(*self.draw(model, estimate, most_rows, more))

    @property
    def n_rows(self) -> int:
        """Rows of the data set that draws are from."""
        return self._dataset.n_rows

    @property
    def band_rows(self) -> npt.NDArray[np.int64]:
        """Rows of that data set in each band: negatives and positives, or ranges of the target."""
        return self._dataset.band_rows

    @property
    def complete(self) -> bool:
        """Whether all rows have been read into it."""
        return self._staged is None or self.n_rows == self._staged.n_rows

    def _take_in(self, staged: StagedRows) -> float:
        """Take in the next stage of the data set; returns the factor by which its rows grew."""
        before, now = self._dataset, staged.more(self._dataset)
        new = np.arange(before.n_blocks, now.n_blocks)
        for label, unread in enumerate(self._unread):
            self._unread[label] = np.append(unread, new[now.block_label[new] == label])
        self._stages = np.append(self._stages, now.n_blocks)
        self._dataset = now
        return now.n_rows / before.n_rows

    def draw(
        self, model: Model, estimate: WeightEstimate, most_rows: int, more: bool = False
    ) -> tuple[Sample, int]:
        """Draw a sample that has a row of weight w about w / scale times; also the rows read."""
        if more and self._staged is not None and not self.complete:
            estimate = estimate.times(self._take_in(self._staged))
        scale = estimate.scale_for(most_rows)
        rng = np.random.default_rng([self._seed, self._draws])
        self._draws += 1
        buffer = self._buffer(int(SPARE_ROWS * estimate.rows_at(scale)) + 1000)
        picker = RowPicker(buffer, scale, rng)
        parts, draw_scale = self._parts(scale, estimate, model.n_trees, rng), estimate.draw_scale
        rows_read = self._draw_from(parts, model, picker, draw_scale)
        seed = int(rng.integers(2**63))
        sample = self._finish(buffer, model.n_trees, draw_scale, whole=False, seed=seed)
        if not sample.n:
            raise DataError(
                "nearly all of the loss is in so few rows that a sample has none of them, nor any "
                "other; look for labels or weights that are far from all others, and correct them."
            )
        return sample, rows_read

    def _buffer(self, capacity: int) -> DrawBuffer:
        """An empty buffer for rows like those of the data set."""
        data = self._dataset
        return DrawBuffer(
            capacity,
            data.bin_bytes,
            weighted=data.weighted,
            targeted=data.targeted,
            n_scores=self._n_scores,
        )

    def _draw_from(
        self, parts: list[DrawPart], model: Model, picker: RowPicker, draw_scale: DrawScale | None
    ) -> int:
        """Read, update, pick and put back all rows of some parts; returns their number."""
        forest, n_trees = model.forest.arrays, model.n_trees
        packing = self._dataset.packing

        def work(part: DrawPart) -> WeighedRows:
            rows, order = self._read(part)
            catch_up(rows, forest, n_trees, packing)
            w, squares = self._weighing.weigh(rows, draw_scale)
            return WeighedRows(rows, w, order, squares)

        n_read, found = 0, np.zeros((self._n_strata, 2))
        for part, weighed in zip(parts, self._map(work, parts), strict=True):
            rows, w = weighed.rows, weighed.w
            picker.pick(rows, w, part.share)
            if n_trees > 0 or part.picked is not None:
                self._put_back(weighed)
            if part.picked is not None and self._strata is not None:
                self._strata.forget(part.picked)
                found[part.stratum] += len(w), weighed.squares
            n_read += len(w)
        self._learn(*found.T)
        return n_read

    def _parts(
        self, scale: float, estimate: WeightEstimate, n_trees: int, rng: np.random.Generator
    ) -> list[DrawPart]:
        """What to read of each stratum and of the store.

        All chunks are picked before the first row is put back, so that no row is met twice.
        """
        parts = []
        strata = self._strata
        for k in range(self._n_strata) if strata is not None else ():
            assert strata is not None
            if strata.size(k):
                weight = max(strata.upper(k), self._spread[k])
                n = math.ceil(strata.n_chunks(k) * min(weight / scale, 1.0))
                kept = strata.size(k) * min(weight / scale, 1.0)
                n = max(n, min(math.ceil(kept / ROWS_PER_CHUNK), MANY_CHUNKS))
                parts += [DrawPart(p.share, k, p) for p in strata.pick(k, n, rng)]
        for band in range(len(self._unread)):
            want = estimate.spread(band) / scale
            parts += self._parts_of_store(band, want, rng, keep=n_trees == 0)
        return parts

    def _parts_of_store(
        self, label: int, want: float, rng: np.random.Generator, *, keep: bool
    ) -> list[DrawPart]:
        """The blocks of a label to read now: the share `want` of those that were never read.

        Blocks of one stage are alike, since its rows were shuffled; those of another stage come
        from other partitions of the source, or were appended later. So at least one block of each
        is read.
        """
        parts, left = [], []
        rows = self._dataset.block_rows
        unread = self._unread[label]
        for stage in np.split(unread, np.searchsorted(unread, self._stages)):
            if not len(stage):
                continue
            n = max(1, min(len(stage), math.ceil(len(stage) * want)))
            order = rng.permutation(stage)
            items = np.sort(order[:n])  # in disk order; the choice was random
            share = rows[items].sum() / rows[stage].sum()
            for block in items.tolist():
                parts += [DrawPart(share, piece=piece) for piece in self._pieces(block)]
            left.append(order[n:])
        if left and not keep:
            self._unread[label] = np.sort(np.concatenate(left))
        return parts

    def weigh_base(self) -> WeightEstimate:
        """The weights that rows have before the first new tree."""
        return self._weighing.at_base(self._dataset, self._some_rows)

    def _some_rows(self) -> Iterator[tuple[Rows, float]]:
        """Some blocks of each band, and the rows of the band for each of these rows."""
        data = self._dataset
        for band, n_rows in enumerate(data.band_rows.tolist()):
            blocks = data.some_blocks_of(band, ESTIMATE_BLOCKS)
            each = n_rows / max(int(data.block_rows[blocks].sum()), 1)
            for piece in (piece for block in blocks.tolist() for piece in self._pieces(block)):
                rows = self._rows_of_piece(piece)
                model = self._model
                catch_up(rows, model.forest.arrays, model.n_trees, data.packing)
                yield rows, each

    def _pieces(self, block: int) -> list[BlockPiece]:
        """A block in pieces whose scores take bounded memory: one, unless classes are many."""
        n_rows = int(self._dataset.block_rows[block])
        n_pieces = -(-n_rows // piece_rows(self._n_scores))
        read = partial(self._dataset.read_block, shuffled=False)
        return SharedBlock(block, n_rows, read, max(n_pieces, 1)).pieces()

    def _rows_of_piece(self, piece: BlockPiece) -> Rows:
        return self._with_scores(piece.take()[0])

    def _with_scores(self, block: Block) -> Rows:
        n = len(block.label)
        weight = block.weight if block.weight is not None else np.empty(0, np.float32)
        target = block.target if block.target is not None else np.empty(0, np.float32)
        score, seen = self._model.start_scores(n, block.offset), np.zeros(n, np.int32)
        return Rows(block.bins, block.label, weight, score, seen, target)

    def _map(self, work: Callable[[Any], A], items: list[Any]) -> Iterator[A]:
        """Apply `work` to each item, over threads; results in order."""
        with closing(ordered_map(work, items, self._n_jobs, self._n_jobs + 1)) as results:
            yield from results

    def _put_back(self, weighed: WeighedRows) -> None:
        if self._strata is None:
            self._strata = self._make_strata()
        self._strata.append(weighed.rows, weighed.w, weighed.order)

    def _make_strata(self) -> Strata:
        data, folder = self._dataset, self._folder
        if folder is None:
            folder = scratch_folder(data.path)
        return Strata(
            folder,
            data.bin_bytes,
            weighted=data.weighted,
            targeted=data.targeted,
            n_bands=data.n_bands,
            n_scores=self._n_scores,
            keep=self._keep,
        )

    def _read(self, part: DrawPart) -> tuple[Rows, npt.NDArray[np.uint32] | None]:
        """The rows of a part, and in which order to put them back if not in theirs."""
        if part.piece is not None:
            # A block's rows lie in the order of the source. Chunks are chosen at random, so that
            # neighbours in the source must not end up in the same chunk.
            block, order = part.piece.take(self._seed)
            return self._with_scores(block), order
        assert self._strata is not None and part.picked is not None
        return self._strata.read(part.picked), None

    def _learn(self, rows: npt.NDArray[np.float64], squares: npt.NDArray[np.float64]) -> None:
        """Remember the weights found in each stratum: drifted rows require more reading."""
        read = rows > 0
        spread = np.sqrt(squares[read] / rows[read])
        old = np.where(self._spread[read] > 0, self._spread[read], spread)
        self._spread[read] = MEMORY_OF_SPREAD * spread + (1 - MEMORY_OF_SPREAD) * old

    def _finish(
        self,
        buffer: DrawBuffer,
        n_trees: int,
        scale: DrawScale | None,
        *,
        whole: bool,
        seed: int,
    ) -> Sample:
        bins, label, copies, weight, score, target = buffer.parts()
        shuffle_rows(np.uint64(seed), bins, label, copies, weight, score.T, target)
        u = copies * weight if len(weight) else copies
        counted = whole and len(weight) > 0 and are_counts(weight)
        sample = self._weighing.sample(
            (bins, label, u, score, n_trees),
            target,
            scale,
            whole=whole,
            copies=copies,
            counted=counted,
            of_rows=self.n_rows,
        )
        sample.packing = self._dataset.packing
        if not whole:
            sample.bound_shares(max(MAX_SHARE, MIN_SHARE_ROWS / max(sample.n, 1)))
        return sample
