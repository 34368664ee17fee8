"""More than two classes, from a source to a data set and its parts."""

from __future__ import annotations

import gzip
import json
import logging
import pickle
import re
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import dump_svmlight_file

import sparrowboost.store.label_sample
from constants import set_constants
from helpers import naive_bins
from sparrowboost import DataError, Dataset, MemoryLimitError, StoreError, ingest, train
from sparrowboost.runtime.memory import rss
from sparrowboost.store.staged import StagedRows
from sparrowboost.store.views import class_factors, folds, split, with_class_weight

CITIES = ["Rome", "Oslo", "Bonn", "Lima", "Kyiv"]


def make_table(n=3_000, classes=CITIES, seed=0) -> pa.Table:
    """Numbers, categories, weights, and labels of very different frequency, each at least once."""
    rng = np.random.default_rng(seed)
    share = 0.5 ** np.arange(len(classes))
    which = rng.choice(len(classes), n, p=share / share.sum())
    which[: len(classes)] = np.arange(len(classes))
    return pa.table(
        {
            "x": rng.normal(size=n) + which,
            "color": rng.choice(["red", "green", "blue"], n).tolist(),
            "w": rng.random(n).astype("f4"),
            "y": pa.array([classes[k] for k in rng.permutation(which)]),
        }
    )


def class_rows_of(dataset, *, names=None) -> Counter:
    """The rows as a multiset of (bins, class, weight)."""
    names, rows = names or dataset.classes, Counter()
    for block in dataset.blocks():
        weights = [None] * len(block.label) if block.weight is None else block.weight.tolist()
        which = [names[int(k)] for k in block.target]
        rows.update(zip(map(tuple, block.bins.tolist()), which, weights, strict=True))
    return rows


def naive_class_rows(dataset, table, labels, weights=None) -> Counter:
    features = dataset.binning.features
    columns = [naive_bins(f, table.column(f.name).to_pylist()) for f in features]
    return Counter(
        zip(zip(*columns, strict=True), labels, weights or [None] * len(labels), strict=True)
    )


def check(dataset, labels):
    """A data set is what its labels say."""
    counts = Counter(labels)
    assert dataset.classes == tuple(sorted(counts))
    assert (dataset.n_classes, dataset.task) == (len(counts), "classification")
    assert dataset.targeted and dataset.n_positive == 0 and dataset.target_span is None
    assert dataset.class_rows.tolist() == [counts[label] for label in dataset.classes]
    assert dataset.band_rows.sum() == dataset.n_rows == len(labels)
    band_of = {}
    for index, block in enumerate(dataset.blocks()):
        assert block.target.dtype == np.float32
        assert (block.label == dataset.block_label[index]).all()
        for k in np.unique(block.target).astype(int).tolist():
            assert band_of.setdefault(k, int(block.label[0])) == block.label[0]
    assert len(set(band_of.values())) <= dataset.n_bands <= 8


def as_parquet(table, folder):
    pq.write_table(table, folder / "t.parquet", row_group_size=100)
    return folder / "t.parquet"


def as_csv(table, folder):
    pcsv.write_csv(table, folder / "t.csv")
    return folder / "t.csv"


def as_packed_csv(table, folder):
    (folder / "t.csv.gz").write_bytes(gzip.compress(as_csv(table, folder).read_bytes()))
    return folder / "t.csv.gz"


def as_arrow(table, folder):
    with pa.ipc.new_file(folder / "t.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=700)
    return folder / "t.arrow"


def as_many_files(table, folder):
    for k in range(5):
        pq.write_table(table[k * 600 : (k + 1) * 600], folder / f"{k}.parquet")
    return folder


SOURCES = {
    "parquet": as_parquet,
    "csv": as_csv,
    "gzipped csv": as_packed_csv,
    "arrow": as_arrow,
    "files": as_many_files,
    "table": lambda table, folder: table,
    "frame": lambda table, folder: table.to_pandas(),
    "stream": lambda table, folder: pds.dataset(as_parquet(table, folder)).scanner().to_reader(),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_gives_the_same_rows(name, tmp_path):
    table = make_table()
    dataset = ingest(SOURCES[name](table, tmp_path), label="y", weight="w", verbose=0)
    labels, weights = table["y"].to_pylist(), table["w"].to_pylist()
    check(dataset, labels)
    assert class_rows_of(dataset) == naive_class_rows(dataset, table, labels, weights)
    again = Dataset(dataset.path, verify=True)
    assert class_rows_of(again) == class_rows_of(dataset)
    assert (again.classes, again.n_bands) == (dataset.classes, dataset.n_bands)
    assert class_rows_of(pickle.loads(pickle.dumps(dataset))) == class_rows_of(dataset)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["c", "a", "b"], ("a", "b", "c")),
        (pa.array(["c", "a", "b"]).dictionary_encode(), ("a", "b", "c")),
        (pa.array([10, 9, 8]).dictionary_encode(), (8, 9, 10)),
        (pd.Series([10, 9, 8], dtype="category"), (8, 9, 10)),
        (pd.Series(["c", "a", "b"], dtype="category"), ("a", "b", "c")),
    ],
)
def test_texts_and_categories_are_classes_without_asking(labels, classes):
    X = np.arange(3.0)[:, None]
    for task in (None, "classification"):
        dataset = ingest(X, label=labels, task=task, verbose=0)
        assert (dataset.classes, dataset.n_classes) == (classes, 3)
    by_bin = {
        int(bin): classes[int(k)]
        for block in dataset
        for (bin,), k in zip(block.bins, block.target, strict=True)
    }
    assert by_bin == dict(enumerate(pa.array(labels).to_pylist()))


@pytest.mark.parametrize("kind", [np.int8, np.uint16, np.int64, np.float32, float, list])
def test_numbers_are_classes_if_the_user_says_so(kind, tmp_path):
    labels = np.array([7, 1, 10, 1, 7, 2])
    given = labels.tolist() if kind is list else labels.astype(kind)
    X = np.arange(6.0)[:, None]
    with pytest.raises(DataError, match=r"pass task='classification' \(--task classification\)"):
        ingest(X, label=given, verbose=0)
    dataset = ingest(X, label=given, task="classification", verbose=0)
    assert dataset.classes == (1, 2, 7, 10)  # by value, not as texts
    assert dataset.class_rows.tolist() == [2, 1, 2, 1]
    np.save(tmp_path / "y.npy", np.asarray(given))
    again = ingest(X, label=tmp_path / "y.npy", task="classification", verbose=0)
    assert again.classes == dataset.classes


def test_labels_of_libsvm_files_may_be_classes(tmp_path):
    X, y = np.eye(6), np.array([3, 1, 2, 3, 3, 1])
    dump_svmlight_file(X, y, str(tmp_path / "t.svm"))
    with pytest.raises(DataError, match="--task classification"):
        ingest(tmp_path / "t.svm", verbose=0)
    dataset = ingest(tmp_path / "t.svm", task="classification", verbose=0)
    assert (dataset.classes, dataset.class_rows.tolist()) == ((1, 2, 3), [2, 1, 3])


def test_two_classes_are_two_classes_whatever_is_asked_for():
    X = np.arange(4.0)[:, None]
    for labels in ([0, 1, 1, 0], ["a", "b", "b", "a"]):
        dataset = ingest(X, label=labels, task="classification", verbose=0)
        assert (dataset.n_classes, dataset.n_positive, dataset.targeted) == (2, 2, False)
        assert dataset.class_rows.tolist() == [2, 2]
    numbers = ingest(X, label=[0, 1, 2, 5], task="regression", verbose=0)
    assert (numbers.n_classes, numbers.classes, numbers.class_rows.tolist()) == (0, (), [])
    assert numbers.task == "regression"


def test_one_value_against_the_rest_is_two_classes():
    dataset = ingest(np.arange(4.0)[:, None], label=list("abca"), positive="a", verbose=0)
    assert (dataset.classes, dataset.n_classes, dataset.targeted) == ((None, "a"), 2, False)


@given(
    st.lists(st.sampled_from("abcdefghijkl"), min_size=3, max_size=200)
    | st.lists(st.integers(-5, 5), min_size=3, max_size=200)
)
@settings(max_examples=30)
def test_the_rows_of_any_labels_come_back(labels):
    X = np.arange(float(len(labels)))[:, None]
    if len(set(labels)) < 3:
        return
    dataset = ingest(X, label=labels, task="classification", verbose=0)
    check(dataset, labels)
    expected = naive_class_rows(dataset, pa.table({"f0": X[:, 0]}), labels)
    assert class_rows_of(dataset) == expected


# -- errors ---------------------------------------------------------------------------------------


def test_missing_labels_are_told_with_their_row(tmp_path):
    table = make_table(500).to_pandas()
    table.loc[321, "y"] = None
    for data in (table, as_parquet(pa.Table.from_pandas(table), tmp_path)):
        with pytest.raises(DataError, match="row 322: label 'y' is missing"):
            ingest(data, label="y", path=tmp_path / "s", verbose=0)
    numbers = np.arange(500) % 4 + 0.0
    numbers[77] = np.nan
    with pytest.raises(DataError, match="row 78: label 'label' is missing"):
        ingest(table[["x"]], label=numbers, task="classification", verbose=0)
    assert not (tmp_path / "s").exists()


def test_lists_are_refused():
    with pytest.raises(DataError, match="type list"):
        ingest(pa.table({"x": [1.0, 2], "y": [["a"], ["b"]]}), label="y", verbose=0)


@pytest.mark.parametrize("form", ["csv", "parquet", "table"])
def test_an_id_as_label_is_refused_before_a_block_is_stored(form, tmp_path, monkeypatch):
    n = 20_000
    table = pa.table({"x": np.arange(float(n)), "y": [f"id{k}" for k in range(n)]})
    data = {"csv": as_csv, "parquet": as_parquet}.get(form, lambda table, _: table)(table, tmp_path)
    monkeypatch.setattr("sparrowboost.store.writer.StoreWriter.put", lambda *_: pytest.fail())
    with pytest.raises(DataError, match=r"more than 255 values .* Join rare ones into one first"):
        ingest(data, label="y", verbose=0)
    with pytest.raises(DataError, match="If they are numbers to predict, pass task='regression'"):
        ingest(data, label="x", task="classification", verbose=0)


def test_255_classes_are_the_most():
    X = np.arange(1_000.0)[:, None]
    dataset = ingest(X, label=np.arange(1_000) % 255, task="classification", verbose=0)
    assert (dataset.n_classes, dataset.classes[-1], dataset.n_bands) == (255, 254, 8)
    assert dataset.class_rows.min() == 3
    with pytest.raises(DataError, match="more than 255 values"):
        ingest(X, label=np.arange(1_000) % 256, task="classification", verbose=0)


# -- classes that a sample of the labels lacks ----------------------------------------------------


@pytest.fixture
def small_sample(monkeypatch):
    """Let few labels be looked at, so that classes of some rows are not among them."""
    set_constants(monkeypatch, label_sample_rows=50)


def with_rare(n=20_000, rare=(13_333,), names=("a", "b"), seed=0):
    """Labels of which some are in a single row."""
    labels = np.random.default_rng(seed).choice(np.array(names, object), n)
    for k, row in enumerate(rare):
        labels[row] = f"rare{k}"
    return labels.tolist()


def read_again(caplog) -> int:
    return sum("all rows are read again" in message for message in caplog.messages)


def test_a_third_class_in_one_row_is_found_by_reading_again(small_sample, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    labels = with_rare()
    table = pa.table({"x": np.arange(20_000.0), "y": labels})
    for form in (as_parquet, as_csv, as_packed_csv, lambda table, _: table):
        caplog.clear()
        store = tmp_path / form.__name__
        dataset = ingest(form(table, tmp_path), label="y", path=store, verbose=0)
        assert read_again(caplog) == 1
        check(dataset, labels)
        assert class_rows_of(dataset) == naive_class_rows(dataset, table, labels)
        assert dataset.n_bands == 2, "the rare class is with the rarer one of the sample"
        assert sorted(name.name[:4] for name in store.iterdir()) == ["mani", "rows"]


def test_classes_that_the_sample_of_many_lacks_are_found_in_one_pass(small_sample, caplog):
    caplog.set_level(logging.INFO)
    labels = with_rare(rare=(5_000, 19_999), names=("s", "b", "z"))
    X = np.arange(20_000.0)[:, None]
    dataset = ingest(X, label=labels, verbose=0)
    assert read_again(caplog) == 0
    check(dataset, labels)
    assert dataset.classes == ("b", "rare0", "rare1", "s", "z")
    manifest = json.loads((dataset.path / "manifest.json").read_text())
    assert manifest["class_of"] == [0, 3, 4, 1, 2]  # found later, so of later codes
    assert class_rows_of(dataset) == naive_class_rows(dataset, pa.table({"f0": X[:, 0]}), labels)


def test_codes_are_classes_where_the_sample_has_all():
    dataset = ingest(make_table(), label="y", verbose=0)
    manifest = json.loads((dataset.path / "manifest.json").read_text())
    assert (manifest["version"], manifest["class_of"]) == (4, list(range(5)))


def test_numbers_of_a_rare_third_value_are_asked_for_too(small_sample, tmp_path):
    labels = np.arange(20_000) % 2
    labels[13_333] = 7
    with pytest.raises(DataError, match=r"more than 2 values \(0, 1, 7, .*--task classification"):
        ingest(np.arange(20_000.0)[:, None], label=labels, path=tmp_path / "s", verbose=0)
    assert not (tmp_path / "s").exists()


def test_texts_that_only_broken_lines_have_are_no_classes(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    sample = sparrowboost.store.label_sample.label_sample

    def with_broken(*args):
        yield from sample(*args)
        yield pa.array(["half a line"])

    X, labels = np.arange(3_000.0)[:, None], with_rare(3_000, ())
    expected = ingest(X, label=labels, verbose=0)
    monkeypatch.setattr(sparrowboost.store.label_sample, "label_sample", with_broken)
    dataset = ingest(X, label=labels, verbose=0)
    assert read_again(caplog) == 1
    assert (dataset.classes, dataset.targeted, dataset.n_classes) == (("a", "b"), False, 2)
    assert dataset.n_positive == expected.n_positive
    many = with_rare(3_000, (5, 1_111), ("a", "b", "c"))
    dataset = ingest(X, label=many, verbose=0)
    check(dataset, many)
    assert read_again(caplog) == 1


def test_rows_of_a_pass_that_was_dropped_are_not_on_the_disk(small_sample, tmp_path, monkeypatch):
    set_constants(monkeypatch, max_block_rows=500, bucket_bytes=2_000, min_memory=1,
                  segment_bytes=400, min_segment_bytes=100, extent_bytes=1_000)  # fmt: skip
    labels = with_rare(rare=(19_000,))
    X = np.arange(20_000.0)[:, None]
    dataset = ingest(X, label=labels, path=tmp_path / "s", verbose=0)
    check(dataset, labels)
    size = next((tmp_path / "s").glob("rows-*")).stat().st_size
    # A byte for the bin and 4 for the class, and some holes.
    assert dataset.n_bytes == 5 * 20_000 <= size < 7 * 20_000


# -- rows that come in stages ---------------------------------------------------------------------

N, GROUP = 40_000, 1_000


@pytest.fixture
def staged_tables(monkeypatch):
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


def staged_file(folder, rare_row=None, names=("a", "b")):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2)).astype("f4")
    labels = np.array(names, object)[
        np.digitize(X[:, 0] + rng.normal(size=N), [0, 1][: len(names) - 1])
    ]
    if rare_row is not None:
        labels[rare_row] = "rare"
    table = pa.table({"x0": X[:, 0], "x1": X[:, 1], "y": labels.tolist()})
    pq.write_table(table, folder / "t.parquet", row_group_size=GROUP)
    return folder / "t.parquet", labels.tolist()


def row_of_stage(dataset, number):
    """A row of the source that is in this stage."""
    return GROUP * dataset.storage._reading.stages[number].only[0] + GROUP - 1


def test_many_classes_are_read_in_one_stage(staged_tables, tmp_path):
    file, labels = staged_file(tmp_path, names=("a", "b", "c"))
    staged = ingest(file, label="y", verbose=0, wait=False)
    assert isinstance(staged.storage, StagedRows)
    assert not staged.storage.in_stages
    # Known before any row is read.
    assert (staged.task, staged.targeted, staged.n_classes, staged.n_bands) == (
        "classification", True, 3, 3,
    )  # fmt: skip
    assert not staged.storage._stages
    model = train(staged, n_estimators=3, max_leaves=4, verbose=0)
    assert model.classes == ("a", "b", "c")
    check(staged, labels)


@pytest.fixture
def rare_in(staged_tables, tmp_path, monkeypatch):
    """A file with a third class in one row, of the stage of this number; a sample lacks it."""

    def make(stage):
        file, _ = staged_file(tmp_path)
        plain = ingest(file, label="y", verbose=0, wait=False)
        assert plain.storage.in_stages
        row = row_of_stage(plain, stage)
        plain.storage.close()
        file, labels = staged_file(tmp_path, row)
        sample = sparrowboost.store.label_sample.label_sample

        def without_rare(*args):
            for piece in sample(*args):
                yield piece.filter(pa.compute.not_equal(piece, "rare"))

        monkeypatch.setattr(sparrowboost.store.label_sample, "label_sample", without_rare)
        return file, labels

    return make


@pytest.mark.parametrize("stage", [0, 5])
def test_a_third_class_is_found_in_any_stage(rare_in, stage, caplog):
    caplog.set_level(logging.INFO)
    file, labels = rare_in(stage)
    check(ingest(file, label="y", verbose=0), labels)
    staged = ingest(file, label="y", verbose=0, wait=False)
    assert staged.storage.in_stages and staged.n_classes == 2
    check(staged, labels)
    assert read_again(caplog) == 2


def test_a_third_class_before_training_begins_is_learned(rare_in):
    file, labels = rare_in(0)
    staged = ingest(file, label="y", verbose=0, wait=False)
    model = train(staged, n_estimators=3, max_leaves=4, verbose=0)
    assert (model.classes, model.loss) == (("a", "b", "rare"), "softmax")
    check(staged, labels)


def test_a_third_class_after_training_has_begun_is_an_error(rare_in, tmp_path):
    file, labels = rare_in(5)
    staged = ingest(file, label="y", verbose=0, wait=False, path=tmp_path / "s")
    with pytest.raises(DataError, match=r"third value, 'rare', .* had begun .* Ingest all rows"):
        train(staged, n_estimators=60, max_leaves=8, verbose=0)
    assert not (tmp_path / "s").exists()
    # What the error advises.
    dataset = ingest(file, label="y", verbose=0, path=tmp_path / "s")
    check(dataset, labels)


@pytest.mark.parametrize("more", [{"class_weight": "balanced"}, {"checkpoint": "run"}])
def test_a_training_that_waits_for_all_rows_learns_a_third_class(rare_in, tmp_path, more):
    file, _ = rare_in(5)
    more = {k: tmp_path / v if k == "checkpoint" else v for k, v in more.items()}
    staged = ingest(file, label="y", verbose=0, wait=False)
    model = train(staged, n_estimators=2, max_leaves=4, verbose=0, **more)
    assert model.classes == ("a", "b", "rare")


# -- the store ------------------------------------------------------------------------------------


def test_a_store_of_two_classes_or_numbers_has_the_version_that_it_had(tmp_path):
    X = np.arange(300.0)[:, None]
    for task, label, version in (
        (None, np.arange(300) % 2, 2),
        ("regression", np.arange(300), 3),
        ("classification", np.arange(300) % 3, 4),
    ):
        dataset = ingest(X, label=label, task=task, verbose=0)
        manifest = json.loads((dataset.path / "manifest.json").read_text())
        assert manifest["version"] == version
        assert ("class_of" in manifest) == (version == 4)
        assert ("target_span" in manifest) == (version == 3)


def test_a_later_version_is_refused(tmp_path):
    ingest(make_table(100), label="y", path=tmp_path / "s", verbose=0)
    manifest = tmp_path / "s" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 4', '"version": 9'))
    with pytest.raises(StoreError, match="store version 9, this Sparrow reads versions 2 to 8"):
        Dataset(tmp_path / "s")


def test_a_finished_store_is_found_again(tmp_path):
    file = as_parquet(make_table(), tmp_path)
    how = {"label": "y", "path": tmp_path / "s", "resume": True, "verbose": 0}
    first = ingest(file, **how)
    written = (tmp_path / "s" / "manifest.json").stat().st_mtime_ns
    again = ingest(file, **how)
    assert (tmp_path / "s" / "manifest.json").stat().st_mtime_ns == written
    assert again.classes == first.classes


def test_the_bytes_of_classes_are_in_the_plan():
    # What a store of numbers takes, one of classes takes, too.
    n = 50_000
    X, y = np.random.default_rng(0).normal(size=(n, 3)), np.arange(n) % 7
    limit = rss() + 600_000_000
    stores = [
        ingest(X, label=y, task=task, memory_limit=limit, verbose=0, wait=False)
        for task in ("regression", "classification")
    ]
    for expected in (store.storage.expected for store in stores):
        assert (expected.layout.row_bytes, expected.n_extra, expected.targeted) == (7, 1, True)
    assert stores[0].n_bytes == stores[1].n_bytes == 7 * n
    plans = [store.storage._reading.plan for store in stores]
    assert plans[0].n_bytes == plans[1].n_bytes


def test_the_limit_allows_for_the_scores_of_all_classes_in_training():
    X = np.random.default_rng(0).normal(size=(20_000, 3))
    named = []
    for n_classes in (3, 200):
        y = np.arange(20_000) % n_classes
        how = {"task": "classification", "memory_limit": "30MB", "wait": False, "verbose": 0}
        with pytest.raises(MemoryLimitError, match="samples") as refused:
            ingest(X, label=y, **how)
        named.append(int(re.search(r"give at least (\d+) MB", str(refused.value))[1]))
    # Two samples of 10,000 rows, each with 197 more scores of 4 bytes; and strata.
    assert named[1] - named[0] > 2 * 10_000 * 4 * 197 / 1e6


# -- parts of the rows, and weights ---------------------------------------------------------------


@pytest.fixture(scope="module")
def few():
    return ingest(make_table(6_000), label="y", weight="w", verbose=0)


@pytest.fixture(scope="module")
def many():
    """More classes than bands."""
    return ingest(make_table(6_000, [f"c{k:02d}" for k in range(12)]), label="y", verbose=0)


def counted(view):
    """Rows of each class, by reading."""
    rows = np.zeros(view.n_classes, np.int64)
    for block in view.blocks():
        rows += np.bincount(block.target.astype(int), minlength=view.n_classes)
    return rows


@pytest.mark.parametrize("name", ["few", "many"])
def test_parts_have_their_share_of_each_band_and_nearly_of_each_class(name, request):
    data = request.getfixturevalue(name)
    parts = folds(data, 4)
    for rows, valid in (split(data, 0.25), *parts):
        assert (rows.classes, rows.n_classes, rows.task) == (
            data.classes,
            data.n_classes,
            data.task,
        )
        np.testing.assert_array_less(np.abs(valid.band_rows - data.band_rows / 4), 1)
        for view in (rows, valid):
            assert view.class_rows.tolist() == counted(view).tolist()
        assert (rows.class_rows + valid.class_rows == data.class_rows).all()
        # Of n rows of a class, a quarter, give or take 5 standard deviations of a draw.
        n = data.class_rows
        assert (np.abs(valid.class_rows - n / 4) <= 5 * np.sqrt(n * 3 / 16) + 1).all()
    assert sum((class_rows_of(valid) for _, valid in parts), Counter()) == class_rows_of(data)


def test_parts_of_few_classes_have_the_exact_share_of_each(few):
    _, valid = split(few, 0.1)
    np.testing.assert_array_less(np.abs(valid.class_rows - few.class_rows / 10), 0.51)


def test_rows_of_few_classes_are_counted_without_reading(few, monkeypatch):
    view, _ = split(few, 0.1)
    monkeypatch.setattr(type(view.storage), "read_block", lambda *_, **__: pytest.fail())
    assert view.class_rows.sum() == view.n_rows


def test_a_class_of_one_row_is_in_one_part():
    labels = ["a", "b"] * 50 + ["once"]
    data = ingest(np.arange(101.0)[:, None], label=labels, verbose=0)
    parts = folds(data, 5)
    assert sum(int(valid.class_rows[2]) for _, valid in parts) == 1
    for rows, valid in parts:
        assert rows.class_rows[2] + valid.class_rows[2] == 1
        factors = class_factors(valid, "balanced")
        assert np.isfinite(factors).all()


def test_balanced_classes_have_the_same_weight(many):
    factors = class_factors(many, "balanced")
    np.testing.assert_allclose(factors * many.class_rows, many.n_rows / 12)
    weighted = with_class_weight(many, factors)
    assert weighted.class_rows.tolist() == many.class_rows.tolist()
    sums = np.zeros(12)
    for block in weighted.blocks():
        sums += np.bincount(block.target.astype(int), block.weight, 12)
    np.testing.assert_allclose(sums, many.n_rows / 12, rtol=1e-4)


def test_weights_of_classes_multiply_those_of_rows(few):
    factors = class_factors(few, {"Oslo": 3, "Rome": 0.5})
    assert factors == (1.0, 1.0, 1.0, 3, 0.5)
    plain, weighted = class_rows_of(few), class_rows_of(with_class_weight(few, factors))
    expected = Counter()
    for (bins, name, weight), n in plain.items():
        factor = {"Oslo": 3, "Rome": 0.5}.get(name, 1)
        expected[bins, name, float(np.float32(weight) * np.float32(factor))] += n
    assert weighted == expected
    inner, _ = split(with_class_weight(few, factors), 0.5)
    assert inner.class_rows.tolist() == counted(inner).tolist()


@pytest.mark.parametrize(
    ("class_weight", "what"),
    [
        ("even", "give 'balanced'"),
        ({"Oslo": 1, "Paris": 2}, r"no label 'Paris'; the labels are 'Bonn', .* and 'Rome'\."),
        ({"Oslo": -1}, "weight of label 'Oslo' is -1"),
        ({"Oslo": 1e-7, "Rome": 1e7}, "1e-07 and 10000000.0; one must be at most 1e\\+12 times"),
    ],
)
def test_weights_of_classes_that_make_no_sense_are_refused(few, class_weight, what):
    with pytest.raises(DataError, match=what):
        with_class_weight(few, class_factors(few, class_weight))


def test_as_many_weights_as_classes_are_needed(few):
    with pytest.raises(DataError, match="2 weights of labels; this data set has 5 classes"):
        with_class_weight(few, (1, 2))
    numbers = ingest(np.arange(9.0)[:, None], label=np.arange(9), task="regression", verbose=0)
    with pytest.raises(DataError, match="this data set has 0 classes"):
        with_class_weight(numbers, (1, 2))
    with pytest.raises(DataError, match="labels of this data set are numbers"):
        class_factors(numbers, "balanced")
