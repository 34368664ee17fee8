"""`ingest`: from a source to a store, in one pass after the bins are found."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np

from sparrowboost.readers.formats import OpenOptions, check_format
from sparrowboost.readers.labels import LabelCoder, LabelReader, Value
from sparrowboost.readers.options import ReadOptions
from sparrowboost.readers.table import ColumnLike, OffsetChoice, Table, name_list, open_table
from sparrowboost.readers.targets import TargetReader
from sparrowboost.runtime.disk import check_room
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.memory import apply_limit, release
from sparrowboost.runtime.progress import compiling, make_progress
from sparrowboost.runtime.random_state import RandomState, check_seed
from sparrowboost.runtime.threads import check_jobs
from sparrowboost.store.append import append_rows, check_options
from sparrowboost.store.bin_finder import find_bins
from sparrowboost.store.dataset import Dataset
from sparrowboost.store.known_bins import (
    SameRows,
    binning_of,
    category_names,
    check_kinds,
    classes_of,
    opened,
    task_of,
    warn_of_own_labels,
)
from sparrowboost.store.label_sample import LabelSample, look_at_labels, read_as_known
from sparrowboost.store.packing import WORD_BYTES
from sparrowboost.store.plan import OPENING, IngestPlan, layout_of, plan_sparse
from sparrowboost.store.reading import Reading
from sparrowboost.store.resume import describe_run, find_finished
from sparrowboost.store.sparse import SparsePlan, as_sparse, find_sparse_bins, packed_as
from sparrowboost.store.staged import StagedRows
from sparrowboost.store.stages import Stage, all_rows, make_stages
from sparrowboost.store.statistics_pass import StatisticsPass, make_statistics
from sparrowboost.store.storage import CLASSIFICATION, REGRESSION
from sparrowboost.store.warm_up import warm_up, warm_up_sparse
from sparrowboost.store.writer import StoreWriter

N_STAGES = 6  # in which rows are read; training begins after the first
MIN_PARTITIONS = 16  # of a source that is read in stages
MIN_STAGED_ROWS = 1_000_000


def ingest(
    data: Any,
    *,
    label: ColumnLike = None,
    path: str | os.PathLike[str] | None = None,
    weight: ColumnLike = None,
    offset: ColumnLike = None,
    positive: Value | None = None,
    task: str | None = None,
    columns: str | Iterable[Any] | None = None,
    exclude: str | Iterable[Any] | None = None,
    categorical: str | Iterable[Any] | None = None,
    category_statistics: bool = True,
    bins_of: Any = None,
    append: str | os.PathLike[str] | Dataset | None = None,
    memory_limit: int | float | str | None = None,
    header: bool = True,
    format: str | None = None,
    delimiter: str | None = None,
    decimal: str = ".",
    thousands: str | None = None,
    date_format: str | Sequence[str] | None = None,
    table_version: int | str | None = None,
    as_of: str | datetime | None = None,
    storage_options: Mapping[str, Any] | None = None,
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
    data : path, glob, folder, list of paths, query, array, frame, table or stream
        Parquet, CSV, JSON lines, Arrow IPC, ORC, libsvm or .npy files (text also packed), folders
        such as ``day=1``, Delta and Iceberg tables; `sparrowboost.sql`; a numpy array or memory
        map, a scipy sparse matrix, a pandas or polars frame, a polars LazyFrame, a pyarrow table or
        dataset, a data set of Hugging Face's, or any object with ``__arrow_c_stream__``. Columns of
        arrays are called f0, f1, ... See docs/ingest.md.
    label : column name, column number, array, or path of a .npy file
        Any two values: 0/1, -1/+1, booleans, two strings. The greater is the positive one. Or 3 to
        255 classes: strings, categories; with task="classification" also numbers. With
        task="regression", numbers to predict. libsvm files have their own. With `append`, by
        default the column that is the store's label.
    path : str or path, optional
        The store's folder, new or empty unless `overwrite` or `resume` is set. Without it, the
        store is temporary and is removed with the Dataset.
    weight : like label, optional
        Sample weights: not negative, at most 1e12. If all are whole numbers up to 256, and all rows
        are in memory during training, a row of weight 3 counts as three rows; otherwise only the
        proportions of weights matter.
    offset : like label, optional
        What to add to the score of each row, in training and in prediction: for loss="poisson",
        "gamma" and "tweedie", the logarithm of the exposure; for two classes, in log odds;
        otherwise in the unit of the labels. Finite numbers. Not for more than two classes.
    positive : value, optional
        The label to train against all others.
    task : {"classification", "regression"}, optional
        What labels are: classes, or numbers to predict. Default: that of `bins_of`, else classes;
        numbers of more than two values are an error that asks.
    columns, exclude : list of str, optional
        Columns to use as features, or to leave out. Default: all columns but label, weight
        and offset.
    categorical : list of str, optional
        Columns of numbers to treat as categories. Strings, dictionaries and pandas categories
        always are.
    category_statistics : bool
        Whether columns of more categories than bins get, as more features, the mean of the target
        and the count of each row's category. They take one more pass over these columns.
    bins_of : Dataset, path of a store, or Model, optional
        Use its features and their bins instead of finding some: for rows with which the training of
        a model goes on (`init_model` of `train`). Of more than two classes, the rows then need not
        have all.
    append : path of a store, or Dataset, optional
        Add the rows to this store, with its features, bins and classes, all of them or none.
        Whoever has the store open keeps the rows that it had. How the new rows differ from the
        first ones is in the log, and in `appended` of the Dataset. `path`, `positive`, `task`,
        `columns`, `exclude`, `categorical`, `bins_of` and `overwrite` are those of the store.
    memory_limit : int or str, optional
        Peak memory of the process, such as "512MB". Default: a quarter of the memory of the machine
        or of the cgroup of this process; if that is less than 1 GB, up to 1 GB or 80 %. Data that
        the caller holds in memory is not counted.
    header : bool
        Whether the first line of a CSV file names the columns.
    format : {"parquet", "csv", "jsonl", "arrow", "orc", "libsvm", "npy"}, optional
        The format of files, if their suffix does not tell.
    delimiter : str, optional
        The character between the cells of CSV files. Default: of comma, tab, semicolon and bar the
        most frequent one in the first line.
    decimal : str
        The decimal mark of numbers in CSV files, such as ",".
    thousands : str, optional
        The mark between groups of digits of numbers in CSV files, such as "." or " ". Give the
        same marks and formats again for validation and prediction: they are not part of the model.
    date_format : str or list of str, optional
        How dates are written in CSV files, as in ``datetime.strptime``: "%d.%m.%Y". ISO 8601 is
        known.
    table_version : int or str, optional
        Of a Delta table, the number of the version to read; of an Iceberg table, the snapshot, or
        its branch or tag. Default: the current one.
    as_of : str or datetime, optional
        Instead of a version, the time at which it was the current one: "2024-12-31T18:00". Without
        a zone, of UTC.
    storage_options : dict, optional
        How remote storage such as s3://bucket/name is reached, if its library does not find that by
        itself: arguments of `pyarrow.fs.S3FileSystem` and others (docs/sources.md).
    overwrite : bool
        Replace an existing store.
    resume : bool
        Of files: if there is a finished store, made with ``resume=True`` from the same files and
        options, open it instead of reading the files again; another store is an error. An ingest
        that was killed starts again from the first row. With `append`: rows that were appended with
        ``resume=True`` from the same files and options are not appended again.
    wait : bool
        False: return when the bins are found, before the rows are read. `train` then reads them,
        while it trains if possible, which it is not for more than two classes; any other use of
        the Dataset waits until all rows are read.
    n_jobs : int, optional
        Threads; default (and -1): as many as this process may use.
    random_state : int, Generator, RandomState or None
        Seeds the shuffle and the sample that bins are found on. The same source, limit and number
        give the same store; None gives another each time.
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
    read = ReadOptions(
        header=header,
        format=format,
        delimiter=delimiter,
        decimal=decimal,
        thousands=thousands,
        date_format=date_format,
        table_version=table_version,
        as_of=as_of,
        storage_options=storage_options,
    )
    check_format(format)
    limit = apply_limit(memory_limit)
    n_jobs, seed = check_jobs(n_jobs), check_seed(random_state)
    if resume and not isinstance(random_state, int | np.integer):
        raise DataError("resume=True needs a whole number as random_state.")
    if append is not None:
        check_options(
            path=path, positive=positive, task=task, columns=columns, exclude=exclude,
            categorical=categorical, bins_of=bins_of, overwrite=overwrite, wait=wait,
        )  # fmt: skip
        named = (label, weight, offset, header, format, seed, *read.of_text())
        return append_rows(
            data,
            append,
            label=label,
            weight=weight,
            offset=offset,
            read=read,
            limit=limit,
            n_jobs=n_jobs,
            seed=seed,
            run=describe_run(data, named) if resume else None,
            verbose=verbose,
        )
    run, known = None, None
    same_rows = isinstance(bins_of, SameRows)
    if same_rows:
        bins_of = bins_of.model
    if bins_of is not None:
        bins_of = opened(bins_of)
        known = binning_of(bins_of, columns, exclude, categorical)
        task = task or task_of(bins_of)
        columns, categorical = known.column_names, category_names(known)
    if resume:
        named = (
            label, weight, positive, columns, exclude, categorical, header, format, seed,
            *read.of_text(),  # only those given: stores of older versions do not have them
            *([task] if task == REGRESSION else []),
            *([] if offset is None else ["offset", offset]),
            *([] if category_statistics else ["no statistics"]),
            *([] if known is None else [zlib.crc32(json.dumps(known.to_json()).encode())]),
        )  # fmt: skip
        run = describe_run(data, named, storage_options)
        finished = find_finished(path, run, overwrite=overwrite)
        if finished is not None:
            return finished
    new = known is None and category_statistics
    with ExitStack() as stack:
        store = stack.enter_context(StoreWriter(path, overwrite=overwrite, run=run))
        options = OpenOptions(
            scratch=store.scratch,
            rng=np.random.default_rng([seed, OPENING]),
            read=read,
            categorical=name_list(categorical),
            needed=[] if known is None else known.column_names,
            limit=limit,
        )
        with make_progress(verbose) as progress:

            def plan_stream(table: Table) -> None:
                if known is not None:
                    check_kinds(known, table.source, known.column_names)
                with compiling(progress):
                    warm_up(table.features.values())
                release()
                IngestPlan.make(limit, table, n_jobs, trained=not wait, statistics=new)

            table = open_table(
                data,
                options,
                label=label,
                weight=weight,
                offset=None if offset is None else OffsetChoice(offset),
                labels=choose_reader(task, positive),
                columns=None if columns is None else name_list(columns),
                exclude=name_list(exclude),
                check=plan_stream,
            )
            sample = LabelSample()
            if positive is None:
                sample = look_at_labels(table, seed, asked=task == CLASSIFICATION)
                if task == CLASSIFICATION and (classes := classes_of(bins_of)):
                    read_as_known(table, sample, classes)
            with compiling(progress):
                warm_up(table.features.values())
            release()
            statistics, packing = None, None
            sparse = as_sparse(table, known)
            if sparse is not None:
                with compiling(progress):
                    warm_up_sparse()
            if sparse is None:
                plan = IngestPlan.make(limit, table, n_jobs, trained=not wait, statistics=new)
                check_room(store.path, table.source.n_rows * layout_of(table).row_bytes)
            else:
                rules, plan = SparsePlan.make(limit), plan_sparse(limit, table, sparse, n_jobs)
                check_room(store.path, table.source.n_rows * WORD_BYTES * sparse.shape(rules).words)
            if sparse is not None:
                table.sparse = sparse.rows
                binning = known or find_sparse_bins(table, sparse, rules, seed, progress)
                packing = packed_as(binning, sparse.survey, rules)
                row_bytes = sparse.survey.row_bytes + packing.width
            elif known is None:
                binning, row_bytes, many = find_bins(
                    table, plan, seed, progress, statistics=category_statistics
                )
                plan = plan.beside_statistics(table, len(many))
                binning, statistics = make_statistics(
                    binning, many, table, sample, plan, limit, seed, progress
                )
            else:
                names = known.column_names
                check_kinds(known, table.source, names)
                binning, row_bytes = known, float(table.source.row_bytes(names))
                plan = plan.beside_statistics(table, len(known.statistics))
                read_again = StatisticsPass.again(known, table, sample, plan, limit, seed)
                statistics = read_again.of_rows(progress, sure=same_rows)
                if statistics is None and not isinstance(bins_of, Dataset):
                    warn_of_own_labels(known)
        # With `positive`, the other classes are not known before all labels are read.
        whole = positive is not None or table.labels.n_classes > 2 or packing is not None
        stages = [all_rows(table.source)] if whole else choose_stages(table, sample, seed)
        of = table, binning, store, plan, stages, sample, row_bytes, seed
        reading = Reading(*of, statistics=statistics, packing=packing)
        rows = StagedRows(reading, close=stack.pop_all(), verbose=verbose)
    return rows.wait() if wait else Dataset(rows)


def choose_reader(task: str | None, positive: Value | None) -> Callable[[str], LabelReader]:
    """What reads labels, as far as arguments tell: makes it from the name of the label."""
    if task not in (None, CLASSIFICATION, REGRESSION):
        raise DataError(f"task={task!r} is unknown; give 'classification' or 'regression'.")
    if task == REGRESSION and positive is not None:
        raise DataError("positive= names a class, and with task='regression' there is none.")
    if task == REGRESSION:
        return TargetReader
    return partial(LabelCoder, positive=positive, asked=task == CLASSIFICATION)


def choose_stages(table: Table, sample: LabelSample, seed: int) -> list[Stage]:
    """The stages in which to read a table; only one if a part of the rows may not represent all."""
    stages = make_stages(
        table.source, seed, N_STAGES, min_rows=MIN_STAGED_ROWS, min_partitions=MIN_PARTITIONS
    )
    return [all_rows(table.source)] if len(stages) > 1 and sample.drifts else stages
