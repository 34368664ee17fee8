"""`ingest(..., append=)`: rows that come later are in the same store, all of them or none."""

from __future__ import annotations

import errno
import fcntl
import gc
import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sparrowboost.store.stored
from constants import set_constants
from helpers import naive_rows, open_files, python_path, small_table, stored_rows
from sparrowboost import DataError, Dataset, DiskFullError, StoreError, cv, ingest, train
from sparrowboost.model.losses import base_score
from sparrowboost.sampling.sampler import Sampler
from sparrowboost.store.drift import feature_drift
from sparrowboost.store.writer import StoreWriter
from sparrowboost.views import folds, split

TABLE, LATER = small_table(), small_table(800, seed=1)
OLD_STORE = Path(__file__).parents[1] / "data/written-by-0.1/store"


@pytest.fixture
def store(tmp_path, monkeypatch):
    set_constants(monkeypatch, bucket_bytes=4_000, min_memory=8_000, segment_bytes=500)
    return ingest(TABLE, label="y", weight="w", path=tmp_path / "store", verbose=0).path


def append(store, table=LATER, **more):
    return ingest(table, append=store, weight="w", verbose=0, **more)


def rows_of(dataset, table, label="y", weight="w"):
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    return naive_rows(dataset, columns, columns[label], weight and columns[weight])


def replaced(table, **columns):
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return table


def same(one, other):
    assert one.digest == other.digest


# -- rows and labels -------------------------------------------------------------------------------


def test_appended_rows_are_in_the_store_besides_those_before(store):
    first = Dataset(store)
    grown = append(store)
    assert stored_rows(grown) == rows_of(grown, TABLE) + rows_of(grown, LATER)
    again = Dataset(store, verify=True)
    assert stored_rows(again) == stored_rows(grown)
    assert (again.n_rows, again.n_positive) == (3_800, grown.n_positive)
    assert again.binning.to_json() == first.binning.to_json()
    assert len(again.segment_ends) == 2 and again.appended == grown.appended
    assert grown.appended[0].rows == 800


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(1, 400), max_size=4), st.booleans(), st.integers(0, 9))
def test_pieces_of_any_size_end_up_in_the_store(tmp_path_factory, sizes, weighted, seed):
    weight = "w" if weighted else None
    base, later = small_table(300, seed), small_table(sum(sizes) or 1, seed + 10)
    path = tmp_path_factory.mktemp("pieces") / "store"
    dataset = ingest(base, label="y", weight=weight, exclude=["w"], path=path, verbose=0)
    rows, at = rows_of(dataset, base, weight=weight), 0
    for n in sizes:
        piece, at = later[at : at + n], at + n
        dataset = ingest(piece, append=path, weight=weight, verbose=0)
        rows += rows_of(dataset, piece, weight=weight)
    assert stored_rows(dataset) == rows
    assert stored_rows(Dataset(path)) == rows
    parts = split(dataset, 0.3)
    assert stored_rows(parts[0]) + stored_rows(parts[1]) == rows


def test_files_are_appended_by_name_of_the_column_whatever_their_order(store, tmp_path):
    later = LATER.select(["y", "color", "w", "x", "count"])
    pcsv.write_csv(later, tmp_path / "later.csv")
    grown = append(store, tmp_path / "later.csv")
    assert stored_rows(grown) == rows_of(grown, TABLE) + rows_of(grown, LATER)


def test_labels_are_coded_as_in_the_store(tmp_path):
    X = np.arange(6.0)[:, None]
    path = tmp_path / "store"
    ingest(X, label=["yes", "yes", "no", "no", "yes", "no"], path=path, verbose=0)
    grown = ingest(X[:2], label=["no", "no"], append=path, verbose=0)  # the first was the second
    assert (grown.classes, grown.n_positive, grown.n_rows) == (("no", "yes"), 3, 8)
    with pytest.raises(DataError, match="label 'maybe' is not in the store, which has 'no' and"):
        ingest(X[:2], label=["no", "maybe"], append=path, verbose=0)
    assert Dataset(path).n_rows == 8


def test_one_value_against_the_rest_stays_so(tmp_path):
    X = np.arange(4.0)[:, None]
    path = tmp_path / "store"
    ingest(X, label=["a", "b", "c", "a"], positive="a", path=path, verbose=0)
    grown = ingest(X, label=["d", "a", "e", "b"], append=path, verbose=0)
    assert (grown.classes, grown.n_positive) == ((None, "a"), 3)


@pytest.mark.parametrize("types", [str, int])
def test_classes_keep_their_numbers_and_bands(tmp_path, types):
    rng = np.random.default_rng(0)
    path = tmp_path / "store"

    def some(n, classes):
        y = rng.choice(classes, n)
        return pa.table({"x": y + rng.normal(size=n), "y": pa.array([types(k) for k in y])})

    first, later = some(600, np.arange(12)), some(300, [3, 11, 5])
    ingest(first, label="y", task="classification", path=path, verbose=0)
    grown = ingest(later, append=path, verbose=0)
    expected = rows_of(grown, pa.concat_tables([first, later]), weight=None)
    number = {label: k for k, label in enumerate(grown.classes)}
    expected = {(bins, number[y], w): n for (bins, y, w), n in expected.items()}
    assert stored_rows(grown) == expected
    counts = [sum(n for (_, y, _), n in expected.items() if y == k) for k in range(12)]
    assert grown.class_rows.tolist() == counts == Dataset(path).class_rows.tolist()
    assert train(grown, n_estimators=2, sample_size=300, verbose=0).n_trees == 2
    of_class = grown.storage.class_band
    for block in grown.blocks():
        assert (of_class[block.target.astype(int)] == block.label).all()
    new = ["12"] if types is str else [12]
    with pytest.raises(DataError, match=r"not in the store, which has .* and 4 more; leave such"):
        ingest(pa.table({"x": [1.0], "y": new}), append=path, verbose=0)


def test_numbers_to_predict_go_to_the_bands_of_the_store(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "store"

    def some(n, shift=0.0):
        x = rng.normal(size=n)
        return pa.table({"x": x, "y": (x + rng.normal(size=n) + shift).astype("f4")})

    tables = [some(4_000), some(500), some(500, 100.0), some(1)]
    ingest(tables[0], label="y", task="regression", path=path, verbose=0)
    after_one, *_, grown = [ingest(later, append=path, verbose=0) for later in tables[1:]]
    assert train(after_one, **DRAWN).n_trees == 8
    together = pa.concat_tables(tables)
    assert stored_rows(grown) == rows_of(grown, together, weight=None)
    y = together.column("y").to_numpy()
    assert grown.target_span == (y.min(), y.max())
    ranges = [[np.inf, -np.inf] for _ in range(grown.n_bands)]
    for block in grown.blocks():
        low, high = ranges[int(block.label[0])]
        ranges[int(block.label[0])] = [min(low, block.target.min()), max(high, block.target.max())]
    assert all(high <= low for (_, high), (low, _) in itertools.pairwise(ranges))
    drift = grown.appended[1].label
    assert drift.large and drift.share.now > 90 > drift.share.before
    assert not grown.appended[0].label.large


def test_a_store_written_by_an_earlier_version_is_appended_to(tmp_path):
    path = shutil.copytree(OLD_STORE, tmp_path / "store")
    old = Dataset(path)
    rng = np.random.default_rng(0)
    columns = {}
    for feature in old.binning.features:
        known = getattr(feature, "categories", None)
        columns[feature.name] = rng.choice(known, 50) if known else rng.normal(size=50)
    later = pa.table({**columns, old.label_name: rng.choice(list(old.classes), 50)})
    weight = np.ones(50) if old.weighted else None
    grown = ingest(later, append=path, weight=weight, verbose=0)
    assert grown.n_rows == old.n_rows + 50
    both = stored_rows(old)
    both.subtract(stored_rows(grown))
    assert sum(-n for n in both.values()) == 50 and max(both.values()) == 0


def test_a_store_that_was_never_appended_to_is_as_before_and_readers_know_an_appended_one(
    store, monkeypatch
):
    manifest = json.loads((store / "manifest.json").read_text())
    assert manifest["version"] == 2
    assert list(manifest) == [
        "format", "version", "label", "classes", "source", "random_state", "sparrowboost", "rows",
        "file", "weighted", "label_of", "run", "features", "blocks", "crc32",
    ]  # fmt: skip
    append(store)
    grown = json.loads((store / "manifest.json").read_text())
    assert grown["version"] == 6
    assert {name: grown[name] for name in manifest if name not in ("version", "crc32")} == {
        name: manifest[name] for name in manifest if name not in ("version", "crc32")
    }
    monkeypatch.setattr(sparrowboost.store.stored, "VERSIONS", (2, 3, 4, 5))
    with pytest.raises(StoreError, match="has store version 6, this Sparrow reads versions 2 to 5"):
        Dataset(store)


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "options", "says"),
    [
        (LATER.drop_columns(["x"]), {}, r"no column 'x'; it has .* Appended rows need the label"),
        (LATER.drop_columns(["y"]), {}, r"no column 'y'; it has .* passed by label="),
        (LATER, {"weight": None}, "its rows have weights"),
        (LATER, {"label": "count"}, "'count' is a feature of"),
        (LATER.append_column("z", LATER["y"]), {"label": "z"}, "label of .* is 'y', which this"),
        (replaced(LATER, x=["1"] * 700 + ["a"] * 100), {}, "table: row 701: column 'x' is 'a'"),
        (replaced(LATER, x=np.zeros(800, "M8[s]")), {}, "'x' has times where the store has numb"),
        (replaced(LATER, y=[2] * 800), {}, "label 2 is not in the store, which has 0 and 1"),
        (replaced(LATER, y=[None, 1] * 400), {}, "label 'y' is missing"),
        (replaced(LATER, w=[-1.0] * 800), {}, "weights must be"),
        (LATER[:0], {}, "has no rows"),
        (LATER, {"path": "other"}, "leave out path="),
        (LATER, {"positive": 1}, "leave out positive="),
        (LATER, {"overwrite": True}, "leave out overwrite="),
        (LATER, {"columns": ["x"]}, "leave out columns="),
        (LATER, {"wait": False}, "leave out wait=False"),
        (LATER, {"resume": True}, "needs files to read"),
    ],
)
def test_what_does_not_fit_the_store_is_one_line_and_leaves_it(store, table, options, says):
    before = {file.name: file.read_bytes() for file in store.iterdir()}
    with pytest.raises(DataError, match=says) as caught:
        ingest(table, append=store, verbose=0, **{"weight": "w", **options})
    assert "\n" not in str(caught.value)
    assert {file.name: file.read_bytes() for file in store.iterdir()} == before


def test_weights_for_a_store_without_them_are_refused(tmp_path):
    data = ingest(TABLE, label="y", exclude=["w"], path=tmp_path / "store", verbose=0)
    with pytest.raises(DataError, match="its rows have no weights; leave out weight="):
        append(data)


def test_offsets_are_those_of_the_column_that_the_store_has_or_of_one_that_is_named(tmp_path):
    how = {"label": "y", "exclude": ["color"], "path": tmp_path / "store", "verbose": 0}
    first = ingest(TABLE, offset="w", **how)
    grown = ingest(LATER, append=first, verbose=0)
    assert (first.offset_name, grown.offset_name) == ("w", "w")
    found = np.sort(np.concatenate([block.offset for block in grown.blocks()]))
    expected = np.sort(np.concatenate([TABLE["w"].to_numpy(), LATER["w"].to_numpy()]))
    np.testing.assert_array_equal(found, expected)
    other = LATER.rename_columns(["x", "count", "color", "z", "y"])
    with pytest.raises(DataError, match=r"no column 'w'; .* another offset by offset="):
        ingest(other, append=first, verbose=0)
    assert ingest(other, offset="z", append=first, verbose=0).n_rows == 4_600
    assert train(Dataset(first.path), **DRAWN).n_trees == 8
    plain = ingest(TABLE, **{**how, "path": tmp_path / "plain", "exclude": ["w"]})
    with pytest.raises(DataError, match="its rows have no offsets; leave out offset="):
        ingest(LATER, offset="w", append=plain, verbose=0)


def test_only_a_store_can_be_appended_to(store, tmp_path):
    for part in split(Dataset(store), 0.5):
        with pytest.raises(DataError, match="is a part of a data set"):
            append(part)
    with pytest.raises(DataError, match="append is int; pass the path of a store"):
        append(3)
    with pytest.raises(StoreError, match="no such store"):
        append(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("mine")
    with pytest.raises(StoreError, match="not a Sparrow store"):
        append(tmp_path / "other")
    assert os.listdir(tmp_path / "other") == ["file"]


def test_rows_for_a_store_whose_label_was_an_array_bring_theirs(tmp_path):
    X = np.arange(10.0)[:, None]
    ingest(X, label=X[:, 0] > 4, path=tmp_path / "store", verbose=0)
    with pytest.raises(DataError, match=r"no column 'label'.* passed by label="):
        ingest(X, append=tmp_path / "store", verbose=0)
    assert ingest(X, label=X[:, 0] > 4, append=tmp_path / "store", verbose=0).n_positive == 10


# -- faults ----------------------------------------------------------------------------------------


KILLS = """
import os, random, signal, sys, time
from pathlib import Path
from constants import set_constants
from forks import fork, killed, load, run
from helpers import small_table
from sparrowboost import Dataset, ingest
from sparrowboost.kernels.bins import count_bins
from sparrowboost.store.writer import StoreWriter
import numpy as np

store = Path(sys.argv[1])
set_constants(None, max_block_rows=100)
later, put, sync, replace = small_table(800, 1), StoreWriter.put, os.fsync, os.replace
# Also in forks, the shuffle must be the same.
def job():
    ingest(later, append=store, weight="w", verbose=0)

def die(*args, **more):
    os.kill(os.getpid(), signal.SIGKILL)

def slowly(self, *args):
    time.sleep(0.01)
    return put(self, *args)

def half_a_manifest(file):
    if Path(f"/proc/self/fd/{file}").readlink().name.startswith("manifest"):
        os.ftruncate(file, 1_000)
        die()
    return sync(file)

def after_all(old, new):
    replace(old, new)
    die()

load()
count_bins(np.zeros((1, 1), np.uint8), np.zeros((1, 256), np.int64))
dice, expected = random.Random(0), 3_000
before = [file.name for file in store.iterdir()]
moments = [(StoreWriter, "put", slowly)] * 5 + [
    (StoreWriter, "end_stage", die), (os, "fsync", die), (os, "fsync", half_a_manifest),
    (os, "replace", die), (os, "replace", after_all), (StoreWriter, "_unlock", die),
]
for where, name, how in moments:
    was = getattr(where, name)
    setattr(where, name, how)
    if how is slowly:
        assert killed(job, (store / "scratch").exists, dice.uniform(0, 0.07))
    else:
        _, status = os.waitpid(fork(job), 0)
        assert os.WIFSIGNALED(status), name
    setattr(where, name, was)
    expected += 800 * (how is after_all or name == "_unlock")
    assert Dataset(store, verify=True).n_rows == expected, (name, how)
    print(name, sorted(set(os.listdir(store)) - set(before)))
run(job)
assert Dataset(store, verify=True).n_rows == expected + 800
left = sorted(os.listdir(store))
assert len(left) == len(before) + 3 and {name[:5] for name in left} == {"manif", "rows-"}, left
"""


@pytest.mark.slow
def test_an_append_that_is_killed_at_any_moment_leaves_the_store_as_it_was(store):
    done = subprocess.run(
        [sys.executable, "-c", KILLS, store],
        env=python_path(), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rows-" in done.stdout  # something was left behind, and swept by the next append
    grown = Dataset(store)
    expected = rows_of(grown, TABLE)
    for _ in range(3):
        expected += rows_of(grown, LATER)
    assert stored_rows(grown) == expected


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full"), DataError("wrong")]
)
def test_an_append_that_fails_leaves_nothing(store, monkeypatch, error):
    before = {file.name: file.read_bytes() for file in store.iterdir()}

    def fail(*args):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os if isinstance(error, OSError) else StoreWriter, *(
            ("pwrite", fail) if isinstance(error, OSError) else ("put", fail)
        ))  # fmt: skip
        with pytest.raises((type(error), DiskFullError)) as caught:
            append(store)
    if isinstance(error, OSError):
        assert "the disk is full" in str(caught.value) and str(store) in str(caught.value)
    assert {file.name: file.read_bytes() for file in store.iterdir()} == before
    assert append(store).n_rows == 3_800


def test_a_second_append_at_the_same_time_is_refused(store, monkeypatch):
    put, begun, go_on = StoreWriter.put, threading.Event(), threading.Event()

    def waiting(self, *args):
        begun.set()
        go_on.wait(60)
        return put(self, *args)

    monkeypatch.setattr(StoreWriter, "put", waiting)
    first = threading.Thread(target=append, args=(store,))
    first.start()
    assert begun.wait(60)
    for more in ({"append": store}, {"path": store, "label": "y", "overwrite": True}):
        with pytest.raises(StoreError, match="another ingest is writing to this folder"):
            ingest(LATER, weight="w", verbose=0, **more)
    assert Dataset(store).n_rows == 3_000
    go_on.set()
    first.join()
    assert append(store).n_rows == 4_600


def test_where_there_are_no_locks_the_second_of_two_appends_is_refused(store, monkeypatch):
    end_stage = StoreWriter.end_stage

    def other_first(self):
        monkeypatch.setattr(StoreWriter, "end_stage", end_stage)
        append(store)
        end_stage(self)

    def no_locks(*args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(StoreWriter, "end_stage", other_first)
    with pytest.raises(StoreError, match="was changed while rows were appended; append them again"):
        append(store)
    assert Dataset(store, verify=True).n_rows == 3_800
    assert len(os.listdir(store)) == 3


def test_an_interrupt_just_after_the_manifest_was_replaced_keeps_the_rows(store, monkeypatch):
    replace = os.replace

    def interrupted(old, new):
        replace(old, new)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", interrupted)
        append(store)
    assert Dataset(store, verify=True).n_rows == 3_800
    assert len(os.listdir(store)) == 3


def test_damage_of_appended_rows_is_found(store):
    before = set(os.listdir(store))
    append(store)
    (name,) = set(os.listdir(store)) - before
    data = bytearray((store / name).read_bytes())
    data[100] ^= 1
    (store / name).write_bytes(data)
    with pytest.raises(StoreError, match=rf"{name}: block \d+ of \d+ is damaged"):
        Dataset(store, verify=True)
    with open(store / name, "ab") as file:
        file.truncate(100)
    with pytest.raises(StoreError, match=rf"{name}: has 100 bytes where the manifest says"):
        Dataset(store)
    with pytest.raises(StoreError, match=rf"{name}: has 100 bytes"):
        append(store)
    (store / name).unlink()
    with pytest.raises(StoreError, match=rf"{name}: cannot be read"):
        Dataset(store)


def test_a_store_that_was_appended_to_is_replaced_as_a_whole(store):
    append(store)
    ingest(TABLE, label="y", weight="w", path=store, overwrite=True, verbose=0)
    assert len(os.listdir(store)) == 2
    assert Dataset(store).n_rows == 3_000 and not Dataset(store).appended


def test_the_same_files_are_appended_once_if_that_is_asked_for(store, tmp_path):
    pq.write_table(LATER, tmp_path / "later.parquet")
    for _ in range(2):
        assert append(store, tmp_path / "later.parquet", resume=True).n_rows == 3_800
    os.utime(tmp_path / "later.parquet", (0, 0))
    assert append(store, tmp_path / "later.parquet", resume=True).n_rows == 4_600
    assert append(store, tmp_path / "later.parquet").n_rows == 5_400
    assert len(os.listdir(store)) == 5


def test_a_temporary_store_lives_as_long_as_what_was_appended_to_it():
    data = ingest(TABLE, label="y", weight="w", verbose=0)
    for _ in range(2):
        data = append(data)
        gc.collect()
    assert sum(stored_rows(data).values()) == 4_600
    path = data.path
    del data
    gc.collect()
    assert not path.exists()


# -- training --------------------------------------------------------------------------------------

FEW = {"n_estimators": 8, "max_leaves": 6, "verbose": 0}
DRAWN = {**FEW, "sample_size": 1_000, "theta": 0.9}


def test_whoever_has_the_store_open_keeps_its_rows(store):
    opened = Dataset(store)
    alone = train(opened, **DRAWN)
    rows = stored_rows(opened)

    def append_meanwhile(event):
        if event.n_trees == 2 and len(os.listdir(store)) < 4:
            append(store)

    same(train(opened, callbacks=[append_meanwhile], **DRAWN), alone)
    assert stored_rows(opened) == rows and opened.n_rows == 3_000
    assert Dataset(store).n_rows >= 3_800


def test_the_same_seed_and_the_same_appends_give_the_same_model(tmp_path, monkeypatch):
    set_constants(monkeypatch, bucket_bytes=4_000, min_memory=8_000, segment_bytes=500)
    models = []
    for name in ("one", "other"):
        path = tmp_path / name
        ingest(TABLE, label="y", weight="w", path=path, verbose=0)
        for seed in range(3):
            data = append(path, small_table(500, seed), n_jobs=1 + (name == "one"))
        models.append([train(data, **how) for how in (FEW, DRAWN)])
        assert models[-1][1].digest != models[-1][0].digest
    for one, other in zip(*models, strict=True):
        same(one, other)


def test_with_all_rows_in_memory_an_appended_store_trains_as_well_as_one_of_all_rows(store):
    grown = append(store, small_table(3_000, 1))
    together = pa.concat_tables([TABLE, small_table(3_000, 1)])
    once = ingest(together, label="y", weight="w", bins_of=Dataset(store), verbose=0)
    assert stored_rows(grown) == stored_rows(once)
    test = small_table(3_000, 2)
    from sparrowboost import evaluate

    loss = [evaluate(train(d, **FEW), test, weight="w", verbose=0).log_loss for d in (grown, once)]
    assert abs(loss[0] - loss[1]) < 0.01


def sampler_of(dataset, **more):
    from sparrowboost.learner.params import Params
    from sparrowboost.learner.starting import start_model

    model = start_model(dataset, Params.make().for_task(dataset.task, dataset.n_classes))
    return Sampler(dataset, model, seed=0, n_jobs=1, **more)


def test_a_first_draw_has_rows_of_all_segments_in_their_proportions(tmp_path, monkeypatch):
    set_constants(monkeypatch, bucket_bytes=2_000, min_memory=8_000, segment_bytes=500)
    rng = np.random.default_rng(0)
    path = tmp_path / "store"
    sizes = [20_000, 10_000, 40, 10_000, 3]
    for k, n in enumerate(sizes):
        X = np.column_stack([np.full(n, k), rng.normal(size=n)])
        to = {"append": path} if k else {"path": path, "categorical": ["f0"]}
        if k == 0:
            X[: len(sizes), 0] = np.arange(len(sizes))  # so that each segment has a bin
        data = ingest(X, label=rng.random(n) < 0.3, verbose=0, **to)
    bin_of = {int(name): k for k, name in enumerate(data.binning.features[0].categories)}
    sampler = sampler_of(data)
    try:
        drawn = sampler.first(sampler.weigh_base(), 4_000)
    finally:
        sampler.close()
    assert sampler.counts.rows_read < 0.5 * data.n_rows
    found = np.bincount(drawn.bins[:, 0], minlength=len(sizes))
    expected = drawn.n * np.array(sizes) / sum(sizes)
    for k, n in enumerate(expected):
        # Rows are drawn independently: six standard deviations, and those moved above.
        assert abs(found[bin_of[k]] - n) < 6 * np.sqrt(n) + 3
    # Blocks in their order for who reads some: each segment has its share of the first ones.
    for label in (0, 1):
        blocks = data.mixed_blocks_of(label)
        assert sorted(blocks) == data.blocks_of(label).tolist()
        first = blocks[: len(blocks) // 4]
        segment = np.searchsorted(data.segment_ends, first, side="right")
        rows = np.bincount(segment, data.block_rows[first], len(sizes))
        share = rows / rows.sum() - np.array(sizes) / sum(sizes)
        assert np.abs(share).max() < 0.12


def test_parts_of_a_store_have_rows_of_each_segment(store):
    grown = append(store)
    first = grown.segment_ends[0]
    whole = grown.block_rows[:first].sum() / grown.n_rows
    for part in (*split(grown, 0.25), *folds(grown, 3)[1]):
        (end, last) = part.segment_ends
        assert last == part.n_blocks
        assert abs(part.block_rows[:end].sum() / part.n_rows - whole) < 0.01
        train(part, **DRAWN)
    assert all(len(part.appended) == 1 for part in split(grown, 0.25))
    assert train(grown, class_weight="balanced", **DRAWN).n_trees == 8


def test_cross_validation_of_an_appended_store(store):
    result = cv(append(store), n_folds=3, n_estimators=4, sample_size=1_000, verbose=0)
    assert result.best_score < 0.65


def test_a_checkpoint_from_before_an_append_is_refused(store, tmp_path):
    model = train(Dataset(store), checkpoint=tmp_path / "run", **DRAWN)
    grown = append(store)
    with pytest.raises(DataError, match=r"other data \(3,000 rows, now 3,800; .* init_model="):
        train(grown, checkpoint=tmp_path / "run", **{**DRAWN, "n_estimators": 12})
    more = train(grown, init_model=tmp_path / "run/result.json", **DRAWN)
    assert more.n_trees == 16 and more.first(8).digest == model.digest


class StoppedError(Exception):
    pass


def test_a_checkpoint_of_an_appended_store_is_resumed(store, tmp_path):
    grown = append(store)
    straight = train(grown, **DRAWN)

    def stop(event):
        if event.n_trees == 5:
            raise StoppedError

    with pytest.raises(StoppedError):
        train(grown, checkpoint=tmp_path / "run", callbacks=[stop], **DRAWN)
    same(train(Dataset(store), checkpoint=tmp_path / "run", **DRAWN), straight)


def test_training_goes_on_from_the_last_model_on_the_grown_store(store):
    model = train(Dataset(store), **FEW)
    flipped = replaced(LATER, y=1 - LATER.column("y").to_numpy())
    grown = append(store, pa.concat_tables([flipped] * 8))
    more = train(grown, init_model=model, **FEW)
    assert more.n_trees == 16 and more.first(8).digest == model.digest
    from sparrowboost import evaluate

    losses = [evaluate(m, flipped, weight="w", verbose=0).log_loss for m in (model, more)]
    assert losses[1] < losses[0]


def test_the_constant_score_of_numbers_is_that_of_all_segments(tmp_path, monkeypatch):
    set_constants(monkeypatch, bucket_bytes=2_000, min_memory=8_000, segment_bytes=500)
    rng = np.random.default_rng(0)
    path = tmp_path / "store"
    X, y = rng.normal(size=(9_000, 1)), rng.normal(size=9_000)
    ingest(X, label=y, task="regression", path=path, verbose=0)
    grown = ingest(X, label=y + 10, append=path, verbose=0)
    model = train(grown, n_estimators=1, learning_rate=1e-6, verbose=0)
    assert abs(model.predict(X[:5]) - 5).max() < 0.3


def test_the_base_score_counts_appended_labels(store):
    ones = replaced(LATER, y=np.ones(800, int), w=np.ones(800))
    grown = append(store, ones)
    w, y = TABLE["w"].to_numpy().astype(float), TABLE["y"].to_numpy()
    expected = base_score(w[y == 0].sum(), w[y == 1].sum() + 800)
    assert train(grown, **FEW).base_score == pytest.approx(expected, rel=1e-6)


def test_many_small_appends_take_few_files_and_little_reading(store):
    for k in range(12):
        data = append(store, LATER[40 * k : 40 * (k + 1)])
    n_open, _ = open_files(store)
    data = Dataset(store)
    assert len(data.segment_ends) == 13 and len(os.listdir(store)) == 14
    opened = []
    for _ in data.blocks():
        opened.append(open_files(store)[0])
    assert max(opened) <= n_open + 1
    assert stored_rows(data) == rows_of(data, TABLE) + rows_of(data, LATER[:480])
    train(data, **DRAWN)


# -- drift -----------------------------------------------------------------------------------------


def test_rows_like_the_first_ones_do_not_drift(tmp_path, caplog):
    path = tmp_path / "store"
    ingest(TABLE, label="y", weight="w", path=path, verbose=0)
    for seed, n in enumerate([10, 100, 1_000, 3_000], 5):
        (*_, last) = append(path, small_table(n, seed)).appended
        assert not last.drifts
        assert max(feature.psi for feature in last.features) < 0.2
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_drift_is_told_by_feature_with_figures_and_advice(store, caplog):
    n = len(LATER)
    rng = np.random.default_rng(0)
    later = replaced(
        LATER,
        x=rng.normal(4, 1, n),
        count=pa.nulls(n, pa.int64()),
        color=np.where(rng.random(n) < 0.4, "violet", "red").tolist(),
    )
    (drift,) = append(store, later).appended
    assert drift == Dataset(store).appended[0]
    assert drift.drifts and drift.n_large == 3
    of = {feature.name: feature for feature in drift.features}
    violet = np.mean([color == "violet" for color in later["color"].to_pylist()])
    assert of["color"].last_bin == pytest.approx((0, violet), abs=1e-6)
    assert of["count"].missing.now == 1 and of["count"].missing.before == pytest.approx(
        0.1, abs=0.03
    )
    above = np.mean(later["x"].to_numpy() > Dataset(store).binning.features[0].thresholds[-1])
    assert of["x"].last_bin.now == pytest.approx(above, abs=1e-6)
    lines = [record.getMessage() for record in caplog.records]
    (line,) = [line for line in lines if "bins were made for" in line]
    assert f"in categories without a bin: {100 * violet:.2g} % of rows, before 0 %" in line
    assert "'count' (PSI" in line and "missing: 100 % of rows, before 1" in line
    assert "'x' (PSI" in line and "above 2." in line and "ingest old and new rows together" in line
    assert any("no values, all missing: count" in line for line in lines)


def test_another_share_of_labels_is_told(store, caplog):
    (drift,) = append(store, replaced(LATER, y=[1, 1, 1, 0] * 200)).appended
    assert drift.label.of == 1 and drift.label.large
    assert drift.label.share == pytest.approx((TABLE["y"].to_numpy().mean(), 0.75), abs=1e-6)
    (line,) = [r.getMessage() for r in caplog.records if "labels of the appended" in r.getMessage()]
    assert "('y'): 1 is 75 % of rows, before 3" in line


def test_a_rare_class_that_comes_more_often_is_told(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20_000, 2)), rng.choice(["a", "b", "c"], 20_000, p=[0.6, 0.39, 0.01])
    ingest(X, label=y, path=tmp_path / "store", verbose=0)
    y = np.where(rng.random(20_000) < 0.02, "c", y)
    (drift,) = ingest(X, label=y, append=tmp_path / "store", verbose=0).appended
    assert drift.label.of == "c" and drift.label.large and drift.n_large == 0
    assert 2.5 < drift.label.size < 3.2


@given(st.integers(2, 60), st.integers(50, 5_000), st.integers(0, 10**6))
def test_the_index_is_about_what_its_definition_gives(n_values, n, seed):
    from sparrowboost.store.binning import NumberFeature

    rng = np.random.default_rng(seed)
    feature = NumberFeature("x", "float64", np.arange(n_values - 1.0))
    before, now = np.zeros(256), np.zeros(256)
    before[:n_values] = 1_000 * rng.dirichlet(np.full(n_values, 5.0))
    now[:n_values] = rng.multinomial(n, rng.dirichlet(np.full(n_values, 1.0)))
    drift = feature_drift(feature, before, before.sum(), now)
    # Over all bins, one by one: no grouping of bins has a larger index than they have.
    p = (before[:n_values] + 0.5) / (before.sum() + n_values / 2)
    q = (now[:n_values] + 0.5) / (n + n_values / 2)
    assert 0 <= drift.psi <= np.sum((q - p) * np.log(q / p)) + 0.5
    assert drift.missing == (0, 0)
    same_rows = feature_drift(feature, before, before.sum(), before * 100)
    assert same_rows.psi < 0.01 and not same_rows.large


def test_bins_of_takes_the_path_of_a_store_too(store):
    by_path = ingest(LATER, label="y", weight="w", bins_of=store, verbose=0)
    by_data = ingest(LATER, label="y", weight="w", bins_of=append(store), verbose=0)
    assert by_path.binning.to_json() == Dataset(store).binning.to_json()
    assert stored_rows(by_path) == stored_rows(by_data) == rows_of(by_path, LATER)
