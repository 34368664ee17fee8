"""Rows with labels, for validation and evaluation, binned by a model's thresholds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from sparrowboost.model.ensemble import Ensemble
from sparrowboost.model.predict import (
    BlockBudget,
    BlockPlan,
    FeatureBlock,
    column_names,
    offset_choice,
    open_options,
    sparse_reader,
)
from sparrowboost.readers.classes import KnownClasses
from sparrowboost.readers.labels import LabelCoder, LabelReader, same_label
from sparrowboost.readers.options import ReadOptions
from sparrowboost.readers.table import Table, open_table
from sparrowboost.readers.targets import TargetReader
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.temporary import TemporaryFolder
from sparrowboost.store.dataset import Block
from sparrowboost.store.known_bins import check_kinds


def read_labelled(
    valid: Any,
    ensemble: Ensemble,
    read: ReadOptions,
    budget: BlockBudget | None = None,
) -> Iterator[Block]:
    """Rows of a source with their labels, in their order, binned by the model's thresholds.

    Of a model of more than two classes, targets are indices in its `classes`.
    """
    data, label, weight, offset = parts_of(valid, ensemble.label_name)
    binning, loss = ensemble.binning, ensemble.regression
    with TemporaryFolder("valid", needed=False) as scratch:
        columns = column_names(binning, data)
        budget = budget or BlockBudget(None, 1)
        options = open_options(binning, columns, scratch, read, limit=budget.limit)

        def plan_reading(table: Table) -> BlockPlan:
            check_kinds(binning, table.source, columns)
            of_source = table.source, table.read_columns, len(binning.features)
            return budget.plan(*of_source, table.sparse)

        table = open_table(
            data,
            options,
            label=label,
            weight=weight,
            labels=partial(label_reader, ensemble.classes),
            columns=columns,
            exclude=(),
            offset=offset_choice(ensemble, offset),
            check=plan_reading,
        )
        sparse = sparse_reader(table.source, binning, columns, table.others)
        table.sparse = None if sparse is None else sparse.rows
        plan = plan_reading(table)
        row = 0
        reader = plan.reader(table.source, binning, columns, scratch, table.others)
        with closing(table.blocks(plan.rows, None, reader)) as blocks:
            for block in blocks:
                batch: Any = block.batch
                target = block.targets
                if loss is not None and target is not None and len(target):
                    loss.check(float(target.min()), float(target.max()), table.label.name)
                if sparse is not None:
                    batch = sparse.features(batch)
                elif columns != binning.column_names and plan.columns is None:
                    batch = batch.select(columns).rename_columns(binning.column_names)
                bins = FeatureBlock(batch, [], table.source, row).bins(binning)
                yield Block(bins, block.codes, block.weights, target, block.offsets)
                row += len(block.codes)
    if isinstance(table.labels, LabelCoder):
        check_others(table.labels, ensemble.classes, table.source.name)


def label_reader(classes: Sequence[Any], name: str) -> LabelReader:
    """What reads the labels for a model of these classes, or of numbers if there are none."""
    if not classes:
        return TargetReader(name)
    return LabelCoder(name, classes[1]) if len(classes) == 2 else KnownClasses(name, classes)


def check_others(labels: LabelCoder, classes: Sequence[Any], where: str) -> None:
    """A DataError if some labels were neither of two classes."""
    unknown = [label for label in labels.others if not same_label(label, classes[0])]
    if classes[0] is not None and unknown:
        raise DataError(
            f"{where}: label {min(unknown, key=str)!r} is not in the training data, "
            f"which has {classes[0]!r} and {classes[1]!r}."
        )


def parts_of(valid: Any, label_name: str) -> tuple[Any, Any, Any, Any]:
    """The source, its labels, weights and offsets."""
    if not isinstance(valid, tuple):
        return valid, label_name, None, None
    if len(valid) not in (2, 3, 4):
        raise DataError(
            f"validation data has {len(valid)} parts; pass (source, labels), "
            "(source, labels, weights) or (source, labels, weights, offsets)."
        )
    data, label, *others = valid
    weight, offset = [*others, None, None][:2]
    return data, label, weight, offset
