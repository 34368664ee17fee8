from __future__ import annotations

import logging
import os
import pty
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from constants import set_constants
from sparrowboost import SparrowClassifier, ingest, train
from sparrowboost.cli import main
from sparrowboost.runtime.progress import Lines

SCRIPT = """
import sys
import numpy as np, sparrowboost
X = np.random.default_rng(0).random((30_000, 5))
for verbose in {verbose}:
    sparrowboost.ingest(X, label=X[:, 0] > 0.5, verbose=verbose)
    print("--", file=sys.stderr)
"""


@pytest.mark.slow
def test_plain_lines_without_a_terminal_and_nothing_when_silent():
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(verbose=(0, 1))],
        capture_output=True, check=True, text=True,
    )  # fmt: skip
    assert run.stdout == ""
    silent, said, _ = run.stderr.split("--\n")
    assert silent == ""
    assert "task='binning rows' rows=30000 rows_per_second=" in said
    assert "bytes=150000" in said
    assert "\x1b" not in said


@pytest.mark.slow
def test_a_bar_with_speed_and_bytes_on_a_terminal():
    main, side = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(verbose=(1,))],
        stdout=side, stderr=side, env=os.environ | {"COLUMNS": "120", "TERM": "xterm"},
    ):  # fmt: skip
        os.close(side)
        shown = b""
        try:
            while data := os.read(main, 4096):
                shown += data
        except OSError:  # the other end is closed
            pass
    assert "━".encode() in shown
    assert b"rows/s" in shown
    assert b"150 KB" in shown


def test_lines_go_to_the_users_own_handlers_if_there_are_any(caplog):
    with caplog.at_level(logging.INFO), Lines(seconds=0.0) as progress:
        with progress.task("counting", 10) as task:
            task.advance(4, 8)
        progress.note("by the way")
    first, last, note = (record.getMessage() for record in caplog.records)
    assert first.startswith("task='counting' rows=4 of=10 seconds_left=")
    assert last.startswith("task='counting' rows=4 rows_per_second=")
    assert note == "note='by the way'"
    first, last, note = caplog.records  # other handlers find facts, not words
    assert (first.task, first.rows, first.of, first.bytes) == ("counting", 4, 10, 8)
    assert last.rows_per_second > 0 and last.seconds >= 0
    assert note.note == "by the way"
    assert logging.getLogger("sparrowboost").handlers == []


def test_lines_tell_the_score_and_the_best_one_so_far(caplog):
    with (
        caplog.at_level(logging.INFO),
        Lines(seconds=0.0) as progress,
        progress.task("training", 10, "trees") as task,
    ):
        task.advance(1)
        task.score("log_loss", 0.293412, 0.293099, 1)
        task.advance(1)
    before, line, _ = caplog.records
    assert not hasattr(before, "log_loss")
    assert (line.log_loss, line.best, line.best_trees) == (0.2934, 0.2931, 1)
    assert "log_loss=0.2934 best=0.2931 best_trees=1" in line.getMessage()


TRAINING = """
import numpy as np, sparrowboost
X = np.random.default_rng(0).random((3_000, 5))
data = sparrowboost.ingest(X, label=X[:, 0] > 0.5, verbose=0)
sparrowboost.train(data, n_estimators=5, valid={valid}, verbose=1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_bar_shows_the_validation_score_also_on_a_narrow_terminal(columns):
    main, side = pty.openpty()
    script = TRAINING.format(valid="(X, X[:, 0] > 0.5)")
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=side, stderr=side, env=os.environ | {"COLUMNS": columns, "TERM": "xterm"},
    ):  # fmt: skip
        os.close(side)
        shown = b""
        try:
            while data := os.read(main, 4096):
                shown += data
        except OSError:  # the other end is closed
            pass
    assert re.search(rb"log_loss 0\.\d{3,4} \(best 0\.\d{3,4} at 5\)", shown), shown[-600:]


@pytest.mark.parametrize("valid", [True, False])
def test_training_tells_the_validation_score_if_there_is_one(caplog, valid):
    X = np.random.default_rng(0).random((3_000, 2))
    data = ingest(X, label=X[:, 0] > 0.5, verbose=0)
    with caplog.at_level(logging.INFO):
        train(data, n_estimators=5, valid=(X, X[:, 0] > 0.5) if valid else None, verbose=1)
    (line,) = (r for r in caplog.records if getattr(r, "task", None) == "training")
    if valid:
        assert line.log_loss == line.best < 0.6
        assert line.best_trees == 5
    else:
        assert not hasattr(line, "best")


@pytest.fixture
def slow_kernels(monkeypatch, caplog):
    """Kernels that take until the log says that they are compiled, as on a first run."""
    from sparrowboost.learner import training
    from sparrowboost.store import ingest as ingesting

    waited = []  # for these notes; the next one may be there before a call begins

    def wait(*args):
        for _ in range(1_000):
            new = [record for record in caplog.records if record not in waited]
            if any(hasattr(record, "note") for record in new):
                waited.extend(new)
                return
            time.sleep(0.01)

    set_constants(monkeypatch, compile_seconds=0.001)
    monkeypatch.setattr(
        training, "load_kernels", lambda *args: wait() if len(notes(caplog)) < 2 else None
    )
    monkeypatch.setattr(ingesting, "warm_up", wait)


def notes(caplog):
    return [record.note for record in caplog.records if hasattr(record, "note")]


@pytest.mark.parametrize("verbose", [0, 1])
def test_the_first_fit_says_that_it_compiles(slow_kernels, caplog, capfd, verbose):
    X = np.random.default_rng(0).random((500, 2))
    with caplog.at_level(logging.INFO):
        SparrowClassifier(n_estimators=2, verbose=verbose).fit(X, X[:, 0] > 0.5)
    assert notes(caplog) == ["compiling the kernels, on the first run only"] * 2
    assert capfd.readouterr() == ("", "")  # only in the log, which this program shows nowhere


def test_a_quiet_command_says_nothing_of_it(slow_kernels, caplog, capsys, tmp_path):
    np.save(tmp_path / "t.npy", np.random.default_rng(0).integers(0, 2, (500, 2)))
    call = ["train", f"{tmp_path}/t.npy", "--label", "f0", "-o", f"{tmp_path}/m.json"]
    for options, told in ((["-q"], False), ([], True)):
        caplog.clear()
        assert main([*call, *options]) == 0
        assert ("compiling" in capsys.readouterr().err) is told
