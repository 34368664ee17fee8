"""Nanoseconds per value and thread of the evidence kernel, which is where training spends its time.

    python benchmarks/bench_scan.py                               -> results/scan.json
    python benchmarks/bench_scan.py --rows 50000 --rounds 3   (smoke)

    root       all rows, in the order in which they lie
    leaf 1/8   a random eighth of the rows of each block, by their numbers

More rows than a cache holds, half of them positive, weights of float32. With two threads each has
rows, and a histogram, of its own. All shapes are run in turn, --rounds times, and the fastest round
of each counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
from rich.table import Table

import measure
import peers
from sparrowboost.kernels.evidence import add_rows
from sparrowboost.sampling.sample import BLOCK_ROWS

SHAPES = ((15, 255), (20, 255), (54, 255), (141, 5))  # features, bins of each
THREADS = (1, 2)
LEAF_SHARE = 8  # a leaf holds a row in so many


@dataclass(frozen=True)
class Rows:
    """The rows of one thread."""

    bins: np.ndarray  # (n, d) uint8
    label: np.ndarray  # (n,) uint8
    w: np.ndarray  # (n,) float32
    order: np.ndarray  # (n,) uint16
    begin: np.ndarray  # (blocks, 2) int32  column 0 all rows, column 1 the leaf's
    count: np.ndarray  # (blocks, 2) int32
    offset: np.ndarray  # (d,) uint64
    hist: np.ndarray  # (2, slots) float64
    v: np.ndarray  # (2,) float64

    @classmethod
    def draw(cls, n: int, d: int, n_bins: int, rng: np.random.Generator) -> Rows:
        blocks = -(-n // BLOCK_ROWS)
        order = np.empty(n, np.uint16)
        count = np.empty((blocks, 2), np.int32)
        for block in range(blocks):
            first = block * BLOCK_ROWS
            m = min(BLOCK_ROWS, n - first)
            leaf = rng.random(m) < 1 / LEAF_SHARE
            # its rows come first in `order`, so both leaves begin at 0
            order[first : first + m] = np.argsort(~leaf, kind="stable")
            count[block] = m, leaf.sum()
        return cls(
            bins=rng.integers(n_bins - 1, size=(n, d), dtype=np.uint8),  # the last is for missing
            label=rng.integers(2, size=n, dtype=np.uint8),
            w=rng.random(n, dtype=np.float32),
            order=order,
            begin=np.zeros((blocks, 2), np.int32),
            count=count,
            offset=np.arange(d, dtype=np.uint64) * np.uint64(n_bins),
            hist=np.zeros((2, d * n_bins)),
            v=np.zeros(2),
        )

    def add(self, leaf: int) -> None:
        blocks = np.arange(len(self.count))
        add_rows(
            self.bins, self.label, self.w, self.order, self.begin, self.count, blocks, BLOCK_ROWS,
            leaf, self.offset, None, self.hist, self.v,
        )  # fmt: skip

    def check(self) -> None:
        """The leaf's evidence is what numpy gives, on its first feature."""
        self.hist[:] = 0
        self.add(leaf=1)
        kept = np.concatenate(
            [
                block * BLOCK_ROWS + self.order[block * BLOCK_ROWS :][:m].astype(np.int64)
                for block, m in enumerate(self.count[:, 1])
            ]
        )
        for y in (0, 1):
            some = kept[self.label[kept] == y]
            expected = np.bincount(self.bins[some, 0], self.w[some])
            if not np.allclose(self.hist[y, : len(expected)], expected):
                raise RuntimeError("the kernel's sums are not those of numpy.")


def parallel(parts: list[Rows], leaf: int, pool: ThreadPoolExecutor) -> Callable[[], None]:
    return lambda: list(pool.map(lambda rows: rows.add(leaf), parts)) and None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=500_000, help="of each thread")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=peers.RESULTS / "scan.json")
    args = parser.parse_args()
    console = peers.make_console()
    rng = np.random.default_rng(0)
    result: dict[str, dict[str, float]] = {}
    with ThreadPoolExecutor(max(THREADS)) as pool:
        for d, n_bins in SHAPES:
            parts = [Rows.draw(args.rows, d, n_bins, rng) for _ in range(max(THREADS))]
            parts[0].check()  # compiles, too
            values = {"root": args.rows * d, "leaf 1/8": int(parts[0].count[:, 1].sum()) * d}
            runs = {
                f"{name}, {threads} threads" if threads > 1 else f"{name}, 1 thread": (
                    parallel(parts[:threads], leaf, pool),
                    values[name],
                )
                for leaf, name in enumerate(values)
                for threads in THREADS
            }
            best = dict.fromkeys(runs, float("inf"))
            for _ in range(args.rounds):
                for name, (run, n_values) in runs.items():
                    start = perf_counter()
                    run()
                    best[name] = min(best[name], (perf_counter() - start) / n_values * 1e9)
            result[f"{d} features of {n_bins} bins"] = {k: round(v, 3) for k, v in best.items()}
    table = Table("ns per value and thread", *next(iter(result.values())))
    for shape, row in result.items():
        table.add_row(shape, *(f"{value:.2f}" for value in row.values()))
    console.print(table)
    machine = measure.machine(["sparrowboost", "numpy", "numba"])
    payload = {"command": measure.command(), "machine": machine, "rows": args.rows}
    measure.write_json(args.out, {**payload, "ns_per_value": result})


if __name__ == "__main__":
    main()
