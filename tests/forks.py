"""Jobs that are killed at random moments, for scripts that tests run.

Each job is a fork of a script that has loaded all it needs. A process of its own would take a
second to load Python and the kernels, and most kills would hit that.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable

from sparrowboost.learner import warm_up as of_training
from sparrowboost.store import warm_up as of_ingest
from sparrowboost.store.binning import WORK_DTYPES


def load() -> None:
    """Load the kernels, in no other thread: a fork has none but the one that forks."""
    of_ingest.warm_up(WORK_DTYPES)
    of_training.warm_up()


def fork(job: Callable[[], object]) -> int:
    """Begin a job in a fork; its process id. The exit code is 0 if the job raises nothing."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        job()
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def killed(job: Callable[[], object], begun: Callable[[], bool], seconds: float) -> bool:
    """Whether a job was killed so long after it has begun; False if it had ended before."""
    pid = fork(job)
    while not begun() and not _ended(pid):
        time.sleep(0.005)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)  # one that has ended is still there to be waited for
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return True
    assert status == 0, "the job has failed"
    return False


def run(job: Callable[[], object]) -> None:
    """Run a job to its end."""
    _, status = os.waitpid(fork(job), 0)
    assert status == 0, "the job has failed"


def _ended(pid: int) -> bool:
    """Whether a child has ended; it may still be waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
