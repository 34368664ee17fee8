"""Offsets are part of the scores of rows: in samples, in strata, and of rows not read yet."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from builders import WIDTH, make_stumps
from constants import set_constants
from sparrowboost import ingest
from sparrowboost.learner.params import Params
from sparrowboost.learner.starting import start_model
from sparrowboost.runtime.budget import block_bytes, fixed_parts
from sparrowboost.sampling.sampler import Sampler, WeightEstimate

N = 30_000
ROWS = 2_000
STUMPS = make_stumps([(0.7, -0.4), (-0.9, 0.3), (-0.3, 0.8), (1.2, -0.2), (0.1, 0.9)])


@pytest.fixture(autouse=True)
def many_blocks_and_chunks(monkeypatch):
    set_constants(monkeypatch, bucket_bytes=8_000, min_segment_bytes=10, chunk_rows=100)


def offset_of(bins):
    """The offset of a row, which its two features tell: multiples of 1/64, up and down."""
    low, high = bins.T.astype(np.int64)
    number = low + WIDTH * high
    return ((number * 37 % 129 - 64) / 64).astype(np.float32)


def stored(task):
    number = np.arange(N)
    bins = np.column_stack((number % WIDTH, number // WIDTH))
    label = np.random.default_rng(0).poisson(np.exp(offset_of(bins)))
    label = label > 0 if task == "classification" else label.astype(np.float64)
    X = bins.astype(np.float64)
    return ingest(X, label=label, offset=offset_of(bins), task=task, verbose=0, n_jobs=1)


def start(dataset, task):
    loss = "logistic" if task == "classification" else "poisson"
    return start_model(dataset, Params(loss=loss).for_task(task))


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_scores_of_every_draw_are_offset_and_constant_and_trees(task, tmp_path):
    dataset = stored(task)
    model = start(dataset, task)
    with closing(Sampler(dataset, model, folder=tmp_path, seed=0, n_jobs=2)) as sampler:
        sample = sampler.first(sampler.weigh_base(), ROWS)
        for stump in (*STUMPS, None):
            assert sample.n > ROWS / 4
            expected = model.score(sample.bins, offset_of(sample.bins))
            np.testing.assert_array_equal(sample.score, expected)
            assert np.ptp(expected - model.score(sample.bins)) > 0.9
            if stump is not None:
                model = model.with_tree(stump)
                sample = sampler.again(model, WeightEstimate.of(sample), ROWS)
        assert sampler.counts.rows_read > N / 2  # also of the strata


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_sample_of_all_rows_begins_with_their_offsets(task):
    dataset = stored(task)
    model = start(dataset, task)
    with closing(Sampler(dataset, model, seed=0, n_jobs=1)) as sampler:
        sample = sampler.all_rows()
    assert sample.n == N
    np.testing.assert_array_equal(sample.score, model.score(sample.bins, offset_of(sample.bins)))
    half = 2 if task == "classification" else 1
    moved = sample.score - np.float32(model.base_score)
    np.testing.assert_allclose(half * moved, offset_of(sample.bins), atol=1e-6)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_first_estimate_of_weights_knows_that_offsets_differ(task):
    dataset = stored(task)
    with closing(Sampler(dataset, start(dataset, task), seed=0, n_jobs=1)) as sampler:
        estimate, whole = sampler.weigh_base(), sampler.all_rows()
    assert len(np.unique(estimate.weight)) > 50
    # Four blocks of each band stand for all, of 4,000 rows each: errors are below 2 %.
    true = WeightEstimate.of(whole)
    scale = true.scale_for(ROWS)
    assert estimate.rows_at(scale) == pytest.approx(true.rows_at(scale), rel=0.05)


def test_offsets_take_room_in_blocks_of_the_store_and_nowhere_else():
    given = 20, 5_000, 10_000, 2, 31
    without, with_offset = (fixed_parts(*given, n_extra=1, offset=has) for has in (False, True))
    assert with_offset["strata"] == without["strata"]
    assert with_offset["blocks on the way"] == block_bytes(20, 10_000, 2, n_extra=2)
