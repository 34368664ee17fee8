"""What a store says of rows that were appended: how they differ from those it began with.

`drift.py` measures it. The manifest and `--json` have it as `to_json` gives it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparrowboost.runtime.progress import log

SHOWN = 5  # features in a warning
SHIFT = 0.05  # a share that grew by so much is named in a warning
ADVICE = (
    "Their bins may no longer suit: to find new ones, ingest old and new rows together into a new "
    "store (or with overwrite=True, --overwrite), and train from the first tree."
)


class Change(NamedTuple):
    """A share of the rows, or a mean, of the rows that the store began with and of new ones."""

    before: float
    now: float

    @property
    def grew(self) -> bool:
        return self.now - self.before > SHIFT


class FeatureDrift(NamedTuple):
    """How a feature of appended rows differs from that of the rows that its bins were made for.

    Attributes
    ----------
    name, kind : str
    psi : float
        Population stability index over ten groups of bins that were equally filled, other
        categories and missing values; what chance alone would give is subtracted.
    large : bool
        Whether it is above 0.2, and far above chance.
    missing, first_bin, last_bin : (float, float)
        Shares of rows, before and now. The last bin has the values above the last threshold, or all
        categories without a bin of their own; the first bin those up to the first threshold.
    edges : str
        What the first and last bins have, in words.
    """

    name: str
    kind: str
    psi: float
    large: bool
    missing: Change
    first_bin: Change
    last_bin: Change
    edges: str

    def __str__(self) -> str:
        low, _, high = self.edges.partition("; ")
        found = [(self.missing, "missing"), (self.last_bin, high)]
        if self.kind != "category":
            found.insert(1, (self.first_bin, low))
        shown = [f"{what}: {_shares(change)}" for change, what in found if change.grew]
        return f"{self.name!r} ({', '.join([f'PSI {self.psi:.2f}', *shown])})"


class LabelDrift(NamedTuple):
    """How the labels of appended rows differ from those of the rows that the store began with.

    Attributes
    ----------
    of : value or None
        The class whose odds changed most, of two classes the positive one; None of numbers.
    share : (float, float)
        Its share of the rows, before and now; of numbers, their mean.
    size : float
        By which factor its odds grew or shrank; of numbers, the population stability index over
        their bands.
    large : bool
        Whether that is at least 1.5, or for numbers above 0.2, and far from chance.
    """

    of: Any
    share: Change
    size: float
    large: bool

    def __str__(self) -> str:
        if self.of is None:
            return f"their mean is {self.share.now:g}, before {self.share.before:g}"
        return f"{self.of!r} is {_shares(self.share)}"


@dataclass(frozen=True)
class Appended:
    """Rows that were appended at once.

    Examples
    --------
    >>> label = LabelDrift(1, Change(0.1, 0.2), 2.25, True)
    >>> some = Appended(5, "may.csv", 0, label, ())
    >>> Appended.from_json(some.to_json()) == some, str(label)
    (True, '1 is 20 % of rows, before 10 %')
    """

    rows: int
    source: str
    n_large: int  # features whose drift is large
    label: LabelDrift
    features: Sequence[FeatureDrift]  # those with the largest `psi`, first those of large drift

    @property
    def drifts(self) -> bool:
        """Whether any drift is large."""
        return self.n_large > 0 or self.label.large

    def warn(self, label_name: str) -> None:
        """Warn of large drift, in one line for features and one for labels."""
        facts = {"appended": self.to_json()}
        shown = [str(feature) for feature in self.features if feature.large][:SHOWN]
        if shown:
            more = self.n_large - len(shown)
            shown += [f"{more} more"] if more else []
            log.warning(
                "appended rows differ from those that the bins were made for: %s. %s",
                ", ".join(shown), ADVICE, extra=facts,
            )  # fmt: skip
        if self.label.large:
            log.warning(
                "labels of the appended rows differ from those of the rows that the store began "
                "with (%r): %s. Make sure that they mean the same.",
                label_name, self.label, extra=facts,
            )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "source": self.source,
            "n_large": self.n_large,
            "label": dict(_items(self.label)),
            "features": [dict(_items(feature)) for feature in self.features],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Appended:
        label = dict(found["label"])
        features = []
        for each in found["features"]:
            shares = {name: Change(*each[name]) for name in ("missing", "first_bin", "last_bin")}
            features.append(FeatureDrift(**{**each, **shares}))
        drift = LabelDrift(**{**label, "share": Change(*label["share"])})
        return cls(found["rows"], found["source"], found["n_large"], drift, tuple(features))


def _items(drift: FeatureDrift | LabelDrift) -> Iterator[tuple[str, Any]]:
    for name, value in zip(drift._fields, drift, strict=True):
        yield name, list(value) if isinstance(value, Change) else value


def _shares(change: Change) -> str:
    return f"{_percent(change.now)} of rows, before {_percent(change.before)}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else "100 %"
