"""Feature importances."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparrowboost.model.model import Model, check_model
from sparrowboost.runtime.errors import DataError

KINDS = ("gain", "splits")


def feature_importances(model: Model, kind: str = "gain") -> npt.NDArray[np.float64]:
    """Each feature's share of the trees' splits, by gain or by number.

        gain     sum of the gains of the splits on the feature / sum of all gains
        splits   number of the splits on the feature / number of all splits

    A split's gain is the loss that it removes from all data, to second order and for a full step
    (``docs/learner.md``). All trees' gains have the same unit, whatever the number and weight of
    the rows that they were grown on, so gains can be summed.

    Parameters
    ----------
    model : Model
    kind : {"gain", "splits"}

    Returns
    -------
    (d,) float64
        In the order of `model.feature_names`; sums to 1, or is 0 where no tree has a split.

    Examples
    --------
    >>> import numpy as np, sparrowboost
    >>> X = np.random.default_rng(0).normal(size=(1000, 3))
    >>> ds = sparrowboost.ingest(X, label=X[:, 0] + X[:, 1] / 4 > 0, verbose=0)
    >>> model = sparrowboost.train(ds, n_estimators=20, verbose=0)
    >>> sparrowboost.feature_importances(model).round(2)
    array([0.89, 0.11, 0.  ])
    """
    check_model(model)
    if kind not in KINDS:
        raise DataError(f"kind={kind!r} is unknown; give one of {', '.join(KINDS)}.")
    total = np.zeros(len(model.feature_names))
    for tree in model.trees:
        np.add.at(total, tree.feature, tree.gain if kind == "gain" else 1.0)
    return total / (total.sum() or 1.0)
