"""`sparrow export`: a model in XGBoost's format."""

from __future__ import annotations

import argparse
from typing import Any

from sparrowboost.cli.options import add_command, add_format, reading

SHOWN = 4  # columns of statistics


def add_to(commands: Any) -> None:
    parser = add_command(
        commands,
        "export",
        "MODEL -o FILE [options]",
        run,
        "Write a model in XGBoost's format, with the same predictions.",
        "sparrow export model.json -o model.xgb.json",
    )
    parser.add_argument("model", help="model file")
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="file to write: .json"
    )
    parser.add_argument(
        "--data", nargs="+", help="files whose rows give the leaves their weights, for SHAP values"
    )
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    from sparrowboost.model.model import load_model
    from sparrowboost.readers.formats import check_apart
    from sparrowboost.runtime.remote import output_target

    file = output_target(args.output, args.storage_options)
    model = load_model(args.model, storage_options=args.storage_options)
    check_apart(file, [args.model, *(args.data or ())], args.storage_options)
    model.to_xgboost(args.output, data=args.data, **reading(args))
    print(f"{args.output}: {model}")
    if model.offset_name is not None:
        print(f"its predictions need the offsets, {model.offset_name!r}, as XGBoost's base_margin.")
    if columns := model.binning.names[len(model.binning.columns) :]:
        shown = ", ".join(map(repr, columns[:SHOWN])) + ", ..." * (len(columns) > SHOWN)
        print(
            f"it has no table of categories: Model.xgboost_frame makes the columns of statistics, "
            f"{shown}."
        )
