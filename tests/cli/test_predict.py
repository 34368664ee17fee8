from __future__ import annotations

import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from constants import set_constants
from helpers import small_table
from sparrowboost import (
    DataError,
    SparrowClassifier,
    evaluate,
    feature_importances,
    load_model,
    write_predictions,
)
from sparrowboost.cli import main


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_predictions_are_those_of_the_model(folder, tmp_path, sparrow, suffix):
    out_file = tmp_path / f"p.{suffix}"
    code, out, _ = sparrow(
        "predict", folder / "model.json", folder / "t.parquet", "--keep", "id,color",
        "--score", "-o", out_file,
    )  # fmt: skip
    assert code == 0
    assert out == f"{out_file}: 3,000 rows\n"
    frame = pd.read_parquet(out_file) if suffix == "parquet" else pd.read_csv(out_file)
    assert list(frame) == ["id", "color", "prediction", "probability", "score"]
    model = load_model(folder / "model.json")
    p = model.predict_proba(folder / "t.parquet")[:, 1]
    np.testing.assert_allclose(frame["probability"], p, rtol=1e-15)
    np.testing.assert_array_equal(frame["prediction"], p > 0.5)
    assert frame["id"].tolist() == list(range(3_000))
    assert os.listdir(tmp_path) == [out_file.name]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "CSV"])
def test_kept_columns_of_a_text_file_are_its_text(folder, tmp_path, suffix):
    ids = [f"{i:04d}" for i in range(3_000)]
    table = small_table().append_column("id", pa.array(ids))
    pcsv.write_csv(table, tmp_path / "t.csv", pcsv.WriteOptions(quoting_style="none"))
    model, out = load_model(folder / "model.json"), tmp_path / f"p.{suffix}"
    write_predictions(model, tmp_path / "t.csv", out, keep=["id", "x"], verbose=0)
    frame = pd.read_parquet(out) if suffix == "parquet" else pd.read_csv(out, dtype={"id": str})
    assert frame["id"].tolist() == ids
    np.testing.assert_array_equal(frame["x"], table.column("x").to_numpy())


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_kept_columns_have_one_type_whatever_that_of_each_file(folder, tmp_path, suffix):
    model, table, out = load_model(folder / "model.json"), small_table(), tmp_path / f"p.{suffix}"
    columns = {"words": pa.array(["07"] * 3_000), "whole": pa.array([7] * 3_000)}
    columns["nothing"] = pa.nulls(3_000)
    for name, column in columns.items():
        pq.write_table(table.append_column("k", column), tmp_path / f"{name}.parquet")

    def keep(*names):
        files = [tmp_path / f"{name}.parquet" for name in names]
        write_predictions(model, files, out, keep="k", verbose=0)
        frame = pd.read_parquet(out) if suffix == "parquet" else pd.read_csv(out, dtype=str)
        return frame["k"].map(str, na_action="ignore").drop_duplicates().tolist()

    assert keep("words", "whole") == ["07", "7"]
    assert keep("whole", "nothing")[0][0] == "7"
    if suffix == "csv":  # has no types
        assert keep("whole", "words") == ["7", "07"]
        return
    for names in (("whole", "words"), ("nothing", "words")):
        with pytest.raises(DataError, match=r"column 'k' is .* in some files and string in others"):
            keep(*names)


def test_a_name_alone_is_a_column_to_keep_or_to_write(folder, tmp_path):
    model = load_model(folder / "model.json")
    out = tmp_path / "p.parquet"
    write_predictions(model, folder / "t.parquet", out, columns="score", keep="id", verbose=0)
    assert pq.read_schema(out).names == ["id", "score"]
    with pytest.raises(DataError, match="'score' would be written twice"):
        write_predictions(model, folder / "t.parquet", out, columns=["score"] * 2, verbose=0)


def test_a_classifier_is_told_to_give_its_model(folder, tmp_path):
    X = np.arange(40.0).reshape(20, 2)
    clf = SparrowClassifier(n_estimators=1).fit(X, X[:, 0] > 20)
    for call in (
        lambda: evaluate(clf, X, label=X[:, 0] > 20),
        lambda: write_predictions(clf, X, tmp_path / "p.csv"),
        lambda: feature_importances(clf),
    ):
        with pytest.raises(DataError, match="got SparrowClassifier; pass its model_"):
            call()


def test_many_blocks_become_few_row_groups(folder, tmp_path, monkeypatch):

    set_constants(monkeypatch, prediction_block_rows=100, predictions_group_rows=1_000)
    call = ["predict", f"{folder}/model.json", f"{folder}/t.csv", "-o", f"{tmp_path}/p.parquet"]
    assert main([*call, "--keep", "color", "-q"]) == 0
    assert pq.read_metadata(tmp_path / "p.parquet").num_row_groups == 3
    color = pq.read_table(tmp_path / "p.parquet").column("color").to_pylist()
    assert [c or None for c in color] == small_table().column("color").to_pylist()
