"""Text that is hardly meant as categories is warned about, and ordinary categories are not."""

from __future__ import annotations

import logging
import uuid

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from sparrowboost import SparrowClassifier, ingest
from sparrowboost.store.bin_finder import BinFinder

N = 2_000
RNG = np.random.default_rng(0)
LABEL = pa.array(RNG.integers(0, 2, N))
NUMBERS = RNG.integers(500, 3_000, N)


def table(**columns):
    return pa.table({name: list(values) for name, values in columns.items()} | {"y": LABEL})


def warned(caplog, data, **kwargs):
    caplog.clear()
    with caplog.at_level(logging.WARNING, "sparrowboost"):
        ingest(data, **({"label": "y", "verbose": 0} | kwargs))
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return [record.getMessage() for record in caplog.records]


def pick(*values):
    return RNG.choice(values, N).tolist()


@pytest.fixture
def rng():
    """A generator of its own for each test: which tests came before it does not matter."""
    return np.random.default_rng(1)


@pytest.mark.parametrize(
    ("values", "example"),
    [
        ([f"{n:,}" for n in NUMBERS], "'2,"),
        ([f"{n:,}.50".translate(str.maketrans(",.", ".,")) for n in NUMBERS], ",50'"),
        ([f"{n:,}".replace(",", " ") for n in NUMBERS], "'"),
        ([f"${n / 10:.2f}" for n in NUMBERS], "'$"),
        ([f"{n % 101} %" for n in NUMBERS], " %'"),
        ([f"({n})" if n % 3 else f"{n}" for n in NUMBERS], "'("),
        (pick("1,5", "2,0", "2,5", "n/a"), ",'"),
        (pick("12 €", "7 €", "8,50 €"), "€'"),
    ],
    ids=["thousands", "German", "spaces", "dollars", "percent", "brackets", "few", "euros"],
)
def test_text_that_looks_like_numbers_is_warned_about(caplog, values, example):
    (line,) = warned(caplog, table(price=values))
    assert "column 'price': text that looks like numbers" in line
    assert example.strip("'") in line
    signs = any(sign in line for sign in ("$", "%", "(", "€") if sign in example)
    to_do = ("remove signs",) if signs else ("decimal=", "thousands=")
    for words in (*to_do, "categorical=['price']"):
        assert words in line
    assert ("decimal=" in line) != signs  # these options read no signs


@pytest.mark.parametrize(
    "form",
    ["%d.%m.%Y", "%m/%d/%Y", "%d-%m-%y", "%Y/%m/%d", "%d %b %Y", "%B %d, %Y", "%d.%m.%Y %H:%M"],
)
def test_text_that_looks_like_dates_is_warned_about(caplog, form):
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(NUMBERS % 200, "D")
    (line,) = warned(caplog, table(day=days.strftime(form)))
    assert "column 'day': text that looks like dates" in line
    assert "date_format=" in line


def test_text_in_which_nearly_all_values_differ_is_warned_about(caplog, rng):
    ids = [str(uuid.UUID(int=int(i))) for i in rng.integers(2**60, size=N)]
    words = [
        f"the customer said {i} times that {i * 7} was wrong, and so on and on" for i in NUMBERS
    ]
    lines = warned(caplog, table(user=ids, note=[f"{i} {w}" for i, w in enumerate(words)]))
    assert len(lines) == 2
    for line, name in zip(lines, ("user", "note"), strict=True):
        assert f"column '{name}': nearly all values differ" in line
        assert f"exclude=['{name}']" in line
        assert len(line) < 400
        assert "\n" not in line
    line, _ = warned(caplog, table(user=ids, note=list(reversed(words))), category_statistics=False)
    assert "column 'user': nearly all values differ" in line
    assert "87% of the rows have none of the 254" in line


def test_the_share_of_rows_beyond_the_bins_is_told(caplog, rng):
    shops = [f"shop {int(i)}" for i in rng.zipf(1.3, N) % 9_999]
    counts = pd.Series(shops).value_counts()
    share = 1 - counts[:254].sum() / N
    assert 0.1 < share < 0.5
    (line,) = warned(caplog, table(shop=shops), category_statistics=False)
    assert "column 'shop': text of many values" in line
    assert f"{share:.0%} of the rows have none of the 254" in line


def test_many_values_with_statistics_are_not_warned_about(caplog, rng):
    shops = [f"shop {int(i)}" for i in rng.zipf(1.3, N) % 9_999]
    assert warned(caplog, table(shop=shops)) == []


ORDINARY = {
    "state": pick("CA", "NY", "TX", "WA"),
    "zip3": [f"{n % 200:03}" for n in NUMBERS],
    "status": pick("200", "404", "500", "n/a"),
    "product": [f"Product {n % 250}" for n in NUMBERS],
    "code": [f"A{n % 99}-{n % 2}" for n in NUMBERS],
    "version": pick("1.2.3", "1.2.4", "2.0.0", "10.0.1"),
    "range": pick("0-9", "10-19", "20-29", "30+"),
    "truth": pick("yes", "no"),
    "long tail": [f"c{int(i)}" for i in np.minimum(RNG.geometric(0.03, N), 300)],
    "half": [f"x{i}" if i < 60 else "-" for i in range(N)],
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_categories_are_not_warned_about(caplog, name):
    assert warned(caplog, table(c=ORDINARY[name])) == []
    assert warned(caplog, pd.DataFrame({"c": ORDINARY[name], "y": LABEL})) == []


def test_few_rows_are_too_few_to_tell(caplog):
    few = pa.table({"name": [f"n{i}" for i in range(50)], "y": [0, 1] * 25})
    assert warned(caplog, few) == []
    assert warned(caplog, pa.table({"size": ["1,5", "2,5"] * 9, "y": [0, 1] * 9})) == []


def test_columns_that_the_user_called_categorical_are_not_warned_about(caplog):
    data = table(price=[f"{n:,}" for n in NUMBERS], user=[f"u{i}" for i in range(N)])
    how = {"category_statistics": False}
    assert len(warned(caplog, data, **how)) == 2
    assert warned(caplog, data, categorical=["price", "user"], **how) == []
    assert len(warned(caplog, data, categorical=["user"], **how)) == 1


def test_an_id_is_warned_about_even_if_the_user_called_it_categorical(caplog):
    data = pa.table({"user": np.arange(N) * 7, "y": LABEL})
    assert warned(caplog, data) == []
    (line,) = warned(caplog, data, categorical=["user"])
    assert "column 'user': nearly all values differ (2000 in 2000 rows): it is an id" in line


def test_it_holds_for_all_sources_of_text(caplog, tmp_path):
    data = table(price=[f"{n:,}.5" for n in NUMBERS])
    pq.write_table(data, tmp_path / "t.parquet")
    pcsv.write_csv(data, tmp_path / "t.csv")
    with pa.ipc.new_file(tmp_path / "t.arrow", data.schema) as writer:
        writer.write_table(data)
    views = data.set_column(0, "price", data["price"].cast(pa.string_view()))
    for source in (
        *(tmp_path / f"t.{suffix}" for suffix in ("parquet", "csv", "arrow")),
        data, views, data.to_reader(), data.to_pandas(), pl.from_arrow(data),
        data.to_pandas().to_records(index=False).astype([("price", "U9"), ("y", "i8")]),
    ):  # fmt: skip
        (line,) = warned(caplog, source)
        assert "column 'price': text that looks like numbers" in line, type(source)
    caplog.clear()
    SparrowClassifier(n_estimators=1).fit(data.to_pandas()[["price"]], np.array(LABEL))
    assert [r for r in caplog.records if "'price'" in r.getMessage()]


def test_many_columns_are_summarised(caplog):
    columns = {f"c{i:02}": [f"{n:,}" for n in NUMBERS] for i in range(12)}
    lines = warned(caplog, table(**columns))
    assert len(lines) == 6
    assert lines[-1] == (
        "the same goes for 7 more text columns: 'c05', 'c06', 'c07', 'c08', 'c09', ..."
    )


def test_many_distinct_values_are_not_all_different(rng):
    # More categories than are counted at once: each occurs 20 times, so it is no id.
    names = [f"n{i}" for i in rng.permutation(np.arange(60_000) % 3_000)]
    finder = BinFinder("c", "category", max_categories=2_000)
    unique = BinFinder("u", "category", max_categories=2_000)
    for start in range(0, 60_000, 1_000):
        finder.add(pa.array(names[start : start + 1_000]))
        unique.add(pa.array([f"u{i}" for i in range(start, start + 1_000)]))
    finder.finish()
    unique.finish()
    assert "text of many values" in finder.fault
    assert "nearly all values differ" in unique.fault


def test_text_with_weights_is_judged_by_rows(caplog, rng):
    data = table(user=[f"u{i}" for i in range(N)], w=rng.random(N))
    (line,) = warned(caplog, data, weight="w")
    assert "nearly all values differ" in line
    few = table(color=rng.choice(["red", "blue"], N), w=rng.random(N))
    assert warned(caplog, few, weight="w") == []
