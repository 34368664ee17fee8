"""The real splice-site table."""

from __future__ import annotations

import base64
import errno
import itertools
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparrowboost.datasets import (
    load_splice,
    splice,
    splice_batches,
    splice_schema,
    write_splice,
    writing,
)
from sparrowboost.runtime.errors import DataError, DiskFullError

SHARED = Path(__file__).parents[3] / "shared" / "data"
PACKAGED = Path(splice.__file__).parents[1] / "data" / "chr21.npz"
COMPLEMENT = dict(zip("ACGTN", "TGCAN", strict=True))


# ---- a small chromosome and the naive twin -----------------------------------------------------


def pack(text: str, path: Path, **places: list[int]) -> Path:
    """Pack a string of A, C, G, T and N the way chrN.npz does."""
    codes = ["ACGT".index(base) if base != "N" else 0 for base in text]
    codes += [0] * (-len(codes) % 4)
    quads = np.array(codes, dtype=np.uint8).reshape(-1, 4)
    packed = quads[:, 0] | quads[:, 1] << 2 | quads[:, 2] << 4 | quads[:, 3] << 6
    runs, at = [], 0
    for base, group in itertools.groupby(text):
        length = len(list(group))
        if base == "N":
            runs.append((at, at + length))
        at += length
    arrays = {
        "packed": packed,
        "n": np.int64(len(text)),
        "nruns": np.array(runs, dtype=np.int64).reshape(-1, 2),
    }
    for name in ("acc_plus", "acc_minus", "drop_plus", "drop_minus"):
        arrays[name] = np.array(places.get(name, []), dtype=np.int64)
    np.savez_compressed(path, **arrays)
    return path


def unpack(path: Path) -> tuple[str, dict[str, np.ndarray]]:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    quads = np.stack([arrays["packed"] >> shift & 3 for shift in (0, 2, 4, 6)], axis=1)
    codes = quads.ravel()[: int(arrays["n"])]
    for start, stop in arrays["nruns"]:
        codes[start:stop] = 4
    return np.frombuffer(b"ACGTN", dtype="S1")[codes].tobytes().decode(), arrays


def naive_rows(text: str, places: dict[str, np.ndarray], first: int = 0) -> list[tuple[int, str]]:
    """Return (label, window) of every candidate, as the README of the data describes them."""
    n = len(text)
    rows = []
    for strand in ("plus", "minus"):
        acceptors, dropped = set(places[f"acc_{strand}"]), set(places[f"drop_{strand}"])
        if strand == "minus":
            text = "".join(COMPLEMENT[base] for base in reversed(text))
            acceptors = {n - 1 - p for p in acceptors}
            dropped = {n - 1 - p for p in dropped}
        for p in range(max(first, 60), n - 80):
            window = text[p - 60 : p + 81]
            if text[p : p + 2] == "AG" and "N" not in window and p + 2 not in dropped:
                rows.append((int(p + 2 in acceptors), window))
    return rows


def letters(batches) -> list[tuple[int, str]]:
    rows = []
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        rows += [(y, "".join(bases)) for y, *bases in zip(*columns, strict=True)]
    return rows


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """6,001 bases (no multiple of 4) with N at both ends, in the middle, and one base long."""
    rng = np.random.default_rng(7)
    text = "".join(rng.choice(list("ACGT"), size=6001))
    runs = ((0, 100), (2000, 2300), (4000, 4001), (5900, 6001))
    for start, stop in runs:
        text = text[:start] + "N" * (stop - start) + text[stop:]
    for (_, start), (stop, _) in itertools.pairwise(runs):
        # windows of either strand that just fit between two runs of N, at either end
        for at, site in (
            (start + 60, "AG"),
            (stop - 81, "AG"),
            (start + 79, "CT"),
            (stop - 62, "CT"),
        ):
            text = text[:at] + site + text[at + 2 :]
    sites = [p for p in range(200, 5800) if text[p : p + 2] == "AG"]
    mirrored = [p for p in range(200, 5800) if text[p : p + 2] == "CT"]
    return pack(
        text,
        tmp_path_factory.mktemp("small") / "chr0.npz",
        acc_plus=[p + 2 for p in sites[::7]],
        acc_minus=[p - 1 for p in mirrored[::5]][::-1],  # as in the real files, descending
        drop_plus=[p + 2 for p in sites[3::40]],
        drop_minus=[p - 1 for p in mirrored[2::30]] + [50],
    )


@pytest.fixture(scope="module")
def packaged() -> tuple[str, dict[str, np.ndarray]]:
    return unpack(PACKAGED)


@pytest.fixture(scope="module")
def last_fifth() -> tuple[np.ndarray, np.ndarray]:
    return load_splice("test")


# ---- splice sites ------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [37, 65_536])
def test_batches_hold_the_windows_that_a_naive_search_finds(small, rows):
    text, arrays = unpack(small)
    expected = naive_rows(text, arrays)
    assert len(expected) > 300 and {y for y, _ in expected} == {0, 1}
    batches = list(splice_batches("all", chromosome=small, rows=rows))
    assert max(batch.num_rows for batch in batches) <= rows
    assert letters(batches) == expected


@pytest.mark.slow
def test_first_windows_of_chromosome_21_are_those_of_a_naive_search(packaged):
    text, arrays = packaged
    start = int(arrays["nruns"][0][1])
    expected = naive_rows(text[: start + 20_000], arrays, start)[:300]
    assert letters([next(splice_batches("all", rows=300))]) == expected


def test_first_minus_windows_of_chromosome_21_are_those_of_a_naive_search(packaged):
    text, arrays = packaged
    n = len(text)
    tail = n - int(arrays["nruns"][-1][0])  # the N at the end come first on the minus strand
    flipped = "".join(COMPLEMENT[base] for base in reversed(text[n - tail - 20_000 :]))
    acceptors = {n - 1 - p for p in arrays["acc_minus"]}
    expected = [
        (int(p + 2 in acceptors), flipped[p - 60 : p + 81])
        for p in range(tail + 60, tail + 15_000)
        if flipped[p : p + 2] == "AG" and "N" not in flipped[p - 60 : p + 81]
    ][:300]
    chromosome = splice._read_chromosome(PACKAGED)
    assert letters([next(splice._strand_batches(chromosome, "minus", "all", 300))]) == expected


def test_every_row_has_its_ag_in_the_middle(last_fifth):
    X, _ = last_fifth
    assert (X[:, 60] == 0).all() and (X[:, 61] == 2).all()
    assert X.flags.c_contiguous and X.dtype == np.uint8


@pytest.mark.slow
def test_chromosome_21_has_the_rows_of_the_readme():
    y = np.concatenate([batch["y"].to_numpy() for batch in splice_batches("all", rows=1 << 18)])
    assert (len(y), int(y.sum())) == (4_820_509, 3_135)


def test_chromosome_19_has_the_rows_of_the_readme():
    path = SHARED / "chr19.npz"
    if not path.exists():
        pytest.skip(f"{path} is not here: it is not part of the repository")
    labels = [labels for _, labels in sites_of(path, "all").values()]
    assert sum(map(len, labels)) == 8_701_346
    assert sum(int(y.sum()) for y in labels) == 15_609


def sites_of(path: Path, part: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    packed = splice._read_chromosome(path)
    return {
        strand: splice._sites(packed, strand, part, splice._unpack(packed, strand))
        for strand in splice.STRANDS
    }


@pytest.mark.parametrize("which", ["small", "packaged"])
def test_train_and_test_share_no_base(which, small):
    path = small if which == "small" else PACKAGED
    with np.load(path) as file:
        n = int(file["n"])
    reach = {}  # first base and end of all windows of a part, on the plus strand
    for part in ("train", "test"):
        plus, minus = (positions for positions, _ in sites_of(path, part).values())
        assert len(plus) and len(minus)
        starts = np.concatenate([plus - 60, n - (minus + 81)])
        reach[part] = starts.min(), starts.max() + 141
    assert reach["train"][1] <= reach["test"][0]


def test_parts_are_the_whole_less_the_windows_across_the_cut():
    sizes = {
        part: sum(len(labels) for _, labels in sites_of(PACKAGED, part).values())
        for part in ("train", "test", "all")
    }
    dropped = sizes["all"] - sizes["train"] - sizes["test"]
    assert 0 < dropped < 2 * 141  # a window at each of 140 places, on either strand
    # the cut has a fifth of the known bases after it, and AG is nearly as common everywhere
    assert sizes["test"] / sizes["all"] == pytest.approx(0.2, abs=0.02)


def test_loaded_arrays_are_the_batches_row_for_row(last_fifth):
    X, y = last_fifth
    row = 0
    for batch in splice_batches("test", rows=200_000):
        here = slice(row, row + batch.num_rows)
        np.testing.assert_array_equal(batch["y"].to_numpy(), y[here])
        for j in range(0, 141, 7):
            np.testing.assert_array_equal(batch.column(j + 1).indices.to_numpy(), X[here, j])
        row += batch.num_rows
    assert row == len(X)


def stored_schema(path):
    """The schema as written; older versions of pyarrow read wider dictionary indices."""
    stored = pq.read_metadata(path).metadata[b"ARROW:schema"]
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(stored)))


def test_parquet_file_gives_back_the_rows_and_the_schema(small, tmp_path):
    path = write_splice(tmp_path / "all.parquet", "all", chromosome=small)
    table = pq.read_table(path)
    assert stored_schema(path).equals(splice_schema())
    batches = splice_batches("all", chromosome=small)
    assert table.to_pylist() == pa.Table.from_batches(batches).to_pylist()
    assert [p.name for p in tmp_path.iterdir()] == ["all.parquet"]


@pytest.mark.slow
def test_parquet_row_groups_are_full_across_the_strands(tmp_path, last_fifth):
    path = write_splice(tmp_path / "test.parquet", "test")
    meta = pq.ParquetFile(path).metadata
    sizes = [meta.row_group(k).num_rows for k in range(meta.num_row_groups)]
    assert set(sizes[:-1]) == {writing.ROW_GROUP_ROWS}
    assert sum(sizes) == len(last_fifth[1])


def test_chromosome_without_a_single_window_gives_an_empty_table(tmp_path):
    bare = pack("N" * 50 + "ACGT" * 20 + "N" * 50, tmp_path / "chr0.npz")
    X, y = load_splice("train", chromosome=bare)
    assert X.shape == (0, 141) and y.shape == (0,)
    path = write_splice(tmp_path / "none.parquet", chromosome=bare)
    assert stored_schema(path).equals(splice_schema())


def test_missing_chromosome_is_named(tmp_path):
    with pytest.raises(DataError, match=r"chr99\.npz: no such file"):
        splice_batches(chromosome=tmp_path / "chr99.npz")


@pytest.mark.parametrize("damage", ["text", "npy", "cut short", "bytes flipped"])
def test_file_that_is_no_chromosome_is_named(tmp_path, small, damage):
    path = tmp_path / "bad.npz"
    whole = small.read_bytes()
    if damage == "text":
        path.write_text("not an archive")
    elif damage == "npy":
        with path.open("wb") as file:
            np.save(file, np.arange(3))
    elif damage == "cut short":
        path.write_bytes(whole[: len(whole) // 2])
    else:
        path.write_bytes(whole[:300] + bytes(255 - b for b in whole[300:600]) + whole[600:])
    with pytest.raises(DataError, match=r"bad\.npz: not a packed chromosome"):
        load_splice(chromosome=path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("acc_plus", None, "acc_plus"),
        ("n", np.int64(9), "9 bases do not fill"),
        ("nruns", np.array([[50, 20]]), "nruns are not in order"),
        ("nruns", np.array([[1, 2, 3]]), "reshape"),
        ("acc_minus", np.array([10**9]), "acc_minus has positions outside"),
        ("packed", np.zeros(3), "packed is 1-d float64"),
    ],
)
def test_wrong_array_in_a_chromosome_is_described(tmp_path, small, name, value, message):
    with np.load(small) as file:
        arrays = {key: file[key] for key in file.files}
    if value is None:
        del arrays[name]
    else:
        arrays[name] = value
    np.savez(tmp_path / "odd.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load_splice(chromosome=tmp_path / "odd.npz")


@pytest.mark.parametrize("call", [splice_batches, load_splice])
def test_unknown_part_is_refused_by_the_call_itself(call):
    with pytest.raises(DataError, match=r"part='valid'.*train, test, all"):
        call("valid")


def test_batch_of_no_rows_is_refused():
    with pytest.raises(DataError, match="rows=0"):
        splice_batches(rows=0)


# ---- writing -----------------------------------------------------------------------------------


def test_failing_writer_leaves_nothing(tmp_path, monkeypatch, small):
    def full(self, table, row_group_size=None):
        raise OSError("no space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(OSError, match="no space left"):
        write_splice(tmp_path / "t.parquet", chromosome=small)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_reported_with_the_path_and_the_bytes_of_the_row_group(
    tmp_path, monkeypatch, small, code
):
    groups = []

    def full(self, table, row_group_size=None):
        groups.append(table)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(DiskFullError, match=r"t\.parquet: the disk is full") as caught:
        write_splice(tmp_path / "t.parquet", chromosome=small)
    assert f"({groups[0].nbytes:,} bytes) needed" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_disk_full_from_the_first_byte_is_reported_too(tmp_path, monkeypatch, small):
    monkeypatch.setattr("sparrowboost.runtime.disk.secrets.token_hex", lambda n: "0" * 2 * n)
    monkeypatch.setattr("sparrowboost.runtime.disk.owner_tag", str)
    (tmp_path / ".t.parquet.00000000.partial").symlink_to("/dev/full")
    with pytest.raises(DiskFullError, match=r"t\.parquet: the disk is full"):
        write_splice(tmp_path / "t.parquet", chromosome=small)
    assert list(tmp_path.iterdir()) == []


def test_splice_file_is_written_with_the_measured_options(tmp_path, small):
    meta = pq.ParquetFile(write_splice(tmp_path / "t.parquet", chromosome=small)).metadata
    columns = [meta.row_group(0).column(j) for j in range(meta.num_columns)]
    assert {c.compression for c in columns} == {"UNCOMPRESSED"}
    assert not any(c.is_stats_set for c in columns) and all(c.has_dictionary_page for c in columns)
