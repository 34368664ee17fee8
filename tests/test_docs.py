"""The documentation: generated parts, links, names and code that runs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import sparrowboost
from sparrowboost.learner.params import Params

ROOT = Path(__file__).parents[1]
DOCS, SOURCE = ROOT / "docs", ROOT / "src" / "sparrowboost"
PROJECT = [ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")]
PAGES = [*PROJECT, *sorted(DOCS.glob("*.md"))]
FEW_ROWS = "20_000"


def name_of(path):
    return path.name


def blocks(path, language):
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


def headings(path):
    """The anchors of a page's headings, as they are on GitHub."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    found = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


# -- what is generated -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("make_reference", DOCS / "make_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["parameters.md", "cli.md"])
def test_generated_pages_are_what_the_code_says(reference, page):
    text = (DOCS / page).read_text()
    now = reference.filled(text, reference.PAGES[page]())
    assert text == now, "run: python docs/make_reference.py"


def test_every_parameter_has_words_and_a_place_in_the_table_of_names():
    text = (DOCS / "parameters.md").read_text()
    table = text.partition("## Names in other libraries")[2].partition("\n## ")[0]
    for field in fields(Params):
        assert re.search(rf"^- \*\*{field.name}\*\*: .{{40}}", text, re.MULTILINE), field.name
        assert f"`{field.name}`" in table, field.name


# -- links and names -------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            assert anchor in headings(file), target


def test_the_readme_leads_to_every_page_and_example():
    text = (ROOT / "README.md").read_text()
    for page in DOCS.glob("*.md"):
        assert f"(docs/{page.name})" in text, page.name
    for example in (ROOT / "examples").glob("*.py"):
        assert f"(examples/{example.name})" in text, example.name


def test_every_public_name_is_in_the_docs():
    text = "".join(page.read_text() for page in PAGES if page.name != "CHANGELOG.md")
    for name in sparrowboost.__all__:
        assert re.search(rf"\b{name}\b", text) or name.startswith("__"), name


def test_symbols_are_in_the_files_that_the_table_says():
    rows = [line for line in (DOCS / "symbols.md").read_text().splitlines() if line[:3] == "| `"]
    assert len(rows) > 40
    for row in rows:
        name, file = re.fullmatch(r"\| `(\w+)` \|.*\| `([\w/.]+)` \|", row).groups()
        assert re.search(rf"\b{name}\b", (SOURCE / file).read_text()), (name, file)


def test_names_of_the_walk_are_in_their_files():
    text = " ".join((DOCS / "walk.md").read_text().split())
    pairs = re.findall(r"`([\w.]+)` (?:\(|in )`([\w/]+\.py)`", text)
    assert len(pairs) > 30
    for name, file in pairs:
        for part in name.split("."):
            assert re.search(rf"\b{part}\b", (SOURCE / file).read_text()), (name, file)


# -- code ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_is_python_and_json_is_json(page):
    for code in blocks(page, "python"):
        compile(code, page.name, "exec")
    for code in blocks(page, "json"):
        json.loads(code)


def run(code, folder):
    """Run code in a process of its own, where the memory limits of the docs are for it alone."""
    file = folder / "code.py"
    file.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", file],
        cwd=folder,
        env=os.environ | {"MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_tutorial_runs_in_python(tmp_path):
    code = "\n".join(blocks(DOCS / "tutorial.md", "python"))
    assert code.count("5_000_000") == 1
    out = run(code.replace("5_000_000", FEW_ROWS), tmp_path)
    assert "a sample of 19,600 rows (first)" in out
    assert "</html>" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "model.xgb.json").stat().st_size > 1000


def test_the_tutorial_runs_as_commands(tmp_path):
    lines = "".join(blocks(DOCS / "tutorial.md", "sh")).replace("\\\n", " ").splitlines()
    calls = []
    for line in lines:
        program, *args = shlex.split(line)
        if program == "python":
            assert args[0] == "-c"
            calls.append(re.sub(r"\b5_000_000\b|\b500_000\b", FEW_ROWS, args[1]))
        else:
            assert program == "sparrow"
            calls.append(f"assert main({args!r}) == 0")
    assert len(calls) >= 9
    run("\n".join(["from sparrowboost.cli import main", *calls]), tmp_path)
    for name in ("store/manifest.json", "report.html", "history.json", "predictions.parquet"):
        assert (tmp_path / name).is_file(), name
    assert json.loads((tmp_path / "model.json").read_text())["format"] == "sparrow-model"


def test_the_questions_run_on_files_of_these_names(tmp_path):
    make = """
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
for seed, month in enumerate(("january", "february")):
    rng = np.random.default_rng(seed)
    km = rng.exponential(8, 4000)
    fare = 3 + 2 * km + rng.exponential(2, 4000)
    table = pa.table({"km": km, "hour": rng.integers(0, 24, 4000), "fare": fare})
    pq.write_table(table, month + ".parquet")
age, log_years = rng.integers(18, 90, 4000), np.log(rng.uniform(0.1, 1, 4000))
claims = rng.poisson(np.exp(log_years - (age > 25)))
table = pa.table({"age": age, "log_years": log_years, "claims": claims})
pq.write_table(table, "policies.parquet")
"""
    code = "\n".join(blocks(DOCS / "faq.md", "python"))
    check = """
assert sparrowboost.train(february, init_model="model.json", n_estimators=5).n_trees == 205
assert reg.n_iter_ == reg.best_iteration_
assert (fares.n_rows, more.n_trees) == (8000, 250)
assert not fares.appended[0].drifts
fares = pq.read_table("january.parquet")["fare"].to_numpy()
assert (model.predict("january.parquet") > fares).mean() < 0.5
assert (expected < per_year).all()
"""
    run("\n".join([make, code, check]), tmp_path)


def test_the_readme_runs_on_files_of_these_names(tmp_path):
    make = """
import pyarrow.parquet as pq
from pathlib import Path
from sparrowboost.datasets import make_large
for stream, name in enumerate(("train/a.parquet", "train/b.parquet", "test/a.parquet")):
    Path(name).parent.mkdir(exist_ok=True)
    make_large(name, 4000, stream=stream)
    table = pq.read_table(name)
    names = [{"y": "clicked", "f1": "price"}.get(name, name) for name in table.column_names]
    pq.write_table(table.rename_columns(names), name)
"""
    code = "\n".join([make, *blocks(ROOT / "README.md", "python")])
    run(code, tmp_path)
    assert (tmp_path / "model.json").is_file()
