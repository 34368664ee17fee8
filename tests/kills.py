"""Kill training at random moments, again and again, and compare the models.

    python tests/kills.py 100
    python tests/kills.py 20 --only numbers classes

`sparrow train --checkpoint` reads a file and trains. It is killed (SIGKILL) at a moment drawn at
random from the time that an undisturbed run takes, then the same command is run again and killed
again, until it gets to its end; then all begins anew, until that many processes were killed. Each
model must have the same bytes as that of the undisturbed run. Several ways to train take turns:
two classes, numbers to predict and four classes; samples drawn and all rows in memory; class
weights and validation rows.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparrowboost.datasets import make_large

ROWS, VALID_ROWS, FEATURES = 300_000, 20_000, 10
COMMAND = [sys.executable, "-m", "sparrowboost", "train", "-q", "--label", "y"]
SAMPLES = "--sample-size 20000 --n-estimators"
NUMBERS, CLASSES = "numbers.parquet --task regression", "classes.parquet"
WAYS = {
    "samples drawn": f"two.parquet {SAMPLES} 120",
    "numbers, samples drawn": f"{NUMBERS} {SAMPLES} 80",
    "classes, samples drawn": f"{CLASSES} {SAMPLES} 30",
    "all rows in memory": "two.parquet --n-estimators 40 --max-leaves 16",
    "numbers, all rows in memory, validated": (
        f"{NUMBERS} --loss absolute_error --n-estimators 30 --valid valid-numbers.parquet"
    ),
    "classes, all rows in memory, validated": (
        f"{CLASSES} --n-estimators 10 --valid valid-classes.parquet"
    ),
    "balanced, validated": f"two.parquet {SAMPLES} 80 --balanced --valid valid-two.parquet",
}
CLASS_ENDS = (0.1, 0.5, 0.8)  # quantiles of the numbers
MOST_KILLS = 8  # of one run; after that it may end


def kill_one_run(
    words: list[str], folder: Path, run: Path, seconds: float, dice: random.Random, most: int
) -> Counter[str]:
    """Run a command until it ends, killing it `most` times at first; the kills by what it did."""
    kills: Counter[str] = Counter()
    while True:
        process = subprocess.Popen(words, cwd=folder)
        if sum(kills.values()) < most:
            time.sleep(seconds * dice.random() ** 2)  # often early: ingest is short
            process.kill()
        if process.wait() == 0:
            return kills
        if process.returncode != -9:
            raise SystemExit(f"exit code {process.returncode}: {' '.join(words)}")
        begun = (run / "checkpoint.json").exists()
        stored = (run / "store" / "manifest.json").exists()
        kills["training" if begun else "between" if stored else "ingest"] += 1


def write_tables(folder: Path) -> None:
    """The same rows with three labels: two classes, numbers, four classes; and validation rows."""
    for stream, (start, n_rows) in enumerate((("", ROWS), ("valid-", VALID_ROWS))):
        file = folder / f"{start}two.parquet"
        make_large(file, n_rows, features=FEATURES, random_state=0, stream=stream)
        table = pq.read_table(file)
        at = table.column_names.index("y")
        x = np.column_stack([table.column(name).to_numpy() for name in table.column_names[:4]])
        noise = np.random.default_rng(stream).normal(size=n_rows)
        numbers = np.tanh(x[:, 0]) + np.abs(x[:, 1]) * np.sign(x[:, 2]) + noise
        classes = np.searchsorted(np.quantile(numbers, CLASS_ENDS), numbers)
        words = np.array(["a", "b", "c", "d"])[classes]
        for name, label in (("numbers", pa.array(numbers)), ("classes", pa.array(words))):
            pq.write_table(table.set_column(at, "y", label), folder / f"{start}{name}.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[""], help="ways with one of these words")
    args = parser.parse_args()
    ways = [way for way in WAYS if any(word in way for word in args.only)]
    if not ways:
        parser.error(f"--only: the ways are {', '.join(map(repr, WAYS))}")
    dice, kills, models = random.Random(args.seed), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        folder = Path(name)
        write_tables(folder)
        straight: dict[str, tuple[bytes, float]] = {}
        while sum(kills.values()) < args.kills:
            way = ways[models % len(ways)]
            words = [*COMMAND, *WAYS[way].split()]
            if way not in straight:
                for _ in range(2):  # the first run may compile
                    began = time.perf_counter()
                    subprocess.run([*words, "-o", "straight.json"], check=True, cwd=folder)
                seconds = time.perf_counter() - began
                straight[way] = (folder / "straight.json").read_bytes(), seconds
            model, seconds = straight[way]
            run, output = folder / f"run-{models}", folder / "model.json"
            words += ["-o", output.name, "--checkpoint", run.name]
            most = min(MOST_KILLS, args.kills - sum(kills.values()))
            kills += kill_one_run(words, folder, run, seconds, dice, most)
            models += 1
            if output.read_bytes() != model:
                raise SystemExit(f"{way}: another model after kills ({dict(kills)})")
            print(f"{way}: the same model; {models} models, killed: {dict(kills)}", flush=True)
    print(f"{sum(kills.values())} kills, {models} models, each as that of an undisturbed run")


if __name__ == "__main__":
    main()
