"""Deprecated: import `train`, `plan` and `Params` from `sparrowboost`."""

import warnings

from sparrowboost.learner.params import Params
from sparrowboost.learner.training import plan, train

__all__ = ["Params", "plan", "train"]

warnings.warn(
    "sparrowboost.params is deprecated: import train, plan and Params from sparrowboost",
    DeprecationWarning,
    stacklevel=2,
)
