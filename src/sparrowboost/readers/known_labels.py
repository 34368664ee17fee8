"""Labels whose classes or bands are known: those of a store that grows, or of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost.readers.classes import ClassNumbers, group_classes
from sparrowboost.readers.labels import check_label_type
from sparrowboost.readers.targets import Target, TargetReader

ADVICE = "; leave such rows out, or ingest old and new rows together into a new store"


class StoredClasses:
    """Reads labels as the classes of a store; any other label is an error.

    Of two classes, codes are 0 and 1; a negative class of None stands for all other labels. Of
    more, each has a band, and a code that is stored.

    Parameters
    ----------
    name : str
        The label's.
    classes : sequence
    largest_share : float
        Share of the rows in the largest band.
    bands, codes : (n_classes,) int, optional
        Of each class, where there are more than two.
    n_bands : int

    Examples
    --------
    >>> StoredClasses("y", ("no", "yes")).read(pa.array(["yes", "no"]))
    (array([1, 0], dtype=uint8), None)
    >>> many = StoredClasses("y", (1, 2, 3), bands=[0, 1, 1], codes=[2, 0, 1])
    >>> many.read(pa.array(["3", "1"]))
    (array([1, 0], dtype=uint8), array([1., 2.], dtype=float32))
    """

    trainable = True
    whose = "the store"

    def __init__(
        self,
        name: str,
        classes: Sequence[Any],
        *,
        largest_share: float = 1.0,
        bands: Sequence[int] | npt.NDArray[np.int64] = (0, 1),
        codes: Sequence[int] | npt.NDArray[np.int64] = (),
        n_bands: int = 2,
    ) -> None:
        self._name, self.classes, self.largest_share = name, classes, largest_share
        self._bands, self._codes = np.array(bands, np.uint8), np.array(codes, np.float32)
        self.n_bands = n_bands
        self._numbers = ClassNumbers(name, classes, self.whose, ADVICE)
        self._rows = np.zeros(len(classes), np.int64)

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def targeted(self) -> bool:
        return self.n_classes > 2

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"class_rows": self._rows.tolist()} if self.targeted else {}

    def check_type(self, type_: pa.DataType) -> None:
        check_label_type(self._name, type_)

    def read(self, array: pa.Array) -> tuple[npt.NDArray[np.uint8], Target | None]:
        """Bands and codes of a block; a RowError for a label that is missing or unknown."""
        found = self._numbers.read(array)
        self._rows += np.bincount(found, minlength=self.n_classes)
        return self._bands[found], self._codes[found] if self.targeted else None

    def order(self) -> npt.NDArray[np.uint8]:
        return np.arange(self.n_bands, dtype=np.uint8)


class ModelClasses(StoredClasses):
    """Reads labels as the classes of a model, of which the rows need not have all, for a new store.

    Parameters
    ----------
    name : str
        The label's.
    classes : sequence
        More than two.
    sample : (n_classes,) int
        Rows of each class in a sample of the labels, by which bands are found.

    Examples
    --------
    >>> reader = ModelClasses("y", ("a", "b", "c"), np.array([3, 0, 9]))
    >>> reader.read(pa.array(["c", "a"]))
    (array([0, 1], dtype=uint8), array([2., 0.], dtype=float32))
    >>> reader.facts
    {'class_rows': [1, 0, 1], 'class_of': [0, 1, 2], 'class_band': [1, 2, 0]}
    """

    whose = "the model or store that the bins are of"

    def __init__(self, name: str, classes: Sequence[Any], sample: npt.NDArray[np.int64]) -> None:
        bands = group_classes(np.maximum(sample, 1))
        share = float(np.bincount(bands, sample).max() / max(sample.sum(), 1))
        super().__init__(
            name,
            classes,
            largest_share=share,
            bands=bands.astype(np.int64),
            codes=np.arange(len(classes)),
            n_bands=int(bands.max()) + 1,
        )

    @property
    def facts(self) -> Mapping[str, Any]:
        order = list(range(self.n_classes))
        return {**super().facts, "class_of": order, "class_band": self._bands.tolist()}


class StoredTargets(TargetReader):
    """Reads numbers to predict, in the bands of a store.

    Parameters
    ----------
    name : str
    starts : (n_bands - 1,) float
        Where all bands but the lowest start.
    largest_share : float

    Examples
    --------
    >>> StoredTargets("y", [1, 5], 0.5).read(pa.array([0, 9]))
    (array([0, 2], dtype=uint8), array([0., 9.], dtype=float32))
    """

    trainable = True

    def __init__(self, name: str, starts: Sequence[float], largest_share: float) -> None:
        super().__init__(name)
        self._starts = np.array(starts, np.float32)
        self.largest_share = largest_share
        self.facts = {"band_starts": self._starts.tolist()}

    def order(self) -> npt.NDArray[np.uint8]:
        return np.arange(self.n_bands, dtype=np.uint8)
