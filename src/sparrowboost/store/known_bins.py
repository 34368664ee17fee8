"""Bins that are there already: those of a model, or of another data set."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparrowboost.readers.base import ConcatenatedSource
from sparrowboost.readers.formats import Source
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.progress import log
from sparrowboost.store.binning import Binning, CategoryFeature
from sparrowboost.store.dataset import Dataset

SHOWN = 8  # columns in a warning


def opened(bins_of: Any) -> Any:
    """What to take bins of: a store, where its path is given."""
    is_folder = isinstance(bins_of, str | os.PathLike) and Path(bins_of).expanduser().is_dir()
    return Dataset(bins_of) if is_folder else bins_of


class SameRows(NamedTuple):
    """As `bins_of`: a model that was trained on the same rows, as is known.

    They must not have their own labels in its statistics of categories.
    """

    model: Any


def binning_of(bins_of: Any, *features: Any) -> Binning:
    """The bins of a Dataset, a Model, or an estimator with one; features may not be given, too."""
    binning = getattr(getattr(bins_of, "model_", bins_of), "binning", None)
    if not isinstance(binning, Binning):
        raise DataError(
            f"bins_of is {type(bins_of).__name__}; pass a Dataset or a Model, whose bins to use, "
            "the path of a store, or load_model of that of a model."
        )
    if any(given is not None for given in features):
        raise DataError(
            "bins_of (or init_model, --init-model) says which columns are features, and which are "
            "categories; leave out columns, exclude and categorical."
        )
    return binning


def task_of(bins_of: Any) -> str | None:
    """What the labels of the same are."""
    task: str | None = getattr(getattr(bins_of, "model_", bins_of), "task", None)
    return task


def classes_of(bins_of: Any) -> tuple[Any, ...]:
    """The classes of the same, if there are more than two."""
    classes = getattr(getattr(bins_of, "model_", bins_of), "classes", ())
    return classes if len(classes) > 2 else ()


def category_names(binning: Binning) -> list[str]:
    """The features that are categories."""
    return [f.name for f in binning.columns if isinstance(f, CategoryFeature)]


def warn_of_own_labels(binning: Binning) -> None:
    """Warn that some rows which a model was trained on are not to be among others."""
    if binning.statistics:
        log.warning(
            "the model has statistics of the labels by category (of %s): if some of these rows "
            "are among those that it was trained on, they see their own labels; ingest new rows "
            "alone, or append them to the store that it was trained on.",
            ", ".join(repr(some.column) for some in binning.statistics[:SHOWN]),
        )  # fmt: skip


def check_kinds(
    binning: Binning, source: Source, names: Sequence[str], whose: str = "the model was trained on"
) -> None:
    """A DataError if a source has numbers where the bins are of times, or vice versa.

    In bins, times are numbers of microseconds.
    """
    if isinstance(source, ConcatenatedSource):
        source = source.parts[0]  # there may be thousands
    for feature, name in zip(binning.columns, names, strict=True):
        if isinstance(feature, CategoryFeature) or feature.blank:
            continue
        is_time, kind = feature.kind == "time", source.kind(name)
        if kind not in ("null", "category") and (kind == "time") != is_time:
            found, known = ("numbers", "times") if is_time else ("times", "numbers")
            raise DataError(
                f"{source.name}: column {name!r} has {found} where {whose} {known}; convert them "
                f"to {known} first."
            )
