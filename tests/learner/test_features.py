"""Which features a leaf may be split on: the draws, and models that were grown with them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2
from sklearn.base import clone

from builders import assert_same_trees, clean, forbid_endless_scans
from constants import set_constants
from sparrowboost import DataError, Model, SparrowClassifier, cv, ingest, train
from sparrowboost.learner.events import TreeAdded
from sparrowboost.learner.features import FeatureDraws, share_of
from sparrowboost.learner.interactions import Interactions
from sparrowboost.learner.scanner import Scanner
from sparrowboost.store.views import folds

KINDS = {
    "whole": {},
    "drawn": {"sample_size": 3_000, "theta": 0.8},
    "paper": {"loss": "exponential", "stopping": "paper"},
    "paper-drawn": {
        "loss": "exponential", "stopping": "paper", "sample_size": 3_000, "theta": 0.8,
    },
}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS)
COMMON = {
    "n_estimators": 20, "max_leaves": 8, "learning_rate": 0.3, "random_state": 3, "verbose": 0,
}  # fmt: skip
D = 12


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Runs of a drawn sample are extended a few times, as those of a large one are."""
    set_constants(monkeypatch, sample_block_rows=256, start_values=256)
    forbid_endless_scans(monkeypatch)


def make_rows(n=8_000, d=D, seed=0):
    """Features that all matter, the first more than the last, with an interaction."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    score = X @ np.linspace(1, 0.3, d) + X[:, 0] * X[:, 1]
    return X, score + rng.normal(size=n) > 0


@pytest.fixture(scope="module")
def dataset():
    X, y = make_rows()
    return ingest(X, label=y, verbose=0)


def model_of(dataset, kind, **more):
    return train(dataset, **{**COMMON, **KINDS[kind], **more})


def nodes_of(tree):
    """Number, features of the splits above, and feature of each node, as draws count nodes."""
    found = []

    def visit(node, number, used):
        if node < 0:
            return
        feature = int(tree.feature[node])
        found.append((number, used, feature))
        right, left = tree.child[node]
        visit(int(left), 2 * node + 1, used | {feature})
        visit(int(right), 2 * node + 2, used | {feature})

    if len(tree.feature):
        visit(0, 0, frozenset())
    return found


# -- draws ----------------------------------------------------------------------------------------

shares = st.floats(0.01, 1) | st.sampled_from([0.1, 0.2, 0.3, 0.5, 0.7, 1.0])


@given(st.integers(1, 2_000), st.integers(1, 2_000))
def test_a_share_that_is_a_whole_number_of_features_is_not_rounded_up(n, k):
    assert share_of(n, min(k, n) / n) == min(k, n)


@given(st.integers(1, 60), shares, shares, st.integers(0, 2**64 - 1), st.integers(0, 10**5))
def test_a_tree_and_its_leaves_have_their_shares_of_the_features(d, bytree, bynode, seed, tree):
    draws = FeatureDraws(d, bytree=bytree, bynode=bynode, seed=seed)
    features = next(draws.of_tree(tree))
    assert len(features.features) == share_of(d, bytree)
    again = next(FeatureDraws(d, bytree=bytree, bynode=bynode, seed=seed).of_tree(tree))
    for number in (7, 0, 1):
        leaf = features.of_leaf(number, frozenset())
        assert leaf.dtype == np.int64
        assert len(leaf) == share_of(share_of(d, bytree), bynode)
        assert (np.diff(leaf) > 0).all()
        assert np.isin(leaf, features.features).all()
        # However often, and after whichever other leaf, it is asked for.
        np.testing.assert_array_equal(leaf, features.of_leaf(number, frozenset()))
        np.testing.assert_array_equal(leaf, again.of_leaf(number, frozenset()))


@given(st.integers(1, 30), shares, shares, st.integers(0, 10**5))
def test_each_feature_is_one_of_the_root_before_a_tree_is_given_up(d, bytree, bynode, tree):
    draws = FeatureDraws(d, bytree=bytree, bynode=bynode, seed=1)
    roots = [features.of_leaf(0, frozenset()) for features in draws.of_tree(tree)]
    assert set(np.concatenate(roots).tolist()) == set(range(d))
    of_tree = share_of(d, bytree)
    assert len(roots) == math.ceil(d / of_tree) * math.ceil(of_tree / share_of(of_tree, bynode))


def draws_of(what, n, d, share):
    """(n, d) bool: which features n trees, leaves or roots have."""
    chosen = np.zeros((n, d), bool)
    for k in range(n):
        if what == "trees":
            features = next(FeatureDraws(d, bytree=share, seed=5).of_tree(k)).features
        elif what == "roots":
            root = next(FeatureDraws(d, bynode=share, seed=5).of_tree(k))
            features = root.of_leaf(0, frozenset())
        elif what == "leaves":
            tree = next(FeatureDraws(d, bynode=share, seed=5).of_tree(3))
            features = tree.of_leaf(k, frozenset())
        else:
            features = next(FeatureDraws(d, bytree=share, seed=k).of_tree(0)).features
        chosen[k, features] = True
    return chosen


@pytest.mark.parametrize("what", ["trees", "roots", "leaves", "seeds"])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_all_features_get_their_turn(what, share):
    n, d = 3_000, 30
    chosen = draws_of(what, n, d, share)
    assert (chosen.sum(1) == share_of(d, share)).all()
    # A feature's count has variance n p (1 - p); counts have a fixed sum, so that the sum of
    # squares in units of n p (1 - p) d / (d - 1) is chi-square with d - 1 degrees of freedom.
    square = ((chosen.sum(0) - n * share) ** 2).sum() / (n * share * (1 - share) * d / (d - 1))
    assert chi2.ppf(1e-6, d - 1) < square < chi2.isf(1e-6, d - 1)
    # One draw says nothing of the next: m of d twice have m**2 / d in common on average, with the
    # variance of a hypergeometric number, m p (1 - p) (d - m) / (d - 1). 5 standard errors.
    m = share_of(d, share)
    common = (chosen[1:] & chosen[:-1]).sum(1)
    error = math.sqrt(m * share * (1 - share) * d / (d - 1) / (n - 1))
    assert abs(common.mean() - m * share) < 5 * error


def test_constraints_come_before_the_draw_of_a_leaf():
    sets = tuple(frozenset(pair) for pair in ((0, 1, 2, 3, 4, 5), (4, 9)))
    draws = FeatureDraws(20, bynode=0.5, interactions=Interactions(20, sets))
    tree = next(draws.of_tree(0))
    assert len(tree.of_leaf(0, frozenset())) == 10
    below = tree.of_leaf(1, frozenset({4}))
    assert len(below) == 4  # half of 0 ... 5 and 9
    assert set(below.tolist()) <= {0, 1, 2, 3, 4, 5, 9}
    assert tree.of_leaf(1, frozenset({15})).tolist() == [15]


# -- models ---------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize(("bytree", "bynode"), [(0.3, 1.0), (1.0, 0.3), (0.5, 0.4), (0.01, 1.0)])
def test_every_split_is_of_the_features_of_its_tree_and_leaf(dataset, kind, bytree, bynode):
    how = {"colsample_bytree": bytree, "colsample_bynode": bynode}
    model = model_of(dataset, kind, **how)
    assert model.n_trees == COMMON["n_estimators"]
    draws = FeatureDraws(D, bytree=bytree, bynode=bynode, seed=COMMON["random_state"])
    seen, splits = set(), 0
    for k, tree in enumerate(model.trees):
        features = next(draws.of_tree(k))  # every feature matters: no tree is given up
        for number, used, feature in nodes_of(tree):
            assert feature in features.of_leaf(number, used)
            seen.add(feature)
            splits += 1
    assert splits > COMMON["n_estimators"]
    assert len(seen) > (5 if bytree < 0.1 else 9)


@every_kind
def test_shares_of_one_change_nothing(dataset, kind):
    free = model_of(dataset, kind)
    assert_same_trees(free, model_of(dataset, kind, colsample_bytree=1, colsample_bynode=1.0))
    # 0.99 of 12 features, rounded up, are all of them.
    assert_same_trees(free, model_of(dataset, kind, colsample_bytree=0.99, colsample_bynode=0.99))


@every_kind
def test_the_model_with_drawn_features_depends_on_the_seed_and_not_on_threads(
    dataset, kind, monkeypatch
):
    set_constants(monkeypatch, part_values=1)  # as many parts as there can be
    how = {"colsample_bytree": 0.5, "colsample_bynode": 0.5}
    one, two = (model_of(dataset, kind, n_jobs=n, **how) for n in (1, 2))
    assert_same_trees(one, two)
    other = model_of(dataset, kind, random_state=4, **how)
    used = [tree.feature.tolist() for tree in one.trees]
    assert used != [tree.feature.tolist() for tree in other.trees]


class CrashError(Exception):
    pass


def crash_at(tree):
    def callback(event):
        if isinstance(event, TreeAdded) and event.n_trees == tree:
            raise CrashError

    return callback


@every_kind
def test_a_training_that_resumes_draws_the_same_features(dataset, kind, tmp_path, monkeypatch):
    set_constants(monkeypatch, save_seconds=0.0)
    how = {
        "colsample_bytree": 0.5,
        "colsample_bynode": 0.6,
        "interaction_constraints": [["f0", "f1", 2], range(2, D)],
    }
    straight = model_of(dataset, kind, **how)
    for tree in (2, 5, 13):
        with pytest.raises(CrashError):
            model_of(dataset, kind, checkpoint=tmp_path, callbacks=[crash_at(tree)], **how)
    # The same sets in another order, of names, are the same arguments.
    how["interaction_constraints"] = [[f"f{k}" for k in range(D - 1, 1, -1)], {2, 1, 0}]
    events = []
    resumed = model_of(dataset, kind, checkpoint=tmp_path, callbacks=[events.append], **how)
    assert events[0].n_trees > 0, "began anew"
    features = dataset.binning.features
    cleaned = [Model(m.binning, m.classes, m.loss, m.base_score) for m in (straight, resumed)]
    for k, model in enumerate((straight, resumed)):
        for tree in model.trees:
            cleaned[k] = cleaned[k].with_tree(clean(tree, features))
    assert_same_trees(*cleaned)
    for name, value in (
        ("colsample_bytree", 1.0),
        ("colsample_bynode", 0.5),
        ("interaction_constraints", "pairwise"),
    ):
        with pytest.raises(DataError, match=rf"other parameters \({name} was"):
            model_of(dataset, kind, checkpoint=tmp_path, **{**how, name: value})


@every_kind
def test_a_draw_of_nothing_but_noise_does_not_end_training(kind):
    # Only one of 30 features matters, and a tree has two of them.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6_000, 30))
    X[:, 20:] = 0  # no split at all
    y = X[:, 7] + 0.5 * rng.normal(size=6_000) > 0
    data = ingest(X, label=y, verbose=0)
    for bytree, bynode in ((0.05, 1.0), (1.0, 0.05), (0.2, 0.2)):
        model = model_of(
            data, kind, colsample_bytree=bytree, colsample_bynode=bynode, n_estimators=10
        )
        assert model.n_trees == 10
        if kind != "whole":  # the first tree stands out from noise
            assert 7 in model.trees[0].feature


def test_further_draws_do_not_make_trees_of_noise():
    # Each of ten seeds may show a tree with a chance of about NOISE_CHANCE = 0.001.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(8_000, 20))
    data = ingest(X, label=rng.random(8_000) < 0.5, verbose=0)
    for seed in range(10):
        model = model_of(data, "drawn", colsample_bytree=0.1, random_state=seed)
        assert model.n_trees == 0


def test_monotone_constraints_hold_with_drawn_features(dataset):
    model = model_of(
        dataset, "whole", colsample_bytree=0.7, colsample_bynode=0.7, n_estimators=40,
        monotone_constraints={"f0": 1, "f1": 1}, interaction_constraints="pairwise",
    )  # fmt: skip
    rows, _ = make_rows(50, seed=1)
    for j in (0, 1):
        grid = np.repeat(rows, 100, axis=0)
        grid[:, j] = np.tile(np.linspace(-4, 4, 100), len(rows))
        steps = np.diff(model.decision_function(grid).reshape(-1, 100), axis=1)
        assert (steps >= 0).all()
        assert any((tree.feature == j).any() for tree in model.trees)


def test_columns_in_bundles_are_drawn_like_others():
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 10, 5_000)
    X = np.column_stack((rng.normal(size=(5_000, 2)), np.eye(10)[kind]))
    y = X[:, 0] + np.isin(kind, [1, 4, 7]) + 0.3 * rng.normal(size=5_000) > 0.5
    data = ingest(X, label=y, verbose=0)
    model = model_of(
        data, "whole", colsample_bytree=0.5, colsample_bynode=0.7,
        interaction_constraints=[[0, 3, 6, 9]],
    )  # fmt: skip
    draws = FeatureDraws(
        12, bytree=0.5, bynode=0.7, seed=COMMON["random_state"],
        interactions=Interactions(12, (frozenset({0, 3, 6, 9}),)),
    )  # fmt: skip
    for k, tree in enumerate(model.trees):
        of_tree = [features.of_leaf for features in draws.of_tree(k)]
        nodes = nodes_of(tree)
        assert any(all(f in leaf(number, used) for number, used, f in nodes) for leaf in of_tree)


@every_kind
def test_columns_that_a_tree_may_not_use_are_not_summed_and_not_missed(dataset, kind, monkeypatch):
    summed = []
    start = Scanner.start

    def noted(self, forest, n_trees, features=None):
        tree = start(self, forest, n_trees, features)
        summed.append(len(self._columns))
        return tree

    how = {"colsample_bytree": 0.3, "colsample_bynode": 0.8}
    with monkeypatch.context() as patch:
        patch.setattr(Scanner, "start", noted)
        some = model_of(dataset, kind, **how)
    assert set(summed) == {4, 5}  # 4 of 12, and the first, which tells what a leaf weighs
    monkeypatch.setattr(Scanner, "_columns_of", lambda self, features: None)
    assert_same_trees(some, model_of(dataset, kind, **how))


@pytest.mark.parametrize("loss", ["logistic", "exponential"])
def test_bundles_without_a_column_of_the_tree_are_not_summed(loss, monkeypatch):
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 10, (2, 5_000))
    X = np.column_stack((rng.normal(size=(5_000, 3)), *np.eye(10)[kind]))
    y = X[:, 1] + np.isin(kind, [1, 4, 7]).sum(0) + 0.3 * rng.normal(size=5_000) > 0.5
    data = ingest(X, label=y, verbose=0)
    how = {"colsample_bytree": 0.05, "n_estimators": 60, "loss": loss}
    some = model_of(data, "whole", **how)
    monkeypatch.setattr(Scanner, "_columns_of", lambda self, features: None)
    assert_same_trees(some, model_of(data, "whole", **how))


# -- other ways to train --------------------------------------------------------------------------


def test_cross_validation_draws_features_as_training_on_each_fold_does(dataset):
    how = {"n_estimators": 6, "colsample_bytree": 0.4, "colsample_bynode": 0.5}
    result = cv(dataset, n_folds=3, verbose=0, **how)
    for (rows, valid), curve in zip(folds(dataset, 3, 0), result.scores["log_loss"], strict=True):
        events = []
        train(rows, valid=valid, callbacks=[events.append], verbose=0, **how)
        scores = [event.scores["log_loss"] for event in events if isinstance(event, TreeAdded)]
        assert scores == curve.tolist()


def test_an_estimator_and_its_clone_draw_the_same_features():
    X, y = make_rows(2_000)
    how = {
        "colsample_bytree": 0.5,
        "colsample_bynode": 0.5,
        "interaction_constraints": [["f0", 1], ["f2", "f3"]],
    }
    clf = SparrowClassifier(n_estimators=8, random_state=0, **how).fit(X, y)
    assert {name: clone(clf).get_params()[name] for name in how} == how
    assert_same_trees(clf.model_, clone(clf).fit(X, y).model_)
    data = ingest(X, label=y, random_state=0, verbose=0)
    assert_same_trees(clf.model_, train(data, n_estimators=8, verbose=0, **how))


def test_a_model_of_drawn_features_is_exported_as_any_other(dataset, tmp_path):
    xgboost = pytest.importorskip("xgboost")
    model = model_of(
        dataset, "whole", colsample_bytree=0.5, colsample_bynode=0.5,
        interaction_constraints="pairwise",
    )  # fmt: skip
    model.to_xgboost(tmp_path / "m.json")
    booster = xgboost.Booster(model_file=tmp_path / "m.json")
    X, _ = make_rows(500, seed=2)
    data = xgboost.DMatrix(X.astype(np.float32), feature_names=list(model.feature_names))
    expected = model.predict_proba(X.astype(np.float32))[:, 1]
    np.testing.assert_allclose(booster.predict(data), expected, atol=1e-6)
