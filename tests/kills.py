"""Kill training at random moments, again and again, and compare the models.

    python tests/kills.py 100

`sparrow train --checkpoint` reads a file and trains. It is killed (SIGKILL) at a moment drawn at
random from the time that an undisturbed run takes, then the same command is run again and killed
again, until it gets to its end; then all begins anew, until that many processes were killed. Each
model must have the same bytes as that of the undisturbed run. Three ways to train take turns:
samples drawn, all rows in memory, and class weights with validation rows.
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

from sparrowboost.datasets import make_large

ROWS, VALID_ROWS, FEATURES = 300_000, 20_000, 10
COMMAND = [sys.executable, "-m", "sparrowboost", "train", "-q", "--label", "y"]
WAYS = {
    "samples drawn": "--sample-size 20000 --n-estimators 120",
    "all rows in memory": "--n-estimators 40 --max-leaves 16",
    "balanced, validated": "--sample-size 20000 --n-estimators 80 --balanced --valid v.parquet",
}
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    dice, kills, models = random.Random(args.seed), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        folder = Path(name)
        make_large(folder / "t.parquet", ROWS, features=FEATURES, random_state=0)
        make_large(folder / "v.parquet", VALID_ROWS, features=FEATURES, random_state=0, stream=1)
        straight: dict[str, tuple[bytes, float]] = {}
        while sum(kills.values()) < args.kills:
            way = list(WAYS)[models % len(WAYS)]
            words = [*COMMAND, "t.parquet", *WAYS[way].split()]
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
            print(f"{models} models, killed: {dict(kills)}", flush=True)
    print(f"{sum(kills.values())} kills, {models} models, each as that of an undisturbed run")


if __name__ == "__main__":
    main()
