"""Wide and sparse tables for tests."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from constants import set_constants


def words(n=3_000, d=400, length=12, seed=0, values=(1, 1, 1, 2, 5, -1)):
    """Rows of about as many words as a log-normal says, frequent and rare, and what they tell."""
    of_table, rng = np.random.default_rng(7), np.random.default_rng([seed, n])
    share = 1 / np.arange(1, d + 1)
    order, effect = of_table.permutation(d), of_table.normal(size=d)
    lengths = np.minimum(rng.lognormal(np.log(length), 0.8, n).astype(int), d // 2)
    start = np.append(0, np.cumsum(lengths))
    column = order[rng.choice(d, start[-1], p=share / share.sum())]
    value = rng.choice(values, start[-1]).astype(float)
    matrix = sp.csr_matrix((value, column, start), (n, d))
    matrix.sum_duplicates()
    score = np.asarray(matrix @ effect).ravel() / 3 + rng.normal(size=n)
    return matrix, score


def write_libsvm(path, matrix, label, first=0):
    with open(path, "w") as file:
        for i, y in enumerate(label.tolist()):
            a, b = matrix.indptr[i : i + 2]
            pairs = zip(matrix.indices[a:b].tolist(), matrix.data[a:b].tolist(), strict=True)
            file.write(f"{y} " + " ".join(f"{c + first}:{x:.17g}" for c, x in pairs) + "\n")
    return str(path)


def as_wide(patch, columns=50):
    """Let tables of a few columns be stored as those of thousands are."""
    set_constants(patch, sparse_columns=columns)


def as_narrow(patch):
    """Let no table be stored packed."""
    set_constants(patch, sparse_columns=10**9)
