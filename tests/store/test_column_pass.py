"""Tables that are read column by column: the same stores, in little memory."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders import large_pages
from constants import set_constants
from helpers import small_table
from sparrowboost import DataError, MemoryLimitError, ingest
from sparrowboost.readers.base import Reading, reading_bytes
from sparrowboost.readers.parquet import ParquetFile
from sparrowboost.store.binning import WORK_DTYPES
from sparrowboost.store.column_pass import ColumnPlan
from sparrowboost.store.stored import json_pieces, manifest_crc
from sparrowboost.store.warm_up import warm_up

MB = 10**6


def blocks_of(dataset):
    """All that a store holds, in its order."""
    return [
        [part if part is None else part.tolist() for part in block] for block in dataset.blocks()
    ]


def apart(monkeypatch):
    """Let a small table be read like one of thousands of columns: in many pieces of all kinds."""
    set_constants(monkeypatch, wide=0, array_bytes=20_000, reader_bytes=1, scratch_bytes=6_000)
    set_constants(monkeypatch, max_block_rows=700)


@pytest.mark.parametrize("group", [400, 1_000, 3_000])
@pytest.mark.parametrize("how", ["plain", "weighted", "labels beside", "two files"])
def test_a_store_is_the_same_whether_columns_are_read_together_or_apart(
    tmp_path, monkeypatch, how, group
):
    table = small_table()
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=group)
    source, options = tmp_path / "a.parquet", {"label": "y", "exclude": ["w"]}
    if how == "weighted":
        options = {"label": "y", "weight": "w"}
    if how == "labels beside":
        options = {"label": table["y"].to_numpy(), "exclude": ["w", "y"]}
    if how == "two files":
        pq.write_table(table.slice(0, 1_100), tmp_path / "b.parquet", row_group_size=group)
        source = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    together = ingest(source, **options, memory_limit="1GB", verbose=0)
    apart(monkeypatch)
    for n_jobs in (1, 2):
        other = ingest(source, **options, memory_limit="1GB", n_jobs=n_jobs, verbose=0)
        assert other.binning.to_json() == together.binning.to_json()
        assert blocks_of(other) == blocks_of(together)


def test_stages_of_random_row_groups_are_the_same_apart(tmp_path, monkeypatch):
    pq.write_table(small_table(8_000), tmp_path / "t.parquet", row_group_size=300)
    set_constants(monkeypatch, min_staged_rows=1)
    together = ingest(tmp_path / "t.parquet", label="y", memory_limit="1GB", verbose=0)
    apart(monkeypatch)
    other = ingest(tmp_path / "t.parquet", label="y", memory_limit="1GB", verbose=0)
    assert blocks_of(other) == blocks_of(together)


def test_a_row_that_is_wrong_is_named_as_if_columns_were_read_together(tmp_path, monkeypatch):
    table = small_table()
    y = table["y"].to_pylist()
    y[2_345] = None
    table = table.set_column(table.schema.get_field_index("y"), "y", pa.array(y))
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1_000)
    apart(monkeypatch)
    with pytest.raises(DataError, match="row 2,346"):
        ingest(tmp_path / "t.parquet", label="y", memory_limit="1GB", verbose=0)


def test_columns_are_read_together_up_to_the_bytes_of_a_reader():
    columns = [Reading(10, 3, 1), Reading(10, 1, 1), Reading(50, 9, 1), Reading(1, 0, 1)]
    assert [reading_bytes(columns[:n]) for n in range(4)] == [0, 13, 23, 79]
    parts = ColumnPlan(reader_bytes=23, n_readers=2).parts(columns)
    assert parts == [slice(0, 2), slice(2, 3), slice(3, 4)]


def test_pages_are_measured_not_assumed(tmp_path):
    source = ParquetFile(str(large_pages(tmp_path / "t.parquet", 500_000, 2)))
    x, y = source.reading(["x0", "y"])
    assert 2 * MB < x.open < 2.5 * MB and x.row == 4
    assert 2 * MB < y.open < 2.5 * MB and y.row == 1  # stored as four bytes
    words = pa.array([f"{k:0100d}" for k in range(20_000)])
    pq.write_table(pa.table({"w": words}), tmp_path / "w.parquet", use_dictionary=False)
    (w,) = ParquetFile(str(tmp_path / "w.parquet")).reading(["w"])
    assert 100 < w.row < 120 and w.open > MB


INGEST = """
import sys, sparrowboost
from sparrowboost.runtime.memory import peak_rss, rss
sparrowboost.ingest(sys.argv[1], label="y", memory_limit=sys.argv[2], verbose=0)
print(peak_rss())
"""


def run(code, *words):
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout)


@pytest.mark.slow
def test_pages_as_large_as_a_row_group_stay_within_the_limit(tmp_path):
    # Side by side the columns take 150 MB, and the limit leaves half of that.
    source = large_pages(tmp_path / "t.parquet")
    warm_up(WORK_DTYPES)  # compiles here what a child would, if need be
    assert run(INGEST, source, "270MB") < 270 * MB


def test_a_page_that_does_not_fit_is_refused_before_any_row_is_read(tmp_path):
    source = large_pages(tmp_path / "t.parquet", 500_000, 2)
    with pytest.raises(MemoryLimitError, match=r"reading .* give at least"):
        ingest(source, label="y", memory_limit="100MB", verbose=0)


def test_thresholds_of_many_features_count_in_the_limit(tmp_path):
    rows = {f"x{j}": np.arange(4.0) for j in range(2_000)}
    pq.write_table(pa.table({**rows, "y": [0, 1, 0, 1]}), source := tmp_path / "t.parquet")
    with pytest.raises(MemoryLimitError, match=r"features \(30 MB\)"):
        ingest(source, label="y", memory_limit="100MB", verbose=0)


def test_a_manifest_has_the_checksum_of_its_text_though_it_is_made_in_pieces():
    manifest = {
        "rows": 3, "features": [{"name": "ä", "kind": "x", "thresholds": [0.1, 1e300]}, {}],
        "blocks": [], "run": None, "classes": ["\"no\"", 1], "about": {"z": [1], "a": [2]},
    }  # fmt: skip
    text = json.dumps(manifest, sort_keys=True)
    assert manifest_crc(manifest) == zlib.crc32(text.encode())
    assert "".join(json_pieces(manifest)) == json.dumps(manifest)
