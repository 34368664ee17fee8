"""Log lines of a program on standard error: text, or JSON with a field for each fact.

The library only logs, to the logger "sparrowboost"; facts are attributes of the records (`extra=`),
so that handlers of other programs find them, too.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TextIO

FORMATS = "text", "json"
FACTS = re.compile(r"\w+=")
PLAIN = {*vars(logging.makeLogRecord({})), "message", "asctime"}  # what every record has


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class TextLines(logging.Formatter):
    """Time, level and message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return _time(record)


class JsonLines(logging.Formatter):
    """An object on a line: time, level, logger, message, and the facts of the record."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: _plain(of) for name, of in vars(record).items() if name not in PLAIN}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def _plain(value: Any) -> Any:
    """JSON has no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _Handler(logging.StreamHandler[TextIO]):
    """Shows messages in other words, but not lines of facts (key=value)."""

    def __init__(self, words: Callable[[str], str]) -> None:
        super().__init__(sys.stderr)
        self._words = words

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.levelno >= logging.WARNING or not FACTS.match(message):
            record = copy.copy(record)
            record.msg, record.args = self._words(message), None
        return super().format(record)


@contextmanager
def log_to_stderr(
    format: str, *, quiet: bool = False, words: Callable[[str], str] = str
) -> Iterator[None]:
    """Show log lines, and with JSON also warnings of Python; with times unless on a terminal.

    `quiet`: without the notes of progress. `words`: says messages in the words of the program.
    """
    root, handler = logging.getLogger(), _Handler(words)
    if format == "json":
        handler.setFormatter(JsonLines())
        logging.captureWarnings(True)
    elif not sys.stderr.isatty():
        handler.setFormatter(TextLines())
    if quiet:
        handler.addFilter(lambda record: not hasattr(record, "note"))
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        if format == "json":
            logging.captureWarnings(False)


def are_structured() -> bool:
    """Whether log lines are JSON: then nothing else belongs on standard error."""
    return any(isinstance(each.formatter, JsonLines) for each in logging.getLogger().handlers)
