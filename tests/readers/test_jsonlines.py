"""JSON lines: types from all lines, members that some lines lack, and what is wrong with a line."""

from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pytest

from helpers import naive_rows, small_table, stored_rows
from sparrowboost import DataError, evaluate, ingest, train
from sparrowboost.readers import jsonlines
from sparrowboost.readers.jsonlines import join_types

TABLE = small_table(400)


def lines_of(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def check(data, table=TABLE):
    dataset = ingest(data, label="y", verbose=0)
    columns = table.to_pydict()
    assert stored_rows(dataset) == naive_rows(dataset, columns, columns["y"])
    return dataset


def refused(path, text, *says, **kwargs):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError) as caught:
        ingest(path, **({"label": "y", "verbose": 0} | kwargs))
    assert "\n" not in str(caught.value)
    for words in says:
        assert words in str(caught.value)


@pytest.mark.parametrize("chunk", [1 << 20, 500])
def test_rows_are_those_of_the_table(tmp_path, chunk, monkeypatch):
    monkeypatch.setattr(jsonlines, "CHUNK_BYTES", chunk)
    rows = TABLE.to_pylist()
    some = [{k: v for k, v in row.items() if v is not None} for row in rows]
    (tmp_path / "t.jsonl").write_text(lines_of(rows[:200]) + "\n\n" + lines_of(some[200:]))
    check(tmp_path / "t.jsonl")


def test_packed_files_and_several_of_different_members_make_one_table(tmp_path):
    rows = TABLE.drop_columns(["color"]).to_pylist()
    (tmp_path / "a.ndjson").write_text(lines_of(TABLE.to_pylist()))
    (tmp_path / "b.ndjson.gz").write_bytes(gzip.compress(lines_of(rows).encode()))
    missing = TABLE.set_column(2, "color", pa.nulls(len(TABLE), pa.string()))
    dataset = check(tmp_path, pa.concat_tables([TABLE, missing]))
    model = train(dataset, n_estimators=3, verbose=0)
    assert evaluate(model, tmp_path / "a.ndjson", verbose=0).n_rows == 400


def test_a_late_type_counts_for_all_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonlines, "CHUNK_BYTES", 100)
    rows = [{"n": i, "t": "2024-01-01T00:00:00", "y": i % 2} for i in range(100)]
    rows[90]["n"], rows[95]["t"], rows[50]["late"] = 2.5, "unknown", True
    (tmp_path / "t.jsonl").write_text(lines_of(rows))
    dataset = ingest(tmp_path / "t.jsonl", label="y", verbose=0)
    kinds = {feature.name: feature.kind for feature in dataset.binning.features}
    assert kinds == {"n": "float64", "t": "category", "late": "int64"}


def test_what_is_wrong_with_a_line_is_said_with_its_number(tmp_path):
    path = tmp_path / "t.jsonl"
    refused(path, '{"x":1,"y":0}\n\n{"x":1,"y":\n', f"{path}: line 3: not JSON")
    refused(path, '{"x":1,"y":0}\n{"x":"a","y":1}\n', "line 2, column 'x'", "string", "number")
    refused(path, '[{"x":1,"y":0}]\n', "line 1: not an object", "polars.read_json")
    refused(path, '{"x":1,"x":0,"y":1}\n', "line 1: 'x' is there twice")
    refused(path, b'{"x":1,"y":0}\n{"x":"\xff"}\n', "line 2: not UTF-8")
    refused(path, "\n\n", "has no rows")
    refused(path, lines_of([{"x": 1, "y": 0}]), "no column 'z'", label="z")
    nested = lines_of([{"p": {"a": 1}, "y": 0}, {"p": {"a": 2}, "y": 1}])
    refused(path, nested, "column 'p' has type struct", "flatten", "exclude=['p']")


def test_a_type_that_changes_between_parts_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonlines, "CHUNK_BYTES", 100)
    rows = [{"x": i if i < 30 else "a", "y": i % 2} for i in range(60)]
    refused(tmp_path / "t.jsonl", lines_of(rows), "column 'x'", "int64", "string", "one type")


def test_a_line_that_is_too_long_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonlines, "CHUNK_BYTES", 20)
    monkeypatch.setattr(jsonlines, "MAX_LINE_BYTES", 50)
    long = json.dumps({"x": "a" * 100, "y": 0}) + "\n"
    refused(tmp_path / "t.jsonl", '{"x":"b","y":1}\n' * 3 + long, "line 4 is longer than")


def test_types_join_as_their_values_allow():
    of_a, of_b = pa.struct([("a", pa.int64())]), pa.struct([("b", pa.string())])
    both = pa.struct([("a", pa.int64()), ("b", pa.string())])
    for a, b, joined in (
        (pa.null(), pa.string(), pa.string()),
        (pa.int64(), pa.float64(), pa.float64()),
        (pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("ns")),
        (pa.timestamp("s"), pa.string(), pa.string()),
        (pa.list_(pa.int64()), pa.list_(pa.float64()), pa.list_(pa.float64())),
        (of_a, of_b, both),
        (pa.bool_(), pa.int64(), None),
        (of_a, pa.int64(), None),
    ):
        assert join_types(a, b) == joined
        assert join_types(b, a) in (joined, pa.struct([("b", pa.string()), ("a", pa.int64())]))
