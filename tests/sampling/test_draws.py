"""A draw is as good as one of independent rows: what proofs take for granted, tested as variance.

For every cell of rows, the total of w over a draw is compared from seed to seed. Were rows drawn
one by one, row i with a chance of 1 / c_i, its variance would be that of Poisson sampling, of which
sum w**2 (1 - 1 / c) over the draw is an unbiased estimate (a sample's w has c in it). Sums of w**2
over a sample, n_eff and the proofs know nothing else.
"""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders import WIDTH, make_model, make_stumps, numbered_rows, numbers_of
from constants import set_constants
from sparrowboost import ingest
from sparrowboost.runtime.progress import make_progress
from sparrowboost.sampling.sampler import Sampler, WeightEstimate

pytestmark = pytest.mark.usefixtures("small_blocks_and_chunks")

N = 40_000
SEEDS = 60
CELLS = 40
# A variance estimated from 60 draws has a relative deviation of sqrt(2 / 59) = 0.18, and the mean
# over 40 cells, which overlap little, of some 0.05. Draws of whole chunks of one label had ratios
# from 5 to 40 here, for tables with as many chunks as these.
MOST = 1.5


# Stumps that pull weights apart by factors of up to exp(2 * 3.4) = 900; rows cross many strata.
STUMPS = make_stumps([(0.7, -0.4), (-0.9, 0.3), (-0.3, 0.8), (1.2, -0.2), (0.1, 0.9)])


def draw(dataset, folder, seed, rows, stages=None):
    """Samples, each drawn under one more tree, and from one more stage of the rows, if any."""
    model, sample = make_model(dataset), None
    sampler = Sampler(
        dataset,
        model,
        folder=folder,
        seed=seed,
        n_jobs=1,
        staged=stages,
    )
    with closing(sampler):
        sample = sampler.first(sampler.weigh_base(), rows)
        for stump in STUMPS:
            model = model.with_tree(stump)
            sample = sampler.again(model, WeightEstimate.of(sample), rows, more=True)
            yield sample


def cells_of(label):
    """(cells, n) both labels, then random cells of the features: a range of each, and a label."""
    rng = np.random.default_rng(1)
    number = np.arange(len(label))
    low, high = number % WIDTH, number // WIDTH
    cells = [~label, label]
    for k in range(CELLS):
        (a, b), (c, d) = np.sort(rng.integers(0, WIDTH, (2, 2)), axis=1)
        inside = (a <= low) & (low <= b) & (c <= high) & (high <= d + 20)
        cells.append(inside & (label == k % 2))
    return np.array([cell for cell in cells if cell.sum() >= 30])


def variance_ratios(dataset, label, folder, rows, stages=None):
    """Of each draw after the first tree: (cells,) variance of a cell's total over that of rows."""
    cells = cells_of(label)
    totals = np.zeros((len(STUMPS), SEEDS, len(cells)))
    expected = np.zeros((len(STUMPS), SEEDS, len(cells)))
    for seed in range(SEEDS):
        for k, sample in enumerate(draw(dataset, folder, seed, rows, stages)):
            own = cells[:, numbers_of(sample.bins, WIDTH)]
            w, c = sample.w.astype(float), sample.copies.astype(float)
            totals[k, seed] = own @ w
            expected[k, seed] = own @ (w**2 * (1 - 1 / c))
    return totals.var(1, ddof=1) / np.maximum(expected.mean(1), 1e-12)


def assert_like_rows(dataset, label, folder, rows=2_000, stages=None):
    ratios = variance_ratios(dataset, label, folder, rows, stages)
    assert ratios[:, :2].max() < MOST, ratios[:, :2].round(2)
    assert ratios[:, 2:].mean(1).max() < MOST, ratios[:, 2:].mean(1).round(2)


def labels(share, seed=5, n=N):
    return np.random.default_rng(seed).random(n) < share


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.1, 0.005])
def test_totals_over_a_draw_vary_as_those_of_independent_rows_would(tmp_path, share):
    label = labels(share)
    assert_like_rows(numbered_rows(N, label, width=WIDTH), label, tmp_path)


@pytest.mark.slow
def test_they_do_with_user_weights(tmp_path):
    label = labels(0.4)
    weight = np.random.default_rng(6).lognormal(0, 0.7, N).astype(np.float32)
    assert_like_rows(numbered_rows(N, label, weight, width=WIDTH), label, tmp_path)


@pytest.mark.slow
def test_they_do_where_strata_are_small(tmp_path):
    # Of 4,000 rows in some twenty strata most have less than a chunk, which waits in memory.
    label = labels(0.5)[:4_000]
    assert_like_rows(numbered_rows(4_000, label, width=WIDTH), label, tmp_path, rows=400)


@pytest.mark.slow
def test_they_do_where_one_row_in_a_thousand_is_positive(tmp_path):
    # Positives weigh so much more that all of them are in every draw: what varies is the others.
    label = labels(0.001, n=60_000)
    assert_like_rows(numbered_rows(60_000, label, width=WIDTH), label, tmp_path)


class Stages:
    """A data set's stages, all read, as the sampler asks for them."""

    def __init__(self, staged):
        staged.start(make_progress(0))
        self._stages = [staged.stage(k) for k in range(len(staged.stage_rows))]
        self.first, self.n_rows = self._stages[0], staged.n_rows

    def more(self, dataset):
        return self._stages[self._stages.index(dataset) + 1]

    def close(self):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.1])
def test_they_do_while_rows_are_still_being_read(tmp_path, monkeypatch, share):
    set_constants(monkeypatch, min_staged_rows=10_000)
    label, number = labels(share), np.arange(N)
    columns = {"low": number % WIDTH, "high": number // WIDTH, "y": label.astype(int)}
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), file, row_group_size=500)
    staged = ingest(file, label="y", verbose=0, n_jobs=1, wait=False)
    stages = Stages(staged.storage)
    assert stages.n_rows == N and stages.first.n_rows < N / 4
    assert_like_rows(stages.first, label, tmp_path, stages=stages)
