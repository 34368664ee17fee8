"""From every kind of source to a store that holds exactly its rows."""

from __future__ import annotations

import gzip
import os

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.dataset as pds
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import dump_svmlight_file

import sparrowboost
from constants import set_constants
from helpers import naive_rows, small_table, stored_rows
from sparrowboost import DataError, Dataset, StoreError, ingest
from sparrowboost.store.writer import StoreWriter

TABLE = small_table()


def check(dataset, table=TABLE, *, weight=None, label="y"):
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    expected = naive_rows(dataset, columns, columns[label], weight and columns[weight])
    assert stored_rows(dataset) == expected


def as_parquet(folder):
    pq.write_table(TABLE, folder / "t.parquet", row_group_size=100)
    return folder / "t.parquet"


def as_csv(folder):
    pcsv.write_csv(TABLE, folder / "t.csv")
    return folder / "t.csv"


def as_tsv_gz(folder):
    pcsv.write_csv(TABLE, folder / "t.tsv", pcsv.WriteOptions(delimiter="\t"))
    with gzip.open(folder / "t.tsv.gz", "wb") as out:
        out.write((folder / "t.tsv").read_bytes())
    return folder / "t.tsv.gz"


def as_arrow(folder):
    with pa.ipc.new_file(folder / "t.arrow", TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=700)
    return folder / "t.arrow"


def as_feather(folder):
    feather.write_feather(TABLE, folder / "t.feather", compression="lz4")
    return folder / "t.feather"


def as_dataset(folder):
    return pds.dataset(as_parquet(folder))


def as_filtered_stream(folder):
    return pds.dataset(as_parquet(folder)).scanner().to_reader()


class OnlyAStream:
    def __arrow_c_stream__(self, requested_schema=None):
        return TABLE.__arrow_c_stream__(requested_schema)


SOURCES = {
    "parquet": as_parquet,
    "csv": as_csv,
    "gzipped tsv": as_tsv_gz,
    "arrow": as_arrow,
    "feather": as_feather,
    "path as str": lambda folder: str(as_parquet(folder)),
    "glob": lambda folder: as_parquet(folder) and str(folder / "*.parquet"),
    "folder": lambda folder: as_parquet(folder).parent,
    "arrow table": lambda folder: TABLE,
    "chunked arrow table": lambda folder: pa.concat_tables([TABLE[:10], TABLE[10:]]),
    "pyarrow dataset": as_dataset,
    "record batch reader": as_filtered_stream,
    "foreign stream": lambda folder: OnlyAStream(),
    "pandas": lambda folder: TABLE.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": lambda folder: pl.from_arrow(TABLE),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_every_source_gives_the_same_rows(name, tmp_path):
    dataset = ingest(SOURCES[name](tmp_path), label="y", weight="w", verbose=0)
    check(dataset, weight="w")
    assert dataset.feature_names == ["x", "count", "color"]
    assert dataset.binning.features[2].categories[-1] in ("red", "green", "blue")


def test_a_pandas_frame_with_numpy_columns_gives_the_same_rows():
    frame = TABLE.to_pandas()
    frame["color"] = frame["color"].astype("category")
    dataset = ingest(frame, label="y", weight="w", verbose=0)
    check(dataset, weight="w")


def test_many_files_are_one_table(tmp_path):
    for k in range(7):
        pq.write_table(TABLE[k * 400 : (k + 1) * 400], tmp_path / f"{k}.parquet")
    pcsv.write_csv(TABLE[2800:], tmp_path / "rest.csv")
    dataset = ingest(
        [tmp_path / "*.parquet", tmp_path / "rest.csv"], label="y", weight="w", verbose=0
    )
    check(dataset, weight="w")


@pytest.mark.slow
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u1", ">f8", "f2", "?"])
def test_arrays_of_any_type_and_order(dtype, order, tmp_path):
    X = np.asarray(np.random.default_rng(0).integers(0, 9, (500, 4)), dtype, order)
    y = X[:, 0].astype(float) > 4 if dtype != "?" else X[:, 0]
    table = pa.table({f"f{j}": X[:, j].astype("f8") for j in range(4)} | {"y": y.astype("i1")})
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    check(ingest(X, label=y, verbose=0), table)
    check(ingest(tmp_path / "X.npy", label=y, verbose=0), table)
    check(ingest(tmp_path / "X.npy", label=str(tmp_path / "y.npy"), verbose=0), table)
    check(ingest(np.load(tmp_path / "X.npy", mmap_mode="r"), label=list(y), verbose=0), table)


def test_a_column_of_an_array_may_be_the_label_by_number():
    X = np.array([[1.0, 0], [2, 1], [3, 1]])
    dataset = ingest(X, label=-1, verbose=0)
    assert dataset.feature_names == ["f0"]
    assert dataset.n_positive == 2


def test_records_and_object_arrays(tmp_path):
    records = np.array([(1.5, 0), (2.5, 1), (0.5, 1)], [("x", "f4"), ("y", "i1")])
    np.save(tmp_path / "r.npy", records)
    for source in (records, tmp_path / "r.npy"):
        dataset = ingest(source, label="y", verbose=0)
        check(dataset, pa.table({"x": records["x"], "y": records["y"]}))
    mixed = np.array([[1.5, "a"], [None, "b"], [2.5, "a"]], dtype=object)
    dataset = ingest(mixed, label=[0, 1, 1], verbose=0)
    check(dataset, pa.table({"f0": [1.5, None, 2.5], "f1": ["a", "b", "a"], "y": [0, 1, 1]}))


@pytest.mark.parametrize("kind", ["csr_matrix", "csc_array", "coo_matrix"])
def test_sparse_matrices_have_zeros_where_nothing_is_stored(kind):
    X = np.random.default_rng(0).poisson(0.3, (300, 5)).astype(float)
    y = (X.sum(1) > 1).astype(int)
    table = pa.table({f"f{j}": X[:, j] for j in range(5)} | {"y": y})
    check(ingest(getattr(sp, kind)(X), label=y, verbose=0), table)


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("zero_based", [True, False])
def test_libsvm_files_bring_their_label(gz, zero_based, tmp_path):
    X = np.random.default_rng(0).poisson(0.5, (300, 6)) * 0.1
    X[0, 0] = X[0, 5] = 1  # the first and last feature are there
    y = np.where(X.sum(1) > 0.2, 1, -1)
    path = tmp_path / "t.libsvm"
    dump_svmlight_file(X, y, str(path), zero_based=zero_based)
    if gz:
        path = tmp_path / "t.svm.gz"
        path.write_bytes(gzip.compress((tmp_path / "t.libsvm").read_bytes()))
    first = 0 if zero_based else 1
    table = pa.table({f"f{j + first}": X[:, j] for j in range(6)} | {"y": (y > 0).astype("i1")})
    dataset = ingest(path, verbose=0)
    check(dataset, table)
    assert dataset.classes == (-1, 1)


@pytest.mark.parametrize(
    ("label", "classes"),
    [
        ([0, 1, 1], (0, 1)),
        ([-1, 1, 1], (-1, 1)),
        ([1.0, 2.0, 2.0], (1, 2)),
        ([False, True, True], (False, True)),
        (["no", "yes", "yes"], ("no", "yes")),
        (["b", "a", "b"], ("a", "b")),
    ],
)
def test_label_kinds(label, classes):
    dataset = ingest(np.arange(3.0)[:, None], label=label, verbose=0)
    assert dataset.classes == classes
    assert dataset.n_positive == sum(value == classes[1] for value in label)
    by_bin = {int(bin): int(y) for b in dataset for (bin,), y in zip(b.bins, b.label, strict=True)}
    assert by_bin == {i: int(value == classes[1]) for i, value in enumerate(label)}


def test_one_value_against_the_rest():
    X = np.arange(4.0)[:, None]
    dataset = ingest(X, label=["cat", "dog", "bird", "cat"], positive="cat", verbose=0)
    assert (dataset.classes, dataset.n_positive) == ((None, "cat"), 2)
    assert ingest(X, label=[1, 2, 3, 1], positive="1", verbose=0).n_positive == 2


def test_columns_are_chosen_or_left_out():
    assert ingest(TABLE, label="y", columns=["color", "x"], verbose=0).feature_names == [
        "color", "x",
    ]  # fmt: skip
    assert ingest(TABLE, label="y", exclude=["w", "x"], verbose=0).feature_names == [
        "count", "color",
    ]  # fmt: skip


def test_numbers_may_be_categories(tmp_path):
    for source in (TABLE, as_csv(tmp_path), as_parquet(tmp_path)):
        dataset = ingest(
            source, label="y", columns=["count"], categorical=["count"], category_statistics=False,
            verbose=0,
        )  # fmt: skip
        assert dataset.binning.features[0].kind == "category"
        check(dataset)


def test_types_that_change_late_in_a_csv_do_not_break_the_run(tmp_path):
    path = tmp_path / "late.csv"
    with open(path, "w") as file:
        file.write("x,z,y\n")
        file.writelines(f"{i % 7},,{i % 2}\n" for i in range(60_000))
        file.write("2.5,1.5,1\n-1e-3,nan,0\n")
    dataset = ingest(path, label="y", verbose=0)
    assert dataset.n_rows == 60_002
    assert dataset.binning.features[0].kind == "float64"


def test_whole_numbers_beyond_2_to_the_53_stay_apart_in_a_csv(tmp_path):
    path = tmp_path / "ids.csv"
    path.write_text("id,y\n" + "".join(f"{2**53 + i},{i % 2}\n" for i in range(9)))
    dataset = ingest(path, label="y", verbose=0)
    feature = dataset.binning.features[0]
    assert (feature.kind, feature.n_values) == ("int64", 9)


def test_csv_text_with_quotes_newlines_and_separators(tmp_path):
    path = tmp_path / "q.csv"
    path.write_bytes('\ufeff"a;1";y\r\n"x;\n""z""";0\r\nplain;1\r\n;1\r\n'.encode())
    dataset = ingest(path, label="y", verbose=0)
    assert dataset.binning.features[0].name == "a;1"
    assert set(dataset.binning.features[0].categories) == {'x;\n"z"', "plain"}
    assert dataset.n_rows == 3


def test_csv_dates_become_times(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("day,y\n2020-01-01,0\n2021-06-30 12:00:00,1\n,1\n")
    feature = ingest(path, label="y", verbose=0).binning.features[0]
    assert (feature.kind, feature.n_values) == ("time", 2)


def test_csv_without_a_header(tmp_path):
    path = tmp_path / "n.csv"
    path.write_text("1,2,0\n3,4,1\n")
    dataset = ingest(path, label="f2", header=False, verbose=0)
    assert (dataset.n_rows, dataset.feature_names) == (2, ["f0", "f1"])


def test_files_may_type_a_column_differently(tmp_path):
    pq.write_table(pa.table({"x": [1, 2], "y": [0, 1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"y": [0.0, 1.0], "x": [1.5, 2.5]}), tmp_path / "b.parquet")
    dataset = ingest(tmp_path, label="y", verbose=0)
    feature = dataset.binning.features[0]
    assert (feature.kind, feature.thresholds.tolist()) == ("float64", [1.25, 1.75, 2.25])


def test_a_format_may_be_named_where_the_suffix_does_not_tell(tmp_path):
    pcsv.write_csv(TABLE, tmp_path / "data.txt")
    dataset = ingest(tmp_path / "data.txt", label="y", weight="w", format="csv", verbose=0)
    check(dataset, weight="w")


def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_order(tmp_path):
    source = as_parquet(tmp_path)
    for name, seed, jobs in (("a", 1, 1), ("b", 1, 3), ("c", 2, 1)):
        ingest(source, label="y", path=tmp_path / name, random_state=seed, n_jobs=jobs, verbose=0)
    a, b, c = ([block.bins.tolist() for block in Dataset(tmp_path / n).blocks()] for n in "abc")
    assert a == b
    assert a != c
    files = [next((tmp_path / n).glob("rows-*.bin")).read_bytes() for n in "ab"]
    assert files[0] == files[1]


@pytest.mark.slow
@settings(max_examples=40)
@given(st.integers(1, 200), st.integers(1, 4), st.integers(0, 10_000), st.booleans(), st.booleans())
def test_any_small_table_comes_back_row_for_row(n, d, seed, weighted, wide):
    rng = np.random.default_rng(seed)
    X = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 5e-324, 1e-40], (n + 1, d))
    X += rng.integers(0, 3, (n + 1, d))
    X[0] = 0  # a column without any value is refused
    X = X.astype("f8" if wide else "f4")
    y = np.append(rng.integers(0, 2, n), [0])
    y[0] = 1
    w = rng.random(n + 1).astype("f4") if weighted else None
    dataset = ingest(X, label=y, weight=w, random_state=seed, verbose=0)
    columns = {f"f{j}": X[:, j].tolist() for j in range(d)}
    expected = naive_rows(dataset, columns, y.tolist(), None if w is None else w.tolist())
    assert stored_rows(dataset) == expected


def test_bins_come_from_the_whole_file_not_from_its_head(tmp_path):
    # Sorted: the head knows nothing of the rest. With k row groups, with one, and as CSV.
    n = 300_000
    table = pa.table({"x": np.arange(n, dtype="f4"), "y": (np.arange(n) > n // 2).astype("i1")})
    pq.write_table(table, tmp_path / "groups.parquet", row_group_size=10_000)
    pq.write_table(table, tmp_path / "one.parquet", row_group_size=n)
    pcsv.write_csv(table, tmp_path / "t.csv")
    for name in ("groups.parquet", "one.parquet", "t.csv"):
        feature = ingest(tmp_path / name, label="y", verbose=0).binning.features[0]
        filled = np.bincount(np.searchsorted(feature.thresholds, np.arange(n)), minlength=255)
        # A quantile of 200,000 random rows is off by about sqrt(n q (1-q) / 200,000) rows, which
        # is at most 0.0011 n against bins of n / 255 = 0.0039 n.
        assert filled.max() < 2.2 * n / 255, name
        assert feature.n_values == 255, name


def test_a_sorted_file_gives_blocks_that_are_alike(tmp_path, monkeypatch):

    set_constants(monkeypatch, bucket_bytes=1_500, min_segment_bytes=100, min_memory=30_000)
    n = 60_000
    table = pa.table({"x": np.arange(n) // (n // 10), "y": np.arange(n) >= n * 9 // 10})
    pq.write_table(table, tmp_path / "sorted.parquet")
    dataset = ingest(tmp_path / "sorted.parquet", label="y", verbose=0)
    for label, values in ((0, 9), (1, 1)):
        blocks = [dataset.read_block(i) for i in dataset.blocks_of(label)]
        assert len(blocks) >= 5
        assert all((b.label == label).all() for b in blocks)
        counts = np.array([np.bincount(b.bins[:, 0], minlength=10) for b in blocks])
        counts = counts[:, counts.sum(0) > 0]
        assert counts.shape[1] == values
        # Chi-square of each value over the blocks: 99.99 % below 2.1 for each degree of freedom.
        expected = counts.sum(1, keepdims=True) / values
        chi2 = ((counts - expected) ** 2 / expected).sum()
        assert chi2 <= 2.1 * len(blocks) * (values - 1)


def test_everything_public_is_there():
    assert all(hasattr(sparrowboost, name) for name in sparrowboost.__all__)
    assert set(sparrowboost.__all__) <= set(dir(sparrowboost))
    with pytest.raises(AttributeError):
        _ = sparrowboost.no_such_thing


def test_an_object_that_holds_no_rows_is_told_what_would():
    with pytest.raises(DataError, match="pass a path"):
        ingest(object(), label="y")


@pytest.mark.parametrize("state", [np.int64(3), np.random.default_rng(3), None, 2**64 - 1])
def test_random_states_of_every_kind(state):
    dataset = ingest(TABLE, label="y", weight="w", random_state=state, n_jobs=-1, verbose=0)
    check(dataset, weight="w")


def test_names_may_be_given_one_by_one_or_in_any_sequence():
    for columns in ("x", ("x",), pd.Index(["x"]), ["x", "x"]):
        dataset = ingest(TABLE, label="y", columns=columns, exclude=None, verbose=0)
        assert dataset.feature_names == ["x"]


def test_labels_may_be_a_column_of_a_matrix_or_a_series():
    y = TABLE.column("y").to_numpy()
    for label in (y[:, None], pd.Series(y, index=range(9, 9 + len(y))), pl.Series(y), y.tolist()):
        check(ingest(TABLE.drop_columns(["w"]), label=label, exclude="y", verbose=0))


@pytest.mark.slow
def test_how_columns_are_grouped_in_memory_does_not_change_their_bins(tmp_path, monkeypatch):
    from sparrowboost.store.plan import IngestPlan

    rng = np.random.default_rng(0)
    table = pa.table({f"x{j}": rng.normal(size=250_000) for j in range(4)})
    table = table.append_column("y", pa.array(rng.integers(0, 2, 250_000)))
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=10_000)
    pcsv.write_csv(table[:230_000], tmp_path / "t.csv")
    pcsv.write_csv(table[:5_000], tmp_path / "few.csv")  # all rows are looked at, by weight
    weighted = {"label": np.arange(5_000) % 2, "weight": "y"}
    for name, how in (
        ("t.parquet", {"label": "y"}),
        ("t.csv", {"label": "y"}),
        ("few.csv", weighted),
    ):
        together = ingest(tmp_path / name, verbose=0, **how)
        with monkeypatch.context() as patch:
            patch.setattr(
                IngestPlan,
                "feature_groups",
                lambda plan, table, n, **_: ([name] for name in table.features),
            )
            alone = ingest(tmp_path / name, verbose=0, **how)
        assert together.binning.to_json() == alone.binning.to_json()


def bin_loads(feature, values):
    counts = np.bincount(feature.bin(pa.array(values)), minlength=feature.n_values)
    return counts[: feature.n_values] / (len(values) / feature.n_values)


def test_an_order_within_row_groups_does_not_mislead(tmp_path):
    # Every row group goes from 0 to 23 like the hours of a day: its head is midnight only.
    hour = np.tile(np.arange(20_000) * 24 // 20_000, 20).astype("f4")
    size = np.tile(np.sort(np.random.default_rng(0).normal(size=20_000)), 20)
    table = pa.table({"hour": hour, "size": size, "y": np.arange(400_000) % 2})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=20_000)
    dataset = ingest(tmp_path / "t.parquet", label="y", verbose=0)
    assert dataset.binning.features[0].n_values == 24
    assert bin_loads(dataset.binning.features[1], size).max() < 1.5


def test_categories_that_come_one_after_the_other_are_all_found(tmp_path):
    n = 400_000
    words = np.array([f"c{k:03d}" for k in range(200)])[np.arange(n) * 200 // n]
    table = pa.table({"word": words, "y": np.arange(n) % 2})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=20_000)
    feature = ingest(tmp_path / "t.parquet", label="y", verbose=0).binning.features[0]
    assert len(feature.categories) == 200


def test_row_groups_count_by_their_size(tmp_path):
    rng = np.random.default_rng(0)
    parts = [rng.normal(0, 1, 100_000) for _ in range(4)] + [
        rng.normal(0.5, 1, 500) for _ in range(100)
    ]
    schema = pa.schema([("x", pa.float64()), ("y", pa.int64())])
    with pq.ParquetWriter(tmp_path / "t.parquet", schema) as writer:
        for x in parts:
            writer.write_table(pa.table({"x": x, "y": np.arange(len(x)) % 2}, schema))
    feature = ingest(tmp_path / "t.parquet", label="y", verbose=0).binning.features[0]
    loads = bin_loads(feature, np.concatenate(parts))
    # A bin of 200,000 / 255 = 784 sampled rows is off by 1 / sqrt(784) = 3.6 %, its ends twice.
    assert 0.8 < loads.min() < loads.max() < 1.2


# -- columns of which nothing can be learned ------------------------------------------------------


def without_values(n=300):
    """A table that has three columns without values, and one that never changes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=n)
    return pa.table(
        {
            "untyped": pa.nulls(n),
            "x": x,
            "float": pa.nulls(n, pa.float64()),
            "word": pa.nulls(n, pa.string()),
            "constant": np.ones(n),
            "y": (x + rng.normal(size=n) > 0).astype(int),
        }
    )


@pytest.mark.parametrize("form", ["table", "csv", "parquet"])
def test_columns_without_values_are_kept_and_told(form, tmp_path, caplog):
    data = table = without_values()
    if form == "csv":
        pcsv.write_csv(table, tmp_path / "t.csv")
        data = tmp_path / "t.csv"
    elif form == "parquet":
        pq.write_table(table, tmp_path / "t.parquet")
        data = tmp_path / "t.parquet"
    dataset = ingest(data, label="y", verbose=0)
    assert caplog.messages == ["no values, all missing: untyped, float, word"]
    assert caplog.records[0].levelname == "WARNING"
    assert dataset.feature_names == ["untyped", "x", "float", "word", "constant"]
    model = sparrowboost.train(dataset, n_estimators=20, verbose=0)
    assert {j for tree in model.trees for j in tree.feature.tolist()} == {1}
    # Whatever they hold when it is used changes nothing.
    n = table.num_rows
    words, times = pa.array(["a"] * n), pa.array([0] * n, pa.timestamp("s"))
    others = {"float": np.arange(n), "word": words, "constant": -np.ones(n)}
    expected = model.predict_proba(table)
    for values in (np.arange(n), words, words.dictionary_encode(), pa.array([True] * n), times):
        other = pa.table({"untyped": values, "x": table["x"], **others})
        np.testing.assert_array_equal(model.predict_proba(other), expected)


def test_a_long_list_of_columns_without_values_is_cut(caplog):
    table = pa.table({"x": [1.0, 2.0], "y": [0, 1], **{f"c{j}": pa.nulls(2) for j in range(10)}})
    ingest(table, label="y", verbose=0)
    names = ", ".join(f"c{j}" for j in range(8))
    assert caplog.messages == [f"no values, all missing: {names} and 2 more"]


def test_a_table_of_which_nothing_can_be_learned_gives_the_mean():
    table = pa.table({"a": pa.nulls(100), "b": np.ones(100), "y": np.arange(100) < 30})
    model = sparrowboost.train(ingest(table, label="y", verbose=0), verbose=0)
    assert model.n_trees == 0
    np.testing.assert_allclose(model.predict_proba(table)[:, 1], 0.3)


def test_an_ingest_that_ends_while_another_waits_for_the_folder_is_not_replaced(
    tmp_path, monkeypatch
):
    # The other one ends between the look at the folder and the lock.
    check, done = StoreWriter._check_folder, []

    def then_end(self, overwrite):
        check(self, overwrite)
        if not done:
            done.append(1)
            ingest(np.arange(20.0)[:, None], label=np.arange(20) > 9, path=self.path, verbose=0)

    monkeypatch.setattr(StoreWriter, "_check_folder", then_end)
    X = np.arange(30.0)[:, None]
    with pytest.raises(StoreError, match="already has a store"):
        ingest(X, label=X[:, 0] > 9, path=tmp_path / "store", verbose=0)
    assert sorted(name[:5] for name in os.listdir(tmp_path / "store")) == ["manif", "rows-"]
    assert Dataset(tmp_path / "store").n_rows == 20
