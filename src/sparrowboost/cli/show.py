"""What several commands print: a store in a line, features, tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparrowboost.learner.events import Event
    from sparrowboost.model.model import Model
    from sparrowboost.store.dataset import Dataset

SHOWN_FEATURES = 20
MAX_WIDTH = 10_000  # of a table that is not shown on a terminal


def summary(dataset: Dataset) -> str:
    """A store in one line."""
    from sparrowboost.runtime.memory import format_size

    labels = label_meaning(dataset)
    if dataset.n_classes == 2:
        share = f"{dataset.n_positive / dataset.n_rows:.3%}"
        labels = f"{dataset.n_positive:,} positive ({share}; {labels})"
    times = len(dataset.appended)
    appended = f", appended {'once' if times == 1 else f'{times} times'}" if times else ""
    return (
        f"{dataset.path}: {dataset.n_rows:,} rows, {dataset.n_features} features, {labels}, "
        f"{'weighted, ' if dataset.weighted else ''}"
        f"{'' if dataset.offset_name is None else f'offset {dataset.offset_name}, '}"
        f"{format_size(dataset.n_bytes)} in {dataset.n_blocks} blocks{appended}"
    )


def label_meaning(data: Dataset | Model) -> str:
    """What labels mean, in words: which is the positive one, which classes or numbers there are."""
    if not data.classes:
        span = getattr(data, "target_span", None)
        between = f" from {span[0]:g} to {span[1]:g}" if span is not None else ""
        return f"{data.label_name}: numbers{between}"
    if len(data.classes) > 2:
        from sparrowboost.readers.classes import name_classes

        return f"{data.label_name}: {len(data.classes)} classes ({name_classes(data.classes)})"
    negative, positive = data.classes
    other = "" if negative is None else f", else {negative!r}"
    return f"{data.label_name} = {positive!r}{other}"


def work(last: Event, n_rules: int) -> str:
    """What training read and scanned, in words."""
    one = last.n_samples == 1
    samples = "one sample" if one else f"{last.n_samples} samples, the last"
    return (
        f"{samples} of {last.sample_rows:,} rows; "
        f"{last.rows_read / last.rows_kept:.1f} rows read per row kept; "
        f"{last.rows_read / max(n_rules, 1):,.0f} read and "
        f"{last.rows_scanned / max(n_rules, 1):,.0f} scanned per split, of {n_rules} splits"
    )


def store_facts(dataset: Dataset) -> dict[str, Any]:
    """A store for JSON, without its features."""
    return {
        "path": str(dataset.path),
        "rows": dataset.n_rows,
        "task": dataset.task,
        "positives": dataset.n_positive if dataset.n_classes == 2 else None,
        "classes": list(dataset.classes),
        "class_rows": dataset.class_rows.tolist(),
        "label": dataset.label_name,
        "label_span": dataset.target_span,
        "weighted": dataset.weighted,
        "offset": dataset.offset_name,
        "bytes": dataset.n_bytes,
        "blocks": dataset.n_blocks,
        "n_features": dataset.n_features,
        "appended": [rows.to_json() for rows in dataset.appended],
    }


def feature_facts(features: Any) -> list[dict[str, Any]]:
    """Features for JSON."""
    return [{"name": f.name, "kind": f.kind, "bins": f.n_values} for f in features]


def show_features(features: Any, *, every: bool) -> None:
    """Print features as a table, the first few or all."""
    shown = features if every else features[:SHOWN_FEATURES]
    rows = [(f.name, f.kind, str(f.n_values), f.span()) for f in shown]
    show_table(("feature", "kind", "bins", "range"), rows, right=(2,))
    if len(shown) < len(features):
        print(f"... and {len(features) - len(shown)} more (--all)")


def show_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()
) -> None:
    """Print a table, with the columns of these numbers aligned to the right."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None)
    for k, name in enumerate(header):
        table.add_column(name, justify="right" if k in right else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    # Only a terminal has a width: names are not cut in a file or a pipe.
    console = Console(width=None if sys.stdout.isatty() else MAX_WIDTH)
    with console.capture() as captured:  # rich would end the program if the output is closed
        console.print(table)
    print(captured.get(), end="")
