"""Where Sparrow's time goes: seconds of CPU by what they are spent on, to a task's target.

    python benchmarks/bench_rooms.py --task table10m splice      -> results/rooms.json

Each task is trained once as in the bench, loading included, for as many trees as it took there to
the target. Functions of the library are wrapped by clocks of their thread's CPU time; what one of
them spends in another is the other's. What no clock has seen is "other".
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

import bench
import curves
import measure
import peers
import tables
from standings import find_target, read_results
from tasks import TASKS

# By room, the functions that are its: module, then a function or a method.
ROOMS = {
    "read, find bins": ("store.ingest:find_bins", "store.staged:StagedRows._run"),
    "bin": ("store.binning:Binning.apply",),
    "write the store": ("store.writer:StoreWriter.put", "store.writer:StoreWriter.end_stage"),
    "draw": (
        "sampling.sampler:Sampler.draw",
        "sampling.sampler:Sampler.weigh_base",
        "sampling.draw:SharedBlock.take",
        "sampling.sampler:Sampler._put_back",
        "sampling.draw:RowPicker.pick",
        "sampling.strata:Strata.read",
        "sampling.strata:Strata.append",
    ),
    "score drawn rows": ("sampling.sampler:catch_up",),
    "evidence": ("learner.scanner:add_rows", "learner.scanner:add_curved_rows"),
    "rows to leaves": ("learner.scanner:split_rows", "learner.scanner:start_rows"),
    "find splits": ("learner.stopping:SplitFinder.find",),
    "scores and weights": (
        "sampling.sample:Sample.refresh",
        "learner.scanner:add_values",
        "learner.scanner:add_leaf_sums",
    ),
    "grow trees": ("learner.grower:AdaptiveGrower.grow",),
}


class Clocks:
    """CPU seconds by room, of all threads."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._lock = threading.Lock()
        self._inner = threading.local()  # seconds of clocks that ran inside the one that runs

    def wrap(self, function: Callable[..., Any], room: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            outer, self._inner.seconds = getattr(self._inner, "seconds", 0.0), 0.0
            start = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.thread_time() - start
                with self._lock:
                    self.seconds[room] += spent - self._inner.seconds
                self._inner.seconds = outer + spent

        return timed

    def put(self) -> None:
        """Wrap all functions of all rooms."""
        for room, names in ROOMS.items():
            for name in names:
                module, _, path = name.partition(":")
                owner: Any = importlib.import_module(f"sparrowboost.{module}")
                *outer, last = path.split(".")
                for part in outer:
                    owner = getattr(owner, part)
                setattr(owner, last, self.wrap(getattr(owner, last), room))


def trees_to_target(task: str, memory: str) -> int:
    """Trees that Sparrow took to the target in the bench."""
    payloads = read_results()[task]
    target = find_target(payloads)
    for payload in payloads:
        for run in payload["runs"]:
            told = payload["memory"], run["contestant"], "curve" in run
            if target is None or told != (memory, "sparrow", True):
                continue
            seconds = curves.seconds_to(run["curve"], target.measured, target.value)
            if seconds is not None:
                return next(s["trees"] for s in run["curve"] if s["seconds"] >= seconds)
    raise SystemExit(f"{task}, {memory}: the bench has no results in which the target is reached.")


def child(config: peers.Config) -> peers.Run:
    """Train once on a tiny table, then on the task with clocks."""
    common = {**config["common"], "memory_limit": config["memory"]}
    with tempfile.TemporaryDirectory(dir=config["data"], prefix="rooms-") as folder:
        where = Path(folder)
        tiny = {**common, "n_estimators": bench.WARM_UP_TREES}
        peers.train_sparrow(Path(config["tiny"]), where / "tiny", **tiny)
        clocks = Clocks()
        clocks.put()
        cpu = time.process_time()
        trained = peers.train_sparrow(Path(config["table"]), where / "real", **common)
        cpu = time.process_time() - cpu
    rooms = {room: round(clocks.seconds[room], 3) for room in ROOMS}
    rooms["other"] = round(cpu - sum(clocks.seconds.values()), 3)
    return {"seconds": trained.seconds, "cpu_seconds": round(cpu, 3), "rooms": rooms}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=TASKS, nargs="+", default=["table10m", "splice"])
    parser.add_argument("--memory", default="none", help="the limit, as in the bench")
    parser.add_argument("--rate", type=float, default=0.3)
    parser.add_argument("--trees", type=int, help="instead of those to the target")
    parser.add_argument("--rows", type=int, help="fewer training rows")
    parser.add_argument("--shared", type=Path, default=bench.SHARED, help="where real data are")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "bench-data")
    parser.add_argument("--out", type=Path, default=peers.RESULTS / "rooms.json")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        sys.stdout.write(json.dumps(child(args.child)) + "\n")
        return
    console = peers.make_console()
    results: dict[str, peers.Run] = {}
    for name in args.task:
        task = TASKS[name]
        trees = args.trees or trees_to_target(name, args.memory)
        files = task.make(args.data, args.shared, args.rows, args.rows)
        config = {
            "table": str(files.train),
            "tiny": str(files.tiny),
            "data": str(args.data),
            "memory": bench.parse_cap(args.memory),
            "common": {
                "categorical": task.categories(tables.feature_names(files.train)),
                "n_estimators": trees,
                "learning_rate": args.rate,
                "max_leaves": task.leaves,
            },
        }
        with console.status(f"{name}: {trees:,} trees"):
            run = measure.run_child([__file__, "--child", json.dumps(config)])
        results[name] = {"trees": trees, **run}
    table = Table("seconds of CPU", *results)
    for room in [*ROOMS, "other"]:
        table.add_row(room, *(f"{run['rooms'][room]:.2f}" for run in results.values()))
    console.print(table)
    payload = {**peers.context(), "commit": measure.commit(), "memory": args.memory}
    measure.write_json(args.out, {**payload, "tasks": results})


if __name__ == "__main__":
    main()
