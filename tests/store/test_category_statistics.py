"""Statistics of the target by category: what they are, and that no row sees its own label."""

from __future__ import annotations

import json
import logging
import pickle
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparrowboost.store.fold_statistics as fold_statistics
from constants import set_constants
from sparrowboost import Dataset, MemoryLimitError, ingest, load_model, train
from sparrowboost.runtime.memory import held
from sparrowboost.store.bin_finder import find_thresholds
from sparrowboost.store.category_statistics import CategoryStatistics, CodedWords, hash_words
from sparrowboost.store.fold_statistics import (
    N_FOLDS,
    SMOOTHING,
    FoldSums,
    category_bytes,
    folds_of,
    share_out,
)
from sparrowboost.store.statistics_pass import LIMIT_SHARE, StatisticsPass
from sparrowboost.views import split

ROWS = 4_000


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def words_of(values):
    return CodedWords.of("c", pa.array(values, pa.string()))


def long_tail(rng, n=ROWS, values=600):
    """Categories of which many are beyond the 254 most frequent ones, some missing."""
    numbers = np.minimum(rng.geometric(1 / 150, n), values)
    return [None if k % 97 == 0 else f"v{k}" for k in numbers]


def made_table(rng, n=ROWS, **more):
    c = long_tail(rng, n)
    effect = np.array([0.0 if text is None else (int(text[1:]) % 7) / 7 for text in c])
    y = (rng.random(n) < 0.2 + 0.5 * effect).astype(np.int64)
    return pa.table({"c": c, "x": rng.normal(size=n), "y": y, **more})


def naive_statistics(values, target, weight, folds):
    """For each row mean and count of its category from other folds; and both of all rows."""
    scale, prior = np.mean(weight), np.sum(weight * target) / np.sum(weight)
    n, s = defaultdict(float), defaultdict(float)
    for value, fold, w, y in zip(values, folds, weight, target, strict=True):
        for key in ((value, fold), value):
            n[key] += w / scale
            s[key] += w * y / scale

    def mean(count, total):
        return np.float32((total + SMOOTHING * prior) / (count + SMOOTHING))

    rows = []
    for value, fold in zip(values, folds, strict=True):
        count, total = n[value] - n[value, fold], s[value] - s[value, fold]
        rows.append((mean(count, total), np.float32(count)))
    share = 1 - 1 / N_FOLDS
    whole = {
        value: (mean(share * n[value], share * s[value]), np.float32(share * n[value]))
        for value in values
    }
    return rows, whole, mean(0, 0)


@pytest.mark.parametrize("weighted", [False, True])
def test_statistics_are_those_of_the_naive_twin(rng, weighted):
    values = [f"v{k}" for k in rng.geometric(0.1, 3_000)]
    target = rng.random(3_000) * 8 // 1
    weight = rng.integers(1, 5, 3_000) / 2 if weighted else np.ones(3_000)
    folds, sums = folds_of(40, 3_000, 9), FoldSums("c", 1, 10_000)
    for start in range(0, 3_000, 700):
        part = slice(start, start + 700)
        both = np.stack([weight[part], weight[part] * target[part]])
        sums.add(words_of(values[part]), folds[part], both)
    prior = np.array([np.sum(weight * target) / np.sum(weight)])
    whole, folded = sums.finish(["mean", "count"], prior, weight.mean(), find_thresholds)
    rows, of_all, nothing = naive_statistics(values, target, weight, folds)
    words = words_of(values)
    bins = folded.bins_of(words.hashes)[words.codes, folds]
    for j, cuts in enumerate(whole.thresholds):
        exact = np.array([row[j] for row in rows])
        # Sums are added in another order, so that a value may lie on the other side of a threshold.
        near = np.isclose(exact[:, None], cuts, rtol=1e-6).any(1)
        assert near.mean() < 0.05
        assert (bins[:, j] == np.searchsorted(cuts, exact))[~near].all()
        texts = list(of_all)
        exact = np.array([of_all[text][j] for text in texts])
        near = np.isclose(exact[:, None], cuts, rtol=1e-6).any(1)
        found = whole.bins_of(hash_words(pa.array(texts)))[:, 0, j]
        assert (found == np.searchsorted(cuts, exact))[~near].all()
        unknown = np.searchsorted(cuts, [nothing, 0][j])
        assert whole.bins_of(hash_words(pa.array(["new"]))).tolist()[0][0][j] == unknown


def test_a_label_never_changes_the_statistics_of_its_own_row(rng):
    values, target = long_tail(rng, 1_000), rng.integers(0, 2, 1_000).astype(float)
    folds, words = folds_of(0, 1_000, 5), words_of(values)

    def means(y):
        """Of each row, as exact as float32 is: each has a bin of its own."""
        sums = FoldSums("c", 1, 5_000)
        sums.add(words, folds, np.stack([np.ones(1_000), y]))
        kind = fold_statistics._Mean(1.0, 1, 0.5)
        by_slot = kind.without_fold(sums._sums[: sums.n_categories])
        slots = fold_statistics.find(words.hashes, sums._keys, sums._slots)
        there = words.codes < len(words.hashes)
        return np.where(there, by_slot[np.append(slots, 0)[words.codes], folds], np.nan)

    before = means(target)
    changed = 0
    for row in range(200):
        other = target.copy()
        other[row] = 1 - other[row]
        after = means(other)
        same_fold = folds == folds[row]
        np.testing.assert_array_equal(after[same_fold], before[same_fold])
        changed += not np.array_equal(after, before, equal_nan=True)
    assert changed > 100  # rows of other folds do see it


def test_too_many_categories_drop_the_rarest_ones(rng):
    sums = FoldSums("c", 1, 200)
    frequent = [f"often{k}" for k in range(50)]
    for block in range(40):
        values = [*frequent, *(f"once{block}-{k}" for k in range(30))]
        n = len(values)
        sums.add(words_of(values), folds_of(block * n, n, 0), np.ones((2, n)))
        assert sums.n_categories <= 200
    assert sums.drops
    assert sums.n_found == 50 + 40 * 30
    whole, folded = sums.finish(["mean", "count"], np.ones(1), 1.0, find_thresholds)
    count = whole.bins_of(hash_words(pa.array(frequent)))[:, 0, 1]
    rare = whole.bins_of(hash_words(pa.array(["once0-1", "never"])))[:, 0, 1]
    assert count.min() > rare.max()  # of the frequent ones, none was dropped
    kept = fold_statistics.find(hash_words(pa.array(frequent)), folded.keys, folded.slots)
    assert len(set(kept.tolist())) == 50
    assert (kept >= 0).all()


def test_columns_of_few_categories_leave_room_to_those_of_many():
    few, many, late = (FoldSums(name, 1, 1_000) for name in ("few", "many", "late"))
    columns, rows = [few, many, late], 50
    for block in range(40):
        share_out(columns, 1_000)
        assert sum(sums.most for sums in columns) <= 1_000
        texts = [f"v{block}-{k}" for k in range(rows)]
        for sums, values in (
            (few, ["a", "b"] * (rows // 2)),
            (many, texts),
            (late, texts if block > 20 else ["a"] * rows),
        ):
            sums.add(words_of(values), folds_of(block * rows, rows, 0), np.ones((2, rows)))
            assert sums.n_categories <= sums.peak <= sums.most
        if block == 8:
            assert not many.drops and many.n_categories == 450 > 1_000 // 3
    assert sum(sums.peak for sums in columns) <= 1_000
    assert (few.drops, many.drops, late.drops) == (False, True, True)
    assert late.peak >= 166 - rows  # what was left to it


@pytest.mark.parametrize("n", [20, 9_000])
def test_categories_are_counted_once_however_often_they_were_dropped(n):
    sums, rows = FoldSums("c", 1, 500), 240
    for block in range(3 * n // rows + 1):  # each category comes three times, far apart
        values = [f"v{(block * rows + k) % n}" for k in range(rows)]
        sums.add(words_of(values), folds_of(block * rows, rows, 0), np.ones((2, rows)))
    assert sums.drops == (n > 500)
    # 1 / sqrt(4096) is the standard error, where not all hashes are kept.
    assert abs(sums.n_found / n - 1) <= (5 / 64 if n > 4_096 else 0)


def test_columns_of_more_categories_than_bins_have_statistics(rng):
    few = rng.choice(["a", "b"], ROWS).tolist()
    dataset = ingest(made_table(rng, few=few), label="y", verbose=0)
    assert dataset.feature_names == ["c", "x", "few", "c (mean)", "c (count)"]
    assert [s.column for s in dataset.binning.statistics] == ["c"]
    block = dataset.read_block(0)
    assert block.bins.shape[1] == dataset.n_features == 5
    # Missing categories have the missing bin of the statistics, too.
    last = dataset.binning.n_bins - 1
    missing = block.bins[:, 0] == last[0]
    assert missing.any()
    assert ((block.bins[:, 3:] == last[3:]).all(1) == missing).all()


def test_without_statistics_a_store_is_what_it_was(rng):
    table = made_table(rng)
    dataset = ingest(table, label="y", category_statistics=False, verbose=0)
    assert dataset.feature_names == ["c", "x"]
    assert dataset.binning.statistics == ()
    assert all("statistics" not in item for item in dataset.binning.to_json())


def test_names_that_are_taken_get_a_number(rng):
    more = {"c (mean)": rng.normal(size=ROWS)}
    dataset = ingest(made_table(rng, **more), label="y", verbose=0)
    assert dataset.feature_names == ["c", "x", "c (mean)", "c (mean) 2", "c (count)"]


def rows_of(dataset):
    """All rows, sorted, with their labels."""
    return sorted(
        (row.tobytes(), int(label))
        for block in dataset.blocks()
        for row, label in zip(block.bins, block.label, strict=True)
    )


@pytest.mark.parametrize("apart", [False, True])
def test_stored_bins_are_the_same_however_the_table_is_read(rng, tmp_path, monkeypatch, apart):
    table = made_table(rng)
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=500)
    if apart:  # columns one by one
        set_constants(monkeypatch, wide=1)
        set_constants(monkeypatch, reader_bytes=1)
        set_constants(monkeypatch, array_bytes=3_000)
    expected = rows_of(ingest(table, label="y", verbose=0, n_jobs=1))
    assert rows_of(ingest(tmp_path / "t.parquet", label="y", verbose=0, n_jobs=2)) == expected


def test_stages_of_random_parts_have_the_statistics_of_their_rows(rng, tmp_path, monkeypatch):
    table = made_table(rng)
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=100)
    expected = rows_of(ingest(table, label="y", verbose=0))
    set_constants(monkeypatch, min_staged_rows=100)
    assert rows_of(ingest(tmp_path / "t.parquet", label="y", verbose=0)) == expected


def test_the_greater_label_is_the_positive_one_in_means_too(rng):
    table = made_table(rng)
    order = np.argsort(table["y"].to_numpy() == 0, kind="stable")  # 1 is found first, then 0
    for source in (table, table.take(order), table.take(order[::-1])):
        binning = ingest(source, label="y", verbose=0).binning
        (some,) = binning.statistics
        rate = table["y"].to_numpy().mean()
        prior = np.searchsorted(some.thresholds[0], np.float32(rate))
        assert abs(int(some.unknown[0]) - int(prior)) <= 1
        assert some.unknown[1] == 0


def test_numbers_have_the_mean_of_all_but_extreme_targets(rng):
    table = made_table(rng)
    y = table["y"].to_numpy() * 10.0 + rng.normal(size=ROWS)
    y[0] = 1e30
    table = table.set_column(2, "y", pa.array(y))
    dataset = ingest(table, label="y", task="regression", verbose=0)
    assert dataset.feature_names == ["c", "x", "c (mean)", "c (count)"]
    assert max(dataset.binning.statistics[0].thresholds[0]) < 20
    assert Dataset(dataset.path).task == "regression"


def test_more_classes_have_a_share_each(rng):
    table = made_table(rng)
    names = np.array(["fir", "oak", "pine"])[rng.integers(0, 3, ROWS)]
    table = table.set_column(2, "y", pa.array(names.tolist()))
    dataset = ingest(table, label="y", verbose=0)
    assert set(dataset.feature_names[2:]) == {
        "c (share of fir)", "c (share of oak)", "c (share of pine)", "c (count)"
    }  # fmt: skip
    model = train(dataset, n_estimators=2, verbose=0)
    assert model.predict_proba(table).shape == (ROWS, 3)


def test_of_many_classes_the_most_frequent_have_a_share(rng):
    table = made_table(rng)
    names = [f"k{int(k)}" for k in np.minimum(rng.geometric(0.3, ROWS), 12)]
    dataset = ingest(table.set_column(2, "y", pa.array(names)), label="y", verbose=0)
    shares = [name for name in dataset.feature_names if "share of" in name]
    assert shares == [f"c (share of k{k})" for k in range(1, 9)]


def test_a_third_class_that_the_sample_lacks_is_found_in_the_statistics_pass(rng, monkeypatch):
    set_constants(monkeypatch, label_sample_rows=256)
    table = made_table(rng)
    names = np.where(table["y"].to_numpy() > 0, "a", "b").astype(object)
    names[1_234] = "rare"
    dataset = ingest(table.set_column(2, "y", pa.array(names.tolist())), label="y", verbose=0)
    assert dataset.classes == ("a", "b", "rare")


def test_an_id_has_no_statistics_and_is_warned_about(rng, caplog):
    with caplog.at_level(logging.WARNING, "sparrowboost"):
        dataset = ingest(made_table(rng, user=[f"u{k}" for k in range(ROWS)]), label="y", verbose=0)
    assert dataset.feature_names == ["c", "x", "user", "c (mean)", "c (count)"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "column 'user': nearly all values differ (4000 in 4000 rows): it is an id" in line


def test_more_categories_than_the_limit_allows_are_told(rng, caplog, monkeypatch):
    set_constants(monkeypatch, most_statistics=300)
    with caplog.at_level(logging.INFO, "sparrowboost"):
        dataset = ingest(made_table(rng), label="y", verbose=0)
    assert "c (mean)" in dataset.feature_names
    lines = [r.getMessage() for r in caplog.records if "most frequent" in r.getMessage()]
    assert len(lines) == 1
    n = len(set(made_table(np.random.default_rng(3))["c"].to_pylist()) - {None})
    assert f"column 'c': has about {n} categories, more than" in lines[0]


def test_a_column_that_does_not_fit_the_limit_is_no_id_for_that(rng, caplog, monkeypatch):
    set_constants(monkeypatch, most_statistics=300)
    thrice = pa.array([f"u{k % (ROWS // 3)}" for k in range(ROWS)])
    with caplog.at_level(logging.WARNING, "sparrowboost"):
        dataset = ingest(made_table(rng, user=thrice), label="y", verbose=0)
    assert "user (mean)" in dataset.feature_names
    assert "it is an id" not in caplog.text


def test_rows_with_the_bins_of_a_model_have_its_statistics(rng, tmp_path):
    table, other = made_table(rng), made_table(np.random.default_rng(8), 500)
    dataset = ingest(table, label="y", path=tmp_path / "s", verbose=0)
    again = ingest(other, label="y", bins_of=Dataset(tmp_path / "s"), verbose=0)
    (some,) = dataset.binning.statistics
    (same,) = again.binning.statistics
    np.testing.assert_array_equal(some.hashes, same.hashes)
    model = train(dataset, n_estimators=3, verbose=0)
    bins = np.empty((500, again.n_features), np.uint8)
    model.binning.apply(other.combine_chunks().to_batches()[0], bins)
    assert sorted(row.tobytes() for row in bins) == [row for row, _ in rows_of(again)]


@pytest.mark.parametrize("kind", ["two", "three", "numbers", "weighted"])
def test_rows_that_statistics_were_made_from_have_them_by_fold_again(rng, kind, caplog):
    table = made_table(rng, w=rng.integers(1, 5, ROWS).astype(float))
    how = {"label": "y", "weight": "w" if kind == "weighted" else None, "verbose": 0}
    if kind != "weighted":
        table = table.drop(["w"])
    if kind == "three":
        names = np.array(["a", "b", "c"])[table["y"].to_numpy() + (rng.random(ROWS) < 0.3)]
        table = table.set_column(2, "y", pa.array(names))
    if kind == "numbers":
        table = table.set_column(2, "y", pa.array(rng.normal(size=ROWS)))
        how["task"] = "regression"
    first = ingest(table, **how)
    model = train(first, n_estimators=2, verbose=0)
    with caplog.at_level(logging.WARNING, "sparrowboost"):
        for bins_of in (first, model):
            assert rows_of(ingest(table, bins_of=bins_of, **how)) == rows_of(first)
        turned = ingest(table.take(pa.array(np.arange(ROWS)[::-1])), bins_of=model, **how)
        assert caplog.records == []
        whole = ingest(table[:-1], bins_of=model, **how)
    assert "see their own labels" in caplog.text
    # Which folds other rows are in depends on their order; of rows to predict, none is left out.
    assert len(set(rows_of(whole)) - set(rows_of(first))) > 100
    assert len(set(rows_of(turned)) - set(rows_of(first))) > 100
    assert len(set(rows_of(turned)) - set(rows_of(whole))) > 100


def test_other_labels_of_the_same_categories_are_other_rows(rng, caplog):
    table = made_table(rng)
    model = train(ingest(table, label="y", verbose=0), n_estimators=2, verbose=0)
    labels = table["y"].to_numpy().copy()
    labels[np.flatnonzero(labels)[0]] = 0
    other = table.set_column(2, "y", pa.array(labels))
    with caplog.at_level(logging.WARNING, "sparrowboost"):
        ingest(other, label="y", bins_of=model, verbose=0)
    assert "see their own labels" in caplog.text


def test_bins_of_a_store_may_be_used_with_labels_of_another_kind(rng):
    table = made_table(rng)
    y = table["y"].to_numpy()
    kinds = {"two": y, "three": np.array(["a", "b", "c"])[y + (np.arange(ROWS) % 3 == 0)]}
    kinds["numbers"] = rng.normal(size=ROWS)
    names = {name: pa.array(labels) for name, labels in kinds.items()}

    def made(kind, **how):
        task = "regression" if kind == "numbers" else "classification"
        return ingest(table.set_column(2, "y", names[kind]), label="y", task=task, verbose=0, **how)

    stores = {kind: made(kind) for kind in kinds}
    pairs = [("two", "three"), ("two", "numbers"), ("three", "numbers"), ("numbers", "two")]
    for of, kind in pairs:
        other = made(kind, bins_of=stores[of])
        assert other.binning.to_json() == stores[of].binning.to_json()
        assert other.n_rows == ROWS


def test_statistics_survive_a_pickle_and_json(rng):
    (some,) = ingest(made_table(rng), label="y", verbose=0).binning.statistics
    item = {"name": "c", **some.to_json()}
    for copy in (pickle.loads(pickle.dumps(some)), CategoryStatistics.from_json(item)):
        assert copy.names == some.names
        assert copy.column == "c"
        for name in ("hashes", "bins", "unknown"):
            np.testing.assert_array_equal(getattr(copy, name), getattr(some, name))


def log_loss(y, p):
    return -np.mean(np.log(np.where(y == 1, p, 1 - p)))


@pytest.mark.parametrize("occurs", [2, 10, 100])
def test_ids_that_say_nothing_are_hardly_learned_from(rng, occurs):
    """Labels are a coin: any loss below log 2 is what leaked.

    A model that predicts 0.5 + d has, on 8,000 validation rows of a coin, a loss whose standard
    deviation is about 2 * d / sqrt(8,000): below 0.002 for |d| < 0.1. Where means have the row's
    own label, the loss is 0.5 and less.
    """
    n = 40_000
    y = rng.integers(0, 2, n)
    ids = rng.permutation(np.arange(n) // occurs)
    table = pa.table({"id": ids.astype(str), "x": rng.normal(size=n), "y": y})
    dataset = ingest(table, label="y", categorical=["id"], verbose=0)
    assert "id (mean)" in dataset.feature_names
    rows, valid = split(dataset, 0.2, 0)
    scores = []
    train(
        rows,
        valid=valid,
        n_estimators=30,
        verbose=0,
        callbacks=[lambda e: scores.append(getattr(e, "scores", {}).get("log_loss"))],
    )
    losses = [score for score in scores if score is not None]
    if losses:  # else no split was proved, as it should be
        assert min(losses) > np.log(2) - 0.006


def test_effects_of_rare_categories_are_learned(rng):
    n, values = 60_000, 3_000
    effects = rng.normal(0, 1.5, values)
    k = rng.integers(0, values, 2 * n)
    y = (rng.random(2 * n) < 1 / (1 + np.exp(-effects[k]))).astype(int)
    table = pa.table({"k": k.astype(str), "y": y})
    loss = {}
    for on in (True, False):
        dataset = ingest(table[:n], label="y", categorical=["k"], category_statistics=on, verbose=0)
        model = train(dataset, n_estimators=40, verbose=0)
        loss[on] = log_loss(y[n:], model.predict_proba(table[n:])[:, 1])
    oracle = log_loss(y[n:], 1 / (1 + np.exp(-effects[k[n:]])))
    assert loss[True] < oracle + 0.04
    assert loss[False] > oracle + 0.07


@pytest.mark.parametrize(
    ("kind", "offset"),
    [("two", None), ("two", "shift"), ("three", None), ("numbers", None), ("numbers", "shift")],
)
def test_appended_rows_have_the_statistics_that_rows_to_predict_have(kind, offset, tmp_path):
    how = {"two": {}, "three": {"task": "classification"}, "numbers": {"task": "regression"}}[kind]

    def some(seed, n):
        rng = np.random.default_rng(seed)
        table = made_table(rng, n, **({"shift": rng.normal(size=n)} if offset else {}))
        y = table["y"].to_numpy() + (rng.random(n) < 0.3)
        labels = {"two": table["y"], "three": pa.array(y), "numbers": pa.array(y / 2)}
        return table.set_column(2, "y", labels[kind].cast(pa.float64()))

    path = tmp_path / "s"
    first = ingest(some(0, ROWS), label="y", offset=offset, path=path, verbose=0, **how)
    model = train(first, n_estimators=2, verbose=0)
    other = some(8, 500)
    before = rows_of(first)
    grown = ingest(other, append=path, verbose=0)
    assert grown.feature_names == first.feature_names
    bins = np.empty((500, grown.n_features), np.uint8)
    grown.binning.apply(other.combine_chunks().to_batches()[0], bins)
    added = sorted(row.tobytes() for row in bins)
    again = Dataset(path, verify=True)
    after = rows_of(again)
    assert (len(after), again.offset_name) == (ROWS + 500, offset)
    left = Counter(row for row, _ in after)
    left.subtract(Counter(row for row, _ in before))
    assert sorted(left.elements()) == added
    assert json.loads((path / "manifest.json").read_text())["version"] == 7
    more = train(again, init_model=model, n_estimators=2, verbose=0)
    more.save_model(tmp_path / "m.json")
    assert load_model(tmp_path / "m.json").digest == more.digest


def test_new_categories_of_appended_rows_are_told_as_drift(rng, tmp_path, caplog):
    ingest(made_table(rng), label="y", path=tmp_path / "s", verbose=0)
    new = made_table(np.random.default_rng(8), 900)
    texts = [f"new {text}" if k < 600 else text for k, text in enumerate(new["c"].to_pylist())]
    new = new.set_column(0, "c", pa.array(texts))
    with caplog.at_level(logging.WARNING, "sparrowboost"):
        grown = ingest(new, append=tmp_path / "s", verbose=0)
    (drift,) = (d for d in grown.appended[0].features if d.name == "c (count)")
    assert drift.large and drift.first_bin.now > 0.6 > 0.1 > drift.first_bin.before
    assert "'c (count)' (PSI" in caplog.text


def test_categories_that_come_and_go_with_time_are_learned():
    rng, n, k = np.random.default_rng(5), 30_000, 2_000
    time = np.sort(rng.random(n))  # the last tenth is to predict
    value = (rng.geometric(1 / 150, n) + (time * k).astype(int)) % k
    effect = rng.normal(0, 1.5, k)
    y = (rng.random(n) < 1 / (1 + np.exp(-effect[value]))).astype(np.int64)
    table = pa.table({"k": value, "y": y})
    loss, n = {}, int(0.9 * n)
    for on in (True, False):
        dataset = ingest(table[:n], label="y", categorical=["k"], category_statistics=on, verbose=0)
        model = train(dataset, n_estimators=30, verbose=0)
        loss[on] = log_loss(y[n:], model.predict_proba(table[n:])[:, 1])
    assert loss[True] < loss[False] - 0.02


def test_the_most_frequent_categories_are_kept():
    values = ["a"] * 5 + ["b"] * 4 + ["c"] * 3 + ["d"] * 2
    sums = FoldSums("c", 1, 100)
    sums.add(words_of(values), folds_of(0, len(values), 0), np.ones((2, len(values))))
    sums.keep(4)
    assert sums.n_categories == 4 and not sums.drops
    sums.keep(2)
    prior = np.array([1.0])
    whole, _ = sums.finish(["mean", "count"], prior, 1.0, find_thresholds)
    assert sums.drops
    assert set(whole.hashes) == set(words_of(["a", "b"]).hashes)


def many_columns(tmp_path, rng, n_columns):
    """A file with columns of 600 categories."""
    columns = {f"c{j}": long_tail(rng, 2_000) for j in range(n_columns)}
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({**columns, "y": rng.integers(0, 2, 2_000)}), path)
    return path


def test_columns_are_counted_together_as_far_as_their_sums_fit(rng, tmp_path, monkeypatch):
    path, groups, read = many_columns(tmp_path, rng, 12), [], StatisticsPass._read
    limit = held() + 200_000_000
    together = ingest(path, label="y", memory_limit=limit, verbose=0).binning.to_json()

    def noted(self, columns, *more):
        groups.append(columns)
        return read(self, columns, *more)

    monkeypatch.setattr(StatisticsPass, "_read", noted)
    least = limit // LIMIT_SHARE // category_bytes(1) // 5  # for five columns at once
    set_constants(monkeypatch, least_categories=least)
    apart = ingest(path, label="y", memory_limit=limit, verbose=0).binning.to_json()
    assert 1 < max(map(len, groups)) <= 5
    assert [name for group in groups for name in group] == [f"c{j}" for j in range(12)]
    assert apart == together


def test_statistics_of_many_columns_count_towards_the_limit(rng, tmp_path, monkeypatch):
    path = many_columns(tmp_path, rng, 12)
    set_constants(monkeypatch, kept_categories=100_000)
    few = held() + 100_000_000
    with pytest.raises(MemoryLimitError, match=r"statistics of categories \(79.\d MB\)") as refused:
        ingest(path, label="y", memory_limit=few, verbose=0)
    named = int(str(refused.value).split("give at least ")[1].split()[0])
    ingest(path, label="y", memory_limit=f"{named}MB", verbose=0)
    ingest(path, label="y", memory_limit=few, verbose=0, category_statistics=False)
