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
    from sparrowboost import plots as plots
    from sparrowboost.build import ingest as ingest
    from sparrowboost.classifier import SparrowClassifier as SparrowClassifier
    from sparrowboost.crossval import cv as cv
    from sparrowboost.errors import DataError as DataError
    from sparrowboost.errors import DiskFullError as DiskFullError
    from sparrowboost.errors import MemoryLimitError as MemoryLimitError
    from sparrowboost.errors import MissingExtraError as MissingExtraError
    from sparrowboost.errors import ModelFileError as ModelFileError
    from sparrowboost.errors import SparrowError as SparrowError
    from sparrowboost.errors import StoreError as StoreError
    from sparrowboost.evaluation import evaluate as evaluate
    from sparrowboost.history import History as History
    from sparrowboost.importance import feature_importances as feature_importances
    from sparrowboost.model import Model as Model
    from sparrowboost.model import load_model as load_model
    from sparrowboost.predictions import write_predictions as write_predictions
    from sparrowboost.report import write_report as write_report
    from sparrowboost.store import Dataset as Dataset
    from sparrowboost.training import train as train

__version__ = "0.1.0"

_HOME = {
    "DataError": "errors",
    "Dataset": "store",
    "DiskFullError": "errors",
    "History": "history",
    "MemoryLimitError": "errors",
    "MissingExtraError": "errors",
    "Model": "model",
    "ModelFileError": "errors",
    "SparrowClassifier": "classifier",
    "SparrowError": "errors",
    "StoreError": "errors",
    "cv": "crossval",
    "evaluate": "evaluation",
    "feature_importances": "importance",
    "ingest": "build",
    "load_model": "model",
    "train": "training",
    "write_predictions": "predictions",
    "write_report": "report",
}

_MODULES = ("datasets", "events", "plots")

__all__ = ["__version__", *_MODULES, *_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"sparrowboost.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"sparrowboost.{name}")
    else:
        raise AttributeError(f"module 'sparrowboost' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
