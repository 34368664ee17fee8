"""Tokens of text in the libsvm format."""

from __future__ import annotations

import numpy as np

from sparrowboost.kernels._jit import kernel


@kernel
def split_tokens(data, index, text, end):
    """Split lines of ``label index:value index:value ... # comment`` into indices and values.

    data  (n,)    uint8  IN   whole lines
    index (n,)    int32  OUT  the feature index of each token; -1: a label, which begins a row
    text  (n,)    uint8  OUT  the text of labels and values, concatenated
    end   (n + 1,) int32 OUT  token k is text[end[k]:end[k + 1]]; end[0] = 0

    Returns the number of tokens, or -1 - position of the first byte that cannot be parsed.
    A ``qid:`` token is skipped, as is a plus sign before a number.
    """
    n = data.shape[0]
    i = 0
    tokens = 0
    length = 0
    end[0] = 0
    in_row = False
    while i < n:
        c = data[i]
        if c == 10:  # end of line
            in_row = False
            i += 1
        elif c == 32 or c == 9 or c == 13:
            i += 1
        elif c == 35:  # a comment, to the end of the line
            while i < n and data[i] != 10:
                i += 1
        elif in_row and c == 113:  # qid:...
            while i < n and data[i] > 32:
                i += 1
        else:
            if in_row:
                start = i
                k = np.int64(0)
                while i < n and data[i] >= 48 and data[i] <= 57 and k < 100_000_000:
                    k = k * 10 + np.int64(data[i]) - 48
                    i += 1
                if i == start or i >= n or data[i] != 58:  # no digits, or no colon after them
                    return -1 - start
                i += 1
                index[tokens] = k
            else:
                index[tokens] = -1
                in_row = True
            if i < n and data[i] == 43:
                i += 1
            while i < n and data[i] > 32 and data[i] != 35:
                text[length] = data[i]
                length += 1
                i += 1
            tokens += 1
            end[tokens] = length
    return tokens
