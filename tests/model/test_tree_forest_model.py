from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import naive_bins
from naive import add_trees, find_leaf, in_mask, make_mask, random_tree
from sparrowboost import DataError
from sparrowboost.kernels.scores import apply_trees
from sparrowboost.model.forest import Forest
from sparrowboost.model.model import Model
from sparrowboost.model.predict import BLOCK_ROWS
from sparrowboost.model.tree import TreeBuilder
from sparrowboost.store.binning import Binning, CategoryFeature, NumberFeature

seeds = st.integers(0, 10**6)


# -- trees -------------------------------------------------------------------------------------


@given(seeds, st.integers(1, 12))
def test_a_tree_sends_rows_where_its_splits_did_while_it_grew(seed, max_leaves):
    rng = np.random.default_rng(seed)
    bins = rng.integers(0, 256, (40, 3)).astype(np.uint8)
    builder, leaf_of = TreeBuilder(max_leaves), np.zeros(40, int)
    for k in range(max_leaves - 1):
        leaf, feature = int(rng.integers(k + 1)), int(rng.integers(3))
        mask = rng.integers(0, 2**64, 4, np.uint64)
        assert builder.split(leaf, feature, mask, 0.5 * k) == k + 1  # each takes the next number
        for i in np.flatnonzero(leaf_of == leaf):
            if not in_mask(mask, int(bins[i, feature])):
                leaf_of[i] = k + 1
        assert builder.split_leaf[k] == leaf
    value = rng.normal(size=max_leaves).astype(np.float32)
    tree = builder.finish(value)
    assert tree.n_leaves == max_leaves == len(tree.feature) + 1
    assert [find_leaf(tree, row) for row in bins] == leaf_of.tolist()
    assert tree.gain.tolist() == [0.5 * k for k in range(max_leaves - 1)]
    np.testing.assert_array_equal(tree.value, value)
    # Every leaf and every node but the root is the child of one node that comes before it.
    children = sorted(tree.child.ravel().tolist())
    expected = [~leaf for leaf in range(max_leaves)] + list(range(1, max_leaves - 1))
    assert children == (sorted(expected) if max_leaves > 1 else [])
    assert all(c < 0 or c > k for k, pair in enumerate(tree.child.tolist()) for c in pair)


def test_a_finished_tree_stays_as_it_is_while_its_builder_goes_on():
    builder = TreeBuilder(4)
    builder.split(0, 2, make_mask([1]), 3.0)
    tree = builder.finish(np.zeros(2, np.float32))
    builder.split(0, 1, make_mask([2]), 2.0)
    assert tree.n_leaves == 2
    assert tree.child.tolist() == [[~1, ~0]]
    assert tree.feature.tolist() == [2]


def test_a_tree_of_fewer_leaves_than_it_might_have_has_no_more_nodes():
    builder = TreeBuilder(31)
    builder.split(0, 0, make_mask([0]), 1.0)
    builder.split(1, 0, make_mask([1]), 1.0)
    tree = builder.finish(np.zeros(3, np.float32))
    parts = tree.feature, tree.mask, tree.child, tree.gain
    assert [part.shape for part in parts] == [(2,), (2, 4), (2, 2), (2,)]


def naive_depth(tree, node=0):
    if len(tree.feature) == 0 or node < 0:
        return 0
    return 1 + max(naive_depth(tree, int(child)) for child in tree.child[node])


@given(seeds, st.integers(1, 40))
def test_the_depth_is_that_of_the_longest_path(seed, n_leaves):
    tree = random_tree(np.random.default_rng(seed), 3, n_leaves)
    assert tree.depth() == naive_depth(tree)


def test_depths_of_one_leaf_a_chain_and_a_full_tree():
    assert TreeBuilder(1).finish(np.zeros(1, np.float32)).depth() == 0
    for leaf_of, depth in ((lambda k: k, 15), (lambda k: 0, 15), (lambda k: k // 2, None)):
        builder = TreeBuilder(16)
        for k in range(15):
            builder.split(leaf_of(k), 0, make_mask([0]), 1.0)
        tree = builder.finish(np.zeros(16, np.float32))
        assert tree.depth() == (naive_depth(tree) if depth is None else depth)
    builder = TreeBuilder(8)
    for leaf in (0, 0, 1, 0, 1, 2, 3):  # level after level
        builder.split(leaf, 0, make_mask([0]), 1.0)
    assert builder.finish(np.zeros(8, np.float32)).depth() == 3


# -- forests -----------------------------------------------------------------------------------


def scores(arrays, n_trees, bins):
    score = np.zeros(len(bins), np.float32)
    apply_trees(bins, *arrays, 0, n_trees, score)
    return score


def test_a_forest_grows_without_changing_the_trees_that_it_has():
    rng = np.random.default_rng(0)
    bins = rng.integers(0, 256, (50, 3)).astype(np.uint8)
    # Of up to 40 leaves: more nodes than there is room for at first, several times over.
    trees = [random_tree(rng, 3, int(n)) for n in rng.integers(1, 41, 70)]
    forest, held = Forest(), []
    for k, tree in enumerate(trees):
        held.append((k, forest.arrays))
        forest.add(tree)
        assert forest.n_trees == k + 1
    assert len({len(arrays[0]) for _, arrays in held}) > 3
    expected = add_trees(trees, bins, np.zeros(50, np.float32))
    assert scores(forest.arrays, 70, bins).tobytes() == expected.tobytes()
    assert scores(Forest(trees).arrays, 70, bins).tobytes() == expected.tobytes()
    # Who read the arrays when there were k trees may go on with those.
    for k, arrays in held:
        expected = add_trees(trees[:k], bins, np.zeros(50, np.float32))
        assert scores(arrays, k, bins).tobytes() == expected.tobytes()
        assert scores(forest.arrays, k, bins).tobytes() == expected.tobytes()


def test_a_leaf_of_a_forest_sends_every_row_to_itself():
    rng = np.random.default_rng(1)
    trees = [random_tree(rng, 3, n) for n in (5, 1, 30, 40, 2)]
    nodes, value, root, depth, _ = Forest(trees).arrays
    first = 0
    for t, tree in enumerate(trees):
        assert root[t] == first and depth[t] == tree.depth()
        leaves = first + len(tree.feature)
        for leaf in range(tree.n_leaves):
            node = int(nodes[leaves + leaf, 4])
            assert (node & 0xFFFFFFFF, node >> 32) == (leaves + leaf, leaves + leaf)
        assert sorted(value[leaves : leaves + tree.n_leaves]) == sorted(tree.value)
        first = leaves + tree.n_leaves


# -- models ------------------------------------------------------------------------------------

NUMBERS = Binning(
    tuple(
        NumberFeature(name, "float64", np.sort(np.random.default_rng(j).normal(size=20 + 40 * j)))
        for j, name in enumerate(["a", "b", "c", "d"])
    )
)
MIXED = Binning(
    (
        NumberFeature("x", "float64", np.linspace(-2, 2, 100)),
        NumberFeature("count", "int64", np.arange(0, 400, 7)),
        CategoryFeature("color", ("red", "green", "blue", "pink")),
        CategoryFeature("code", ("3", "1", "2")),
    )
)


def make_model(binning, n_trees=12, seed=0, base_score=-0.25):
    rng = np.random.default_rng(seed)
    model = Model(binning, (0, 1), "logistic", base_score)
    for _ in range(n_trees):
        model = model.with_tree(random_tree(rng, len(binning.features), int(rng.integers(1, 9))))
    return model


def numbers_frame(n=300, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n, 4))
    values[rng.random((n, 4)) < 0.1] = np.nan
    return pd.DataFrame(values, columns=["a", "b", "c", "d"])


def mixed_table(n=300, seed=0):
    """Missing values and categories that the model does not know, in every column that can."""
    rng = np.random.default_rng(seed)

    def some():
        return rng.random(n) < 0.1

    return pa.table(
        {
            "x": pa.array(rng.normal(size=n), mask=some()),
            "count": pa.array(rng.integers(-5, 410, n), mask=some()),
            "color": pa.array(
                rng.choice(["red", "green", "blue", "pink", "mauve"], n).tolist(), mask=some()
            ),
            "code": pa.array(rng.integers(0, 5, n), mask=some()),
        }
    )


def naive_scores(model, table):
    """Each value binned, and each tree walked, one by one; the log odds are twice H."""
    columns = [naive_bins(f, table[f.name].to_pylist()) for f in model.binning.features]
    bins = np.array(columns, np.uint8).T
    return 2 * add_trees(model.trees, bins, np.full(len(bins), model.base_score, np.float32))


def same_bits(a, b):
    assert a.dtype == b.dtype and a.tobytes() == b.tobytes()


def test_scores_are_the_same_to_the_bit_from_every_kind_of_source(tmp_path):
    model, frame = make_model(NUMBERS), numbers_frame()
    table = pa.table({c: pa.array(frame[c], from_pandas=True) for c in frame})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=70)
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_csv(tmp_path / "t.csv.gz", index=False)
    expected = naive_scores(model, table)
    for data in (
        frame, frame.to_numpy(), np.asfortranarray(frame.to_numpy()), table, pl.from_arrow(table),
        table.to_batches()[0], tmp_path / "t.parquet", str(tmp_path / "t.parquet"),
        tmp_path / "t.csv", tmp_path / "t.csv.gz", frame.to_records(index=False),
    ):  # fmt: skip
        same_bits(model.decision_function(data), expected)
        same_bits(np.concatenate(list(model.iter_scores(data))), expected)
    both = [tmp_path / "t.parquet", tmp_path / "t.csv"]
    same_bits(model.decision_function(both), np.concatenate([expected, expected]))


def test_categories_integers_and_missing_values_score_the_same_from_every_source(tmp_path):
    model, table = make_model(MIXED, 30), mixed_table()
    pq.write_table(table, tmp_path / "t.parquet")
    frame = table.to_pandas()  # missing whole numbers make a column of floats
    nullable = frame.astype({"count": "Int64", "code": "Int64"})
    nullable.to_csv(tmp_path / "t.csv", index=False)
    coded = table.set_column(2, "color", table["color"].dictionary_encode())
    expected = naive_scores(model, table)
    for data in (
        table, coded, nullable, frame.astype({"color": "category", "code": "Int64"}),
        pl.from_arrow(table), tmp_path / "t.parquet", tmp_path / "t.csv",
    ):  # fmt: skip
        same_bits(model.decision_function(data), expected)


def test_integers_turned_into_floats_by_missing_values_are_the_same_categories(tmp_path):
    model, table = make_model(MIXED, 30), mixed_table()
    frame = table.to_pandas()
    assert frame["code"].dtype == np.float64
    frame.to_csv(tmp_path / "t.csv", index=False)
    expected = naive_scores(model, table)
    same_bits(model.decision_function(frame), expected)
    same_bits(model.decision_function(tmp_path / "t.csv"), expected)


def test_a_category_never_seen_in_training_scores_as_all_others_that_are_rare():
    model = make_model(MIXED, 30)
    other = 4  # after the four that are known
    for word in ("mauve", "", "RED", "redd"):
        row = pa.table({"x": [0.5], "count": [7], "color": [word], "code": ["1"]})
        bins = np.array([[naive_bins(f, row[f.name].to_pylist())[0] for f in MIXED.features]])
        assert bins[0, 2] == other
        expected = 2 * add_trees(model.trees, bins, np.full(1, model.base_score, np.float32))
        same_bits(model.decision_function(row), expected)


@pytest.mark.parametrize("left", [True, False])
def test_missing_values_go_the_way_of_their_own_bin(left):
    for j, feature in enumerate(MIXED.features):
        builder = TreeBuilder(2)
        missing = feature.n_values
        mask = make_mask([missing] if left else set(range(256)) - {missing})
        builder.split(0, j, mask, 1.0)
        model = Model(MIXED, (0, 1), "logistic", 0.0)
        model = model.with_tree(builder.finish(np.array([1, 2], np.float32)))
        table = mixed_table()
        is_missing = table[feature.name].is_null().to_numpy()
        assert is_missing.any() and not is_missing.all()
        expected = np.where(is_missing == left, 1, 2)
        np.testing.assert_array_equal(model.decision_function(table), 2 * expected)


def test_a_column_that_is_all_missing_and_infinite_values_are_read():
    model = make_model(MIXED, 30)
    table = pa.table(
        {
            "x": [np.inf, -np.inf, np.nan],
            "count": pa.nulls(3),
            "color": pa.nulls(3),
            "code": pa.nulls(3, pa.int64()),
        }
    )
    same_bits(model.decision_function(table), naive_scores(model, table))


def test_columns_are_found_by_name_in_any_order_among_others():
    model, frame = make_model(NUMBERS), numbers_frame()
    expected = model.decision_function(frame)
    other = frame[["c", "a", "d", "b"]].assign(y="yes", e=1.0)
    same_bits(model.decision_function(other), expected)
    same_bits(model.decision_function(pa.Table.from_pandas(other)), expected)


def test_a_missing_column_is_named(tmp_path):
    model, frame = make_model(NUMBERS), numbers_frame()
    with pytest.raises(DataError, match=r"lacks column 'b', which the model was trained on"):
        model.decision_function(frame.drop(columns="b"))
    with pytest.raises(DataError, match=r"lacks column 'b' and 2 more"):
        model.predict_proba(frame[["a"]])
    frame[["a", "b", "d"]].to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=r"t\.csv: lacks column 'c'"):
        next(model.iter_scores(tmp_path / "t.csv"))
    # A frame has names: none is taken for another because the number of columns fits.
    with pytest.raises(DataError, match="lacks column 'a'"):
        model.decision_function(frame.rename(columns={"a": "A"}))


def test_numbers_are_not_taken_for_times_nor_times_for_numbers(tmp_path):
    times = NumberFeature("x", "time", np.array([10**15]))
    numbers = NumberFeature("x", "int64", np.array([10**15]))
    days = pa.table({"x": pa.array([0, 20_000], pa.date32())})
    pq.write_table(days, tmp_path / "days.parquet")
    (tmp_path / "numbers.csv").write_text("x\n20200101\n20240101\n")
    nothing = pa.table({"x": pa.nulls(2)})
    for feature, right, wrong, what in (
        (times, "days.parquet", "numbers.csv", "has numbers where the model was trained on times"),
        (numbers, "numbers.csv", "days.parquet", "has times where the model was trained on numb"),
    ):
        model = Model(Binning((feature,)), (0, 1), "logistic", 0.0)
        for rows in (tmp_path / right, nothing):
            assert len(model.decision_function(rows)) == 2
        with pytest.raises(DataError, match=f"column 'x' {what}"):
            model.decision_function(tmp_path / wrong)


def test_the_columns_of_an_array_are_taken_by_position_if_their_number_fits():
    model, frame = make_model(NUMBERS), numbers_frame()
    array = frame.to_numpy()
    same_bits(model.decision_function(array), model.decision_function(frame))
    for wrong in (array[:, :3], np.c_[array, array]):
        with pytest.raises(DataError, match="lacks column 'a' and 3 more"):
            model.decision_function(wrong)


def test_records_have_names_and_are_not_taken_by_position():
    model, frame = make_model(NUMBERS), numbers_frame()
    records = frame.rename(columns={"a": "A"}).to_records(index=False).view(np.ndarray)
    with pytest.raises(DataError, match="lacks column 'a'"):
        model.decision_function(records)


def test_a_model_that_learned_from_an_array_knows_its_columns_by_their_numbers():
    binning = Binning(
        tuple(NumberFeature(f"f{j}", f.kind, f.thresholds) for j, f in enumerate(NUMBERS.features))
    )
    array = numbers_frame().to_numpy()
    same_bits(
        make_model(binning).decision_function(array), make_model(NUMBERS).decision_function(array)
    )


def test_scores_come_block_by_block_in_the_order_of_the_rows_for_any_number_of_threads():
    model, frame = make_model(NUMBERS, 3), numbers_frame(2 * BLOCK_ROWS + 5)
    parts = list(model.iter_scores(frame, n_jobs=1))
    assert [len(part) for part in parts] == [BLOCK_ROWS, BLOCK_ROWS, 5]
    whole = np.concatenate(parts)
    same_bits(model.decision_function(frame, n_jobs=1), whole)
    same_bits(model.decision_function(frame, n_jobs=3), whole)
    some = slice(BLOCK_ROWS - 3, BLOCK_ROWS + 3)
    same_bits(model.decision_function(frame[some]), whole[some])


def test_closing_the_scores_leaves_nothing_running():
    model, frame = make_model(NUMBERS, 2), numbers_frame(4 * BLOCK_ROWS)
    scores = model.iter_scores(frame, n_jobs=2)
    assert len(next(scores)) == BLOCK_ROWS
    scores.close()
    assert list(scores) == []


def test_no_rows_have_no_scores():
    model = make_model(NUMBERS)
    for data in (numbers_frame(0), np.empty((0, 4))):
        assert model.decision_function(data).shape == (0,)
        assert model.decision_function(data).dtype == np.float32
        assert model.predict_proba(data).shape == (0, 2)


def test_a_model_without_trees_gives_every_row_twice_the_base_score():
    model = Model(NUMBERS, ("no", "yes"), "logistic", 0.5)
    assert model.decision_function(numbers_frame(3)).tolist() == [1.0] * 3
    assert model.n_trees == 0
    assert model.feature_names == ["a", "b", "c", "d"]


def test_probabilities_are_those_of_the_scores_and_add_up_to_one():
    model, frame = make_model(NUMBERS), numbers_frame()
    proba = model.predict_proba(frame)
    score = model.decision_function(frame).astype(np.float64)
    assert proba.shape == (300, 2) and proba.dtype == np.float64
    np.testing.assert_allclose(proba[:, 1], 1 / (1 + np.exp(-score)), rtol=1e-12)
    np.testing.assert_allclose(proba.sum(1), 1, rtol=1e-15)
    same_bits(model.predict_proba(frame, n_trees=3), model.first(3).predict_proba(frame))


@pytest.mark.parametrize(
    ("score", "positive"), [(-1e30, 0.0), (-400.0, 0.0), (0.0, 0.5), (400.0, 1.0), (1e30, 1.0)]
)
def test_no_score_is_too_large_for_a_probability(score, positive):
    proba = Model(NUMBERS, (0, 1), "logistic", score).predict_proba(numbers_frame(2))
    np.testing.assert_allclose(proba, [[1 - positive, positive]] * 2, atol=1e-300)


def test_models_that_branch_from_one_are_independent():
    rng = np.random.default_rng(5)
    frame = numbers_frame(60)
    bins = np.empty((60, 4), np.uint8)
    NUMBERS.apply(pa.RecordBatch.from_pandas(frame), bins)

    def check(model, trees):
        assert model.trees == tuple(trees) and model.n_trees == len(trees)
        expected = 2 * add_trees(trees, bins, np.full(60, -0.25, np.float32))
        same_bits(model.decision_function(frame), expected)

    t = [random_tree(rng, 4, int(n)) for n in rng.integers(1, 20, 12)]
    root = make_model(NUMBERS, 0)
    stem = root.with_tree(t[0]).with_tree(t[1])
    left, right = stem.with_tree(t[2]), stem.with_tree(t[3])
    again = stem.with_tree(t[4])
    far_left = left.with_tree(t[5]).with_tree(t[6])
    far_right = right.with_tree(t[7])
    for _ in range(2):  # again after the others were used
        check(root, [])
        check(stem, t[:2])
        check(left, t[:3])
        check(right, [*t[:2], t[3]])
        check(again, [*t[:2], t[4]])
        check(far_left, [*t[:3], t[5], t[6]])
        check(far_right, [*t[:2], t[3], t[7]])
        check(root.with_tree(t[8]), [t[8]])


def test_a_model_that_grows_on_shares_its_forest():
    model = make_model(NUMBERS, 5)
    more = model.with_tree(model.trees[0])
    assert more.forest is model.forest
    other = model.with_tree(model.trees[1])
    assert other.forest is not model.forest


def test_the_first_trees_are_a_model_of_their_own():
    model, frame = make_model(NUMBERS, 12), numbers_frame()
    whole = model.decision_function(frame)
    for n in range(13):
        first = model.first(n)
        assert first.trees == model.trees[:n]
        same_bits(first.decision_function(frame), model.decision_function(frame, n_trees=n))
        table = pa.Table.from_pandas(frame)
        same_bits(first.decision_function(frame), naive_scores(first, table))
    same_bits(model.first(12).decision_function(frame), whole)
    for wrong in (-1, 13):
        with pytest.raises(DataError, match="the model has 12 trees"):
            model.decision_function(frame, n_trees=wrong)
        with pytest.raises(DataError, match="the model has 12 trees"):
            model.first(wrong)


def test_the_first_trees_of_a_model_may_grow_another_way():
    model, frame = make_model(NUMBERS, 12), numbers_frame()
    whole = model.decision_function(frame)
    tree = random_tree(np.random.default_rng(9), 4, 6)
    other = model.first(4).with_tree(tree)
    assert other.trees == (*model.trees[:4], tree)
    same_bits(other.decision_function(frame), naive_scores(other, pa.Table.from_pandas(frame)))
    same_bits(model.decision_function(frame), whole)
    # All of its trees, and still it is the model that others grow from.
    more = model.first(12).with_tree(tree)
    same_bits(model.decision_function(frame), whole)
    same_bits(more.decision_function(frame), naive_scores(more, pa.Table.from_pandas(frame)))


def test_the_repr_of_a_model():
    model = Model(NUMBERS, (0, 1), "logistic", 0.0)
    assert repr(model) == "Model(0 trees of up to 1 leaves, 4 features, loss='logistic')"
    for n in (3, 7, 2):
        model = model.with_tree(random_tree(np.random.default_rng(0), 4, n))
    assert repr(model) == "Model(3 trees of up to 7 leaves, 4 features, loss='logistic')"
