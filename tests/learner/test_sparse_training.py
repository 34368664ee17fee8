from __future__ import annotations

import numpy as np
import pytest

from constants import set_constants
from sparrowboost import ingest, train
from sparrowboost.runtime.errors import DataError, MemoryLimitError
from sparrowboost.store.dataset import Dataset
from sparrowboost.views import folds, split
from sparse_tables import as_narrow, as_wide, words


@pytest.fixture
def wide(monkeypatch):
    as_wide(monkeypatch)
    return monkeypatch


def both(patch, matrix, label, **options):
    """The table stored packed, and with a byte for each feature."""
    packed = ingest(matrix, label=label, verbose=0, **options)
    with patch.context() as narrow:
        as_narrow(narrow)
        plain = ingest(matrix, label=label, bins_of=packed, verbose=0, **options)
    assert packed.packing is not None and plain.packing is None
    return packed, plain


def assert_same_trees(one, two, *, exact=True):
    assert len(one.trees) == len(two.trees) > 0
    for a, b in zip(one.trees, two.trees, strict=True):
        np.testing.assert_array_equal(a.feature, b.feature)
        np.testing.assert_array_equal(a.mask, b.mask)
        np.testing.assert_allclose(a.value, b.value, rtol=0 if exact else 1e-5)


def test_a_model_of_all_rows_is_that_of_plain_bins(wide):
    matrix, score = words()
    packed, plain = both(wide, matrix, score > 0)
    params = {"n_estimators": 15, "max_leaves": 8, "verbose": 0}
    assert_same_trees(train(packed, **params), train(plain, **params))


@pytest.mark.parametrize(
    "params",
    [
        {"stopping": "paper", "loss": "exponential"},
        {"loss": "exponential"},
        {"colsample_bytree": 0.3, "colsample_bynode": 0.5},
        {"monotone_constraints": {"f3": 1, "f17": -1}},
        {"interaction_constraints": [["f1", "f2", "f3"], ["f4", "f5", "f6", "f7"]]},
    ],
    ids=["paper", "exponential", "colsample", "monotone", "interactions"],
)
def test_options_of_training_do_as_with_plain_bins(wide, params):
    set_constants(wide, min_entries=1)
    matrix, score = words(1_500, 200)
    packed, plain = both(wide, matrix, score > 0)
    params = {"n_estimators": 6, "max_leaves": 6, "verbose": 0, **params}
    assert_same_trees(train(packed, **params), train(plain, **params))


def test_numbers_are_predicted_as_with_plain_bins(wide):
    matrix, score = words()
    packed, plain = both(wide, matrix, score, task="regression")
    for loss in ("squared_error", "absolute_error"):
        params = {"n_estimators": 6, "loss": loss, "verbose": 0}
        assert_same_trees(train(packed, **params), train(plain, **params), exact=False)


def test_classes_are_told_apart_as_with_plain_bins(wide):
    matrix, score = words()
    label = np.array(["low", "middle", "high"])[np.digitize(score, [-0.5, 0.7])]
    packed, plain = both(wide, matrix, label)
    params = {"n_estimators": 5, "verbose": 0}
    one, two = train(packed, **params), train(plain, **params)
    np.testing.assert_allclose(one.predict_proba(matrix), two.predict_proba(matrix), atol=1e-5)


def test_weights_and_offsets_do_as_with_plain_bins(wide):
    matrix, score = words(1_500, 200)
    rng = np.random.default_rng(0)
    more = {"weight": rng.integers(1, 4, 1_500), "offset": rng.normal(size=1_500)}
    packed, plain = both(wide, matrix, score > 0, **more)
    params = {"n_estimators": 6, "verbose": 0}
    assert_same_trees(train(packed, **params), train(plain, **params))


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classes", "numbers", "several"])
def test_draws_of_long_and_short_rows_learn(wide, task):
    set_constants(wide, whole_values=1_000, first_rows=4_000, tail_share=10_000)
    matrix, score = words(30_000, 300)
    fresh, truth = words(5_000, 300, seed=1)
    params = {"n_estimators": 25, "learning_rate": 0.3, "max_leaves": 8, "verbose": 0}
    if task == "numbers":
        ds = ingest(matrix, label=score, task="regression", verbose=0)
        model = train(ds, **params)
        error = np.mean((model.predict(fresh) - truth) ** 2) / truth.var()
        assert error < 0.8
        return
    label = score > 0 if task == "classes" else np.digitize(score, [-1, 1]).astype(str)
    ds = ingest(matrix, label=label, verbose=0)
    assert ds.packing.shape.tailed and len(ds.packing.tails.words) > 1_000
    model = train(ds, **params)
    chance = model.predict_proba(fresh)
    if task == "classes":
        p = np.clip(np.where(truth > 0, chance[:, 1], chance[:, 0]), 1e-9, 1)
        assert -np.log(p).mean() < 0.62
    else:
        guess = np.array(model.classes)[chance.argmax(1)]
        assert (guess == np.digitize(truth, [-1, 1]).astype(str)).mean() > 0.5


def test_a_draw_gives_the_same_model_for_any_number_of_threads(wide):
    set_constants(wide, whole_values=1_000, first_rows=2_000, part_values=1 << 10)
    matrix, score = words(6_000, 200)
    ds = ingest(matrix, label=score > 0, verbose=0)
    params = {"n_estimators": 8, "max_leaves": 6, "verbose": 0}
    digests = {train(ds, n_jobs=n, **params).digest for n in (1, 2, 3)}
    assert len(digests) == 1


def test_training_goes_on_from_a_checkpoint(wide, tmp_path):
    set_constants(wide, whole_values=1_000, first_rows=2_000, save_seconds=0)
    matrix, score = words(6_000, 200)
    ds = ingest(matrix, label=score > 0, path=tmp_path / "store", verbose=0)
    params = {"n_estimators": 10, "max_leaves": 6, "verbose": 0}
    whole = train(ds, **params)

    def crash(event):
        if getattr(event, "n_trees", 0) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(ds, checkpoint=tmp_path / "saved", callbacks=[crash], **params)
    resumed = train(Dataset(tmp_path / "store"), checkpoint=tmp_path / "saved", **params)
    assert resumed.digest == whole.digest


def test_trees_are_added_to_a_model(wide):
    matrix, score = words(1_500, 200)
    ds = ingest(matrix, label=score > 0, verbose=0)
    model = train(ds, n_estimators=3, verbose=0)
    assert train(ds, n_estimators=2, init_model=model, verbose=0).n_trees == 5
    other, truth = words(1_500, 200, seed=2)
    more = ingest(other, label=truth > 0, bins_of=model, verbose=0)
    assert more.packing is not None
    assert train(more, n_estimators=2, init_model=model, verbose=0).n_trees == 5


def losses_of(data, valid, **params):
    seen = []
    train(
        data,
        valid=valid,
        n_estimators=5,
        verbose=0,
        callbacks=[lambda event: seen.append(getattr(event, "scores", None))],
        **params,
    )
    return [scores["log_loss"] for scores in seen if scores]


def test_validation_rows_are_scored_as_with_plain_bins(wide):
    matrix, score = words()
    packed, plain = both(wide, matrix, score > 0)
    other, truth = words(1_000, seed=1)
    kept = {f"f{j}" for j in range(matrix.shape[1])} - set(packed.feature_names)
    assert kept  # columns that are no features
    losses = losses_of(packed, (other, truth > 0))
    assert len(losses) == 5
    np.testing.assert_allclose(losses, losses_of(plain, (other.toarray(), truth > 0)), rtol=1e-6)
    train_rows, valid_rows = split(packed, 0.2, 0)
    assert len(losses_of(train_rows, valid_rows)) == 5


def test_parts_of_a_packed_data_set_are_packed(wide):
    matrix, score = words(1_000, 200)
    ds = ingest(matrix, label=score > 0, verbose=0)
    rows = 0
    for part, held_out in folds(ds, 3):
        model = train(part, n_estimators=2, verbose=0)
        assert model.n_trees == 2
        rows += len(held_out)
    assert rows == 1_000
    balanced = train(ds, n_estimators=2, class_weight="balanced", verbose=0)
    assert balanced.n_trees == 2


def test_a_limit_that_is_too_small_is_refused_with_one_that_suffices(wide):
    matrix, score = words(1_500, 200)
    ds = ingest(matrix, label=score > 0, verbose=0)
    with pytest.raises(MemoryLimitError, match="is too small"):
        train(ds, memory_limit="1MB", verbose=0)


def test_rows_cannot_be_appended_to_a_packed_store(wide, tmp_path):
    matrix, score = words(1_000, 200)
    ingest(matrix, label=score > 0, path=tmp_path / "store", verbose=0)
    with pytest.raises(DataError, match=r"packed .* ingest old and new rows together"):
        ingest(matrix, label=score > 0, append=tmp_path / "store", verbose=0)
