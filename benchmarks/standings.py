"""Who stands where: the results of the bench, read as targets and rows of a table.

The target of a task is the same for all contestants and all memory caps. Where the task names no
AUC, it is the lowest log loss of a peer, and a thousandth more: of LightGBM in memory if it ran
anywhere, else of the next one in REFERENCES.

A contestant stands for the best of its learning rates: the quickest to the target, and for all else
that with the lowest log loss.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import curves
import measure
from contestants import CONTESTANTS, SIZED
from sparrowboost.runtime.memory import parse_size
from tasks import TASKS

RESULTS = Path(__file__).parent / "results" / "bench"
REFERENCES = ("lightgbm", "xgboost", "histgb", "lightgbm-seq", "lightgbm-sub", "xgboost-ext")

Payload = dict[str, Any]
Run = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """A test measure to be reached."""

    measured: str  # "auc" or "log_loss"
    value: float
    source: str  # whose it is

    def words(self) -> str:
        if self.measured == "auc":
            return f"test AUC {self.value:.3f}"
        return f"test log loss {loss_cell(self.value)}, {self.source}"


@dataclass(frozen=True)
class Reached:
    """Seconds to something; those of trying, if it was not reached."""

    seconds: float
    reached: bool = True
    stopped: bool = False  # before it could be: the seconds are a lower bound


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contestant under one memory cap, the best of its rates.

    `failed` says why there is no curve, and is empty if there is one. `to_target` is None where
    there is no target, or nothing to compare with it.
    """

    contestant: str
    failed: str = ""
    to_target: Reached | None = None
    best: Run | None = None  # the run with the lowest log loss

    @property
    def stage(self) -> dict[str, float] | None:
        return curves.best_stage(self.best["curve"], "log_loss") if self.best else None


def read_payload(path: Path) -> Payload:
    """One file of results."""
    payload = json.loads(path.read_text())
    for run in payload["runs"]:
        if "curve" in run:
            columns = run["curve"]
            run["curve"] = [
                dict(zip(columns, values, strict=True))
                for values in zip(*columns.values(), strict=True)
            ]
    return payload


def write_payload(path: Path, payload: Payload) -> None:
    """A line for each run, and a curve as columns: a quarter of what a list of stages takes."""
    lines = []
    for run in payload["runs"]:
        curve = run.get("curve")
        columns = {key: [stage[key] for stage in curve] for key in curve[0]} if curve else None
        lines.append("  " + json.dumps({**run, "curve": columns} if curve else run))
    head = json.dumps({**payload, "runs": []}, indent=1)
    body = "[\n" + ",\n".join(lines) + "\n ]"
    measure.write_text(path, head.replace('"runs": []', f'"runs": {body}') + "\n")


def read_results(folder: Path = RESULTS) -> dict[str, list[Payload]]:
    """By task, one payload for each memory cap, the smallest cap first."""
    found: dict[str, list[Payload]] = {name: [] for name in TASKS}
    for path in sorted(folder.glob("*.json")):
        payload = read_payload(path)
        found[payload["task"]].append(payload)
    for payloads in found.values():
        payloads.sort(key=lambda payload: cap_bytes(payload["memory"]))
    return found


def cap_bytes(name: str) -> float:
    return float("inf") if name == "none" else parse_size(name)


def kind(contestant: str) -> str:
    """lightgbm-sub-1m -> lightgbm-sub."""
    return next((name for name in SIZED if contestant.startswith(name)), contestant)


def find_target(payloads: Sequence[Payload]) -> Target | None:
    """Of a task, from its results under all caps."""
    for payload in payloads:
        if payload["target_auc"] is not None:
            return Target("auc", payload["target_auc"], "")
    for reference in REFERENCES:
        losses = {
            curves.best_stage(run["curve"], "log_loss")["log_loss"]: run["contestant"]
            for payload in payloads
            for run in payload["runs"]
            if kind(run["contestant"]) == reference and "curve" in run
        }
        if losses:
            lowest = min(losses)
            value = lowest * (1 + curves.CONVERGED)
            return Target("log_loss", value, f"the lowest of {losses[lowest]} and 0.1 %")
    return None


def to_target(runs: Sequence[Run], target: Target) -> Reached:
    """The quickest of the rates; where none gets there, the seconds for which all have tried."""
    times = [curves.seconds_to(run["curve"], target.measured, target.value) for run in runs]
    there = [seconds for seconds in times if seconds is not None]
    if there:
        return Reached(min(there))
    stopped = [run["seconds"] for run in runs if run["status"] == "stopped"]
    if stopped:
        return Reached(min(stopped), reached=False, stopped=True)
    return Reached(min(run["seconds"] for run in runs), reached=False)


def as_good(run: Run, payload: Payload, measured: str) -> tuple[float, float | None]:
    """Seconds after which a run is nearly as good as it gets, and after which Sparrow is that."""
    value = curves.nearly_best(run["curve"], measured)
    times = [
        curves.seconds_to(other["curve"], measured, value)
        for other in payload["runs"]
        if other["contestant"] == "sparrow" and "curve" in other
    ]
    ours = min((seconds for seconds in times if seconds is not None), default=None)
    return curves.converged(run["curve"], measured), ours


def failure(runs: Sequence[Run]) -> str:
    """Why no rate gave a model."""
    statuses = {run["status"] for run in runs}
    if "oom" in statuses:
        return "OOM"
    if "stopped" in statuses:
        return f"> {seconds_text(min(r['seconds'] for r in runs if r['status'] == 'stopped'))}"
    return next(run["error"] for run in runs)


def rows_of(payload: Payload, target: Target | None) -> list[Row]:
    """All contestants of a file, in the order of their names' list."""
    out = []
    for name in dict.fromkeys(run["contestant"] for run in payload["runs"]):
        runs = [run for run in payload["runs"] if run["contestant"] == name]
        scored = [run for run in runs if "curve" in run]
        if not scored:
            out.append(Row(contestant=name, failed=failure(runs)))
            continue
        best = min(scored, key=lambda run: curves.best_stage(run["curve"], "log_loss")["log_loss"])
        reached = to_target(scored, target) if target else None
        out.append(Row(contestant=name, to_target=reached, best=best))
    order = list(CONTESTANTS)
    return sorted(out, key=lambda row: order.index(kind(row.contestant)))  # sizes as they came


def sparrows(rows: Sequence[Row]) -> Reached | None:
    return next((row.to_target for row in rows if row.contestant == "sparrow"), None)


def memory_text(payload: Payload) -> str:
    if payload["memory"] == "none":
        return "no cap"
    return payload["memory"] + ("" if payload["cap_enforced"] else " (not enforced)")


def seconds_text(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds < 100 else f"{seconds:,.0f}"


def loss_cell(loss: float) -> str:
    """Five digits that count: with rare positives, all losses are small."""
    return f"{loss:#.5g}"
