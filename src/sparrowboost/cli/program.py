"""The program: its parser, its signals, and how errors become exit codes."""

from __future__ import annotations

import argparse
import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from sparrowboost import __version__
from sparrowboost.cli import (
    demo,
    evaluate,
    export,
    importance,
    ingest,
    inspect,
    predict,
    train,
)
from sparrowboost.runtime.errors import SparrowError

OK, FAILED, INTERRUPTED = 0, 1, 130  # argparse exits with 2 after a usage error
COMMANDS = (demo, ingest, inspect, train, predict, evaluate, importance, export)
EXIT_CODES = """exit codes:
  0  success
  1  failure: one line on standard error says what is wrong, where, and what to do
  2  usage error
  130  interrupted; `sparrow train` has saved the trees grown so far"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `sparrow`; returns the exit code."""
    args = _parse(argv)
    # Before Arrow is loaded: its own allocators keep much of the memory that is freed.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for names outside its encoding
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        run: Callable[[argparse.Namespace], None] = args.run
        run(args)
        sys.stdout.flush()
        return OK
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (SparrowError, OSError) as error:  # OSError: of a disk or file, not foreseen
        if args.debug:
            raise
        print(f"sparrow: error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt as interrupt:
        outcome = str(interrupt) or "no partial output was left behind."
        print(f"sparrow: interrupted; {outcome}", file=sys.stderr)
        return INTERRUPTED


def run() -> NoReturn:
    """Run `sparrow` as a program of its own."""
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the work is done
    sys.exit(code)


def _interrupt(number: int, frame: Any) -> None:
    """SIGTERM ends a command as Ctrl-C does: partial output is removed, or saved."""
    raise KeyboardInterrupt


def make_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = argparse.ArgumentParser(
        prog="sparrow",
        description="Boosted trees for tables larger than memory.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sparrow {__version__}")
    commands = parser.add_subparsers(metavar="command")
    for command in COMMANDS:
        command.add_to(commands)
    return parser


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of a call; an unknown option is reported with the usage of its command."""
    parser = make_parser()
    args, unknown = parser.parse_known_args(argv)
    command = getattr(args, "parser", parser)
    if unknown:
        command.error(_unknown(unknown, command))
    if command is parser:
        parser.error("a command is missing; see `sparrow --help`.")
    return args


def _unknown(given: Sequence[str], parser: argparse.ArgumentParser) -> str:
    from difflib import get_close_matches

    wrong = next((word for word in given if word.startswith("-")), given[0])
    name = wrong.partition("=")[0]
    options = [option for action in parser._actions for option in action.option_strings]
    close = get_close_matches(name.replace("_", "-"), options, n=1, cutoff=0.7)
    advice = f"did you mean {close[0]}?" if close else f"see `{parser.prog} --help`."
    return f"unknown {'option' if name.startswith('-') else 'argument'} {name}; {advice}"
