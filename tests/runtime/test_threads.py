from __future__ import annotations

import threading
import time

import pytest

from sparrowboost.runtime.threads import check_jobs, ordered_map, prefetch


def test_prefetched_items_are_the_same_in_order():
    assert list(prefetch(range(100), 3)) == list(range(100))


def test_a_producer_stays_within_its_bound():
    made = []

    def items():
        for i in range(50):
            made.append(i)
            yield i

    reader = prefetch(items(), 2)
    next(reader)
    time.sleep(0.3)
    assert len(made) <= 1 + 2 + 1  # taken, waiting, in hand
    reader.close()


def test_an_error_of_the_producer_reaches_the_consumer_after_what_came_before():
    def items():
        yield 1
        raise KeyError("here")

    reader = prefetch(items(), 5)
    assert next(reader) == 1
    with pytest.raises(KeyError, match="here"):
        next(reader)


def test_a_consumer_that_stops_ends_the_thread():
    before = threading.active_count()
    reader = prefetch(iter(int, 1), 1)  # never ends
    next(reader)
    reader.close()
    assert threading.active_count() == before


def test_results_come_in_order_however_long_each_takes():
    def work(i):
        time.sleep(0.002 * (i % 3))
        return i * i

    assert list(ordered_map(work, range(40), 4, 6)) == [i * i for i in range(40)]


def test_work_under_way_is_bounded():
    started = []
    results = ordered_map(started.append, range(100), 2, 4)
    next(results)
    time.sleep(0.1)
    assert len(started) <= 4
    results.close()


def test_an_error_of_the_work_is_raised():
    with pytest.raises(ZeroDivisionError):
        list(ordered_map(lambda i: 1 // (3 - i), range(9), 2, 3))


def test_a_worker_of_joblib_uses_the_threads_that_it_was_given(monkeypatch):
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    cores = check_jobs(None)
    assert check_jobs(-1) == cores >= 1
    assert check_jobs(5) == 5
    for share, used in (("1", 1), ("100000", cores), ("", cores), ("all", cores), ("0", cores)):
        monkeypatch.setenv("NUMBA_NUM_THREADS", share)
        assert check_jobs(None) == check_jobs(-1) == used
        assert check_jobs(5) == 5
