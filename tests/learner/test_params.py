from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest

from sparrowboost import DataError, ingest, train
from sparrowboost.learner.params import Params

WRONG = {
    "n_estimators": (0, -1, 1.5, "10", None, True, np.nan),
    "learning_rate": (0, -0.1, np.inf, np.nan, "0.1", None, True),
    "max_leaves": (1, 0, -5, 2.0, "31", None, True),
    "max_depth": (0, -1, 1.5, "auto", True),
    "min_child_weight": (-1e-9, np.nan, np.inf, None, "1"),
    "l2": (-1, np.nan, np.inf, None),
    "category_penalty": (-0.1, np.nan, np.inf, None),
    "loss": ("hinge", "", None, 1),
    "alpha": (0, 1, -0.1, np.nan, "0.5", None, True),
    "power": (1, 2, 0.5, np.nan, "1.5", None, True),
    "base_score": ("0.5", np.nan, np.inf, True),
    "stopping": ("never", None, True),
    "sample_size": (0, -1, 0.5, "all", None, True),
    "theta": (0, 1, -0.5, 1.5, np.nan, None),
    "rho": (-0.1, 1, 2, np.nan, None),
    "sigma": (0, 1, -1, np.nan, None),
    "gamma_0": (0, 0.5, 1, np.nan, None),
    "monotone_constraints": (
        1,
        "x",
        {1},
        {"x": 2},
        {"x": None},
        [0, -2],
        [0.0],
        [1, True],
        ["1"],
        [[1]],
        np.array([[1]]),
        np.array([3]),
    ),
    "colsample_bytree": (0, -0.5, 1.01, np.nan, "1", None, True),
    "colsample_bynode": (0, -0.5, 1.01, np.nan, "1", None, True),
    "interaction_constraints": (1, "all", "", [], [[]], ["a"], [0], [[0.5]], [[True]], {"a": 1}),
    "early_stopping_rounds": (0, -1, 1.5, "10", True),
    "eval_metric": ("precision", "", None, ["auc"]),
}


def test_every_parameter_has_wrong_values_to_be_tried():
    assert set(WRONG) == {field.name for field in fields(Params)}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_a_wrong_value_is_refused_and_its_parameter_named(name, value):
    with pytest.raises(DataError) as error:
        Params.make(**{name: value})
    assert str(error.value).startswith(f"{name}={value!r}")


@pytest.mark.parametrize(
    "right",
    [
        {},
        {"n_estimators": np.int64(7), "max_leaves": np.uint8(2), "sample_size": np.int32(10)},
        {"learning_rate": np.float32(0.5), "l2": 0, "min_child_weight": 0, "rho": 0},
        {"max_depth": None, "early_stopping_rounds": None, "sample_size": "auto"},
        {"max_depth": 1, "early_stopping_rounds": 1, "sample_size": 1, "learning_rate": 3},
        {"loss": "exponential", "stopping": "paper", "gamma_0": 0.49},
        {"monotone_constraints": None},
        {"monotone_constraints": {"a": 1, "b": -1, "c": 0}},
        {"monotone_constraints": [np.int8(1), 0, -1]},
        {"colsample_bytree": 1, "colsample_bynode": np.float32(0.01)},
        {"interaction_constraints": "pairwise"},
        {"interaction_constraints": [["a", "b"], (0, np.int64(3)), {"c"}, range(2)]},
    ],
)
def test_a_right_value_is_taken_as_it_is(right):
    params = Params.make(**right)
    for name, value in right.items():
        assert getattr(params, name) == value


def test_an_unknown_parameter_is_refused_with_those_there_are():
    with pytest.raises(
        DataError, match=r"unknown parameter 'n_trees'; the parameters are n_estimators, .*"
    ):
        Params.make(n_trees=10)


@pytest.mark.parametrize("make", [Params, Params.make])
def test_an_old_name_works_and_warns(make):
    with pytest.warns(DeprecationWarning, match="is now called category_penalty") as caught:
        params = make(category_charge=0.5)
    assert caught[0].filename == __file__
    assert params == make(category_penalty=0.5)
    with pytest.warns(DeprecationWarning):
        assert params.category_charge == 0.5
    with pytest.raises(DataError, match="pass only category_penalty"):
        make(category_charge=0.5, category_penalty=0.5)
    with pytest.raises(AttributeError, match="no_such"):
        _ = params.no_such


def test_the_paper_rule_asks_for_the_loss_that_it_is_about():
    with pytest.raises(DataError, match="pass loss='exponential'"):
        Params.make(stopping="paper")
    with pytest.raises(DataError, match="pass loss='exponential'"):
        Params.make(stopping="paper", loss="logistic")


def test_parameters_never_change():
    with pytest.raises(FrozenInstanceError):
        Params().rho = 0.5


def test_train_checks_its_parameters_before_anything_else():
    dataset = ingest(np.arange(10.0)[:, None], label=np.arange(10) % 2, verbose=0)
    for wrong in ({"theta": 7}, {"n_jobs": 0}, {"n_tree": 3}):
        (name,) = wrong
        with pytest.raises(DataError, match=name):
            train(dataset, verbose=0, **wrong)
    with pytest.raises(DataError, match="takes a Dataset, got ndarray; call ingest first"):
        train(np.zeros((2, 2)), verbose=0)
    with pytest.raises(DataError, match="early_stopping_rounds needs validation data"):
        train(dataset, early_stopping_rounds=3, verbose=0)
