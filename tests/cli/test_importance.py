from __future__ import annotations

import json

from sparrowboost import feature_importances, load_model


def test_importances_are_those_of_the_library(folder, sparrow):
    model = load_model(folder / "model.json")
    for kind in ("gain", "splits"):
        code, out, _ = sparrow("importance", folder / "model.json", "--kind", kind, "--json")
        assert code == 0
        expected = feature_importances(model, kind)
        assert json.loads(out) == dict(zip(model.feature_names, expected, strict=True))
    code, out, _ = sparrow("importance", folder / "model.json", "--top", 1)
    assert code == 0
    assert out.count("%") == 1
    assert "of 3 features" in out
