"""What identifies a model: a checksum of all that a file says about it.

It is computed from the contents, not from the text, so it stays the same when a tool indents a
file, sorts its keys or spells a number in another way. docs/model-files.md has the order.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.model.ensemble import Ensemble
from sparrowboost.model.tree import MASK_WORDS
from sparrowboost.store.binning import CategoryFeature, Feature
from sparrowboost.store.category_statistics import CategoryStatistics

BLANK = "0" * 64  # where a digest will be


def digest(ensemble: Ensemble) -> str:
    """SHA-256 of a model, as 64 hexadecimal digits."""
    sha = hashlib.sha256()
    features, options = ensemble.binning.features, sorted(ensemble.loss_options.items())
    # The length comes before each part, so that no two models have the same bytes.
    for part in (
        ensemble.loss.encode(),
        _bytes(np.atleast_1d(np.array(ensemble.base_score, np.float64))),
        _text([ensemble.label_name, *map(label_to_json, ensemble.classes)]),
        *(part for option in options for part in _option_parts(*option)),
        *([] if ensemble.offset_name is None else [b"offset", _text([ensemble.offset_name])]),
        *(part for feature in ensemble.binning.columns for part in _feature_parts(feature)),
        *(part for some in ensemble.binning.statistics for part in _statistics_parts(some)),
        b"trees",
    ):
        _add(sha, part)
    used = _used_bins(features)
    for tree in ensemble.trees:
        _add(sha, _bytes(tree.feature.astype(np.int32)))
        for array in (tree.mask & used[tree.feature], tree.child, tree.value, tree.gain):
            sha.update(_bytes(array))  # the number of splits says how long these are
    return sha.hexdigest()


def _add(sha: Any, data: bytes) -> None:
    sha.update(len(data).to_bytes(8, "little"))
    sha.update(data)


def _bytes(array: npt.NDArray[Any]) -> bytes:
    """Little-endian, in C order, and without a negative zero, which some tools cannot write."""
    array = array + array.dtype.type(0)
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _text(values: list[Any]) -> bytes:
    return json.dumps(values).encode()


def _option_parts(name: str, value: float) -> tuple[bytes, bytes]:
    return name.encode(), _bytes(np.array([value], np.float64))


def _feature_parts(feature: Feature) -> tuple[bytes, bytes]:
    if isinstance(feature, CategoryFeature):
        return _text([feature.name, feature.kind]), _text(list(feature.categories))
    return _text([feature.name, feature.kind]), _bytes(feature.thresholds)


def _statistics_parts(some: CategoryStatistics) -> Iterator[bytes]:
    yield _text([some.column, *some.names])
    yield from map(_bytes, some.thresholds)
    yield from (_bytes(some.unknown), _bytes(some.hashes), _bytes(some.bins))


def _used_bins(features: tuple[Feature, ...]) -> npt.NDArray[np.uint64]:
    """(d, 4) the bins that each feature has; a split says nothing about others."""
    bits = [
        ((1 << feature.n_values + 1) - 1).to_bytes(8 * MASK_WORDS, "little") for feature in features
    ]
    return np.frombuffer(b"".join(bits), "<u8").astype(np.uint64).reshape(-1, MASK_WORDS)


def label_to_json(label: Any) -> Any:
    """A label as a file has it; a TypeError if a file cannot have it."""
    if isinstance(label, np.generic):
        label = label.item()
    if isinstance(label, float) and math.isinf(label):  # a bare "inf" would be a string label
        return {"float": str(label)}
    if label is None or isinstance(label, bool | int | float | str):
        return label
    raise TypeError(f"its label {label!r} is neither a number nor a string")
