"""Curves of a run, test measures against seconds: when one meets a target, when it is done.

stage   {"seconds", "trees", "auc", "average_precision", "log_loss", "exponential_loss"}
curve   one stage after another
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

ZOOM = 0.2  # of the way from the first to the best value, a picture shows at least so much

CONVERGED = 1e-3  # within this part of the lowest log loss, a run has converged
LOWER_IS_BETTER = ("log_loss", "exponential_loss")

Stage = dict[str, float]
Line = Sequence[tuple[float, float]]  # (seconds, value)


def seconds_to(curve: Sequence[Stage], measured: str, target: float) -> float | None:
    """When a curve meets its target, on the straight line between two stages; None if never."""
    sign = -1 if measured in LOWER_IS_BETTER else 1
    before: Stage | None = None
    for stage in curve:
        if sign * stage[measured] >= sign * target:
            if before is None:
                return stage["seconds"]
            share = (target - before[measured]) / (stage[measured] - before[measured])
            return before["seconds"] + share * (stage["seconds"] - before["seconds"])
        before = stage
    return None


def converged(curve: Sequence[Stage], measured: str = "log_loss") -> float:
    """Seconds after which a measure is within a thousandth of the best that there will be."""
    seconds = seconds_to(curve, measured, nearly_best(curve, measured))
    assert seconds is not None  # the best stage itself is within
    return seconds


def nearly_best(curve: Sequence[Stage], measured: str, short: float = CONVERGED) -> float:
    """A little short of the best value of a curve: the last bit may take as long as the rest.

    Examples
    --------
    >>> nearly_best([{"auc": 0.5}, {"auc": 0.75}], "auc")
    0.74925
    """
    sign = 1 if measured in LOWER_IS_BETTER else -1
    return best_stage(curve, measured)[measured] * (1 + sign * short)


def best_stage(curve: Sequence[Stage], measured: str) -> Stage:
    pick = min if measured in LOWER_IS_BETTER else max
    return pick(curve, key=lambda stage: stage[measured])


def envelope(curves: Sequence[Sequence[Stage]], measured: str) -> list[tuple[float, float]]:
    """(seconds, the best that any of the curves has shown by then), where it gets better."""
    pick = min if measured in LOWER_IS_BETTER else max
    out: list[tuple[float, float]] = []
    for stage in sorted((s for curve in curves for s in curve), key=lambda s: s["seconds"]):
        value = stage[measured]
        if not out or pick(value, out[-1][1]) != out[-1][1]:
            out.append((stage["seconds"], value))
    return out


def interesting(lines: Sequence[Line]) -> tuple[float, float]:
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
