"""Work over threads, in bounded memory."""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self, TypeVar

import numpy as np

from sparrowboost.runtime.errors import DataError

A = TypeVar("A")
B = TypeVar("B")

STOP_SECONDS = 0.1  # between a blocked producer's checks whether its consumer has stopped


def prefetch(items: Iterable[A], ahead: int) -> Generator[A]:
    """The same items, produced in a background thread; at most `ahead` of them wait."""
    waiting: queue.Queue[tuple[A | None, BaseException | None]] = queue.Queue(ahead)
    stop = threading.Event()

    def put(item: A | None, error: BaseException | None) -> bool:
        while not stop.is_set():
            try:
                waiting.put((item, error), timeout=STOP_SECONDS)
                return True
            except queue.Full:
                continue
        return False

    def produce() -> None:
        try:
            for item in items:
                if not put(item, None):
                    return
            put(None, StopIteration())
        except BaseException as error:  # raised in the consumer
            put(None, error)

    thread = threading.Thread(target=produce, name="sparrow-read", daemon=True)
    try:
        thread.start()
        while True:
            item, error = waiting.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        stop.set()
        if thread.ident is not None:  # else interrupted before it started
            thread.join()


def ordered_map(
    work: Callable[[A], B], items: Iterable[A], n_jobs: int, ahead: int
) -> Generator[B]:
    """``map(work, items)`` over threads, in order; at most `ahead` items are in progress."""
    with ThreadPoolExecutor(n_jobs, thread_name_prefix="sparrow-work") as pool:
        pending: deque[Future[B]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                del item  # so that its memory is freed when the work is done
                if len(pending) >= ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def check_jobs(n_jobs: int | None) -> int:
    """The number of threads to use; None and -1 mean one for each available core."""
    if n_jobs is None or n_jobs == -1:
        affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
        cores = len(affinity(0)) if affinity else os.cpu_count() or 1
        # joblib sets this in its workers, so that together they do not use more than all cores.
        share = os.environ.get("NUMBA_NUM_THREADS", "")
        return min(cores, int(share)) if share.isdigit() and int(share) > 0 else cores
    if not isinstance(n_jobs, int | np.integer) or n_jobs < 1:
        raise DataError(f"n_jobs={n_jobs!r}: give a number of threads, or -1 for all.")
    return int(n_jobs)


class WorkerPool:
    """Threads that run lists of jobs. The result must not depend on which thread runs which job.

    Parameters
    ----------
    n_jobs : int
        Number of threads, the caller's included.
    """

    def __init__(self, n_jobs: int) -> None:
        self.n_jobs = n_jobs
        self._pool = ThreadPoolExecutor(max(n_jobs - 1, 1), thread_name_prefix="sparrow-scan")

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Run all jobs, in any order. An error is raised when all threads have finished."""
        if len(jobs) == 1:
            jobs[0]()
            return
        remaining = iter(jobs)

        def work() -> None:
            for job in remaining:
                job()

        others = min(self.n_jobs, len(jobs)) - 1
        pending = [self._pool.submit(work) for _ in range(others)]
        try:
            work()
        finally:
            for future in pending:
                future.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()
