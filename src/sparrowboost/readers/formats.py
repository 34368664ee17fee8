"""Choose the reader for any source of rows.

a path, glob, folder or list of them -> suffix -> one reader per format
an array, frame, table or stream     -> its own reader
"""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.fs

from sparrowboost.readers import inmemory
from sparrowboost.readers.base import (
    ConcatenatedSource,
    GuardedSource,
    RandomAccessSource,
    Source,
    Stamp,
    read_errors,
    stamp,
)
from sparrowboost.readers.columns import (
    Kind,
    RowError,
    categories,
    join_kinds,
    kind_of,
    numbers,
    plain_words,
)
from sparrowboost.readers.csv import CsvFile
from sparrowboost.readers.delta import open_delta, open_delta_folder
from sparrowboost.readers.files import Location, local, location
from sparrowboost.readers.hive import partition_columns
from sparrowboost.readers.iceberg import open_iceberg, open_iceberg_folder
from sparrowboost.readers.ipc import open_arrow, spill, spill_stream
from sparrowboost.readers.jsonlines import open_json_lines
from sparrowboost.readers.lakes import check_no_lake, find_lake, lake_at
from sparrowboost.readers.lazy import is_saved, open_hugging_face, open_lazy_frame, open_saved
from sparrowboost.readers.libsvm import LibsvmFile, align
from sparrowboost.readers.listing import find_remote
from sparrowboost.readers.mapped import MappedSource, match_columns
from sparrowboost.readers.npy import from_npy
from sparrowboost.readers.optional import first_line
from sparrowboost.readers.options import ReadOptions
from sparrowboost.readers.orc import open_orc
from sparrowboost.readers.packed import PACKED, member_of
from sparrowboost.readers.parquet import ParquetFile
from sparrowboost.readers.query import Query, is_cursor, open_cursor, open_query
from sparrowboost.readers.sparse import Survey
from sparrowboost.readers.text import plain
from sparrowboost.runtime.disk import is_remote, local_path
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.progress import log
from sparrowboost.runtime.remote import Options, RemotePath, of_filesystem

__all__ = [
    "FORMATS", "Kind", "OpenOptions", "RowError", "Source", "categories", "check_apart",
    "check_format", "expand", "files_of", "has_sparse_rows", "join_kinds", "kind_of", "numbers",
    "open_source", "plain_words", "table_of",
]  # fmt: skip


A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, kw_only=True)
class OpenOptions:
    """How to open a source."""

    scratch: Path  # folder for what cannot be read twice; the caller removes it
    rng: np.random.Generator
    read: ReadOptions = field(default_factory=ReadOptions)
    categorical: Sequence[str] = ()
    text: Sequence[str] = ()  # columns of untyped files that are not converted
    needed: Sequence[str] = ()  # columns that a model has
    limit: int | None = None  # of memory, in bytes, if there is one
    survey: Survey = field(default_factory=Survey)  # of all libsvm files
    # Gets a stream's columns, as a source without rows, before any row is fetched.
    check: Callable[[RandomAccessSource], object] = lambda source: None


def _csv(path: Location, options: OpenOptions) -> Source:
    return CsvFile(
        plain(path, options.scratch),
        str(path),
        options.rng,
        header=options.read.header,
        delimiter=options.read.delimiter,
        notation=options.read.notation,
        categorical=options.categorical,
        text=options.text,
    )


FORMATS: dict[str, Callable[[Location, OpenOptions], Source]] = {
    "parquet": lambda path, options: ParquetFile(path),
    "csv": _csv,
    "arrow": lambda path, options: open_arrow(
        local(path, options.scratch), str(path), options.scratch, options.check
    ),
    "jsonl": lambda path, options: open_json_lines(
        local(plain(path, options.scratch), options.scratch),
        str(path),
        options.scratch,
        options.check,
    ),
    "orc": lambda path, options: open_orc(
        local(path, options.scratch), str(path), options.scratch, options.check
    ),
    "libsvm": lambda path, options: LibsvmFile(
        plain(path, options.scratch), str(path), options.survey
    ),
    "npy": lambda path, options: from_npy(local(path, options.scratch), str(path)),
}
TEXT_SUFFIXES = {
    ".csv": "csv", ".tsv": "csv",
    ".libsvm": "libsvm", ".svm": "libsvm", ".svmlight": "libsvm",
    ".jsonl": "jsonl", ".ndjson": "jsonl",
}  # fmt: skip
PLAIN_SUFFIXES = {
    ".parquet": "parquet", ".pq": "parquet",
    ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
    ".npy": "npy",
    ".orc": "orc",
} | TEXT_SUFFIXES  # fmt: skip
SUFFIXES = PLAIN_SUFFIXES | {
    text + packed: format for text, format in TEXT_SUFFIXES.items() for packed in PACKED
}
UNPACK = {
    ".gz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "unzstd", ".lz4": "unlz4",
    ".zip": "unzip", ".7z": "7z x",
}  # fmt: skip
CONVERT = {
    ".json": 'python -c "import polars; polars.read_json({old!r}).write_parquet({new!r})"',
    ".avro": 'python -c "import polars; polars.read_avro({old!r}).write_parquet({new!r})"',
    ".xlsx": 'python -c "import polars; polars.read_excel({old!r}).write_parquet({new!r})"',
    ".h5": 'python -c "import pandas; pandas.read_hdf({old!r}).to_parquet({new!r})"',
}
OF_STORE = "manifest.json"  # in the folder of a store
OPENED = 8  # files of remote storage at a time


def open_source(data: Any, options: OpenOptions) -> Source:
    """Any data as a source of rows; a DataError for unsupported types."""
    if isinstance(data, str | os.PathLike):
        return _open_paths([data], options)
    if (
        isinstance(data, list | tuple)
        and data
        and all(isinstance(item, str | os.PathLike) for item in data)
    ):
        return _open_paths(list(data), options)
    if options.read.dated:
        raise DataError(
            "table_version= and as_of= (--table-version, --as-of) are for Delta and Iceberg tables "
            "by path; an object of their libraries is at a version already."
        )
    if isinstance(data, Query):
        return open_query(data, options)
    if isinstance(data, np.ndarray):
        return inmemory.from_array(data)
    if isinstance(data, pa.Table):
        return inmemory.from_table(data)
    if isinstance(data, pa.RecordBatch):
        return inmemory.from_table(pa.Table.from_batches([data]))
    return _open_foreign(data, options)


def _open_foreign(data: Any, options: OpenOptions) -> Source:
    """Objects of optional libraries, recognized by their methods."""
    module = type(data).__module__.split(".")[0]
    if module == "pandas" and hasattr(data, "iloc") and hasattr(data, "columns"):
        return inmemory.from_pandas(data)
    if module in ("pandas", "polars") and hasattr(data, "to_frame"):
        raise DataError(
            f"a {module} {type(data).__name__} is one column; pass data.to_frame() if it is the "
            "only feature, or the whole frame."
        )
    if module == "polars" and hasattr(data, "to_arrow") and hasattr(data, "height"):
        return inmemory.from_polars(data)
    if module == "polars" and hasattr(data, "collect_schema"):
        return open_lazy_frame(data, options)
    if module == "datasets" and (hasattr(data, "features") or isinstance(data, dict)):
        return open_hugging_face(data, options)
    if module == "deltalake" and hasattr(data, "to_pyarrow_dataset"):
        return open_delta(data, f"Delta table {data.table_uri}", options)
    if module == "pyiceberg" and hasattr(data, "scan"):
        return open_iceberg(data.scan(), f"Iceberg table {'.'.join(data.name())}", options)
    if module == "pyiceberg" and hasattr(data, "plan_files"):
        return open_iceberg(data, "Iceberg scan", options)
    if module == "scipy" and hasattr(data, "tocsr"):
        return inmemory.from_sparse(data)
    if hasattr(data, "get_fragments") and hasattr(data, "scanner"):
        return _open_dataset(data, options)
    if hasattr(data, "__arrow_c_stream__"):
        return spill_stream(data, type(data).__name__, options.scratch, options.check)
    if is_cursor(data):
        return open_cursor(data, type(data).__name__, options)
    raise DataError(
        f"cannot read rows from {type(data).__module__}.{type(data).__qualname__}; pass a path, "
        "glob or list of paths (Parquet, CSV, JSON lines, Arrow, ORC, libsvm, .npy), a numpy "
        "array, a scipy sparse matrix, a pandas or polars frame, sparrowboost.sql(...), or "
        "anything with __arrow_c_stream__."
    )


def _open_dataset(data: Any, options: OpenOptions) -> Source:
    """A pyarrow dataset: its Parquet files directly, anything else as a stream."""
    if isinstance(getattr(data, "filesystem", None), pa.fs.LocalFileSystem):
        # Not one of deltalake's, whose file system is its own. Someone may have picked the files.
        doubt = find_lake(map(Path, data.files))
        if doubt is not None:
            log.warning("%s", doubt)
    try:
        fragments = list(data.get_fragments())
    except ValueError:  # it is filtered or projected: only its scanner can read it
        fragments = []
    try:
        near = isinstance(getattr(data, "filesystem", None), pa.fs.LocalFileSystem)
        parts = _together(partial(_whole_file, schema=data.schema), fragments, remote=not near)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{type(data).__name__}: one of its files cannot be read ({first_line(error)})."
        ) from None
    direct = [part for part in parts if part is not None]
    if direct and len(direct) == len(parts):
        return ConcatenatedSource(direct)
    # By default, the scanner reads ahead without bound.
    scanner = data.scanner(batch_readahead=1, fragment_readahead=1)
    return spill(scanner.to_reader(), type(data).__name__, options.scratch, options.check)


def _file_of(fragment: Any) -> Location:
    """The file of a dataset's fragment."""
    if isinstance(fragment.filesystem, pa.fs.LocalFileSystem):
        return Path(fragment.path)
    file = of_filesystem(fragment.filesystem, fragment.path).looked_up()
    if file is None:
        raise DataError(f"{fragment.path}: no such file.")
    return file


def _together(work: Callable[[A], B], items: Sequence[A], *, remote: bool) -> list[B]:
    """The work on all items; on several at a time if they are in remote storage."""
    if not remote:
        return [work(item) for item in items]
    with ThreadPoolExecutor(OPENED, "sparrow-open") as pool:
        return list(pool.map(work, items))


def _whole_file(fragment: Any, schema: pa.Schema) -> Source | None:
    """A dataset's fragment, if it is a whole Parquet file with columns of the dataset's types.

    Columns that it lacks are in the names of folders, or missing.
    """
    groups = getattr(fragment, "row_groups", None)
    own = fragment.physical_schema
    if (
        groups is None
        or fragment.buffer is not None
        or [group.id for group in groups] != list(range(fragment.metadata.num_row_groups))
    ):
        return None
    from pyarrow.dataset import get_partition_keys

    keys = get_partition_keys(fragment.partition_expression)
    known = {field.name: field.type for field in own if field.name in schema.names}
    if keys.keys() & known.keys() or any(schema.field(c).type != t for c, t in known.items()):
        return None
    file = ParquetFile(_file_of(fragment))
    if own.names == schema.names:
        return file
    columns = match_columns(own, schema, keys)
    return None if columns is None else MappedSource(file, columns)


def has_sparse_rows(data: Any, read: ReadOptions) -> bool:
    """Whether a source has sparse rows: a matrix of scipy's, or libsvm files."""
    if hasattr(data, "tocsr"):
        return True
    paths = files_of(data, read.storage_options)
    return bool(paths) and all((read.format or _format(path)) == "libsvm" for path in paths)


def check_format(format: str | None) -> None:
    """A DataError if the format is unknown."""
    if format is not None and format not in FORMATS:
        raise DataError(f"format {format!r} is not known; it is one of {', '.join(FORMATS)}.")


def files_of(data: Any, storage: Options = None) -> list[Location]:
    """The files that paths, globs and folders stand for; none for tables and other data."""
    given = [data] if isinstance(data, str | os.PathLike) else data
    if not isinstance(given, list | tuple):
        return []
    if not all(isinstance(item, str | os.PathLike) for item in given):
        return []
    return [
        path for item in given if not table_of(item) for path in _expand(os.fspath(item), storage)
    ]


def check_apart(path: Location, data: Any, storage: Options = None) -> None:
    """A DataError if the file to write is one of those to read."""
    given = [data] if isinstance(data, str | os.PathLike) else data
    if not isinstance(given, list | tuple):
        return
    near = [
        item
        for item in given
        if isinstance(item, str | os.PathLike) and is_remote(item) != isinstance(path, Path)
    ]
    if isinstance(path, Path):
        same = path.exists() and any(path.samefile(str(file)) for file in files_of(near))
    else:
        same = any(str(file) == str(path) for file in files_of(near, storage))
    if same:
        raise DataError(f"{path}: is one of the files to read; write to another path.")


def expand(given: Sequence[str | os.PathLike[str]], storage: Options = None) -> list[Location]:
    """The files that paths, globs and folders stand for; a DataError if one is given twice."""
    paths = files_of(given, storage)
    _check_once(paths)
    return paths


def table_of(path: str | os.PathLike[str]) -> Path | None:
    """The folder or file, if it is a table that its own library reads, or a saved data set."""
    if is_remote(path):
        return None
    with read_errors(os.fspath(path)):
        where = local_path(path)
        return where if lake_at(where) is not None or is_saved(where) else None


def _open_table(path: Path, options: OpenOptions) -> Source:
    """A table of a lake, or a saved data set, by its folder."""
    lake = lake_at(path)
    if lake is None:
        return open_saved(path, options)
    if lake.name == "a Delta table":
        return open_delta_folder(path, options)
    return open_iceberg_folder(path, options)


def _open_paths(given: Sequence[str | os.PathLike[str]], options: OpenOptions) -> Source:
    """The sources that paths stand for, in the order of the paths."""
    tables = [table_of(item) for item in given]
    if options.read.dated and None in tables:
        raise _without_versions(given[tables.index(None)], options.read.storage_options)
    pairs = zip(given, tables, strict=True)
    storage = options.read.storage_options
    found = [[] if table else _expand(os.fspath(item), storage) for item, table in pairs]
    _check_once([*filter(None, tables), *(path for paths in found for path in paths)])
    # The parts of a path that the caller has named are a choice of rows.
    named = [
        (path, Path(item).parts if is_remote(item) else local_path(item).parts)
        for item, paths in zip(given, found, strict=True)
        for path in paths
    ]
    files = iter(_open_files(named, options))
    parts: list[Source] = []
    for table, paths in zip(tables, found, strict=True):
        parts += [_open_table(table, options)] if table else [next(files) for _ in paths]
    return parts[0] if len(parts) == 1 else ConcatenatedSource(parts)


def _without_versions(path: str | os.PathLike[str], storage: Options) -> DataError:
    """The error that a version was asked for, of what is no table by a local path."""
    if is_remote(path):
        return DataError(
            f"{location(path, storage)}: table_version= and as_of= (--table-version, --as-of) are "
            "for tables by local paths; in Python, pass deltalake.DeltaTable(address, version=...) "
            "or a scan of a table as a catalog of pyiceberg's loads it."
        )
    return DataError(
        f"{os.fspath(path)}: is neither a Delta nor an Iceberg table; leave out table_version= and "
        "as_of= (--table-version, --as-of)."
    )


def _open_files(
    named: Sequence[tuple[Location, Sequence[str]]], options: OpenOptions
) -> list[Source]:
    """Each file as a source, with the columns that are in the names of its folders."""
    keys = partition_columns(
        named, needed=options.needed, as_text=[*options.categorical, *options.text]
    )
    paths, stamps = [path for path, _ in named], list[Stamp]()
    for path in paths:
        with read_errors(str(path)):
            stamps.append(path.known_stamp if isinstance(path, RemotePath) else stamp(path))

    def opened(path: Location) -> Source:
        with read_errors(str(path)):
            return FORMATS[options.read.format or _format(path)](path, options)

    # Only Parquet files can be opened side by side: others draw random numbers.
    parquet = all((options.read.format or _format(path)) == "parquet" for path in paths)
    remote = parquet and any(isinstance(path, RemotePath) for path in paths)
    sources = _together(opened, paths, remote=remote)
    _warn_of_groups([source for source in sources if isinstance(source, CsvFile)])
    shards = [source for source in sources if isinstance(source, LibsvmFile)]
    if shards:
        align(shards)
    parts: list[Source] = [
        GuardedSource(*what) for what in zip(sources, paths, stamps, strict=True)
    ]
    for i, values in enumerate(keys):
        own = parts[i].columns
        if constant := {name: value for name, value in values.items() if name not in own}:
            parts[i] = MappedSource(parts[i], dict(zip(own, own, strict=True)) | constant)
    lines = [i for i, (path, _) in enumerate(named) if _reads_json_lines(path, options)]
    return _same_members(parts, lines)


def _reads_json_lines(path: Location, options: OpenOptions) -> bool:
    return (options.read.format or _format(path)) == "jsonl"


def _same_members(parts: list[Source], lines: Sequence[int]) -> list[Source]:
    """The sources; in files of JSON lines, members that only others have are missing."""
    names = list(dict.fromkeys(name for i in lines for name in parts[i].columns))
    for i in lines:
        own = set(parts[i].columns)
        if len(own) < len(names):
            columns = {name: name if name in own else pa.scalar(None, pa.null()) for name in names}
            parts[i] = MappedSource(parts[i], columns)
    return parts


def _warn_of_groups(files: Sequence[CsvFile]) -> None:
    """Warn of numbers such as 1.250 that may be whole, once for each column."""
    seen: set[str] = set()
    for file in files:
        for column, example in file.grouped.items():
            if column not in seen:
                seen.add(column)
                log.warning(
                    "%s: column %r: %s is read as a fraction, although each number of the column "
                    "may be a whole one with a dot between groups of digits; if so, pass "
                    "thousands='.' and decimal=',' (--thousands . --decimal ,).",
                    file.name, column, example,
                )  # fmt: skip


def _check_once(paths: Sequence[Location]) -> None:
    """A DataError if a file is given twice, under any names: its rows would count twice."""
    seen: dict[str, Location] = {}
    for path in paths:
        # Addresses of the web may differ in what is not shown.
        real = f"{path} {path.path}" if isinstance(path, RemotePath) else os.path.realpath(path)
        first = seen.setdefault(real, path)
        if first is not path:
            also = f" (also as {first})" if first != path else ""
            raise DataError(f"{path}: the file is given twice{also}; name each file once.")


def _suffix(path: Location) -> str:
    """The suffix that determines the format, including that of a packed file."""
    name = path.name.lower()
    return "".join(Path(name).suffixes[-2:]) if name.endswith(PACKED) else Path(name).suffix


def _format(path: Location) -> str:
    suffix = _suffix(path)
    if suffix not in SUFFIXES and path.suffix.lower() == ".zip":
        suffix = Path(member_of(path).lower()).suffix
    if suffix not in SUFFIXES:
        raise DataError(f"{path}: {_what_to_do(path, suffix)}.")
    return SUFFIXES[suffix]


def _what_to_do(path: Location, suffix: str) -> str:
    """What is wrong with a suffix, and how to get a file of a supported format."""
    last = path.suffix.lower()
    if last in UNPACK:
        command = f"{UNPACK[last]} {shlex.quote(str(path))}"
        return f"{suffix or '(none)'} files are not read; unpack it first (`{command}`)"
    if last in CONVERT:
        commands = CONVERT[last].format(old=str(path), new=str(path.with_suffix(".parquet")))
        return f"{last} files are not read; convert it to Parquet first: {commands}"
    return (
        f"suffix {suffix or '(none)'!r} is not that of a supported format "
        f"({', '.join(PLAIN_SUFFIXES)}); rename the file or pass format= (--format), one of "
        f"{', '.join(FORMATS)}"
    )


def _expand(pattern: str, storage: Options = None) -> Sequence[Location]:
    """The files that a path, folder or glob stands for, sorted by name."""
    if is_remote(pattern):
        return find_remote(pattern, storage, lambda file: _suffix(file) in SUFFIXES)
    with read_errors(pattern):
        path = local_path(pattern)
        if path.is_file():
            _check_lakes([path])
            return [path]
        if path.is_dir():
            check_no_lake([path])
            found = _files_below(path)
            if not found:
                raise DataError(f"{pattern}: {_what_folder(path)}.")
        elif glob.has_magic(pattern):
            found = [Path(p) for p in glob.glob(str(path), recursive=True) if Path(p).is_file()]
            if not found:
                raise DataError(f"{pattern}: no file matches.")
        elif path.exists():
            raise DataError(
                f"{pattern}: is neither a file nor a folder, and what comes from pipes and devices "
                "can be read only once; write it to a file first."
            )
        else:
            raise DataError(f"{pattern}: no such file.")
    found.sort()
    _check_lakes(found)
    return found


def _what_folder(path: Path) -> str:
    """What is wrong with a folder without files to read."""
    if (path / OF_STORE).is_file():
        return "is a store, which has no rows as they were; give the files that it was made from"
    return "the folder has no file of a supported format"


def _check_lakes(found: Sequence[Path]) -> None:
    """A DataError if one of the files may be part of a Delta, Iceberg or Hudi table."""
    check_no_lake(p for p in found if SUFFIXES.get(_suffix(p), "parquet") == "parquet")


def _files_below(folder: Path) -> list[Path]:
    """Files of supported formats, at any depth; an unreadable folder is an error."""

    def fail(error: OSError) -> NoReturn:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror}).")

    paths = [
        Path(parent) / name
        for parent, _, names in os.walk(folder, onerror=fail)
        for name in names
    ]  # fmt: skip
    return [
        p
        for p in paths
        if _suffix(p) in SUFFIXES and not _hidden(p.relative_to(folder)) and p.is_file()
    ]


def _hidden(path: Path) -> bool:
    """Whether part of the path starts like the names of markers and unfinished files."""
    return any(part.startswith((".", "_")) for part in path.parts)
