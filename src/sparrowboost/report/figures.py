"""The pictures of the report, as SVG that is part of the page."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from sparrowboost.model.model import Model
from sparrowboost.report.draws_plot import has_draws, has_looks, plot_draws
from sparrowboost.report.history import History
from sparrowboost.report.plots import plot_edges, plot_importance, plot_training
from sparrowboost.report.sample_plot import plot_sample
from sparrowboost.report.style import BLUE, GREEN, GREY, ORANGE, PURPLE, text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 4.8  # inches of a picture: its letters are as large as the page's, also on a phone
MAX_FEATURES = 15
INK, LINE = "#010203", "#010204"  # placeholders for colours that the page sets, light or dark

# Colours of the pictures become variables of the page, so that they follow its colour scheme.
COLORS = {
    INK: "var(--ink)", LINE: "var(--grey)", GREY: "var(--grey)",
    BLUE: "var(--blue)", ORANGE: "var(--orange)", GREEN: "var(--green)", PURPLE: "var(--purple)",
}  # fmt: skip
STYLE = {
    "svg.fonttype": "none",
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": LINE,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": LINE,
}
SVG = "{http://www.w3.org/2000/svg}"
ElementTree.register_namespace("", SVG[1:-1])
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")

EDGES_CAPTION = (
    "How much better than a coin flip each tree's first split is: as measured, and the certified "
    "lower bound. Both fall as training goes on. A jump at a new sample means that the trees had "
    "overfitted the previous one."
)
NUMBER_EDGES_CAPTION = (
    "How far the sides of each tree's first split agree on which way the model is off: 1/2 if all "
    "gradients of a side have the same sign, 0 if they cancel out. As measured, and the certified "
    "lower bound. Both fall as training goes on. A jump at a new sample means that the trees had "
    "overfitted the previous one."
)
STRATA_CAPTION = (
    "Top: the effective share of the sample's rows. Bottom: at each draw, how the total weight is "
    "distributed over the strata, from light rows to heavy ones."
)
WHOLE_CAPTION = "The effective share of the rows. All rows are in memory, so no samples were drawn."
LOOKS_CAPTION = (
    "What each new sample shows about the trees before it, which were grown without its rows. "
    "Top: the advantage of their first splits; the certified one should be below the one on fresh "
    "rows. Middle: the loss reduction on fresh rows, divided by that on the rows that the trees "
    "were grown on. At 1 the sample was as good as all rows; at 0 the trees learned only its "
    "noise. Bottom: "
)
DRAWS_CAPTION = (
    "The error of each draw: the number of {rows} that it represents, minus the actual "
    "number, in standard deviations. Most values are within the dashed lines at 2. Values far "
    "below them are harmless where many rows have almost no weight. Values beyond the scale are "
    "drawn at its edge."
)


def pictures(model: Model, history: History) -> str:
    """All pictures that the history has numbers for, as HTML figures."""
    made = []
    if history.scores:
        made += [
            _figure(
                "Validation scores",
                "Scores on the validation rows against training time.",
                lambda ax: plot_training(history, ax),
            )
        ]
    if history.trees["n_trees"]:
        drawn = any(history.samples["strata"])
        edges = EDGES_CAPTION if len(model.classes) == 2 else NUMBER_EDGES_CAPTION
        made += [
            _figure("Advantages", edges, lambda ax: plot_edges(history, ax)),
            _figure(
                "Sample",
                STRATA_CAPTION if drawn else WHOLE_CAPTION,
                lambda ax: plot_sample(history, ax),
                height=4.1,
            ),
        ]
    if any(len(tree.feature) for tree in model.trees):
        made += [
            _figure(
                "Features",
                "Share of the loss reduction that is due to splits on each feature.",
                lambda ax: plot_importance(model, ax, MAX_FEATURES),
                height=4.1,
            )
        ]
    if has_draws(history):
        made += [_draws_figure(history)]
    return "".join(made)


def _draws_figure(history: History) -> str:
    rows = "rows of each label"
    if history.n_classes is not None and history.n_classes != 2:
        of = "frequent, and of rare classes" if history.n_classes else "low, and of high labels"
        rows = f"rows of {of},"
    errors = DRAWS_CAPTION.format(rows=rows)
    if has_looks(history):
        title, caption, height = "Checks of draws and proofs", LOOKS_CAPTION + errors, 4.6
    else:
        title, caption, height = "Errors of draws", errors, 2.2
    return _figure(title, caption, lambda ax: plot_draws(history, ax), height)


def _figure(title: str, words: str, draw: Callable[[Axes], Axes], height: float = 3.1) -> str:
    from matplotlib import rc_context, rcdefaults
    from matplotlib.figure import Figure

    with rc_context(), warnings.catch_warnings():
        # The browser has letters that matplotlib's own font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        rcdefaults()
        with rc_context({**STYLE, "svg.hashsalt": title}):
            figure = Figure(figsize=(WIDTH, height), layout="constrained")
            draw(figure.add_subplot())
            out = io.StringIO()
            figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    svg = _inline(out.getvalue(), title)
    return f"<figure><h3>{text(title)}</h3>{svg}<figcaption>{text(words)}</figcaption></figure>\n"


def _inline(svg: str, label: str) -> str:
    """An SVG as part of a page: in its colours and font, and without ids."""
    root = ElementTree.fromstring(svg)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{SVG}metadata", f"{SVG}style"):
                parent.remove(child)
    for element in root.iter():
        if element.tag == f"{SVG}g":
            element.attrib.pop("id", None)  # "axes_1" would occur in every picture
        for name in ("d", "x", "y", "transform"):
            if name in element.attrib:
                element.set(name, _round(element.attrib[name]))
        if "style" in element.attrib:
            # Older versions of matplotlib write size and family as one "font".
            style = re.sub(r"\bfont: ([\d.]+px) [^;]*", r"font-size: \1", element.attrib["style"])
            style = re.sub(r"font-family: [^;]*;? ?", "", style)
            if element.tag == f"{SVG}path" and "stroke" not in style:
                style += "; shape-rendering: crispEdges"  # no seams between cells
            element.set("style", re.sub("#[0-9a-f]{6}", _page_color, style))
    for name in ("width", "height"):
        del root.attrib[name]  # the page sets the width; the view box has the proportions
    root.attrib.update({"role": "img", "aria-label": label})
    return ElementTree.tostring(root, encoding="unicode")


def _round(numbers: str) -> str:
    """Numbers rounded to hundredths of a point, on one line."""
    return re.sub(r"\d+\.\d+", lambda m: f"{float(m[0]):.2f}", numbers).replace("\n", "")


def _page_color(match: re.Match[str]) -> str:
    return COLORS.get(match[0], match[0])
