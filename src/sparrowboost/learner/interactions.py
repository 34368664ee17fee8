"""Interaction constraints: which features may be on the way to the same leaf.

With the sets {a, b} and {b, c}, a leaf below a split of

    nothing    any feature         the root may split on any
    a          a, b                of the sets, only {a, b} has a
    b          a, b, c             both sets have b
    a and b    a, b
    d          d                   a feature of no set is used alone

This is what XGBoost does with the same sets. scikit-learn differs in one point: there, features of
no set are one more set together.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparrowboost.runtime.errors import DataError
from sparrowboost.store.binning import Binning

Given = str | Sequence[Collection[str | int]] | None
Features = npt.NDArray[np.int64]  # (m,) numbers of features, ascending

PAIRWISE, NONE = "pairwise", "no_interactions"
WORDS = (PAIRWISE, NONE)  # as in scikit-learn
NAME = "interaction_constraints"
SHOWN = 8  # names of features in an error


def check_interactions(given: Given) -> None:
    """Refuse what cannot be sets of features, whatever the data."""
    if given is None or (isinstance(given, str) and given in WORDS):
        return
    shown = f"{NAME}={reprlib.repr(given)}"
    if isinstance(given, str) or not _holds_several(given):
        raise DataError(
            f"{shown}: give a list of lists of features, or 'pairwise' or 'no_interactions'."
        )
    if len(given) == 0:
        raise DataError(
            f"{shown}: the list is empty; give None for no constraints, or 'no_interactions'."
        )
    for members in given:
        if not _holds_several(members) or len(members) == 0:
            raise DataError(
                f"{shown}: {reprlib.repr(members)} is not a list of features; give lists of "
                "names or numbers of features, such as [['a', 'b'], ['b', 'c']]."
            )
        for member in members:
            whole = isinstance(member, int | np.integer) and not isinstance(member, bool)
            if not whole and not isinstance(member, str):
                raise DataError(
                    f"{shown}: {reprlib.repr(member)} is not a feature; give names or numbers."
                )


def _holds_several(value: object) -> bool:
    """Whether this is a list of something: no text, and no mapping."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    listed = isinstance(value, Sequence | AbstractSet)
    return listed and not isinstance(value, str | bytes | Mapping)


@dataclass(frozen=True)
class Interactions:
    """The sets of features that may be used together.

    Attributes
    ----------
    n_features : int
    sets : tuple of frozenset of int, or None
        None: any two features are a set. Statistics of a column belong to its feature.
    column : (n_features,) int64, optional
        The feature that each belongs to. Default: itself.
    """

    n_features: int
    sets: tuple[frozenset[int], ...] | None
    column: Features | None = None

    @classmethod
    def of(cls, given: Given, binning: Binning) -> Interactions | None:
        """The constraints that a user gave, or None where there are none.

        Examples
        --------
        >>> from sparrowboost.store.binning import NumberFeature
        >>> abc = (NumberFeature(name, "float64", np.array([0.5])) for name in "abc")
        >>> Interactions.of([["a", "b"], [1]], Binning(tuple(abc))).sets
        (frozenset({0, 1}), frozenset({1}))
        """
        check_interactions(given)
        if given is None:
            return None
        d, column = len(binning.features), binning.column_of if binning.statistics else None
        if isinstance(given, str):
            return cls(d, None if given == PAIRWISE else (), column)
        number = {name: k for k, name in enumerate(binning.column_names)}
        found = (frozenset(_find(one, number) for one in members) for members in given)
        return cls(d, tuple(found), column)

    def allowed(self, used: frozenset[int]) -> Features:
        """The features that a leaf may be split on, below splits of these."""
        if not used:
            return np.arange(self.n_features)
        column = np.arange(self.n_features) if self.column is None else self.column
        columns = frozenset(column[[*used]].tolist())
        if self.sets is not None:
            columns = columns.union(*(one for one in self.sets if columns <= one))
        elif len(columns) == 1:
            return np.arange(self.n_features)
        return np.flatnonzero(np.isin(column, [*columns]))

    def to_json(self) -> str | list[list[int]]:
        """The same for the same constraints, however they were given."""
        if self.sets is None:
            return PAIRWISE
        return sorted(sorted(one) for one in self.sets) or NONE


def _find(member: str | int, number: Mapping[str, int]) -> int:
    """The number of a feature that was given by name or number."""
    if isinstance(member, str):
        if member not in number:
            some = ", ".join(list(number)[:SHOWN])
            more = f", ... ({len(number)} features)" if len(number) > SHOWN else ""
            raise DataError(f"{NAME}: no feature is called {member!r}; the data has {some}{more}.")
        return number[member]
    if not 0 <= member < len(number):
        raise DataError(
            f"{NAME}: there is no feature {member}; the data has features 0 to {len(number) - 1}."
        )
    return int(member)
