"""Views of a data set: some of its rows, or other weights, over the same files.

A part has the same fraction of each band's rows: of each label, or of classes that are about as
frequent. The rows of a band are numbered 0, 1, 2, ... in an order that the seed decides: blocks are
shuffled, and rows within each block. Of the first r,

    floor((r p + phase) / q)        are in a part that has p / q of the rows

so that a part has an exact size without a list of its rows: which rows of a block are in it follows
from the seed and from the number of rows in the band's blocks before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.readers.classes import name_classes
from sparrowboost.readers.labels import MAX_WEIGHT
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.random_state import RandomState, check_seed
from sparrowboost.store.appended import Appended
from sparrowboost.store.dataset import Dataset
from sparrowboost.store.packing import Packing
from sparrowboost.store.storage import REGRESSION, Block

MAX_DENOMINATOR = 1_000_000  # of a fraction of the rows: finer ones are rounded

Counts = npt.NDArray[np.int64]  # (blocks,)


def split(
    dataset: Dataset, fraction: float = 0.1, random_state: RandomState = 0
) -> tuple[Dataset, Dataset]:
    """Two views of a data set: rows to train on, and rows set aside.

    Both have the same fraction of each class, to a row. Of more than 8 classes, this holds for
    groups of classes that are about as frequent, and for each class nearly. Nothing is copied, and
    nothing is read.

    Parameters
    ----------
    dataset : Dataset
    fraction : float
        Fraction of the rows that is set aside.
    random_state : int, Generator, RandomState or None

    Returns
    -------
    (Dataset, Dataset)
        The rows to train on, and those set aside.

    Examples
    --------
    >>> import sparrowboost
    >>> ds = sparrowboost.ingest(np.arange(100.0)[:, None], label=np.arange(100) < 30, verbose=0)
    >>> train, valid = split(ds, 0.2)
    >>> len(train), len(valid), valid.n_positive
    (80, 20, 6)
    """
    p, q = share_of(fraction).as_integer_ratio()
    numbering = RowNumbering.shuffled(dataset, check_seed(random_state))
    # A phase of half: the number of rows is rounded to the nearest.
    return _both_parts(dataset, numbering, EvenFraction(p, q, (q // 2,) * dataset.n_bands))


def share_of(fraction: float) -> Fraction:
    """A fraction of the rows as a ratio of whole numbers; a DataError if it is not in (0, 1).

    Examples
    --------
    >>> share_of(0.1)
    Fraction(1, 10)
    """
    share = Fraction(0)
    number = isinstance(fraction, int | float | np.number) and not isinstance(fraction, bool)
    if number and math.isfinite(fraction):
        share = Fraction(float(fraction)).limit_denominator(MAX_DENOMINATOR)
    if not 0 < share < 1:
        raise DataError(
            f"fraction={fraction!r}: give a number above 0 and below 1, by at least a millionth."
        )
    return share


def folds(
    dataset: Dataset, n_folds: int = 5, random_state: RandomState = 0
) -> list[tuple[Dataset, Dataset]]:
    """Views for cross-validation: for each fold, the rows to train on and those of the fold.

    Parameters
    ----------
    dataset : Dataset
    n_folds : int
        Every row is in exactly one fold; folds differ by at most one row, and by one positive. Of
        numbers, every fold has the same share of each of their ranges, to a row; so it has of more
        than two classes, as with `split`.
    random_state : int, Generator, RandomState or None

    Examples
    --------
    >>> import sparrowboost
    >>> ds = sparrowboost.ingest(np.arange(100.0)[:, None], label=np.arange(100) < 30, verbose=0)
    >>> [(len(train), len(valid), valid.n_positive) for train, valid in folds(ds, 4)]
    [(75, 25, 7), (75, 25, 7), (75, 25, 8), (75, 25, 8)]
    """
    if isinstance(n_folds, bool) or not hasattr(n_folds, "__index__") or n_folds < 2:
        raise DataError(f"n_folds={n_folds!r}: give a whole number from 2 on.")
    n = int(n_folds)
    numbering = RowNumbering.shuffled(dataset, check_seed(random_state))
    # Phases in opposite order: a fold with one positive more than others has no extra negative.
    phases = [[(n - 1 - k, k)[band % 2] for band in range(dataset.n_bands)] for k in range(n)]
    parts = [EvenFraction(1, n, tuple(phase)) for phase in phases]
    return [_both_parts(dataset, numbering, part) for part in parts]


def _both_parts(
    dataset: Dataset, numbering: RowNumbering, part: EvenFraction
) -> tuple[Dataset, Dataset]:
    """The rows outside a part, and those inside."""
    outside = SelectedRows(dataset, numbering, part, inside=False)
    inside = SelectedRows(dataset, numbering, part, inside=True)
    return Dataset(outside), Dataset(inside)


def with_class_weight(dataset: Dataset, factors: tuple[float, ...]) -> Dataset:
    """A view of a data set whose weights are multiplied by a factor for each label.

    Parameters
    ----------
    dataset : Dataset
    factors : (float, float), or one for each class
        Of negatives and of positives; at most 1e12, and at most 1e12 times each other.

    Examples
    --------
    >>> import sparrowboost
    >>> ds = sparrowboost.ingest(np.arange(6.0)[:, None], label=np.arange(6) < 2, verbose=0)
    >>> block = next(with_class_weight(ds, (1, 2)).blocks())
    >>> block.weight[block.label == 1]
    array([2., 2.], dtype=float32)
    """
    return Dataset(ReweightedRows(dataset, factors))


def class_factors(
    dataset: Dataset, class_weight: str | Mapping[Any, float] | None
) -> tuple[float, ...] | None:
    """The factor of each class, in their order, that a `class_weight` argument means.

    "balanced" gives all of K labels the same total weight: n_rows / (K * rows of the label), as in
    scikit-learn. A label that is not in the mapping has factor 1.
    """
    if class_weight is None:
        return None
    if dataset.task == REGRESSION:
        raise DataError("class_weight is for classes; the labels of this data set are numbers.")
    classes = dataset.classes
    if isinstance(class_weight, str) and class_weight == "balanced":
        # A part of a data set may lack a rare class; no row then has its factor.
        rows = np.maximum(dataset.class_rows, 1).tolist()
        return tuple(dataset.n_rows / (len(classes) * n) for n in rows)
    if not isinstance(class_weight, Mapping):
        raise DataError(
            f"class_weight={class_weight!r}: give 'balanced', a weight for each label such as "
            f"{{{classes[0]!r}: 1, {classes[1]!r}: 5}}, or None."
        )
    for label in class_weight:
        if label not in classes:
            raise DataError(
                f"class_weight: there is no label {label!r}; the labels are "
                f"{name_classes(classes)}."
            )
    return tuple(class_weight.get(label, 1.0) for label in classes)


@dataclass(frozen=True)
class EvenFraction:
    """Some of the numbers 0, 1, 2, ...: p of every q, evenly spread."""

    p: int
    q: int
    phase: tuple[int, ...]  # of negatives and positives, or of each band

    def holds(self, numbers: Counts, label: int) -> npt.NDArray[np.bool_]:
        return (numbers * self.p + self.phase[label]) % self.q >= self.q - self.p

    def count(self, n: Counts, label: Counts) -> Counts:
        """How many of the numbers below n of a label it holds."""
        return (n * self.p + np.array(self.phase)[label]) // self.q


@dataclass(frozen=True, eq=False)
class RowNumbering:
    """The rows of each label, numbered over all its blocks in a random order."""

    seed: int
    start: Counts  # the first number in each block

    @classmethod
    def shuffled(cls, dataset: Dataset, seed: int) -> RowNumbering:
        start = np.empty(dataset.n_blocks, np.int64)
        rng = np.random.default_rng(seed)
        for band in range(dataset.n_bands):
            order = rng.permutation(dataset.blocks_of(band))
            rows = dataset.block_rows[order]
            start[order] = np.cumsum(rows) - rows
        return cls(seed, start)

    def numbers(self, block: int, n: int) -> Counts:
        """The numbers of a block's n rows."""
        return np.random.default_rng([self.seed, block]).permutation(n) + self.start[block]


class View:
    """What all views share: the files, bins and labels of the data set that they read."""

    def __init__(self, base: Dataset) -> None:
        self.base = base  # a temporary store is kept for as long as something refers to it
        self.path, self.binning = base.path, base.binning
        self.label_name, self.classes = base.label_name, base.classes
        self.offset_name = base.offset_name
        self.task, self.n_classes = base.task, base.n_classes
        self.targeted, self.n_bands = base.targeted, base.n_bands
        self.target_span = base.target_span

    @property
    def packing(self) -> Packing | None:
        return self.base.packing

    @property
    def class_band(self) -> Counts:
        return self.base.storage.class_band

    @property
    def appended(self) -> tuple[Appended, ...]:
        return self.base.appended

    @property
    def n_bytes(self) -> int:
        return self.base.n_bytes

    @property
    def largest_block(self) -> int:
        return self.base.largest_block


class SelectedRows(View):
    """The rows of a data set whose numbers are in a part, or those that are not."""

    def __init__(
        self, base: Dataset, numbering: RowNumbering, part: EvenFraction, *, inside: bool
    ) -> None:
        super().__init__(base)
        self._numbering, self._part, self._inside = numbering, part, inside
        label, start = base.block_label, numbering.start
        rows = part.count(start + base.block_rows, label) - part.count(start, label)
        rows = rows if inside else base.block_rows - rows
        self._base_index = np.flatnonzero(rows)  # of the blocks that have any of the rows
        self.weighted = base.weighted
        self.block_rows, self.block_label = rows[self._base_index], label[self._base_index]
        self.segment_ends = np.searchsorted(self._base_index, base.segment_ends)
        self.n_rows = int(self.block_rows.sum())
        for value, name in enumerate(self.classes if self.n_classes == 2 else ()):
            if value not in self.block_label:
                n = int(base.block_rows[base.blocks_of(value)].sum())
                raise DataError(
                    f"there are too few rows of label {name!r} ({n}) for a part of "
                    f"{part.p}/{part.q} of them and the rest; make parts larger, or give more "
                    "rows."
                )
        if not self.n_rows:
            raise DataError(
                f"there are too few rows ({base.n_rows}) for a part of {part.p}/{part.q} of them "
                "and the rest; make parts larger, or give more rows."
            )

    @property
    def summary(self) -> str:
        return f"selected rows={self.n_rows:,}, features={len(self.binning.features)}"

    @cached_property
    def class_rows(self) -> Counts:
        if len(np.unique(self.class_band)) == self.n_classes:  # each has a band of its own
            return Dataset(self).band_rows[self.class_band]
        rows = np.zeros(self.n_classes, np.int64)
        for index in range(len(self.block_rows)):
            target = self.read_block(index).target
            assert target is not None
            rows += np.bincount(target.astype(np.intp), minlength=self.n_classes)
        return rows

    def read_block(self, index: int, *, shuffled: bool = True) -> Block:
        # Always shuffled: the numbering refers to the shuffled order.
        if not 0 <= index < len(self._base_index):
            raise IndexError(f"block {index} of a view that has {len(self._base_index)}")
        base_index = int(self._base_index[index])
        block = self.base.read_block(base_index)
        numbers = self._numbering.numbers(base_index, len(block.label))
        selected = self._part.holds(numbers, int(self.block_label[index])) == self._inside
        return block.take(np.flatnonzero(selected))


class ReweightedRows(View):
    """The rows of a data set with weights multiplied by a factor for each label."""

    weighted = True

    def __init__(self, base: Dataset, factors: tuple[float, ...]) -> None:
        super().__init__(base)
        if not self.n_classes or len(factors) != self.n_classes:
            raise DataError(
                f"there are {len(factors)} weights of labels; this data set has {self.n_classes} "
                "classes."
            )
        for label, factor in zip(self.classes, factors, strict=True):
            number = isinstance(factor, int | float | np.number) and not isinstance(factor, bool)
            if not number or not 0 <= factor <= MAX_WEIGHT:
                raise DataError(
                    f"the weight of label {label!r} is {factor!r}; weights of labels must be "
                    f"finite, not negative and at most {MAX_WEIGHT:g}."
                )
        self.factors = tuple(map(float, factors))
        if max(self.factors) > MAX_WEIGHT * min(self.factors) > 0:
            raise DataError(
                f"the weights of labels are {name_classes(factors)}; one must be at most "
                f"{MAX_WEIGHT:g} times the other, or 0."
            )
        self.n_rows = base.n_rows
        self.block_rows, self.block_label = base.block_rows, base.block_label
        self.segment_ends = base.segment_ends

    @property
    def class_rows(self) -> Counts:
        return self.base.class_rows

    @property
    def summary(self) -> str:
        return (
            f"rows={self.n_rows:,}, features={len(self.binning.features)}, "
            f"label weights={self.factors}"
        )

    def read_block(self, index: int, *, shuffled: bool = True) -> Block:
        block = self.base.read_block(index, shuffled=shuffled)
        which = block.label if block.target is None else block.target.astype(np.intp)
        factor = np.array(self.factors, np.float32)[which]
        return block._replace(weight=factor if block.weight is None else factor * block.weight)
