"""`sparrow demo`: a training on data that comes with the package."""

from __future__ import annotations

import argparse
from typing import Any

from sparrowboost.cli.options import add_command, add_quiet, verbose
from sparrowboost.cli.show import summary, work


def add_to(commands: Any) -> None:
    parser = add_command(
        commands,
        "demo",
        "[options]",
        run,
        "Train and test on human chromosome 21, which comes with the package.",
        "sparrow demo --memory 512MB",
    )
    parser.add_argument(
        "--memory", metavar="SIZE", default="512MB", help="memory limit (default: %(default)s)"
    )
    parser.add_argument("--keep", metavar="DIR", help="keep the data and the store in this folder")
    add_quiet(parser)


def run(args: argparse.Namespace) -> None:
    from sparrowboost.demo import run_demo

    result = run_demo(memory_limit=args.memory, keep=args.keep, verbose=verbose(args))
    last, data = result.last, result.dataset
    print(summary(data))
    print(result.model)
    print(
        f"test: {result.n_test:,} rows, {result.n_test_positive:,} positive: "
        f"AUC {result.auc:.4f}, average precision {result.average_precision:.4f}\n"
        f"time: {result.ingest_seconds:.1f} s to ingest {result.source_bytes / 1e6:,.0f} MB of "
        f"Parquet, {result.train_seconds:.1f} s to train, {result.predict_seconds:.1f} s to "
        f"predict (and {result.write_seconds:.1f} s to write the files)\n"
        f"memory: peak {result.peak_bytes / 1e6:,.0f} MB of {args.memory}\n"
        f"{work(last, result.n_rules)}; a full pass is {data.n_rows:,} rows"
    )
