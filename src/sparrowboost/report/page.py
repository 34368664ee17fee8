"""A report of a training: one HTML page that needs neither network nor scripts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from sparrowboost.learner.params import Params
from sparrowboost.model.model import Model, check_model
from sparrowboost.report.facts import cards, doubts, lead, tiles, versions
from sparrowboost.report.figures import pictures
from sparrowboost.report.history import History
from sparrowboost.report.style import check_history, check_matplotlib, text
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.remote import RemotePath, output_target, write_bytes
from sparrowboost.store.dataset import Dataset


def write_report(
    path: str | os.PathLike[str],
    model: Model,
    history: History,
    *,
    dataset: Dataset | None = None,
    params: Params | Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
    title: str = "Sparrow training report",
    storage_options: Mapping[str, Any] | None = None,
) -> Path | RemotePath:
    """Write a report of a training: its cost, its course, and what the model uses.

    The page is one self-contained file with pictures and style in it. It needs matplotlib.

    Parameters
    ----------
    path : str or path
        The HTML file, local or in remote storage; an existing one is replaced.
    model : Model
    history : History
        Of the training that produced it.
    dataset : Dataset, optional
        The training data, to be described.
    params : Params or mapping, optional
        What was passed to `train`; the page shows all parameters and marks the changed ones.
    about : mapping, optional
        More entries for the page, such as ``{"command": "sparrow train ..."}``.
    title : str
    storage_options : dict, optional
        For remote storage, as in `ingest`.

    Returns
    -------
    Path
        Where it is.

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
    file = output_target(path, storage_options)
    if isinstance(file, Path) and not file.parent.is_dir():
        raise DataError(f"{file}: there is no folder {file.parent}; create it first.")
    check_model(model)
    check_history(history)
    check_matplotlib()
    if params is not None and not isinstance(params, Params):
        params = Params.make(**params)
    page = _page(model, history, dataset, params, about or {}, title)
    write_bytes(file, page.encode("utf-8", "xmlcharrefreplace"))
    return file


def _page(
    model: Model,
    history: History,
    dataset: Dataset | None,
    params: Params | None,
    about: Mapping[str, Any],
    title: str,
) -> str:
    style = (resources.files("sparrowboost") / "data" / "report.css").read_text("utf-8")
    # No script may run and nothing may be loaded, whatever a column's name contains.
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
<p>{text(lead(model, history, dataset))}</p>
{doubts(model, history)}<div class="tiles">
{tiles(history, dataset)}
</div>
<h2>How training went</h2>
<div class="grid">
{pictures(model, history)}
</div>
<h2>In numbers</h2>
<div class="cards">
{cards(model, history, dataset, params, about)}
</div>
<footer>{text(versions())}</footer>
</main>
</body>
</html>
"""
