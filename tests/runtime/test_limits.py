"""`memory_limit` is a limit: real jobs in a memory cgroup that kills what exceeds it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

import sparrowboost.model.predict
from builders import made_rows
from cgroups import memory_group
from helpers import python_path, small_table
from sparrowboost import MemoryLimitError, ingest, train, write_predictions
from sparrowboost.cli import main
from sparrowboost.datasets import make_large
from sparrowboost.model.predict import BLOCK_ROWS, MIN_BLOCK_ROWS, BlockBudget
from sparrowboost.runtime.memory import parse_size

ROWS, VALID_ROWS = 1_000_000, 200_000

# One process for the whole job: what one stage leaves behind counts in the next. As many rows as
# there are would all be scanned, none drawn.
JOB = """
import json, sys
import sparrowboost
from constants import set_constants
from sparrowboost.runtime.memory import peak_rss
from sparrowboost.model.predictions import write_predictions

source, valid, folder, limit = sys.argv[1:]
set_constants(None, whole_values=0)
peaks, samples = {}, []
dataset = sparrowboost.ingest(source, label="y", memory_limit=limit, verbose=0)
peaks["ingest"] = peak_rss()
model = sparrowboost.train(
    dataset, valid=valid, memory_limit=limit, n_estimators=40, theta=0.7, verbose=0,
    callbacks=[lambda event: samples.append(event.n_samples) and None],
)
peaks["train"] = peak_rss()
n = write_predictions(model, source, folder + "/out.parquet", memory_limit=limit, verbose=0)
peaks["predict"] = peak_rss()
assert "pandas" not in sys.modules
print(json.dumps({"peaks": peaks, "samples": samples[-1], "trees": model.n_trees, "rows": n}))
"""


# The same where rows are read while others are trained on.
EARLY = JOB.replace('label="y", memory', 'label="y", wait=False, memory').replace(
    "whole_values=0", "whole_values=0, min_partitions=6"
)

# One of the columns as numbers to predict from the others, and from the label.
NUMBERS = "f1"
REGRESSION = JOB.replace('label="y"', f'label="{NUMBERS}", task="regression"')

# 200 classes: the scores of a block's rows take far more than what the store has of them.
CLASSES = """
import json, sys
import numpy as np, sparrowboost
from constants import set_constants
from sparrowboost.runtime.memory import peak_rss

folder, limit, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
set_constants(None, whole_values=0)
X = np.random.default_rng(0).normal(size=(n, 5)).astype("f4")
label = np.clip(X[:, 0] * 35 + 100, 0, 199).astype("i2")
dataset = sparrowboost.ingest(
    X, label=label, task="classification", path=folder, memory_limit=limit, verbose=0
)
del X, label
samples = []
model = sparrowboost.train(
    dataset, memory_limit=limit, n_estimators=6, learning_rate=0.3, verbose=0,
    callbacks=[lambda event: samples.append(event.n_samples) and None],
)
print(json.dumps({"peak": peak_rss(), "samples": samples[-1], "rounds": model.n_trees}))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("limits")
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", str(folder)], capture_output=True, text=True, check=False
    )
    if kind.stdout.strip() in ("tmpfs", "ramfs"):
        pytest.skip(f"{folder} is in memory: files there would count in a memory cgroup")
    make_large(folder / "train.parquet", ROWS)
    make_large(folder / "valid.parquet", VALID_ROWS, stream=1)
    # Once without a group: compiling takes more memory than the smallest limits allow.
    small = make_large(folder / "small.parquet", 20_000)
    words = [small, small, folder, "1GB"]
    call = [sys.executable, "-c", JOB, *map(str, words)]
    subprocess.run(call, env=python_path(), check=True, capture_output=True)
    return folder


def run(limit, argv, folder):
    """Run Python in a group of its own; what it prints, and how it ended."""
    for file in folder.glob("*.parquet"):  # so that reading it counts in the group
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    env = python_path(TMPDIR=str(folder))
    env.pop("OPENBLAS_NUM_THREADS", None)  # `make test` sets it, users do not: threads take memory
    try:
        with memory_group(parse_size(limit)) as group:
            return group.run([sys.executable, *map(str, argv)], env=env)
    except LookupError as error:
        pytest.skip(f"no memory cgroup can be made: {error}")


def run_job(limit, data, folder, job=JOB):
    files = [data / "train.parquet", data / "valid.parquet"]
    return run(limit, ["-c", job, *files, folder, limit], data)


def command(limit, data, *words):
    return run(limit, ["-m", "sparrowboost", *words, "--memory", limit, "--quiet"], data)


@pytest.mark.slow
def test_a_group_kills_what_exceeds_its_limit(data):
    done = run("100MB", ["-c", "x = bytearray(150_000_000)"], data)
    assert done.returncode == -9 or done.kills == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "job"), [("270MB", JOB), ("512MB", JOB), ("1GB", JOB), ("512MB", EARLY)],
    ids=["270MB", "512MB", "1GB", "512MB, rows still being read"],
)  # fmt: skip
def test_ingest_training_and_prediction_stay_within_the_limit(data, tmp_path, limit, job):
    done = run_job(limit, data, tmp_path, job)
    assert done.kills == 0
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert said["rows"] == ROWS and said["trees"] == 40
    assert said["samples"] > 1, "no sample was drawn beside another: this tests nothing"
    assert max(said["peaks"].values()) < parse_size(limit)


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["300MB", "512MB"])
def test_a_regression_stays_within_the_limit(data, tmp_path, limit):
    # Once without a group, to compile its kernels.
    words = [data / "valid.parquet", data / "valid.parquet", tmp_path, "1GB"]
    call = [sys.executable, "-c", REGRESSION, *map(str, words)]
    subprocess.run(call, env=python_path(), check=True, capture_output=True)
    done = run_job(limit, data, tmp_path, REGRESSION)
    assert done.kills == 0
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert said["rows"] == ROWS and said["trees"] == 40
    assert said["samples"] > 1, "no sample was drawn beside another: this tests nothing"
    assert max(said["peaks"].values()) < parse_size(limit)


@pytest.mark.slow
def test_training_on_many_classes_stays_within_the_limit(data, tmp_path):
    # Once without a group, to compile its kernels.
    call = [sys.executable, "-c", CLASSES, str(tmp_path / "small"), "1GB", "20000"]
    subprocess.run(call, env=python_path(), check=True, capture_output=True)
    done = run("450MB", ["-c", CLASSES, tmp_path / "store", "450MB", "250000"], data)
    assert done.kills == 0
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert said["rounds"] == 6
    assert said["samples"] > 1, "no sample was drawn beside another: this tests nothing"
    assert said["peak"] < parse_size("450MB")


@pytest.mark.slow
def test_a_regression_refuses_a_limit_and_succeeds_with_the_one_it_names(data, tmp_path):
    words = ["train", data / "valid.parquet", "--label", NUMBERS, "--task", "regression"]
    words += ["--validation-fraction", "0.1", "--n-estimators", "5", "--sample-size", "30000"]
    words += ["-o", tmp_path / "model.json"]
    done = command("150MB", data, *words)
    assert done.returncode == 1 and done.stderr.count("give at least") == 1
    assert not (tmp_path / "model.json").exists()
    done = command(named(done.stderr), data, *words)
    assert (done.returncode, done.kills) == (0, 0), done.stderr[-2000:]
    assert (tmp_path / "model.json").exists()


@pytest.fixture(scope="module")
def store(data):
    words = ["ingest", data / "train.parquet", "--label", "y", "-o", data / "store"]
    done = command("250MB", data, *words)
    assert (done.returncode, done.kills) == (0, 0), done.stderr[-2000:]
    return data / "store"


@pytest.mark.slow
def test_250_mb_are_enough_for_each_command(data, store, tmp_path):
    valid, model = data / "valid.parquet", tmp_path / "model.json"
    # At most 100,000 rows: not all of them at once.
    learner = ["--n-estimators", "20", "--sample-size", "100000", "--theta", "0.8"]
    done = command("250MB", data, "train", store, "--valid", valid, *learner, "-o", model)
    assert (done.returncode, done.kills) == (0, 0), done.stderr[-2000:]
    done = command("250MB", data, "predict", model, valid, "-o", tmp_path / "out.parquet")
    assert (done.returncode, done.kills) == (0, 0), done.stderr[-2000:]
    done = command("270MB", data, "evaluate", model, valid)
    assert (done.returncode, done.kills) == (0, 0), done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["predict", "evaluate"])
def test_prediction_refuses_a_limit_and_succeeds_with_the_one_it_names(data, tmp_path, what):
    model, out = tmp_path / "model.json", tmp_path / "out.parquet"
    rows = ingest(data / "valid.parquet", label="y", verbose=0)
    train(rows, n_estimators=2, verbose=0).save_model(model)
    words = [what, model, data / "valid.parquet", *(["-o", out] if what == "predict" else [])]
    done = command("150MB", data, *words)
    assert done.returncode == 1
    assert "--memory 150 MB is too small" in done.stderr
    assert done.stderr.count("\n") == 1 and not out.exists()
    done = command(named(done.stderr), data, *words)
    assert (done.returncode, done.kills) == (0, 0), done.stderr[-2000:]


def test_predictions_are_the_same_in_the_smaller_blocks_that_a_limit_allows(tmp_path, monkeypatch):
    table = small_table(20_000)
    pq.write_table(table, source := tmp_path / "t.parquet")
    model = train(ingest(source, label="y", weight="w", verbose=0), n_estimators=5, verbose=0)
    monkeypatch.setattr(sparrowboost.model.predict, "held", lambda: 100_000_000)
    sizes, plan = [], BlockBudget.plan

    def noted(*args):
        planned = plan(*args)
        sizes.append(planned.rows)
        return planned

    monkeypatch.setattr(BlockBudget, "plan", noted)
    with pytest.raises(MemoryLimitError) as refused:
        write_predictions(model, source, tmp_path / "no.csv", memory_limit="50MB", verbose=0)
    enough = named(str(refused.value))
    for name, limit in (("a", None), ("b", enough)):
        out = tmp_path / f"{name}.csv"
        write_predictions(model, source, out, keep="color", memory_limit=limit, verbose=0)
    assert sizes[0] == BLOCK_ROWS and MIN_BLOCK_ROWS <= sizes[1] <= BLOCK_ROWS
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert not (tmp_path / "no.csv").exists()


def named(message):
    """The limit that a refusal names."""
    return re.search(r"give at least (\d+ MB)\b", message)[1].replace(" ", "")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["ingest", "train"])
def test_a_limit_named_before_json_lines_are_read_is_enough_for_their_rows(data, tmp_path, what):
    x = np.random.default_rng(0).random(20_000).tolist()
    lines = [f'{{"x": {value}, "y": {value > 0.5:d}}}' for value in x]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    out = tmp_path / ("store" if what == "ingest" else "m.json")
    words = [what, tmp_path / "t.jsonl", "--label", "y", "-o", out]
    done = command("150MB", data, *words)
    assert done.returncode == 1 and done.stderr.count("give at least") == 1
    done = command(named(done.stderr), data, *words)
    assert (done.returncode, done.kills) == (0, 0), done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 200])
def test_ingest_refuses_a_limit_and_succeeds_with_the_one_it_names(data, tmp_path, n_classes):
    words = ["ingest", data / "valid.parquet", "--label", "y", "-o", tmp_path / "store"]
    if n_classes > 2:
        labels = np.random.default_rng(0).integers(0, n_classes, VALID_ROWS)
        np.save(tmp_path / "classes.npy", labels.astype("i2"))
        words[3:4] = [tmp_path / "classes.npy", "--task", "classification"]
    done = command("150MB", data, *words)
    assert done.returncode == 1
    assert "--memory 150 MB is too small" in done.stderr
    assert not (tmp_path / "store").exists()
    done = command(named(done.stderr), data, *words)
    assert (done.returncode, done.kills) == (0, 0), done.stderr[-2000:]


@pytest.fixture(scope="module")
def categories(data):
    """A file with 300 columns, each of 5,000 categories."""
    rng, path = np.random.default_rng(0), data / "categories.parquet"
    words = np.array([f"value-{k}" for k in range(5_000)])
    columns = {f"c{j}": words[rng.integers(0, len(words), 20_000)] for j in range(300)}
    pq.write_table(pa.table({**columns, "y": rng.integers(0, 2, 20_000)}), path)
    # Once without a group, to compile the kernels of statistics.
    ingest(path, label="y", columns=["c0"], verbose=0)
    return path


@pytest.mark.slow
def test_training_on_many_categories_succeeds_with_the_limit_that_it_names(
    data, categories, tmp_path
):
    words = ["train", categories, "--label", "y", "--n-estimators", "2", "-o", tmp_path / "m.json"]
    done = command("150MB", data, *words)
    assert done.returncode == 1 and done.stderr.count("give at least") == 1
    done = command(named(done.stderr), data, *words)
    assert (done.returncode, done.kills) == (0, 0), done.stderr[-2000:]


@pytest.mark.slow
def test_training_refuses_a_limit_and_succeeds_with_the_one_it_names(data, store, tmp_path):
    words = ["train", store, "--valid", data / "valid.parquet", "--n-estimators", "5"]
    words += ["-o", tmp_path / "model.json"]
    done = command("170MB", data, *words)
    assert done.returncode == 1
    assert "--memory 170 MB is too small" in done.stderr
    assert not (tmp_path / "model.json").exists()
    done = command(named(done.stderr), data, *words)
    assert (done.returncode, done.kills) == (0, 0), done.stderr[-2000:]
    assert (tmp_path / "model.json").exists()


@pytest.fixture(scope="module")
def forms(data):
    """The same rows in files that take more, and less, to read than training takes."""
    table = pq.read_table(data / "valid.parquet")
    pcsv.write_csv(table, data / "t.csv")
    write_arrow(table, data / "t.arrow")
    np.save(data / "y.npy", table["y"].to_numpy())
    np.save(data / "X.npy", np.column_stack([c.to_numpy() for c in table.drop("y").columns]))
    return {
        "parquet": [data / "train.parquet", "--label", "y"],
        "csv": [data / "t.csv", "--label", "y"],
        "arrow": [data / "t.arrow", "--label", "y", "--balanced"],
        "npy": [data / "X.npy", "--label", data / "y.npy", "--validation-fraction", "0.1"],
    }


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "csv", "arrow", "npy"])
def test_training_on_files_refuses_a_limit_and_succeeds_with_the_one_it_names(
    data, forms, tmp_path, form
):
    words = ["train", *forms[form], "--n-estimators", "3", "-o", tmp_path / "model.json"]
    done = command("150MB", data, *words)
    assert done.returncode == 1 and done.stderr.count("give at least") == 1
    done = command(named(done.stderr), data, *words)
    assert (done.returncode, done.kills) == (0, 0), done.stderr[-2000:]
    assert (tmp_path / "model.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", "npy"])
def test_a_limit_that_is_enough_to_read_but_not_to_train_is_refused_with_one_that_is_enough(
    data, forms, tmp_path, form
):
    words = ["train", *forms[form][:3], "--n-estimators", "1", "-o", tmp_path / "model.json"]
    words += ["--sample-size", "190000", "--max-leaves", "2000"]  # 160 MB of evidence
    done = command("290MB", data, *words)
    assert done.returncode == 1 and "evidence (1" in done.stderr
    done = command(named(done.stderr), data, *words)
    assert (done.returncode, done.kills) == (0, 0), done.stderr[-2000:]


@pytest.mark.slow
def test_the_plan_of_a_training_adds_up_and_is_not_carried_out(store, tmp_path, capsys):
    words = ["train", store, "-o", tmp_path / "model.json", "--memory", "2GB", "--plan"]
    assert main([*map(str, words)]) == 0
    *parts, total, limit, rows = capsys.readouterr().out.splitlines()
    sizes = [parse_size(line[-8:]) for line in parts]
    assert parse_size(total[-8:]) == pytest.approx(sum(sizes), rel=0.01)
    assert limit.split() == ["limit", "2", "GB"]
    assert sum(sizes) < parse_size("2GB")
    assert rows == "all 1,000,000 rows in memory"
    assert not (tmp_path / "model.json").exists()


def write_arrow(table, path):
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


LEAN = """
import sys, sparrowboost
from sparrowboost.model.predictions import write_predictions

folder, *sources = sys.argv[1:]
for source in sources:
    dataset = sparrowboost.ingest(source, label="y", weight="w", verbose=0)
    model = sparrowboost.train(dataset, valid=(source, "y", "w"), n_estimators=2, verbose=0)
    write_predictions(model, source, folder + "/out.parquet", keep=["color"], verbose=0)
    assert "pandas" not in sys.modules, source
"""


def write_odd_csv(table, path):
    """Large whole numbers, of which a late one has a fraction: Arrow does not read that."""
    ids = pa.array(range(2**60, 2**60 + len(table)))
    pcsv.write_csv(table.set_column(1, "count", ids), path)
    with path.open("a") as file:
        file.write("0.5,1.5,red,1,1\n")


WRITERS = {
    "t.parquet": pq.write_table,
    "t.csv": pcsv.write_csv,
    "odd.csv": write_odd_csv,
    "t.arrow": write_arrow,
}


@pytest.mark.slow
def test_numbers_words_and_missing_values_are_read_without_pandas(tmp_path):
    # 36 MB, which Arrow would import for its own conversions.
    table = small_table(60_000)
    for name, write in WRITERS.items():
        write(table, tmp_path / name)
    sources = [tmp_path / name for name in WRITERS]
    subprocess.run([sys.executable, "-c", LEAN, tmp_path, *sources], check=True)


LEAN_ARRAYS = """
import sys, numpy as np, sparrowboost

folder = sys.argv[1]
X, y = np.load(folder + "/X.npy"), np.load(folder + "/y.npy")
with open(folder + "/t.svm", "w") as file:
    file.writelines(f"{int(label)} 1:{row[0]} 3:{row[1]}\\n" for row, label in zip(X, y))
for source, how in (
    (folder + "/X.npy", {"label": folder + "/y.npy", "weight": folder + "/y.npy"}),
    (folder + "/t.svm", {}),
    (X, {"label": y}),
):
    dataset = sparrowboost.ingest(source, **how, verbose=0)
    sparrowboost.train(dataset, n_estimators=2, verbose=0).predict_proba(source)
assert "pandas" not in sys.modules
"""


@pytest.mark.slow
def test_arrays_and_libsvm_files_are_read_without_pandas(tmp_path):
    X, y = made_rows(2_000)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y.astype(">f4") + 1)
    subprocess.run([sys.executable, "-c", LEAN_ARRAYS, tmp_path], check=True)
