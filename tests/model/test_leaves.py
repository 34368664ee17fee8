"""Which leaf of each tree a row ends in."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparrowboost import SparrowClassifier, SparrowRegressor, ingest, train
from sparrowboost.model.predict import stream
from sparrowboost.model.tree import goes_left
from sparrowboost.readers.options import ReadOptions


def naive_leaf(tree, bins):
    """The leaf of one row, by a walk."""
    node = 0 if len(tree.feature) else ~0
    while node >= 0:
        left = goes_left(tree.mask[node : node + 1])[0][bins[tree.feature[node]]]
        node = tree.child[node, int(left)]
    return ~node


@pytest.mark.parametrize("max_leaves", [2, 31, 400])
def test_leaves_are_those_of_a_walk_and_their_values_add_up_to_the_score(max_leaves):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6_000, 4))
    X[rng.random(X.shape) < 0.1] = np.nan
    y = np.nan_to_num(X[:, 0] * X[:, 1]) + rng.normal(size=6_000)
    data = ingest(X, label=y, task="regression", verbose=0)
    how = {"max_leaves": max_leaves, "min_child_weight": 1.0, "l2": 1.0}
    model = train(data, n_estimators=6, verbose=0, **how)
    leaves = model.apply(X)
    assert leaves.shape == (6_000, 6)
    assert leaves.dtype == np.int32
    blocks = stream(model.binning, X, lambda bins, offset: bins.copy(), 1, ReadOptions())
    bins = np.concatenate([block for block, _ in blocks])
    for t, tree in enumerate(model.trees):
        some = range(0, 6_000, 37)
        assert [naive_leaf(tree, bins[i]) for i in some] == leaves[some, t].tolist()
    values = sum(tree.value[leaves[:, t]] for t, tree in enumerate(model.trees))
    np.testing.assert_allclose(model.base_score + values, model.predict(X), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(model.apply(X, n_trees=2), leaves[:, :2])


def test_estimators_find_leaves_in_arrays_and_files(tmp_path):
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(500, 3)), rng.normal(size=500)
    names = ["a", "b", "c"]
    pq.write_table(pa.table([*X.T.copy(), y > 0], names=[*names, "y"]), tmp_path / "t.parquet")
    regressor = SparrowRegressor(n_estimators=3).fit(X, y)
    assert regressor.apply(X[:7]).shape == (7, 3)
    classifier = SparrowClassifier(n_estimators=4).fit(tmp_path / "t.parquet", y="y")
    of_file = classifier.apply(tmp_path / "t.parquet")
    of_table = classifier.apply(pq.read_table(tmp_path / "t.parquet"))
    assert of_file.shape == (500, classifier.n_iter_)
    np.testing.assert_array_equal(of_file, of_table)
