"""Libraries that are needed for some sources only."""

from __future__ import annotations

import importlib
from typing import Any

from sparrowboost.runtime.budget import LIBRARIES, Budget
from sparrowboost.runtime.errors import MissingExtraError
from sparrowboost.runtime.memory import held, release


def need(module: str, extra: str, what: str) -> Any:
    """An optional library; an error that says what to install if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0].replace("_", "-")
        raise MissingExtraError(
            f"{what} needs {package}, which is not installed; pip install 'sparrowboost[{extra}]'."
        ) from None


def reserve(limit: int | None, what: str, n_bytes: int) -> None:
    """A MemoryLimitError, before any row is read, if a library's buffers would break the limit."""
    if limit is not None:
        release()
        Budget(limit, {LIBRARIES: held(), what: n_bytes}).check()


def first_line(error: BaseException) -> str:
    """What a library says is wrong, in one line without its full stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
