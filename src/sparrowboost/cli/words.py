"""Messages of the library in the words of a command: options instead of Python's parameters.

The library says ``exclude=['id']`` or, where both may be meant, ``header=False (--no-header)``. A
command says ``--exclude id`` and ``--no-header``.
"""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from typing import Any

RENAMED = {
    "memory_limit": "memory", "n_jobs": "jobs", "random_state": "seed",
    "monotone_constraints": "monotone", "class_weight": "balanced",
    "fraction": "validation_fraction",
}  # fmt: skip
STRING = r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\""
NUMBER = r"-?(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|inf|nan)"
VALUE = rf"{STRING}|\[[^\]\n]*\]|\{{[^}}\n]*\}}|True|False|None|\.\.\.|{NUMBER}|"
# A word, which may be a parameter, and its value; not part of a path or of what is in quotes.
PARAMETER = re.compile(
    rf"(?<![^\s(])(?P<name>[a-z][a-z0-9_]*)(?:=(?P<value>{VALUE}))?(?=[\s,;:.)]|$)"
)
LISTS_NAMES = re.compile("column|feature")  # a message that may have names of columns, unquoted
SAID = re.compile(r" \((?P<alone>--[^()]*)\)|, (?P<last>--[^(),]*)(?=\))")
BETWEEN = re.compile(r",\s+|\s+(?=--)")


def in_options(message: str, parser: argparse.ArgumentParser) -> str:
    """A message of the library, with the options of a command.

    Examples
    --------
    >>> parser = argparse.ArgumentParser()
    >>> for option in ("--label", "--exclude", "--memory"):
    ...     _ = parser.add_argument(option)
    >>> in_options("which column is the label? Pass label= (--label).", parser)
    'which column is the label? Pass --label.'
    >>> in_options("leave it out (exclude=['a b']), or give more than memory_limit.", parser)
    "leave it out (--exclude 'a b'), or give more than --memory."
    """
    options = _options(parser)
    made = PARAMETER.sub(lambda found: _option(found, options), message)
    return made if made == message else SAID.sub(_unsaid, made)


def _options(parser: argparse.ArgumentParser) -> dict[tuple[str, Any], str]:
    """The options of a command by parameter and, of those that take no value, by what they set."""
    options: dict[tuple[str, Any], str] = {}
    for action in parser._actions:
        name = next((n for n in action.option_strings if n.startswith("--")), None)
        if name is None or action.help == argparse.SUPPRESS:
            continue
        if action.nargs == 0:
            options[action.dest, action.const] = name
        else:
            options[action.dest, None] = name
            options[action.dest, ...] = f"{name} {action.metavar}"
    return options


def _option(found: re.Match[str], options: dict[tuple[str, Any], str]) -> str:
    """The option for what may be a parameter; the same word if there is none."""
    dest, text = RENAMED.get(found["name"], found["name"]), found["value"]
    if text is None and ("_" not in found["name"] or _may_be_column(found)):
        return found[0]
    if text in ("True", "False", "..."):
        return options.get((dest, ast.literal_eval(text)), found[0])
    option = options.get((dest, None)) or options.get((dest, True))
    if option is None:
        return found[0]
    return f"{option} {_written(text)}" if text else option


def _may_be_column(found: re.Match[str]) -> bool:
    return found.start() > 0 and LISTS_NAMES.search(found.string) is not None


def _written(text: str) -> str:
    """A value as one writes it in a shell."""
    value: Any = text if re.fullmatch(NUMBER, text) else ast.literal_eval(text)
    if isinstance(value, dict):
        value = [f"{key}={of}" for key, of in value.items()]
    return shlex.quote(",".join(map(str, value)) if isinstance(value, list) else str(value))


def _unsaid(found: re.Match[str]) -> str:
    """Nothing, where a message names options in brackets that it has named before."""
    before = found.string[: found.start()]
    said = all(option in before for option in BETWEEN.split(found["alone"] or found["last"]))
    return "" if said else found[0]
