"""Hot loops: numba functions on plain arrays, which the caller allocates.

A kernel's docstring gives shape, dtype and IN or OUT of each array. `_jit.py` says how kernels are
compiled and cached.
"""
