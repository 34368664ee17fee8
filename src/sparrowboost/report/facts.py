"""The facts of the report: its first sentence, tiles, and cards of numbers, as HTML."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version
from typing import Any

import numpy as np

from sparrowboost import __version__
from sparrowboost.learner.params import Params
from sparrowboost.learner.soundness import SoundnessMonitor
from sparrowboost.model.importance import feature_importances
from sparrowboost.model.metrics import metric_named
from sparrowboost.model.model import Model
from sparrowboost.readers.classes import name_classes
from sparrowboost.report.history import History
from sparrowboost.report.style import text
from sparrowboost.runtime.memory import format_size
from sparrowboost.store.dataset import Dataset

TOP_FEATURES = 15  # shown at once
MAX_FEATURES = 500  # in the table at all

ENDS = {
    "n_estimators": "after the requested number of trees",
    "early_stopping": "because the validation score had stopped improving",
    "converged": "because no further split could be told from noise",
    "callback": "because a callback stopped it",
    None: "early, because it was interrupted",
}

Pairs = Iterable[tuple[str, str]]


def cards(
    model: Model,
    history: History,
    dataset: Dataset | None,
    params: Params | None,
    about: Mapping[str, Any],
) -> str:
    """The numbers, in cards."""
    made = (
        _facts("About", [(key, str(value)) for key, value in about.items()]),
        _scores(history),
        _facts("Data", _data(model, dataset)),
        _facts("Training", _run(model, history)),
        _parameters(params),
        _importances(model),
    )
    return "".join(made)


def lead(model: Model, history: History, dataset: Dataset | None) -> str:
    """The first sentences of the page."""
    leaves = max((tree.n_leaves for tree in model.trees), default=1)
    made = history.totals.get("n_trees", 0)
    kept = f" (the best of {made:,})" if made > model.n_trees else ""
    on, each = "", " for each class" if model.softmax is not None else ""
    if dataset is not None:
        on = (
            f" It was trained on {dataset.n_rows:,} rows of {dataset.n_features:,} features; "
            f"{_labels(dataset)}."
        )
    return (
        f"The model has {model.n_trees:,} trees{each}{kept} of up to {leaves} leaves.{on} "
        f"Training ended {ENDS.get(history.reason, f'by {history.reason}')}."
    )


def _labels(dataset: Dataset) -> str:
    """What the labels are, in words."""
    if dataset.task == "regression":
        return f"labels are numbers{_between(dataset)}"
    share = dataset.class_rows / dataset.n_rows
    if dataset.n_classes == 2:
        return f"{dataset.n_positive:,} rows are positive ({share[1]:.3%})"
    common, rare = int(share.argmax()), int(share.argmin())
    return (
        f"labels are {dataset.n_classes} classes, from {dataset.classes[common]!r} "
        f"({share[common]:.3%}) to {dataset.classes[rare]!r} ({share[rare]:.3%})"
    )


def _between(dataset: Dataset) -> str:
    """The range of labels that are numbers, in words."""
    span = dataset.target_span
    return "" if span is None else f" from {span[0]:g} to {span[1]:g}"


def doubts(model: Model, history: History) -> str:
    """The warnings of the training, as HTML."""
    seen = SoundnessMonitor.of(history.samples, history.trees, history.n_classes, model)
    return "".join(
        f'<p class="doubt"><b>Warning:</b> {text(doubt)}</p>\n' for doubt in seen.doubts()
    )


def tiles(history: History, dataset: Dataset | None) -> str:
    """The most important numbers, as HTML."""
    totals = history.totals
    made = []
    for name in _judging(history):
        if (found := _best(history, name)) is not None:
            best, tree = found
            made.append(
                (_short(best), f"best validation {metric_named(name).title}, at tree {tree:,}")
            )
    if totals:
        made += [(_duration(totals["seconds"]), "training time")]
        made += [(format_size(totals["peak_bytes"]), "peak memory of the process")]
    if any(history.samples["strata"]):
        rows, each = history.samples["rows"][-1], totals["rows_read"] / totals["rows_kept"]
        made += [(f"{totals['n_samples']:,}", f"samples drawn, the last of {rows:,} rows")]
        made += [(f"{each:.3g}", "rows read per row kept")]
    elif totals:
        made += [("1", "sample: all rows")]
    rules = sum(history.trees["n_rules"])
    if rules:
        full = f"; a full pass is {dataset.n_rows:,} rows" if dataset is not None else ""
        each = totals["rows_scanned"] / rules
        made += [(f"{each:,.0f}", f"rows scanned per split{full}")]
    return "\n".join(
        f'<div class="tile"><b>{text(value)}</b><span>{text(words)}</span></div>'
        for value, words in made
    )


def _judging(history: History) -> list[str]:
    """The validation scores of most interest: of numbers, what decides, RMSE and R2."""
    if "log_loss" in history.scores:
        names = ["auc", "average_precision", "accuracy", "log_loss"]
    else:
        names = list(dict.fromkeys([history.eval_metric or "rmse", "rmse", "r2"]))
    return [name for name in names if name in history.scores]


def _data(model: Model, dataset: Dataset | None) -> Pairs:
    if model.softmax is not None:
        yield "classes", f"{len(model.classes)}: {name_classes(model.classes)}"
    elif model.classes:
        negative, positive = model.classes
        yield "positive label", repr(positive)
        yield "negative label", "any other" if negative is None else repr(negative)
    else:
        yield "labels", f"numbers{'' if dataset is None else _between(dataset)}"
    if dataset is None:
        yield "features", f"{len(model.feature_names):,}"
        return
    categories = sum(feature.kind == "category" for feature in dataset.binning.features)
    yield "label column", dataset.label_name
    yield "rows", f"{dataset.n_rows:,}"
    if dataset.n_classes == 2:
        yield "positive rows", f"{dataset.n_positive:,}"
    yield "numeric features", f"{dataset.n_features - categories:,}"
    yield "categorical features", f"{categories:,}"
    yield "row weights", "yes" if dataset.weighted else "no"
    if dataset.offset_name is not None:
        yield "offset column", dataset.offset_name
    yield "store", f"{dataset.path} ({format_size(dataset.n_bytes)})"


def _run(model: Model, history: History) -> Pairs:
    totals, trees = history.totals, history.trees
    rules, proved = sum(trees["n_rules"]), sum(trees["n_proved"])
    options = ", ".join(f"{name}={value:g}" for name, value in model.loss_options.items())
    yield "loss", f"{model.loss} ({options})" if options else model.loss
    yield "trees grown", f"{len(trees['n_trees']):,}"
    yield "splits", f"{rules:,}"
    if rules:
        yield "proved splits", f"{proved / rules:.0%}"
    if not totals:
        return
    yield "samples", f"{totals['n_samples']:,}"
    yield "rows kept in samples", f"{totals['rows_kept']:,}"
    yield "rows read from disk", f"{totals['rows_read']:,}"
    yield "bytes read from disk", format_size(totals["bytes_read"])
    yield "rows scanned", f"{totals['rows_scanned']:,}"
    yield "seconds", f"{totals['seconds']:,.1f}"
    yield "peak memory", format_size(totals["peak_bytes"])
    yield "reason for ending", history.reason or "interrupted"


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
    note = '<p class="muted">Values in bold differ from the default.</p>'
    return f'<div class="card"><h3>Parameters</h3>{note}<dl>\n{rows}</dl></div>\n'


def _scores(history: History) -> str:
    if not history.scores:
        return ""
    rows = ""
    for name, scores in history.scores.items():
        found, at = _best(history, name), "undefined"
        if found is not None:
            at = f"{_short(found[0])}<small>tree {found[1]:,}</small>"
        cells = (_short(scores[0]), at, _short(scores[-1]))
        numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        rows += f"<tr><td>{text(metric_named(name).title)}</td>{numbers}</tr>\n"
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
        for j in order[:MAX_FEATURES]
    ]
    head = (
        '<tr><th>feature</th><th class="number">loss reduction</th>'
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
        f'<p class="muted">{len(order):,} of {len(gain):,} features are used.</p>'
        f"<table>{head}{''.join(rows[:TOP_FEATURES])}</table>{more}</div>\n"
    )


def _best(history: History, metric: str) -> tuple[float, int] | None:
    """The best score, and the number of trees that reached it; None if it is undefined."""
    scores = history.scores[metric]
    if np.isnan(scores).all():  # R2, where all labels are the same
        return None
    best = metric_named(metric).best(scores)
    return scores[best], int(history.trees["n_trees"][best])


def _short(score: float) -> str:
    return f"{score:.4g}"


def _duration(seconds: float) -> str:
    """Seconds in units that read well.

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


def versions() -> str:
    """What wrote the page, and where."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba", "matplotlib"))
    return (
        f"Written {datetime.now().astimezone():%Y-%m-%d %H:%M %Z} by sparrowboost {__version__} "
        f"with Python {platform.python_version()}, {packages}, on {platform.system()} "
        f"{platform.machine()} with {os.cpu_count()} CPUs."
    )
