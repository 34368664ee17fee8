from __future__ import annotations

import json


def test_an_export_says_what_it_wrote(folder, tmp_path, sparrow):
    code, out, _ = sparrow(
        "export", folder / "model.json", "-o", tmp_path / "x.json", "--data",
        folder / "t.csv",
    )  # fmt: skip
    assert code == 0
    assert "x.json: Model(8 trees" in out
    assert "learner" in json.loads((tmp_path / "x.json").read_text())
