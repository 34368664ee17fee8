from __future__ import annotations

import logging

import numpy as np
import pytest
import scipy.sparse as sp

from constants import set_constants
from sparrowboost import Dataset, ingest
from sparrowboost.readers.sparse import NumberedColumns, Survey
from sparrowboost.runtime.disk import check_room
from sparrowboost.runtime.errors import DataError, DiskFullError, StoreError
from sparrowboost.store.packing import choose_words
from sparse_tables import as_narrow, as_wide, words, write_libsvm


@pytest.fixture
def wide(monkeypatch):
    as_wide(monkeypatch)
    return monkeypatch


def all_bins(dataset):
    """The bins of all features, and labels, of all rows in an order of their own."""
    parts = []
    for block in dataset.blocks():
        bins = block.bins
        if dataset.packing is not None:
            bins = dataset.packing.unpack(bins, np.arange(dataset.n_features))
        parts.append(np.column_stack((block.label, bins)))
    rows = np.concatenate(parts)
    return rows[np.lexsort(rows.T)]


def assert_same_rows(one, two):
    assert one.feature_names == two.feature_names
    np.testing.assert_array_equal(all_bins(one), all_bins(two))


def plain(patch, data, like, **options):
    with patch.context() as narrow:
        as_narrow(narrow)
        made = ingest(data, bins_of=like, verbose=0, **options)
    assert made.packing is None
    return made


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "doubled", "float32", "bool", "int"])
def test_a_matrix_is_packed_with_the_bins_of_its_dense_twin(wide, kind):
    matrix, score = words(1_000, 200)
    if kind == "doubled":  # entries in any order, some of which add up
        order = np.random.default_rng(0).permutation(2 * matrix.nnz)
        coo = matrix.tocoo()
        column, row = np.tile(coo.col, 2)[order], np.tile(coo.row, 2)[order]
        value = np.tile(coo.data / 2, 2)[order]
        start = np.append(0, np.cumsum(np.bincount(row, minlength=1_000)))
        by_row = np.argsort(row, kind="stable")
        matrix = sp.csr_matrix((value[by_row], column[by_row], start), matrix.shape)
        assert not matrix.has_canonical_format
    elif kind in ("csc", "coo"):
        matrix = matrix.asformat(kind)
    elif kind != "csr":
        matrix = matrix.astype(kind)
    packed = ingest(matrix, label=score > 0, verbose=0)
    assert packed.packing is not None
    dense = matrix.toarray().astype(float)
    assert_same_rows(packed, plain(wide, dense, packed, label=score > 0))


@pytest.mark.parametrize("first", [0, 1])
def test_libsvm_files_are_packed_with_the_bins_of_their_dense_twin(wide, tmp_path, first):
    matrix, score = words(1_000, 200)
    label = (score > 0).astype(int)
    a = write_libsvm(tmp_path / "a.svm", matrix[:600], label[:600], first)
    b = write_libsvm(tmp_path / "b.svm", matrix[600:], label[600:], first)
    packed = ingest([a, b], verbose=0)
    assert packed.packing is not None and packed.n_rows == 1_000
    assert_same_rows(packed, plain(wide, [a, b], packed))
    names = {name for j, name in enumerate(packed.feature_names)}
    of = ingest(matrix, label=label, verbose=0)
    assert names == {f"f{int(name[1:]) + first}" for name in of.feature_names}


def test_missing_values_have_bins(wide, tmp_path):
    matrix, score = words(1_000, 200)
    matrix.data[::7] = np.nan
    packed = ingest(matrix, label=score > 0, verbose=0)
    assert packed.packing.missing
    assert_same_rows(packed, plain(wide, matrix.toarray(), packed, label=score > 0))
    path = write_libsvm(tmp_path / "a.svm", matrix, (score > 0).astype(int))
    assert_same_rows(ingest(path, verbose=0), packed)


def test_long_rows_have_tails_which_are_kept(wide, tmp_path):
    set_constants(wide, tail_share=10_000)
    matrix, score = words(2_000, 400, 10)
    packed = ingest(matrix, label=score > 0, path=tmp_path / "store", verbose=0)
    lengths = np.diff(matrix.indptr)
    assert packed.packing.shape.tailed
    assert packed.packing.shape.words < lengths.max() / 2
    assert_same_rows(packed, plain(wide, matrix.toarray(), packed, label=score > 0))
    again = Dataset(tmp_path / "store", verify=True)
    assert_same_rows(again, packed)
    tails = next((tmp_path / "store").glob("tails-*.bin"))
    data = bytearray(tails.read_bytes())
    data[-1] ^= 1
    tails.write_bytes(data)
    with pytest.raises(StoreError, match="damaged"):
        Dataset(tmp_path / "store")
    tails.unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        Dataset(tmp_path / "store")


def test_a_store_that_is_replaced_leaves_no_tails(wide, tmp_path):
    set_constants(wide, tail_share=10_000)
    matrix, score = words(1_000, 200)
    for _ in range(2):
        ingest(matrix, label=score > 0, path=tmp_path / "store", overwrite=True, verbose=0)
    assert len(list((tmp_path / "store").iterdir())) == 3
    ingest(matrix.toarray(), label=score > 0, path=tmp_path / "store", overwrite=True, verbose=0)
    assert len(list((tmp_path / "store").iterdir())) == 2


def test_columns_that_are_hardly_ever_set_are_no_features(wide, caplog):
    matrix, score = words(1_000, 400)
    entries = np.bincount(matrix.indices, minlength=400)
    with caplog.at_level(logging.INFO):
        packed = ingest(matrix, label=score > 0, verbose=1)
    assert packed.feature_names == [f"f{j}" for j in np.flatnonzero(entries >= 10)]
    fullest = packed.feature_names[packed.packing.order[0]]
    assert fullest == f"f{entries.argmax()}" and packed.packing.first.min() == 1
    assert f"no features: {np.count_nonzero((entries > 0) & (entries < 10))}" in caplog.text


def test_bins_are_few_where_the_limit_is_small(wide):
    matrix = sp.random(4_000, 60, 0.1, format="csr", random_state=0)
    label = np.arange(4_000) % 2
    many = ingest(matrix, label=label, memory_limit="2GB", verbose=0)
    set_constants(wide, sparse_evidence_share=10**6)
    few = ingest(matrix, label=label, memory_limit="2GB", verbose=0)
    assert few.packing.n_codes <= 160 < many.packing.n_codes
    assert all(len(feature.thresholds) >= 1 for feature in few.binning.features)


def test_chosen_columns_are_the_features(wide):
    matrix, score = words(2_000, 400)
    some = [f"f{j}" for j in range(0, 400, 2)]
    packed = ingest(matrix, label=score > 0, columns=some, verbose=0)
    assert packed.packing is not None and set(packed.feature_names) <= set(some)
    others = ingest(matrix, label=score > 0, exclude=some, verbose=0)
    assert others.packing is not None and not set(others.feature_names) & set(some)


def test_tables_that_are_not_sparse_are_stored_as_others_are(wide):
    matrix, score = words(500, 60, 20)
    assert ingest(matrix, label=score > 0, verbose=0).packing is None
    matrix, score = words(500, 200)
    assert ingest(matrix, label=score > 0, categorical=["f3"], verbose=0).packing is None


def test_a_table_of_zeros_is_refused(wide):
    with pytest.raises(DataError, match="all values of all columns are zero"):
        ingest(sp.csr_matrix((100, 1_000)), label=np.arange(100) < 50, verbose=0)


def test_a_full_disk_is_told_before_bins_are_found(wide, monkeypatch, caplog):
    matrix, score = words(1_000, 200)
    asked = []

    def room(path, needed):
        asked.append(needed)
        check_room(path, 10**18)

    monkeypatch.setattr("sparrowboost.store.ingest.check_room", room)
    with caplog.at_level(logging.INFO), pytest.raises(DiskFullError):
        ingest(matrix, label=score > 0, verbose=1)
    assert asked[0] > 1_000 * 20
    assert "finding bins" not in caplog.text


def test_labels_that_a_sample_lacks_are_read_again(wide, tmp_path):
    set_constants(wide, label_sample_rows=10)
    matrix, score = words(3_000, 200)
    label = np.where(np.arange(3_000) == 2_990, 2, score > 0)
    path = write_libsvm(tmp_path / "a.svm", matrix, label)
    packed = ingest(path, task="classification", verbose=0)
    assert packed.n_classes == 3 and packed.n_rows == 3_000


def test_rows_are_read_while_nothing_waits_for_them(wide):
    matrix, score = words(1_000, 200)
    later = ingest(matrix, label=score > 0, wait=False, verbose=0)
    assert later.packing is not None
    assert_same_rows(later, ingest(matrix, label=score > 0, verbose=0))


def test_rows_are_as_long_as_costs_least():
    even = np.bincount([100] * 1_000)
    assert choose_words(even, 1_000, 10**6)[:2] == (100, False)
    skewed = np.bincount([10] * 1_000 + [1_000])
    shape = choose_words(skewed, 1_000, 10**6)
    assert shape[:2] == (12, True) and shape.tail_bytes == 2 * 990 + 16
    assert choose_words(skewed, 1_000, 100)[:2] == (1_000, False)  # no memory for tails
    assert choose_words(even, 200_000, 0).words == 103  # steps over long gaps


def test_a_survey_counts_columns_and_lengths():
    survey = Survey()
    survey.add(np.array([0, 2, 2]), np.array([0, 5], np.int32))
    survey.add(np.array([0, 3]), np.array([5, 6, 90], np.int32))
    assert survey.n_rows == 3 and survey.n_values == 5
    assert np.flatnonzero(survey.columns).tolist() == [0, 5, 6, 90]
    assert survey.columns[5] == 2 and survey.lengths[:4].tolist() == [1, 0, 1, 1]


def test_names_of_numbered_columns_are_those_of_a_list():
    columns = NumberedColumns(1, 12, ("label",))
    names = ["label", *(f"f{j}" for j in range(1, 13))]
    assert list(columns) == names == [columns[i] for i in range(len(names))]
    assert columns[-1] == "f12" and columns[2:4] == names[2:4]
    assert all(name in columns for name in names)
    assert not any(name in columns for name in ("f0", "f13", "f01", "f", "g1", 1))
    with pytest.raises(IndexError):
        columns[13]
