from __future__ import annotations

import datetime
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sparrowboost.store.bin_finder import BinFinder, find_thresholds
from sparrowboost.store.binning import (
    MAX_BINS,
    Binning,
    CategoryFeature,
    NumberFeature,
)


def fit(values, kind):
    finder = BinFinder("x", kind)
    finder.add(values if isinstance(values, pa.Array) else pa.array(values))
    return finder.finish()


def test_few_distinct_values_get_a_bin_each():
    feature = fit([5.0, 1.0, 5.0, 3.0, None, float("nan")], "float64")
    assert feature.thresholds.tolist() == [2.0, 4.0]
    assert feature.bin(pa.array([1.0, 3.0, 5.0, None, float("nan")])).tolist() == [0, 1, 2, 3, 3]


def test_255_distinct_values_are_told_apart_and_256_are_not():
    values = np.arange(255.0)
    assert fit(values, "float64").bin(pa.array(values)).tolist() == list(range(255))
    assert fit(np.arange(256.0), "float64").n_values == MAX_BINS


def test_many_values_fill_their_bins_equally():
    x = np.random.default_rng(0).lognormal(size=200_000)
    counts = np.bincount(fit(x, "float64").bin(pa.array(x)))
    assert len(counts) == MAX_BINS
    # Without ties a bin misses its share by the rounding of one mark at each side.
    assert np.abs(counts - len(x) / MAX_BINS).max() <= 2


def test_a_value_as_frequent_as_a_bin_stands_alone():
    rng = np.random.default_rng(0)
    x = np.concatenate([np.zeros(50_000), rng.normal(size=50_000)])
    feature = fit(x, "float64")
    bins = feature.bin(pa.array(x))
    assert set(bins[x != 0]) & set(bins[x == 0]) == set()
    # The other values do not pay for it: they still get nearly all of the bins.
    assert feature.n_values > MAX_BINS * 0.9


@given(
    hnp.arrays(np.int64, st.integers(256, 400), elements=st.integers(0, 300)),
    st.integers(2, 255),
)
def test_there_are_never_more_bins_than_allowed(x, max_bins):
    thresholds = find_thresholds(x, max_bins=max_bins)
    assert len(thresholds) < max_bins
    assert (np.diff(thresholds) > 0).all()


@given(
    st.lists(
        st.floats(allow_nan=False) | st.sampled_from([-np.inf, np.inf, -0.0, 0.0, 5e-324]),
        min_size=1, max_size=40,
    ),
    st.sampled_from(["float32", "float64"]),
)  # fmt: skip
def test_every_distinct_float_gets_its_own_bin_in_order(values, kind):
    with np.errstate(over="ignore"):
        x = np.array(values).astype(kind)
    distinct = np.unique(x)
    assert fit(x, kind).bin(pa.array(distinct)).tolist() == list(range(len(distinct)))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40))
def test_every_distinct_integer_gets_its_own_bin_beyond_2_to_the_53(values):
    distinct = np.unique(np.array(values, np.int64))
    assert fit(distinct, "int64").bin(pa.array(distinct)).tolist() == list(range(len(distinct)))


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40))
def test_unsigned_integers_beyond_2_to_the_63_keep_their_order(values):
    distinct = np.unique(np.array(values, np.uint64))
    assert fit(distinct, "uint64").bin(pa.array(distinct)).tolist() == list(range(len(distinct)))


def test_neighbours_beyond_float_precision_are_told_apart():
    ids = pa.array([2**53, 2**53 + 1, 2**53 + 2])
    assert fit(ids, "int64").bin(ids).tolist() == [0, 1, 2]
    doubles = pa.array([1.0, 1.0 + 1e-12])
    assert fit(doubles, "float64").bin(doubles).tolist() == [0, 1]


@given(
    st.lists(st.integers(-1000, 1000), min_size=1, max_size=30),
    st.lists(st.floats(allow_nan=True), max_size=30),
)
def test_floats_meet_integer_thresholds_as_exactly_as_python_compares_them(train, x):
    feature = fit(train, "int64")
    expected = [
        feature.n_values if v != v else sum(int(t) < v for t in feature.thresholds) for v in x
    ]
    assert feature.bin(pa.array(x, pa.float64())).tolist() == expected


@pytest.mark.parametrize("type_", [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32()])
def test_small_integers_take_a_short_cut_to_the_same_bins(type_):
    rng = np.random.default_rng(3)
    x = pa.array(rng.integers(0, 100, 500)).cast(type_)
    feature = fit(x.cast(pa.int64()), "int64")
    np.testing.assert_array_equal(feature.bin(x), feature.bin(x.cast(pa.int64())))
    with_null = pa.concat_arrays([x, pa.nulls(1, type_)])
    assert feature.bin(with_null)[-1] == feature.n_values


def test_a_float_feature_bins_integers_and_narrow_floats_alike():
    feature = fit(np.linspace(0, 9, 1000).astype(np.float32), "float32")
    x = np.arange(10)
    expected = feature.bin(pa.array(x.astype(np.float32))).tolist()
    for type_ in (pa.int8(), pa.int64(), pa.float64(), pa.float16()):
        values = x.astype(np.float16) if type_ == pa.float16() else x
        assert feature.bin(pa.array(values).cast(type_)).tolist() == expected


def test_dates_and_times_are_numbers_in_one_unit():
    days = [datetime.date(2020, 1, 1), datetime.date(2021, 1, 1), None]
    feature = fit(pa.array(days), "time")
    assert feature.bin(pa.array(days)).tolist() == [0, 1, 2]
    for unit in ("s", "ms", "us", "ns"):
        moments = pa.array(days, pa.date32()).cast(pa.timestamp(unit))
        assert feature.bin(moments).tolist() == [0, 1, 2]


def test_the_most_frequent_categories_have_bins_and_the_rest_share_one():
    words = [f"w{i}" for i in range(300) for _ in range(300 - i)]
    feature = fit(words, "category")
    assert feature.categories[:2] == ("w0", "w1")
    assert len(feature.categories) == 254
    assert feature.bin(pa.array(["w0", "w253", "w254", "never seen", None])).tolist() == [
        0, 253, 254, 254, 255,
    ]  # fmt: skip


def test_a_category_is_found_again_whatever_its_type():
    feature = fit(pa.array([7, 7, 8]), "category")
    for array in (
        pa.array([7, 8]), pa.array([7.0, 8.0]), pa.array(["7", "8"]),
        pa.array(["7", "8"]).dictionary_encode(), pa.array(["7", "8"], pa.large_string()),
        pa.array(["7", "8"], pa.string_view()), pa.array([7, 8]).dictionary_encode(),
    ):  # fmt: skip
        assert feature.bin(array).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("learned", "met"),
    [
        (["red", " blue"], [" red", "blue "]),  # CSV files are read without spaces around words
        (["True", "False"], [True, False]),  # so writes pandas, and so says a typed column
        (["true", "false"], ["True", "FALSE"]),
        ([False, True], ["False", "True"]),
        (["1.0", "1.1"], [1, 1.1]),
        ([1, 2], ["1.0", "2.0"]),
        (np.float32([0.1, 0.5]), ["0.1", "0.5"]),
        ([datetime.datetime(2020, 1, 1), datetime.datetime(2021, 1, 1)],
         np.array(["2020-01-01", "2021-01-01"], "M8[ns]")),
        ([datetime.time(9), datetime.time(10)], ["09:00:00", "10:00:00"]),
    ],
)  # fmt: skip
def test_a_category_is_found_again_however_a_source_writes_it(learned, met):
    feature = fit(pa.array(learned), "category")
    assert feature.bin(pa.array(met)).tolist() == feature.bin(pa.array(learned)).tolist()
    assert sorted(feature.bin(pa.array(met)).tolist()) == [0, 1]


def test_a_category_that_is_written_just_so_comes_first():
    feature = CategoryFeature("x", ("1", "1.0", " a", "a"))
    assert feature.bin(pa.array(["1", "1.0", " a", "a", "a ", "2"])).tolist() == [0, 1, 2, 3, 2, 4]


def test_words_for_true_and_false_are_the_numbers_that_booleans_are():
    feature = fit([True, False, None], "int64")
    for words in (["True", "False", None], ["true", "false", None], ["TRUE", "FALSE", None]):
        assert feature.bin(pa.array(words)).tolist() == [1, 0, 2]
        assert feature.bin(pa.array(words).dictionary_encode()).tolist() == [1, 0, 2]


def test_nulls_in_a_dictionary_are_missing():
    coded = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), ["a", None])
    assert CategoryFeature("x", ("a",)).bin(coded).tolist() == [0, 2, 2]


def test_a_column_without_values_has_one_bin_and_the_missing_one():
    feature = fit(pa.nulls(3), "null")
    assert feature.n_values == 1
    assert feature.bin(pa.array([None, 1.0])).tolist() == [1, 0]


def test_bins_survive_json_to_the_last_bit():
    features = (
        NumberFeature("a", "float64", np.array([-np.inf, 0.1, 1e300])),
        NumberFeature("b", "float32", np.array([0.1], np.float32)),
        NumberFeature("c", "int64", np.array([2**53 + 1])),
        NumberFeature("d", "uint64", np.array([2**64 - 2], np.uint64)),
        CategoryFeature("e", ("x", "ü")),
    )
    again = Binning.from_json(json.loads(json.dumps(Binning(features).to_json(), allow_nan=False)))
    for old, new in zip(features, again.features, strict=True):
        assert old.to_json() == new.to_json()
        if isinstance(old, NumberFeature):
            assert old.thresholds.dtype == new.thresholds.dtype


def test_a_block_is_binned_column_by_column_into_rows():
    rng = np.random.default_rng(0)
    table = {f"x{j}": rng.normal(size=20_000) for j in range(3)}
    features = [fit(v, "float64") for v in table.values()]
    binning = Binning(tuple(replace(f, name=n) for f, n in zip(features, table, strict=True)))
    out = np.empty((20_000, 3), np.uint8)
    binning.apply(pa.record_batch(table), out)
    for j, feature in enumerate(binning.features):
        expected = np.searchsorted(feature.thresholds, table[feature.name])
        np.testing.assert_array_equal(out[:, j], expected)
    assert binning.n_bins.tolist() == [256, 256, 256]


def test_what_is_forgotten_leaves_no_trace_and_what_is_kept_stays():
    numbers, words = BinFinder("x", "float64"), BinFinder("x", "category")
    for finder, first, wrong, right in (
        (numbers, [1.0], [9.0], [3.0]),
        (words, ["a", "a"], ["z"], ["b"]),
    ):
        finder.add(pa.array(first))
        finder.keep()
        finder.add(pa.array(wrong))
        finder.forget()
        finder.add(pa.array(right))
    assert numbers.finish().thresholds.tolist() == [2.0]
    assert words.finish().categories == ("a", "b")


def test_a_new_word_in_every_row_takes_bounded_memory_and_hides_no_frequent_one():
    finder = BinFinder("x", "category")
    for k in range(30):
        finder.add(pa.array([f"{k} {i}" for i in range(9_000)] + ["often"] * 100))
        assert len(finder._fresh_counts.counts) <= 50_000
    assert finder.finish().categories[0] == "often"


def test_of_long_texts_fewer_are_counted_and_a_frequent_one_is_found():
    finder = BinFinder("x", "category", max_categories=2_000)
    for k in range(30):
        texts = [f"{k} {i} ".ljust(20_000, "x") for i in range(100)]
        finder.add(pa.array([*texts, "often", "often"]))
        assert sum(map(len, finder._fresh_counts.counts)) < 5_000_000
    assert finder.finish().categories[0] == "often"


@pytest.mark.slow
def test_threads_that_meet_different_dictionaries_do_not_mix_them_up():
    feature = CategoryFeature("x", tuple(f"w{i}" for i in range(200)))
    words = [[f"w{i}" for i in range(200)], [f"w{i}" for i in range(199, -1, -1)]]
    arrays = [
        pa.DictionaryArray.from_arrays(pa.array(range(200), pa.int32()), pa.array(w)) for w in words
    ]
    expected = [list(range(200)), list(range(199, -1, -1))]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda i: feature.bin(arrays[i % 2]).tolist(), range(2_000)))
    finally:
        sys.setswitchinterval(interval)
    assert all(result == expected[i % 2] for i, result in enumerate(results))
