"""Views of a data set: some of its rows, or other weights, over the same files.

A part has its share of each label's rows. The rows of a label are numbered 0, 1, 2, ... over all
its blocks, blocks and rows within them in an order that the seed shuffles. Of the first r of them

    floor((r p + phase) / q)        are in a part that has p / q of the rows

so that parts are of exact size without a list of rows: which rows of a block are in it follows from
the seed and from how many rows the label's blocks before it have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.readers.labels import MAX_WEIGHT
from sparrowboost.runtime.errors import DataError
from sparrowboost.store.dataset import Block, Dataset
from sparrowboost.store.ingest import RandomState, check_seed

MAX_DENOMINATOR = 1_000_000  # of a share of the rows: finer ones are rounded

Counts = npt.NDArray[np.int64]  # (blocks,)


def split(
    dataset: Dataset, fraction: float = 0.1, random_state: RandomState = 0
) -> tuple[Dataset, Dataset]:
    """Two views of a data set: rows to train on, and a share of them set aside.

    Each has its share of the positives. Nothing is copied, and nothing is read.

    Parameters
    ----------
    dataset : Dataset
    fraction : float
        Share of the rows that is set aside.
    random_state : int, Generator, RandomState or None

    Returns
    -------
    (Dataset, Dataset)
        The rest, and the part set aside.

    Examples
    --------
    >>> import sparrowboost
    >>> ds = sparrowboost.ingest(np.arange(100.0)[:, None], label=np.arange(100) < 30, verbose=0)
    >>> train, valid = split(ds, 0.2)
    >>> len(train), len(valid), valid.n_positive
    (80, 20, 6)
    """
    p, q = share_of(fraction).as_integer_ratio()
    order = Order.shuffled(dataset, check_seed(random_state))
    which = Share(p, q, (q // 2, q // 2))  # half: the number of rows is rounded, not cut
    return Part(dataset, order, which, inside=False), Part(dataset, order, which, inside=True)


def share_of(fraction: float) -> Fraction:
    """A share of the rows as a fraction of whole numbers; a DataError if it is none.

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
            f"fraction={fraction!r}: give a number above 0 and below 1, by a millionth at least."
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
        Every row is in exactly one fold; folds differ by at most one row, and by one positive.
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
    order = Order.shuffled(dataset, check_seed(random_state))
    # From opposite ends: a fold with a positive more than others has no negative more.
    shares = [Share(1, n, (n - 1 - k, k)) for k in range(n)]
    return [
        (Part(dataset, order, which, inside=False), Part(dataset, order, which, inside=True))
        for which in shares
    ]


def with_class_weight(dataset: Dataset, factors: tuple[float, float]) -> Dataset:
    """A view of a data set whose weights are multiplied by a factor for each label.

    Parameters
    ----------
    dataset : Dataset
    factors : (float, float)
        Of negatives and of positives; at most 1e12, and so many times each other.

    Examples
    --------
    >>> import sparrowboost
    >>> ds = sparrowboost.ingest(np.arange(6.0)[:, None], label=np.arange(6) < 2, verbose=0)
    >>> block = next(with_class_weight(ds, (1, 2)).blocks())
    >>> block.weight[block.label == 1]
    array([2., 2.], dtype=float32)
    """
    return Reweighted(dataset, factors)


def class_factors(
    dataset: Dataset, class_weight: str | Mapping[Any, float] | None
) -> tuple[float, float] | None:
    """The factors of negatives and positives that a `class_weight` argument means.

    "balanced" lets both labels weigh the same: n_rows / (2 * rows of the label), as scikit-learn
    has it. A label that a mapping leaves out has factor 1.
    """
    if class_weight is None:
        return None
    if isinstance(class_weight, str) and class_weight == "balanced":
        n, n_positive = dataset.n_rows, dataset.n_positive
        return n / (2 * (n - n_positive)), n / (2 * n_positive)
    if not isinstance(class_weight, Mapping):
        raise DataError(
            f"class_weight={class_weight!r}: give 'balanced', a weight for each label such as "
            f"{{{dataset.classes[0]!r}: 1, {dataset.classes[1]!r}: 5}}, or None."
        )
    for label in class_weight:
        if label not in dataset.classes:
            raise DataError(
                f"class_weight: there is no label {label!r}; the labels are "
                f"{dataset.classes[0]!r} and {dataset.classes[1]!r}."
            )
    negative, positive = (class_weight.get(label, 1.0) for label in dataset.classes)
    return negative, positive


class View(Dataset):
    """A data set that reads another one's blocks."""

    def __init__(self, base: Dataset) -> None:
        # No super().__init__: there are no files to open but the base's, which stay while it is
        # referred to.
        self.base = base
        self.path, self.binning = base.path, base.binning
        self.classes, self.label_name = base.classes, base.label_name
        self.n_rows, self.n_positive, self.weighted = base.n_rows, base.n_positive, base.weighted
        self.block_rows, self.block_label = base.block_rows, base.block_label

    @property
    def n_features(self) -> int:
        return self.base.n_features

    @property
    def n_blocks(self) -> int:
        return len(self.block_rows)

    @property
    def n_bytes(self) -> int:
        """Bytes on disk of the rows that blocks are read from."""
        return self.base.n_bytes

    @property
    def largest_block(self) -> int:
        """Rows of the largest block that is read, whatever a view takes of it."""
        return self.base.largest_block

    def read_block(self, index: int, *, shuffled: bool = True) -> Block:
        return self.base.read_block(index, shuffled=shuffled)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({str(self.path)!r}, rows={self.n_rows:,}, "
            f"features={self.n_features})"
        )


@dataclass(frozen=True)
class Share:
    """Some of the numbers 0, 1, 2, ...: p of every q, evenly spread."""

    p: int
    q: int
    phase: tuple[int, int]  # of negatives and positives

    def holds(self, numbers: npt.NDArray[np.int64], label: int) -> npt.NDArray[np.bool_]:
        return (numbers * self.p + self.phase[label]) % self.q >= self.q - self.p

    def count(self, n: Counts, label: Counts) -> Counts:
        """How many of the numbers below n of a label it holds."""
        return (n * self.p + np.array(self.phase)[label]) // self.q


@dataclass(frozen=True, eq=False)
class Order:
    """The rows of each label, numbered over all its blocks in a random order."""

    seed: int
    start: Counts  # numbers that blocks of its label before this one take

    @classmethod
    def shuffled(cls, dataset: Dataset, seed: int) -> Order:
        start = np.empty(dataset.n_blocks, np.int64)
        rng = np.random.default_rng(seed)
        for label in (0, 1):
            order = rng.permutation(dataset.blocks_of(label))
            rows = dataset.block_rows[order]
            start[order] = np.cumsum(rows) - rows
        return cls(seed, start)

    def numbers(self, block: int, n: int) -> npt.NDArray[np.int64]:
        """The numbers of a block's n rows."""
        return np.random.default_rng([self.seed, block]).permutation(n) + self.start[block]


class Part(View):
    """The rows of a data set that are in a share of each label, or those that are not."""

    def __init__(self, base: Dataset, order: Order, share: Share, *, inside: bool) -> None:
        super().__init__(base)
        self._order, self._share, self._inside = order, share, inside
        label, start = base.block_label, order.start
        part = share.count(start + base.block_rows, label) - share.count(start, label)
        part = part if inside else base.block_rows - part
        self._places = np.flatnonzero(part)  # in the base, of blocks that have rows
        self.block_rows, self.block_label = part[self._places], label[self._places]
        for value, name in enumerate(self.classes):
            if not len(self.blocks_of(value)):
                n = int(base.block_rows[base.blocks_of(value)].sum())
                raise DataError(
                    f"there are too few rows of label {name!r} ({n}) for a part of "
                    f"{share.p}/{share.q} of them and the rest; make parts larger, or give more "
                    "rows."
                )
        self.n_rows = int(self.block_rows.sum())
        self.n_positive = int(self.block_rows @ self.block_label)

    def read_block(self, index: int, *, shuffled: bool = True) -> Block:
        # Always shuffled: which of its rows are in the part goes by their order.
        if not 0 <= index < self.n_blocks:
            raise IndexError(f"block {index} of a view that has {self.n_blocks}")
        place = int(self._places[index])
        bins, label, weight = self.base.read_block(place)
        numbers = self._order.numbers(place, len(label))
        here = self._share.holds(numbers, int(self.block_label[index])) == self._inside
        rows = np.flatnonzero(here)  # `take` copies rows several times as fast as a mask does
        return Block(bins.take(rows, axis=0), label[rows], None if weight is None else weight[rows])


class Reweighted(View):
    """A data set whose weights are multiplied by a factor for each label."""

    def __init__(self, base: Dataset, factors: tuple[float, float]) -> None:
        super().__init__(base)
        for label, factor in zip(self.classes, factors, strict=True):
            number = isinstance(factor, int | float | np.number) and not isinstance(factor, bool)
            if not number or not 0 <= factor <= MAX_WEIGHT:
                raise DataError(
                    f"the weight of label {label!r} is {factor!r}; weights of labels must be "
                    f"finite, not negative and at most {MAX_WEIGHT:g}."
                )
        self.factors = (float(factors[0]), float(factors[1]))
        if max(self.factors) > MAX_WEIGHT * min(self.factors) > 0:
            raise DataError(
                f"the weights of labels are {factors[0]!r} and {factors[1]!r}; one must be at most "
                f"{MAX_WEIGHT:g} times the other, or 0."
            )
        self.weighted = True

    def read_block(self, index: int, *, shuffled: bool = True) -> Block:
        bins, label, weight = self.base.read_block(index, shuffled=shuffled)
        factor = np.array(self.factors, np.float32)[label]
        return Block(bins, label, factor if weight is None else factor * weight)
