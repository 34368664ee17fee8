"""Models, stores and checkpoints as an earlier version wrote them: they open, and come out again.

`python tests/learner/test_same_models.py` writes them again, for a change that is meant to change
models. The changelog then says which, and why.
"""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import numpy as np
import pytest

from builders import clean
from sparrowboost import Dataset, ingest, load_model, train
from sparrowboost.learner.events import TreeAdded

WRITTEN = Path(__file__).parents[1] / "data" / "written-by-0.1"
COMMON = {"n_estimators": 15, "max_leaves": 8, "verbose": 0}
DRAWN = {"sample_size": 6_000, "theta": 0.8, "learning_rate": 0.3}
STOPPED_AT = 20  # trees, of the run whose checkpoint was kept

# The same sums in another order of instructions, or another library's exp, end in other last bits.
SAME_MACHINE = platform.system() == "Linux" and platform.machine() == "x86_64"


def numbers(n, d, seed=0):
    """Rows, and the log odds of their labels; made by operations that are the same everywhere."""
    rng = np.random.default_rng(seed)
    X = np.floor(rng.random((n, d)) * 1024).astype(np.float32) / 1024
    X[:, -1] = rng.integers(0, 12, n)
    odds = 4 * X[:, 0] - 3 * X[:, 1] * X[:, 2] + (X[:, -1] % 3) - 1.5
    label = rng.random(n) < 1 / (1 + np.exp2(-odds))
    X[rng.random((n, d)) < 0.05] = np.nan
    return X, label


def one_hot(n):
    """A category of 12 values in as many columns, and two numbers."""
    X, label = numbers(n, 4)
    kind = np.nan_to_num(X[:, -1]).astype(int)
    return np.column_stack((X[:, :2], np.eye(12, dtype=np.float32)[kind])), label


def weights(n, whole):
    rng = np.random.default_rng(1)
    return rng.integers(1, 5, n).astype(np.float32) if whole else rng.random(n, np.float32) + 0.1


# name: rows, options of ingest, options of train
CASES = {
    "whole": (3_000, {"categorical": ["f4"]}, {}),
    "whole-counted-weights": (3_000, {"weight": True}, {"learning_rate": 0.3}),
    "whole-exponential": (3_000, {}, {"loss": "exponential", "max_depth": 3}),
    "whole-one-hot": (3_000, {}, {"learning_rate": 0.3}),
    "whole-monotone": (3_000, {}, {"monotone_constraints": {"f0": 1, "f1": -1}}),
    "drawn": (40_000, {"categorical": ["f4"]}, DRAWN),
    "drawn-weights": (40_000, {"weight": False}, DRAWN),
    "drawn-exponential": (40_000, {}, {**DRAWN, "loss": "exponential"}),
    "drawn-paper": (40_000, {}, {**DRAWN, "loss": "exponential", "stopping": "paper"}),
    "drawn-numbers": (40_000, {"categorical": ["f4"]}, DRAWN),
    "drawn-classes": (40_000, {"categorical": ["f4"]}, {**DRAWN, "n_estimators": 8}),
}


def trained(name):
    n, reading, how = CASES[name]
    X, label = one_hot(n) if "one-hot" in name else numbers(n, 5)
    reading = dict(reading)
    if name == "drawn-numbers":
        label, reading["task"] = np.nan_to_num(X[:, 0]) + label, "regression"
    if name == "drawn-classes":
        label = np.where(np.nan_to_num(X[:, 1]) > 0.8, "c", np.where(label, "a", "b"))
    if "weight" in reading:
        reading["weight"] = weights(n, reading["weight"])
    dataset = ingest(X, label=label, random_state=2, verbose=0, **reading)
    return train(dataset, random_state=3, **{**COMMON, **how})


def store_of(folder):
    X, label = numbers(8_000, 4)
    more = {"categorical": ["f3"], "weight": weights(8_000, whole=False)}
    return ingest(X, label=label, path=folder, verbose=0, **more)


def train_stored(dataset, checkpoint, callbacks=()):
    how = {"n_estimators": 30, "max_leaves": 6, "sample_size": 2_000, "theta": 0.8}
    return train(dataset, checkpoint=checkpoint, callbacks=callbacks, verbose=0, **how)


def assert_same(model, written):
    assert model.binning.to_json() == written.binning.to_json()
    assert model.n_trees == written.n_trees
    rel = 0 if SAME_MACHINE else 1e-12
    assert model.base_score == pytest.approx(written.base_score, rel=rel)
    for own, other in zip(model.trees, written.trees, strict=True):
        own, other = clean(own, model.binning.features), clean(other, model.binning.features)
        np.testing.assert_array_equal(own.feature, other.feature)
        np.testing.assert_array_equal(own.mask, other.mask)
        if SAME_MACHINE:
            np.testing.assert_array_equal(own.value, other.value)
            np.testing.assert_array_equal(own.gain, other.gain)
        else:
            np.testing.assert_allclose(own.value, other.value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_models_are_what_they_were(name):
    assert_same(trained(name), load_model(WRITTEN / f"{name}.json"))


def test_an_older_store_opens_and_has_the_same_rows(tmp_path):
    old, new = Dataset(WRITTEN / "store"), store_of(tmp_path / "store")
    assert old.binning.to_json() == new.binning.to_json() and old.classes == new.classes
    for a, b in zip(old.blocks(), new.blocks(), strict=True):
        for of_old, of_new in zip(a, b, strict=True):
            np.testing.assert_array_equal(of_old, of_new)


def test_an_older_checkpoint_is_gone_on_with(tmp_path):
    folder = tmp_path / "checkpoint"
    shutil.copytree(WRITTEN / "checkpoint", folder)
    seen = []
    model = train_stored(Dataset(WRITTEN / "store"), folder, [seen.append])
    begun = next(event.n_trees for event in seen if isinstance(event, TreeAdded))
    assert 1 < begun <= STOPPED_AT + 1  # not from the first tree on
    assert_same(model, load_model(WRITTEN / "resumed.json"))


class StopError(Exception):
    pass


def write_all():
    for folder in ("store", "checkpoint"):
        shutil.rmtree(WRITTEN / folder, ignore_errors=True)
    for name in CASES:
        trained(name).save_model(WRITTEN / f"{name}.json")
    dataset = store_of(WRITTEN / "store")
    train_stored(dataset, None).save_model(WRITTEN / "resumed.json")

    def stop(event):
        if isinstance(event, TreeAdded) and event.n_trees == STOPPED_AT:
            raise StopError

    try:
        train_stored(dataset, WRITTEN / "checkpoint", [stop])
    except StopError:
        (WRITTEN / "checkpoint" / "lock").unlink(missing_ok=True)


if __name__ == "__main__":
    write_all()
