"""How files are read, said by options."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from helpers import small_table
from sparrowboost import evaluate, load_model

FEW = ["--n-estimators", "8", "--max-leaves", "4"]


def test_files_without_a_header_or_a_telling_suffix(folder, tmp_path, sparrow):
    lines = (folder / "t.csv").read_text().splitlines(keepends=True)
    data = tmp_path / "rows.txt"
    data.write_text("".join(lines[1:]))
    how = ["--no-header", "--format", "csv"]
    label = f"f{small_table().drop_columns(['w']).column_names.index('y')}"
    call = ["train", data, "--label", label, *how, *FEW, "-o", tmp_path / "m.json", "-q"]
    assert sparrow(*call)[0] == 0
    assert sparrow("predict", tmp_path / "m.json", data, *how, "-o", tmp_path / "p.csv")[0] == 0
    model = load_model(folder / "model.json")
    p = model.predict_proba(folder / "t.csv")[:, 1]
    np.testing.assert_allclose(pd.read_csv(tmp_path / "p.csv")["probability"], p)
    code, out, _ = sparrow("evaluate", tmp_path / "m.json", data, *how, "--json", "-q")
    assert code == 0
    assert json.loads(out)["auc"] == evaluate(model, folder / "t.csv", verbose=0).auc
    export = ["export", tmp_path / "m.json", "-o", tmp_path / "x.json", "--data", data, *how]
    assert sparrow(*export)[0] == 0
    code, out, _ = sparrow(*call[:-1], "--valid", data)
    assert code == 0
    loss = evaluate(model, folder / "t.csv", verbose=0).log_loss
    assert f"validation log_loss: {loss:.6g}" in out


def test_how_to_read_files_may_be_meant_for_validation_data_of_a_store(folder, tmp_path, sparrow):
    lines = (folder / "t.csv").read_text().splitlines(keepends=True)
    (tmp_path / "rows.txt").write_text("".join(lines[1:]))
    how = ["--no-header", "--format", "csv"]
    label = f"f{small_table().drop_columns(['w']).column_names.index('y')}"
    call = ["ingest", tmp_path / "rows.txt", *how, "--label", label, "-o", tmp_path / "s", "-q"]
    assert sparrow(*call)[0] == 0
    call = ["train", tmp_path / "s", "-o", tmp_path / "m.json", "-q", *FEW]
    assert sparrow(*call, *how, "--valid", tmp_path / "rows.txt")[0] == 0
    for option in (how[:1], how[1:]):
        code, _, err = sparrow(*call, *option)
        assert code == 1
        assert f"whose columns are fixed; leave out {option[0]}." in err
