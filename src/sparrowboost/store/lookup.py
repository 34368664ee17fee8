"""Lookup tables for the kernels that find the bins of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

GRID_CELLS = 4096  # 4 KB: the table stays in the first-level cache
MAX_STEPS = 8  # the binary search takes as many

Bins = npt.NDArray[np.uint8]


class ThresholdLookup:
    """The bins of numbers, by the fastest kernel for their thresholds.

    Parameters
    ----------
    thresholds : (k,) array
        Ascending; at most 254, in the dtype of the values.
    missing : uint8
        The bin of missing values.
    """

    def __init__(self, thresholds: npt.NDArray[Any], missing: np.uint8) -> None:
        dtype = thresholds.dtype
        largest = np.inf if dtype.kind == "f" else np.iinfo(dtype).max
        self._missing = missing
        self._padded = np.full(256, largest, dtype)
        self._padded[: len(thresholds)] = thresholds
        self._lut: Bins | None = None
        self._grid: tuple[Any, Any] | None = None
        if len(thresholds):
            self._choose(thresholds)

    def _choose(self, thresholds: npt.NDArray[Any]) -> None:
        """Choose the key with the fewest steps; none if the binary search takes fewer."""
        # Scalars of the values' own precision keep the kernel's arithmetic in it.
        real = np.float32 if thresholds.dtype == np.float32 else np.float64
        with np.errstate(all="ignore"):
            low = real(thresholds[0])
            scale = real((GRID_CELLS - 1) / (real(thresholds[-1]) - low))
            keys = (thresholds - low) * scale
            bits = thresholds.astype(np.float32).view(np.int32)  # too large: infinity, and last
        options: list[tuple[npt.NDArray[np.int64], tuple[Any, Any] | None]] = []
        if 0 < scale < np.inf and np.isfinite(low) and np.isfinite(keys).all():
            keys = np.clip(keys, 0, GRID_CELLS - 1).astype(np.int64)
            options.append((np.bincount(keys, minlength=GRID_CELLS), (low, scale)))
        bits = (bits ^ ((bits >> 31) | np.int32(-(2**31)))).view(np.uint32) >> 16
        options.append((np.bincount(bits, minlength=1 << 16), None))
        share, grid = min(options, key=lambda option: option[0].max())
        self._steps = int(share.max())
        if self._steps <= MAX_STEPS:
            self._lut = (np.cumsum(share) - share).astype(np.uint8)
            self._grid = grid

    def __call__(self, x: npt.NDArray[Any], out: Bins) -> None:
        from sparrowboost.kernels.bins import bin_by_bits, bin_by_grid, bin_by_search

        if self._lut is None:
            bin_by_search(x, self._padded, self._missing, out)
        elif self._grid is None:
            bin_by_bits(x, self._padded, self._lut, self._steps, self._missing, out)
        else:
            low, scale = self._grid
            bin_by_grid(x, self._padded, self._lut, low, scale, self._steps, self._missing, out)


class TableLookup:
    """The bins of small integers, by a table."""

    def __init__(self, bins: Bins) -> None:
        self.bins = bins

    def __call__(self, x: npt.NDArray[Any], out: Bins) -> None:
        from sparrowboost.kernels.bins import bin_by_table

        bin_by_table(x, self.bins, out)


class CodedColumn:
    """A column of byte codes and the table of their bins; many columns are binned at once."""

    def __init__(self, x: Bins, table: Bins) -> None:
        self.x = x
        self.table = np.zeros(256, np.uint8)
        self.table[: len(table)] = table[:256]


def bin_coded(columns: Mapping[int, CodedColumn], out: Bins) -> None:
    """Bin coded columns into the columns of `out` (n, d) with these numbers."""
    from sparrowboost.kernels.bins import bin_codes

    codes = np.empty((len(columns), len(out)), np.uint8)
    for row, column in zip(codes, columns.values(), strict=True):
        row[:] = column.x
    tables = np.stack([column.table for column in columns.values()])
    bin_codes(codes, tables, np.array(list(columns), np.int64), out)


def read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A read-only view: a kernel is then compiled once, for arrays of any owner."""
    values = values.view()
    values.flags.writeable = False
    return values
