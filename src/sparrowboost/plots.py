"""Pictures of a training and of a model; they need matplotlib."""

from sparrowboost.report.draws_plot import plot_draws
from sparrowboost.report.plots import plot_edges, plot_importance, plot_training
from sparrowboost.report.sample_plot import plot_sample

__all__ = ["plot_draws", "plot_edges", "plot_importance", "plot_sample", "plot_training"]
