"""What the document in a model file may say: all of it is checked here, and what passes is a model.

`modelfile.py` draws the document. Numbers are what their type can hold and finite, names and
categories are told apart, and a tree's splits lead to each split and each leaf once. A split comes
after the one that leads to it, so that no way goes round in circles.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np

from sparrowboost import __version__
from sparrowboost.model.ensemble import Ensemble
from sparrowboost.model.losses import LOSSES
from sparrowboost.model.tree import MASK_WORDS, Tree
from sparrowboost.readers.formats import Kind
from sparrowboost.store.binning import (
    DTYPES,
    MAX_BINS,
    MAX_CATEGORIES,
    Binning,
    CategoryFeature,
    Feature,
    NumberFeature,
)

FORMAT = "sparrow-model"
VERSION = 1
KEYS = (
    "format", "version", "sparrowboost", "loss", "base_score", "label", "classes", "features",
    "trees",
)  # fmt: skip
TREE_KEYS = ("feature", "goes_left", "left", "right", "value", "gain")

MAX_SCORE = float(np.finfo(np.float32).max) / 2  # twice a score is what others call the margin
INFINITIES = {"inf": math.inf, "-inf": -math.inf}  # for which JSON has no word
RUN = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?")


class DocumentError(Exception):
    """What is wrong with a document, and what to do; the file's name is for others to say."""

    def __init__(self, what: str, to_do: str = "the file is damaged, save the model again") -> None:
        super().__init__(f"{what}; {to_do}")
        self.what = what


def check_document(document: Any) -> Ensemble:
    """The model that a parsed file describes; a DocumentError says what of it is not one."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DocumentError("not a model of Sparrow", "give a file that save_model wrote")
    _check_version(document)
    _check_keys(document, "the file", KEYS)
    _check_text(document["sparrowboost"], "sparrowboost")
    loss = _check_text(document["loss"], "loss")
    if loss not in LOSSES:
        raise DocumentError(f"loss is {_show(loss)}, which is none of {', '.join(LOSSES)}")
    base_score = _check_number(document["base_score"], "base_score")
    label_name = _check_text(document["label"], "label")
    classes = _check_classes(document["classes"])
    features = _check_features(document["features"])
    trees = _check_trees(document["trees"], features)
    most = abs(base_score) + sum(float(np.abs(tree.value).max()) for tree in trees)
    if most > MAX_SCORE:
        raise DocumentError("the values of its leaves add up to more than a float32 can hold")
    return Ensemble(Binning(features), classes, loss, base_score, trees, label_name)


def _check_version(document: dict[str, Any]) -> None:
    version = document.get("version")
    if type(version) is not int or version < 1:
        raise DocumentError(f"its version is {_show(version)}, which there never was")
    if version > VERSION:
        raise DocumentError(
            f"is of version {_show(version)}, written by sparrowboost "
            f"{_show(document.get('sparrowboost'))}; this is {__version__}, which reads versions "
            f"up to {VERSION}",
            "update sparrowboost",
        )


# -- labels --------------------------------------------------------------------------------------


def _check_classes(items: Any) -> tuple[Any, Any]:
    if len(_check_list(items, "classes")) != 2:
        raise DocumentError(f"classes has {len(items)} labels where 2 are needed")
    negative, positive = (_check_label(item, f"classes[{i}]") for i, item in enumerate(items))
    if positive is None or negative == positive:
        raise DocumentError(
            f"classes are {_show(negative)} and {_show(positive)}, which are not two"
        )
    return negative, positive


def _check_label(item: Any, where: str) -> Any:
    if isinstance(item, dict):
        _check_keys(item, where, ("float",))
        return _check_infinity(item["float"], where)
    if isinstance(item, str):
        return _check_text(item, where)
    if type(item) is int:
        return _check_whole(item, where, -(2**63), 2**64 - 1)
    if type(item) is float:
        return _check_number(item, where)
    if item is None or isinstance(item, bool):
        return item
    raise DocumentError(f"{where} is {_show(item)}, which is no label")


# -- features ------------------------------------------------------------------------------------


def _check_features(items: Any) -> tuple[Feature, ...]:
    _check_list(items, "features")
    features = tuple(_check_feature(item, f"features[{j}]") for j, item in enumerate(items))
    if not features:
        raise DocumentError("it has no features")
    _check_unique((feature.name for feature in features), "features")
    return features


def _check_feature(item: Any, where: str) -> Feature:
    kind = item.get("kind") if isinstance(item, dict) else None
    if not isinstance(kind, str) or (kind != "category" and kind not in DTYPES):
        raise DocumentError(f"{where} is of kind {_show(kind)}, which is not known")
    key = "categories" if kind == "category" else "thresholds"
    _check_keys(item, where, ("name", "kind", key))
    name = _check_text(item["name"], f"{where}.name")
    items = _check_list(item[key], where := f"{where}.{key}")
    if kind == "category":
        return CategoryFeature(name, _check_categories(items, where))
    number_kind = cast(Kind, kind)
    return NumberFeature(name, number_kind, _check_thresholds(items, where, number_kind))


def _check_categories(items: list[Any], where: str) -> tuple[str, ...]:
    if len(items) > MAX_CATEGORIES:
        raise DocumentError(f"{where} are {len(items)} where {MAX_CATEGORIES} are the most")
    words = tuple(_check_text(item, f"{where}[{i}]") for i, item in enumerate(items))
    _check_unique(words, where)
    return words


def _check_thresholds(items: list[Any], where: str, kind: Kind) -> np.ndarray[Any, Any]:
    if len(items) >= MAX_BINS:
        raise DocumentError(f"{where} are {len(items)} where {MAX_BINS - 1} are the most")
    dtype = np.dtype(DTYPES[kind])
    values = [_check_threshold(item, f"{where}[{i}]", dtype) for i, item in enumerate(items)]
    if any(a >= b for a, b in itertools.pairwise(values)):
        raise DocumentError(f"{where} do not ascend")
    with np.errstate(over="ignore"):
        thresholds = np.array(values, dtype)
    for i, (kept, value) in enumerate(zip(thresholds.tolist(), values, strict=True)):
        if kept != value:
            raise DocumentError(f"{where}[{i}] is {value}, which is not a {dtype}")
    return thresholds


def _check_threshold(item: Any, where: str, dtype: np.dtype[Any]) -> float | int:
    if dtype.kind != "f":
        info = np.iinfo(dtype)
        return _check_whole(item, where, int(info.min), int(info.max))
    if isinstance(item, str):
        return _check_infinity(item, where)
    return _check_number(item, where) + 0.0  # no threshold is -0.0


# -- trees ---------------------------------------------------------------------------------------


def _check_trees(items: Any, features: Sequence[Feature]) -> tuple[Tree, ...]:
    masks: dict[tuple[int, str], list[int]] = {}  # the same splits are made again and again
    trees = []
    for t, item in enumerate(_check_list(items, "trees")):
        where = f"trees[{t}]"
        _check_keys(item, where, TREE_KEYS)
        trees.append(_check_tree(item, where, features, masks))
    return tuple(trees)


def _check_tree(
    item: dict[str, Any],
    where: str,
    features: Sequence[Feature],
    masks: dict[tuple[int, str], list[int]],
) -> Tree:
    k = len(_check_list(item["feature"], f"{where}.feature"))
    for key in TREE_KEYS:
        n = len(_check_list(item[key], f"{where}.{key}"))
        if n != k + (key == "value"):
            raise DocumentError(f"{where}.{key} has {n} items, which does not go with {k} splits")
    for i, j in enumerate(item["feature"]):
        _check_whole(j, f"{where}.feature[{i}]", 0, len(features) - 1)
        text = item["goes_left"][i]
        if not isinstance(text, str):
            raise DocumentError(f"{where}.goes_left[{i}] is {_show(text)} where text is needed")
        if (j, text) not in masks:
            bits = _check_bins(text, f"{where}.goes_left[{i}]", features[j])
            masks[j, text] = [bits >> 64 * word & 2**64 - 1 for word in range(MASK_WORDS)]
    rows = [masks[pair] for pair in zip(item["feature"], item["goes_left"], strict=True)]
    _check_children(item["left"], item["right"], where)
    with np.errstate(over="ignore"):
        value = np.array(_check_numbers(item["value"], f"{where}.value"), np.float32)
    if not np.isfinite(value).all():
        raise DocumentError(f"{where}.value has a number that is too large for a float32")
    return Tree(
        np.array(item["feature"], np.int32),
        np.array(rows, np.uint64).reshape(k, MASK_WORDS),
        np.array([item["right"], item["left"]], np.int32).T.copy(),
        value,
        np.array(_check_numbers(item["gain"], f"{where}.gain"), np.float64),
    )


def _check_children(left: list[Any], right: list[Any], where: str) -> None:
    """Each leaf, and each split but the first, is the child of one split that comes before it."""
    k = len(left)
    for key, children in (("left", left), ("right", right)):
        for i, child in enumerate(children):
            _check_whole(child, f"{where}.{key}[{i}]", -k - 1, k - 1)
            if 0 <= child <= i:
                raise DocumentError(f"{where}.{key}[{i}] is {child}, which leads back")
    if k and sorted(left + right) != [*range(-k - 1, 0), *range(1, k)]:
        raise DocumentError(
            f"{where} has a split or a leaf that is not the child of exactly one split"
        )


def bin_words(feature: Feature) -> dict[str, int]:
    """The bins that are called by a word; all others, which come before them, by their number."""
    if isinstance(feature, CategoryFeature):
        return {"other": feature.n_values - 1, "missing": feature.n_values}
    return {"missing": feature.n_values}


def _check_bins(text: str, where: str, feature: Feature) -> int:
    """A set of bins, written like 0-3,7,missing, as the bits of one number."""
    words = bin_words(feature)
    last, bits = -1, 0
    for part in text.split(",") if text else ():
        if part in words:
            low = high = words[part]
        elif run := RUN.fullmatch(part):
            low, high = int(run[1]), int(run[2] or run[1])
            if high >= min(words.values()):
                raise DocumentError(f"{where} is {_show(text)}: {feature.name!r} has no bin {high}")
        else:
            raise DocumentError(f"{where} is {_show(text)}, which is not a list of bins")
        if not last < low <= high:
            raise DocumentError(f"{where} is {_show(text)}, where bins do not ascend")
        bits |= (1 << high + 1) - (1 << low)
        last = high
    return bits


# -- plain values --------------------------------------------------------------------------------


def _check_keys(item: Any, where: str, keys: Sequence[str]) -> None:
    if not isinstance(item, dict):
        raise DocumentError(f"{where} is {_show(item)} where {', '.join(keys)} are needed")
    for key in keys:
        if key not in item:
            raise DocumentError(f"{where} lacks {key!r}")
    for key in item:
        if key not in keys:
            raise DocumentError(f"{where} has {_show(key)}, which version {VERSION} does not know")


def _check_list(item: Any, where: str) -> list[Any]:
    if not isinstance(item, list):
        raise DocumentError(f"{where} is {_show(item)} where a list is needed")
    return item


def _check_text(item: Any, where: str) -> str:
    if not isinstance(item, str):
        raise DocumentError(f"{where} is {_show(item)} where text is needed")
    try:
        item.encode()
    except UnicodeEncodeError:  # half of a pair, which JSON can spell
        raise DocumentError(f"{where} is {_show(item)}, which is no text") from None
    return item


def _check_whole(item: Any, where: str, low: int, high: int) -> int:
    if type(item) is not int or not low <= item <= high:
        raise DocumentError(
            f"{where} is {_show(item)} where a whole number, {low} to {high}, is needed"
        )
    return item


def _check_number(item: Any, where: str) -> float:
    """A finite number; whole ones may be written as such."""
    if type(item) is float and math.isfinite(item):
        return item
    if type(item) is int and abs(item) <= 2**53:
        return float(item)
    raise DocumentError(f"{where} is {_show(item)} where a finite number is needed")


def _check_numbers(items: list[Any], where: str) -> list[float]:
    return [_check_number(item, f"{where}[{i}]") for i, item in enumerate(items)]


def _check_infinity(item: Any, where: str) -> float:
    if not isinstance(item, str) or item not in INFINITIES:
        raise DocumentError(f"{where} is {_show(item)}, which is neither 'inf' nor '-inf'")
    return INFINITIES[item]


def _check_unique(names: Iterable[str], where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DocumentError(f"{where} has {_show(name)} twice")
        seen.add(name)


def _show(value: Any) -> str:
    """A value as messages show it: short and on one line, however long or deep it is."""
    if isinstance(value, dict | list):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value[:60] if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:57] + "..."
