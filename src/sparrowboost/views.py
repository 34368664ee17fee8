"""Views of a data set: some of its rows, or weights by label, over the same files."""

from sparrowboost.store.views import folds, split, with_class_weight

__all__ = ["folds", "split", "with_class_weight"]
