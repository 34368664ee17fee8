"""Predictions for tables that do not fit in memory row by row: the same, within the limit."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders import large_pages
from constants import set_constants
from helpers import small_table
from sparrowboost import MemoryLimitError, evaluate, ingest, train, write_predictions
from sparrowboost.readers.parquet import ParquetFile

MB = 10**6

JOB = """
import sys, sparrowboost
from sparrowboost.runtime.memory import peak_rss
command, model, source, out, limit = sys.argv[1:]
model = sparrowboost.load_model(model)
if command == "predict":
    sparrowboost.write_predictions(model, source, out, memory_limit=limit, verbose=0)
elif command == "ingest":
    sparrowboost.ingest(source, label="y", memory_limit=limit, verbose=0)
else:
    sparrowboost.evaluate(model, source, memory_limit=limit, verbose=0)
print(peak_rss())
"""


def peak(folder, command, source, limit):
    """Peak memory of a process that has a limit."""
    words = [command, folder / "model.json", source, folder / "out.parquet", limit]
    done = subprocess.run(
        [sys.executable, "-c", JOB, *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout)


def test_predictions_and_metrics_are_the_same_whether_columns_are_read_together_or_apart(
    tmp_path, monkeypatch
):
    table = small_table()
    pq.write_table(table, source := tmp_path / "t.parquet", row_group_size=1_000)
    model = train(ingest(source, label="y", weight="w", verbose=0), n_estimators=5, verbose=0)
    keep = ["w", "color"]  # one of them is a feature
    written, found = [], []
    for name in ("together", "apart"):
        if name == "apart":
            set_constants(monkeypatch, wide=0, array_bytes=20_000, reader_bytes=1)
        out = tmp_path / f"{name}.csv"
        write_predictions(model, source, out, keep=keep, memory_limit="2GB", verbose=0)
        written.append(out.read_bytes())
        found.append(evaluate(model, source, weight="w", memory_limit="2GB", verbose=0).to_json())
        other = train(
            ingest(source, label="y", weight="w", verbose=0), valid=(source, "y", "w"),
            n_estimators=5, memory_limit="2GB", verbose=0,
        )  # fmt: skip
        found[-1]["trees"] = other.n_trees
    assert written[0] == written[1]
    assert found[0] == found[1]


@pytest.mark.parametrize(("command", "limit"), [("predict", 250), ("evaluate", 290)])
def test_large_pages_are_predicted_within_a_limit_that_holds_few_of_them(tmp_path, command, limit):
    # Side by side the columns take 150 MB.
    source = large_pages(tmp_path / "t.parquet")
    train(ingest(source, label="y", verbose=0), n_estimators=2, verbose=0).save_model(
        tmp_path / "model.json"
    )
    peak(tmp_path, command, source, "1GB")  # compiles, if need be
    assert peak(tmp_path, command, source, f"{limit}MB") < limit * MB


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """80 MB of texts of 10 KB, and a model of them."""
    folder = tmp_path_factory.mktemp("texts")
    rng = np.random.default_rng(0)
    letters = rng.integers(97, 123, (8_000, 10_000), np.uint8)
    table = pa.table(
        {"text": [row.tobytes().decode() for row in letters], "x": rng.random(len(letters))}
    )
    table = table.append_column("y", pa.array((table["x"].to_numpy() > 0.5).astype(np.int8)))
    pq.write_table(table, folder / "t.parquet")
    with pa.ipc.new_file(folder / "t.arrow", table.schema) as writer:
        writer.write_table(table)
    rows = ingest(folder / "t.parquet", label="y", verbose=0)
    train(rows, n_estimators=2, verbose=0).save_model(folder / "model.json")
    return folder


@pytest.mark.parametrize("source", ["t.parquet", "t.arrow"])
@pytest.mark.parametrize("command", ["ingest", "predict", "evaluate"])
def test_long_texts_are_read_within_the_limit(texts, command, source):
    assert peak(texts, command, texts / source, "360MB") < 360 * MB


def test_a_page_of_texts_is_counted_as_often_as_arrow_copies_it(tmp_path):
    words = pa.array([f"{k:0100d}" for k in range(200_000)])
    pq.write_table(pa.table({"w": words}), tmp_path / "w.parquet", use_dictionary=False)
    (w,) = ParquetFile(str(tmp_path / "w.parquet")).reading(["w"])
    assert w.open > 3 * MB


def test_validation_rows_whose_page_does_not_fit_are_refused(tmp_path, monkeypatch):
    source = large_pages(tmp_path / "t.parquet", 20_000, 2)
    valid = large_pages(tmp_path / "v.parquet", 12_000_000, 1)  # 48 MB, packed and unpacked
    rows = ingest(source, label="y", columns=["x0"], verbose=0)
    for module in ("learner.planning", "model.predict"):
        monkeypatch.setattr(f"sparrowboost.{module}.held", lambda: 100 * MB)
    train(rows, valid=valid, n_estimators=2, memory_limit="400MB", verbose=0)
    with pytest.raises(MemoryLimitError, match=r"reading .* give at least"):
        train(rows, valid=valid, n_estimators=2, memory_limit="200MB", verbose=0)
