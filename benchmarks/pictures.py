"""Pictures of the bench: test measures against seconds, a row of panels for each memory cap."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import curves
from contestants import SIZED
from standings import Payload, Target, kind, memory_text, rows_of

# Colors that stay apart for everyone (Okabe and Ito), one for each way to be fed; line styles tell
# the variants of it.
STYLES: dict[str, tuple[str, str]] = {
    "sparrow": ("#D55E00", "-"),
    "sparrow-paper": ("#D55E00", "--"),
    "xgboost": ("#000000", "-"),
    "xgboost-ext": ("#000000", "--"),
    "xgboost-ext-grad": ("#000000", ":"),
    "lightgbm": ("#0072B2", "-"),
    "lightgbm-goss": ("#0072B2", "--"),
    "lightgbm-seq": ("#0072B2", ":"),
    "lightgbm-sub": ("#E69F00", "-"),
    "lightgbm-rare": ("#009E73", "-"),
    "histgb": ("#CC79A7", "-"),
}
SIZE_STYLES = ("-", "--", ":", "-.")  # of a first, second, ... size
PANELS = {"auc": "test AUC", "log_loss": "test log loss"}
BEFORE = 0.8  # of the seconds at which the first curve comes into view, where the axis begins
TICKS = (1, 2, 5)  # of a decade of seconds


def draw(path: Path, payloads: Sequence[Payload], target: Target | None) -> None:
    """Both measures against seconds, and the target as a line."""
    plot = curves.pyplot()
    if plot is None:
        return
    size = (6 * len(PANELS) + 2, 4.2 * len(payloads))
    figure, grid = plot.subplots(
        len(payloads), len(PANELS), figsize=size, squeeze=False, layout="constrained"
    )
    for axes, payload in zip(grid, payloads, strict=True):
        for panel, (measured, words) in zip(axes, PANELS.items(), strict=True):
            draw_panel(panel, payload, measured)
            if target is not None and target.measured == measured:
                panel.axhline(target.value, color="gray", linewidth=0.8, label="target")
            panel.set(ylabel=words, title=f"{payload['task']}, {memory_text(payload)}")
        named = {}
        for panel in axes:
            handles, labels = panel.get_legend_handles_labels()
            named |= dict(zip(labels, handles, strict=True))
        place = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "frameon": False}
        axes[-1].legend(named.values(), named, **place)
    curves.save(figure, path)
    plot.close(figure)


def draw_panel(panel: Any, payload: Payload, measured: str) -> None:
    """Of each contestant, the best that any of its rates has shown by then."""
    ended, stopped = [], []
    sizes = dict.fromkeys(SIZED, 0)
    for row in rows_of(payload, None):
        if row.best is None:
            continue
        runs = [run for run in payload["runs"] if run["contestant"] == row.contestant]
        of = [run["curve"] for run in runs if "curve" in run]
        points = curves.envelope(of, measured)
        end = max(curve[-1]["seconds"] for curve in of)
        points.append((end, points[-1][1]))  # it went on, and got no better
        color, style = STYLES[kind(row.contestant)]
        if kind(row.contestant) in SIZED:
            style = SIZE_STYLES[sizes[kind(row.contestant)] % len(SIZE_STYLES)]
            sizes[kind(row.contestant)] += 1
        width, order = (2.6, 3) if row.contestant.startswith("sparrow") else (1.5, 2)
        look = {"color": color, "linestyle": style, "linewidth": width, "zorder": order}
        panel.plot(*zip(*points, strict=True), label=row.contestant, **look)
        (stopped if row.best["status"] == "stopped" else ended).append(points)
    panel.set_xscale("log")
    panel.xaxis.get_major_locator().set_params(subs=TICKS)
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_formatter("")
    panel.set_xlabel("seconds, loading included")
    panel.grid(alpha=0.3)
    if ended or stopped:  # where those end that were not stopped on their way
        low, high = curves.interesting(ended or stopped)
        panel.set_ylim(low, high)
        inside = [x for points in (*ended, *stopped) for x, y in points if low <= y <= high]
        if inside:  # what is before is above or below
            panel.set_xlim(left=BEFORE * min(inside))
