"""Labels that are numbers to predict, and bands of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as pt

from sparrowboost.readers.columns import is_text
from sparrowboost.readers.formats import RowError, numbers
from sparrowboost.readers.labels import as_float32
from sparrowboost.runtime.errors import DataError

Target = npt.NDArray[np.float32]  # (n,)

MAX_TARGET = 1e38  # float32 ends at 3.4e38, and differences must fit, too
# Quantiles of the target at which a band ends. The outer bands are small: rows far from the middle
# are few, and many more of them are needed than of others.
BAND_ENDS = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)


class TargetReader:
    """Reads labels as float32, and tells the band of each: a range of the target.

    Bands are to a regression what the two labels are to a classification: the store keeps the rows
    of each apart. `set_bands` finds them from a sample; until then, all rows are in one.

    Attributes
    ----------
    n_bands : int
        At most 8.
    largest_share : float
        Share of the largest band in the sample.
    span : (float, float) or None
        The least and the greatest target read so far.

    Examples
    --------
    >>> reader = TargetReader("y")
    >>> reader.set_bands([pa.array([0, 0, 0, 1, 5])])
    >>> reader.read(pa.array([5, 0, 2.5]))
    (array([2, 0, 1], dtype=uint8), array([5. , 0. , 2.5], dtype=float32))
    >>> reader.n_bands, reader.largest_share, reader.span
    (3, 0.6, (0.0, 5.0))
    """

    n_classes = 0
    targeted = True
    classes = ()
    facts: Mapping[str, Any] = {}

    def __init__(self, name: str) -> None:
        self._name = name
        self._starts = np.empty(0, np.float32)  # of all bands but the lowest
        self.largest_share = 1.0
        self.span: tuple[float, float] | None = None

    @property
    def n_bands(self) -> int:
        return len(self._starts) + 1

    @property
    def trainable(self) -> bool:
        """Whether the rows read so far have different targets."""
        return self.span is not None and self.span[0] < self.span[1]

    def check_type(self, type_: pa.DataType) -> None:
        """A DataError if a column of this type has no numbers to predict."""
        values = type_.value_type if pt.is_dictionary(type_) else type_
        number = pt.is_integer(values) or pt.is_floating(values) or pt.is_decimal(values)
        if not (number or pt.is_boolean(values) or pt.is_null(values)):
            advice = "regression needs numbers"
            if is_text(values):
                advice += (
                    ". If they are numbers in another notation, see decimal= and thousands= "
                    "(--decimal, --thousands) for CSV files. To tell classes apart, leave "
                    "task='regression' (--task regression) out"
                )
            elif pt.is_temporal(values):
                advice += ", such as days since a date"
            raise DataError(f"label {self._name!r} has type {values}; {advice}.")

    def set_bands(self, pieces: Iterable[pa.Array]) -> None:
        """Find the bands from a sample of the labels."""
        sample = np.concatenate([np.empty(0, np.float32), *map(self.values, pieces)])
        if not len(sample):
            return
        starts = np.quantile(sample, BAND_ENDS, method="higher")
        low = sample.min()
        if starts[0] == low:  # of many rows, such as counts of 0: they have a band of their own
            starts[0] = sample.min(initial=np.inf, where=sample > low)
        self._starts = np.unique(starts[(starts > low) & (starts < np.inf)])
        self.largest_share = float(np.bincount(self._bands(sample)).max() / len(sample))

    def _bands(self, target: Target) -> npt.NDArray[np.uint8]:
        return np.searchsorted(self._starts, target, side="right").astype(np.uint8)

    def values(self, array: pa.Array) -> Target:
        """Labels as float32; a RowError for one that is missing or not finite."""
        self.check_type(array.type)
        target = as_float32(self._name, array)
        bad = ~(np.abs(target) <= MAX_TARGET)
        if bad.any():
            i = int(np.argmax(bad))
            if np.isnan(target[i]):
                raise RowError(i, f"label {self._name!r} is missing; remove rows without a label.")
            value = numbers(self._name, array)[0][i]
            raise RowError(
                i,
                f"label {self._name!r} is {value:g}; labels of a regression must be finite "
                f"numbers, below {MAX_TARGET:g}.",
            )
        return target

    def sampled(self, array: pa.Array) -> npt.NDArray[np.uint8]:
        """Bands of some labels, which do not count as read."""
        return self._bands(self.values(array))

    def read(self, array: pa.Array) -> tuple[npt.NDArray[np.uint8], Target]:
        """Bands and targets of a block of labels; a RowError as for `values`."""
        target = self.values(array)
        if len(target):
            low, high = float(target.min()), float(target.max())
            if self.span is not None:
                low, high = min(low, self.span[0]), max(high, self.span[1])
            self.span = low, high
        return self._bands(target), target

    def order(self) -> npt.NDArray[np.uint8]:
        """The bands (n_bands,) in their order; a DataError if all targets read are the same."""
        if self.span is not None and not self.trainable:
            raise DataError(
                f"label {self._name!r} is {self.span[0]:g} in every row; there is nothing to learn."
            )
        return np.arange(self.n_bands, dtype=np.uint8)
