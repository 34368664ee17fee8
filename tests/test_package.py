"""What is released: versions that agree, names that stay, a wheel and an sdist."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import sparrowboost

ROOT = Path(__file__).parents[1]


def run(*args, **kwargs):
    done = subprocess.run(args, capture_output=True, text=True, check=False, **kwargs)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_changelog_and_citation_have_the_version_of_the_package():
    changelog, citation = (ROOT / name for name in ("CHANGELOG.md", "CITATION.cff"))
    version, date = re.search(r"^## \[(\d.*)\] - (.*)$", changelog.read_text(), re.M).groups()
    assert version == sparrowboost.__version__
    assert f"\nversion: {version}\n" in citation.read_text()
    assert f'\ndate-released: "{date}"\n' in citation.read_text()


def test_every_public_name_is_there():
    for name in sparrowboost.__all__:
        assert getattr(sparrowboost, name) is not None
    assert set(sparrowboost.__all__) <= set(dir(sparrowboost))


@pytest.mark.parametrize("name", ["training", "params"])
def test_modules_of_before_warn_and_have_the_same_names(name):
    sys.modules.pop(f"sparrowboost.{name}", None)
    with pytest.warns(DeprecationWarning, match=f"sparrowboost.{name} is deprecated") as warned:
        module = importlib.import_module(f"sparrowboost.{name}")
    assert len(warned) == 1
    for each in module.__all__:
        assert getattr(module, each) is getattr(sparrowboost, each)


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.mark.slow
def test_wheel_and_sdist_pass_the_checks_of_the_package_index(dist):
    files = sorted(map(str, dist.iterdir()))
    assert len(files) == 2
    run(sys.executable, "-m", "twine", "check", "--strict", *files)


@pytest.mark.slow
def test_the_wheel_has_the_package_and_nothing_else(dist, tmp_path):
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        wheel.extractall(tmp_path)
    package = ROOT / "src" / "sparrowboost"
    files = (path for path in package.rglob("*") if path.is_file())
    expected = {f"sparrowboost/{path.relative_to(package).as_posix()}" for path in files}
    assert names == {name for name in expected if "__pycache__" not in name}
    assert {"sparrowboost/py.typed", "sparrowboost/data/chr21.npz"} <= names
    told = run(
        *(sys.executable, "-m", "sparrowboost", "--version"),
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert told == f"sparrow {sparrowboost.__version__}\n"


@pytest.mark.slow
def test_the_sdist_has_what_tests_and_docs_need(dist):
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"Makefile", "mkdocs.yml", "pyproject.toml", "LICENSE", "CITATION.cff"} <= names
    for folder in ("src/sparrowboost", "tests/data", "docs", "examples", "benchmarks/results"):
        assert any(name.startswith(f"{folder}/") for name in names), folder
    assert not [name for name in names if "__pycache__" in name]
