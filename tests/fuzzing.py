"""Damaged files: how they are made, and what reading them may result in.

Whatever bytes a file has, reading it ends in one of Sparrow's errors, of one line, or in the rows
that another reader finds in the same bytes: Arrow, numpy, or a few lines of Python. Readers are run
in a child process of many cases, since a crash would take the tests with it:

    python fuzzing.py 100 folder t.csv t.arrow

If a child crashes, the folder has the file that it was reading.
"""

from __future__ import annotations

import csv
import faulthandler
import gzip
import io
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from constants import set_constants
from helpers import naive_rows, small_table, stored_rows
from sparrowboost import SparrowError, ingest
from sparrowboost.readers.formats import plain_words

HANG_SECONDS = 60.0  # a case takes some ten milliseconds
ROWS = 200
SPAN = 1 << 16  # positions in a file are drawn as fractions of this
TABLE = small_table(ROWS).drop(["w"])

# -- damage ----------------------------------------------------------------------------------------

places = st.integers(0, SPAN - 1)
steps = st.tuples(
    st.sampled_from(["flip", "set", "cut", "remove", "insert", "repeat", "swap"]),
    places,
    places,
    st.integers(1, 40),
    st.integers(0, 255),
)
damage = st.lists(steps, min_size=1, max_size=2)
a_bit = st.builds(lambda at, bit: [("flip", at, 0, 0, bit)], places, st.integers(0, 7))


def damaged(data: bytes, how: list[tuple[str, int, int, int, int]]) -> bytes:
    """The bytes of a file after some damage."""
    out = bytearray(data)
    for what, first, second, length, byte in how:
        if not out:
            break
        at, other = first * len(out) // SPAN, second * len(out) // SPAN
        if what == "flip":
            out[at] ^= 1 << byte % 8
        elif what == "set":
            out[at] = byte
        elif what == "cut":
            del out[at:]
        elif what == "remove":
            del out[at : at + length]
        elif what == "insert":
            out[at:at] = bytes([byte]) * (length % 4 + 1)
        elif what == "repeat":
            out[other:other] = out[at : at + length]
        else:
            a, b = out[at : at + length], out[other : other + length]
            n = min(len(a), len(b))
            out[at : at + n], out[other : other + n] = b[:n], a[:n]
    return bytes(out)


def fuzzing(examples: int) -> settings:
    """Settings for a fixed sequence of cases."""
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


# -- whole files, and what other readers find in damaged ones -------------------------------------


def parquet_bytes(**how) -> bytes:
    out = io.BytesIO()
    pq.write_table(TABLE, out, row_group_size=80, **how)
    return out.getvalue()


def arrow_bytes(table: pa.Table = TABLE, **how) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_file(out, table.schema, options=pa.ipc.IpcWriteOptions(**how)) as writer:
        writer.write_table(table, max_chunksize=80)
    return out.getvalue()


def with_views() -> pa.Table:
    """Strings in dictionaries and in views, some of them long."""
    color = TABLE["color"].combine_chunks()
    words = [None if word is None else word * 6 for word in color.to_pylist()]
    table = TABLE.set_column(2, "color", color.dictionary_encode())
    return table.append_column("word", pa.array(words, pa.string_view()))


def csv_bytes() -> bytes:
    out = io.BytesIO()
    pcsv.write_csv(TABLE, out)
    return out.getvalue()


def libsvm_bytes() -> bytes:
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(ROWS):
        there = np.flatnonzero(rng.random(5) < 0.6) + 1
        cells = [f"{j}:{rng.normal():.4g}" for j in there]
        lines.append(" ".join([str(rng.integers(2)), *cells]))
    return "\n".join(lines).encode() + b"\n"


def npy_bytes() -> bytes:
    out = io.BytesIO()
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
    x[:, 3] = x[:, 0] > 0
    np.save(out, x)
    return out.getvalue()


def columns_of(table: pa.Table) -> dict[str, list]:
    return {name: _values(table.column(name)) for name in table.column_names}


def _values(column: pa.ChunkedArray) -> list:
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    return column.to_pylist()


def read_parquet(path: Path) -> dict[str, list]:
    return columns_of(pq.read_table(path, page_checksum_verification=True, use_threads=False))


def read_arrow(path: Path) -> dict[str, list]:
    with pa.ipc.open_file(path.read_bytes()) as reader:
        return columns_of(reader.read_all())


def read_npy(path: Path) -> dict[str, list]:
    array = np.load(path, allow_pickle=False)
    return {f"f{j}": column.tolist() for j, column in enumerate(array.T)}


# What stands for a missing value in text.
NULLS = {
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null",
}  # fmt: skip


def read_csv(path: Path) -> dict[str, list]:
    """Strings, by Python's reader; `as_meant` converts them."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""))
    header, *rows = [row for row in rows if row and row != [""]]
    names = [name.strip() or f"f{i}" for i, name in enumerate(header)]
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


def read_libsvm(path: Path) -> dict[str, list]:
    rows = []
    for line in path.read_bytes().split(b"\n"):
        tokens = line.split(b"#")[0].split()
        if tokens:
            cells = [token.split(b":") for token in tokens[1:] if not token.startswith(b"qid:")]
            rows.append({"label": float(tokens[0])} | {f"f{int(k)}": float(v) for k, v in cells})
    names = {name for row in rows for name in row}
    width = max(int(name[1:]) for name in names - {"label"})
    names |= {f"f{j}" for j in range(1, width + 1)}
    return {name: [row.get(name, 0.0) for row in rows] for name in names}


def as_meant(values: list[str], kind: str) -> list:
    """Strings as values of a column of this kind."""
    if kind == "category":
        return [None if v in NULLS else words(v) for v in values]
    number = float if kind.startswith("float") else int
    return [None if v.strip() in NULLS else number(v) for v in values]


def words(cell: str) -> str:
    return plain_words(pa.array([cell]))[0].as_py()


FORMATS = {
    "checked.parquet": (parquet_bytes(write_page_checksum=True), read_parquet, "y"),
    "plain.parquet": (parquet_bytes(compression="NONE", data_page_size=300), read_parquet, "y"),
    "v2.parquet": (parquet_bytes(compression="NONE", data_page_version="2.0"), read_parquet, "y"),
    "t.arrow": (arrow_bytes(), read_arrow, "y"),
    "views.arrow": (arrow_bytes(with_views(), unify_dictionaries=True), read_arrow, "y"),
    "packed.arrow": (arrow_bytes(compression="zstd"), read_arrow, "y"),
    "t.csv": (csv_bytes(), read_csv, "y"),
    "t.csv.gz": (gzip.compress(csv_bytes(), mtime=0), read_csv, "y"),
    "t.svm": (libsvm_bytes(), read_libsvm, None),
    "t.npy": (npy_bytes(), read_npy, 3),
}  # fmt: skip


def check_reading(path: Path, name: str) -> bool:
    """Whether rows were read; if so, check that other readers find the same."""
    _, read, label = FORMATS[name]
    try:
        dataset = ingest(path, label=label, verbose=0)
    except SparrowError as error:
        assert "\n" not in str(error), str(error)
        return False
    try:
        columns = read(path)
    except (pa.ArrowException, OSError):
        # The damage is where it does not matter to our reader: then the rows are the old ones.
        path.write_bytes(FORMATS[name][0])
        columns = read(path)
    if read is read_csv:
        kinds = {feature.name: feature.kind for feature in dataset.binning.features}
        kinds[dataset.label_name] = "category" if isinstance(dataset.classes[1], str) else "float64"
        columns = {name: as_meant(columns[name], kind) for name, kind in kinds.items()}
    positive = [int(value == dataset.classes[1]) for value in columns[dataset.label_name]]
    assert stored_rows(dataset) == naive_rows(dataset, columns, positive)
    return True


def fuzz(name: str, examples: int, folder: Path) -> None:
    """Read many damaged files of one format; print how many were refused and read."""
    good = FORMATS[name][0]
    path = folder / name
    counts = [0, 0]

    @fuzzing(examples)
    @given(damage)
    def run(how):
        path.write_bytes(damaged(good, how))
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        counts[check_reading(path, name)] += 1
        faulthandler.cancel_dump_traceback_later()

    path.write_bytes(good)
    assert check_reading(path, name)
    run()
    sys.stdout.write(f"{name} {counts[0]} {counts[1]}\n")


if __name__ == "__main__":
    set_constants(
        None,
        min_paged=1,  # decode pages however few rows there are
        text_release_seconds=2 * HANG_SECONDS,  # a file that Arrow does not give back is a hang
    )
    for name in sys.argv[3:]:
        fuzz(name, int(sys.argv[1]), Path(sys.argv[2]))
