"""A report of a training: one page of HTML that needs nothing else, neither network nor script."""

from __future__ import annotations

import html
import io
import os
import platform
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from sparrowboost import __version__
from sparrowboost.learner.params import Params
from sparrowboost.learner.soundness import SoundnessMonitor
from sparrowboost.model.importance import feature_importances
from sparrowboost.model.metrics import METRICS
from sparrowboost.model.model import Model
from sparrowboost.report.history import History
from sparrowboost.report.plots import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    check_matplotlib,
    has_draws,
    has_looks,
    plot_draws,
    plot_edges,
    plot_importance,
    plot_sample,
    plot_training,
    showable,
)
from sparrowboost.runtime.disk import replace_file
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.memory import format_size
from sparrowboost.store.dataset import Dataset

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 4.8  # inches of a picture: its letters are as large as the page's, also on a phone
TOP_FEATURES = 15  # shown at once
MOST_FEATURES = 500  # in the table at all
INK, LINE = "#010203", "#010204"  # stand for colours that the page sets, light or dark

# Colours of the pictures become the page's, so that they follow its scheme.
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

ENDS = {
    "n_estimators": "with all the trees that were asked for",
    "early_stopping": "when the validation score had stopped improving",
    "converged": "when no split stood out from noise any more",
    "callback": "when a callback asked for it",
    None: "before its time: it was interrupted",
}

STRATA_WORDS = (
    "Above: how large a part of the sample's rows still counts. Below: at each draw, how the "
    "weight of all rows was spread over the strata, from light rows to heavy ones."
)
LOOKS_WORDS = (
    "What each new sample says of the trees before it, in which its rows had no part. Above: how "
    "much better than a coin their first splits are; what is certified should be below what fresh "
    "rows show. In the middle: how much the loss fell by these trees on fresh rows, over how much "
    "on the rows that they were grown on. At 1 the sample was as good as all rows; at 0 the trees "
    "learned its noise. Below, the draws themselves. "
)
DRAWS_WORDS = (
    "How many rows of each label a draw stands for, less how many there are, in standard "
    "deviations. Chance keeps it mostly within the dashed lines, at 2; far below them is no harm "
    "where many rows weigh next to nothing. What is off the scale stands at its end."
)
WHOLE_WORDS = "How large a part of the rows still counts. All rows are in memory; none were drawn."

Pairs = Iterable[tuple[str, str]]


def write_report(
    path: str | os.PathLike[str],
    model: Model,
    history: History,
    *,
    dataset: Dataset | None = None,
    params: Params | Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
    title: str = "Sparrow training report",
) -> Path:
    """Write a page about a training: what it took, how it went, what the model uses.

    The page is one file that loads nothing: pictures and style are in it. It is written in one
    step, and needs matplotlib.

    Parameters
    ----------
    path : str or path
        Of the HTML file; one that is there is replaced.
    model : Model
    history : History
        Of the training that made it.
    dataset : Dataset, optional
        What it was trained on, to be described.
    params : Params or mapping, optional
        What was passed to `train`; the page shows all parameters, and which were changed.
    about : mapping, optional
        More facts for the page, such as ``{"command": "sparrow train ..."}``.
    title : str

    Returns
    -------
    Path

    Examples
    --------
    >>> import numpy as np, sparrowboost, tempfile
    >>> X = np.random.default_rng(0).normal(size=(1000, 3))
    >>> ds = sparrowboost.ingest(X, label=X[:, 0] > 0, verbose=0)
    >>> history = sparrowboost.History()
    >>> model = sparrowboost.train(ds, n_estimators=5, callbacks=[history], verbose=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = sparrowboost.write_report(
    ...         f"{folder}/report.html", model, history, dataset=ds, params={"n_estimators": 5}
    ...     )
    ...     page.read_text().count("<svg")
    3
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise DataError(f"{path}: there is no folder {path.parent}; create it first.")
    check_matplotlib()
    if params is not None and not isinstance(params, Params):
        params = Params.make(**params)
    page = _page(model, history, dataset, params, about or {}, title)
    replace_file(path, page.encode("utf-8", "xmlcharrefreplace"))
    return path


def _page(
    model: Model,
    history: History,
    dataset: Dataset | None,
    params: Params | None,
    about: Mapping[str, Any],
    title: str,
) -> str:
    style = (resources.files("sparrowboost") / "data" / "report.css").read_text("utf-8")
    cards = [
        _facts("About", [(key, str(value)) for key, value in about.items()]),
        _scores(history),
        _facts("Data", _data(model, dataset)),
        _facts("Training", _run(model, history)),
        _parameters(params),
        _importances(model),
    ]
    # No script may run and nothing be loaded: whatever a column's name holds, it is only text.
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{text(title)}</title>
<style>
{style}</style>
</head>
<body>
<main>
<h1>{text(title)}</h1>
<p>{text(_lead(model, history, dataset))}</p>
{_doubts(history)}<div class="tiles">
{_tiles(history, dataset)}
</div>
<h2>How training went</h2>
<div class="grid">
{_pictures(model, history)}
</div>
<h2>In numbers</h2>
<div class="cards">
{"".join(cards)}
</div>
<footer>{text(_versions())}</footer>
</main>
</body>
</html>
"""


def text(value: object) -> str:
    r"""A value as text of a page, with what cannot be shown replaced.

    Examples
    --------
    >>> text("<b> & \x00")
    '&lt;b&gt; &amp; �'
    """
    return html.escape(showable(str(value)))


# -- words and numbers ----------------------------------------------------------------------------


def _lead(model: Model, history: History, dataset: Dataset | None) -> str:
    leaves = max((tree.n_leaves for tree in model.trees), default=1)
    made = history.totals.get("n_trees", 0)
    kept = f" (the best of {made:,})" if made > model.n_trees else ""
    on = ""
    if dataset is not None:
        on = (
            f" It learned from {dataset.n_rows:,} rows of {dataset.n_features:,} features, "
            f"{dataset.n_positive:,} of them positive ({dataset.n_positive / dataset.n_rows:.3%})."
        )
    return (
        f"The model has {model.n_trees:,} trees{kept} of up to {leaves} leaves.{on} "
        f"Training ended {ENDS.get(history.reason, f'by {history.reason}')}."
    )


def _doubts(history: History) -> str:
    """What training has warned of."""
    return "".join(
        f'<p class="doubt"><b>Warning:</b> {text(doubt)}</p>\n'
        for doubt in SoundnessMonitor.of(history.samples, history.trees).doubts()
    )


def _tiles(history: History, dataset: Dataset | None) -> str:
    totals = history.totals
    tiles = []
    for name in ("auc", "log_loss"):
        if name in history.scores:
            best, tree = _best(history.scores[name], name)
            tiles.append((_short(best), f"best validation {METRICS[name].title}, at tree {tree:,}"))
    if totals:
        tiles += [(_duration(totals["seconds"]), "training time")]
        tiles += [(format_size(totals["peak_bytes"]), "peak memory of the process")]
    if any(history.samples["strata"]):
        rows, each = history.samples["rows"][-1], totals["rows_read"] / totals["rows_kept"]
        tiles += [(f"{totals['n_samples']:,}", f"samples drawn, the last of {rows:,} rows")]
        tiles += [(f"{each:.3g}", "rows read for each row kept")]
    elif totals:
        tiles += [("1", "sample, which is all rows")]
    rules = sum(history.trees["n_rules"])
    if rules:
        full = f"; a full pass is {dataset.n_rows:,}" if dataset is not None else ""
        each = totals["rows_scanned"] / rules
        tiles += [(f"{each:,.0f}", f"rows scanned for each split{full}")]
    return "\n".join(
        f'<div class="tile"><b>{text(value)}</b><span>{text(words)}</span></div>'
        for value, words in tiles
    )


def _data(model: Model, dataset: Dataset | None) -> Pairs:
    negative, positive = model.classes
    yield "positive label", repr(positive)
    yield "negative label", "any other" if negative is None else repr(negative)
    if dataset is None:
        yield "features", f"{len(model.feature_names):,}"
        return
    categories = sum(feature.kind == "category" for feature in dataset.binning.features)
    yield "label column", dataset.label_name
    yield "rows", f"{dataset.n_rows:,}"
    yield "positive rows", f"{dataset.n_positive:,}"
    yield "numeric features", f"{dataset.n_features - categories:,}"
    yield "categorical features", f"{categories:,}"
    yield "row weights", "yes" if dataset.weighted else "no"
    yield "store", f"{dataset.path} ({format_size(dataset.n_bytes)})"


def _run(model: Model, history: History) -> Pairs:
    totals, trees = history.totals, history.trees
    rules, proved = sum(trees["n_rules"]), sum(trees["n_proved"])
    yield "loss", model.loss
    yield "trees made", f"{len(trees['n_trees']):,}"
    yield "splits", f"{rules:,}"
    if rules:
        yield "of them proved", f"{proved / rules:.0%}"
    if not totals:
        return
    yield "samples", f"{totals['n_samples']:,}"
    yield "rows kept in them", f"{totals['rows_kept']:,}"
    yield "rows read from disk", f"{totals['rows_read']:,}"
    yield "bytes read from disk", format_size(totals["bytes_read"])
    yield "rows scanned", f"{totals['rows_scanned']:,}"
    yield "seconds", f"{totals['seconds']:,.1f}"
    yield "peak memory", format_size(totals["peak_bytes"])
    yield "ended by", history.reason or "interruption"


def _facts(title: str, pairs: Pairs) -> str:
    rows = "".join(f"<dt>{text(key)}</dt><dd>{text(value)}</dd>\n" for key, value in pairs)
    return f'<div class="card"><h3>{text(title)}</h3><dl>\n{rows}</dl></div>\n' if rows else ""


def _parameters(params: Params | None) -> str:
    if params is None:
        return ""
    defaults = asdict(Params())
    rows = ""
    for name, value in asdict(params).items():
        kind = "default" if value == defaults[name] else "changed"
        rows += f'<dt>{text(name)}</dt><dd class="{kind}">{text(value)}</dd>\n'
    note = '<p class="muted">Bold: other than the default.</p>'
    return f'<div class="card"><h3>Parameters</h3>{note}<dl>\n{rows}</dl></div>\n'


def _scores(history: History) -> str:
    if not history.scores:
        return ""
    rows = ""
    for name, scores in history.scores.items():
        best, tree = _best(scores, name)
        at = f"{_short(best)}<small>tree {tree:,}</small>"
        cells = (_short(scores[0]), at, _short(scores[-1]))
        numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        rows += f"<tr><td>{text(METRICS[name].title)}</td>{numbers}</tr>\n"
    heads = "".join(f'<th class="number">{head}</th>' for head in ("first", "best", "last"))
    return (
        '<div class="card"><h3>Validation scores</h3>'
        f"<table><tr><th>score</th>{heads}</tr>\n{rows}</table></div>\n"
    )


def _importances(model: Model) -> str:
    gain, splits = feature_importances(model), feature_importances(model, "splits")
    n_splits = sum(len(tree.feature) for tree in model.trees)
    order = [int(j) for j in np.argsort(-gain, kind="stable") if splits[j]]
    if not order:
        return ""
    rows = [
        f'<tr><td class="name"><bdi>{text(model.feature_names[j])}</bdi></td>'
        f'<td class="number">{gain[j]:.2%}</td>'
        f'<td class="number">{splits[j] * n_splits:,.0f}</td></tr>\n'
        for j in order[:MOST_FEATURES]
    ]
    head = (
        '<tr><th>feature</th><th class="number">loss removed</th>'
        '<th class="number">splits</th></tr>\n'
    )
    more = ""
    if len(rows) > TOP_FEATURES:
        more = (
            f"<details><summary>{len(rows) - TOP_FEATURES:,} more</summary>"
            f"<table>{head}{''.join(rows[TOP_FEATURES:])}</table></details>"
        )
    return (
        '<div class="card"><h3>Features</h3>'
        f'<p class="muted">{len(order):,} of {len(gain):,} are used in splits.</p>'
        f"<table>{head}{''.join(rows[:TOP_FEATURES])}</table>{more}</div>\n"
    )


def _best(scores: list[float], metric: str) -> tuple[float, int]:
    """The best score, and the number of trees that it took."""
    best = METRICS[metric].best(scores)
    return scores[best], best + 1


def _short(score: float) -> str:
    return f"{score:.4g}"


def _duration(seconds: float) -> str:
    """Seconds for people.

    Examples
    --------
    >>> _duration(7.26), _duration(95), _duration(7500)
    ('7.3 s', '1 min 35 s', '2 h 5 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _versions() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba", "matplotlib"))
    return (
        f"Written {datetime.now().astimezone():%Y-%m-%d %H:%M %Z} by sparrowboost {__version__} "
        f"with Python {platform.python_version()}, {packages}, on {platform.system()} "
        f"{platform.machine()} with {os.cpu_count()} CPUs."
    )


# -- pictures -------------------------------------------------------------------------------------


def _pictures(model: Model, history: History) -> str:
    pictures = []
    if history.scores:
        pictures += [
            _figure(
                "Scores over time",
                "How good the model was on rows that it did not learn from, and when.",
                lambda ax: plot_training(history, ax),
            )
        ]
    if history.trees["n_trees"]:
        pictures += [
            _figure(
                "What each tree found",
                "How much better than a coin each tree's first split is: as measured, and what is "
                "certain of it. It falls as training goes on; a jump at a new sample means that "
                "the last one had been learned by heart.",
                lambda ax: plot_edges(history, ax),
            ),
            _figure(
                "The sample",
                STRATA_WORDS if any(history.samples["strata"]) else WHOLE_WORDS,
                lambda ax: plot_sample(history, ax),
                height=4.1,
            ),
        ]
    if has_draws(history):
        looks = has_looks(history)
        pictures += [
            _figure(
                "Draws and proofs, looked back at" if looks else "Draws",
                LOOKS_WORDS + DRAWS_WORDS if looks else DRAWS_WORDS,
                lambda ax: plot_draws(history, ax),
                height=4.6 if looks else 2.2,
            )
        ]
    if any(len(tree.feature) for tree in model.trees):
        pictures += [
            _figure(
                "Features",
                "Share of the loss that the splits on each feature removed.",
                lambda ax: plot_importance(model, ax, TOP_FEATURES),
                height=4.1,
            )
        ]
    return "".join(pictures)


def _figure(title: str, words: str, draw: Callable[[Axes], Axes], height: float = 3.1) -> str:
    from matplotlib import rc_context, rcdefaults
    from matplotlib.figure import Figure

    with rc_context(), warnings.catch_warnings():
        # The browser has letters that matplotlib's own font has not.
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
    """A picture as part of a page: in its colours and its font, and without names of its own."""
    root = ElementTree.fromstring(svg)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{SVG}metadata", f"{SVG}style"):
                parent.remove(child)
    for element in root.iter():
        if element.tag == f"{SVG}g":
            element.attrib.pop("id", None)  # "axes_1" would be in every picture
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
        del root.attrib[name]  # as wide as the page lets it be; the view box has its shape
    root.attrib.update({"role": "img", "aria-label": label})
    return ElementTree.tostring(root, encoding="unicode")


def _round(numbers: str) -> str:
    """Numbers with two digits, hundredths of a point, on one line."""
    return re.sub(r"\d+\.\d+", lambda m: f"{float(m[0]):.2f}", numbers).replace("\n", "")


def _page_color(match: re.Match[str]) -> str:
    return COLORS.get(match[0], match[0])


ElementTree.register_namespace("", SVG[1:-1])
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
