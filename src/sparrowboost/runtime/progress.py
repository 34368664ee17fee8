"""Progress of a long job: a bar on a terminal, lines in a log, or nothing."""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import IO, Any, Protocol, Self, cast

from sparrowboost.runtime.logs import are_structured
from sparrowboost.runtime.memory import format_size

log = logging.getLogger("sparrowboost")

LINE_SECONDS = 5.0  # between two log lines
WIDE = 110  # columns of a terminal that takes all of a bar: of others, it is short
DIGITS = 4  # of a score
COMPILE_SECONDS = 1.0  # loading the kernels takes longer only if they are compiled


class Task(Protocol):
    """A part of a job, in progress."""

    def advance(self, n: int, n_bytes: int = 0) -> None:
        """Add to what is done."""
        ...

    def score(self, name: str, now: float, best: float, best_at: int) -> None:
        """Set the score to show, the best one, and how much was done when it was reached."""
        ...


class Progress(Protocol):
    """Shows one task after the other."""

    def task(self, what: str, total: int | None, unit: str = "rows") -> Any:
        """A context manager that gives a Task."""
        ...

    def note(self, text: str) -> None:
        """Show a message."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: Any) -> None: ...


def make_progress(verbose: int) -> Progress:
    """Nothing if `verbose` is 0; else a bar if standard error is a terminal, or log lines."""
    if verbose <= 0:
        return Silent()
    terminal = sys.stderr is not None and sys.stderr.isatty()
    return Bar() if terminal and not are_structured() else Lines()


@contextmanager
def compiling(progress: Progress) -> Iterator[None]:
    """Show a message if the kernels are being compiled, which takes seconds and is done once."""
    slow = threading.Timer(
        COMPILE_SECONDS, progress.note, ("compiling the kernels, on the first run only",)
    )
    slow.start()
    try:
        yield
    finally:
        slow.cancel()


class Silent:
    """Shows nothing; messages go to the log, where programs may ask for them."""

    @contextmanager
    def task(self, what: str, total: int | None, unit: str = "rows") -> Iterator[Task]:
        yield self

    def advance(self, n: int, n_bytes: int = 0) -> None:
        pass

    def score(self, name: str, now: float, best: float, best_at: int) -> None:
        pass

    def note(self, text: str) -> None:
        log.info("note=%r", text, extra={"note": text})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        pass


class Lines:
    """Shows progress as log lines (key=value); the record has the keys as attributes, too.

    Parameters
    ----------
    seconds : float
        Between two lines of a task; one more comes at its end.
    """

    def __init__(self, seconds: float = LINE_SECONDS) -> None:
        self._seconds = seconds

    def __enter__(self) -> Self:
        self._handler: logging.Handler | None = None
        self._level = log.level
        if not log.hasHandlers():  # logging is not configured, but the user asked for progress
            self._handler = logging.StreamHandler(sys.stderr)
            self._handler.setFormatter(logging.Formatter("%(message)s"))
            log.addHandler(self._handler)
            log.setLevel(logging.INFO)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._handler is not None:
            log.removeHandler(self._handler)
            log.setLevel(self._level)

    @contextmanager
    def task(self, what: str, total: int | None, unit: str = "rows") -> Iterator[Task]:
        task = _LineTask(what, total, unit, self._seconds)
        yield task
        task.line(done=True)

    def note(self, text: str) -> None:
        log.info("note=%r", text, extra={"note": text})


class _LineTask:
    def __init__(self, what: str, total: int | None, unit: str, seconds: float) -> None:
        self._what, self._total, self._unit, self._seconds = what, total, unit, seconds
        self._n = self._bytes = 0
        self._score: dict[str, Any] = {}
        self._start = self._shown = time.monotonic()

    def advance(self, n: int, n_bytes: int = 0) -> None:
        self._n += n
        self._bytes += n_bytes
        if time.monotonic() - self._shown >= self._seconds:
            self.line()

    def score(self, name: str, now: float, best: float, best_at: int) -> None:
        self._score = {name: _digits(now), "best": _digits(best), f"best_{self._unit}": best_at}

    def line(self, *, done: bool = False) -> None:
        self._shown = time.monotonic()
        seconds = max(self._shown - self._start, 1e-9)
        speed = self._n / seconds
        facts: dict[str, Any] = {"task": self._what, self._unit: self._n}
        if self._total and not done:
            facts["of"] = self._total
            if speed:
                facts["seconds_left"] = round(max(self._total - self._n, 0) / speed)
        facts[f"{self._unit}_per_second"] = round(speed) if speed >= 100 else float(f"{speed:.3g}")
        if self._bytes:
            facts["bytes"] = self._bytes
        facts |= self._score
        facts["seconds"] = round(seconds, 1)
        log.info(" ".join(f"{name}={fact!r}" for name, fact in facts.items()), extra=facts)


class Bar:
    """Shows a bar with rows per second, bytes or a score, and the time left."""

    def __enter__(self) -> Self:
        from rich import progress as rp
        from rich.console import Console

        console = Console(file=cast(IO[str], _Terminal()))
        self._narrow = console.width < WIDE
        self._rich = rp.Progress(
            rp.TextColumn("{task.description}" if self._narrow else "{task.description:<22}"),
            rp.BarColumn(bar_width=8 if self._narrow else 24),
            rp.TaskProgressColumn(),
            rp.TextColumn("{task.fields[speed]:>12}"),
            rp.TextColumn("{task.fields[about]:>8}"),
            rp.TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
        )
        self._rich.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._rich.stop()

    @contextmanager
    def task(self, what: str, total: int | None, unit: str = "rows") -> Iterator[Task]:
        key = self._rich.add_task(what, total=total, speed="", about="")
        task = _BarTask(self._rich, key, unit, narrow=self._narrow)
        yield task
        task.finish()

    def note(self, text: str) -> None:
        self._rich.console.print(text)


class _Terminal(io.TextIOBase):
    """Standard error; a terminal that is closed during a job is no error of the job."""

    def __init__(self) -> None:
        self._stream = sys.stderr

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding


class _BarTask:
    def __init__(self, rich: Any, key: Any, unit: str, *, narrow: bool) -> None:
        self._rich, self._key, self._unit, self._narrow = rich, key, unit, narrow
        self._score = ""
        self._n = self._bytes = 0
        self._start = time.monotonic()

    def advance(self, n: int, n_bytes: int = 0) -> None:
        self._n += n
        self._bytes += n_bytes
        speed = self._n / max(time.monotonic() - self._start, 1e-9)
        self._rich.update(
            self._key,
            completed=self._n,
            speed="" if self._narrow and self._score else f"{_short(speed)} {self._unit}/s",
            about=self._score or (format_size(self._bytes) if self._bytes else ""),
        )

    def score(self, name: str, now: float, best: float, best_at: int) -> None:
        self._score = f"{name} {now:.{DIGITS}g} (best {best:.{DIGITS}g} at {best_at})"

    def finish(self) -> None:
        self._rich.update(self._key, total=self._n, completed=self._n)


def _digits(score: float) -> float:
    return float(f"{score:.{DIGITS}g}")


def _short(number: float) -> str:
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g}{unit}"
    return f"{number:.0f}"
