"""`sparrow predict`: files become a file of predictions."""

from __future__ import annotations

import argparse
from typing import Any

from sparrowboost.cli.options import (
    SOME_BLOCKS,
    add_command,
    add_data,
    add_format,
    add_jobs,
    add_memory,
    add_offset,
    add_quiet,
    given_data,
    names,
    reading,
    verbose,
)


def add_to(commands: Any) -> None:
    parser = add_command(
        commands,
        "predict",
        "MODEL DATA [DATA ...] -o FILE [options]",
        run,
        "Predict files of any size, and write the predictions to a file.",
        "sparrow predict model.json 'new/*.parquet' --keep id -o predictions.parquet",
    )
    parser.add_argument("model", help="model file")
    add_data(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="file to write: .parquet or .csv"
    )
    parser.add_argument(
        "--keep",
        metavar="A,B",
        action="append",
        help="columns to copy to the output; separate by commas or repeat",
    )
    parser.add_argument(
        "--score",
        action="store_true",
        help="also write the score, the log odds (of more than two classes, of each)",
    )
    add_offset(parser)
    add_format(parser)
    add_memory(parser, SOME_BLOCKS)
    add_jobs(parser)
    add_quiet(parser)


def run(args: argparse.Namespace) -> None:
    from sparrowboost.model.model import load_model
    from sparrowboost.model.predictions import DEFAULTS, write_predictions

    n = write_predictions(
        load_model(args.model, storage_options=args.storage_options),
        given_data(args),
        args.output,
        columns=[*DEFAULTS, "score"] if args.score else None,
        keep=names(args.keep) or (),
        offset=args.offset,
        **reading(args),
        memory_limit=args.memory,
        n_jobs=args.jobs,
        verbose=verbose(args),
    )
    if not args.quiet:
        print(f"{args.output}: {n:,} rows")
