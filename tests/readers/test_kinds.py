"""Kinds of columns that few tables have: decimals, times, UUIDs, bytes; and nested ones."""

from __future__ import annotations

import datetime
import decimal
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from helpers import naive_rows, small_table, stored_rows
from sparrowboost import DataError, ingest, train

N = 200
RNG = np.random.default_rng(0)
IDS = [uuid.UUID(int=int(i)) for i in RNG.integers(0, 5, N)]
CODES = RNG.choice([b"DE", b"FR", b"\0\xff"], N).tolist()
TABLE = pa.table(
    {
        "price": pa.array([decimal.Decimal(int(i)) / 100 for i in range(N)], pa.decimal128(9, 2)),
        "day": pa.array([datetime.date(2024, 1, 1 + i % 28) for i in range(N)]),
        "at": pa.array([datetime.time(i % 24) for i in range(N)]),
        "span": pa.array([datetime.timedelta(hours=i) for i in range(N)]),
        "id": pa.ExtensionArray.from_storage(
            pa.uuid(), pa.array([i.bytes for i in IDS], pa.binary(16))
        ),
        "code": pa.array([code.ljust(2, b"\0") for code in CODES], pa.binary(2)),
        "y": pa.array([i % 2 for i in range(N)]),
    }
)
NESTED = {
    "struct": pa.array([{"a": 1}] * N),
    "list": pa.array([[1.0, 2.0]] * N),
    "map": pa.array([[("k", 1)]] * N, pa.map_(pa.string(), pa.int64())),
}


def write_arrow(table, path):
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, 64)


WRITE = {".parquet": pq.write_table, ".arrow": write_arrow}


@pytest.mark.parametrize("way", [".parquet", ".arrow", "table", "stream"])
def test_decimals_and_times_are_numbers_and_uuids_categories(tmp_path, way):
    data = TABLE if way == "table" else TABLE.to_reader(64)
    if way in WRITE:
        data = tmp_path / f"t{way}"
        WRITE[way](TABLE, data)
    dataset = ingest(data, label="y", verbose=0)
    features = {feature.name: feature for feature in dataset.binning.features}
    assert {name: feature.kind for name, feature in features.items()} == {
        "price": "float64", "day": "time", "at": "time", "span": "time", "id": "category",
        "code": "category",
    }  # fmt: skip
    assert set(features["id"].categories) == set(map(str, IDS))
    assert set(features["code"].categories) == {"DE", "FR", "00ff"}
    counts = {word: list(map(str, IDS)).count(word) for word in features["id"].categories}
    bins = np.concatenate([block.bins for block in dataset.blocks()])
    column = dataset.feature_names.index("id")
    assert np.bincount(bins[:, column]).tolist() == list(counts.values())
    model = train(dataset, n_estimators=2, verbose=0)
    assert model.predict_proba(TABLE).shape == (N, 2)


@pytest.mark.parametrize("kind", NESTED)
def test_a_nested_column_is_named_with_what_to_do(tmp_path, kind):
    table = TABLE.append_column("inner", NESTED[kind])
    pq.write_table(table, tmp_path / "t.parquet")
    for data in (table, table.to_reader(), tmp_path / "t.parquet"):
        with pytest.raises(
            DataError, match=r"column 'inner' has type .* flatten .* exclude=\['inn"
        ):
            ingest(data, label="y", verbose=0)
    for data in (table, table.to_reader(), tmp_path / "t.parquet"):
        assert ingest(data, label="y", exclude="inner", verbose=0).n_rows == N


def test_orc_files_have_the_rows_of_the_table(tmp_path):
    table = small_table(5_000)
    orc.write_table(table.append_column("inner", pa.array([[1]] * 5_000)), tmp_path / "t.orc",
                    stripe_size=20_000)  # fmt: skip
    dataset = ingest(tmp_path / "t.orc", label="y", exclude="inner", verbose=0)
    columns = table.to_pydict()
    assert stored_rows(dataset) == naive_rows(dataset, columns, columns["y"])


def test_an_orc_file_that_is_damaged_is_named(tmp_path):
    path = tmp_path / "t.orc"
    orc.write_table(small_table(500), path)
    data = path.read_bytes()
    for wrong in (b"", data[:-500], b"junk"):
        path.write_bytes(wrong)
        with pytest.raises(DataError, match=r"t\.orc: ") as caught:
            ingest(path, label="y", verbose=0)
        assert "\n" not in str(caught.value)
