"""What the training benchmarks share: a clock that can stand still, the peers, curves, pictures.

A run is one contestant in a process of its own. It works once on a tiny table, so that code is
compiled and threads are up; then the clock starts. Reading and preparing the training table counts;
scoring the test rows at a stage does not.

    curve     one stage after another: {"seconds", "trees", "auc", "average_precision", "log_loss"}
    run       {"curve", "seconds", "load_seconds", "peak_rss_mb", ...}, as JSON
    log odds  what all three libraries give as the score of a row: ln(p / (1 - p))

Memory is measured before the first test row is read.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

import measure

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("sparrowboost", "numpy", "numba", "pyarrow", "lightgbm", "xgboost", "scikit-learn")
STAGE_RATIO = 1.12  # trees of one stage / of the stage before: 40 stages in 500 trees
BUFFER_BYTES = (
    1 << 18
)  # of a Parquet reader that does not read ahead; faster here than one that does
FEATURES = 20  # of the made table
WIDTH = 120  # characters, of a report
QUIET = 0.5  # load of a machine on which one may measure
ZOOM = 0.2  # of the way from the first to the best value, a picture shows at least so much
MIN_SHARE = 1e-15  # a probability is at least so far from 0 and 1, as in scikit-learn's log loss

Stage = dict[str, float]
Run = dict[str, Any]
Config = dict[str, Any]
Line = Sequence[tuple[float, float]]  # (seconds, value)


# -- the clock ------------------------------------------------------------------------------------


class Clock:
    """Seconds since it was made, without those in which it stood still."""

    def __init__(self) -> None:
        self._start = perf_counter()

    def seconds(self) -> float:
        return perf_counter() - self._start

    @contextmanager
    def paused(self) -> Iterator[None]:
        begin = perf_counter()
        yield
        self._start += perf_counter() - begin


def stages(trees: int) -> list[int]:
    """Numbers of trees at which a model is scored: 1, 2, 3, ..., then each some more, and all."""
    out, n = [], 1
    while n < trees:
        out.append(n)
        n = max(n + 1, round(n * STAGE_RATIO))
    return [*out, trees] if trees else []


# -- tables ---------------------------------------------------------------------------------------


def made(path: Path, make: Callable[[Path], object]) -> Path:
    """The file, made by `make` if it is not there, and in the page cache."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        part = path.with_name("part-" + path.name)
        make(part)
        part.replace(path)
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass
    return path


def large(folder: Path, rows: int, stream: int = 0) -> Path:
    """The made table of so many rows; stream 1 has the test rows."""
    from sparrowboost.datasets import make_large

    return made(
        folder / f"large-{rows}x{FEATURES}{'-test' if stream else ''}.parquet",
        lambda path: make_large(path, rows, features=FEATURES, random_state=0, stream=stream),
    )


def batches(path: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    file = pq.ParquetFile(path, pre_buffer=False, buffer_size=BUFFER_BYTES)
    return file.iter_batches(columns=columns)


def read_labels(path: Path) -> np.ndarray:
    return np.concatenate([np.asarray(batch.column(0)) for batch in batches(path, ["y"])])


def read_rows(path: Path, keep: np.ndarray | None = None) -> pa.Table:
    """All rows, or those of a mask: batch after batch, so that no more than they are in memory.

    Categories come as codes in uint8; of what LightGBM takes, Arrow columns of bytes load fastest
    (pandas categories take 1.2 times as long, a numpy matrix twice).
    """
    out, first = [], 0
    for batch in batches(path):
        n = batch.num_rows
        arrays = [_codes(column) for column in batch.columns]
        batch = pa.RecordBatch.from_arrays(arrays, batch.schema.names)
        out.append(batch if keep is None else batch.filter(pa.array(keep[first : first + n])))
        first += n
    return pa.Table.from_batches(out)


def _codes(column: pa.Array) -> pa.Array:
    if not pa.types.is_dictionary(column.type):
        return column
    if column.dictionary.to_pylist() != sorted(column.dictionary.to_pylist()):
        raise RuntimeError("the batches of a column number their categories differently.")
    return column.indices.view(pa.uint8())


def read_csv(path: Path, rows: int | None) -> Any:
    """A pandas frame of all rows, or of so many random ones in their order."""
    import pandas as pd

    frame = pd.read_csv(path)
    if rows is None or rows >= len(frame):
        return frame
    return frame.sample(rows, random_state=0).sort_index().reset_index(drop=True)


def thin(y: np.ndarray, rows: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """A mask of all positives and so many negatives that there are about `rows`; their weight."""
    positive = y == 1
    rate = (rows - positive.sum()) / (~positive).sum()
    if not 0 < rate < 1:
        return np.ones(len(y), bool), 1.0
    keep = positive | (rng.random(len(y)) < rate)
    return keep, float((~positive).sum() / (keep & ~positive).sum())


class Test:
    """Test rows and how good scores of them are.

    Parameters
    ----------
    path : path
        A Parquet file with the label in column ``y``.
    negative_weight : float
        How many rows a negative one stands for, where negatives were thinned out.
    """

    def __init__(self, path: Path, negative_weight: float = 1.0) -> None:
        self.path, self.negative_weight = path, negative_weight

    @cached_property
    def X(self) -> pa.Table:  # noqa: N802
        return read_rows(self.path).drop_columns(["y"])

    @cached_property
    def y(self) -> np.ndarray:
        return read_labels(self.path)

    def judge(self, log_odds: np.ndarray) -> Stage:
        weight = None
        if self.negative_weight != 1:
            weight = np.where(self.y == 1, 1.0, self.negative_weight)
        return judge(self.y, log_odds, weight)


def judge(y: np.ndarray, log_odds: np.ndarray, weight: np.ndarray | None = None) -> Stage:
    from sklearn.metrics import average_precision_score, roc_auc_score

    return {
        "auc": round(float(roc_auc_score(y, log_odds, sample_weight=weight)), 6),
        "average_precision": round(
            float(average_precision_score(y, log_odds, sample_weight=weight)), 6
        ),
        "log_loss": round(log_loss(y, log_odds, weight), 7),
    }


def log_loss(y: np.ndarray, log_odds: np.ndarray, weight: np.ndarray | None = None) -> float:
    margin = np.where(y == 1, log_odds, -log_odds).astype(np.float64)
    losses = np.minimum(np.logaddexp(0, -margin), -math.log(MIN_SHARE))
    return float(np.average(losses, weights=weight))


# -- contestants ----------------------------------------------------------------------------------


def run_sparrow(
    table: Path, test: Test, *, memory_limit: str | None, random_state: int = 0, **params: Any
) -> Run:
    """Ingest and train; the store lies beside the table and goes with the run.

    It is loaded when the first sample is drawn: the other rows are read while it trains.

    It is scored when training is over: a clock that stood still in between would not stop the
    threads that draw the next sample.
    """
    import sparrowboost
    from sparrowboost.events import SampleDrawn, TreeAdded

    at: dict[int, float] = {}
    last: list[TreeAdded] = []
    drawn: list[float] = []

    def note(event: object) -> None:
        if isinstance(event, SampleDrawn):
            drawn.append(clock.seconds())
        if isinstance(event, TreeAdded):
            at[event.n_trees] = clock.seconds()
            last[:] = [event]

    common = {"memory_limit": memory_limit, "random_state": random_state, "verbose": 0}
    with tempfile.TemporaryDirectory(dir=table.parent) as scratch:
        clock = Clock()
        data = sparrowboost.ingest(
            str(table), label="y", path=Path(scratch) / "store", wait=False, **common
        )
        model = sparrowboost.train(data, callbacks=(note,), **common, **params)
        seconds, peak = clock.seconds(), measure.peak_rss_mb()
        del data  # before its files go
    curve = []
    for n in stages(len(model.trees)):
        scores = sparrow_log_odds(model, str(test.path), n)
        curve.append({"seconds": round(at[n], 4), "trees": n, **test.judge(scores)})
    if not last:
        raise RuntimeError(f"{table}: sparrow grew no tree.")
    return {**_run(curve, seconds, drawn[0], peak), "work": sparrow_work(model, last[0])}


def sparrow_log_odds(model: Any, source: Any, n_trees: int | None = None) -> np.ndarray:
    """Its score H is half the log odds."""
    return 2 * np.asarray(model.decision_function(source, n_trees=n_trees))


def sparrow_work(model: Any, last: Any) -> dict[str, float]:
    """What training read and scanned, from its last event."""
    rules = sum(tree.n_leaves - 1 for tree in model.trees)
    return {
        "rules": rules,
        "rows_scanned": last.rows_scanned,
        "rows_scanned_per_rule": round(last.rows_scanned / max(rules, 1)),
        "rows_read": last.rows_read,
        "rows_kept": last.rows_kept,
        "rows_read_per_kept": round(last.rows_read / max(last.rows_kept, 1), 3),
        "samples": last.n_samples,
        "sample_rows": last.sample_rows,
    }


def run_lightgbm(
    load: Callable[[], tuple[pa.Table, np.ndarray | None]],
    test: Test,
    *,
    trees: int,
    categorical: Sequence[str] = (),
    **options: Any,
) -> Run:
    """Load (rows with their label, their weights), then one tree after another."""
    import lightgbm as lgb

    limits = {name: options.pop(name) for name in ("cap", "enough") if name in options}
    params = lightgbm_params(**options)
    clock = Clock()
    rows, weight = load()
    data = lgb.Dataset(
        rows.drop_columns(["y"]),
        label=rows.column("y"),
        weight=weight,
        categorical_feature=list(categorical),
        params=params,
    ).construct()
    del rows
    loaded = clock.seconds()
    booster = lgb.Booster(params, data)
    total, seen = 0.0, 0

    def log_odds(n: int) -> np.ndarray:
        nonlocal total, seen
        new = booster.predict(test.X, start_iteration=seen, num_iteration=n - seen, raw_score=True)
        total, seen = total + new, n
        return total

    return _boost(clock, loaded, lambda n: booster.update(), log_odds, test, trees, **limits)


def lightgbm_params(**params: Any) -> Config:
    return {"objective": "binary", "num_threads": measure.cores(), "verbose": -1, **params}


def run_xgboost(load: Callable[[], pa.Table], test: Test, *, trees: int, **params: Any) -> Run:
    """Load into a QuantileDMatrix, which hist needs anyway, then one tree after another."""
    import xgboost as xgb

    params = xgboost_params(**params)
    clock = Clock()
    rows = load()
    X, y = rows.drop_columns(["y"]), rows.column("y").to_numpy()
    data = xgb.QuantileDMatrix(X, y, max_bin=params["max_bin"], nthread=params["nthread"])
    del rows, X
    loaded = clock.seconds()
    booster = xgb.Booster(params, [data])
    scored: list[xgb.DMatrix] = []

    def log_odds(n: int) -> np.ndarray:
        if not scored:
            scored.append(xgb.DMatrix(test.X))
        return booster.predict(scored[0], output_margin=True, iteration_range=(0, n))

    return _boost(clock, loaded, lambda n: booster.update(data, n - 1), log_odds, test, trees)


def xgboost_params(**params: Any) -> Config:
    same = {"objective": "binary:logistic", "tree_method": "hist", "max_bin": 256}
    return {**same, "nthread": measure.cores(), "verbosity": 0, **params}


def _boost(
    clock: Clock,
    loaded: float,
    update: Callable[[int], bool | None],
    log_odds: Callable[[int], np.ndarray],
    test: Test,
    trees: int,
    cap: float = math.inf,
    enough: float = math.inf,
) -> Run:
    """Tree after tree, until there are enough, or `cap` seconds are over, or the AUC is enough."""
    due = set(stages(trees))
    curve: list[Stage] = []
    peak = 0.0
    for n in range(1, trees + 1):
        if update(n):  # LightGBM found nothing to split
            break
        seconds = clock.seconds()
        if n not in due and seconds < cap:
            continue
        with clock.paused():
            peak = peak or measure.peak_rss_mb()
            curve.append({"seconds": round(seconds, 4), "trees": n, **test.judge(log_odds(n))})
        if seconds >= cap or curve[-1]["auc"] >= enough:
            break
    return _run(curve, clock.seconds(), loaded, peak)


def _run(curve: list[Stage], seconds: float, loaded: float, peak: float) -> Run:
    return {
        "seconds": round(seconds, 4),
        "load_seconds": round(loaded, 4),
        "peak_rss_mb": round(peak, 1),
        "curve": curve,
    }


# -- curves ---------------------------------------------------------------------------------------


def seconds_to(curve: Sequence[Stage], measured: str, target: float) -> float | None:
    """When a curve meets its target, on the straight line between two stages; None if never."""
    sign = -1 if measured == "log_loss" else 1
    before: Stage | None = None
    for stage in curve:
        if sign * stage[measured] >= sign * target:
            if before is None:
                return stage["seconds"]
            share = (target - before[measured]) / (stage[measured] - before[measured])
            return before["seconds"] + share * (stage["seconds"] - before["seconds"])
        before = stage
    return None


def add_ratio(at: dict[str, Any], base: Mapping[str, Any] | None) -> None:
    """Say how many times the seconds of `base` it took, if that got there."""
    if base and base["reached"]:
        at["ratio"] = round(at["seconds"] / base["seconds"], 3)


def reached_cell(at: Mapping[str, Any]) -> str:
    """``seconds (times sparrow's)``; a > before seconds in which the target was not met."""
    more = "" if at["reached"] else "> "
    ratio = f" ({more}{at['ratio']:.1f}x)" if "ratio" in at else ""
    return f"{more}{at['seconds']:.1f}{ratio}"


def best_stage(curve: Sequence[Stage], measured: str) -> Stage:
    pick = min if measured == "log_loss" else max
    return pick(curve, key=lambda stage: stage[measured])


def envelope(curves: Sequence[Sequence[Stage]], measured: str) -> list[tuple[float, float]]:
    """(seconds, the best that any of the curves has shown by then), where it gets better."""
    pick = min if measured == "log_loss" else max
    out: list[tuple[float, float]] = []
    for stage in sorted((s for curve in curves for s in curve), key=lambda s: s["seconds"]):
        value = stage[measured]
        if not out or pick(value, out[-1][1]) != out[-1][1]:
            out.append((stage["seconds"], value))
    return out


def draw(path: Path, panels: Mapping[str, Mapping[str, Line]], ylabel: str) -> None:
    """Lines against seconds, a panel for each title; sparrow's are the thick ones."""
    plot = pyplot()
    if plot is None:
        return
    figure, row = plot.subplots(1, len(panels), figsize=(7.5 * len(panels), 5), squeeze=False)
    for axes, (title, lines) in zip(row[0], panels.items(), strict=True):
        for name, points in lines.items():
            width = 2.5 if name.startswith("sparrow") else 1.2
            axes.plot(*zip(*points, strict=True), label=name, linewidth=width)
        axes.set(xlabel="seconds, loading included", ylabel=ylabel, title=title)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_ylim(*_interesting(list(lines.values())))
        axes.grid(alpha=0.3)
        axes.legend()
    save(figure, path)


def _interesting(lines: Sequence[Line]) -> tuple[float, float]:
    """The part of the y axis where lines end: all last values, and some of the way there."""
    last = [line[-1][1] for line in lines]
    first = [line[0][1] for line in lines]
    down = first[0] > last[0]
    best, worst = (min(last), max(last)) if down else (max(last), min(last))
    way = abs((max(first) if down else min(first)) - best)
    room = max(2 * abs(worst - best), ZOOM * way)
    near, far = 0.05 * room, room
    return (best - near, best + far) if down else (best - far, best + near)


def pyplot() -> Any:
    """The drawing module of matplotlib, without a screen; None if it is not installed."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plot

    return plot


def save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, bbox_inches="tight")


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


def run_all(
    script: str, jobs: Sequence[Config], rounds: int, console: Console, keys: Sequence[str]
) -> list[Run]:
    """Every job in a process of its own, round by round; a run has those keys of its job."""
    named = {", ".join(str(job[key]) for key in keys): job for job in jobs}
    runs = []
    with console.status("") as status:
        for number, name in measure.interleave(list(named), rounds):
            status.update(f"round {number} of {rounds}: {name}")
            os.sync()  # what the one before left to be written is not this one's to wait for
            load = round(os.getloadavg()[0], 2)
            run = measure.run_child([script, "--child", json.dumps(named[name])])
            of = {key: named[name][key] for key in keys}
            runs.append({**of, "round": number, "load_before": load, **run})
    return runs


def context(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    return {"command": measure.command(), "machine": measure.machine(packages)}


def short(rows: int) -> str:
    """300000 -> 300k, 1000000 -> 1m."""
    for unit, name in ((10**6, "m"), (10**3, "k")):
        if rows >= unit and rows % unit == 0:
            return f"{rows // unit}{name}"
    return str(rows)
