"""The program: its parser, its signals, and how errors become exit codes."""

from __future__ import annotations

import argparse
import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TextIO

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
from sparrowboost.cli.options import LOG_FORMAT
from sparrowboost.cli.words import in_options
from sparrowboost.runtime.errors import SparrowError
from sparrowboost.runtime.logs import FORMATS, are_structured, log_to_stderr

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
COMMANDS = (demo, ingest, inspect, train, predict, evaluate, importance, export)
EXIT_CODES = """exit codes:
  0  success; also if the reader of standard output has closed it
  1  failure: one line on standard error says what is wrong, where, and what to do
  2  usage error
  130  interrupted (Ctrl-C, SIGTERM, SIGHUP); `sparrow train` has saved the trees grown so far"""

NO_MEMORY = (
    "the system gives this process no more memory; give less than it may use as --memory, or end "
    "other processes."
)

log = logging.getLogger("sparrowboost")


def main(argv: Sequence[str] | None = None) -> int:
    """Run `sparrow`; returns the exit code."""
    _open_standard_streams()
    try:
        args = _parse(argv)
    except _UsageError as error:
        _refuse(error, argv)
    # Before Arrow is loaded: its own allocators keep much of the memory that is freed.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for names outside its encoding
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, _interrupt)
    words = partial(in_options, parser=args.parser)
    with log_to_stderr(args.log_format, quiet=getattr(args, "quiet", False), words=words):
        code, message = _log_crash(args) if are_structured() else _run(args)
        if message is not None:
            _report(message, code)
    _flush(sys.stderr)
    return code


def run() -> NoReturn:
    """Run `sparrow` as a program of its own."""
    code = main()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the work is done
    sys.exit(code)


def _run(args: argparse.Namespace) -> tuple[int, str | None]:
    """Run a command; returns the exit code, and what to say of a failure."""
    code, message = OK, None
    try:
        command: Callable[[argparse.Namespace], None] = args.run
        command(args)
    except BrokenPipeError:  # the reader of the output has closed it
        pass
    except (SparrowError, OSError) as error:  # OSError: of a disk or file, not foreseen
        if args.debug:
            raise
        code, message = FAILED, f"error: {in_options(_words(error), args.parser)}"
    except MemoryError:
        if args.debug:
            raise
        code, message = FAILED, f"error: {NO_MEMORY}"
    except KeyboardInterrupt as interrupt:
        outcome = str(interrupt) or "no partial output was left behind."
        code, message = INTERRUPTED, f"interrupted; {outcome}"
    lost = _flush(sys.stdout)
    if lost is not None and code == OK:
        return FAILED, f"error: standard output cannot be written ({lost})."
    return code, message


def _log_crash(args: argparse.Namespace) -> tuple[int, str | None]:
    """Run a command; what Python would say of an error that nobody expected is a log line."""
    try:
        return _run(args)
    except Exception as error:
        message = f"error: {type(error).__name__}: {error}"
        log.error(message, exc_info=True, extra={"exit_code": FAILED})
        return FAILED, None


def _words(error: SparrowError | OSError) -> str:
    """An error in one line, with its path if that is known."""
    if isinstance(error, SparrowError) or not error.strerror:
        return str(error)
    if error.filename is None:
        what = f"{error.strerror}, for a file without a path, such as standard output"
    else:
        what = f"{os.fsdecode(error.filename)}: {error.strerror}"
    return f"{what}; --debug shows where it happened."


def _report(message: str, code: int) -> None:
    """Say how a command ended; nothing, if standard error is closed, as by a terminal that is."""
    if are_structured():
        level = logging.WARNING if code == INTERRUPTED else logging.ERROR
        log.log(level, message, extra={"exit_code": code})
        return
    with suppress(OSError):
        print(f"sparrow: {message}", file=sys.stderr)


def _flush(stream: TextIO) -> str | None:
    """Write what is left of a standard stream; why that failed, unless its reader has closed it.

    It goes nowhere then: Python would change the exit code if it failed once more.
    """
    try:
        stream.flush()
        return None
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return None if isinstance(error, BrokenPipeError) else error.strerror


def _open_standard_streams() -> None:
    """Open those that are closed, so that no other file gets the number of one of them."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def _interrupt(number: int, frame: Any) -> None:
    """SIGTERM and SIGHUP end a command as Ctrl-C does: partial output is removed, or saved."""
    raise KeyboardInterrupt


class _UsageError(Exception):
    """A call that is wrong: a parser, and what it says."""

    def __init__(self, parser: argparse.ArgumentParser, message: str) -> None:
        super().__init__(message)
        self.parser = parser


class _Parser(argparse.ArgumentParser):
    """A parser whose errors the caller reports."""

    def error(self, message: str) -> NoReturn:
        raise _UsageError(self, message)


def _refuse(error: _UsageError, argv: Sequence[str] | None) -> NoReturn:
    """Report a wrong call, as a log line if these are JSON, and exit."""
    if _log_format(argv) != "json":
        argparse.ArgumentParser.error(error.parser, str(error))
    with log_to_stderr("json"):
        log.error("error: %s", error, extra={"exit_code": USAGE})
    sys.exit(USAGE)


def _log_format(argv: Sequence[str] | None) -> str | None:
    """The format of log lines that a call asks for, whatever else is wrong with it."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--log-format")
    given = None
    with suppress(argparse.ArgumentError):  # the option is the last word
        given = parser.parse_known_args(argv)[0].log_format
    return given or os.environ.get(LOG_FORMAT)


def make_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = _Parser(
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
    args.log_format = args.log_format or os.environ.get(LOG_FORMAT) or "text"
    if args.log_format not in FORMATS:
        parser.error(f"{LOG_FORMAT}={args.log_format}: is none of {', '.join(FORMATS)}.")
    return args


def _unknown(given: Sequence[str], parser: argparse.ArgumentParser) -> str:
    from difflib import get_close_matches

    wrong = next((word for word in given if word.startswith("-")), given[0])
    name = wrong.partition("=")[0]
    options = [option for action in parser._actions for option in action.option_strings]
    close = get_close_matches(name.replace("_", "-"), options, n=1, cutoff=0.7)
    advice = f"did you mean {close[0]}?" if close else f"see `{parser.prog} --help`."
    return f"unknown {'option' if name.startswith('-') else 'argument'} {name}; {advice}"
