"""Pictures of a training and of a model; they need matplotlib."""

from sparrowboost.report.plots import (
    plot_draws,
    plot_edges,
    plot_importance,
    plot_sample,
    plot_training,
)

__all__ = ["plot_draws", "plot_edges", "plot_importance", "plot_sample", "plot_training"]
