from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from builders import made_rows, many_blocks_and_chunks
from helpers import Nobody
from sparrowboost import Dataset, ingest

# A shared machine may stall a test for a moment: no deadline is worth a false alarm.
settings.register_profile(
    "sparrow", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("sparrow")

SHARED = Path(__file__).parents[2] / "shared" / "data"


def pytest_collection_finish() -> None:
    """Let the collector of garbage pass over modules and tests, which stay to the end.

    There are half a million objects of them: a full collection takes a seventh of a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data sets that lies beside a developer's checkout."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the shared data sets, and there is no {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def dataset() -> Dataset:
    """The data set of tests that have no fixture of this name."""
    X, y = made_rows()
    return ingest(X, label=y, verbose=0)


@pytest.fixture(scope="module")
def small_blocks_and_chunks() -> Iterator[None]:
    with many_blocks_and_chunks():
        yield


@pytest.fixture(scope="session")
def nobody() -> Nobody:
    return Nobody()
