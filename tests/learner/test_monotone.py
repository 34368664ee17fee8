"""Monotone constraints, from the bounds of one tree to models of all kinds."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

import sparrowboost.learner.bundles
import sparrowboost.learner.scanner
from builders import (
    assert_same_trees,
    forbid_endless_scans,
    make_slots,
    mask_of,
)
from constants import set_constants
from naive import find_leaf
from sparrowboost import DataError, ingest, train
from sparrowboost.learner.events import Converged
from sparrowboost.learner.evidence import Evidence
from sparrowboost.learner.monotone import FREE, Monotone
from sparrowboost.learner.stopping import SplitFinder
from sparrowboost.model.tree import TreeBuilder

KINDS = [("logistic", "adaptive"), ("exponential", "adaptive"), ("exponential", "paper")]
every_kind = pytest.mark.parametrize(("loss", "stopping"), KINDS)


@pytest.fixture(autouse=True)
def no_hanging(monkeypatch):
    forbid_endless_scans(monkeypatch)


# -- the bounds of one tree -----------------------------------------------------------------------


def random_cuts(rng, n_bins, n_leaves):
    """A tree of random cuts of numbers, missing values on either side."""
    builder = TreeBuilder(n_leaves)
    while builder.n_leaves < n_leaves:
        leaf, feature = rng.integers(builder.n_leaves), int(rng.integers(len(n_bins)))
        last = n_bins[feature] - 1
        left = list(range(rng.integers(1, last + 1)))
        missing = [last] if rng.random() < 0.5 else []
        builder.split(int(leaf), feature, mask_of(left + missing), 1.0)
    return builder


def mean(sums):
    return sums[:, 0] / sums[:, 1]


@given(st.integers(0, 10**6), st.integers(1, 24), st.integers(1, 4))
def test_values_in_bounds_are_monotone_in_any_tree(seed, n_leaves, d):
    rng = np.random.default_rng(seed)
    n_bins = rng.integers(2, 9, d)
    monotone = Monotone(rng.integers(-1, 2, d).astype(np.int8), n_bins)
    builder = random_cuts(rng, n_bins, n_leaves)
    weight = rng.lognormal(size=n_leaves)
    sums = np.column_stack((rng.normal(size=n_leaves) * weight, weight))
    bounds = monotone.bounds(builder, sums, mean)
    assert (bounds[:, 0] <= bounds[:, 1]).all()
    tree = builder.finish(np.clip(mean(sums), *bounds.T).astype(np.float32))
    for _ in range(5):
        row = rng.integers(0, n_bins)  # the others may be missing
        for j in np.flatnonzero(monotone.sign):
            rows = [np.where(np.arange(d) == j, b, row) for b in range(n_bins[j] - 1)]
            values = tree.value[[find_leaf(tree, r) for r in rows]]
            assert (monotone.sign[j] * np.diff(values) >= 0).all()


@given(st.integers(0, 10**6), st.integers(1, 24))
def test_without_signs_there_are_no_bounds(seed, n_leaves):
    rng = np.random.default_rng(seed)
    builder = random_cuts(rng, [5, 4], n_leaves)
    monotone = Monotone(np.zeros(2, np.int8), np.array([5, 4]))
    bounds = monotone.bounds(builder, rng.random((n_leaves, 2)), mean)
    np.testing.assert_array_equal(bounds, [FREE] * n_leaves)


def test_sides_in_the_right_order_keep_their_values_and_others_share_one():
    builder = TreeBuilder(2)
    builder.split(0, 0, mask_of([0, 1]), 1.0)
    sums = np.array([[-1.0, 10.0], [6.0, 20.0]])  # means -0.1 and 0.3, of both 5 / 30
    for sign, expected in ((1, [-0.1, 0.3]), (-1, [5 / 30] * 2)):
        monotone = Monotone(np.array([sign], np.int8), np.array([4]))
        bounds = monotone.bounds(builder, sums, mean)
        np.testing.assert_allclose(np.clip(mean(sums), *bounds.T), expected)
    # Bounds are in the middle, and missing values alone on a side have none.
    rising = Monotone(np.array([1], np.int8), np.array([4]))
    np.testing.assert_allclose(rising.bounds(builder, sums, mean), [[-np.inf, 0.1], [0.1, np.inf]])
    builder = TreeBuilder(2)
    builder.split(0, 0, mask_of([0, 1, 2]), 1.0)
    np.testing.assert_array_equal(rising.bounds(builder, sums, mean), [FREE] * 2)


def test_a_bound_goes_down_through_splits_of_other_features():
    # Left of the cut of feature 0 the other feature tells 0.4 from -0.8; right of it all is 0.2.
    builder = TreeBuilder(3)
    builder.split(0, 0, mask_of([0]), 1.0)
    builder.split(0, 1, mask_of([0]), 1.0)
    sums = np.array([[4.0, 10.0], [2.0, 10.0], [-8.0, 10.0]])
    monotone = Monotone(np.array([1, 0], np.int8), np.array([3, 3]))
    bounds = monotone.bounds(builder, sums, mean)
    # The left is worth -4 / 20, the right 2 / 10: they meet at 0.
    np.testing.assert_allclose(bounds, [[-np.inf, 0], [0, np.inf], [-np.inf, 0]], atol=1e-15)
    np.testing.assert_allclose(np.clip(mean(sums), *bounds.T), [0, 0.2, -0.8], atol=1e-15)


def test_a_leaf_looks_for_splits_whose_values_are_in_its_bounds():
    # Feature 0 tells 0.8 from 0.2, which falls; feature 1 tells 0.4 from 0.6.
    slots = make_slots([3, 3])
    evidence = Evidence(slots)
    evidence.hist[0] = [8, 32, 0, 24, 16, 0]
    evidence.hist[1] = [72, 48, 0, 56, 64, 0]
    evidence.v[:] = evidence.weights

    def find(sign=0, **bounds):
        monotone = Monotone(np.array([sign, 0], np.int8), slots.n_bins)
        return SplitFinder(slots, l2=0.0, monotone=monotone).find(evidence, 160, 1.0, 1.0, **bounds)

    assert (find().feature, find(-1).feature, find(1).feature) == (0, 0, 1)
    # At most 0.3: of feature 0 one side may have its value, and of feature 1 none.
    low = find(bounds=(-np.inf, 0.3))
    assert low.feature == 0
    assert 0 < low.gain < find().gain
    assert find(1, bounds=(-np.inf, 0.3)) is None
    # At most 0.1, or at least 0.9: all have the same value, and nothing is left to gain.
    assert find(bounds=(-np.inf, 0.1)) is None
    assert find(bounds=(0.9, np.inf)) is None


# -- models ---------------------------------------------------------------------------------------


def make_table(n, seed=0, noise=1.0):
    """Numbers, one of them missing at times, and a category.

    The label rises with a and falls with b, whatever the others; c rises or falls depending on d.
    """
    rng = np.random.default_rng(seed)
    a, b, c, d = rng.normal(size=(4, n))
    kind = rng.integers(0, 5, n)
    score = np.tanh(2 * a) * (1 + (d > 0)) - b + c * d + (kind == 3) + noise * rng.normal(size=n)
    missing = rng.random(n) < 0.1
    table = {"a": pa.array(a, mask=missing), "b": b, "c": c, "d": d, "kind": kind.astype(str)}
    return pa.table(table), score + 2 * missing > 0


@pytest.fixture(scope="module")
def dataset():
    table, label = make_table(6_000)
    return ingest(table, label=label, verbose=0)


def worst_step(model, name, sign, n_rows=60, seed=0):
    """The largest step against the sign, over every threshold of a feature, of random rows."""
    table, _ = make_table(n_rows, seed)
    feature = model.binning.features[model.feature_names.index(name)]
    t = feature.thresholds
    grid = np.concatenate(([t[0] - 1], (t[:-1] + t[1:]) / 2, [t[-1] + 1]))  # one of each bin
    rows = table.take(np.repeat(np.arange(n_rows), len(grid)))
    values = pa.array(np.tile(grid, n_rows))
    rows = rows.set_column(rows.schema.get_field_index(name), name, values)
    score = model.decision_function(rows, n_jobs=1).reshape(n_rows, len(grid))
    return float((-sign * np.diff(score, axis=1)).max())


@pytest.fixture(scope="module")
def train_free(dataset):
    """Trains a model without constraints, once for each way."""
    return cache(lambda **how: train(dataset, **how))


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("sample_size", ["auto", 2_500])
@pytest.mark.parametrize("signs", [{"a": 1, "b": -1}, {"a": -1, "c": 1, "d": -1}])
def test_a_model_is_monotone_in_every_constrained_feature(
    dataset, train_free, loss, stopping, sample_size, signs, monkeypatch
):
    # Small blocks: in a drawn sample, splits are taken on few rows and values are of more.
    set_constants(monkeypatch, sample_block_rows=256)
    set_constants(monkeypatch, start_values=256)
    kwargs = {"loss": loss, "stopping": stopping, "sample_size": sample_size, "theta": 0.8}
    kwargs |= {"n_estimators": 20, "learning_rate": 0.5, "l2": 3.0, "verbose": 0, "n_jobs": 1}
    free = train_free(**kwargs)
    model = train(dataset, monotone_constraints=signs, **kwargs)
    assert model.n_trees >= 3
    for name, sign in signs.items():
        assert worst_step(free, name, sign) > 0.01  # the data does not see to it
        assert worst_step(model, name, sign) <= 0  # not even by rounding


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["logistic", "exponential"])
@pytest.mark.parametrize("sample_size", ["auto", 2_500])
def test_deep_trees_that_learn_by_heart_are_monotone(dataset, loss, sample_size):
    model = train(
        dataset, loss=loss, sample_size=sample_size, n_estimators=8, max_leaves=400, l2=0.0,
        min_child_weight=0.0, learning_rate=1.0, monotone_constraints={"a": 1, "b": 1, "c": -1},
        verbose=0,
    )  # fmt: skip
    assert max(tree.depth() for tree in model.trees) > 12
    used = np.concatenate([tree.feature for tree in model.trees])
    for j, (name, sign) in enumerate((("a", 1), ("b", 1), ("c", -1))):
        assert (used == j).any()
        assert worst_step(model, name, sign) <= 0


@pytest.mark.slow
@every_kind
def test_a_constraint_that_is_true_costs_little(dataset, loss, stopping):
    # An AUC of 20,000 rows has a deviation of 0.003, but much less between models that agree on
    # most of them. What is true of the data helps more often than it costs.
    table, label = make_table(20_000, seed=1)
    kwargs = {"loss": loss, "stopping": stopping, "n_estimators": 40, "verbose": 0}
    free, true, false = (
        roc_auc_score(
            label,
            train(dataset, monotone_constraints=signs, **kwargs).decision_function(table),
        )
        for signs in (None, {"a": 1, "b": -1}, {"a": -1, "b": 1})
    )
    assert free > 0.8
    assert true > free - 0.01
    assert false < free - 0.1


@pytest.mark.slow
@every_kind
def test_signs_by_name_and_by_place_are_the_same(dataset, loss, stopping):
    kwargs = {"loss": loss, "stopping": stopping, "n_estimators": 5, "verbose": 0}
    named = train(dataset, monotone_constraints={"b": -1, "a": 1, "d": 0}, **kwargs)
    for signs in ([1, -1, 0, 0, 0], (1, -1, 0, 0, 0), np.array([1, -1, 0, 0, 0])):
        assert_same_trees(named, train(dataset, monotone_constraints=signs, **kwargs))
    free = train(dataset, **kwargs)
    for signs in ({}, {"a": 0}, [0] * 5):
        assert_same_trees(free, train(dataset, monotone_constraints=signs, **kwargs))


@every_kind
@pytest.mark.parametrize("sign", [1, -1])
def test_a_constraint_against_all_evidence_leaves_nothing_to_learn(loss, stopping, sign):
    x = np.random.default_rng(0).normal(size=(2_000, 1))
    dataset = ingest(x, label=sign * x[:, 0] > 0, verbose=0)
    events = []
    kwargs = {"loss": loss, "stopping": stopping, "n_estimators": 5, "verbose": 0}
    model = train(dataset, monotone_constraints=[-sign], callbacks=[events.append], **kwargs)
    assert model.n_trees == 0
    assert isinstance(events[-1], Converged)
    assert train(dataset, monotone_constraints=[sign], **kwargs).n_trees == 5


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("positive", [0.05, 0.95])
def test_missing_values_may_have_any_score(loss, stopping, positive):
    # Rows without x are nearly all of one label; with x, the label rises with it.
    rng = np.random.default_rng(0)
    x = rng.normal(size=4_000)
    missing = rng.random(4_000) < 0.3
    rate = np.where(missing, positive, 1 / (1 + np.exp(-x)))
    X = np.where(missing, np.nan, x)[:, None]
    model = train(
        ingest(X, label=rng.random(4_000) < rate, verbose=0),
        loss=loss, stopping=stopping, n_estimators=40, learning_rate=0.3, verbose=0,
        monotone_constraints=[1],
    )  # fmt: skip
    grid = np.linspace(-4, 4, 400)[:, None]
    score = model.decision_function(grid)
    assert (np.diff(score) >= 0).all()
    assert score[-1] > score[0] + 0.5
    p = model.predict_proba(np.array([[np.nan]]))[0, 1]
    assert p < 0.25 if positive < 0.5 else p > 0.75


@pytest.mark.parametrize("loss", ["logistic", "exponential"])
def test_columns_in_bundles_are_monotone(loss, monkeypatch):
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 12, 5_000)
    X = np.column_stack((rng.normal(size=5_000), np.eye(12)[kind]))
    flag = np.isin(kind, [1, 4, 7]) * np.where(X[:, 0] > 0, 2.0, -1.0)
    dataset = ingest(X, label=rng.random(5_000) < 1 / (1 + np.exp(-X[:, 0] - flag)), verbose=0)
    signs = [0] + [1, -1, 0] * 4
    kwargs = {"n_estimators": 10, "learning_rate": 0.5, "loss": loss, "verbose": 0}
    bundles = []

    def find_bundles(bins, slots):
        bundles.append(sparrowboost.learner.bundles.find_bundles(bins, slots))
        return bundles[-1]

    monkeypatch.setattr(sparrowboost.learner.scanner, "find_bundles", find_bundles)
    free, model = train(dataset, **kwargs), train(dataset, monotone_constraints=signs, **kwargs)
    assert [len(m) for m in bundles[-1].members] == [12]

    def worst(model):
        """Steps against the signs, when one column is set in a row of another kind or none."""
        rows = np.column_stack((rng.normal(size=200), np.eye(13)[rng.integers(0, 13, 200)][:, 1:]))
        steps = []
        for j in np.flatnonzero(signs):
            off, on = rows.copy(), rows.copy()
            off[:, j], on[:, j] = 0, 1
            step = model.decision_function(on) - model.decision_function(off)
            steps.append((-signs[j] * step).max())
        return max(steps)

    assert worst(free) > 0.1
    assert worst(model) <= 0


# -- wrong constraints ----------------------------------------------------------------------------


def test_constraints_that_do_not_fit_the_data_are_refused(dataset):
    for signs, says in (
        (
            {"a": 1, "age": -1},
            "monotone_constraints: no feature is called 'age'; the data has a, b",
        ),
        ({0: 1}, "no feature is called 0"),
        ([1, -1], "monotone_constraints has 2 entries and the data 5 features; give one for each"),
        ([0, 0, 0, 0, 1], "'kind' has categories, which have no order"),
        ({"kind": -1}, "'kind' has categories, which have no order"),
        ({"a": 2}, "'a' has 2; give 1, -1 or 0"),
        ([0, 0, 0.5, 0, 0], "2 has 0.5; give 1, -1 or 0"),
    ):
        with pytest.raises(DataError) as error:
            train(dataset, monotone_constraints=signs, verbose=0)
        assert says in str(error.value)
        assert "\n" not in str(error.value)


def test_a_wide_table_is_not_listed_in_full():
    dataset = ingest(np.arange(200.0).reshape(10, 20), label=np.arange(10) % 2, verbose=0)
    with pytest.raises(DataError, match=r"f0, f1, .*, f7, \.\.\. \(20 features\)\."):
        train(dataset, monotone_constraints={"x": 1}, verbose=0)


def test_a_category_may_be_given_as_free(dataset):
    assert train(dataset, monotone_constraints={"kind": 0}, n_estimators=1, verbose=0).n_trees == 1
