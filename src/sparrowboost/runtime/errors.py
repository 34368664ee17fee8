"""Every error that Sparrow raises on purpose.

SparrowError
├── DataError            the input data or an argument cannot be used
│   └── RemoteError      remote storage cannot be reached, or refuses
├── StoreError           a store is missing, unfinished, damaged, or exists already; a disk failed
│   └── DiskFullError    no space left for a store, scratch files, a model or a report
├── ModelFileError       a model file is missing, damaged, too new, or cannot be written
├── MemoryLimitError     the job does not fit in the memory limit
└── MissingExtraError    an optional package is needed

Each message says what is wrong, where, and how to fix it.
"""

from __future__ import annotations


class SparrowError(Exception):
    """Base class of all errors that Sparrow raises on purpose."""


class DataError(SparrowError, ValueError):
    """The input data or an argument cannot be used."""


class RemoteError(DataError):
    """Remote storage cannot be reached, refuses, or does not have what is asked for."""


class StoreError(SparrowError, OSError):
    """A store is missing, unfinished, damaged, or exists already; or a disk failed."""


class DiskFullError(StoreError):
    """No space left, or allowed, for a store, scratch files, a model or a report."""


class ModelFileError(SparrowError, OSError):
    """A model file is missing, damaged, too new, or cannot be written."""


class MemoryLimitError(SparrowError, ValueError):
    """The job does not fit in the memory limit."""


class MissingExtraError(SparrowError, ImportError):
    """An optional package is needed."""
