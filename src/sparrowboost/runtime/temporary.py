"""Temporary folders: removed by the process that made them, or by a later one if it was killed.

The name of a temporary folder, or of a file that is being written, says which process made it:

    sparrow-store-<machine>-<process id>-<start time>-<random>
    .model.json.<machine>-<process id>-<start time>-<random>.partial

`machine` stands for one boot of one machine, and for the container in which the process counts.
What it left is removed once it is certain that it has ended: on the same machine, with a process id
that nobody has, or that belongs to a process with another start time. Anything else stays: what
belongs to another user, or to another machine that shares the folder. (Linux only.)
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparrowboost.runtime.errors import StoreError

OWNER = r"(?P<machine>[0-9a-f]{8})-(?P<pid>\d+)-(?P<start>\d+)-"
FOLDER = re.compile(rf"sparrow-[a-z]+-{OWNER}\w+")
PARTIAL = re.compile(rf"\..+\.{OWNER}[0-9a-f]{{8}}\.partial")
# No file can be made there, and the name is in the message.
NOWHERE = Path("/dev/null/set TMPDIR to a folder that can be written")
READ_ONLY = errno.EACCES, errno.EPERM, errno.EROFS
NAMESPACES = "pid", "time"  # in which process ids and start times are counted

log = logging.getLogger("sparrowboost")
_swept: set[tuple[Path, re.Pattern[str]]] = set()


def only_here(call: Callable[..., Any], *args: Any, **more: Any) -> Callable[[], None]:
    """A call that does nothing in other processes: a forked one must not remove what is not its."""
    made_by = os.getpid()

    def run() -> None:
        if os.getpid() == made_by:
            call(*args, **more)

    return run


class TemporaryFolder:
    """A context with a folder in that for temporary files, removed at its end or with the process.

    Parameters
    ----------
    kind : what it is for, a word in its name
    needed : whether it is certain that something will be written. If not, a folder that cannot be
        made is an error for whoever writes there: predictions of arrays need none
    """

    def __init__(self, kind: str, *, needed: bool = True) -> None:
        try:
            self.path = make_folder(kind)
        except StoreError:
            if needed:
                raise
            self.path = NOWHERE
            return
        remove = only_here(shutil.rmtree, self.path, ignore_errors=True)
        self._remove = weakref.finalize(self, remove)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *error: object) -> None:
        if self.path != NOWHERE:
            self._remove()


def make_folder(kind: str) -> Path:
    """A new folder in that for temporary files; those that dead processes left are removed."""
    parent = _temporary_files()
    remove_leftovers(parent, FOLDER)
    try:
        return Path(tempfile.mkdtemp(prefix=f"sparrow-{kind}-{owner_tag()}", dir=parent))
    except OSError as error:
        raise StoreError(
            f"{parent}: no folder can be made there ({error.strerror}); set TMPDIR to a folder "
            "that can be written."
        ) from None


def _temporary_files() -> Path:
    """The folder for temporary files."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        raise StoreError(
            "no folder for temporary files can be written; set TMPDIR to one that can."
        ) from None


def scratch_folder(store: Path) -> Path:
    """The folder for the scratch data of a store: its own, or that for temporary files."""
    try:
        tempfile.TemporaryFile(dir=store).close()  # the only way to know on network file systems
        return store
    except OSError as error:
        if error.errno not in READ_ONLY:
            return store  # whoever writes there reports it
        folder = _temporary_files()
        log.info(
            "scratch data is written to %s, because %s cannot be written (%s); to write it "
            "elsewhere, pass scratch= (--scratch) or set TMPDIR",
            folder, store, error.strerror,
        )  # fmt: skip
        return folder


def owner_tag() -> str:
    """The part of a name that says which process it belongs to; empty if that cannot be told."""
    machine, start = _machine(), _start_time(os.getpid())
    return "" if machine is None or start is None else f"{machine}-{os.getpid()}-{start}-"


def remove_leftovers(folder: Path, names: re.Pattern[str]) -> None:
    """Remove what processes that have ended left in a folder, the first time it is used."""
    machine = _machine()
    if machine is None or (folder, names) in _swept:
        return
    _swept.add((folder, names))
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = names.fullmatch(entry.name)
            if found is None or found["machine"] != machine or not _is_own(entry):
                continue
            if _has_ended(int(found["pid"]), found["start"]):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                elif entry.is_file(follow_symlinks=False):
                    Path(entry.path).unlink(missing_ok=True)


def _is_own(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    except OSError:
        return False


def _has_ended(pid: int, start: str) -> bool:
    """Whether a process of this machine has ended for certain."""
    try:
        os.kill(pid, 0)  # sends nothing
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:  # another user's: the number may have been used again
        pass
    return _start_time(pid) not in (None, start)


def _machine() -> str | None:
    """Stands for this boot of this machine and this process's namespaces; None if unknown."""
    try:
        known = [Path("/proc/sys/kernel/random/boot_id").read_text()]
        if int(Path("/proc/self").readlink().name) != os.getpid():
            return None  # the numbers in /proc are not those of this process
        spaces = [Path(f"/proc/self/ns/{name}") for name in NAMESPACES]
        known += [str(space.readlink()) for space in spaces if space.is_symlink()]
    except (OSError, ValueError):
        return None
    return hashlib.sha256("".join(known).encode()).hexdigest()[:8]


def _start_time(pid: int) -> str | None:
    """When a process started, in ticks since the machine did."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
