"""Choose the reader for any source of rows.

a path, glob, folder or list of them -> suffix -> one reader per format
an array, frame, table or stream     -> its own reader
"""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.fs

from sparrowboost.readers import inmemory
from sparrowboost.readers.base import (
    ConcatenatedSource,
    GuardedSource,
    RandomAccessSource,
    Source,
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
from sparrowboost.readers.ipc import IpcFile, spill, spill_stream
from sparrowboost.readers.lakes import check_no_lake, find_lake
from sparrowboost.readers.libsvm import LibsvmFile, align
from sparrowboost.readers.npy import from_npy
from sparrowboost.readers.options import ReadOptions
from sparrowboost.readers.parquet import ParquetFile
from sparrowboost.readers.text import plain
from sparrowboost.runtime.disk import is_remote
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.progress import log

__all__ = [
    "FORMATS", "Kind", "OpenOptions", "RowError", "Source", "categories", "check_apart",
    "check_format", "expand", "files_of", "join_kinds", "kind_of", "numbers", "open_source",
    "plain_words",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OpenOptions:
    """How to open a source."""

    scratch: Path  # folder for what cannot be read twice; the caller removes it
    rng: np.random.Generator
    read: ReadOptions = field(default_factory=ReadOptions)
    categorical: Sequence[str] = ()
    text: Sequence[str] = ()  # columns of untyped files that are not converted
    # Gets a stream's columns, as a source without rows, before any row is fetched.
    check: Callable[[RandomAccessSource], object] = lambda source: None


def _csv(path: Path, options: OpenOptions) -> Source:
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


FORMATS: dict[str, Callable[[Path, OpenOptions], Source]] = {
    "parquet": lambda path, options: ParquetFile(str(path)),
    "csv": _csv,
    "arrow": lambda path, options: IpcFile(path, str(path)),
    "libsvm": lambda path, options: LibsvmFile(plain(path, options.scratch), str(path)),
    "npy": lambda path, options: from_npy(path, str(path)),
}
SUFFIXES = {
    ".parquet": "parquet", ".pq": "parquet",
    ".csv": "csv", ".tsv": "csv", ".csv.gz": "csv", ".tsv.gz": "csv",
    ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
    ".libsvm": "libsvm", ".svm": "libsvm", ".svmlight": "libsvm",
    ".libsvm.gz": "libsvm", ".svm.gz": "libsvm", ".svmlight.gz": "libsvm",
    ".npy": "npy",
}  # fmt: skip
UNPACK = {
    ".gz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "unzstd", ".lz4": "unlz4",
    ".zip": "unzip",
}  # fmt: skip
JSON_LINES = (
    'python -c "import pyarrow.json, pyarrow.parquet; '
    'pyarrow.parquet.write_table(pyarrow.json.read_json({old!r}), {new!r})"'
    "; if its rows do not fit in memory, "
    'python -c "import polars; polars.scan_ndjson({old!r}).sink_parquet({new!r})"'
)
CONVERT = {
    ".json": 'python -c "import polars; polars.read_json({old!r}).write_parquet({new!r})"',
    ".jsonl": JSON_LINES,
    ".ndjson": JSON_LINES,
}
HIVE_FOLDER = re.compile(r"[^=]+=[^=]*")  # as in year=2024/part.parquet


def open_source(data: Any, options: OpenOptions) -> Source:
    """Any data as a source of rows; a DataError for unsupported types."""
    if isinstance(data, str | os.PathLike):
        return _open_files([data], options)
    if (
        isinstance(data, list | tuple)
        and data
        and all(isinstance(item, str | os.PathLike) for item in data)
    ):
        return _open_files(list(data), options)
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
    if module == "polars" and hasattr(data, "collect"):
        raise DataError(
            "a polars LazyFrame has no rows yet; pass data.collect(), or write it with "
            "data.sink_parquet(path) and pass the path to stay within the memory limit."
        )
    if module == "scipy" and hasattr(data, "tocsr"):
        return inmemory.from_sparse(data)
    if hasattr(data, "get_fragments") and hasattr(data, "scanner"):
        return _open_dataset(data, options)
    if hasattr(data, "__arrow_c_stream__"):
        return spill_stream(data, type(data).__name__, options.scratch, options.check)
    raise DataError(
        f"cannot read rows from {type(data).__module__}.{type(data).__qualname__}; pass a path, "
        "glob or list of paths (Parquet, CSV, Arrow, libsvm, .npy), a numpy array, a scipy sparse "
        "matrix, a pandas or polars frame, or anything with __arrow_c_stream__."
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
        direct = bool(fragments) and all(_is_whole_file(f, data.schema) for f in fragments)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{type(data).__name__}: one of its files cannot be read ({error})."
        ) from None
    if direct:
        return ConcatenatedSource([ParquetFile(f.path, f.filesystem) for f in fragments])
    # By default, the scanner reads ahead without bound.
    scanner = data.scanner(batch_readahead=1, fragment_readahead=1)
    return spill(scanner.to_reader(), type(data).__name__, options.scratch, options.check)


def _is_whole_file(fragment: Any, schema: pa.Schema) -> bool:
    """Whether a dataset's fragment is a whole Parquet file, with columns unchanged."""
    groups = getattr(fragment, "row_groups", None)
    own = fragment.physical_schema
    return (
        groups is not None
        and fragment.buffer is None
        and [group.id for group in groups] == list(range(fragment.metadata.num_row_groups))
        and (own.names, own.types) == (schema.names, schema.types)
    )


def check_format(format: str | None) -> None:
    """A DataError if the format is unknown."""
    if format is not None and format not in FORMATS:
        raise DataError(f"format {format!r} is not known; it is one of {', '.join(FORMATS)}.")


def files_of(data: Any) -> list[Path]:
    """The files that paths, globs and folders stand for; empty for other data."""
    given = [data] if isinstance(data, str | os.PathLike) else data
    if not isinstance(given, list | tuple):
        return []
    if not all(isinstance(item, str | os.PathLike) for item in given):
        return []
    return [path for item in given for path in _expand(os.fspath(item))]


def check_apart(path: Path, data: Any) -> None:
    """A DataError if the file to write is one of those to read."""
    if path.exists() and any(path.samefile(file) for file in files_of(data)):
        raise DataError(f"{path}: is one of the files to read; write to another path.")


def expand(given: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files that paths, globs and folders stand for; a DataError if one is given twice."""
    paths = files_of(given)
    _check_once(paths)
    return paths


def _open_files(given: Sequence[str | os.PathLike[str]], options: OpenOptions) -> Source:
    opened = []
    for path in expand(given):
        with read_errors(str(path)):
            was = stamp(path)
            opened.append((FORMATS[options.read.format or _format(path)](path, options), path, was))
    _warn_of_groups([source for source, _, _ in opened if isinstance(source, CsvFile)])
    shards = [source for source, _, _ in opened if isinstance(source, LibsvmFile)]
    if shards:
        align(shards)
    parts = [GuardedSource(*what) for what in opened]
    return parts[0] if len(parts) == 1 else ConcatenatedSource(parts)


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


def _check_once(paths: Sequence[Path]) -> None:
    """A DataError if a file is given twice, under any names: its rows would count twice."""
    seen: dict[str, Path] = {}
    for path in paths:
        first = seen.setdefault(os.path.realpath(path), path)
        if first is not path:
            also = f" (also as {first})" if first != path else ""
            raise DataError(f"{path}: the file is given twice{also}; name each file once.")


def _suffix(path: Path) -> str:
    """The suffix that determines the format, including that of gzip."""
    name = path.name.lower()
    return "".join(Path(name).suffixes[-2:]) if name.endswith(".gz") else Path(name).suffix


def _format(path: Path) -> str:
    suffix = _suffix(path)
    if suffix not in SUFFIXES:
        raise DataError(f"{path}: {_what_to_do(path, suffix)}.")
    return SUFFIXES[suffix]


def _what_to_do(path: Path, suffix: str) -> str:
    """What is wrong with a suffix, and how to get a file of a supported format."""
    last = path.suffix.lower()
    if last in UNPACK:
        command = f"{UNPACK[last]} {shlex.quote(str(path))}"
        return f"{suffix} files are not read; unpack it first (`{command}`)"
    if last in CONVERT:
        commands = CONVERT[last].format(old=str(path), new=str(path.with_suffix(".parquet")))
        return f"JSON is not read; convert it to Parquet first: {commands}"
    return (
        f"suffix {suffix or '(none)'!r} is not that of a supported format ({', '.join(SUFFIXES)}); "
        f"rename the file or pass format= (--format), one of {', '.join(FORMATS)}"
    )


def _expand(pattern: str) -> list[Path]:
    """The files that a path, folder or glob stands for, sorted by name."""
    if is_remote(pattern):
        raise DataError(
            f"{pattern}: only local files are read by path; open a remote one with "
            "pyarrow.dataset.dataset(...) and pass that."
        )
    with read_errors(pattern):
        path = _at_home(pattern)
        if path.is_file():
            _check_lakes([path])
            return [path]
        if path.is_dir():
            check_no_lake([path])
            found = _files_below(path)
            if not found:
                raise DataError(f"{pattern}: the folder has no file of a supported format.")
        elif glob.has_magic(pattern):
            found = [Path(p) for p in glob.glob(str(path), recursive=True) if Path(p).is_file()]
            if not found:
                raise DataError(f"{pattern}: no file matches.")
        else:
            raise DataError(f"{pattern}: no such file.")
    found.sort()
    _check_lakes(found)
    _check_hive(pattern, set(path.parts), found)
    return found


def _check_lakes(found: Sequence[Path]) -> None:
    """A DataError if one of the files may be part of a Delta, Iceberg or Hudi table."""
    check_no_lake(p for p in found if SUFFIXES.get(_suffix(p), "parquet") == "parquet")


def _at_home(pattern: str) -> Path:
    try:
        return Path(pattern).expanduser()
    except RuntimeError:
        raise DataError(f"{pattern}: no such user's home folder.") from None


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


def _check_hive(pattern: str, asked_for: set[str], found: Sequence[Path]) -> None:
    """A DataError if folders called name=value encode a column that no file has."""
    for path in found:
        for part in path.parent.parts:
            if HIVE_FOLDER.fullmatch(part) and part not in asked_for:
                raise DataError(
                    f"{path}: the folder name {part!r} encodes a column, which reading its files "
                    f"alone would lose; instead of {pattern!r} pass "
                    "pyarrow.dataset.dataset(path, partitioning='hive')."
                )


def _hidden(path: Path) -> bool:
    """Whether part of the path starts like the names of markers and unfinished files."""
    return any(part.startswith((".", "_")) for part in path.parts)
