from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import sparrowboost.sampling.sampler
from builders import make_model, make_sample, make_stump, numbered_rows, numbers_of
from constants import set_constants
from sparrowboost.kernels.draws import weigh_draw
from sparrowboost.sampling.sampler import MAX_SHARE, Sampler
from sparrowboost.sampling.weight_estimate import ROWS_PER_EFF, WeightEstimate

N = 3_000
DRAWS = 200  # of each kind, each by a sampler of its own: totals of light rows are skewed
GROUPS = 30
BATCH_ROWS = 240  # of chunks that are read together
# The mean of 200 draws of a group's multiplicity follows Student's t. 2 x 30 groups of at most 5
# kinds of draw stay within 5 deviations but for a chance of 300 * 2.5e-6 = 8e-4; seeds are fixed.
DEVIATIONS = 5.0

# Stumps on the two features of numbered rows, low = number % 100 and high = number // 100. They
# pull weights apart by factors of up to exp(2 * 3.4) = 900: rows cross several strata.
STUMPS = [
    make_stump(0, range(30), 0.7, -0.4),
    make_stump(1, range(11), -0.9, 0.3),
    make_stump(0, range(55), -0.3, 0.8),
    make_stump(1, range(4), 1.2, -0.2),
    make_stump(0, range(90), 0.1, 0.9),
]
LEFT = [(0, 30), (1, 11), (0, 55), (1, 4), (0, 90)]


@pytest.fixture(autouse=True, scope="module")
def small_blocks_and_chunks():
    with pytest.MonkeyPatch.context() as patch:
        set_constants(
            patch,
            bucket_bytes=400,  # 15 of each label
            min_segment_bytes=10,
            chunk_rows=60,
            batch_bytes=BATCH_ROWS * 11,
        )
        yield


@pytest.fixture
def no_threads(monkeypatch):
    """Read in the caller's thread: the same samples, and quicker where blocks are so small."""

    def in_line(work, items, n_jobs, ahead):
        yield from map(work, items)

    monkeypatch.setattr(sparrowboost.sampling.sampler, "ordered_map", in_line)


def make_labels(n=N, share=0.3, seed=5):
    return np.random.default_rng(seed).random(n) < share


@pytest.fixture(scope="module")
def plain(small_blocks_and_chunks):
    """Numbered rows and their labels, without user weights."""
    label = make_labels()
    return numbered_rows(N, label), label, np.ones(N)


@pytest.fixture(scope="module")
def weighted(small_blocks_and_chunks):
    label = make_labels()
    weight = np.random.default_rng(6).lognormal(0, 0.7, N).astype(np.float32)
    return numbered_rows(N, label, weight), label, weight.astype(float)


def grow_model(model, n_trees):
    for stump in STUMPS[model.n_trees : n_trees]:
        model = model.with_tree(stump)
    return model


def exact_weights(model, label, user, loss="logistic"):
    """Every row's weight under the model, by the formulas."""
    number = np.arange(len(label))
    value = [number % 100, number // 100]
    score = np.full(len(label), model.base_score)
    for (feature, end), stump in list(zip(LEFT, STUMPS, strict=True))[: model.n_trees]:
        score += np.where(value[feature] < end, stump.value[0], stump.value[1])
    margin = np.where(label, score, -score)
    return user / (1 + np.exp(2 * margin)) if loss == "logistic" else user * np.exp(-margin)


def make_sampler(dataset, folder, seed, loss="logistic"):
    model = replace(make_model(dataset), loss=loss)
    return closing(Sampler(dataset, model, folder=folder, seed=seed, n_jobs=1))


def multiplicities(sample, n=N):
    """How many rows of the data each row stands for in a sample; 0 for those not in it."""
    numbers = numbers_of(sample.bins)
    assert len(np.unique(numbers)) == len(numbers), "a row is in the sample twice"
    copies = np.zeros(n)
    copies[numbers] = sample.copies
    return copies


def draw_all(data, folder, seed, plan, loss="logistic"):
    """Draws one after the other: (trees of the model, most rows) each; samples and models."""
    dataset, _, _ = data
    model, sample, out = make_model(dataset, loss), None, []
    with make_sampler(dataset, folder, seed, loss) as sampler:
        for n_trees, most_rows in plan:
            model = grow_model(model, n_trees)
            if sample is None:
                sample = sampler.first(sampler.weigh_base(), most_rows)
            else:
                sample = sampler.again(model, WeightEstimate.of(sample), most_rows)
            out.append((sample, model))
        assert os.listdir(folder) == [] or folder == dataset.path
    return out


def assert_unbiased(data, folder, plan, loss="logistic"):
    """After each draw of a plan, every group of rows stands for as many rows as it has."""
    _, label, user = data
    found = np.empty((len(plan), DRAWS, N))
    for seed in range(DRAWS):
        for k, (sample, _) in enumerate(draw_all(data, folder, seed, plan, loss)):
            found[k, seed] = multiplicities(sample)
    for k, (n_trees, _) in enumerate(plan):
        model = grow_model(make_model(data[0], loss), n_trees)
        # Groups by the exact weight, light to heavy, and random ones: neither may be off.
        by_weight = np.argsort(exact_weights(model, label, user, loss), kind="stable")
        for order in (by_weight, np.random.default_rng(0).permutation(N)):
            totals = np.column_stack(
                [found[k][:, part].sum(1) for part in np.array_split(order, GROUPS)]
            )
            size = N / GROUPS
            error = totals.std(0, ddof=1) / DRAWS**0.5
            off = np.abs(totals.mean(0) - size)
            assert (off <= DEVIATIONS * error + 1e-3 * size).all(), (k, off / error)
    return found


# First from the store, then after trees were added, so that strata hold stale weights.
FEW = [(0, 300), (1, 300), (2, 300), (4, 300), (5, 300)]
# The first draw reads all of one label, and most of the other.
MANY_FIRST = [(0, 1_800), (2, 400), (3, 400), (5, 400)]


@pytest.mark.slow
@pytest.mark.usefixtures("no_threads")
def test_every_row_stands_for_one_whether_weights_are_fresh_or_stale(plain, tmp_path):
    assert_unbiased(plain, tmp_path, FEW)


@pytest.mark.slow
@pytest.mark.usefixtures("no_threads")
def test_every_row_stands_for_one_after_a_draw_that_read_nearly_all(plain, tmp_path):
    assert_unbiased(plain, tmp_path, MANY_FIRST)


@pytest.mark.slow
@pytest.mark.usefixtures("no_threads")
def test_every_row_stands_for_one_with_user_weights(weighted, tmp_path):
    assert_unbiased(weighted, tmp_path, FEW)


@pytest.mark.slow
@pytest.mark.usefixtures("no_threads")
def test_every_row_stands_for_one_under_the_exponential_loss(plain, tmp_path):
    assert_unbiased(plain, tmp_path, MANY_FIRST, loss="exponential")


@pytest.fixture
def half_the_room(monkeypatch):
    """Buffers for half of the rows that a draw picks: what they hold is thinned out on the way."""
    room = sparrowboost.sampling.sampler.DrawBuffer

    def small_buffer(capacity, *args, **kwargs):
        return room((capacity - 1_000) // 2, *args, **kwargs)

    monkeypatch.setattr(sparrowboost.sampling.sampler, "DrawBuffer", small_buffer)


@pytest.mark.slow
@pytest.mark.usefixtures("no_threads", "half_the_room")
def test_every_row_stands_for_one_when_a_buffer_overflows(plain, tmp_path):
    found = assert_unbiased(plain, tmp_path, [(0, 300), (2, 300), (5, 300)])
    assert ((found[0] > 0).sum(1) < 200).all(), "nothing overflowed"


@pytest.mark.usefixtures("no_threads", "half_the_room")
def test_no_row_has_a_place_that_an_overflow_always_keeps(tmp_path):
    # 200 rows that weigh the same: whatever its place, a row stands for one. Those
    # kept stand for k or 2 k, k = 200 / 60: of deviation sqrt(2 k - 1) = 2.4 at most, and its mean
    # over 400 draws of deviation 0.12. Of 200 rows none is 5 of these off.
    n, draws = 200, 400
    dataset = numbered_rows(n, np.arange(n) % 2 == 0)
    total = np.zeros(n)
    for seed in range(draws):
        with make_sampler(dataset, tmp_path, seed) as sampler:
            total += multiplicities(sampler.first(sampler.weigh_base(), 60), n)
    assert total.sum() / draws == pytest.approx(n, rel=0.02)
    assert np.abs(total / draws - 1).max() < 5 * 0.12


@pytest.mark.parametrize("kind", ["plain", "weighted"])
@pytest.mark.parametrize("loss", ["logistic", "exponential"])
def test_weights_of_a_sample_are_exact_however_stale_the_stored_ones(kind, loss, tmp_path, request):
    data = request.getfixturevalue(kind)
    _, label, user = data
    for sample, model in draw_all(data, tmp_path, 3, FEW, loss):
        numbers = numbers_of(sample.bins)
        np.testing.assert_array_equal(sample.label, label[numbers])
        exact = sample.copies * exact_weights(model, label, user, loss)[numbers]
        most = max(MAX_SHARE, 10 / sample.n) * exact.sum()
        np.testing.assert_allclose(sample.w, np.minimum(exact, most), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("no_threads")
def test_kept_rows_are_in_proportion_to_fresh_weights(plain, tmp_path):
    # Rows are kept with chance w / scale. Counts by weight, summed over draws, vary less than
    # multinomial ones (one running sum picks them), so chi-square is at most chi-square.
    dataset, label, user = plain
    kept, model = np.zeros(N), make_model(dataset)
    for seed in range(DRAWS):
        with make_sampler(dataset, tmp_path, seed) as sampler:
            sample = sampler.first(sampler.weigh_base(), 300)
            model = grow_model(model, 3)
            # All is read and put back under the model; then drawn again under the same model.
            sampler.again(model, WeightEstimate(user, user, label), 10**6)
            sample = sampler.again(model, WeightEstimate.of(sample), 300)
            kept += np.bincount(numbers_of(sample.bins), minlength=N)
    w = exact_weights(model, label, user)
    order = np.argsort(w, kind="stable")
    parts = np.array_split(order, GROUPS)
    expected = np.array([w[part].sum() for part in parts]) * kept.sum() / w.sum()
    chi_square = sum(
        (kept[part].sum() - e) ** 2 / e for part, e in zip(parts, expected, strict=True)
    )
    assert chi_square < stats.chi2.ppf(1 - 1e-5, GROUPS - 1)


def test_a_weighted_draw_of_rare_positives_has_as_many_of_each_label(tmp_path):
    # The paper's example: 100,000 rows, 1 % positive, n = 2,000.
    n = 100_000
    label = np.zeros(n, bool)
    label[::100] = True
    dataset = numbered_rows(n, label, width=250)
    with make_sampler(dataset, tmp_path, 0) as sampler:
        sample = sampler.first(sampler.weigh_base(), 2_000)
    # All 1,000 positives just fit, so that their number may be off by rounding only.
    assert sample.n == pytest.approx(2_000, abs=2)
    assert sample.label.mean() == pytest.approx(0.5, abs=0.002)
    assert sample.n_eff == pytest.approx(2_000, rel=0.01)


def test_the_first_draw_of_rare_positives_reads_few_of_the_others(tmp_path, monkeypatch):
    n = 100_000
    label = np.zeros(n, bool)
    label[::100] = True
    set_constants(monkeypatch, bucket_bytes=4_000)
    dataset = numbered_rows(n, label, width=250)
    with make_sampler(dataset, tmp_path, 0) as sampler:
        sampler.first(sampler.weigh_base(), 2_000)
        # All 1,000 positives, and one or two of the blocks of 1,000 or so negatives.
        assert 2_000 <= sampler.counts.rows_read <= 8_000


def test_at_most_about_two_rows_are_read_for_each_that_is_kept(tmp_path):
    n = 20_000
    label = make_labels(n)
    dataset = numbered_rows(n, label, width=250)
    most = 0.0
    with make_sampler(dataset, tmp_path, 0) as sampler:
        first = sampler.first(sampler.weigh_base(), 2_000)
        model = grow_model(make_model(dataset), 5)
        sampler.again(model, WeightEstimate.of(first), n)  # drifted: whatever it takes
        estimate = WeightEstimate(np.ones(n), np.ones(n), label.astype(np.uint8))
        everything = sampler.again(model, estimate, 10**6)  # now all lie in strata of their weights
        assert everything.n == n
        for size in (500, 1_000, 2_000, 4_000):
            before = sampler.counts.rows_read
            sample = sampler.again(model, WeightEstimate.of(everything), size)
            most = max(most, (sampler.counts.rows_read - before) / sample.n)
            assert sample.n == pytest.approx(size, rel=0.1)
    # Two of the larger draws; of small ones, so many chunks of each stratum that none decides.
    assert most <= 4
    assert (sampler.counts.rows_read - before) / sample.n <= 2.3


def test_no_row_is_lost_or_met_twice_over_many_draws(plain, tmp_path):
    dataset, label, user = plain
    with make_sampler(dataset, tmp_path, 1) as sampler:
        model, sample = make_model(dataset), sampler.first(sampler.weigh_base(), 500)
        for n_trees in (1, 2, 3, 4, 5, 5, 5, 5):
            model = grow_model(model, n_trees)
            sample = sampler.again(model, WeightEstimate.of(sample), 500)
            multiplicities(sample)
        everything = sampler.again(model, WeightEstimate(user, user, label.astype(np.uint8)), 10**6)
        np.testing.assert_allclose(multiplicities(everything), 1)
        # Scratch holds each row once, and what is on its way: some chunks read together.
        assert sampler._strata.scratch_bytes <= (N + 60 + BATCH_ROWS) * 11


@pytest.mark.parametrize("sizes", [(400, 800, 1_600, 2_500, 2_500, 2_500), (2_500, 400, 400, 400)])
def test_no_row_is_lost_when_draws_follow_each_other_before_the_first_tree(plain, tmp_path, sizes):
    # Training does that when the first samples show no split; it makes each larger.
    dataset, label, user = plain
    with make_sampler(dataset, tmp_path, 1) as sampler:
        model, sample = make_model(dataset), sampler.first(sampler.weigh_base(), sizes[0])
        for most_rows in sizes[1:]:
            sample = sampler.again(model, WeightEstimate.of(sample), most_rows)
        everything = sampler.again(model, WeightEstimate(user, user, label.astype(np.uint8)), 10**6)
        np.testing.assert_allclose(multiplicities(everything), 1)
        assert sampler._strata is None  # all lie in the store, as they were


def test_the_same_seed_gives_the_same_samples_in_the_background_too(plain, tmp_path):
    dataset, _, _ = plain
    found = []
    for seed, n_jobs, background in ((1, 1, False), (1, 3, True), (2, 1, False)):
        start = make_model(dataset)
        sampler = Sampler(dataset, start, folder=tmp_path, seed=seed, n_jobs=n_jobs)
        with closing(sampler):
            sample = sampler.first(sampler.weigh_base(), 400)
            parts = []
            for n_trees in (1, 3, 5):
                model = grow_model(make_model(dataset), n_trees)
                if background:
                    sampler.request(model, WeightEstimate.of(sample), 400)
                    assert sampler.requested
                    sampler.request(model, WeightEstimate.of(sample), 1)  # one at a time
                    sample = sampler.take()
                    assert not sampler.requested
                else:
                    sample = sampler.again(model, WeightEstimate.of(sample), 400)
                parts += [sample.bins.tobytes(), sample.u.tobytes(), sample.score.tobytes()]
            found.append(parts)
            counts = sampler.counts
            assert counts.n_samples == 4
            assert counts.rows_read >= counts.rows_kept > 0
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_a_sampler_that_is_closed_while_it_draws_leaves_nothing(plain, tmp_path):
    dataset, _, _ = plain
    with make_sampler(dataset, tmp_path, 0) as sampler:
        sample = sampler.first(sampler.weigh_base(), 400)
        sampler.request(grow_model(make_model(dataset), 2), WeightEstimate.of(sample), 400)
    assert os.listdir(tmp_path) == []


def test_rows_of_a_sample_are_in_random_order(plain, tmp_path):
    # Strata are read light to heavy: without a shuffle, weights would rise. The serial correlation
    # of the importance and its place has deviation 1 / sqrt(n).
    for sample, _ in draw_all(plain, tmp_path, 2, FEW):
        order = np.corrcoef(sample.copies + 1e-9 * np.arange(sample.n), np.arange(sample.n))[0, 1]
        assert abs(order) < 4.5 / sample.n**0.5


def test_all_rows_are_one_sample_in_random_order(weighted, tmp_path):
    dataset, label, user = weighted
    with make_sampler(dataset, tmp_path, 0) as sampler:
        sample = sampler.all_rows()
    assert sample.whole
    assert sample.n == N
    numbers = numbers_of(sample.bins)
    assert sorted(numbers.tolist()) == list(range(N))
    # The label's serial correlation with its place has deviation 1 / sqrt(n).
    assert abs(np.corrcoef(sample.label, np.arange(N))[0, 1]) < 4.5 / N**0.5
    np.testing.assert_array_equal(sample.label, label[numbers])
    np.testing.assert_allclose(sample.u, user[numbers], rtol=1e-6)
    assert (sample.copies == 1).all()


# -- the estimate: how large a draw is ------------------------------------------------------------


def test_a_guide_foresees_the_rows_and_the_n_eff_of_a_draw(plain, tmp_path):
    dataset, label, user = plain
    model = grow_model(make_model(dataset), 5)
    estimate = WeightEstimate(exact_weights(model, label, user), user, label.astype(np.uint8))
    scale = estimate.scale_for(400)
    assert estimate.rows_at(scale) == pytest.approx(400, rel=0.01)
    with make_sampler(dataset, tmp_path, 0) as sampler:
        sampler.first(sampler.weigh_base(), 400)
        sample = sampler.again(model, estimate, 400)
    # Rows kept: chunks of unequal weight are drawn, so the count varies by some percent.
    assert sample.n == pytest.approx(400, rel=0.15)
    assert estimate.spread(1) == pytest.approx(np.sqrt((estimate.weight[label] ** 2).mean()))


def test_a_draw_has_no_more_rows_than_its_n_eff_is_worth():
    # 100 rows hold half of all weight: whatever the number of rows, n_eff stays below 400.
    w = np.r_[np.full(100, 1_000.0), np.full(100_000, 1.0)]
    estimate = WeightEstimate(w, np.ones(len(w)), np.zeros(len(w), np.uint8))
    scale = estimate.scale_for(50_000)
    rows = estimate.rows_at(scale)
    n_eff = estimate.total() ** 2 / weigh_draw(estimate.weight, estimate.rows, scale)[1]
    assert rows == pytest.approx(ROWS_PER_EFF * n_eff, rel=0.01)
    assert n_eff < 400
    # ... and n_eff as foreseen is that of a draw: heavy rows once, light ones at the scale.
    kept = np.r_[np.full(100, 1_000.0), np.full(round(rows) - 100, scale)]
    assert n_eff == pytest.approx(kept.sum() ** 2 / (kept**2).sum(), rel=0.02)


def test_a_guide_made_of_a_sample_counts_the_rows_that_it_stands_for():
    sample = make_sample(np.zeros((4, 1)), [0, 1, 0, 1], u=[2, 2, 8, 8])
    sample.copies = np.float32([1, 1, 4, 4])
    estimate = WeightEstimate.of(sample)
    np.testing.assert_allclose(estimate.weight, 1)
    np.testing.assert_allclose(estimate.rows, [1, 1, 4, 4])
    assert estimate.rows_at(2.0) == pytest.approx(5)
