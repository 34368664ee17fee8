from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from builders import assert_same_trees, numbered_rows, numbers_of
from constants import set_constants
from helpers import stored_rows
from sparrowboost import DataError, Dataset, ingest, train
from sparrowboost.learner.events import TreeAdded
from sparrowboost.store.dataset import Block
from sparrowboost.store.views import class_factors, folds, split, with_class_weight

N = 3_000


class Pieces:
    """Slices of a data set's rows of each label, however short, as blocks."""

    def __init__(self, base, cuts):
        self._pieces = []
        for label in (0, 1):
            blocks = [base.read_block(i) for i in base.blocks_of(label)]
            whole = Block._make(
                None if parts[0] is None else np.concatenate(parts)
                for parts in zip(*blocks, strict=True)
            )
            ends = [*(cut for cut in cuts if cut < len(whole.label)), len(whole.label)]
            self._pieces += [
                Block._make(None if part is None else part[a:b] for part in whole)
                for a, b in zip([0, *ends[:-1]], ends, strict=True)
            ]
        self.base, self.path, self.binning = base, base.path, base.binning
        self.classes, self.label_name, self.weighted = base.classes, base.label_name, base.weighted
        self.targeted, self.n_bands, self.target_span = False, 2, None
        self.task, self.n_classes, self.offset_name = "classification", 2, None
        self.packing = None
        self._count()

    def _count(self):
        self.block_rows = np.array([len(piece.label) for piece in self._pieces])
        self.block_label = np.array([int(piece.label[0]) for piece in self._pieces])
        self.n_rows = int(self.block_rows.sum())
        self.segment_ends, self.appended = np.array([len(self._pieces)]), ()
        self.n_bytes = self.largest_block = self.n_rows

    def read_block(self, index, *, shuffled=True):
        return self._pieces[index]


def label_of(n):
    return np.arange(n) % 7 == 0


@pytest.fixture(scope="module")
def whole():
    return numbered_rows(N, label_of(N), weight=1 + np.arange(N) % 5)


@pytest.fixture(scope="module")
def dataset(whole):
    return Dataset(Pieces(whole, [1, 2, 3, 300, 1_000, 2_500, 2_501]))


def numbers(view):
    return np.concatenate([numbers_of(block.bins) for block in view.blocks()])


# -- parts of the rows ----------------------------------------------------------------------------


def test_every_row_is_in_one_fold_and_in_the_training_rows_of_all_others(dataset):
    parts = folds(dataset, 4)
    valid = np.concatenate([numbers(part) for _, part in parts])
    assert sorted(valid) == list(range(N))
    for rows, part in parts:
        assert sorted([*numbers(rows), *numbers(part)]) == list(range(N))


def test_views_say_exactly_how_many_rows_and_positives_they_have(dataset):
    views = [*split(dataset, 0.13), *(view for pair in folds(dataset, 7) for view in pair)]
    for view in views:
        labels = np.concatenate([block.label for block in view.blocks()])
        assert len(view) == view.n_rows == len(labels)
        assert view.n_positive == labels.sum() > 0
        assert all(len(block.label) for block in view.blocks()), "a block without rows"
        assert view.block_rows.tolist() == [len(block.label) for block in view.blocks()]
        for rows, label in zip(view.blocks(), view.block_label, strict=True):
            assert (rows.label == label).all()


@given(
    sizes=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=12),
    n_folds=st.integers(2, 6),
    seed=st.integers(0, 2**32),
)
def test_folds_differ_by_one_row_and_one_positive_at_most(sizes, n_folds, seed):
    runs = [(y, n) for pair in sizes for y, n in enumerate(pair) if n]
    data = Dataset(FewRows(runs))
    if min(data.n_positive, data.n_rows - data.n_positive) < n_folds:
        with pytest.raises(DataError, match="too few rows of label"):
            folds(data, n_folds, seed)
        return
    parts = folds(data, n_folds, seed)
    assert np.ptp([part.n_rows for _, part in parts]) <= 1
    assert np.ptp([part.n_positive for _, part in parts]) <= 1
    seen = Counter(b for _, part in parts for block in part.blocks() for b in block.bins[:, 0])
    assert seen == Counter(np.arange(data.n_rows, dtype=np.uint8))


class FewRows(Pieces):
    """Rows whose only bin is their number, in blocks of so many rows of a label."""

    def __init__(self, runs):
        self._pieces = []
        n = 0
        for label, rows in runs:
            bins = np.arange(n, n + rows, dtype=np.uint8)[:, None]
            self._pieces.append(Block(bins, np.full(rows, label, np.uint8), None))
            n += rows
        self.base = self.binning = self.path = self.label_name = None
        self.classes, self.weighted = (0, 1), False
        self.targeted, self.n_bands, self.target_span = False, 2, None
        self.task, self.n_classes, self.offset_name = "classification", 2, None
        self.packing = None
        if runs:
            self._count()
        else:
            self.block_rows = self.block_label = np.zeros(0, np.int64)
            self.segment_ends = np.zeros(1, np.int64)
            self.n_rows = 0


def test_a_split_sets_its_share_of_each_label_aside(dataset):
    for fraction in (0.1, 0.25, 1 / 3, 0.137):
        rows, valid = split(dataset, fraction)
        assert valid.n_positive == round(fraction * dataset.n_positive)
        assert abs(valid.n_rows - fraction * N) <= 1
        assert rows.n_rows + valid.n_rows == N


def test_the_seed_decides_which_rows_are_in_a_part(dataset):
    a, again, b = (set(numbers(split(dataset, 0.2, seed)[1])) for seed in (1, 1, 2))
    assert a == again
    # Of 600 rows each, 120 are in both by chance, with a deviation of about 9.
    assert 80 < len(a & b) < 160


def test_every_row_is_as_likely_to_be_in_a_part(dataset):
    # 200 draws of a fifth: 40 expected, with a deviation of 5.7; 3,000 rows stay within 5 of these.
    hits = np.zeros(N)
    for seed in range(200):
        hits[numbers(split(dataset, 0.2, seed)[1])] += 1
    assert hits.mean() == pytest.approx(40, abs=0.1)
    assert hits.min() > 40 - 29
    assert hits.max() < 40 + 29
    assert hits.std() == pytest.approx((200 * 0.2 * 0.8) ** 0.5, rel=0.1)


def test_rows_keep_their_weights(dataset):
    for block in split(dataset, 0.5)[1].blocks():
        np.testing.assert_array_equal(block.weight, 1 + numbers_of(block.bins) % 5)


def test_views_of_views_are_views(dataset):
    rows, _ = split(dataset, 0.5, 3)
    inner, valid = split(with_class_weight(rows, (1, 2)), 0.5, 4)
    assert inner.n_rows + valid.n_rows == rows.n_rows
    assert set(numbers(inner)) | set(numbers(valid)) == set(numbers(rows))
    again = with_class_weight(inner, (3, 1))
    for block in again.blocks():
        number = numbers_of(block.bins)
        factor = np.where(label_of(N)[number], 2 * 1, 1 * 3)
        np.testing.assert_array_equal(block.weight, factor * (1 + number % 5))
    assert again.weighted
    assert again.n_rows == inner.n_rows
    assert "label weights=" in repr(again)
    assert f"rows={inner.n_rows:,}" in repr(again)


def test_every_view_is_a_data_set(dataset):
    for view in (*split(dataset, 0.5), with_class_weight(dataset, (1, 2))):
        assert isinstance(view, Dataset)
        again = pickle.loads(pickle.dumps(view))
        assert type(again) is Dataset
        assert stored_rows(again) == stored_rows(view)


def test_a_view_holds_the_temporary_store_that_it_reads():
    X = np.arange(100.0)[:, None]
    _, valid = split(ingest(X, label=X[:, 0] > 30, verbose=0), 0.3)
    path = valid.path
    assert valid.read_block(0).bins.shape == (9, 1)
    assert valid.read_block(1).bins.shape == (21, 1)
    with pytest.raises(IndexError):
        valid.read_block(2)
    del valid, _
    assert not path.exists()


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, np.nan, np.inf, "0.1", None, True, 1e-9])
def test_a_share_that_is_none_is_refused(dataset, fraction):
    with pytest.raises(DataError, match="above 0 and below 1"):
        split(dataset, fraction)


@pytest.mark.parametrize("n_folds", [1, 0, -3, 2.5, "5", None, True])
def test_a_number_of_folds_that_is_none_is_refused(dataset, n_folds):
    with pytest.raises(DataError, match="n_folds"):
        folds(dataset, n_folds)


def test_labels_with_too_few_rows_are_told():
    X = np.arange(50.0)[:, None]
    data = ingest(X, label=np.where(X[:, 0] < 3, "yes", "no"), verbose=0)
    for part in (lambda: folds(data, 4), lambda: split(data, 0.1)):
        with pytest.raises(DataError, match="too few rows of label 'yes'"):
            part()


# -- training on views ----------------------------------------------------------------------------


@pytest.mark.parametrize("sample_size", ["auto", 300])
def test_training_on_a_view_is_training_on_its_rows(dataset, sample_size):
    rows, _ = split(dataset, 0.4)
    pieces = Pieces(rows, [])
    pieces._pieces = list(rows.blocks())
    pieces._count()
    copied = Dataset(pieces)
    assert stored_rows(copied) == stored_rows(rows)
    kwargs = {"sample_size": sample_size, "n_estimators": 12, "max_leaves": 4, "theta": 0.9}
    assert_same_trees(train(rows, verbose=0, **kwargs), train(copied, verbose=0, **kwargs))


def test_blocks_of_single_rows_train_as_well():
    data = numbered_rows(400, np.arange(400) % 100 < 15)
    rows, _ = split(Dataset(Pieces(data, range(1, 401))), 0.1)
    events = []
    model = train(rows, sample_size=150, n_estimators=30, theta=0.9, verbose=0,
                  callbacks=[events.append])  # fmt: skip
    assert model.n_trees > 0
    assert events[-1].n_samples > 2


def test_a_weight_for_each_label_is_that_weight_for_each_of_its_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2_000, 3)).round(1)  # few values: bins of many would go by weight
    y = np.where(X[:, 0] + rng.normal(size=2_000) > 1, "yes", "no")
    plain = ingest(X, label=y, verbose=0)
    weighted = ingest(X, label=y, weight=np.where(y == "yes", 3.0, 0.5), verbose=0)
    for sample_size in ("auto", 500):
        kwargs = {"n_estimators": 10, "sample_size": sample_size, "verbose": 0}
        model = train(plain, class_weight={"no": 0.5, "yes": 3}, **kwargs)
        assert_same_trees(model, train(weighted, **kwargs))
    # A label that is not named counts once.
    ones = ingest(X, label=y, weight=np.where(y == "yes", 3.0, 1.0), verbose=0)
    model = train(plain, class_weight={"yes": 3}, n_estimators=5, verbose=0)
    assert_same_trees(model, train(ones, n_estimators=5, verbose=0))


def test_balanced_labels_weigh_the_same(dataset):
    negative, positive = class_factors(dataset, "balanced")
    n_negative = N - dataset.n_positive
    assert negative * n_negative == pytest.approx(positive * dataset.n_positive)
    assert negative * n_negative + positive * dataset.n_positive == pytest.approx(N)
    plain = numbered_rows(500, label_of(500))
    assert train(plain, class_weight="balanced", n_estimators=1, verbose=0).base_score == (
        pytest.approx(0)
    )


@pytest.mark.parametrize(
    ("class_weight", "what"),
    [
        ("even", "give 'balanced'"),
        ([1, 2], "give 'balanced'"),
        ({True: 1, "no": 2}, "no label 'no'"),
        ({True: -1}, "weight of label True is -1"),
        ({True: np.nan}, "weight of label True is nan"),
        ({True: np.inf}, "weight of label True is inf"),
        ({True: 2e12}, r"weight of label True is 2000000000000\.0; .* at most 1e\+12"),
        ({True: 1e-7, False: 1e7}, r"are 10000000\.0 and 1e-07; .* 1e\+12 times the other"),
        ({True: "2"}, "weight of label True is '2'"),
        ({True: 0}, "nothing to tell apart"),
    ],
)
def test_weights_of_labels_that_make_no_sense_are_refused(class_weight, what):
    data = numbered_rows(50, label_of(50))
    with pytest.raises(DataError, match=what):
        train(data, class_weight=class_weight, verbose=0)


@pytest.mark.parametrize("view", [lambda data: data, lambda data: split(data, 0.5)[0]])
def test_weights_of_labels_and_of_rows_together_have_the_bound_of_weights_of_rows(view):
    data = numbered_rows(50, label_of(50), weight=np.full(50, 1e7))
    assert train(data, class_weight={True: 1e5}, n_estimators=1, verbose=0).n_trees == 1
    with pytest.raises(DataError, match=r"a row has weight 1e\+13, with .* at most 1e\+12"):
        train(view(with_class_weight(data, (1, 1e6))), n_estimators=1, verbose=0)


def test_weights_of_labels_as_far_apart_as_they_may_be_train_a_model():
    data = numbered_rows(500, label_of(500))
    for factors in ({True: 1e12}, {True: 1e-12}, {True: 1e6, False: 1e-6}):
        model = train(data, class_weight=factors, n_estimators=3, verbose=0)
        assert np.isfinite(model.base_score)
        assert np.isfinite(model.decision_function(np.zeros((1, 2)))).all()


# -- validation on views, and by weight -----------------------------------------------------------


def scores_of(dataset, **kwargs):
    events = []
    model = train(dataset, callbacks=[events.append], verbose=0, **kwargs)
    return model, [event.scores for event in events if isinstance(event, TreeAdded)]


def make_rows(n=2_000, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    y = X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=n) > 0.5
    return X, y, rng.integers(0, 4, n).astype(np.float64)


def assert_weighted_scores(model, scores, X, y, w):
    p = model.predict_proba(X)[:, 1]
    assert scores["log_loss"] == pytest.approx(log_loss(y, p, sample_weight=w))
    assert scores["auc"] == pytest.approx(roc_auc_score(y, p, sample_weight=w))
    h = model.decision_function(X).astype(float) / 2
    assert scores["exponential_loss"] == pytest.approx(
        np.average(np.exp(np.where(y, -h, h)), weights=w)
    )


def test_a_part_of_the_data_may_be_its_validation_data():
    X = np.column_stack((np.arange(N) % 100, np.arange(N) // 100)).astype(np.float64)
    y = label_of(N)
    rows, valid = split(numbered_rows(N, y), 0.3)
    model, scores = scores_of(rows, valid=valid, n_estimators=6, eval_metric="auc")
    aside = numbers(valid)
    assert_weighted_scores(model, scores[-1], X[aside], y[aside], None)


def test_scores_go_by_the_weights_of_validation_rows():
    X, y, w = make_rows()
    data = ingest(X, label=y, weight=w + 1, verbose=0)
    kwargs = {"n_estimators": 5, "eval_metric": "auc"}
    model, scores = scores_of(data, valid=(X, y, w), **kwargs)
    assert_weighted_scores(model, scores[-1], X, y, w)
    # The data themselves, with the weights that they were trained by.
    model, scores = scores_of(data, valid=data, **kwargs)
    assert_weighted_scores(model, scores[-1], X, y, w + 1)
    _, plain = scores_of(data, valid=(X, y), **kwargs)
    assert plain[-1]["log_loss"] != pytest.approx(scores[-1]["log_loss"], rel=1e-3)


def test_weights_of_labels_are_weights_of_validation_rows_too():
    X, y, w = make_rows()
    data = ingest(X, label=y, verbose=0)
    factor = np.where(y, 4.0, 1.0)
    for valid, weight in (((X, y, w), factor * w), ((X, y), factor), (data, factor)):
        model, scores = scores_of(
            data, valid=valid, class_weight={True: 4}, n_estimators=4, eval_metric="auc"
        )
        assert_weighted_scores(model, scores[-1], X, y, weight)


def test_weights_may_be_a_column_of_the_validation_file(tmp_path):
    import pandas as pd

    X, y, w = make_rows()
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y, w=w)
    frame.to_parquet(tmp_path / "v.parquet")
    data = ingest(frame, label="y", weight="w", verbose=0)
    expected = scores_of(data, valid=data, n_estimators=3)[1][-1]["log_loss"]
    for source in (frame, tmp_path / "v.parquet"):
        scores = scores_of(data, valid=(source, "y", "w"), n_estimators=3)[1]
        assert scores[-1]["log_loss"] == pytest.approx(expected)


def test_only_so_many_rows_of_a_data_set_are_held(dataset, monkeypatch):
    from builders import make_model
    from sparrowboost.learner.validation import Validation, validation_row_bytes

    set_constants(monkeypatch, validation_block_rows=100)
    room = 1_500 * validation_row_bytes(2, "log_loss")
    validation = Validation(dataset, make_model(dataset), "log_loss", room)
    assert 1_498 <= validation.n_rows <= 1_500  # each label's share is rounded down
    assert len(validation._weight) == len(validation._bins) == validation.n_rows


def test_validation_data_with_bins_of_its_own_is_refused():
    X, y, _ = make_rows()
    data = ingest(X, label=y, verbose=0)
    assert scores_of(data, valid=ingest(X, label=y, verbose=0), n_estimators=1)[1]
    for other in (
        ingest(X[:1_000], label=y[:1_000], verbose=0),
        ingest(X, label=np.where(y, "b", "a"), verbose=0),
    ):
        with pytest.raises(DataError, match="ingested separately"):
            train(data, valid=other, verbose=0)


def test_validation_rows_without_weight_are_refused():
    X, y, _ = make_rows(200)
    data = ingest(X, label=y, verbose=0)
    with pytest.raises(DataError, match="weight 0"):
        train(data, valid=(X, y, np.zeros(200)), verbose=0)
    with pytest.raises(DataError, match="only one label"):
        train(data, valid=(X, y, y.astype(float)), eval_metric="auc", verbose=0)
    with pytest.raises(DataError, match="5 parts"):
        train(data, valid=(X, y, None, None, None), verbose=0)


def test_arrays_may_be_validation_data_of_frames_with_categories():
    import pandas as pd

    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=500), "code": rng.integers(0, 4, 500)})
    y = (frame["code"] == 2).to_numpy() ^ (rng.random(500) < 0.1)
    data = ingest(frame, label=y, categorical=["code"], verbose=0)
    a, b = (
        scores_of(data, valid=(rows, y), n_estimators=3)[1][-1]["log_loss"]
        for rows in (frame, frame.to_numpy())
    )
    assert a == b
