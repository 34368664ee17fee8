"""What drawing a sample takes: seconds, and bytes read and written.

    python benchmarks/bench_draws.py                              -> results/draws.json
    python benchmarks/bench_draws.py --rows 50000 --sample 2000 --trees 20       (smoke)

A model of the `balanced` task is trained on a finished store. Then samples of the same size are
drawn for more and more of its trees, as training draws them, with nothing else running. The first
draw reads the store alone and does not count. Bytes are those that the process read and wrote
(/proc/self/io), mostly in the page cache.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from time import perf_counter

from rich.table import Table

import measure
import peers
from sparrowboost import ingest, train
from sparrowboost.model.model import Model
from sparrowboost.sampling.sampler import Sampler
from sparrowboost.sampling.weight_estimate import WeightEstimate
from tasks import BALANCED, BALANCED_ROWS, made_table

LEAVES, RATE = 8, 0.3
DRAWS = 10


def io_bytes() -> tuple[int, int]:
    """Read and written by this process so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    found = dict(line.split(": ") for line in lines)
    return int(found["rchar"]), int(found["wchar"])


def draw_all(sampler: Sampler, model: Model, n_rows: int) -> list[dict[str, float]]:
    """Draw for more and more of the model's trees; returns the cost of each draw."""
    sample = sampler.first(sampler.weigh_base(), n_rows)
    found = []
    for draw in range(1, DRAWS + 1):
        now = model.first(draw * model.n_trees // DRAWS)
        for block in range(sample.n_blocks):
            sample.refresh(block, now.forest, now.n_trees)
        estimate, before, start = WeightEstimate.of(sample), io_bytes(), perf_counter()
        sample, rows_read = sampler.draw(now, estimate, n_rows)
        seconds, after = perf_counter() - start, io_bytes()
        found.append(
            {
                "trees": now.n_trees,
                "seconds": round(seconds, 4),
                "read_mb": round((after[0] - before[0]) / measure.MB, 2),
                "written_mb": round((after[1] - before[1]) / measure.MB, 2),
                "rows_read": rows_read,
                "rows_kept": sample.n,
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, help="fewer training rows")
    parser.add_argument("--sample", type=int, default=1 << 18, help="rows of each draw")
    parser.add_argument("--trees", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3, help="each with a seed of its own")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "bench-data")
    parser.add_argument("--out", type=Path, default=peers.RESULTS / "draws.json")
    args = parser.parse_args()
    console = peers.make_console()
    files = made_table(BALANCED_ROWS, **BALANCED)(args.data, args.data, args.rows, None)
    rounds = []
    with tempfile.TemporaryDirectory() as scratch, console.status("the store and the model"):
        folder = Path(scratch)
        dataset = ingest(files.train, label="y", path=folder / "store")
        how = {"max_leaves": LEAVES, "learning_rate": RATE, "sample_size": args.sample}
        model = train(dataset, n_estimators=args.trees, random_state=0, **how)
        for seed in range(args.rounds):
            sampler = Sampler(
                dataset,
                model.first(0),
                folder=folder,
                seed=seed,
                n_jobs=measure.cores(),
            )
            rounds.append(draw_all(sampler, model, args.sample))
            sampler.close()
    names = ("seconds", "read_mb", "written_mb", "rows_read", "rows_kept")
    medians = {
        name: round(statistics.median(draw[name] for of in rounds for draw in of), 4)
        for name in names
    }
    table = Table("median of a draw", *names)
    table.add_row(peers.short(args.sample) + " rows", *(f"{medians[name]:,}" for name in names))
    console.print(table)
    about = {"rows": dataset.n_rows, "sample": args.sample, "commit": measure.commit()}
    payload = {**peers.context(["sparrowboost", "numpy", "numba"]), **about}
    measure.write_json(args.out, {**payload, "median": medians, "rounds": rounds})


if __name__ == "__main__":
    main()
