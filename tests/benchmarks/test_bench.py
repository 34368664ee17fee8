"""The bench's runner, its contestants and how scores are judged, on tiny tables."""

from __future__ import annotations

import importlib
import json
import operator
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import bench
import bench_rooms
import peers
import tables
from cgroups import Finished, memory_group
from contestants import CONTESTANTS, SIZED, Job, installed, train_and_score
from sparrowboost.datasets import make_large
from standings import read_payload
from tasks import TASKS

TREES = 12


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    return make_large(folder / "train.parquet", 20_000, row_group_rows=6_000), make_large(
        folder / "test.parquet", 10_000, stream=1
    )


# -- contestants -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONTESTANTS)
def test_a_contestant_learns_and_has_a_curve(files, tmp_path, name):
    if not installed(name):
        pytest.skip(f"{name}: the library is not installed")
    train, test = files
    job = Job(
        table=train,
        categorical=[],
        leaves=4,
        trees=TREES,
        rate=0.3,
        seconds=100.0,
        memory=None,
        size=10_000 if name in SIZED else None,
        scratch=tmp_path,
        options={},
    )
    run = train_and_score(name, job, tables.Test(test))
    curve = run["curve"]
    assert [stage["trees"] for stage in curve] == peers.stages(TREES)
    assert curve[-1]["log_loss"] < curve[0]["log_loss"] < 0.34  # that of the rate alone is 0.325
    assert curve[-1]["auc"] > 0.75
    assert run["load_seconds"] <= curve[0]["seconds"] <= curve[-1]["seconds"] <= run["seconds"]


@pytest.mark.parametrize("name", ["sparrow", "histgb", "lightgbm", "xgboost"])
def test_a_contestant_stops_when_its_time_is_over(files, tmp_path, name):
    if not installed(name):
        pytest.skip(f"{name}: the library is not installed")
    train, test = files
    job = Job(
        table=train, categorical=[], leaves=4, trees=TREES, rate=0.3, seconds=0.0, memory=None,
        size=None, scratch=tmp_path, options={},
    )  # fmt: skip
    assert [stage["trees"] for stage in train_and_score(name, job, tables.Test(test))["curve"]] == [
        1
    ]


@pytest.mark.parametrize("feed", ["uniform", "rare"])
def test_each_seed_takes_another_part(files, tmp_path, feed):
    lightgbm = pytest.importorskip("contestants.lightgbm", exc_type=ImportError)

    def part(seed):
        job = Job(
            table=files[0], categorical=[], leaves=4, trees=TREES, rate=0.3, seconds=100.0,
            memory=None, size=5_000, scratch=tmp_path, options={}, seed=seed,
        )  # fmt: skip
        return lightgbm.FEEDS[feed](job, {}).data

    assert part(1).equals(part(1)) and not part(1).equals(part(2))


def test_the_curve_of_a_training_that_ended_early_is_of_the_trees_that_it_kept(files, tmp_path):
    train, test = files
    job = Job(
        table=train, categorical=[], leaves=31, trees=200, rate=1.0, seconds=100.0, memory=None,
        size=None, scratch=tmp_path, options={"valid": str(test), "early_stopping_rounds": 3},
    )  # fmt: skip
    run = train_and_score("sparrow", job, tables.Test(test))
    kept = run["curve"][-1]["trees"]
    assert kept + 3 == run["work"]["trees_grown"] < 200
    assert run["curve"][-1]["seconds"] < run["seconds"]
    # the test rows are those that it was validated by
    assert run["curve"][-1] == min(run["curve"], key=lambda stage: stage["log_loss"])


def test_rare_rows_are_all_kept_and_the_others_weigh_more():
    y = (np.arange(10_000) % 50 == 0).astype(np.int8)
    keep, weight = tables.thin(y, 1_000, np.random.default_rng(0))
    assert keep[y == 1].all() and 900 < keep.sum() < 1_100
    assert weight * (keep & (y == 0)).sum() == pytest.approx((y == 0).sum())
    assert tables.thin(y, 10_000, np.random.default_rng(0))[1] == 1
    with pytest.raises(ValueError, match="200 positives"):
        tables.thin(y, 100, np.random.default_rng(0))


def test_row_groups_are_the_rows_of_the_file(files):
    lightgbm = pytest.importorskip("contestants.lightgbm", exc_type=ImportError)
    groups = lightgbm.RowGroups(files[0])
    parts = [lightgbm.RowGroup(groups, number) for number in range(groups.file.num_row_groups)]
    assert [len(part) for part in parts] == [6_000, 6_000, 6_000, 2_000]
    rows = np.concatenate([part[0 : len(part)] for part in parts])
    np.testing.assert_array_equal(rows, tables.read_matrix(files[0], np.float64))
    np.testing.assert_array_equal(parts[1][7], rows[6_007])


def test_scores_are_judged_as_scikit_learn_does():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 2_000).astype(np.int8)
    log_odds = np.round(rng.normal(size=2_000) + y, 1)  # with ties
    weight = np.where(y == 1, 1.0, 3.0)
    judged = tables.judge(y, log_odds, weight)
    of = {"sample_weight": weight}
    assert judged["auc"] == pytest.approx(metrics.roc_auc_score(y, log_odds, **of), abs=1e-6)
    assert judged["average_precision"] == pytest.approx(
        metrics.average_precision_score(y, log_odds, **of), abs=1e-6
    )
    p = 1 / (1 + np.exp(-log_odds))
    assert judged["log_loss"] == pytest.approx(metrics.log_loss(y, p, **of), abs=1e-6)
    sign = np.where(y == 1, 1, -1)
    exponential = np.average(np.exp(-sign * log_odds / 2), weights=weight)
    assert judged["exponential_loss"] == pytest.approx(exponential, abs=1e-6)


# -- tasks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bathymetry", "table10m", "balanced", "balanced-noisy"])
def test_tables_of_a_task_are_made_once(tmp_path, name):
    first = TASKS[name].make(tmp_path, tmp_path, 3_000, 2_000)
    before = first.train.stat().st_mtime_ns
    again = TASKS[name].make(tmp_path, tmp_path, 3_000, 2_000)
    assert first == again and again.train.stat().st_mtime_ns == before
    assert pq.read_metadata(first.train).num_rows == 3_000
    assert pq.read_metadata(first.test).num_rows == 2_000


def test_made_tables_have_the_shares_and_the_names_of_their_tasks(tmp_path):
    usual, balanced, noisy = (
        TASKS[name].make(tmp_path, tmp_path, 4_000, 4_000)
        for name in ("table10m", "balanced", "balanced-noisy")
    )
    assert usual.train.name == "large-4000x20.parquet"
    # four standard deviations of a share of 4,000 rows are less than 0.035
    assert tables.read_labels(balanced.train).mean() == pytest.approx(0.31, abs=0.035)
    assert tables.read_labels(noisy.test).mean() == pytest.approx(0.5, abs=0.035)
    assert TASKS["balanced-31"].make(tmp_path, tmp_path, 4_000, 4_000) == balanced
    valid = tables.large(tmp_path, 4_000, stream=2)
    assert not pq.read_table(valid).equals(pq.read_table(usual.test))


@pytest.mark.parametrize("name", ["flights", "flights-mixed"])
def test_real_tables_are_cut_in_two_and_flights_by_date_or_mixed(tmp_path, shared_data, name):
    pytest.importorskip("pandas")
    files = TASKS[name].make(tmp_path, shared_data, 5_000, 1_000)
    train, test = pq.read_table(files.train), pq.read_table(files.test)
    assert (train.num_rows, test.num_rows) == (5_000, 1_000)
    later = max(train["month"].to_pylist()) < min(test["month"].to_pylist())
    assert later == (name == "flights")
    assert set(TASKS[name].categorical) < set(train.column_names)


# -- the runner ------------------------------------------------------------------------------------


def finished(returncode=0, stdout="", stderr="", kills=0, peak=10**6):
    return Finished(returncode, stdout, stderr, peak, kills)


def test_how_a_training_ended():
    done = json.dumps({"seconds": 3.0, "at": [1.0, 2.0], "stopped": False})
    assert bench.outcome(finished(stdout=f"noise\n{done}\n"), 9.0) == {
        "status": "ok", "seconds": 3.0, "at": [1.0, 2.0], "peak_group_mb": 1.0,
    }  # fmt: skip
    stopped = json.dumps({"at": [1.0], "stopped": True})
    assert bench.outcome(finished(stdout=stopped), 9.0)["status"] == "stopped"
    killed = bench.outcome(finished(-signal.SIGKILL, kills=1), 9.0)
    assert killed == {"status": "oom", "peak_group_mb": 1.0}
    late = bench.outcome(finished(-signal.SIGALRM, peak=None), 9.0)
    assert late == {"status": "stopped", "seconds": 9.0}
    told = bench.outcome(finished(stdout='{"error": "E: no"}'), 9.0)
    assert (told["status"], told["error"]) == ("error", "E: no")
    died = bench.outcome(finished(1, stderr="Traceback\nValueError: x"), 9.0)
    assert died["error"] == "exit code 1: ValueError: x"


def test_an_error_is_told_in_one_line():
    assert bench.told_error(ValueError("\n a\nb")) == "ValueError: a"
    assert len(bench.told_error(ValueError("a" * 1000))) == bench.ERROR_CHARACTERS


def test_a_peer_has_twenty_times_the_seconds_of_sparrow():
    runs = [{"contestant": "sparrow", "seconds": s, "curve": []} for s in (3.0, 5.0)]
    assert bench.allowed(runs, 600.0) == 100.0
    assert bench.allowed(runs, 60.0) == 60.0
    assert bench.allowed(runs, 600.0, times=30.0) == 150.0
    assert bench.allowed([], 60.0) == 60.0
    assert bench.allowed([{"contestant": "sparrow", "status": "oom"}], 60.0) == 60.0


def test_sparrow_runs_first_and_sizes_have_names():
    jobs = list(bench.plan(TASKS["splice"], (), (0.1, 0.3)))
    assert [job["contestant"] for job in jobs[:2]] == ["sparrow", "sparrow"]
    names = [job["contestant"] for job in bench.plan(TASKS["splice"], ("lightgbm-rare",), (0.1,))]
    assert names == ["lightgbm-rare-100k", "lightgbm-rare-300k", "lightgbm-rare-1m"]
    assert not list(bench.plan(TASKS["covertype"], ("lightgbm-rare",), (0.1,)))


def test_who_goes_over_the_cap_is_killed_and_the_parent_lives():
    try:
        with memory_group(10**8):
            pass
    except LookupError as reason:
        pytest.skip(f"no memory cgroup can be made here: {reason}")
    done = bench.run_capped(["-c", "b'x' * 300_000_000"], 100_000_000)
    assert bench.outcome(done, 9.0)["status"] == "oom"


def test_the_runner_writes_what_the_report_reads(tmp_path):
    def call(*words):
        script = Path(bench.__file__)
        options = ["--rows", "20000", "--test-rows", "5000", "--trees", "6", "--rates", "0.3"]
        where = ["--data", str(tmp_path), "--out", str(tmp_path)]
        done = subprocess.run(
            [sys.executable, str(script), "--task", "table10m", *options, *where, *words],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "**sparrow**" in done.stdout
        return read_payload(tmp_path / "table10m-none.json")

    first = call("--only", "sparrow", "histgb")
    assert [run["contestant"] for run in first["runs"]] == ["sparrow", "histgb"]
    for run in first["runs"]:
        assert run["status"] == "ok" and run["trees"] == 6
        assert run["curve"][-1]["trees"] == 6 and "at" not in run
    assert first["runs"][0]["work"]["samples"] == 1
    assert first["read_seconds"] > 0
    assert first["rows"] == 20_000 and first["machine"]["versions"]["numpy"]
    assert not list(tmp_path.glob("bench-*"))  # stores and models are gone


def test_other_runs_are_kept_if_they_are_of_the_same(tmp_path):
    path = tmp_path / "x.json"
    again = [{"contestant": "sparrow", "rate": 0.3}]
    assert bench.kept_runs(path, {"rows": 5}, again) == []
    runs = [*again, {"contestant": "sparrow", "rate": 0.1}, {"contestant": "lightgbm", "rate": 0.3}]
    path.write_text(json.dumps({"rows": 5, "runs": runs}))
    assert bench.kept_runs(path, {"rows": 5}, again) == runs[1:]
    more = [{"contestant": "sparrow", "rate": 0.3, "seed": seed} for seed in (0, 1)]
    path.write_text(json.dumps({"rows": 5, "runs": more}))
    keys = ("contestant", "rate", "seed")
    assert bench.kept_runs(path, {"rows": 5}, more[:1], keys) == more[1:]
    with pytest.raises(SystemExit, match="rows was 5, and is 6"):
        bench.kept_runs(path, {"rows": 6}, again)


# -- where time goes ------------------------------------------------------------------------------


def test_time_spent_in_another_room_is_that_rooms(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(bench_rooms.time, "thread_time", lambda: now[0])

    def spend(seconds):
        now[0] += seconds

    clocks = bench_rooms.Clocks()
    inner = clocks.wrap(lambda: spend(2.0), "inner")

    def outer():
        spend(1.0)
        inner()
        inner()

    clocks.wrap(outer, "outer")()
    assert clocks.seconds == {"inner": 4.0, "outer": 1.0}


def test_every_room_has_functions_of_the_library():
    for names in bench_rooms.ROOMS.values():
        for name in names:
            module, _, path = name.partition(":")
            owner = importlib.import_module(f"sparrowboost.{module}")
            assert callable(operator.attrgetter(path)(owner))


def test_a_target_that_was_not_reached_has_no_trees(monkeypatch):
    monkeypatch.setattr(bench_rooms, "read_results", lambda: {"table10m": []})
    with pytest.raises(SystemExit, match="table10m, 1GB"):
        bench_rooms.trees_to_target("table10m", "1GB")
