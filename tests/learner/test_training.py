from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow.csv
import pytest
from sklearn.metrics import roc_auc_score

import sparrowboost.learner.scanner
import sparrowboost.learner.training
import sparrowboost.model.losses
from builders import assert_same_trees, forbid_endless_scans, listen
from constants import set_constants
from sparrowboost import DataError, MemoryLimitError, StoreError, ingest, train
from sparrowboost.learner.events import Converged, Finished, SampleDrawn, TreeAdded
from sparrowboost.learner.params import Params
from sparrowboost.learner.planning import plan_training, round_down
from sparrowboost.readers.labels import MAX_WEIGHT
from sparrowboost.runtime.memory import parse_size

KINDS = [("logistic", "adaptive"), ("exponential", "adaptive"), ("exponential", "paper")]
every_kind = pytest.mark.parametrize(("loss", "stopping"), KINDS)


def make_table(n, seed=0, d=5, noise=1.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    score = X[:, 0] + X[:, 1] * (X[:, 2] > 0) - 1 + noise * rng.normal(size=n)
    return X, score > 0


@pytest.fixture(scope="module")
def dataset():
    X, y = make_table(20_000)
    return ingest(X, label=y, verbose=0)


@pytest.fixture(scope="module")
def test_rows():
    return make_table(20_000, seed=1)


@pytest.fixture(autouse=True)
def no_hanging(monkeypatch):
    forbid_endless_scans(monkeypatch)


def trees_of(events):
    return [event for event in events if isinstance(event, TreeAdded)]


def auc_of(model, rows):
    return roc_auc_score(rows[1], model.decision_function(rows[0]))


# -- the same model again -------------------------------------------------------------------------


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("sample_size", ["auto", 3_000])
def test_the_same_seed_gives_the_same_model_whatever_the_threads(
    dataset, loss, stopping, sample_size, monkeypatch
):
    set_constants(monkeypatch, sample_block_rows=512, part_values=2_000)  # several parts for each
    kwargs = {"loss": loss, "stopping": stopping, "sample_size": sample_size, "theta": 0.9}
    kwargs |= {"n_estimators": 25, "max_leaves": 8, "learning_rate": 0.3, "random_state": 4}
    first, events = listen(dataset, n_jobs=1, **kwargs)
    assert first.n_trees > 10
    if sample_size != "auto":
        assert events[-1].n_samples > 2, "no sample was drawn again: this tests less than it should"
    for n_jobs in (1, 2, 3):
        assert_same_trees(first, train(dataset, n_jobs=n_jobs, verbose=0, **kwargs))


def test_another_seed_gives_another_model_of_another_sample(dataset):
    a, b = (
        train(dataset, sample_size=3_000, n_estimators=3, random_state=seed, verbose=0)
        for seed in (1, 2)
    )
    assert [tree.value.tobytes() for tree in a.trees] != [tree.value.tobytes() for tree in b.trees]
    whole = [train(dataset, n_estimators=3, random_state=seed, verbose=0) for seed in (1, 2)]
    assert_same_trees(*whole)


# -- how good the model is ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("sample_size", ["auto", 4_000])
def test_file_sorted_by_label_trains_as_well_as_shuffled(test_rows, sample_size):
    # An AUC of 20,000 rows has a deviation of 0.0025, the same for both models; what is left is
    # which rows a sample of 4,000 had: about sqrt(20000 / 4000) of that, for each of the two.
    X, y = make_table(20_000)
    order = np.lexsort((X[:, 0], y))
    aucs = [
        auc_of(
            train(ingest(X[rows], label=y[rows], verbose=0), sample_size=sample_size,
                  n_estimators=40, max_leaves=8, verbose=0),
            test_rows,
        )
        for rows in (np.arange(20_000), order)
    ]  # fmt: skip
    assert min(aucs) > 0.8
    assert abs(aucs[0] - aucs[1]) < 0.015


@pytest.mark.slow
@every_kind
def test_a_sample_trains_about_as_well_as_all_rows(dataset, test_rows, loss, stopping):
    kwargs = {"loss": loss, "stopping": stopping, "n_estimators": 40, "max_leaves": 8}
    whole, drawn = (
        auc_of(train(dataset, sample_size=size, verbose=0, **kwargs), test_rows)
        for size in (10**6, 5_000)
    )
    assert whole > 0.8
    assert drawn > whole - 0.03


# -- awkward data ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kdd(tmp_path_factory):
    """Every 25th row of a table full of duplicates, nearly separable."""
    from conftest import SHARED

    if not (SHARED / "kdd99_10pct.csv.gz").is_file():
        pytest.skip(f"needs the shared data sets, and there is no {SHARED}")
    table = pyarrow.csv.read_csv(SHARED / "kdd99_10pct.csv.gz")
    return ingest(table.take(np.arange(0, len(table), 25)), label="y", verbose=0)


@every_kind
@pytest.mark.parametrize("sample_size", ["auto", 3_000])
def test_duplicates_and_separable_rows_neither_overflow_nor_hang(kdd, loss, stopping, sample_size):
    with np.errstate(all="raise", under="ignore"):
        model, events = listen(
            kdd, loss=loss, stopping=stopping, sample_size=sample_size, n_estimators=60,
            learning_rate=0.5,
        )  # fmt: skip
    assert model.n_trees >= 1
    for tree in model.trees:
        assert np.isfinite(tree.value).all()
        assert np.isfinite(tree.gain).all()
    assert all(np.isfinite(event.n_eff) for event in events)
    some = [kdd.read_block(kdd.blocks_of(label)[0]) for label in (0, 1)]
    bins, label = (np.concatenate(parts) for parts in zip(*(b[:2] for b in some), strict=True))
    score = np.full(len(label), model.base_score, np.float32)
    from sparrowboost.kernels.scores import apply_trees

    apply_trees(bins, *model.forest.arrays, 0, model.n_trees, score)
    assert np.isfinite(score).all()
    assert roc_auc_score(label, score) > 0.99


def small(kind):
    rng = np.random.default_rng(0)
    if kind == "two rows":
        return np.array([[0.0], [1.0]]), np.array([0, 1])
    if kind == "all alike":
        return np.ones((500, 3)), np.arange(500) % 2
    if kind == "one feature":
        x = rng.normal(size=(600, 1))
        return x, x[:, 0] + rng.normal(size=600) > 0
    if kind == "constant features":
        x = np.column_stack((np.zeros(600), rng.normal(size=600), np.full(600, 7.0)))
        return x, x[:, 1] > 0
    x = rng.normal(size=(50, 3))
    return x, x.sum(1) > 0


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("sample_size", ["auto", 40])
@pytest.mark.parametrize(
    "kind", ["two rows", "all alike", "one feature", "constant features", "fifty rows"]
)
def test_small_and_dull_data_is_trained_on_to_the_end(kind, loss, stopping, sample_size):
    X, y = small(kind)
    dataset = ingest(X, label=y, verbose=0)
    model, events = listen(
        dataset, loss=loss, stopping=stopping, sample_size=sample_size, n_estimators=30,
        max_leaves=1_500 if kind == "fifty rows" else 31,
    )  # fmt: skip
    assert isinstance(events[-1], Finished)
    assert np.isfinite(model.decision_function(X)).all()
    if kind == "all alike":
        assert isinstance(events[-1], Converged)
        assert model.n_trees == 0
    if kind == "constant features":
        assert all((tree.feature == 1).all() for tree in model.trees)
    if stopping == "adaptive" and sample_size == "auto" and kind not in ("two rows", "all alike"):
        assert roc_auc_score(y, model.decision_function(X)) > 0.75


@pytest.mark.parametrize("sample_size", [1, 2, 3, 10])
def test_a_sample_of_hardly_any_rows_is_no_reason_to_fail(dataset, sample_size):
    for seed in range(5):
        _, events = listen(dataset, sample_size=sample_size, n_estimators=5, random_state=seed)
        assert isinstance(events[-1], Finished)


# -- weights of rows ------------------------------------------------------------------------------


def few_values(n=800, seed=0):
    """A table whose features have few values: they have bins of their own whatever the rows."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 6, (n, 3)).astype(float)
    return X, rng.random(n) < 0.2 + 0.1 * (X[:, 0] > 2) + 0.3 * (X[:, 1] < 2)


def assert_like_trees(a, b):
    """The same splits, and values that differ by rounding."""
    assert a.n_trees == b.n_trees > 0
    for one, other in zip(a.trees, b.trees, strict=True):
        np.testing.assert_array_equal(one.feature, other.feature)
        np.testing.assert_array_equal(one.child, other.child)
        np.testing.assert_allclose(one.value, other.value, rtol=1e-4, atol=1e-6)


def many_kinds(n, seed):
    """Numbers, some missing, more of them than bins for large n; whole numbers and words."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(n, 4)), columns=[f"x{j}" for j in range(4)])
    frame.loc[rng.random(n) < 0.1, "x1"] = np.nan
    frame["few"], frame["word"] = rng.integers(0, 5, n), rng.choice(list("abcdefghij"), n)
    odds = frame["x0"] + frame["x1"].fillna(1) + 1.5 * frame["word"].isin(list("acd"))
    return frame, (odds + rng.normal(size=n) > 0).to_numpy()


@pytest.mark.slow
@pytest.mark.parametrize("n", [40, 500, 3_000])
def test_a_row_of_weight_k_is_k_rows(n):
    for seed in range(3):
        X, y = many_kinds(n, seed)
        rng = np.random.default_rng([n, seed])
        count, order = rng.integers(0, 5, n), rng.permutation(n)
        rows = np.repeat(np.arange(n), count)
        for max_leaves in (4, 31):
            how = {"n_estimators": 30, "max_leaves": max_leaves, "verbose": 0}
            data = ingest(X.iloc[order], label=y[order], weight=count[order], verbose=0)
            weighted = train(data, **how)
            repeated = train(ingest(X.iloc[rows], label=y[rows], verbose=0), **how)
            np.testing.assert_array_equal(
                weighted.decision_function(X), repeated.decision_function(X)
            )


@pytest.mark.slow
def test_weights_that_are_no_counts_tell_proportions():
    X, y = many_kinds(2_000, 0)
    w = np.random.default_rng(1).integers(1, 5, 2_000)

    def scores(weight):
        data = ingest(X, label=y, weight=weight, verbose=0)
        return train(data, n_estimators=20, verbose=0).decision_function(X)

    for factor in (0.125, 1024.0):
        np.testing.assert_array_equal(scores(factor * w), scores(w / 4096))
    assert np.abs(scores(w) - scores(w / 4096)).max() > 0.01


def test_the_order_of_rows_does_not_matter():
    X, y = many_kinds(2_000, 2)
    order = np.random.default_rng(3).permutation(2_000)
    how = {"n_estimators": 30, "max_leaves": 31, "verbose": 0}
    a = train(ingest(X, label=y, verbose=0), **how)
    b = train(ingest(X.iloc[order], label=y[order], verbose=0), **how)
    np.testing.assert_array_equal(a.decision_function(X), b.decision_function(X))


@pytest.mark.parametrize("loss", ["logistic", "exponential"])
def test_the_unit_of_weights_does_not_matter(loss):
    X, y = few_values()
    u = np.random.default_rng(1).lognormal(size=800)
    a, b = (
        train(ingest(X, label=y, weight=unit * u, verbose=0), n_estimators=5, loss=loss, verbose=0)
        for unit in (1, 1024)
    )
    assert_like_trees(a, b)


@pytest.mark.parametrize("loss", ["logistic", "exponential"])
def test_rows_of_weight_zero_are_ignored(loss):
    X, y = few_values()
    used = np.arange(800) % 3 > 0
    strange = np.where(used, y, ~y)  # what they say must not matter
    with_them = ingest(X, label=strange, weight=used.astype(float), verbose=0)
    without = ingest(X[used], label=y[used], verbose=0)
    kwargs = {"n_estimators": 5, "max_leaves": 8, "loss": loss, "verbose": 0}
    model = train(with_them, **kwargs)
    assert np.isfinite(model.decision_function(X)).all()
    assert_like_trees(model, train(without, **kwargs))


def test_rows_of_weight_zero_are_never_drawn():
    X, y = make_table(5_000)
    used = np.arange(5_000) % 3 > 0
    dataset = ingest(X, label=np.where(used, y, ~y), weight=used.astype(float), verbose=0)
    model, events = listen(dataset, sample_size=1_500, n_estimators=30, theta=0.9)
    assert events[-1].n_samples > 1
    assert auc_of(model, (X[used], y[used])) > 0.8


def test_a_label_without_any_weight_is_refused():
    X, y = few_values()
    dataset = ingest(X, label=y, weight=np.where(y, 1.0, 0.0), verbose=0)
    with pytest.raises(DataError, match="one label have weight 0"):
        train(dataset, verbose=0)


# -- categories -----------------------------------------------------------------------------------


def test_categories_that_mean_nothing_do_more_harm_without_the_charge():
    rng = np.random.default_rng(0)
    x, word = rng.normal(size=16_000), rng.integers(0, 200, 16_000).astype(str)
    frame, y = pd.DataFrame({"x": x, "word": word}), x + rng.logistic(size=16_000) > 0
    data, test = ingest(frame[:8_000], label=y[:8_000], verbose=0), (frame[8_000:], y[8_000:])
    charged, free = (
        auc_of(train(data, category_penalty=charge, n_estimators=40, verbose=0), test)
        for charge in (1.0, 0.0)
    )
    assert charged > free + 0.005


# -- events ---------------------------------------------------------------------------------------


@every_kind
def test_events_tell_how_training_goes(dataset, loss, stopping):
    model, events = listen(
        dataset, loss=loss, stopping=stopping, sample_size=4_000, n_estimators=30, theta=0.8,
        max_leaves=6,
    )  # fmt: skip
    assert isinstance(events[0], SampleDrawn)
    assert events[0].reason == "first"
    assert type(events[-1]) is Finished
    assert events[-1].reason == "n_estimators"
    trees = trees_of(events)
    assert [event.n_trees for event in trees] == list(range(1, 31))
    assert trees[-1].model.trees == model.trees
    for event in trees:
        assert 0 <= event.gamma_certified <= event.gamma <= 0.5
        assert 0 <= event.n_proved <= event.n_rules == len(event.model.trees[-1].feature)
        assert event.run_rows > 0
        assert event.scores == {}
    for before, after in pairwise(events):
        for name in ("n_trees", "seconds", "rows_scanned", "rows_read", "rows_kept", "n_samples"):
            assert getattr(after, name) >= getattr(before, name), name
        assert (after.rows_scanned > before.rows_scanned) == isinstance(after, TreeAdded)
    for event in events:
        assert 0 < event.n_eff <= event.sample_rows * 1.0001
        assert event.sample_rows <= 4_100
        assert event.rows_read >= event.rows_kept
    drawn = [event for event in events if isinstance(event, SampleDrawn)]
    assert [event.n_samples for event in drawn] == list(range(1, len(drawn) + 1))
    assert {event.reason for event in drawn[1:]} <= {"n_eff", "rules", "no split stands out"}
    assert len(drawn) > 1


def test_numbers_of_events_are_plain_numbers_that_json_takes(dataset):
    _, events = listen(dataset, sample_size=4_000, n_estimators=2)
    for event in events:
        names = [field.name for field in fields(event) if field.name != "model"]
        json.dumps({name: getattr(event, name) for name in names})


def test_training_on_all_rows_draws_once_and_reads_every_row_for_every_tree(dataset):
    _, events = listen(dataset, n_estimators=4)
    assert [type(event) for event in events] == [SampleDrawn, *[TreeAdded] * 4, Finished]
    assert [event.rows_scanned for event in trees_of(events)] == [20_000 * k for k in (1, 2, 3, 4)]
    assert events[-1].sample_rows == events[-1].rows_read == 20_000


def test_a_sample_teaches_only_so_many_rules(dataset, monkeypatch):
    set_constants(monkeypatch, rows_per_rule=100)
    # A thirtieth of the full rate, a fifth of these rows: some 220 rules for each sample.
    _, events = listen(dataset, sample_size=4_000, n_estimators=90, learning_rate=0.01)
    reasons = [event.reason for event in events if isinstance(event, SampleDrawn)]
    assert reasons.count("rules") >= 2


def test_training_on_noise_in_samples_converges_and_says_so():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (20_000, 1)).astype(float)
    dataset = ingest(X, label=rng.random(20_000) < 0.5, verbose=0)
    _, events = listen(dataset, sample_size=4_000, n_estimators=200, max_leaves=4)
    assert isinstance(events[-1], Converged)
    assert events[-1].reason == "converged"


@pytest.mark.slow
def test_samples_grow_while_fresh_rows_say_that_they_are_too_small(monkeypatch):
    # Not "all rows, once": as if there were too many of them.
    set_constants(monkeypatch, whole_values=1_000, first_rows=500)
    X, y = make_table(20_000, noise=2.0)
    _, events = listen(ingest(X, label=y, verbose=0), n_estimators=200, learning_rate=0.3)
    rows = [event.sample_rows for event in events if isinstance(event, SampleDrawn)]
    assert rows[0] == pytest.approx(500, abs=5)
    assert rows[-1] > 1_500
    # A draw may come out some rows smaller than it was asked to be.
    assert all(after > 0.9 * before for before, after in pairwise(rows))


def test_a_callback_that_returns_true_ends_training(dataset):
    seen = []

    def stop(event):
        seen.append(event)
        return event.n_trees == 3

    model = train(dataset, callbacks=[lambda event: None, stop], verbose=0)
    assert model.n_trees == 3
    assert type(seen[-1]) is Finished
    assert seen[-1].reason == "callback"


def test_a_callback_may_return_what_comparing_an_events_numbers_gives(dataset):
    def stop(event):
        return isinstance(event, TreeAdded) and event.gamma_certified >= 0

    assert train(dataset, callbacks=[stop], n_estimators=5, verbose=0).n_trees == 1


def test_a_callback_may_end_training_when_a_sample_is_drawn(dataset):
    def stop(event):
        return isinstance(event, SampleDrawn) and event.n_samples == 2

    events = []
    model = train(
        dataset, callbacks=[events.append, stop], sample_size=3_000, theta=0.9, n_estimators=60,
        verbose=0,
    )  # fmt: skip
    assert events[-1].n_samples == 2
    assert model.n_trees < 60


def test_an_error_in_a_callback_ends_training_and_leaves_nothing_behind(dataset, tmp_path):
    def fail(event):
        if event.n_samples == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(dataset, callbacks=[fail], sample_size=3_000, theta=0.9, scratch=tmp_path, verbose=0)
    assert list(tmp_path.iterdir()) == []


# -- memory, scratch and compiling ----------------------------------------------------------------


@pytest.mark.parametrize("sample_size", ["auto", 10_000])
def test_a_memory_limit_that_is_too_small_is_refused_with_one_that_will_do(dataset, sample_size):
    kwargs = {"sample_size": sample_size, "n_estimators": 2, "verbose": 0}
    with pytest.raises(MemoryLimitError, match="memory_limit 20 MB is too small") as error:
        train(dataset, memory_limit="20MB", **kwargs)
    enough = re.search(r"give at least ([\d.]+ [KMG]B)\.", str(error.value))[1]
    assert train(dataset, memory_limit=enough, **kwargs).n_trees == 2


def test_what_does_not_fit_as_a_whole_is_sampled(dataset, monkeypatch):
    monkeypatch.setattr(sparrowboost.learner.planning, "held", lambda: 500_000_000)
    set_constants(monkeypatch, min_rows=1_000)
    params = Params.make()
    # All 20,000 rows take 25 bytes each, their bins twice; two samples with a tenth to spare, and
    # their estimate, 49.
    roomy = plan_training(dataset, params, 10**9, n_jobs=2)
    assert roomy.sizes.whole
    spare = roomy.budget.total - roomy.budget.parts["all rows"]
    _, events = listen(dataset, memory_limit=spare + 20_000 * 25 - 1, n_estimators=3, n_jobs=2)
    # The next step below that; the rows drawn are as many to within a few.
    rows = round_down(20_000 * 25 // 49)
    assert rows == 9_741 and events[0].sample_rows == pytest.approx(rows, rel=0.01)
    _, events = listen(dataset, memory_limit=spare + 20_000 * 25, n_estimators=3, n_jobs=2)
    assert events[0].sample_rows == 20_000


@pytest.mark.parametrize(("limit", "spread"), [("330MB", 1_000_000), ("1GB", 20_000_000)])
def test_samples_do_not_depend_on_the_last_bytes_that_the_process_holds(
    dataset, monkeypatch, limit, spread
):
    set_constants(monkeypatch, whole_values=0)
    monkeypatch.setattr(dataset.storage, "n_rows", 50_000_000)
    sizes = set()
    for more in np.linspace(0, spread, 9).astype(int).tolist():
        monkeypatch.setattr(
            sparrowboost.learner.planning, "held", lambda more=more: 233_000_000 + more
        )
        sizes.add(plan_training(dataset, Params.make(), parse_size(limit), n_jobs=2).sizes)
    assert len(sizes) == 1 and not sizes.pop().whole


def test_a_sample_is_as_large_as_was_asked_for_if_that_fits(dataset, monkeypatch):
    monkeypatch.setattr(dataset.storage, "n_rows", 50_000_000)
    for rows in (300_000, 1_234_567):
        sizes = plan_training(dataset, Params.make(sample_size=rows), 10**9, n_jobs=2).sizes
        assert sizes.first == sizes.most == rows


def test_a_scratch_folder_that_cannot_be_written_is_named(dataset):
    with pytest.raises(StoreError, match="/proc: cannot write scratch data"):
        train(dataset, scratch="/proc", sample_size=3_000, theta=0.9, verbose=0)


COMPILED = """
import json
import sys
import numpy as np
import sparrowboost
from sparrowboost.kernels import draws, evidence, partition, scores, splits
from sparrowboost.kernels._cache import KernelCache
from sparrowboost.learner.warm_up import warm_up

def compiled():
    kernels = {
        name: kernel
        for module in (draws, evidence, partition, scores, splits)
        for name, kernel in vars(module).items()
        # What kernels call is a part of them, and not compiled where they are loaded.
        if isinstance(getattr(kernel, "_cache", None), KernelCache) and not name.startswith("_")
    }
    return {name: len(kernel.signatures) for name, kernel in kernels.items()}

how = json.loads(sys.argv[1])
warm_up(some_columns="colsample_bytree" in how)
found = [compiled()]
rng = np.random.default_rng(0)
X = rng.normal(size=(8_000, 3))
y = X[:, 0] + rng.normal(size=8_000) > 0
for weight in (None, rng.random(8_000)):
    dataset = sparrowboost.ingest(X, label=y, weight=weight, verbose=0)
    for loss, stopping in (("logistic", "adaptive"), ("exponential", "adaptive"),
                           ("exponential", "paper")):
        for sample_size in ("auto", 1_000):
            model = sparrowboost.train(dataset, loss=loss, stopping=stopping, theta=0.9,
                                       sample_size=sample_size, n_estimators=15, max_leaves=4,
                                       valid=(X, y), verbose=0, **how)
sparrowboost.train(dataset, monotone_constraints=[1, 0, 0], n_estimators=5, verbose=0, **how)
model.predict_proba(X)
found.append(compiled())
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"colsample_bynode": 0.5, "interaction_constraints": [[0, 1]]},
        {"colsample_bytree": 0.4, "colsample_bynode": 0.5},
    ],
    ids=str,
)
def test_warming_up_compiles_each_kernel_once_and_training_none_again(how):
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, json.dumps(how)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    after_warm_up, after_training = json.loads(done.stdout)
    # Evidence of all columns and that of some are compiled apart.
    twice = ("add_rows", "add_curved_rows") if "colsample_bytree" in how else ()
    assert after_training == {name: 1 + (name in twice) for name in after_training}
    assert after_warm_up == after_training


@pytest.mark.parametrize("more", [{}, {"sample_size": 8_000, "theta": 0.8}])
@pytest.mark.parametrize("loss", ["logistic", "exponential"])
def test_the_largest_weights_are_trained_on(test_rows, loss, more):
    X, y = test_rows
    data = ingest(X, label=y, weight=np.full(len(y), MAX_WEIGHT), verbose=0)
    model = train(data, n_estimators=10, max_leaves=4, loss=loss, verbose=0, **more)
    assert model.n_trees == 10
    assert np.isfinite(model.decision_function(X)).all()
