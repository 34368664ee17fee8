from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sparrowboost.kernels.bins import (
    bin_by_bits,
    bin_by_grid,
    bin_by_search,
    bin_by_table,
    bin_codes,
    count_bins,
)
from sparrowboost.store.lookup import ThresholdLookup

pytestmark = pytest.mark.kernel

FLOATS = [
    np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0,
    5e-324, -5e-324, 1.4e-45, -1.4e-45, 1.1754942e-38,  # subnormal in float64, in float32
    1.7976931348623157e308, -1.7976931348623157e308, 3.4028234e38, 3.5e38,
    1.0000000000000002, 0.9999999999999999, 1.00000001, 1.00000002,  # one value in float32
    2.0**53, 2.0**53 + 2, 16777216.0, 16777217.0, 16777218.0,
]  # fmt: skip
INTEGERS = [0, 1, -1, 2**53, 2**53 + 1, 2**53 + 2, -(2**53) - 1, 2**62, 2**63 - 1, 2**63 - 2,
            -(2**63), -(2**63) + 1]  # fmt: skip

floats64 = st.sampled_from(FLOATS) | st.floats(width=64)
with np.errstate(over="ignore"):
    FLOATS32 = np.array(FLOATS).astype(np.float32).tolist()
floats32 = st.sampled_from(FLOATS32) | st.floats(width=32)
integers = st.sampled_from(INTEGERS) | st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9)
VALUES = {np.float32: floats32, np.float64: floats64, np.int64: integers}


def naive(x, thresholds, missing):
    bins = np.searchsorted(thresholds, x).astype(np.uint8)
    return np.where(x != x, missing, bins)


def arrays(dtype, max_size):
    return hnp.arrays(dtype, st.integers(0, max_size), elements=VALUES[dtype])


@st.composite
def cases(draw):
    """Values, and thresholds of which some are among the values or next to them."""
    dtype = draw(st.sampled_from(list(VALUES)))
    x = draw(arrays(dtype, 60))
    near = draw(st.lists(st.sampled_from(x), max_size=40)) if len(x) else []
    with np.errstate(over="ignore", under="ignore"):
        t = np.concatenate([draw(arrays(dtype, 254)), np.array(near, dtype)]) + dtype(0)
    return x, np.unique(t[t == t])[:254]


def padded(thresholds):
    top = np.inf if thresholds.dtype.kind == "f" else np.iinfo(thresholds.dtype).max
    return np.concatenate([thresholds, np.full(256 - len(thresholds), top, thresholds.dtype)])


@pytest.mark.slow
@given(cases())
def test_the_lookup_of_any_thresholds_equals_searchsorted(case):
    x, thresholds = case
    out = np.empty(len(x), np.uint8)
    ThresholdLookup(thresholds, np.uint8(255))(x, out)
    np.testing.assert_array_equal(out, naive(x, thresholds, 255))


@given(cases())
def test_the_plain_search_equals_searchsorted(case):
    x, thresholds = case
    out = np.empty(len(x), np.uint8)
    bin_by_search(x, padded(thresholds), np.uint8(255), out)
    np.testing.assert_array_equal(out, naive(x, thresholds, 255))


@given(cases(), st.sampled_from(["grid", "bits"]))
def test_a_coarse_key_costs_steps_and_never_the_answer(case, which):
    x, thresholds = case
    out = np.empty(len(x), np.uint8)
    steps = len(thresholds)  # all in one cell, at worst
    if which == "grid":
        # One cell: every threshold shares it.
        lut = np.zeros(1, np.uint8)
        one = np.float32(1) if x.dtype == np.float32 else np.float64(1)
        bin_by_grid(x, padded(thresholds), lut, one, one, steps, np.uint8(255), out)
    else:
        lut = np.zeros(1 << 16, np.uint8)  # "no threshold has a smaller key" is always safe
        bin_by_bits(x, padded(thresholds), lut, steps, np.uint8(255), out)
    np.testing.assert_array_equal(out, naive(x, thresholds, 255))


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    ["normal", "heavy tail", "far from zero", "around zero", "two heaps", "constant steps"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_ten_thousand_values_of_each_shape_equal_searchsorted(shape, dtype):
    rng = np.random.default_rng(1)
    x = {
        "normal": lambda: rng.normal(size=10_000) * 1000,
        "heavy tail": lambda: rng.lognormal(0, 4, 10_000),
        "far from zero": lambda: 1e9 + rng.normal(size=10_000) * 100,
        "around zero": lambda: rng.normal(size=10_000) * 1e-3,
        "two heaps": lambda: rng.choice([0.0, 1e6], 10_000) + rng.normal(size=10_000),
        "constant steps": lambda: rng.integers(0, 300, 10_000).astype(float),
    }[shape]().astype(dtype)
    thresholds = np.unique(np.quantile(x, np.arange(1, 255) / 255, method="lower").astype(dtype))
    out = np.empty((len(x), 3), np.uint8)
    ThresholdLookup(thresholds, np.uint8(255))(x, out[:, 1])
    np.testing.assert_array_equal(out[:, 1], naive(x, thresholds, 255))


def test_heavy_tails_and_offsets_need_few_steps():
    rng = np.random.default_rng(2)
    for x in (rng.normal(size=9999), rng.lognormal(0, 4, 9999), 1e9 + rng.random(9999)):
        thresholds = np.quantile(x, np.arange(1, 255) / 255)
        assert ThresholdLookup(thresholds, np.uint8(255))._steps <= 3


@given(hnp.arrays(np.uint8, st.integers(0, 50)), hnp.arrays(np.uint8, 256))
def test_a_table_looks_each_value_up(x, table):
    out = np.empty(len(x), np.uint8)
    bin_by_table(x, table, out)
    np.testing.assert_array_equal(out, table[x])


@given(cases())
def test_the_python_of_a_kernel_does_what_its_machine_code_does(case):
    x, thresholds = case
    compiled, python = np.empty(len(x), np.uint8), np.empty(len(x), np.uint8)
    with np.errstate(all="ignore"):
        lookup = ThresholdLookup(thresholds, np.uint8(255))
        lookup(x, compiled)
        bin_by_search.py_func(x, padded(thresholds), np.uint8(255), python)
        np.testing.assert_array_equal(compiled, python)
        if lookup._lut is not None and lookup._grid is not None:
            low, scale = lookup._grid
            bin_by_grid.py_func(
                x, padded(thresholds), lookup._lut, low, scale, lookup._steps, np.uint8(255), python
            )
        elif lookup._lut is not None:
            bin_by_bits.py_func(
                x, padded(thresholds), lookup._lut, lookup._steps, np.uint8(255), python
            )
    np.testing.assert_array_equal(compiled, python)


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 200])
def test_columns_of_codes_are_looked_up_and_turned_into_rows(n):
    rng = np.random.default_rng(n)
    codes = rng.integers(0, 256, (3, n), dtype=np.uint8)
    tables = rng.integers(0, 256, (3, 256), dtype=np.uint8)
    column = np.array([4, 0, 2])
    for run in (bin_codes, bin_codes.py_func):
        out = np.full((n, 5), 7, np.uint8)
        run(codes, tables, column, out)
        for c, j in enumerate(column):
            np.testing.assert_array_equal(out[:, j], tables[c][codes[c]])
        assert (out[:, [1, 3]] == 7).all()


@pytest.mark.parametrize("extra", [0, 4])
def test_rows_are_counted_by_their_bins(extra):
    bins = np.random.default_rng(extra).integers(0, 256, (300, 3 + extra), dtype=np.uint8)
    for run in (count_bins, count_bins.py_func):
        counts = np.ones((3, 256), np.int64)
        run(bins, counts)
        for j in range(3):
            np.testing.assert_array_equal(counts[j] - 1, np.bincount(bins[:, j], minlength=256))
