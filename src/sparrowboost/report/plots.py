"""Pictures of a training: scores, advantages, features.

matplotlib draws them: ``pip install 'sparrowboost[plot]'``. Each function takes `ax=`, draws into
it or into a new figure, and returns it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sparrowboost.model.importance import feature_importances
from sparrowboost.model.metrics import METRICS, Metric, metric_named
from sparrowboost.model.model import Model
from sparrowboost.report.history import History
from sparrowboost.report.style import (
    BLUE,
    GREY,
    ORANGE,
    Floats,
    add_legend,
    check_history,
    need_trees,
    new_axes,
    shorten,
    tidy,
    training_time,
)
from sparrowboost.runtime.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAR_HEIGHT = 0.24  # inches per bar, of a new figure
RANKING = {name for name, metric in METRICS.items() if metric.ranks}
MAX_LINES = 40  # samples marked by lines across the picture; more would hide it, and are short


def plot_training(history: History, ax: Axes | None = None) -> Axes:
    """Draw validation scores against training time: log loss, and what was computed beside it.

    Of numbers, the metric that decides, and R2.

    Parameters
    ----------
    history : History
        Of a training with ``valid=``. It has the AUC if ``eval_metric="auc"``, and the average
        precision if that is the metric.
    ax : Axes, optional
        These, and R2, have their own axis on the right.

    Returns
    -------
    Axes
    """
    check_history(history)
    if not history.scores:
        raise DataError("the history has no validation scores; train with valid=...")
    time, unit = training_time(history.trees["seconds"])
    ax = new_axes(ax)
    first, *others = _drawn(history)
    title = "log loss (nats per row)" if first == "log_loss" else metric_named(first).title
    trees = history.trees["n_trees"]
    _score(ax, time, history.scores[first], trees, title, BLUE, metric_named(first))
    for name in others:
        right = ax.twinx()
        _score(
            right,
            time,
            history.scores[name],
            trees,
            metric_named(name).title,
            ORANGE,
            metric_named(name),
        )
        right.spines[["top", "left"]].set_visible(False)
    ax.set_xlabel(f"training time ({unit})")
    ax.set_xlim(left=0)
    tidy(ax)
    return ax


def _drawn(history: History) -> list[str]:
    """The scores to draw: the first on the left."""
    if "log_loss" in history.scores:
        return ["log_loss", *(RANKING & set(history.scores))]
    first = history.eval_metric or "rmse"
    undefined = np.isnan(history.scores["r2"]).all()  # all labels are the same
    return [first] if first == "r2" or undefined else [first, "r2"]


def _score(
    ax: Axes,
    time: Floats,
    score: Sequence[float],
    trees: Sequence[int],
    label: str,
    color: str,
    metric: Metric,
) -> None:
    """A line in the colour of its axis, with its best value and the tree that reached it."""
    ax.plot(time, score, color=color, lw=1.6)
    best = metric.best(score)
    ax.plot(time[best], score[best], "o", color=color, ms=5)
    falls = metric.lower_is_better
    ax.annotate(
        f"{score[best]:.4g} at tree {trees[best]}",
        (time[best], score[best]),
        xytext=(0, -6 if falls else 6),  # beyond the best value there is no line
        textcoords="offset points",
        ha="right" if time[best] > time[-1] / 2 else "left",
        va="top" if falls else "bottom",
        color=color,
        fontsize="small",
    )
    ax.set_ylabel(label, color=color)
    ax.tick_params(axis="y", colors=color)
    ax.margins(y=0.14)


def plot_importance(
    model: Model, ax: Axes | None = None, max_features: int = 20, kind: str = "gain"
) -> Axes:
    """Draw the most important features as bars.

    Parameters
    ----------
    model : Model
    ax : Axes, optional
    max_features : int
        Maximum number of bars. Features that no split uses have none.
    kind : {"gain", "splits"}
        See `sparrowboost.feature_importances`.

    Returns
    -------
    Axes
    """
    share = feature_importances(model, kind)
    used = int(np.count_nonzero(share))
    if not used:
        raise DataError("the model has no splits, so there are no importances to draw.")
    top = np.argsort(-share, kind="stable")[: min(used, max_features)]
    ax = new_axes(ax, height=0.8 + BAR_HEIGHT * len(top))
    names = [shorten(model.feature_names[j]) for j in top]
    bars = ax.barh(range(len(top)), share[top], color=BLUE, height=0.72)
    labels = [f"{s:.1%}" if s >= 0.0005 else "<0.1%" for s in share[top]]
    ax.bar_label(bars, labels, padding=3, fontsize="small")
    # Names are shown literally: a dollar sign does not start a formula.
    ax.set_yticks(range(len(top)), names, parse_math=False)
    ax.set_ylim(len(top) - 0.4, -0.6)
    ax.set_xlim(0, 1.14 * share[top[0]])
    what = "share of the loss reduction" if kind == "gain" else "share of the splits"
    of = f" (top {len(top)} of {len(share)} features)" if len(top) < len(share) else ""
    ax.set_xlabel(what + of)
    ax.set_xticks([])
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "bottom"]].set_visible(False)
    return ax


def plot_edges(history: History, ax: Axes | None = None) -> Axes:
    """Draw the advantage of each tree's first split: as measured, and its certified lower bound.

    Parameters
    ----------
    history : History
    ax : Axes, optional

    Returns
    -------
    Axes
    """
    need_trees(history)
    trees = history.trees
    ax = new_axes(ax)
    n = trees["n_trees"]
    size = 4.0 if len(n) <= 200 else 2.5
    ax.plot(n, trees["gamma"], "o", color=ORANGE, ms=size, mew=0, label="measured")
    ax.plot(n, trees["gamma_certified"], color=BLUE, lw=1.4, label="certified")
    after = history.samples["n_trees"][1:]
    top = 1.0 if len(after) <= MAX_LINES else 0.05
    for k, n_trees in enumerate(after):
        label = "" if k else "new sample"
        ax.axvline(n_trees + 0.5, 0, top, color=GREY, lw=0.8, alpha=0.6, zorder=0, label=label)
    ax.set_ylim(bottom=0)
    ax.set_xlim(0, 1.02 * n[-1])
    ax.set_xlabel("tree")
    ax.set_ylabel("advantage γ of the first split")
    add_legend(ax)
    tidy(ax)
    return ax
