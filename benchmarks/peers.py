"""What the training benchmarks share: a clock, what a training leaves behind, the parent's part.

A run is one contestant in a process of its own. It works once on a tiny table, so that code is
compiled and threads are up; then the clock starts. Reading and preparing the training table counts.
Test rows are read when training is over: they cost neither time nor memory of it.

    curve     one stage after another, see curves.py
    run       {"curve", "seconds", "load_seconds", "peak_rss_mb", ...}, as JSON
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console

import measure
from tables import Test

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("sparrowboost", "numpy", "numba", "pyarrow", "lightgbm", "xgboost", "scikit-learn")
STAGE_RATIO = 1.12  # trees of one stage / of the stage before: 40 stages in 500 trees
WIDTH = 120  # characters, of a report
QUIET = 0.5  # load of a machine on which one may measure

Run = dict[str, Any]
Config = dict[str, Any]


# -- training -------------------------------------------------------------------------------------


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = perf_counter()

    def seconds(self) -> float:
        return perf_counter() - self._start


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model, and what it took.

    Attributes
    ----------
    at : list of float
        Seconds after which tree 1, 2, ... of the model was there.
    load_seconds : float
        Until the first tree could begin.
    """

    model: Any = field(repr=False)
    at: list[float]
    load_seconds: float
    seconds: float
    peak_rss_mb: float
    work: dict[str, float] | None = None

    def run(self) -> Run:
        """What JSON says of it; the curve is for `score` to find."""
        return {
            "seconds": round(self.seconds, 4),
            "load_seconds": round(self.load_seconds, 4),
            "peak_rss_mb": round(self.peak_rss_mb, 1),
            **({"work": self.work} if self.work else {}),
        }


def grow(
    model: Any, update: Callable[[int], bool | None], clock: Clock, trees: int, seconds: float
) -> Trained:
    """Tree after tree, until there are enough or the time is over; all before was loading."""
    loaded, at = clock.seconds(), []
    for n in range(1, trees + 1):
        if update(n):  # LightGBM found nothing to split
            break
        at.append(clock.seconds())
        if at[-1] >= seconds:
            break
    return Trained(
        model=model,
        at=at,
        load_seconds=loaded,
        seconds=clock.seconds(),
        peak_rss_mb=measure.peak_rss_mb(),
    )


def train_sparrow(
    table: Path,
    scratch: Path,
    *,
    memory_limit: int | str | None,
    seconds: float = math.inf,
    categorical: Sequence[str] = (),
    random_state: int = 0,
    **params: Any,
) -> Trained:
    """Ingest and train; the store lies in `scratch`.

    It is loaded when the first sample is drawn: other rows are read while it trains.
    """
    import sparrowboost
    from sparrowboost.learner.events import SampleDrawn, TreeAdded

    at: list[float] = []
    last: list[TreeAdded] = []
    drawn: list[float] = []

    def note(event: object) -> bool:
        if isinstance(event, SampleDrawn):
            drawn.append(clock.seconds())
        if isinstance(event, TreeAdded):
            at.append(clock.seconds())
            last[:] = [event]
        return bool(at) and at[-1] >= seconds

    common = {"memory_limit": memory_limit, "random_state": random_state, "verbose": 0}
    clock = Clock()
    data = sparrowboost.ingest(
        str(table), label="y", path=scratch / "store", categorical=categorical, wait=False, **common
    )
    model = sparrowboost.train(data, callbacks=(note,), **common, **params)
    took, peak = clock.seconds(), measure.peak_rss_mb()
    if not last:
        raise RuntimeError(f"{table}: sparrow grew no tree.")
    return Trained(
        model=model,
        at=at[: model.n_trees],  # with early stopping, later ones were not kept
        load_seconds=drawn[0],
        seconds=took,
        peak_rss_mb=peak,
        work=sparrow_work(model, last[0]),
    )


def sparrow_log_odds(model: Any, source: Any, n_trees: int | None = None) -> np.ndarray:
    """Of each row, under the first trees."""
    return np.asarray(model.decision_function(source, n_trees=n_trees))


def sparrow_work(model: Any, last: Any) -> dict[str, float]:
    """What training read and scanned, from its last event."""
    rules = sum(tree.n_leaves - 1 for tree in model.trees)
    return {
        "trees_grown": last.n_trees,
        "rules": rules,
        "rows_scanned": last.rows_scanned,
        "rows_scanned_per_rule": round(last.rows_scanned / max(rules, 1)),
        "rows_read": last.rows_read,
        "rows_kept": last.rows_kept,
        "rows_read_per_kept": round(last.rows_read / max(last.rows_kept, 1), 3),
        "samples": last.n_samples,
        "sample_rows": last.sample_rows,
    }


# -- stages ---------------------------------------------------------------------------------------


def stages(trees: int) -> list[int]:
    """Numbers of trees at which a model is scored: 1, 2, 3, ..., then each some more, and all."""
    out, n = [], 1
    while n < trees:
        out.append(n)
        n = max(n + 1, round(n * STAGE_RATIO))
    return [*out, trees] if trees else []


def curve(at: Sequence[float], scores: Iterable[np.ndarray], test: Test) -> list[dict[str, float]]:
    """The stages of a model: `scores` are the log odds of the test rows at each."""
    return [
        {"seconds": round(at[n - 1], 4), "trees": n, **test.judge(log_odds)}
        for n, log_odds in zip(stages(len(at)), scores, strict=True)
    ]


# -- the parent -----------------------------------------------------------------------------------


def make_console() -> Console:
    """At least wide enough for the reports, also where the output is a file."""
    console = Console(width=max(WIDTH, Console().width))
    load = os.getloadavg()[0]
    if load > QUIET:
        console.print(
            f"[yellow]load {load:.1f}: others are at work here, and seconds mean little[/]; the "
            "threads of LightGBM and XGBoost wait for each other and suffer most"
        )
    return console


def context(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    return {"command": measure.command(), "machine": measure.machine(packages)}


def short(rows: int) -> str:
    """300000 -> 300k, 1000000 -> 1m."""
    for unit, name in ((10**6, "m"), (10**3, "k")):
        if rows >= unit and rows % unit == 0:
            return f"{rows // unit}{name}"
    return str(rows)
