"""The text of a model file as a JSON document, within memory that the size of the text bounds.

A parsed value can take 30 times its text. So the features and trees of all but small files are
first cut apart, and each is parsed when it is checked.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from sparrowboost.model.check import DocumentError
from sparrowboost.runtime.memory import format_size

WHOLE_BYTES = 4_000_000  # of text that is parsed at once
ITEM_BYTES = 32_000_000  # of text of a feature or tree: 300,000 splits
NESTED_BYTES = 1_000_000  # of text of one that may have any lists within lists
MAX_LISTS = 1_000  # in larger ones; names of categories may have brackets, too
MAX_ITEMS = 1_000_000  # features, or trees
PEEK_BYTES = 64  # to see what comes after some spaces

# Within a string, a quote comes after a backslash: this finds nothing there.
LONG_LIST = re.compile(rb'"(features|trees)"\s*:\s*\[')
ITEM = re.compile(rb'\s*(\{(?:[^{}"]++|"(?:[^"\\]++|\\.)*+")*+\})\s*([,\]])', re.DOTALL)


class Items(Sequence[Any]):
    """The items of a list, parsed one at a time.

    Parameters
    ----------
    data : the text of the document
    spans : start and end of each item in it, one after the other
    """

    def __init__(self, data: bytes | bytearray, spans: array[int]) -> None:
        self._data, self._spans = data, spans

    def __len__(self) -> int:
        return len(self._spans) // 2

    def __getitem__(self, i: Any) -> Any:
        text = self._data[self._spans[2 * i] : self._spans[2 * i + 1]]
        if len(text) > NESTED_BYTES and text.count(b"[") + text.count(b"{") > MAX_LISTS:
            raise DocumentError(f"it has more than {MAX_LISTS:,} lists in a feature or a tree")
        return _loads(text)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))


def parse(data: bytes | bytearray) -> Any:
    """The document in a file's text; a DocumentError if there is none."""
    if data[:64].strip()[:1] not in (b"{", b"[", b""):  # some other file
        raise DocumentError("not a Sparrow model", "give a file that save_model wrote")
    if len(data) <= WHOLE_BYTES:
        return _loads(data)
    rest, lists = _cut(data)
    document = _loads(rest)
    if isinstance(document, dict):
        for key, items in lists.items():
            if document.get(key) == []:  # else the list was deeper in the document
                document[key] = items
    return document


def _cut(data: bytes | bytearray) -> tuple[bytearray, dict[str, Items]]:
    """The document with its long lists empty, and their items."""
    lists, rest, done = {}, bytearray(), 0
    while found := LONG_LIST.search(data, done):
        key = found[1].decode()
        spans, end = _spans(data, key, found.end())
        rest += data[done : found.end()] + (b"]" if spans else b"")
        _check_rest(len(rest))
        lists[key], done = Items(data, spans), end
    _check_rest(len(rest) + len(data) - done)
    return rest + data[done:], lists


def _check_rest(n_bytes: int) -> None:
    if n_bytes > WHOLE_BYTES:
        limit = format_size(WHOLE_BYTES)
        raise DocumentError(f"it has more than {limit} of text besides its features and trees")


def _spans(data: bytes | bytearray, key: str, start: int) -> tuple[array[int], int]:
    """Where the objects of a list are, and where it ends; nothing if it begins with none."""
    spans = array("q")
    while item := ITEM.match(data, start, start + ITEM_BYTES):
        spans.extend(item.span(1))
        start = item.end()
        if item[2] == b"]":
            return spans, start
        if len(spans) > 2 * MAX_ITEMS:
            raise DocumentError(f"it has more than {MAX_ITEMS:,} {key}")
    if spans or data[start : start + PEEK_BYTES].lstrip().startswith(b"{"):
        raise DocumentError(
            f"{key}[{len(spans) // 2}] is no object, is cut off, or is longer than "
            f"{format_size(ITEM_BYTES)}"
        )
    return spans, start


def _loads(text: bytes | bytearray) -> Any:
    try:
        return json.loads(
            text.decode(), object_pairs_hook=_unique_keys, parse_constant=_no_constant
        )
    except RecursionError:
        raise DocumentError("it is nested too deeply") from None
    except MemoryError:
        raise DocumentError("there is not enough memory to read it", "free some") from None
    except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise DocumentError(f"cannot be read ({error})") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(unique := dict(pairs)) < len(pairs):
        raise DocumentError("it has the same key twice")
    return unique


def _no_constant(name: str) -> Any:
    raise DocumentError(f"it has {name} where a finite number is needed")
