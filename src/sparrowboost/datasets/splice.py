"""Real splice sites: every AG of a chromosome with the bases around it.

A chrN.npz gives one row for every AG whose whole window is known (no N):

    offset    -60 ... -1 | +0 +1 | +2 ... +80
    base       .       . |  A  G |  .       .       141 columns, p-60 ... p+80
                  intron         |  exon            y = 1 where p+2 starts an annotated exon

The minus strand is its reverse complement with every position mirrored (n - 1 - pos), so one
search serves both strands.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparrowboost.datasets.writing import ROW_GROUP_ROWS, check, write_parquet
from sparrowboost.runtime.errors import DataError

Part = Literal["train", "test", "all"]
Bases = npt.NDArray[np.uint8]  # (n,) codes of one strand, indices into BASES
Runs = npt.NDArray[np.int64]  # (k, 2) start, stop of intervals of a strand, in order
Positions = npt.NDArray[np.int32]  # (sites,) of the A of each AG, ascending
Labels = npt.NDArray[np.uint8]  # (sites,) 0 or 1

BASES = ("A", "C", "G", "T")  # in the order of their packed codes; the complement of c is 3 - c
A, G = BASES.index("A"), BASES.index("G")
BEFORE = 60  # bases of a window before its A
AFTER = 81  # bases of a window from its A on
WIDTH = BEFORE + AFTER
STRANDS = ("plus", "minus")  # the order of the rows
TEST_FROM = 0.8  # the last fifth of chromosome 21 has 1,282 positives: an AUC is known to 0.01
SCAN_BASES = 1 << 20  # bases searched for AG at once: they and their masks stay in cache
# Measured on 1.05 M rows, CPU seconds to write / to read / MB (pyarrow 26):
#   none 1.71 / 0.48 / 37.1    snappy 1.81 / 0.54 / 37.1    zstd 2.23 / 0.58 / 37.1
# four letters in two bits leave nothing to compress. Statistics take 1 s more and are of no use,
# since no reader skips rows of this table.
PARQUET_OPTIONS: dict[str, Any] = {"compression": "none", "write_statistics": False}


def splice_schema() -> pa.Schema:
    """Return the schema of the splice-site table.

    Returns
    -------
    pyarrow.Schema
        ``y`` (int8, 0 or 1), then ``p-60`` ... ``p+80``, each a dictionary of A, C, G and T.

    Examples
    --------
    >>> from sparrowboost.datasets import splice_schema
    >>> names = splice_schema().names
    >>> names[:2], names[60:63], names[-1]
    (['y', 'p-60'], ['p-1', 'p+0', 'p+1'], 'p+80')
    """
    base = pa.dictionary(pa.int8(), pa.string())
    # not null: Parquet then keeps no definition levels, and writes and reads in two thirds the time
    fields = [pa.field("y", pa.int8(), nullable=False)]
    fields += [pa.field(f"p{k:+d}", base, nullable=False) for k in range(-BEFORE, AFTER)]
    return pa.schema(fields)


def splice_batches(
    part: Part = "train", *, chromosome: str | os.PathLike[str] | None = None, rows: int = 65_536
) -> Iterator[pa.RecordBatch]:
    """Stream candidate acceptor splice sites: every AG with the bases around it.

    Plus-strand rows come first, by position, then minus-strand rows, by position along their own
    strand. Memory holds the bases of one strand (a byte each), where its sites are, and one batch.

    Parameters
    ----------
    part : {"train", "test", "all"}
        ``"test"`` is the last fifth of the known bases, both strands; ``"train"`` is what lies
        before. A window across the cut is in neither, so the two parts share no base.
    chromosome : path, optional
        Another packed chromosome (``chrN.npz``); the packaged human chromosome 21 if not given.
    rows : int
        Rows per batch; the last batch of a strand may have fewer.

    Yields
    ------
    pyarrow.RecordBatch
        Of `splice_schema`.

    Raises
    ------
    DataError
        When an argument is out of range, or the file is missing or not a packed chromosome.

    Examples
    --------
    >>> from sparrowboost.datasets import splice_batches
    >>> batch = next(splice_batches(rows=1000))
    >>> batch.num_rows, batch.num_columns
    (1000, 142)
    >>> set(batch["p+0"].to_pylist()), set(batch["p+1"].to_pylist())
    ({'A'}, {'G'})
    """
    _check_part(part)
    check(rows >= 1, f"rows={rows!r}: a batch needs at least 1 row.")
    # read here, not in the generator: a bad file is reported by the call that names it
    packed = _read_chromosome(chromosome)
    return (batch for strand in STRANDS for batch in _strand_batches(packed, strand, part, rows))


def load_splice(
    part: Part = "train", *, chromosome: str | os.PathLike[str] | None = None
) -> tuple[npt.NDArray[np.uint8], Labels]:
    """Load the splice sites as arrays, the rows of `splice_batches` in the same order.

    Parameters
    ----------
    part : {"train", "test", "all"}
        See `splice_batches`.
    chromosome : path, optional
        See `splice_batches`.

    Returns
    -------
    X : ndarray of uint8, shape (n, 141), C order
        Codes 0, 1, 2, 3 for A, C, G, T. All of chromosome 21 takes 680 MB.
    y : ndarray of uint8, shape (n,)
        1 where the AG is an annotated acceptor.

    Raises
    ------
    DataError
        As `splice_batches`.

    Examples
    --------
    >>> from sparrowboost.datasets import load_splice
    >>> X, y = load_splice("test")
    >>> X.shape[1], y.shape == X.shape[:1]
    (141, True)
    """
    _check_part(part)
    packed = _read_chromosome(chromosome)
    # sites first, to allocate X once; unpacking a strand again is cheaper than keeping two
    sites = [_sites(packed, strand, part, _unpack(packed, strand)) for strand in STRANDS]
    y = np.concatenate([labels for _, labels in sites])
    X = np.empty((len(y), WIDTH), dtype=np.uint8)
    row = 0
    for strand, (positions, _) in zip(STRANDS, sites, strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(_unpack(packed, strand), WIDTH)
        for lo in range(0, len(positions), ROW_GROUP_ROWS):  # the copy an index makes stays small
            starts = positions[lo : lo + ROW_GROUP_ROWS] - BEFORE
            X[row : row + len(starts)] = windows[starts]
            row += len(starts)
    return X, y


def write_splice(
    path: str | os.PathLike[str],
    part: Part = "train",
    *,
    chromosome: str | os.PathLike[str] | None = None,
) -> Path:
    """Write the splice sites as one Parquet file.

    The file appears under its name only when it is whole.

    Parameters
    ----------
    path : path
        Where to write; an existing file is replaced.
    part : {"train", "test", "all"}
        See `splice_batches`.
    chromosome : path, optional
        See `splice_batches`.

    Returns
    -------
    pathlib.Path
        The file written.

    Raises
    ------
    DataError
        As `splice_batches`, and when the folder of `path` does not exist.
    DiskFullError
        When the disk of `path` is full; nothing is left of the new file.

    Examples
    --------
    >>> from sparrowboost.datasets import write_splice
    >>> write_splice("/nowhere/a.parquet", "test")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    sparrowboost...DataError: /nowhere/a.parquet: there is no folder /nowhere; create it first.
    """
    batches = splice_batches(part, chromosome=chromosome, rows=ROW_GROUP_ROWS)
    return write_parquet(
        path, splice_schema(), batches, row_group_rows=ROW_GROUP_ROWS, options=PARQUET_OPTIONS
    )


def _check_part(part: str) -> None:
    known = get_args(Part)
    check(part in known, f"part={part!r} is unknown; pass one of {', '.join(known)}.")


@dataclass(frozen=True, kw_only=True)
class _Chromosome:
    """A packed chromosome; `known` is on the plus strand, the rest is by strand, on that strand."""

    packed: npt.NDArray[np.uint8]  # four bases a byte, lowest bits first
    n: int  # bases
    known: Runs  # intervals without N
    acceptors: dict[str, npt.NDArray[np.int64]]  # first exon base after each acceptor
    dropped: dict[str, npt.NDArray[np.int64]]  # the same, of sites that are left out


# raised by NumPy if a file is damaged or not an .npz, and by _parse_chromosome if it is wrong
_UNREADABLE = (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error)


def _read_chromosome(chromosome: str | os.PathLike[str] | None) -> _Chromosome:
    source: Traversable = Path(chromosome) if chromosome is not None else _packaged()
    try:
        with source.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return _parse_chromosome({name: arrays[name] for name in arrays.files})
    except FileNotFoundError as error:
        raise DataError(f"{source}: no such file; pass the path of a chrN.npz.") from error
    except _UNREADABLE as error:
        raise DataError(
            f"{source}: not a packed chromosome ({error}); pass a chrN.npz with packed, n, nruns, "
            "acc_plus, acc_minus, drop_plus and drop_minus."
        ) from error


def _packaged() -> Traversable:
    return resources.files("sparrowboost") / "data" / "chr21.npz"


def _parse_chromosome(arrays: dict[str, npt.NDArray[Any]]) -> _Chromosome:
    """Check and arrange the arrays of a chrN.npz; raise ValueError or KeyError on a bad one."""
    packed, n = arrays["packed"], int(arrays["n"])
    if packed.dtype != np.uint8 or packed.ndim != 1 or not 0 < n < np.iinfo(np.int32).max:
        raise ValueError(f"n is {n}, packed is {packed.ndim}-d {packed.dtype}")
    if len(packed) != -(-n // 4):
        raise ValueError(f"{n} bases do not fill {len(packed)} bytes")
    unknown = arrays["nruns"].astype(np.int64).reshape(-1, 2)
    edges = np.concatenate([[0], unknown.ravel(), [n]])
    if (np.diff(edges) < 0).any():
        raise ValueError("nruns are not in order within 0 ... n")
    known = edges.reshape(-1, 2)  # what lies between the runs of N
    positions = {}
    for name in ("acc_plus", "acc_minus", "drop_plus", "drop_minus"):
        positions[name] = arrays[name].astype(np.int64).ravel()
        if ((positions[name] < 0) | (positions[name] >= n)).any():
            raise ValueError(f"{name} has positions outside 0 ... n - 1")
    return _Chromosome(
        packed=packed,
        n=n,
        known=known,
        acceptors={"plus": positions["acc_plus"], "minus": n - 1 - positions["acc_minus"]},
        dropped={"plus": positions["drop_plus"], "minus": n - 1 - positions["drop_minus"]},
    )


def _unpack(chromosome: _Chromosome, strand: str) -> Bases:
    packed, n = chromosome.packed, chromosome.n
    quads = np.empty((len(packed), 4), dtype=np.uint8)
    if strand == "plus":
        for column in range(4):
            np.bitwise_and(packed >> 2 * column, 3, out=quads[:, column])
        return quads.reshape(-1)[:n]
    for column in range(4):  # reverse complement, without a second copy of the strand
        np.subtract(3, packed[::-1] >> 2 * (3 - column) & 3, out=quads[:, column])
    return quads.reshape(-1)[quads.size - n :]


def _part_runs(chromosome: _Chromosome, strand: str, part: Part) -> Runs:
    """Intervals of the strand that windows of the part must not leave."""
    runs = chromosome.known
    if part != "all":
        # the cut has TEST_FROM of all known bases before it
        #   known   [......]   [.........|......]     [....]
        #            train      train   cut  test      test
        upto = np.cumsum(runs[:, 1] - runs[:, 0])  # known bases to the end of each run
        before_cut = int(TEST_FROM * upto[-1])
        run = np.searchsorted(upto, before_cut)
        cut = runs[run, 1] - (upto[run] - before_cut)
        bounds = (0, cut) if part == "train" else (cut, chromosome.n)
        runs = runs.clip(*bounds)
    return runs if strand == "plus" else chromosome.n - runs[::-1, ::-1]


def _sites(
    chromosome: _Chromosome, strand: str, part: Part, bases: Bases
) -> tuple[Positions, Labels]:
    """Find every AG whose window stays in one run of the part, and label it."""
    found = [np.empty(0, dtype=np.int32)]
    for start, stop in _part_runs(chromosome, strand, part).tolist():
        end = stop - AFTER + 1  # of the positions an A may have
        for lo in range(start + BEFORE, end, SCAN_BASES):
            hi = min(lo + SCAN_BASES, end)
            hits = (bases[lo:hi] == A) & (bases[lo + 1 : hi + 1] == G)
            found.append((np.flatnonzero(hits) + lo).astype(np.int32))
    positions = np.concatenate(found)
    positions = np.delete(positions, _where(positions, chromosome.dropped[strand] - 2))
    labels = np.zeros(len(positions), dtype=np.uint8)
    labels[_where(positions, chromosome.acceptors[strand] - 2)] = 1
    return positions, labels


def _where(positions: Positions, wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Return the indices in `positions` of those `wanted` that are there."""
    # not np.isin: it would sort millions of positions for a few thousand
    first = np.searchsorted(positions, wanted)
    stop = np.searchsorted(positions, wanted, side="right")
    return first[first < stop]


def _strand_batches(
    chromosome: _Chromosome, strand: str, part: Part, rows: int
) -> Iterator[pa.RecordBatch]:
    schema = splice_schema()
    letters = pa.array(BASES)
    bases = _unpack(chromosome, strand)
    positions, labels = _sites(chromosome, strand, part, bases)
    for lo in range(0, len(positions), rows):
        here = positions[lo : lo + rows]
        codes = _gather(bases, here)
        columns = [pa.array(labels[lo : lo + rows].view(np.int8))]
        columns += [pa.DictionaryArray.from_arrays(c, letters, safe=False) for c in codes]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _gather(bases: Bases, positions: Positions) -> npt.NDArray[np.int8]:
    """Return the windows at `positions`, shape (WIDTH, n): row j is bases[positions + j - BEFORE].

    Positions count from the first window of the batch, so that one index array serves every
    offset: only the start of the slice moves.
    """
    start = int(positions[0]) - BEFORE
    index = (positions - positions[0]).astype(np.intp)
    codes = np.empty((WIDTH, len(positions)), dtype=np.uint8)
    for offset in range(WIDTH):
        # clip: in range anyway, and unlike "raise" it needs no second buffer for out
        bases[start + offset :].take(index, out=codes[offset], mode="clip")
    return codes.view(np.int8)
