"""`ingest(..., append=)`: new rows into a store that is there, with its features, bins and labels.

The rows become a segment (stored.py): nothing that is there is written again but the manifest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sparrowboost.readers.formats import OpenOptions
from sparrowboost.readers.known_labels import StoredClasses, StoredTargets
from sparrowboost.readers.labels import LabelReader
from sparrowboost.readers.options import ReadOptions
from sparrowboost.readers.table import ColumnLike, NoColumnError, OffsetChoice, Table, open_table
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.memory import release
from sparrowboost.runtime.progress import Progress, compiling, log, make_progress
from sparrowboost.store.dataset import Dataset
from sparrowboost.store.drift import DriftMeter
from sparrowboost.store.known_bins import category_names, check_kinds
from sparrowboost.store.label_sample import LabelSample
from sparrowboost.store.plan import OPENING, IngestPlan
from sparrowboost.store.reading import Reading
from sparrowboost.store.staged import StagedRows
from sparrowboost.store.stages import all_rows
from sparrowboost.store.storage import REGRESSION
from sparrowboost.store.stored import StoredRows
from sparrowboost.store.warm_up import warm_up
from sparrowboost.store.writer import StoreWriter

SHOWN = 8  # columns that are left out, in a log line
START_BLOCKS = 4  # of each band, from which it is found where the band starts


def append_rows(
    data: Any,
    store: str | os.PathLike[str] | Dataset,
    *,
    label: ColumnLike,
    weight: ColumnLike,
    offset: ColumnLike,
    read: ReadOptions,
    limit: int,
    n_jobs: int,
    seed: int,
    run: Mapping[str, Any] | None,
    verbose: int,
) -> Dataset:
    """Add the rows of a table to a store, all of them or none; the grown store.

    With `run`, rows of the same files and options are added only once.
    """
    with ExitStack() as stack:
        writer = stack.enter_context(StoreWriter(folder_of(store), append=True, run=run))
        base = writer.base
        if base.packing is not None:
            raise DataError(
                f"{base.path}: has packed rows, as wide and sparse tables have; none can be "
                "appended yet: ingest old and new rows together into a new store."
            )
        lifetime = finished(store).lifetime if isinstance(store, Dataset) else None
        base.lifetime = lifetime
        if run is not None and run in writer.runs:
            return Dataset(base)
        numbers = len(base.segment_ends)
        options = OpenOptions(
            scratch=writer.scratch,
            rng=np.random.default_rng([seed, OPENING]),
            read=read,
            categorical=category_names(base.binning),
            limit=limit,
        )

        with make_progress(verbose) as progress:

            def plan_stream(table: Table) -> None:
                _check(table, base)
                _plan(table, base, limit, n_jobs, progress)

            table = _open(data, base, options, label, weight, offset, plan_stream)
            plan = _plan(table, base, limit, n_jobs, progress)
        row_bytes = float(table.source.row_bytes(base.binning.column_names))
        # With the same number, row i of each segment would go to the same bucket.
        shuffle = int(np.random.SeedSequence([seed, numbers]).generate_state(1, np.uint64)[0] >> 1)
        of = table, base.binning, writer, plan, [all_rows(table.source)], LabelSample(), row_bytes
        reading = Reading(*of, shuffle, DriftMeter(base))
        rows = StagedRows(reading, close=stack.pop_all(), verbose=verbose)
    grown = rows.wait()
    finished(grown).lifetime = lifetime
    return grown


def check_options(*, wait: bool, **given: Any) -> None:
    """A DataError if an option was given that the store has already."""
    if not wait:
        raise DataError("append= stores all rows before it returns; leave out wait=False.")
    for name, value in given.items():
        if value is not None and value is not False:
            raise DataError(
                "append= adds to a store, with its folder, features, bins and labels; leave out "
                f"{name}=."
            )


def folder_of(store: str | os.PathLike[str] | Dataset) -> Path | str | os.PathLike[str]:
    """The folder of the store to append to."""
    if isinstance(store, str | os.PathLike):
        return store
    if not isinstance(store, Dataset):
        raise DataError(
            f"append is {type(store).__name__}; pass the path of a store, or its Dataset."
        )
    return finished(store).path


def finished(dataset: Dataset) -> StoredRows:
    """The rows of a store, all of them; a DataError for a view."""
    storage = dataset.storage
    if isinstance(storage, StagedRows):
        storage = storage.wait().storage
    if not isinstance(storage, StoredRows):
        raise DataError(
            "append= is a part of a data set, or has weights of labels; pass the data set that it "
            "is of."
        )
    return storage


def _open(
    data: Any,
    base: StoredRows,
    options: OpenOptions,
    label: ColumnLike,
    weight: ColumnLike,
    offset: ColumnLike,
    check: Callable[[Table], None],
) -> Table:
    """The table of new rows, if it has what the store needs."""
    if base.weighted and weight is None:
        raise DataError(
            f"{base.path}: its rows have weights; say what those of the new ones are, by weight= "
            "(--weight)."
        )
    if not base.weighted and weight is not None:
        raise DataError(
            f"{base.path}: its rows have no weights; leave out weight= (--weight), or ingest old "
            "and new rows together into a new store."
        )
    if base.offset_name is None and offset is not None:
        raise DataError(
            f"{base.path}: its rows have no offsets; leave out offset= (--offset), or ingest old "
            "and new rows together into a new store."
        )
    offset = base.offset_name if offset is None else offset
    try:
        table = open_table(
            data,
            options,
            label=base.label_name if label is None else label,
            weight=weight,
            offset=None if offset is None else OffsetChoice(offset),
            labels=partial(label_reader, base),
            columns=base.binning.column_names,
            exclude=(),
            check=check,
        )
    except NoColumnError as error:
        has_offset = base.offset_name is not None
        needed = "the label, the offset" if has_offset else "the label"
        more = ", another offset by offset= (--offset)" if has_offset else ""
        raise NoColumnError(
            f"{error} Appended rows need {needed} and all features of {base.path}; another label "
            f"is passed by label= (--label){more}."
        ) from None
    _check(table, base)
    read = {*table.read_columns}
    others = [column for column in table.source.columns if column not in read]
    if others:
        more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        log.info("columns that the store does not have: %s%s", ", ".join(others[:SHOWN]), more)
    return table


def _check(table: Table, base: StoredRows) -> None:
    """A DataError if the columns of new rows do not go with those of the store."""
    names = base.binning.column_names
    known = [column for column in names if column not in table.features]
    if known:
        raise DataError(
            f"{table.source.name}: column {known[0]!r} is a feature of {base.path}, and cannot be "
            "label, weight or offset."
        )
    named = table.label.external is None and table.label.name != base.label_name
    if named and base.label_name in table.source.columns:
        raise DataError(
            f"{table.source.name}: the label of {base.path} is {base.label_name!r}, which this "
            f"data has, too; leave out label={table.label.name!r}."
        )
    check_kinds(base.binning, table.source, names, "the store has")


def _plan(
    table: Table, base: StoredRows, limit: int, n_jobs: int, progress: Progress
) -> IngestPlan:
    with compiling(progress):
        warm_up(table.features.values())
        warm_up({f.kind for f in base.binning.features})
    release()
    return IngestPlan.make(limit, table, n_jobs)


def label_reader(base: StoredRows, name: str) -> LabelReader:
    """What reads labels as the store has them."""
    rows = np.bincount(base.block_label, base.block_rows, base.n_bands)
    share = float(rows.max() / rows.sum())
    if base.task == REGRESSION:
        return StoredTargets(name, base.band_starts or band_starts(base), share)
    if base.n_classes == 2:
        return StoredClasses(name, base.classes, largest_share=share)
    return StoredClasses(
        name,
        base.classes,
        largest_share=share,
        bands=base.class_band,
        codes=base.code_of,
        n_bands=base.n_bands,
    )


def band_starts(base: StoredRows) -> list[float]:
    """Where all bands but the lowest start, by the least number in some blocks of each.

    A number between these and the real start gets into the band below, which does no harm: bands
    are ranges that are about right.
    """
    starts = [np.inf] * base.n_bands
    for band in range(base.n_bands - 1, 0, -1):
        blocks = np.flatnonzero(base.block_label == band)[:START_BLOCKS]
        for block in blocks:
            target = base.read_block(int(block), shuffled=False).target
            assert target is not None
            starts[band] = min(starts[band], float(target.min()))
        starts[band] = min(starts[band:])  # of a band without rows, that of the next
    return starts[1:]
