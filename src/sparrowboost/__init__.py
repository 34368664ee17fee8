"""Boosted trees for tables larger than memory.

The names below are loaded when first used, so that ``import sparrowboost`` is quick and pulls in
neither numba nor pyarrow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparrowboost import datasets as datasets
    from sparrowboost import events as events
    from sparrowboost.build import ingest as ingest
    from sparrowboost.errors import DataError as DataError
    from sparrowboost.errors import DiskFullError as DiskFullError
    from sparrowboost.errors import MemoryLimitError as MemoryLimitError
    from sparrowboost.errors import ModelFileError as ModelFileError
    from sparrowboost.errors import SparrowError as SparrowError
    from sparrowboost.errors import StoreError as StoreError
    from sparrowboost.model import Model as Model
    from sparrowboost.model import load_model as load_model
    from sparrowboost.store import Dataset as Dataset
    from sparrowboost.training import train as train

__version__ = "0.1.0"

_HOME = {
    "DataError": "errors",
    "Dataset": "store",
    "DiskFullError": "errors",
    "MemoryLimitError": "errors",
    "Model": "model",
    "ModelFileError": "errors",
    "SparrowError": "errors",
    "StoreError": "errors",
    "ingest": "build",
    "load_model": "model",
    "train": "training",
}

__all__ = ["__version__", "datasets", "events", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"sparrowboost.{_HOME[name]}"), name)
    elif name in ("datasets", "events"):
        value = importlib.import_module(f"sparrowboost.{name}")
    else:
        raise AttributeError(f"module 'sparrowboost' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
