"""What the tests of training share: hand-made slots, samples, trees and data sets."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from constants import set_constants
from sparrowboost import History, Model, ingest, train
from sparrowboost.learner.events import Event
from sparrowboost.learner.evidence import Slots
from sparrowboost.learner.scanner import Scanner
from sparrowboost.model.losses import base_score, get_loss
from sparrowboost.model.tree import MASK_WORDS, Tree, TreeBuilder
from sparrowboost.sampling.sample import Sample


def make_slots(n_bins, category=()) -> Slots:
    """Slots of features with so many bins each, the one for missing values included."""
    n_bins = np.asarray(n_bins, np.int64)
    offset = np.concatenate(([0], np.cumsum(n_bins)[:-1])).astype(np.uint64)
    kind = np.zeros(len(n_bins), np.uint8)
    kind[list(category)] = 1
    return Slots(offset, n_bins, kind)


def make_sample(bins, label, u=None, score=0.0, loss="logistic", whole=False) -> Sample:
    n = len(label)
    u = np.ones(n, np.float32) if u is None else np.asarray(u, np.float32)
    return Sample(
        np.ascontiguousarray(bins, np.uint8),
        np.asarray(label).astype(np.uint8),
        u,
        np.array(np.broadcast_to(np.float32(score), n)),
        0,
        get_loss(loss),
        whole=whole,
        copies=np.ones(n, np.float32),
    )


@contextmanager
def many_blocks_and_chunks(block_bytes=8_000, chunk_rows=200) -> Iterator[None]:
    """Let a small table have as many blocks and chunks as one of some million rows."""
    with pytest.MonkeyPatch.context() as patch:
        set_constants(patch, bucket_bytes=block_bytes, min_segment_bytes=10, chunk_rows=chunk_rows)
        yield


def forbid_endless_scans(monkeypatch, most=2_000) -> None:
    """Turn a grower that never gives up into a failure: a tree restarts its scan a few times."""
    restart, start = Scanner.restart, Scanner.start
    count = [0]

    def counted_start(self, *args):
        count[0] = 0
        return start(self, *args)

    def counted_restart(self):
        count[0] += 1
        assert count[0] <= most, "the grower scans the same sample for ever"
        restart(self)

    monkeypatch.setattr(Scanner, "start", counted_start)
    monkeypatch.setattr(Scanner, "restart", counted_restart)


def mask_of(bins):
    """The mask that sends these bins left."""
    mask = np.zeros(MASK_WORDS, np.uint64)
    for b in bins:
        mask[b >> 6] |= np.uint64(1) << np.uint64(b & 63)
    return mask


def bins_of(mask) -> set[int]:
    return {b for b in range(256) if int(mask[b >> 6]) >> (b & 63) & 1}


def make_stump(feature, left_bins, left, right):
    builder = TreeBuilder(2)
    builder.split(0, feature, mask_of(left_bins), 1.0)
    return builder.finish(np.array([left, right], np.float32))


# Features and cuts of stumps for `numbered_rows` of this width.
WIDTH = 250
STUMP_CUTS = ((0, 80), (1, 60), (0, 140), (1, 20), (0, 220))


def make_stumps(values) -> list[Tree]:
    """Five stumps with these values, left and right, which pull the weights of rows apart."""
    return [
        make_stump(feature, range(cut), *leaves)
        for (feature, cut), leaves in zip(STUMP_CUTS, values, strict=True)
    ]


def clean(tree, features):
    """The tree without the bits of bins that its features do not have."""
    masks = [mask_of(range(features[j].n_values + 1)) for j in tree.feature]
    mask = tree.mask & np.array(masks, np.uint64).reshape(-1, 4)
    return Tree(tree.feature, mask, tree.child, tree.value, tree.gain)


def make_model(dataset, loss="logistic") -> Model:
    """A model without trees, with the base score of rows that all count 1."""
    base = base_score(dataset.n_rows - dataset.n_positive, dataset.n_positive)
    return Model(dataset.binning, dataset.classes, loss, base, label_name=dataset.label_name)


def make_number_model(binning, loss, label_name="y") -> Model:
    """A model of numbers: five stumps of different values, up and down."""
    model = Model(binning, (), loss.name, 0.5, (), label_name, loss.options)
    for k, feature in enumerate((binning.features * 5)[:5]):
        cut = range(1 + 3 * k % feature.n_values)
        model = model.with_tree(make_stump(k % len(binning.features), cut, 0.1 * k, -0.07 * k))
    return model


def numbered_rows(n, label, weight=None, width=100):
    """A data set of n rows whose two features tell a row's number: low + width * high."""
    number = np.arange(n)
    X = np.column_stack((number % width, number // width)).astype(np.float64)
    return ingest(X, label=label, weight=weight, verbose=0, n_jobs=1)


def numbers_of(bins, width=100):
    """The numbers of such rows: whole numbers that are few have a bin each, in their order."""
    return bins[:, 0].astype(np.int64) + width * bins[:, 1].astype(np.int64)


def made_rows(n=20_000, seed=0):
    """Rows of four numbers, and noisy labels that depend on three of them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    return X, X[:, 0] + X[:, 1] * (X[:, 2] > 0) - 1 + rng.normal(size=n) > 0


# Options of `train` under which `made_rows` are drawn from several times.
DRAWN = {
    "sample_size": 3_000, "theta": 0.9, "n_estimators": 25, "max_leaves": 6, "learning_rate": 0.3,
}  # fmt: skip


def listen(dataset, *, callbacks=(), **kwargs) -> tuple[Model, list[Event]]:
    """Train; the model and the events."""
    events: list[Event] = []
    return train(dataset, callbacks=[*callbacks, events.append], verbose=0, **kwargs), events


def recorded(dataset, **kwargs) -> tuple[History, list[Event]]:
    """Train; the history and the events."""
    history = History()
    callbacks = [history, *kwargs.pop("callbacks", ())]
    return history, listen(dataset, callbacks=callbacks, **kwargs)[1]


def assert_same_trees(a, b) -> None:
    """The same model, bit by bit."""
    assert a.base_score == b.base_score
    assert a.n_trees == b.n_trees
    for one, other in zip(a.trees, b.trees, strict=True):
        for name in ("feature", "mask", "child", "value", "gain"):
            x, y = getattr(one, name), getattr(other, name)
            assert x.dtype == y.dtype
            assert x.tobytes() == y.tobytes(), name


def large_pages(path, rows=1_500_000, columns=12):
    """Columns of one row group and one page, which Arrow unpacks as a whole: 6 MB each."""
    rng = np.random.default_rng(0)
    table = {f"x{j}": rng.random(rows, np.float32) for j in range(columns)}
    table["y"] = (table["x0"] > 0.5).astype(np.int8)
    known = inspect.signature(pq.write_table).parameters  # older versions lack one
    rest = {"max_rows_per_page": rows} if "max_rows_per_page" in known else {}
    pq.write_table(
        pa.table(table), path, row_group_size=rows, data_page_size=10**9, use_dictionary=False,
        **rest,
    )  # fmt: skip
    return path
