"""The bench of balanced tables: what it runs, and how its curves are held against each other."""

from __future__ import annotations

import subprocess
import sys

import pytest

import bench_balanced
from contestants import installed
from standings import read_payload


def run(contestant, losses, seed=0, leaves=8, seconds=1.0):
    """A stage after each `seconds`, of one tree more."""
    curve = [
        {"seconds": seconds * n, "trees": n, "log_loss": loss} for n, loss in enumerate(losses, 1)
    ]
    return {"contestant": contestant, "seed": seed, "leaves": leaves, "curve": curve}


def call(tmp_path, *words):
    out = tmp_path / "results.json"
    small = ["--rows", "20000", "--test-rows", "5000", "--trees", "6", "--seeds", "1"]
    where = ["--data", str(tmp_path), "--out", str(out)]
    done = subprocess.run(
        [sys.executable, bench_balanced.__file__, *small, *where, *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return read_payload(out), done.stdout


# -- summaries -------------------------------------------------------------------------------------


def test_losses_are_spread_over_seeds_and_the_best_part_is_named():
    runs = [
        run("lightgbm-sub-300k", [0.5, 0.42, 0.43]),
        run("lightgbm-sub-1m", [0.5, 0.41, 0.40], seed=0),
        run("lightgbm-sub-1m", [0.5, 0.41, 0.42], seed=1),
        run("sparrow", [0.5, 0.4, 0.3], leaves=31),
        {"contestant": "lightgbm", "seed": 0, "leaves": 8, "status": "oom"},
    ]
    summary = bench_balanced.summarize(runs)
    assert summary["8"]["best_part"] == "lightgbm-sub-1m" and summary["31"]["best_part"] is None
    assert list(summary["8"]["contestants"]) == ["lightgbm-sub-300k", "lightgbm-sub-1m"]
    found = summary["8"]["contestants"]["lightgbm-sub-1m"]
    assert found["final_loss"] == {"mean": 0.41, "min": 0.40, "max": 0.42}
    assert found["lowest_loss"] == {"mean": 0.405, "min": 0.40, "max": 0.41}
    assert found["trees_of_lowest"] == {"mean": 2.5, "min": 2, "max": 3}
    assert "sparrow_at_equal_trees" not in found  # it did not run with these leaves


def test_losses_are_compared_at_equal_trees_that_all_have():
    pairs = [
        (run("sparrow", [0.5, 0.44])["curve"], run("lightgbm", [0.5, 0.4, 0.1])["curve"]),
        (run("sparrow", [0.5, 0.36, 0.3])["curve"], run("lightgbm", [0.5, 0.4, 0.1])["curve"]),
    ]
    first, last = bench_balanced.at_equal_trees(pairs)
    assert first == {"trees": 1, "mean": 0.0, "min": 0.0, "max": 0.0}
    assert last == {"trees": 2, "mean": 0.0, "min": -10.0, "max": 10.0}


def test_seconds_are_those_to_a_peers_own_best():
    theirs = run("lightgbm-sub-1m", [0.5, 0.3, 0.2, 0.4], seconds=10.0)["curve"]
    ours = run("sparrow", [0.5, 0.35, 0.2, 0.1])["curve"]
    found = bench_balanced.at_own_best([(ours, theirs)])
    target = 0.2 * 1.0001
    assert bench_balanced.own_best_seconds(theirs) == pytest.approx(30 - 10 * (target - 0.2) / 0.1)
    assert found["sparrow_seconds"]["mean"] == pytest.approx(3 - (target - 0.2) / 0.15)
    assert found["times_as_fast"]["mean"] == pytest.approx(10, abs=0.01)
    assert bench_balanced.speed_text(found) == "10.00"


def test_a_loss_that_sparrow_never_has_is_told():
    theirs, ours = run("lightgbm", [0.5, 0.2])["curve"], run("sparrow", [0.5, 0.3])["curve"]
    never = bench_balanced.at_own_best([(ours, theirs)])
    assert bench_balanced.speed_text(never) == "as good in 0 of 1 seeds"
    once = bench_balanced.at_own_best([(ours, theirs), (theirs, theirs)])
    assert bench_balanced.speed_text(once) == "1.00 as good in 1 of 2 seeds"


def test_early_stopping_is_held_against_the_best_stage_without():
    def trained(early, losses, seed=0, size="auto"):
        of = {"table": "noisy", "sample_size": size, "rate": 0.3, "early_stopping": early}
        return {**run("sparrow", losses, seed), **of, "trees": len(losses)}

    runs = [
        trained(True, [0.5, 0.404]),
        trained(False, [0.5, 0.405, 0.4, 0.45]),
        trained(True, [0.5, 0.4], seed=1),
        trained(False, [0.5, 0.4], seed=1),
        trained(True, [0.5, 0.4], size=1000),  # its other half is still to come
    ]
    (found,) = bench_balanced.summarize_stopping(runs)
    assert (found["table"], found["sample_size"], found["leaves"]) == ("noisy", "auto", 8)
    assert found["more_percent"] == {"mean": 0.5, "min": 0.0, "max": 1.0}
    assert found["trees"]["mean"] == 2 and found["trees_of_lowest"]["mean"] == 2.5
    assert [pair["seed"] for pair in found["seeds"]] == [0, 1]


def test_a_spread_of_nothing_is_a_number():
    assert bench_balanced.spread_text(bench_balanced.spread([2.0, 2.0]), str) == "2.0"
    text = bench_balanced.spread_text(bench_balanced.spread([1.0, 3.0]), str)
    assert text == "2.0 (1.0 to 3.0)"


# -- the command -----------------------------------------------------------------------------------


def test_contestants_run_with_one_seed_after_the_other(tmp_path, monkeypatch):
    words = ["--rows", "2000", "--test-rows", "1000", "--seeds", "2", "--data", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["bench_balanced.py", *words, "--rate-noise", "0.1"])
    args = bench_balanced.arguments()
    jobs = bench_balanced.plan(args)
    names = ["sparrow", "lightgbm", *(f"lightgbm-sub-{size}" for size in ("300k", "1m", "3m"))]
    assert [(who["seed"], who["leaves"], who["rate"], who["contestant"]) for who, _, _ in jobs] == [
        (seed, leaves, rate, name)
        for seed in (0, 1)
        for leaves, rate in ((8, 0.3), (31, 0.1))
        for name in names
    ]
    assert [task.trees for _, task, _ in jobs[:6]] == [800] * 5 + [400]
    assert "mislabeled-0.1" in jobs[0][2].train.name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--early-stopping", "--only", "sparrow"], "--only means nothing with"),
        (["--samples", "auto"], "--samples means nothing without"),
        (["--rates", "0.1"], "one for each of --leaves"),
    ],
)
def test_options_that_mean_nothing_are_refused(monkeypatch, capsys, words, message):
    monkeypatch.setattr(sys, "argv", ["bench_balanced.py", *words])
    with pytest.raises(SystemExit):
        bench_balanced.arguments()
    assert message in capsys.readouterr().err


def test_sparrow_and_a_part_are_compared_and_runs_are_kept(tmp_path):
    if not installed("lightgbm"):
        pytest.skip("lightgbm is not installed")
    options = ["--leaves", "8", "--parts", "3000"]
    result, told = call(tmp_path, *options, "--only", "sparrow", "lightgbm-sub")
    assert [run["contestant"] for run in result["runs"]] == ["sparrow", "lightgbm-sub-3k"]
    assert all(run["status"] == "ok" and "commit" in run for run in result["runs"])
    found = result["summary"]["8"]
    assert found["best_part"] == "lightgbm-sub-3k" and "best part: lightgbm-sub-3k" in told
    ends = found["contestants"]["lightgbm-sub-3k"]["sparrow_at_equal_trees"][-1]
    assert ends["trees"] == 6
    assert result["machine"]["versions"]["lightgbm"] and result["memory"] == "1GB"
    again, _ = call(tmp_path, *options, "--only", "sparrow", "--add")
    assert [run["contestant"] for run in again["runs"]] == ["lightgbm-sub-3k", "sparrow"]


def test_early_stopping_is_measured(tmp_path):
    options = ["--early-stopping", "--samples", "5000", "--valid-rows", "2000"]
    result, told = call(tmp_path, *options)
    assert [(run["table"], run["early_stopping"]) for run in result["runs"]] == [
        (name, early) for name in bench_balanced.NOISY_TABLES for early in (True, False)
    ]
    assert [of["table"] for of in result["summary"]] == list(bench_balanced.NOISY_TABLES)
    assert result["early_stopping_rounds"] == 20 and "balanced-noisy" in told
    assert result["valid_rows"] == 2000
