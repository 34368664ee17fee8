"""Predictions of a source of any size, written to a file block by block."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
from pyarrow import types as pt

from sparrowboost.model.ensemble import Offsets
from sparrowboost.model.losses import log_odds, probability
from sparrowboost.model.model import Model, check_model
from sparrowboost.model.predict import lean_for, load_kernels, offset_choice, stream
from sparrowboost.model.softmax import class_probabilities
from sparrowboost.readers.arrays import from_numpy, strings
from sparrowboost.readers.formats import check_apart
from sparrowboost.readers.options import ReadOptions
from sparrowboost.readers.table import ColumnLike, OffsetChoice, name_list
from sparrowboost.runtime.disk import guard_disk
from sparrowboost.runtime.errors import DataError, StoreError
from sparrowboost.runtime.memory import apply_limit, release
from sparrowboost.runtime.progress import make_progress
from sparrowboost.runtime.remote import RemotePath, output_target, writing
from sparrowboost.store.lookup import Bins

GROUP_ROWS = 1 << 20  # maximum of a row group of a Parquet file,
GROUP_BYTES = 4 << 20  # and of its size, since it is held in memory until it is written
COLUMNS = ("prediction", "probability", "score")
DEFAULTS = ("prediction", "probability")
NUMBER_COLUMNS = ("prediction",)  # of models of numbers


def write_predictions(
    model: Model,
    data: Any,
    path: str | os.PathLike[str],
    *,
    columns: str | Sequence[str] | None = None,
    keep: str | Sequence[str] = (),
    offset: ColumnLike | Literal[False] = None,
    header: bool = True,
    format: str | None = None,
    delimiter: str | None = None,
    decimal: str = ".",
    thousands: str | None = None,
    date_format: str | Sequence[str] | None = None,
    table_version: int | str | None = None,
    as_of: str | datetime | None = None,
    storage_options: Mapping[str, Any] | None = None,
    memory_limit: int | float | str | None = None,
    n_jobs: int | None = None,
    verbose: int = 1,
) -> int:
    """Predict all rows of a source and write the result to a file, in bounded memory.

    The file appears under its name only when it is complete.

    Parameters
    ----------
    model : Model
    data : anything that `ingest` reads
    path : str or path
        Ends in .parquet or .csv; local, or of remote storage.
    columns : sequence of {"prediction", "probability", "score"}, optional
        What to write: the likelier label, the probability of the positive label, and its log odds,
        as `Model.decision_function` gives them. Default: the first two. Of more than two classes,
        the latter two are a column for each class: "probability_" or "score_" and the label. Models
        of numbers have only "prediction", in the unit of the labels, as `Model.predict` gives it.
    keep : sequence of str
        Columns of the source to write before these, such as an id. In CSV files, columns that are
        not features are kept as text.
    offset : as in `Model.decision_function`
    header, format, delimiter, decimal, thousands, date_format, storage_options : as in `ingest`
    table_version, as_of : as in `ingest`
    memory_limit : int or str, optional
        Peak memory of the process, such as "512MB"; a limit that is too small is refused before any
        row is read. Default: no limit, and blocks of 16,384 rows.
    n_jobs : int, optional
        Threads; default: as many as this process may use.
    verbose : int
        0 is silent; 1 shows progress.

    Returns
    -------
    int
        The number of rows.

    Examples
    --------
    >>> import sparrowboost, tempfile
    >>> X = np.arange(200.0).reshape(100, 2)
    >>> ds = sparrowboost.ingest(X, label=X[:, 0] > 80, verbose=0)
    >>> model = sparrowboost.train(ds, n_estimators=20, verbose=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     n = write_predictions(model, X, f"{folder}/out.csv", keep=["f0"], verbose=0)
    ...     print(Path(folder, "out.csv").read_text().splitlines()[0])
    "f0","prediction","probability"
    """
    check_model(model)
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
    allowed = COLUMNS if model.regression is None else NUMBER_COLUMNS
    default = [name for name in DEFAULTS if name in allowed]
    columns = default if columns is None else name_list(columns)
    keep, choice = name_list(keep), offset_choice(model, offset)
    _check_columns(columns, keep, allowed)
    columns = [name for column in columns for name in _written(column, model)]
    _check_names([*keep, *columns])
    file = output_target(path, storage_options)
    _check_file(file)
    check_apart(file, data, storage_options)
    limit = None
    if memory_limit is not None:
        limit = apply_limit(memory_limit)
        load_kernels(model)
        release()
    n = 0
    with (
        make_progress(verbose) as progress,
        progress.task("predicting", None) as task,
        writing(file) as partial,
        closing(_batches(model, data, columns, keep, n_jobs, read, limit, choice)) as batches,
    ):
        writer: Any = None
        try:
            for batch in batches:
                with _writing(file, partial, batch.nbytes):
                    if writer is None:
                        writer = _open(partial, file.suffix.lower(), batch.schema)
                    writer.write(batch)
                n += batch.num_rows
                task.advance(batch.num_rows)
        finally:
            if writer is not None:
                with _writing(file, partial, 0):
                    writer.close()
        if writer is None:
            raise DataError("there are no rows to predict.")
    return n


def _check_columns(columns: Sequence[str], keep: Sequence[str], allowed: Sequence[str]) -> None:
    if not columns or not set(columns) <= set(allowed):
        choices = f"give any of {', '.join(allowed)}; keep= takes others"
        if set(columns) <= set(COLUMNS):
            choices = "the model predicts numbers, without a probability or score; leave these out"
        raise DataError(f"columns={columns}: {choices}.")


def _written(column: str, model: Model) -> list[str]:
    """The names of the columns that one of `columns` means."""
    if model.softmax is None or column == "prediction":
        return [column]
    return [f"{column}_{label}" for label in model.classes]


def _check_names(names: Sequence[str]) -> None:
    duplicates = [name for name, count in Counter(names).items() if count > 1]
    if duplicates:
        raise DataError(
            f"column {duplicates[0]!r} would be written twice; keep each column once, and none "
            "that has the name of a prediction."
        )


def _check_file(file: Path | RemotePath) -> None:
    if file.suffix.lower() not in (".parquet", ".csv"):
        raise DataError(f"{file}: the suffix selects the format; end the name in .parquet or .csv.")
    if isinstance(file, RemotePath):
        return
    if not file.parent.is_dir():
        raise DataError(f"{file}: there is no folder {file.parent}; make it first.")
    if file.is_dir():
        raise DataError(f"{file}: is a folder; give the name of a file.")


@contextmanager
def _writing(file: Path | RemotePath, partial: Path, n_bytes: int) -> Iterator[None]:
    """Turn errors of the system or Arrow into ones that name the file."""
    try:
        with guard_disk(file if isinstance(file, Path) else partial, n_bytes):
            yield
    except StoreError:  # of the disk
        raise
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"{file}: cannot hold a column to keep ({error}); leave it out, or try .parquet."
        ) from None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        raise DataError(f"{file}: cannot be written ({why}); choose another path.") from None


def _open(path: Path, suffix: str, schema: pa.Schema) -> Any:
    if suffix == ".csv":
        return pcsv.CSVWriter(path, schema)
    # Dictionaries of floats, which rarely repeat, would save nothing and take 30 MB.
    repeating = [field.name for field in schema if not pa.types.is_floating(field.type)]
    return _GroupWriter(pq.ParquetWriter(path, schema, use_dictionary=repeating))


class _GroupWriter:
    """Writes batches to a Parquet file in large row groups."""

    def __init__(self, writer: pq.ParquetWriter) -> None:
        self._writer = writer
        self._held: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        schema = self._writer.schema
        if batch.schema != schema:
            pairs = zip(schema, batch.columns, strict=True)
            batch = pa.RecordBatch.from_arrays([_like(*pair) for pair in pairs], schema=schema)
        self._held.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            table = pa.Table.from_batches(self._held).unify_dictionaries()
            self._writer.write_table(table, row_group_size=GROUP_ROWS)
        self._held, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        self._flush()
        self._writer.close()


def _batches(
    model: Model,
    data: Any,
    columns: Sequence[str],
    keep: Sequence[str],
    n_jobs: int | None,
    read: ReadOptions,
    limit: int | None,
    offset: OffsetChoice,
) -> Generator[pa.RecordBatch]:
    model = lean_for(model, data)
    work = _worker(model)
    for made, kept in stream(model.binning, data, work, n_jobs, read, keep, limit, offset):
        arrays = [*map(_plain, kept), *(made[name] for name in columns)]
        yield pa.RecordBatch.from_arrays(arrays, [*keep, *columns])


def _worker(model: Model) -> Callable[[Bins, Offsets], dict[str, pa.Array]]:
    """What predicts the columns of some rows from their bins and offsets."""
    if (loss := model.regression) is not None:
        return lambda *rows: {"prediction": from_numpy(loss.predictions(model.score(*rows)))}
    classes = _classes(model)
    if model.softmax is not None:
        return partial(_of_classes, model, classes)

    def work(bins: Bins, offset: Offsets) -> dict[str, pa.Array]:
        score = model.score(bins, offset)
        return {
            "prediction": classes.take(from_numpy((score > 0).astype(np.int8))),
            "probability": from_numpy(probability(score)),
            "score": from_numpy(log_odds(score)),
        }

    return work


def _of_classes(
    model: Model, classes: pa.Array, bins: Bins, offset: Offsets
) -> dict[str, pa.Array]:
    """The same of more than two classes."""
    score = model.score(bins, offset)
    best = score.argmax(axis=1).astype(np.uint8)
    made = {"prediction": classes.take(from_numpy(best))}
    for column, values in (("probability", class_probabilities(score)), ("score", score)):
        for name, of_class in zip(_written(column, model), values.T, strict=True):
            made[name] = from_numpy(np.ascontiguousarray(of_class))
    return made


def _classes(model: Model) -> pa.Array:
    """The labels; of two, null stands for any label but the positive one."""
    if model.softmax is not None:
        if any(isinstance(label, str) for label in model.classes):
            return strings(list(map(str, model.classes)))
        return from_numpy(np.array(model.classes))
    negative, positive = model.classes
    if isinstance(positive, str) and isinstance(negative, str | None):
        return strings([negative, positive])
    if negative is None:
        return from_numpy(np.array([positive, positive]), np.array([True, False]))
    return from_numpy(np.array([negative, positive]))


def _plain(array: pa.Array) -> pa.Array:
    """A dictionary as plain values: dictionaries differ between blocks, and CSV has none."""
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    return array


def _like(field: pa.Field, array: pa.Array) -> pa.Array:
    """A kept column in the type it has in the first file; files may differ."""
    type_, own = field.type, array.type
    holds_all = pt.is_string(type_) or (pt.is_float64(type_) and pt.is_integer(own))
    if own != type_ and not holds_all and not pt.is_null(own):
        raise DataError(
            f"column {field.name!r} is {type_} in some files and {own} in others; convert it, do "
            "not keep it, or write .csv."
        )
    return array.cast(type_)
