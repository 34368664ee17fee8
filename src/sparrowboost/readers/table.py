"""A source of rows and the roles of its columns: features, label, weight, offset."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost.readers.arrays import arrow_column, arrow_type, from_numpy
from sparrowboost.readers.base import (
    ChangeGuard,
    ConcatenatedSource,
    RandomAccessSource,
    read_errors,
    stamp,
)
from sparrowboost.readers.columns import is_text
from sparrowboost.readers.files import local
from sparrowboost.readers.formats import (
    Kind,
    OpenOptions,
    RowError,
    Source,
    categories,
    expand,
    open_source,
)
from sparrowboost.readers.labels import LabelReader, offsets, weights
from sparrowboost.readers.libsvm import LABEL
from sparrowboost.readers.npy import column_from_npy
from sparrowboost.readers.sparse import NumberedColumns, NumberedKinds, SparseRows
from sparrowboost.readers.targets import Target
from sparrowboost.runtime.disk import is_remote, local_path
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.threads import prefetch

ColumnLike = Any  # a column's name or number, an array of values, or the path of a .npy file
# Columns, rows of a block, partitions -> blocks, of which only `num_rows` and `column` are used.
ReadBlocks = Callable[[Sequence[str], int, Sequence[int] | None], Iterator[Any]]
AHEAD = 2  # blocks that wait between two stages of the pipeline


class NoColumnError(DataError):
    """A source lacks a column that was asked for."""


class ColumnValues(NamedTuple):
    """A label, weight or offset that is not in the source: one value per row."""

    n_values: int
    read: Callable[[int, int], pa.Array]  # the values of some rows: start, stop


class Column(NamedTuple):
    """A label, weight or offset: a column of the source, or external values."""

    name: str
    external: ColumnValues | None

    def values(self, batch: pa.RecordBatch, row: int) -> pa.Array:
        """The values for a block that begins at `row`."""
        if self.external is None:
            return batch.column(self.name)
        end = row + batch.num_rows
        if end > self.external.n_values:
            raise DataError(
                f"{self.name}: has {self.external.n_values:,} values, but the source has more rows."
            )
        return self.external.read(row, end)

    def check_end(self, n_rows: int, source: Source) -> None:
        """A DataError if there are values for more rows than the source has."""
        if self.external is not None and self.external.n_values != n_rows:
            raise DataError(
                f"{self.name}: has {self.external.n_values:,} values for the {n_rows:,} rows of "
                f"{source.name}."
            )


class CodedBlock(NamedTuple):
    """A row block with its label codes (of numbers and many classes: bands), and other columns."""

    batch: pa.RecordBatch
    codes: npt.NDArray[np.uint8]
    weights: npt.NDArray[np.float32] | None
    targets: Target | None = None
    offsets: npt.NDArray[np.float32] | None = None
    row: int = 0  # number of its first row in the source


@dataclass(frozen=True, eq=False)
class OffsetChoice:
    """Which column has the offsets of a source.

    Parameters
    ----------
    given : column name, column number, array, path of a .npy file, False or None
        The user's argument. None is the column that is known; False, no offset.
    known : str, optional
        The column with which the model was trained.
    features : sequence of str
        The features of the model. One of them that has the known name is not the offset.
    """

    given: ColumnLike | Literal[False] = None
    known: str | None = None
    features: Sequence[str] = ()

    @property
    def name(self) -> str | None:
        """The name of the column, if that is what it was given by."""
        if self.given is None:
            return self.known
        return self.given if isinstance(self.given, str) else None

    def find(self, source: Source, options: OpenOptions) -> Column | None:
        """The column in a source that was opened with these options."""
        if self.given is False or (self.given is None and self.known is None):
            return None
        if self.given is not None:
            return _column(source, self.given, "offset", options)
        if self.known not in source.columns or self.known in self.features:
            raise DataError(
                f"{source.name}: lacks column {self.known!r}, the offset with which the model was "
                "trained; pass offset=... (--offset), or offset=False (--no-offset) to leave it "
                "at 0."
            )
        return Column(str(self.known), None)


@dataclass
class Table:
    """A source and the roles of its columns."""

    source: Source
    label: Column
    weight: Column | None
    labels: LabelReader
    features: Mapping[str, Kind]
    categorical: frozenset[str] = frozenset()  # columns that the user called so
    offset: Column | None = None
    sparse: SparseRows | None = None  # if its rows are to be read as they are

    @property
    def read_columns(self) -> list[str]:
        """Columns to read from the source: features, then others unless they are external."""
        return [*self.features, *self.others]

    @property
    def others(self) -> list[str]:
        """Columns of the source that are label, weight or offset."""
        return [column.name for column in self._roles if column.external is None]

    @property
    def _roles(self) -> list[Column]:
        given = self.label, self.weight, self.offset
        return [column for column in given if column is not None]

    def blocks(
        self, rows: int, only: Sequence[int] | None = None, read: ReadBlocks | None = None
    ) -> Generator[CodedBlock]:
        """All rows in order, or those of some partitions; labels are encoded in that order.

        `read`: how to read them, if not by `Source.blocks`.
        """
        if self.sparse is not None:
            source: Any = prefetch(self.sparse.blocks(self.others, rows), AHEAD)
        else:
            read = read or self.source.blocks
            source = prefetch(read(self.read_columns, rows, only), AHEAD)
        with closing(source) as batches:
            for row, batch in self._numbered(batches, only):
                with located(self.source, row):
                    codes, targets = self.labels.read(self.label.values(batch, row))
                w = None if self.weight is None else self._weights(batch, row)
                offset = None
                if self.offset is not None:
                    with located(self.source, row):
                        offset = offsets(self.offset.name, self.offset.values(batch, row))
                yield CodedBlock(batch, codes, w, targets, offset, row)

    def weighted_rows(
        self, columns: Sequence[str], rows: int
    ) -> Generator[tuple[pa.RecordBatch, npt.NDArray[np.float32]]]:
        """Some columns of all rows whose weight is not zero, in order, with their weights."""
        assert self.weight is not None
        read = [*columns, *([] if self.weight.external else [self.weight.name])]
        source = prefetch(self.source.blocks(read, rows), AHEAD)
        with closing(source) as batches:
            for row, batch in self._numbered(batches, None):
                w = self._weights(batch, row)
                there = w > 0
                yield batch.select(columns).filter(from_numpy(there)), w[there]

    def _weights(self, batch: pa.RecordBatch, row: int) -> npt.NDArray[np.float32]:
        """Weights of a block that begins at `row`."""
        assert self.weight is not None
        with located(self.source, row):
            return weights(self.weight.name, self.weight.values(batch, row))

    def _numbered(
        self, batches: Iterable[pa.RecordBatch], only: Sequence[int] | None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Each batch with the number of its first row in the source."""
        if only is not None:
            lengths = self.source.partitions()
            ends = np.cumsum(lengths).tolist()
            turn = iter(only)
            row = end = 0
            for batch in batches:
                while row == end:
                    number = next(turn)
                    row, end = ends[number] - lengths[number], ends[number]
                yield row, batch
                row += batch.num_rows
            return
        row = 0
        for batch in batches:
            yield row, batch
            row += batch.num_rows
        for column in self._roles:
            column.check_end(row, self.source)


@contextmanager
def located(source: Source, row: int) -> Iterator[None]:
    """Add the location to an error in a block that begins at `row`."""
    try:
        yield
    except RowError as error:
        where = locate(source, row + error.row)
        raise DataError(f"{where}: {error}") from None


def open_table(
    data: Any,
    options: OpenOptions,
    *,
    label: ColumnLike | None,
    weight: ColumnLike | None,
    labels: Callable[[str], LabelReader],
    columns: Sequence[str] | None,
    exclude: Sequence[str],
    offset: OffsetChoice | None = None,
    check: Callable[[Table], object] = lambda table: None,
) -> Table:
    """Open a source and find its label, weight, offset and feature columns.

    Those of a stream are checked before its rows are fetched; `check` gets them as a table without
    rows. `labels` makes what reads the labels from the name of their column.
    """

    def find_columns(source: Source) -> Table:
        found = None if offset is None else offset.find(source, options)
        return _find_columns(source, options, label, weight, found, labels, columns, exclude)

    def check_stream(source: RandomAccessSource) -> None:
        table = find_columns(source)
        _check_types(table, source.schema)
        check(table)

    source = open_source(data, replace(options, check=check_stream))
    if source.n_rows == 0:
        raise DataError(f"{source.name}: has no rows.")
    return find_columns(source)


def _find_columns(
    source: Source,
    options: OpenOptions,
    label: ColumnLike | None,
    weight: ColumnLike | None,
    offset: Column | None,
    labels: Callable[[str], LabelReader],
    columns: Sequence[str] | None,
    exclude: Sequence[str],
) -> Table:
    """The roles of a source's columns."""
    if label is None:
        if LABEL not in source.columns or (columns is not None and LABEL in columns):
            raise DataError(
                f"which column is the label? Pass label= (--label); {source.name} has "
                f"{_some(source.columns)}."
            )
        label = LABEL
    label_column = _column(source, label, "label", options)
    weight_column = None if weight is None else _column(source, weight, "weight", options)
    taken: dict[str, str] = {}
    for what, column in (("label", label_column), ("weight", weight_column), ("offset", offset)):
        if column is not None and column.external is None:
            if column.name in taken:
                raise DataError(
                    f"column {column.name!r} cannot be both {taken[column.name]} and {what}."
                )
            taken[column.name] = what
    left_out = {*taken, *(_name(source, c) for c in exclude)}
    categorical = {_name(source, c) for c in options.categorical}
    every = source.columns
    features: Mapping[str, Kind]
    if (
        isinstance(every, NumberedColumns)
        and columns is None
        and not categorical
        and left_out == {*every.others}
        and every.last >= every.first
    ):
        features = NumberedKinds(every, source.kind(every[-1]))  # there may be a million
    else:
        wanted = every if columns is None else [_name(source, c) for c in columns]
        names = [c for c in dict.fromkeys(wanted) if c not in left_out]
        if not names:
            raise DataError(f"{source.name}: no column is left as a feature.")
        features = {c: "category" if c in categorical else source.kind(c) for c in names}
    reader = labels(label_column.name)
    roles = source, label_column, weight_column, reader, features
    return Table(*roles, frozenset(categorical), offset)


def _check_types(table: Table, schema: pa.Schema) -> None:
    """A DataError if a column's type does not suit its role; tried without rows."""

    def empty(name: str) -> pa.Array:
        return pa.nulls(0, schema.field(name).type)

    for name, kind in table.features.items():
        if kind == "category":
            categories(name, empty(name))
    if table.label.external is None:
        table.labels.check_type(schema.field(table.label.name).type)
    for role, column, read in (
        ("weight", table.weight, weights),
        ("offset", table.offset, offsets),
    ):
        if column is None or column.external is not None:
            continue
        array = empty(column.name)
        type_ = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
        if is_text(type_):
            raise DataError(
                f"{role} {column.name!r} has type {type_} where numbers are needed; convert it "
                f"where the rows come from (in SQL, cast({column.name} as double))."
            )
        read(column.name, array)


def name_list(names: str | Iterable[Any] | None) -> list[Any]:
    """Column names as the user gives them: one, several or none."""
    if names is None:
        return []
    if isinstance(names, str):
        return [names]
    if not isinstance(names, Iterable):
        raise DataError(f"{names!r} stands where names of columns are needed; give a list.")
    return list(names)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8])
    return shown + (f", ... ({len(names)} columns)" if len(names) > 8 else "")


def _lookup(source: Source) -> Mapping[Any, str]:
    """Column labels of a frame that are not strings, with the names used here."""
    return getattr(source, "lookup", {})


def _name(source: Source, given: Any) -> str:
    """The name of the given column."""
    name = _lookup(source).get(given, given)
    if name not in source.columns:
        raise NoColumnError(
            f"{source.name}: there is no column {given!r}; it has {_some(source.columns)}."
        )
    return str(name)


def _column(source: Source, given: ColumnLike, what: str, options: OpenOptions) -> Column:
    """The column or array that a label, weight or offset argument refers to."""
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    if isinstance(given, str):
        if given not in source.columns and is_values_file(given):
            values = _checked(_file(given, options), source, given)
            return Column(PurePath(given).name, values)
        return Column(_name(source, given), None)
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        if given in _lookup(source):
            return Column(_name(source, given), None)
        if not -len(source.columns) <= given < len(source.columns):
            raise DataError(f"{source.name}: there is no column number {given} ({what}).")
        return Column(source.columns[int(given)], None)
    return Column(what, _checked(_array(given, what), source, what))


def is_values_file(given: Any) -> bool:
    """Whether a label, weight or offset argument is the path of a .npy file."""
    return isinstance(given, str | os.PathLike) and (
        os.fspath(given).endswith(".npy") and (is_remote(given) or local_path(given).is_file())
    )


def _file(given: str, options: OpenOptions) -> ColumnValues:
    """The values of a .npy file, read block by block."""
    (found,) = expand([given], options.read.storage_options)
    with read_errors(str(found)):
        path = local(found, options.scratch)
        was = stamp(path)
    values = column_from_npy(path, str(found))
    file = ChangeGuard(path, str(found), was)

    def read(start: int, stop: int) -> pa.Array:
        with file.watch():
            return values.read(start, stop, values.columns).column(0)

    return ColumnValues(values.n_rows, read)


def _array(given: Any, what: str) -> ColumnValues:
    """Values in memory."""
    if hasattr(given, "to_arrow"):  # polars
        given = given.to_arrow()
    if isinstance(given, np.ndarray) and given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    try:
        if _is_numbers(given):
            array = arrow_column(given, arrow_type(given.dtype, what))
        else:
            array = given if isinstance(given, pa.Array | pa.ChunkedArray) else pa.array(given)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise DataError(
            f"{what}: not a column of values ({error}); pass one value per row."
        ) from None
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_nested(array.type):
        raise DataError(f"{what}: has several values per row; pass one value per row.")
    return ColumnValues(len(array), lambda start, stop: array.slice(start, stop - start))


def _is_numbers(given: Any) -> bool:
    """Whether these are plain numbers, which need no conversion by Arrow."""
    plain = isinstance(given, np.ndarray) and not np.ma.isMaskedArray(given)
    return plain and given.ndim == 1 and given.dtype.kind in "iufb"


def _checked(values: ColumnValues, source: Source, what: str) -> ColumnValues:
    if source.exact_rows and values.n_values != source.n_rows:
        raise DataError(
            f"{what}: has {values.n_values:,} values for the {source.n_rows:,} rows of "
            f"{source.name}."
        )
    return values


def locate(source: Source, row: int) -> str:
    """The location of a row for messages, counted from 1 without the header."""
    if isinstance(source, ConcatenatedSource):
        for part in source.parts:
            if not part.exact_rows:
                break
            if row < part.n_rows:
                return f"{part.name}: row {row + 1:,}"
            row -= part.n_rows
        else:
            return source.name
        return f"{source.name}: row {row + 1:,} from the start of {part.name}"
    return f"{source.name}: row {row + 1:,}"
