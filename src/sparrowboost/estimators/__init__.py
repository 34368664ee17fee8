"""The scikit-learn estimators: they validate their input, then call `ingest` and `train`."""

from sparrowboost.estimators.classifier import SparrowClassifier
from sparrowboost.estimators.regressor import SparrowRegressor

__all__ = ["SparrowClassifier", "SparrowRegressor"]
