"""How every kernel is compiled, and kept on disk."""

from __future__ import annotations

import hashlib
import sys
from contextlib import suppress
from pathlib import Path

from numba import njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile


def _fingerprint():
    """A hash of the source of all kernels."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


SOURCES = _fingerprint()


class _CacheFiles(CompileResultCacheImpl):
    def get_filename_base(self, fullname, abiflags):
        # numba adds the line number, so that files of a kernel that moved are never replaced.
        return f"{fullname}.{sys.implementation.cache_tag}{abiflags}"


class _Cache(FunctionCache):
    """numba's cache, out of date when any kernel's source has changed.

    numba compares only the file that a kernel is in, but compiles the kernels it calls into it.
    """

    _impl_class = _CacheFiles

    def __init__(self, function):
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp(), SOURCES
        self._cache_file = IndexDataCacheFile(self.cache_path, self._impl.filename_base, stamp)

    def save_overload(self, sig, data):
        with suppress(OSError):  # a full disk or a folder that is gone must not fail the job
            super().save_overload(sig, data)


# nogil: kernels run under plain threads.
# error_model: a division by zero is inf or nan as in numpy, and costs no branch.
OPTIONS = {"nogil": True, "error_model": "numpy"}

helper = njit(**OPTIONS, forceinline=True)  # a part of a kernel: a call costs no time


def kernel(function):
    """Compile a function when it is first called, or load it from the cache."""
    compiled = njit(**OPTIONS)(function)
    compiled._cache = _Cache(function)  # what cache=True does, with numba's own class
    return compiled
