from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.csv as pcsv
import pytest

from helpers import small_table
from sparrowboost import ingest
from sparrowboost.cli import main


@pytest.fixture
def table(tmp_path):
    pcsv.write_csv(small_table(), tmp_path / "t.csv")
    return str(tmp_path / "t.csv")


def test_ingest_and_inspect(table, tmp_path, capsys):
    store = str(tmp_path / "store")
    assert main(["ingest", table, "--label", "y", "--weight", "w", "-o", store, "-q"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["inspect", store, "--verify"]) == 0
    out = capsys.readouterr().out
    assert "3,000 rows, 3 features" in out
    assert "y = 1, else 0" in out
    assert "color" in out
    assert "checksums of all 2 blocks are correct" in out
    assert main(["inspect", store, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["rows"] == 3_000
    assert facts["weighted"] is True
    assert facts["class_rows"] == [3_000 - facts["positives"], facts["positives"]]
    assert [f["name"] for f in facts["features"]] == ["x", "count", "color"]


def test_all_options_reach_the_library(table, tmp_path, capsys):
    store = str(tmp_path / "store")
    call = [
        "ingest", table, "--label", "color", "--positive", "red", "--columns", "x,count",
        "--columns", "w", "--exclude", "w", "--categorical", "count", "--memory", "1GB",
        "--seed", "3", "--jobs", "1", "--format", "csv", "--no-category-statistics", "-o", store,
    ]  # fmt: skip
    # Rows without a color have no label.
    assert main(call) == 1
    assert "label 'color' is missing" in capsys.readouterr().err
    call[call.index("color")] = "y"
    call[call.index("red")] = "0"
    assert main(call) == 0
    assert "y = 0, else 1" in capsys.readouterr().out
    assert main([*call, "--overwrite"]) == 0
    capsys.readouterr()
    main(["inspect", store, "--json"])
    features = json.loads(capsys.readouterr().out)["features"]
    assert [(f["name"], f["kind"]) for f in features] == [("x", "float64"), ("count", "category")]


def test_more_than_two_classes_are_named_and_counted(tmp_path, capsys):
    city = ["Rome", "Oslo", "Bonn", "Rome"] * 25
    pcsv.write_csv(pa.table({"x": range(100), "city": city, "size": [1, 2, 3, 4] * 25}),
                   tmp_path / "t.csv")  # fmt: skip
    call = ["ingest", str(tmp_path / "t.csv"), "--exclude", "size,city", "-q", "--label"]
    store = str(tmp_path / "city")
    assert main([*call, "city", "-o", store]) == 0
    assert main(["inspect", store]) == 0
    out = capsys.readouterr().out
    assert "100 rows, 1 features, city: 3 classes ('Bonn', 'Oslo' and 'Rome'), 500 B in" in out
    assert main(["inspect", store, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["task"], facts["positives"]) == ("classification", None)
    assert (facts["classes"], facts["class_rows"]) == (["Bonn", "Oslo", "Rome"], [25, 25, 50])
    # Of numbers, the error names the option.
    assert main([*call, "size", "-o", str(tmp_path / "size")]) == 1
    err = capsys.readouterr().err
    assert "label 'size' has more than 2 values (1, 2, 3, ...)" in err
    assert "--task classification" in err and "--task regression" in err and "--positive" in err
    store = str(tmp_path / "size")
    assert main([*call, "size", "-o", store, "--task", "classification", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"] == [1, 2, 3, 4]


def test_rows_are_appended_to_a_store(table, tmp_path, capsys):
    store = str(tmp_path / "store")
    words = ["ingest", table, "--weight", "w"]
    assert main([*words, "--label", "y", "-o", store, "-q"]) == 0
    assert main([*words, "--append", store]) == 0
    assert "6,000 rows, 3 features" in capsys.readouterr().out
    for _ in range(2):
        assert main([*words, "--append", store, "--resume", "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["rows"] == 9_000
        assert [each["rows"] for each in facts["appended"]] == [3_000, 3_000]
    assert facts["appended"][1]["n_large"] == 0
    assert facts["appended"][1]["label"]["large"] is False
    assert {"name", "psi", "large", "missing"} <= set(facts["appended"][1]["features"][0])
    assert main(["inspect", store, "--verify"]) == 0
    assert "blocks, appended 2 times" in capsys.readouterr().out
    model, more = str(tmp_path / "m.json"), str(tmp_path / "more.json")
    assert main(["train", store, "--n-estimators", "2", "-q", "-o", model]) == 0
    call = ["train", store, "--n-estimators", "3", "--init-model", model, "-q", "-o", more]
    assert main(call) == 0
    assert len(json.loads((tmp_path / "more.json").read_text())["trees"]) == 5


def test_a_store_is_made_or_appended_to_and_not_both(table, tmp_path, capsys):
    store = str(tmp_path / "store")
    for words, says in (
        (["-o", store, "--append", store], "not allowed with argument"),
        ([], "one of the arguments -o/--output --append is required"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(["ingest", table, "--label", "y", *words])
        assert caught.value.code == 2
        assert says in capsys.readouterr().err
    assert main(["ingest", table, "--append", store]) == 1
    assert capsys.readouterr().err.strip().endswith("or sparrowboost.ingest().")
    assert main(["ingest", table, "--label", "y", "--exclude", "w", "-o", store, "-q"]) == 0
    assert main(["ingest", table, "--append", store, "--columns", "x", "-q"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "leave out --columns." in error


def test_bins_of_a_store_are_used_again(table, tmp_path, capsys):
    store, other = str(tmp_path / "store"), str(tmp_path / "other")
    assert main(["ingest", table, "--label", "y", "--exclude", "w", "-o", store, "-q"]) == 0
    words = ["ingest", table, "--label", "y", "--bins-of", store, "-o", other, "-q"]
    assert main(words) == 0
    features = []
    for path in (store, other):
        assert main(["inspect", path, "--json"]) == 0
        features.append(json.loads(capsys.readouterr().out)["features"])
    assert features[0] == features[1]


def test_an_error_is_one_line_and_exit_code_1(table, tmp_path, capsys):
    assert main(["ingest", table, "--label", "nope", "-o", str(tmp_path / "s")]) == 1
    err = capsys.readouterr().err
    assert err.startswith("sparrow: error: ")
    assert err.count("\n") == 1
    with pytest.raises(ValueError, match="nope"):
        main(["ingest", table, "--label", "nope", "-o", str(tmp_path / "s"), "--debug"])


def test_interrupting_is_exit_code_130(monkeypatch, capsys):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("sparrowboost.store.ingest.ingest", interrupted)
    assert main(["ingest", "x.csv", "-o", "s"]) == 130
    assert capsys.readouterr().err.startswith("sparrow: interrupted")


def test_names_that_look_like_markup_are_shown_as_they_are(tmp_path, capsys):
    table = tmp_path / "t.csv"
    table.write_text("a[/b],hits[bold],y\n1,x[/red],0\n2,z,1\n")
    assert main(["ingest", str(table), "--label", "y", "-o", str(tmp_path / "s"), "-q"]) == 0
    assert main(["inspect", str(tmp_path / "s")]) == 0
    out = capsys.readouterr().out
    assert "a[/b]" in out
    assert "hits[bold]" in out
    assert "x[/red]" in out


SLOW = """
import sys, time
from sparrowboost.cli import main
from sparrowboost.store.row_pass import RowPass
RowPass._fill_store = lambda *args: print("working", flush=True) or time.sleep(60)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_being_told_to_stop_leaves_nothing(table, tmp_path, how):
    out = tmp_path / "a/store"
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW, "ingest", table, "--label", "y", "-o", str(out), "-q"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout.readline() == b"working\n"
    child.send_signal(how)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err == b"sparrow: interrupted; no partial output was left behind.\n"
    assert not (tmp_path / "a").exists()


def test_long_names_are_shown_whole_and_in_any_encoding(tmp_path):
    names = [f"{'long' * 50}_{letter}" for letter in "a\N{GREEK SMALL LETTER BETA}"]
    table = pa.table({name: [1.0, 2.0] for name in names} | {"y": [0, 1]})
    ingest(table, label="y", path=tmp_path / "store", verbose=0)
    out = subprocess.run(
        [sys.executable, "-m", "sparrowboost", "inspect", tmp_path / "store"],
        env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert names[0] in out
    assert names[1].encode("ascii", "backslashreplace").decode() in out


def test_json_of_an_ingest_is_all_of_standard_output(table, tmp_path, capsys):
    store = str(tmp_path / "store")
    assert main(["ingest", table, "--label", "y", "--exclude", "w", "-o", store, "--json"]) == 0
    captured = capsys.readouterr()
    got = json.loads(captured.out)
    assert "task='binning rows'" in captured.err
    assert (got["path"], got["rows"], got["n_features"]) == (store, 3_000, 3)
    data = ingest(table, label="y", exclude=["w"], verbose=0)
    assert (got["positives"], got["bytes"]) == (data.n_positive, data.n_bytes)
    assert got["seconds"] > 0
    assert got["peak_bytes"] > 50_000_000
