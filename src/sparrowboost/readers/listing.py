"""The files of remote storage that an address, pattern or folder stands for."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath

from sparrowboost.readers.lakes import OF_ICEBERG
from sparrowboost.runtime.errors import DataError, RemoteError
from sparrowboost.runtime.remote import HTTP, Entry, Options, RemotePath, remote_path

ASKED = 8  # files at a time
MAGIC = re.compile(r"[*?[]")
WEB_MAGIC = re.compile(r"[*[]")  # in addresses of the web, a question mark begins the query
# Folders and files that the tables of lakehouses have beside their data.
LAKES = (
    (re.compile(r"(^|/)_delta_log(/|$)"), "a Delta table", "deltalake.DeltaTable(address)"),
    (
        re.compile(rf"(^|/)metadata/({OF_ICEBERG.pattern})$"),
        "an Iceberg table",
        "the table as a catalog of pyiceberg's loads it",
    ),
    (re.compile(r"(^|/)\.hoodie(/|$)"), "a Hudi table", "its current rows as Parquet files"),
)
LAKE_FOLDERS = ("_delta_log", "metadata", ".hoodie")


def find_remote(
    pattern: str, options: Options, is_supported: Callable[[RemotePath], bool]
) -> list[RemotePath]:
    """The files, sorted by name; a DataError if there are none."""
    address = remote_path(pattern, options)
    magic = WEB_MAGIC if address.uri.startswith(HTTP) else MAGIC
    if magic.search(address.path):
        return _matching(pattern, address, magic)
    if not address.path.endswith("/"):
        found = address.looked_up()
        if found is not None and found.entry is not None and not found.entry.is_folder:
            _check_no_lake(found, [found.path])
            _check_above(found.at(Entry(str(found.parent), True, None, "")))
            return [found]
        if found is None:
            raise _missing(address)
    return _below(pattern, address, is_supported)


def _missing(address: RemotePath) -> RemoteError:
    if address.is_bucket_there():
        return RemoteError(f"{address}: no such file or folder.")
    bucket = address.path.partition("/")[0]
    return RemoteError(
        f"{address}: there is no bucket {bucket!r}, or it is not yours to see; check its name, the "
        "endpoint and the credentials."
    )


def _below(
    pattern: str, folder: RemotePath, is_supported: Callable[[RemotePath], bool]
) -> list[RemotePath]:
    """Files of supported formats in a folder, at any depth."""
    entries = folder.entries(recursive=True)
    if not entries and not folder.is_bucket_there():
        raise _missing(folder)
    _check_no_lake(folder, [entry.path for entry in entries])
    _check_above(folder)
    start = len(folder.path.rstrip("/")) + 1
    found = [
        folder.at(entry)
        for entry in entries
        if not entry.is_folder and not _hidden(entry.path[start:])
    ]
    found = [file for file in found if is_supported(file)]
    if not found:
        raise DataError(f"{folder}: the folder has no file of a supported format.")
    return sorted(_complete(found), key=str)


def _matching(pattern: str, address: RemotePath, magic: re.Pattern[str]) -> list[RemotePath]:
    """Files that a pattern matches."""
    head = address.path[: magic.search(address.path).start()]  # type: ignore[union-attr]
    base, _, _ = head.rpartition("/")
    rest = address.path[len(base) + 1 :]
    if not base:
        raise DataError(f"{pattern}: give the bucket by its name; a pattern may follow.")
    shown = address.uri[: address.uri.rfind(rest)]
    base += "/" * address.uri.startswith(HTTP)  # web servers have folders under such addresses
    folder = RemotePath(shown, base, address.storage)
    entries = folder.entries(recursive="/" in rest or "**" in rest)
    _check_no_lake(folder, [entry.path for entry in entries])
    _check_above(folder)
    wanted = _translated(address.path)
    found = [
        folder.at(entry)
        for entry in entries
        if not entry.is_folder and wanted.fullmatch(entry.path.partition("?")[0])
    ]
    if not found:
        if not folder.is_bucket_there():
            raise _missing(folder)
        raise DataError(f"{address}: no file matches.")
    return sorted(_complete(found), key=str)


def _complete(found: list[RemotePath]) -> list[RemotePath]:
    """The files with sizes and times, which not all servers have in their listings."""

    def complete(file: RemotePath) -> RemotePath:
        entry = file.entry
        if entry is not None and entry.size is not None and entry.changed:
            return file
        return file.looked_up() or file

    with ThreadPoolExecutor(ASKED, "sparrow-open") as pool:
        return list(pool.map(complete, found))


def _translated(pattern: str) -> re.Pattern[str]:
    """A glob as a regular expression: only ** crosses folders."""
    parts, at = [], 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            parts.append("(?:.*/)?")
            at += 3
        elif pattern.startswith("**", at):
            parts.append(".*")
            at += 2
        elif pattern[at] == "*":
            parts.append("[^/]*")
            at += 1
        elif pattern[at] == "?":
            parts.append("[^/]")
            at += 1
        elif pattern[at] == "[" and (end := pattern.find("]", at + 2)) > 0:
            inner = pattern[at + 1 : end].replace("\\", r"\\")
            parts.append(f"[{'^' + inner[1:] if inner[0] == '!' else inner}]")
            at = end + 1
        else:
            parts.append(re.escape(pattern[at]))
            at += 1
    return re.compile("".join(parts), re.S)


def _hidden(path: str) -> bool:
    """Whether part of the path starts like the names of markers and unfinished files."""
    return any(part.startswith((".", "_")) for part in PurePosixPath(path).parts)


def _check_no_lake(folder: RemotePath, paths: list[str]) -> None:
    """A DataError if this is the folder of a table whose files hold more than its rows."""
    for pattern, what, instead in LAKES:
        if any(pattern.search(path) for path in paths):
            raise DataError(
                f"{folder}: is {what}, or has one in it, whose files also hold rows that were "
                f"deleted or replaced; in Python, pass {instead}."
            )


def _check_above(folder: RemotePath) -> None:
    """The same of this folder and of all that it is in, of which no listing was asked for."""
    if folder.storage.spec is not None:  # the web, whose folders need not have listings
        return
    place = PurePosixPath(folder.path)
    places = [folder.at(Entry(str(each), True, None, "")) for each in (place, *place.parents)]
    places = [each for each in places if each.path not in (".", "/")]

    def found(asked: tuple[RemotePath, str]) -> list[str]:
        above, name = asked
        try:
            entries = above.at(Entry(f"{above.path}/{name}", True, None, "")).entries()
        except RemoteError:  # it may not be looked into: reading its files may be allowed
            return []
        return [entry.path for entry in entries]

    asked = [(above, name) for above in places for name in LAKE_FOLDERS]
    with ThreadPoolExecutor(ASKED, "sparrow-open") as pool:
        for (above, _), paths in zip(asked, pool.map(found, asked), strict=True):
            _check_no_lake(above, paths)
