"""The picture of the draws: whether they and the proofs of splits are sound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sparrowboost.learner.soundness import DEVIATIONS, MOST_DEVIATION, half_names
from sparrowboost.report.history import LOOKS, History
from sparrowboost.report.style import (
    BLUE,
    GREEN,
    GREY,
    HEIGHT,
    ORANGE,
    Floats,
    add_legend,
    axes_below,
    check_history,
    new_axes,
    tidy,
)
from sparrowboost.runtime.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTS = (0.4, 0.2, 0.2)  # shares of the height for advantages, loss reductions and deviations
GAP = 0.1
LIKELY = 2.0  # standard deviations, which one draw in 20 exceeds
RATIOS = (-0.3, 1.3)  # range shown of the loss reduction on fresh rows over that on trees' own
FAR = 6.0  # standard deviations; where rows weigh next to nothing, -100 is harmless
MANY = 40  # draws: with more, dots are smaller


def plot_draws(history: History, ax: Axes | None = None) -> Axes:
    """Draw whether draws and proofs are sound: what each new sample shows about earlier trees.

    Top: the mean advantage of these trees' first splits: certified, as measured when they were
    found, and on the new sample's rows, which were not used to grow them. Middle: the trees' loss
    reduction on the new rows, divided by that on the rows they were grown on. Bottom: the number of
    rows of each label that the draw represents, minus the actual number, in standard deviations (of
    numbers, rows of low and of high labels).
    Values beyond the scale are drawn at its edge. Where no sample looks back, only the bottom part
    is drawn.

    Parameters
    ----------
    history : History
        Of a training that drew samples.
    ax : Axes, optional
        Divided into three; the lower parts are ``ax.child_axes``.

    Returns
    -------
    Axes
    """
    check_history(history)
    if not has_draws(history):
        raise DataError(
            "the history has no draws to check: all rows were in memory, or an older version "
            "of Sparrow wrote it."
        )
    of = {name: np.array(history.samples[name], np.float64) for name in (*DEVIATIONS, *LOOKS)}
    draw = np.arange(1, len(of["own"]) + 1)
    dots = {"ls": "", "mew": 0, "ms": 5.0 if len(draw) <= MANY else 2.5}
    ax = new_axes(ax, height=5.4 if has_looks(history) else HEIGHT)
    parts = [ax]
    if has_looks(history):
        parts += axes_below(ax, PARTS, GAP)
        _advantages(ax, draw, of, dots)
        _loss_reductions(parts[1], draw, of, dots)
    rows = parts[-1]
    _deviations(rows, draw, of, dots, half_names(history.n_classes))
    for part in parts:
        tidy(part)
        add_legend(part, handlelength=1.0)
        part.tick_params(labelbottom=part is rows)
    ax.set_xlim(0.5, len(draw) + 0.5)
    ax.xaxis.get_major_locator().set_params(integer=True)
    rows.set_xlabel("sample")
    return ax


def has_draws(history: History) -> bool:
    """Whether samples were drawn and their deviations recorded."""
    known = None not in history.samples[DEVIATIONS[0]]
    return known and any(history.samples["strata"])


def has_looks(history: History) -> bool:
    """Whether some sample looks back at the trees before it."""
    return any(trees is not None for trees in history.samples["look_trees"])


def _advantages(ax: Axes, draw: Any, of: dict[str, Floats], dots: dict[str, Any]) -> None:
    """The advantage of first splits: measured, on fresh rows, certified."""
    ax.plot(draw, of["gamma"], "o", color=ORANGE, label="measured", **dots)
    ax.plot(draw, of["gamma_fresh"], "D", color=GREEN, label="on fresh rows", **dots)
    ax.plot(draw, of["gamma_certified"], "s-", color=BLUE, lw=1.4, ms=2.5, label="certified")
    edges = np.array([of["gamma"], of["gamma_fresh"], of["gamma_certified"]])
    ax.set_ylim(1.1 * min(np.nanmin(edges), 0.0), 1.1 * np.nanmax(edges) or 1.0)
    ax.set_ylabel("advantage γ")


def _loss_reductions(ax: Axes, draw: Any, of: dict[str, Floats], dots: dict[str, Any]) -> None:
    """The loss reduction on fresh rows, over that on the rows that trees were grown on."""
    own = np.where(of["own"] > 0, of["own"], np.nan)
    ratio, error = of["fresh"] / own, LIKELY * of["error"] / own
    for level in (0, 1):
        ax.axhline(level, color=GREY, lw=0.8, zorder=1)
    ax.errorbar(draw, ratio, error, fmt="none", ecolor=GREEN, elinewidth=1.0)
    shown, words = np.clip(ratio, *RATIOS), "loss reduction"
    ax.plot(draw, shown, "D", color=GREEN, label=words, clip_on=False, **dots)
    ax.set_ylim(*RATIOS)
    ax.set_yticks([0, 0.5, 1])
    ax.set_ylabel("fresh / own")


def _deviations(
    ax: Axes, draw: Any, of: dict[str, Floats], dots: dict[str, Any], names: tuple[str, str]
) -> None:
    """The number of rows of each label that draws represent, minus the actual number."""
    for level in (-LIKELY, LIKELY):
        ax.axhline(level, color=GREY, lw=0.8, ls="--", zorder=1)
    for name, marker, color, words in zip(DEVIATIONS, "v^", (BLUE, ORANGE), names, strict=True):
        ax.plot(draw, np.clip(of[name], -FAR, FAR), marker, color=color, label=words, **dots)
    most = max(np.abs(line.get_ydata()).max(initial=0) for line in ax.lines)
    ax.set_ylim(-1.25 * most, 1.25 * most)
    step = LIKELY if most < MOST_DEVIATION else MOST_DEVIATION
    ax.set_yticks([-step, 0, step])
    ax.set_ylabel("error (σ)")
