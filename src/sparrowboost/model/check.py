"""Checks all of the document in a model file; what passes is a model.

`file.py` reads and writes the document. Numbers are finite and fit their type, and names are
distinct. Each split comes after its parent, and each split and leaf has one parent, so that no path
through a tree is circular.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from sparrowboost import __version__
from sparrowboost.model.ensemble import Ensemble
from sparrowboost.model.losses import LOSSES
from sparrowboost.model.own_loss import OwnLoss
from sparrowboost.model.regression import REGRESSION_LOSSES, regression_loss
from sparrowboost.model.softmax import Softmax
from sparrowboost.model.tree import MASK_WORDS, Tree
from sparrowboost.readers.classes import MAX_CLASSES
from sparrowboost.runtime.errors import DataError
from sparrowboost.store.binning import (
    DTYPES,
    MAX_CATEGORIES,
    Binning,
    CategoryFeature,
    Feature,
    NumberFeature,
)
from sparrowboost.store.category_statistics import KEYS as KEYS_OF_STATISTICS
from sparrowboost.store.category_statistics import CategoryStatistics, MadeOf

FORMAT = "sparrow-model"
VERSION = 2  # since 2, a file may have a digest
REGRESSION_VERSION = 3  # of models of numbers
CLASSES_VERSION = 4  # of models of more than two classes
OFFSET_VERSION = 5  # of models that were trained with offsets: of numbers, or of two classes
STATISTICS_VERSION = 6  # of models with statistics of categories, of any kind
NEWEST = STATISTICS_VERSION
KEYS = (
    "format", "version", "sparrowboost", "loss", "base_score", "label", "classes", "features",
    "trees",
)  # fmt: skip
MAX_STATISTICS, MAX_HASHES = 9, 2_000_000  # of a feature
TREE_KEYS = ("feature", "goes_left", "left", "right", "value", "gain")

MAX_SCORE = float(np.finfo(np.float32).max) / 2  # so that the log odds are finite, too
INFINITIES = {"inf": math.inf, "-inf": -math.inf}  # which JSON cannot express
RUN = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?")


class DocumentError(Exception):
    """What is wrong with a document, and what to do; the caller adds the file's name."""

    def __init__(self, what: str, to_do: str = "the file is damaged, save the model again") -> None:
        super().__init__(f"{what}; {to_do}")
        self.what = what


class Part:
    """A value in the document, and where it is."""

    __slots__ = ("_key", "_parent", "value")

    def __init__(self, value: Any, key: str | int, parent: Part | None = None) -> None:
        self.value, self._key, self._parent = value, key, parent

    @property
    def where(self) -> str:
        """The path to the value, such as trees[0].gain[2]; made only for messages."""
        if self._parent is None:
            return str(self._key)
        return self._parent.where + (
            f"[{self._key}]" if type(self._key) is int else f".{self._key}"
        )

    def expect(self, ok: bool, what: str) -> None:
        """Raise a DocumentError that shows the value, unless it is as expected."""
        if not ok:
            raise DocumentError(f"{self.where} is {_show(self.value)}{what}")

    def fields(self, keys: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Part]:
        """The parts of an object that must have these keys, may have some, and has no others."""
        self.expect(isinstance(self.value, dict), f" where {', '.join(keys)} are needed")
        for key in keys:
            if key not in self.value:
                raise DocumentError(f"{self.where} lacks {key!r}")
        for key in self.value:
            if key not in keys and key not in optional:
                raise DocumentError(f"{self.where} has {_show(key)}, which is not a known key")
        return {key: Part(self.value[key], key, self) for key in keys}

    def items(self) -> list[Part]:
        return list(self.each())

    def each(self) -> Iterator[Part]:
        """The items of a list, one by one: only one of them is needed in memory."""
        is_list = isinstance(self.value, Sequence) and not isinstance(self.value, str)
        self.expect(is_list, " where a list is needed")
        return (Part(item, i, self) for i, item in enumerate(self.value))

    def text(self) -> str:
        self.expect(isinstance(self.value, str), " where text is needed")
        # JSON can spell one half of a surrogate pair.
        self.expect(not re.search("[\ud800-\udfff]", self.value), ", which is not valid text")
        return str(self.value)

    def data(self, width: int) -> bytes:
        """Bytes, in base64, of items of a width."""
        self.expect(isinstance(self.value, str), " where text is needed")
        try:
            data = b64decode(self.value, validate=True)
        except ValueError:
            data = None
        self.expect(
            data is not None and len(data) % width == 0,
            f", which is not base64 of items of {width} bytes",
        )
        return data or b""

    def integer(self, low: int, high: int) -> int:
        ok = type(self.value) is int and low <= self.value <= high
        self.expect(ok, f" where an integer from {low} to {high} is needed")
        return int(self.value)

    def number(self) -> float:
        """A finite number; integers are allowed."""
        value = self.value
        ok = (
            math.isfinite(value)
            if type(value) is float
            else type(value) is int and abs(value) <= 2**53
        )
        self.expect(ok, " where a finite number is needed")
        return float(value)

    def infinity(self) -> float:
        self.expect(self.value in tuple(INFINITIES), ", which is neither 'inf' nor '-inf'")
        return INFINITIES[self.value]


def check_document(document: Any) -> Ensemble:
    """The model that a parsed file describes; a DocumentError says what is wrong with it."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DocumentError("not a Sparrow model", "give a file that save_model wrote")
    _check_version(document)
    version = document["version"]
    statistics = version == STATISTICS_VERSION
    loss = document.get("loss")
    numbers = version == REGRESSION_VERSION
    if version in (OFFSET_VERSION, STATISTICS_VERSION):
        numbers = document.get("classes") == []
    keys = (*KEYS, "loss_options") if numbers else KEYS
    keys = (*keys, "offset") if version == OFFSET_VERSION else keys
    optional = ("digest",) if version > 1 else ()
    Part(document, "the file").fields(keys, (*optional, "offset") if statistics else optional)
    parts = {key: Part(value, key) for key, value in document.items()}
    parts["sparrowboost"].text()
    several = version == CLASSES_VERSION or (statistics and loss == Softmax.name)
    losses = (*REGRESSION_LOSSES, OwnLoss.name) if numbers else tuple(LOSSES)
    if several:
        losses = (Softmax.name,)
    parts["loss"].expect(document["loss"] in losses, f", which is none of {', '.join(losses)}")
    options = _options(parts["loss_options"], document["loss"]) if numbers else {}
    classes = _several(parts["classes"]) if several else (
        _classes(parts["classes"], 0 if numbers else 2)
    )  # fmt: skip
    base_score = _base_scores(parts["base_score"], len(classes)) if several else (
        parts["base_score"].number()
    )  # fmt: skip
    columns, tables = [], []
    for part in parts["features"].each():
        columns.append(_feature(part, KEYS_OF_STATISTICS if statistics else ()))
        if "statistics" in part.value:
            tables.append(check_statistics(part))
    if not columns:
        raise DocumentError("it has no features")
    if statistics and not tables:
        raise DocumentError(f"it has no statistics of categories, and its version is {version}")
    binning = Binning(tuple(columns), tuple(tables))
    features = binning.features
    _check_unique(binning.names, "features")
    trees = tuple(_tree(part, features) for part in parts["trees"].each())
    if several and len(trees) % len(classes):
        raise DocumentError(
            f"it has {len(trees)} trees, which is not a multiple of its {len(classes)} classes"
        )
    steps = sum(float(np.abs(tree.value).max()) for tree in trees)
    if float(np.abs(base_score).max()) + steps > MAX_SCORE:
        raise DocumentError("the sum of its leaf values does not fit a float32")
    label_name = parts["label"].text()
    offset_name = parts["offset"].text() if "offset" in parts else None
    about = document["loss"], base_score, trees, label_name, options
    return Ensemble(binning, classes, *about, offset_name=offset_name)


def _check_version(document: dict[str, Any]) -> None:
    version = document.get("version")
    if type(version) is not int or version < 1:
        raise DocumentError(f"its version is {_show(version)}, which does not exist")
    if version > NEWEST:
        raise DocumentError(
            f"has version {_show(version)}, written by sparrowboost "
            f"{_show(document.get('sparrowboost'))}; this is {__version__}, which reads versions "
            f"up to {NEWEST}",
            "update sparrowboost",
        )


def _options(part: Part, loss: str) -> dict[str, float]:
    """The options of a loss of numbers: all that it has, within their ranges."""
    known = REGRESSION_LOSSES.get(loss, OwnLoss)
    names = [field.name for field in dataclasses.fields(known)]
    options = {name: option.number() for name, option in part.fields(names).items()}
    try:
        if loss != OwnLoss.name:
            regression_loss(loss, options)
    except DataError as error:
        raise DocumentError(f"{part.where}: {str(error).rstrip('.')}") from None
    return options


def _classes(part: Part, needed: int) -> tuple[Any, ...]:
    items = part.items()
    if len(items) != needed:
        raise DocumentError(f"classes has {len(items)} labels where {needed} are needed")
    if not items:
        return ()
    negative, positive = map(_label, items)
    if positive is None or negative == positive:
        raise DocumentError(f"classes are {_show(negative)} and {_show(positive)}, which is one")
    return negative, positive


def _several(part: Part) -> tuple[Any, ...]:
    """More than two labels, each once."""
    items = part.items()
    if not 2 < len(items) <= MAX_CLASSES:
        raise DocumentError(f"classes has {len(items)} labels where 3 to {MAX_CLASSES} are needed")
    classes = tuple(map(_label, items))
    if None in classes:
        raise DocumentError("classes has a label null, which no row can have")
    _check_unique(classes, "classes")
    return classes


def _base_scores(part: Part, n: int) -> tuple[float, ...]:
    scores = tuple(item.number() for item in part.items())
    if len(scores) != n:
        raise DocumentError(f"base_score has {len(scores)} numbers where {n} are needed")
    return scores


def _label(part: Part) -> Any:
    value = part.value
    if isinstance(value, dict):
        return part.fields(("float",))["float"].infinity()
    if isinstance(value, str):
        return part.text()
    if type(value) is int:
        return part.integer(-(2**63), 2**64 - 1)
    if type(value) is float:
        return part.number()
    part.expect(value is None or isinstance(value, bool), ", which cannot be a label")
    return value


def _feature(part: Part, more: Sequence[str] = ()) -> Feature:
    """The feature of a column; one of categories may have `more` keys."""
    kind = part.value.get("kind") if isinstance(part.value, dict) else None
    if kind not in (*DTYPES, "category"):
        raise DocumentError(f"{part.where} is of kind {_show(kind)}, which is not known")
    key = "categories" if kind == "category" else "thresholds"
    fields = part.fields(("name", "kind", key), more if kind == "category" else ())
    name, items = fields["name"].text(), fields[key].items()
    if len(items) > MAX_CATEGORIES:
        raise DocumentError(
            f"{part.where}.{key} has {len(items)} items, more than {MAX_CATEGORIES}"
        )
    if kind == "category":
        words = tuple(item.text() for item in items)
        _check_unique(words, f"{part.where}.{key}")
        return CategoryFeature(name, words)
    return NumberFeature(name, kind, _thresholds(fields[key].where, items, DTYPES[kind]))


def check_statistics(part: Part) -> CategoryStatistics:
    """The statistics that a feature of categories has."""
    fields = part.fields(("name", "kind", "categories", *KEYS_OF_STATISTICS))
    names = tuple(item.text() for item in fields["statistics"].items())
    lists = fields["statistics_thresholds"].items()
    unknown = fields["unknown"].items()
    k = len(names)
    if not 1 <= k <= MAX_STATISTICS or len(lists) != k or len(unknown) != k:
        raise DocumentError(f"{part.where} has statistics whose lists do not have equal lengths")
    thresholds = []
    for cuts in lists:
        items = cuts.items()
        if len(items) > MAX_CATEGORIES:
            raise DocumentError(f"{cuts.where} has {len(items)} items, more than {MAX_CATEGORIES}")
        thresholds.append(_thresholds(cuts.where, items, np.float32))
    bins = [item.integer(0, len(cuts)) for item, cuts in zip(unknown, thresholds, strict=True)]
    hashes = np.frombuffer(fields["hashes"].data(8), "<u8").astype(np.uint64)
    table = np.frombuffer(fields["bins"].data(k), np.uint8).reshape(-1, k)
    if len(hashes) != len(table) or len(hashes) > MAX_HASHES:
        raise DocumentError(f"{part.where} has {len(hashes)} hashes and {len(table)} rows of bins")
    if (hashes[1:] <= hashes[:-1]).any():
        raise DocumentError(f"{part.where}.hashes do not ascend")
    if len(table) and (table.max(0) > [len(cuts) for cuts in thresholds]).any():
        raise DocumentError(f"{part.where}.bins has a bin that its thresholds do not make")
    unknowns = np.array(bins, np.uint8)
    made_of = _made_of(fields["made_of"], k)
    name = fields["name"].text()
    return CategoryStatistics(name, names, tuple(thresholds), unknowns, hashes, table, made_of)


def _made_of(part: Part, k: int) -> MadeOf:
    """Which rows the k statistics of a column were made from."""
    items = part.items()
    if len(items) != k + 1:
        raise DocumentError(f"{part.where} has {len(items)} items, and needs {k + 1}")
    rows, checksum, *means = items
    if not re.fullmatch("[0-9a-f]{16}", checksum.text()):
        raise DocumentError(f"{checksum.where} is not a number of 16 hexadecimal digits")
    of_targets = tuple(mean.number() for mean in means)
    return MadeOf(rows.integer(1, 2**53), int(checksum.text(), 16), of_targets)


def _thresholds(where: str, items: list[Part], type_: type[np.generic]) -> np.ndarray[Any, Any]:
    dtype = np.dtype(type_)
    if dtype.kind == "f":  # adding 0.0 turns -0.0 into 0.0
        values = [p.infinity() if isinstance(p.value, str) else p.number() + 0.0 for p in items]
    else:
        info = np.iinfo(dtype)
        values = [part.integer(int(info.min), int(info.max)) for part in items]
    if any(a >= b for a, b in itertools.pairwise(values)):
        raise DocumentError(f"{where} do not ascend")
    with np.errstate(over="ignore"):
        thresholds = np.array(values, dtype)
    for part, rounded, value in zip(items, thresholds.tolist(), values, strict=True):
        part.expect(rounded == value, f", which is not a {dtype}")
    return thresholds


def _tree(part: Part, features: Sequence[Feature]) -> Tree:
    lists = {key: field.items() for key, field in part.fields(TREE_KEYS).items()}
    k = len(lists["feature"])
    for key, items in lists.items():
        n = k + (key == "value")
        if len(items) != n:
            raise DocumentError(f"{part.where}.{key} has {len(items)} items where {n} are needed")
    feature = [item.integer(0, len(features) - 1) for item in lists["feature"]]
    masks = [
        _bins(item, features[j]).to_bytes(8 * MASK_WORDS, "little")
        for j, item in zip(feature, lists["goes_left"], strict=True)
    ]
    child = [_children(lists[key]) for key in ("right", "left")]
    if k and sorted(child[0] + child[1]) != [*range(-k - 1, 0), *range(1, k)]:
        raise DocumentError(
            f"{part.where} has a split or a leaf that is not the child of exactly one split"
        )
    with np.errstate(over="ignore"):
        value = np.array([item.number() for item in lists["value"]], np.float32)
    if not np.isfinite(value).all():
        raise DocumentError(f"{part.where}.value has a number that is too large for a float32")
    return Tree(
        np.array(feature, np.int32),
        np.frombuffer(b"".join(masks), "<u8").astype(np.uint64).reshape(k, MASK_WORDS),
        np.array(child, np.int32).T.copy(),
        value,
        np.array([item.number() for item in lists["gain"]], np.float64),
    )


def _children(items: list[Part]) -> list[int]:
    """Splits, which come after their parent, and leaves, which are below zero."""
    for i, item in enumerate(items):
        child = item.integer(-len(items) - 1, len(items) - 1)
        item.expect(not 0 <= child <= i, ", which leads back")
    return [item.value for item in items]


def bin_words(feature: Feature) -> dict[str, int]:
    """The bins that have a name; all others come before them and are written as numbers."""
    if isinstance(feature, CategoryFeature):
        return {"other": feature.n_values - 1, "missing": feature.n_values}
    return {"missing": feature.n_values}


def _bins(part: Part, feature: Feature) -> int:
    """A set of bins, written like 0-3,7,missing, as the bits of one number."""
    words = bin_words(feature)
    last, bits = -1, 0
    part.expect(isinstance(part.value, str), " where text is needed")
    for text in part.value.split(",") if part.value else ():
        run = RUN.fullmatch(text)
        part.expect(run is not None or text in words, ", which is not a list of bins")
        low, high = (int(run[1]), int(run[2] or run[1])) if run else (words[text], words[text])
        if run and high >= min(words.values()):
            part.expect(False, f": {feature.name!r} has no bin {high}")
        part.expect(last < low <= high, ", where bins do not ascend")
        bits |= (1 << high + 1) - (1 << low)
        last = high
    return bits


def _check_unique(names: Iterable[Any], where: str) -> None:
    seen: set[Any] = set()
    for name in names:
        if name in seen:
            raise DocumentError(f"{where} has {_show(name)} twice")
        seen.add(name)


def _show(value: Any) -> str:
    """A value for a message: short and on one line."""
    if isinstance(value, dict | list):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value[:60] if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:57] + "..."
