"""Everything that the package imports is declared in pyproject.toml."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FILES = sorted((ROOT / "src/sparrowboost").rglob("*.py"))


def distributions(requirements):
    return {re.match(r"[\w-]+", text)[0] for text in requirements}


REQUIRED = distributions(PROJECT["dependencies"])
EXTRAS = distributions(chain.from_iterable(PROJECT["optional-dependencies"].values()))


def imported(nodes):
    """Top-level names of the third-party packages that some nodes of a syntax tree import."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module)
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"sparrowboost"}


def test_imported_packages_are_declared():
    providers = packages_distributions()
    for file in FILES:
        tree = ast.parse(file.read_text())
        for nodes, declared in ((tree.body, REQUIRED), (ast.walk(tree), REQUIRED | EXTRAS)):
            missing = [p for p in imported(nodes) if not declared & set(providers.get(p, [p]))]
            assert not missing, f"{file}: {missing} not in the dependencies of pyproject.toml"
