"""Columns in the names of folders: read by path as pyarrow's hive partitioning reads them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import pytest

from helpers import check_ingested, small_table
from sparrowboost import DataError, SparrowClassifier, cv, evaluate, ingest, train
from sparrowboost.cli import main
from sparrowboost.readers.base import DiscardSample
from sparrowboost.readers.formats import OpenOptions, open_source
from sparrowboost.readers.hive import keys_of
from sparrowboost.readers.inmemory import from_table
from sparrowboost.readers.mapped import MappedSource

TABLE = small_table(1_000)
COLUMNS = {
    "year": pa.array([2023 + i % 2 for i in range(1_000)], pa.int32()),
    "city": pa.array([("New York", "a=b/ü", None)[i % 3] for i in range(1_000)]),
}
FULL = pa.table(dict(zip(TABLE.column_names, TABLE.columns, strict=True)) | COLUMNS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("hive") / "t"
    schema = pa.schema([FULL.schema.field("year"), FULL.schema.field("city")])
    pds.write_dataset(
        FULL, path, format="parquet", partitioning=pds.partitioning(schema, flavor="hive")
    )
    return path


def check(data, table=FULL, **options):
    return check_ingested(data, table, **options)


def test_folders_by_path_have_the_columns_and_types_that_pyarrow_finds(folder):
    theirs = pds.dataset(folder, partitioning="hive")
    dataset = check(folder)
    assert dataset.feature_names == [name for name in theirs.schema.names if name != "y"]
    kinds = {feature.name: feature.kind for feature in dataset.binning.features}
    assert (kinds["year"], kinds["city"]) == ("int64", "category")
    assert dataset.binning.features[5].categories == ("New York", "a=b/ü")
    check(f"{folder}/*/*/*.parquet")
    check(f"{folder}/**/*.parquet")
    check(theirs)


@pytest.mark.parametrize("text", ["07", "-3", "3000000000", "1.5", "2024-01-01", "", "x y"])
def test_types_of_such_columns_are_those_that_pyarrow_infers(tmp_path, text):
    for value in (text, "12"):
        (tmp_path / f"k={value}").mkdir(exist_ok=True)
        pq.write_table(TABLE[:50], tmp_path / f"k={value}" / "p.parquet")
    theirs = pds.dataset(tmp_path, partitioning="hive")
    source = open_source(tmp_path, OpenOptions(scratch=tmp_path, rng=np.random.default_rng(0)))
    ours = pa.concat_tables(
        [pa.Table.from_batches([batch]) for batch in source.blocks(["k"], 1_000)],
        promote_options="permissive",
    )
    wanted = theirs.to_table(columns=["k"])["k"].to_pylist()
    assert sorted(ours["k"].to_pylist(), key=str) == sorted(wanted, key=str)
    assert source.kind("k") == ("int64" if theirs.schema.field("k").type == "int32" else "category")


def test_a_folder_that_the_caller_names_is_a_choice_of_rows(folder):
    some = FULL.filter(pds.field("year") == 2023).drop_columns(["year"])
    assert "year" not in check(folder / "year=2023", some).feature_names
    assert "year" not in check(f"{folder}/year=2023/*/*", some).feature_names
    # A shell has put every folder in the place of a pattern: they are not the same in all files.
    check([str(path) for path in sorted(folder.glob("*/*/*.parquet"))])


def test_a_model_finds_such_a_column_in_the_name_of_a_single_folder(folder, tmp_path):
    model = train(ingest(folder, label="y", verbose=0), n_estimators=5, verbose=0)
    for year in (2023, 2024):
        some = FULL.filter(pds.field("year") == year)
        p = model.predict_proba(folder / f"year={year}")
        theirs = pds.dataset(folder, partitioning="hive").filter(pds.field("year") == year)
        np.testing.assert_array_equal(np.sort(p[:, 1]), np.sort(model.predict_proba(some)[:, 1]))
        assert evaluate(model, folder / f"year={year}", verbose=0).n_rows == theirs.count_rows()
    again = ingest(folder / "year=2023", label="y", bins_of=model, verbose=0)
    assert again.feature_names == model.feature_names


def test_commands_estimators_and_cross_validation_read_such_folders(folder, tmp_path, capsys):
    few = ["--n-estimators", "3", "--max-leaves", "4"]
    call = ["train", str(folder), "--label", "y", *few, "-o", str(tmp_path / "m.json"), "-q"]
    assert main([*call, "--valid", str(folder)]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "m.json"), str(folder), "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["n_rows"] == 1_000
    out = tmp_path / "p.parquet"
    call = ["predict", str(tmp_path / "m.json"), str(folder / "year=2023"), "--keep", "year,w"]
    assert main([*call, "-o", str(out), "-q"]) == 0
    assert set(pq.read_table(out)["year"].to_pylist()) == {2023}
    assert cv(folder, label="y", n_estimators=2, n_folds=2, verbose=0).best_n_trees > 0
    fitted = SparrowClassifier(n_estimators=2, verbose=0).fit(str(folder), "y")
    assert "year" in fitted.feature_names_in_


def test_csv_files_in_such_folders_keep_their_own_column_of_that_name(tmp_path):
    for k in (1, 2):
        (tmp_path / f"k={k}").mkdir()
        part = TABLE[(k - 1) * 500 : k * 500]
        pcsv.write_csv(part.append_column("k", pa.array([7 + k] * 500)), tmp_path / f"k={k}/a.csv")
    check(tmp_path, TABLE.append_column("k", pa.array([8] * 500 + [9] * 500)))


def test_files_without_such_a_column_among_others_are_named(folder, tmp_path):
    pq.write_table(TABLE, tmp_path / "plain.parquet")
    with pytest.raises(DataError, match=r"have different columns: only .* has 'city', 'year'"):
        ingest([folder, tmp_path / "plain.parquet"], label="y", verbose=0)


def test_such_a_column_can_be_the_label_a_weight_or_a_category(folder):
    dataset = ingest(folder, label="year", positive=2024, weight="w", verbose=0)
    assert dataset.n_positive == 500
    dataset = check(folder, categorical=["year"])
    assert dataset.binning.features[4].categories == ("2023", "2024")


def test_keys_are_unquoted_and_may_be_missing():
    path = Path("t/a=1/b=__HIVE_DEFAULT_PARTITION__/c=x%2Fy/no/d.parquet")
    assert keys_of(path) == {"a": "1", "b": None, "c": "x/y"}


class Drifting:
    """A source that takes back the columns it sampled, and samples them again."""

    def __init__(self, source):
        self._source = source

    def __getattr__(self, name):
        return getattr(self._source, name)

    def sample(self, columns, rows, rng):
        batches = list(self._source.sample(columns, rows, rng))
        for names in (columns[:1], columns[1:]):
            if names:
                yield from (batch.select(names) for batch in batches)
        yield DiscardSample(tuple(columns[:1]))
        yield from (batch.select(columns[:1]) for batch in batches)


def test_a_constant_is_sampled_as_often_as_the_first_column():
    source = Drifting(from_table(pa.table({"a": [1, 2, 3], "b": [4, 5, 6]})))
    mapped = MappedSource(source, {"new": "b", "k": pa.scalar("v"), "a": "a"})
    for columns in (["new", "k", "a"], ["k", "a"], ["k"]):
        kept = {name: 0 for name in columns}
        for batch in mapped.sample(columns, 10, np.random.default_rng(0)):
            if isinstance(batch, DiscardSample):
                kept |= dict.fromkeys(batch.columns, 0)
                continue
            for name in batch.schema.names:
                kept[name] += batch.num_rows
        assert kept == dict.fromkeys(columns, 3)
