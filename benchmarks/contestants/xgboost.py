"""XGBoost's hist: rows in memory, or batches of binned rows cached on disk.

It grows leaf by leaf, as the others do: complete trees of depth 2 took 0.9 times as long, but had a
loss of 0.2380 and not 0.2363 after 100 of them (500,000 rows of the made table).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xgboost as xgb

import measure
import peers
import tables
from contestants import Job

MOST_BATCH_ROWS = 1 << 20  # of external memory; CPU time: the same with 2 M, 4 % more with 256 k
BATCH_SHARE = 16  # a batch of float32 takes at most this part of the memory


def make_params(**params: Any) -> dict[str, Any]:
    same = {"objective": "binary:logistic", "tree_method": "hist", "max_bin": 256}
    return {**same, "nthread": measure.cores(), "verbosity": 0, **params}


def train(job: Job, *, external: bool = False, **options: Any) -> peers.Trained:
    params = make_params(
        grow_policy="lossguide",
        max_leaves=job.leaves,
        max_depth=0,
        learning_rate=job.rate,
        seed=job.seed,
        **job.options,
        **options,
    )
    how = {name: params[name] for name in ("max_bin", "nthread")} | {"enable_categorical": True}
    clock = peers.Clock()
    data = load_external(job, how) if external else load_all(job, how)
    booster = xgb.Booster(params, [data])
    return peers.grow(booster, lambda n: booster.update(data, n - 1), clock, job.trees, job.seconds)


def load_all(job: Job, how: dict[str, Any]) -> xgb.DMatrix:
    rows = tables.read_rows(job.table)
    X, y = rows.drop_columns(["y"]), rows.column("y").to_numpy()
    return xgb.QuantileDMatrix(X, y, feature_types=feature_types(job), **how)


def load_external(job: Job, how: dict[str, Any]) -> xgb.DMatrix:
    return xgb.ExtMemQuantileDMatrix(Batches(job), **how)


def feature_types(job: Job) -> list[str]:
    """Categorical or quantitative."""
    names = tables.feature_names(job.table)
    return ["c" if name in job.categorical else "q" for name in names]


class Batches(xgb.DataIter):
    """The rows of a file, batch by batch."""

    def __init__(self, job: Job) -> None:
        self.table, self.types = job.table, feature_types(job)
        self.rows = MOST_BATCH_ROWS
        if job.memory is not None:
            self.rows = min(self.rows, job.memory // BATCH_SHARE // (4 * len(self.types)))
        super().__init__(cache_prefix=str(job.scratch / "cache"))

    def reset(self) -> None:
        file = pq.ParquetFile(self.table, pre_buffer=False, buffer_size=tables.BUFFER_BYTES)
        self.batches = file.iter_batches(self.rows)

    def next(self, input_data: Callable[..., None]) -> bool:
        batch = next(self.batches, None)
        if batch is None:
            return False
        # An Arrow table is taken as it is; a numpy matrix costs 10 % more CPU time.
        rows = pa.Table.from_batches([tables.coded(batch)]).drop_columns(["y"])
        label = batch.column("y").to_numpy()
        input_data(data=rows, label=label, feature_types=self.types)
        return True


def save(model: xgb.Booster, path: Path) -> None:
    model.save_model(path.with_suffix(".ubj"))


def load(path: Path) -> xgb.Booster:
    return xgb.Booster({"nthread": measure.cores()}, model_file=path.with_suffix(".ubj"))


def log_odds(model: xgb.Booster, test: tables.Test, trees: Sequence[int]) -> Iterator[np.ndarray]:
    rows = xgb.DMatrix(test.X, feature_types=model.feature_types, enable_categorical=True)
    seen = 0
    for n in trees:
        total = model.predict(rows, output_margin=True, iteration_range=(seen, n))
        yield total
        rows.set_base_margin(total)  # the next trees start from here
        seen = n
