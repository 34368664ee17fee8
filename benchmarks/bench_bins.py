"""Nanoseconds per value of the binning kernels, beside numpy.searchsorted.

One thread, 255 bins, 65,536 values of float32 in cache, bins written with the stride of a row of 20
features. All are run in turn, `--rounds` times, and the fastest round of each counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import measure
from sparrowboost.kernels.bins import bin_by_search
from sparrowboost.store.lookup import ThresholdLookup

N, STRIDE = 65_536, 21
SHAPES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "lognormal, sigma 2": lambda rng, n: rng.lognormal(0, 2, n),
    "far from zero": lambda rng, n: 1e6 + rng.random(n) * 1e5,
}


def contestants(x: np.ndarray, thresholds: np.ndarray) -> dict[str, Callable[[], None]]:
    out = np.empty((N, STRIDE), np.uint8)[:, 3]
    missing = np.uint8(len(thresholds) + 1)
    lookup = ThresholdLookup(thresholds, missing)
    padded = np.append(thresholds, np.full(256 - len(thresholds), np.inf, np.float32))

    def searchsorted() -> None:
        out[:] = np.searchsorted(thresholds, x)

    runs = {
        "numpy.searchsorted": searchsorted,
        "search without branches": lambda: bin_by_search(x, padded, missing, out),
        "first guess, then step": lambda: lookup(x, out),
    }
    searchsorted()
    expected = out.copy()
    for name, run in runs.items():
        run()  # compile
        if not np.array_equal(out, expected):
            raise RuntimeError(f"{name} gives other bins than numpy.searchsorted.")
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/bins.json"))
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    result: dict[str, dict[str, float]] = {}
    for shape, draw in SHAPES.items():
        thresholds = np.quantile(draw(rng, 200_000), np.arange(1, 255) / 255).astype(np.float32)
        runs = contestants(draw(rng, N).astype(np.float32), np.unique(thresholds))
        best = dict.fromkeys(runs, float("inf"))
        for _ in range(args.rounds):
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                best[name] = min(best[name], time.perf_counter() - start)
        result[shape] = {name: round(seconds / N * 1e9, 2) for name, seconds in best.items()}
    table = Table("ns per value", *result["normal"])
    for shape, row in result.items():
        table.add_row(shape, *(f"{value:.1f}" for value in row.values()))
    Console().print(table)
    machine = measure.machine(["sparrowboost", "numpy", "numba"])
    payload = {"command": measure.command(), "machine": machine, "ns_per_value": result}
    measure.write_json(args.out, payload)


if __name__ == "__main__":
    main()
