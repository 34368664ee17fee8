"""Synthetic tables of any size: correlated features, a label that takes hundreds of trees."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost.datasets.writing import ROW_GROUP_ROWS, check, write_parquet

Kind = Literal["step", "product", "wave", "gate"]  # of a term of the label
Columns = npt.NDArray[np.float32]  # (features, n), C order: one column is contiguous
Vector = npt.NDArray[np.float32]  # (n,)

CHUNK_ROWS = 16_384  # rows from one generator: 20 float columns are 1.3 MB and stay in cache
PILOT_CHUNKS = 32  # half a million rows set the intercept: a rate of 0.1 is met to about 0.3 %
MIN_FEATURES = 5  # one of each marginal, see _marginals
FEATURES_PER_FACTOR = 5  # hidden factors are fewer than features, so that features correlate
SHARED_VARIANCE = (0.3, 0.8)  # of a feature, by its two hidden factors; the rest is its own
TOP_LEVEL = 4  # small-integer columns hold 0 ... 4
# a term's weight is times this, so that every kind has about the same variance
TERM_FACTORS: dict[Kind, float] = {"step": 2.0, "product": 1.1, "wave": 1.4, "gate": 2.0}
MIN_TERMS = 4  # of each kind: enough that a few dozen trees cannot learn 5 features
FEATURES_PER_TERM = 4  # of each kind, in wide tables
CLIP = 2.0  # of a factor of a product, in standard deviations: no single row has a huge logit
# spread of the true logit, SD_RARE + SD_EVEN * sqrt(rarer label's share): at a fixed spread the
# best AUC would rise from 0.92 to 0.98 as positives get rare; this keeps it near 0.935
SD_RARE, SD_EVEN = 2.05, 2.4
CONCEPT, PILOT, ROWS, TURNS = range(4)  # first word of a spawn key: what a generator is for


def make_large(
    path: str | os.PathLike[str],
    rows: int,
    *,
    features: int = 20,
    positive_rate: float = 0.1,
    missing: float = 0.0,
    mislabeled: float = 0.0,
    random_state: int = 0,
    stream: int = 0,
    row_group_rows: int = ROW_GROUP_ROWS,
) -> Path:
    """Write a synthetic table of any size to one Parquet file, in bounded memory.

    The features are correlated through a few hidden factors; two in five are normal, the others
    lognormal, uniform or small integers. The label is drawn from a logistic model of steps,
    products, waves and waves that a second feature turns on, so that a boosted model needs
    hundreds of small trees to come near the best possible AUC (about 0.93).

    Row i is the same in every table of one `random_state`, `stream` and `features` and one
    `positive_rate`: a longer table starts with the rows of a shorter one. `missing` blanks cells
    and changes nothing else, `mislabeled` turns labels and changes nothing else. The numbers may
    differ between NumPy versions.

    Parameters
    ----------
    path : path
        Where to write; an existing file is replaced, once the new one is whole.
    rows : int
        At least 1.
    features : int
        Columns ``f0``, ``f1``, ... (float32), at least 5.
    positive_rate : float
        Expected share of ``y = 1``, between 0 and 1.
    missing : float
        Share of null cells among the features, at least 0 and less than 1.
    mislabeled : float
        Share of the positive rows that are written as negative, at least 0 and less than 1. About
        as many negative ones are written as positive, so that `positive_rate` holds: with rare
        positives, wrong labels are a part of them that no model can explain.
    random_state : int
        Fixes the concept: how features correlate and how they make the label.
    stream : int
        Which rows of the concept are drawn; say 0 for a training table and 1 for a test table.
    row_group_rows : int
        Rows per Parquet row group; what is in memory grows with it.

    Returns
    -------
    pathlib.Path
        The file written.

    Raises
    ------
    DataError
        When an argument is out of range, or the folder of `path` does not exist.
    DiskFullError
        When the disk of `path` is full; nothing is left of the new file.

    Examples
    --------
    >>> import tempfile
    >>> import pyarrow.parquet as pq
    >>> from sparrowboost.datasets import make_large
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = pq.read_table(make_large(f"{folder}/train.parquet", 1000, features=5))
    >>> table.num_rows, table.column_names
    (1000, ['y', 'f0', 'f1', 'f2', 'f3', 'f4'])
    """
    check(rows >= 1, f"rows={rows!r}: a table needs at least 1 row.")
    check(
        features >= MIN_FEATURES,
        f"features={features!r}: the label needs at least {MIN_FEATURES} features.",
    )
    check(
        0 < positive_rate < 1,
        f"positive_rate={positive_rate!r}: both labels must occur; pass a share between 0 and 1.",
    )
    check(
        0 <= missing < 1,
        f"missing={missing!r}: pass a share of at least 0 and less than 1.",
    )
    check(
        0 <= mislabeled < 1,
        f"mislabeled={mislabeled!r}: pass a share of at least 0 and less than 1.",
    )
    check(
        mislabeled * positive_rate <= 1 - positive_rate,
        f"mislabeled={mislabeled!r}: there are too few negative rows; pass less.",
    )
    check(random_state >= 0, f"random_state={random_state!r}: pass 0 or more.")
    check(stream >= 0, f"stream={stream!r}: pass 0 or more.")
    check(row_group_rows >= 1, f"row_group_rows={row_group_rows!r}: pass 1 or more.")
    fields = [pa.field("y", pa.int8(), nullable=False)]
    fields += [pa.field(f"f{j}", pa.float32(), nullable=missing > 0) for j in range(features)]
    schema = pa.schema(fields)
    concept = _make_concept(features, positive_rate, random_state)
    batches = _made_batches(schema, concept, rows, missing, (random_state, stream))
    if mislabeled:
        # of the negative rows, as many as of the positive ones
        shares = mislabeled * positive_rate / (1 - positive_rate), mislabeled
        batches = _turn_labels(batches, shares, (random_state, stream))
    # pyarrow's defaults (snappy, dictionaries, statistics), as in users' files. Without them,
    # 1 M rows of random floats take 0.65 instead of 1.9 s, and 80 instead of 98 MB
    return write_parquet(path, schema, batches, row_group_rows=row_group_rows, options={})


class _Term(NamedTuple):
    """One term of the true logit, of features i and j."""

    kind: Kind
    weight: float
    i: int
    j: int
    threshold: float
    frequency: float
    phase: float


@dataclass(frozen=True, kw_only=True)
class _Concept:
    """What `random_state` fixes: how features correlate and how they make the label."""

    n_factors: int
    factors: npt.NDArray[np.intp]  # (features, 2) the hidden factors a feature depends on
    loadings: npt.NDArray[np.float32]  # (features, 3) of both and of own noise; unit length
    terms: tuple[_Term, ...]
    scale: float = 1.0
    intercept: float = 0.0


def _generator(random_state: int, *key: int) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(random_state, spawn_key=key)))


@lru_cache(maxsize=8)  # the pilot takes 0.3 s, and a test table follows most training tables
def _make_concept(features: int, positive_rate: float, random_state: int) -> _Concept:
    """Draw the concept, and set scale and intercept on a pilot."""
    rng = _generator(random_state, CONCEPT)
    n_factors = max(2, features // FEATURES_PER_FACTOR)
    shared = rng.uniform(*SHARED_VARIANCE, size=features)
    angle = rng.uniform(0, 2 * np.pi, size=features)
    loadings = np.sqrt([shared, shared, 1 - shared]) * [np.cos(angle), np.sin(angle), angle**0]
    concept = _Concept(
        n_factors=n_factors,
        factors=np.array([rng.permutation(n_factors)[:2] for _ in range(features)]),
        loadings=loadings.T.astype(np.float32),
        terms=_draw_terms(rng, features),
    )
    pilot = np.concatenate(
        [
            _raw_logit(concept, _draw_features(concept, _generator(random_state, PILOT, k))[1])
            for k in range(PILOT_CHUNKS)
        ]
    ).astype(np.float64)
    logit_sd = SD_RARE + SD_EVEN * min(positive_rate, 1 - positive_rate) ** 0.5
    scale = logit_sd / pilot.std()
    intercept = _intercept(scale * pilot, positive_rate)
    return replace(concept, scale=float(scale), intercept=intercept)


def _draw_terms(rng: np.random.Generator, features: int) -> tuple[_Term, ...]:
    terms = []
    for kind, factor in TERM_FACTORS.items():
        for _ in range(max(MIN_TERMS, features // FEATURES_PER_TERM)):
            i, j = rng.permutation(features)[:2].tolist()
            weight = factor * rng.uniform(0.5, 1.5) * rng.choice([-1.0, 1.0])
            threshold = rng.uniform(-0.8, 0.8)  # both sides of a step hold at least a fifth
            frequency = rng.uniform(1.5, 3.0)  # one to two waves over the bulk of a feature
            phase = rng.uniform(0, 2 * np.pi)
            terms.append(_Term(kind, float(weight), i, j, threshold, frequency, phase))
    return tuple(terms)


def _intercept(logit: npt.NDArray[np.float64], rate: float) -> float:
    """Find what to add to `logit` for a mean probability of `rate`, by bisection."""
    low, high = -100.0, 100.0  # far beyond any rate that a table could show
    for _ in range(40):  # to 1e-10
        middle = (low + high) / 2
        if _probability(logit + middle).mean() < rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _probability(logit: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return 0.5 + 0.5 * np.tanh(0.5 * logit)  # the logistic function, without overflow


def _draw_features(concept: _Concept, rng: np.random.Generator) -> tuple[Columns, Columns]:
    """Draw one chunk: the columns as written, and on the normal scale that the terms are of."""
    hidden = rng.standard_normal((concept.n_factors, CHUNK_ROWS), dtype=np.float32)
    normal = rng.standard_normal((len(concept.factors), CHUNK_ROWS), dtype=np.float32)
    # two factors a feature and no matrix product: BLAS may add up differently by thread count
    for u, (a, b), (load_a, load_b, own) in zip(
        normal, concept.factors, concept.loadings, strict=True
    ):
        u *= own
        u += load_a * hidden[a]
        u += load_b * hidden[b]
    return _marginals(normal), normal


def _marginals(normal: Columns) -> Columns:
    """Turn normal columns into those written; integer ones are rounded in `normal`, too."""
    columns = normal.copy()
    for j, (u, x) in enumerate(zip(normal, columns, strict=True)):
        match j % MIN_FEATURES:  # 0 and 3 stay normal
            case 1:
                np.exp(u, out=x)  # lognormal: a heavy tail
            case 2:  # uniform: the normal distribution function, in its tanh form, to 3e-4
                x *= u
                x *= u
                x *= 0.044715
                x += u
                x *= math.sqrt(2 / math.pi)
                np.tanh(x, out=x)
                x += 1
                x *= 0.5
            case 4:
                x += 0.5 + TOP_LEVEL / 2
                np.floor(x, out=x)
                x.clip(0, TOP_LEVEL, out=x)
                # otherwise the label would depend on values that are not in the table
                np.subtract(x, TOP_LEVEL / 2, out=u)
    return columns


def _raw_logit(concept: _Concept, normal: Columns) -> Vector:
    """Sum the terms, before scale and intercept."""
    total = np.zeros(normal.shape[1], dtype=np.float32)
    for kind, weight, i, j, threshold, frequency, phase in concept.terms:
        match kind:
            case "step":
                total += np.float32(weight) * (normal[i] > threshold)
            case "product":
                total += weight * normal[i].clip(-CLIP, CLIP) * normal[j].clip(-CLIP, CLIP)
            case "wave":
                total += weight * np.sin(frequency * normal[i] + phase)
            case "gate":
                wave = weight * np.sin(frequency * normal[j])
                total += wave * (normal[i] > threshold)
    return total


def _made_batches(
    schema: pa.Schema, concept: _Concept, rows: int, missing: float, seed: tuple[int, int]
) -> Iterator[pa.RecordBatch]:
    random_state, stream = seed
    for chunk, done in enumerate(range(0, rows, CHUNK_ROWS)):
        # a whole chunk even if fewer rows are left: row i must not depend on how many follow
        rng = _generator(random_state, ROWS, stream, chunk)
        columns, normal = _draw_features(concept, rng)
        logit = concept.scale * _raw_logit(concept, normal) + concept.intercept
        y = rng.random(CHUNK_ROWS, dtype=np.float32) < _probability(logit)
        arrays = [pa.array(y.view(np.int8))]
        for x in columns:
            blank = rng.random(CHUNK_ROWS, dtype=np.float32) < missing if missing else None
            arrays.append(pa.array(x, mask=blank))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema).slice(0, rows - done)


def _turn_labels(
    batches: Iterator[pa.RecordBatch], shares: tuple[float, float], seed: tuple[int, int]
) -> Iterator[pa.RecordBatch]:
    """Flip some labels: these shares of the negative and of the positive ones.

    It has its own random generators, so that all else is as in a table without wrong labels.
    """
    random_state, stream = seed
    for chunk, batch in enumerate(batches):
        y = batch.column(0).to_numpy()
        draws = _generator(random_state, TURNS, stream, chunk).random(CHUNK_ROWS, dtype=np.float32)
        wrong = draws[: len(y)] < np.where(y == 1, shares[1], shares[0])
        yield batch.set_column(0, batch.schema.field(0), pa.array(y ^ wrong))
