"""The memory limit: what it means, and that ingest stays below it whatever the source's size."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrowboost.errors import MemoryLimitError
from sparrowboost.memory import (
    cgroup_limit,
    format_size,
    machine_memory,
    parse_size,
    peak_rss,
    resolve_limit,
    rss,
)


@given(st.integers(1, 10**15))
def test_a_formatted_size_is_read_back_to_three_digits(n):
    assert abs(parse_size(format_size(n)) - n) <= 0.005 * n + 0.5


@pytest.mark.parametrize("bad", ["", "MB", "12 XB", "1e3MB", "-5MB", -1, 0, float("nan"), True])
def test_a_size_that_is_none_is_refused(bad):
    with pytest.raises(MemoryLimitError):
        parse_size(bad)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_cgroup_v2_limits_hold_at_every_level(tmp_path):
    write(tmp_path / "proc", "0::/user/job\n")
    write(tmp_path / "fs/user/job/memory.max", "max\n")
    assert cgroup_limit(tmp_path / "proc", tmp_path / "fs") is None
    write(tmp_path / "fs/user/memory.max", "700\n")
    assert cgroup_limit(tmp_path / "proc", tmp_path / "fs") == 700
    write(tmp_path / "fs/user/job/memory.max", "600\n")
    assert cgroup_limit(tmp_path / "proc", tmp_path / "fs") == 600


def test_cgroup_v1_limits_are_found_and_huge_ones_mean_none(tmp_path):
    write(tmp_path / "proc", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n")
    write(tmp_path / "fs/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert cgroup_limit(tmp_path / "proc", tmp_path / "fs") is None
    # In a container the path that /proc names is not there, its root is.
    write(tmp_path / "fs/memory/memory.limit_in_bytes", "500000000\n")
    assert cgroup_limit(tmp_path / "proc", tmp_path / "fs") == 500_000_000


def test_without_cgroups_there_is_no_limit(tmp_path):
    assert cgroup_limit(tmp_path / "nothing", tmp_path) is None


def test_the_default_limit_is_a_modest_share_of_what_is_allowed():
    assert resolve_limit(None) == machine_memory() // 4
    assert resolve_limit("1GB") == 10**9


def test_a_process_knows_what_it_holds():
    before = rss()
    with mmap.mmap(-1, 40_000_000) as ballast:  # not from an allocator that may hold free memory
        ballast.write(b"x" * 40_000_000)
        assert rss() - before > 35_000_000
        assert peak_rss() >= rss() - 1_000_000


CHILD = """
import sys, json, sparrowboost
from sparrowboost.memory import peak_rss
ds = sparrowboost.ingest(sys.argv[1], label="y", memory_limit=sys.argv[2], verbose=0)
print(json.dumps([ds.n_rows, peak_rss()]))
"""


def peak_of(source, limit):
    out = subprocess.run(
        [sys.executable, "-c", CHILD, str(source), limit], check=True, capture_output=True
    )
    return json.loads(out.stdout)


def write_rows(path, n, row_group_size, d=20):
    rng = np.random.default_rng(0)
    names = [f"x{j}" for j in range(d)]
    block = pa.table({name: rng.random(100_000).astype("f4") for name in names})
    block = block.append_column("y", pa.array(rng.integers(0, 2, 100_000), pa.int8()))
    with pq.ParquetWriter(path, block.schema, compression="none") as writer:
        if row_group_size >= n:
            writer.write_table(pa.concat_tables([block] * (n // 100_000)), row_group_size)
        else:
            for _ in range(n // 100_000):
                writer.write_table(block, row_group_size)
    return path


@pytest.mark.parametrize("group", [100_000, 3_000_000])
def test_peak_memory_stays_below_the_limit_and_flat_as_rows_grow(tmp_path, group):
    peaks = []
    for n in (300_000, 3_000_000):
        source = write_rows(tmp_path / "t.parquet", n, group)
        rows, peak = peak_of(source, "400MB")
        assert rows == n
        peaks.append(peak)
    assert max(peaks) < 400_000_000
    # Ten times the rows (and row groups, or the size of the one): the same peak but for
    # allocators' whims.
    assert max(peaks) < 1.1 * min(peaks)
