"""Labels and weights: whatever the user has, as 0/1 bytes and positive floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparrowboost.errors import DataError
from sparrowboost.sources import numbers

Value = bool | int | float | str


class LabelCoder:
    """Codes labels 0 and 1 block by block, without knowing beforehand what values there are.

    With `positive`, 1 is that value and 0 all others. Without, the first value met is coded 0 and
    the second 1, and `order` says in the end whether these codes are the right way round: the
    greater value is the positive one, as scikit-learn has it.

    Examples
    --------
    >>> coder = LabelCoder("y")
    >>> coder.encode(pa.array(["yes", "no", "yes"]), 0)
    array([0, 1, 0], dtype=uint8)
    >>> coder.order().tolist(), coder.classes
    ([1, 0], ('no', 'yes'))
    """

    def __init__(self, name: str, positive: Value | None = None) -> None:
        self._name = name
        self._positive = positive
        self._values: list[Value] = []  # place = code
        self._others: set[Value] = set()  # with positive=: some values that are not it
        self.classes: tuple[Value | None, Value] | None = None

    def encode(self, array: pa.Array, first_row: int) -> npt.NDArray[np.uint8]:
        """Codes of a block of labels that begins at row `first_row` of the source."""
        if pa.types.is_floating(array.type):
            array = pc.if_else(pc.is_nan(array), None, array)
        if array.null_count:
            row = first_row + int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
            raise DataError(
                f"label {self._name!r} is missing in row {row + 1:,} (the first row is 1); "
                "remove the rows without a label."
            )
        coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
        values = [_plain(value) for value in coded.dictionary.to_pylist()]
        places = coded.indices.to_numpy()
        used = np.bincount(places, minlength=len(values)) > 0
        codes = np.array(
            [self._code(v) if u else 0 for v, u in zip(values, used, strict=True)], np.uint8
        )
        return codes[places]

    def _code(self, value: Value) -> int:
        if self._positive is not None:
            if value == self._positive or str(value) == str(self._positive):
                self._values = [value]
                return 1
            if len(self._others) < 10:
                self._others.add(value)
            return 0
        if value not in self._values:
            self._values.append(value)
            if len(self._values) > 2:
                shown = ", ".join(map(str, sorted(self._values, key=str)))
                raise DataError(
                    f"label {self._name!r} has more than 2 values ({shown}, ...); it must have 2. "
                    "Pass positive=... (--positive) to train one value against the rest."
                )
        return self._values.index(value)

    def order(self) -> npt.NDArray[np.uint8]:
        """(2,) what each code means, 0 or 1; a DataError if the label never changed."""
        if self._positive is not None:
            if not self._values:
                shown = ", ".join(map(str, sorted(self._others, key=str)))
                raise DataError(
                    f"label {self._name!r} is never {self._positive!r}; its values are {shown}."
                )
            if not self._others:
                raise DataError(f"label {self._name!r} is {self._positive!r} in every row.")
            other = self._others.pop() if len(self._others) == 1 else None
            self.classes = (other, self._values[0])
            return np.array([0, 1], np.uint8)
        if len(self._values) < 2:
            raise DataError(
                f"label {self._name!r} is {self._values[0]!r} in every row; "
                "there is nothing to tell apart."
            )
        try:
            negative, positive = sorted(self._values)
        except TypeError:
            negative, positive = sorted(self._values, key=str)
        self.classes = (negative, positive)
        return np.array([value == positive for value in self._values], np.uint8)


def _plain(value: Any) -> Value:
    """A value that JSON can hold; a whole float is the same label as the integer."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, bool | int | float | str) else str(value)


def weights(name: str, array: pa.Array, first_row: int) -> npt.NDArray[np.float32]:
    """A block of sample weights; a DataError names the row of one that cannot be a weight."""
    values, mask = numbers(name, array)
    w = values.astype(np.float32)
    if mask is not None:
        w[mask] = np.nan
    bad = ~((w >= 0) & (w < np.inf))
    if bad.any():
        i = int(np.argmax(bad))
        raise DataError(
            f"weight {name!r} is {w[i]} in row {first_row + i + 1:,} (the first row is 1); "
            "weights must be finite and not negative."
        )
    return w
