"""Tables of the training benchmarks: files, rows as libraries take them, how good scores are.

log odds  what is judged of every library: ln(p / (1 - p)) of a row
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparrowboost.model.metrics import area, cumulated, exponential_loss, mean_precision

TOSSED_ROWS = 1 << 20
BUFFER_BYTES = (
    1 << 18
)  # of a Parquet reader that does not read ahead; faster here than one that does
FEATURES = 20  # of the made table
STREAMS = ("", "-test", "-valid")  # of the made table, as names of files have them
MIN_SHARE = 1e-15  # a probability is at least so far from 0 and 1, as in scikit-learn's log loss

Stage = dict[str, float]


def made(path: Path, make: Callable[[Path], object]) -> Path:
    """The file, made by `make` if it is not there, and in the page cache."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        part = path.with_name("part-" + path.name)
        make(part)
        part.replace(path)
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass
    return path


def large(folder: Path, rows: int, stream: int = 0, **how: float) -> Path:
    """The made table of so many rows; stream 1 has the test rows, 2 those to validate by.

    `how` are shares that `make_large` takes, such as that of the positives.
    """
    from sparrowboost.datasets import make_large

    shares = "".join(f"-{name}-{share:g}" for name, share in how.items())
    return made(
        folder / f"large-{rows}x{FEATURES}{shares}{STREAMS[stream]}.parquet",
        lambda path: make_large(
            path, rows, features=FEATURES, random_state=0, stream=stream, **how
        ),
    )


def batches(path: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    file = pq.ParquetFile(path, pre_buffer=False, buffer_size=BUFFER_BYTES)
    return file.iter_batches(columns=columns)


def read_seconds(path: Path) -> float:
    """Of reading all columns, batch by batch, and doing nothing with them; the better of two."""
    took = []
    for _ in range(2):
        start = perf_counter()
        for _ in batches(path):
            pass
        took.append(perf_counter() - start)
    return min(took)


def read_labels(path: Path) -> np.ndarray:
    return np.concatenate([np.asarray(batch.column(0)) for batch in batches(path, ["y"])])


def read_rows(path: Path, keep: np.ndarray | None = None) -> pa.Table:
    """All rows, or those of a mask: batch after batch, so that no more than they are in memory.

    Categories come as codes in uint8; of what LightGBM takes, Arrow columns of bytes load fastest
    (pandas categories take 1.2 times as long, a numpy matrix twice).
    """
    out, first = [], 0
    for batch in batches(path):
        n, batch = batch.num_rows, coded(batch)
        out.append(batch if keep is None else batch.filter(pa.array(keep[first : first + n])))
        first += n
    return pa.Table.from_batches(out)


def coded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Categories as their codes."""
    arrays = [_codes(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, batch.schema.names)


def _codes(column: pa.Array) -> pa.Array:
    if not pa.types.is_dictionary(column.type):
        return column
    if column.dictionary.to_pylist() != sorted(column.dictionary.to_pylist()):
        raise RuntimeError("the batches of a column number their categories differently.")
    return column.indices.view(pa.uint8())


def read_matrix(path: Path, dtype: type[np.generic]) -> np.ndarray:
    """(n, d) of all features, filled batch by batch."""
    X = np.empty((pq.read_metadata(path).num_rows, len(feature_names(path))), dtype)
    first = 0
    for batch in batches(path):
        fill_rows(batch, X[first : first + batch.num_rows])
        first += batch.num_rows
    return X


def fill_rows(batch: pa.RecordBatch, X: np.ndarray) -> None:
    """Write the features of a batch to the rows of a matrix; what is missing is NaN."""
    for j, name in enumerate(name for name in batch.schema.names if name != "y"):
        X[:, j] = _codes(batch.column(name)).to_numpy(zero_copy_only=False)


def feature_names(path: Path) -> list[str]:
    return [name for name in pq.read_schema(path).names if name != "y"]


def read_csv(path: Path, rows: int | None) -> Any:
    """A pandas frame of all rows, or of so many random ones in their order."""
    import pandas as pd

    frame = pd.read_csv(path)
    if rows is None or rows >= len(frame):
        return frame
    return frame.sample(rows, random_state=0).sort_index().reset_index(drop=True)


def tossed(rng: np.random.Generator, n: int, chance: float) -> np.ndarray:
    """A mask of n rows, each in it by chance; in pieces, for who has little memory."""
    keep = np.empty(n, bool)
    for piece in np.array_split(keep, n // TOSSED_ROWS + 1):
        np.less(rng.random(len(piece)), chance, out=piece)
    return keep


def thin(y: np.ndarray, rows: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """A mask of all positives and so many negatives that there are about `rows`; their weight."""
    positive = y == 1
    if rows >= len(y):
        return np.ones(len(y), bool), 1.0
    rate = (rows - positive.sum()) / (~positive).sum()
    if rate <= 0:
        raise ValueError(f"{rows} rows: there are {positive.sum()} positives already.")
    keep = positive | tossed(rng, len(y), rate)
    return keep, float((~positive).sum() / (keep & ~positive).sum())


def thinned(table: Path, negatives: int) -> tuple[Path, float]:
    """A table's positives and so many of its negatives, and how many rows each of these is."""
    y = read_labels(table)
    keep, weight = thin(y, int(y.sum()) + negatives, np.random.default_rng(1))

    def write(path: Path) -> None:
        first = 0
        with pq.ParquetWriter(path, pq.read_schema(table)) as writer:
            for batch in batches(table):
                writer.write_batch(batch.filter(keep[first : first + batch.num_rows]))
                first += batch.num_rows

    return made(table.with_name(f"{table.stem}-thin-{negatives}.parquet"), write), weight


class Test:
    """Test rows and how good scores of them are.

    Parameters
    ----------
    path : path
        A Parquet file with the label in column ``y``.
    negative_weight : float
        How many rows a negative one stands for, where negatives were thinned out.
    """

    def __init__(self, path: Path, negative_weight: float = 1.0) -> None:
        self.path, self.negative_weight = path, negative_weight

    @cached_property
    def X(self) -> pa.Table:  # noqa: N802
        return read_rows(self.path).drop_columns(["y"])

    @cached_property
    def y(self) -> np.ndarray:
        return read_labels(self.path)

    def judge(self, log_odds: np.ndarray) -> Stage:
        weight = None
        if self.negative_weight != 1:
            weight = np.where(self.y == 1, 1.0, self.negative_weight)
        return judge(self.y, log_odds, weight)


def judge(y: np.ndarray, log_odds: np.ndarray, weight: np.ndarray | None = None) -> Stage:
    """Measures of scores; the paper's exponential loss is of half the log odds."""
    ranked = cumulated(y, log_odds, weight)  # one sort for both: there are hundreds of stages
    return {
        "auc": round(area(*ranked), 6),
        "average_precision": round(mean_precision(*ranked), 6),
        "log_loss": round(log_loss(y, log_odds, weight), 7),
        "exponential_loss": round(exponential_loss(y, log_odds / 2, weight), 7),
    }


def log_loss(y: np.ndarray, log_odds: np.ndarray, weight: np.ndarray | None = None) -> float:
    margin = np.where(y == 1, log_odds, -log_odds).astype(np.float64)
    losses = np.minimum(np.logaddexp(0, -margin), -math.log(MIN_SHARE))
    return float(np.average(losses, weights=weight))
