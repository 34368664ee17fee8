"""Compiled kernels are kept, wherever that is possible, and never hinder a job."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import sparrowboost.kernels
from helpers import NOBODY, as_nobody
from sparrowboost.kernels import _cache
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
import logging
logging.basicConfig(format="%(message)s", level=logging.INFO)
from sparrowboost.kernels.caller import twice
print(twice(0), sum(twice.stats.cache_hits.values()))
"""


def make_package(folder):
    """A copy of the kernels with two more, one of which calls the other."""
    package = folder / "sparrowboost"
    shutil.copytree(KERNELS, package / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "__init__.py").touch()
    (package / "kernels/caller.py").write_text(CALLER)
    (package / "kernels/helper.py").write_text(HELPER.format(step=1))
    return package


@pytest.fixture
def package(tmp_path, monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    return make_package(tmp_path)


def run(package, helper=None):
    """What the caller's kernel gives in a new process, and how often it came from the cache."""
    if helper is not None:
        (package / "kernels/helper.py").write_text(helper)
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        env=os.environ | {"PYTHONPATH": str(package.parent)},
        check=True,
        capture_output=True,
        text=True,
    )
    return tuple(map(int, done.stdout.split()))


@pytest.mark.slow
def test_a_kernel_is_compiled_anew_when_one_that_it_calls_has_changed(package):
    changed = "\n\n" + HELPER.format(step=5)  # further down in its file, too
    assert run(package, HELPER.format(step=1)) == (2, 0)
    files = sorted(package.rglob("*.nb?"))
    assert run(package, changed) == (10, 0)
    assert run(package, changed) == (10, 1)
    assert files and sorted(package.rglob("*.nb?")) == files, "old files are left behind"


@pytest.mark.slow
def test_numba_cache_dir_is_respected(package, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    assert run(package, HELPER.format(step=1)) == (2, 0)
    assert {file.name.split(".")[1] for file in tmp_path.rglob("*.nbi")} == {"step", "twice"}
    assert not list(package.rglob("*.nb?"))


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", [cut, flip, lambda path: os.truncate(path, 0)])
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_damaged_entry_is_compiled_anew_and_replaced(tmp_path, monkeypatch, suffix, damage):
    monkeypatch.setattr(_cache.config, "CACHE_DIR", str(tmp_path))

    def cube(x):
        return x * x * x

    def hits():  # of another process
        again = kernel(cube)
        assert again(2) == 8
        return sum(again.stats.cache_hits.values())

    assert [hits(), hits()] == [0, 1]
    (file,) = tmp_path.rglob(f"*.{suffix}")
    damage(file)
    assert [hits(), hits()] == [0, 1]


@kernel
def double(x):
    return 2 * x


@pytest.fixture
def nowhere(tmp_path, monkeypatch, caplog):
    """The only cache folder cannot be made, by root neither: a file is in its way."""
    double._cache.flush()
    (tmp_path / "file").touch()
    monkeypatch.setattr(_cache.config, "CACHE_DIR", str(tmp_path / "file/cache"))
    monkeypatch.setattr(_cache, "_reported", set())
    caplog.set_level(logging.INFO, "sparrowboost")
    return caplog


def test_kernels_that_cannot_be_kept_are_run_all_the_same_and_one_line_says_so(nowhere):
    assert double(3) == 6
    assert double(3.5) == 7.0
    assert sum(double.stats.cache_misses.values()) == 2
    (record,) = nowhere.records
    assert record.levelno == logging.WARNING
    assert "every process compiles them again" in record.getMessage()
    assert "set NUMBA_CACHE_DIR" in record.getMessage()


@pytest.mark.slow
def test_a_cache_on_a_full_disk_fails_no_job(package):
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
    code = limited + RUN
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(package.parent), "HOME": "/nonexistent",
                          "TMPDIR": str(package.parent)},
    )  # fmt: skip
    assert done.stdout == "2 0\n"
    assert done.stderr.count("\n") == 1 and "File too large" in done.stderr


@pytest.mark.slow
def test_the_current_directory_is_not_taken_as_the_folder_for_temporary_files(package, tmp_path):
    (package / "kernels/__pycache__").touch()
    (only := tmp_path / "only").mkdir()
    fallen_back = (
        "import os, tempfile\ntempfile.tempdir = os.getcwd()\n"  # as Python does by itself
    )
    others = {name: of for name, of in os.environ.items() if name not in ("TMPDIR", "TEMP", "TMP")}
    done = subprocess.run(
        [sys.executable, "-c", fallen_back + RUN], check=True, capture_output=True, text=True,
        env=others | {"PYTHONPATH": str(package.parent), "HOME": "/dev/null"}, cwd=only,
    )  # fmt: skip
    assert done.stdout == "2 0\n"
    assert os.listdir(only) == []
    assert done.stderr.count("\n") == 1
    assert "no folder for temporary files can be written); set NUMBA_CACHE_DIR" in done.stderr


# -- another user ----------------------------------------------------------------------------------


@pytest.fixture
def image():
    """A package that another user can read and not write, and a folder of that user."""
    folder = Path(tempfile.mkdtemp(prefix="sparrow-test-"))
    folder.chmod(0o755)
    (folder / "tmp").mkdir()
    os.chown(folder / "tmp", NOBODY, NOBODY)
    yield make_package(folder)
    shutil.rmtree(folder)


@pytest.mark.slow
@as_nobody
def test_a_cache_that_was_warmed_is_used_by_those_who_may_only_read_it(image, nobody):
    where = {"first": image.parent, "TMPDIR": f"{image.parent}/tmp"}
    assert nobody.run("-c", RUN, root=True, **where).stdout == "2 0\n"  # as an image is built
    done = nobody.run("-c", RUN, **where)
    assert done.stdout == "2 1\n" and done.stderr == ""
    assert os.listdir(image.parent / "tmp") == []


@pytest.mark.slow
@as_nobody
def test_without_any_other_folder_kernels_are_kept_in_a_private_one(image, nobody):
    where = {"first": image.parent, "TMPDIR": f"{image.parent}/tmp"}
    first = nobody.run("-c", RUN, **where)
    private = image.parent / f"tmp/sparrow-kernels-{NOBODY}"
    assert first.stdout == "2 0\n"
    assert first.stderr.count("\n") == 1 and f"are kept in {private}" in first.stderr
    assert private.stat().st_mode & 0o777 == 0o700
    second = nobody.run("-c", RUN, **where)
    assert second.stdout == "2 1\n" and second.stderr == ""
    # What others could have put there is not run.
    for spoil in (lambda: private.chmod(0o777), lambda: os.chown(private, 0, 0)):
        spoil()
        again = nobody.run("-c", RUN, **where)
        assert again.stdout == "2 0\n"
        assert "every process compiles them again" in again.stderr


@pytest.mark.slow
@as_nobody
def test_damage_in_a_cache_that_may_only_be_read_is_repaired_elsewhere(image, nobody):
    where = {"first": image.parent, "TMPDIR": f"{image.parent}/tmp"}
    nobody.run("-c", RUN, root=True, **where)
    for file in image.rglob("*.nbc"):
        cut(file)
    assert nobody.run("-c", RUN, **where).stdout == "2 0\n"
    assert nobody.run("-c", RUN, **where).stdout == "2 1\n"
