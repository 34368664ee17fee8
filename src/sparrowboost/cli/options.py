"""Options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from sparrowboost.runtime.logs import FORMATS

LOG_FORMAT = "SPARROW_LOG_FORMAT"
FILES = (
    "files, glob patterns or folders, local or remote: Parquet, CSV, JSON lines, Arrow, ORC, "
    "libsvm or .npy; Delta or Iceberg tables"
)
SOME_BLOCKS = "none; a few blocks of rows are held"
TIMEOUTS = "connect_timeout", "request_timeout", "retry_time_limit"  # seconds
READING = (
    "header", "format", "delimiter", "decimal", "thousands", "date_format", "storage_options",
)  # fmt: skip
TABLES = ("table_version", "as_of")


def add_command(
    commands: Any,
    name: str,
    usage: str,
    run: Callable[[argparse.Namespace], None],
    what: str,
    example: str,
) -> Any:
    """A subcommand with its help, an example, and the function that runs it."""
    parser = commands.add_parser(
        name,
        usage=f"sparrow {name} {usage}",
        help=what,
        description=what,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--debug", action="store_true", help="show a traceback on errors")
    parser.add_argument(
        "--log-format",
        choices=FORMATS,
        help=f"log lines as text or JSON (default: ${LOG_FORMAT}, or text)",
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def add_quiet(parser: Any) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def add_json(parser: Any) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_jobs(parser: Any) -> None:
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="number of threads (default: all available CPUs)"
    )


def add_memory(
    parser: Any,
    default: str = "a quarter of what the machine or container has; of less than 4 GB, up to 1 GB",
) -> None:
    parser.add_argument(
        "--memory", metavar="SIZE", help=f"memory limit, such as 512MB (default: {default})"
    )


def add_seed(parser: Any) -> None:
    parser.add_argument(
        "--seed", type=int, metavar="N", default=0, help="random state (default: %(default)s)"
    )


def add_columns(parser: Any) -> None:
    """Which columns are label, weight and features, and how files are read."""
    group = parser.add_argument_group("columns and formats")
    group.add_argument(
        "--label",
        metavar="COLUMN",
        help="label column (or a .npy file); libsvm files contain their labels",
    )
    group.add_argument("--weight", metavar="COLUMN", help="sample weight column (or a .npy file)")
    group.add_argument(
        "--offset",
        metavar="COLUMN",
        help="column to add to the score, such as the logarithm of the exposure (or a .npy file)",
    )
    group.add_argument("--positive", metavar="VALUE", help="label to train against all others")
    group.add_argument(
        "--task",
        choices=("classification", "regression"),
        help="what labels are: classes, or numbers to predict (default: classes; numbers of more "
        "than two values are refused without it)",
    )
    for option, what in (
        ("--columns", "columns to use as features"),
        ("--exclude", "columns to leave out"),
        ("--categorical", "columns to treat as categories"),
    ):
        group.add_argument(
            option, metavar="A,B", action="append", help=f"{what}; separate by commas or repeat"
        )
    group.add_argument(
        "--no-category-statistics",
        dest="category_statistics",
        action="store_false",
        help="columns of many categories do not also have the mean of the label and the count of "
        "each category as features",
    )
    add_format(group)


def add_offset(parser: Any) -> None:
    """The offsets of rows to predict."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--offset",
        metavar="COLUMN",
        help="column to add to the score (or a .npy file; default: as in the training data)",
    )
    either.add_argument(
        "--no-offset",
        dest="offset",
        action="store_const",
        const=False,
        help="add none, although the model was trained with offsets",
    )


def add_format(parser: Any) -> None:
    """How files are read."""
    parser.add_argument(
        "--no-header", dest="header", action="store_false", help="CSV files have no header line"
    )
    parser.add_argument(
        "--format",
        metavar="NAME",
        help="format of files whose suffix does not show it: parquet, csv, ...",
    )
    parser.add_argument(
        "--delimiter",
        metavar="C",
        help="character between cells of CSV files, or tab (default: by the first line)",
    )
    parser.add_argument(
        "--decimal",
        metavar="C",
        default=".",
        help="decimal mark of numbers in CSV files (default: %(default)s)",
    )
    parser.add_argument(
        "--thousands", metavar="C", help="mark between groups of digits in CSV files"
    )
    parser.add_argument(
        "--date-format",
        metavar="FORMAT",
        action="append",
        help="how CSV files write dates, such as %%d.%%m.%%Y; may be repeated (ISO 8601 is known)",
    )
    parser.add_argument(
        "--table-version",
        metavar="N",
        help="version of Delta tables; snapshot, branch or tag of Iceberg tables (default: the "
        "current one)",
    )
    parser.add_argument(
        "--as-of", metavar="TIME", help="the version of such tables that was current at this time"
    )

    add_storage(parser)


def add_data(parser: Any, what: str = FILES) -> None:
    """The rows: files, or the result of a query."""
    parser.add_argument("data", nargs="*", help=what)
    parser.add_argument(
        "--sql", metavar="QUERY", help="instead of files, the rows of a query (a SELECT)"
    )
    parser.add_argument(
        "--database",
        metavar="FILE",
        help="what answers the query: a file of DuckDB or SQLite, or a postgresql:// address "
        "(default: DuckDB, for queries of files)",
    )


def given_data(args: argparse.Namespace) -> Any:
    """The files of a call, or its query."""
    from sparrowboost.readers.query import sql
    from sparrowboost.runtime.errors import DataError

    if args.sql is not None and args.data:
        raise DataError(f"give either files ({args.data[0]}) or --sql, not both.")
    if args.sql is not None:
        return sql(args.sql, args.database)
    if args.database is not None:
        raise DataError("--database answers a query; give one with --sql.")
    if not args.data:
        raise DataError("give files to read, or a query with --sql.")
    return args.data


def add_storage(parser: Any) -> None:
    """How remote storage is reached."""
    parser.add_argument(
        "--storage-option",
        dest="storage_options",
        metavar="KEY=VALUE",
        action=_AddOption,
        help="how to reach s3://..., gs://..., az://..., such as endpoint_override=host:port, "
        "region=eu-central-1 or anonymous=true; may be repeated",
    )


class _AddOption(argparse.Action):
    """Adds KEY=VALUE to a dict."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        key, equals, text = values.partition("=")
        if not equals or not key.isidentifier():
            parser.error(f"argument {option}: {values!r} is not KEY=VALUE")
        value: Any = {"true": True, "false": False}.get(text.lower(), text)
        if key in TIMEOUTS:
            try:
                value = float(text)
            except ValueError:
                parser.error(f"argument {option}: {values!r}: give a number of seconds")
        given = getattr(namespace, self.dest) or {}
        setattr(namespace, self.dest, {**given, key: value})


def reading(args: argparse.Namespace) -> dict[str, Any]:
    """How files are read, as the library's keywords."""
    return {name: getattr(args, name) for name in (*READING, *TABLES)}


def given_to_read(args: argparse.Namespace) -> list[str]:
    """The options that say how files are read, of those that were given."""
    given = ["format"] * (args.format is not None) + ["no-header"] * (not args.header)
    others = ("delimiter", "thousands", "date_format", *TABLES)
    given += [name.replace("_", "-") for name in others if getattr(args, name) is not None]
    return given + ["decimal"] * (args.decimal != ".")


def verbose(args: argparse.Namespace) -> int:
    """The library's `verbose`."""
    return 0 if args.quiet else 1


def names(given: list[str] | None) -> list[str] | None:
    """Names of an option that may be repeated and may hold several."""
    return None if given is None else [name for part in given for name in part.split(",")]
