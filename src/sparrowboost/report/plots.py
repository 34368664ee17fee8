"""Pictures of a training. matplotlib draws them: ``pip install 'sparrowboost[plot]'``.

Each function takes `ax=`, draws into it or into a new figure, and returns it. The colours can be
told apart by everybody; what is told apart by colour differs in shape or place, too.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparrowboost.learner.soundness import DEVIATIONS, MOST_DEVIATION
from sparrowboost.model.importance import feature_importances
from sparrowboost.model.model import Model
from sparrowboost.report.history import LOOKS, History
from sparrowboost.runtime.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]

BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"  # Okabe and Ito's
GREY = "#8c8c8c"
WIDTH, HEIGHT = 6.0, 3.6  # inches, of a figure that nobody gave
BAR_HEIGHT = 0.24  # inches, of a figure of bars, for each
MAX_NAME = 28  # letters of a feature's name
UPPER = 0.46  # share of the height for n_eff where strata are below
GAP = 0.14
DRAW_PARTS = (0.4, 0.2, 0.2)  # of the height, for advantages, falls and deviations of draws
DRAW_GAP = 0.1
LIKELY = 2.0  # standard deviations, which one draw in 20 exceeds
RATIOS = (-0.3, 1.3)  # shown, of the fall of the loss on fresh rows to that on trees' own
FAR = 6.0  # standard deviations; where rows weigh next to nothing, -100 is no harm
LEVELS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0)  # of a stratum's share of the weight, told apart
MAX_RULES = 40  # lines across the picture: more would hide it, and become short
LEAST_SHARE = 0.005  # of the weight, in some draw: lighter strata at either end are not shown
MAX_TICKS = 7  # of strata
MAX_COLUMNS = 200  # draws whose strata are shown: more would be thinner than a pixel

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

REASONS = {  # marker, colour and words for why a sample was replaced
    "n_eff": ("o", ORANGE, "n_eff fell"),
    "rules": ("s", GREEN, "rules enough"),
    "no split stands out": ("^", PURPLE, "no split"),
    "patience": ("D", GREY, "no better"),
}


def plot_training(history: History, ax: Axes | None = None) -> Axes:
    """Scores of the validation data against time: log loss, and AUC if there is one.

    Parameters
    ----------
    history : History
        Of a training with ``valid=``. AUC is there with ``eval_metric="auc"``.
    ax : Axes, optional
        The AUC gets an axis of its own on the right of it.

    Returns
    -------
    Axes
    """
    if not history.scores:
        raise DataError("the history has no validation scores; train with valid=...")
    time, unit = _time(history.trees["seconds"])
    ax = _axes(ax)
    _score(ax, time, history.scores["log_loss"], "log loss (nats per row)", BLUE, np.argmin)
    if "auc" in history.scores:
        right = ax.twinx()
        _score(right, time, history.scores["auc"], "AUC", ORANGE, np.argmax)
        right.spines[["top", "left"]].set_visible(False)
    ax.set_xlabel(f"training time ({unit})")
    ax.set_xlim(left=0)
    _tidy(ax)
    return ax


def _score(
    ax: Axes, time: Floats, score: Sequence[float], label: str, color: str, best_of: Any
) -> None:
    """One line in the colour of its axis, and its best point with the tree that made it."""
    ax.plot(time, score, color=color, lw=1.6)
    best = int(best_of(score))
    ax.plot(time[best], score[best], "o", color=color, ms=5)
    falls = best_of is np.argmin
    ax.annotate(
        f"{score[best]:.4g} at tree {best + 1}",
        (time[best], score[best]),
        xytext=(0, -6 if falls else 6),  # on the far side of the best there is no line
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
    """The features that matter most, as bars.

    Parameters
    ----------
    model : Model
    ax : Axes, optional
    max_features : int
        Most bars. Features without a split have none.
    kind : {"gain", "splits"}
        See `sparrowboost.feature_importances`.

    Returns
    -------
    Axes
    """
    share = feature_importances(model, kind)
    used = int(np.count_nonzero(share))
    if not used:
        raise DataError("the model has no splits, so no feature matters; train it first.")
    top = np.argsort(-share, kind="stable")[: min(used, max_features)]
    ax = _axes(ax, height=0.8 + BAR_HEIGHT * len(top))
    names = [shorten(model.feature_names[j]) for j in top]
    bars = ax.barh(range(len(top)), share[top], color=BLUE, height=0.72)
    labels = [f"{s:.1%}" if s >= 0.0005 else "<0.1%" for s in share[top]]
    ax.bar_label(bars, labels, padding=3, fontsize="small")
    # A name is shown as it is: a dollar sign in it begins no formula.
    ax.set_yticks(range(len(top)), names, parse_math=False)
    ax.set_ylim(len(top) - 0.4, -0.6)
    ax.set_xlim(0, 1.14 * share[top[0]])
    what = "share of the loss removed" if kind == "gain" else "share of the splits"
    of = f", {len(top)} of {len(share)} features" if len(top) < len(share) else ""
    ax.set_xlabel(what + of)
    ax.set_xticks([])
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "bottom"]].set_visible(False)
    return ax


def plot_edges(history: History, ax: Axes | None = None) -> Axes:
    """The advantage over a coin of each tree's first split: measured, and what is certain of it.

    Parameters
    ----------
    history : History
    ax : Axes, optional

    Returns
    -------
    Axes
    """
    trees = history.trees
    _need_trees(history)
    ax = _axes(ax)
    n = trees["n_trees"]
    size = 4.0 if len(n) <= 200 else 2.5
    ax.plot(n, trees["gamma"], "o", color=ORANGE, ms=size, mew=0, label="measured")
    ax.plot(n, trees["gamma_certified"], color=BLUE, lw=1.4, label="certified")
    after = history.samples["n_trees"][1:]
    top = 1.0 if len(after) <= MAX_RULES else 0.05
    for k, n_trees in enumerate(after):
        label = "" if k else "new sample"
        ax.axvline(n_trees + 0.5, 0, top, color=GREY, lw=0.8, alpha=0.6, zorder=0, label=label)
    ax.set_ylim(bottom=0)
    ax.set_xlim(0, 1.02 * n[-1])
    ax.set_xlabel("tree")
    ax.set_ylabel("advantage γ of its first split")
    _legend(ax)
    _tidy(ax)
    return ax


def plot_sample(history: History, ax: Axes | None = None) -> Axes:
    """How worn the sample was, over time, and how the data's weight lay in the strata.

    Above: the effective share of the sample's rows, n_eff / n; each new sample is marked, with the
    reason for it. Below: of each draw, how much of the weight of all rows is in each stratum. There
    are no strata, and no part below, where the sample is all rows.

    Parameters
    ----------
    history : History
    ax : Axes, optional
        Shares its place with the part below, which is ``ax.child_axes[0]``.

    Returns
    -------
    Axes
    """
    _need_trees(history)
    trees, samples = history.trees, history.samples
    ax = _axes(ax, height=5.0 if any(samples["strata"]) else HEIGHT)
    seconds = [*trees["seconds"], *samples["seconds"]]
    scale, unit = _unit(max(seconds))
    drawn = np.array(samples["seconds"]) / scale
    fresh = np.array(samples["n_eff"]) / np.array(samples["rows"])
    time = np.array(trees["seconds"]) / scale
    share = np.array(trees["n_eff"]) / np.array(trees["sample_rows"])
    # A tree's event tells of the sample on which it was grown: the last one put in use before.
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
    _tidy(ax)
    if len(drawn) > 1:
        _legend(ax, handlelength=1.0)
    if any(samples["strata"]):
        _strata(ax, np.append(drawn, end), samples["strata"])
    return ax


def _strata(ax: Axes, edges: Floats, strata: Sequence[dict[int, float]]) -> None:
    """Below `ax`: how the weight of each draw lay in the strata. `edges` are the draws' times."""
    from matplotlib.colors import BoundaryNorm, ListedColormap, to_rgba

    step = -(-len(strata) // MAX_COLUMNS)
    strata, edges = strata[::step], np.append(edges[:-1:step], edges[-1])
    every = range(min(set().union(*strata)), max(set().union(*strata)) + 1)
    weight = np.array([[of.get(k, 0.0) for of in strata] for k in every])  # (strata, draws)
    share = weight / np.maximum(weight.sum(0), np.finfo(float).tiny)
    shown = np.flatnonzero(share.max(1) >= LEAST_SHARE)
    share = share[shown[0] : shown[-1] + 1]
    power = every[0] + np.arange(shown[0], shown[-1] + 2)  # where strata begin, and the last ends

    (below,) = _parts_below(ax, (UPPER, 1 - UPPER - GAP), GAP)
    # Of one colour, more or less see-through: it goes with any background.
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
    key.set_ylabel("share of all weight ", rotation=0, ha="right", va="center", fontsize="small")


def plot_draws(history: History, ax: Axes | None = None) -> Axes:
    """Whether draws and proofs are sound: what each new sample says of the trees before it.

    Above: the mean advantage of these trees' first splits: certified, as measured when they were
    found, and on the new sample's rows, which had no part in them. In the middle: how much the loss
    fell by these trees on the new rows, over how much on the rows that they were grown on. Below:
    how many rows of each label the draw stands for, less how many there are, in standard
    deviations. What is off the scale stands at its end. Where no sample looks back, there is only
    the part below.

    Parameters
    ----------
    history : History
        Of a training that drew samples.
    ax : Axes, optional
        Shares its place with the parts below, which are ``ax.child_axes``.

    Returns
    -------
    Axes
    """
    if not has_draws(history):
        raise DataError(
            "the history has no draws to be judged: all rows were in memory, or an older Sparrow "
            "wrote it."
        )
    of = {name: np.array(history.samples[name], np.float64) for name in (*DEVIATIONS, *LOOKS)}
    draw = np.arange(1, len(of["own"]) + 1)
    dots = {"ls": "", "mew": 0, "ms": 5.0 if len(draw) <= MAX_RULES else 2.5}
    ax = _axes(ax, height=5.4 if has_looks(history) else HEIGHT)
    parts = [ax]
    if has_looks(history):
        parts += _parts_below(ax, DRAW_PARTS, DRAW_GAP)
        _advantages(ax, draw, of, dots)
        _falls(parts[1], draw, of, dots)
    rows = parts[-1]
    _deviations(rows, draw, of, dots)
    for part in parts:
        _tidy(part)
        _legend(part, handlelength=1.0)
        part.tick_params(labelbottom=part is rows)
    ax.set_xlim(0.5, len(draw) + 0.5)
    ax.xaxis.get_major_locator().set_params(integer=True)
    rows.set_xlabel("sample")
    return ax


def has_draws(history: History) -> bool:
    """Whether samples were drawn, and it is known how far they are off."""
    known = None not in history.samples[DEVIATIONS[0]]
    return known and any(history.samples["strata"])


def has_looks(history: History) -> bool:
    """Whether some sample looks back at the trees before it."""
    return any(trees is not None for trees in history.samples["look_trees"])


def _advantages(ax: Axes, draw: Any, of: dict[str, Floats], dots: dict[str, Any]) -> None:
    """The advantage of first splits, in three ways."""
    ax.plot(draw, of["gamma"], "o", color=ORANGE, label="measured", **dots)
    ax.plot(draw, of["gamma_fresh"], "D", color=GREEN, label="on fresh rows", **dots)
    ax.plot(draw, of["gamma_certified"], "s-", color=BLUE, lw=1.4, ms=2.5, label="certified")
    edges = np.array([of["gamma"], of["gamma_fresh"], of["gamma_certified"]])
    ax.set_ylim(1.1 * min(np.nanmin(edges), 0.0), 1.1 * np.nanmax(edges) or 1.0)
    ax.set_ylabel("advantage γ")


def _falls(ax: Axes, draw: Any, of: dict[str, Floats], dots: dict[str, Any]) -> None:
    """The fall of the loss on fresh rows, over that on the rows that trees were grown on."""
    own = np.where(of["own"] > 0, of["own"], np.nan)
    ratio, error = of["fresh"] / own, LIKELY * of["error"] / own
    for level in (0, 1):
        ax.axhline(level, color=GREY, lw=0.8, zorder=1)
    ax.errorbar(draw, ratio, error, fmt="none", ecolor=GREEN, elinewidth=1.0)
    shown, words = np.clip(ratio, *RATIOS), "fall of the loss"
    ax.plot(draw, shown, "D", color=GREEN, label=words, clip_on=False, **dots)
    ax.set_ylim(*RATIOS)
    ax.set_yticks([0, 0.5, 1])
    ax.set_ylabel("fresh / own")


def _deviations(ax: Axes, draw: Any, of: dict[str, Floats], dots: dict[str, Any]) -> None:
    """How many rows of each label draws stand for, less how many there are."""
    for level in (-LIKELY, LIKELY):
        ax.axhline(level, color=GREY, lw=0.8, ls="--", zorder=1)
    ax.plot([], [], " ", label="rows:")
    for name, marker, color, words in zip(
        DEVIATIONS, "v^", (BLUE, ORANGE), ("negative", "positive"), strict=True
    ):
        ax.plot(draw, np.clip(of[name], -FAR, FAR), marker, color=color, label=words, **dots)
    most = max(np.abs(line.get_ydata()).max(initial=0) for line in ax.lines)
    ax.set_ylim(-1.25 * most, 1.25 * most)
    step = LIKELY if most < MOST_DEVIATION else MOST_DEVIATION
    ax.set_yticks([-step, 0, step])
    ax.set_ylabel("σ")


def showable(name: str) -> str:
    """A text with its control characters and half letters replaced: no file of text takes them."""
    return "".join("�" if unicodedata.category(c) in ("Cc", "Cs", "Cn") else c for c in name)


def shorten(name: str) -> str:
    """A name of at most `MAX_NAME` letters, on one line; what is left out is in the middle.

    Examples
    --------
    >>> shorten("temperature_at_the_station_in_degrees")
    'temperature_at…on_in_degrees'
    """
    name = showable(" ".join(name.split())) or repr(name)
    if len(name) <= MAX_NAME:
        return name
    half = MAX_NAME // 2
    return f"{name[:half]}…{name[1 - half :]}"


def check_matplotlib() -> None:
    """An error that says what to install, if matplotlib is not there."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            "pictures need matplotlib, which is not installed; pip install 'sparrowboost[plot]'."
        ) from None


def _axes(ax: Axes | None, height: float = HEIGHT) -> Axes:
    if ax is not None:
        return ax
    check_matplotlib()
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(WIDTH, height), layout="constrained")[1]


def _parts_below(ax: Axes, shares: Sequence[float], gap: float) -> list[Axes]:
    """Let `ax` keep the first of these shares of its height, and give the others to new axes."""
    from matplotlib.transforms import Bbox

    upper, *others = shares

    def upper_part(ax: Axes, renderer: Any) -> Bbox:
        box = ax.get_position(original=True)
        return Bbox.from_extents(box.x0, box.y1 - upper * box.height, box.x1, box.y1)

    # `ax` gives up the lower part of its place, wherever a layout puts it.
    ax.set_axes_locator(upper_part)
    parts, bottom = [], 0.0
    for share in others:
        bottom -= (gap + share) / upper
        parts.append(ax.inset_axes((0, bottom, 1, share / upper), sharex=ax))
    return parts


def _need_trees(history: History) -> None:
    if not history.trees["n_trees"]:
        raise DataError("the history has no trees; pass it to train, as callbacks=[history].")


def _unit(most: float) -> tuple[float, str]:
    """The unit in which times of up to so many seconds read best: its seconds, and its name."""
    for scale, name in ((3600.0, "h"), (60.0, "min")):
        if most >= 3 * scale:
            return scale, name
    return 1.0, "s"


def _time(seconds: Sequence[float]) -> tuple[Floats, str]:
    scale, unit = _unit(seconds[-1])
    return np.array(seconds) / scale, unit


def _legend(ax: Axes, **options: Any) -> None:
    """A legend in one line above the axes, where it covers nothing."""
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=8,
        frameon=False,
        borderpad=0,
        handletextpad=0.4,
        columnspacing=1.4,
        **options,
    )


def _tidy(ax: Axes) -> None:
    """No box, and faint lines to read values by."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", alpha=0.35, lw=0.6)
    ax.set_axisbelow(True)
