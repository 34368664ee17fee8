from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A shared machine may stall a test for a moment: no deadline is worth a false alarm.
settings.register_profile(
    "sparrow", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("sparrow")

SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data sets that lies beside a developer's checkout."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the shared data sets, and there is no {SHARED}")
    return SHARED
