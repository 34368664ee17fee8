"""Who takes part: a contestant is a library and how it is fed.

Each library has a module here:

    train(job, **options) -> Trained          in a process under the memory cap
    save(model, path), load(path)             between the two
    log_odds(model, test, trees) -> scores    of the test rows after so many trees; no cap

Everyone reads the same Parquet file, with label `y`, and may use every core.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import peers
from tables import Test

# name: (library, options of its `train`); those of SIZED stand for several, one for each size
CONTESTANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "sparrow": ("sparrow", {}),
    "sparrow-paper": ("sparrow", {"stopping": "paper", "loss": "exponential"}),
    "xgboost": ("xgboost", {}),
    "xgboost-ext": ("xgboost", {"external": True}),
    "xgboost-ext-grad": (
        "xgboost",
        {"external": True, "sampling_method": "gradient_based", "subsample": 0.2},
    ),
    "lightgbm": ("lightgbm", {}),
    "lightgbm-goss": ("lightgbm", {"data_sample_strategy": "goss"}),
    "lightgbm-seq": ("lightgbm", {"feed": "sequence"}),
    "lightgbm-sub": ("lightgbm", {"feed": "uniform"}),
    "lightgbm-rare": ("lightgbm", {"feed": "rare"}),
    "histgb": ("histgb", {}),
}
SIZED = ("lightgbm-sub", "lightgbm-rare")
PACKAGE = {"sparrow": "sparrowboost", "histgb": "sklearn"}  # of a library that is named otherwise


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a contestant is to do.

    Attributes
    ----------
    seconds : float
        After which it grows no further tree.
    memory : int or None
        Bytes that it may use; None: as it likes.
    size : int or None
        Rows that it may keep, of those that keep a part.
    scratch : path
        An empty folder, which goes with the run.
    options : dict
        Of the library, for this table.
    seed : int
        Of whatever it draws.
    """

    table: Path
    categorical: list[str]
    leaves: int
    trees: int
    rate: float
    seconds: float
    memory: int | None
    size: int | None
    scratch: Path
    options: dict[str, Any]
    seed: int = 0


def library(contestant: str) -> ModuleType:
    return importlib.import_module(f"contestants.{CONTESTANTS[contestant][0]}")


def installed(contestant: str) -> bool:
    name = CONTESTANTS[contestant][0]
    return importlib.util.find_spec(PACKAGE.get(name, name)) is not None


def train_and_score(contestant: str, job: Job, test: Test) -> peers.Run:
    """A run in this process, its curve included."""
    module, (_, options) = library(contestant), CONTESTANTS[contestant]
    trained = module.train(job, **options)
    scores = module.log_odds(trained.model, test, peers.stages(len(trained.at)))
    return {**trained.run(), "curve": peers.curve(trained.at, scores, test)}
