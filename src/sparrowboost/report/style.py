"""What all pictures share: colours, axes, legends, and names that can be shown.

The colours can be told apart by everybody (Okabe and Ito's); whatever differs in colour also
differs in shape or place.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparrowboost.report.history import History
from sparrowboost.runtime.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]

BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
GREY = "#8c8c8c"
WIDTH, HEIGHT = 6.0, 3.6  # inches, of a new figure
MAX_NAME = 28  # letters of a feature's name


def check_matplotlib() -> None:
    """Raise an error that says what to install if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            "pictures need matplotlib, which is not installed; pip install 'sparrowboost[plot]'."
        ) from None


def new_axes(ax: Axes | None, height: float = HEIGHT) -> Axes:
    """These axes, or those of a new figure."""
    if ax is not None:
        return ax
    check_matplotlib()
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(WIDTH, height), layout="constrained")[1]


def axes_below(ax: Axes, shares: Sequence[float], gap: float) -> list[Axes]:
    """Shrink `ax` to the first of these shares of its height; give the others to new axes below."""
    from matplotlib.transforms import Bbox

    upper, *others = shares

    def upper_part(ax: Axes, renderer: Any) -> Bbox:
        box = ax.get_position(original=True)
        return Bbox.from_extents(box.x0, box.y1 - upper * box.height, box.x1, box.y1)

    # A locator, so that `ax` stays divided wherever a layout moves it.
    ax.set_axes_locator(upper_part)
    parts, bottom = [], 0.0
    for share in others:
        bottom -= (gap + share) / upper
        parts.append(ax.inset_axes((0, bottom, 1, share / upper), sharex=ax))
    return parts


def add_legend(ax: Axes, **options: Any) -> None:
    """Add a legend in one line above the axes, where it covers nothing."""
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


def tidy(ax: Axes) -> None:
    """Remove the box, and add faint lines to read values by."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", alpha=0.35, lw=0.6)
    ax.set_axisbelow(True)


def check_history(history: Any) -> None:
    """Refuse anything but a history, such as an estimator, which keeps none."""
    if isinstance(history, History):
        return
    where = "fit" if hasattr(history, "fit") else "train"
    raise DataError(
        f"expected a History, got {type(history).__name__}; make history = sparrowboost.History() "
        f"before training, pass it to {where} as callbacks=[history], and then here."
    )


def need_trees(history: History) -> None:
    """Refuse a history without trees, or what is none."""
    check_history(history)
    if not history.trees["n_trees"]:
        raise DataError("the history has no trees; pass it to train as callbacks=[history].")


def time_unit(most: float) -> tuple[float, str]:
    """The best unit for times of up to `most` seconds: its length in seconds, and its name."""
    for scale, name in ((3600.0, "h"), (60.0, "min")):
        if most >= 3 * scale:
            return scale, name
    return 1.0, "s"


def training_time(seconds: Sequence[float]) -> tuple[Floats, str]:
    """Times in the unit that suits them, and its name."""
    scale, unit = time_unit(seconds[-1])
    return np.array(seconds) / scale, unit


def showable(name: str) -> str:
    """A text with control characters and lone surrogates replaced, which no text file takes."""
    return "".join("�" if unicodedata.category(c) in ("Cc", "Cs", "Cn") else c for c in name)


def shorten(name: str) -> str:
    """A name on one line, with its middle left out if it has more than `MAX_NAME` letters.

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


def text(value: object) -> str:
    r"""A value as text of an HTML page, with characters that cannot be shown replaced.

    Examples
    --------
    >>> text("<b> & \x00")
    '&lt;b&gt; &amp; �'
    """
    return html.escape(showable(str(value)))
