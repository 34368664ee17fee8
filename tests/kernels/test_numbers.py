"""The kernels of numbers beside slow twins, and quantiles of leaves beside sorted rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_slots
from constants import set_constants
from naive import lay_out
from sparrowboost.kernels import numbers
from sparrowboost.kernels.numbers import (
    add_number_falls,
    add_number_losses,
    add_number_rows,
    add_number_squares,
    add_number_sums,
    add_slopes,
    weigh_derivatives,
)
from sparrowboost.learner.number_scanner import NumberScanner
from sparrowboost.model import regression
from sparrowboost.model.metrics import regression_sums
from sparrowboost.model.regression import (
    AbsoluteError,
    Gamma,
    Huber,
    Poisson,
    Quantile,
    SquaredError,
    Tweedie,
    quantile,
)
from sparrowboost.runtime.threads import WorkerPool
from sparrowboost.sampling.number_sample import DrawScale, NumberSample

pytestmark = pytest.mark.kernel

LOSSES = [
    SquaredError(), AbsoluteError(), Huber(0.75), Quantile(0.9), Quantile(0.25), Poisson(), Gamma(),
    Tweedie(1.25), Tweedie(1.75),
]  # fmt: skip
EACH_LOSS = pytest.mark.parametrize("loss", LOSSES, ids=repr)
seeds = st.integers(0, 2**32)


def both(kernel):
    """A kernel as it is compiled, and as plain Python."""
    return kernel, kernel.py_func


def targets_of(loss, rng, n):
    """Targets that the loss allows, among them zeros, and the same values again and again."""
    y = rng.choice([0.0, 0.5, 1.0, 3.0, 40.0], n) * np.exp(rng.choice([0.0, 0.0, 1.0, -2.0], n))
    if not loss.log_link:
        y *= rng.choice([-1.0, 1.0], n)
    return np.where(y == 0, 0.25 if not loss.allows_zero else 0.0, y).astype(np.float32)


def scores_of(loss, rng, n):
    """Scores, of which some hit the target and some are far off."""
    far = 300.0 if loss.log_link else 1e6
    ordinary = rng.choice([0.0, 0.5, 1.0, -1.0, 3.0], n) + rng.choice([0.0, 0.1], n)
    return np.where(rng.random(n) < 0.1, rng.choice([-far, far], n), ordinary).astype(np.float32)


def test_kinds_of_losses_have_the_same_numbers_in_both_modules():
    names = ("SQUARED", "HUBER", "STEEP", "LOG", "MAX_LOG")
    here, there = ([getattr(m, name) for name in names] for m in (numbers, regression))
    assert here == there
    assert len(set(here[:4])) == 4
    assert [loss.kind[0] for loss in LOSSES] == [
        numbers.SQUARED, numbers.STEEP, numbers.HUBER, numbers.STEEP, numbers.STEEP,
        *[numbers.LOG] * 4,
    ]  # fmt: skip


# -- derivatives and weights -----------------------------------------------------------------------


@EACH_LOSS
@given(seed=seeds, n=st.integers(0, 40))
@settings(max_examples=15)
def test_slopes_are_the_derivatives_of_the_loss(loss, seed, n):
    rng = np.random.default_rng(seed)
    y, score = targets_of(loss, rng, n), scores_of(loss, rng, n)
    expected = np.clip(loss.derivatives(y, score), -numbers.MOST, numbers.MOST)
    for run in both(add_slopes):
        g, h = np.full((2, n), np.nan, np.float32)
        run(*loss.kind, y, score, g, h)
        # Differences of float32 are off by a rounding of the larger number.
        off = 1e-6 * (np.abs(y) + np.abs(score) + np.abs(expected[0]))
        assert (np.abs(g - expected[0]) <= off).all()
        np.testing.assert_allclose(h, expected[1], rtol=1e-6)


@EACH_LOSS
def test_slopes_are_the_fall_of_the_loss_for_a_small_step_of_the_score(loss):
    rng = np.random.default_rng(0)
    y = targets_of(loss, rng, 200)
    score = rng.normal(size=200).astype(np.float32)
    g, h = np.empty((2, 200), np.float32)
    add_slopes(*loss.kind, y, score, g, h)
    step = 1e-4
    before, after = (loss.losses(y, score.astype(np.float64) + by) for by in (-step, step))
    off = np.abs(g - (before - after) / (2 * step))
    assert (off <= 1e-3 * (1 + np.abs(g))).mean() > 0.98  # all but those at a kink
    assert (h >= 0).all()


def rounded(x):
    """X to 16 bits, ties to even."""
    fraction, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.rint(fraction * 2**16), exponent - 16)


def naive_weights(u, counted, unit, most, floor, scale, g, h):
    g, h, u = rounded(g / np.float32(unit)), rounded(h), u.astype(np.float64)
    w = u * scale * np.sqrt(np.minimum(np.abs(g), most) ** 2 + (floor * h) ** 2)
    mass = 2 * u * h
    squares = mass**2
    if counted:
        squares = np.divide(squares, u, np.zeros_like(u), where=u > 0)
    total = (w.sum(), (w**2).sum(), mass.sum(), squares.sum(), mass.max(initial=0))
    return u * g, u * h, w, np.array(total)


@given(
    seeds, st.integers(0, 40), st.booleans(), st.sampled_from([0.25, 1.0, 2.0**70]),
    st.sampled_from([0.5, 1e30]), st.sampled_from([0.0, 0.5, 3.0]),
    st.sampled_from([1.0, 1e-3, 1e6]),
)  # fmt: skip
def test_weights_are_those_of_the_formula(seed, n, counted, unit, most, floor, scale):
    rng = np.random.default_rng(seed)
    u = (rng.integers(0, 257, n) if counted else rng.exponential(size=n)).astype(np.float32)
    g = (unit * rng.normal(size=n) * np.exp(rng.normal(size=n))).astype(np.float32)
    h = rng.choice([0.0, 1.0, 0.3, 2e3], n).astype(np.float32)
    expected = naive_weights(u, counted, unit, most, floor, scale, g, h)
    for run in both(weigh_derivatives):
        got = g.copy(), h.copy(), np.full(n, np.nan, np.float32), np.full(5, np.nan)
        with np.errstate(all="ignore"):
            run(u, counted, unit, most, floor, scale, *got)
        for mine, right in zip(got, expected, strict=True):
            np.testing.assert_allclose(mine, right, rtol=1e-5)


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_weights_of_derivatives_of_any_size_are_near_1(size):
    rng = np.random.default_rng(0)
    g, h = (size * rng.exponential(size=(2, 100))).astype(np.float32)
    expected = naive_weights(np.ones(100), False, 1.0, 10 * size, 0.5, 1 / size, g, h)
    for run in both(weigh_derivatives):
        w = np.empty(100, np.float32)
        args = np.ones(100, np.float32), False, 1.0, 10 * size, 0.5, 1 / size
        run(*args, g.copy(), h.copy(), w, np.empty(5))
        np.testing.assert_allclose(w, expected[2], rtol=1e-5)


@given(seeds, st.integers(1, 256))
def test_a_row_of_importance_k_has_exactly_the_derivatives_of_k_rows(seed, k):
    rng = np.random.default_rng(seed)
    g, h = rng.normal(size=(2, 8)).astype(np.float32) * np.float32(1e3)
    of = {}
    for u in (1, k):
        gu, hu, w, total = g.copy(), h.copy(), np.empty(8, np.float32), np.empty(5)
        how = True, 1.0, 1e30, 0.5, 1.0
        weigh_derivatives(np.full(8, u, np.float32), *how, gu, hu, w, total)
        of[u] = gu.astype(np.float64), hu.astype(np.float64), total[2], total[3]
    *exact, squares = zip(of[1], of[k], strict=True)
    for one, many in exact:
        np.testing.assert_array_equal(k * one, many)
    assert k * squares[0] == pytest.approx(squares[1], rel=1e-15)  # divided by k
    # Rounding to 16 bits changes a derivative by less than a row tells of it.
    np.testing.assert_allclose(of[1][0], g, rtol=2**-16)


@pytest.mark.parametrize("loss", [SquaredError(), Huber(0.75)], ids=repr)
def test_samples_do_not_depend_on_the_unit_of_the_target(loss):
    rng = np.random.default_rng(0)
    target, u = rng.normal(size=100).astype(np.float32), np.ones(100, np.float32)
    made = []
    for power in (-110, -20, 0, 70, 110):
        unit = 2.0**power
        of = Huber(loss.delta * unit) if isinstance(loss, Huber) else loss
        scale = DrawScale(2 * unit, 0.7 * unit, 0.8 * unit)
        sample = NumberSample(
            np.zeros((100, 1), np.uint8), np.zeros(100, np.uint8), u, np.zeros(100, np.float32), 0,
            of, target=target * np.float32(unit), scale=scale, whole=False, copies=u,
        )  # fmt: skip
        after = sample.next_scale()
        weights = sample.weights_at(after, slice(0, 100))
        made.append((sample.g, sample.h, sample.w, weights, after.to_array() / unit))
    for other in made:
        for mine, right in zip(other, made[2], strict=True):
            np.testing.assert_allclose(mine, right, rtol=1e-6)


# -- sums over the rows of leaves ------------------------------------------------------------------


class Case:
    """Rows in blocks and leaves. g and h are multiples of 1/64: every sum of them is exact."""

    def __init__(self, seed, n, block_rows, n_leaves, d):
        rng = np.random.default_rng(seed)
        self.slots = make_slots(rng.choice([2, 3, 5, 64, 256], d))
        self.bins = rng.integers(0, self.slots.n_bins, (n, d)).astype(np.uint8)
        self.u = np.exp2(rng.integers(-2, 4, n)).astype(np.float32)
        self.u[rng.random(n) < 0.1] = 0.0
        self.g = (self.u * rng.integers(-200, 200, n) / 64).astype(np.float32)
        self.h = (self.u * rng.integers(0, 100, n) / 64).astype(np.float32)
        self.leaf_of = rng.integers(0, n_leaves, n)
        if n:  # some blocks are of one leaf only: a kernel reads those another way
            for block in range(0, -(-n // block_rows), 2):
                self.leaf_of[block * block_rows : (block + 1) * block_rows] = block % n_leaves
        self.block_rows, self.n_leaves = block_rows, n_leaves
        self.layout = lay_out(self.leaf_of, block_rows, n_leaves, rng)
        self.all_blocks = rng.permutation(len(self.layout[1])).astype(np.int64)
        self.blocks = self.all_blocks[: rng.integers(0, len(self.all_blocks) + 1)]

    def rows(self, leaf):
        here = np.isin(np.arange(len(self.g)) // self.block_rows, self.blocks)
        return np.flatnonzero(here & (self.leaf_of == leaf))

    def evidence(self, run, leaf, counted, pairs, v, columns=None):
        run(
            self.bins, self.g, self.h, self.u, counted, *self.layout, self.blocks, self.block_rows,
            leaf, self.slots.offset, columns, pairs, v,
        )  # fmt: skip

    def naive_evidence(self, leaf, counted):
        low, high = np.zeros((2, self.slots.n))
        v = np.zeros(4)
        for i in self.rows(leaf):
            g, h, u = float(self.g[i]), float(self.h[i]), float(self.u[i])
            over = (1 / u if u > 0 else 0.0) if counted else 1.0
            v += g * g * over, g * h * over, h * h * over, abs(g)
            for j, first in enumerate(self.slots.offset.tolist()):
                slot = first + int(self.bins[i, j])
                low[slot] += h - g / 2
                high[slot] += h + g / 2
        return low, high, v


cases = st.builds(
    Case, seeds, st.integers(0, 50), st.integers(1, 17), st.integers(1, 4), st.integers(1, 4)
)


@given(cases, st.booleans())
@settings(max_examples=50)
def test_the_evidence_of_a_leaf_is_the_sum_over_its_rows(case, counted):
    for leaf in range(case.n_leaves):
        expected = case.naive_evidence(leaf, counted)
        for run in both(add_number_rows):
            pairs, v = np.zeros(2 * case.slots.n), np.zeros(4)
            with np.errstate(all="ignore"):
                case.evidence(run, leaf, counted, pairs, v)
            for mine, right in zip((pairs[::2], pairs[1::2], v), expected, strict=True):
                np.testing.assert_array_equal(mine, right)


@given(cases, seeds)
@settings(max_examples=40)
def test_of_some_columns_the_evidence_is_that_of_all_and_the_rest_is_left_out(case, seed):
    rng = np.random.default_rng(seed)
    d = case.bins.shape[1]
    columns = np.sort(rng.permutation(d)[: rng.integers(1, d + 1)]).astype(np.uint64)
    ends = [*case.slots.offset.tolist(), case.slots.n]
    used = np.zeros(case.slots.n, bool)
    for j in columns.tolist():
        used[ends[j] : ends[j + 1]] = True
    *hist, v = case.naive_evidence(0, False)
    for run in both(add_number_rows):
        pairs, squares = np.zeros(2 * case.slots.n), np.zeros(4)
        case.evidence(run, 0, False, pairs, squares, columns)
        for mine, right in zip((pairs[::2], pairs[1::2]), hist, strict=True):
            np.testing.assert_array_equal(mine, np.where(used, right, 0.0))
        np.testing.assert_array_equal(squares, v)


def test_rows_that_lie_far_apart_are_added_like_others():
    case = Case(0, n=900, block_rows=400, n_leaves=30, d=70)  # 13 rows of a leaf in a block
    rng = np.random.default_rng(1)
    case.leaf_of = rng.integers(0, case.n_leaves, len(case.g))
    case.layout = lay_out(case.leaf_of, case.block_rows, case.n_leaves, rng)
    case.blocks = case.all_blocks
    for leaf in range(0, case.n_leaves, 7):
        expected = case.naive_evidence(leaf, False)
        for run in both(add_number_rows):
            pairs, v = np.zeros(2 * case.slots.n), np.zeros(4)
            case.evidence(run, leaf, False, pairs, v)
            for mine, right in zip((pairs[::2], pairs[1::2], v), expected, strict=True):
                np.testing.assert_array_equal(mine, right)


@given(cases)
@settings(max_examples=40)
def test_evidence_and_sums_are_added_to_what_is_there_already(case):
    pairs, v, sums = np.zeros(2 * case.slots.n), np.zeros(4), np.zeros((case.n_leaves, 2))
    twice = pairs.copy(), v.copy(), sums.copy()
    of = case.g, case.h, *case.layout, case.blocks, case.block_rows, case.n_leaves
    case.evidence(add_number_rows, 0, False, pairs, v)
    add_number_sums(*of, sums)
    for _ in range(2):
        case.evidence(add_number_rows, 0, False, *twice[:2])
        add_number_sums(*of, twice[2])
    for once, again in zip((pairs, v, sums), twice, strict=True):
        np.testing.assert_array_equal(again, 2 * once)


@given(cases)
@settings(max_examples=50)
def test_the_sums_of_each_leaf_are_those_of_its_rows(case):
    for run in both(add_number_sums):
        sums = np.full((case.n_leaves, 2), 0.5)
        of = case.g, case.h, *case.layout, case.blocks, case.block_rows, case.n_leaves
        run(*of, sums)
        for leaf in range(case.n_leaves):
            rows = case.rows(leaf)
            exact = [0.5 + x[rows].sum(dtype=np.float64) for x in (case.g, case.h)]
            assert sums[leaf].tolist() == exact


@given(cases, seeds)
@settings(max_examples=50)
def test_squares_on_the_left_are_those_of_the_rows_that_a_split_sends_there(case, seed):
    rng = np.random.default_rng(seed)
    d = case.bins.shape[1]
    feature, leaf = int(rng.integers(d)), int(rng.integers(case.n_leaves))
    mask = rng.integers(0, 2**63, 4).astype(np.uint64)
    left = [
        i for i in case.rows(leaf)
        if int(mask[case.bins[i, feature] >> 6]) >> (int(case.bins[i, feature]) & 63) & 1
    ]  # fmt: skip
    g, h = case.g[left].astype(np.float64), case.h[left].astype(np.float64)
    expected = [1 + (g * g).sum(), 1 + (g * h).sum(), 1 + (h * h).sum()]
    columns = np.ascontiguousarray(case.bins.T).reshape(-1)
    for values, at, step in (
        (case.bins.reshape(-1), feature, d), (columns, feature * len(case.bins), 1),
    ):  # fmt: skip
        for run in both(add_number_squares):
            v = np.ones(3)
            run(
                values, at, step, case.g, case.h, *case.layout, case.blocks, case.block_rows, leaf,
                mask, v,
            )  # fmt: skip
            assert v.tolist() == expected


# -- quantiles of leaves ---------------------------------------------------------------------------


class Leaves:
    """A scanner of rows that are split into leaves, with residuals of any kind."""

    def __init__(self, seed, n, n_leaves, weights, loss=None, workers=None, d=2):
        rng = np.random.default_rng(seed)
        ordinary = rng.normal(size=n)
        tied = rng.choice([-2.5, -1.0, -0.0, 0.0, 1e-40, 1.0, 3.0], n)
        huge = rng.choice([-3e38, 2e38, 1e-30, -7.0], n)
        residual = np.select([rng.random(n) < p for p in (0.3, 0.5, 0.1)], [ordinary, tied, huge])
        u = {
            "none": np.ones(n),
            "whole": rng.integers(0, 4, n).astype(float),
            "any": rng.exponential(size=n) * (rng.random(n) < 0.8),
        }[weights].astype(np.float32)
        bins = rng.integers(0, n_leaves, (n, d)).astype(np.uint8)
        score = rng.choice([0.0, 1.0, -2.0], n).astype(np.float32)
        with np.errstate(over="ignore"):
            target = (residual + score).astype(np.float32)
        self.sample = NumberSample(
            bins, np.zeros(n, np.uint8), u, score, 0, loss or SquaredError(), target=target,
            scale=DrawScale(1.0, 1.0, 1.0), whole=False, copies=u,
        )  # fmt: skip
        self.scanner = NumberScanner(
            make_slots([n_leaves + 1] * d), n_leaves, workers or WorkerPool(1)
        )
        self.scanner.load(self.sample)
        empty = np.zeros(0, np.int64)
        forest = type("Forest", (), {"arrays": (empty,)})()
        self.scanner.start(forest, 0)
        self.scanner.extend(self.sample.n_blocks)
        for leaf in range(n_leaves - 1):  # leaf k has the rows whose first bin is k
            mask = np.zeros(4, np.uint64)
            mask[0] = np.uint64(1) << np.uint64(leaf)
            self.scanner.split(leaf, 0, mask, 1.0, final=True)

    def of_each(self):
        """The residuals and importances of each leaf's rows."""
        s = self.sample
        residual = s.target - s.score
        for leaf in range(self.scanner.tree.n_leaves):
            rows = s.bins[:, 0] == leaf
            yield residual[rows], s.u[rows]


def assert_close(mine, right, of):
    """Half-way between float32 is not always a float32."""
    assert mine == pytest.approx(right, rel=1e-6, abs=1e-44), of


@pytest.mark.filterwarnings("ignore:overflow")
@given(
    seeds, st.integers(1, 60), st.integers(1, 5), st.sampled_from(["none", "whole", "any"]),
    st.sampled_from([0.05, 0.25, 0.5, 0.75, 0.9, 1 / 3]),
)  # fmt: skip
@settings(max_examples=60)
def test_quantiles_of_leaves_are_those_of_their_sorted_residuals(seed, n, n_leaves, weights, level):
    leaves = Leaves(seed, n, n_leaves, weights)
    got = leaves.scanner.leaf_quantiles(level)
    for leaf, (residual, u) in enumerate(leaves.of_each()):
        if u.any():
            assert_close(got[leaf], quantile(residual, u, level), leaf)


@pytest.mark.filterwarnings("ignore:overflow")
@given(seeds, st.integers(1, 60), st.integers(1, 4), st.sampled_from(["none", "whole", "any"]))
@settings(max_examples=30)
def test_clipped_means_of_leaves_are_the_values_of_hubers_loss(seed, n, n_leaves, weights):
    loss = Huber(0.75)
    leaves = Leaves(seed, n, n_leaves, weights, loss)
    scanner = leaves.scanner
    got = scanner.leaf_clipped_means(scanner.leaf_quantiles(0.5), loss.delta)
    for leaf, (residual, u) in enumerate(leaves.of_each()):
        if u.any():
            assert_close(got[leaf], loss.leaf_value(residual, u), leaf)


def test_values_of_leaves_are_finite_where_no_row_counts():
    leaves = Leaves(0, 40, 3, "none", Huber(1.0))
    leaves.sample.u[leaves.sample.bins[:, 0] == 1] = 0.0
    middle = leaves.scanner.leaf_quantiles(0.5)
    assert np.isfinite(middle).all()
    assert np.isfinite(leaves.scanner.leaf_clipped_means(middle, 1.0)).all()


@pytest.mark.filterwarnings("ignore:overflow")
def test_quantiles_are_the_same_in_many_blocks_and_threads(monkeypatch):
    n = 3_000
    alone = Leaves(5, n, 4, "any", Huber(0.5))
    levels = [alone.scanner.leaf_quantiles(level) for level in (0.1, 0.5)]
    means = alone.scanner.leaf_clipped_means(levels[1], 0.5)
    set_constants(monkeypatch, sample_block_rows=64, part_values=100)
    monkeypatch.setattr("sparrowboost.learner.number_scanner.BLOCK_ROWS", 64)
    results = []
    for n_jobs in (1, 3):
        with WorkerPool(n_jobs) as workers:
            many = Leaves(5, n, 4, "any", Huber(0.5), workers)
            assert many.sample.n_blocks > 40
            found = [many.scanner.leaf_quantiles(level) for level in (0.1, 0.5)]
            results.append([*found, many.scanner.leaf_clipped_means(found[1], 0.5)])
    for mine, other in zip(*results, strict=True):
        np.testing.assert_array_equal(mine, other)
    for mine, other in zip(results[0], [*levels, means], strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6)


@given(seeds, st.integers(0, 30), st.integers(1, 4))
@settings(max_examples=25)
def test_cells_previous_and_clipped_sums_are_the_same_compiled_and_in_python(seed, n, n_leaves):
    case = Case(seed, n, 7, n_leaves, 1)
    rng = np.random.default_rng(seed)
    y, score = rng.choice([-1.5, -0.0, 0.0, 2.0], (2, n)).astype(np.float32)
    where = y, score, case.u, *case.layout, case.blocks, case.block_rows, n_leaves
    prefix = np.zeros(n_leaves, np.uint64)
    middle = rng.normal(size=n_leaves)
    most = np.full(n_leaves, 0.5, np.float32)
    for kernel, given_, shape, start in (
        (numbers.add_to_cells, (24, prefix), (n_leaves, numbers.RADIX), 0.0),
        (numbers.add_clipped, (middle, 0.5), (n_leaves, 2), 0.0),
        (numbers.find_previous, (most,), (n_leaves,), -np.inf),
    ):
        outs = []
        for run in both(kernel):
            dtype = np.float32 if kernel is numbers.find_previous else np.float64
            out = np.full(shape, start, dtype)
            run(*where, *given_, out)
            outs.append(out)
        np.testing.assert_array_equal(*outs)
    residual = y - score
    for leaf in range(n_leaves):
        rows = case.rows(leaf)
        below = residual[rows][(case.u[rows] > 0) & (residual[rows] < 0.5)]
        assert outs[0][leaf] == (below.max() if len(below) else -np.inf)


def test_both_zeros_are_the_same_residual_and_numbers_keep_their_order():
    values = np.array([-np.inf, -3e38, -1.5, -1e-45, -0.0, 0.0, 1e-45, 2.0, 3e38, np.inf], "f4")
    for ordered in both(numbers._ordered):
        keys = [int(ordered(value)) for value in values]
        assert keys[4] == keys[5] == 1 << 31
        assert keys == sorted(keys)
        assert len(set(keys)) == len(keys) - 1


# -- metrics ---------------------------------------------------------------------------------------


@EACH_LOSS
@given(seed=seeds, n=st.integers(0, 40), weighted=st.booleans())
@settings(max_examples=15)
def test_sums_of_losses_are_those_of_the_metrics(loss, seed, n, weighted):
    rng = np.random.default_rng(seed)
    y = targets_of(loss, rng, n)
    score = np.clip(scores_of(loss, rng, n), -80, 80)
    weight = rng.exponential(size=n).astype(np.float32) if weighted else None
    expected = regression_sums(y, score, loss, weight, 0.75)
    for run in both(add_number_losses):
        total = np.ones(6)
        run(*loss.kind, y, score, np.empty(0, "f4") if weight is None else weight, 0.75, total)
        np.testing.assert_allclose(total - 1, expected, rtol=1e-5, atol=1e-5)


@EACH_LOSS
@given(seed=seeds, n=st.integers(0, 40))
@settings(max_examples=15)
def test_falls_are_differences_of_losses(loss, seed, n):
    rng = np.random.default_rng(seed)
    y, u = targets_of(loss, rng, n), rng.exponential(size=n).astype(np.float32)
    before, after = (np.clip(scores_of(loss, rng, n), -80, 80) for _ in range(2))
    fall = u * (loss.losses(y, before) - loss.losses(y, after))
    size = u * (loss.losses(y, before) + loss.losses(y, after))
    for run in both(add_number_falls):
        total = np.zeros(2)
        run(*loss.kind, y, before, after, u, total)
        assert total[0] == pytest.approx(fall.sum(), abs=1e-9 * size.sum() + 1e-9)
        assert total[1] == pytest.approx((fall**2).sum(), rel=1e-6, abs=1e-9)


@EACH_LOSS
def test_a_right_prediction_has_no_loss(loss):
    y = np.array([0.5, 1.0, 3.0], np.float32)
    score = np.log(y) if loss.log_link else y
    for run in both(add_number_losses):
        total = np.zeros(6)
        run(*loss.kind, y, score, np.empty(0, np.float32), 0.0, total)
        np.testing.assert_allclose(total[1:4], 0.0, atol=1e-6)
