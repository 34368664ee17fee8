"""Labels of any type as 0/1 bytes, and weights as floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost.readers.arrays import to_numpy
from sparrowboost.readers.formats import RowError, numbers
from sparrowboost.runtime.errors import DataError

Value = bool | int | float | str

MAX_WEIGHT = 1e12  # below 2**40, up to which rows are distinguished by weight on disk


class LabelCoder:
    """Encodes labels as 0 and 1 block by block, without knowing their values in advance.

    With `positive`, that value is 1 and all others are 0. Without, the first value found is 0 and
    the second 1, and `order` finally maps these codes to classes: the greater value is the positive
    one, as in scikit-learn.

    Examples
    --------
    >>> coder = LabelCoder("y")
    >>> coder.encode(pa.array(["yes", "no", "yes"]))
    array([0, 1, 0], dtype=uint8)
    >>> coder.order().tolist(), coder.classes
    ([1, 0], ('no', 'yes'))
    """

    n_bands = 2
    largest_share = 1.0  # nothing is known beforehand
    span = None

    def __init__(self, name: str, positive: Value | None = None) -> None:
        self._name = name
        self._positive = positive
        self._values: list[Value] = []  # index = code
        self._others: set[Value] = set()  # with positive=: some of the other values
        self.classes: tuple[Value | None, Value] | None = None

    def check_type(self, type_: pa.DataType) -> None:
        """A DataError if values of this type cannot be labels."""
        if pa.types.is_nested(type_):
            raise DataError(
                f"label {self._name!r} has type {type_}; it must have one value per row."
            )

    def read(self, array: pa.Array) -> tuple[npt.NDArray[np.uint8], None]:
        """As a `TargetReader` does: codes stand for its bands, and there are no targets."""
        return self.encode(array), None

    def encode(self, array: pa.Array) -> npt.NDArray[np.uint8]:
        """Codes of a block of labels; a RowError for one that is missing."""
        if (codes := self._quick(array)) is not None:
            return codes
        self.check_type(array.type)
        coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
        values = [_plain(value) for value in coded.dictionary.to_pylist()]
        if coded.null_count or None in values:
            indices = to_numpy(coded.indices.cast(pa.int64()), len(values))
            missing = np.array([*(value is None for value in values), True])[indices]
            if missing.any():
                raise RowError(
                    int(np.argmax(missing)),
                    f"label {self._name!r} is missing; remove rows without a label.",
                )
        indices = to_numpy(coded.indices)
        used = np.bincount(indices, minlength=len(values)) > 0
        codes = np.array(
            [
                self._code(value) if use and value is not None else 0
                for value, use in zip(values, used, strict=True)
            ],
            np.uint8,
        )
        return codes[indices]

    def _quick(self, array: pa.Array) -> npt.NDArray[np.uint8] | None:
        """Codes of numbers that are all one of two known values, as in most blocks."""
        if len(self._values) < 2 or array.null_count or not pa.types.is_primitive(array.type):
            return None
        if pa.types.is_temporal(array.type) or isinstance(self._values[0], str):
            return None
        x = to_numpy(array)
        second = x == self._values[1]
        return second.view(np.uint8) if (second | (x == self._values[0])).all() else None

    def _code(self, value: Value) -> int:
        if self._positive is not None:
            if same_label(value, self._positive):
                self._values = [value]
                return 1
            if len(self._others) < 10:
                self._others.add(value)
            return 0
        if value not in self._values:
            self._values.append(value)
            if len(self._values) > 2:
                shown = ", ".join(map(str, sorted(self._values, key=str)))
                numbers = all(isinstance(value, int | float) for value in self._values)
                regress = "task='regression' (--task regression) to predict numbers, or "
                raise DataError(
                    f"label {self._name!r} has more than 2 values ({shown}, ...); it must have 2. "
                    f"Pass {regress if numbers else ''}positive=... (--positive) to train one "
                    "value against the rest."
                )
        return self._values.index(value)

    @property
    def trainable(self) -> bool:
        """Whether both classes have been found."""
        return len(self._values) + min(len(self._others), 1) == 2

    @property
    def others(self) -> set[Value]:
        """With `positive`: some of the other values."""
        return set(self._others)

    def order(self) -> npt.NDArray[np.uint8]:
        """The class of each code (2,), 0 or 1; a DataError if there is only one value."""
        if self._positive is not None:
            if not self._values:
                shown = ", ".join(map(str, sorted(self._others, key=str)))
                raise DataError(
                    f"label {self._name!r} is never {self._positive!r}; its values are {shown}."
                )
            if not self._others:
                raise DataError(f"label {self._name!r} is {self._positive!r} in every row.")
            other = next(iter(self._others)) if len(self._others) == 1 else None
            self.classes = (other, self._values[0])
            return np.array([0, 1], np.uint8)
        if len(self._values) < 2:
            raise DataError(
                f"label {self._name!r} is {self._values[0]!r} in every row; "
                "training needs two classes."
            )
        try:
            negative, positive = sorted(self._values)
        except TypeError:
            negative, positive = sorted(self._values, key=str)
        self.classes = (negative, positive)
        return np.array([value == positive for value in self._values], np.uint8)


def same_label(a: Any, b: Any) -> bool:
    """Whether two labels are the same, although sources may type them differently.

    Examples
    --------
    >>> same_label(1, "1"), same_label(True, "true"), same_label("Yes", "yes")
    (True, True, False)
    """
    if a == b or str(a) == str(b):
        return True
    return bool in (type(a), type(b)) and str(a).lower() == str(b).lower()


def _plain(value: Any) -> Value | None:
    """A value as JSON can hold it, None if missing; a whole float becomes an integer."""
    if value is None or value != value:
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, bool | int | float | str) else str(value)


def weights(name: str, array: pa.Array) -> npt.NDArray[np.float32]:
    """A block of sample weights; a RowError for one that cannot be a weight."""
    values, mask = numbers(name, array)
    with np.errstate(over="ignore"):  # reported below
        w = values.astype(np.float32)
    if mask is not None:
        w[mask] = np.nan
    bad = ~((w >= 0) & (w <= MAX_WEIGHT))
    if bad.any():
        i = int(np.argmax(bad))
        raise RowError(
            i,
            f"weight {name!r} is {w[i]}; weights must be finite, not negative and at most "
            f"{MAX_WEIGHT:g}.",
        )
    return w
