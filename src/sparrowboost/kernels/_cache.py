"""Where compiled kernels are kept: numba's cache, where not every folder can be written.

A kernel is loaded from the first of these folders that has it, and saved in the first possible:

    $NUMBA_CACHE_DIR                       if it is set; then none of the others is used
    __pycache__ beside the source          may be filled when an image is built, and read-only later
    the user's cache folder                ~/.cache/numba
    sparrow-kernels-<user id>              in the folder for temporary files, closed to other users

If none takes it, the kernel is compiled in memory, in every process; also where only the current
directory can be written, which Python then takes as the folder for temporary files. numba itself
uses one folder, chosen when a function is defined, and refuses the function if that cannot be
written.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import pickle
import stat
import sys
import tempfile
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from numba import config
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    _CacheLocator,
)
from numba.misc.appdirs import AppDirs

CRC_BYTES = 4
PRIVATE = 0o077  # mode bits that a folder which anyone may create must not have
SHARED = 0o002  # the same, for a folder in the user's home

log = logging.getLogger("sparrowboost")
_reported: set[int] = set()


def fingerprint(folder):
    """A hash of the source of all kernels."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


SOURCES = fingerprint(Path(__file__).parent)


class Place(NamedTuple):
    """A folder for compiled code.

    What is in it will be run. So a folder that others might have made counts only if it belongs to
    this user and if they cannot write there; the `root` is what is checked.
    """

    path: Path
    root: Path
    forbidden: int = 0  # mode bits that `root` must not have; 0: it is as trusted as the source

    def is_safe(self):
        if not self.forbidden:
            return True
        try:
            found = self.root.lstat()
        except OSError:
            return False
        return (
            stat.S_ISDIR(found.st_mode)
            and found.st_uid == os.geteuid()
            and not found.st_mode & self.forbidden
        )

    def make(self):
        """Make the folder; an OSError if it cannot be made, or is not safe."""
        if self.forbidden == PRIVATE:
            self.root.mkdir(0o700, exist_ok=True)
        self.path.mkdir(0o755, parents=True, exist_ok=True)
        if not self.is_safe():
            raise PermissionError(0, "belongs to another user, or is open to others")


def places(source):
    """The folders for the kernels of a file, the best first."""
    name = _CacheLocator.get_suitable_cache_subpath(source)
    if config.CACHE_DIR:
        folder = Path(config.CACHE_DIR)
        return [Place(folder / name, folder)]
    found = [Place(Path(source).parent / "__pycache__", Path(source).parent)]
    users = Path(AppDirs(appname="numba", appauthor=False).user_cache_dir)
    if users.is_absolute():  # else there is no home
        found.append(Place(users / name, users / name, SHARED))
    temporary = _temporary_files()
    if temporary is None:
        return found
    private = temporary / f"sparrow-kernels-{os.geteuid()}"
    return [*found, Place(private / name, private, PRIVATE)]


def _temporary_files():
    """The folder for temporary files; None if none can be written.

    Python then takes the current directory, where nobody looks for kernels or wants them.
    """
    try:
        folder = tempfile.gettempdir()
    except OSError:
        return None
    named = (os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    known = [*filter(None, named), "/tmp", "/var/tmp", "/usr/tmp"]
    return Path(folder) if folder in map(os.path.abspath, known) else None


class _Code(CompileResultCacheImpl):
    """How compiled code is written; where is decided by `KernelCache`."""

    def __init__(self, function):
        self._lineno = function.__code__.co_firstlineno
        self._locator = SimpleNamespace(_py_file=inspect.getfile(function))


class _Files(IndexDataCacheFile):
    """The files of a kernel in a folder: numba's, with a checksum, so that damage is recognized."""

    def _save_data(self, name, data):
        data = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(data + zlib.crc32(data).to_bytes(CRC_BYTES, "little"))

    def _load_data(self, name):
        data = Path(self._data_path(name)).read_bytes()
        data, crc32 = data[:-CRC_BYTES], data[-CRC_BYTES:]
        if zlib.crc32(data).to_bytes(CRC_BYTES, "little") != crc32:
            raise ValueError(f"{name}: its checksum does not match")
        return pickle.loads(data)


class KernelCache(FunctionCache):
    """numba's cache of a function, in several folders, and out of date when any kernel has changed.

    numba compares only the file that a kernel is in, but compiles the kernels it calls into it.
    """

    def __init__(self, function):
        self._name, self._py_func, self._impl = repr(function), function, _Code(function)
        self._source = inspect.getfile(function)
        # numba adds the line number, so that files of a kernel that moved are never replaced.
        self._base = (
            f"{Path(self._source).stem}.{function.__qualname__}."
            f"{sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}"
        )
        self._stamp = hashlib.sha256(Path(self._source).read_bytes()).hexdigest(), SOURCES
        self._cache_path = str(places(self._source)[0].path)  # for numba's statistics
        self.enable()

    def _files(self, place):
        return _Files(str(place.path), self._base, self._stamp)

    def flush(self):
        for place in places(self._source):
            if place.path.is_dir() and place.is_safe():
                self._files(place).flush()

    def _load_overload(self, sig, target_context):
        if not self._enabled:
            return None
        key = self._index_key(sig, target_context.codegen())
        for place in places(self._source):
            if not place.is_safe():
                continue
            try:
                data = self._files(place).load(key)
                if data is not None:
                    return self._impl.rebuild(target_context, data)
            except Exception as error:  # unreadable, or damaged: pickle raises anything
                log.debug("cache=%s kernel=%s error=%r", place.path, self._base, error)
        return None

    def _save_overload(self, sig, data):
        if not self._enabled or not self._impl.check_cachable(data):
            return
        key = self._index_key(sig, data.codegen)
        reduced = self._impl.reduce(data)
        refused: list[str] = []
        found = places(self._source)
        for place in found:
            try:
                place.make()
                self._save(self._files(place), key, reduced)
                if place.forbidden == PRIVATE:
                    _report_private(place, refused)
                return
            except OSError as error:  # not writable, full, or gone
                refused.append(f"{place.path}: {error.strerror}")
        if not config.CACHE_DIR and found[-1].forbidden != PRIVATE:
            refused.append("no folder for temporary files can be written")
        _report_none(refused)

    def _save(self, files, key, reduced):
        try:
            files.save(key, reduced)
        except OSError:
            raise
        except Exception:  # a damaged index
            files.flush()
            files.save(key, reduced)


def _report_private(place, refused):
    _report_once(
        logging.INFO,
        f"compiled kernels are kept in {place.root}, because other folders cannot be written "
        f"({'; '.join(refused)}); set NUMBA_CACHE_DIR to a folder that lasts",
    )


def _report_none(refused):
    _report_once(
        logging.WARNING,
        "compiled kernels cannot be kept, so every process compiles them again "
        f"({'; '.join(refused)}); set NUMBA_CACHE_DIR to a folder that can be written",
    )


def _report_once(level, message):
    """Log what holds for all kernels once in a process."""
    if level not in _reported:
        _reported.add(level)
        log.log(level, message)
