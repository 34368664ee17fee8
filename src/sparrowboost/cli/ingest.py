"""`sparrow ingest`: files become a store."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparrowboost.cli.checks import is_store
from sparrowboost.cli.options import (
    add_columns,
    add_command,
    add_data,
    add_jobs,
    add_json,
    add_memory,
    add_quiet,
    add_seed,
    given_data,
    names,
    reading,
    verbose,
)
from sparrowboost.cli.show import store_facts, summary

if TYPE_CHECKING:
    from sparrowboost.store.dataset import Dataset


def add_to(commands: Any) -> None:
    parser = add_command(
        commands,
        "ingest",
        "DATA [DATA ...] [--label COLUMN] (-o STORE | --append STORE) [options]",
        run,
        "Convert files to a shuffled, binned store, in bounded memory.",
        "sparrow ingest 'data/*.parquet' --label clicked --memory 512MB -o store/",
    )
    add_data(parser)
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("-o", "--output", metavar="STORE", help="folder of the new store")
    target.add_argument(
        "--append",
        metavar="STORE",
        help="add the rows to this store, with its features, bins and labels",
    )
    add_columns(parser)
    parser.add_argument(
        "--bins-of", metavar="FILE", help="a model or a store, whose features and bins to use"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing store")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="open the store if it is finished and was made from the same files and options; with "
        "--append, if they were appended already",
    )
    add_memory(parser)
    add_seed(parser)
    add_jobs(parser)
    add_json(parser)
    add_quiet(parser)


def run(args: argparse.Namespace) -> None:
    from sparrowboost.runtime.memory import peak_rss

    start = time.perf_counter()
    dataset = ingest_to(args.output, args, overwrite=args.overwrite, resume=args.resume)
    if args.json:
        spent = {"seconds": round(time.perf_counter() - start, 3), "peak_bytes": peak_rss()}
        print(json.dumps(store_facts(dataset) | spent, indent=2))
    elif not args.quiet:
        print(summary(dataset))


def ingest_to(
    path: str | Path | None,
    args: argparse.Namespace,
    *,
    overwrite: bool = False,
    resume: bool = False,
    wait: bool = True,
) -> Dataset:
    """Ingest the files of a call; None makes a temporary store."""
    from sparrowboost.store.ingest import ingest

    return ingest(
        given_data(args),
        label=args.label,
        path=path,
        weight=args.weight,
        offset=args.offset,
        positive=args.positive,
        task=args.task,
        columns=names(args.columns),
        exclude=names(args.exclude),
        categorical=names(args.categorical),
        category_statistics=args.category_statistics,
        bins_of=_bins_of(args),
        append=getattr(args, "append", None),
        memory_limit=args.memory,
        **reading(args),
        overwrite=overwrite,
        resume=resume,
        wait=wait,
        n_jobs=args.jobs,
        random_state=args.seed,
        verbose=verbose(args),
    )


def _bins_of(args: argparse.Namespace) -> Any:
    """The model or the store whose bins were asked for, if any."""
    path = getattr(args, "bins_of", None) or getattr(args, "init_model", None)
    if path is None:
        return None
    from sparrowboost.model.model import load_model
    from sparrowboost.store.dataset import Dataset

    return (
        Dataset(path) if is_store(path) else load_model(path, storage_options=args.storage_options)
    )
