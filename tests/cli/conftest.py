"""Files for the commands, and a way to call them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from helpers import small_table
from sparrowboost.cli import main


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder with a table as Parquet and CSV, tables that are wrong, and a model."""
    path = tmp_path_factory.mktemp("cli")
    table = small_table().drop_columns(["w"])
    pq.write_table(table.append_column("id", pa.array(range(len(table)))), path / "t.parquet")
    pcsv.write_csv(table, path / "t.csv")
    lists = pa.array([[1, 2]] * len(table))
    pq.write_table(table.append_column("l", lists), path / "l.parquet")
    (path / "folder.csv").mkdir()
    words = pa.array(["1.5", *["oops"] * (len(table) - 1)])
    pcsv.write_csv(table.set_column(table.column_names.index("x"), "x", words), path / "words.csv")
    words = ["ingest", f"{path}/t.csv", "--label", "y", "-o", f"{path}/store", "-q"]
    assert main(words) == 0
    few = ["--n-estimators", "8", "--max-leaves", "4"]
    call = ["train", f"{path}/t.parquet", "--label", "y", "--exclude", "id", *few]
    assert main([*call, "-o", f"{path}/model.json", "-q"]) == 0
    return path


@pytest.fixture
def sparrow(capsys):
    """Runs a call; gives its exit code, standard output and standard error."""

    def run(*call):
        code = main([str(part) for part in call])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def in_folder(folder):
    """A call with files of the folder in the place of words in capitals."""
    names = {
        "MODEL": "model.json", "DATA": "t.csv", "LISTS": "l.parquet", "FOLDER": "folder.csv",
        "WORDS": "words.csv", "STORE": "store",
    }  # fmt: skip
    return lambda call: [folder / names[part] if part in names else part for part in call]
