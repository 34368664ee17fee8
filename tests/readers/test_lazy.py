"""Frames and data sets of other libraries whose rows are computed or read on demand."""

from __future__ import annotations

import importlib.util
import json

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import check_ingested, small_table
from helpers import check_refused as refused
from sparrowboost import MemoryLimitError, SparrowClassifier, ingest, train
from sparrowboost.cli import main

TABLE = small_table(1_000)


def check(data, table=TABLE, **options):
    return check_ingested(data, table, **options)


# -- polars ----------------------------------------------------------------------------------------


def test_a_lazy_frame_is_computed_while_it_is_read(tmp_path, monkeypatch):
    pq.write_table(TABLE, tmp_path / "t.parquet")
    monkeypatch.delattr(pl.LazyFrame, "collect")  # as a whole
    frame = pl.scan_parquet(tmp_path / "t.parquet")
    check(frame)
    some = TABLE.filter(pa.compute.less(TABLE["w"], 0.5))
    check(frame.filter(pl.col("w") < 0.5), some)
    fitted = SparrowClassifier(n_estimators=2, verbose=0).fit(frame, "y", eval_set=frame)
    assert fitted.predict_proba(frame).shape == (1_000, 2)


def test_categories_and_enums_of_a_lazy_frame_are_categories():
    frame = pl.LazyFrame(
        {
            "c": pl.Series(["a", "b", None, "a"] * 50, dtype=pl.Categorical),
            "e": pl.Series(["v", "u"] * 100, dtype=pl.Enum(["u", "v"])),
            "d": pl.Series(["1.25", "2.50"] * 100).cast(pl.Decimal(9, 2)),
            "y": [0, 1] * 100,
        }
    )
    dataset = ingest(frame, label="y", verbose=0)
    kinds = {feature.name: feature.kind for feature in dataset.binning.features}
    assert kinds == {"c": "category", "e": "category", "d": "float64"}
    assert dataset.binning.features[0].categories == ("a", "b")


def test_what_is_wrong_with_a_lazy_frame_is_one_line():
    frame = pl.LazyFrame({"x": ["a", "1"] * 50, "y": [0, 1] * 50})
    refused(frame.select("nope"), "LazyFrame: ", "nope")
    refused(frame.with_columns(pl.col("x").cast(pl.Int64)), "failed before its end", "i64")
    refused(frame, "no column 'z'", label="z")
    refused(frame.filter(pl.col("y") > 1), "has no rows")
    refused(frame, "polars (", error=MemoryLimitError, memory_limit="100MB")
    refused(frame.with_columns(l=pl.concat_list("y")), "column 'l' has type", "flatten")


# -- Hugging Face ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def datasets():
    if not importlib.util.find_spec("datasets").origin:  # tests/datasets is a folder on the path
        pytest.skip("needs Hugging Face's datasets")
    return importlib.import_module("datasets")


def test_data_sets_of_hugging_face_are_data(datasets, tmp_path):
    data = datasets.Dataset(TABLE)
    check(data)
    data.save_to_disk(tmp_path / "saved")
    kept = datasets.load_from_disk(tmp_path / "saved")
    check(kept)
    some = TABLE.filter(pa.compute.less(TABLE["w"], 0.5))
    check(kept.select([i for i, w in enumerate(TABLE["w"].to_pylist()) if w < 0.5]), some)
    check(kept.to_iterable_dataset())
    model = train(ingest(kept, label="y", verbose=0), n_estimators=2, verbose=0)
    assert model.predict_proba(kept).shape == (1_000, 2)
    refused(datasets.DatasetDict({"train": data, "test": data}), "has several splits", "'train'")


def saved_by_hand(folder, tables):
    """A folder as `save_to_disk` writes it, for where the library is not installed."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05}-of-{len(tables):05}.arrow" for i in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        with pa.ipc.new_stream(folder / name, table.schema) as writer:
            writer.write_table(table, 100)
    state = {"_data_files": [{"filename": name} for name in names]}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def test_a_saved_folder_is_read_without_the_library(tmp_path, capsys):
    folder = saved_by_hand(tmp_path / "saved", [TABLE[:600], TABLE[600:]])
    check(folder)
    check(folder / "data-00000-of-00002.arrow", TABLE[:600])
    call = ["ingest", str(folder), "--label", "y", "-o", str(tmp_path / "s"), "-q", "--json"]
    assert main(call) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 1_000


def test_what_is_wrong_with_a_saved_folder_is_one_line(tmp_path):
    both = tmp_path / "both"
    saved_by_hand(both / "train", [TABLE])
    (both / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    refused(both, "has several splits (train, test)", str(both / "train"))
    folder = saved_by_hand(tmp_path / "saved", [TABLE])
    data = (folder / "data-00000-of-00001.arrow").read_bytes()
    (folder / "data-00000-of-00001.arrow").write_bytes(data[: len(data) // 2])
    refused(folder, "data-00000-of-00001.arrow")
    (folder / "data-00000-of-00001.arrow").unlink()
    refused(folder, "data-00000-of-00001.arrow: no such file")
    (folder / "state.json").write_text("[]")
    refused(folder, "state.json is not that of a saved data set")
