"""Thresholds made ready for the kernels that find the bins of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

GRID_CELLS = 4096  # 4 KB: stays in the first-level cache beside the values
MAX_STEPS = 8  # more steps than the plain search takes

Bins = npt.NDArray[np.uint8]


class Lookup:
    """Number thresholds made ready for the fastest kernel that suits them."""

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
        """The key that leaves the fewest steps; none, if the plain search takes fewer."""
        # Narrow scalars keep the kernel's arithmetic in the values' own width.
        wide = np.float32 if thresholds.dtype == np.float32 else np.float64
        with np.errstate(all="ignore"):
            low = wide(thresholds[0])
            scale = wide((GRID_CELLS - 1) / (wide(thresholds[-1]) - low))
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


class Table:
    """Bins of small integers, looked up."""

    def __init__(self, bins: Bins) -> None:
        self.bins = bins

    def __call__(self, x: npt.NDArray[Any], out: Bins) -> None:
        from sparrowboost.kernels.bins import bin_by_table

        bin_by_table(x, self.bins, out)


class Codes:
    """A column of byte codes and the table of their bins: many such are looked up at once."""

    def __init__(self, x: Bins, table: Bins) -> None:
        self.x = x
        self.table = np.zeros(256, np.uint8)
        self.table[: len(table)] = table[:256]


def bin_columns(columns: Mapping[int, Codes], out: Bins) -> None:
    """Bin columns of codes into their places in `out` (n, d)."""
    from sparrowboost.kernels.bins import bin_codes

    jobs = columns.values()
    codes = np.empty((len(columns), len(out)), np.uint8)
    for row, job in zip(codes, jobs, strict=True):
        row[:] = job.x
    tables = np.stack([job.table for job in jobs])
    bin_codes(codes, tables, np.array(list(columns), np.int64), out)


class LazyLookups(dict[str, Lookup | Table]):
    """Lookups made when a type is first met."""

    def __init__(self, make: Callable[[str], Lookup | Table]) -> None:
        self._make = make

    def __missing__(self, key: str) -> Lookup | Table:
        return self.setdefault(key, self._make(key))


def read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """One kernel signature, whoever owns the memory."""
    values = values.view()
    values.flags.writeable = False
    return values
