"""CSV files in the notation of a country: numbers, dates and delimiters as the user says."""

from __future__ import annotations

import datetime as dt
import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import stored_rows
from sparrowboost import (
    DataError,
    Dataset,
    SparrowClassifier,
    StoreError,
    cv,
    evaluate,
    ingest,
    load_model,
    train,
    write_predictions,
)
from sparrowboost.cli import main
from sparrowboost.readers.csv import CsvFile
from sparrowboost.readers.notation import Notation
from sparrowboost.readers.options import ReadOptions

N = 600
RNG = np.random.default_rng(0)
PRICE = RNG.integers(100, 9_000_000, N) / 100
DAY = dt.date(2020, 1, 1)
DAYS = [DAY + dt.timedelta(int(i)) for i in RNG.integers(0, 900, N)]
COUNT = RNG.integers(0, 20_000, N)
LABEL = ((PRICE > 30_000) ^ (RNG.random(N) < 0.1)).astype(int)
PLAIN = pa.table({"price": PRICE, "day": DAYS, "count": COUNT, "y": LABEL})
GERMAN = {"delimiter": ";", "decimal": ",", "thousands": ".", "date_format": "%d.%m.%Y"}
FLAGS = ["--delimiter", ";", "--decimal", ",", "--thousands", ".", "--date-format", "%d.%m.%Y"]


def german(number, digits=2):
    return f"{number:,.{digits}f}".translate(str.maketrans(",.", ".,"))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("german") / "t.csv"
    cells = zip(PRICE, DAYS, COUNT, LABEL, strict=True)
    rows = "".join(f"{german(p)};{d:%d.%m.%Y};{german(c, 0)};{y}\n" for p, d, c, y in cells)
    file.write_text("price;day;count;y\n" + rows)
    return file


@pytest.fixture(scope="module")
def model(path):
    return train(ingest(path, label="y", verbose=0, **GERMAN), n_estimators=5, verbose=0)


def write(path, text):
    path.write_text(text)
    return path


def opened(path, **options):
    read = ReadOptions(**options)
    rng = np.random.default_rng(0)
    return CsvFile(path, path.name, rng, delimiter=read.delimiter, notation=read.notation)


def values(source, column):
    return pa.Table.from_batches(source.blocks([column], 10_000)).column(0).to_pylist()


def fails(call, *says):
    with pytest.raises(DataError) as caught:
        call()
    for words in says:
        assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# What is read


def test_a_german_file_is_read_as_the_numbers_and_dates_that_it_has(path):
    source = opened(path, **GERMAN)
    assert [source.kind(c) for c in source.columns] == ["float64", "time", "float64", "float64"]
    assert values(source, "price") == PRICE.tolist()
    assert values(source, "count") == COUNT.tolist()
    assert [t.date() for t in values(source, "day")] == DAYS
    dataset = ingest(path, label="y", verbose=0, **GERMAN)
    assert stored_rows(dataset) == stored_rows(ingest(PLAIN, label="y", verbose=0))


@pytest.mark.parametrize(
    ("decimal", "thousands", "texts", "numbers"),
    [
        (",", ".", ["1.234,5", "-1.234.567", "12", ",5", "7,", "+3,25e2"],
         [1234.5, -1234567, 12, 0.5, 7, 325]),
        (".", ",", ["1,234.5", "1,23,456", "999", "inf", "1e3"],
         [1234.5, 123456, 999, np.inf, 1000]),
        (",", " ", ["1 234,5", "1\u00a0234", "1\u202f234\u202f567", " 12 "],
         [1234.5, 1234, 1234567, 12]),
        (".", "'", ["1'234.5", "1\u2019234"], [1234.5, 1234]),
        (",", None, ["3,5", "12", "-0,25"], [3.5, 12, -0.25]),
    ],
)  # fmt: skip
def test_marks_of_numbers(tmp_path, decimal, thousands, texts, numbers):
    file = write(tmp_path / "t.csv", "x;y\n" + "".join(f"{t};1\n" for t in texts))
    source = opened(file, delimiter=";", decimal=decimal, thousands=thousands)
    assert values(source, "x") == numbers


@pytest.mark.parametrize(
    ("options", "bad"),
    [
        ({"decimal": ","}, "1.5"),
        ({"decimal": ",", "thousands": "."}, "1.5"),
        ({"decimal": ",", "thousands": "."}, "12.34,5"),
        ({"decimal": ",", "thousands": "."}, "1,234.5"),
        ({"thousands": ","}, "12,34"),
        ({"thousands": " "}, "1 23"),
        ({"thousands": ","}, "0x10"),
        ({"date_format": "%d.%m.%Y"}, "1.5.2"),
    ],
)
def test_a_number_in_another_notation_is_an_error_and_no_other_number(tmp_path, options, bad):
    rows = [f"{i};{i % 2}\n" for i in range(900)]
    rows[700] = f"{bad};1\n"
    file = write(tmp_path / "t.csv", "x;y\n" + "".join(rows))
    call = lambda: ingest(file, label="y", verbose=0, **options)  # noqa: E731
    fails(call, "t.csv: row 702, column 'x'", f"{bad!r} is not a number")


def test_whole_numbers_in_groups_stay_exact(tmp_path):
    whole = [2**60 + i for i in range(40)]
    file = write(tmp_path / "t.csv", "x;y\n" + "".join(f"{n:,};{n % 2}\n" for n in whole))
    source = opened(file, delimiter=";", thousands=",")
    assert source.kind("x") == "int64"
    assert values(source, "x") == whole


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=9), st.integers(0, 6))
def test_grouped_numbers_mean_what_plain_ones_do(numbers, digits):
    texts = pa.array([german(x, digits) for x in numbers])
    plain = Notation(",", ".").to_plain(texts)
    assert plain.to_pylist() == [f"{x:.{digits}f}" for x in numbers]


@pytest.mark.parametrize(
    ("formats", "texts", "times"),
    [
        ("%d.%m.%Y", ["31.12.2024", "1.2.2024"], [(2024, 12, 31), (2024, 2, 1)]),
        ("%m/%d/%y", ["12/31/24", "02/03/99"], [(2024, 12, 31), (1999, 2, 3)]),
        ("%Y%m%d", ["20241231", "20240203"], [(2024, 12, 31), (2024, 2, 3)]),
        ("%d %b %Y", ["31 Dec 2024", "03 Feb 2024"], [(2024, 12, 31), (2024, 2, 3)]),
        (["%d.%m.%Y", "%d.%m.%Y %H:%M"], ["31.12.2024", "3.2.2024 17:30"],
         [(2024, 12, 31), (2024, 2, 3, 17, 30)]),
        ("%H:%M", ["17:30", "09:05"], [(1900, 1, 1, 17, 30), (1900, 1, 1, 9, 5)]),
    ],
)  # fmt: skip
def test_formats_of_dates(tmp_path, formats, texts, times):
    file = write(tmp_path / "t.csv", "x;y\n" + "".join(f" {t};1\n" for t in texts))
    source = opened(file, date_format=formats)
    assert source.kind("x") == "time"
    assert values(source, "x") == [dt.datetime(*time) for time in times]


@pytest.mark.parametrize("bad", ["31.02.2024", "31.12.24", "12/31/2024", "2024-12-31", "soon"])
def test_a_date_that_is_none_is_named_by_row_and_column(tmp_path, bad):
    rows = [f"{DAYS[i]:%d.%m.%Y};{i % 2}\n" for i in range(500)]
    rows[300] = f"{bad};1\n"
    file = write(tmp_path / "t.csv", "day;y\n" + "".join(rows))
    call = lambda: ingest(file, label="y", date_format="%d.%m.%Y", verbose=0)  # noqa: E731
    fails(call, "row 302, column 'day'", f"{bad!r} is not a date")


def test_numbers_of_other_lengths_are_no_dates_without_separators(tmp_path):
    file = write(tmp_path / "t.csv", "x;y\n" + "".join(f"{n};1\n" for n in (123456, 111111, 7)))
    assert opened(file, date_format="%Y%m%d").kind("x") == "float64"


def test_iso_dates_are_still_known_beside_a_format(tmp_path):
    file = write(tmp_path / "t.csv", "a;b;y\n" + "2024-12-31;31.12.2024;1\n" * 9)
    source = opened(file, date_format="%d.%m.%Y")
    assert values(source, "a") == values(source, "b") == [dt.datetime(2024, 12, 31)] * 9


def test_missing_cells_and_categories_are_what_they_are_without_options(tmp_path):
    rows = "".join(f"{t};a,b;{i % 2}\n" for i, t in enumerate(["1,5", "", "NA", "2,5"]))
    file = write(tmp_path / "t.csv", "x;c;y\n" + rows)
    source = opened(file, decimal=",")
    assert values(source, "x") == [1.5, None, None, 2.5]
    assert values(source, "c") == ["a,b"] * 4


def test_cells_over_lines_do_not_matter_to_the_notation(tmp_path):
    rows = "".join(f'"1.{i % 1000:03},5";"text\nmore";{i % 2}\n' for i in range(30_000))
    file = write(tmp_path / "t.csv", "x;t;y\n" + rows)
    feature = ingest(file, label="y", verbose=0, **GERMAN).binning.features[0]
    assert 1_000 < feature.thresholds[0] < feature.thresholds[-1] < 2_000


def test_the_delimiter_is_the_one_given_or_not_a_mark_of_numbers(tmp_path):
    file = write(tmp_path / "t.csv", "1,5;2,5;0\n3,5;4,5;1\n")
    assert values(opened_without_header(file, decimal=","), "f1") == [2.5, 4.5]
    file = write(tmp_path / "u.csv", "a b:c|d:y\n1:2|3:0\n")
    assert opened(file, delimiter=":").columns == ["a b", "c|d", "y"]
    assert opened(write(tmp_path / "v.csv", "a\ty\n1,5\t0\n"), delimiter="tab").columns == [
        "a",
        "y",
    ]


def opened_without_header(path, **options):
    notation = ReadOptions(**options).notation
    return CsvFile(path, "t", np.random.default_rng(0), header=False, notation=notation)


# Where options go


@pytest.mark.slow
def test_every_function_that_reads_files_takes_them(path, model, tmp_path):
    expected = model.predict_proba(PLAIN)
    np.testing.assert_array_equal(model.predict_proba(path, **GERMAN), expected)
    assert write_predictions(model, path, tmp_path / "p.csv", verbose=0, **GERMAN) == N
    written = pcsv.read_csv(tmp_path / "p.csv")["probability"].to_numpy()
    np.testing.assert_allclose(written, expected[:, 1], rtol=1e-6)
    assert evaluate(model, path, verbose=0, **GERMAN) == evaluate(model, PLAIN, verbose=0)
    rows = ingest(PLAIN, label="y", verbose=0)
    for valid in (path, (path, "y")):
        train(rows, valid=valid, n_estimators=1, verbose=0, **GERMAN)
    result = cv(path, label="y", n_estimators=2, n_folds=2, verbose=0, **GERMAN)
    assert result.best_n_trees > 0
    model.to_xgboost(tmp_path / "x.json", data=path, **GERMAN)
    assert model.xgboost_frame(path, **GERMAN).shape == (N, 3)
    clf = SparrowClassifier(n_estimators=5, random_state=0)
    clf.fit(path, "y", eval_set=path, **GERMAN)
    np.testing.assert_array_equal(clf.predict_proba(path, **GERMAN), clf.predict_proba(PLAIN))
    assert clf.score(path, "y", **GERMAN) > 0.8
    assert len(list(clf.staged_predict(path, **GERMAN))) == clf.n_iter_


def test_a_file_to_predict_needs_them_again(path, model, tmp_path):
    for call in (
        lambda: model.predict_proba(path),
        lambda: write_predictions(model, path, tmp_path / "p.csv", verbose=0),
        lambda: evaluate(model, path, verbose=0),
        lambda: model.predict_proba(path, **(GERMAN | {"date_format": None})),
        lambda: model.predict_proba(path, delimiter=";", date_format="%d.%m.%Y"),
    ):
        fails(call, "t.csv: row 1: column", "where numbers are needed", "decimal=, thousands= or "
              "date_format= (--decimal, --thousands, --date-format)")  # fmt: skip


def test_a_cell_of_another_notation_among_plain_ones_names_the_option(tmp_path):
    for bad, option in (("1,234", "thousands="), ("31.12.2024", "date_format=")):
        rows = "".join(f"{i};{i % 2}\n" for i in range(900)) + f"{bad};1\n"
        file = write(tmp_path / "t.csv", "x;y\n" + rows)
        fails(lambda f=file: ingest(f, label="y", verbose=0), f"{bad!r} is not a number", option)


def test_commands_take_them(path, tmp_path, capsys):
    file, out = str(path), str(tmp_path / "m.json")
    few = ["--n-estimators", "3", "-q"]
    assert main(["train", file, "--label", "y", "--valid", file, *FLAGS, *few, "-o", out]) == 0
    assert main(["predict", out, file, "-q", *FLAGS, "-o", str(tmp_path / "p.csv")]) == 0
    assert main(["evaluate", out, file, "--json", "-q", *FLAGS]) == 0
    auc = json.loads(capsys.readouterr().out)["auc"]
    assert auc == evaluate(load_model(out), PLAIN, verbose=0).auc > 0.8
    exported = str(tmp_path / "x.json")
    assert main(["export", out, "--data", file, *FLAGS, "-o", exported]) == 0
    store = str(tmp_path / "s")
    assert main(["ingest", file, "--label", "y", *FLAGS, "-q", "-o", store]) == 0
    assert stored_rows(Dataset(store)) == stored_rows(ingest(PLAIN, label="y", verbose=0))
    capsys.readouterr()
    assert main(["predict", out, file, "-q", "-o", str(tmp_path / "q.csv")]) == 1
    assert "--decimal, --thousands" in capsys.readouterr().err
    for option in (FLAGS[:2], FLAGS[2:4], FLAGS[4:6], FLAGS[6:]):
        assert main(["train", store, *option, "-q", "-o", str(tmp_path / "n.json")]) == 1
        assert f"leave out {option[0]}" in capsys.readouterr().err


WRONG = [
    ({"delimiter": ";;"}, "delimiter=';;'"),
    ({"delimiter": ""}, "delimiter=''"),
    ({"delimiter": "a"}, "delimiter='a'"),
    ({"delimiter": "\n"}, "delimiter="),
    ({"delimiter": "\u00a7"}, "delimiter="),
    ({"delimiter": 7}, "delimiter=7"),
    ({"decimal": ""}, "decimal=''"),
    ({"decimal": "1"}, "decimal='1'"),
    ({"decimal": " "}, "decimal=' '"),
    ({"decimal": None}, "decimal=None"),
    ({"thousands": "-"}, "thousands='-'"),
    ({"thousands": "e"}, "thousands='e'"),
    ({"thousands": "."}, "are the same"),
    ({"decimal": ",", "thousands": ","}, "are the same"),
    ({"date_format": "DD.MM.YYYY"}, "date_format='DD.MM.YYYY'"),
    ({"date_format": "%d.%m.%Y %f"}, "%f"),
    ({"date_format": ["%d.%m.%Y", "%Q"]}, "'%Q'"),
    ({"date_format": [3]}, "date_format=3"),
    ({"date_format": ""}, "date_format=''"),
    ({"date_format": "%d.%m.%d"}, "date_format='%d.%m.%d'"),
    ({"date_format": "%"}, "date_format='%'"),
]


@pytest.mark.parametrize(("options", "says"), WRONG)
def test_options_that_cannot_be_are_refused_before_a_row_is_read(options, says):
    for call in (
        lambda: ingest("none.csv", label="y", verbose=0, **options),
        lambda: SparrowClassifier().fit("none.csv", "y", **options),
    ):
        fails(call, says)


def test_options_are_checked_before_training_and_prediction(model, tmp_path):
    rows = ingest(PLAIN, label="y", verbose=0)
    bad = {"thousands": "."}
    for call in (
        lambda: train(rows, verbose=0, **bad),
        lambda: evaluate(model, "none.csv", **bad),
        lambda: write_predictions(model, "none.csv", tmp_path / "p.csv", **bad),
        lambda: model.predict_proba("none.csv", **bad),
        lambda: cv("none.csv", label="y", **bad),
    ):
        fails(call, "are the same")


def test_a_store_is_resumed_with_the_same_options_only(path, tmp_path):
    how = {"label": "y", "path": tmp_path / "s", "resume": True, "verbose": 0}
    ingest(path, **how, **GERMAN)
    assert ingest(path, **how, **GERMAN).n_rows == N
    with pytest.raises(StoreError, match="other files or options"):
        ingest(path, **how, **(GERMAN | {"thousands": None}))


def test_a_store_of_a_version_without_these_options_is_still_resumed(tmp_path):
    file = write(tmp_path / "t.csv", "x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(99)))
    how = {"label": "y", "path": tmp_path / "s", "resume": True, "verbose": 0}
    ingest(file, **how)
    run = json.loads((tmp_path / "s" / "manifest.json").read_text())["run"]
    assert run["options"] == ["y", None, None, None, None, None, True, None, 0]


# Numbers that are others without options


def grouped_file(path, texts):
    return write(path, "x;y\n" + "".join(f"{t};{i % 2}\n" for i, t in enumerate(texts)))


def test_whole_numbers_with_dots_between_groups_are_not_read_as_fractions_in_silence(
    tmp_path, caplog
):
    texts = [german(n, 0) for n in range(100, 90_000, 90)]
    (tmp_path / "d").mkdir()
    for name in ("a.csv", "b.csv"):
        grouped_file(tmp_path / "d" / name, texts)
    dataset = ingest(tmp_path / "d", label="y", verbose=0)
    (line,) = [record.getMessage() for record in caplog.records]  # once for both files
    assert "a.csv: column 'x': 1.000 is read as a fraction" in line
    assert "pass thousands='.' and decimal=','" in line
    caplog.clear()
    model = train(dataset, n_estimators=1, verbose=0)
    model.predict_proba(tmp_path / "d" / "a.csv")
    assert len(caplog.records) == 1
    caplog.clear()
    ingest(tmp_path / "d", label="y", thousands=".", decimal=",", verbose=0)
    assert caplog.records == []


@pytest.mark.parametrize(
    "texts",
    [
        [f"{x:.3f}" for x in np.arange(0, 50, 0.125)],
        [f"{x:.3f}" for x in np.arange(1, 50, 0.125)],
        [f"{x:g}" for x in np.arange(0, 50, 0.125)],
        [f"{x:g}" for x in np.arange(1, 50, 0.005).round(3)],
        [str(n) for n in range(999)],
        [str(n) for n in range(5000)],
        ["1.5", "2.250", "7"] * 9,
    ],
)
def test_other_numbers_with_three_decimals_are_fine(tmp_path, caplog, texts):
    ingest(grouped_file(tmp_path / "t.csv", texts), label="y", verbose=0)
    assert caplog.records == []
