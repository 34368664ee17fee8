"""Labels of more than two classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost.readers.formats import RowError
from sparrowboost.readers.labels import (
    OtherClassesError,
    Value,
    check_label_type,
    different_labels,
    in_order,
    is_number,
    same_label,
)
from sparrowboost.readers.targets import Target
from sparrowboost.runtime.errors import DataError

MAX_CLASSES = 255
MAX_BANDS = 8
SHOWN_CLASSES = 8  # in messages


class ClassReader:
    """Reads labels as numbers of classes, without knowing all classes in advance.

    A label's code is its number in the order in which labels were found, as float32; `facts`
    finally says which class each code is. Bands are groups of classes that are about as frequent:
    of few classes, each is a band. `set_bands` finds them from a sample; until then, all rows are
    in one.

    Attributes
    ----------
    n_bands : int
        At most 8.
    largest_share : float
        Share of the largest band in the sample.
    classes : list of labels or None
        In their order; known after `order`.
    facts : dict
        After `order`, of the manifest: the class of each code, and rows and band of each class.

    Examples
    --------
    >>> reader = ClassReader("y")
    >>> reader.set_bands({"c": 5, "a": 2, "b": 2})
    >>> reader.read(pa.array(["c", "a", "d", "b"]))
    (array([0, 1, 2, 2], dtype=uint8), array([2., 0., 3., 1.], dtype=float32))
    >>> reader.order(), reader.classes
    (array([0, 1, 2], dtype=uint8), ['a', 'b', 'c', 'd'])
    >>> reader.facts
    {'class_of': [0, 1, 2, 3], 'class_rows': [1, 1, 1, 1], 'class_band': [1, 2, 0, 2]}
    """

    targeted = True

    def __init__(self, name: str) -> None:
        self._name = name
        self._codes: dict[Value, int] = {}
        self._rows = np.zeros(MAX_CLASSES, np.int64)  # of each code
        self._band = np.zeros(MAX_CLASSES, np.uint8)  # of each code
        self.n_bands, self.largest_share = 1, 1.0
        self.classes: list[Value] | None = None
        self.facts: Mapping[str, Any] = {}

    @property
    def n_classes(self) -> int:
        return len(self._codes)

    @property
    def known(self) -> list[Value]:
        """The classes known so far, by code."""
        return list(self._codes)

    @property
    def trainable(self) -> bool:
        """Whether the rows read so far have different classes."""
        return bool(np.count_nonzero(self._rows) > 1)

    def check_type(self, type_: pa.DataType) -> None:
        check_label_type(self._name, type_)

    def set_bands(self, sample: Mapping[Value, int]) -> None:
        """Find the bands from the classes of a sample and their rows in it.

        More classes than there may be are left to `read`, which has rows that are surely whole.
        """
        if not 0 < len(sample) <= MAX_CLASSES:
            return
        found = in_order(sample)
        self._codes = {value: code for code, value in enumerate(found)}
        rows = np.array([sample[value] for value in found], np.int64)
        band = group_classes(rows)
        self.n_bands = int(band.max()) + 1
        self._band[:] = self.n_bands - 1  # classes that the sample lacks are rare
        self._band[: len(band)] = band
        self.largest_share = float(np.bincount(band, rows).max() / rows.sum())

    def read(self, array: pa.Array) -> tuple[npt.NDArray[np.uint8], Target]:
        """Bands and codes of a block of labels; a RowError for one that is missing."""
        values, which = different_labels(self._name, array)
        numbers = is_number(array.type)
        codes = np.array([self._code(value, numbers) for value in values], np.int64)[which]
        self._rows += np.bincount(codes, minlength=MAX_CLASSES)
        return self._band[codes], codes.astype(np.float32)

    def _code(self, value: Value, numbers: bool) -> int:
        code = self._codes.get(value)
        if code is None:
            if len(self._codes) == MAX_CLASSES:
                raise too_many_classes(self._name, [*self._codes, value], numbers=numbers)
            code = self._codes[value] = len(self._codes)
        return code

    def order(self) -> npt.NDArray[np.uint8]:
        """The bands (n_bands,) in their order; sets `classes` and `facts`.

        Of fewer than three classes, an error: lines of a sample may be broken ones, with texts that
        no label has.
        """
        found = [value for value, code in self._codes.items() if self._rows[code]]
        if len(found) == 1:
            raise DataError(
                f"label {self._name!r} is {found[0]!r} in every row; training needs two classes."
            )
        if len(found) == 2:
            raise OtherClassesError(f"label {self._name!r} has only two values.", many=False)
        self.classes = in_order(found)
        codes = np.array([self._codes[value] for value in self.classes], np.int64)
        class_of = np.zeros(len(self._codes), np.int64)
        class_of[codes] = np.arange(len(codes))
        self.facts = {
            "class_of": class_of.tolist(),
            "class_rows": self._rows[codes].tolist(),
            "class_band": self._band[codes].tolist(),
        }
        return np.arange(self.n_bands, dtype=np.uint8)


class ClassNumbers:
    """Finds the numbers of known classes; any other label is an error.

    Parameters
    ----------
    name : str
        The label's.
    classes : sequence
        If the first is None, it stands for all labels but the others.
    whose : str
        What has these classes, in an error.
    advice : str
        What to do about the error.
    """

    def __init__(self, name: str, classes: Sequence[Any], whose: str, advice: str = "") -> None:
        self._name, self._classes, self._whose, self._advice = name, classes, whose, advice
        self._numbers = {value: k for k, value in enumerate(classes) if value is not None}

    def read(self, array: pa.Array) -> npt.NDArray[np.int64]:
        """The class of each label of a block; a RowError for one that is missing or unknown."""
        values, which = different_labels(self._name, array)
        found = np.array([self._find(value) for value in values], np.int64)[which]
        if (found < 0).any():
            row = int(np.argmax(found < 0))
            raise RowError(
                row,
                f"label {values[which[row]]!r} is not in {self._whose}, which has "
                f"{name_classes(self._classes)}{self._advice}.",
            )
        return found

    def _find(self, value: Value) -> int:
        """The number of a class, of whatever type the label is; -1 if there is none."""
        if value not in self._numbers:
            known = (k for k, label in enumerate(self._classes) if same_label(label, value))
            number = next(known, -1)
            if number < 0:  # not kept: there may be many
                return 0 if self._classes[0] is None else number
            self._numbers[value] = number
        return self._numbers[value]


class KnownClasses:
    """Reads labels as numbers of the classes of a model; any other label is an error.

    Examples
    --------
    >>> KnownClasses("y", (1, 2, 3)).read(pa.array(["3", "1"]))
    (array([0, 0], dtype=uint8), array([2., 0.], dtype=float32))
    """

    targeted, trainable = True, True
    n_bands, largest_share = 1, 1.0
    facts: Mapping[str, Any] = {}

    def __init__(self, name: str, classes: Sequence[Value]) -> None:
        self._name, self.classes = name, classes
        self._numbers = ClassNumbers(name, classes, "the training data")

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    def check_type(self, type_: pa.DataType) -> None:
        check_label_type(self._name, type_)

    def read(self, array: pa.Array) -> tuple[npt.NDArray[np.uint8], Target]:
        """Bands, all 0, and classes; a RowError for a label that is missing or unknown."""
        found = self._numbers.read(array)
        return np.zeros(len(found), np.uint8), found.astype(np.float32)

    def order(self) -> npt.NDArray[np.uint8]:
        return np.zeros(1, np.uint8)


def group_classes(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """The band of each class, by the numbers of their rows: band 0 has the most frequent ones.

    The band whose classes differ most is split in two, until there are 8, or one for each class.

    Examples
    --------
    >>> group_classes(np.array([7, 900, 6_000, 10, 9, 20, 95, 850, 12, 8, 90])).tolist()
    [7, 1, 0, 5, 5, 3, 2, 1, 4, 6, 2]
    """
    order = np.argsort(-rows, kind="stable")
    size = np.log(rows[order])  # falls
    starts, stops = [0], [len(rows)]
    while len(starts) < min(MAX_BANDS, len(rows)):
        pairs = zip(starts, stops, strict=True)
        spread = [(size[a] - size[b - 1], b - a) if b - a > 1 else (-1.0, 0) for a, b in pairs]
        widest = spread.index(max(spread))
        a, b = starts[widest], stops[widest]
        middle = (size[a] + size[b - 1]) / 2
        cut = a + int(np.count_nonzero(size[a:b] > middle))
        cut = min(max(cut, a + 1), b - 1) if size[a] > size[b - 1] else (a + b) // 2
        starts.insert(widest + 1, cut)
        stops.insert(widest, cut)
    band = np.empty(len(rows), np.uint8)
    for number, (a, b) in enumerate(zip(starts, stops, strict=True)):
        band[order[a:b]] = number
    return band


def too_many_classes(name: str, values: Sequence[Value], *, numbers: bool) -> DataError:
    """The error for labels of more than 255 values."""
    advice = " If they are numbers to predict, pass task='regression' (--task regression)."
    return DataError(
        f"label {name!r} has more than {MAX_CLASSES} values ({name_classes(values)}); that many "
        "classes can be told apart. Join rare ones into one first."
        f"{advice if numbers else ''}"
    )


def name_classes(classes: Sequence[Any]) -> str:
    """Classes in words, the first few of many.

    Examples
    --------
    >>> name_classes(["a", "b", "c"]), name_classes(range(10))
    ("'a', 'b' and 'c'", '0, 1, 2, 3, 4, 5, 6, 7 and 2 more')
    """
    shown = [repr(label) for label in classes[:SHOWN_CLASSES]]
    more = len(classes) - len(shown)
    last = f"{more} more" if more else shown.pop()
    return f"{', '.join(shown)} and {last}" if shown else last
