from __future__ import annotations

import logging
import os
import pty
import subprocess
import sys

import pytest

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
