from __future__ import annotations

import json
import re
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_stump
from naive import find_leaf, make_mask
from sparrowboost import DataError, Model, ModelFileError, ingest, train
from sparrowboost.model.regression import (
    AbsoluteError,
    Gamma,
    Huber,
    Poisson,
    Quantile,
    SquaredError,
    Tweedie,
)
from sparrowboost.model.tree import TreeBuilder
from sparrowboost.model.xgboost_export import conditions, export_names
from sparrowboost.store.binning import Binning, CategoryFeature, NumberFeature

MAX = float(np.finfo(np.float32).max)
ULP = 2.0**-23  # of a float32, relative

# One feature of each kind, with thresholds where float32 numbers are scarce or end; but each bin
# has one.
EDGES = Binning(
    (
        NumberFeature("f32", "float32", np.array([-np.inf, -1.5, 0, 1e-45, 0.1, MAX], np.float32)),
        NumberFeature("f64", "float64", np.array([-1e300, -0.1, 0, 1e-40, 0.1, 1 / 3, 1e300])),
        NumberFeature("end", "float64", np.array([-np.inf, 0.5, MAX, np.inf])),
        NumberFeature("i64", "int64", np.array([-(2**62) - 1, -1, 0, 7, 2**24, 2**24 + 3, 2**60])),
        NumberFeature("u64", "uint64", np.array([0, 2**24 + 1, 2**63], np.uint64)),
        NumberFeature("time", "time", np.array([0, 1_700_000_000_000_000])),
        NumberFeature("none", "null", np.array([])),
        CategoryFeature("color", ("red", "grün", "blau", "")),
        CategoryFeature("empty", ()),
    )
)


@pytest.fixture(scope="module")
def xgboost():
    return pytest.importorskip("xgboost", reason="xgboost is not installed")


@pytest.fixture(scope="module")
def shap():
    return pytest.importorskip("shap", reason="shap is not installed")


def export(model, folder, xgboost, **options):
    path = folder / "x.json"
    model.to_xgboost(path, **options)
    return xgboost.Booster(model_file=path)


def margin(booster, frame, xgboost):
    return booster.predict(xgboost.DMatrix(frame), output_margin=True)


def assert_same_margins(booster, model, data, xgboost, frame=None):
    """XGBoost adds the same float32 numbers, in whatever order: each sum may round once more."""
    frame = model.xgboost_frame(data) if frame is None else frame
    expected = model.decision_function(data)
    largest = 2 * (abs(model.base_score) + sum(np.abs(tree.value).max() for tree in model.trees))
    atol = (model.n_trees + 1) * ULP * largest
    np.testing.assert_allclose(margin(booster, frame, xgboost), expected, rtol=0, atol=atol)


def random_split(rng, feature):
    """Bins that go left, as training chooses them: of numbers the first ones."""
    if isinstance(feature, CategoryFeature):
        return np.flatnonzero(rng.random(feature.n_values + 1) < 0.5).tolist()
    first = list(range(rng.integers(0, feature.n_values + 1)))
    return first + [feature.n_values] * int(rng.integers(2))


def random_model(binning, n_trees, seed=0, base_score=-0.25):
    """Random trees; leaves differ so much that a row in the wrong one shows."""
    rng = np.random.default_rng(seed)
    model = Model(binning, (0, 1), "logistic", base_score)
    for _ in range(n_trees):
        n = int(rng.integers(1, 12))
        builder = TreeBuilder(n)
        while builder.n_leaves < n:
            j = int(rng.integers(len(binning.features)))
            mask = make_mask(random_split(rng, binning.features[j]))
            builder.split(int(rng.integers(builder.n_leaves)), j, mask, 1.0)
        model = model.with_tree(builder.finish(rng.normal(size=n).astype(np.float32)))
    return model


def stumps(binning):
    """A model of one split at each threshold and of each category; each has a value of its own."""
    model = Model(binning, (0, 1), "logistic", 0.0)
    for j, feature in enumerate(binning.features):
        for b in range(feature.n_values):
            left = [b] if isinstance(feature, CategoryFeature) else range(b + 1)
            model = model.with_tree(make_stump(j, left, 1.0, -1.0))
    return model


def edge_values(feature, n, rng):
    """Values at the thresholds, their nearest neighbours in the column's own type, and others."""
    if isinstance(feature, CategoryFeature):
        return pa.array(rng.choice([*feature.categories, "mauve", "Red"], n).tolist(), pa.string())
    t = feature.thresholds
    if t.dtype.kind == "f":
        with np.errstate(over="ignore"):
            values = t, np.nextafter(t, -np.inf), np.nextafter(t, np.inf), [0.25, -3, MAX, -MAX]
            values = np.concatenate(values).astype(t.dtype)
    else:
        around = [int(x) + step for x in t for step in (-1, 0, 1)]
        info = np.iinfo(t.dtype)
        values = np.array([x for x in around if info.min <= x <= info.max] + [3, 10**9], t.dtype)
    return pa.array(rng.choice(values, n))


def edge_table(binning, n=2_000, seed=0):
    rng = np.random.default_rng(seed)
    columns = {}
    for feature in binning.features:
        values = edge_values(feature, n, rng)
        if feature.kind == "time":
            values = values.cast(pa.timestamp("us"))
        missing = pa.array(rng.random(n) < 0.1)
        columns[feature.name] = pc.if_else(missing, None, values)
    columns["none"] = pa.nulls(n)
    return pa.table(columns)


# -- numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("feature", EDGES.features[:7], ids=lambda feature: feature.name)
def test_every_float32_number_goes_left_of_a_condition_if_it_is_up_to_the_threshold(feature):
    for t, condition in zip(feature.thresholds, conditions(feature.thresholds), strict=True):
        assert condition.dtype == np.float32
        near = np.float32(float(t)) if abs(float(t)) < MAX else np.float32(np.sign(float(t)) * MAX)
        around = [near, np.float32(0), np.float32(-3), np.float32(1e10)]
        for direction in (np.inf, -np.inf):
            step = near
            for _ in range(4):
                with np.errstate(over="ignore"):
                    step = np.nextafter(step, np.float32(direction))
                around.append(step)
        inside = [x for x in around if abs(x) < MAX]  # the last one stands for all beyond
        assert len(inside) >= 6
        for x in inside:
            assert (x < condition) == (float(x) <= t.item()), (t, condition, x)


@pytest.mark.slow
def test_a_table_of_all_kinds_has_the_same_probabilities(xgboost, tmp_path):
    rng, n = np.random.default_rng(0), 100_000
    frame = pd.DataFrame(
        {
            "f32": rng.normal(size=n).astype(np.float32),
            "f64": rng.normal(size=n),
            "few": rng.integers(0, 50, n),
            "large": rng.integers(-(2**62), 2**62, n),
            "log": np.where(rng.random(n) < 0.2, -np.inf, rng.normal(size=n)),
            "time": pd.Timestamp("2024-01-01")
            + pd.to_timedelta(rng.integers(0, 10**6, n), unit="s"),
            "color": rng.choice(["red", "green", "grün", "grau"], n),
            "many": rng.zipf(1.3, n).clip(max=2_000).astype(str),
        }
    )
    y = frame["f64"] + frame["f32"] + (frame["color"] == "grün") + (frame["log"] == -np.inf)
    y += frame["large"] / 2**62 + frame["few"] / 50 + (frame["time"] > "2024-01-06")
    y = y + (frame["many"].astype(int) % 5 == 1) + rng.normal(size=n) > 2
    for name in ("f32", "f64", "log", "time", "color", "many"):
        frame.loc[rng.random(n) < 0.1, name] = None
    dataset = ingest(frame, label=y, category_statistics=False, verbose=0)
    model = train(dataset, n_estimators=40, verbose=0)
    used = np.concatenate([tree.feature for tree in model.trees])
    assert set(used) == set(range(8))
    booster = export(model, tmp_path, xgboost)
    values = model.xgboost_frame(frame)
    assert values.shape == (n, 8) and set(values.dtypes) == {np.dtype(np.float32)}
    assert_same_margins(booster, model, frame, xgboost, values)
    expected = model.predict_proba(frame)
    np.testing.assert_allclose(
        booster.predict(xgboost.DMatrix(values)), expected[:, 1], rtol=0, atol=1e-6
    )
    classifier = xgboost.XGBClassifier()
    classifier.load_model(tmp_path / "x.json")
    np.testing.assert_allclose(classifier.predict_proba(values), expected, rtol=0, atol=1e-6)
    # So do rows of categories that were not there in training.
    frame["many"] = "new"
    assert_same_margins(booster, model, frame, xgboost)


def test_numbers_that_float32_holds_may_be_given_as_they_are(xgboost, tmp_path):
    rng, n = np.random.default_rng(1), 100_000
    frame = pd.DataFrame(
        {
            "a": rng.normal(size=n).astype(np.float32),
            "b": rng.integers(-300, 300, n) / 16,
            "c": rng.integers(0, 2**24, n),
            "d": rng.integers(0, 3, n).astype(np.int8),
        }
    )
    y = frame["a"] * frame["b"] + frame["c"] / 2**20 + rng.normal(size=n) > 8
    frame.loc[rng.random(n) < 0.2, ["a", "b"]] = np.nan
    model = train(ingest(frame, label=y, verbose=0), n_estimators=40, verbose=0)
    booster = export(model, tmp_path, xgboost)
    assert booster.feature_names == ["a", "b", "c", "d"]
    assert_same_margins(booster, model, frame, xgboost, frame)
    expected = model.decision_function(frame)
    given_as_array = booster.inplace_predict(frame.to_numpy(), predict_type="margin")
    np.testing.assert_allclose(given_as_array, expected, rtol=0, atol=1e-4)


def test_values_at_a_threshold_and_next_to_it_go_where_they_should(xgboost, tmp_path):
    model, table = stumps(EDGES), edge_table(EDGES)
    booster = export(model, tmp_path, xgboost)
    leaves = booster.predict(xgboost.DMatrix(model.xgboost_frame(table)), pred_leaf=True)
    bins = np.empty((table.num_rows, len(EDGES.features)), np.uint8)
    EDGES.apply(table.combine_chunks().to_batches()[0], bins)
    for t, tree in enumerate(model.trees):
        values = np.array([tree.value[find_leaf(tree, row)] for row in bins])
        # Each of XGBoost's leaves holds rows of one of ours.
        assert len({*zip(leaves[:, t].tolist(), values.tolist(), strict=True)}) <= 2, t
    assert_same_margins(booster, model, table, xgboost)


@pytest.mark.slow
@given(st.integers(0, 10**6), st.floats(-20, 20, width=32))
@settings(max_examples=25)
def test_any_model_is_the_same_in_xgboost(tmp_path_factory, xgboost, seed, base_score):
    model = random_model(EDGES, 12, seed, base_score)
    booster = export(model, tmp_path_factory.getbasetemp(), xgboost)
    assert_same_margins(booster, model, edge_table(EDGES, 300, seed), xgboost)


def test_infinite_values_are_given_as_the_largest_finite_ones(xgboost, tmp_path):
    binning = Binning(EDGES.features[:3])
    rows = np.array([[a, b, c] for a in (-np.inf, np.inf, 0) for b in (-np.inf, np.inf, np.nan)
                     for c in (-np.inf, np.inf, 1.0)])  # fmt: skip
    model = random_model(binning, 60)
    frame = model.xgboost_frame(rows)
    assert not np.isinf(frame.to_numpy()).any() and np.isnan(frame.to_numpy()).sum() == 9
    booster = export(model, tmp_path, xgboost)
    assert_same_margins(booster, model, rows, xgboost, frame)
    # Where XGBoost lets infinities pass, they go the same way, but for -inf where all numbers go
    # right: the threshold there is the lowest number, since tools do not read infinite ones.
    rows = rows[(rows != -np.inf).all(axis=1)]
    passed = booster.inplace_predict(rows.astype(np.float32), predict_type="margin")
    np.testing.assert_allclose(passed, model.decision_function(rows), rtol=0, atol=1e-4)


def test_no_number_in_an_exported_model_is_infinite(xgboost, tmp_path):
    model = random_model(EDGES, 60)
    dump = "".join(export(model, tmp_path, xgboost).get_dump(dump_format="json"))
    assert "missing" in dump and not re.search(r"\b(inf|nan)\b", dump, re.IGNORECASE)


def test_a_bin_without_a_float32_number_is_the_only_one_that_is_missed():
    binning = Binning((NumberFeature("x", "int64", np.array([2**40, 2**40 + 1, 2**41])),))
    frame = Model(binning, (0, 1), "logistic", 0.0).xgboost_frame(
        np.array([[2**40 - 1], [2**40], [2**40 + 1], [2**40 + 2], [2**41], [2**41 + 1]])
    )
    up = conditions(binning.features[0].thresholds)
    assert up[0] == up[1]
    places = np.searchsorted(up, frame["x"], "right")
    assert places.tolist() == [0, 0, 0, 2, 2, 3]  # the third is in bin 1, which holds no float32


# -- splits that XGBoost cannot express ----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["left", "right"])
@pytest.mark.parametrize("values", ["none", "all"])
@pytest.mark.parametrize("name", [feature.name for feature in EDGES.features])
def test_missing_values_can_be_told_from_all_others(xgboost, tmp_path, name, values, missing):
    j = EDGES.names.index(name)
    n = EDGES.features[j].n_values
    left = [*(range(n) if values == "all" else ()), *([n] if missing == "left" else ())]
    model = Model(EDGES, (0, 1), "logistic", 0.0).with_tree(make_stump(j, left, 1.0, -1.0))
    table = edge_table(EDGES, 200)
    assert_same_margins(export(model, tmp_path, xgboost), model, table, xgboost)


def test_numbers_split_at_more_than_one_threshold_are_refused(tmp_path):
    model = Model(EDGES, (0, 1), "logistic", 0.0)
    model = model.with_tree(make_stump(7, [0, 2], 1.0, -1.0))  # categories may have gaps
    model.to_xgboost(tmp_path / "x.json")
    model = model.with_tree(make_stump(1, [0, 2], 1.0, -1.0))
    with pytest.raises(ModelFileError, match=r"y\.json: in some tree the bins of 'f64' .* gaps"):
        model.to_xgboost(tmp_path / "y.json")
    assert not (tmp_path / "y.json").exists()


# -- base score --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("base_score", [-30.0, -3.1, 0.0, 0.1, 9.0, 30.0])
def test_the_base_score_loses_nothing(xgboost, tmp_path, base_score):
    table = edge_table(EDGES, 50)
    for n_trees in (0, 1, 5):
        model = random_model(EDGES, n_trees, base_score=base_score)
        booster = export(model, tmp_path, xgboost)
        assert booster.num_boosted_rounds() == max(n_trees, 1)
        expected = model.decision_function(table)
        got = margin(booster, model.xgboost_frame(table), xgboost)
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


def test_the_first_trees_of_both_models_are_the_same(xgboost, tmp_path):
    model, table = random_model(EDGES, 9), edge_table(EDGES, 200)
    booster, frame = export(model, tmp_path, xgboost), model.xgboost_frame(table)
    got = booster.predict(xgboost.DMatrix(frame), output_margin=True, iteration_range=(0, 4))
    np.testing.assert_allclose(got, model.decision_function(table, n_trees=4), atol=1e-5)
    assert_same_margins(export(model.first(4), tmp_path, xgboost), model.first(4), table, xgboost)


# -- models of numbers -------------------------------------------------------------------------


def number_model(loss, n_trees, base_score=0.7):
    trees = random_model(EDGES, n_trees, seed=3).trees
    return Model(EDGES, (), loss.name, base_score, trees, "y", loss.options)


@pytest.mark.parametrize(
    ("loss", "objective"),
    [
        (SquaredError(), {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}}),
        (AbsoluteError(), {"name": "reg:absoluteerror"}),
        (
            Huber(1.5),
            {"name": "reg:pseudohubererror", "pseudo_huber_param": {"huber_slope": "1.5"}},
        ),
        (
            Quantile(0.75),
            {"name": "reg:quantileerror", "quantile_loss_param": {"quantile_alpha": "[7.5E-1]"}},
        ),
        (Poisson(), {"name": "count:poisson"}),
        (Gamma(), {"name": "reg:gamma", "reg_loss_param": {"scale_pos_weight": "1"}}),
        (
            Tweedie(1.25),
            {"name": "reg:tweedie", "tweedie_regression_param": {"tweedie_variance_power": "1.25"}},
        ),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_predictions_of_numbers_are_the_same_in_xgboost(xgboost, tmp_path, loss, objective):
    table = edge_table(EDGES, 500)
    for n_trees in (0, 12):
        model = number_model(loss, n_trees)
        booster = export(model, tmp_path, xgboost, data=table)
        frame = model.xgboost_frame(table)
        matrix, expected = xgboost.DMatrix(frame), model.predict(table)
        # The same float32 numbers are added in the same order; only exp may round otherwise.
        rtol = 4 * ULP if loss.log_link else 0
        np.testing.assert_allclose(booster.predict(matrix), expected, rtol=rtol)
        regressor = xgboost.XGBRegressor()
        regressor.load_model(tmp_path / "x.json")
        np.testing.assert_allclose(regressor.predict(frame), expected, rtol=rtol)
    assert json.loads(booster.save_config())["learner"]["objective"].items() >= objective.items()
    # SHAP values add up to the score, and the expected one is the mean of the rows.
    shares = booster.predict(matrix, pred_contribs=True)
    score = np.log(expected) if loss.log_link else expected
    np.testing.assert_allclose(shares.sum(1), score, atol=1e-4)
    np.testing.assert_allclose(shares[:, -1], score.mean(), atol=1e-4)


# SHAP steps beyond the lowest float32, which is the threshold where all numbers go right.
STEPS = pytest.mark.filterwarnings("ignore:overflow encountered in nextafter:RuntimeWarning")


@STEPS
def test_shap_explains_models_of_numbers(xgboost, shap, tmp_path):
    model, table = number_model(Poisson(), 12), edge_table(EDGES, 300)
    explainer = shap.TreeExplainer(export(model, tmp_path, xgboost, data=table))
    got = explainer.shap_values(model.xgboost_frame(table)).sum(1) + explainer.expected_value
    np.testing.assert_allclose(got, np.log(model.predict(table)), atol=1e-4)


# -- names and files ---------------------------------------------------------------------------


def test_names_are_valid_in_xgboost_and_unique(xgboost, tmp_path):
    features = (
        NumberFeature("a[0]", "float64", np.array([0.0])),
        NumberFeature("a_0_", "float64", np.array([0.0])),
        NumberFeature("color (code)", "float64", np.array([0.0])),
        CategoryFeature("color", ("red",)),
        NumberFeature("x < 3", "float64", np.array([0.0])),
        NumberFeature("größe", "float64", np.array([0.0])),
    )
    binning = Binning(features)
    names = ["a_0_", "a_0__", "color (code)", "color (code)_", "x _ 3", "größe"]
    assert export_names(binning) == names
    model = random_model(binning, 20)
    table = pa.table(
        {f.name: ["red", "x"] if f.kind == "category" else [1.0, None] for f in features}
    )
    booster = export(model, tmp_path, xgboost)
    assert booster.feature_names == names == model.xgboost_frame(table).columns.tolist()
    assert booster.feature_types == ["float"] * 3 + ["c"] + ["float"] * 2
    assert_same_margins(booster, model, table, xgboost)


def test_a_frame_of_categories_is_not_taken_for_codes(xgboost, tmp_path):
    binning = Binning((CategoryFeature("color", ("red", "blue")),))
    model = Model(binning, (0, 1), "logistic", 0.0).with_tree(make_stump(0, [0], 1.0, -1.0))
    booster = export(model, tmp_path, xgboost)
    frame = pd.DataFrame({"color": pd.Categorical(["blue", "red"])})
    with pytest.raises(ValueError, match="feature_names mismatch"):
        booster.predict(xgboost.DMatrix(frame, enable_categorical=True))
    codes = model.xgboost_frame(pd.DataFrame({"color": ["blue", "red", "mauve", None]}))
    np.testing.assert_array_equal(codes["color (code)"], [1, 0, 2, np.nan])


def test_xgboost_writes_the_model_as_it_read_it(xgboost, tmp_path):
    model = random_model(EDGES, 10)
    booster = export(model, tmp_path, xgboost)
    booster.save_model(tmp_path / "again.json")
    ours, theirs = (
        json.loads((tmp_path / name).read_bytes())["learner"] for name in ("x.json", "again.json")
    )
    one, other = (part["gradient_booster"]["model"]["trees"] for part in (ours, theirs))
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        for key, value in a.items():
            if isinstance(value, list):
                np.testing.assert_array_equal(
                    np.array(b[key], np.float32), np.array(value, np.float32), key
                )
    assert theirs["objective"] == ours["objective"]
    assert theirs["feature_names"] == ours["feature_names"]
    assert len(booster.get_dump()) == 10  # XGBoost can say what it read


def test_the_file_name_must_end_in_json(tmp_path):
    with pytest.raises(ModelFileError, match=r"m\.ubj: .* end it in \.json"):
        random_model(EDGES, 1).to_xgboost(tmp_path / "m.ubj")
    with pytest.raises(ModelFileError, match=r"m\.json: cannot be written"):
        random_model(EDGES, 1).to_xgboost(tmp_path / "no" / "m.json")


def test_a_frame_needs_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(DataError, match="pip install pandas"):
        random_model(EDGES, 1).xgboost_frame(edge_table(EDGES, 5))


def test_a_frame_of_no_rows_and_one_that_lacks_a_column():
    model = random_model(EDGES, 1)
    frame = model.xgboost_frame(edge_table(EDGES, 5).slice(0, 0))
    assert frame.shape == (0, 9) and frame.columns.tolist() == export_names(EDGES)
    with pytest.raises(DataError, match="lacks column 'f64'"):
        model.xgboost_frame(edge_table(EDGES, 5).drop(["f64"]))


# -- cover and SHAP ----------------------------------------------------------------------------


def test_cover_counts_the_rows_that_are_given(xgboost, tmp_path):
    model, table = random_model(EDGES, 6), edge_table(EDGES, 500)
    booster = export(model, tmp_path, xgboost, data=table)
    frame = xgboost.DMatrix(model.xgboost_frame(table))
    leaves = booster.predict(frame, pred_leaf=True).reshape(500, 6).astype(int)
    trees = json.loads((tmp_path / "x.json").read_bytes())["learner"]["gradient_booster"]["model"]
    for t, tree in enumerate(trees["trees"]):
        cover, left = np.array(tree["sum_hessian"]), np.array(tree["left_children"])
        counts = np.bincount(leaves[:, t], minlength=len(cover))
        np.testing.assert_allclose(cover[left < 0], counts[left < 0], atol=1e-5)
        assert (cover > 0).all()
        for node in np.flatnonzero(left >= 0):
            np.testing.assert_allclose(cover[node], cover[left[node]] + cover[left[node] + 1])


@STEPS
def test_shap_values_add_up_to_the_margin(xgboost, shap, tmp_path):
    model, table = random_model(EDGES, 20), edge_table(EDGES, 500)
    frame = model.xgboost_frame(table)
    expected = model.decision_function(table)
    for data in (None, table):
        explainer = shap.TreeExplainer(export(model, tmp_path, xgboost, data=data))
        values = explainer.shap_values(frame)
        assert values.shape == (500, len(EDGES.features))
        got = values.sum(1) + explainer.expected_value
        np.testing.assert_allclose(got, expected, atol=1e-4)
    # Of the rows that gave the cover, the expected value is the mean.
    np.testing.assert_allclose(explainer.expected_value, expected.mean(), atol=1e-4)
    assert explainer(frame).feature_names == export_names(EDGES)


@STEPS
def test_shap_values_against_a_background_add_up_to_the_margin(xgboost, shap, tmp_path):
    # SHAP does this for models of numbers only.
    binning = Binning(EDGES.features[:2])
    model = random_model(binning, 20)
    table = edge_table(EDGES, 300).select(binning.names)
    frame = model.xgboost_frame(table)
    explainer = shap.TreeExplainer(export(model, tmp_path, xgboost), data=frame[:100])
    got = explainer.shap_values(frame).sum(1) + explainer.expected_value
    np.testing.assert_allclose(got, model.decision_function(table), atol=1e-4)
