from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sparrowboost.kernels

KERNELS = Path(sparrowboost.kernels.__file__).parent
HELPER = """
from sparrowboost.kernels._jit import kernel

@kernel
def step(x):
    return x + {step}
"""
CALLER = """
from sparrowboost.kernels._jit import kernel
from sparrowboost.kernels.helper import step

@kernel
def twice(x):
    return step(step(x))
"""
RUN = """
from sparrowboost.kernels.caller import twice
print(twice(0), sum(twice.stats.cache_hits.values()))
"""


@pytest.fixture(params=["beside the source", "in NUMBA_CACHE_DIR"])
def package(request, tmp_path, monkeypatch):
    """A copy of the kernels with two more, one of which calls the other; and its cache's folder."""
    package = tmp_path / "sparrowboost"
    shutil.copytree(KERNELS, package / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "__init__.py").touch()
    (package / "kernels/caller.py").write_text(CALLER)
    cache = package / "kernels/__pycache__"
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    if request.param == "in NUMBA_CACHE_DIR":
        cache = tmp_path / "cache"
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(cache))
    return package, cache


def run(package, source):
    """What the caller's kernel gives in a new process, and how often it came from the cache."""
    (package / "kernels/helper.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        env=os.environ | {"PYTHONPATH": str(package.parent)},
        check=True,
        capture_output=True,
        text=True,
    )
    return tuple(map(int, done.stdout.split()))


def test_a_kernel_is_compiled_anew_when_one_that_it_calls_has_changed(package):
    package, cache = package
    changed = "\n\n" + HELPER.format(step=5)  # further down in its file, too
    assert run(package, HELPER.format(step=1)) == (2, 0)
    files = sorted(cache.rglob("*.nb?"))
    assert run(package, changed) == (10, 0)
    assert run(package, changed) == (10, 1)
    assert files and sorted(cache.rglob("*.nb?")) == files, "old files are left behind"
