"""`sparrow evaluate`: how good a model is on labelled files."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from sparrowboost.cli.options import (
    SOME_BLOCKS,
    add_command,
    add_data,
    add_format,
    add_json,
    add_memory,
    add_offset,
    add_quiet,
    given_data,
    reading,
    verbose,
)
from sparrowboost.cli.show import show_table

if TYPE_CHECKING:
    from sparrowboost.model.class_evaluation import ClassEvaluation
    from sparrowboost.model.evaluation import Evaluation, RegressionEvaluation

SHOWN = (
    "auc", "average_precision", "log_loss", "exponential_loss", "brier", "accuracy",
    "calibration_error",
)  # fmt: skip
SHOWN_CLASSES = (
    "log_loss", "accuracy", "balanced_accuracy", "auc", "average_precision", "brier",
    "calibration_error",
)  # fmt: skip
SHOWN_OF_CLASS = ("precision", "recall", "auc", "average_precision", "predicted", "observed")
SHOWN_NUMBERS = ("rmse", "mae", "r2", "loss", "mean_label", "mean_prediction", "median_label")


def add_to(commands: Any) -> None:
    parser = add_command(
        commands,
        "evaluate",
        "MODEL DATA [DATA ...] [options]",
        run,
        "Evaluate a model on labelled files: AUC, log loss, calibration; or RMSE, R2 and more.",
        "sparrow evaluate model.json test.parquet --json",
    )
    parser.add_argument("model", help="model file")
    add_data(parser)
    parser.add_argument(
        "--label", metavar="COLUMN", help="label column (default: as in the training data)"
    )
    parser.add_argument("--weight", metavar="COLUMN", help="sample weight column")
    add_offset(parser)
    add_format(parser)
    add_json(parser)
    add_memory(parser, SOME_BLOCKS)
    add_quiet(parser)


def run(args: argparse.Namespace) -> None:
    from sparrowboost.model.class_evaluation import ClassEvaluation
    from sparrowboost.model.evaluation import RegressionEvaluation, evaluate
    from sparrowboost.model.model import load_model

    result = evaluate(
        load_model(args.model, storage_options=args.storage_options),
        given_data(args),
        label=args.label,
        weight=args.weight,
        offset=args.offset,
        **reading(args),
        memory_limit=args.memory,
        verbose=verbose(args),
    )
    if args.json:
        print(json.dumps(result.to_json(), indent=2))
    elif isinstance(result, RegressionEvaluation):
        _show_numbers(result)
    elif isinstance(result, ClassEvaluation):
        _show_classes(result)
    else:
        _show(result)


def _show_numbers(result: RegressionEvaluation) -> None:
    print(f"{result.n_rows:,} rows")
    for name in SHOWN_NUMBERS:
        print(f"{name.replace('_', ' '):<18} {getattr(result, name):.6g}")


def _show_classes(result: ClassEvaluation) -> None:
    print(f"{result.n_rows:,} rows, {len(result.classes)} classes")
    for name in SHOWN_CLASSES:
        print(f"{name.replace('_', ' '):<18} {getattr(result, name):.6f}")
    rows = [
        (
            str(scores.label),
            f"{scores.weight:,.0f}",
            *(f"{getattr(scores, name):.4f}" for name in SHOWN_OF_CLASS),
        )
        for scores in result.classes
    ]
    header = ("class", "rows", *(name.replace("_", " ") for name in SHOWN_OF_CLASS))
    show_table(header, rows, right=range(1, len(header)))


def _show(result: Evaluation) -> None:
    print(f"{result.n_rows:,} rows, {result.n_positive:,} positive")
    for name in SHOWN:
        print(f"{name.replace('_', ' '):<18} {getattr(result, name):.6f}")
    rows = [
        (
            f"{p.low:.1f} - {p.high:.1f}",
            f"{p.weight:,.0f}",
            f"{p.predicted:.4f}",
            f"{p.observed:.4f}",
        )
        for p in result.calibration
    ]
    show_table(("probability", "rows", "predicted", "observed"), rows, right=(1, 2, 3))
