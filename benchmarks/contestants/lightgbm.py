"""LightGBM: all rows in memory, row groups that it asks for, or a part that a practitioner takes.

all        Arrow columns; categories as codes, declared categorical
sequence   lightgbm.Sequence objects, one for each row group: it reads the file twice, and keeps
binned rows only
uniform    about `size` random rows, kept while reading batch by batch
rare       all positives, and so many random negatives that there are `size` rows, negatives
weighted by 1 / their share; it chooses by the labels, then reads batch by batch
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import measure
import peers
import tables
from contestants import Job

Load = Callable[[dict[str, Any]], lgb.Dataset]  # parameters -> data


def make_params(**params: Any) -> dict[str, Any]:
    return {"objective": "binary", "num_threads": measure.cores(), "verbose": -1, **params}


def train(job: Job, *, feed: str = "all", **options: Any) -> peers.Trained:
    seed = {"seed": job.seed} if job.seed else {}  # without, each of its seeds has its default
    params = make_params(
        num_leaves=job.leaves, learning_rate=job.rate, **seed, **job.options, **options
    )
    return boost(partial(FEEDS[feed], job), params, job.trees, job.seconds)


def boost(load: Load, params: dict[str, Any], trees: int, seconds: float) -> peers.Trained:
    clock = peers.Clock()
    booster = lgb.Booster(params, load(params).construct())
    return peers.grow(booster, lambda n: booster.update(), clock, trees, seconds)


def from_rows(
    rows: pa.Table, weight: np.ndarray | None, categorical: Sequence[str], params: dict[str, Any]
) -> lgb.Dataset:
    return lgb.Dataset(
        rows.drop_columns(["y"]),
        label=rows.column("y"),
        weight=weight,
        categorical_feature=list(categorical),
        params=params,
    )


def load_all(job: Job, params: dict[str, Any]) -> lgb.Dataset:
    return from_rows(tables.read_rows(job.table), None, job.categorical, params)


def load_uniform(job: Job, params: dict[str, Any]) -> lgb.Dataset:
    n = pq.read_metadata(job.table).num_rows
    keep = tables.tossed(np.random.default_rng(job.seed), n, job.size / n)
    return from_rows(tables.read_rows(job.table, keep), None, job.categorical, params)


def load_rare(job: Job, params: dict[str, Any]) -> lgb.Dataset:
    y = tables.read_labels(job.table)
    keep, weight = tables.thin(y, job.size, np.random.default_rng(job.seed))
    rows = tables.read_rows(job.table, keep)
    return from_rows(rows, np.where(y[keep] == 1, 1.0, weight), job.categorical, params)


class RowGroups:
    """The row groups of a file as matrices; the last one that was asked for is kept."""

    def __init__(self, path: Path) -> None:
        self.file = pq.ParquetFile(path, pre_buffer=False, buffer_size=tables.BUFFER_BYTES)
        self.columns = tables.feature_names(path)
        self._kept = (-1, np.empty((0, 0)))

    def read(self, number: int) -> np.ndarray:
        """(n, d) float64, which is what LightGBM wants of a sequence."""
        if self._kept[0] != number:
            rows = self.file.read_row_group(number, self.columns).combine_chunks()
            X = np.empty((rows.num_rows, rows.num_columns))
            for batch in rows.to_batches():  # one, or none
                tables.fill_rows(batch, X)
            self._kept = number, X
        return self._kept[1]


class RowGroup(lgb.Sequence):
    """One row group; `batch_size` lets LightGBM take it at once."""

    def __init__(self, groups: RowGroups, number: int) -> None:
        self.groups, self.number = groups, number
        self.batch_size = groups.file.metadata.row_group(number).num_rows

    def __len__(self) -> int:
        return self.batch_size

    def __getitem__(self, index: int | slice) -> np.ndarray:
        return self.groups.read(self.number)[index]


def load_sequence(job: Job, params: dict[str, Any]) -> lgb.Dataset:
    groups = RowGroups(job.table)
    return lgb.Dataset(
        [RowGroup(groups, number) for number in range(groups.file.num_row_groups)],
        label=tables.read_labels(job.table),
        feature_name=groups.columns,
        categorical_feature=list(job.categorical),
        params=params,
    )


FEEDS = {
    "all": load_all,
    "sequence": load_sequence,
    "uniform": load_uniform,
    "rare": load_rare,
}


def save(model: lgb.Booster, path: Path) -> None:
    model.save_model(path)


def load(path: Path) -> lgb.Booster:
    return lgb.Booster(model_file=path, params={"num_threads": measure.cores()})


def log_odds(model: lgb.Booster, test: tables.Test, trees: Sequence[int]) -> Iterator[np.ndarray]:
    total, seen = np.zeros(len(test.y)), 0
    for n in trees:
        more = model.predict(test.X, start_iteration=seen, num_iteration=n - seen, raw_score=True)
        total, seen = total + more, n
        yield total
