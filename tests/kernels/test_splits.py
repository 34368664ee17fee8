from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naive import in_mask, subset_charge
from sparrowboost.kernels.splits import best_edge, best_split

pytestmark = pytest.mark.kernel


class Case:
    """Histograms of some features that hold the same rows, which are kept.

    Weights are multiples of 1/64, so that every sum is exact and no comparison hangs on rounding.
    """

    def __init__(self, seed, n_bins, category, n_rows=60, missing=0.2):
        rng = np.random.default_rng(seed)
        d = len(n_bins)
        self.n_bins = np.array(n_bins, np.int64)
        self.category = np.array(category, np.uint8)
        self.offset = np.concatenate(([0], np.cumsum(self.n_bins)[:-1])).astype(np.uint64)
        # Few different bins of each feature, so that some of its bins are empty.
        self.bins = np.empty((n_rows, d), np.int64)
        for j in range(d):
            some = rng.choice(n_bins[j], min(n_bins[j], 8), replace=False)
            self.bins[:, j] = rng.choice(some, n_rows)
        missing = rng.choice([0, missing], d)  # features without missing values in this leaf, too
        self.bins = np.where(rng.random((n_rows, d)) < missing, self.n_bins - 1, self.bins)
        self.label = (rng.random(n_rows) < rng.choice([0.1, 0.5, 0.9])).astype(int)
        self.w = rng.integers(1, 129, n_rows) / 64
        self.hist = self.histogram(np.ones(n_rows, bool))

    def histogram(self, rows):
        hist = np.zeros((2, int(self.n_bins.sum())))
        for i in np.flatnonzero(rows):
            hist[self.label[i], self.offset.astype(int) + self.bins[i]] += self.w[i]
        return hist

    def weights(self, j, left, hist=None):
        """W- and W+ in a set of a feature's bins."""
        hist = self.hist if hist is None else hist
        slots = [int(self.offset[j]) + b for b in left]
        return float(hist[0, slots].sum()), float(hist[1, slots].sum())

    def slots(self, j):
        return range(int(self.n_bins[j]))

    def used(self, j):
        return [b for b in self.slots(j) if sum(self.weights(j, [b])) > 0]

    def cuts(self, j):
        """Every set of bins that a cut of a number sends left."""
        last = int(self.n_bins[j]) - 1
        for k in range(1, last + 1):
            yield list(range(k))
            yield [*range(k), last]

    def left_rows(self, j, mask):
        return np.array([in_mask(mask, int(b)) for b in self.bins[:, j]], bool)


@st.composite
def cases(draw, kinds=(0, 1), max_bins=12, **options):
    d = draw(st.integers(1, 4))
    n_bins = draw(st.lists(st.integers(2, max_bins), min_size=d, max_size=d))
    category = draw(st.lists(st.sampled_from(kinds), min_size=d, max_size=d))
    n_rows = draw(st.integers(0, 60))
    return Case(draw(st.integers(0, 10**6)), n_bins, category, n_rows, **options)


def split(
    run, case, l2=0.5, category_l2=1.5, min_weight=1 / 128, noise=0.0, monotone=None,
    bounds=(-np.inf, np.inf), features=None,
):  # fmt: skip
    features = np.arange(len(case.n_bins)) if features is None else np.array(features, np.int64)
    sign = np.zeros(len(case.n_bins), np.int8) if monotone is None else np.array(monotone, np.int8)
    work, found = np.full((2, 256), np.nan), np.full(5, np.nan)
    mask = np.full(4, 0x1234567812345678, np.uint64)
    run(
        case.hist, case.offset, case.n_bins, case.category, features, l2, category_l2, min_weight,
        np.full(len(case.n_bins), noise), sign, *bounds, work, found, mask,
    )  # fmt: skip
    return found, mask


def free_gain_of(case, j, left, l2, min_weight):
    """The gain of a set of bins against the others, by the formula; -inf if a side is too light."""
    l0, l1 = case.weights(j, left)
    t0, t1 = case.weights(j, case.slots(j))
    r0, r1 = t0 - l0, t1 - l1
    if l0 + l1 < min_weight or r0 + r1 < min_weight:
        return -np.inf
    sides = (l1 - l0) ** 2 / (l0 + l1 + l2) + (r1 - r0) ** 2 / (r0 + r1 + l2)
    return sides - (t1 - t0) ** 2 / (t0 + t1 + l2)


def bounded_gain_of(case, j, left, l2, min_weight, sign, bounds):
    """The same with the best values in bounds; -inf if a cut puts them in the wrong order."""
    l0, l1 = case.weights(j, left)
    t0, t1 = case.weights(j, case.slots(j))
    r0, r1 = t0 - l0, t1 - l1
    if l0 + l1 < min_weight or r0 + r1 < min_weight:
        return -np.inf
    edges = np.array([l1 - l0, r1 - r0, t1 - t0])
    weights = np.array([l0 + l1, r0 + r1, t0 + t1]) + l2
    value = np.clip(edges / weights, *bounds)
    parts_values = set(range(int(case.n_bins[j]) - 1)) - set(left) != set()
    if parts_values and sign * (value[1] - value[0]) < 0:
        return -np.inf
    if value[0] == value[1]:  # both at the same bound: nothing is gained, but for rounding
        return -np.inf
    # -d/dv of the loss is 2 (edge - weight v), and at v = 0 nothing is removed.
    return float((2 * edges * value - weights * value**2) @ [1, 1, -1])


def charge_of(case, j, noise):
    return subset_charge([sum(case.weights(j, [b])) for b in case.used(j)], noise)


def best_gain(case, l2, category_l2, min_weight, noise, monotone=None, bounds=None, features=None):
    """The best gain over all candidates, one after the other."""

    def gain_of(case, j, left, l2, min_weight):
        if bounds is None:
            return free_gain_of(case, j, left, l2, min_weight)
        return bounded_gain_of(case, j, left, l2, min_weight, monotone[j], bounds)

    gains = [0.0]
    for j in range(len(case.n_bins)) if features is None else features:
        if not case.category[j]:
            gains += [gain_of(case, j, left, l2, min_weight) for left in case.cuts(j)]
            continue
        used = case.used(j)

        def lean(b, j=j):
            w0, w1 = case.weights(j, [b])
            return (w1 - w0) / (w0 + w1 + category_l2)

        ranked = sorted(used, key=lean)
        penalty = charge_of(case, j, noise)
        for k in range(1, len(used)):
            gains.append(gain_of(case, j, ranked[:k], category_l2, min_weight) - penalty)
        gains += [gain_of(case, j, [b], category_l2, min_weight) for b in used]
    return max(gains)


def distinct_leans(case, category_l2):
    """Whether categories have one order only: the order of ties is not specified."""
    for j in np.flatnonzero(case.category):
        leans = []
        for b in case.used(j):
            w0, w1 = case.weights(j, [b])
            leans.append((w1 - w0) / (w0 + w1 + category_l2))
        if len(set(leans)) < len(leans):
            return False
    return True


options = st.fixed_dictionaries(
    {
        "l2": st.sampled_from([0.0, 0.5, 30.0]),
        "category_l2": st.sampled_from([0.0, 1.5, 40.0]),
        "min_weight": st.sampled_from([1 / 128, 1.0, 9.0]),
        "noise": st.sampled_from([0.0, 0.3, 5.0]),
    }
)


@pytest.mark.slow
@given(cases(), options)
def test_the_best_gain_is_that_of_trying_everything(case, how):
    best = best_gain(case, **how)
    if not distinct_leans(case, how["category_l2"]):
        return
    for run in (best_split, best_split.py_func):
        found, _ = split(run, case, **how)
        np.testing.assert_allclose(found[0], best, rtol=1e-9, atol=1e-9)


some_features = st.sets(st.integers(0, 3))  # those of them that there are


@given(cases(), options, some_features)
def test_the_best_gain_of_some_features_is_that_of_trying_these(case, how, features):
    features = [j for j in sorted(features) if j < len(case.n_bins)]
    best = best_gain(case, **how, features=features)
    if not distinct_leans(case, how["category_l2"]):
        return
    for run in (best_split, best_split.py_func):
        found, mask = split(run, case, **how, features=features)
        np.testing.assert_allclose(found[0], best, rtol=1e-9, atol=1e-9)
        if found[0] == 0:
            assert found.tolist() == [0] * 5 and mask.tolist() == [0] * 4
        else:
            assert int(found[1]) in features


signs = st.lists(st.sampled_from([-1, 0, 1]), min_size=4, max_size=4)  # the first of them, of d
bounds = st.tuples(
    st.sampled_from([-np.inf, -0.6, -0.1, 0.0]), st.sampled_from([0.0, 0.05, 0.5, np.inf])
)


@given(cases(max_bins=6), options, signs, bounds)
def test_the_best_gain_under_constraints_is_that_of_trying_what_is_allowed(
    case, how, monotone, bounds
):
    monotone = np.where(case.category, 0, monotone[: len(case.n_bins)])
    best = best_gain(case, **how, monotone=monotone, bounds=bounds)
    if not distinct_leans(case, how["category_l2"]):
        return
    for run in (best_split, best_split.py_func):
        found, mask = split(run, case, **how, monotone=monotone, bounds=bounds)
        np.testing.assert_allclose(found[0], best, rtol=1e-9, atol=1e-9)
        if found[0] == 0:
            assert found.tolist() == [0] * 5 and mask.tolist() == [0] * 4
            continue
        j = int(found[1])
        left = [b for b in case.slots(j) if in_mask(mask, b)]
        assert case.weights(j, left) == (found[2], found[3])
        l2 = how["category_l2"] if case.category[j] else how["l2"]
        gain = bounded_gain_of(case, j, left, l2, how["min_weight"], monotone[j], bounds)
        penalty = charge_of(case, j, how["noise"]) if found[4] else 0.0
        np.testing.assert_allclose(found[0], gain - penalty, rtol=1e-9, atol=1e-9)


@given(cases(), options)
def test_constraints_that_bind_nothing_change_nothing(case, how):
    free = split(best_split, case, **how)
    wide = split(best_split, case, **how, bounds=(-1e6, 1e6))
    np.testing.assert_allclose(free[0][0], wide[0][0], rtol=1e-9, atol=1e-9)


@given(cases(), options)
def test_the_mask_gives_the_weights_and_the_gain_that_were_found(case, how):
    for run in (best_split, best_split.py_func):
        found, mask = split(run, case, **how)
        if found[0] == 0:
            assert found.tolist() == [0] * 5 and mask.tolist() == [0] * 4
            continue
        j = int(found[1])
        left = [b for b in case.slots(j) if in_mask(mask, b)]
        assert case.weights(j, left) == (found[2], found[3])
        l2 = how["category_l2"] if case.category[j] else how["l2"]
        penalty = 0.0
        if found[4]:
            assert case.category[j] and found[4] == len(case.used(j))
            penalty = charge_of(case, j, how["noise"])
        elif case.category[j]:  # one category stands against the rest
            assert len(set(left) & set(case.used(j))) == 1
        gain = free_gain_of(case, j, left, l2, how["min_weight"]) - penalty
        np.testing.assert_allclose(found[0], gain, rtol=1e-9, atol=1e-9)


@given(cases(), options)
def test_left_and_right_rows_sum_to_the_total_on_every_feature(case, how):
    found, mask = split(best_split, case, **how)
    if found[0] == 0:
        return
    goes_left = case.left_rows(int(found[1]), mask)
    left, right = case.histogram(goes_left), case.histogram(~goes_left)
    np.testing.assert_array_equal(left + right, case.hist)
    for j in range(len(case.n_bins)):
        l0, l1 = case.weights(j, case.slots(j), left)
        assert (l0, l1) == (found[2], found[3])
        r0, r1 = case.weights(j, case.slots(j), right)
        assert (l0 + r0, l1 + r1) == case.weights(j, case.slots(j))
        assert min(l0 + l1, r0 + r1) >= how["min_weight"]


@given(cases(kinds=(0,)), options)
def test_a_number_is_cut_once(case, how):
    found, mask = split(best_split, case, **how)
    if found[0] > 0:
        last = int(case.n_bins[int(found[1])]) - 1
        left = [in_mask(mask, b) for b in range(last)]
        assert left == sorted(left, reverse=True) and any(left)


@given(cases(missing=0.0), options)
def test_missing_values_that_the_leaf_never_saw_go_with_the_heavier_side(case, how):
    for run in (best_split, best_split.py_func):
        found, mask = split(run, case, **how)
        if found[0] == 0:
            continue
        j = int(found[1])
        last = int(case.n_bins[j]) - 1
        if sum(case.weights(j, [last])) == 0:
            left = found[2] + found[3]
            total = sum(case.weights(j, case.slots(j)))
            assert in_mask(mask, last) == (left > total - left)


@given(cases(kinds=(1,)), options)
def test_categories_that_the_leaf_never_saw_go_with_the_heavier_side(case, how):
    for run in (best_split, best_split.py_func):
        found, mask = split(run, case, **how)
        if found[0] == 0:
            continue
        j = int(found[1])
        left, total = found[2] + found[3], sum(case.weights(j, case.slots(j)))
        for b in set(range(256)) - set(case.used(j)):  # also those that the feature does not have
            assert in_mask(mask, b) == (left > total - left)


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(2, 8))
def test_without_penalties_a_subset_of_categories_is_the_best_of_all_subsets(seed, n_bins):
    # For convex gains some prefix of the order by L / W is best of all (Fisher 1958).
    case = Case(seed, [n_bins], [1])
    found, _ = split(best_split, case, category_l2=0.0)
    used = case.used(0)
    gains = [
        free_gain_of(case, 0, left, 0.0, 1 / 128)
        for size in range(1, len(used))
        for left in combinations(used, size)
    ]
    np.testing.assert_allclose(found[0], max(gains, default=0.0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("decay", [1.0, 0.97])
@pytest.mark.parametrize("k", [10, 50, 200])
def test_a_subset_of_noise_gains_its_charge_and_about_what_a_cut_of_noise_gains(k, decay):
    # In units of the noise. The best cut of a number of k bins gains up to 5 on noise, on average.
    # The gain of a subset has a standard deviation of about sqrt(k): 5 of those of the mean.
    rng, runs = np.random.default_rng(k), 100
    share = decay ** np.arange(k)
    rows = np.ceil(200 * k * share / share.sum()).astype(int)  # of weight 1: V / W = 1
    gains = []
    for _ in range(runs):
        positive = rng.binomial(rows, 0.5)
        case = by_hand([*(rows - positive), 0], [*positive, 0], 1)
        found, _ = split(best_split, case, category_l2=0.0, noise=0.0)
        gains.append(found[0])
    beyond = np.mean(gains) - subset_charge(rows, 1.0)
    tolerance = 5 * np.sqrt(k / runs)
    assert -tolerance < beyond < 5 + tolerance


@pytest.mark.slow
@pytest.mark.parametrize("signal", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("k", [30, 200])
def test_noise_that_was_fitted_is_not_charged_again(k, signal):
    # Categories of effects and noise, fitted subset by subset at a learning rate. What a subset
    # gains beyond what it would on fresh rows of the same effects is the charge for what is left.
    rng, rate, weight = np.random.default_rng(k), 0.3, 10_000.0
    steps, runs = 10, 100
    beyond = np.zeros(steps)
    effects = rng.normal(0, signal, (runs // 2, k)) * weight**0.5
    noises = rng.normal(0, 1, (runs // 2, k)) * weight**0.5  # V / W = 1
    # Each noise is taken with either sign: so the mean is known better.
    for effect, noise in zip([*effects, *effects], [*noises, *-noises], strict=True):
        fit = np.zeros(k)
        for t in range(steps):
            edge = effect + noise - fit
            case = by_hand([*(weight - edge) / 2, 0], [*(weight + edge) / 2, 0], 1)
            found, mask = split(best_split, case, category_l2=0.0, noise=0.0)
            left = np.array([in_mask(mask, b) for b in range(k)])
            value = np.where(left, edge[left].mean(), edge[~left].mean())
            beyond[t] += found[0] - (value - edge.mean()) @ (effect - fit) / weight
            fit += rate * value
    left = np.exp(-rate * 2 / np.pi * np.arange(steps))
    charge = subset_charge(np.full(k, weight), 1.0) * left
    np.testing.assert_allclose(beyond / runs, charge, rtol=0.35)
    assert charge[-1] < 0.2 * charge[0]


def by_hand(negative, positive, category=0):
    """One feature whose histogram is given."""
    case = Case(0, [len(negative)], [category], 0)
    case.hist = np.array([negative, positive], float)
    return case


def left_of(mask, n):
    return [b for b in range(n) if in_mask(mask, b)]


@pytest.mark.parametrize(
    ("negative", "positive", "left"),
    [
        ([8, 8, 1, 1, 0], [1, 1, 8, 8, 0], [0, 1]),  # sides of equal weight: right
        ([8, 8, 1, 1, 4], [1, 1, 8, 8, 0], [0, 1, 4]),  # missing ones are like the left
        ([8, 8, 1, 1, 0], [1, 1, 8, 8, 4], [0, 1]),  # like the right
        ([5, 5, 5, 5, 0], [5, 5, 5, 5, 20], [0, 1, 2, 3]),  # like nothing else
        ([8, 1, 1, 1, 0], [1, 8, 8, 8, 0], [0]),  # never seen, the right is heavier
        ([8, 8, 8, 1, 0], [1, 1, 1, 8, 0], [0, 1, 2, 4]),  # the left is
    ],
)
def test_missing_values_go_where_they_fit(negative, positive, left):
    for run in (best_split, best_split.py_func):
        found, mask = split(run, by_hand(negative, positive))
        assert left_of(mask, 5) == left
        assert found[2:].tolist() == [
            sum(negative[b] for b in left), sum(positive[b] for b in left), 0
        ]  # fmt: skip


def test_among_many_noisy_categories_a_single_one_wins_by_the_penalty():
    negative, positive = [10, 9, 8, 10, 8, 9], [9, 10, 10, 8, 20, 9]
    for run in (best_split, best_split.py_func):
        found, _ = split(run, by_hand(negative, positive, 1), noise=0.0)
        assert found[4] == 6
        found, mask = split(run, by_hand(negative, positive, 1), noise=1.0)
        assert found[4] == 0 and left_of(mask, 6) == [4]


@pytest.mark.parametrize("category", [0, 1])
def test_features_of_256_bins_use_every_bit(category):
    rng = np.random.default_rng(1)
    for cut in (0, 62, 63, 64, 127, 128, 191, 192, 254):
        right = np.arange(256) > cut
        case = by_hand(np.where(right, 1, 9), np.where(right, 9, 1), category)
        case.hist += rng.random((2, 256)) / 64  # no ties among categories
        found, mask = split(best_split, case)
        left = left_of(mask, 256)
        sides = [list(range(cut + 1)), list(range(cut + 1, 256))]
        # A single category, as the last one is once, may stand on either side.
        assert left in (sides if category else sides[:1])
        np.testing.assert_allclose(case.weights(0, left), found[2:4], rtol=1e-12)


@pytest.mark.parametrize("category", [0, 1])
def test_there_is_no_split_where_nothing_can_be_told_apart(category):
    for negative, positive in (
        ([0, 0, 0], [0, 0, 0]),  # no rows
        ([3, 0, 0], [5, 0, 0]),  # one bin
        ([0, 0, 3], [0, 0, 5]),  # all missing
        ([2, 4, 6], [2, 4, 6]),  # no difference
        ([0, 0, 0], [2, 4, 6]),  # one label, and no l2 that would tell sides apart by weight
    ):
        for run in (best_split, best_split.py_func):
            found, mask = split(run, by_hand(negative, positive, category), 0.0, 0.0)
            assert found.tolist() == [0] * 5
            assert mask.tolist() == [0] * 4


@pytest.mark.parametrize("category", [0, 1])
def test_a_side_lighter_than_the_least_weight_is_no_side(category):
    case = by_hand([9, 0, 1], [0, 3, 9], category)  # 9, 3 and 10 of weight: 12 | 10 at best
    for run in (best_split, best_split.py_func):
        for min_weight, splits in ((3.0, True), (10.0, True), (10.5, False), (11.5, False)):
            found, mask = split(run, case, min_weight=min_weight)
            assert (found[0] > 0) == splits
            if splits:
                left = sum(case.weights(0, left_of(mask, 3)))
                assert min(left, 22 - left) >= min_weight


def test_of_two_equal_features_the_first_is_taken():
    case = Case(0, [4, 4, 4], [0, 0, 0], 0)
    case.hist = np.tile([[9.0, 1.0, 1.0, 0.0], [1.0, 9.0, 2.0, 0.0]], 3)
    for run in (best_split, best_split.py_func):
        found, _ = split(run, case)
        assert found[1] == 0
    assert edge(best_edge, case)[0][1] == 0


def test_a_cut_in_the_wrong_order_gives_way_to_the_next_best():
    # Falls from bin 0 to 1, and rises a little from 1 to 2 and 3: up to 1 | 2 is what may be cut.
    rising = by_hand([1, 9, 8, 5, 0], [9, 1, 4, 7, 0])
    for run in (best_split, best_split.py_func):
        assert left_of(split(run, rising, l2=0.0)[1], 4) == [0]
        assert left_of(split(run, rising, l2=0.0, monotone=[-1])[1], 4) == [0]
        found, mask = split(run, rising, l2=0.0, monotone=[1])
        assert left_of(mask, 4) == [0, 1, 2]
        assert found[0] == pytest.approx(free_gain_of(rising, 0, [0, 1, 2], 0.0, 0.1))
    # The same for rules of +1 and -1.
    for run in (best_edge, best_edge.py_func):
        found, mask = edge(run, rising, monotone=[-1])
        assert found[2] == 1 and left_of(mask, 4) == [0]
        found, mask = edge(run, rising, monotone=[1])
        assert found[2] == -1 and left_of(mask, 4) == [0, 1, 2]


@pytest.mark.parametrize("sign", [1, -1])
def test_missing_values_alone_on_a_side_are_in_any_order(sign):
    for missing in ((20, 0), (0, 20)):
        case = by_hand([5, 5, 5, missing[0]], [5, 5, 5, missing[1]])
        for run in (best_split, best_split.py_func):
            found, mask = split(run, case, monotone=[sign])
            assert found[0] > 0 and not in_mask(mask, 3)
        for run in (best_edge, best_edge.py_func):
            found, mask = edge(run, case, monotone=[sign])
            assert found[0] == 20 and not in_mask(mask, 3)


def edge(run, case, scale=(1.0, 1.0), monotone=None, features=None):
    features = np.arange(len(case.n_bins)) if features is None else np.array(features, np.int64)
    sign = np.zeros(len(case.n_bins), np.int8) if monotone is None else np.array(monotone, np.int8)
    found, mask = np.full(3, np.nan), np.full(4, 99, np.uint64)
    run(
        case.hist,
        case.offset,
        case.n_bins,
        case.category,
        features,
        sign,
        np.array(scale),
        found,
        mask,
    )
    return found, mask


def edge_of(case, j, left, scale):
    l0, l1 = case.weights(j, left)
    t0, t1 = case.weights(j, case.slots(j))
    return 2 * (l1 * scale[1] - l0 * scale[0]) - (t1 * scale[1] - t0 * scale[0])


@given(
    cases(),
    st.sampled_from([(1.0, 1.0), (0.25, 4.0), (2.0, 0.5)]),
    st.none() | signs,
    st.none() | some_features,
)
def test_the_best_edge_is_that_of_trying_everything(case, scale, monotone, features):
    every = range(len(case.n_bins))
    features = [j for j in every if features is None or j in features]
    if monotone is not None:
        monotone = np.where(case.category, 0, monotone[: len(case.n_bins)])
    best = 0.0
    for j in features:
        last = int(case.n_bins[j]) - 1
        single = [[b] for b in case.slots(j)]
        cuts = [left for left in case.cuts(j) if len(left) <= last]  # some bin is left for right
        weight = case.hist.sum(0)
        for left in single if case.category[j] else cuts:
            has = [weight[int(case.offset[j]) + b] > 0 for b in case.slots(j)]
            sides = {b in left for b, some in zip(case.slots(j), has, strict=True) if some}
            signed = edge_of(case, j, left, scale)
            # +1 on the left, which holds some but not all values, is against a sign of +1.
            wrong = monotone is not None and last - 1 not in left and signed * monotone[j] > 0
            if len(sides) == 2 and not wrong:  # both have weight
                best = max(best, abs(signed))
    for run in (best_edge, best_edge.py_func):
        found, mask = edge(run, case, scale, monotone, features)
        assert found[0] == best  # every number here is a multiple of 1/256: exact
        if best == 0:
            assert found.tolist() == [0] * 3 and mask.tolist() == [0] * 4
            continue
        j = int(found[1])
        assert j in features
        left = left_of(mask, 256)
        assert set(left) <= set(case.slots(j))
        assert edge_of(case, j, left, scale) == found[2] * best
        # The same from the rows: +sign where the bin is in the mask, -sign elsewhere.
        y, w = 2 * case.label - 1, case.w * np.array(scale)[case.label]
        h = np.where(case.left_rows(j, mask), found[2], -found[2])
        assert (w * h * y).sum() == best


def test_the_best_edge_of_missing_values_and_of_256_bins():
    for negative, positive, left, sign in (
        ([8, 8, 1, 1, 4], [1, 1, 8, 8, 0], [0, 1, 4], -1),
        ([1, 1, 8, 8, 0], [8, 8, 1, 1, 4], [0, 1, 4], 1),
        ([8, 8, 1, 1, 0], [1, 1, 8, 8, 4], [0, 1], -1),
        ([5, 5, 5, 5, 0], [5, 5, 5, 5, 20], [0, 1, 2, 3], -1),
    ):
        case = by_hand(negative, positive)
        found, mask = edge(best_edge, case)
        # The last is cut anywhere as well: only missing values have an edge.
        assert in_mask(mask, 4) == (4 in left)
        assert found[2] == sign
        assert edge_of(case, 0, left_of(mask, 5), (1, 1)) == sign * found[0]
    right = np.arange(256) > 191
    case = by_hand(np.where(right, 1, 9), np.where(right, 9, 1))
    found, mask = edge(best_edge, case)
    assert left_of(mask, 256) == list(range(192)) and found[2] == -1
