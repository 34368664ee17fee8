from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sparrowboost.kernels
from sparrowboost.kernels._jit import kernel

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


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the kernels with two more, one of which calls the other."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    package = tmp_path / "sparrowboost"
    shutil.copytree(KERNELS, package / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "__init__.py").touch()
    (package / "kernels/caller.py").write_text(CALLER)
    return package


def run(package, helper):
    """What the caller's kernel gives in a new process, and how often it came from the cache."""
    (package / "kernels/helper.py").write_text(helper)
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        env=os.environ | {"PYTHONPATH": str(package.parent)},
        check=True,
        capture_output=True,
        text=True,
    )
    return tuple(map(int, done.stdout.split()))


def test_a_kernel_is_compiled_anew_when_one_that_it_calls_has_changed(package):
    changed = "\n\n" + HELPER.format(step=5)  # further down in its file, too
    assert run(package, HELPER.format(step=1)) == (2, 0)
    files = sorted(package.rglob("*.nb?"))
    assert run(package, changed) == (10, 0)
    assert run(package, changed) == (10, 1)
    assert files and sorted(package.rglob("*.nb?")) == files, "old files are left behind"


@kernel
def double(x):
    return 2 * x


def test_a_kernel_that_cannot_be_kept_is_run_all_the_same(monkeypatch):
    def refuse():
        raise PermissionError

    double._cache.flush()
    monkeypatch.setattr(double._cache._impl.locator, "ensure_cache_path", refuse)
    assert double(3) == 6
    assert sum(double.stats.cache_misses.values()) == 1


def test_numba_cache_dir_is_respected(package, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    assert run(package, HELPER.format(step=1)) == (2, 0)
    assert {file.name.split(".")[1] for file in tmp_path.rglob("*.nbi")} == {"step", "twice"}
    assert not list(package.rglob("*.nb?"))
