from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import make_sample, make_stump
from constants import set_constants
from sparrowboost.model.forest import Forest
from sparrowboost.model.losses import base_score
from sparrowboost.sampling.sample import Sample


def n_eff(w):
    w = np.asarray(w, float)
    return w.sum() ** 2 / (w**2).sum()


def test_n_eff_counts_what_equal_rows_would_be_worth_as_much():
    sample = make_sample(np.zeros((10, 1)), np.ones(10), u=[1, 1, 1, 1, 1, 2, 2, 4, 8, 0])
    assert sample.n_eff == pytest.approx(n_eff(sample.w))
    assert sample.n_eff == pytest.approx(21**2 / (5 + 4 + 4 + 16 + 64), rel=1e-5)
    assert make_sample(np.zeros((10, 1)), np.ones(10), u=np.full(10, 7)).n_eff == pytest.approx(10)
    assert sample.weight == pytest.approx(0.5 * 21)


@pytest.mark.parametrize("loss", ["logistic", "exponential"])
def test_a_uniform_sample_of_rare_positives_is_worth_about_two_of_each(loss):
    # The paper's example: 1 % positive, n = 2,000 drawn uniformly has 20 positives. After the base
    # rule both labels weigh the same in all: (2 * 20 a)**2 / (20 a**2 + 1980 (a / 99)**2) with a
    # the weight of a positive, = 4 * 20**2 / (20 + 20 / 99) = 79.2.
    label = np.repeat([1, 0], [20, 1_980])
    score = base_score(99_000, 1_000)
    sample = make_sample(np.zeros((2_000, 1)), label, score=score, loss=loss)
    assert sample.n_eff == pytest.approx(1_600 / (20 + 20 / 99), rel=1e-4)
    assert sample.n_eff == pytest.approx(80, rel=0.02)


def test_a_sample_of_no_rows_has_no_size():
    sample = make_sample(np.zeros((0, 2)), np.zeros(0))
    assert (sample.n, sample.n_blocks, sample.n_eff, sample.weight) == (0, 0, 0, 0)


def test_blocks_cover_every_row_once(monkeypatch):
    set_constants(monkeypatch, sample_block_rows=32)
    sample = make_sample(np.zeros((100, 1)), np.zeros(100))
    covered = np.concatenate([np.arange(100)[sample.rows(b)] for b in range(sample.n_blocks)])
    np.testing.assert_array_equal(covered, np.arange(100))


def test_a_block_is_brought_up_to_date_when_it_is_refreshed_and_not_before(monkeypatch):
    set_constants(monkeypatch, sample_block_rows=32)
    rng = np.random.default_rng(0)
    bins, label = rng.integers(0, 4, (100, 2)), rng.integers(0, 2, 100)
    sample = make_sample(bins, label)
    trees = [make_stump(0, [0, 1], 0.5, -0.25), make_stump(1, [3], -1.0, 0.125)]
    forest = Forest(trees)
    first = np.where(bins[:, 0] <= 1, 0.5, -0.25)
    both = first + np.where(bins[:, 1] == 3, -1.0, 0.125)

    sample.refresh(1, forest, 1)
    sample.refresh(1, forest, 1)  # a second time changes nothing
    np.testing.assert_array_equal(sample.score[32:64], first[32:64])
    assert not sample.score[:32].any()
    for block in (0, 1):
        sample.refresh(block, forest, 2)
    np.testing.assert_array_equal(sample.score[:64], both[:64])
    assert not sample.score[64:].any()
    w = 1 / (1 + np.exp(np.where(label, 2.0, -2.0) * np.r_[both[:64], np.zeros(36)]))
    np.testing.assert_allclose(sample.w, w, rtol=2e-5)
    assert sample.n_eff == pytest.approx(n_eff(w))
    assert sample.n_eff_drawn == pytest.approx(100)


def test_no_row_keeps_more_than_the_share_allowed(monkeypatch):
    set_constants(monkeypatch, sample_block_rows=16)
    u = np.ones(200, np.float32)
    u[[3, 150]] = 500, 100
    sample = make_sample(np.zeros((200, 1)), np.zeros(200), u=u)
    sample.bound_shares(0.05)
    # 198 rows of weight 1 / 2 are 0.9 of what is left: two hold 0.05 of it each.
    np.testing.assert_allclose(sample.w[[3, 150]], 0.05 * 99 / 0.9, rtol=1e-5)
    np.testing.assert_allclose(np.delete(sample.w, [3, 150]), 0.5)
    assert sample.weight == pytest.approx(sample.w.sum())
    assert sample.n_eff_drawn == pytest.approx(n_eff(sample.w))
    assert sample.unit == pytest.approx((sample.w**2).sum() / sample.w.sum())


@given(
    st.lists(st.just(0.0) | st.floats(2**-10, 1e6, width=32), min_size=1, max_size=60),
    st.sampled_from([0.01, 0.05, 0.3, 0.9]),
)
def test_a_bound_holds_after_it_was_applied_and_touches_no_other_row(weights, share):
    u = np.array(weights, np.float32)
    share = max(share, 1.01 / max(np.count_nonzero(u), 1))
    sample = make_sample(np.zeros((len(u), 1)), np.zeros(len(u)), u=u)
    before = sample.w.copy()
    sample.bound_shares(share)
    most = share * sample.w.sum(dtype=np.float64)
    assert (sample.w <= most * (1 + 1e-4) + 1e-30).all()
    light = before < most * (1 - 1e-4)
    np.testing.assert_array_equal(sample.w[light], before[light])
    np.testing.assert_allclose(sample.w[~light], np.minimum(before[~light], most), rtol=1e-3)


def test_a_bound_leaves_the_count_of_rows_that_each_stands_for(monkeypatch):
    copies = np.ones(50, np.float32)
    copies[7] = 1_000
    sample = make_sample(np.zeros((50, 1)), np.zeros(50), u=copies)
    sample.u = sample.copies = copies  # without user weights they are one array
    sample.bound_shares(0.1)
    assert sample.copies[7] == 1_000
    assert sample.u[7] < 200


def test_an_ordinary_row_is_one_that_holds_the_weight():
    # 10 of 1,000 rows hold half of the weight, 990 the other: half an ordinary row is of each.
    u = np.repeat([99.0, 1.0], [10, 990])
    sample = make_sample(np.zeros((1_000, 1)), np.zeros(1_000), u=u)
    assert sample.unit == pytest.approx(0.5 * (99 + 1) / 2)
    even = make_sample(np.zeros((1_000, 1)), np.zeros(1_000), u=np.full(1_000, 3.0))
    assert even.unit == pytest.approx(1.5)


def test_rows_that_are_counts_are_ordinary_by_one_each():
    sample = make_sample(np.zeros((3, 1)), np.zeros(3), u=[1, 5, 0])
    counted = Sample(
        sample.bins, sample.label, sample.u, sample.score, 0, sample.loss, whole=True,
        copies=np.ones(3, np.float32), counted=True,
    )  # fmt: skip
    assert counted.unit == pytest.approx(0.5)
