"""Interaction constraints: which features may be on the way to one leaf."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import assert_same_trees
from sparrowboost import DataError, ingest, train
from sparrowboost.learner.interactions import Interactions

D = 6
KINDS = {
    "whole": {},
    "drawn": {"sample_size": 4_000, "theta": 0.8},
    "paper": {"loss": "exponential", "stopping": "paper", "learning_rate": 0.5},
    "paper-drawn": {"loss": "exponential", "stopping": "paper", "sample_size": 4_000},
}
every_kind = pytest.mark.parametrize("kind", KINDS)
CONSTRAINTS = {
    "overlap": [[0, 1, 2], [2, 3]],
    "chain": [[0, 1], [1, 2], [2, 3]],
    "one": [[0, 1]],
    "all": [list(range(D))],
}
# The largest sets of features on the way to one leaf; XGBoost is held to the same below.
LARGEST = {
    "overlap": [{0, 1, 2}, {2, 3}, {4}, {5}],
    "chain": [{0, 1}, {1, 2}, {2, 3}, {4}, {5}],
    "one": [{0, 1}, {2}, {3}, {4}, {5}],
    "all": [set(range(D))],
}


def make_rows(n=16_000, seed=0):
    """Six numbers that interact in pairs and more, each of which also matters alone."""
    X = np.random.default_rng(seed).normal(size=(n, D))
    score = X[:, :2].prod(1) + X[:, 1:4].prod(1) + X[:, 3:].prod(1) + 0.5 * X.sum(1)
    score += X[:, 0] * X[:, 5] + X[:, 4] * X[:, 0]
    return X, score > 0


@pytest.fixture(scope="module")
def dataset():
    X, y = make_rows()
    return ingest(X, label=y, verbose=0)


def largest(paths):
    """The sets that no other set holds."""
    return {one for one in paths if not any(one < other for other in paths)}


def paths_of(model):
    """The sets of features on the way to each leaf."""
    found = set()

    def visit(tree, node, used):
        if node < 0:
            found.add(used)
            return
        for child in tree.child[node]:
            visit(tree, int(child), used | {int(tree.feature[node])})

    for tree in model.trees:
        visit(tree, 0, frozenset())
    return found


@given(
    st.lists(st.frozensets(st.integers(0, 7), min_size=1), max_size=6),
    st.frozensets(st.integers(0, 7)),
)
def test_a_leaf_may_have_what_some_set_holds_with_all_above_it(sets, used):
    allowed = Interactions(8, tuple(sets)).allowed(used)
    expected = [
        j for j in range(8) if not used or j in used or any({j, *used} <= one for one in sets)
    ]
    assert allowed.tolist() == expected
    assert allowed.dtype == np.int64


def test_the_words_mean_what_lists_of_all_pairs_and_of_single_features_mean():
    pairs = Interactions(5, tuple(frozenset(pair) for pair in combinations(range(5), 2)))
    words = Interactions(5, None), Interactions(5, ())
    for size in range(3):
        for used in map(frozenset, combinations(range(5), size)):
            np.testing.assert_array_equal(words[0].allowed(used), pairs.allowed(used))
            if size < 2:
                assert words[1].allowed(used).tolist() == (sorted(used) or list(range(5)))


@every_kind
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_every_way_to_a_leaf_is_of_features_that_may_interact(dataset, kind, name):
    model = train(
        dataset, interaction_constraints=CONSTRAINTS[name], n_estimators=40, max_leaves=12,
        verbose=0, **KINDS[kind],
    )  # fmt: skip
    paths = paths_of(model)
    for path in paths:
        assert any(path <= one for one in LARGEST[name]), path
    assert max(map(len, paths)) >= 2
    free = paths_of(train(dataset, n_estimators=5, verbose=0, **KINDS[kind]))
    holds = {path for path in free if any(path <= one for one in LARGEST[name])}
    assert (holds == free) == (name == "all")  # the data does not see to it


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_xgboost_allows_the_same_interactions(dataset, name):
    xgboost = pytest.importorskip("xgboost")
    X, y = make_rows()
    how = {
        "interaction_constraints": str(CONSTRAINTS[name]),
        "max_depth": 8,
        "eta": 0.3,
        "nthread": 1,
    }
    booster = xgboost.train(how, xgboost.DMatrix(X, y), 60)
    theirs = set()

    def visit(node, used):
        if "leaf" in node:
            theirs.add(used)
            return
        for child in node["children"]:
            visit(child, used | {int(node["split"].removeprefix("f"))})

    for tree in booster.get_dump(dump_format="json"):
        visit(json.loads(tree), frozenset())
    model = train(
        dataset, interaction_constraints=CONSTRAINTS[name], n_estimators=200, max_leaves=31,
        min_child_weight=1, l2=1, learning_rate=0.3, verbose=0,
    )  # fmt: skip
    assert largest(theirs) == set(map(frozenset, LARGEST[name]))
    assert largest(paths_of(model)) == largest(theirs)


@every_kind
def test_constraints_by_word_name_number_and_container_are_the_same(dataset, kind):
    how = {"n_estimators": 5, "max_leaves": 8, "verbose": 0, **KINDS[kind]}
    pairs = list(combinations(range(D), 2))
    alone = [{j} for j in range(D)]
    for word, sets in (("pairwise", pairs), ("no_interactions", alone)):
        model = train(dataset, interaction_constraints=word, **how)
        assert max(map(len, paths_of(model))) == 1 + (word == "pairwise")
        assert_same_trees(model, train(dataset, interaction_constraints=sets, **how))
    first = train(dataset, interaction_constraints=[["f0", "f1"], ["f2", "f3"]], **how)
    for sets in (
        [[2, 3], [1, 0]],
        ({"f0", 1}, frozenset({2, "f3"})),
        np.array([[0, 1], [2, 3]]),
        [np.array([0, 1], np.uint8), ("f2", "f3", "f2")],
    ):
        assert_same_trees(first, train(dataset, interaction_constraints=sets, **how))
    free = train(dataset, **how)
    assert_same_trees(free, train(dataset, interaction_constraints=[range(D)], **how))


def test_constraints_of_categories_hold():
    rng = np.random.default_rng(0)
    kind, sort = rng.integers(0, 8, (2, 6_000))
    x = rng.normal(size=6_000)
    y = (kind % 3 - 1) * (sort % 2) + x * (kind > 3) + 0.3 * rng.normal(size=6_000) > 0
    table = pa.table({"kind": kind.astype(str), "sort": sort.astype(str), "x": x})
    data = ingest(table, label=y, verbose=0)
    model = train(data, interaction_constraints=[["kind", "sort"]], n_estimators=20, verbose=0)
    assert largest(paths_of(model)) == {frozenset({0, 1}), frozenset({2})}


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        ([["f0", "age"]], "interaction_constraints: no feature is called 'age'; the data has f0, "),
        ([[0, 6]], "interaction_constraints: there is no feature 6; the data has features 0 to 5"),
        ([[0, -1]], "there is no feature -1"),
        ([], "the list is empty; give None for no constraints, or 'no_interactions'"),
        ([[0], []], "[] is not a list of features"),
        (["f0", "f1"], "'f0' is not a list of features; give lists of names or numbers"),
        ([0, 1], "0 is not a list of features"),
        ("pairs", "give a list of lists of features, or 'pairwise' or 'no_interactions'"),
        ({"f0": "f1"}, "give a list of lists"),
        ([{"f0": 1}], "{'f0': 1} is not a list"),
        ([[0, 1.0]], "1.0 is not a feature; give names or numbers"),
        ([[True]], "True is not a feature"),
        ([[None]], "None is not a feature"),
    ],
)
def test_constraints_that_mean_nothing_are_refused(dataset, sets, says):
    with pytest.raises(DataError) as error:
        train(dataset, interaction_constraints=sets, verbose=0)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_wide_table_is_not_listed_in_full():
    data = ingest(np.arange(200.0).reshape(10, 20), label=np.arange(10) % 2, verbose=0)
    with pytest.raises(DataError, match=r"f0, f1, .*, f7, \.\.\. \(20 features\)\."):
        train(data, interaction_constraints=[["x"]], verbose=0)
