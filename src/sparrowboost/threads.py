"""Work spread over threads, in bounded memory and in the order that it came."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

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
    thread.start()
    try:
        while True:
            item, error = waiting.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        stop.set()
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
