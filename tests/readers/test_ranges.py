from __future__ import annotations

import io

import numpy as np
import pyarrow.fs as fs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constants import set_constants
from sparrowboost.readers import ranges
from sparrowboost.readers.ranges import Extent, RangeReader, RemoteFile, pieces_of, stream_of
from sparrowboost.runtime.remote import of_filesystem

SIZE = 5000
EXTENTS = st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 7_000)), max_size=12)


@pytest.fixture(scope="module", autouse=True)
def small_ranges():
    with pytest.MonkeyPatch.context() as patch:
        set_constants(
            patch, range_bytes=800, range_part_bytes=300, range_gap_bytes=50, range_block_bytes=64,
            range_tail_bytes=100,
        )  # fmt: skip
        yield


@pytest.fixture(scope="module")
def data():
    return np.random.default_rng(0).bytes(SIZE)


@pytest.fixture
def file(tmp_path, data):
    """A file as one of another machine: nothing here knows that it is not."""
    (tmp_path / "file").write_bytes(data)
    found = of_filesystem(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "file")
    return found.looked_up()


@given(EXTENTS)
def test_pieces_hold_all_extents_in_requests_of_limited_size(pairs):
    starts = np.cumsum([start + size for start, size in pairs] or [0])
    extents = [Extent(int(end - size), size) for end, (_, size) in zip(starts, pairs, strict=False)]
    pieces = pieces_of(extents)
    wanted = {byte for extent in extents for byte in range(extent.start, extent.stop)}
    fetched = [byte for piece in pieces for byte in range(piece.start, piece.stop)]
    assert len(fetched) == len(set(fetched))
    assert wanted <= set(fetched)
    assert all(0 < piece.size <= 800 for piece in pieces)
    assert sum(piece.left for piece in pieces) == len(wanted)


def test_parts_of_long_columns_are_fetched_in_turn():
    pieces = pieces_of([Extent(0, 700), Extent(700, 650)])
    assert [piece.start for piece in pieces] == [0, 700, 300, 1000, 600, 1300]


@given(
    plans=st.lists(
        st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(1, 900)), max_size=4), max_size=5
    ),
    reads=st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, 1500)), max_size=20),
    ahead=st.integers(1, 4000),
)
def test_any_reads_give_the_bytes_of_the_file_whatever_was_announced(
    tmp_path_factory, data, plans, reads, ahead
):
    folder = tmp_path_factory.mktemp("ranges")
    (folder / "file").write_bytes(data)
    path = of_filesystem(fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem()), "file")
    found = path.looked_up()
    assert found is not None
    extents = [[Extent(a, min(n, SIZE - a)) for a, n in plan] for plan in plans]
    reader = RangeReader(found, extents, ahead)
    try:
        for offset, n in reads:
            out = bytearray(n)
            got = reader.read_at(out, offset)
            assert out[:got] == data[offset : offset + n]
            assert got == len(data[offset : offset + n])
    finally:
        reader.close()


def test_no_more_is_held_than_may_be_ahead_when_read_in_order(file, data):
    reader = RangeReader(file, stream_of(0, SIZE), ahead=900)
    out = bytearray(SIZE)
    try:
        for start in range(0, SIZE, 70):
            part = memoryview(out)[start : start + 70]
            assert reader.read_at(part, start) == len(part)
            assert reader._held <= 900
    finally:
        reader.close()
    assert bytes(out) == data


def test_what_was_announced_and_not_read_is_dropped_with_the_next_plan(file, data):
    reader = RangeReader(file, [[Extent(0, 300)], [Extent(1000, 300)]], ahead=2000)
    try:
        out = bytearray(10)
        reader.read_at(out, 1000)
        assert [piece.start for piece in reader._pieces] == [1000]
        assert reader._held == 300
        reader.read_at(out, 0)  # once more, unannounced
        assert bytes(out) == data[:10]
    finally:
        reader.close()


def test_a_remote_file_reads_lines_and_seeks_like_a_local_one(file, data):
    local = io.BytesIO(data)
    with io.BufferedReader(RemoteFile(RangeReader(file)), 256) as remote:
        for whence, offset in ((0, 100), (1, 50), (2, -1000), (0, SIZE + 5)):
            assert remote.seek(offset, whence) == local.seek(offset, whence)
            assert remote.readline() == local.readline()
            assert remote.tell() == local.tell()
            assert remote.read(500) == local.read(500)


def test_the_end_of_a_file_is_kept(file, monkeypatch):
    ranges._tails.clear()
    reads = []
    original = type(file).read
    monkeypatch.setattr(
        type(file), "read", lambda path, a, n: reads.append((a, n)) or original(path, a, n)
    )
    for _ in range(3):
        reader = RangeReader(file)
        reader.read_at(bytearray(20), SIZE - 20)
        reader.close()
    assert reads == [(SIZE - 100, 100)]
