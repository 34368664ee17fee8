"""A draw of rows with numbers to predict is as good as one of independent rows, and unbiased.

As in `test_draws.py`, for the sums that trees are grown on: of g and of h over cells of rows. The
variance of Poisson sampling is estimated by the sum of (x / c)**2 c (c - 1) over a draw, for the x
of a row, which has c in it.
"""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from builders import WIDTH, make_stumps, numbers_of
from sparrowboost import DataError, ingest
from sparrowboost.learner.params import Params
from sparrowboost.learner.starting import start_model
from sparrowboost.sampling.sampler import Sampler, WeightEstimate

pytestmark = pytest.mark.usefixtures("small_blocks_and_chunks")

N = 40_000
SEEDS = 60
CELLS = 40
ROWS = 2_000
MOST = 1.5  # see test_draws.py

STUMPS = make_stumps([(0.7, -0.4), (-0.9, 0.3), (-0.3, 0.8), (1.2, -0.2), (0.1, 0.9)])


def numbered_targets(target, weight=None):
    """A data set whose two features tell a row's number."""
    number = np.arange(len(target))
    X = np.column_stack((number % WIDTH, number // WIDTH)).astype(np.float64)
    return ingest(X, label=target, weight=weight, task="regression", verbose=0, n_jobs=1)


def draw(dataset, loss, folder, seed):
    """Samples, each drawn under one more tree."""
    model = start_model(dataset, Params(loss=loss).for_task("regression"))
    with closing(Sampler(dataset, model, folder=folder, seed=seed, n_jobs=1)) as sampler:
        sample = sampler.first(sampler.weigh_base(), ROWS)
        yield sample, model
        for stump in STUMPS:
            model = model.with_tree(stump)
            sample = sampler.again(model, WeightEstimate.of(sample), ROWS)
            yield sample, model


def cells_of(n):
    """(cells, n) all rows, then random cells of the features."""
    rng = np.random.default_rng(1)
    low, high = np.arange(n) % WIDTH, np.arange(n) // WIDTH
    cells = [np.ones(n, bool)]
    for _ in range(CELLS):
        (a, b), (c, d) = np.sort(rng.integers(0, WIDTH, (2, 2)), axis=1)
        cells.append((a <= low) & (low <= b) & (c <= high) & (high <= d + 20))
    return np.array([cell for cell in cells if cell.sum() >= 200])


def true_sums(dataset, model, target, weight, cells):
    """(2, cells) sums of g and h over all rows."""
    score = np.full(N, np.float32(model.base_score))
    number = np.arange(N)
    bins = np.column_stack((number % WIDTH, number // WIDTH)).astype(np.uint8)
    score = model.score(np.ascontiguousarray(bins))
    g, h = model.regression.derivatives(target, score)
    return np.stack([cells @ (weight * g.astype(float)), cells @ (weight * h.astype(float))])


def assert_like_rows(target, loss, folder, weight=None):
    target = np.asarray(target, np.float32)
    dataset, cells = numbered_targets(target, weight), cells_of(N)
    u = np.ones(N) if weight is None else weight.astype(float)
    n_draws = len(STUMPS) + 1
    totals = np.zeros((n_draws, SEEDS, 2, len(cells)))
    expected, true = np.zeros_like(totals), [None] * n_draws
    for seed in range(SEEDS):
        for k, (sample, model) in enumerate(draw(dataset, loss, folder, seed)):
            own = cells[:, numbers_of(sample.bins, WIDTH)].astype(float)
            c = sample.copies.astype(float)
            for j, x in enumerate(
                (sample.slope_unit * sample.g.astype(float), sample.h.astype(float))
            ):
                totals[k, seed, j] = own @ x
                expected[k, seed, j] = own @ ((x / c) ** 2 * c * (c - 1))
            if true[k] is None:
                true[k] = true_sums(dataset, model, target, u, cells)
    ratios = totals.var(1, ddof=1) / np.maximum(expected.mean(1), 1e-12)
    assert ratios.mean(2).max() < MOST, ratios.mean(2).round(2)
    # No bias: of each cell's mean over 60 draws, by its own deviation. The largest of 2 x 41 x 6
    # is below 5 by t's distribution with 59 degrees of freedom, but for once in a thousand runs.
    error = np.maximum(totals.std(1, ddof=1) / SEEDS**0.5, 1e-6 * np.abs(np.stack(true)) + 1e-9)
    z = (totals.mean(1) - np.stack(true)) / error
    assert np.abs(z).max() < 5, np.abs(z).max((1, 2)).round(1)
    assert np.abs(z.mean(2)).max() < 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("normal", "squared_error"),
        ("pareto", "squared_error"),
        ("pareto", "absolute_error"),
        ("counts", "poisson"),
        ("many zeros", "tweedie"),
    ],
)
def test_totals_of_gradients_over_a_draw_vary_as_those_of_independent_rows_would(
    tmp_path, name, loss
):
    rng, number = np.random.default_rng(5), np.arange(N)
    trend = np.sin(number % WIDTH / 40)
    target = {
        "normal": lambda: 3 * trend + rng.normal(size=N),
        "pareto": lambda: trend + rng.pareto(1.5, N),
        "counts": lambda: rng.poisson(np.exp(trend)),
        "many zeros": lambda: (rng.random(N) < 0.1) * rng.lognormal(trend),
    }[name]()
    assert_like_rows(target, loss, tmp_path)


@pytest.mark.slow
def test_they_do_with_user_weights(tmp_path):
    rng = np.random.default_rng(6)
    weight = rng.lognormal(0, 0.7, N).astype(np.float32)
    assert_like_rows(rng.normal(size=N), "squared_error", tmp_path, weight)


def test_a_draw_without_any_row_is_an_error(tmp_path):
    dataset = numbered_targets(np.random.default_rng(0).normal(size=N))
    model = start_model(dataset, Params().for_task("regression"))
    with closing(Sampler(dataset, model, folder=tmp_path, seed=0, n_jobs=1)) as sampler:
        estimate = sampler.weigh_base()
        one = np.array([1e18], np.float32), np.ones(1, np.float32), np.zeros(1, np.uint8)
        heavy = WeightEstimate(*one, estimate.draw_scale)
        with pytest.raises(DataError, match="labels or weights that are far from all others"):
            sampler.again(model, heavy, ROWS)
