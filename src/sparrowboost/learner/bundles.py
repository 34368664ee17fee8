"""Bundles: columns of which at most one is set in any row, scanned as one column.

    is_red  is_blue  is_green   ->   bundle
      1       0        0               1
      0       0        1               3
      0       0        0               0

Rows of one-hot columns then have few values to add. Only scanning knows about bundles: the sums of
a column are recovered from its bundle's, and its other bin is the remainder of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparrowboost.learner.evidence import Slots
from sparrowboost.store.lookup import Bins

BINARY_BINS = 3  # two values and the bin of missing ones
MAX_MEMBERS = 255
MAX_TRIED = 8  # bundles tried for a column
MIN_SAVED = 0.25  # of all columns; less is not worth a second copy of the bins


@dataclass(frozen=True)
class Bundles:
    """Which columns are scanned as they are, and which together.

    Attributes
    ----------
    plain : (p,) columns that are scanned as they are
    members : columns of each bundle; the k-th is set where the bundle is k + 1
    ones : (d,) the bin of each column that is "set"
    slots : of the packed rows
    """

    plain: npt.NDArray[np.int64]
    members: list[npt.NDArray[np.int64]]
    ones: npt.NDArray[np.uint8]
    slots: Slots
    _source: npt.NDArray[np.int64]  # (slots of the unpacked,) the packed slot that each takes
    _rest: npt.NDArray[np.int64]  # slots that are the remainder of the whole ...
    _set: npt.NDArray[np.int64]  # ... after these

    def pack(self, bins: Bins) -> Bins:
        """The rows with each bundle as one column, after the plain ones."""
        packed = np.empty((len(bins), len(self.plain) + len(self.members)), np.uint8)
        packed[:, : len(self.plain)] = bins[:, self.plain]
        for b, members in enumerate(self.members, len(self.plain)):
            code = np.zeros(len(bins), np.uint8)
            for k, column in enumerate(members, 1):
                code[bins[:, column] == self.ones[column]] = k
            packed[:, b] = code
        return packed

    def columns_of(self, features: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """(packed columns,) which of them hold any of these features (d,)."""
        bundled = [features[members].any() for members in self.members]
        return np.concatenate((features[self.plain], np.array(bundled, np.bool_)))

    def unpack(self, hist: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """(2, slots) sums of the columns from those (2, packed slots) of the packed rows."""
        first = int(self.slots.n_bins[0])
        whole = hist[:, :first].sum(1, keepdims=True)
        padded = np.zeros((2, hist.shape[1] + 1))  # the last slot has no rows
        padded[:, :-1] = hist
        full = padded.take(self._source, axis=1, mode="clip")  # three times as fast as indexing
        full[:, self._rest] = whole - full.take(self._set, axis=1, mode="clip")
        return full


def find_bundles(bins: Bins, slots: Slots) -> Bundles | None:
    """Bundles of columns that are never set together in these rows; None if they save little."""
    d = slots.n_features
    ones = np.zeros(d, np.uint8)
    members: list[list[int]] = []
    taken: list[npt.NDArray[np.bool_]] = []  # rows where the last few bundles are set
    bundled: set[int] = set()
    for j in np.flatnonzero((slots.n_bins == BINARY_BINS) & (slots.category == 0)):
        column = np.ascontiguousarray(bins[:, j])
        counts = np.bincount(column, minlength=BINARY_BINS)
        if counts[BINARY_BINS - 1]:  # missing values would be a second "set"
            continue
        ones[j] = int(counts[1] <= counts[0])
        mine = column == ones[j]
        for group, others in zip(members[-MAX_TRIED:], taken, strict=True):
            if len(group) < MAX_MEMBERS and not (others & mine).any():
                group.append(int(j))
                others |= mine
                break
        else:
            members.append([int(j)])
            taken = [*taken, mine][-MAX_TRIED:]  # bounded: each takes a byte a row
        bundled.add(int(j))
    lone = {group[0] for group in members if len(group) == 1}
    groups = [np.array(group) for group in members if len(group) > 1]
    saved = sum(len(group) - 1 for group in groups)
    if saved < MIN_SAVED * d:
        return None
    plain = np.array([j for j in range(d) if j not in bundled or j in lone], np.int64)
    return _lay_out(plain, groups, ones, slots)


def _lay_out(
    plain: npt.NDArray[np.int64],
    groups: list[npt.NDArray[np.int64]],
    ones: npt.NDArray[np.uint8],
    slots: Slots,
) -> Bundles:
    n_bins = np.concatenate((slots.n_bins[plain], [len(group) + 1 for group in groups]))
    offset = np.concatenate(([0], np.cumsum(n_bins)[:-1]))
    nothing = int(n_bins.sum())
    source = np.full(slots.n, nothing, np.int64)
    old = slots.offset.astype(np.int64)
    for column, start in zip(plain, offset, strict=False):
        k = int(slots.n_bins[column])
        source[old[column] : old[column] + k] = start + np.arange(k)
    rest, set_ = [], []
    for group, start in zip(groups, offset[len(plain) :], strict=True):
        for k, column in enumerate(group, 1):
            source[old[column] + ones[column]] = start + k
            set_.append(old[column] + int(ones[column]))
            rest.append(old[column] + 1 - int(ones[column]))
    category = np.concatenate((slots.category[plain], np.zeros(len(groups), np.uint8)))
    packed = Slots(offset.astype(np.uint64), n_bins.astype(np.int64), category)
    return Bundles(plain, groups, ones, packed, source, np.array(rest), np.array(set_))
