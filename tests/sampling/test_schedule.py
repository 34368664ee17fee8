from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import sparrowboost.sampling.schedule
from constants import set_constants
from sparrowboost.sampling.lookback import LookBack
from sparrowboost.sampling.schedule import COST, EARLY, MAX_FACTOR, SampleSchedule, Sizes

RATE = 0.3


@pytest.fixture(autouse=True)
def small_samples_bear_any_rules(monkeypatch):
    set_constants(monkeypatch, rows_per_rule=0)


class FakeMark:
    """Says what it was told to of the trees that it was told of."""

    says: LookBack | None = None

    def __init__(self, sample, model, workers):
        self.noted = 0

    def note(self, grown):
        self.noted += 1

    def look_back(self, fresh, model):
        return self.says


@pytest.fixture(autouse=True)
def mark(monkeypatch):
    kind = type("Told", (FakeMark,), {})
    monkeypatch.setattr(sparrowboost.sampling.schedule, "Mark", kind)
    return kind


def look_of(cost):
    """What fresh rows say where noise costs so much of the gain."""
    own = 1 + 2 / RATE * cost / (1 - cost)
    look = LookBack(10, own, 1.0, 0.01, 0.2, 0.1, 0.15)
    assert look.cost(RATE) == pytest.approx(cost)
    return look


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

    targeted = False

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

    def first(self, estimate, most_rows):
        assert estimate == "base"
        return self._give("first", most_rows)

    def again(self, model, estimate, most_rows, *, more):
        self.more.append(more)
        return self._give("again", most_rows)

    def request(self, model, estimate, most_rows, *, more):
        assert not self.requested
        self.requested = True
        self.more.append(more)
        self.asked.append(("request", most_rows))

    def take(self):
        assert self.requested
        self.requested = False
        return self._give("take")


def grown(n_rules=10):
    return SimpleNamespace(trees=[None], n_rules=n_rules)


MODEL = SimpleNamespace(n_trees=7)


@pytest.fixture
def sampler():
    return FakeSampler()


def make_supply(sampler, first=100, most=1_000, theta=0.5, rate=RATE):
    schedule = SampleSchedule(sampler, Sizes(first, most), theta, rate=rate, workers=None)
    return schedule, schedule.first()


def test_where_all_rows_are_the_sample_there_is_never_another(sampler):
    sizes = Sizes(500, 500, whole=True)
    schedule = SampleSchedule(sampler, sizes, 0.5, rate=RATE, workers=None)
    sample = schedule.first()
    sample.n_eff = 1.0
    assert schedule.after_tree(None, grown(), 10**9) is None
    assert schedule.after_failure(None) is None
    assert schedule.after_patience(MODEL, 0) is None
    assert sampler.asked == [("all", None)]


def test_a_fresh_sample_stays_in_use(sampler):
    schedule, _ = make_supply(sampler)
    for _ in range(5):
        assert schedule.after_tree(None, grown(), 1_000) is None
    assert sampler.asked == [("first", 100)]


def test_the_next_sample_is_begun_half_way_and_taken_when_n_eff_fell_below_theta(sampler):
    schedule, sample = make_supply(sampler, theta=0.6)
    for left, asked in ((0.9, 1), (0.79, 2), (0.7, 2), (0.61, 2)):
        sample.n_eff = left * sample.n_eff_drawn
        assert schedule.after_tree(None, grown(), 10) is None
        assert len(sampler.asked) == asked
    sample.n_eff = 0.6 * sample.n_eff_drawn - 1e-9
    new, reason = schedule.after_tree(None, grown(), 10)
    assert reason == "n_eff"
    assert new is not sample
    assert sampler.asked[1:] == [("request", 100), ("take", None)]
    assert schedule.after_tree(None, grown(), 10) is None  # the new one is fresh


def test_what_counts_is_the_n_eff_of_the_draw_and_not_its_rows(sampler):
    schedule, sample = make_supply(sampler)
    sample.n, sample.n_eff, sample.n_eff_drawn = 1_000, 20.0, 21.0
    assert schedule.after_tree(None, grown(), 10) is None
    assert sampler.asked == [("first", 100)]


def test_a_sample_to_which_many_rules_were_fitted_is_replaced(sampler, monkeypatch):
    set_constants(monkeypatch, rows_per_rule=20)
    schedule, sample = make_supply(sampler)
    rules = 0
    while (renewed := schedule.after_tree(None, grown(7), 10)) is None:
        rules += 7
        assert sampler.requested == (20 * rules >= EARLY * sample.n)
    assert renewed[1] == "rules"
    assert 20 * rules < sample.n <= 20 * (rules + 7)


@pytest.mark.parametrize(("rate", "rules"), [(1.0, 50), (0.3, 50), (0.075, 100), (0.012, 250)])
def test_a_sample_bears_more_rules_of_smaller_steps(sampler, monkeypatch, rate, rules):
    set_constants(monkeypatch, rows_per_rule=20)
    schedule, sample = make_supply(sampler, first=1_000, rate=rate)
    assert sample.n == 1_000
    fitted = 5
    while schedule.after_tree(None, grown(5), 10) is None:
        fitted += 5
    assert fitted == rules


def test_both_ends_at_once_are_one_request_and_one_sample(sampler):
    schedule, sample = make_supply(sampler)
    sample.n_eff = 0.1 * sample.n_eff_drawn
    assert schedule.after_tree(None, grown(), 10**9)[1] == "n_eff"
    assert [how for how, _ in sampler.asked] == ["first", "request", "take"]


def renew_worn(schedule, sample):
    """Let a sample wear out by one more tree; the next one."""
    sample.n_eff = 0.0
    return schedule.after_tree(None, grown(), 10)[0]


@pytest.mark.parametrize(
    ("cost", "rows"), [(0.0, 1_000), (0.9 * COST, 1_000), (1.5 * COST, 1_500), (0.9, 2_000)]
)
def test_what_fresh_rows_say_of_the_last_trees_is_how_many_the_next_sample_has(
    sampler, mark, cost, rows
):
    # A sample of 1,000 rows: noise falls as one over the rows, and no sample more than doubles.
    schedule, sample = make_supply(sampler, first=1_000, most=9_999)
    mark.says = look_of(cost)
    sample = renew_worn(schedule, sample)
    assert schedule.look == mark.says
    renew_worn(schedule, sample)
    asked = [asked for how, asked in sampler.asked if how == "request"]
    assert asked == [1_000, pytest.approx(rows, abs=1)]


def test_samples_never_get_smaller_again(sampler, mark):
    schedule, sample = make_supply(sampler, first=1_000, most=9_999)
    mark.says = look_of(2 * COST)
    sample = renew_worn(schedule, renew_worn(schedule, sample))
    mark.says = look_of(0.0)
    renew_worn(schedule, renew_worn(schedule, sample))
    sizes = [asked for how, asked in sampler.asked if how == "request"]
    assert sizes[1:] == [pytest.approx(2_000, abs=1)] * 3


def test_a_sample_is_never_larger_than_allowed(sampler, mark):
    schedule, sample = make_supply(sampler, first=1_000, most=1_350)
    mark.says = look_of(0.9)
    for _ in range(4):
        sample = renew_worn(schedule, sample)
    sizes = [asked for how, asked in sampler.asked if how == "request"]
    assert sizes == [1_000, 1_350, 1_350, 1_350]


def test_a_sample_that_heavy_rows_cannot_fill_does_not_grow(sampler, mark):
    schedule, sample = make_supply(sampler, first=10_000, most=99_999)  # which has but 1,000
    mark.says = look_of(0.9)
    renew_worn(schedule, renew_worn(schedule, sample))
    assert [asked for how, asked in sampler.asked if how == "request"] == [10_000] * 2


def test_a_fresh_sample_without_a_tree_is_followed_by_larger_ones_up_to_the_largest(sampler):
    schedule, _ = make_supply(sampler, first=100, most=350)
    reasons = []
    while (renewed := schedule.after_failure(None)) is not None:
        reasons.append(renewed[1])
        assert len(reasons) < 10
    assert reasons == ["no split stands out"] * 2
    assert sampler.asked == [("first", 100), ("again", 200), ("again", 350)]


def test_a_sample_that_had_a_tree_is_followed_by_one_as_large(sampler):
    schedule, _ = make_supply(sampler)
    schedule.after_tree(None, grown(), 10)
    assert schedule.after_failure(None)[1] == "no split stands out"
    assert sampler.asked[-1] == ("again", 100)
    schedule.after_failure(None)
    assert sampler.asked[-1] == ("again", 200)


def test_a_sample_that_is_on_its_way_is_taken_first(sampler):
    schedule, sample = make_supply(sampler)
    sample.n_eff = 0.7 * sample.n_eff_drawn
    schedule.after_tree(None, grown(), 10)
    assert schedule.after_failure(None) is not None
    assert [how for how, _ in sampler.asked] == ["first", "request", "take"]


def test_a_largest_sample_that_was_used_is_replaced_before_training_has_converged(sampler):
    schedule, _ = make_supply(sampler, first=100, most=100)
    schedule.after_tree(None, grown(), 10)
    assert schedule.after_failure(None) is not None
    assert schedule.after_failure(None) is None


def test_lost_patience_brings_larger_samples_and_ends_after_a_largest_one(sampler):
    schedule, _ = make_supply(sampler, first=100, most=350)
    trees = 20
    while renewed := schedule.after_patience(SimpleNamespace(n_trees=trees), best_trees=3):
        assert renewed[1] == "patience"
        assert schedule.lost_patience_at == trees
        trees += 20
    assert sampler.asked == [("first", 100), ("again", 200), ("again", 350)]


def test_a_better_validation_after_a_renewal_gives_patience_again(sampler):
    schedule, _ = make_supply(sampler, first=100, most=100)
    assert schedule.after_patience(SimpleNamespace(n_trees=20), 3) is not None
    assert schedule.after_patience(SimpleNamespace(n_trees=50), 30) is not None
    assert schedule.after_patience(SimpleNamespace(n_trees=70), 30) is None


def test_a_sample_on_its_way_that_was_begun_for_the_old_size_is_not_what_patience_waits_for(
    sampler,
):
    schedule, sample = make_supply(sampler)
    sample.n_eff = 0.7 * sample.n_eff_drawn
    schedule.after_tree(None, grown(), 10)
    schedule.after_patience(MODEL, 0)
    assert sampler.asked[1:] == [("request", 100), ("take", None), ("again", 200)]


def test_trees_on_smaller_samples_do_not_say_that_training_has_converged(sampler, mark):
    # The next sample, which is the largest, was asked for before these trees were looked back at.
    schedule, sample = make_supply(sampler, first=500, most=1_000)
    mark.says = LookBack(100, 1.0, -1.0, 0.1, 0.2, 0.1, 0.15)
    sample = renew_worn(schedule, sample)
    sample = renew_worn(schedule, sample)
    assert schedule._rows == 1_000
    assert not schedule.converged
    renew_worn(schedule, sample)
    assert schedule.converged


def more_is_asked_for(sampler, *, scanned, read, n_sample=1_000):
    """Whether a worn sample of 1,000 asked for is followed by one of more rows of the data set."""
    schedule, sample = make_supply(sampler, first=1_000)
    sample.n = n_sample
    sampler.counts.rows_read = read
    schedule.after_tree(None, grown(), scanned)
    sample.n_eff = 1.0
    schedule.after_tree(None, grown(), 0)
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
    schedule, _ = make_supply(sampler, first=1_000, most=1_000)
    sampler.complete = False
    assert schedule.after_failure(None) is not None
    assert sampler.more == [True]
    sampler.complete = True
    assert schedule.after_failure(None) is None


def test_a_sample_that_should_grow_and_cannot_is_renewed_sooner(sampler, mark, monkeypatch):
    set_constants(monkeypatch, rows_per_rule=20)

    def trees(most, cost):
        schedule, sample = make_supply(sampler, first=1_000, most=most)
        mark.says = look_of(cost)
        renew_worn(schedule, sample)
        count = 1
        while schedule.after_tree(None, grown(n_rules=5), 1) is None:
            count += 1
        return count

    assert trees(most=2_000, cost=2.5 * COST) == 10  # of 5 rules each, 1,000 rows / 20
    assert trees(most=1_000, cost=0.5 * COST) == 10
    assert trees(most=1_000, cost=2.5 * COST) == 4
    set_constants(monkeypatch, max_factor=1.25)
    assert MAX_FACTOR > 2.5
    assert trees(most=1_000, cost=2.5 * COST) == 8


def looks(sampler, mark, says, *, most):
    """The schedule after samples wore out, and fresh rows said these of the trees on each."""
    schedule, sample = make_supply(sampler, first=1_000, most=most)
    for n_trees, fresh, error in says:
        assert not schedule.converged
        mark.says = LookBack(n_trees, 1.0, fresh, error, 0.2, 0.1, 0.15)
        sample = renew_worn(schedule, sample)
    return schedule


@pytest.mark.parametrize(
    ("says", "converged"),
    [
        ([(40, -1.0, 0.1), (30, -1.0, 0.1)], True),
        ([(40, -1.0, 0.1), (20, -1.0, 0.1)], False),  # of too few trees
        ([(40, -1.0, 0.6), (30, -0.5, 0.6)], False),  # less than twice hypot(0.6, 0.6)
        ([(40, -1.0, 0.1), (30, 0.9, 0.1)], False),
        ([(70, 5.0, 0.1), (40, -1.0, 0.1), (40, -1.0, 0.1)], True),  # what was long ago is over
    ],
)
def test_training_has_converged_when_trees_on_largest_samples_do_harm(
    sampler, mark, says, converged
):
    assert looks(sampler, mark, says, most=1_000).converged == converged


def test_training_has_not_converged_while_samples_can_grow(sampler, mark):
    assert not looks(sampler, mark, [(100, -1.0, 0.1)], most=9_000).converged


def test_after_trees_that_were_worth_nothing_samples_grow_by_more(sampler, mark):
    schedule, sample = make_supply(sampler, first=1_000, most=99_999)
    mark.says = LookBack(10, 1.0, -0.1, 0.01, 0.2, 0.1, 0.15)
    renew_worn(schedule, renew_worn(schedule, sample))
    assert [asked for how, asked in sampler.asked if how == "request"] == [1_000, 8_000]


def test_samples_of_numbers_leap_and_are_renewed_sooner_where_noise_costs_much(
    sampler, mark, monkeypatch
):
    set_constants(monkeypatch, rows_per_rule=20)

    def asked(targeted, cost):
        sampler.asked, sampler.targeted = [], targeted
        schedule, sample = make_supply(sampler, first=1_000, most=99_999)
        mark.says = look_of(cost)
        renew_worn(schedule, renew_worn(schedule, sample))
        trees = 1
        while schedule.after_tree(None, grown(n_rules=5), 1) is None:
            trees += 1
        return [rows for how, rows in sampler.asked if how == "request"][1], trees

    assert asked(False, 5 * COST)[0] == 2_000
    assert asked(True, 5 * COST)[0] == pytest.approx(5_000, abs=1)
    assert asked(True, 0.5 * COST)[0] == 1_000
    assert (asked(False, 50 * COST)[0], asked(True, 50 * COST)[0]) == (2_000, 8_000)
    # These samples have 1,000 rows, whatever was asked for.
    assert (asked(False, 1.8 * COST)[1], asked(True, 1.8 * COST)[1]) == (10, 6)


def test_what_was_measured_is_saved_with_the_sample(sampler, mark):
    schedule, sample = make_supply(sampler, first=1_000, most=9_999)
    sampler.state, sampler.restore = lambda sample: {}, lambda state: fake_sample()
    mark.says = look_of(1.5 * COST)
    renew_worn(schedule, sample)
    schedule.lost_patience_at = 12
    other, _ = make_supply(sampler, first=1_000, most=9_999)
    other.restore(schedule.state())
    renew_worn(other, other.sample)
    assert sampler.asked[-2] == ("request", pytest.approx(1_500, abs=1))
    assert other.lost_patience_at == 12
    mark.says = LookBack(10, 1.0, -0.1, 0.01, 0.2, 0.1, 0.15)
    harmed, sample = make_supply(sampler, first=1_000, most=99_999)
    renew_worn(harmed, sample)
    other, _ = make_supply(sampler, first=1_000, most=99_999)
    other.restore(harmed.state())
    renew_worn(other, other.sample)
    assert sampler.asked[-2] == ("request", 8_000)
    ended = looks(sampler, mark, [(70, -1.0, 0.1)], most=1_000)
    other, _ = make_supply(sampler, first=1_000, most=1_000)
    other.restore(ended.state())
    assert other.converged
