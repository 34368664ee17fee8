"""Standard output and standard error of the commands: closed, full, hung up; and log lines."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import TALKATIVE
from sparrowboost import DataError, load_model
from sparrowboost.cli import inspect, main

SPARROW = [sys.executable, "-m", "sparrowboost"]


def shell(line, folder, **env):
    """A shell's line, in which $SPARROW is the command."""
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail\n{line}"], cwd=folder, capture_output=True, text=True,
        check=False, env=os.environ | {"SPARROW": " ".join(SPARROW)} | env,
    )  # fmt: skip


TRAIN = "$SPARROW train t.csv --label y --n-estimators 4 --max-leaves 4"


@pytest.mark.slow
def test_a_command_whose_output_nobody_reads_succeeds(folder, tmp_path):
    done = shell("$SPARROW inspect model.json --all | true", folder)
    assert (done.returncode, done.stderr) == (0, "")
    done = shell(f"{TRAIN} -q -o {tmp_path}/m.json >&-", folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert load_model(tmp_path / "m.json").n_trees == 4


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_output_that_is_lost_is_a_failure(folder):
    for option in ("", "--json"):
        done = shell(f"$SPARROW inspect model.json {option} > /dev/full", folder)
        assert done.returncode == 1
        assert done.stderr.startswith("sparrow: error: ") and done.stderr.count("\n") == 1
        assert "No space left on device" in done.stderr and "standard output" in done.stderr


@pytest.mark.slow
def test_a_table_longer_than_a_pipe_may_be_read_in_part(folder, tmp_path):
    names = ",".join(f"column_{k:05d}_{'x' * 80}" for k in range(1_000))
    rows = "\n".join(",".join([str(k % 2)] * 1_000) for k in range(20))
    (tmp_path / "wide.csv").write_text(f"{names}\n{rows}\n")
    words = f"ingest {tmp_path}/wide.csv --label {names.partition(',')[0]} -o {tmp_path}/store -q"
    assert shell(f"$SPARROW {words}", folder).returncode == 0
    done = shell(f"$SPARROW inspect {tmp_path}/store --all | head -n 1 > /dev/null", folder)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_system_without_memory_is_one_line(sparrow, monkeypatch):
    def hungry(args):
        bytearray(1 << 62)

    monkeypatch.setattr(inspect, "run", hungry)
    code, _, err = sparrow("inspect", "none")
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("sparrow: error: the system gives this process no more memory; give")


@pytest.mark.slow
def test_no_file_gets_the_number_of_a_closed_stream(folder, tmp_path):
    done = shell(f"{TRAIN} -o {tmp_path}/m.json 0<&- >&- 2>&-", folder)
    assert done.returncode == 0
    assert load_model(tmp_path / "m.json").n_trees == 4


# -- hanging up ------------------------------------------------------------------------------------

LONG = ["train", "t.csv", "--label", "y", "--jobs", "1", "--n-estimators", "1000000", "-o"]


def on_a_terminal(call, folder, **how):
    """A process with a terminal of its own, and the other end of it."""
    main, side = pty.openpty()
    process = subprocess.Popen(
        call, cwd=folder, stdin=side, preexec_fn=lambda: os.login_tty(side), **how
    )
    os.close(side)
    return process, main


def read_until(main, pattern):
    shown = b""
    while not re.search(pattern, shown):
        shown += os.read(main, 1 << 16)


@pytest.mark.slow
def test_trees_are_saved_when_the_terminal_is_closed(folder, tmp_path):
    process, main = on_a_terminal([*SPARROW, *LONG, str(tmp_path / "m.json")], folder)
    try:
        read_until(main, rb"training .*[1-9]\d* trees/s")
        os.close(main)
        assert process.wait(60) == 130
    finally:  # it would train for hours
        process.kill()
        process.wait()
    assert 1 <= load_model(tmp_path / "m.json").n_trees < 1_000_000


@pytest.mark.slow
def test_under_nohup_training_goes_on(folder, tmp_path):
    call = ["nohup", sys.executable, "-c", TALKATIVE, *LONG, str(tmp_path / "m.json")]
    with subprocess.Popen(
        call, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert any("task='training'" in line for line in iter(process.stderr.readline, ""))
        process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
    assert load_model(tmp_path / "m.json").n_trees >= 1


# -- log lines -------------------------------------------------------------------------------------

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00"


@pytest.fixture
def train_here(sparrow, folder, tmp_path, monkeypatch):
    """Runs TRAIN in this process; gives its standard error."""
    monkeypatch.chdir(folder)

    def run(*more):
        code, _, err = sparrow(*TRAIN.split()[1:], "-o", tmp_path / "m.json", *more)
        assert code == 0
        return err

    return run


def test_log_lines_have_times_where_there_is_no_terminal(train_here):
    lines = train_here().splitlines()
    assert len(lines) >= 2
    for line in lines:
        assert re.match(rf"{TIME} INFO (task|note)='", line), line


def objects(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("how", ["option", "environment"])
def test_log_lines_as_json_have_a_field_for_each_fact(train_here, monkeypatch, how):
    if how == "environment":
        monkeypatch.setenv("SPARROW_LOG_FORMAT", "json")
    said = train_here(*(["--log-format", "json"] if how == "option" else []))
    tasks = {line["task"]: line for line in objects(said) if "task" in line}
    training = tasks["training"]
    assert re.fullmatch(TIME, training["time"])
    assert (training["level"], training["logger"], training["trees"]) == ("INFO", "sparrowboost", 4)
    assert training["seconds"] >= 0 and training["trees_per_second"] > 0
    assert tasks["binning rows"]["rows"] == 3_000


def test_failures_and_interruptions_are_json_too(folder, tmp_path):
    done = shell("$SPARROW train none.csv --label y -o m.json --log-format json", folder)
    assert done.returncode == 1
    (line,) = objects(done.stderr)
    assert (line["level"], line["exit_code"]) == ("ERROR", 1)
    assert line["message"] == "error: none.csv: no such file."


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (["--log-format", "json"], "argument command: invalid choice"),
        (["train", "--log-format", "json"], "the following arguments are required: -o/--output"),
        (["train", "-o", "m.json", "--log-format=json", "--lable", "y"], "did you mean --label?"),
        (["train", "-o", "m.json", "--max-leaves", "x", "--log-f", "json"], "'x' is not a whole"),
        (["inspect", "a", "b", "--log-format", "json"], "unknown argument b; see"),
    ],
)
def test_usage_errors_are_json_too(capsys, call, says):
    with pytest.raises(SystemExit) as caught:
        main(call)
    assert caught.value.code == 2
    (line,) = objects(capsys.readouterr().err)
    assert (line["level"], line["logger"], line["exit_code"]) == ("ERROR", "sparrowboost", 2)
    assert line["message"].startswith("error: ") and says in line["message"]
    assert re.fullmatch(TIME, line["time"])


def test_usage_errors_are_json_by_the_environment_too(capsys, monkeypatch):
    monkeypatch.setenv("SPARROW_LOG_FORMAT", "json")
    with pytest.raises(SystemExit):
        main(["train", "--log-format"])
    (line,) = objects(capsys.readouterr().err)
    assert "expected one argument" in line["message"]


@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_a_traceback_is_a_field_of_a_line_of_json(folder, sparrow, monkeypatch, debug):
    def broken(args):
        raise ZeroDivisionError("division by zero") if not debug else DataError("no such file")

    monkeypatch.setattr(inspect, "run", broken)
    code, _, err = sparrow("inspect", "none", "--log-format", "json", *debug)
    (line,) = objects(err)
    assert (code, line["level"], line["exit_code"]) == (1, "ERROR", 1)
    assert line["message"].startswith("error: ")
    assert "in broken" in line["traceback"]


@pytest.mark.slow
def test_on_a_terminal_json_replaces_the_bar(folder, tmp_path):
    words = [*TRAIN.split()[1:], "--log-format", "json", "-o", str(tmp_path / "m.json")]
    process, main = on_a_terminal([*SPARROW, *words], folder, stdout=subprocess.DEVNULL)
    shown = b""
    try:
        while data := os.read(main, 1 << 16):
            shown += data
    except OSError:  # the other end is closed
        pass
    os.close(main)
    assert process.wait(60) == 0
    lines = [line for line in shown.decode().splitlines() if line.startswith("{")]
    assert any(json.loads(line).get("task") == "training" for line in lines)
    # No bar: at most colours are reset at the end, by a library that other tools have installed.
    assert not re.search(rb"\x1b\[(?!0m)", shown)


def test_an_unknown_format_of_log_lines_is_a_usage_error(folder):
    done = shell("$SPARROW inspect model.json", folder, SPARROW_LOG_FORMAT="xml")
    assert done.returncode == 2
    assert "SPARROW_LOG_FORMAT=xml: is none of text, json." in done.stderr
