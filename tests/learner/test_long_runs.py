"""Many trees and many samples: memory, open files and scratch stay what they were."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROWS, TREES, EVERY = 200_000, 300, 20

# Chunks so small that the strata are in the file, not in their buffers.
CHILD = f"""
import json, sys
import sparrowboost, sparrowboost.sampling.strata
from helpers import open_files
from sparrowboost.datasets import make_large
from sparrowboost.learner.events import TreeAdded
from sparrowboost.runtime.memory import release, rss

folder = sys.argv[1]
source = make_large(folder + "/t.parquet", {ROWS})
dataset = sparrowboost.ingest(source, label="y", path=folder + "/store", verbose=0)
seen = []

def look(event):
    if isinstance(event, TreeAdded) and event.n_trees % {EVERY} == 0:
        release()
        seen.append((event.n_samples, rss(), *open_files(folder)))

sparrowboost.train(
    dataset, n_estimators={TREES}, max_leaves=8, sample_size=10_000, theta=0.8, verbose=0,
    callbacks=[look],
)
print(json.dumps([dataset.n_bytes, dataset.n_features, seen]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts files in /proc")
def test_memory_files_and_scratch_are_bounded_however_many_trees(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CHILD, tmp_path],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    n_bytes, d, seen = json.loads(done.stdout)
    samples, memory, files, scratch = zip(*seen, strict=True)
    assert len(seen) == TREES // EVERY and samples[-1] > 40, "hardly any sample was drawn"
    third = len(seen) // 3
    assert max(memory[third:]) < 1.03 * max(memory[:third])
    assert max(files[third:]) <= max(files[:third])
    # A row has 9 bytes beside its bins: label, score, trees seen. A draw puts some rows back before
    # it has given up the chunks that they are from.
    bound = n_bytes * (d + 9) / d
    assert 0.5 * bound < max(scratch) < 1.05 * bound
