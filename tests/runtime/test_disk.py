"""Where results may be written: only to local paths."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import sparrowboost
from sparrowboost import DataError
from sparrowboost.cli import main
from sparrowboost.datasets import make_large, write_splice
from sparrowboost.demo import run_demo
from sparrowboost.runtime.disk import is_remote, output_path

X = np.random.default_rng(0).normal(size=(200, 2))
Y = X[:, 0] > 0
REMOTE = ["s3://bucket/name", "gs://bucket/name", "abfss://c@account/x"]


@pytest.fixture(scope="module")
def dataset():
    return sparrowboost.ingest(X, label=Y, verbose=0)


@pytest.fixture(scope="module")
def model(dataset):
    return sparrowboost.train(dataset, n_estimators=2, verbose=0)


@pytest.mark.parametrize("path", REMOTE)
def test_an_address_of_remote_storage_is_no_output_path(path):
    for given in (path, Path(path)):  # a Path has only one slash left
        assert is_remote(given)
        with pytest.raises(DataError, match="only local paths are written to"):
            output_path(given)


@pytest.mark.parametrize("path", ["a/b", "./s3:/b", "/s3://b", "b:/c", "a b:/c", "~/c", "x:y"])
def test_local_paths_are_output_paths(path):
    assert not is_remote(path)
    assert output_path(path) == Path(path).expanduser().absolute()


OUTPUTS = {
    "store": lambda to, **k: sparrowboost.ingest(X, label=Y, path=f"{to}/store", verbose=0),
    "resumed": lambda to, **k: sparrowboost.ingest(
        __file__, label="y", format="csv", path=f"{to}/store", resume=True, verbose=0
    ),
    "checkpoint": lambda to, dataset, **k: sparrowboost.train(
        dataset, checkpoint=f"{to}/run", verbose=0
    ),
    "scratch": lambda to, dataset, **k: sparrowboost.train(dataset, scratch=to, verbose=0),
    "table": lambda to, **k: make_large(f"{to}/t.parquet", 100),
    "splice": lambda to, **k: write_splice(f"{to}/t.parquet", "train"),
    "demo": lambda to, **k: run_demo(memory_limit="1GB", keep=f"{to}/demo", verbose=0),
}


@pytest.mark.parametrize("what", OUTPUTS)
def test_nothing_is_written_to_a_local_folder_of_that_name(
    tmp_path, monkeypatch, dataset, model, what
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"^s3:/+bucket.*only local paths are written to"):
        try:
            OUTPUTS[what]("s3://bucket", dataset=dataset, model=model)
        finally:
            assert os.listdir(tmp_path) == []


def test_a_checkpoint_is_refused_before_rows_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = sparrowboost.ingest(X, label=Y, verbose=0, wait=False)
    with pytest.raises(DataError, match="only local paths"):
        sparrowboost.train(rows, checkpoint="s3://b/run", verbose=0)
    assert os.listdir(tmp_path) == []
    assert rows.n_rows == 200


@pytest.mark.parametrize(
    "call",
    [
        ["ingest", "DATA", "--label", "f0", "-o", "s3://b/store"],
        ["ingest", "DATA", "--label", "f0", "-o", "s3://b/store", "--resume"],
        ["train", "DATA", "--label", "f0", "-o", "m.json", "--checkpoint", "s3://b/run"],
        ["demo", "--keep", "s3://b/demo"],
    ],
)
def test_commands_refuse_remote_stores_and_folders(tmp_path, monkeypatch, capsys, model, call):
    model.save_model(tmp_path / "model.json")
    (tmp_path / "t.csv").write_text("f0,f1\n" + "".join(f"{i % 2},{i}\n" for i in range(100)))
    names = {"DATA": str(tmp_path / "t.csv"), "MODEL": str(tmp_path / "model.json")}
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main([names.get(word, word) for word in call]) == 1
    err = capsys.readouterr().err
    assert "s3://b" in err
    assert "only local paths are written to" in err
    assert err.count("\n") == 1
    assert os.listdir(tmp_path / "here") == []
