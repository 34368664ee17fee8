"""The command `sparrow`: parse, one library call, print."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sparrowboost import __version__
from sparrowboost.errors import SparrowError

if TYPE_CHECKING:
    from sparrowboost.store import Dataset

OK, FAILED, INTERRUPTED = 0, 1, 130  # argparse itself exits with 2 for a wrong call
SHOWN_FEATURES = 20


def main(argv: Sequence[str] | None = None) -> int:
    """Run `sparrow`; returns the exit code."""
    args = _parser().parse_args(argv)
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
    signal.signal(signal.SIGTERM, _stop)
    try:
        run: Callable[[argparse.Namespace], None] = args.run
        run(args)
        return OK
    except SparrowError as error:
        if args.debug:
            raise
        print(f"sparrow: error: {error}", file=sys.stderr)
        return FAILED
    except OSError as error:  # what nobody foresaw, of a disk or a file
        if args.debug:
            raise
        print(f"sparrow: error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("sparrow: interrupted; nothing half-made was left.", file=sys.stderr)
        return INTERRUPTED


def _stop(number: int, frame: Any) -> None:
    """End as Ctrl-C does: what is half-made is removed."""
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sparrow", description="Boosted trees for tables larger than memory."
    )
    parser.add_argument("--version", action="version", version=f"sparrow {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    _add_demo(commands)
    _add_ingest(commands)
    _add_inspect(commands)
    return parser


def _add(commands: Any, name: str, run: Callable[..., None], what: str, example: str) -> Any:
    parser = commands.add_parser(
        name,
        help=what,
        description=what,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--debug", action="store_true", help="show a traceback on errors")
    parser.set_defaults(run=run)
    return parser


def _add_quiet(parser: Any) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_demo(commands: Any) -> None:
    parser = _add(
        commands,
        "demo",
        _demo,
        "Run the main job on human chromosome 21, which comes with the package.",
        "sparrow demo --memory 512MB",
    )
    parser.add_argument("--memory", default="512MB", help="memory limit (default: %(default)s)")
    parser.add_argument("--keep", metavar="DIR", help="keep the data and the store in this folder")
    _add_quiet(parser)


def _demo(args: argparse.Namespace) -> None:
    from sparrowboost.demo import run_demo

    result = run_demo(memory_limit=args.memory, keep=args.keep, verbose=0 if args.quiet else 1)
    last, data = result.last, result.dataset
    print(_summary(data))
    print(result.model)
    print(
        f"test: {result.n_test:,} rows, {result.n_test_positive:,} positive: "
        f"AUC {result.auc:.4f}, average precision {result.average_precision:.4f}\n"
        f"time: {result.ingest_seconds:.1f} s to ingest {result.source_bytes / 1e6:,.0f} MB of "
        f"Parquet, {result.train_seconds:.1f} s to train, {result.predict_seconds:.1f} s to "
        f"predict (and {result.write_seconds:.1f} s to write the files)\n"
        f"memory: peak {result.peak_bytes / 1e6:,.0f} MB of {args.memory}\n"
        f"samples: {last.n_samples}, the last of {last.sample_rows:,} rows; "
        f"{last.rows_read / last.rows_kept:.1f} rows read for each kept, "
        f"{last.rows_read / result.n_rules:,.0f} read and "
        f"{last.rows_scanned / result.n_rules:,.0f} scanned for each of {result.n_rules} rules, "
        f"where a full pass is {data.n_rows:,}"
    )


def _add_ingest(commands: Any) -> None:
    parser = _add(
        commands,
        "ingest",
        _ingest,
        "Turn files into a shuffled, binned store, in bounded memory.",
        "sparrow ingest 'data/*.parquet' --label clicked --memory 512MB -o store/",
    )
    parser.add_argument(
        "data", nargs="+", help="files, globs or folders: Parquet, CSV, Arrow, libsvm or .npy"
    )
    parser.add_argument("-o", "--output", required=True, help="the store's folder, to be made")
    parser.add_argument("--label", help="label column (or a .npy file); libsvm files have theirs")
    parser.add_argument("--weight", help="sample weight column (or a .npy file)")
    parser.add_argument("--positive", help="label to train against all others")
    for option, what in (
        ("--columns", "columns to use as features"),
        ("--exclude", "columns to leave out"),
        ("--categorical", "columns to read as categories"),
    ):
        parser.add_argument(
            option, metavar="A,B", action="append", help=f"{what}, with commas between or repeated"
        )
    parser.add_argument(
        "--memory", help="memory limit, such as 512MB (default: a quarter of what there is)"
    )
    parser.add_argument(
        "--no-header", dest="header", action="store_false", help="CSV files name no columns"
    )
    parser.add_argument("--format", help="of files whose suffix does not tell: parquet, csv, ...")
    parser.add_argument("--overwrite", action="store_true", help="replace a store that is there")
    parser.add_argument("--seed", type=int, default=0, help="random state (default: %(default)s)")
    parser.add_argument("--jobs", type=int, help="threads (default: all that may be used)")
    _add_quiet(parser)


def _ingest(args: argparse.Namespace) -> None:
    from sparrowboost.build import ingest

    dataset = ingest(
        args.data,
        label=args.label,
        path=args.output,
        weight=args.weight,
        positive=args.positive,
        columns=_names(args.columns),
        exclude=_names(args.exclude),
        categorical=_names(args.categorical),
        memory_limit=args.memory,
        header=args.header,
        format=args.format,
        overwrite=args.overwrite,
        n_jobs=args.jobs,
        random_state=args.seed,
        verbose=0 if args.quiet else 1,
    )
    if not args.quiet:
        print(_summary(dataset))


def _names(given: list[str] | None) -> list[str] | None:
    """Names of an option that may be repeated and may hold several."""
    return None if given is None else [name for part in given for name in part.split(",")]


def _add_inspect(commands: Any) -> None:
    parser = _add(
        commands,
        "inspect",
        _inspect,
        "Show what a store holds: rows, features, bins, positives, bytes.",
        "sparrow inspect store/",
    )
    parser.add_argument("store", help="the store's folder")
    parser.add_argument("--all", action="store_true", help="show every feature")
    parser.add_argument("--verify", action="store_true", help="check every block's checksum, too")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _inspect(args: argparse.Namespace) -> None:
    from sparrowboost.store import Dataset

    dataset = Dataset(args.store, verify=args.verify)
    if args.json:
        print(json.dumps(_facts(dataset), indent=2))
        return
    _show(dataset, every=args.all)
    if args.verify:
        print(f"all {dataset.n_blocks} blocks are as they were written.")


def _facts(dataset: Dataset) -> dict[str, Any]:
    return {
        "path": str(dataset.path),
        "rows": dataset.n_rows,
        "positives": dataset.n_positive,
        "classes": list(dataset.classes),
        "label": dataset.label_name,
        "weighted": dataset.weighted,
        "bytes": dataset.n_bytes,
        "blocks": dataset.n_blocks,
        "features": [
            {"name": f.name, "kind": f.kind, "bins": f.n_values} for f in dataset.binning.features
        ],
    }


def _summary(dataset: Dataset) -> str:
    from sparrowboost.memory import format_size

    negative, positive = dataset.classes
    return (
        f"{dataset.path}: {dataset.n_rows:,} rows, {dataset.n_features} features, "
        f"{dataset.n_positive:,} positive ({dataset.n_positive / dataset.n_rows:.3%}; "
        f"{dataset.label_name} = {positive!r}"
        f"{'' if negative is None else f', else {negative!r}'}), "
        f"{'weighted, ' if dataset.weighted else ''}"
        f"{format_size(dataset.n_bytes)} in {dataset.n_blocks} blocks"
    )


def _show(dataset: Dataset, *, every: bool = False) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    print(_summary(dataset))
    features = dataset.binning.features
    shown = features if every else features[:SHOWN_FEATURES]
    table = Table("feature", "kind", box=None)
    table.add_column("bins", justify="right")
    table.add_column("from ... to")
    for feature in shown:
        table.add_row(
            escape(feature.name), feature.kind, str(feature.n_values), escape(feature.span())
        )
    Console().print(table)
    if len(shown) < len(features):
        print(f"... and {len(features) - len(shown)} more (--all)")
