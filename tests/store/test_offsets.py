"""Offsets on their way from a source to a store."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparrowboost import DataError, Dataset, StoreError, ingest
from sparrowboost.store.stored import OFFSET_VERSION, VERSIONS

N = 500


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "number": np.arange(N) % 250,
            "high": np.arange(N) // 250,
            "off": rng.normal(size=N).astype(np.float32),
            "w": rng.uniform(0.1, 2, N).astype(np.float32),
            "y": rng.poisson(2, N),
        }
    )


def rows_of(dataset):
    """Weight, offset and target (or label) of each row, by its number."""
    found = {}
    for block in dataset.blocks():
        number = block.bins[:, 0] + 250 * block.bins[:, 1].astype(int)
        target = block.label if block.target is None else block.target
        weight = np.full(len(number), np.nan) if block.weight is None else block.weight
        found.update(zip(number, zip(weight, block.offset, target, strict=True), strict=True))
    return np.array([found[k] for k in range(N)])


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("weight", [None, "w"])
def test_a_store_has_the_offset_of_each_row(frame, tmp_path, task, weight):
    table = frame.assign(y=frame["y"] > 1) if task == "classification" else frame
    exclude = ["w"] if weight is None else None
    given = {"label": "y", "offset": "off", "weight": weight, "exclude": exclude, "task": task}
    made = ingest(table, path=tmp_path / "store", verbose=0, **given)
    for dataset in (made, Dataset(tmp_path / "store", verify=True)):
        assert (dataset.offset_name, dataset.feature_names) == ("off", ["number", "high"])
        weights, offsets, labels = rows_of(dataset).T
        assert offsets.tolist() == frame["off"].tolist()
        assert labels.tolist() == table["y"].tolist()
        if weight is not None:
            assert weights.tolist() == frame["w"].tolist()
        n_numbers = 1 + (weight is not None) + (task == "regression")
        assert dataset.n_bytes == N * (2 + 4 * n_numbers)
        block = dataset.read_block(0)
        assert block.part(slice(3)).offset.tolist() == block.offset[:3].tolist()
        assert block.take(np.array([2, 0])).offset.tolist() == block.offset[[2, 0]].tolist()


def test_offsets_come_as_a_name_a_number_an_array_or_a_file(frame, tmp_path):
    np.save(tmp_path / "off.npy", frame["off"].to_numpy())
    rest = frame.drop(columns="off")
    given = {"label": "y", "task": "regression", "exclude": "w", "verbose": 0}
    for table, offset, name in (
        (frame, "off", "off"),
        (frame, 2, "off"),
        (rest, frame["off"].to_numpy(), "offset"),
        (rest, frame["off"].tolist(), "offset"),
        (rest, pa.array(frame["off"]), "offset"),
        (rest, tmp_path / "off.npy", "off.npy"),
    ):
        dataset = ingest(table, offset=offset, **given)
        assert dataset.offset_name == name
        np.testing.assert_allclose(rows_of(dataset)[:, 1], frame["off"])


def test_offsets_come_from_files_that_are_read_in_stages(frame, tmp_path):
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "t.parquet", row_group_size=20)
    given = {"label": "y", "offset": "off", "exclude": "w", "task": "regression", "verbose": 0}
    dataset = ingest(tmp_path / "t.parquet", wait=False, **given)
    assert dataset.offset_name == "off"  # before any row is read
    np.testing.assert_allclose(rows_of(dataset)[:, 1], frame["off"])


def test_only_stores_with_offsets_have_a_version_of_their_own(frame, tmp_path):
    given = {"label": "y", "exclude": ["w", "off"], "task": "regression", "verbose": 0}
    ingest(frame, path=tmp_path / "plain", **given)
    plain = json.loads((tmp_path / "plain" / "manifest.json").read_text())
    assert plain["version"] == 3
    assert not {"offset", "targeted"} & set(plain)
    ingest(frame, path=tmp_path / "moved", **given | {"exclude": "w", "offset": "off"})
    moved = json.loads((tmp_path / "moved" / "manifest.json").read_text())
    assert (moved["version"], moved["offset"], moved["targeted"]) == (OFFSET_VERSION, "off", True)
    moved["version"] = VERSIONS[-1] + 1
    (tmp_path / "moved" / "manifest.json").write_text(json.dumps(moved))
    with pytest.raises(
        StoreError, match=r"has store version 9, this Sparrow reads versions 2 to 8"
    ):
        Dataset(tmp_path / "moved")


def test_resume_tells_stores_with_other_offsets_apart(frame, tmp_path):
    frame.to_parquet(tmp_path / "t.parquet")
    np.save(tmp_path / "off.npy", frame["off"].to_numpy())
    given = {"label": "y", "exclude": "w", "task": "regression", "resume": True, "verbose": 0}

    def make(**more):
        return ingest(tmp_path / "t.parquet", path=tmp_path / "store", **given, **more)

    make(offset=tmp_path / "off.npy")
    stamp = (tmp_path / "store" / "manifest.json").stat().st_mtime_ns
    make(offset=tmp_path / "off.npy")
    assert (tmp_path / "store" / "manifest.json").stat().st_mtime_ns == stamp
    for more in ({}, {"offset": "off"}):
        with pytest.raises(StoreError, match="other files or options"):
            make(**more)
    np.save(tmp_path / "off.npy", np.zeros(2 * N))
    with pytest.raises(StoreError, match="or the files have changed"):
        make(offset=tmp_path / "off.npy")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.0, 1.0, None], r"row 3: offset 'off' is nan; offsets must be finite"),
        ([0.0, -np.inf, 1.0], r"row 2: offset 'off' is -inf; .* leave out rows without any"),
        ([0.0, 1.0, 1e39], r"row 3: offset 'off' is inf"),
        (["a", "b", "c"], "off"),
    ],
)
def test_offsets_that_are_no_finite_numbers_are_refused(values, words):
    table = pa.table({"x": [1.0, 2.0, 3.0], "off": values, "y": [0.0, 1.0, 2.0]})
    with pytest.raises(DataError, match=words):
        ingest(table, label="y", offset="off", task="regression", verbose=0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"offset": "y"}, "column 'y' cannot be both label and offset"),
        ({"offset": "w", "weight": "w"}, "column 'w' cannot be both weight and offset"),
        ({"offset": "no"}, "there is no column 'no'"),
        ({"offset": 9}, r"there is no column number 9 \(offset\)"),
        ({"offset": np.zeros(7)}, "offset: has 7 values for the 500 rows"),
        ({"offset": np.zeros((N, 2))}, "offset: "),
    ],
)
def test_an_offset_that_is_no_column_of_its_own_is_refused(frame, given, words):
    with pytest.raises(DataError, match=words):
        ingest(frame, label="y", task="regression", verbose=0, **given)
