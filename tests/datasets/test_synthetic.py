"""The made table."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparrowboost.datasets import make_large, synthetic, writing
from sparrowboost.runtime.errors import DataError


def arrays_of(path: Path) -> tuple[np.ndarray, np.ndarray]:
    table = pq.read_table(path)
    X = np.stack([column.to_numpy() for column in table.columns[1:]], axis=1)
    return X, table["y"].to_numpy()


def test_made_table_has_float32_features_and_an_int8_label(tmp_path):
    table = pq.read_table(make_large(tmp_path / "t.parquet", 1000, features=7))
    assert table.column_names == ["y", *(f"f{j}" for j in range(7))]
    assert table.schema.types == [pa.int8(), *[pa.float32()] * 7]
    assert set(table["y"].to_pylist()) == {0, 1}


def test_made_file_is_written_as_pyarrow_writes_by_default(tmp_path):
    path = make_large(tmp_path / "t.parquet", 1000, features=5)
    pq.write_table(pq.read_table(path), tmp_path / "default.parquet")
    ours, default = (
        pq.ParquetFile(p).metadata.row_group(0) for p in (path, tmp_path / "default.parquet")
    )
    for j in range(6):
        a, b = ours.column(j), default.column(j)
        assert a.compression == b.compression == "SNAPPY"
        assert a.has_dictionary_page and b.has_dictionary_page
        assert a.is_stats_set and a.statistics.equals(b.statistics)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "random_state"), [(0.5, 1), (0.1, 2), (0.03, 3)])
def test_share_of_positives_is_as_asked(tmp_path, rate, random_state):
    n = 400_000
    path = make_large(
        tmp_path / "t.parquet", n, features=6, positive_rate=rate, random_state=random_state
    )
    y = pq.read_table(path, columns=["y"])["y"].to_numpy()
    # 2 % for the pilot, and four standard errors of the draw of n labels
    assert y.mean() == pytest.approx(rate, rel=0.02 + 4 * ((1 - rate) / (rate * n)) ** 0.5)


def test_same_arguments_give_the_same_bytes(tmp_path):
    a = make_large(tmp_path / "a.parquet", 20_000, missing=0.1)
    b = make_large(tmp_path / "b.parquet", 20_000, missing=0.1)
    assert a.read_bytes() == b.read_bytes()


def test_row_groups_do_not_change_the_rows(tmp_path):
    a = make_large(tmp_path / "a.parquet", 40_000, features=5)
    b = make_large(tmp_path / "b.parquet", 40_000, features=5, row_group_rows=777)
    assert pq.read_table(a).equals(pq.read_table(b))


def test_streams_are_other_rows_of_the_same_concept(tmp_path):
    n = 60_000
    (X0, y0), (X1, y1) = (
        arrays_of(make_large(tmp_path / f"{s}.parquet", n, features=5, stream=s)) for s in (0, 1)
    )
    assert not np.isin(X0[:, 0], X1[:, 0]).all() and (X0 != X1).any(axis=1).mean() > 0.99
    # correlations of independent draws of n rows differ by about sqrt(2 / n) = 0.006; f1 is left
    # out, its heavy tail makes them noisier
    correlations = [np.corrcoef(X[:, [0, 2, 3, 4]].T) for X in (X0, X1)]
    np.testing.assert_allclose(*correlations, atol=0.03)
    # the label depends on the features the same way: its rate within cells of f0 x f3 agrees
    cells0, cells1 = (
        np.floor(X[:, 0].clip(-1.5, 1.4)) * 10 + np.floor(X[:, 3].clip(-1.5, 1.4)) for X in (X0, X1)
    )
    for cell in np.unique(cells0):
        at0, at1 = y0[cells0 == cell], y1[cells1 == cell]
        error = (0.25 / len(at0) + 0.25 / len(at1)) ** 0.5
        assert abs(at0.mean() - at1.mean()) < 5 * error


def test_other_random_state_is_another_concept(tmp_path):
    Xs = [
        arrays_of(make_large(tmp_path / f"{s}.parquet", 30_000, features=5, random_state=s))[0]
        for s in (0, 1)
    ]
    differ = np.corrcoef(Xs[0].T) - np.corrcoef(Xs[1].T)
    assert np.abs(differ).max() > 0.1


@pytest.mark.parametrize("n", [synthetic.CHUNK_ROWS, 2 * synthetic.CHUNK_ROWS, 1000])
def test_longer_table_starts_with_the_shorter_one(tmp_path, n):
    long = pq.read_table(make_large(tmp_path / "long.parquet", 50_000, features=5, missing=0.2))
    short = pq.read_table(make_large(tmp_path / "short.parquet", n, features=5, missing=0.2))
    assert short.num_rows == n and long.slice(0, n).equals(short)


def test_share_of_nulls_is_as_asked_and_changes_nothing_else(tmp_path):
    n, share = 60_000, 0.3
    whole = pq.read_table(make_large(tmp_path / "whole.parquet", n, features=5))
    holes = pq.read_table(make_large(tmp_path / "holes.parquet", n, features=5, missing=share))
    assert holes["y"].equals(whole["y"]) and holes["y"].null_count == 0
    for name in whole.column_names[1:]:
        assert whole[name].null_count == 0
        # five standard errors of a share of n cells
        error = 5 * (share * (1 - share) / n) ** 0.5
        assert holes[name].null_count / n == pytest.approx(share, abs=error)
        kept = holes[name].is_valid()
        assert holes[name].filter(kept).equals(whole[name].filter(kept))


def test_wrong_labels_are_as_many_as_asked_and_change_nothing_else(tmp_path):
    n, rate, share = 300_000, 0.1, 0.2
    how = {"features": 5, "positive_rate": rate}
    right = pq.read_table(make_large(tmp_path / "right.parquet", n, **how))
    wrong = pq.read_table(make_large(tmp_path / "wrong.parquet", n, mislabeled=share, **how))
    assert wrong.schema.equals(right.schema)
    assert wrong.drop_columns(["y"]).equals(right.drop_columns(["y"]))
    y, z = right["y"].to_numpy(), wrong["y"].to_numpy()
    # five standard errors of a share of the positive, and of the negative rows; the share of the
    # latter keeps the rate
    turned = share * rate / (1 - rate)
    for label, p in ((1, share), (0, turned)):
        rows = y == label
        error = 5 * (p * (1 - p) / rows.sum()) ** 0.5
        assert (z[rows] != label).mean() == pytest.approx(p, abs=error)
    assert z.mean() == pytest.approx(y.mean(), rel=0.02)


def test_longer_table_starts_with_the_shorter_one_also_with_wrong_labels(tmp_path):
    how = {"features": 5, "positive_rate": 0.3, "mislabeled": 0.2}
    long = pq.read_table(make_large(tmp_path / "long.parquet", 40_000, **how))
    short = pq.read_table(make_large(tmp_path / "short.parquet", 20_000, **how))
    assert long.slice(0, 20_000).equals(short)
    other = pq.read_table(make_large(tmp_path / "other.parquet", 20_000, stream=1, **how))
    assert not other["y"].equals(short["y"])


def test_marginals_are_normal_lognormal_uniform_and_small_integers(tmp_path):
    X, _ = arrays_of(make_large(tmp_path / "t.parquet", 100_000, features=5))
    assert np.isfinite(X).all()
    for j in (0, 3):
        assert abs(X[:, j].mean()) < 0.02 and X[:, j].std() == pytest.approx(1, abs=0.02)
    assert np.log(X[:, 1]).std() == pytest.approx(1, abs=0.02) and X[:, 1].max() > 20
    np.testing.assert_allclose(np.quantile(X[:, 2], [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.01)
    assert set(np.unique(X[:, 4])) == {0, 1, 2, 3, 4}


def test_label_depends_on_integers_only_as_far_as_the_table_shows_them():
    concept = synthetic._make_concept(5, 0.1, 0)
    columns, normal = synthetic._draw_features(
        concept, synthetic._generator(0, synthetic.ROWS, 0, 0)
    )
    np.testing.assert_array_equal(normal[4], columns[4] - 2)


def test_rows_are_made_in_pieces_of_bounded_size(tmp_path, monkeypatch):
    pieces = []
    original = writing._row_groups

    def watched(batches, rows):
        def each():
            for batch in batches:
                pieces.append(batch.num_rows)
                yield batch

        return original(each(), rows)

    monkeypatch.setattr(writing, "_row_groups", watched)
    path = make_large(tmp_path / "t.parquet", 100_000, features=5, row_group_rows=30_000)
    meta = pq.ParquetFile(path).metadata
    sizes = [meta.row_group(k).num_rows for k in range(meta.num_row_groups)]
    assert sizes == [30_000, 30_000, 30_000, 10_000]
    assert max(pieces) <= synthetic.CHUNK_ROWS and sum(pieces) == 100_000


def test_row_groups_join_and_cut_batches_of_any_size():
    schema = pa.schema([("x", pa.int64())])
    sizes = [3, 0, 10, 1, 25, 4]
    values = iter(range(sum(sizes)))
    batches = [
        pa.record_batch([pa.array(list(itertools.islice(values, n)))], schema=schema) for n in sizes
    ]
    groups = list(writing._row_groups(batches, 7))
    assert [group.num_rows for group in groups] == [7, 7, 7, 7, 7, 7, 1]
    assert pa.concat_tables(groups)["x"].to_pylist() == list(range(43))


@pytest.mark.parametrize("existing", [False, True])
def test_failed_write_leaves_what_was_there(tmp_path, monkeypatch, existing):
    path = tmp_path / "t.parquet"
    if existing:
        path.write_text("older")
    whole = synthetic._made_batches

    def breaks(*args):
        yield from itertools.islice(whole(*args), 3)
        raise RuntimeError("the power went out")

    monkeypatch.setattr(synthetic, "_made_batches", breaks)
    with pytest.raises(RuntimeError, match="the power went out"):
        make_large(path, 100_000, features=5, row_group_rows=synthetic.CHUNK_ROWS)
    assert [p.name for p in tmp_path.iterdir()] == (["t.parquet"] if existing else [])
    assert not existing or path.read_text() == "older"


def test_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(DataError, match=r"there is no folder .*nowhere"):
        make_large(tmp_path / "nowhere" / "t.parquet", 10)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows", 0),
        ("rows", -5),
        ("features", 4),
        ("positive_rate", 0.0),
        ("positive_rate", 1.0),
        ("positive_rate", float("nan")),
        ("missing", -0.1),
        ("missing", 1.0),
        ("random_state", -1),
        ("mislabeled", -0.1),
        ("mislabeled", 1.0),
        ("stream", -1),
        ("row_group_rows", 0),
    ],
)
def test_argument_out_of_range_is_named(tmp_path, name, value):
    arguments = {"rows": 10, name: value}
    with pytest.raises(DataError, match=f"^{name}="):
        make_large(tmp_path / "t.parquet", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_more_wrong_labels_than_there_are_negative_rows_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"^mislabeled=0\.5: there are too few negative rows"):
        make_large(tmp_path / "t.parquet", 10, positive_rate=0.9, mislabeled=0.5)


@pytest.mark.slow
def test_label_can_be_learned_but_not_by_a_few_trees(tmp_path):
    ensemble = pytest.importorskip("sklearn.ensemble", reason="scikit-learn is not installed")
    metrics = pytest.importorskip("sklearn.metrics")
    threadpoolctl = pytest.importorskip("threadpoolctl")  # comes with scikit-learn
    X, y = arrays_of(make_large(tmp_path / "train.parquet", 50_000))
    X_test, y_test = arrays_of(make_large(tmp_path / "test.parquet", 20_000, stream=1))

    def auc(trees: int) -> float:
        model = ensemble.HistGradientBoostingClassifier(
            max_leaf_nodes=4, learning_rate=0.2, max_iter=trees, early_stopping=False
        )
        return metrics.roc_auc_score(y_test, model.fit(X, y).decision_function(X_test))

    # one thread: OpenMP's spin for ever longer where other tests keep the cores busy
    with threadpoolctl.threadpool_limits(1):
        few, many = auc(30), auc(200)
    assert few < 0.9 and many > 0.85 and many - few > 0.02
