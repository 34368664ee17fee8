from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrowboost import DataError
from sparrowboost.readers.formats import RowError
from sparrowboost.readers.targets import BAND_ENDS, TargetReader


def reader_of(*samples) -> TargetReader:
    reader = TargetReader("y")
    reader.set_bands([pa.array(sample) for sample in samples])
    return reader


def test_bands_are_between_quantiles_of_the_sample():
    y = np.random.default_rng(0).permutation(1_000)
    reader = reader_of(y[:300], y[300:])
    bands, target = reader.read(pa.array(y))
    assert (bands.dtype, target.dtype) == (np.uint8, np.float32)
    np.testing.assert_array_equal(target, y)
    assert reader.n_bands == 8
    # Ends are at 20, 100, 300, ... of 1,000 values, or one to the side.
    assert np.abs(np.bincount(bands) - np.diff([0, *BAND_ENDS, 1]) * 1_000).max() <= 1
    assert reader.largest_share == np.bincount(bands).max() / 1_000
    order = np.argsort(y)
    assert (np.diff(bands[order].astype(int)) >= 0).all()


@given(
    st.lists(st.integers(-3, 3) | st.floats(-10, 10, width=32), min_size=1, max_size=60),
    st.lists(st.floats(-12, 12, width=32), max_size=20),
)
def test_every_band_has_rows_of_the_sample_and_the_share_is_that_of_the_largest(sample, others):
    sample = np.array(sample, np.float32)
    reader = reader_of(sample)
    bands, _ = reader.read(pa.array(sample))
    counts = np.bincount(bands, minlength=reader.n_bands)
    assert 1 <= reader.n_bands == np.count_nonzero(counts) <= 8
    assert reader.largest_share == counts.max() / len(sample)
    assert reader.order().tolist() == list(range(reader.n_bands)) if reader.trainable else True
    # Whatever comes, a greater target is never in a lower band.
    y = np.sort(np.array([*sample, *others], np.float32))
    assert (np.diff(reader.read(pa.array(y))[0].astype(int)) >= 0).all()


@pytest.mark.parametrize("zeros", [0.3, 0.6, 0.97, 0.999])
def test_many_rows_of_the_lowest_value_are_a_band_of_their_own(zeros):
    y = np.random.default_rng(0).gamma(2, size=5_000).astype(np.float32)
    y[: int(zeros * len(y))] = 0
    reader = reader_of(y)
    bands, _ = reader.read(pa.array(y))
    np.testing.assert_array_equal(bands == 0, y == 0)
    assert 2 <= reader.n_bands < 8
    assert reader.largest_share == max(zeros, 0.2)


def test_many_rows_of_a_value_in_the_middle_are_in_one_band():
    y = np.r_[np.linspace(-2, -1, 200), np.zeros(600), np.linspace(1, 2, 200)].astype(np.float32)
    bands, _ = reader_of(y).read(pa.array(y))
    assert np.bincount(bands).tolist() == [20, 80, 100, 700, 80, 20]


@pytest.mark.parametrize("sample", [[], [7.5] * 50])
def test_a_sample_of_one_value_or_none_makes_one_band(sample):
    reader = reader_of(np.array(sample))
    assert (reader.n_bands, reader.largest_share, reader.span) == (1, 1.0, None)
    assert reader.read(pa.array([1.0, 7.5, 9.0]))[0].tolist() == [0, 0, 0]


def test_the_span_is_that_of_all_rows_read():
    reader = TargetReader("y")
    assert (reader.span, reader.trainable) == (None, False)
    reader.read(pa.array([], pa.float64()))
    assert reader.span is None
    reader.read(pa.array([2, 2]))
    assert (reader.span, reader.trainable) == ((2.0, 2.0), False)
    with pytest.raises(DataError, match="label 'y' is 2 in every row; there is nothing to learn"):
        reader.order()
    reader.read(pa.array([-1.5, 1]))
    assert (reader.span, reader.trainable) == ((-1.5, 2.0), True)


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, 0, 2], pa.uint8()),
        pa.array([1, 0, 2], pa.float16()),
        pa.array([Decimal("1.0"), Decimal("0.0"), Decimal("2.0")]),
        pa.array([1.0, 0.0, 2.0]).dictionary_encode(),
        pa.array([9, 1, 0, 2], pa.int64()).slice(1),
    ],
)
def test_numbers_of_any_type_are_targets(array):
    assert TargetReader("y").values(array).tolist() == [1, 0, 2]


def test_true_is_1():
    assert TargetReader("y").values(pa.array([True, False])).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (None, "label 'y' is missing; remove rows without a label"),
        (float("nan"), "label 'y' is missing"),
        (float("-inf"), "label 'y' is -inf; labels of a regression must be finite numbers, below"),
        (3.1e38, r"label 'y' is 3\.1e\+38; .* below 1e\+38"),
        (-1e300, r"label 'y' is -1e\+300"),
    ],
)
def test_a_label_that_is_no_finite_number_is_told_with_its_row(value, what):
    with pytest.raises(RowError, match=what) as error:
        TargetReader("y").read(pa.array([1.0, 2.0, value, None]))
    assert error.value.row == 2


def test_missing_whole_numbers_are_told():
    with pytest.raises(RowError, match="missing") as error:
        TargetReader("y").read(pa.array([1, None, 3]))
    assert error.value.row == 1
    with pytest.raises(RowError, match="missing"):
        TargetReader("y").read(pa.nulls(3))


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (
            pa.array(["a"]),
            "string; regression needs numbers. .*decimal=.* To tell classes apart",
        ),
        (pa.array(["a"]).dictionary_encode(), "regression needs numbers.* To tell classes apart"),
        (pa.array([dt.date(2024, 1, 1)]), "type date32.*numbers, such as days since"),
        (pa.array([dt.timedelta(1)]), "regression needs numbers, such as days"),
        (pa.array([[1.0]]), "type list.*regression needs numbers"),
        (pa.array([b"1"]), "type binary; regression needs numbers"),
    ],
)
def test_columns_of_other_types_are_refused(array, what):
    reader = TargetReader("y")
    for attempt in (reader.check_type, lambda type_: reader.read(array)):
        with pytest.raises(DataError, match=f"label 'y' has.*{what}"):
            attempt(array.type)
