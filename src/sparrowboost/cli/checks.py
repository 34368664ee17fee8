"""What is wrong with a call of `sparrow train`, reported before any row is read."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from sparrowboost.cli.options import given_to_read
from sparrowboost.runtime.errors import DataError


def check_validation(args: argparse.Namespace) -> None:
    """Refuse validation data that is not there, or given twice, or missing."""
    from sparrowboost.readers.formats import files_of
    from sparrowboost.store.views import share_of

    if args.valid is not None and args.validation_fraction is not None:
        raise DataError("give either --valid or --validation-fraction, not both.")
    if args.valid is not None:
        files_of(args.valid, args.storage_options)
    elif args.validation_fraction is not None:
        share_of(args.validation_fraction)
    elif args.early_stopping_rounds is not None:
        raise DataError(
            "--early-stopping-rounds needs validation data; pass --valid or --validation-fraction."
        )


def check_outputs(args: argparse.Namespace) -> None:
    """Refuse results that could not be written, or would replace the data."""
    from sparrowboost.readers.formats import check_apart
    from sparrowboost.runtime.disk import output_path
    from sparrowboost.runtime.remote import output_target

    if args.checkpoint is not None:
        output_path(args.checkpoint)
    for path in (args.output, args.report, args.history):
        if path is None:
            continue
        file = output_target(path, args.storage_options)
        if isinstance(file, Path) and file.is_dir():
            raise DataError(f"{path}: is a folder; give the name of a file.")
        if isinstance(file, Path) and not _takes_files(file.parent):
            raise DataError(f"{path}: the folder {file.parent} does not exist or is not writable.")
        if args.data and not is_store(args.data[0]):
            check_apart(file, args.data, args.storage_options)
        check_apart(file, args.valid, args.storage_options)
    _check_scratch(args)
    if args.report:
        from sparrowboost.report.style import check_matplotlib

        check_matplotlib()


def _takes_files(folder: Path) -> bool:
    """Whether a file can be made there; of network file systems, its mode does not tell."""
    from sparrowboost.runtime.disk import FULL

    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return error.errno in FULL  # by then there may be room
    return True


def _check_scratch(args: argparse.Namespace) -> None:
    from sparrowboost.runtime.disk import output_path

    if args.scratch is None:
        return
    if args.checkpoint is not None:
        raise DataError("give either --scratch or --checkpoint: scratch data is in its folder.")
    if not os.access(output_path(args.scratch), os.W_OK | os.X_OK):
        raise DataError(f"{args.scratch}: the folder does not exist or is not writable.")


def check_store_options(args: argparse.Namespace) -> None:
    """Refuse options about columns and formats beside a store, which has them already."""
    first, *more = args.data
    fixed = "label", "weight", "offset", "positive", "task", "columns", "exclude", "categorical"
    given = [option for option in fixed if getattr(args, option) is not None]
    if args.valid is None:  # else they may be meant for its files
        given += given_to_read(args)
    if more or given:
        what = f"--{given[0]}" if given else "other data"
        raise DataError(f"{first} is a store, whose columns are fixed; leave out {what}.")


def is_store(path: str) -> bool:
    """Whether this is the folder of a store."""
    from sparrowboost.runtime.disk import is_remote, local_path
    from sparrowboost.store.dataset import MANIFEST

    return not is_remote(path) and (local_path(path) / MANIFEST).is_file()
