"""Every error that Sparrow raises on purpose.

SparrowError
├── DataError            the input is not what a training table can be
├── StoreError           a store is missing, unfinished, damaged or in the way
│   └── DiskFullError    no room left where a store, its scratch, a model or a report is written
├── ModelFileError       a model file is missing, damaged, too new, or cannot be written
├── MemoryLimitError     the job does not fit the memory limit
└── MissingExtraError    a package that is not installed with Sparrow is needed

Each message says what is wrong, where, and what to do about it.
"""

from __future__ import annotations


class SparrowError(Exception):
    """Root of all errors that Sparrow raises on purpose."""


class DataError(SparrowError, ValueError):
    """The input is not what a training table can be."""


class StoreError(SparrowError, OSError):
    """A store is missing, unfinished, damaged or in the way."""


class DiskFullError(StoreError):
    """No room left where a store, its scratch or a model is written."""


class ModelFileError(SparrowError, OSError):
    """A model file is missing, damaged, too new, or cannot be written."""


class MemoryLimitError(SparrowError, ValueError):
    """The job does not fit the memory limit."""


class MissingExtraError(SparrowError, ImportError):
    """A package that is not installed with Sparrow is needed."""
