from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pyarrow.parquet as pq
import pytest

from constants import set_constants
from helpers import TALKATIVE
from sparrowboost import ingest, load_model, train
from sparrowboost.cli.learner import LEARNER, PAPER
from sparrowboost.learner.params import Params
from sparse_tables import as_wide, words, write_libsvm

FEW = ["--n-estimators", "8", "--max-leaves", "4"]


def test_a_model_of_files_is_the_one_that_the_library_makes(folder):
    data = ingest(folder / "t.parquet", label="y", exclude=["id"], verbose=0)
    model = train(data, n_estimators=8, max_leaves=4, verbose=0)
    loaded = load_model(folder / "model.json")
    np.testing.assert_array_equal(
        loaded.decision_function(folder / "t.csv"), model.decision_function(folder / "t.csv")
    )
    assert loaded.label_name == "y"


def test_a_store_may_be_trained_on_and_has_its_columns(folder, tmp_path, sparrow):
    store = tmp_path / "store"
    assert sparrow("ingest", folder / "t.csv", "--label", "y", "-o", store, "-q")[0] == 0
    code, out, _ = sparrow("train", store, "-o", tmp_path / "m.json", *FEW)
    assert code == 0
    assert "Model(8 trees of up to 4 leaves, 3 features" in out
    assert "rows read per row kept" in out
    for extra in (["--label", "y"], ["--exclude", "x"]):
        code, _, err = sparrow("train", store, "-o", tmp_path / "m.json", *extra)
        assert code == 1
        assert f"is a store, whose columns are fixed; leave out {extra[0]}" in err
    assert "other data" in sparrow("train", store, folder, "-o", tmp_path / "m.json")[2]


def test_the_plan_for_a_sparse_file_reads_no_rows_into_a_store(monkeypatch, tmp_path, sparrow):
    as_wide(monkeypatch)
    matrix, score = words(2_000, 200)
    path = write_libsvm(tmp_path / "t.svm", matrix, (score > 0).astype(int))
    call = ["train", path, "-o", tmp_path / "m.json"]
    code, out, err = sparrow(*call, "--plan", "--memory", "1GB")
    assert code == 0 and "all 2,000 rows in memory" in out
    assert "finding bins" in err and "binning rows" not in err
    assert not (tmp_path / "m.json").exists()
    assert sparrow(*call, *FEW)[0] == 0
    code, out, _ = sparrow("evaluate", tmp_path / "m.json", path)
    assert code == 0 and "2,000 rows" in out
    code, out, _ = sparrow("inspect", tmp_path / "m.json")
    assert code == 0 and f"f{matrix.getnnz(axis=0).argmax()} " in out
    code, out, _ = sparrow("predict", tmp_path / "m.json", path, "-o", tmp_path / "out.csv")
    assert code == 0 and len((tmp_path / "out.csv").read_text().splitlines()) == 2_001


def test_every_parameter_of_the_learner_is_an_option():
    constraints = {"monotone_constraints", "interaction_constraints"}
    known = {name for name, _, _ in LEARNER + PAPER} | constraints
    assert known == {field.name for field in fields(Params)}


def test_options_of_the_learner_tell_the_defaults_that_it_has():
    defaults = {field.name: field.default for field in fields(Params)}
    for name, _, what in LEARNER + PAPER:
        told = re.search(r"\(default: (.*)\)$", what)[1]
        if defaults[name] is not None:
            assert told == str(defaults[name]), name


def test_options_reach_the_learner(folder, tmp_path, sparrow, monkeypatch):
    import sparrowboost.learner.training

    got = {}

    def catch(dataset, **kwargs):
        got.update(kwargs)
        return train(dataset, n_estimators=1, verbose=0)

    monkeypatch.setattr(sparrowboost.learner.training, "train", catch)
    values = {
        "n_estimators": 7, "learning_rate": 0.25, "max_leaves": 5, "max_depth": 3,
        "min_child_weight": 1.5, "l2": 3.0, "category_penalty": 0.5, "loss": "exponential",
        "stopping": "paper", "sample_size": 1000, "theta": 0.4, "rho": 0.2, "sigma": 0.01,
        "gamma_0": 0.2, "early_stopping_rounds": 4, "eval_metric": "auc", "colsample_bytree": 0.5,
        "colsample_bynode": 0.8,
    }  # fmt: skip
    options = [part for name, value in values.items()
               for part in ("--" + name.replace("_", "-"), value)]  # fmt: skip
    call = ["train", folder / "t.csv", "--label", "y", "-o", tmp_path / "m.json", *options]
    extra = ["--monotone", "x=1,count=-1", "--balanced", "--seed", 5, "--jobs", 1]
    extra += ["--validation-fraction", 0.2, "--memory", "1GB", "-q"]
    extra += ["--interaction-constraints", "x,count;x,kind"]
    assert sparrow(*call, *extra)[0] == 0
    constraints = {"x": 1, "count": -1}
    assert {name: got[name] for name in values} == values
    assert got["monotone_constraints"] == constraints
    assert got["interaction_constraints"] == [["x", "count"], ["x", "kind"]]
    assert got["class_weight"] == "balanced"
    assert (got["random_state"], got["n_jobs"], got["memory_limit"]) == (5, 1, "1GB")
    assert got["valid"].n_rows == 600


def test_early_stopping_on_other_files(folder, tmp_path, sparrow):
    code, out, _ = sparrow(
        "train", folder / "t.csv", "--label", "y", "--valid", folder / "t.csv",
        "--early-stopping-rounds", 3, "-o", tmp_path / "m.json.gz", *FEW,
    )  # fmt: skip
    assert code == 0
    assert "validation log_loss: 0." in out
    assert load_model(tmp_path / "m.json.gz").n_trees == 8


def test_history_and_report_are_written(folder, tmp_path, sparrow):
    pytest.importorskip("matplotlib")
    code, _, _ = sparrow(
        "train", folder / "t.csv", "--label", "y", "-o", tmp_path / "m.json", *FEW,
        "--history", tmp_path / "h.json", "--report", tmp_path / "r.html", "-q",
    )  # fmt: skip
    assert code == 0
    history = json.loads((tmp_path / "h.json").read_text())
    assert history["trees"]["n_trees"] == list(range(1, 9))
    page = (tmp_path / "r.html").read_text()
    assert "<svg" in page
    assert "m.json" in page


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_training_saves_the_trees_that_there_were(folder, tmp_path, number):
    call = [sys.executable, "-c", TALKATIVE, "train", str(folder / "t.csv"), "--label", "y",
            "-o", "m.json", "--n-estimators", "1000000", "--history", "h.json"]  # fmt: skip
    process = subprocess.Popen(call, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert any("task='training'" in line for line in iter(process.stderr.readline, ""))
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    model = load_model(tmp_path / "m.json")
    assert f"interrupted; the {model.n_trees} trees grown so far are in m.json." in err
    assert 1 <= model.n_trees < 1_000_000
    assert "Traceback" not in err


def test_interrupting_before_the_first_tree_leaves_nothing(folder, tmp_path, sparrow, monkeypatch):
    import sparrowboost.learner.training

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(sparrowboost.learner.training, "train", interrupted)
    call = ["train", folder / "t.csv", "--label", "y", "-o", tmp_path / "m.json", "-q"]
    code, _, err = sparrow(*call)
    assert code == 130
    assert "no partial output was left behind" in err
    assert os.listdir(tmp_path) == []


def test_json_is_all_of_standard_output_and_tells_how_it_went(folder, tmp_path, sparrow):
    call = ["train", folder / "t.csv", "--label", "y", "-o", tmp_path / "m.json", *FEW]
    code, out, err = sparrow(*call, "--valid", folder / "t.parquet", "--json")
    assert code == 0
    assert "task='training'" in err
    got, model = json.loads(out), load_model(tmp_path / "m.json")
    assert got["path"] == str(tmp_path / "m.json")
    assert got["digest"] == model.digest
    assert got["trees"] == len(model.trees) == 8
    assert got["leaves"] == sum(tree.n_leaves for tree in model.trees)
    table = pq.read_table(folder / "t.parquet")
    assert (got["rows"], got["n_features"]) == (len(table), 3)
    assert got["reason"] == "n_estimators"
    assert got["eval_metric"] == "log_loss"
    assert got["best_score"] <= got["scores"]["log_loss"]
    assert 1 <= got["best_trees"] <= 8
    assert got["rows_scanned"] > 0
    assert got["seconds"] >= got["training_seconds"] > 0
    assert got["peak_bytes"] > 50_000_000
    code, out, _ = sparrow(*call, "--json", "-q")
    assert code == 0
    without = json.loads(out)
    assert (without["best_score"], without["best_trees"], without["scores"]) == (None, None, {})


def test_json_of_a_finished_checkpoint_and_of_a_plan_are_objects_too(folder, tmp_path, sparrow):
    call = ["train", folder / "t.csv", "--label", "y", "-o", tmp_path / "m.json", *FEW, "--json"]
    resumed = [*call, "-q", "--checkpoint", tmp_path / "run", "--valid", folder / "t.parquet"]
    first, again = (json.loads(sparrow(*resumed)[1]) for _ in range(2))
    assert again["digest"] == first["digest"]
    assert (first["n_samples"], again["n_samples"]) == (1, None)
    plan = json.loads(sparrow(*call, "-q", "--plan", "--memory", "1GB")[1])
    assert plan["memory_limit"] == 1_000_000_000
    assert plan["all_rows"] is True
    assert sum(plan["parts"].values()) <= plan["memory_limit"]


def test_a_training_that_went_on_shows_its_scores(folder, tmp_path, sparrow, monkeypatch):
    set_constants(monkeypatch, save_seconds=0.0)
    call = ["train", folder / "t.csv", "--label", "y", "-o", tmp_path / "m.json"]
    call += ["--valid", folder / "t.parquet", "--checkpoint", tmp_path / "run", "--max-leaves", 4]
    assert sparrow(*call, "--n-estimators", 4)[0] == 0
    code, out, _ = sparrow(*call, "--n-estimators", 6)
    assert code == 0
    assert "validation log_loss: 0." in out
    assert "6 trees" in out


def test_a_store_of_a_checkpoint_that_is_a_link_is_not_written_through(folder, tmp_path, sparrow):
    victim, run = tmp_path / "victim", tmp_path / "run"
    victim.mkdir()
    run.mkdir()
    (run / "store").symlink_to(victim)
    call = ["train", folder / "t.parquet", "--label", "y", "-o", tmp_path / "m.json"]
    status, _, err = sparrow(*call, "--checkpoint", run)
    assert status == 1 and f"{run}/store: is a symbolic link" in err
    assert not list(victim.iterdir())
