"""Export of a model to XGBoost's format, and of data to what that model needs.

XGBoost's margin of two classes is the log odds, 2 H, so probabilities are the same; that of numbers
is H, and each of more than two classes has one. The base score is part of the first tree's values:
XGBoost would store it as a probability, with few digits near 1, or as the exponential of a
logarithm.

Numbers. XGBoost compares float32 values and sends those below a split's condition left. Here values
up to a threshold go left, so the condition is the smallest float32 above the threshold, and every
float32 value goes the same way. For other values, `make_frame` gives the nearest float32 in the
same bin.

Infinities are refused by most of XGBoost; the largest finite number stands for all beyond it.

Categories. XGBoost has codes, and lists those that go right. A code is the category's bin; the last
one is for all that the model does not know. The names of categories are not in the file: XGBoost
3.1 and 3.2 would use them to code a frame's categories, but confuse unknown categories with known
ones, and names that are not ASCII with each other. The features are called "x (code)", so that
XGBoost refuses a frame of categories instead of coding it in its own order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost.model.ensemble import Ensemble
from sparrowboost.model.file import mask_bits, shortest, write_file
from sparrowboost.model.predict import lean_for, read_features
from sparrowboost.model.tree import Tree, constant, goes_left
from sparrowboost.readers.formats import numbers
from sparrowboost.readers.options import ReadOptions
from sparrowboost.runtime.errors import DataError, ModelFileError
from sparrowboost.runtime.remote import output_target
from sparrowboost.runtime.temporary import TemporaryFolder
from sparrowboost.store.binning import (
    BinnedBatch,
    Binning,
    CategoryFeature,
    Feature,
    NumberFeature,
)
from sparrowboost.store.lookup import Bins

SCHEMA = [3, 0, 0]  # the XGBoost version of the format; 2.1 and later read it
NO_PARENT = 2**31 - 1
MIN_COVER = 1e-6  # of a leaf without rows: XGBoost divides by a node's cover

# The objectives of losses of numbers, and what XGBoost calls their options. Only training would
# tell "reg:pseudohubererror" from Huber's loss, which XGBoost has not.
OBJECTIVES = {
    "squared_error": ("reg:squarederror", "reg_loss_param"),
    "own": ("reg:squarederror", "reg_loss_param"),  # predictions are scores
    "absolute_error": ("reg:absoluteerror", ""),
    "huber": ("reg:pseudohubererror", "pseudo_huber_param"),
    "quantile": ("reg:quantileerror", "quantile_loss_param"),
    "poisson": ("count:poisson", "poisson_regression_param"),
    "gamma": ("reg:gamma", "reg_loss_param"),
    "tweedie": ("reg:tweedie", "tweedie_regression_param"),
}
OPTIONS = {
    "delta": "huber_slope",
    "alpha": "quantile_alpha",
    "power": "tweedie_variance_power",
}
DEFAULTS = {"reg_loss_param": {"scale_pos_weight": "1"}}

MAX, INFINITY = np.finfo(np.float32).max, np.float32(np.inf)
Floats = npt.NDArray[np.float32]


def write_xgboost(
    path: str | os.PathLike[str], ensemble: Ensemble, data: Any, read: ReadOptions
) -> None:
    """Write a model file that XGBoost loads; the rows of `data` give the leaves their cover."""
    if output_target(path, read.storage_options).suffix != ".json":
        raise ModelFileError(f"{path}: XGBoost goes by the suffix of a file; end it in .json.")
    binning = ensemble.binning
    trees = ensemble.trees or (constant(0.0),) * ensemble.n_scores
    covers = [np.ones(tree.n_leaves) for tree in trees]
    if data is not None:
        lean = lean_for(ensemble, data)
        covers = _count_rows(lean.binning, lean.trees or trees, data, read)
    # Added in float32 and in the order of the trees, as in prediction.
    values = [tree.value for tree in trees]
    for k, base_score in enumerate(np.atleast_1d(np.asarray(ensemble.base_score, np.float32))):
        values[k] = base_score + values[k]
    factor = 2 if ensemble.regression is None and ensemble.softmax is None else 1  # of H
    splits = Splits(binning)
    try:
        made = [
            _make_tree(t, tree, factor * value, cover, splits)
            for t, (tree, value, cover) in enumerate(zip(trees, values, covers, strict=True))
        ]
    except NotAThresholdError as error:
        raise ModelFileError(f"{path}: {error}") from None
    document = _make_document(made, ensemble)
    # XGBoost does not decode escapes such as \u00e9.
    write_file(path, json.dumps(document, ensure_ascii=False).encode(), read.storage_options)


def _make_document(trees: list[dict[str, Any]], ensemble: Ensemble) -> dict[str, Any]:
    binning, loss = ensemble.binning, ensemble.regression
    n, d, k = len(trees), len(binning.features), ensemble.n_scores
    if ensemble.softmax is not None:
        parameters = {"softmax_multiclass_param": {"num_class": str(k)}}
        objective, margin_0 = {"name": "multi:softprob", **parameters}, "0E0"
    elif loss is None:
        objective, margin_0 = _objective("binary:logistic", "reg_loss_param"), "5E-1"
    else:
        objective = _objective(*OBJECTIVES[loss.name], loss.options)
        margin_0 = "1E0" if loss.log_link else "0E0"
    model = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(n)},
        "iteration_indptr": list(range(0, n + 1, k)),
        "tree_info": [tree % k for tree in range(n)],
        "trees": trees,
    }
    learner = {
        "attributes": {},
        "feature_names": export_names(binning),
        "feature_types": [
            "c" if isinstance(feature, CategoryFeature) else "float" for feature in binning.features
        ],
        "gradient_booster": {"model": model, "name": "gbtree"},
        "learner_model_param": {
            "base_score": margin_0,
            "boost_from_average": "1",
            "num_class": "0" if k == 1 else str(k),
            "num_feature": str(d),
            "num_target": "1",
        },
        "objective": objective,
    }
    return {"learner": learner, "version": SCHEMA}


def _objective(name: str, key: str, options: Mapping[str, float] | None = None) -> dict[str, Any]:
    """An objective as XGBoost writes it; its options are text."""
    made = {OPTIONS[option]: repr(value) for option, value in (options or {}).items()}
    return {"name": name, **({key: made or DEFAULTS.get(key, {})} if key else {})}


def export_names(binning: Binning) -> list[str]:
    """The unique names of the features in XGBoost.

    Examples
    --------
    >>> color = CategoryFeature("color", ("red", "blue"))
    >>> export_names(Binning((NumberFeature("x[0]", "int64", np.array([7])), color)))
    ['x_0_', 'color (code)']
    """
    forbidden = str.maketrans("[]<", "___")  # by XGBoost
    names: dict[str, None] = {}
    for feature in binning.features:
        name = feature.name.translate(forbidden)
        if isinstance(feature, CategoryFeature):
            name += " (code)"
        while name in names:
            name += "_"
        names[name] = None
    return list(names)


# -- trees ---------------------------------------------------------------------------------------


class NotAThresholdError(Exception):
    """A numerical split has more than one threshold; the caller adds the file's name."""


class Split(NamedTuple):
    """A split in XGBoost's form."""

    swapped: bool  # its left child is the right one here
    condition: np.float32  # numbers below it go left
    right: list[int]  # codes that go right; empty for numbers
    missing_left: bool


class Splits:
    """Converts a model's splits to XGBoost's."""

    def __init__(self, binning: Binning) -> None:
        self.features = binning.features
        self._conditions = {
            j: conditions(feature.thresholds)
            for j, feature in enumerate(binning.features)
            if isinstance(feature, NumberFeature)
        }

    def make(self, j: int, mask: npt.NDArray[np.uint64]) -> Split:
        """The split of feature j by the bins of a mask."""
        feature, bits = self.features[j], mask_bits(mask)
        n = feature.n_values
        missing_left = bool(bits >> n & 1)
        values = bits & (1 << n) - 1
        # XGBoost can send all values right, but not left.
        if isinstance(feature, CategoryFeature):
            right = [b for b in range(n) if not values >> b & 1]
            if right:
                return Split(False, np.float32(0), right, missing_left)
            return Split(True, np.float32(0), list(range(n)), not missing_left)
        cut = values.bit_length()  # the number of bins that go left
        if values != (1 << cut) - 1:
            raise NotAThresholdError(
                f"in some tree the bins of {feature.name!r} that go left have gaps; XGBoost has "
                "one threshold per split, so this model cannot be exported."
            )
        if cut == 0:  # no number is below -MAX; tools that read XGBoost's dumps know no infinity
            return Split(False, -MAX, [], missing_left)
        condition = INFINITY if cut == n else self._conditions[j][cut - 1]
        if condition == INFINITY:
            return Split(True, -MAX, [], not missing_left)
        return Split(False, condition, [], missing_left)


def _make_tree(
    number: int, tree: Tree, value: Floats, cover: npt.NDArray[np.float64], splits: Splits
) -> dict[str, Any]:
    """A tree in XGBoost's form.

    Its nodes are numbered level by level, so that siblings are adjacent, on which XGBoost's
    predictor relies. Leaves are nodes whose condition is their value.
    """
    k, n = len(tree.feature), 2 * len(tree.feature) + 1
    left, right, parent = np.full((3, n), -1, np.int32)
    feature, default_left, kind = np.zeros((3, n), np.int32)
    condition = np.zeros(n, np.float32)
    gain, covers = np.zeros((2, n))
    categories: list[list[int]] = []
    parent[0] = NO_PARENT
    ours = [0 if k else ~0]  # split or leaf here, of each node
    for node in range(n):
        own = ours[node]
        if own < 0:
            condition[node], covers[node] = value[~own], cover[~own]
            continue
        feature[node], gain[node] = tree.feature[own], tree.gain[own]
        split = splits.make(int(feature[node]), tree.mask[own])
        condition[node], default_left[node] = split.condition, split.missing_left
        if split.right:
            kind[node] = 1
            categories.append(split.right)
        left[node], right[node] = len(ours), len(ours) + 1
        parent[len(ours) : len(ours) + 2] = node
        children = tree.child[own].tolist()  # right, left
        ours += children if split.swapped else children[::-1]
    for node in range(n - 1, 0, -1):  # children come after their parent
        covers[parent[node]] += covers[node]
    sizes = [len(codes) for codes in categories]
    return {
        "base_weights": shortest(np.where(left < 0, condition, np.float32(0))),
        "categories": [code for codes in categories for code in codes],
        "categories_nodes": np.flatnonzero(kind).tolist(),
        "categories_segments": np.cumsum([0, *sizes])[:-1].tolist(),
        "categories_sizes": sizes,
        "default_left": default_left.tolist(),
        "id": number,
        "left_children": left.tolist(),
        "loss_changes": shortest(gain.astype(np.float32)),
        "parents": parent.tolist(),
        "right_children": right.tolist(),
        "split_conditions": shortest(condition),
        "split_indices": feature.tolist(),
        "split_type": kind.tolist(),
        "sum_hessian": shortest(covers.astype(np.float32)),
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(len(splits.features)),
            "num_nodes": str(n),
            "size_leaf_vector": "1",
        },
    }


def conditions(thresholds: npt.NDArray[Any]) -> Floats:
    """(k,) the smallest float32 above each threshold, with a finite float32 below it.

    For huge thresholds it is the largest finite float32; for infinity, infinity.

    Examples
    --------
    >>> conditions(np.array([1, 2**24 + 1])).tolist()
    [1.0000001192092896, 16777218.0]
    """
    with np.errstate(over="ignore"):
        near = thresholds.astype(np.float32)
        # Python compares integers and floats exactly, whatever their size.
        above = [a > b for a, b in zip(near.tolist(), thresholds.tolist(), strict=True)]
        smallest = np.where(above, near, np.nextafter(near, INFINITY))
    smallest = np.clip(smallest, np.nextafter(-MAX, np.float32(0)), MAX)
    return np.where(thresholds == np.inf, INFINITY, smallest)


def _count_rows(
    binning: Binning, trees: Sequence[Tree], data: Any, read: ReadOptions
) -> list[npt.NDArray[np.float64]]:
    """How many rows of `data` reach each leaf of each tree."""
    counts = [np.zeros(tree.n_leaves) for tree in trees]
    with TemporaryFolder("predict", needed=False) as scratch:
        for block in read_features(binning, data, scratch, read):
            bins = block.bins(binning)
            for tree, count in zip(trees, counts, strict=True):
                _count_leaves(tree, bins, count)
    return [np.maximum(count, MIN_COVER) for count in counts]


def _count_leaves(tree: Tree, bins: Bins, count: npt.NDArray[np.float64]) -> None:
    to_left = goes_left(tree.mask)
    rows = {0 if len(tree.feature) else ~0: np.arange(len(bins))}
    for k, children in enumerate(tree.child.tolist()):
        here = rows.pop(k)
        left = to_left[k, bins[here, tree.feature[k]]]
        rows[children[0]], rows[children[1]] = here[~left], here[left]
    for leaf, here in rows.items():
        count[~leaf] += len(here)


# -- data ----------------------------------------------------------------------------------------


def make_frame(binning: Binning, data: Any, read: ReadOptions) -> Any:
    """Data as a frame of float32 columns for XGBoost."""
    try:
        import pandas as pd
    except ImportError:
        raise DataError("xgboost_frame needs pandas; pip install pandas.") from None
    parts = []
    with TemporaryFolder("predict", needed=False) as scratch:
        for block in read_features(binning, data, scratch, read, by_column=True):
            bins = block.bins(binning, order="F")
            assert isinstance(block.batch, pa.RecordBatch | BinnedBatch)
            part = np.empty(bins.shape, np.float32)
            for j, feature in enumerate(binning.features):
                if isinstance(feature, NumberFeature) and j >= len(binning.columns):
                    part[:, j] = _statistic(feature, bins[:, j])
                else:
                    part[:, j] = _column(feature, block.batch.column(feature.name), bins[:, j])
            parts.append(part)
    shape = 0, len(binning.features)
    return pd.DataFrame(
        np.concatenate(parts) if parts else np.empty(shape, np.float32),
        columns=export_names(binning),
    )


def _statistic(feature: NumberFeature, bins: Bins) -> Floats:
    """A number in each bin: of what a statistic is, only the bin is known."""
    cuts = conditions(feature.thresholds)
    low = np.concatenate(([cuts[0] if len(cuts) else 0], cuts, [np.nan])).astype(np.float32)
    low[0] = np.nextafter(low[0], -INFINITY)
    return low[bins]


def _column(feature: Feature, array: pa.Array, bins: Bins) -> Floats:
    if isinstance(feature, CategoryFeature) or feature.blank:
        column = bins.astype(np.float32)
    else:
        cuts = conditions(feature.thresholds)
        # The smallest and the largest float32 of each bin; the missing bin is overwritten below.
        low = np.concatenate(([-MAX], cuts, [-MAX])).astype(np.float32)
        high = np.concatenate((np.nextafter(cuts, -MAX), [MAX, MAX])).astype(np.float32)
        values, _ = numbers(feature.name, array)
        with np.errstate(over="ignore"):
            column = np.clip(values.astype(np.float32), low[bins], high[bins])
    column[bins == feature.n_values] = np.nan
    return column
