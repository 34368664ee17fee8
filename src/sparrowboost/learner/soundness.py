"""Checks from a training's own numbers that its draws and proofs are sound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sparrowboost.learner.events import Event, Finished, SampleDrawn, TreeAdded
from sparrowboost.model.model import Model
from sparrowboost.runtime.progress import log

Columns = Mapping[str, Sequence[Any]]

DEVIATIONS = ("deviation_negative", "deviation_positive")  # columns of `label_deviation`
PART_ROWS = 1 << 16  # summed at a time, to bound the memory of float64 copies
MOST_DEVIATION = 5.0  # standard deviations: by chance, once in millions of draws
MANY_RULES = 100  # minimum rules before proofs are called rare
FEW_PROVED = 0.01
SHOWN = 10  # classes in a message
HALF = 0.5  # share of the fall on own rows: if fresh rows show less, most of it was noise


def half_names(n_classes: int | None) -> tuple[str, str]:
    """What the rows are called whose deviations `label_deviation` gives; 0 classes are numbers."""
    if n_classes == 0:
        return "rows of low labels", "rows of high labels"
    if n_classes is not None and n_classes > 2:
        return "rows of frequent classes", "rows of rare classes"
    return "negative rows", "positive rows"


def label_deviation(
    copies: npt.NDArray[np.float32], label: npt.NDArray[np.uint8], rows: npt.ArrayLike
) -> tuple[float, float]:
    """How far the label counts of a draw are from the truth, in standard deviations.

    A row drawn with probability p stands for c = 1 / p rows. If rows are drawn independently, the
    number that the draw stands for has variance sum (1 - p) / p over all rows, and
    sum c (c - 1) over the draw is an unbiased estimate of it.

    Parameters
    ----------
    copies : (n,) float32
        Rows that each row of the draw stands for.
    label : (n,) uint8
    rows : (bands,) int
        Negative and positive rows of the data; or the rows of each band, if labels are numbers or
        more than two classes.

    Returns
    -------
    (float, float)
        For negatives and positives, or for the lower and the upper half of the bands; 0 if every
        row stands for itself.

    Examples
    --------
    >>> copies, label = np.array([4, 4, 4, 1], "f4"), np.array([0, 0, 0, 1], "u1")
    >>> label_deviation(copies, label, [18, 1])  # 12 instead of 18, of a variance of 3 * 4 * 3
    (-1.0, 0.0)
    """
    counts = np.asarray(rows)
    upper = -(-len(counts) // 2)  # the first band of the upper half
    stood, variance = np.zeros(2), np.zeros(2)
    for start in range(0, len(label), PART_ROWS):
        part = slice(start, start + PART_ROWS)
        c = copies[part].astype(np.float64)
        half = (label[part] >= upper).astype(np.intp)
        stood += np.bincount(half, c, 2)
        variance += np.bincount(half, c * (c - 1), 2)
    off = stood - (counts[:upper].sum(), counts[upper:].sum())
    negative, positive = (
        float(off[y] / variance[y] ** 0.5) if variance[y] > 0 else 0.0 for y in (0, 1)
    )
    return negative, positive


class SoundnessMonitor:
    """A callback that warns, at the end of a training, if its numbers look wrong.

    Only draws that stand for too many rows are reported. One that stands for too few may be sound:
    rows with next to no weight are hardly ever drawn, so most draws have none of them and do not
    show how many there are.
    """

    def __init__(self, n_classes: int | None = None) -> None:
        self._n_classes = n_classes
        self._most, self._where = 0.0, (0, 0)
        self._rules = self._proved = 0
        self._own = self._fresh = 0.0
        self._rows = 0  # of the last sample that was drawn
        self._model: Model | None = None

    @classmethod
    def of(
        cls,
        samples: Columns,
        trees: Columns,
        n_classes: int | None = None,
        model: Model | None = None,
    ) -> Self:
        """A monitor that has seen these samples and trees, columns as in `History`."""
        self = cls(n_classes)
        self._model = model
        for strata, rows in zip(samples["strata"], samples["rows"], strict=True):
            self._rows = rows if strata else 0
        columns = (samples[name] for name in ("n_trees", *DEVIATIONS, "own", "fresh"))
        for n_trees, negative, positive, own, fresh in zip(*columns, strict=True):
            self._see_draw(n_trees, (negative or 0.0, positive or 0.0))
            if own is not None:
                self._own, self._fresh = own, fresh
        self._rules, self._proved = sum(trees["n_rules"]), sum(trees["n_proved"])
        return self

    def __call__(self, event: Event) -> None:
        if isinstance(event, SampleDrawn):
            self._see_draw(event.n_trees, event.label_deviation)
            self._rows = event.sample_rows if event.strata else 0
            if event.look is not None:
                self._own, self._fresh = event.look.own, event.look.fresh
        elif isinstance(event, TreeAdded):
            self._model = event.model
            self._rules += event.n_rules
            self._proved += event.n_proved
        elif isinstance(event, Finished):
            if self._model is None and event.n_trees:  # of a run before this one
                self._rows = 0
            for doubt in self.doubts():
                log.warning(doubt)

    def _see_draw(self, n_trees: int, deviation: tuple[float, float]) -> None:
        for side, of in enumerate(deviation):
            if of > self._most:
                self._most, self._where = of, (n_trees, side)

    def _classes_without_trees(self) -> list[int]:
        """Classes, of more than two, in which nothing stood out from noise in draws."""
        k = self._n_classes or 0
        if k <= 2 or not self._rows:
            return []
        trees = () if self._model is None else self._model.trees
        return [c for c in range(k) if all(tree.n_leaves == 1 for tree in trees[c::k])]

    def _named(self, classes: list[int]) -> str:
        """The first of these classes by name; nothing while there is no tree at all."""
        if self._model is None:
            return ""
        names = [repr(self._model.classes[number]) for number in classes[:SHOWN]]
        return f" ({', '.join(names)}{', ...' if len(classes) > SHOWN else ''})"

    def doubts(self) -> Iterator[str]:
        """Warnings in plain words; none for a sound training."""
        if self._most > MOST_DEVIATION:
            n_trees, side = self._where
            counts = "rows, features and positives"
            if self._n_classes is not None and self._n_classes != 2:
                counts = "rows, features and classes" if self._n_classes else "rows and features"
            yield (
                f"a draw is off: the sample put in use after {n_trees:,} trees stands for more "
                f"{half_names(self._n_classes)[side]} than there are, by {self._most:.1f} standard "
                "deviations. Chance does not do this; please report it, with the numbers of "
                f"{counts} of the data."
            )
        if without := self._classes_without_trees():
            yield (
                f"{len(without):,} of {self._n_classes:,} classes got no tree: in samples of "
                f"{self._rows:,} rows nothing tells them{self._named(without)} from the others "
                "more than noise would. If something should, try a larger memory_limit or "
                "sample_size, or fewer classes; a class of fewer than about 40 rows needs all rows "
                "in memory, or to be joined with another."
            )
        rare = self._rules >= MANY_RULES and self._proved < FEW_PROVED * self._rules
        if rare and self._fresh < HALF * self._own:
            yield (
                f"samples are too small for what is left to learn: {self._proved:,} of "
                f"{self._rules:,} splits were proved, and trees lowered the loss by "
                f"{self._own:.2g} on the rows that they were grown on, but by {self._fresh:.2g} on "
                "fresh ones, when last looked at. Try a larger memory_limit, a smaller "
                "learning_rate or fewer trees."
            )
