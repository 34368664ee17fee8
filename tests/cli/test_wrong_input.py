"""What is wrong with a call or its files is one line and exit code 1, or 2 from argparse."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparrowboost import DataError
from sparrowboost.cli import main
from sparrowboost.runtime.disk import output_path


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (["--learning-rate", "-1"], "--learning-rate -1.0: give a number above 0"),
        (["--stopping", "paper"], "pass --loss exponential"),
        (["--monotone", "x"], "--monotone: give features and signs as A=1,B=-1"),
        (["--monotone", "nope=1"], "'nope'"),
        (["--interaction-constraints", "x,;y"], "give sets of features as 'A,B;B,C'"),
        (["--interaction-constraints", "x,nope"], "no feature is called 'nope'"),
        (
            ["--colsample-bytree", "2"],
            "--colsample-bytree 2.0: give a number above 0 and at most 1",
        ),
        (["--early-stopping-rounds", "3"], "needs validation data"),
        (["--valid", "v.csv", "--validation-fraction", "0.1"], "give either --valid or"),
        (["--validation-fraction", "2"], "--validation-fraction 2.0: give a number above 0"),
        (["--learning-rate", "nan"], "--learning-rate nan: give a number above 0"),
        (["--learning-rate", "1e300"], "pass a smaller --learning-rate"),
        (["--monotone", "x=5"], "--monotone x=5: 'x' has 5"),
        (["--checkpoint", ""], "a path is empty"),
        (["--report", ""], "a path is empty"),
        (["--valid", ""], "a path is empty"),
        (["--init-model", ""], "a path is empty"),
        (["--scratch", ""], "a path is empty"),
        (["-o", ""], "a path is empty"),
        (["-o", "/proc/m.json"], "/proc does not exist or is not writable"),
        (["--valid", "/dev/null"], "/dev/null: is neither a file nor a folder"),
        (
            ["--report", "/no/such/folder/r.html"],
            "/no/such/folder does not exist",
        ),
        (["--report", "FOLDER"], "folder.csv: is a folder"),
        (["--history", "FOLDER"], "folder.csv: is a folder"),
        (["-o", "FOLDER"], "folder.csv: is a folder"),
        (["-o", "DATA"], "t.csv: is one of the files to read"),
        (["--history", "DATA"], "t.csv: is one of the files to read"),
        (["--valid", "none.csv"], "none.csv: no such file"),
        (["--label", "nope"], "no column 'nope'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(folder, in_folder, tmp_path, sparrow, extra, says):
    call = ["train", folder / "t.csv", "--label", "y", "-o", tmp_path / "m.json", "-q"]
    code, out, err = sparrow(*call, *in_folder(extra))
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
        ["-o", ""],
        ["--checkpoint", ""],
        ["-o", "/proc/m.json"],
    ],
)
def test_what_is_wrong_with_a_call_is_said_before_rows_are_read(
    folder, in_folder, tmp_path, sparrow, monkeypatch, extra
):
    def read(*args, **kwargs):
        raise AssertionError("rows were read")

    monkeypatch.setattr("sparrowboost.store.ingest.ingest", read)
    monkeypatch.chdir(tmp_path)
    call = ["train", "DATA", "--label", "y", "-o", "m.json", "-q", *extra]
    assert sparrow(*in_folder(call))[0] == 1


@pytest.mark.parametrize("option", ["-o", "--report", "--history", "--checkpoint", "--scratch"])
def test_nothing_is_written_in_the_place_of_a_pipe_or_device(folder, sparrow, tmp_path, option):
    os.mkfifo(pipe := tmp_path / "pipe.csv")
    call = ["train", folder / "t.csv", "--label", "y", "-q", "-o", tmp_path / "m.json"]
    code, _, err = sparrow(*call, option, pipe)
    assert code == 1 and "pipe.csv: is a device or a pipe, which would be replaced" in err
    assert pipe.is_fifo() and os.listdir(tmp_path) == ["pipe.csv"]
    assert sparrow("predict", folder / "model.json", folder / "t.csv", "-o", pipe)[0] == 1
    assert sparrow("ingest", folder / "t.csv", "--label", "y", "-o", pipe)[0] == 1
    assert pipe.is_fifo()


def test_no_path_of_a_device_is_written_to_even_where_it_leads_to_a_file():
    for name in ("null", "full", "stdout", "nothing.json"):
        with pytest.raises(DataError, match="is a device or a pipe"):
            output_path(f"/dev/{name}")  # the check alone: root could replace them


def test_a_number_that_is_none_is_a_wrong_call(folder, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["train", "t.csv", "-o", "m.json", "--n-estimators", "many"])
    assert caught.value.code == 2
    assert "'many' is not a whole number" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["importance", "m.json", "--top", "-3"])
    assert "'-3' is not a whole number of 0 or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (["predict", "MODEL", "DATA", "-o", "p.txt"], "end the name in .parquet or .csv"),
        (["predict", "MODEL", "DATA", "-o", "no/p.csv"], "there is no folder"),
        (["predict", "MODEL", "DATA", "--keep", "nope", "-o", "p.csv"], "lacks column 'nope'"),
        (["predict", "MODEL", "DATA", "--keep", "x,x", "-o", "p.csv"], "'x' would be written"),
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
        (["predict", "MODEL", "", "-o", "p.csv"], "a path is empty"),
        (["predict", "", "DATA", "-o", "p.csv"], "a path is empty"),
        (["predict", "~nobody-has-this-name/m", "DATA", "-o", "p.csv"], "no such user's home"),
        (["inspect", ""], "a path is empty"),
        (["predict", "MODEL", "STORE", "-o", "p.csv"], "store: is a store, which has no rows as"),
        (["evaluate", "MODEL", "STORE"], "give the files that it was made from"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_1(
    folder, in_folder, tmp_path, sparrow, monkeypatch, call, says
):
    monkeypatch.chdir(tmp_path)
    code, out, err = sparrow(*in_folder(call))
    assert (code, out) == (1, "")
    assert says in err
    assert len([line for line in err.splitlines() if line.startswith("sparrow: error")]) == 1
    assert "Traceback" not in err
    assert os.listdir(tmp_path) == []
