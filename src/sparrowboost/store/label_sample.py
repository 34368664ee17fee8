"""What a sample of the labels tells before any row is read.

How many classes there are, which bands the rows are put in, and whether some parts of the source
have other labels than others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost.readers.base import DiscardSample
from sparrowboost.readers.classes import MAX_CLASSES, ClassReader
from sparrowboost.readers.formats import RowError
from sparrowboost.readers.known_labels import ModelClasses
from sparrowboost.readers.labels import (
    LabelCoder,
    Value,
    different_labels,
    is_number,
    same_label,
)
from sparrowboost.readers.table import Table
from sparrowboost.readers.targets import TargetReader
from sparrowboost.store.plan import SAMPLE_ROWS, SAMPLING

# Share of the labels' variance that may lie between partitions; by chance it is far less.
DRIFT = 0.05
EXTREME = 0.001  # share of the rows at each end of the numbers that are extreme
RUN_ROWS = 1_024  # read together of labels that are an array of their own

Codes = npt.NDArray[np.uint8]  # of classes or bands


@dataclass
class LabelSample:
    """Classes in a sample of the labels.

    Attributes
    ----------
    pieces : list of arrays
        Codes of the labels, by the part of the source that they are from: of classes in the order
        in which they were found, of numbers of their bands. Empty if some labels are missing.
    rows : Counter
        How often each class is there; none of numbers.
    numbers : bool
        Whether the classes are numbers, which may also be meant to be predicted.
    clip : (float, float)
        Of numbers, the range of all but a few extreme ones.
    """

    pieces: list[Codes] = field(default_factory=list)
    rows: Counter[Value] = field(default_factory=Counter)
    numbers: bool = False
    clip: tuple[float, float] = (-math.inf, math.inf)

    @property
    def drifts(self) -> bool:
        """Whether a label is more frequent in some parts of the source than in others.

        A few parts then do not represent all rows. Numbers are compared by their bands.
        """
        if not self.pieces:
            return False
        sizes = [len(piece) for piece in self.pieces]
        means = [float(piece.mean()) for piece in self.pieces]
        squares = [float(np.square(piece.astype(np.float64)).mean()) for piece in self.pieces]
        mean = np.average(means, weights=sizes)
        between = np.average(np.square(np.array(means) - mean), weights=sizes)
        return bool(between > DRIFT * (np.average(squares, weights=sizes) - mean**2))


def look_at_labels(table: Table, seed: int, *, asked: bool) -> LabelSample:
    """Sample the labels of a table, and choose how they are read.

    `asked`: the user has said that labels are classes, even if they are numbers.
    """
    with closing(label_sample(table, seed)) as pieces:
        if isinstance(table.labels, TargetReader):
            return _sample_of_numbers(table.labels, pieces)
        sample = _sample_of_classes(table.label.name, pieces)
    if len(sample.rows) > 2 and (asked or not sample.numbers):
        read_as_classes(table, sample)
    return sample


def read_as_classes(table: Table, sample: LabelSample) -> None:
    """Let the labels of a table be read as those of more than two classes."""
    labels = ClassReader(table.label.name)
    labels.set_bands(sample.rows)
    table.labels = labels


def read_as_known(table: Table, sample: LabelSample, classes: Sequence[Any]) -> bool:
    """Let labels be read as those of known classes, if a sample of them has no others."""
    rows = np.zeros(len(classes), np.int64)
    for value, count in sample.rows.items():
        number = next((k for k, known in enumerate(classes) if same_label(known, value)), None)
        if number is None:
            return False
        rows[number] += count
    table.labels = ModelClasses(table.label.name, classes, rows)
    return True


def read_as_two(table: Table) -> None:
    """Let the labels of a table be read as those of two classes."""
    table.labels = LabelCoder(table.label.name, asked=True)


def _sample_of_numbers(labels: TargetReader, pieces: Iterable[pa.Array]) -> LabelSample:
    pieces = list(pieces)
    try:
        labels.set_bands(pieces)
    except RowError:  # the pass over all rows says where
        return LabelSample()
    values = [labels.values(piece) for piece in pieces if len(piece)]
    sample = LabelSample([labels.sampled(piece) for piece in pieces])
    if values:
        low, high = np.quantile(np.concatenate(values), (EXTREME, 1 - EXTREME)).tolist()
        sample.clip = low, high
    return sample


def _sample_of_classes(name: str, pieces: Iterable[pa.Array]) -> LabelSample:
    """The classes of some labels; of more than 255, only of a part of these labels."""
    sample = LabelSample()
    codes: dict[Value, int] = {}
    complete = True
    for piece in pieces:
        sample.numbers |= is_number(piece.type)
        if piece.null_count:  # the pass over all rows says where
            piece, complete = piece.drop_null(), False
        try:
            values, which = different_labels(name, piece)
        except RowError:  # NaN
            complete = False
            continue
        counts = np.bincount(which, minlength=len(values)).tolist()
        for value, count in zip(values, counts, strict=True):
            sample.rows[value] += count
        if len(sample.rows) > MAX_CLASSES:
            break
        numbers = [codes.setdefault(value, len(codes)) for value in values]
        sample.pieces.append(np.array(numbers, np.uint8)[which])
    if not complete:
        sample.pieces = []
    return sample


def label_sample(table: Table, seed: int) -> Generator[pa.Array]:
    """Labels from all over the source."""
    if table.label.external is None:
        rng = np.random.default_rng([seed, SAMPLING])
        for piece in table.source.sample([table.label.name], SAMPLE_ROWS, rng):
            if not isinstance(piece, DiscardSample) and piece.num_rows:
                yield piece.column(0)
        return
    end = 0
    parts = table.source.partitions()
    if not parts and table.labels.n_classes:  # numbers are all in one band then
        parts = [table.label.external.n_values]
    every = max(1, sum(parts) // SAMPLE_ROWS)  # of so many runs of rows, one is read
    for rows in parts:
        start, end = end, end + rows
        for at in range(start, end, RUN_ROWS * every):
            yield table.label.external.read(at, min(at + RUN_ROWS, end))
