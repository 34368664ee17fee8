from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrowboost import DataError
from sparrowboost.readers.classes import ClassReader, KnownClasses, group_classes, name_classes
from sparrowboost.readers.formats import RowError
from sparrowboost.readers.known_labels import StoredClasses
from sparrowboost.readers.labels import LabelCoder, OtherClassesError, different_labels

texts = st.text("abc", max_size=2)
labels = st.lists(texts, max_size=40) | st.lists(st.integers(-3, 300), max_size=40)


def reader_of(sample, *blocks) -> ClassReader:
    reader = ClassReader("y")
    reader.set_bands(Counter(sample))
    for block in blocks:
        reader.read(pa.array(block))
    return reader


# -- the labels of a block ------------------------------------------------------------------------


@given(labels, st.integers(0, 5))
def test_each_row_has_its_label(values, start):
    array = pa.array(values, pa.string() if values and isinstance(values[0], str) else pa.int64())
    for form in (array, array.dictionary_encode(), array.dictionary_encode().slice(start)):
        found, which = different_labels("y", form)
        assert [found[i] for i in which] == form.to_pylist()
        assert len(set(found)) == len(found) == len(set(form.to_pylist()))


def test_only_the_entries_of_a_dictionary_that_a_block_has_are_its_labels():
    dictionary = pa.array([f"c{k}" for k in range(100_000)])
    array = pa.DictionaryArray.from_arrays(pa.array([70_000, 3, 3], pa.int32()), dictionary)
    assert different_labels("y", array)[0] == ["c3", "c70000"]


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["a", None, "b", None]),
        pa.array([1.0, float("nan"), 2.0, 3.0]),
        pa.array([1, None, 2]),
        pa.array(["a", None]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), pa.array([None, "a"])),
        pa.array([True, None]),
    ],
)
def test_a_missing_label_is_told_with_its_row(array):
    for read in (reader_of("abc").read, KnownClasses("y", ("a", "b", 1, True)).read):
        with pytest.raises(RowError, match="label 'y' is missing; remove rows") as error:
            read(array)
        assert error.value.row == 1


def test_rows_without_any_label_are_told():
    with pytest.raises(RowError, match="missing") as error:
        different_labels("y", pa.nulls(3))
    assert error.value.row == 0


def test_lists_are_no_labels():
    for reader in (ClassReader("y"), KnownClasses("y", ("a", "b", "c"))):
        with pytest.raises(DataError, match=r"type list.*one value per row"):
            reader.check_type(pa.list_(pa.int8()))
        with pytest.raises(DataError, match=r"type list.*one value per row"):
            reader.read(pa.array([[1], [2]]))


# -- two classes, or more -------------------------------------------------------------------------


def test_numbers_of_a_third_value_are_asked_for():
    with pytest.raises(DataError, match=r"more than 2 values \(0, 1, 2, \.\.\.\)") as error:
        LabelCoder("y").read(pa.array([0, 1, 2]))
    assert not isinstance(error.value, OtherClassesError)
    for option in ("task='classification' (--task classification)", "task='regression'",
                   "positive="):  # fmt: skip
        assert option in str(error.value)


@pytest.mark.parametrize(
    ("array", "asked"),
    [
        (pa.array(["a", "b", "c"]), False),
        (pa.array([1, 2, 3]).dictionary_encode(), False),
        (pa.array([dt.date(2024, 1, day) for day in (1, 2, 3)]), False),
        (pa.array([1, 2, 3]), True),
        (pa.array([0.5, 1.5, 2.5]), True),
        (pa.array([Decimal("0.5"), Decimal("1.5"), Decimal("2.5")]), True),
    ],
)
def test_other_labels_and_numbers_that_are_classes_are_more_classes(array, asked):
    with pytest.raises(OtherClassesError, match=r"third value, .* sample .* Ingest all rows first"):
        LabelCoder("y", asked=asked).read(array)


def test_decimals_are_numbers():
    with pytest.raises(DataError, match="task='regression'"):
        LabelCoder("y").read(pa.array([Decimal("0.5"), Decimal("1.5"), Decimal("2.5")]))


# -- more than two classes ------------------------------------------------------------------------


@given(sample=st.lists(texts, max_size=30), values=st.lists(texts, min_size=1, max_size=60))
def test_codes_lead_back_to_the_labels(sample, values):
    reader = reader_of(sample)
    blocks = [values[i : i + 7] for i in range(0, len(values), 7)]
    read = [reader.read(pa.array(block)) for block in blocks]
    bands = np.concatenate([band for band, _ in read])
    codes = np.concatenate([code for _, code in read])
    assert (bands.dtype, codes.dtype) == (np.uint8, np.float32)
    counts = Counter(values)
    assert reader.trainable == (len(counts) > 1)
    if len(counts) < 3:
        with pytest.raises(DataError, match=r"only two values|in every row"):
            reader.order()
        return
    assert reader.order().tolist() == list(range(reader.n_bands))
    assert reader.classes == sorted(counts)
    assert reader.facts["class_rows"] == [counts[value] for value in reader.classes]
    which = np.array(reader.facts["class_of"])[codes.astype(int)]
    assert [reader.classes[i] for i in which] == values
    # All rows of a class are in its band.
    np.testing.assert_array_equal(np.array(reader.facts["class_band"])[which], bands)


def test_classes_of_the_sample_have_codes_in_their_order():
    reader = reader_of([10, 2, 2, 33], [33, 2, 10])
    reader.order()
    assert (reader.classes, reader.facts["class_of"]) == ([2, 10, 33], [0, 1, 2])
    reader = reader_of([10, 2, 2, 33], [33, 2, 10, 5])
    reader.order()
    assert (reader.classes, reader.facts["class_of"]) == ([2, 5, 10, 33], [0, 2, 3, 1])


def test_labels_that_are_only_in_the_sample_are_no_classes():
    reader = reader_of("abcx", list("abc") * 2)
    reader.order()
    assert (reader.classes, reader.facts["class_rows"]) == (["a", "b", "c"], [2, 2, 2])
    reader = reader_of("abx", list("ab") * 2)
    with pytest.raises(OtherClassesError) as error:
        reader.order()
    assert not error.value.many
    with pytest.raises(DataError, match="label 'y' is 'a' in every row; training needs two"):
        reader_of("abx", ["a", "a"]).order()


def test_labels_that_cannot_be_compared_are_in_the_order_of_their_texts():
    reader = reader_of([], [10, 9], ["a", "1"], [True, False])
    reader.order()
    assert reader.classes == ["1", 10, 9, False, True, "a"]


def test_whole_floats_are_whole_numbers():
    reader = reader_of([], [1.0, 2.0], [1, 3], [-0.0, 2.5])
    reader.order()
    assert reader.classes == [0, 1, 2, 2.5, 3]
    assert [type(label) for label in reader.classes] == [int, int, int, float, int]


def test_255_classes_are_told_apart_and_more_are_refused():
    reader = reader_of(range(255), range(255))
    assert reader.read(pa.array([254]))[1].tolist() == [254]
    with pytest.raises(DataError, match=r"label 'y' has more than 255 values.*Join rare") as error:
        reader.read(pa.array(["256"]))
    assert "regression" not in str(error.value)
    with pytest.raises(DataError, match="numbers to predict, pass task='regression'"):
        reader.read(pa.array([255]))
    reader.order()
    assert len(reader.classes) == 255


def test_of_many_different_labels_few_are_collected():
    reader = ClassReader("y")
    with pytest.raises(DataError, match=r"more than 255 values \('r0', 'r1', .* and 248 more\)"):
        reader.read(pa.array([f"r{k}" for k in range(100_000)]))
    assert reader.n_classes == 255
    reader.set_bands(Counter(range(256)))  # left to the rows
    assert (reader.n_bands, reader.n_classes) == (1, 255)


# -- bands ----------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=255))
def test_bands_are_runs_of_classes_by_frequency(rows):
    rows = np.array(rows)
    band = group_classes(rows)
    assert sorted(set(band.tolist())) == list(range(min(8, len(rows))))
    order = np.lexsort((band, -rows))
    assert (np.diff(band[order].astype(int)) >= 0).all()


@given(st.lists(st.integers(1, 50), min_size=9, max_size=40))
def test_the_band_whose_classes_differ_most_is_cut_in_the_middle(rows):
    groups = [sorted(np.log(rows), reverse=True)]
    while len(groups) < 8:
        spread = [(g[0] - g[-1], len(g)) if len(g) > 1 else (-1, 0) for g in groups]
        i = spread.index(max(spread))
        middle = (groups[i][0] + groups[i][-1]) / 2
        high = [s for s in groups[i] if s > middle] or groups[i][: len(groups[i]) // 2]
        groups[i : i + 1] = [high, groups[i][len(high) :]]
    found = np.bincount(group_classes(np.array(rows)), rows)
    np.testing.assert_allclose(found, [sum(np.exp(g)) for g in groups])


def test_few_classes_are_a_band_each():
    assert group_classes(np.array([5, 100, 7, 7])).tolist() == [3, 0, 1, 2]
    reader = reader_of("aaabccddddd")
    assert (reader.n_bands, reader.largest_share) == (4, 5 / 11)
    assert reader.read(pa.array(["d", "a", "c", "b"]))[0].tolist() == [0, 1, 2, 3]


def test_classes_that_the_sample_lacks_are_with_the_rarest():
    reader = reader_of("aaabcc")
    assert reader.read(pa.array(["x", "b", "a", "y"]))[0].tolist() == [2, 2, 0, 2]


def test_without_a_sample_all_classes_are_in_one_band():
    reader = ClassReader("y")
    assert reader.read(pa.array(["c", "a", "b"]))[0].tolist() == [0, 0, 0]
    assert (reader.n_bands, reader.largest_share) == (1, 1.0)


# -- the classes of a model -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "array", "expected"),
    [
        ((1, 2, 3), pa.array(["3", "1", "3"]), [2, 0, 2]),
        ((1, 2, 3), pa.array([3.0, 1.0]), [2, 0]),
        (("1", "2", "3"), pa.array([3, 1]), [2, 0]),
        (("a", "b", "c"), pa.array(["c", "a"]).dictionary_encode(), [2, 0]),
        ((0.5, 1, 2), pa.array(["0.5", "2"]), [0, 2]),
        ((False, True, "maybe"), pa.array(["TRUE", "maybe", "false"]), [1, 2, 0]),
        ((1, "1", 2), pa.array(["1", "2"]), [1, 2]),
    ],
)
def test_labels_of_another_type_are_the_same_classes(classes, array, expected):
    bands, which = KnownClasses("y", classes).read(array)
    assert which.tolist() == expected
    assert (which.dtype, bands.tolist()) == (np.float32, [0] * len(expected))
    stored = StoredClasses("y", classes, bands=[2, 1, 0], codes=[0, 1, 2], n_bands=3)
    bands, which = stored.read(array)
    assert (bands.tolist(), which.tolist()) == ([2 - k for k in expected], expected)


def test_a_label_that_a_model_does_not_know_is_told_with_its_row():
    reader = KnownClasses("y", ("a", "b", "c"))
    with pytest.raises(
        RowError, match="label 'x' is not in the training data, which has 'a', 'b' and 'c'"
    ) as error:
        reader.read(pa.array(["a", "b", "x", "z"]))
    assert error.value.row == 2
    with pytest.raises(RowError, match="which has 0, 1, 2, 3, 4, 5, 6, 7 and 92 more"):
        KnownClasses("y", range(100)).read(pa.array([100]))


def test_names_of_classes():
    assert name_classes(["a"]) == "'a'"
    assert name_classes([1, "b"]) == "1 and 'b'"
