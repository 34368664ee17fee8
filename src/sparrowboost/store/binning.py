"""Values to bins, by the thresholds or categories of each feature (found in bin_finder.py).

A binned value is one byte. Of a feature with k value bins,

    0 ... k-1    numbers: bin b has the values above thresholds[b-1] and up to thresholds[b]
                 categories: the k-1 most frequent ones in descending order; k-1 is all others
    k            missing

so a feature has no unused bins, and histograms can be laid out end to end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from sparrowboost.readers.arrays import from_numpy, nulls, strings, to_numpy
from sparrowboost.readers.formats import Kind, categories, numbers, plain_words
from sparrowboost.store.category_statistics import CategoryStatistics, CodedWords, FoldTable
from sparrowboost.store.lookup import (
    Bins,
    CodedColumn,
    TableLookup,
    ThresholdLookup,
    bin_coded,
    read_only,
)

MAX_BINS = 255  # of values; with the missing bin, 256: one byte
MAX_CATEGORIES = MAX_BINS - 1  # one bin is for all the others
CACHE_BYTES = 1 << 18  # of bins that are made at once: they stay in the second-level cache

DTYPES: dict[Kind, type[np.generic]] = {
    "float32": np.float32,
    "float64": np.float64,
    "int64": np.int64,
    "uint64": np.uint64,
    "time": np.int64,
    "null": np.float64,
}

# The dtype in which the kernels get a kind's values; categories are indices into a dictionary.
WORK_DTYPES: dict[Kind, type[np.generic]] = {
    **DTYPES, "uint64": np.int64, "category": np.int32
}  # fmt: skip

Job = Callable[[int, int, Bins], None]  # bin rows [start, stop) into a column


@dataclass(frozen=True)
class NumberFeature:
    """A feature of numbers or times, and the thresholds between its bins.

    Examples
    --------
    >>> feature = NumberFeature("x", "float64", np.array([0.5, 1.5]))
    >>> feature.bin(pa.array([0.0, 0.5, 1.0, 9.0, None]))
    array([0, 0, 1, 2, 3], dtype=uint8)
    """

    name: str
    kind: Kind
    thresholds: npt.NDArray[Any]  # (k-1,) ascending, of the kind's dtype

    @property
    def n_values(self) -> int:
        """Number of bins, not counting that of missing values."""
        return len(self.thresholds) + 1

    @property
    def blank(self) -> bool:
        """Whether no value was seen, so that not even the type is known."""
        return self.kind == "null" and not len(self.thresholds)

    def bin(self, array: pa.Array) -> Bins:
        """The bins of a column."""
        out = np.empty(len(array), np.uint8)
        self.job(array)(0, len(array), out)
        return out

    def job(self, array: pa.Array) -> Job:
        """A function that bins some rows of a column."""
        if self.blank:
            return self._missing_or_not(array)
        values, mask = numbers(self.name, array)
        x, lookup = self._comparable(values)
        if x.dtype.kind == "i" and values.dtype.kind == "f":
            mask = np.isnan(values)

        def run(start: int, stop: int, out: Bins) -> None:
            lookup(x[start:stop], out)
            if mask is not None:
                out[mask[start:stop]] = self.n_values

        return run

    def _missing_or_not(self, array: pa.Array) -> Job:
        """The job for values of any type: bin 0, or 1 if missing."""
        if pt.is_dictionary(array.type):
            array = array.dictionary_decode()
        missing = to_numpy(array.is_null(nan_is_null=True)).view(np.uint8)
        return lambda start, stop, out: np.copyto(out, missing[start:stop])

    def _comparable(
        self, values: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], ThresholdLookup | TableLookup]:
        """The values in a dtype in which comparing them with thresholds is exact; its lookup."""
        dtype = DTYPES[self.kind]
        if values.dtype.kind in "iu" and values.dtype.itemsize <= 2:
            return values.view(f"u{values.dtype.itemsize}"), self._lookup(values.dtype.str)
        if values.dtype == dtype == np.float32:
            return values, self._lookup("float32")
        if dtype in (np.float32, np.float64):
            return read_only(values.astype(np.float64, copy=False)), self._lookup("float64")
        return read_only(_as_int64(values, unsigned=dtype is np.uint64)), self._lookup("int64")

    def _lookup(self, dtype: str) -> ThresholdLookup | TableLookup:
        """The lookup for values of a dtype, made when it is first needed."""
        if dtype not in self._lookups:
            self._lookups[dtype] = self._make_lookup(dtype)
        return self._lookups[dtype]

    @cached_property
    def _lookups(self) -> dict[str, ThresholdLookup | TableLookup]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return _fields_of(self)

    def _make_lookup(self, dtype: str) -> ThresholdLookup | TableLookup:
        if np.dtype(dtype).itemsize <= 2:
            return TableLookup(self._bins_of_all(np.dtype(dtype)))
        if dtype == "int64":
            thresholds = _as_int64(self.thresholds, unsigned=self.kind == "uint64")
        else:
            thresholds = self.thresholds.astype(dtype)
        return ThresholdLookup(thresholds, np.uint8(self.n_values))

    def _bins_of_all(self, dtype: np.dtype[Any]) -> Bins:
        """The bin of every value of a small integer type, in the order of its bits."""
        bits = np.arange(2 ** (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}")
        return self.bin(from_numpy(bits.view(dtype).astype(np.int64)))

    def span(self) -> str:
        """The first and last threshold, as text to show."""
        return " ... ".join(self.edges()) if len(self.thresholds) else "one value"

    def edges(self) -> tuple[str, str]:
        """The first and last threshold, as texts; of no thresholds, infinity."""
        if not len(self.thresholds):
            return "-inf", "inf"
        first, last = self.thresholds[0], self.thresholds[-1]
        if self.kind == "time":
            return str(np.datetime64(int(first), "us")), str(np.datetime64(int(last), "us"))
        return f"{first:.6g}", f"{last:.6g}"

    def to_json(self) -> dict[str, Any]:
        thresholds: list[Any] = self.thresholds.tolist()
        if not np.isfinite(self.thresholds).all():  # JSON has no infinity
            thresholds = [t if math.isfinite(t) else str(t) for t in thresholds]
        return {"name": self.name, "kind": self.kind, "thresholds": thresholds}


@dataclass(frozen=True)
class CategoryFeature:
    """A feature of categories; all others share one bin.

    A string that is not among them is looked up again as `plain_words` writes it: text files have
    neither types nor spaces around strings.

    Examples
    --------
    >>> feature = CategoryFeature("x", ("red", "blue"))
    >>> feature.bin(pa.array(["blue", "red", "green", None, " red"]))
    array([1, 0, 2, 3, 0], dtype=uint8)
    """

    name: str
    categories: tuple[str, ...]  # most frequent first
    kind: Kind = "category"

    @property
    def n_values(self) -> int:
        """Number of bins with that of other categories, not counting that of missing values."""
        return len(self.categories) + 1

    def bin(self, array: pa.Array) -> Bins:
        """The bins of a column."""
        out = np.empty(len(array), np.uint8)
        self.job(array)(0, len(array), out)
        return out

    def codes(self, array: pa.Array) -> CodedColumn | None:
        """The column as byte codes, if it has few categories and no value is missing."""
        if not pt.is_dictionary(array.type) or array.type.index_type.bit_width > 8:
            return None
        coded = categories(self.name, array)
        if coded.indices.null_count:
            return None
        lookup = self._lookup(coded.dictionary)
        return CodedColumn(to_numpy(coded.indices).view(np.uint8), lookup.bins)

    def job(self, array: pa.Array) -> Job:
        """A function that bins some rows of a column."""
        coded = categories(self.name, array)
        lookup = self._lookup(coded.dictionary)
        indices = coded.indices
        if indices.null_count:  # missing is the last entry of the table
            indices = indices.cast(pa.int32())
        x = to_numpy(indices, len(coded.dictionary))
        small = x.dtype.itemsize <= 2
        x = read_only(x.view(f"u{x.dtype.itemsize}") if small else x.astype(np.int32, copy=False))
        return lambda start, stop, out: lookup(x[start:stop], out)

    def _lookup(self, dictionary: pa.Array) -> TableLookup:
        """The bin of each entry of a dictionary; blocks often have the same one as the last."""
        last = self._last.get("")  # one read: another thread may replace it
        if last is not None and last[0].equals(dictionary):
            return last[1]
        names = strings(self.categories)
        known = pc.index_in(dictionary, names)
        if known.null_count:  # a source may write the same string in another way
            known = pc.coalesce(known, pc.index_in(plain_words(dictionary), plain_words(names)))
        # A null in the dictionary is missing, as one in the column is.
        known = np.where(nulls(dictionary), self.n_values, to_numpy(known, len(self.categories)))
        bins = np.append(known, self.n_values).astype(np.uint8)
        lookup = TableLookup(bins)
        self._last[""] = dictionary, lookup
        return lookup

    @cached_property
    def _last(self) -> dict[str, tuple[pa.Array, TableLookup]]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return _fields_of(self)

    def span(self) -> str:
        """The most frequent categories, as text to show."""
        more = len(self.categories) - 4
        return ", ".join(self.categories[:4]) + (f", ... ({more} more)" if more > 0 else "")

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "kind": self.kind, "categories": list(self.categories)}


Feature = NumberFeature | CategoryFeature


def _fields_of(feature: Feature) -> dict[str, Any]:
    """What is pickled: not the lookups, which are large and can be made again."""
    return {field.name: getattr(feature, field.name) for field in fields(feature)}


@dataclass(frozen=True)
class BinnedBatch:
    """Rows whose features are binned already, and their other columns.

    It has those properties of a record batch that are asked for.
    """

    bins: Bins  # (d, n)
    others: pa.RecordBatch

    @property
    def num_rows(self) -> int:
        return int(self.bins.shape[1])

    def column(self, name: str) -> pa.Array:
        return self.others.column(name)


class RowFolds(NamedTuple):
    """Which fold each row of a block is in, and the statistics of the columns by fold."""

    folds: npt.NDArray[np.uint8]  # (n,)
    tables: Sequence[FoldTable]  # in the order of the binning's statistics


@dataclass(frozen=True)
class Binning:
    """All features of a table, in the order of the columns of its bins.

    Those of the table's columns come first, then those of the columns' statistics.
    """

    columns: tuple[Feature, ...]
    statistics: tuple[CategoryStatistics, ...] = ()

    @cached_property
    def features(self) -> tuple[Feature, ...]:
        """All features; statistics are numbers."""
        return self.columns + tuple(
            NumberFeature(name, "float32", cuts)
            for some in self.statistics
            for name, cuts in zip(some.names, some.thresholds, strict=True)
        )

    @property
    def names(self) -> list[str]:
        return [feature.name for feature in self.features]

    @property
    def column_names(self) -> list[str]:
        """The columns of the table that the features are made of."""
        return [feature.name for feature in self.columns]

    @cached_property
    def column_of(self) -> npt.NDArray[np.int64]:
        """(d,) the column that each feature is made of, as an index into `columns`."""
        number = {name: j for j, name in enumerate(self.column_names)}
        more = [number[some.column] for some in self.statistics for _ in some.names]
        return np.array([*range(len(self.columns)), *more], np.int64)

    @property
    def n_bins(self) -> npt.NDArray[np.int64]:
        """(d,) number of bins of each feature, with that of missing values."""
        return np.array([feature.n_values + 1 for feature in self.features], np.int64)

    def with_statistics(self, statistics: Iterable[CategoryStatistics]) -> Binning:
        return Binning(self.columns, tuple(statistics))

    def apply(
        self, batch: pa.RecordBatch | BinnedBatch, out: Bins, rows: RowFolds | None = None
    ) -> None:
        """Bin a row block into `out` (n, d), any strides.

        `rows`: of rows that the statistics were made from, which do not get their own.
        """
        if isinstance(batch, BinnedBatch):
            from sparrowboost.kernels.rows import columns_to_rows

            columns_to_rows(batch.bins, out)
            return
        codes: dict[int, CodedColumn] = {}
        jobs: dict[int, Job] = {}
        words = {one.column: _encoded(batch.column(one.column)) for one in self.statistics}
        for j, feature in enumerate(self.columns):
            array = words.get(feature.name)
            array = batch.column(feature.name) if array is None else array
            coded = feature.codes(array) if isinstance(feature, CategoryFeature) else None
            if coded is not None:
                codes[j] = coded
            else:
                jobs[j] = feature.job(array)
        jobs |= self._statistics_jobs(words, rows)
        if codes:
            bin_coded(codes, out)
        n = max(1024, CACHE_BYTES // len(self.features))
        for start in range(0, batch.num_rows if jobs else 0, n):
            stop = min(start + n, batch.num_rows)
            for j, job in jobs.items():
                job(start, stop, out[start:stop, j])

    def _statistics_jobs(
        self, arrays: Mapping[str, pa.Array], rows: RowFolds | None
    ) -> dict[int, Job]:
        """What bins the statistics of columns of a block, by number of the feature."""
        j = len(self.columns)
        jobs: dict[int, Job] = {}
        tables = self.statistics if rows is None else rows.tables
        for some, table in zip(self.statistics, tables, strict=True):
            words = CodedWords.of(some.column, arrays[some.column])
            bins = table.bins_of(words.hashes)
            missing = np.broadcast_to(some.missing, (1, *bins.shape[1:]))
            for own in np.concatenate((bins, missing)).transpose(2, 0, 1):  # (m + 1, f) each
                if rows is None:
                    jobs[j] = _by_table(words.codes, TableLookup(own[:, 0].copy()))
                else:
                    jobs[j] = _by_fold(words.codes, rows.folds, own.copy())
                j += 1
        return jobs

    def part(self, columns: slice) -> Binning:
        """Some of the columns, with their statistics."""
        some = self.columns[columns]
        names = {feature.name for feature in some}
        return Binning(
            # Copies, whose lookups are freed with them: together they may take more than the bins.
            tuple(replace(feature) for feature in some),
            tuple(one for one in self.statistics if one.column in names),
        )

    def to_json(self) -> list[dict[str, Any]]:
        statistics = {some.column: some.to_json() for some in self.statistics}
        items = [feature.to_json() for feature in self.columns]
        return [
            {**item, **statistics[item["name"]]} if item["name"] in statistics else item
            for item in items
        ]

    @classmethod
    def from_json(cls, items: Sequence[Mapping[str, Any]]) -> Binning:
        return cls(
            tuple(_feature_from_json(item) for item in items),
            tuple(CategoryStatistics.from_json(item) for item in items if "statistics" in item),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"columns": self.columns, "statistics": self.statistics}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        if "features" in state:  # of versions without statistics
            state = {"columns": state["features"], "statistics": ()}
        vars(self).update(state)


def _encoded(array: pa.Array) -> pa.Array:
    """A column as a dictionary, which takes time and is used twice."""
    return array if pt.is_dictionary(array.type) else array.dictionary_encode()


def _by_table(codes: npt.NDArray[np.int32], lookup: TableLookup) -> Job:
    return lambda start, stop, out: lookup(codes[start:stop], out)


def _by_fold(codes: npt.NDArray[np.int32], folds: npt.NDArray[np.uint8], table: Bins) -> Job:
    from sparrowboost.kernels.categories import bin_by_fold

    return lambda start, stop, out: bin_by_fold(codes[start:stop], folds[start:stop], table, out)


def _feature_from_json(item: Mapping[str, Any]) -> Feature:
    if item["kind"] == "category":
        return CategoryFeature(item["name"], tuple(item["categories"]))
    values = item["thresholds"]
    if str in set(map(type, values)):
        values = [float(t) if isinstance(t, str) else t for t in values]
    kind = cast(Kind, item["kind"])
    return NumberFeature(item["name"], kind, np.array(values, DTYPES[kind]))


def _as_int64(values: npt.NDArray[Any], *, unsigned: bool) -> npt.NDArray[np.int64]:
    """Values as int64 in the same order: for an integer t, x <= t if and only if ceil(x) <= t.

    Unsigned values are shifted down by 2**63. Values out of range become the nearest end of it.
    """
    low, high = (0, 2**64 - 1) if unsigned else (-(2**63), 2**63 - 1)
    target = np.uint64 if unsigned else np.int64
    if values.dtype.kind == "f":
        values = np.ceil(np.nan_to_num(values.astype(np.float64), nan=0.0))
        inside = (values >= low) & (values < float(high))
        ends = np.where(values < low, target(low), target(high))
        whole = np.where(inside, values, 0).astype(target)
        values = np.where(inside, whole, ends)
    elif unsigned and values.dtype.kind == "i":
        values = np.maximum(values, 0).astype(np.uint64)
    elif not unsigned and values.dtype == np.uint64:
        values = np.minimum(values, np.uint64(high)).astype(np.int64)
    else:
        values = values.astype(target, copy=False)
    return (values ^ np.uint64(1 << 63)).view(np.int64) if unsigned else values
