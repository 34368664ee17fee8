"""What the project set out to reach, against what was measured.

    speed    Sparrow is so many times as fast as the quickest of some peers, loading included
    loss     its lowest log loss is not above the lowest of all peers by more than a thousandth
    reading  it is at the target in four times the seconds of a bare read of the file

Speed is told twice. At the target of the task, of those that reach it. And each peer on its own
ground, where it is as good as it gets: of these, the one against whom Sparrow is the slowest. Where
nobody reaches the target, that second number is held against the goal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import curves
from readings import NOT_MEASURED, markdown
from standings import (
    Payload,
    Row,
    Target,
    as_good,
    find_target,
    kind,
    memory_text,
    rows_of,
    sparrows,
)

MORE_LOSS = curves.CONVERGED
TIMES_READING = 4.0


@dataclass(frozen=True)
class Goal:
    """To be so many times as fast as peers, under a memory cap; theirs may be another."""

    task: str
    memory: str
    peers: tuple[str, ...]
    times: float
    theirs: str | None = None


GOALS = (
    Goal("table10m", "1GB", ("xgboost-ext", "xgboost-ext-grad"), 30),
    Goal("table50m", "1GB", ("xgboost-ext", "xgboost-ext-grad"), 50, theirs="3GB"),
    Goal("table10m", "none", ("lightgbm", "xgboost"), 8),
    Goal("table10m-31", "none", ("lightgbm", "xgboost"), 4),
    Goal("splice", "none", ("lightgbm",), 30),
    Goal("table10m", "1GB", ("lightgbm-sub", "lightgbm-rare"), 3),
    Goal("splice", "none", ("lightgbm-sub", "lightgbm-rare"), 3),
)

Named = tuple[float, str]  # how many times as fast, as whom


def yes(met: bool) -> str:
    return "yes" if met else "**no**"


def peers_of(goal: Goal, payload: Payload, target: Target | None) -> list[Row]:
    return [row for row in rows_of(payload, target) if kind(row.contestant) in goal.peers]


def at_target(goal: Goal, results: Mapping[str, Sequence[Payload]]) -> Named | None:
    """Against the quickest peer that reaches the task's target; None if nobody does."""
    ours, theirs = of_goal(goal, results)
    target = find_target(results[goal.task])
    reached = [
        (row.to_target.seconds, row.contestant)
        for row in peers_of(goal, theirs, target)
        if row.to_target and row.to_target.reached
    ]
    base = sparrows(rows_of(ours, target))
    if not reached or base is None or not base.reached:
        return None
    seconds, name = min(reached)
    return seconds / base.seconds, name


def on_own_ground(goal: Goal, results: Mapping[str, Sequence[Payload]]) -> Named | None:
    """Against the peer that does best where it is as good as it gets; 0 times: better than ours."""
    ours, theirs = of_goal(goal, results)
    target = find_target(results[goal.task])
    measured = target.measured if target else "log_loss"
    found = []
    for row in peers_of(goal, theirs, target):
        if row.best is not None:
            own, sparrow = as_good(row.best, ours, measured)
            found.append((0.0 if sparrow is None else own / sparrow, row.contestant))
    return min(found, default=None)


def of_goal(goal: Goal, results: Mapping[str, Sequence[Payload]]) -> tuple[Payload, Payload]:
    """Sparrow's results and the peers'."""
    by_memory = {payload["memory"]: payload for payload in results[goal.task]}
    return by_memory[goal.memory], by_memory[goal.theirs or goal.memory]


def speed_table(results: Mapping[str, Sequence[Payload]]) -> str:
    lines = []
    for goal in GOALS:
        caps = {payload["memory"] for payload in results[goal.task]}
        if not {goal.memory, goal.theirs or goal.memory} <= caps:
            continue
        target, own = at_target(goal, results), on_own_ground(goal, results)
        held = target or own
        if held is None:
            continue
        cap = memory_text(of_goal(goal, results)[0])
        who = ", ".join(goal.peers) + (f" with {goal.theirs}" if goal.theirs else "")
        lines.append(
            [
                f"{goal.task}, {cap}, against {who}",
                f"{goal.times:g}x",
                named(target),
                named(own),
                yes(held[0] >= goal.times),
            ]
        )
    header = ["how many times as fast", "goal", "at the target", "each at its best", "reached"]
    return markdown(header, lines)


def named(pair: Named | None) -> str:
    if pair is None:
        return "nobody gets there"
    return f"{pair[0]:.1f}x ({pair[1]})" if pair[0] else f"not as good ({pair[1]})"


def loss_table(results: Mapping[str, Sequence[Payload]]) -> str:
    """Lowest log loss, and seconds against a bare read: a line for each task and cap."""
    lines = []
    for name, payloads in results.items():
        target = find_target(payloads)
        everyone = [row for payload in payloads for row in rows_of(payload, target)]
        others = [
            (row.stage["log_loss"], row.contestant)
            for row in everyone
            if row.stage and not row.contestant.startswith("sparrow")
        ]
        for payload in payloads:
            ours = [row for row in rows_of(payload, target) if row.contestant == "sparrow"]
            if not ours or not ours[0].stage:
                continue
            loss = read = ["", ""]
            if others:
                lowest, who = min(others)
                more = ours[0].stage["log_loss"] / lowest - 1
                loss = [f"{100 * more:+.2f} % ({who})", yes(more <= MORE_LOSS)]
            if ours[0].to_target and ours[0].to_target.reached:
                times = ours[0].to_target.seconds / payload["read_seconds"]
                read = [f"{times:.1f}x", yes(times <= TIMES_READING)]
            lines.append([name, memory_text(payload), *loss, *read])
    header = ["task", "memory", f"log loss, at most +{100 * MORE_LOSS:g} %", "reached",
              f"to the target, at most {TIMES_READING:g}x a bare read", "reached"]  # fmt: skip
    return markdown(header, lines)


def block(results: Mapping[str, Sequence[Payload]]) -> str:
    if not any(results.values()):
        return NOT_MEASURED
    return f"{speed_table(results)}\n\n{loss_table(results)}"
