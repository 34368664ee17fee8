"""Parquet files under a memory limit: one store, two models, predictions to a file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import sparrowboost
from sparrowboost.datasets import make_large
from sparrowboost.runtime.memory import peak_rss

MEMORY = "512MB"


def make_files(folder: Path, rows: int) -> None:
    """Four files to train on and one to test on; each `stream` has different rows."""
    for part in range(4):
        make_large(folder / f"train-{part}.parquet", rows // 4, stream=part)
    make_large(folder / "test.parquet", rows // 8, stream=4)


def main(rows: int = 4_400_000) -> Path:
    """Make files, train on them and predict; return the path of the predictions."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder, rows)
        # Once: the rows are binned, shuffled and written, with a byte per value.
        data = sparrowboost.ingest(
            str(folder / "train-*.parquet"), label="y", path=folder / "store", memory_limit=MEMORY
        )
        print(f"{data.n_rows:,} rows, {data.n_bytes / 1e6:,.0f} MB")
        # Any number of times, also later and in other processes: Dataset(folder / "store").
        for leaves in (4, 16):
            model = sparrowboost.train(
                data, max_leaves=leaves, learning_rate=0.3, memory_limit=MEMORY, verbose=0
            )
            result = sparrowboost.evaluate(model, folder / "test.parquet", verbose=0)
            print(f"{leaves} leaves: AUC {result.auc:.4f}, log loss {result.log_loss:.4f}")
        out = Path("predictions.parquet")
        n = sparrowboost.write_predictions(model, folder / "test.parquet", out, keep=["y"])
        print(f"{out}: {n:,} rows; peak memory {peak_rss() / 1e6:,.0f} MB")
        return out


if __name__ == "__main__":
    main()
