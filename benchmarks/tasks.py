"""Tasks of the bench: a training table, test rows, the size of trees, and what is to be reached.

    splice        human splice sites of one chromosome, tested on another; letters, few positives
    bathymetry    made: 15 numbers, 2 % positive, 3 % of these labelled wrong
    table10m      made: 20 numbers, 10 % positive
    table10m-31   the same with larger trees
    table50m      the same with more rows
    balanced      made: 20 numbers, 31 % positive; see bench_balanced.py
    balanced-31   the same with larger trees
    balanced-noisy  made: 20 numbers, 50 % positive, 15 % of these labelled wrong
    covertype     forest cover type, a random fifth to test on
    flights       late flights in date order, the last fifth to test on; two columns are categories
    flights-mixed the same with a random fifth to test on

Files are made once, beside each other in one folder, and are in the page cache when a run begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tables

TINY_ROWS = 20_000  # of the table on which a contestant warms up
TINY_NEGATIVES = 40_000  # the same of splice sites, where positives are few
TRAIN_SHARE = 0.8
SPLICE_BATCH = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Files:
    """Of one task; `test_weight` is how many rows a negative test row stands for."""

    train: Path
    test: Path
    tiny: Path
    test_weight: float = 1.0


# (folder, shared folder, training rows, test rows) -> files
Make = Callable[[Path, Path, int | None, int | None], Files]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is to be learned.

    Attributes
    ----------
    trees : int
        At most, of everyone.
    target : float or None
        A test AUC; None: the log loss that a peer reached, see standings.py.
    part, rare : sequence of int
        Rows of those who keep a part of them, and of those who keep all positives.
    options : dict
        By library, what is fastest for this table.
    """

    name: str
    title: str
    make: Make
    leaves: int
    trees: int
    target: float | None = None
    part: Sequence[int] = ()
    rare: Sequence[int] = ()
    categorical: Sequence[str] | None = ()  # None: all columns
    options: dict[str, dict[str, Any]] = field(default_factory=dict)

    def categories(self, columns: Sequence[str]) -> list[str]:
        """Those of a table's columns that are categories."""
        return list(columns if self.categorical is None else self.categorical)

    def sizes(self, contestant: str) -> Sequence[int]:
        return {"lightgbm-sub": self.part, "lightgbm-rare": self.rare}[contestant]


# -- tables ---------------------------------------------------------------------------------------


def make_splice(folder: Path, shared: Path, rows: int | None, test_rows: int | None) -> Files:
    """Test rows are all positives of the other chromosome and so many random negatives."""
    train = expand_splice(folder, shared, "chr19", rows)
    test, weight = tables.thinned(
        expand_splice(folder, shared, "chr21", rows), test_rows or 500_000
    )
    tiny, _ = tables.thinned(train, TINY_NEGATIVES)
    return Files(train=train, test=test, tiny=tiny, test_weight=weight)


def expand_splice(folder: Path, shared: Path, name: str, rows: int | None) -> Path:
    """The table of a chromosome, or its first rows."""
    from sparrowboost.datasets import splice_batches, splice_schema, write_splice

    packed = shared / f"{name}.npz"
    if rows is None:
        return tables.made(
            folder / f"splice-{name}.parquet",
            lambda path: write_splice(path, "all", chromosome=packed),
        )

    def write(path: Path) -> None:
        with pq.ParquetWriter(path, splice_schema()) as writer:
            some = splice_batches("all", chromosome=packed, rows=min(rows, SPLICE_BATCH))
            for batch in itertools.islice(some, -(-rows // SPLICE_BATCH)):
                writer.write_batch(batch)

    return tables.made(folder / f"splice-{name}-{rows}.parquet", write)


def made_table(rows: int, **how: float) -> Make:
    """`how`: as for `tables.large`."""

    def make(folder: Path, shared: Path, fewer: int | None, test_rows: int | None) -> Files:
        return Files(
            train=tables.large(folder, fewer or rows, **how),
            test=tables.large(folder, test_rows or 1_000_000, stream=1, **how),
            tiny=tables.large(folder, TINY_ROWS, **how),
        )

    return make


def make_bathymetry(folder: Path, shared: Path, rows: int | None, test_rows: int | None) -> Files:
    from sparrowboost.datasets import make_large

    how = {"features": 15, "positive_rate": 0.02, "mislabeled": 0.03, "random_state": 1}

    def make(n: int, stream: int) -> Path:
        name = f"bathymetry-{n}{'-test' if stream else ''}.parquet"
        return tables.made(folder / name, lambda path: make_large(path, n, stream=stream, **how))

    return Files(
        train=make(rows or 100_000_000, 0),
        test=make(test_rows or 1_000_000, 1),
        tiny=make(TINY_ROWS, 0),
    )


def from_csv(name: str, types: dict[str, str], default: str, *, by_date: bool = False) -> Make:
    """A CSV file of the shared folder, cut in two; columns are of `types`."""

    def make(folder: Path, shared: Path, rows: int | None, test_rows: int | None) -> Files:
        how = "-by-date" if by_date else ""
        how += "" if rows is None and test_rows is None else f"-{rows}-{test_rows}"
        paths = [folder / f"{name}{how}-{part}.parquet" for part in ("train", "test", "tiny")]
        if not all(path.exists() for path in paths):
            frame = tables.read_csv(shared / f"{name}.csv.gz", None)
            order = np.arange(len(frame))
            rng = np.random.default_rng(0)
            if not by_date:
                rng.shuffle(order)
            cut = int(TRAIN_SHARE * len(order))
            train, test = order[:cut][:rows], order[cut:][:test_rows]
            tiny = np.sort(rng.permutation(train)[:TINY_ROWS])
            for path, some in zip(paths, (train, test, tiny), strict=True):
                part = frame.iloc[some].astype({c: types.get(c, default) for c in frame})
                table = pa.Table.from_pandas(part, preserve_index=False)
                tables.made(path, lambda where, table=table: pq.write_table(table, where))
        return Files(**dict(zip(("train", "test", "tiny"), map(_cached, paths), strict=True)))

    return make


def _cached(path: Path) -> Path:
    return tables.made(path, lambda _: None)


# -- the list -------------------------------------------------------------------------------------

FLIGHTS = {"y": "int8", "month": "int8", "day": "int8", "dow": "int8", "minute": "int16",
           "distance": "int16", "origin": "uint8", "dest": "uint8"}  # fmt: skip


def flights(name: str, *, title: str, by_date: bool) -> Task:
    return Task(
        name=name,
        title=title,
        make=from_csv("flights3m", FLIGHTS, "float32", by_date=by_date),
        leaves=31,
        trees=1_000,
        part=(300_000, 1_000_000),
        rare=(1_000_000,),
        categorical=("origin", "dest"),
    )


BALANCED_ROWS, BALANCED = 8_000_000, {"positive_rate": 0.31}
NOISY_ROWS, NOISY = 4_300_000, {"positive_rate": 0.5, "mislabeled": 0.15}

TASKS = {
    task.name: task
    for task in (
        Task(
            name="splice",
            title="splice sites of chromosome 19, tested on chromosome 21",
            make=make_splice,
            leaves=4,
            trees=3_000,
            target=0.950,
            part=(1_000_000,),
            rare=(100_000, 300_000, 1_000_000),
            categorical=None,
            # of what LightGBM offers for letters, the fastest
            options={"lightgbm": {"force_row_wise": True}},
        ),
        Task(
            name="bathymetry",
            title="a made table after the bathymetry data, with wrong labels",
            make=make_bathymetry,
            leaves=4,
            trees=400,
            part=(1_000_000, 3_000_000, 10_000_000),
            rare=(3_000_000, 10_000_000),
        ),
        Task(
            name="table10m",
            title="a made table",
            make=made_table(10_000_000),
            leaves=4,
            trees=800,
            part=(300_000, 1_000_000, 3_000_000),
            rare=(2_000_000, 3_000_000),
        ),
        Task(
            name="table10m-31",
            title="a made table, larger trees",
            make=made_table(10_000_000),
            leaves=31,
            trees=800,
            part=(1_000_000, 3_000_000),
            rare=(2_000_000, 3_000_000),
        ),
        Task(
            name="table50m",
            title="a made table, more rows",
            make=made_table(50_000_000),
            leaves=4,
            trees=400,
            part=(1_000_000, 3_000_000, 10_000_000),
            rare=(10_000_000,),
        ),
        Task(
            name="balanced",
            title="a made table, 31 % positive",
            make=made_table(BALANCED_ROWS, **BALANCED),
            leaves=8,
            trees=800,
            part=(300_000, 1_000_000, 3_000_000),
        ),
        Task(
            name="balanced-31",
            title="a made table, 31 % positive, larger trees",
            make=made_table(BALANCED_ROWS, **BALANCED),
            leaves=31,
            trees=400,
            part=(300_000, 1_000_000, 3_000_000),
        ),
        Task(
            name="balanced-noisy",
            title="a made table, 50 % positive, with wrong labels",
            make=made_table(NOISY_ROWS, **NOISY),
            leaves=8,
            trees=800,
            part=(300_000, 1_000_000, 3_000_000),
        ),
        Task(
            name="covertype",
            title="forest cover type",
            make=from_csv("covtype", {"y": "int8"}, "float32"),
            leaves=32,
            trees=500,
            part=(100_000, 200_000),
        ),
        flights(
            "flights",
            title="late flights, two columns are categories, later dates to test on",
            by_date=True,
        ),
        flights(
            "flights-mixed",
            title="late flights, two columns are categories, a random fifth to test on",
            by_date=False,
        ),
    )
}
