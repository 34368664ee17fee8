from __future__ import annotations

import json
import subprocess
import sys

from sparrowboost import load_model


def test_a_model_may_be_inspected(folder, sparrow):
    code, out, _ = sparrow("inspect", folder / "model.json")
    assert code == 0
    assert "y = 1, else 0" in out
    assert "color" in out
    facts = json.loads(sparrow("inspect", folder / "model.json", "--json")[1])
    assert facts["trees"] == 8
    assert facts["label"] == "y"
    assert facts["digest"] == load_model(folder / "model.json").digest
    assert [f["name"] for f in facts["features"]] == ["x", "count", "color"]


def test_who_reads_only_the_head_of_the_output_gets_no_traceback(folder):
    call = f"{sys.executable} -m sparrowboost inspect {folder}/model.json --json | head -1"
    done = subprocess.run(call, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout == "{\n"
    assert done.stderr == ""
