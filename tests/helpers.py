"""What several test files need: a small table, and a store's rows beside naively binned ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa

from sparrowboost.store.binning import NumberFeature


def small_table(n=3_000, seed=0) -> pa.Table:
    """Numbers, whole numbers, categories, missing values of each, a weight and a label."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    color = rng.choice(["red", "green", "blue"], n)
    return pa.table(
        {
            "x": pa.array(x, mask=rng.random(n) < 0.1),
            "count": pa.array(rng.integers(0, 400, n), mask=rng.random(n) < 0.1),
            "color": pa.array(color.tolist(), mask=rng.random(n) < 0.1),
            "w": rng.random(n).astype(np.float32),
            "y": (x + (color == "red") + rng.normal(size=n) > 1).astype(np.int8),
        }
    )


def naive_bins(feature, values) -> list[int]:
    """One column binned by comparing each value with each threshold."""
    out = []
    for value in values:
        if value is None or value != value:
            out.append(feature.n_values)
        elif isinstance(feature, NumberFeature):
            out.append(sum(t < value for t in feature.thresholds.tolist()))
        else:
            known = feature.categories
            out.append(known.index(str(value)) if str(value) in known else len(known))
    return out


def stored_rows(dataset) -> Counter:
    """The store's rows as a multiset of (bins, label, weight)."""
    rows: Counter = Counter()
    for block in dataset.blocks():
        weights = [None] * len(block.label) if block.weight is None else block.weight.tolist()
        rows.update(
            zip(map(tuple, block.bins.tolist()), block.label.tolist(), weights, strict=True)
        )
    return rows


def naive_rows(dataset, columns, label, weight=None) -> Counter:
    """The rows that the store should hold, by its own thresholds and categories."""
    bins = zip(
        *(naive_bins(feature, columns[feature.name]) for feature in dataset.binning.features),
        strict=True,
    )
    return Counter(zip(bins, label, weight or [None] * len(label), strict=True))


def open_files(folder) -> tuple[int, int]:
    """How many files this process has open, and what those below a folder take of the disk.

    Those without a name are counted, too.
    """
    links = list(Path("/proc/self/fd").iterdir())
    n_bytes = 0
    for link in links:
        try:
            if str(link.readlink()).startswith(f"{folder}/"):
                n_bytes += 512 * link.stat().st_blocks
        except FileNotFoundError:  # closed since: such as the one that listed them
            pass
    return len(links), n_bytes
