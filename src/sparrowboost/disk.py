"""Room on disk: asked for before a job, and told about when it runs out."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparrowboost.errors import DiskFullError
from sparrowboost.memory import format_size


def check_room(path: Path, needed: int) -> None:
    """A DiskFullError if the disk that holds `path` has less than `needed` bytes free."""
    free = shutil.disk_usage(path).free
    if free < needed:
        raise DiskFullError(_message(path, needed, free))


@contextmanager
def guard_disk(path: Path, needed: int) -> Iterator[None]:
    """Turn "no space left" into a DiskFullError that names the path and the bytes needed."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(
                _message(path, needed, shutil.disk_usage(path.parent).free)
            ) from error
        raise


def replace_file(path: Path, data: bytes) -> None:
    """Write a file in one step: whatever happens, `path` is all of `data` or what it was before."""
    with replacing(path) as partial, guard_disk(path, len(data)), open(partial, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name beside `path` to write to; move it to `path` if all went well, else delete it."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _message(path: Path, needed: int, free: int) -> str:
    return (
        f"{path}: the disk is full: {format_size(needed)} ({needed:,} bytes) needed, "
        f"{format_size(free)} free. Make room, or write to another disk."
    )
