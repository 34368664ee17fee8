"""Model files: JSON that a person can read, exact to the bit. docs/model-files.md has the format.

A version never changes its meaning. Nothing in a file is executed, and what is not a whole model is
refused.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import stat
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from sparrowboost import __version__
from sparrowboost.model.check import (
    CLASSES_VERSION,
    FORMAT,
    OFFSET_VERSION,
    REGRESSION_VERSION,
    STATISTICS_VERSION,
    VERSION,
    DocumentError,
    bin_words,
    check_document,
)
from sparrowboost.model.digest import BLANK, digest, label_to_json
from sparrowboost.model.document import parse
from sparrowboost.model.ensemble import Ensemble
from sparrowboost.model.tree import Tree
from sparrowboost.runtime.disk import is_remote, local_path
from sparrowboost.runtime.errors import DataError, ModelFileError, RemoteError, StoreError
from sparrowboost.runtime.memory import format_size
from sparrowboost.runtime.remote import (
    Options,
    RemotePath,
    output_target,
    remote_path,
    write_bytes,
)
from sparrowboost.store.binning import Feature

MAX_BYTES = 512_000_000  # of uncompressed text: 300,000 trees of 31 leaves
MAX_RATIO = 100  # of text to compressed bytes; that of a model is about 5
FREE_BYTES = 16_000_000  # of text, whatever the ratio
PIECE = 1 << 20  # bytes read at once
GZIP = b"\x1f\x8b"  # the first bytes of a gzip file


def write_model(path: str | os.PathLike[str], ensemble: Ensemble, storage: Options = None) -> None:
    """Write a model file that `read_model` accepts; compressed if its name ends in .gz."""
    try:
        data = _render(ensemble).encode(errors="backslashreplace")  # lone surrogates: refused below
        _check_size(data)
        written = digest(check_document(parse(data)))
        data = data.replace(BLANK.encode(), written.encode(), 1)  # the first: before any name
        if Path(path).suffix == ".gz":
            packed = gzip.compress(data, mtime=0)  # the same model, the same bytes
            _check_size(data, len(packed))
            data = packed
    except DocumentError as error:
        raise ModelFileError(f"{path}: this model cannot be saved: {error.what}.") from None
    write_file(path, data, storage)


def write_file(path: str | os.PathLike[str], data: bytes, storage: Options = None) -> None:
    """Write a file in one step; a ModelFileError if that is not possible."""
    file = output_target(path, storage)
    try:
        write_bytes(file, data)
    except RemoteError as error:
        raise ModelFileError(str(error)) from None
    except StoreError:  # of the disk
        raise
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ModelFileError(f"{file}: cannot be written ({why}); choose another path.") from None


def read_model(path: str | os.PathLike[str], storage: Options = None) -> Ensemble:
    """The ensemble in a model file; a ModelFileError says why it cannot be used."""
    file: Path | RemotePath
    try:
        file = remote_path(path, storage) if is_remote(path) else local_path(path).absolute()
        document = parse(_read(file))
        ensemble = check_document(document)
        _check_digest(document, ensemble)
        return ensemble
    except DataError as error:  # of remote storage, or about the path itself
        raise ModelFileError(str(error)) from None
    except FileNotFoundError:
        raise ModelFileError(f"{file}: no such file.") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ModelFileError(f"{file}: cannot be read ({why}).") from None
    except DocumentError as error:
        raise ModelFileError(f"{file}: {error}.") from None


def _check_digest(document: dict[str, Any], ensemble: Ensemble) -> None:
    if "digest" in document and document["digest"] != digest(ensemble):
        raise DocumentError(
            "its contents do not match its digest: it is damaged, or was edited",
            'save the model again; or, if the edit was meant, remove the line "digest"',
        )


def _read(file: Path | RemotePath) -> bytearray:
    """The text in a file, uncompressed and of limited size."""
    if isinstance(file, RemotePath):
        found = file.looked_up()
        if found is None:
            raise FileNotFoundError
        return _unpacked(io.BytesIO(found.read_all(MAX_BYTES)))
    if not stat.S_ISREG(file.stat().st_mode):  # a pipe might block for ever
        raise DocumentError("not a regular file", "give one that save_model wrote")
    with open(file, "rb") as opened:
        return _unpacked(opened)


def _unpacked(opened: BinaryIO) -> bytearray:
    data = bytearray()
    compressed = opened.read(len(GZIP)) == GZIP
    packed = opened.seek(0, os.SEEK_END)
    opened.seek(0)
    source = gzip.GzipFile(fileobj=opened) if compressed else opened
    try:
        while piece := source.read(PIECE):
            data += piece
            _check_size(data, packed)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DocumentError(f"cannot be decompressed ({error})") from None
    return data


def _check_size(data: bytes | bytearray, packed: int | None = None) -> None:
    """Refuse text that is too long, or that was packed into fewer bytes than a model could be."""
    if len(data) > MAX_BYTES:
        raise DocumentError(
            f"it has more than {format_size(MAX_BYTES)} of text", "models that large are refused"
        )
    if packed is not None and len(data) > max(MAX_RATIO * packed, FREE_BYTES):
        raise DocumentError(
            f"its text is more than {MAX_RATIO} times as long as the compressed file",
            "if it is a model all the same, decompress it with gunzip",
        )


def _render(ensemble: Ensemble) -> str:
    """The text: one line per feature, and per list of a tree."""
    features = ensemble.binning.features
    numbers = ensemble.task == "regression"
    options = {name: float(value) for name, value in sorted(ensemble.loss_options.items())}
    head = {
        "format": FORMAT,
        "version": _version(ensemble),
        "sparrowboost": __version__,
        "digest": BLANK,
        "loss": ensemble.loss,
        **({"loss_options": options} if numbers else {}),
        "base_score": np.array(ensemble.base_score, np.float64).tolist(),
        "label": ensemble.label_name,
        **({} if ensemble.offset_name is None else {"offset": ensemble.offset_name}),
        "classes": _labels(ensemble),
    }
    lines = [f"{_dump(key)}: {_dump(value)}" for key, value in head.items()]
    lines.append(_block("features", map(_dump, ensemble.binning.to_json())))
    lines.append(_block("trees", (_tree_text(tree, features) for tree in ensemble.trees)))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _version(ensemble: Ensemble) -> int:
    """The oldest version that can say it."""
    if ensemble.binning.statistics:
        return STATISTICS_VERSION
    if ensemble.softmax is not None:
        return CLASSES_VERSION
    if ensemble.offset_name is not None:
        return OFFSET_VERSION
    return REGRESSION_VERSION if ensemble.task == "regression" else VERSION


def _labels(ensemble: Ensemble) -> list[Any]:
    try:
        return [label_to_json(label) for label in ensemble.classes]
    except TypeError as error:
        raise DocumentError(str(error)) from None


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _block(key: str, items: Iterable[str]) -> str:
    return f"{_dump(key)}: [\n " + ",\n ".join(items) + "\n]"


def _tree_text(tree: Tree, features: Sequence[Feature]) -> str:
    lists = {
        "feature": tree.feature.tolist(),
        "goes_left": [
            _write_bins(mask_bits(mask), features[j])
            for j, mask in zip(tree.feature, tree.mask, strict=True)
        ],
        "left": tree.child[:, 1].tolist(),
        "right": tree.child[:, 0].tolist(),
        "value": shortest(tree.value),
        "gain": tree.gain.tolist(),
    }
    return "{" + ",\n  ".join(f"{_dump(key)}: {_dump(value)}" for key, value in lists.items()) + "}"


def mask_bits(mask: npt.NDArray[np.uint64]) -> int:
    """The bins that go left, as the bits of one number."""
    return int.from_bytes(mask.astype("<u8").tobytes(), "little")


def _write_bins(bits: int, feature: Feature) -> str:
    """A set of bins as text, without bits beyond the feature's bins.

    Examples
    --------
    >>> from sparrowboost.store.binning import CategoryFeature
    >>> _write_bins(0b1_0111_0001, CategoryFeature("x", ("a", "b", "c", "d", "e", "f", "g")))
    '0,4-6,missing'
    """
    words = bin_words(feature)
    numbered = bits & (1 << min(words.values())) - 1
    runs = re.finditer("1+", f"{numbered:b}"[::-1])  # character b is bin b
    spans = [(run.start(), run.end() - 1) for run in runs]
    parts = [str(low) if low == high else f"{low}-{high}" for low, high in spans]
    return ",".join(parts + [word for word, b in words.items() if bits >> b & 1])


def shortest(values: npt.NDArray[np.float32]) -> list[float]:
    """The numbers with the fewest digits that round to these float32 values.

    Examples
    --------
    >>> shortest(np.array([0.1, 1 / 3], np.float32))
    [0.1, 0.33333334]
    """
    short = [float(str(value)) for value in values]
    # A decimal is rounded to float64 first, which may move it across the midpoint of two float32.
    same = np.array(short, np.float32) == values
    return [a if ok else float(b) for a, b, ok in zip(short, values, same, strict=True)]
