from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constants import set_constants
from sparrowboost import StoreError
from sparrowboost.sampling.strata import (
    LOWEST,
    N_WEIGHTS,
    Rows,
    Strata,
    spread,
    sum_strata,
)

D = 3
CHUNK_ROWS = 10


@pytest.fixture(autouse=True, scope="module")
def small_chunks():
    with pytest.MonkeyPatch.context() as patch:
        set_constants(patch, chunk_rows=CHUNK_ROWS)
        yield


def make_rows(numbers, *, weighted=True, targeted=False) -> Rows:
    """Rows that hold their own number, in each of their parts."""
    numbers = np.asarray(numbers, np.int64)
    bins = np.column_stack([numbers % 251, numbers // 251 % 251, numbers % 7]).astype(np.uint8)
    return Rows(
        bins,
        (numbers % 2).astype(np.uint8),
        (numbers * 0.25).astype(np.float32) if weighted else np.empty(0, np.float32),
        (numbers * 0.5).astype(np.float32),
        numbers.astype(np.int32),
        (numbers * 0.125).astype(np.float32) if targeted else np.empty(0, np.float32),
    )


def assert_intact(rows, *, weighted=True) -> list[int]:
    """Every part of the rows belongs to the row's number; the numbers."""
    for part, expected in zip(rows, make_rows(rows.seen, weighted=weighted), strict=True):
        np.testing.assert_array_equal(part, expected)
        assert part.dtype == expected.dtype
    return rows.seen.tolist()


def take_all(strata, rng) -> Counter:
    """All rows of all strata, by number and stratum."""
    found: Counter = Counter()
    for k in range(strata.n_strata):
        for picked in strata.pick(k, strata.n_chunks(k), rng):
            assert picked.share == 1
            found.update((number, k) for number in assert_intact(strata.read(picked)))
            strata.forget(picked)
        assert strata.size(k) == strata.n_chunks(k) == 0
    return found


def stratum_of(w, label):
    weight = np.clip(np.floor(np.log2(w)).astype(int) - LOWEST, 0, N_WEIGHTS - 1)
    return N_WEIGHTS * label + weight


def rows_of(picked) -> int:
    return CHUNK_ROWS * len(picked.chunks) + (0 if picked.rows is None else len(picked.rows.label))


def chunks_of(picked) -> int:
    return sum(len(p.chunks) for p in picked)


# A step is how many rows to append and how their weights are spread, or which chunks to pick.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 45), st.integers(0, 3)),
        st.tuples(st.just("pick"), st.integers(0, 6), st.booleans()),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(STEPS, st.integers(0, 99))
def test_what_is_put_in_comes_out_whatever_the_order_of_steps(tmp_path_factory, steps, seed):
    rng = np.random.default_rng(seed)
    strata = Strata(tmp_path_factory.getbasetemp(), D, weighted=True)
    inside: Counter = Counter()
    taken: list = []
    n = 0
    for kind, how_many, how in steps:
        if kind == "append":
            numbers = np.arange(n, n + how_many)
            n += how_many
            w = np.exp2(rng.uniform(-3, -3 + how, how_many)).astype(np.float32)
            strata.append(make_rows(numbers), w)
            strata_of = stratum_of(w, numbers % 2).tolist()
            inside.update(zip(numbers.tolist(), strata_of, strict=True))
        else:
            for k in range(strata.n_strata):
                before, n_chunks = strata.size(k), strata.n_chunks(k)
                picked = strata.pick(k, how_many, rng)
                assert chunks_of(picked) == min(how_many, n_chunks)
                # Some are read while they are picked, others after more was put in.
                taken += [(p, k) for p in picked]
                assert strata.size(k) == before - sum(map(rows_of, picked))
            if how:
                for chunk, k in taken:
                    inside -= Counter((i, k) for i in assert_intact(strata.read(chunk)))
                    strata.forget(chunk)
                taken = []
    for chunk, k in taken:
        inside -= Counter((i, k) for i in assert_intact(strata.read(chunk)))
    assert take_all(strata, rng) == inside
    strata.close()


def test_a_row_lies_in_the_stratum_of_its_weight(tmp_path):
    w = np.float32([0, 1e-30, 2.0**LOWEST, 0.3, 0.5, 0.99, 1, 1.99, 2, 2.0**39, 1e30])
    strata = Strata(tmp_path, D, weighted=True)
    strata.append(make_rows(np.arange(len(w))), w)
    found = dict(take_all(strata, np.random.default_rng(0)).keys())
    strata.close()
    for number, weight in enumerate(w.tolist()):
        label, k = divmod(found[number], N_WEIGHTS)
        assert label == number % 2
        if 2.0**LOWEST <= weight < 2.0 ** (LOWEST + N_WEIGHTS):
            assert strata.upper(found[number]) / 2 <= weight < strata.upper(found[number])
        else:
            assert k == (0 if weight < 1 else N_WEIGHTS - 1)


def test_rows_without_user_weights_are_as_small_as_they_can_be(tmp_path):
    strata = Strata(tmp_path, D, weighted=False)
    strata.append(make_rows(np.arange(0, 200, 2), weighted=False), np.ones(100, np.float32))
    rows = [strata.read(p) for p in strata.pick(-LOWEST, 10**6, np.random.default_rng(0))]
    numbers = [number for part in rows for number in assert_intact(part, weighted=False)]
    assert sorted(numbers) == list(range(0, 200, 2))
    strata.close()
    n_chunks = strata.bytes_written // (strata.chunk_rows * (D + 9))
    assert n_chunks * strata.chunk_rows * (D + 9) == strata.bytes_written == strata.scratch_bytes


def test_places_in_the_file_are_used_again(tmp_path):
    strata = Strata(tmp_path, D, weighted=True)
    rng = np.random.default_rng(0)
    n = 1_000
    w = np.exp2(rng.uniform(-5, 5, n)).astype(np.float32)
    strata.append(make_rows(np.arange(n)), w)
    for _ in range(50):
        for k in range(strata.n_strata):
            for picked in strata.pick(k, 3, rng):
                rows = strata.read(picked)
                strata.append(rows, np.exp2(rng.uniform(-5, 5, len(rows.seen))).astype(np.float32))
                strata.forget(picked)
    # Rows were written many times over. What is put back may be written before the places of the
    # chunks that it came from are free: three chunks more than all rows take.
    row_bytes = D + 9 + 4
    assert strata.bytes_written > 10 * n * row_bytes
    assert strata.scratch_bytes <= (n + 3 * CHUNK_ROWS) * row_bytes
    assert os.fstat(strata._file.fileno()).st_size <= strata.scratch_bytes
    assert sum(take_all(strata, rng).values()) == n
    strata.close()


def test_every_row_is_picked_with_the_chance_that_is_told(tmp_path):
    # 9 chunks, of which 4 are taken: of each two in a row one, and once of three. A chunk that is
    # taken stands for one over its chance, so for 1 in the mean; each time for 0, 2 or 3, which has
    # a deviation of at most sqrt(2), and in 1,000 picks of 0.045: nine chunks stay within 4 of
    # these. What waits in memory is taken whole.
    rng = np.random.default_rng(0)
    stood_for = np.zeros(10)
    for _ in range(1_000):
        strata = Strata(tmp_path, D, weighted=True)
        strata.append(make_rows(np.arange(0, 190, 2)), np.ones(95, np.float32))
        for picked in strata.pick(-LOWEST, 4, rng):
            chunks = np.unique(strata.read(picked).seen // 2 // CHUNK_ROWS)
            stood_for[chunks] += 1 / picked.share
        strata.close()
    assert np.abs(stood_for[:9] / 1_000 - 1).max() < 4 * 0.045
    assert stood_for[9] == 1_000


@given(st.integers(0, 50), st.integers(0, 60), st.integers(0, 9))
def test_what_is_picked_is_spread_over_the_queue(n, n_picked, seed):
    chosen, sizes = spread(n, n_picked, np.random.default_rng(seed))
    assert len(chosen) == min(n, n_picked)
    if len(chosen):
        assert sizes.sum() == n
        assert sizes.max() - sizes.min() <= 1
        ends = np.cumsum(sizes)
        assert ((ends - sizes <= chosen) & (chosen < ends)).all()


def test_the_scratch_file_has_no_name(tmp_path):
    strata = Strata(tmp_path, D, weighted=True)
    strata.append(make_rows(np.arange(1_000)), np.ones(1_000, np.float32))
    assert strata.bytes_written > 0
    assert os.listdir(tmp_path) == []
    strata.close()
    assert os.listdir(tmp_path) == []


KILLED = """
import os, signal, sys
import numpy as np
import sparrowboost
from sparrowboost.learner.events import SampleDrawn

rng = np.random.default_rng(0)
X = rng.normal(size=(20_000, 2))
dataset = sparrowboost.ingest(X, label=X[:, 0] > 0, path=sys.argv[1] + "/store", verbose=0)

def kill(event):
    if isinstance(event, SampleDrawn) and event.n_samples == 3:
        print(len(os.listdir(sys.argv[2])), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

sparrowboost.train(dataset, scratch=sys.argv[2], sample_size=2_000, n_estimators=1_000,
                   callbacks=[kill], verbose=0)
"""


@pytest.mark.slow
def test_nothing_is_left_of_the_scratch_when_the_process_is_killed(tmp_path):
    (tmp_path / "scratch").mkdir()
    command = [sys.executable, "-c", KILLED, tmp_path, tmp_path / "scratch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    assert done.stdout == "0\n"
    assert os.listdir(tmp_path / "scratch") == []
    assert sorted(p.name[:5] for p in (tmp_path / "store").iterdir()) == ["manif", "rows-"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match=f"{tmp_path}: cannot write scratch data"):
        Strata(tmp_path, D, weighted=False)


@pytest.mark.parametrize("folder", ["/proc", "/no/such/folder"])
def test_a_folder_that_cannot_be_written_is_named(folder):
    with pytest.raises(StoreError, match=rf"{folder}: cannot write scratch data .*scratch="):
        Strata(folder, D, weighted=False)


def test_a_scratch_file_that_was_cut_off_is_found_out(tmp_path):
    strata = Strata(tmp_path, D, weighted=True)
    strata.append(make_rows(np.arange(0, 200, 2)), np.ones(100, np.float32))
    (picked,) = strata.pick(-LOWEST, 10, np.random.default_rng(0))
    os.ftruncate(strata._file.fileno(), 50)
    with pytest.raises(StoreError, match="scratch file is damaged"):
        strata.read(picked)
    strata.close()


def test_a_disk_that_fails_is_named(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    strata = Strata(tmp_path, D, weighted=True)
    strata.append(make_rows(np.arange(0, 200, 2)), np.ones(100, np.float32))
    (picked,) = strata.pick(-LOWEST, 10, np.random.default_rng(0))
    for call in ("preadv", "pwrite", "fsync"):
        monkeypatch.setattr(os, call, fail)
    for work in (
        lambda: strata.read(picked),
        lambda: strata.append(make_rows(np.arange(0, 200, 2)), np.ones(100, np.float32)),
        strata.state,
    ):
        with pytest.raises(StoreError, match=rf"^{tmp_path}.*Input/output error\).*disk") as caught:
            work()
        assert "\n" not in str(caught.value)
    strata.close()


@given(st.lists(st.floats(2.0**-30, 2.0**30, width=32), min_size=1, max_size=50), st.integers(0))
def test_sums_by_stratum_are_those_of_its_rows(weights, seed):
    weight = np.array(weights, np.float32)
    total = np.random.default_rng(seed).integers(0, 100, len(weight)).astype(np.float32)
    naive: dict[int, float] = {}
    for w, t in zip(weight.tolist(), total.tolist(), strict=True):
        if t:
            k = math.frexp(w)[1] - 1
            naive[k] = naive.get(k, 0.0) + t
    assert sum_strata(weight, total) == naive
