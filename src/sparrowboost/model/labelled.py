"""Rows with labels, for validation and evaluation, binned by a model's thresholds."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from sparrowboost.model.model import Model
from sparrowboost.model.predict import (
    BLOCK_ROWS,
    BlockSizes,
    FeatureBlock,
    check_kinds,
    columns_of,
    reading,
)
from sparrowboost.readers.labels import same_label
from sparrowboost.readers.table import open_table
from sparrowboost.runtime.errors import DataError
from sparrowboost.store.dataset import Block


def read_labelled(
    valid: Any,
    model: Model,
    label_name: str,
    *,
    header: bool = True,
    format: str | None = None,
    sizes: BlockSizes | None = None,
) -> Iterator[Block]:
    """Rows of a source with their labels, in their order, binned as the model's."""
    data, label, weight = _parts_of(valid, label_name)
    binning, classes = model.binning, model.classes
    with tempfile.TemporaryDirectory(prefix="sparrow-valid-") as scratch:
        columns = columns_of(binning, data)
        table = open_table(
            data,
            reading(binning, columns, Path(scratch), header=header, format=format),
            label=label,
            weight=weight,
            positive=classes[1],
            columns=columns,
            exclude=(),
        )
        check_kinds(binning, table.source, columns)
        row = 0
        rows = BLOCK_ROWS
        if sizes is not None:
            rows = sizes.rows(table.source, table.read_columns, len(binning.features))
        with closing(table.blocks(rows)) as blocks:
            for batch, codes, weights in blocks:
                if columns != binning.names:
                    batch = batch.select(columns).rename_columns(binning.names)
                bins = FeatureBlock(batch, [], table.source, row).bins(binning)
                yield Block(bins, codes, weights)
                row += len(codes)
    strange = [label for label in table.labels.others if not same_label(label, classes[0])]
    if classes[0] is not None and strange:
        raise DataError(
            f"{table.source.name}: label {min(strange, key=str)!r} is none of the "
            f"training data's, {classes[0]!r} and {classes[1]!r}."
        )


def _parts_of(valid: Any, label_name: str) -> tuple[Any, Any, Any]:
    """Source, labels and weights."""
    if not isinstance(valid, tuple):
        return valid, label_name, None
    if len(valid) not in (2, 3):
        raise DataError(
            f"validation data of {len(valid)} parts; give (source, labels) or "
            "(source, labels, weights)."
        )
    return valid if len(valid) == 3 else (*valid, None)
