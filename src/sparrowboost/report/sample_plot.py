"""The picture of the sample: how much of it still counts, and where the data's weight is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sparrowboost.report.history import History
from sparrowboost.report.style import (
    BLUE,
    GREEN,
    GREY,
    HEIGHT,
    ORANGE,
    PURPLE,
    Floats,
    add_legend,
    axes_below,
    need_trees,
    new_axes,
    tidy,
    time_unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UPPER = 0.46  # share of the height for n_eff where strata are below
GAP = 0.14
LEVELS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0)  # bounds of a stratum's share, one colour each
MIN_SHARE = 0.005  # of the weight, in some draw: lighter strata at either end are not shown
MAX_TICKS = 7  # of strata
MAX_COLUMNS = 200  # draws whose strata are shown: more would be thinner than a pixel

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

REASONS = {  # why a sample was replaced: marker, colour and words
    "n_eff": ("o", ORANGE, "n_eff fell"),
    "rules": ("s", GREEN, "enough splits"),
    "no split stands out": ("^", PURPLE, "no split"),
    "patience": ("D", GREY, "no improvement"),
}


def plot_sample(history: History, ax: Axes | None = None) -> Axes:
    """Draw how worn the sample was, and how the data's weight was distributed over the strata.

    Top: the effective share of the sample's rows, n_eff / n; each new sample is marked with its
    reason. Bottom: at each draw, each stratum's share of the weight of all rows. Where the sample
    is all rows there are no strata, and only the top part is drawn.

    Parameters
    ----------
    history : History
    ax : Axes, optional
        Divided into two; the bottom part is ``ax.child_axes[0]``.

    Returns
    -------
    Axes
    """
    need_trees(history)
    trees, samples = history.trees, history.samples
    ax = new_axes(ax, height=5.0 if any(samples["strata"]) else HEIGHT)
    seconds = [*trees["seconds"], *samples["seconds"]]
    scale, unit = time_unit(max(seconds))
    drawn = np.array(samples["seconds"]) / scale
    fresh = np.array(samples["n_eff"]) / np.array(samples["rows"])
    time = np.array(trees["seconds"]) / scale
    share = np.array(trees["n_eff"]) / np.array(trees["sample_rows"])
    # A tree belongs to the last sample that was put in use before it.
    of = np.searchsorted(samples["n_trees"], trees["n_trees"], side="left") - 1
    for k in range(len(drawn)):
        mine = of == k
        line = np.append(drawn[k], time[mine]), np.append(fresh[k], share[mine])
        ax.plot(*line, color=BLUE, lw=1.4)
    why = np.array(samples["reason"])
    ax.plot([], [], " ", label="new sample:")
    for reason, (marker, color, words) in REASONS.items():
        if (why == reason).any():
            ax.plot(
                drawn[why == reason], fresh[why == reason], marker, color=color, ms=5, label=words
            )
    end = max(seconds) / scale
    ax.set_xlim(0, end)
    ax.set_ylim(0, 1.05)
    ax.set_ylabel("n_eff / n")
    ax.set_xlabel(f"training time ({unit})")
    tidy(ax)
    if len(drawn) > 1:
        add_legend(ax, handlelength=1.0)
    if any(samples["strata"]):
        _strata(ax, np.append(drawn, end), samples["strata"])
    return ax


def _strata(ax: Axes, edges: Floats, strata: Sequence[dict[int, float]]) -> None:
    """Below `ax`: each stratum's share of the weight at each draw. `edges` are the draws' times."""
    from matplotlib.colors import BoundaryNorm, ListedColormap, to_rgba

    step = -(-len(strata) // MAX_COLUMNS)
    strata, edges = strata[::step], np.append(edges[:-1:step], edges[-1])
    every = range(min(set().union(*strata)), max(set().union(*strata)) + 1)
    weight = np.array([[of.get(k, 0.0) for of in strata] for k in every])  # (strata, draws)
    share = weight / np.maximum(weight.sum(0), np.finfo(float).tiny)
    shown = np.flatnonzero(share.max(1) >= MIN_SHARE)
    share = share[shown[0] : shown[-1] + 1]
    power = every[0] + np.arange(shown[0], shown[-1] + 2)  # bounds of the strata

    (below,) = axes_below(ax, (UPPER, 1 - UPPER - GAP), GAP)
    # One colour of varying opacity suits any background.
    n = len(LEVELS) - 1
    colors = ListedColormap([to_rgba(BLUE, 0.08 + 0.92 * (k / (n - 1)) ** 1.4) for k in range(n)])
    mesh = below.pcolormesh(
        edges,
        power,
        np.ma.masked_equal(share, 0.0),
        cmap=colors,
        norm=BoundaryNorm(LEVELS, n),
        lw=0,
    )
    ticks = power[:: -(-len(power) // MAX_TICKS)]
    below.set_yticks(ticks, [f"2{str(k).translate(SUPERSCRIPTS)}" for k in ticks])
    below.set_ylabel("weight of a row")
    below.set_xlabel(ax.get_xlabel())
    below.spines[["top", "right"]].set_visible(False)
    ax.set_xlabel("")
    ax.tick_params(labelbottom=False)
    key = below.inset_axes((0.52, 1.09, 0.48, 0.06))
    bar = ax.figure.colorbar(mesh, cax=key, orientation="horizontal", spacing="uniform")
    bar.set_ticks(LEVELS[1:-1], labels=[f"{level:.0%}" for level in LEVELS[1:-1]])
    bar.outline.set_visible(False)
    bar.minorticks_off()
    key.tick_params(length=0, labeltop=True, labelbottom=False, pad=1, labelsize="small")
    key.set_ylabel(
        "share of the total weight ", rotation=0, ha="right", va="center", fontsize="small"
    )
