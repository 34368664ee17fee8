"""The bench: a task, a memory cap, contestants; who reaches which test loss when.

    python benchmarks/bench.py --task table10m --memory 1GB     -> results/bench/table10m-1GB.json
    python benchmarks/bench.py --task covertype --rows 20000 --trees 20 --rates 0.3      (smoke)
    python benchmarks/bench_report.py                           tables and pictures of all results

Tasks are in tasks.py, contestants in contestants/. Each contestant tries its learning rates, each
in a process of its own, in a memory cgroup that has the cap as its hard limit and no swap. It warms
up on a tiny table, then the clock starts; it loads, grows trees, notes when each is there, and
writes its model. Another process, without the cap, scores the test rows at stages of that model.

    status   ok        all trees are there, or no further one can be
             stopped   its time was over: after --cap seconds, or --times those of sparrow
             oom       killed, for it went over the cap
             error     what the library said

Sparrow goes first. Without --memory everyone may use what the machine has (a group at 90 % of it
protects the machine), and sparrow uses a quarter of that, its default. Results are written after
each run; --add keeps those of contestants and learning rates that are not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import bench_report
import measure
import peers
import tables
from cgroups import Finished, memory_group
from contestants import CONTESTANTS, SIZED, Job, installed, library
from sparrowboost.runtime.memory import parse_size
from standings import RESULTS, find_target, read_payload, write_payload
from tasks import TASKS, Files, Task

SHARED = Path(__file__).parents[2] / "shared" / "data"
RATES = (0.1, 0.3)
CAP = 600.0  # seconds
TIMES_SPARROW = 20.0  # a peer that has used so many times sparrow's seconds is stopped
LEAST_SECONDS = 10.0  # before that nobody is stopped: on a tiny table sparrow's seconds are noise
WARM_UP_TREES = 3
SLACK = 0.25  # of its seconds, in which a tree that was begun in time may be ended
MACHINE_SHARE = 0.9  # of memory, that a process without a cap may use
ERROR_CHARACTERS = 200
HOW = ("kind", "size", "options")  # of who runs, what its name and the results say already
LONG = ("curve", "work")  # of a run, what is not told in one line
# Arrow gives back what was freed: its own allocators keep some 30 MB, for whoever reads with it.
FRUGAL = {"ARROW_DEFAULT_MEMORY_POOL": "system"}


# -- in the cap -----------------------------------------------------------------------------------


def train(config: peers.Config) -> peers.Run:
    """Warm up, load, grow trees, write the model."""
    told = config["job"]
    job = Job(**{**told, "table": Path(told["table"]), "scratch": Path(told["scratch"])})
    module, (_, options) = library(config["kind"]), CONTESTANTS[config["kind"]]
    warm = job.scratch / "warm"
    warm.mkdir()
    tiny = replace(job, table=Path(config["tiny"]), trees=WARM_UP_TREES, scratch=warm)
    module.train(replace(tiny, seconds=math.inf), **options)
    shutil.rmtree(warm)
    if job.seconds < math.inf:
        # Ends the process even while it is in a library: whoever does not come back was too slow.
        signal.setitimer(signal.ITIMER_REAL, job.seconds * (1 + SLACK) + 1)
    trained = module.train(job, **options)
    signal.setitimer(signal.ITIMER_REAL, 0)
    module.save(trained.model, Path(config["model"]))
    stopped = len(trained.at) < job.trees and trained.at[-1] >= job.seconds
    return {**trained.run(), "at": trained.at, "stopped": stopped}


def told_error(error: Exception) -> str:
    """What a library says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:ERROR_CHARACTERS]


def train_child(config: peers.Config) -> peers.Run:
    try:
        return train(config)
    except Exception as error:
        return {"error": told_error(error)}


# -- out of the cap -------------------------------------------------------------------------------


def score_child(config: peers.Config) -> peers.Run:
    module, at = library(config["kind"]), config["at"]
    test = tables.Test(Path(config["test"]), config["test_weight"])
    model = module.load(Path(config["model"]))
    return {"curve": peers.curve(at, module.log_odds(model, test, peers.stages(len(at))), test)}


def run_capped(argv: Sequence[str], limit: int) -> Finished:
    """A child in a group; one without, where none can be made."""
    command = [sys.executable, *argv]
    try:
        with memory_group(limit) as group:
            return group.run(command, env=FRUGAL)
    except LookupError:
        env = {**os.environ, **FRUGAL}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        return Finished(done.returncode, done.stdout, done.stderr, None, 0)


def enforced() -> bool:
    """Whether a memory cap can be enforced here."""
    try:
        with memory_group(10**9):
            return True
    except LookupError:
        return False


def outcome(done: Finished, seconds: float) -> peers.Run:
    """How a training ended; its trees, if there are any, are still to be scored."""
    peak = {}
    if done.peak_bytes is not None:
        peak["peak_group_mb"] = round(done.peak_bytes / measure.MB, 1)
    if done.kills:
        return {"status": "oom", **peak}
    if done.returncode == -signal.SIGALRM:
        return {"status": "stopped", "seconds": seconds, **peak}
    if done.returncode:
        last = (done.stderr.splitlines() or [""])[-1][:ERROR_CHARACTERS]
        return {"status": "error", "error": f"exit code {done.returncode}: {last}", **peak}
    run = json.loads(done.stdout.splitlines()[-1])
    if "error" in run:
        return {"status": "error", **run, **peak}
    return {"status": "stopped" if run.pop("stopped") else "ok", **run, **peak}


# -- the parent -----------------------------------------------------------------------------------


def plan(task: Task, only: Sequence[str], rates: Sequence[float]) -> Iterator[peers.Config]:
    """Who runs: sparrow first, then all others, rates in turn."""
    for kind in CONTESTANTS:
        if only and kind not in only:
            continue
        for size in task.sizes(kind) if kind in SIZED else (None,):
            name = kind if size is None else f"{kind}-{peers.short(size)}"
            for rate in rates:
                yield {"contestant": name, "kind": kind, "size": size, "rate": rate}


def run_one(
    who: peers.Config, task: Task, files: Files, args: argparse.Namespace, seconds: float
) -> peers.Run:
    limit = args.memory or round(MACHINE_SHARE * measure.memory_bytes())
    with tempfile.TemporaryDirectory(dir=args.data, prefix="bench-") as folder:
        place = Path(folder)
        (place / "scratch").mkdir()
        job = Job(
            table=files.train,
            categorical=task.categories(tables.feature_names(files.train)),
            leaves=task.leaves,
            trees=args.trees or task.trees,
            rate=who["rate"],
            seconds=seconds,
            memory=args.memory,
            size=who["size"],
            scratch=place / "scratch",
            options={
                **task.options.get(CONTESTANTS[who["kind"]][0], {}),
                **who.get("options", {}),
            },
            seed=who.get("seed", 0),
        )
        config = {
            "kind": who["kind"],
            "job": {name: _plain(value) for name, value in asdict(job).items()},
            "tiny": str(files.tiny),
            "test": str(files.test),
            "test_weight": files.test_weight,
            "model": str(place / "model"),
        }
        run = outcome(run_capped([__file__, "--child", json.dumps(config)], limit), seconds)
        at = run.pop("at", None)
        if at:
            run["trees"] = len(at)
            told = json.dumps({**config, "at": at})
            try:
                run |= measure.run_child([__file__, "--score", told])
            except RuntimeError as error:  # hours of other runs are not to be lost
                run |= {"status": "error", "error": told_error(error)}
    return run


def measured(
    who: peers.Config, task: Task, files: Files, args: argparse.Namespace, seconds: float
) -> peers.Run:
    """A run, and what is told of it: who it was, the commit, the load of the machine."""
    run = {
        **{name: value for name, value in who.items() if name not in HOW},
        "commit": measure.commit(),
        "load_before": round(os.getloadavg()[0], 2),
    }
    os.sync()  # what the one before left to be written is not this one's to wait for
    if not installed(who["kind"]):
        return {**run, "status": "error", "error": "not installed"}
    return {**run, **run_one(who, task, files, args, seconds)}


def told_run(run: peers.Run) -> str:
    """A run in one line."""
    return str({name: value for name, value in run.items() if name not in LONG})


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def allowed(runs: Sequence[peers.Run], cap: float, times: float = TIMES_SPARROW) -> float:
    """Seconds of a peer: the cap, or so many times those of sparrow's slowest rate."""
    ours = [run["seconds"] for run in runs if run["contestant"] == "sparrow" and "curve" in run]
    return min(cap, max(LEAST_SECONDS, times * max(ours))) if ours else cap


def kept_runs(
    path: Path,
    about: dict[str, Any],
    jobs: Sequence[peers.Config],
    keys: Sequence[str] = ("contestant", "rate"),
) -> list[peers.Run]:
    """Runs of a file that are not made again; it must be about the same.

    Two runs are of the same if all `keys` say so.
    """
    if not path.exists():
        return []
    old = read_payload(path)
    for key, value in about.items():
        if old[key] != value:
            raise SystemExit(f"{path}: {key} was {old[key]}, and is {value}; leave out --add.")
    again = {tuple(job[key] for key in keys) for job in jobs}
    return [run for run in old["runs"] if tuple(run[key] for key in keys) not in again]


def bench(task: Task, args: argparse.Namespace) -> Path:
    console = peers.make_console()
    files = task.make(args.data, args.shared, args.rows, args.test_rows)
    schema = tables.feature_names(files.train)
    about = {
        "task": task.name,
        "title": task.title,
        "memory": args.memory_name,
        "rows": pq.read_metadata(files.train).num_rows,
        "test_rows": pq.read_metadata(files.test).num_rows,
        "features": len(schema),
        "leaves": task.leaves,
        "most_trees": args.trees or task.trees,
        "target_auc": task.target,
    }
    jobs = list(plan(task, args.only, args.rates))
    path = args.out / f"{task.name}-{args.memory_name}.json"
    runs = kept_runs(path, about, jobs) if args.add else []
    payload = {
        **about,
        **peers.context(),
        "cap_enforced": enforced(),
        "file_mb": round(files.train.stat().st_size / measure.MB, 1),
        "read_seconds": round(tables.read_seconds(files.train), 3),
        "cap_seconds": args.cap,
        "runs": runs,
    }
    if not payload["cap_enforced"]:
        console.print("[yellow]no memory cgroup can be made here: the cap is not enforced[/]")
    with console.status("") as status:
        for who in jobs:
            status.update(f"{task.name}, {args.memory_name}: {who['contestant']}, {who['rate']}")
            seconds = allowed(runs, args.cap, args.times)
            runs.append(measured(who, task, files, args, seconds))
            write_payload(path, payload)
            console.print(told_run(runs[-1]), markup=False)
    console.print(f"{task.title}, {args.memory_name}")
    table = bench_report.details(payload, find_target([payload]))
    console.print(table, markup=False, soft_wrap=True)
    return path


def parse_cap(name: str) -> int | None:
    """Bytes of a memory cap; None for "none"."""
    return None if name == "none" else parse_size(name)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=TASKS, nargs="+", default=[])
    parser.add_argument("--memory", default="none", help="the cap, such as 1GB (default: none)")
    parser.add_argument("--cap", type=float, default=CAP, help="seconds, of everyone")
    parser.add_argument(
        "--times", type=float, default=TIMES_SPARROW, help="sparrow's seconds, of a peer"
    )
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=[])
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="learning rates")
    parser.add_argument("--rows", type=int, help="fewer training rows")
    parser.add_argument("--test-rows", type=int, help="fewer test rows")
    parser.add_argument("--trees", type=int, help="at most, of everyone")
    parser.add_argument(
        "--add", action="store_true", help="keep runs of other contestants and rates"
    )
    parser.add_argument("--shared", type=Path, default=SHARED, help="where real data are")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "bench-data")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--score", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.memory_name = args.memory
    args.memory = parse_cap(args.memory)
    return args


def main() -> None:
    args = arguments()
    if args.child or args.score:
        result = train_child(args.child) if args.child else score_child(args.score)
        sys.stdout.write(json.dumps(result) + "\n")
        return
    for name in args.task:
        bench(TASKS[name], args)


if __name__ == "__main__":
    main()
