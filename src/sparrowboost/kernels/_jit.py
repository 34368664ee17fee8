"""How every kernel is compiled."""

from __future__ import annotations

from numba import njit

from sparrowboost.kernels._cache import KernelCache

# nogil: kernels run under plain threads.
# error_model: a division by zero is inf or nan as in numpy, and costs no branch.
OPTIONS = {"nogil": True, "error_model": "numpy"}

helper = njit(**OPTIONS, forceinline=True)  # a part of a kernel: a call costs no time


def kernel(function):
    """Compile a function when it is first called, or load it from the cache."""
    compiled = njit(**OPTIONS)(function)
    compiled._cache = KernelCache(function)  # what cache=True does, with numba's own class
    return compiled
