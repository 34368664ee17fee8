"""From a source to a store: peek, find bins, then one pass that bins and shuffles every row."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost import __version__
from sparrowboost.readers.base import PART_DONE, DiscardSample
from sparrowboost.readers.formats import Kind, OpenOptions, RowError, Source, check_format, expand
from sparrowboost.readers.labels import LabelCoder, Value
from sparrowboost.readers.options import ReadOptions
from sparrowboost.readers.table import (
    AHEAD,
    CodedBlock,
    ColumnLike,
    Table,
    is_values_file,
    name_list,
    open_table,
)
from sparrowboost.runtime.budget import LIBRARIES, Budget, default_parts
from sparrowboost.runtime.errors import DataError, StoreError
from sparrowboost.runtime.memory import (
    CODE_BYTES,
    give_back_early,
    held,
    release,
    resolve_limit,
)
from sparrowboost.runtime.progress import Progress, Task, compiling, log, make_progress
from sparrowboost.runtime.threads import check_jobs, ordered_map, prefetch
from sparrowboost.store.binning import WORK_DTYPES, Binning, Feature, Fitter
from sparrowboost.store.dataset import MANIFEST, Dataset, Layout, read_manifest
from sparrowboost.store.lookup import read_only
from sparrowboost.store.shuffle import MIN_MEMORY, largest_block
from sparrowboost.store.staged import StagedDataset
from sparrowboost.store.writer import StoreWriter

RandomState = int | np.integer[Any] | np.random.Generator | np.random.RandomState | None

OPENING, PEEKING, STAGING = range(3)  # second word of a seed: what a generator is for
SAMPLE_ROWS = 200_000  # a quantile at 1/255 is then known to within a tenth of a bin
# Of wide tables fewer rows are looked at, or finding bins would take longer than the first trees.
SAMPLE_VALUES, LEAST_SAMPLE_ROWS = 10_000_000, 50_000
PEEK_ROWS = 16_384  # of a block, where all rows are looked at
MAX_BLOCK_ROWS = 65_536
MAX_BLOCK_BYTES = 3 << 19  # larger ones are hardly faster, and allocators then keep more of them
COLUMN_BYTES = 1 << 16  # of a wide block: a column takes 20 us to look at, however short it is
WORD_BYTES = 600  # of a category that is counted, in two counters
MIN_WORDS = 2_000  # counted at once, for a bin each of 254
SHUFFLE_SHARE = 32  # of the limit
MIN_ROOM = 32_000_000  # bytes: the smallest buffers with which ingest still makes sense
N_STAGES = 6  # in which the rows come; training begins after the first
MIN_STRETCHES = 16  # that the rows of a stage are picked from
MIN_STAGED_ROWS = 1_000_000
DRIFT = 0.05  # of the labels' variance, that may lie between places; by chance it is far less
SHOWN_EMPTY = 8  # columns without values, of which a warning gives the names
SAVE_SECONDS = 10.0  # between two saves of an ingest that may be resumed


def ingest(
    data: Any,
    *,
    label: ColumnLike = None,
    path: str | os.PathLike[str] | None = None,
    weight: ColumnLike = None,
    positive: Value | None = None,
    columns: str | Iterable[Any] | None = None,
    exclude: str | Iterable[Any] | None = None,
    categorical: str | Iterable[Any] | None = None,
    memory_limit: int | float | str | None = None,
    header: bool = True,
    format: str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    wait: bool = True,
    n_jobs: int | None = None,
    random_state: RandomState = 0,
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
        The store's folder, new or empty unless there is `overwrite` or `resume`. Without it, the
        store is temporary and is removed with the Dataset.
    weight : like label, optional
        Sample weights: not negative, at most 1e12. Where they are all whole numbers up to 256, and
        all rows are trained on at once, a row of weight 3 is three rows; others count by their
        proportions.
    positive : value, optional
        The label to train against all others.
    columns, exclude : list of str, optional
        Columns to use as features, or to leave out. By default all but label and weight are used.
    categorical : list of str, optional
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
    resume : bool
        Of files: go on with an ingest of the same that was interrupted or killed, and give the
        store that is there if it had ended. What is done is saved every ten seconds.
    wait : bool
        False: come back when the bins are found, before the rows are read. `train` then reads them,
        while it trains if it can; whatever else is done with the Dataset waits for them.
    n_jobs : int, optional
        Threads; default (and -1): as many as this process may use.
    random_state : int, Generator, RandomState or None
        Of the shuffle and of the places peeked at. The same source, limit and number give the
        same store; None gives another each time.
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
    check_format(format)
    limit = resolve_limit(memory_limit)
    if memory_limit is not None:
        give_back_early()
    n_jobs = check_jobs(n_jobs)
    seed = check_seed(random_state)
    run = None
    if resume:
        if path is None:
            raise DataError("resume=True needs the path of a store.")
        named = (label, weight, positive, columns, exclude, categorical, header, format, seed)
        values = [item for item in (label, weight) if is_values_file(item)]
        run = {"files": fingerprints(data, values), "options": [_words(item) for item in named]}
        done = finished(Path(path), run)
        if done is not None:
            return done
    with ExitStack() as stack:
        store = stack.enter_context(StoreWriter(path, overwrite=overwrite, run=run))
        progress = make_progress(verbose)
        options = OpenOptions(
            scratch=store.scratch,
            rng=np.random.default_rng([seed, OPENING]),
            read=ReadOptions(header=header, format=format),
            categorical=name_list(categorical),
        )
        with progress:
            table = open_table(
                data,
                options,
                label=label,
                weight=weight,
                positive=positive,
                columns=None if columns is None else name_list(columns),
                exclude=name_list(exclude),
            )
            with compiling(progress):
                warm_up(table.features.values())
            plan = Plan.make(limit, table, n_jobs, trained=not wait)
            if store.progress is None:
                binning, row_bytes = find_bins(table, plan, seed, progress)
            else:
                binning, row_bytes = store.binning, float(store.progress["row_bytes"])
        stages = at_once = [Stage(None, table.source.n_rows)]
        if run is None and positive is None:
            stages = make_stages(table.source, seed)
        if len(stages) > 1 and labels_drift(table, seed):
            stages = at_once
        store.start(
            binning,
            weighted=table.weight is not None,
            n_rows=table.source.n_rows,
            stage_rows=max(stage.n_rows for stage in stages),
            memory=plan.shuffle_bytes,
            seed=seed,
        )

        def about() -> dict[str, Any]:
            return {
                "label": table.label.name,
                "classes": table.labels.classes,
                "source": table.source.name,
                "random_state": seed,
                "sparrowboost": __version__,
            }

        def read(progress: Progress, stop: threading.Event) -> Iterator[Dataset | None]:
            with store, progress.task("binning rows", table.source.n_rows) as task:
                saver = Saver(store, binning, row_bytes)
                rows = plan.block_rows(row_bytes)
                passing = bin_rows(table, binning, store, stages, rows, n_jobs, task, saver, stop)
                with closing(passing) as over:
                    for _ in over:
                        store.cut()
                        both = table.labels.n_values == 2
                        yield store.snapshot(table.labels.order(), about()) if both else None
                store.cut()
                tell_empty(binning, saver.has_values)
                yield store.finish(table.labels.order(), about())

        staged = StagedDataset(
            read,
            stage_rows=np.cumsum([stage.n_rows for stage in stages]).tolist(),
            n_bytes=plan.n_bytes,
            close=stack.pop_all(),
            path=store.path,
            binning=binning,
            label_name=table.label.name,
            weighted=table.weight is not None,
            largest_block=store.block_rows,
            verbose=verbose,
        )
    return staged.wait() if wait else staged


def check_seed(random_state: RandomState) -> int:
    """A seed from what scikit-learn allows as random state; None gives another each time."""
    if random_state is None:
        random_state = np.random.default_rng()
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**63))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    if isinstance(random_state, int | np.integer) and 0 <= random_state < 2**64:
        return int(random_state)
    raise DataError(
        f"random_state={random_state!r}: give a whole number from 0 to 2**64 - 1, a numpy "
        "Generator or RandomState, or None."
    )


class Stage(NamedTuple):
    """Rows that are read before any others are; those before it can be trained on then."""

    only: list[int] | None  # stretches of the source; None: all rows, in order
    n_rows: int


def make_stages(source: Source, seed: int) -> list[Stage]:
    """Deal the stretches of a source out at random; one stage, if it is small or read in order."""
    rows = np.array(source.partitions(), np.int64)
    if np.count_nonzero(rows) < MIN_STRETCHES or source.n_rows < MIN_STAGED_ROWS:
        return [Stage(None, source.n_rows)]
    order = np.random.default_rng([seed, STAGING]).permutation(np.flatnonzero(rows))
    parts = [np.sort(part) for part in np.array_split(order, N_STAGES)]
    return [Stage(part.tolist(), int(rows[part].sum())) for part in parts]


def labels_drift(table: Table, seed: int) -> bool:
    """Whether labels are more frequent here than there: then no few stretches stand for all."""
    coder, sizes, shares = LabelCoder(table.label.name), [], []
    try:
        for piece in label_pieces(table, seed):
            sizes.append(len(piece))
            shares.append(float(coder.encode(piece).mean()))
    except (RowError, DataError):
        return False  # who reads all rows tells where
    if not sizes:
        return False
    p = np.average(shares, weights=sizes)
    between = np.average(np.square(np.array(shares) - p), weights=sizes)
    return bool(between > DRIFT * p * (1 - p))


def label_pieces(table: Table, seed: int) -> Iterator[pa.Array]:
    """Labels of places all over the source."""
    if table.label.external is None:
        rng = np.random.default_rng([seed, PEEKING])
        for piece in table.source.sample([table.label.name], SAMPLE_ROWS, rng):
            if not isinstance(piece, DiscardSample) and piece.num_rows:
                yield piece.column(0)
        return
    end = 0
    for rows in table.source.partitions():
        start, end = end, end + rows
        if rows:
            yield table.label.external.read(start, end)


@dataclass(frozen=True)
class Plan:
    """How the memory limit is divided."""

    block_bytes: int  # of a row block
    peek_bytes: int  # of the sample that is held at once
    shuffle_bytes: int
    n_bytes: int  # of all that reading and binning takes
    n_jobs: int

    def block_rows(self, row_bytes: float) -> int:
        """Rows of a block, if each takes so many bytes."""
        return max(1, min(MAX_BLOCK_ROWS, int(self.block_bytes / row_bytes)))

    def peek_groups(
        self, features: Mapping[str, Kind], n_rows: int, *, weighed: bool = False
    ) -> Iterator[list[str]]:
        """Features in groups whose sample fits in memory; at least one at a time."""
        sample = min(sample_rows(len(features)), n_rows)
        group: list[str] = []
        n_bytes = 0
        for name, kind in features.items():
            of_this = MIN_WORDS * WORD_BYTES
            if kind != "category":
                of_this = sample * (WORK_DTYPES[kind]().itemsize + 4 * weighed)
            if group and n_bytes + of_this > self.peek_bytes:
                yield group
                group, n_bytes = [], 0
            group.append(name)
            n_bytes += of_this
        yield group

    @classmethod
    def make(cls, limit: int, table: Table, n_jobs: int, *, trained: bool = False) -> Plan:
        """Divide the limit; a MemoryLimitError names one that would do, for training, too."""
        libraries = held()
        reading = table.source.reading_bytes(table.read_columns)
        # What the caller holds is the caller's: the limit then is for what ingest adds to it.
        parts = {} if table.source.in_memory else {LIBRARIES: libraries, "reading": reading}
        # By the limit alone, so that the same limit gives the same order of rows. Each thread holds
        # a bucket and makes a block of it.
        shuffle_bytes = max(MIN_MEMORY, limit // SHUFFLE_SHARE)
        budget = Budget(limit, {**parts, "buffers": MIN_ROOM})
        if trained and budget.total > limit:
            later = training_parts(table, shuffle_bytes, n_jobs)
            there = {"libraries": CODE_BYTES} if table.source.in_memory else {LIBRARIES: libraries}
            budget = max(budget, Budget(limit, {**there, **later}), key=lambda some: some.total)
        budget.check()
        room = limit // 2 if table.source.in_memory else limit - libraries - reading
        quarter = room // 4
        # Blocks wait before and after binning, and one is worked on by each thread; allocators
        # keep half as much again.
        blocks = 3 * (2 * AHEAD + n_jobs + 2) // 2
        block_bytes = min(
            max(MAX_BLOCK_BYTES, COLUMN_BYTES * len(table.read_columns)), quarter // blocks
        )
        plan = cls(
            block_bytes=block_bytes,
            # Peeking is over before the other buffers come; on top of the sample, each thread
            # joins and sorts one column.
            peek_bytes=2 * quarter,
            shuffle_bytes=shuffle_bytes,
            n_bytes=reading + blocks * block_bytes + shuffle_bytes,
            n_jobs=n_jobs,
        )
        log.debug("limit=%d libraries=%d plan=%s", limit, libraries, plan)
        return plan


def training_parts(table: Table, shuffle_bytes: int, n_jobs: int) -> dict[str, int]:
    """What training on these rows takes when they are read, beside libraries."""
    layout = Layout(len(table.features), table.weight is not None)
    rows = largest_block(layout.row_bytes, table.source.n_rows, shuffle_bytes)
    return default_parts(layout.n_features, rows, n_jobs, weighted=layout.weighted)


Peeked = tuple[pa.RecordBatch | DiscardSample, npt.NDArray[np.float32] | None]


def sample_rows(n_features: int) -> int:
    """Rows to look at for the bins of a table of so many features."""
    return min(SAMPLE_ROWS, max(LEAST_SAMPLE_ROWS, SAMPLE_VALUES // n_features))


def find_bins(
    table: Table, plan: Plan, random_state: int, progress: Progress
) -> tuple[Binning, float]:
    """Bins from a random sample of rows from all over the source, and the bytes of a row.

    If that is all rows, they count by weight. Of large sources columns are seen in different
    places, and without weights.
    """
    sample = sample_rows(len(table.features))
    weighed = table.weight is not None and table.source.n_rows <= sample
    features: list[Feature] = []
    n_bytes: Counter[str] = Counter()
    n_rows: Counter[str] = Counter()
    with (
        progress.task("finding bins", None) as task,
        ThreadPoolExecutor(plan.n_jobs) as pool,
    ):
        for some in plan.peek_groups(table.features, table.source.n_rows, weighed=weighed):
            words = max(MIN_WORDS, plan.peek_bytes // (WORD_BYTES * len(some)))
            fitters = {name: Fitter(name, table.features[name], words) for name in some}
            # The same state for all: how columns are grouped does not change what is seen of them.
            rng = np.random.default_rng([random_state, PEEKING])
            peeked: Generator[Peeked]
            if weighed:
                peeked = table.weighted_rows(some, PEEK_ROWS)
            else:
                peeked = ((piece, None) for piece in table.source.sample(some, sample, rng))
            with closing(prefetch(peeked, AHEAD)) as pieces:
                for piece, weight in pieces:
                    if isinstance(piece, DiscardSample):
                        for name in piece.columns:
                            fitters[name].forget()
                        if piece is PART_DONE:
                            for fitter in fitters.values():
                                fitter.keep()
                        continue
                    task.advance(piece.num_rows)
                    for name, array in zip(piece.schema.names, piece.columns, strict=True):
                        fitters[name].add(array, weight)
                        n_bytes[name] += _array_bytes(array)
                        n_rows[name] += len(array)
            features += pool.map(Fitter.finish, fitters.values())
            release()
    row_bytes = sum(n_bytes[name] / max(n_rows[name], 1) for name in table.features)
    return Binning(tuple(features)), max(row_bytes, 1.0)


def _array_bytes(array: pa.Array) -> int:
    """Bytes of a column's values; Arrow's own count of a slice takes longer than reading it."""
    type_ = array.type.index_type if pa.types.is_dictionary(array.type) else array.type
    if pa.types.is_primitive(type_):
        return len(array) * max(type_.bit_width // 8, 1)
    return int(array.nbytes)


def bin_rows(
    table: Table,
    binning: Binning,
    store: StoreWriter,
    stages: Sequence[Stage],
    block_rows: int,
    n_jobs: int,
    task: Task,
    saver: Saver,
    stop: threading.Event,
) -> Generator[None]:
    """One pass over the source: rows are binned, and put into the store. Gives after each stage."""
    only = [number for stage in stages for number in stage.only or ()] or None
    ends = [stage.n_rows for stage in stages] if only else []
    width, d = store.layout.row_bytes, store.layout.n_features
    missing = binning.n_bins.astype(np.uint8) - 1
    has_values = saver.has_values

    def work(block: CodedBlock) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        records = np.empty((len(block.codes), width), np.uint8)
        binning.apply(block.batch, records[:, :d])
        if block.weights is not None:
            records[:, d:] = block.weights[:, None].view(np.uint8)
        return records, block.codes

    with (
        closing(table.blocks(block_rows, only)) as blocks,
        closing(ordered_map(work, saver.left(blocks), n_jobs, n_jobs + AHEAD)) as results,
    ):
        for records, codes in results:
            store.put(records, codes)
            task.advance(len(records), records.nbytes)
            if not has_values.all():
                unsure = np.flatnonzero(~has_values)
                has_values[unsure] = (records[:, unsure] != missing[unsure]).any(0)
            saver.count(len(records))
            if stop.is_set():
                raise DataError("ingest was stopped.")
            if ends:
                ends[0] -= len(records)
                if ends[0] == 0:  # a block lies in one stretch
                    del ends[0]
                    if ends:
                        yield
    if ends:
        raise DataError(f"{table.source.name}: has fewer rows than it says; write it again.")


class Saver:
    """Counts the rows that are in the store, and saves how far it is now and then."""

    def __init__(self, store: StoreWriter, binning: Binning, row_bytes: float) -> None:
        self._store, self._row_bytes = store, row_bytes
        self._done, self.has_values = 0, np.zeros(len(binning.features), bool)
        if store.progress is not None:
            self._done = int(store.progress["rows"])
            self.has_values = store.progress["has_values"]
        self._skip = self._done
        self._saved = time.monotonic()

    def left(self, blocks: Iterable[CodedBlock]) -> Iterator[CodedBlock]:
        """The blocks without the rows that are in the store already."""
        for batch, codes, weights in blocks:
            n = min(self._skip, len(codes))
            self._skip -= n
            if n < len(codes):
                rest = None if weights is None else weights[n:]
                yield CodedBlock(batch.slice(n), codes[n:], rest)

    def count(self, rows: int) -> None:
        self._done += rows
        if self._store.resumable and time.monotonic() - self._saved > SAVE_SECONDS:
            self._store.save(
                {
                    "rows": np.array(self._done),
                    "row_bytes": np.array(self._row_bytes),
                    "has_values": self.has_values,
                }
            )
            self._saved = time.monotonic()


def fingerprints(data: Any, values: Sequence[Any]) -> list[tuple[str, int, int]]:
    """Name, size and time of change of each file that is meant, and of those of labels."""
    files = data if isinstance(data, list | tuple) else [data]
    if not files or not all(isinstance(file, str | os.PathLike) for file in files):
        raise DataError("resume=True needs files to read, which are there when it goes on.")
    found = []
    for path in [*expand(files), *map(Path, values)]:
        stat = path.stat()
        found.append((str(path.absolute()), stat.st_size, stat.st_mtime_ns))
    return found


def finished(path: Path, run: Mapping[str, Any]) -> Dataset | None:
    """The store of a run that had ended; an error if another one is there."""
    path = path.expanduser().absolute()
    if not (path / MANIFEST).is_file():
        return None
    if read_manifest(path).get("run") != json.loads(json.dumps(run)):
        raise StoreError(
            f"{path}: a store of other files or options is there, or the files have changed; "
            "choose another path, or remove it."
        )
    return Dataset(path)


def _words(item: Any) -> Any:
    """An option as JSON has it."""
    if item is None or isinstance(item, bool | int | float | str):
        return item
    if isinstance(item, os.PathLike):
        return os.fspath(item)
    if isinstance(item, list | tuple):
        return [_words(part) for part in item]
    raise DataError("resume=True needs labels, weights and columns by name, or .npy files.")


def tell_empty(binning: Binning, has_values: npt.NDArray[np.bool_]) -> None:
    """Warn of columns without any value: no tree can use them, and they may be a mistake."""
    empty = [name for name, has in zip(binning.names, has_values, strict=True) if not has]
    if empty:
        more = f" and {len(empty) - SHOWN_EMPTY} more" if len(empty) > SHOWN_EMPTY else ""
        log.warning("no values, all missing: %s%s", ", ".join(empty[:SHOWN_EMPTY]), more)


def warm_up(kinds: Iterable[Kind]) -> None:
    """Compile or load the kernels, so that what they take is known before memory is divided."""
    from sparrowboost.kernels.bins import (
        bin_by_bits,
        bin_by_grid,
        bin_by_search,
        bin_by_table,
        bin_codes,
    )
    from sparrowboost.kernels.rows import gather_rows, random_order, scatter_rows
    from sparrowboost.readers.parquet_pages import PageBuffers

    byte = np.zeros((1, 2), np.uint8)
    out, table = byte[:, 0], np.zeros(1 << 16, np.uint8)
    zero, missing = np.zeros(1, np.int64), np.uint8(0)
    for dtype in {WORK_DTYPES[kind] for kind in kinds}:
        x = read_only(np.zeros(1, dtype))
        if dtype is np.int32:
            bin_by_table(x, table, out)
            bin_codes(byte, np.zeros((1, 256), np.uint8), zero, np.empty((2, 1), np.uint8))
            PageBuffers(1).take(0)
            continue
        low = np.float32(1) if dtype is np.float32 else np.float64(1)
        thresholds = np.zeros(256, dtype)
        bin_by_grid(x, thresholds, table, low, low, 1, missing, out)
        bin_by_bits(x, thresholds, table, 1, missing, out)
        bin_by_search(x, thresholds, missing, out)
        if dtype is np.int64:
            bin_by_table(read_only(np.zeros(1, np.uint8)), table, out)
    scatter_rows(byte, table[:1], 0, np.uint64(0), np.uint64(0), byte[None].copy(), zero.copy())
    order = np.zeros(1, np.uint32)
    random_order(np.uint64(0), order)
    gather_rows(byte, order, byte[:, :1].copy(), byte[:0])
