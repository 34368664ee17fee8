"""One seed from everything that scikit-learn accepts as a random state."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparrowboost.runtime.errors import DataError

RandomState = int | np.integer[Any] | np.random.Generator | np.random.RandomState | None


def check_seed(random_state: RandomState) -> int:
    """A seed from a random state; None draws one from numpy's global generator.

    Examples
    --------
    >>> check_seed(7)
    7
    """
    if random_state is None:  # numpy's global generator, as in scikit-learn
        return int(np.random.randint(2**31))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**63))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    if isinstance(random_state, int | np.integer) and 0 <= random_state < 2**64:
        return int(random_state)
    raise DataError(
        f"random_state={random_state!r}: give a whole number from 0 to 2**64 - 1, a numpy "
        "Generator or RandomState, or None."
    )
