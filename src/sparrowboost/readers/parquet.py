"""Parquet files: read row group by row group in bounded memory."""

from __future__ import annotations

import copy
import math
import os
import threading
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from sparrowboost.readers.arrays import to_numpy
from sparrowboost.readers.base import (
    DiscardSample,
    Reading,
    check_names,
    read_errors,
    reading_bytes,
    thin,
)
from sparrowboost.readers.columns import Kind, categories, is_text, kind_of, numbers
from sparrowboost.readers.parquet_sizes import (
    BUFFER_BYTES,
    ChunkSizes,
    chunk_sizes,
)
from sparrowboost.readers.ranges import (
    PART_BYTES,
    RANGE_BYTES,
    Extent,
    RangeReader,
    RemoteFile,
)
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.remote import RemotePath

# Of a file on another machine, whose page headers are not looked at.
PAGE_BYTES = 1 << 20  # of an uncompressed page, by the usual default of writers
MEASURED_GROUPS = 4  # row groups whose page headers are looked at: the largest ones,
MEASURED_PAGES = 200_000  # and so many pages of all columns, but
MIN_MEASURED_PAGES = 16  # so many of each
# Strings that were stored as indices into a dictionary take less than this each. Others are read as
# strings: to make a dictionary of them, the reader would hold all strings of a row group.
INDEX_BYTES = 4
GROUPS_AHEAD = 2  # row groups of remote storage that are held: one is read, one fetched
HEAD_MARGIN = 1.2  # pages are of different sizes
OFFSET_BYTES = 8  # of a string or list: where it begins, and whether it is missing
# Encodings from which Arrow can read dictionaries; not DELTA_...
ENCODINGS = {"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}
# A row group can only be read from its start. With fewer groups than this, random access is too
# coarse: all rows are decoded, and some kept.
MIN_GROUPS = 8
# Row groups whose heads are sampled. More are not worth the cost: to decode the head of a group,
# the whole first page of each column must be unpacked. Wide tables get fewer.
SAMPLED_GROUPS, SAMPLED_PAGES = 32, 2_048
# Rows decoded for each one kept of a row group's head: neighbours tell less than rows apart.
DECODED = 2
SAMPLE_BATCH_ROWS, SAMPLE_BATCH_BYTES = 16_384, 2 << 20  # decoded at a time, at most
# A column drifts along the file if more than MAX_DRIFT of the variance of "above its quartile" lies
# between windows of the sampled rows. Rows in random order give about 1 / DRIFT_ROWS.
MAX_DRIFT = 0.05
DRIFT_ROWS = 500  # of a window
FEW_VALUES = 32  # distinct values of which a window can be expected to have all
# Rows of a row group, below which opening each group takes longer than Arrow's decoding.
MIN_PAGED = 8_192
TESTED_ROWS = 40 * DRIFT_ROWS  # of each of the two samples that are tested
QUARTILES = (0.25, 0.5, 0.75)

# The file for Arrow; and what reads it, if it is in remote storage.
Opened = tuple[pq.ParquetFile, RangeReader | None]

_keeping = threading.Lock()


class ParquetFile:
    """One Parquet file as a source.

    Its metadata takes up to a kilobyte for each column of each row group, and as long to parse as
    some rows to read. So it is kept until that of another file is read.
    """

    exact_rows = True
    in_memory = False

    def __init__(self, path: Path | RemotePath) -> None:
        self.name = str(path)
        self._remote = path if isinstance(path, RemotePath) else None
        self._metadata: pq.FileMetaData | None = None
        self._limit: int | None = None
        with self._opened() as (file, _):
            self._schema = file.schema_arrow
            meta = file.metadata
            self._group_rows = [meta.row_group(g).num_rows for g in range(meta.num_row_groups)]
            self.n_rows = meta.num_rows
        try:
            self.columns = list(self._schema.names)
        except UnicodeDecodeError as error:
            raise DataError(_unreadable(self.name, error)) from None
        check_names(self.name, self.columns)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @contextmanager
    def _opened(self, read_dictionary: Sequence[str] = ()) -> Iterator[Opened]:
        """Open the file, with these columns as dictionaries."""
        with ExitStack() as stack:
            ranges = None
            source: Any = self.name
            if self._remote is not None:
                ranges = RangeReader(self._remote)
                source = pa.PythonFile(stack.enter_context(RemoteFile(ranges)), "r")
            yield stack.enter_context(self._open(source, read_dictionary)), ranges

    def _open(self, source: Any, read_dictionary: Sequence[str]) -> pq.ParquetFile:
        try:
            file = pq.ParquetFile(
                source,
                read_dictionary=list(read_dictionary),
                buffer_size=BUFFER_BYTES,
                page_checksum_verification=True,  # where the writer left any
                pre_buffer=False,  # the default holds whole row groups in memory
                metadata=self._metadata,
            )
            if self._metadata is None:
                self._keep(file.metadata)
            return file
        except FileNotFoundError:
            raise DataError(f"{self.name}: no such file.") from None
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(_unreadable(self.name, error)) from None

    def _keep(self, metadata: pq.FileMetaData) -> None:
        """Keep this file's metadata, and that of no other file."""
        with _keeping:
            for other in [*_keepers]:
                other._metadata = None
            _keepers.clear()
            _keepers.add(self)
            self._metadata = metadata

    def kind(self, column: str) -> Kind:
        return kind_of(column, self._schema.field(column).type)

    @cached_property
    def _leaves(self) -> dict[str, tuple[int, bool]]:
        """Columns that are not nested, by name: their numbers, and whether values may be missing.

        Computed once: a file's schema and metadata form a reference cycle, which keeps a kilobyte
        for each column of each row group until Python collects garbage.
        """
        with self._opened() as (file, _):
            schema = (self._metadata or file.metadata).schema
            leaves = [schema.column(i) for i in range(len(schema))]
        # A column called "a.b" and a field b of column a have the same path, but not the same name.
        return {
            leaf.name: (i, leaf.max_definition_level > 0)
            for i, leaf in enumerate(leaves)
            if leaf.path == leaf.name
        }

    @cached_property
    def _first_chunks(self) -> list[tuple[str, int, int]]:
        """Each column's name, with the bytes and values of its chunk in the first group."""
        with self._opened() as (file, _):
            group = file.metadata.row_group(0)
            chunks = [group.column(i) for i in range(group.num_columns)]
        return [(c.path_in_schema, c.total_uncompressed_size, c.num_values) for c in chunks]

    def _chunks(self, columns: Sequence[str]) -> list[tuple[str, int, int]]:
        wanted = set(columns)
        return [chunk for chunk in self._first_chunks if chunk[0] in wanted]

    def _dictionary_columns(self, columns: Sequence[str]) -> list[str]:
        """Of these columns, the strings that were stored as indices into a dictionary."""
        strings = [c for c in columns if _is_string(self._schema.field(c).type)]
        if not strings or not self._group_rows:
            return []
        return [
            name
            for name, n_bytes, n_values in self._chunks(strings)
            if n_bytes <= PAGE_BYTES + INDEX_BYTES * n_values and name not in self._unindexed
        ]

    @cached_property
    def _unindexed(self) -> set[str]:
        """String columns that some row group has in an encoding without a dictionary."""
        with self._opened() as (file, _):
            groups = [file.metadata.row_group(g) for g in range(len(self._group_rows))]
        return {
            name
            for name in self.columns
            if _is_string(self._schema.field(name).type)
            and not all(
                ENCODINGS.issuperset(g.column(self._leaves[name][0]).encodings) for g in groups
            )
        }

    @cached_property
    def _sizes(self) -> dict[str, list[tuple[ChunkSizes, float]]]:
        """By column, the sizes of its largest chunks, one of each leaf, and values in a row."""
        with self._opened() as (file, _):
            meta = self._metadata or file.metadata
            schema = meta.schema
            groups = [meta.row_group(g) for g in range(meta.num_row_groups)]
            groups = sorted(groups, key=lambda g: -g.total_byte_size)[:MEASURED_GROUPS]
            rows = [group.num_rows for group in groups]
            paths = [schema.column(i).path for i in range(len(schema))]
            chunks = [
                max(
                    ((g.column(i), n) for g, n in zip(groups, rows, strict=True)),
                    key=lambda chunk: chunk[0].total_uncompressed_size,
                )
                for i in range(len(paths) if groups else 0)
            ]
        names = set(self._schema.names)
        sizes: dict[str, list[tuple[ChunkSizes, float]]] = {}
        for path, (chunk, n_rows), size in zip(
            paths, chunks, self._look_into([chunk for chunk, _ in chunks]), strict=False
        ):
            column = path if path in names else path.split(".")[0]
            sizes.setdefault(column, []).append((size, chunk.num_values / max(n_rows, 1)))
        return sizes

    def _look_into(self, chunks: Sequence[Any]) -> list[ChunkSizes]:
        """The sizes of some column chunks."""
        if self._remote is not None:  # each header would be a request
            return [
                ChunkSizes(
                    page, page, 0, 0, chunk.total_uncompressed_size / max(chunk.num_values, 1)
                )
                for chunk in chunks
                for page in [min(chunk.total_uncompressed_size, PAGE_BYTES)]
            ]
        most = max(MIN_MEASURED_PAGES, MEASURED_PAGES // max(len(chunks), 1))
        with read_errors(self.name):
            file = os.open(self.name, os.O_RDONLY)
            try:
                return [chunk_sizes(file, chunk, most) for chunk in chunks]
            finally:
                os.close(file)

    def reading(self, columns: Sequence[str]) -> list[Reading]:
        """What reading each of these columns takes."""
        return [self._readings[name] for name in columns]

    @cached_property
    def _readings(self) -> dict[str, Reading]:
        """By column, what reading it takes."""
        coded = set(self._dictionary_columns(self.columns))
        found = {}
        for name in self.columns:
            type_, leaves = self._schema.field(name).type, self._sizes.get(name, [])
            row = sum(n * size.value for size, n in leaves) + OFFSET_BYTES
            if name in coded:
                row = 1 if all(size.words <= 256 for size, _ in leaves) else INDEX_BYTES
            elif pa.types.is_primitive(type_) or pa.types.is_decimal(type_):
                row = max(type_.bit_width / 8, 1)
            text = name not in coded and _is_string(type_)
            each = [size.reading(row, text=text) for size, _ in leaves]
            open_ = sum(r.open for r in each)
            page = max((r.page for r in each), default=0)
            if self._remote is not None:  # RANGE_BYTES are fetched ahead once for all columns
                open_, page = open_ + self._fetched[name], page + RANGE_BYTES
            found[name] = Reading(open_, page, row)
        return found

    def reading_bytes(self, columns: Sequence[str]) -> int:
        return reading_bytes(self.reading(columns))

    def row_bytes(self, columns: Sequence[str]) -> float:
        return sum(column.row for column in self.reading(columns))

    def limit_reading(self, n_bytes: int) -> None:
        self._limit = n_bytes

    def _read(
        self, columns: Sequence[str], rows: int, heads: Mapping[int, int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """All rows, or of some row groups (`heads`: group to number) the first ones."""
        with self._opened(self._dictionary_columns(columns)) as (file, ranges):
            yield from self._read_from(file, ranges, columns, rows, heads)

    def _read_from(
        self,
        file: pq.ParquetFile,
        ranges: RangeReader | None,
        columns: Sequence[str],
        rows: int,
        heads: Mapping[int, int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """`_read` from a file that was opened for these columns, or for more."""
        names = list(columns)
        paged = self._paged(self._dictionary_columns(names))
        groups = dict(enumerate(self._group_rows)) if heads is None else heads
        if ranges is not None:
            ranges.follow(self._plans(file, names, groups), self._ahead_bytes(names))
        try:
            if heads is None and not paged and ranges is None:
                for batch in file.iter_batches(rows, columns=names, use_threads=False):
                    yield _checked(batch.select(names))
                return
            for group, left in groups.items():
                yield from self._head(file, group, names, paged, min(rows, left), left)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(_unreadable(self.name, error)) from None

    def _plans(
        self, file: pq.ParquetFile, columns: Sequence[str], heads: Mapping[int, int]
    ) -> Iterator[list[Extent]]:
        """What to fetch of remote storage for the first rows of row groups: a few groups at a time.

        How many bytes a part of a column's rows takes is estimated.
        """
        numbers = [number for name in columns for number in self._leaf_numbers[name]]
        plan: list[Extent] = []
        for group, n_rows in heads.items():
            if plan and sum(extent.size for extent in plan) >= RANGE_BYTES:
                yield plan
                plan = []
            meta = (self._metadata or file.metadata).row_group(group)
            share = HEAD_MARGIN * n_rows / max(meta.num_rows, 1)
            plan += [_head_of(meta.column(number), share) for number in numbers]
        yield plan

    @cached_property
    def _leaf_numbers(self) -> dict[str, list[int]]:
        """The numbers of each column's leaves."""
        with self._opened() as (file, _):
            schema = (self._metadata or file.metadata).schema
            paths = [schema.column(i).path for i in range(len(schema))]
        names, found = set(self.columns), {name: list[int]() for name in self.columns}
        for number, path in enumerate(paths):
            found[path if path in names else path.split(".")[0]].append(number)
        return found

    @cached_property
    def _fetched(self) -> dict[str, float]:
        """By column of a file in remote storage, bytes of a row group that are fetched ahead."""
        with self._opened() as (file, _):
            meta = self._metadata or file.metadata
            groups = [meta.row_group(g) for g in range(meta.num_row_groups)]
            largest = max(groups, key=lambda group: group.total_byte_size, default=None)
            chunk = {
                name: sum(largest.column(i).total_compressed_size for i in numbers)
                for name, numbers in self._leaf_numbers.items()
                if largest is not None
            }
        return {name: GROUPS_AHEAD * min(chunk.get(name, 0), PART_BYTES) for name in self.columns}

    def _ahead_bytes(self, columns: Sequence[str]) -> int:
        """Bytes to fetch before they are read."""
        return RANGE_BYTES + int(sum(self._fetched[name] for name in columns))

    def _paged(self, coded: Sequence[str]) -> dict[str, tuple[int, bool]]:
        """Of these columns, those that `CodedGroup` decodes."""
        if self._remote is not None or self.n_rows < MIN_PAGED * len(self._group_rows):
            return {}
        return {name: self._leaves[name] for name in coded}

    def _head(
        self,
        file: pq.ParquetFile,
        group: int,
        columns: Sequence[str],
        paged: Mapping[str, tuple[int, bool]],
        rows: int,
        left: int,
    ) -> Iterator[pa.RecordBatch]:
        """The first rows of a row group."""
        others = [c for c in columns if c not in paged]
        batches = file.iter_batches(rows, [group], others, use_threads=False) if others else None
        if batches is not None and not paged:
            for batch in batches:
                yield _checked(batch.slice(0, left).select(columns))
                left -= batch.num_rows
                if left <= 0:
                    return
            return
        from sparrowboost.readers.parquet_pages import CodedGroup

        with CodedGroup(self.name, file, group, paged) as coded:
            rest = _Joined(batches) if batches is not None else None
            for start in range(0, left, rows):
                n = min(rows, left - start)
                arrays = coded.take(n)
                if rest is not None:
                    arrays |= rest.take(n)
                yield pa.RecordBatch.from_arrays([arrays[c] for c in columns], list(columns))

    def partitions(self) -> list[int]:
        return list(self._group_rows)

    def blocks(
        self, columns: Sequence[str], rows: int, only: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        groups = None if only is None else {group: self._group_rows[group] for group in only}
        return self._read(columns, rows, groups)

    def sample(
        self, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch | DiscardSample]:
        """Heads of random row groups and one whole group; columns that drift, from all rows.

        A few columns at a time: batches of many would have few rows, and each array takes time,
        however short it is. Every time the same rows are chosen.
        """
        with self._opened(self._dictionary_columns(columns)) as opened:
            for names in self._column_groups(columns):
                yield from self._sample(opened, names, rows, copy.deepcopy(rng))

    def _sample(
        self, opened: Opened, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch | DiscardSample]:
        if len(self._group_rows) < MIN_GROUPS or rows >= self.n_rows:
            yield from self._thinned(opened, columns, rows, rng)
            return
        heads, whole = _DriftTest(), _DriftTest()
        for batch in self._group_heads(opened, columns, rows, rng):
            heads.add(batch, rows)
            yield batch
        # A whole group shows what heads hide, such as an order within row groups.
        group = int(rng.choice(np.flatnonzero(self._group_rows)))
        n = self._group_rows[group]
        for batch in self._read_from(
            *opened, columns, self._sample_batch_rows(columns), {group: n}
        ):
            whole.add(batch, n)
        drifting = [c for c in columns if heads.drifts(c) or whole.drifts(c)]
        if drifting:
            yield DiscardSample(tuple(drifting))
            yield from self._thinned(opened, drifting, rows, rng)

    def _column_groups(self, columns: Sequence[str]) -> Iterator[list[str]]:
        """Columns in groups whose batches have as many rows as they may; at least one in each.

        Reading those of a group stays within the limit, if one was set.
        """
        most = SAMPLE_BATCH_BYTES / SAMPLE_BATCH_ROWS  # of a row
        limit = math.inf if self._limit is None else self._limit
        group: list[str] = []
        row = open_ = page = 0.0
        for name, column in zip(columns, self.reading(columns), strict=True):
            page = max(page, column.page)
            if group and (row + column.row > most or open_ + column.open + page > limit):
                yield group
                group, row, open_, page = [], 0.0, 0.0, column.page
            group.append(name)
            row += column.row
            open_ += column.open
        yield group

    def _sample_batch_rows(self, columns: Sequence[str]) -> int:
        """Rows to decode at a time; fewer if strings make them long."""
        row = self.row_bytes(columns)
        return max(1, min(SAMPLE_BATCH_ROWS, int(SAMPLE_BATCH_BYTES / max(row, 1))))

    def _thinned(
        self, opened: Opened, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch]:
        """Random rows; all of them are decoded."""
        share = rows / max(self.n_rows, 1)
        if not self.n_rows:
            return iter(())
        batches = self._read_from(*opened, columns, self._sample_batch_rows(columns))
        return (thin(batch, share, rng) for batch in batches)

    def _group_heads(
        self, opened: Opened, columns: Sequence[str], rows: int, rng: np.random.Generator
    ) -> Iterator[pa.RecordBatch]:
        """Random rows from the heads of random row groups, in proportion to their sizes."""
        sizes = np.array(self._group_rows)
        groups = np.flatnonzero(sizes)
        quotas = sizes[groups]
        n_groups = max(MIN_GROUPS, min(SAMPLED_GROUPS, SAMPLED_PAGES // len(self.columns)))
        if len(groups) > n_groups:
            groups = np.sort(rng.choice(groups, n_groups, replace=False, p=quotas / quotas.sum()))
            quotas = np.ones(n_groups)  # the choice was by size already
        wanted = np.ceil(DECODED * rows * quotas / quotas.sum()).astype(np.int64)
        heads = {
            int(g): int(min(n, sizes[g])) for g, n in zip(groups, wanted, strict=True)
        }  # fmt: skip
        share = rows / sum(heads.values())
        for batch in self._read_from(*opened, columns, self._sample_batch_rows(columns), heads):
            yield thin(batch, share, rng)


_keepers: weakref.WeakSet[ParquetFile] = weakref.WeakSet()  # of metadata: one at most


class _Joined:
    """Arrow's batches, split and joined to the requested numbers of rows."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._held: pa.RecordBatch | None = None

    def take(self, n: int) -> dict[str, pa.Array]:
        """The next n rows, by column."""
        parts: list[pa.RecordBatch] = []
        lacking = n
        while lacking:
            batch = self._held if self._held is not None else next(self._batches, None)
            if batch is None:
                raise pa.ArrowInvalid(f"a row group lacks {lacking:,} rows")
            parts.append(batch.slice(0, lacking))
            self._held = batch.slice(lacking) if batch.num_rows > lacking else None
            lacking -= parts[-1].num_rows
        if len(parts) == 1:
            return dict(zip(parts[0].schema.names, parts[0].columns, strict=True))
        table = pa.Table.from_batches(parts).unify_dictionaries()
        columns = [column.combine_chunks() for column in table.columns]
        return dict(zip(table.column_names, columns, strict=True))


class _DriftTest:
    """Whether columns change along the rows added, in their order."""

    def __init__(self) -> None:
        self._parts: dict[str, list[npt.NDArray[np.float64]]] = {}

    def add(self, batch: pa.RecordBatch, expected: int) -> None:
        """Add every k-th row of a batch, so that `expected` rows give about TESTED_ROWS."""
        step = max(1, expected // TESTED_ROWS)
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            self._parts.setdefault(name, []).append(_as_floats(name, array, step))

    def drifts(self, column: str) -> bool:
        """Whether values exceed some quartile more often in some windows than in others."""
        values = np.concatenate(self._parts.get(column, [np.empty(0)]))
        values = values[~np.isnan(values)]
        n = len(values) // DRIFT_ROWS
        if n < 2:
            return len(values) > 0  # too few to tell
        windows = values[: n * DRIFT_ROWS].reshape(n, DRIFT_ROWS)
        if _all_everywhere(windows):
            return False
        for cut in np.unique(np.quantile(windows, QUARTILES, method="lower")):
            above = (windows > cut).mean(1)
            if above.var() > MAX_DRIFT * above.mean() * (1 - above.mean()):
                return True
        return False


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch; an ArrowInvalid if a damaged page has indices beyond its dictionary."""
    for column in batch.columns:
        if pa.types.is_dictionary(column.type):
            column.validate(full=True)
    return batch


def _head_of(chunk: Any, share: float) -> Extent:
    """The bytes of a column chunk that a share of its rows may take."""
    first = chunk.data_page_offset
    start = min(chunk.dictionary_page_offset or first, first)
    size = chunk.total_compressed_size
    head = first - start
    return Extent(start, min(size, head + int(share * (size - head)) + BUFFER_BYTES))


def _is_string(type_: pa.DataType) -> bool:
    """Whether values of this type are strings, in a dictionary or not."""
    return is_text(type_.value_type if pa.types.is_dictionary(type_) else type_)


def _all_everywhere(windows: npt.NDArray[np.float64]) -> bool:
    """Whether every window has all of a few values: then each gets a bin anyway."""
    distinct = np.unique(windows[0])
    if len(distinct) > FEW_VALUES or not np.isin(windows, distinct).all():
        return False
    return all((windows == value).any(1).all() for value in distinct)


def _as_floats(name: str, array: pa.Array, step: int) -> npt.NDArray[np.float64]:
    """Every `step`-th value as a float; categories by a hash, for an arbitrary but fixed order."""
    if not pa.types.is_dictionary(array.type):
        array, step = array[::step], 1
    if kind_of(name, array.type) != "category":
        return numbers(name, array)[0][::step].astype(np.float64)
    coded = categories(name, array)
    codes = [np.nan if v is None else zlib.crc32(v.encode()) for v in coded.dictionary.to_pylist()]
    indices = coded.indices
    if indices.null_count:
        indices = indices.cast(pa.int64())
    return np.array([*codes, np.nan], np.float64)[to_numpy(indices, len(codes))[::step]]


def _unreadable(name: str, error: Exception) -> str:
    return (
        f"{name}: not a readable Parquet file ({str(error).splitlines()[0]}); it may be truncated "
        "or damaged; write it again or leave it out."
    )
