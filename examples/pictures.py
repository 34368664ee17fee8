"""Watch a training with a callback, draw it, and write its report."""

from __future__ import annotations

import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

import sparrowboost
from sparrowboost.datasets import make_large
from sparrowboost.events import Event, SampleDrawn, TreeAdded
from sparrowboost.plots import (
    plot_draws,
    plot_edges,
    plot_importance,
    plot_sample,
    plot_training,
)
from sparrowboost.views import split


def show(event: Event) -> None:
    """Print each sample, and every 20th tree."""
    if isinstance(event, SampleDrawn):
        print(f"{event.seconds:5.1f} s  a sample of {event.sample_rows:,} rows: {event.reason}")
    if isinstance(event, TreeAdded) and event.n_trees % 20 == 0:
        print(f"{event.seconds:5.1f} s  tree {event.n_trees}: {event.scores['log_loss']:.4f}")


def main(out: Path, rows: int = 300_000) -> None:
    """Train, then write pictures.png, draws.png and report.html into a folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = make_large(Path(folder) / "rows.parquet", rows)
        data, valid = split(sparrowboost.ingest(path, label="y", verbose=0), 0.1)
        history = sparrowboost.History()
        params = {"n_estimators": 100, "max_leaves": 8, "sample_size": rows // 4}
        model = sparrowboost.train(
            data, valid=valid, callbacks=[show, history], verbose=0, **params
        )
        figure, axes = pyplot.subplots(2, 2, figsize=(11, 7.6), layout="constrained")
        plot_training(history, axes[0, 0])
        plot_edges(history, axes[0, 1])
        plot_sample(history, axes[1, 0])
        plot_importance(model, axes[1, 1], max_features=15)
        figure.savefig(out / "pictures.png")
        pyplot.close(figure)
        figure = plot_draws(history).figure
        figure.savefig(out / "draws.png")
        pyplot.close(figure)
        sparrowboost.write_report(out / "report.html", model, history, dataset=data, params=params)


if __name__ == "__main__":
    main(Path())
