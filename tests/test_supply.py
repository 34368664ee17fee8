from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import sparrowboost.supply
from sparrowboost.supply import EARLY, MAX_PASSES, Sizes, Supply


@pytest.fixture(autouse=True)
def small_samples_bear_any_rules(monkeypatch):
    monkeypatch.setattr(sparrowboost.supply, "ROWS_PER_RULE", 0)
    monkeypatch.setattr(sparrowboost.supply, "LARGEST_ROWS_PER_RULE", 0)


def fake_sample(n=1_000, n_eff=1_000.0):
    return SimpleNamespace(
        n=n,
        n_eff=n_eff,
        n_eff_drawn=n_eff,
        w=np.ones(3, np.float32),
        copies=np.ones(3, np.float32),
        label=np.zeros(3, np.uint8),
    )


class FakeSampler:
    """Writes down what it is asked for."""

    def __init__(self):
        self.asked, self.requested = [], False
        self.n_rows, self.complete, self.counts = 10_000, True, SimpleNamespace(rows_read=0)
        self.more = []

    def weigh_base(self):
        return "base"

    def _give(self, how, most_rows=None):
        self.asked.append((how, most_rows))
        return fake_sample()

    def all_rows(self):
        return self._give("all")

    def first(self, guide, most_rows):
        assert guide == "base"
        return self._give("first", most_rows)

    def again(self, model, guide, most_rows, *, more):
        self.more.append(more)
        return self._give("again", most_rows)

    def request(self, model, guide, most_rows, *, more):
        assert not self.requested
        self.requested = True
        self.more.append(more)
        self.asked.append(("request", most_rows))

    def take(self):
        assert self.requested
        self.requested = False
        return self._give("take")


def grown(n_rules=10, n_proved=10):
    return SimpleNamespace(tree=SimpleNamespace(feature=np.zeros(n_rules)), n_proved=n_proved)


@pytest.fixture
def sampler():
    return FakeSampler()


def make_supply(sampler, first=100, most=1_000, theta=0.5):
    supply = Supply(sampler, Sizes(first, most), theta)
    return supply, supply.first()


def test_where_all_rows_are_the_sample_there_is_never_another(sampler):
    supply = Supply(sampler, Sizes(500, 500, whole=True), 0.5)
    sample = supply.first()
    sample.n_eff = 1.0
    assert supply.after_tree(None, grown(), 10**9) is None
    assert supply.after_failure(None) is None
    assert sampler.asked == [("all", None)]


def test_a_fresh_sample_stays_in_use(sampler):
    supply, _ = make_supply(sampler)
    for _ in range(5):
        assert supply.after_tree(None, grown(), 1_000) is None
    assert sampler.asked == [("first", 100)]


def test_the_next_sample_is_begun_half_way_and_taken_when_n_eff_fell_below_theta(sampler):
    supply, sample = make_supply(sampler, theta=0.6)
    for left, asked in ((0.9, 1), (0.79, 2), (0.7, 2), (0.61, 2)):
        sample.n_eff = left * sample.n_eff_drawn
        assert supply.after_tree(None, grown(), 10) is None
        assert len(sampler.asked) == asked
    sample.n_eff = 0.6 * sample.n_eff_drawn - 1e-9
    new, reason = supply.after_tree(None, grown(), 10)
    assert reason == "n_eff"
    assert new is not sample
    assert sampler.asked[1:] == [("request", 100), ("take", None)]
    assert supply.after_tree(None, grown(), 10) is None  # the new one is fresh


def test_what_counts_is_the_n_eff_of_the_draw_and_not_its_rows(sampler):
    supply, sample = make_supply(sampler)
    sample.n, sample.n_eff, sample.n_eff_drawn = 1_000, 20.0, 21.0
    assert supply.after_tree(None, grown(), 10) is None
    assert sampler.asked == [("first", 100)]


def test_a_sample_that_was_read_often_enough_is_replaced(sampler):
    supply, sample = make_supply(sampler)
    passes = 0
    while (renewed := supply.after_tree(None, grown(), sample.n)) is None:
        passes += 1
        assert sampler.requested == (passes >= EARLY * MAX_PASSES)
    assert renewed[1] == "passes"
    assert passes + 1 == MAX_PASSES


def test_a_sample_to_which_many_rules_were_fitted_is_replaced(sampler, monkeypatch):
    monkeypatch.setattr(sparrowboost.supply, "ROWS_PER_RULE", 20)
    supply, sample = make_supply(sampler)
    rules = 0
    while (renewed := supply.after_tree(None, grown(7), 10)) is None:
        rules += 7
        assert sampler.requested == (20 * rules >= EARLY * sample.n)
    assert renewed[1] == "passes"
    assert 20 * rules < sample.n <= 20 * (rules + 7)


def test_both_ends_at_once_are_one_request_and_one_sample(sampler):
    supply, sample = make_supply(sampler)
    sample.n_eff = 0.1 * sample.n_eff_drawn
    assert supply.after_tree(None, grown(), 10**9)[1] == "n_eff"
    assert [how for how, _ in sampler.asked] == ["first", "request", "take"]


@pytest.mark.parametrize(
    ("proved", "rows"), [([10, 10], 100), ([1, 1], 100), ([0, 10], 100), ([0, 0], 200)]
)
def test_the_next_sample_is_larger_if_most_trees_lacked_any_proof(sampler, proved, rows):
    supply, sample = make_supply(sampler)
    supply.after_tree(None, grown(10, proved[0]), 10)
    sample.n_eff = 0.0
    supply.after_tree(None, grown(10, proved[1]), 10)
    assert ("request", rows) in sampler.asked


def test_a_sample_is_never_larger_than_allowed(sampler):
    supply, sample = make_supply(sampler, first=100, most=350)
    sizes = []
    for _ in range(4):
        sample.n_eff = 0.0
        sample, _ = supply.after_tree(None, grown(10, 0), 10)
        sizes.append(next(rows for how, rows in reversed(sampler.asked) if how == "request"))
    assert sizes == [200, 350, 350, 350]


def test_a_fresh_sample_without_a_split_is_followed_by_larger_ones_up_to_the_largest(sampler):
    supply, _ = make_supply(sampler, first=100, most=350)
    reasons = []
    while (renewed := supply.after_failure(None)) is not None:
        reasons.append(renewed[1])
        assert len(reasons) < 10
    assert reasons == ["no split stands out"] * 2
    assert sampler.asked == [("first", 100), ("again", 200), ("again", 350)]


def test_a_worn_sample_without_a_split_is_followed_by_one_as_large(sampler):
    supply, _ = make_supply(sampler)
    supply.after_tree(None, grown(), 10)
    assert supply.after_failure(None)[1] == "no split stands out"
    assert sampler.asked[-1] == ("again", 100)
    supply.after_failure(None)
    assert sampler.asked[-1] == ("again", 200)


def test_a_sample_that_is_on_its_way_is_taken_first(sampler):
    supply, sample = make_supply(sampler)
    sample.n_eff = 0.7 * sample.n_eff_drawn
    supply.after_tree(None, grown(), 10)
    assert supply.after_failure(None) is not None
    assert [how for how, _ in sampler.asked] == ["first", "request", "take"]


def test_a_largest_sample_that_was_used_is_replaced_once_before_training_has_converged(sampler):
    supply, _ = make_supply(sampler, first=100, most=100)
    supply.after_tree(None, grown(), 10)
    assert supply.after_failure(None) is not None
    assert supply.after_failure(None) is None


def more_is_asked_for(sampler, *, scanned, read, n_sample=1_000):
    """Whether a worn sample of 1,000 asked for is followed by one of more rows of the data set."""
    supply, sample = make_supply(sampler, first=1_000)
    sample.n = n_sample
    sampler.counts.rows_read = read
    supply.after_tree(None, grown(n_proved=1), scanned)
    sample.n_eff = 1.0
    supply.after_tree(None, grown(n_proved=1), 0)
    return sampler.more[-1]


@pytest.mark.parametrize(
    ("scanned", "read", "n_sample", "expected"),
    [
        (10**6, 0, 1_000, False),  # the rows that have come do
        (10**6, 9_000, 1_000, False),  # most were drawn from, but not as many as have come
        (10**6, 11_000, 1_000, True),  # as many were drawn from already
        (10**6, 0, 400, True),  # those of weight are too few
        (1_000, 0, 400, False),  # but to go on has cost less than reading
    ],
)
def test_more_rows_are_read_when_draws_run_short_and_it_is_worth_it(
    sampler, scanned, read, n_sample, expected
):
    assert more_is_asked_for(sampler, scanned=scanned, read=read, n_sample=n_sample) is expected


def test_training_has_not_converged_before_all_rows_have_come(sampler):
    supply, _ = make_supply(sampler, first=1_000, most=1_000)
    sampler.complete = False
    assert supply.after_failure(None) is not None
    assert sampler.more == [True]
    sampler.complete = True
    assert supply.after_failure(None) is None


def test_a_sample_that_cannot_grow_is_renewed_sooner(sampler, monkeypatch):
    monkeypatch.setattr(sparrowboost.supply, "ROWS_PER_RULE", 20)
    monkeypatch.setattr(sparrowboost.supply, "LARGEST_ROWS_PER_RULE", 60)

    def trees(most):
        supply, _ = make_supply(sampler, first=1_000, most=most)
        count = 1
        while supply.after_tree(None, grown(n_rules=10), 1) is None:
            count += 1
        return count

    assert trees(most=2_000) == 5  # of 10 rules each, 1,000 rows / 20
    assert trees(most=1_000) == 2
