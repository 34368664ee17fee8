"""From a source to a store: peek, find bins, then one pass that bins and shuffles every row."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost import __version__
from sparrowboost.binning import WORK_DTYPES, Binning, Feature, fit_feature, read_only
from sparrowboost.errors import DataError, MemoryLimitError
from sparrowboost.labels import LabelCoder, Value, weights
from sparrowboost.memory import format_size, release, resolve_limit, rss
from sparrowboost.progress import Progress, Task, log, make_progress
from sparrowboost.sources import FORMATS, Kind, OpenOptions, Source, open_source
from sparrowboost.sources.libsvm import LABEL
from sparrowboost.store import Dataset, StoreWriter
from sparrowboost.threads import ordered_map, prefetch

SAMPLE_ROWS = 200_000  # a quantile at 1/255 is then known to within a tenth of a bin
MAX_BLOCK_ROWS = 65_536
MAX_BLOCK_BYTES = 2 << 20  # larger blocks are hardly faster, and Arrow then holds more
AHEAD = 2  # blocks that wait between two stages of the pipeline
MIN_ROOM = 32_000_000  # bytes: the smallest buffers with which ingest still makes sense
CODE_BYTES = 32_000_000  # what is still to be loaded of libraries, and what allocators keep
COMPILE_SECONDS = 1.0  # kernels that take longer than this are not loaded but compiled: say so

ColumnLike = str | int | Sequence[Any] | npt.NDArray[Any]


def ingest(
    data: Any,
    *,
    label: ColumnLike | None = None,
    path: str | os.PathLike[str] | None = None,
    weight: ColumnLike | None = None,
    positive: Value | None = None,
    columns: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    categorical: Sequence[str] = (),
    memory_limit: int | float | str | None = None,
    header: bool = True,
    format: str | None = None,
    overwrite: bool = False,
    n_jobs: int | None = None,
    random_state: int = 0,
    verbose: int = 1,
) -> Dataset:
    """Turn a table into a shuffled, binned store on disk, in bounded memory.

    Parameters
    ----------
    data : path, glob, folder, list of paths, array, frame, table or stream
        Parquet, CSV (also gzipped), Arrow IPC, libsvm (also gzipped) or .npy files; a numpy array
        or memory map, a scipy sparse matrix, a pandas or polars frame, a pyarrow table or dataset,
        or any object with ``__arrow_c_stream__``. Columns of arrays are called f0, f1, ...
    label : column name, column number, array, or path of a .npy file
        Any two values: 0/1, -1/+1, booleans, two strings. The greater is the positive one.
        libsvm files have theirs.
    path : str or path, optional
        The store's folder, which must not exist yet. Without it, the store is temporary and is
        removed with the Dataset.
    weight : like label, optional
        Sample weights: finite, not negative.
    positive : value, optional
        The label to train against all others.
    columns, exclude : list of str, optional
        Columns to use as features, or to leave out. By default all but label and weight are used.
    categorical : list of str
        Columns to read as categories although they look like numbers. Strings, dictionaries and
        pandas categories are categories anyway.
    memory_limit : int or str, optional
        Peak memory of the process, such as "512MB". Default: a quarter of what the machine, or
        the cgroup that this process runs in, allows. Data that the caller holds in memory is not
        counted.
    header : bool
        Whether the first line of a CSV file names the columns.
    format : {"parquet", "csv", "arrow", "libsvm", "npy"}, optional
        Of files whose suffix does not tell.
    overwrite : bool
        Replace a store that is there.
    n_jobs : int, optional
        Threads; default: as many as this process may use.
    random_state : int
        Of the shuffle and of the places peeked at. The same source, limit and state give the
        same store.
    verbose : int
        0 is silent; 1 shows a progress bar on a terminal, else log lines.

    Returns
    -------
    Dataset

    Examples
    --------
    >>> import pyarrow as pa
    >>> table = pa.table({"x": [1.0, 2.0, None, 4.0], "color": ["red", "blue", "red", "red"],
    ...                   "clicked": ["no", "yes", "no", "yes"]})
    >>> ds = ingest(table, label="clicked", verbose=0)
    >>> ds.n_rows, ds.classes, ds.binning.features[1].categories
    (4, ('no', 'yes'), ('red', 'blue'))
    """
    if format is not None and format not in FORMATS:
        raise DataError(f"format {format!r} is not known; it is one of {', '.join(FORMATS)}.")
    limit = resolve_limit(memory_limit)
    n_jobs = n_jobs or len(os.sched_getaffinity(0))
    rng = np.random.default_rng(random_state)
    with make_progress(verbose) as progress, StoreWriter(path, overwrite=overwrite) as store:
        options = OpenOptions(
            scratch=store.scratch, rng=rng, header=header, categorical=categorical, format=format
        )
        table = Table.open(data, options, label, weight, positive, columns, exclude)
        warm_up(table.features.values(), progress)
        plan = Plan.make(limit, table, n_jobs)
        binning, row_bytes = find_bins(table, plan, rng, progress)
        release()
        store.start(
            binning,
            weighted=table.weight is not None,
            n_rows=table.source.n_rows,
            memory=plan.shuffle_bytes,
            seed=random_state,
        )
        with progress.task("binning rows", table.source.n_rows) as task:
            n_rows = bin_rows(table, binning, store, plan.block_rows(row_bytes), n_jobs, task)
        release()
        with progress.task("shuffling rows", n_rows) as task:
            label_of = table.labels.order()
            about = {
                "label": table.label.name,
                "classes": table.labels.classes,
                "source": table.source.name,
                "random_state": random_state,
                "sparrowboost": __version__,
            }
            return store.finish(label_of, about, n_jobs=n_jobs, advance=task.advance)


class Column(NamedTuple):
    """A label or weight: a column of the source, or an array beside it."""

    name: str
    array: pa.Array | None


@dataclass
class Table:
    """A source, and which of its columns are what."""

    source: Source
    label: Column
    weight: Column | None
    labels: LabelCoder
    features: dict[str, Kind]

    @classmethod
    def open(
        cls,
        data: Any,
        options: OpenOptions,
        label: ColumnLike | None,
        weight: ColumnLike | None,
        positive: Value | None,
        columns: Sequence[str] | None,
        exclude: Sequence[str],
    ) -> Table:
        source = open_source(data, options)
        if source.n_rows == 0:
            raise DataError(f"{source.name}: has no rows.")
        if label is None:
            if LABEL not in source.columns or (columns is not None and LABEL in columns):
                raise DataError(
                    f"which column is the label? Pass label= (--label); {source.name} has "
                    f"{_some(source.columns)}."
                )
            label = LABEL
        label_column = _column(source, label, "label")
        weight_column = None if weight is None else _column(source, weight, "weight")
        taken = {c.name for c in (label_column, weight_column) if c and c.array is None}
        for name in (*(columns or ()), *exclude, *options.categorical):
            _check_name(source, name)
        names = [c for c in columns or source.columns if c not in exclude and c not in taken]
        if not names:
            raise DataError(f"{source.name}: no column is left to be a feature.")
        features: dict[str, Kind] = {
            c: "category" if c in options.categorical else source.kind(c) for c in names
        }
        return cls(
            source, label_column, weight_column, LabelCoder(label_column.name, positive), features
        )

    @property
    def read_columns(self) -> list[str]:
        """Columns to read from the source: features, then label and weight if they are there."""
        extra = [c.name for c in (self.label, self.weight) if c is not None and c.array is None]
        return [*self.features, *extra]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8])
    return shown + (f", ... ({len(names)} columns)" if len(names) > 8 else "")


def _check_name(source: Source, name: str) -> None:
    if name not in source.columns:
        raise DataError(
            f"{source.name}: there is no column {name!r}; it has {_some(source.columns)}."
        )


def _column(source: Source, given: ColumnLike, what: str) -> Column:
    """The column or array that the user means by a label or weight argument."""
    if isinstance(given, str):
        if given not in source.columns and given.endswith(".npy") and Path(given).is_file():
            return Column(Path(given).name, _array(np.load(given, mmap_mode="r"), source, what))
        _check_name(source, given)
        return Column(given, None)
    if isinstance(given, int):
        if not -len(source.columns) <= given < len(source.columns):
            raise DataError(f"{source.name}: there is no column number {given} ({what}).")
        return Column(source.columns[given], None)
    return Column(what, _array(given, source, what))


def _array(given: Any, source: Source, what: str) -> pa.Array:
    if hasattr(given, "to_arrow"):  # polars
        given = given.to_arrow()
    try:
        array = given if isinstance(given, pa.Array | pa.ChunkedArray) else pa.array(given)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{what}: not a column of values ({error}).") from None
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if source.exact_rows and len(array) != source.n_rows:
        raise DataError(
            f"{what}: has {len(array):,} values for the {source.n_rows:,} rows of {source.name}."
        )
    return array


@dataclass(frozen=True)
class Plan:
    """How the memory limit is divided."""

    block_bytes: int  # of a row block
    peek_columns: int  # columns whose sample is held at once
    shuffle_bytes: int
    n_jobs: int

    def block_rows(self, row_bytes: float) -> int:
        """Rows of a block, if each takes so many bytes."""
        return max(1, min(MAX_BLOCK_ROWS, int(self.block_bytes / row_bytes)))

    @classmethod
    def make(cls, limit: int, table: Table, n_jobs: int) -> Plan:
        release()
        held = rss() + CODE_BYTES
        reading = table.source.reading_bytes(table.read_columns)
        # What the caller holds is the caller's: the limit then is for what ingest adds to it.
        room = limit // 2 if table.source.in_memory else limit - held - reading
        if room < MIN_ROOM:
            raise MemoryLimitError(
                f"memory_limit {format_size(limit)} is too small: Python and its libraries take "
                f"{format_size(held)} and reading {table.source.name} {format_size(reading)}; "
                f"give at least {format_size(1.05 * (held + reading + MIN_ROOM))}."
            )
        quarter = room // 4
        widest = max(WORK_DTYPES[kind]().itemsize for kind in table.features.values())
        # Blocks wait before and after binning, and one is worked on by each thread; allocators
        # keep half as much again.
        blocks = 3 * (2 * AHEAD + n_jobs + 2) // 2
        plan = cls(
            block_bytes=min(MAX_BLOCK_BYTES, quarter // blocks),
            # The sample as read; on top of it each thread joins and sorts one column.
            peek_columns=max(1, quarter // (SAMPLE_ROWS * widest)),
            # Each thread holds a bucket and makes a block of it.
            shuffle_bytes=quarter // n_jobs,
            n_jobs=n_jobs,
        )
        log.debug("limit=%d held=%d plan=%s", limit, held, plan)
        return plan


def find_bins(
    table: Table, plan: Plan, rng: np.random.Generator, progress: Progress
) -> tuple[Binning, float]:
    """Bins from a random sample of rows from all over the source, and the bytes of a row."""
    names = list(table.features)
    features: list[Feature] = []
    row_bytes = 0.0
    with (
        progress.task("finding bins", None) as task,
        ThreadPoolExecutor(plan.n_jobs) as pool,
    ):
        for start in range(0, len(names), plan.peek_columns):
            some = names[start : start + plan.peek_columns]
            arrays: dict[str, list[pa.Array]] = {name: [] for name in some}
            for batch in table.source.peek(some, SAMPLE_ROWS, rng):
                task.advance(batch.num_rows)
                for name in batch.schema.names:
                    arrays[name].append(batch.column(name))
            for parts in arrays.values():
                n = sum(len(part) for part in parts)
                row_bytes += sum(part.nbytes for part in parts) / max(n, 1)
            features += pool.map(
                lambda name, arrays=arrays: fit_feature(
                    name, table.features[name], arrays.pop(name)
                ),
                some,
            )
    return Binning(tuple(features)), max(row_bytes, 1.0)


class CodedBlock(NamedTuple):
    """A row block with its label codes and weights."""

    batch: pa.RecordBatch
    codes: npt.NDArray[np.uint8]
    weights: npt.NDArray[np.float32] | None


def coded_blocks(table: Table, block_rows: int) -> Generator[CodedBlock]:
    """All rows in order; labels are coded here, one block after the other."""
    row = 0
    source = prefetch(table.source.blocks(table.read_columns, block_rows), AHEAD)
    with closing(source) as batches:
        for batch in batches:
            codes = table.labels.encode(_values(table.label, batch, row), row)
            w = None
            if table.weight is not None:
                w = weights(table.weight.name, _values(table.weight, batch, row), row)
            row += batch.num_rows
            yield CodedBlock(batch, codes, w)
    for column in (table.label, table.weight):
        if column is not None and column.array is not None and len(column.array) != row:
            raise DataError(
                f"{column.name}: has {len(column.array):,} values for the {row:,} rows of "
                f"{table.source.name}."
            )


def _values(column: Column, batch: pa.RecordBatch, row: int) -> pa.Array:
    if column.array is None:
        return batch.column(column.name)
    values = column.array.slice(row, batch.num_rows)
    if len(values) < batch.num_rows:
        raise DataError(f"{column.name}: has {len(column.array):,} values, the source more rows.")
    return values


def bin_rows(
    table: Table,
    binning: Binning,
    store: StoreWriter,
    block_rows: int,
    n_jobs: int,
    task: Task,
) -> int:
    """One pass over the source: every row binned and put into the store."""
    width, d = store.layout.row_bytes, store.layout.n_features
    missing = binning.n_bins.astype(np.uint8) - 1
    has_values = np.zeros(d, bool)

    def work(block: CodedBlock) -> npt.NDArray[np.uint8]:
        records = np.empty((len(block.codes), width), np.uint8)
        binning.apply(block.batch, records[:, :d])
        records[:, d] = block.codes
        if block.weights is not None:
            records[:, d + 1 :] = block.weights[:, None].view(np.uint8)
        return records

    n_rows = 0
    with (
        closing(coded_blocks(table, block_rows)) as blocks,
        closing(ordered_map(work, blocks, n_jobs, n_jobs + AHEAD)) as results,
    ):
        for records in results:
            store.put(records)
            n_rows += len(records)
            task.advance(len(records), records.nbytes)
            if not has_values.all():
                unsure = np.flatnonzero(~has_values)
                has_values[unsure] = (records[:, unsure] != missing[unsure]).any(0)
    _check_has_values(binning, has_values)
    return n_rows


def _check_has_values(binning: Binning, has_values: npt.NDArray[np.bool_]) -> None:
    empty = [name for name, has in zip(binning.names, has_values, strict=True) if not has]
    if empty:
        more = f" (nor have {len(empty) - 1} others)" if len(empty) > 1 else ""
        raise DataError(
            f"column {empty[0]!r} has no values, all are missing{more}; leave it out with "
            f"exclude={empty[:3]} (--exclude {' '.join(empty[:3])})."
        )


def warm_up(kinds: Iterable[Kind], progress: Progress) -> None:
    """Compile or load the kernels, so that what they take is known before memory is divided."""
    from sparrowboost.kernels.bins import bin_by_bits, bin_by_grid, bin_by_search, bin_by_table
    from sparrowboost.kernels.rows import gather_rows, random_order, scatter_rows

    slow = threading.Timer(
        COMPILE_SECONDS, progress.note, ("compiling the kernels, on the first run only",)
    )
    slow.start()
    byte = np.zeros((1, 2), np.uint8)
    out, table = byte[:, 0], np.zeros(1 << 16, np.uint8)
    zero, missing = np.zeros(1, np.int64), np.uint8(0)
    for dtype in {WORK_DTYPES[kind] for kind in kinds}:
        x = read_only(np.zeros(1, dtype))
        if dtype is np.int32:
            bin_by_table(x, table, out)
            continue
        low = np.float32(1) if dtype is np.float32 else np.float64(1)
        thresholds = np.zeros(256, dtype)
        bin_by_grid(x, thresholds, table, low, low, 1, missing, out)
        bin_by_bits(x, thresholds, table, 1, missing, out)
        bin_by_search(x, thresholds, missing, out)
        if dtype is np.int64:
            bin_by_table(read_only(np.zeros(1, np.uint8)), table, out)
    scatter_rows(byte, 0, np.uint64(0), np.uint64(0), byte[None].copy(), zero.copy())
    order = np.zeros(1, np.uint32)
    random_order(np.uint64(0), order)
    gather_rows(byte, order, table[:2], byte[:, :1].copy(), table[:1].copy(), byte[:0])
    slow.cancel()
