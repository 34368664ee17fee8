from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparrowboost.kernels.draws import (
    find_strata,
    keep_rows,
    pick_rows,
    put_rows,
    shuffle_rows,
    weigh_draw,
)
from sparrowboost.kernels.rows import random_order
from sparrowboost.sampling.strata import LOWEST, N_WEIGHTS, Rows, chunk_bytes

pytestmark = pytest.mark.kernel

MASK = 2**64 - 1


def pick(run, w, scale, share, carry, start=0, limit=10**9):
    """Rows picked, their copies, the row to go on with, and the running sum."""
    w = np.asarray(w, np.float32)
    rows, copies = np.full(len(w), -1), np.full(len(w), np.nan, np.float32)
    n, stop, carry = run(w, scale, share, carry, start, rows, copies, limit)
    assert (rows[n:] == -1).all() and np.isnan(copies[n:]).all()
    return rows[:n].tolist(), copies[:n].tolist(), stop, carry


def naive_pick(w, scale, share, carry):
    """The same in fractions: a row is picked when the sum of chances steps over a whole number."""
    total, rows, copies = Fraction(carry), [], []
    for i, wi in enumerate(w):
        p = min(Fraction(1), Fraction(float(np.float32(wi))) / Fraction(share * scale))
        if math.floor(total + p) > math.floor(total):
            rows.append(i)
            copies.append(float(1 / (Fraction(share) * p)))
        total += p
    return rows, copies, float(total - math.floor(total))


# Multiples of 1/64 over powers of 2: no sum of such chances is rounded.
exact_weights = st.lists(st.integers(0, 200).map(lambda k: k / 64), max_size=40)
powers = st.sampled_from([0.25, 0.5, 1.0, 2.0])
offsets = st.integers(0, 1023).map(lambda k: k / 1024)


@given(exact_weights, powers, st.sampled_from([0.25, 0.5, 1.0]), offsets)
def test_picks_are_those_of_exact_arithmetic(w, scale, share, carry):
    rows, copies, end = naive_pick(w, scale, share, carry)
    for run in (pick_rows, pick_rows.py_func):
        got = pick(run, w, scale, share, carry)
        assert got[0] == rows
        assert got[2] == len(w) and got[3] == end
        np.testing.assert_allclose(got[1], copies, rtol=1e-7)  # one rounding to float32


@settings(max_examples=40)
@given(exact_weights, powers, st.sampled_from([0.25, 0.5, 1.0]))
def test_over_all_offsets_a_row_is_picked_exactly_as_often_as_its_chance(w, scale, share):
    n_offsets = 512  # every chance is a multiple of 1 / 512
    counts, stands_for = np.zeros(len(w)), np.zeros(len(w))
    for k in range(n_offsets):
        rows, copies, _, _ = pick(pick_rows, w, scale, share, k / n_offsets)
        counts[rows] += 1
        stands_for[rows] += copies
    chance = np.minimum(1, np.array(w) / (share * scale))
    np.testing.assert_array_equal(counts, n_offsets * chance)
    # So each row of the data stands in the draw for 1 / share rows read: for itself, in the mean.
    expected = np.where(chance > 0, n_offsets / share, 0)
    np.testing.assert_allclose(stands_for, expected, rtol=1e-6)


weights = st.floats(0, 2.0**100, width=32)
# Not to the last bit below 1: see the test of a running sum just below 1.
carries = st.integers(0, 2**40 - 1).map(lambda k: k / 2**40)


@given(
    st.lists(weights | st.floats(0, 1, width=32), max_size=40),
    st.floats(0.01, 100), st.floats(0.01, 1), carries,
)  # fmt: skip
def test_the_number_picked_is_within_one_of_what_is_expected(w, scale, share, carry):
    expected = sum(min(1.0, float(wi) / (share * scale)) for wi in w)
    for run in (pick_rows, pick_rows.py_func):
        rows, _, stop, end = pick(run, w, scale, share, carry)
        assert abs(len(rows) - expected) < 1 + 1e-9
        assert 0 <= end < 1 and stop == len(w)
        # What was expected and not picked is in the running sum.
        assert end - carry == pytest.approx(expected - len(rows), abs=1e-9)
        sure = [i for i, wi in enumerate(w) if wi > 1.001 * share * scale]
        assert set(sure) <= set(rows)
        assert not any(w[i] == 0 for i in rows)


@given(
    st.lists(weights | st.floats(0, 1, width=32), max_size=30), st.floats(0.01, 2), carries,
    st.integers(1, 4),
)  # fmt: skip
def test_going_on_after_the_limit_picks_what_one_go_would(w, scale, carry, limit):
    whole = pick(pick_rows, w, scale, 0.5, carry)
    for run in (pick_rows, pick_rows.py_func):
        rows, copies, start, running = [], [], 0, carry
        while start < len(w):
            more, their, start, running = pick(run, w, scale, 0.5, running, start, limit)
            assert len(more) <= limit and 0 <= running < 1
            rows += more
            copies += their
        assert (rows, copies, running) == (whole[0], whole[1], whole[3])


def test_blocks_picked_one_after_the_other_are_one_run():
    w = np.random.default_rng(0).random(1000).astype(np.float32)
    whole = pick(pick_rows, w, 3.0, 0.9, 0.25)
    rows, carry = [], 0.25
    for start in range(0, 1000, 77):
        more, _, _, carry = pick(pick_rows, w[start : start + 77], 3.0, 0.9, carry)
        rows += [start + i for i in more]
    assert rows == whole[0] and carry == whole[3]


def test_a_running_sum_just_below_1_stays_below_1():
    almost = np.nextafter(1.0, 0.0)  # the greatest that Generator.random gives
    for run in (pick_rows, pick_rows.py_func):
        rows, copies, _, carry = pick(run, [1.0, 0.0], 1.0, 1.0, almost)
        assert rows == [0] and copies == [1]
        assert 0 <= carry < 1


def naive_stratum(w, lowest, n_strata):
    if w == 0:
        return 0
    _, exponent = math.frexp(w)  # w = m * 2**exponent with 1/2 <= m < 1
    return min(max(exponent - 1 - lowest, 0), n_strata - 1)


@given(
    st.lists(
        st.floats(0, width=32, allow_infinity=False)
        | st.integers(-149, 127).map(lambda k: 2.0**k)
    ),
    st.sampled_from([(LOWEST, N_WEIGHTS), (-126, 255), (-127, 254), (0, 1), (-3, 7), (5, 40)]),
)  # fmt: skip
@example([0.0, 1e-45, 1.1754942e-38, 1.1754944e-38, 3.4028235e38], (LOWEST, N_WEIGHTS))
def test_the_stratum_is_the_power_of_two_below_the_weight(w, strata):
    w = np.array(w, np.float32)
    for run in (find_strata, find_strata.py_func):
        stratum = np.full(len(w), 99, np.uint16)
        run(w, *strata, stratum)
        assert stratum.tolist() == [naive_stratum(wi, *strata) for wi in w.tolist()]


def test_strata_begin_at_their_powers_of_two():
    for power in range(LOWEST, LOWEST + N_WEIGHTS):
        at = np.float32(2.0**power)
        w = np.array([np.nextafter(at, np.float32(0)), at, np.nextafter(at, np.float32(np.inf))])
        stratum = np.empty(3, np.uint16)
        find_strata(w, LOWEST, N_WEIGHTS, stratum)
        k = power - LOWEST
        assert stratum.tolist() == [max(k - 1, 0), k, k]


SCORES = st.sampled_from([1, 3])  # of a row


def numbered_rows(n, d=3, weighted=True, targeted=True, n_scores=1):
    """Rows of which each part tells which row it is of; several scores are (n, n_scores)."""
    number = np.arange(n)
    bins = ((number[:, None] + 17 * np.arange(d)) % 256).astype(np.uint8)
    label = (number % 2).astype(np.uint8)
    copies, score = (number + 0.25).astype(np.float32), (number + 0.5).astype(np.float32)
    weight = (number + 0.75).astype(np.float32)[: n * weighted]
    target = (number + 0.125).astype(np.float32)[: n * targeted]
    if n_scores > 1:  # by class in memory, as samples have them
        score = np.array([score + np.float32(k / 8) for k in range(n_scores)]).T
    return bins, label, copies, weight, score, target


def naive_order(seed, n):
    order, state = list(range(n)), seed
    for i in range(n - 1, 0, -1):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        k = (((z ^ (z >> 31)) >> 32) * (i + 1)) >> 32
        order[i], order[k] = order[k], order[i]
    return order


@given(
    st.integers(0, MASK),
    st.integers(0, 40),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
    SCORES,
)
def test_shuffled_rows_are_a_permutation_that_keeps_each_row_together(
    seed, n, d, weighted, targeted, n_scores
):
    order = naive_order(seed, n)
    assert sorted(order) == list(range(n))
    for run in (shuffle_rows, shuffle_rows.py_func):
        before = numbered_rows(n, d, weighted, targeted, n_scores)
        after = numbered_rows(n, d, weighted, targeted, n_scores)
        with np.errstate(over="ignore"):  # the generator's products are meant to wrap
            run(np.uint64(seed), *after)
        for a, b in zip(after, before, strict=True):
            np.testing.assert_array_equal(a, b[order] if len(b) else b)


def test_rows_are_shuffled_into_the_order_that_random_order_gives():
    order, rows = np.empty(3000, np.uint32), numbered_rows(3000)
    random_order(np.uint64(7), order)
    shuffle_rows(np.uint64(7), *rows)
    np.testing.assert_array_equal(rows[4], order + np.float32(0.5))


def test_all_orders_of_four_rows_are_equally_likely():
    counts: dict[tuple[float, ...], int] = {}
    for seed in range(12_000):
        rows = numbered_rows(4, 1)
        shuffle_rows(np.uint64(seed * 0x2545F4914F6CDD1D & MASK), *rows)
        key = tuple(rows[2].tolist())
        counts[key] = counts.get(key, 0) + 1
    # 24 orders, 500 of each expected. Chi-square with 23 degrees of freedom: 99.99 % below 58.
    assert len(counts) == 24
    assert sum((c - 500) ** 2 / 500 for c in counts.values()) < 58


def test_a_row_gets_to_every_place_equally_often():
    n, n_seeds = 10, 5_000
    counts = np.zeros((n, n))
    for seed in range(n_seeds):
        rows = numbered_rows(n, 1)
        shuffle_rows(np.uint64(seed), *rows)
        counts[np.arange(n), rows[2].astype(int)] += 1
    # Rows and columns of the table have fixed sums, and a permutation's cells depend on each
    # other: (n - 1) / n times the usual statistic is chi-square with (n - 1)**2 = 81 degrees of
    # freedom; 99.99 % of it lies below 138.
    expected = n_seeds / n
    assert (n - 1) / n * ((counts - expected) ** 2 / expected).sum() < 138


@pytest.mark.slow
@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(0, 40),
    st.booleans(),
    st.booleans(),
    SCORES,
    st.integers(0, 2**32 - 1),
)
def test_rows_are_put_into_the_chunks_of_their_strata_in_order(
    n_strata, room, n, weighted, targeted, n_scores, seed
):
    rng = np.random.default_rng(seed)
    kinds = {"weighted": weighted, "targeted": targeted, "n_scores": n_scores}
    bins, label, _, weight, score, target = numbered_rows(n, **kinds)
    seen = np.arange(n, dtype=np.int32)
    stratum = rng.integers(0, n_strata, n).astype(np.uint16)
    order = rng.permutation(n).astype(np.uint32)
    given_rows = Rows(bins, label, weight, score, seen, target)
    wanted = [[int(i) for i in order if stratum[i] == k] for k in range(n_strata)]
    for run in (put_rows, put_rows.py_func):
        n_extra = weighted + targeted + n_scores - 1
        data = np.zeros((n_strata, 8 * chunk_bytes(3, n_extra=n_extra)), np.uint8)
        chunks = Rows.chunks(data, room, 3, **kinds)
        filled, got, at = np.zeros(n_strata, np.int64), [[] for _ in range(n_strata)], 0

        def taken(k, chunks=chunks, filled=filled):
            rows = [part[k, : filled[k]] for part in chunks]
            numbers = rows[4].tolist()
            for part, whole in zip(rows, given_rows, strict=True):
                if len(whole):
                    np.testing.assert_array_equal(part, whole[numbers])
            filled[k] = 0
            return numbers

        while True:
            at, full = run(*given_rows, stratum, order, at, *chunks, filled)
            if full < 0:
                break
            assert filled[full] == room
            got[full] += taken(full)
        assert at == n
        for k in range(n_strata):
            assert filled[k] < room
            got[k] += taken(k)
        assert got == wanted


@given(
    st.lists(st.integers(0, 19), max_size=30),
    st.integers(0, 5),
    st.booleans(),
    st.booleans(),
    SCORES,
)
def test_rows_that_are_kept_are_copied_from_the_first_free_place_on(
    which, first, weighted, targeted, n_scores
):
    kinds = {"weighted": weighted, "targeted": targeted, "n_scores": n_scores}
    bins, label, _, weight, score, target = numbered_rows(20, **kinds)
    rows = bins, label, weight, score, target
    for run in (keep_rows, keep_rows.py_func):
        to = [np.full((40 if len(part) else 0, *part.shape[1:]), 77, part.dtype) for part in rows]
        run(*rows, np.array(which, np.int64), first, *to)
        for part, out in zip(rows, to, strict=True):
            if len(part):
                end = first + len(which)
                np.testing.assert_array_equal(out[first:end], part[which])
                assert (out[:first] == 77).all() and (out[end:] == 77).all()


@given(exact_weights, st.integers(1, 9), powers)
def test_a_draw_is_weighed_as_the_sums_say(w, rows, scale):
    w, m = np.array(w, np.float32), np.full(len(w), rows, np.float32)
    for run in (weigh_draw, weigh_draw.py_func):
        kept, squares = run(w, m, scale)
        assert kept == sum(rows * min(wi / scale, 1) for wi in w.tolist())
        assert squares == sum(rows * wi * max(wi, scale) for wi in w.tolist())
