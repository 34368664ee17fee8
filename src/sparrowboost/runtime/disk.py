"""Files: checks of free space, complete reads and writes, and atomic replacement."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import resource
import secrets
import shutil
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from sparrowboost.runtime.errors import DataError, DiskFullError, StoreError
from sparrowboost.runtime.memory import format_size
from sparrowboost.runtime.temporary import PARTIAL, only_here, owner_tag, remove_leftovers

PIECE_BYTES = 1 << 20  # read at a time
CRC_BYTES = 4
DEVICES = Path("/dev")
FULL = errno.ENOSPC, errno.EDQUOT
FAILED = errno.EIO, errno.ENXIO, errno.ENODEV, errno.EROFS, errno.ESTALE, errno.ETIMEDOUT
NO_LOCKS = errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP

log = logging.getLogger("sparrowboost")
# A Path writes s3://bucket as s3:/bucket. A scheme has two letters or more.
REMOTE = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:/")
FILE = re.compile(r"file:(//(localhost)?)?(?=/)")


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is the address of remote storage, such as s3://bucket/name.

    Examples
    --------
    >>> is_remote("s3://bucket/store"), is_remote(Path("gs://bucket")), is_remote("a/b:/c")
    (True, True, False)
    """
    return REMOTE.match(os.fspath(path)) is not None


def local_path(path: str | os.PathLike[str]) -> Path:
    """A local path as given, or as in file:///folder/name; a ~ stands for the home folder.

    Examples
    --------
    >>> local_path("a/b"), local_path("file:///a/b%20c")
    (PosixPath('a/b'), PosixPath('/a/b c'))
    """
    given = os.fspath(path)
    if not given:  # it would be the current folder
        raise DataError("a path is empty; give the name of a file or folder.")
    scheme = FILE.match(given)
    try:
        return Path(unquote(given[scheme.end() :]) if scheme else given).expanduser()
    except RuntimeError:
        raise DataError(f"{given}: no such user's home folder.") from None


def output_path(path: str | os.PathLike[str]) -> Path:
    """The absolute path of what is to be written; a DataError if it is not a local one.

    For every path of a store, checkpoint or scratch folder that a user gives, before any work.
    Otherwise s3://bucket/name would be a local folder called "s3:". Models, predictions and reports
    may be remote: `runtime.remote.output_target`.
    """
    if is_remote(path):
        raise DataError(
            f"{os.fspath(path)}: only local paths are written to (models, predictions and reports "
            "may be remote); give one, and copy the result afterwards."
        )
    found = local_path(path).absolute()
    # Results are moved to their place: for root, over the device of the whole machine.
    if _is_special(found) or found.parent == DEVICES:
        raise DataError(
            f"{found}: is a device or a pipe, which would be replaced; give the name of a file."
        )
    return found


def _is_special(path: Path) -> bool:
    """Whether there is something that is neither a file nor a folder."""
    try:
        mode = path.stat().st_mode
    except OSError:  # nothing is there, or whoever writes there reports it
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def check_room(path: Path, needed: int) -> None:
    """Raise a DiskFullError if the disk of `path` has less than `needed` bytes free."""
    free = shutil.disk_usage(path).free
    if free < needed:
        raise DiskFullError(_message(path, needed, free))


@contextmanager
def guard_disk(path: Path, needed: int, *, only_space: bool = False) -> Iterator[None]:
    """Turn the system's errors of writing to `path` into a StoreError that names it.

    A DiskFullError says how many bytes were needed. With `only_space`, other errors remain: they
    may be those of something that is read meanwhile.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DiskFullError(
                _message(path, needed, shutil.disk_usage(path.parent).free)
            ) from error
        if error.errno == errno.EFBIG:
            raise DiskFullError(_too_large(path)) from error
        if error.errno in FAILED and error.filename is None and not only_space:
            raise StoreError(
                f"{path}: cannot be written ({error.strerror}): the disk or the connection to it "
                "has failed; look into the system's log, or write to another disk."
            ) from error
        raise


def refuse_link(path: Path) -> None:
    """A StoreError if a path is a link, through which something else would be written."""
    if path.is_symlink():
        raise StoreError(
            f"{path}: is a symbolic link, and would be written through; remove it."
        ) from None


def open_own(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """Open a file that only Sparrow writes to; a StoreError if a link leads somewhere else."""
    try:
        file = os.open(path, flags | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        refuse_link(path)
        raise error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise StoreError(f"{path}: is not an ordinary file; remove it.")
    return file


def try_lock(file: int, path: Path) -> bool:
    """Lock an open file until it is closed; False if another process has locked it.

    Some network file systems have no locks. There, a warning says so, and nothing is locked.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise StoreError(f"{path}: cannot be locked ({error.strerror}).") from None
        log.warning(
            "%s: this file system has no locks (%s); make sure that no other process writes there",
            path.parent, error.strerror,
        )  # fmt: skip
    return True


def write_all(file: int, data: npt.NDArray[np.uint8], offset: int) -> None:
    """Write a contiguous array at an offset, completely: a single system call may write less."""
    view = data.data.cast("B")
    while view:
        n = os.pwrite(file, view, offset)
        view, offset = view[n:], offset + n


def read_all(file: int, out: npt.NDArray[np.uint8], offset: int) -> int:
    """Fill a contiguous array from an offset; returns the bytes read: fewer at the file's end."""
    view = out.data.cast("B")
    total = 0
    while view:
        n = os.preadv(file, [view], offset + total)
        if n == 0:
            break
        view, total = view[n:], total + n
    return total


def sync_folder(path: Path) -> None:
    """Flush the names of a folder's files to the disk, where the file system can do so."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, *NO_LOCKS):
            raise
    finally:
        os.close(folder)


def save_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays and a checksum to a file, and flush it to the disk."""
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
    with (
        guard_disk(path, sum(a.nbytes for a in arrays.values())),
        os.fdopen(open_own(path, flags), "w+b") as file,
    ):
        np.savez(file, **dict[str, Any](arrays))
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        crc32 = _crc32(file, size)
        file.seek(size)
        file.write(crc32.to_bytes(CRC_BYTES, "little"))
        file.flush()
        os.fsync(file.fileno())


def load_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read what `save_arrays` wrote; an OSError or a ValueError if the file is damaged."""
    with open(path, "rb") as file:
        size = max(file.seek(0, os.SEEK_END) - CRC_BYTES, 0)
        file.seek(0)
        if _crc32(file, size) != int.from_bytes(file.read(CRC_BYTES), "little") or not size:
            raise ValueError(f"{path.name}: its checksum does not match")
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}


def file_crc32(path: Path) -> int:
    """The CRC-32 of a file."""
    with open(path, "rb") as file:
        return _crc32(file, path.stat().st_size)


def _crc32(file: BinaryIO, size: int) -> int:
    """The CRC-32 of the next `size` bytes, or of fewer at the end of the file."""
    crc32 = 0
    while size > 0 and (data := file.read(min(size, PIECE_BYTES))):
        crc32 = zlib.crc32(data, crc32)
        size -= len(data)
    return crc32


def replace_file(path: Path, data: bytes) -> None:
    """Write a file atomically: if anything fails, `path` is what it was before."""
    with replacing(path) as partial, guard_disk(path, len(data)), open(partial, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary file to write; it replaces `path` on success, and is deleted on failure."""
    remove_leftovers(path.parent, PARTIAL)
    partial = path.with_name(f".{path.name}.{owner_tag()}{secrets.token_hex(4)}.partial")
    remove = only_here(partial.unlink, missing_ok=True)
    try:
        yield partial
        os.replace(partial, path)
    finally:
        remove()


def _message(path: Path, needed: int, free: int) -> str:
    return (
        f"{path}: the disk is full: {format_size(needed)} ({needed:,} bytes) needed, "
        f"{format_size(free)} free. Free some space, or write to another disk."
    )


def _too_large(path: Path) -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY:
        return f"{path}: the file is too large for its file system; write to another one."
    return (
        f"{path}: the file would be larger than this process may write ({format_size(limit)}); "
        "raise that limit (`ulimit -f unlimited`)."
    )
