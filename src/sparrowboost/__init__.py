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
    from sparrowboost import views as views
    from sparrowboost.crossval import cv as cv
    from sparrowboost.estimators import SparrowClassifier as SparrowClassifier
    from sparrowboost.estimators import SparrowRegressor as SparrowRegressor
    from sparrowboost.learner.params import Params as Params
    from sparrowboost.learner.training import plan as plan
    from sparrowboost.learner.training import train as train
    from sparrowboost.model.evaluation import evaluate as evaluate
    from sparrowboost.model.importance import feature_importances as feature_importances
    from sparrowboost.model.model import Model as Model
    from sparrowboost.model.model import load_model as load_model
    from sparrowboost.model.predictions import write_predictions as write_predictions
    from sparrowboost.readers.query import sql as sql
    from sparrowboost.report.history import History as History
    from sparrowboost.report.page import write_report as write_report
    from sparrowboost.runtime.errors import DataError as DataError
    from sparrowboost.runtime.errors import DiskFullError as DiskFullError
    from sparrowboost.runtime.errors import MemoryLimitError as MemoryLimitError
    from sparrowboost.runtime.errors import MissingExtraError as MissingExtraError
    from sparrowboost.runtime.errors import ModelFileError as ModelFileError
    from sparrowboost.runtime.errors import RemoteError as RemoteError
    from sparrowboost.runtime.errors import SparrowError as SparrowError
    from sparrowboost.runtime.errors import StoreError as StoreError
    from sparrowboost.store.dataset import Dataset as Dataset
    from sparrowboost.store.ingest import ingest as ingest

__version__ = "0.2.0"

_HOME = {
    "DataError": "runtime.errors",
    "Dataset": "store.dataset",
    "DiskFullError": "runtime.errors",
    "History": "report.history",
    "MemoryLimitError": "runtime.errors",
    "MissingExtraError": "runtime.errors",
    "Model": "model.model",
    "ModelFileError": "runtime.errors",
    "Params": "learner.params",
    "RemoteError": "runtime.errors",
    "SparrowClassifier": "estimators",
    "SparrowRegressor": "estimators",
    "SparrowError": "runtime.errors",
    "StoreError": "runtime.errors",
    "cv": "crossval",
    "evaluate": "model.evaluation",
    "feature_importances": "model.importance",
    "ingest": "store.ingest",
    "load_model": "model.model",
    "plan": "learner.training",
    "sql": "readers.query",
    "train": "learner.training",
    "write_predictions": "model.predictions",
    "write_report": "report.page",
}

_MODULES = ("datasets", "events", "plots", "views")

__all__ = ["__version__", *_HOME, *_MODULES]


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
