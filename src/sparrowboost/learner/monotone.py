r"""Monotone constraints: features of which the score never falls, or never rises, as they grow.

A split of such a feature whose sides are in the wrong order is not taken (`kernels/splits.py`). But
splits further down could reverse the order, and so could the final values of leaves, which come
from another formula and perhaps from more rows. So the values of leaves are kept within bounds:

               x < 3                      all values on the left <= m <= all on the right, where
              /     \                     m is the midpoint of the values that the two sides would
       -0.2  / m=0.1 \  0.4               have if they were leaves; where those are in the wrong
            /         \                   order, the value that the split leaf would have
        y < 1         y < 5
        /   \         /   \               a split of another feature passes its bounds on
     -0.5   0.3    0.2    0.7
             |
            0.1 = m                       a leaf takes the allowed value nearest to its best

Why that makes a tree monotone in x, however often and in whatever order its features are split:
take two rows that differ in x only. Either they end in the same leaf, or some node is the first to
send them to different sides. That node splits x, and all values on the side of the smaller x are at
most its m, all on the other at least m. The learning rate, rounding to float32 and adding up tree
after tree keep the order of two numbers; so the model is monotone, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparrowboost.model.tree import Mask, TreeBuilder
from sparrowboost.runtime.errors import DataError
from sparrowboost.store.binning import Binning, CategoryFeature

Given = Mapping[str, int] | Sequence[int] | None
Bounds = tuple[float, float]  # the minimum and maximum value that a leaf may have
Floats = npt.NDArray[np.float64]

FREE: Bounds = (-math.inf, math.inf)
SHOWN = 8  # names of features in an error


@dataclass(frozen=True)
class Monotone:
    """The sign of each feature's effect, and the bounds that follow for a tree's leaves."""

    sign: npt.NDArray[np.int8]  # (d,) 1: the score never falls as it grows, -1: never rises
    n_bins: npt.NDArray[np.int64]  # (d,) including the bin of missing values

    @classmethod
    def of(cls, given: Given, binning: Binning) -> Monotone | None:
        """The constraints that a user gave, or None where no feature has one.

        Examples
        --------
        >>> from sparrowboost.store.binning import NumberFeature
        >>> x, y = (NumberFeature(name, "float64", np.array([0.5])) for name in "xy")
        >>> Monotone.of({"y": -1}, Binning((x, y))).sign
        array([ 0, -1], dtype=int8)
        """
        if given is None:
            return None
        names = binning.names
        if isinstance(given, Mapping):
            for name in given:
                if name not in names:
                    more = f", ... ({len(names)} features)" if len(names) > SHOWN else ""
                    raise DataError(
                        f"monotone_constraints: no feature is called {name!r}; the data has "
                        f"{', '.join(names[:SHOWN])}{more}."
                    )
            given = [given.get(name, 0) for name in names]
        elif len(given) == len(binning.columns):  # statistics have no order of their own
            given = [*given, *[0] * (len(names) - len(given))]
        if len(given) != len(names):
            raise DataError(
                f"monotone_constraints has {len(given)} entries and the data "
                f"{len(binning.columns)} features; give one for each feature, or a mapping by name."
            )
        for feature, sign in zip(binning.features, given, strict=True):
            if sign and isinstance(feature, CategoryFeature):
                raise DataError(
                    f"monotone_constraints: {feature.name!r} has categories, which have no order; "
                    "give 0, or ingest the feature as numbers."
                )
        signs = np.array(given, np.int8)
        return cls(signs, binning.n_bins) if signs.any() else None

    def part(
        self, feature: int, mask: Mask, bounds: Bounds, own: float, left: float, right: float
    ) -> tuple[Bounds, Bounds]:
        """Bounds of the left and of the right side of a split.

        The leaf that is split has the best value `own` and these bounds, its sides have the best
        values `left` and `right`.
        """
        sign, last = int(self.sign[feature]), int(self.n_bins[feature]) - 2
        # With all values on the left, only missing ones go right: these have no order.
        if sign == 0 or int(mask[last >> 6]) >> (last & 63) & 1:
            return bounds, bounds
        lower, upper = bounds
        own, left, right = (min(max(value, lower), upper) for value in (own, left, right))
        # More rows since the split was chosen, or another formula for values, may have reversed the
        # order of its sides: then one value fits the rows of both best.
        middle = 0.5 * (left + right) if (right - left) * sign >= 0 else own
        below, above = (lower, middle), (middle, upper)
        return (below, above) if sign > 0 else (above, below)

    def bounds(self, tree: TreeBuilder, sums: Floats, value: Callable[[Floats], Floats]) -> Floats:
        """Bounds of each leaf's value, from the values that all nodes would have as leaves.

        Parameters
        ----------
        tree : TreeBuilder
        sums : (leaves, k)
            What the value of a leaf depends on; that of a node depends on the sum of its leaves'.
        value : callable
            The best values (m,) of sums (m, k).

        Returns
        -------
        (leaves, 2)
        """
        n = tree.n_leaves - 1
        links = tree.child[:n]
        child = np.where(links >= 0, links, n + ~links).tolist()  # nodes first, then leaves
        total = np.concatenate((np.zeros((n, sums.shape[1])), sums))
        for node in range(n - 1, -1, -1):  # children come after their parent
            total[node] = total[child[node]].sum(0)
        best = value(total).tolist()
        bounds = [FREE] * len(best)
        for node, (right, left) in enumerate(child):
            bounds[left], bounds[right] = self.part(
                int(tree.feature[node]),
                tree.mask[node],
                bounds[node],
                best[node],
                best[left],
                best[right],
            )
        return np.array(bounds[n:])
