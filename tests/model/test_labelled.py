"""Rows with labels for a model of more than two classes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from sparrowboost import DataError, Model, ingest
from sparrowboost.model.labelled import read_labelled
from sparrowboost.readers.options import ReadOptions

N = 900


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    y = rng.integers(1, 5, N) * 10
    return pd.DataFrame(
        {"a": rng.normal(size=N) + y, "b": rng.random(N), "w": rng.random(N), "y": y}
    )


@pytest.fixture(scope="module")
def model(frame):
    data = ingest(frame, label="y", exclude="w", task="classification", verbose=0)
    return Model(data.binning, data.classes, "softmax", (0.0,) * 4, label_name="y")


def targets(source, model):
    blocks = list(read_labelled(source, model, ReadOptions()))
    for block in blocks:
        assert block.target.dtype == np.float32
        assert len(block.bins) == len(block.target) == len(block.label)
    return np.concatenate([block.target for block in blocks]).astype(int)


@pytest.mark.parametrize("form", ["frame", "texts", "parquet", "csv", "arrays"])
def test_targets_are_indices_of_the_classes_of_the_model(form, frame, model, tmp_path):
    source = frame
    if form == "texts":
        source = frame.assign(y=frame["y"].astype(str))
    elif form == "parquet":
        pq.write_table(pa.table(frame), tmp_path / "t.parquet")
        source = tmp_path / "t.parquet"
    elif form == "csv":
        pcsv.write_csv(pa.table(frame), tmp_path / "t.csv")
        source = tmp_path / "t.csv"
    elif form == "arrays":
        source = frame[["a", "b"]].to_numpy(), frame["y"].astype(float).to_numpy()
    assert model.classes == (10, 20, 30, 40)
    np.testing.assert_array_equal(targets(source, model), frame["y"] // 10 - 1)


def test_rows_of_some_classes_keep_the_numbers_of_all(frame, model):
    some = frame[frame["y"].isin([20, 40])]
    np.testing.assert_array_equal(targets(some, model), some["y"] // 10 - 1)
    assert set(targets(frame[frame["y"] == 40], model)) == {3}


def test_weights_come_with_targets(frame, model):
    blocks = list(read_labelled((frame, "y", "w"), model, ReadOptions()))
    np.testing.assert_array_equal(
        np.concatenate([block.weight for block in blocks]), frame["w"].astype("f4")
    )


def test_a_label_that_the_model_does_not_know_is_told_with_file_and_row(frame, model, tmp_path):
    frame = frame.astype({"y": object})
    frame.loc[777, "y"] = 50
    pcsv.write_csv(pa.table(frame.astype({"y": int})), tmp_path / "v.csv")
    for source, name in ((tmp_path / "v.csv", r"v\.csv"), (frame.astype({"y": int}), "")):
        with pytest.raises(
            DataError,
            match=f"{name}.*: row 778: label 50 is not in the training data, which has 10, 20, 30 "
            "and 40",
        ):
            targets(source, model)


def test_a_missing_label_is_told_with_its_row(frame, model):
    with pytest.raises(DataError, match="row 12: label 'y' is missing; remove rows"):
        targets(frame.assign(y=frame["y"].where(frame.index != 11)), model)
