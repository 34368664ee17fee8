"""Training with offsets and with a base score: what other trainings give the same trees."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from constants import set_constants
from sparrowboost import DataError, Params, cv, evaluate, ingest, train
from sparrowboost.learner.events import SampleDrawn, TreeAdded
from sparrowboost.learner.starting import start_model
from sparrowboost.model.losses import get_loss
from sparrowboost.model.regression import REGRESSION_LOSSES, Huber
from sparrowboost.store.views import folds, split, with_class_weight

N, D = 6_000, 4
FEW = {"n_estimators": 8, "max_leaves": 6, "verbose": 0}
DRAWN = {"sample_size": 3_000, "max_leaves": 4, "n_estimators": 15, "theta": 0.9, "verbose": 0}


@pytest.fixture(scope="module", name="X")
def values():
    return np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)


@pytest.fixture(scope="module")
def exposure():
    return np.random.default_rng(1).uniform(0.05, 4, N)


@pytest.fixture(scope="module")
def counts(X, exposure):
    rate = np.exp(-0.5 + 0.5 * X[:, 0] + 0.5 * X[:, 1] * (X[:, 2] > 0))
    return np.random.default_rng(2).poisson(exposure * rate).astype(np.float64)


@pytest.fixture(scope="module")
def claims(X, exposure, counts):
    return ingest(X, label=counts, offset=np.log(exposure), task="regression", verbose=0)


@pytest.fixture(scope="module")
def clicks(X):
    odds = X[:, 0] + X[:, 1] * (X[:, 2] > 0)
    return np.random.default_rng(3).random(N) < 1 / (1 + np.exp(-odds))


@pytest.fixture(scope="module")
def log_odds(X):
    """Offsets that say half of what there is to say."""
    return (0.8 * X[:, 0] - 1).astype(np.float32)


@pytest.fixture(scope="module")
def offset_clicks(X, clicks, log_odds):
    return ingest(X, label=clicks, offset=log_odds, verbose=0)


def assert_nearly_same_trees(a, b):
    assert len(a.trees) == len(b.trees) > 0
    for tree, other in zip(a.trees, b.trees, strict=True):
        assert tree.feature.tolist() == other.feature.tolist()
        assert (tree.mask == other.mask).all()
        np.testing.assert_allclose(tree.value, other.value, rtol=2e-5, atol=2e-6)


def assert_same_trees(trees, others):
    """The same bit by bit."""
    assert len(trees) == len(others) > 0
    for tree, other in zip(trees, others, strict=True):
        for name, array in vars(tree).items():
            np.testing.assert_array_equal(array, getattr(other, name))


# -- offsets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "power"),
    [("poisson", 1), ("tweedie", 1.4), ("gamma", 2)],
    ids=["poisson", "tweedie", "gamma"],
)
def test_exposures_as_offsets_are_rates_weighted_by_a_power_of_the_exposure(
    X, exposure, counts, claims, loss, power
):
    # With exposure e: g = (y / e) (e f)**(1 - p) ... = e**(2 - p) times that of the rate y / e.
    y = counts + 0.5 if loss == "gamma" else counts
    how = {"task": "regression", "bins_of": claims, "verbose": 0}
    options = {"loss": loss, "power": power} if loss == "tweedie" else {"loss": loss}
    a = train(ingest(X, label=y, offset=np.log(exposure), **how), **options, **FEW)
    b = train(
        ingest(X, label=y / exposure, weight=exposure ** (2 - power), **how), **options, **FEW
    )
    assert a.base_score == pytest.approx(b.base_score, abs=1e-6)
    assert_nearly_same_trees(a, b)
    rate = b.predict(X)
    np.testing.assert_allclose(a.predict(X, offset=False), rate, rtol=1e-5)
    np.testing.assert_allclose(a.predict(X, offset=np.log(exposure)), exposure * rate, rtol=1e-5)


def test_rates_learned_with_exposures_are_better_than_counts_without(X, exposure, counts, claims):
    model = train(claims, loss="poisson", n_estimators=30, verbose=0)
    without = ingest(X, label=counts, task="regression", verbose=0)
    blind = train(without, loss="poisson", n_estimators=30, verbose=0)
    offset = np.log(exposure)
    good = evaluate(model, X, label=counts, offset=offset, verbose=0)
    bad = evaluate(blind, X, label=counts, verbose=0)
    assert good.loss < 0.7 * bad.loss
    assert good.mean_prediction == pytest.approx(counts.mean(), rel=0.03)


@pytest.mark.parametrize("loss", ["squared_error", "absolute_error", "huber", "quantile"])
def test_an_offset_without_a_logarithm_is_taken_off_the_labels(X, loss):
    rng = np.random.default_rng(4)
    # Multiples of 1/16, so that sums and differences are exact.
    offset = rng.integers(-40, 40, N) / 16
    y = np.round(16 * (X[:, 0] + 0.5 * rng.normal(size=N))) / 16
    how = {"task": "regression", "verbose": 0}
    plain = ingest(X, label=y, **how)
    moved = ingest(X, label=y + offset, offset=offset, bins_of=plain, **how)
    a, b = train(moved, loss=loss, **FEW), train(plain, loss=loss, **FEW)
    assert a.loss_options == pytest.approx(b.loss_options)
    assert a.base_score == pytest.approx(b.base_score)
    np.testing.assert_allclose(a.predict(X, offset=False), b.predict(X), atol=2e-4)


@pytest.mark.parametrize("how", [FEW, DRAWN], ids=["all rows", "drawn"])
def test_the_same_offset_for_all_rows_is_a_base_score(X, clicks, how):
    plain = ingest(X, label=clicks, verbose=0)
    moved = ingest(X, label=clicks, offset=np.full(N, -1.25), verbose=0)
    base = 1 / (1 + np.exp(1.25))
    a, b = train(moved, base_score=0.5, **how), train(plain, base_score=base, **how)
    assert_nearly_same_trees(a, b)
    predicted = a.predict_proba(X, offset=np.full(N, -1.25))
    np.testing.assert_allclose(predicted, b.predict_proba(X), rtol=1e-5)


def test_offsets_that_are_the_scores_of_a_model_are_training_on(X):
    # All rows in memory. h is 1, so that an ordinary row weighs the same before the first model.
    y = X[:, 0] + X[:, 1] * (X[:, 2] > 0)
    plain = ingest(X, label=y, task="regression", verbose=0)
    first = train(plain, **FEW)
    both = train(plain, init_model=first, **FEW)
    moved = ingest(X, label=y, offset=first.predict(X), task="regression", verbose=0)
    second = train(moved, base_score=0.0, **FEW)
    assert_same_trees(second.trees, both.trees[first.n_trees :])
    assert (second.predict(X, offset=first.predict(X)) == both.predict(X)).all()


@pytest.mark.parametrize("loss", ["logistic", "exponential"])
def test_log_odds_of_a_model_as_offsets_are_training_on_also_on_a_drawn_sample(X, clicks, loss):
    # The first sample lasts for four stumps. Later ones are drawn from the strata in one case, and
    # from blocks that nothing was read of yet in the other.
    stumps = {"n_estimators": 4, "max_leaves": 2, "sample_size": 3_000, "verbose": 0}
    plain = ingest(X, label=clicks, verbose=0)
    first = train(plain, loss=loss, n_estimators=5, verbose=0)
    both = train(plain, init_model=first, **stumps)
    moved = ingest(X, label=clicks, offset=first.decision_function(X), verbose=0)
    second = train(moved, base_score=0.5, loss=loss, **stumps)
    assert second.n_trees == 4
    assert_same_trees(second.trees, both.trees[first.n_trees :])
    predicted = second.decision_function(X, offset=first.decision_function(X))
    assert (predicted == both.decision_function(X)).all()


def test_drawn_samples_learn_what_offsets_leave(X, exposure, counts, claims):
    samples = []
    model = train(
        claims,
        loss="poisson",
        **DRAWN | {"n_estimators": 40},
        callbacks=[lambda event: samples.append(event) if isinstance(event, SampleDrawn) else None],
    )
    assert len(samples) > 3
    whole = train(claims, loss="poisson", n_estimators=40, max_leaves=4, verbose=0)
    given = {"label": counts, "offset": np.log(exposure), "verbose": 0}
    constant = evaluate(whole.first(0), X, **given).loss
    gain = constant - evaluate(whole, X, **given).loss
    assert constant - evaluate(model, X, **given).loss > 0.7 * gain


class CrashError(Exception):
    pass


@pytest.mark.parametrize("what", ["counts", "clicks"])
def test_a_training_that_crashed_goes_on_to_the_same_model(
    claims, offset_clicks, what, tmp_path, monkeypatch
):
    set_constants(monkeypatch, chunk_rows=100)
    dataset = claims if what == "counts" else offset_clicks
    how = DRAWN | {"loss": "poisson" if what == "counts" else "auto", "random_state": 3}
    expected = train(dataset, **how)

    def crash(event):
        if isinstance(event, SampleDrawn) and event.n_samples == 4:
            raise CrashError

    with pytest.raises(CrashError):
        train(dataset, checkpoint=tmp_path, callbacks=[crash], **how)
    resumed = train(dataset, checkpoint=tmp_path, **how)
    assert resumed.digest == expected.digest
    assert resumed.offset_name == "offset"


def test_a_checkpoint_belongs_to_its_offsets_and_its_base_score(X, clicks, offset_clicks, tmp_path):
    train(offset_clicks, checkpoint=tmp_path, **FEW)
    with pytest.raises(DataError, match="other data"):
        train(ingest(X, label=clicks, verbose=0), checkpoint=tmp_path, **FEW)
    with pytest.raises(DataError, match=r"base_score was None, now 0\.5"):
        train(offset_clicks, checkpoint=tmp_path, base_score=0.5, **FEW)


def test_validation_rows_have_offsets_of_their_own(X, exposure, counts, claims):
    last = {}
    rows, valid = split(claims, 0.25)
    for name, given in (
        ("view", valid),
        ("arrays", (X, counts, None, np.log(exposure))),
        ("none", (X, counts, None, False)),
    ):

        def note(event, name=name):
            if hasattr(event, "scores"):
                last[name] = event.scores["loss"]

        model = train(rows, loss="poisson", valid=given, callbacks=[note], **FEW)
    given = {"label": counts, "verbose": 0}
    right = evaluate(model, X, offset=np.log(exposure), **given).loss
    assert last["arrays"] == pytest.approx(right, rel=1e-5)
    assert last["none"] == pytest.approx(evaluate(model, X, offset=False, **given).loss, rel=1e-5)
    blocks = [valid.read_block(k) for k in range(valid.n_blocks)]
    losses = [
        model.regression.losses(block.target, model.score(block.bins, block.offset))
        for block in blocks
    ]
    assert last["view"] == pytest.approx(np.concatenate(losses).mean(), rel=1e-5)


def test_validation_rows_without_the_offsets_of_the_training_are_refused(X, clicks, offset_clicks):
    with pytest.raises(DataError, match=r"lacks column 'offset', the offset with which"):
        train(offset_clicks, valid=(X, clicks), **FEW)
    other = ingest(X, label=clicks, bins_of=offset_clicks, verbose=0)
    with pytest.raises(DataError, match=r"has no offsets, and the training data has some"):
        train(offset_clicks, valid=other, **FEW)


def test_training_begins_with_offsets_before_all_rows_are_read(
    X, counts, exposure, tmp_path, monkeypatch
):
    set_constants(
        monkeypatch, min_staged_rows=1_000, n_stages=6, whole_values=100, large_sample=100,
        first_of_label=100, stage_worth=0.1, first_rows=1_000,
    )  # fmt: skip
    columns = {f"x{j}": X[:, j] for j in range(D)}
    table = pa.table({**columns, "log_e": np.log(exposure), "y": counts})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=200)
    given = {"label": "y", "offset": "log_e", "task": "regression", "verbose": 0}
    staged = ingest(tmp_path / "t.parquet", wait=False, **given)
    stages = []

    def note(event):
        if isinstance(event, TreeAdded):
            stages.append(len(staged.storage._stages))

    how = {"loss": "poisson", "n_estimators": 30, "max_leaves": 4, "verbose": 0}
    model = train(staged, callbacks=[note], **how)
    assert stages[0] == 1 and stages[-1] > 2
    assert model.offset_name == "log_e"
    whole = train(ingest(tmp_path / "t.parquet", **given), sample_size=N, **how)
    result, best = (evaluate(each, tmp_path / "t.parquet", verbose=0) for each in (model, whole))
    assert result.loss < best.loss + 0.05
    assert result.loss < evaluate(model, tmp_path / "t.parquet", offset=False, verbose=0).loss - 0.2


def test_early_stopping_counts_the_offsets(claims):
    rows, valid = split(claims, 0.3)
    model = train(
        rows,
        loss="poisson",
        valid=valid,
        early_stopping_rounds=3,
        **FEW | {"n_estimators": 300, "learning_rate": 0.5},
    )
    assert 3 < model.n_trees < 300


def test_folds_and_class_weights_keep_offsets(offset_clicks, log_odds):
    parts = [*folds(offset_clicks, 3)[0], with_class_weight(offset_clicks, (1, 5))]
    assert all(part.offset_name == "offset" for part in parts)
    seen = [
        np.concatenate([part.read_block(k).offset for k in range(part.n_blocks)]) for part in parts
    ]
    assert np.sort(np.concatenate(seen[:2])).tolist() == np.sort(log_odds).tolist()
    assert np.sort(seen[2]).tolist() == np.sort(log_odds).tolist()


def test_cross_validation_takes_offsets(X, counts, exposure):
    given = {"label": counts, "task": "regression", "loss": "poisson", "n_folds": 3, **FEW}
    good, bad = cv(X, offset=np.log(exposure), **given), cv(X, **given)
    assert good.best_score < 0.8 * bad.best_score
    dataset = ingest(X, label=counts, offset=np.log(exposure), task="regression", verbose=0)
    how = {"loss": "poisson", "n_folds": 3, **FEW}
    assert cv(dataset, **how).best_score == good.best_score
    with pytest.raises(DataError, match="offset=None"):
        cv(dataset, offset=np.log(exposure), **how)


def test_a_model_goes_on_only_on_rows_that_have_an_offset_if_its_own_had(X, clicks, offset_clicks):
    model = train(offset_clicks, **FEW)
    more = train(offset_clicks, init_model=model, **FEW)
    assert (more.n_trees, more.offset_name) == (2 * model.n_trees, "offset")
    plain = ingest(X, label=clicks, bins_of=model, verbose=0)
    with pytest.raises(DataError, match="was trained with offsets, but the data set has none"):
        train(plain, init_model=model, **FEW)
    with pytest.raises(DataError, match="was trained without offsets, but the data set has some"):
        train(offset_clicks, init_model=train(plain, **FEW), **FEW)


# -- the constant beside offsets -------------------------------------------------------------------


def lowest(loss, low, high):
    """The argument of the lowest loss, by naive search."""
    for _ in range(40):
        grid = np.linspace(low, high, 9)
        k = int(np.argmin([loss(x) for x in grid]))
        low, high = grid[max(k - 1, 0)], grid[min(k + 1, 8)]
    return (low + high) / 2


@pytest.mark.parametrize("name", ["logistic", "exponential"])
def test_the_constant_beside_log_odds_has_the_lowest_loss(X, clicks, log_odds, name):
    weight = np.random.default_rng(5).uniform(0.1, 3, N)
    given = {"offset": log_odds, "weight": weight, "verbose": 0}
    dataset = ingest(X, label=clicks, **given)
    sign = np.where(clicks, 1.0, -1.0)

    def loss(base):
        margin = sign * (base + log_odds.astype(np.float64) / 2)
        rows = np.log1p(np.exp(-2 * margin)) if name == "logistic" else np.exp(-margin)
        return weight @ rows

    base = start_model(dataset, Params(loss=name)).base_score
    assert get_loss(name).name == name
    assert base == pytest.approx(lowest(loss, -3, 3), abs=1e-4)


class Cubic:
    """Squared error with a little of its cube, as a loss of the user's."""

    def derivatives(self, target, score):
        error = score - target
        return error + 0.1 * error**3, 1 + 0.3 * error**2

    def losses(self, target, score):
        return (score - target) ** 2 / 2 + 0.1 * (score - target) ** 4 / 4


@pytest.mark.parametrize("loss", [*REGRESSION_LOSSES, Cubic()], ids=[*REGRESSION_LOSSES, "own"])
def test_the_constant_beside_offsets_of_numbers_has_the_lowest_loss(X, counts, exposure, loss):
    weight = np.random.default_rng(6).uniform(0.1, 3, N)
    offset = np.log(exposure).astype(np.float32)
    given = {"task": "regression", "weight": weight, "offset": offset, "verbose": 0}
    label = (counts + 0.25).astype(np.float32)
    model = start_model(ingest(X, label=label, **given), Params(loss=loss).for_task("regression"))

    def mean(base):
        return weight @ model.regression.losses(label, base + offset.astype(np.float64))

    best = lowest(mean, -3, 6)
    if isinstance(model.regression, Huber):  # one step from the median
        assert mean(model.base_score) < 1.001 * mean(best)
    else:
        assert model.base_score == pytest.approx(best, abs=2e-3)


# -- base scores -----------------------------------------------------------------------------------


def test_a_base_score_is_in_the_unit_of_predictions(X, clicks, claims):
    dataset = ingest(X, label=clicks, verbose=0)
    model = train(dataset, base_score=0.2, **FEW)
    assert model.first(0).predict_proba(X[:1])[0, 1] == pytest.approx(0.2)
    model = train(claims, loss="poisson", base_score=3, **FEW)
    assert model.first(0).predict(X[:1], offset=False)[0] == pytest.approx(3)
    assert model.first(0).predict(X[:1], offset=np.log([2.0]))[0] == pytest.approx(6)
    model = train(claims, loss="squared_error", base_score=-7, **FEW)
    assert model.base_score == -7


def test_trees_make_up_for_a_base_score_that_is_off(X, clicks):
    dataset = ingest(X, label=clicks, verbose=0)
    how = {"n_estimators": 150, "learning_rate": 0.2, "max_leaves": 6, "verbose": 0}
    result = evaluate(train(dataset, base_score=0.01, **how), X, label=clicks, verbose=0)
    assert result.calibration_error < 0.05


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"base_score": 0}, "base_score=0: give a probability of the positive label"),
        ({"base_score": 1.0}, "above 0 and below 1"),
        ({"base_score": -1.1}, "1 / \\(1 \\+ exp\\(-log_odds\\)\\)"),
        ({"base_score": "0.5"}, "base_score='0.5': give a number"),
        ({"base_score": np.nan}, "base_score=nan: give a number"),
        ({"base_score": True}, "base_score=True: give a number"),
    ],
)
def test_a_base_score_that_is_no_probability_is_refused(dataset, given, words):
    with pytest.raises(DataError, match=words):
        train(dataset, **given, **FEW)


def test_a_base_score_that_its_loss_cannot_predict_is_refused(claims):
    for base in (0, -0.5):
        with pytest.raises(DataError, match=r"predicts numbers above 0.* not its logarithm"):
            train(claims, loss="poisson", base_score=base, **FEW)


def test_several_classes_have_neither_base_score_nor_offsets(X):
    label = np.digitize(X[:, 0], [-0.5, 0.5])
    given = {"label": label, "task": "classification", "verbose": 0}
    with pytest.raises(DataError, match=r"offset= is for two classes or numbers.* of 3 classes"):
        ingest(X, offset=X[:, 1], **given)
    dataset = ingest(X, **given)
    with pytest.raises(DataError, match="more than two classes start from the shares"):
        train(dataset, base_score=0.5, **FEW)
    model = train(dataset, **FEW | {"n_estimators": 1})
    with pytest.raises(DataError, match="offset= is for two classes or numbers"):
        model.predict_proba(X, offset=X[:, 1])


def test_a_model_that_goes_on_keeps_its_base_score(X, clicks):
    dataset = ingest(X, label=clicks, verbose=0)
    model = train(dataset, base_score=0.2, **FEW)
    more = train(dataset, base_score=0.2, init_model=model, **FEW)
    assert more.base_score == model.base_score
    with pytest.raises(DataError, match=r"base_score=0\.3, but init_model starts from another"):
        train(dataset, base_score=0.3, init_model=model, **FEW)
