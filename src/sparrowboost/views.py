"""Parts of a data set, and weights of its labels, over the same files."""

from sparrowboost.store.views import folds, split, with_class_weight

__all__ = ["folds", "split", "with_class_weight"]
