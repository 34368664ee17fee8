"""Makes the pictures of docs/pictures.md: two trainings on a synthetic table, in about a minute.

python docs/make_pictures.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

import sparrowboost
from sparrowboost.datasets import make_large
from sparrowboost.plots import (
    plot_draws,
    plot_edges,
    plot_importance,
    plot_sample,
    plot_training,
)

IMG = Path(__file__).parent / "img"
DPI = 96  # keeps the files small


def main() -> None:
    """Train twice, draw, save."""
    with tempfile.TemporaryDirectory() as folder:
        source = make_large(Path(folder) / "train.parquet", 2_000_000)
        valid = make_large(Path(folder) / "valid.parquet", 200_000, stream=1)
        data = sparrowboost.ingest(source, label="y", path=Path(folder) / "store", verbose=0)

        def train(**params):
            history = sparrowboost.History()
            model = sparrowboost.train(
                data, valid=valid, callbacks=[history], max_leaves=8, learning_rate=0.2,
                n_estimators=300, eval_metric="auc", verbose=0, **params,
            )  # fmt: skip
            return model, history

        model, history = train(sample_size=400_000)
        figure, axes = pyplot.subplots(2, 2, figsize=(11, 7.6), layout="constrained")
        plot_training(history, axes[0, 0])
        plot_edges(history, axes[0, 1])
        plot_sample(history, axes[1, 0])
        plot_importance(model, axes[1, 1], max_features=15)
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
        save(figure, "healthy.png")
        save(plot_draws(history).figure, "draws.png")

        _, history = train(sample_size=20_000)
        figure, axes = pyplot.subplots(1, 2, figsize=(11, 3.4), layout="constrained")
        plot_training(history, axes[0])
        plot_edges(history, axes[1])
        figure.get_layout_engine().set(w_pad=0.12)
        save(figure, "small-sample.png")


def save(figure, name: str) -> None:
    """Save as a PNG of few colours."""
    from PIL import Image

    path = IMG / name
    figure.savefig(path, dpi=DPI)
    with Image.open(path) as image:
        image.convert("RGB").quantize(128).save(path, optimize=True)


if __name__ == "__main__":
    main()
