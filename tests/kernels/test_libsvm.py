from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrowboost.kernels.libsvm import split_tokens

pytestmark = pytest.mark.kernel


def naive(data: bytes):
    """Indices (-1: label) and texts of all tokens, by Python's own string functions."""
    tokens = []
    for line in data.split(b"\n"):
        for i, token in enumerate(line.split(b"#")[0].split()):
            if i and token.startswith(b"qid:"):
                continue
            index, _, text = token.rpartition(b":") if i else (b"-1", b":", token)
            tokens.append((int(index), text.removeprefix(b"+")))
    return tokens


def fast(data: bytes, run=split_tokens):
    index = np.empty(len(data), np.int32)
    text = np.empty(len(data), np.uint8)
    end = np.empty(len(data) + 1, np.int32)
    n = run(np.frombuffer(data, np.uint8), index, text, end)
    if n < 0:
        return n
    words = [text[end[i] : end[i + 1]].tobytes() for i in range(n)]
    return list(zip(index[:n].tolist(), words, strict=True))


number = st.sampled_from([b"1", b"+1", b"-1", b"0.5", b"1e-3", b"nan"])
pair = st.tuples(st.integers(0, 99_999), number).map(lambda p: b"%d:%s" % p)
line = st.tuples(number, st.lists(pair, max_size=5), st.sampled_from([b"", b" # 3:4", b" qid:7"]))
lines = st.lists(line.map(lambda row: b" ".join([row[0], *row[1]]) + row[2]) | st.just(b""))


@given(lines, st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_tokens_are_those_that_python_finds(rows, newline, ends_with_newline):
    data = newline.join(rows) + newline * ends_with_newline
    assert fast(data) == naive(data) == fast(data, split_tokens.py_func)


@pytest.mark.parametrize(
    ("data", "position"), [(b"1 2", 2), (b"1 a:2\n", 2), (b"1 1:2\n1 :3", 8), (b"1 2;3", 2)]
)
def test_a_token_without_an_index_is_found(data, position):
    assert fast(data) == -1 - position
