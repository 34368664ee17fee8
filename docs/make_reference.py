"""Write the parts of docs/parameters.md and docs/cli.md that come from the code.

python docs/make_reference.py

The generated text is between two marks on each page. It depends on docstrings, signatures and the
parser of the command line, but not on how a version of Python lays out its help.
"""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from sparrowboost import cli, cv, ingest, train
from sparrowboost.estimators import SparrowClassifier, SparrowRegressor
from sparrowboost.learner.params import Params

DOCS = Path(__file__).parent
FIRST = "<!-- from here on made by docs/make_reference.py -->\n"
LAST = "<!-- to here -->\n"
WIDTH = 104
OTHER = "Other Parameters"


def filled(text: str, body: str) -> str:
    """A page with this text between its marks."""
    before, rest = text.split(FIRST)
    _, after = rest.split(LAST)
    return f"{before}{FIRST}\n{body.strip()}\n\n{LAST}{after}"


# -- parameters ----------------------------------------------------------------------------------


def parameters() -> str:
    """All parameters, by function."""
    shared = {field.name for field in fields(Params)}
    parts = [
        "## Learner",
        "Parameters of `train`, `cv`, `SparrowClassifier` and `SparrowRegressor`, and options of "
        "`sparrow train` (`--learning-rate 0.2`).",
        _list(Params),
        "### The paper's constants",
        "Leave these alone, unless you study the method.",
        _list(Params, section=OTHER),
        "## `train`",
        "Besides those of the learner:",
        _list(train),
        "## `SparrowClassifier`",
        "Besides those of the learner:",
        _list(SparrowClassifier, leave_out=shared),
        _list(SparrowClassifier, leave_out=shared, section=OTHER),
        "`fit` takes",
        _list(SparrowClassifier.fit),
        "## `SparrowRegressor`",
        "As `SparrowClassifier`, for labels that are numbers: without `stopping`, `gamma_0` and "
        "`class_weight`, and with",
        _list(SparrowRegressor, leave_out=shared_with_classifier()),
        "## `ingest`",
        _list(ingest),
        "## `cv`",
        "Besides those of the learner:",
        _list(cv),
    ]
    return "\n\n".join(parts)


def shared_with_classifier() -> set[str]:
    """The parameters of `SparrowRegressor` that mean what they do in `SparrowClassifier`."""
    both = (SparrowClassifier, SparrowRegressor)
    names = set.intersection(*(set(inspect.signature(each).parameters) for each in both))
    return names - {"loss", "eval_metric"}


def _list(of: Callable[..., Any], leave_out: Any = (), section: str = "Parameters") -> str:
    """A section of the parameters of a function or class: type, default, description."""
    signature = inspect.signature(of).parameters
    items = []
    for given, type_, words in documented(of, section):
        some = [name for name in given if name not in leave_out]
        if not some:
            continue
        for name in some:
            if name not in signature:
                raise ValueError(f"{of.__name__} documents {name!r}, and has no such parameter")
        defaults = [_shown(signature[name].default) for name in some]
        head = f"**{', '.join(some)}**: {type_}"
        if any(defaults):
            same = len(set(defaults)) == 1
            head += f"; default {', '.join(defaults[:1] if same else defaults)}"
        lines = textwrap.wrap(
            f"{head}. {words}", WIDTH - 2, break_long_words=False, break_on_hyphens=False
        )
        items.append("- " + "\n  ".join(lines).rstrip())
    sections = [*documented(of, "Parameters"), *documented(of, OTHER)]
    listed = {name for given, _, _ in sections for name in given}
    for name, parameter in signature.items():
        if name not in listed and name != "self" and parameter.kind is not parameter.VAR_KEYWORD:
            raise ValueError(f"{of.__name__} does not document {name!r}")
    return "\n".join(items)


def _shown(default: Any) -> str:
    """A default as it is written; empty if there is none."""
    if default is inspect.Parameter.empty:
        return ""
    return f'`"{default}"`' if isinstance(default, str) else f"`{default!r}`"


def documented(of: Callable[..., Any], section: str) -> Iterator[tuple[list[str], str, str]]:
    """Names, type and description of the parameters in a section of a docstring."""
    lines = (inspect.getdoc(of) or "").splitlines()
    if section not in lines:
        return
    start = lines.index(section) + 2
    entry: list[str] = []
    for number, line in enumerate([*lines[start:], "end :"], start):
        ends = not line.startswith(" ") and (line != "" or _is_heading(lines, number + 1))
        if ends and entry:
            names, _, type_ = entry[0].partition(" : ")
            type_ = re.sub(r"(, optional|, default=.*)$", "", type_)
            if not names.startswith("**"):
                yield names.split(", "), type_, " ".join(part.strip() for part in entry[1:])
            entry = []
        if _is_heading(lines, number) or _is_heading(lines, number + 1):
            return
        if line.strip():
            entry.append(line)


def _is_heading(lines: list[str], number: int) -> bool:
    """Whether the line of this number is underlined."""
    return number + 1 < len(lines) and bool(re.fullmatch("-{3,}", lines[number + 1]))


# -- command line --------------------------------------------------------------------------------


def command_line() -> str:
    """All commands and their options."""
    parser = cli.make_parser()
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    every = set.intersection(*(_options(command) for command in commands.choices.values()))
    parts = [
        _exit_codes(),
        "## Options of all commands",
        _table([a for a in commands.choices["train"]._actions if set(a.option_strings) & every]),
        *(_command(name, command, every) for name, command in commands.choices.items()),
    ]
    return "\n\n".join(parts)


def _options(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings}


def _exit_codes() -> str:
    rows = re.findall(r"^ +(\d+)  (.+)$", cli.EXIT_CODES, re.MULTILINE)
    return "## Exit codes\n\n| code | means |\n|---|---|\n" + "\n".join(
        f"| {code} | {means} |" for code, means in rows
    )


def _command(name: str, parser: argparse.ArgumentParser, every: set[str]) -> str:
    example = (parser.epilog or "").removeprefix("example:\n").strip()
    parts = [f"## sparrow {name}", parser.description or "", f"    {parser.usage}"]
    plain = [group for group in parser._action_groups if not group.description]
    own = [a for group in plain for a in group._group_actions if not set(a.option_strings) & every]
    parts.append(_table(own))
    for group in parser._action_groups:
        if group.description:
            title = (group.title or "").capitalize()
            parts.append(f"{title}; {_linked(group.description)}:")
            parts.append(_table(group._group_actions))
    parts.append(f"Example:\n\n    {example}")
    return "\n\n".join(parts)


def _linked(text: str) -> str:
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", text)


def _table(actions: list[argparse.Action]) -> str:
    rows = ["| | |", "|---|---|"]
    for action in actions:
        if action.help == argparse.SUPPRESS:
            continue
        words = ((action.help or "") % {"default": action.default}).replace("|", "\\|")
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        value = _value(action)
        left = f"{names} {value}".strip() if names else f"`{value}`"
        rows.append(f"| {left} | {words} |")
    return "\n".join(rows)


def _value(action: argparse.Action) -> str:
    """The placeholder of an option's value."""
    if action.nargs == 0:
        return ""
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    name = str(action.metavar or action.dest.upper())
    return f"{name} [{name} ...]" if action.nargs == "+" else name


PAGES = {"parameters.md": parameters, "cli.md": command_line}


def main() -> None:
    """Write the pages."""
    for name, make in PAGES.items():
        page = DOCS / name
        page.write_text(filled(page.read_text(), make()))


if __name__ == "__main__":
    main()
