"""The commands that make and use models."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from helpers import small_table
from sparrowboost import (
    DataError,
    SparrowClassifier,
    evaluate,
    feature_importances,
    ingest,
    load_model,
    train,
    write_predictions,
)
from sparrowboost.cli import LEARNER, main, make_parser
from sparrowboost.learner.params import Params

FEW = ["--n-estimators", "8", "--max-leaves", "4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli")
    table = small_table().drop_columns(["w"])
    pq.write_table(table.append_column("id", pa.array(range(len(table)))), path / "t.parquet")
    pcsv.write_csv(table, path / "t.csv")
    lists = pa.array([[1, 2]] * len(table))
    pq.write_table(table.append_column("l", lists), path / "l.parquet")
    (path / "folder.csv").mkdir()
    words = pa.array(["1.5", *["oops"] * (len(table) - 1)])
    pcsv.write_csv(table.set_column(table.column_names.index("x"), "x", words), path / "words.csv")
    call = ["train", f"{path}/t.parquet", "--label", "y", "--exclude", "id", *FEW]
    assert main([*call, "-o", f"{path}/model.json", "-q"]) == 0
    return path


def run(capsys, *call):
    """The exit code, standard output and standard error of a call."""
    code = main([str(part) for part in call])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def in_folder(folder, call):
    """The call with files of the folder in the place of words in capitals."""
    names = {
        "MODEL": "model.json", "DATA": "t.csv", "LISTS": "l.parquet", "FOLDER": "folder.csv",
        "WORDS": "words.csv",
    }  # fmt: skip
    return [folder / names[part] if part in names else part for part in call]


# -- train ---------------------------------------------------------------------------------------


def test_a_model_of_files_is_the_one_that_the_library_makes(folder):
    data = ingest(folder / "t.parquet", label="y", exclude=["id"], verbose=0)
    model = train(data, n_estimators=8, max_leaves=4, verbose=0)
    loaded = load_model(folder / "model.json")
    np.testing.assert_array_equal(
        loaded.decision_function(folder / "t.csv"), model.decision_function(folder / "t.csv")
    )
    assert loaded.label_name == "y"


def test_a_store_may_be_trained_on_and_has_its_columns(folder, tmp_path, capsys):
    store = tmp_path / "store"
    assert run(capsys, "ingest", folder / "t.csv", "--label", "y", "-o", store, "-q")[0] == 0
    code, out, _ = run(capsys, "train", store, "-o", tmp_path / "m.json", *FEW)
    assert code == 0
    assert "Model(8 trees of up to 4 leaves, 3 features" in out
    assert "rows read for each kept" in out
    for extra in (["--label", "y"], ["--exclude", "x"]):
        code, _, err = run(capsys, "train", store, "-o", tmp_path / "m.json", *extra)
        assert code == 1
        assert f"is a store, which has its columns; leave out {extra[0]}" in err
    assert "other data" in run(capsys, "train", store, folder, "-o", tmp_path / "m.json")[2]


def test_every_parameter_of_the_learner_is_an_option():
    known = {name for name, _, _ in LEARNER} | {"monotone_constraints"}
    assert known == {field.name for field in fields(Params)}


def test_options_of_the_learner_tell_the_defaults_that_it_has():
    defaults = {field.name: field.default for field in fields(Params)}
    for name, _, what in LEARNER:
        told = re.search(r"\(default: (.*)\)$", what)[1]
        if defaults[name] is not None:
            assert told == str(defaults[name]), name


def test_options_reach_the_learner(folder, tmp_path, capsys, monkeypatch):
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
        "gamma_0": 0.2, "early_stopping_rounds": 4, "eval_metric": "auc",
    }  # fmt: skip
    options = [part for name, value in values.items()
               for part in ("--" + name.replace("_", "-"), value)]  # fmt: skip
    call = ["train", folder / "t.csv", "--label", "y", "-o", tmp_path / "m.json", *options]
    extra = ["--monotone", "x=1,count=-1", "--balanced", "--seed", 5, "--jobs", 1]
    extra += ["--validation-fraction", 0.2, "--memory", "1GB", "-q"]
    assert run(capsys, *call, *extra)[0] == 0
    constraints = {"x": 1, "count": -1}
    assert {name: got[name] for name in values} == values
    assert got["monotone_constraints"] == constraints
    assert got["class_weight"] == "balanced"
    assert (got["random_state"], got["n_jobs"], got["memory_limit"]) == (5, 1, "1GB")
    assert got["valid"].n_rows == 600


def test_early_stopping_on_other_files(folder, tmp_path, capsys):
    code, out, _ = run(
        capsys, "train", folder / "t.csv", "--label", "y", "--valid", folder / "t.csv",
        "--early-stopping-rounds", 3, "-o", tmp_path / "m.json.gz", *FEW,
    )  # fmt: skip
    assert code == 0
    assert "validation log_loss: 0." in out
    assert load_model(tmp_path / "m.json.gz").n_trees == 8


def test_history_and_report_are_written(folder, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    code, _, _ = run(
        capsys, "train", folder / "t.csv", "--label", "y", "-o", tmp_path / "m.json", *FEW,
        "--history", tmp_path / "h.json", "--report", tmp_path / "r.html", "-q",
    )  # fmt: skip
    assert code == 0
    history = json.loads((tmp_path / "h.json").read_text())
    assert history["trees"]["n_trees"] == list(range(1, 9))
    page = (tmp_path / "r.html").read_text()
    assert "<svg" in page
    assert "m.json" in page


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (["--learning-rate", "-1"], "learning_rate=-1.0: give a number above 0"),
        (["--stopping", "paper"], "pass loss='exponential'"),
        (["--monotone", "x"], "--monotone: give features and signs as A=1,B=-1"),
        (["--monotone", "nope=1"], "'nope'"),
        (["--early-stopping-rounds", "3"], "needs validation data"),
        (["--valid", "v.csv", "--validation-fraction", "0.1"], "exclude each other"),
        (["--validation-fraction", "2"], "above 0 and below 1"),
        (["--report", "/no/such/folder/r.html"], "the folder /no/such/folder is not there"),
        (["--report", "FOLDER"], "folder.csv: is a folder"),
        (["--history", "FOLDER"], "folder.csv: is a folder"),
        (["-o", "FOLDER"], "folder.csv: is a folder"),
        (["-o", "DATA"], "t.csv: is one of the files to read"),
        (["--history", "DATA"], "t.csv: is one of the files to read"),
        (["--valid", "none.csv"], "none.csv: no such file"),
        (["--label", "nope"], "no column 'nope'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(folder, tmp_path, capsys, extra, says):
    call = ["train", folder / "t.csv", "--label", "y", "-o", tmp_path / "m.json", "-q"]
    code, out, err = run(capsys, *call, *in_folder(folder, extra))
    assert (code, out) == (1, "")
    assert says in err
    assert err.count("\n") == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "extra",
    [
        ["--early-stopping-rounds", "3"],
        ["--valid", "v.csv", "--validation-fraction", "0.1"],
        ["--validation-fraction", "2"],
        ["--valid", "none.csv"],
        ["-o", "FOLDER"],
    ],
)
def test_what_is_wrong_with_a_call_is_said_before_rows_are_read(
    folder, tmp_path, capsys, monkeypatch, extra
):
    def read(*args, **kwargs):
        raise AssertionError("rows were read")

    monkeypatch.setattr("sparrowboost.store.ingest.ingest", read)
    monkeypatch.chdir(tmp_path)
    call = ["train", "DATA", "--label", "y", "-o", "m.json", "-q", *extra]
    assert run(capsys, *in_folder(folder, call))[0] == 1


def test_a_number_that_is_none_is_a_wrong_call(folder, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["train", "t.csv", "-o", "m.json", "--n-estimators", "many"])
    assert caught.value.code == 2
    assert "'many' is no number" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["importance", "m.json", "--top", "-3"])
    assert "'-3' is no number from 0 on" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_training_saves_the_trees_that_there_were(folder, tmp_path, number):
    call = [sys.executable, "-m", "sparrowboost", "train", str(folder / "t.csv"), "--label", "y",
            "-o", "m.json", "--n-estimators", "1000000", "--history", "h.json"]  # fmt: skip
    process = subprocess.Popen(call, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    # It has begun to train when it says so, or when the bins were found some seconds ago.
    lines = iter(process.stderr.readline, "")
    assert any("task='binning rows'" in line for line in lines)
    deadline = time.monotonic() + 60
    for line in lines:
        if "task='training'" in line or time.monotonic() > deadline:
            break
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    model = load_model(tmp_path / "m.json")
    assert f"interrupted; the {model.n_trees} trees that there were are in m.json." in err
    assert 1 <= model.n_trees < 1_000_000
    assert "Traceback" not in err


def test_interrupting_before_the_first_tree_leaves_nothing(folder, tmp_path, capsys, monkeypatch):
    import sparrowboost.learner.training

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(sparrowboost.learner.training, "train", interrupted)
    call = ["train", folder / "t.csv", "--label", "y", "-o", tmp_path / "m.json", "-q"]
    code, _, err = run(capsys, *call)
    assert code == 130
    assert "nothing half-made was left" in err
    assert os.listdir(tmp_path) == []


# -- predict -------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_predictions_are_those_of_the_model(folder, tmp_path, capsys, suffix):
    out_file = tmp_path / f"p.{suffix}"
    code, out, _ = run(
        capsys, "predict", folder / "model.json", folder / "t.parquet", "--keep", "id,color",
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


def test_files_without_a_header_or_a_telling_suffix(folder, tmp_path, capsys):
    lines = (folder / "t.csv").read_text().splitlines(keepends=True)
    data = tmp_path / "rows.txt"
    data.write_text("".join(lines[1:]))
    how = ["--no-header", "--format", "csv"]
    label = f"f{small_table().drop_columns(['w']).column_names.index('y')}"
    call = ["train", data, "--label", label, *how, *FEW, "-o", tmp_path / "m.json", "-q"]
    assert run(capsys, *call)[0] == 0
    assert run(capsys, "predict", tmp_path / "m.json", data, *how, "-o", tmp_path / "p.csv")[0] == 0
    model = load_model(folder / "model.json")
    p = model.predict_proba(folder / "t.csv")[:, 1]
    np.testing.assert_allclose(pd.read_csv(tmp_path / "p.csv")["probability"], p)
    code, out, _ = run(capsys, "evaluate", tmp_path / "m.json", data, *how, "--json", "-q")
    assert code == 0
    assert json.loads(out)["auc"] == evaluate(model, folder / "t.csv", verbose=0).auc
    export = ["export", tmp_path / "m.json", "-o", tmp_path / "x.json", "--data", data, *how]
    assert run(capsys, *export)[0] == 0
    code, out, _ = run(capsys, *call[:-1], "--valid", data)
    assert code == 0
    loss = evaluate(model, folder / "t.csv", verbose=0).log_loss
    assert f"validation log_loss: {loss:.6g}" in out


def test_how_to_read_files_may_be_meant_for_validation_data_of_a_store(folder, tmp_path, capsys):
    lines = (folder / "t.csv").read_text().splitlines(keepends=True)
    (tmp_path / "rows.txt").write_text("".join(lines[1:]))
    how = ["--no-header", "--format", "csv"]
    label = f"f{small_table().drop_columns(['w']).column_names.index('y')}"
    call = ["ingest", tmp_path / "rows.txt", *how, "--label", label, "-o", tmp_path / "s", "-q"]
    assert run(capsys, *call)[0] == 0
    call = ["train", tmp_path / "s", "-o", tmp_path / "m.json", "-q", *FEW]
    assert run(capsys, *call, *how, "--valid", tmp_path / "rows.txt")[0] == 0
    for option in (how[:1], how[1:]):
        code, _, err = run(capsys, *call, *option)
        assert code == 1
        assert f"which has its columns; leave out {option[0]}." in err


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
    import sparrowboost.model.predict
    import sparrowboost.model.predictions

    monkeypatch.setattr(sparrowboost.model.predict, "BLOCK_ROWS", 100)
    monkeypatch.setattr(sparrowboost.model.predictions, "GROUP_ROWS", 1_000)
    call = ["predict", f"{folder}/model.json", f"{folder}/t.csv", "-o", f"{tmp_path}/p.parquet"]
    assert main([*call, "--keep", "color", "-q"]) == 0
    assert pq.read_metadata(tmp_path / "p.parquet").num_row_groups == 3
    color = pq.read_table(tmp_path / "p.parquet").column("color").to_pylist()
    assert [c or None for c in color] == small_table().column("color").to_pylist()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (["predict", "MODEL", "DATA", "-o", "p.txt"], "end the name in .parquet or .csv"),
        (["predict", "MODEL", "DATA", "-o", "no/p.csv"], "there is no folder"),
        (["predict", "MODEL", "DATA", "--keep", "nope", "-o", "p.csv"], "lacks column 'nope'"),
        (
            ["predict", "MODEL", "DATA", "--keep", "x,x", "-o", "p.csv"],
            "'x' would be written",
        ),
        (["predict", "MODEL", "DATA", "-o", "DATA"], "t.csv: is one of the files to read"),
        pytest.param(
            ["predict", "MODEL", "DATA", "-o", "/proc/p.csv"],
            "/proc/p.csv: cannot be written (No such file or directory); choose another path",
            marks=pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a /proc"),
        ),
        (["predict", "MODEL", "DATA", "-o", "FOLDER"], "folder.csv: is a folder"),
        (["predict", "MODEL", "LISTS", "--keep", "l", "-o", "p.csv"], "p.csv: cannot hold"),
        (["predict", "MODEL", "DATA", "--format", "csvv", "-o", "p.csv"], "'csvv' is not known"),
        (["predict", "DATA", "DATA", "-o", "p.csv"], "t.csv: not a Sparrow model"),
        (["predict", "LISTS", "DATA", "-o", "p.csv"], "l.parquet: not a Sparrow model"),
        (["export", "MODEL", "-o", "MODEL"], "model.json: is one of the files to read"),
        (["predict", "none.json", "DATA", "-o", "p.csv"], "no such file"),
        (["evaluate", "MODEL", "none.csv"], "no such file"),
        (["evaluate", "MODEL", "WORDS"], "words.csv: row 2: column 'x' is 'oops' where numbers"),
        (["predict", "MODEL", "WORDS", "-o", "p.csv"], "words.csv: row 2: column 'x' is 'oops'"),
        (["export", "MODEL", "-o", "m.json", "--data", "WORDS"], "words.csv: row 2: column 'x'"),
        (["evaluate", "MODEL", "DATA", "--label", "nope"], "no column 'nope'"),
        (["export", "MODEL", "-o", "m.txt"], "end it in .json"),
        (["importance", "none.json"], "no such file"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_1(folder, tmp_path, capsys, monkeypatch, call, says):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *in_folder(folder, call))
    assert (code, out) == (1, "")
    assert says in err
    assert len([line for line in err.splitlines() if line.startswith("sparrow: error")]) == 1
    assert "Traceback" not in err
    assert os.listdir(tmp_path) == []


# -- evaluate, importance, export, inspect -------------------------------------------------------


def test_an_evaluation_is_that_of_scikit_learn(folder, capsys):
    from sklearn import metrics

    code, out, _ = run(capsys, "evaluate", folder / "model.json", folder / "t.csv", "--json", "-q")
    assert code == 0
    got = json.loads(out)
    y = small_table().column("y").to_numpy()
    p = load_model(folder / "model.json").predict_proba(folder / "t.csv")[:, 1]
    assert got["n_rows"] == 3_000
    assert got["n_positive"] == y.sum()
    assert got["auc"] == pytest.approx(roc_auc_score(y, p), abs=1e-6)
    assert got["average_precision"] == pytest.approx(
        metrics.average_precision_score(y, p), abs=1e-6
    )
    assert got["log_loss"] == pytest.approx(metrics.log_loss(y, p))
    assert got["brier"] == pytest.approx(metrics.brier_score_loss(y, p))
    assert got["accuracy"] == pytest.approx(((p > 0.5) == y).mean())
    parts = got["calibration"]
    assert sum(part["weight"] for part in parts) == 3_000
    here = (p >= parts[0]["low"]) & (p < parts[0]["high"])
    assert parts[0]["predicted"] == pytest.approx(p[here].mean())
    assert parts[0]["observed"] == pytest.approx(y[here].mean())
    code, out, _ = run(capsys, "evaluate", folder / "model.json", folder / "t.csv", "-q")
    assert code == 0
    assert f"auc                {got['auc']:.6f}" in out
    assert "observed" in out


def test_weights_count_in_an_evaluation(folder):
    model = load_model(folder / "model.json")
    table = small_table()
    twice = pa.concat_tables([table, table.slice(0, 1_000)])
    weighted = table.append_column("u", pa.array(np.repeat([2.0, 1.0], [1_000, 2_000])))
    a, b = evaluate(model, twice, verbose=0), evaluate(model, weighted, weight="u", verbose=0)
    for name in ("auc", "average_precision", "log_loss", "exponential_loss", "accuracy"):
        assert getattr(a, name) == pytest.approx(getattr(b, name)), name


def test_an_evaluation_of_one_label_has_no_auc(folder):
    table = small_table()
    ones = table.filter(pa.array(table.column("y").to_numpy() == 1))
    result = evaluate(load_model(folder / "model.json"), ones, verbose=0)
    assert np.isnan(result.auc)
    assert result.to_json()["auc"] is None
    json.dumps(result.to_json(), allow_nan=False)


def test_importances_are_those_of_the_library(folder, capsys):
    model = load_model(folder / "model.json")
    for kind in ("gain", "splits"):
        code, out, _ = run(capsys, "importance", folder / "model.json", "--kind", kind, "--json")
        assert code == 0
        expected = feature_importances(model, kind)
        assert json.loads(out) == dict(zip(model.feature_names, expected, strict=True))
    code, out, _ = run(capsys, "importance", folder / "model.json", "--top", 1)
    assert code == 0
    assert out.count("%") == 1
    assert "of 3 features" in out


def test_an_export_says_what_it_wrote(folder, tmp_path, capsys):
    code, out, _ = run(
        capsys, "export", folder / "model.json", "-o", tmp_path / "x.json", "--data",
        folder / "t.csv",
    )  # fmt: skip
    assert code == 0
    assert "x.json: Model(8 trees" in out
    assert "learner" in json.loads((tmp_path / "x.json").read_text())


def test_a_model_may_be_inspected(folder, capsys):
    code, out, _ = run(capsys, "inspect", folder / "model.json")
    assert code == 0
    assert "y = 1, else 0" in out
    assert "color" in out
    facts = json.loads(run(capsys, "inspect", folder / "model.json", "--json")[1])
    assert facts["trees"] == 8
    assert facts["label"] == "y"
    assert [f["name"] for f in facts["features"]] == ["x", "count", "color"]


def test_who_reads_only_the_head_of_the_output_gets_no_traceback(folder):
    call = f"{sys.executable} -m sparrowboost inspect {folder}/model.json --json | head -1"
    done = subprocess.run(call, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout == "{\n"
    assert done.stderr == ""


def test_every_command_explains_itself_with_an_example(capsys):
    commands = make_parser()._subparsers._group_actions[0].choices
    assert set(commands) == {
        "demo", "ingest", "inspect", "train", "predict", "evaluate", "importance", "export",
    }  # fmt: skip
    for name in commands:
        with pytest.raises(SystemExit) as caught:
            main([name, "--help"])
        assert caught.value.code == 0
        assert f"example:\n  sparrow {name} " in capsys.readouterr().out
