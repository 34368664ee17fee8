"""What several test files need: small tables, a store's rows beside naive ones, another user."""

from __future__ import annotations

import os
import subprocess
import sys
from bisect import bisect_left
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparrowboost import DataError, ingest
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
    """One column binned by Python's own comparisons of each value with the thresholds."""
    thresholds = feature.thresholds.tolist() if isinstance(feature, NumberFeature) else []
    assert thresholds == sorted(thresholds)
    out = []
    for value in values:
        if value is None or value != value:
            out.append(feature.n_values)
        elif isinstance(feature, NumberFeature):
            out.append(bisect_left(thresholds, value))  # how many are less
        else:
            known = feature.categories
            out.append(known.index(str(value)) if str(value) in known else len(known))
    return out


def stored_rows(dataset) -> Counter:
    """The store's rows as a multiset of (bins, label, weight); the label may be a target."""
    rows: Counter = Counter()
    for block in dataset.blocks():
        labels = block.label if block.target is None else block.target
        weights = [None] * len(labels) if block.weight is None else block.weight.tolist()
        rows.update(zip(map(tuple, block.bins.tolist()), labels.tolist(), weights, strict=True))
    return rows


def naive_rows(dataset, columns, label, weight=None) -> Counter:
    """The rows that the store should hold, by its own thresholds and categories."""
    bins = zip(
        *(naive_bins(feature, columns[feature.name]) for feature in dataset.binning.features),
        strict=True,
    )
    return Counter(zip(bins, label, weight or [None] * len(label), strict=True))


def check_ingested(data, table, **options):
    """Ingest data, whose rows are to be those of a table; the data set."""
    dataset = ingest(data, label="y", verbose=0, **options)
    columns = table.to_pydict()
    assert stored_rows(dataset) == naive_rows(dataset, columns, columns["y"])
    return dataset


def check_refused(data, *says, error=DataError, read=ingest, **options):
    """Data that cannot be ingested, of which an error of one line says these words."""
    with pytest.raises(error) as caught:
        read(data, **({"label": "y", "verbose": 0} | options))
    assert "\n" not in str(caught.value)
    for words in says:
        assert words in str(caught.value)


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


def python_path(**env) -> dict[str, str]:
    """The environment of a script that imports what tests share, such as this module."""
    paths = (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | env


# `sparrow` that tells its progress without a terminal as soon as there is any, not after 5 seconds.
TALKATIVE = """
from sparrowboost.cli import run
from sparrowboost.runtime import progress

lines = progress.Lines
progress.Lines = lambda: lines(seconds=0.1)
run()
"""

NOBODY = 65_534

as_nobody = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may run a process as another user"
)


class Nobody:
    """A user who owns nothing, and runs this version of Python with the packages of these tests."""

    def __init__(self) -> None:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
        # This Python may be in a folder that is closed to others; the system's may do.
        for self.python in (sys.executable, f"/usr/bin/{version}"):
            self.env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": packages}
            try:
                if self.run("-c", "import numba, pyarrow", check=False).returncode == 0:
                    return
            except OSError:
                pass
        pytest.skip("another user may not run this Python, or not read its packages")

    def run(self, *args, check=True, first="", root=False, **env) -> subprocess.CompletedProcess:
        """Run Python; `first` is a folder in front of its packages. `root`: as root, otherwise
        in the same way."""
        path = os.pathsep.join(str(part) for part in (first, self.env["PYTHONPATH"]) if part)
        who = {} if root else {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        return subprocess.run(
            [self.python, *map(str, args)], env=self.env | {"PYTHONPATH": path} | env, cwd="/",
            capture_output=True, text=True, check=check, **who,
        )  # fmt: skip
