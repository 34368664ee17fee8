"""Commands say `--exclude id` where the library says `exclude=['id']`, in errors and warnings."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparrowboost.cli import make_parser
from sparrowboost.cli.words import in_options

COMMANDS = make_parser()._subparsers._group_actions[0].choices

SAID = [
    ("leave it out (exclude=['id'])", "leave it out (--exclude id)"),
    ("pass categorical=['a b', \"c's\"] to", "pass --categorical 'a b,c'\"'\"'s' to"),
    ("Pass label= (--label); t.csv has x.", "Pass --label; t.csv has x."),
    ("pass decimal= and thousands= (--decimal, --thousands).", "pass --decimal and --thousands."),
    ("pass thousands='.' and decimal=',' (--thousands . --decimal ,).",
     "pass --thousands . and --decimal ,."),
    ("pass header=False (--no-header) to", "pass --no-header to"),
    ("or one value, positive=... (--positive).", "or one value, --positive VALUE."),
    ("learning_rate=-1.0: give more", "--learning-rate -1.0: give more"),
    ("memory_limit 1 MB is too small", "--memory 1 MB is too small"),
    ("from the last model (by init_model=, --init-model)", "from the last model (by --init-model)"),
    ("try a larger memory_limit or sample_size.", "try a larger --memory or --sample-size."),
    ("class_weight is for classes", "--balanced is for classes"),
]  # fmt: skip
KEPT = [
    "there is no column 'z'; it has sample_size, learning_rate, y.",
    "no column 'label=5' and no column 'exclude='",
    "label=1/part.parquet: no such file.",
    "/data/label=1/part.parquet: no such file.",
    "give the function an attribute greater_is_better",
    "unknown=5 (--unheard): no such option",
    "it holds x (--label), which nobody has named",
    "'learning_rate' is quoted",
]


@pytest.mark.parametrize(("message", "words"), SAID)
def test_parameters_are_said_as_options(message, words):
    assert in_options(message, COMMANDS["train"]) == words


@pytest.mark.parametrize("message", KEPT)
def test_what_is_no_parameter_stays(message):
    assert in_options(message, COMMANDS["train"]) == message


def test_a_parameter_that_a_command_has_no_option_for_stays():
    assert in_options("pass exclude=['id']", COMMANDS["evaluate"]) == "pass exclude=['id']"
    words = "pass offset=... (--offset), or offset=False (--no-offset)."
    assert in_options(words, COMMANDS["predict"]) == "pass --offset COLUMN, or --no-offset."
    assert in_options("or overwrite=True (--overwrite)", COMMANDS["ingest"]) == "or --overwrite"


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_warning_of_a_command_names_its_option(sparrow, tmp_path, format):
    names = pa.array([f"name {i:05}" for i in range(3_000)])
    labels = pa.array([i % 2 for i in range(3_000)])
    pq.write_table(pa.table({"x": labels, "name": names, "y": labels}), tmp_path / "t.parquet")
    code, _, err = sparrow(
        "ingest", tmp_path / "t.parquet", "--label", "y", "-o", tmp_path / "store",
        "--no-category-statistics", "--log-format", format,
    )  # fmt: skip
    assert code == 0
    (line,) = (line for line in err.splitlines() if "nearly all values differ" in line)
    said = json.loads(line)["message"] if format == "json" else line
    assert "leave it out (--exclude name), or pass --categorical name to keep it." in said
    assert "task='binning rows'" in err  # lines of facts are as they were
