"""Work spread over threads, in bounded memory and in the order that it came."""

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

STOP_SECONDS = 0.1  # how often a blocked producer looks whether anybody still listens


def prefetch(items: Iterable[A], ahead: int) -> Generator[A]:
    """The same items, made in a thread of their own, at most `ahead` of them waiting."""
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
        except BaseException as error:  # handed to the reader, who raises it
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
        if thread.ident is not None:  # interrupted before it began
            thread.join()


def ordered_map(
    work: Callable[[A], B], items: Iterable[A], n_jobs: int, ahead: int
) -> Generator[B]:
    """``map(work, items)`` over threads: results in order, at most `ahead` unfinished."""
    with ThreadPoolExecutor(n_jobs, thread_name_prefix="sparrow-work") as pool:
        pending: deque[Future[B]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                del item  # the pool's reference is enough
                if len(pending) >= ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def check_jobs(n_jobs: int | None) -> int:
    """How many threads to use; None and -1 stand for all that this process may."""
    if n_jobs is None or n_jobs == -1:
        # A process may be bound to some of the cores, where the system can say so.
        bound = getattr(os, "sched_getaffinity", None)
        cores = len(bound(0)) if bound else os.cpu_count() or 1
        # joblib sets this in each of its workers, so that all of them together use the cores once.
        told = os.environ.get("NUMBA_NUM_THREADS", "")
        return min(cores, int(told)) if told.isdigit() and int(told) > 0 else cores
    if not isinstance(n_jobs, int | np.integer) or n_jobs < 1:
        raise DataError(f"n_jobs={n_jobs!r}: give a number of threads, or -1 for all.")
    return int(n_jobs)


class WorkerPool:
    """A few threads that share out a list of jobs. Who does which changes nothing in the result.

    Parameters
    ----------
    n_jobs : int
        Threads at work, the caller's included.
    """

    def __init__(self, n_jobs: int) -> None:
        self.n_jobs = n_jobs
        self._pool = ThreadPoolExecutor(max(n_jobs - 1, 1), thread_name_prefix="sparrow-scan")

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Do all jobs, in any order; the first error is raised when all threads are back."""
        if len(jobs) == 1:
            jobs[0]()
            return
        todo = iter(jobs)

        def work() -> None:
            for job in todo:
                job()

        helpers = min(self.n_jobs, len(jobs)) - 1
        pending = [self._pool.submit(work) for _ in range(helpers)]
        try:
            work()
        finally:
            for future in pending:
                future.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()
