"""The sampler: draws a new sample by weight, from the store at first, from the strata later.

One draw, for one version of the model. A row of weight w shall stand in it w / scale times:

    1  of each stratum, read a random share of the chunks: its upper weight / scale, at most all
    2  bring the rows read up to date with the trees that they have not seen; weigh them
    3  keep a row with chance min(1, w / (share * scale)), and note how many rows it stands for,
       1 / (share * chance): that holds for weights that have drifted, too
    4  append every row read to the stratum of its label and new weight

Such a draw is as good as one of rows by themselves: what chance decides for many rows at once,
which chunks are read, is the same for each label, and nearly so for rows that waited as long
(strata.py). So a total over the draw varies no more than its rows make it vary, which is what
n_eff and the proofs of splits take for granted.

Rows never read lie in the store, whose blocks of each label are one more stratum: under the base
rule all rows of a label weigh the same, and of what they weigh later the last sample gives an idea.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sparrowboost.kernels.draws import keep_rows, pick_rows, shuffle_rows, weigh_draw
from sparrowboost.kernels.scores import apply_trees
from sparrowboost.model.losses import Loss
from sparrowboost.model.model import Model
from sparrowboost.runtime.budget import SPARE_ROWS
from sparrowboost.runtime.threads import ordered_map
from sparrowboost.sampling.sample import Sample, keep_every_second
from sparrowboost.sampling.strata import N_STRATA, STATE_BYTES, Picked, Rows, Strata
from sparrowboost.store.dataset import Dataset
from sparrowboost.store.shuffle import permuted
from sparrowboost.store.staged import StagedRows

A = TypeVar("A")

ROWS_PER_EFF = 2.0  # rows of a draw for each of its n_eff: more only cost scanning
MAX_SHARE = 0.01  # of a draw's weight that one row may hold
MIN_SHARE_ROWS = 10  # or the weight of so many rows, in small draws
ESTIMATE_BLOCKS = 4  # of each label of a weighted store, looked at for how its weights are spread
ESTIMATE_ROWS = 1 << 16  # added up at a time
MAX_COUNT = 256  # of rows that one stands for; up to there, sums are exact (kernels/scores.py)
MEMORY_OF_SPREAD = 0.5  # how much the last draw counts in what a stratum's weights are like now
# Chunks of a stratum that are read at least, by the rows that it gives to the draw: fewer could
# have drifted unlike the others, and no row of the draw would show it.
ROWS_PER_CHUNK = 16
MANY_CHUNKS = 16


@dataclass
class Counts:
    """What drawing took, over all draws."""

    rows_read: int = 0
    bytes_read: int = 0
    rows_kept: int = 0
    n_samples: int = 0


@dataclass(frozen=True)
class WeightEstimate:
    """What is known of all rows' weights before a draw: some weights, each of so many rows."""

    weight: npt.NDArray[np.float32]
    rows: npt.NDArray[np.float32]
    label: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, sample: Sample) -> WeightEstimate:
        return cls(sample.w / sample.copies, sample.copies, sample.label)

    def times(self, factor: float) -> WeightEstimate:
        """As if there were so many times the rows."""
        return self if factor == 1 else WeightEstimate(self.weight, self.rows * factor, self.label)

    def spread(self, label: int) -> float:
        """Root mean square of the weights of a label's rows."""
        squares = rows = 0.0
        for part in self._parts():
            of_label = part.rows * (part.label == label)
            squares += float((of_label * np.square(part.weight)).sum(dtype=np.float64))
            rows += float(of_label.sum(dtype=np.float64))
        return (squares / max(rows, 1.0)) ** 0.5

    def _parts(self) -> Iterator[WeightEstimate]:
        """Some rows at a time: what is computed of all takes more room than they do."""
        for start in range(0, len(self.weight), ESTIMATE_ROWS):
            part = slice(start, start + ESTIMATE_ROWS)
            yield WeightEstimate(self.weight[part], self.rows[part], self.label[part])

    def rows_at(self, scale: float) -> float:
        """Rows that a draw at this scale is expected to keep."""
        return float(weigh_draw(self.weight, self.rows, scale)[0])

    def total(self) -> float:
        """The weight of all rows."""
        return sum(float((part.rows * part.weight).sum(dtype=np.float64)) for part in self._parts())

    def n_eff_at(self, scale: float) -> float:
        return self.total() ** 2 / float(weigh_draw(self.weight, self.rows, scale)[1])

    def scale_for(self, most_rows: int) -> float:
        """The scale of the largest draw that is worth its rows, and has at most so many."""
        low = 1e-12 * float(self.weight.max())
        total = high = self.total()  # one row
        for _ in range(60):
            middle = (low * high) ** 0.5
            rows, squares = weigh_draw(self.weight, self.rows, middle)
            if rows <= most_rows and rows * squares <= ROWS_PER_EFF * total**2:
                high = middle
            else:
                low = middle
        return high


class Sampler:
    """Draws samples of a data set by weight.

    Parameters
    ----------
    dataset : Dataset
    loss : Loss
    base_score : float
    folder : where the strata's scratch file goes
    keep : a name for that file, if training may have to go on from it
    seed : int
    n_jobs : int
        Threads of a draw, also of one in the background.
    staged : StagedRows, optional
        Where more rows of the data set come from.
    """

    def __init__(
        self,
        dataset: Dataset,
        loss: Loss,
        base_score: float,
        *,
        folder: Path,
        seed: int,
        n_jobs: int,
        keep: str | None = None,
        staged: StagedRows | None = None,
    ) -> None:
        self._keep, self._staged = keep, staged
        self._dataset, self._loss, self._base, self._folder = dataset, loss, base_score, folder
        self._seed, self._n_jobs = seed, n_jobs
        self._strata: Strata | None = None
        self._unread = [dataset.blocks_of(label) for label in (0, 1)]
        self._stages = np.array([dataset.n_blocks])  # where the blocks of each stage end
        self._spread = np.zeros(N_STRATA)  # root mean square of each stratum's weights, when read
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="sparrow-sample")
        self._next: Future[tuple[Sample, int]] | None = None
        self._draws = 0
        self.counts = Counts()

    def close(self) -> None:
        if self._staged is not None:
            self._staged.close()  # a draw may wait for rows that need not come any more
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

        `more`: of more rows than before, where the data set's are still being read.
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
        self.counts.bytes_read += n_read * (self._dataset.n_features + STATE_BYTES)
        self.counts.rows_kept += sample.n
        self.counts.n_samples += 1
        return sample

    # -- to go on from, after a crash ------------------------------------------------------------

    def state(self, sample: Sample) -> dict[str, npt.NDArray[Any]]:
        """All that the next draws depend on, and the sample that was drawn last."""
        assert self._next is None, "a draw is under way"
        strata = {} if self._strata is None else self._strata.state()
        return {
            "sampler_draws": np.array(self._draws),
            "sampler_counts": np.array(astuple(self.counts)),
            "sampler_spread": self._spread.copy(),
            "sampler_unread_0": self._unread[0],
            "sampler_unread_1": self._unread[1],
            "sampler_stages": self._stages,
            **strata,
            **({} if sample.whole else sample.state()),
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> Sample:
        """Go on from a state; the sample that was drawn last."""
        self._draws = int(state["sampler_draws"])
        self._spread[:] = state["sampler_spread"]
        self._unread = [state["sampler_unread_0"], state["sampler_unread_1"]]
        self._stages = state.get("sampler_stages", self._stages)
        if "strata_chunks" in state:
            self._strata = self._make_strata()
            self._strata.restore(state)
        drawn = "sample_bins" in state
        sample = Sample.restored(state, self._loss) if drawn else self.all_rows()
        self.counts = Counts(*state["sampler_counts"].tolist())
        return sample

    # -- one draw --------------------------------------------------------------------------------

    def all_rows(self) -> Sample:
        """All rows of the data as one sample, nothing left out."""
        data = self._dataset
        buffer = _Buffer(data.n_rows, data.n_features, weighted=data.weighted)
        for rows in self._map(self._rows_of_block, list(range(data.n_blocks))):
            n = len(rows.label)
            buffer.add(rows, np.arange(n), np.ones(n, np.float32))
        # Always in the same random order: a model of all rows does not depend on the seed.
        return self._count(self._finish(buffer, 0, whole=True, seed=0), data.n_rows)

    def first(self, estimate: WeightEstimate, most_rows: int) -> Sample:
        """The first sample: from the store's random blocks, under the base score."""
        model = Model(self._dataset.binning, self._dataset.classes, self._loss.name, self._base)
        return self.again(model, estimate, most_rows, more=False)

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
    def label_rows(self) -> tuple[int, int]:
        """Negative and positive ones among these."""
        positive = self._dataset.n_positive
        return self.n_rows - positive, positive

    @property
    def complete(self) -> bool:
        """Whether these are all."""
        return self._staged is None or self.n_rows == self._staged.n_rows

    def _take_in(self, staged: StagedRows) -> float:
        """Take in what comes next of the data set; how many times its rows there are then."""
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
        """Draw a sample in which a row of weight w stands w / scale times; and the rows read."""
        if more and self._staged is not None and not self.complete:
            estimate = estimate.times(self._take_in(self._staged))
        scale = estimate.scale_for(most_rows)
        rng = np.random.default_rng([self._seed, self._draws])
        self._draws += 1
        buffer = _Buffer(
            int(SPARE_ROWS * estimate.rows_at(scale)) + 1000,
            self._dataset.n_features,
            weighted=self._dataset.weighted,
        )
        picker = _Picker(buffer, scale, rng)
        rows_read = self._draw_from(self._parts(scale, estimate, model.n_trees, rng), model, picker)
        sample = self._finish(buffer, model.n_trees, whole=False, seed=int(rng.integers(2**63)))
        return sample, rows_read

    def _draw_from(self, parts: list[_Part], model: Model, picker: _Picker) -> int:
        """Read, update, pick and put back all rows of some parts; how many there were."""
        forest, n_trees = model.forest.arrays, model.n_trees

        def work(part: _Part) -> _Weighed:
            rows = self._rows_of_block(part.block) if part.picked is None else self._read(part)
            catch_up(rows, forest, n_trees)
            w, total = np.empty(len(rows.label), np.float32), np.empty(2)
            u = rows.weight if len(rows.weight) else np.ones(len(w), np.float32)
            self._loss.weigh(rows.label, u, rows.score, w, total)
            # A block's rows lie in the order of the source. A stratum's chunks are read by chance,
            # so rows that were next to each other there must not come into the same one.
            order = permuted(len(w), self._seed, part.block) if part.picked is None else None
            return _Weighed(rows, w, order, float(total[1]))

        n_read, found = 0, np.zeros((N_STRATA, 2))
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
    ) -> list[_Part]:
        """What to read of each stratum and of the store.

        All is picked before the first row is put back: no row is met twice in a draw.
        """
        parts = []
        strata = self._strata
        for k in range(N_STRATA) if strata is not None else ():
            assert strata is not None
            if strata.size(k):
                weight = max(strata.upper(k), self._spread[k])
                n = math.ceil(strata.n_chunks(k) * min(weight / scale, 1.0))
                kept = strata.size(k) * min(weight / scale, 1.0)
                n = max(n, min(math.ceil(kept / ROWS_PER_CHUNK), MANY_CHUNKS))
                parts += [_Part(p.share, k, p) for p in strata.pick(k, n, rng)]
        for label in (0, 1):
            want = estimate.spread(label) / scale
            parts += self._parts_of_store(label, want, rng, keep=n_trees == 0)
        return parts

    def _parts_of_store(
        self, label: int, want: float, rng: np.random.Generator, *, keep: bool
    ) -> list[_Part]:
        """The blocks of a label to read now: the share `want` of those that were never read.

        Blocks of one stage are alike, since its rows were shuffled; those of another stage come
        from other stretches of the source. So at least one block of each stage is read.
        """
        parts, left = [], []
        rows = self._dataset.block_rows
        unread = self._unread[label]
        for stage in np.split(unread, np.searchsorted(unread, self._stages)):
            if not len(stage):
                continue
            n = max(1, min(len(stage), math.ceil(len(stage) * want)))
            order = rng.permutation(stage)
            items = np.sort(order[:n])  # in the order of the disk; which they are was random
            share = rows[items].sum() / rows[stage].sum()
            parts += [_Part(share, block=int(block)) for block in items]
            left.append(order[n:])
        if left and not keep:
            self._unread[label] = np.sort(np.concatenate(left))
        return parts

    def weigh_base(self) -> WeightEstimate:
        """The weights that rows have under the base score."""
        data = self._dataset
        w, total = np.empty(2, np.float32), np.empty(2)
        label, score = np.array([0, 1], np.uint8), np.full(2, self._base, np.float32)
        self._loss.weigh(label, np.ones(2, np.float32), score, w, total)
        rows = np.array([data.n_rows - data.n_positive, data.n_positive], np.float32)
        if not data.weighted:
            return WeightEstimate(w, rows, label)
        weights, counts, labels = [], [], []
        for y in label:
            some = [data.read_block(i).weight for i in data.blocks_of(y)[:ESTIMATE_BLOCKS]]
            u = np.concatenate([weight for weight in some if weight is not None])
            weights.append(w[y] * u)
            counts.append(np.full(len(u), rows[y] / len(u), np.float32))
            labels.append(np.full(len(u), y, np.uint8))
        return WeightEstimate(
            np.concatenate(weights), np.concatenate(counts), np.concatenate(labels)
        )

    def _rows_of_block(self, index: int) -> Rows:
        block = self._dataset.read_block(index, shuffled=False)
        n = len(block.label)
        weight = block.weight if block.weight is not None else np.empty(0, np.float32)
        score = np.full(n, self._base, np.float32)
        return Rows(block.bins, block.label, weight, score, np.zeros(n, np.int32))

    def _map(self, work: Callable[[Any], A], items: list[Any]) -> Iterator[A]:
        """The work on each item, over threads, in order."""
        with closing(ordered_map(work, items, self._n_jobs, self._n_jobs + 1)) as results:
            yield from results

    def _put_back(self, weighed: _Weighed) -> None:
        if self._strata is None:
            self._strata = self._make_strata()
        self._strata.append(weighed.rows, weighed.w, weighed.order)

    def _make_strata(self) -> Strata:
        data = self._dataset
        return Strata(self._folder, data.n_features, weighted=data.weighted, keep=self._keep)

    def _read(self, part: _Part) -> Rows:
        assert self._strata is not None
        assert part.picked is not None
        return self._strata.read(part.picked)

    def _learn(self, rows: npt.NDArray[np.float64], squares: npt.NDArray[np.float64]) -> None:
        """Remember what strata's weights were when read: drifted rows ask for more reading."""
        read = rows > 0
        spread = np.sqrt(squares[read] / rows[read])
        old = np.where(self._spread[read] > 0, self._spread[read], spread)
        self._spread[read] = MEMORY_OF_SPREAD * spread + (1 - MEMORY_OF_SPREAD) * old

    def _finish(self, buffer: _Buffer, n_trees: int, *, whole: bool, seed: int) -> Sample:
        bins, label, copies, weight, score = buffer.parts()
        shuffle_rows(np.uint64(seed), bins, label, copies, weight, score)
        u = copies * weight if len(weight) else copies
        counted = whole and len(weight) > 0 and are_counts(weight)
        sample = Sample(
            bins,
            label,
            u,
            score,
            n_trees,
            self._loss,
            whole=whole,
            copies=copies,
            counted=counted,
            of_rows=self.n_rows,
        )
        if not whole:
            sample.bound_shares(max(MAX_SHARE, MIN_SHARE_ROWS / max(sample.n, 1)))
        return sample


def are_counts(weight: npt.NDArray[np.float32]) -> bool:
    """Whether weights say how many rows each row stands for: small whole numbers.

    Larger ones are of something else, people or money, of which a row is one observation.
    """
    parts = (
        weight[start : start + ESTIMATE_ROWS] for start in range(0, len(weight), ESTIMATE_ROWS)
    )
    return all(part.max() <= MAX_COUNT and (part == np.floor(part)).all() for part in parts)


def catch_up(rows: Rows, forest: tuple[npt.NDArray[Any], ...], n_trees: int) -> None:
    """Add to each row's score the trees that it has not seen; never the others again."""
    seen = rows.seen
    # A chunk's rows were put there by one draw, or a few: runs of rows have seen the same trees.
    starts = np.flatnonzero(np.diff(seen, prepend=-1))
    for start, stop in zip(starts, [*starts[1:], len(seen)], strict=True):
        part = slice(start, stop)
        apply_trees(rows.bins[part], *forest, int(seen[start]), n_trees, rows.score[part])
    seen[:] = n_trees


@dataclass(frozen=True)
class _Part:
    """Part of a draw that is read at once: some chunks of one stratum, or a block of the store."""

    share: float  # chance with which it was to be read
    stratum: int = -1
    picked: Picked | None = None
    block: int = -1


class _Weighed(NamedTuple):
    """Rows that are up to date, their weights, and the order in which to put them back."""

    rows: Rows
    w: npt.NDArray[np.float32]
    order: npt.NDArray[np.uint32] | None
    squares: float  # sum of w**2


class _Buffer:
    """Room for the rows of a sample that is being drawn."""

    def __init__(self, capacity: int, n_features: int, *, weighted: bool) -> None:
        self.n, self.capacity = 0, capacity
        self._bins = np.empty((capacity, n_features), np.uint8)
        self._label = np.empty(capacity, np.uint8)
        self._copies = np.empty(capacity, np.float32)
        self._weight = np.empty(capacity * weighted, np.float32)
        self._score = np.empty(capacity, np.float32)

    def add(
        self, rows: Rows, which: npt.NDArray[np.int64], copies: npt.NDArray[np.float32]
    ) -> None:
        given = rows.bins, rows.label, rows.weight, rows.score, which, self.n
        keep_rows(*given, self._bins, self._label, self._weight, self._score)
        self._copies[self.n : self.n + len(which)] = copies
        self.n += len(which)

    def halve(self, odd: int) -> None:
        """Keep every second row, each for two."""
        for part in (self._bins, self._label, self._copies, self._weight, self._score):
            if len(part):
                keep_every_second(part, odd, self.n)
        self.n = len(range(odd, self.n, 2))
        self._copies[: self.n] *= 2

    def parts(self) -> tuple[npt.NDArray[Any], ...]:
        n = self.n
        weight = self._weight[:n]
        return self._bins[:n], self._label[:n], self._copies[:n], weight, self._score[:n]


class _Picker:
    """Picks rows into a buffer; if there are more than it has room for, thins out what it has."""

    def __init__(self, buffer: _Buffer, scale: float, rng: np.random.Generator) -> None:
        self._buffer, self._scale, self._rng = buffer, scale, rng
        self._carry = float(rng.random())

    def pick(self, rows: Rows, w: npt.NDArray[np.float32], share: float) -> None:
        pick, copies = np.empty(len(w), np.int64), np.empty(len(w), np.float32)
        start = 0
        while start < len(w):
            room = self._buffer.capacity - self._buffer.n
            if room == 0:
                self._buffer.halve(int(self._rng.integers(2)))
                self._scale *= 2
                self._carry = float(self._rng.random())  # just after a pick it is not uniform
                continue
            n, start, self._carry = pick_rows(
                w, self._scale, share, self._carry, start, pick, copies, room
            )
            self._buffer.add(rows, pick[:n], copies[:n])
