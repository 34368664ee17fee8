"""Labels of any type: two classes as 0/1 bytes, what all label readers share; weights, offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost.readers.arrays import from_numpy, to_numpy
from sparrowboost.readers.formats import RowError, numbers
from sparrowboost.runtime.errors import DataError

Value = bool | int | float | str

MAX_WEIGHT = 1e12  # below 2**40, up to which rows are distinguished by weight on disk
SHOWN_CHARS = 40  # of a label in a message
MAX_OFFSET = 1e38  # float32 ends at 3.4e38, and sums must fit, too


class LabelReader(Protocol):
    """Reads the labels of a table, block by block.

    There is one of each kind of label:

        LabelCoder     two classes (here)
        ClassReader    more of them (classes.py)
        KnownClasses   those of a model (classes.py)
        StoredClasses  those of a store that grows (known_labels.py)
        TargetReader   numbers to predict (targets.py)
    """

    @property
    def n_classes(self) -> int:
        """Classes known so far, of two classes always 2; 0 of numbers."""
        ...

    @property
    def targeted(self) -> bool:
        """Whether rows have a number for what is to be predicted, besides their band."""
        ...

    @property
    def n_bands(self) -> int: ...

    @property
    def largest_share(self) -> float:
        """Share of the rows in the largest band, as far as it is known."""
        ...

    @property
    def trainable(self) -> bool:
        """Whether the rows read so far have different labels."""
        ...

    @property
    def classes(self) -> Sequence[Value | None] | None:
        """After `order`: the labels, none of numbers."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """After `order`: what else the manifest of a store says of the labels."""
        ...

    def check_type(self, type_: pa.DataType) -> None:
        """A DataError if a column of this type cannot be the label."""
        ...

    def read(self, array: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32] | None]:
        """Codes of a block's bands, and its targets; a RowError for a label that is missing."""
        ...

    def order(self) -> npt.NDArray[np.uint8]:
        """What each code stands for, a class or band; a DataError if all labels are the same."""
        ...


class OtherClassesError(DataError):
    """The classes are more than two, or two, and a sample of the labels said otherwise.

    The rows can be read again from the first. Where the rows read so far are in use already, this
    is the error that the user gets.
    """

    def __init__(self, message: str, *, many: bool) -> None:
        super().__init__(message)
        self.many = many


class LabelCoder:
    """Encodes labels as 0 and 1 block by block, without knowing their values in advance.

    With `positive`, that value is 1 and all others are 0. Without, the first value found is 0 and
    the second 1, and `order` finally maps these codes to classes: the greater value is the positive
    one, as in scikit-learn. A third value is an OtherClassesError; of numbers an error that asks
    whether they are classes, unless `asked`.

    Examples
    --------
    >>> coder = LabelCoder("y")
    >>> coder.encode(pa.array(["yes", "no", "yes"]))
    array([0, 1, 0], dtype=uint8)
    >>> coder.order().tolist(), coder.classes
    ([1, 0], ('no', 'yes'))
    """

    n_classes = n_bands = 2
    targeted = False
    largest_share = 1.0  # nothing is known beforehand
    facts: Mapping[str, Any] = {}

    def __init__(self, name: str, positive: Value | None = None, *, asked: bool = False) -> None:
        self._name = name
        self._positive, self._asked = positive, asked
        self._values: list[Value] = []  # index = code
        self._others: set[Value] = set()  # with positive=: some of the other values
        self.classes: tuple[Value | None, Value] | None = None

    def check_type(self, type_: pa.DataType) -> None:
        check_label_type(self._name, type_)
        if isinstance(self._positive, str) and is_number(type_) and not _is_number(self._positive):
            raise DataError(
                f"label {self._name!r} is never {self._positive!r}: it has type {type_}."
            )

    def read(self, array: pa.Array) -> tuple[npt.NDArray[np.uint8], None]:
        """As a `TargetReader` does: codes stand for its bands, and there are no targets."""
        return self.encode(array), None

    def encode(self, array: pa.Array) -> npt.NDArray[np.uint8]:
        """Codes of a block of labels; a RowError for one that is missing."""
        if (codes := self._quick(array)) is not None:
            return codes
        values, which = different_labels(self._name, array)
        asks = is_number(array.type) and not self._asked
        return np.array([self._code(value, asks) for value in values], np.uint8)[which]

    def _quick(self, array: pa.Array) -> npt.NDArray[np.uint8] | None:
        """Codes of numbers that are all one of two known values, as in most blocks."""
        if len(self._values) < 2 or array.null_count or not pa.types.is_primitive(array.type):
            return None
        if pa.types.is_temporal(array.type) or isinstance(self._values[0], str):
            return None
        x = to_numpy(array)
        second = x == self._values[1]
        return second.view(np.uint8) if (second | (x == self._values[0])).all() else None

    def _code(self, value: Value, asks: bool) -> int:
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
                self._refuse_third(asks)
        return self._values.index(value)

    def _refuse_third(self, asks: bool) -> NoReturn:
        if asks:
            shown = ", ".join(map(short, sorted(self._values, key=str)))
            raise DataError(
                f"label {self._name!r} has more than 2 values ({shown}, ...). If they are "
                "classes, pass task='classification' (--task classification); to predict "
                "numbers, task='regression' (--task regression); to train one value against the "
                "rest, positive=... (--positive)."
            )
        raise OtherClassesError(
            f"label {self._name!r} has a third value, {self._values[-1]!r}, which a sample of the "
            "labels did not have, and training had begun with two. Ingest all rows first "
            "(`sparrow ingest`, or sparrowboost.ingest), and train on the store.",
            many=True,
        )

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
                shown = ", ".join(map(short, sorted(self._others, key=str)))
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
        negative, positive = in_order(self._values)
        self.classes = (negative, positive)
        return np.array([value == positive for value in self._values], np.uint8)


def short(value: Value) -> str:
    """A label in a message: an integer may have hundreds of digits, and a text thousands of words.

    Examples
    --------
    >>> short("yes"), short(10**300)
    ('yes', '1000000000000000000000000000000000000000...')
    """
    text = str(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def check_label_type(name: str, type_: pa.DataType) -> None:
    """A DataError if values of this type cannot be labels."""
    if pa.types.is_nested(type_):
        raise DataError(f"label {name!r} has type {type_}; it must have one value per row.")


def is_number(type_: pa.DataType) -> bool:
    """Whether values of this type may be numbers to predict. Those of dictionaries are classes."""
    return pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)


def different_labels(name: str, array: pa.Array) -> tuple[list[Value], npt.NDArray[np.int64]]:
    """The labels in a block, and which of them each row has; a RowError for one that is missing.

    Examples
    --------
    >>> values, which = different_labels("y", pa.array([2.0, 0.5, 2.0]))
    >>> values, which.tolist()
    ([2, 0.5], [0, 1, 0])
    """
    check_label_type(name, array.type)
    coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    n = len(coded.dictionary)
    indices = to_numpy(coded.indices.cast(pa.int64()), n)
    counts = np.bincount(indices, minlength=n + 1)
    used = np.flatnonzero(counts[:n])  # a dictionary may have many more entries
    values = [_plain(value) for value in coded.dictionary.take(from_numpy(used)).to_pylist()]
    number = np.full(n + 1, len(used))
    number[used] = np.arange(len(used))
    which = number[indices]
    if counts[n] or None in values:
        missing = np.array([*(value is None for value in values), True])[which]
        raise RowError(
            int(np.argmax(missing)), f"label {name!r} is missing; remove rows without a label."
        )
    return [value for value in values if value is not None], which


def in_order(values: Iterable[Value]) -> list[Value]:
    """Labels in the order of classes: by value, or as texts if they cannot be compared.

    Examples
    --------
    >>> in_order([10, 9.5]), in_order(["b", "a"]), in_order([10, "9", True])
    ([9.5, 10], ['a', 'b'], [10, '9', True])
    """
    values = list(values)
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=str)


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


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _plain(value: Any) -> Value | None:
    """A value as JSON can hold it, None if missing; a whole float becomes an integer."""
    if value is None or value != value:
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, bool | int | float | str) else str(value)


def as_float32(name: str, array: pa.Array) -> npt.NDArray[np.float32]:
    """Numbers as float32, missing ones as NaN; those that are too large become infinite."""
    values, mask = numbers(name, array)
    with np.errstate(over="ignore"):
        made = values.astype(np.float32)
    if mask is not None:
        made[mask] = np.nan
    return made


def _refuse_times(role: str, name: str, type_: pa.DataType) -> None:
    """A DataError for dates, times and durations, which would count as microseconds."""
    if pa.types.is_temporal(type_):
        raise DataError(f"{role} {name!r} has type {type_} where numbers are needed; convert it.")


def weights(name: str, array: pa.Array) -> npt.NDArray[np.float32]:
    """A block of sample weights; a RowError for one that cannot be a weight."""
    _refuse_times("weight", name, array.type)
    w = as_float32(name, array)
    bad = ~((w >= 0) & (w <= MAX_WEIGHT))
    if bad.any():
        i = int(np.argmax(bad))
        raise RowError(
            i,
            f"weight {name!r} is {w[i]}; weights must be finite, not negative and at most "
            f"{MAX_WEIGHT:g}.",
        )
    return w


def offsets(name: str, array: pa.Array) -> npt.NDArray[np.float32]:
    """A block of offsets; a RowError for one that is missing or not finite."""
    _refuse_times("offset", name, array.type)
    offset = as_float32(name, array)
    bad = ~(np.abs(offset) <= MAX_OFFSET)
    if bad.any():
        i = int(np.argmax(bad))
        raise RowError(
            i,
            f"offset {name!r} is {offset[i]}; offsets must be finite. That of an exposure is its "
            "logarithm: leave out rows without any exposure.",
        )
    return offset
