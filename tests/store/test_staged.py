from __future__ import annotations

import gc
import pickle
import threading
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparrowboost.store.writer
from builders import assert_same_trees, make_model
from constants import set_constants
from helpers import stored_rows
from sparrowboost import (
    DataError,
    Dataset,
    MemoryLimitError,
    SparrowClassifier,
    ingest,
    train,
)
from sparrowboost.learner import starting, training
from sparrowboost.learner.events import SampleDrawn, TreeAdded
from sparrowboost.readers.formats import OpenOptions, open_source
from sparrowboost.readers.parquet import ParquetFile
from sparrowboost.runtime.progress import make_progress
from sparrowboost.sampling.sampler import Sampler, WeightEstimate
from sparrowboost.store.staged import StagedRows
from sparrowboost.store.stages import make_stages

N, GROUP = 40_000, 1_000
AT_LEAST = {"min_rows": 10_000, "min_partitions": 16}


@pytest.fixture(autouse=True)
def small_stages(monkeypatch):
    set_constants(
        monkeypatch,
        min_staged_rows=10_000,
        n_stages=8,
        whole_values=1_000,
        large_sample=1_000,
        first_of_label=100,
        stage_worth=0.1,
        first_rows=2_000,
    )


def make_table(n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)).astype("f4")
    y = X[:, 0] + X[:, 1] * (X[:, 2] > 0) + rng.normal(size=n) > 1
    return pa.table({**{f"x{j}": X[:, j] for j in range(4)}, "y": y.astype(int)})


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("staged") / "t.parquet"
    pq.write_table(make_table(), path, row_group_size=GROUP)
    return path


def watched(dataset, **params):
    """A model, and the rows of the data set that each draw was from."""
    samples = []

    def note(event):
        if isinstance(event, SampleDrawn):
            samples.append(event.rows_read)

    params = {"n_estimators": 60, "max_leaves": 8, **params}
    return train(dataset, callbacks=[note], verbose=0, **params), samples


def test_stages_hold_every_partition_once_and_are_spread_over_the_file(file):
    options = OpenOptions(scratch=file.parent, rng=np.random.default_rng(0))
    source = open_source(str(file), options)
    stages = make_stages(source, 0, 8, **AT_LEAST)
    assert len(stages) == 8
    assert sorted(g for stage in stages for g in stage.only) == list(range(N // GROUP))
    assert [stage.n_rows for stage in stages] == [N // 8] * 8
    assert all(max(stage.only) - min(stage.only) > 15 for stage in stages)
    assert make_stages(source, 0, 8, **AT_LEAST) == stages
    assert make_stages(source, 1, 8, **AT_LEAST) != stages


@pytest.mark.slow
def test_each_stage_is_a_data_set_that_holds_those_before_it(file, tmp_path):
    staged = ingest(file, label="y", path=tmp_path / "store", verbose=0, wait=False)
    reading = staged.storage
    assert isinstance(staged, Dataset) and isinstance(reading, StagedRows)
    reading.start(make_progress(0))
    stages = [reading.stage(k) for k in range(8)]
    for k, (before, after) in enumerate(pairwise(stages)):
        assert before.n_rows == (k + 1) * N // 8
        assert stored_rows(before) <= stored_rows(after)
        for i in range(before.n_blocks):  # a block keeps its number, and its order
            np.testing.assert_array_equal(before.read_block(i).bins, after.read_block(i).bins)
    assert reading.more(stages[0]) is stages[1]
    assert stored_rows(stages[-1]) == stored_rows(Dataset(tmp_path / "store", verify=True))


def test_whoever_asks_for_more_than_is_known_waits(file):
    whole = ingest(file, label="y", verbose=0)
    staged = ingest(file, label="y", verbose=0, wait=False)
    assert (staged.n_rows, staged.n_features) == (N, 4)
    assert not staged.storage._stages, "nothing was read for that"
    assert (staged.n_positive, staged.classes) == (whole.n_positive, (0, 1))
    assert stored_rows(staged) == stored_rows(whole)


@pytest.mark.slow
def test_training_begins_before_all_rows_are_read(file):
    staged = ingest(file, label="y", verbose=0, wait=False)
    there = []

    def note(event):
        if isinstance(event, TreeAdded):
            there.append(len(staged.storage._stages))

    model = train(staged, callbacks=[note], n_estimators=60, max_leaves=8, verbose=0)
    assert there[0] == 1
    assert len(set(there)) > 3, "stages come one by one"
    assert len(staged.storage._stages) == 8, "all rows are read in the end"
    assert model.classes == (0, 1)
    test = make_table(seed=1)
    assert sparrowboost.evaluate(model, test).auc > 0.85
    of_all = train(ingest(file, label="y", verbose=0), n_estimators=60, max_leaves=8, verbose=0)
    difference = sparrowboost.evaluate(model, test).auc - sparrowboost.evaluate(of_all, test).auc
    assert abs(difference) < 0.01


@pytest.mark.slow
def test_the_same_seed_gives_the_same_model_whatever_reading_takes(file, monkeypatch):
    models = []
    put = sparrowboost.store.writer.StoreWriter.put
    for slow in (0.0, 0.02):

        def put_slowly(self, records, codes, slow=slow):
            threading.Event().wait(slow)
            put(self, records, codes)

        monkeypatch.setattr(sparrowboost.store.writer.StoreWriter, "put", put_slowly)
        for n_jobs in (1, 2):
            staged = ingest(file, label="y", verbose=0, wait=False, n_jobs=n_jobs)
            models.append(watched(staged, n_jobs=n_jobs)[0])
    for model in models[1:]:
        assert_same_trees(models[0], model)


def test_a_file_sorted_by_label_is_read_first(tmp_path):
    table = make_table()
    pq.write_table(table.sort_by("y"), tmp_path / "s.parquet", row_group_size=N // 17)
    model, _ = watched(ingest(tmp_path / "s.parquet", label="y", verbose=0, wait=False))
    assert sparrowboost.evaluate(model, make_table(seed=1)).auc > 0.85
    few = table.append_column("z", pa.array(np.arange(N) >= N - 10))
    pq.write_table(few, tmp_path / "few.parquet", row_group_size=GROUP)
    staged = ingest(tmp_path / "few.parquet", label="z", verbose=0, wait=False)
    there = []
    train(
        staged,
        callbacks=[lambda event: there.append(len(staged.storage._stages)) and None],
        n_estimators=3,
        verbose=0,
    )
    assert there[0] == 8, "ten positives in one group: all are waited for"


def test_what_is_wrong_with_later_rows_is_said(tmp_path):
    table = make_table().to_pandas()
    table["y"] = table["y"].astype(float)
    table.loc[31_234, "y"] = np.nan
    pq.write_table(pa.Table.from_pandas(table), tmp_path / "n.parquet", row_group_size=GROUP)
    staged = ingest(tmp_path / "n.parquet", label="y", verbose=0, wait=False, path=tmp_path / "s")
    with pytest.raises(DataError, match="row 31,235"):
        train(staged, n_estimators=1, verbose=0)
    assert not (tmp_path / "s").exists(), "no unfinished store is left"


def test_a_training_that_fails_stops_the_reading(file, tmp_path):
    staged = ingest(file, label="y", verbose=0, wait=False, path=tmp_path / "s")

    def fail(event):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        train(staged, callbacks=[fail], verbose=0)
    assert not (tmp_path / "s").exists()
    assert not [t for t in threading.enumerate() if t.name == "sparrow-ingest"]
    with pytest.raises(DataError, match="stopped"):
        staged.n_positive  # noqa: B018


PLACES = [
    "check_training", "plan_while_reading", "fewest", "class_factors", "label_weights",
    "base_score", "Model", "WorkerPool", "make_validation", "Scanner", "Sampler", "closing",
    "SampleSchedule", "SplitFinder", "AdaptiveGrower", "Notifier", "Saver", "boost",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_wherever_training_is_interrupted_reading_stops_and_leaves_nothing(
    file, tmp_path, monkeypatch, place
):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    staged = ingest(file, label="y", verbose=0, wait=False, path=tmp_path / "s")
    module = next(module for module in (starting, training) if hasattr(module, place))
    monkeypatch.setattr(module, place, interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(staged, valid=file, n_estimators=3, verbose=0)
    assert not (tmp_path / "s").exists()
    assert not [t for t in threading.enumerate() if t.name.startswith("sparrow-")]


def test_a_draw_that_waits_for_rows_does_not_keep_a_training_from_ending(file, tmp_path):
    class Stuck:
        """Rows that never come."""

        n_rows, waited, closed = 2 * N, threading.Event(), threading.Event()

        def more(self, dataset):
            self.waited.set()
            assert self.closed.wait(60)
            raise DataError("stopped")

        def close(self):
            self.closed.set()

    dataset, staged = ingest(file, label="y", verbose=0), Stuck()
    model = make_model(dataset)
    sampler = Sampler(dataset, model, folder=tmp_path, seed=0, n_jobs=1, staged=staged)
    estimate = sampler.weigh_base()
    sampler.request(model, estimate, 1_000, more=True)
    assert staged.waited.wait(60)
    sampler.close()
    assert staged.closed.is_set()


def test_a_limit_that_is_too_small_for_training_is_refused_before_rows_are_read(
    file, tmp_path, monkeypatch
):
    put = []
    monkeypatch.setattr(sparrowboost.store.writer.StoreWriter, "put", lambda *args: put.append(1))
    limit = sparrowboost.runtime.memory.rss() + 400_000_000
    for early in (True, False):
        set_constants(monkeypatch, min_staged_rows=10_000 if early else 10**9)
        path = tmp_path / "s"
        staged = ingest(file, label="y", verbose=0, wait=False, path=path, memory_limit=limit)
        assert staged.storage.in_stages == early
        with pytest.raises(MemoryLimitError, match=r"evidence \("):
            train(staged, memory_limit=limit, max_leaves=60_000, verbose=0)
        assert put == [] and not path.exists()


def test_what_was_never_read_leaves_nothing(file, tmp_path):
    staged = ingest(file, label="y", verbose=0, wait=False, path=tmp_path / "s")
    assert (tmp_path / "s").exists()
    del staged
    gc.collect()
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("more", [{"class_weight": "balanced"}, {"checkpoint": "run"}])
def test_what_needs_all_rows_waits_for_them(file, tmp_path, more):
    more = {k: tmp_path / v if k == "checkpoint" else v for k, v in more.items()}
    staged = ingest(file, label="y", verbose=0, wait=False, path=tmp_path / "s")
    model, _ = watched(staged, n_estimators=3, **more)
    again, _ = watched(
        ingest(file, label="y", verbose=0), n_estimators=3, class_weight=more.get("class_weight")
    )
    assert_same_trees(model, again)


def test_arrays_and_several_files_come_in_stages_too(tmp_path):
    table = make_table()
    for i, part in enumerate(np.array_split(np.arange(N), 5)):
        pq.write_table(table.take(part), tmp_path / f"{i}.parquet", row_group_size=GROUP)
    whole = ingest(table, label="y", verbose=0)
    files = ingest(tmp_path / "*.parquet", label="y", verbose=0, wait=False)
    assert files.storage.in_stages
    assert stored_rows(files) == stored_rows(whole)
    X = np.random.default_rng(0).normal(size=(1_200_000, 2)).astype("f4")
    y = X[:, 0] > 0
    weight = np.arange(len(y), dtype="f4")
    staged = ingest(X, label=y, weight=weight, verbose=0, wait=False)
    assert staged.storage.in_stages
    assert np.sort(np.concatenate([b.weight for b in staged.blocks()])).tolist() == list(weight)
    for block in staged.blocks():  # labels and weights beside the rows are those of the rows
        assert (y[block.weight.astype(int)] == block.label).all()


def test_the_classifier_reads_while_it_trains(file, monkeypatch):
    waited = []
    monkeypatch.setattr(
        StagedRows,
        "wait",
        lambda self, wait=StagedRows.wait: waited.append(len(self._stages)) or wait(self),
    )
    clf = SparrowClassifier(n_estimators=5, verbose=0).fit(file, y="y")
    assert waited[0] < 8
    assert clf.classes_.tolist() == [0, 1]


@pytest.mark.slow
def test_rows_that_came_later_are_drawn_as_those_before(tmp_path, monkeypatch):
    set_constants(
        monkeypatch, bucket_bytes=100, segment_bytes=20, min_segment_bytes=8, extent_bytes=60
    )
    # Feature n is the row's number, in 100 bins: each shall be stood for by as many rows as it has.
    n = 20_000
    x = np.arange(n) // (n // 100)
    table = pa.table({"n": x, "y": np.arange(n) % 3 == 0})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=n // 20)
    stood, draws = np.zeros(100), 40
    for seed in range(draws):
        data = ingest(tmp_path / "t.parquet", label="y", verbose=0, wait=False, random_state=seed)
        staged = data.storage
        staged.start(make_progress(0))
        first = staged.stage(0)
        model = make_model(first)
        even = replace(model, base_score=0.0)
        sampler = Sampler(first, even, folder=tmp_path, seed=seed, n_jobs=1, staged=staged)
        with closing(sampler), closing(staged):
            sample = sampler.first(sampler.weigh_base(), 4_000)
            assert sampler.n_rows == first.n_rows
            for _ in range(7):
                estimate = WeightEstimate.of(sample)
                sample = sampler.again(model, estimate, 4_000, more=True)
            assert sampler.complete
            stood += np.bincount(sample.bins[:, 0], sample.copies, 100)
    # A draw reads each of the 25 blocks of a stage with chance 1/5, so that the rows which a bin's
    # 200 are stood for by deviate by 0.4 of them, in the mean of 40 draws by 200 * 0.063 = 13.
    assert abs(stood.sum() / draws - n) < 0.02 * n
    assert np.abs(stood / draws - n / 100).max() < 5 * 13


def test_who_interrupts_training_does_not_wait_for_a_stage(file, monkeypatch):
    put, stuck = sparrowboost.store.writer.StoreWriter.put, threading.Event()

    def put_first_stage(self, records, codes):
        if self._blocks:
            stuck.set()
            threading.Event().wait(0.3)  # the rest would take 35 times that
        put(self, records, codes)

    monkeypatch.setattr(sparrowboost.store.writer.StoreWriter, "put", put_first_stage)

    def interrupt(event):
        if stuck.wait(0.05):
            raise KeyboardInterrupt

    staged = ingest(file, label="y", verbose=0, wait=False)
    with pytest.raises(KeyboardInterrupt):
        train(staged, callbacks=[interrupt], n_estimators=500, max_leaves=8, verbose=0)
    assert len(staged.storage._stages) <= 2  # of eight
    assert not [t for t in threading.enumerate() if t.name == "sparrow-ingest"]


def test_labels_that_come_in_stretches_are_waited_for(tmp_path):
    table = make_table()
    drifting = np.random.default_rng(0).random(N) < np.where(np.arange(N) < N // 4, 0.5, 0.05)
    for label in (drifting.astype(int), np.where(drifting, "yes", "no")):
        some = table.drop_columns(["y"]).append_column("y", pa.array(label))
        pq.write_table(some, tmp_path / "d.parquet", row_group_size=GROUP)
        assert not ingest(
            tmp_path / "d.parquet", label="y", verbose=0, wait=False
        ).storage.in_stages
    pq.write_table(table.drop_columns(["y"]), tmp_path / "x.parquet", row_group_size=GROUP)
    beside = ingest(tmp_path / "x.parquet", label=drifting, verbose=0, wait=False)
    assert not beside.storage.in_stages
    even = pa.array(np.random.default_rng(0).random(N) < 0.02)
    assert ingest(tmp_path / "x.parquet", label=even, verbose=0, wait=False).storage.in_stages


def test_empty_and_uneven_row_groups(tmp_path):
    table = make_table()
    cuts = [*range(0, 20_000, 500), 20_000, 20_000, 30_000, 30_000, N]
    with pq.ParquetWriter(tmp_path / "u.parquet", table.schema) as writer:
        for start, stop in pairwise(cuts):
            writer.write_table(table.slice(start, stop - start), row_group_size=N)
    staged = ingest(tmp_path / "u.parquet", label="y", verbose=0, wait=False)
    assert staged.storage.in_stages
    whole = ingest(table, label="y", verbose=0)
    assert stored_rows(staged) == stored_rows(whole)
    assert staged.block_rows.max() <= staged.largest_block
    few = FakeSource([1_000] * 41 + [0] * 30)
    assert make_stages(few, 0, 8, min_rows=10_000, min_partitions=42) == [(None, 41_000)]


class FakeSource:
    def __init__(self, rows):
        self._rows, self.n_rows = rows, sum(rows)

    def partitions(self):
        return self._rows


def test_a_file_with_fewer_rows_than_it_says_is_told(file, monkeypatch):
    partitions = ParquetFile.partitions
    monkeypatch.setattr(
        ParquetFile,
        "partitions",
        lambda self: [n + (i == 3) for i, n in enumerate(partitions(self))],
    )
    with pytest.raises(DataError, match="fewer rows"):
        ingest(file, label="y", verbose=0)


def test_only_one_reads_and_others_wait(file):
    staged = ingest(file, label="y", verbose=0, wait=False)
    found = []
    threads = [threading.Thread(target=lambda: found.append(staged.n_positive)) for _ in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and len(found) == 3
    trained = threading.Thread(target=train, args=(staged,), kwargs={"n_estimators": 2})
    trained.start()  # it was read by another thread, which goes on
    trained.join(60)
    assert not trained.is_alive()


def test_it_is_a_data_set_for_pickle_and_for_who_asks_what_it_has(file, tmp_path):
    staged = ingest(file, label="y", verbose=0, wait=False, path=tmp_path / "s")
    assert not hasattr(staged, "_repr_html_")
    assert not staged.storage._stages, "nothing was read for that"
    again = pickle.loads(pickle.dumps(staged))
    assert (type(again), again.n_rows, again.path) == (Dataset, N, staged.path)
