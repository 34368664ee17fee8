"""The command `sparrow`: one file for each subcommand, which parses, calls the library and prints.

Importing it loads neither numpy nor the rest of the library, so that ``sparrow --help`` is quick:
each command imports what it calls when it runs.
"""

from sparrowboost.cli.program import EXIT_CODES, main, make_parser, run

__all__ = ["EXIT_CODES", "main", "make_parser", "run"]
