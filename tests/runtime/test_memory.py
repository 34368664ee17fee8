"""The memory limit: what it means, and that ingest stays below it whatever the source's size."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import subprocess
import sys
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparrowboost.runtime.budget
import sparrowboost.runtime.memory
from sparrowboost.runtime.budget import Budget
from sparrowboost.runtime.errors import MemoryLimitError
from sparrowboost.runtime.memory import (
    cgroup_limit,
    format_size,
    held,
    parse_size,
    peak_rss,
    release_code,
    resolve_limit,
    rss,
)
from sparrowboost.store.binning import WORK_DTYPES
from sparrowboost.store.warm_up import warm_up

MB = 10**6


@given(st.integers(1, 10**15))
def test_a_formatted_size_is_read_back_to_three_digits(n):
    assert abs(parse_size(format_size(n)) - n) <= 0.005 * n + 0.5


@pytest.mark.parametrize("bad", ["", "MB", "12 XB", "1e3MB", "-5MB", -1, 0, float("nan"), True])
def test_an_invalid_size_is_refused(bad):
    with pytest.raises(MemoryLimitError):
        parse_size(bad)


def test_a_limit_that_is_too_small_is_refused_with_one_number_to_give():
    budget = Budget(300_000_000, {"libraries": 310_000_000, "buffers": 20_000_000, "other": 0})
    with pytest.raises(MemoryLimitError) as refused:
        budget.check()
    assert str(refused.value) == (
        "memory_limit 300 MB is too small: it has to hold libraries (310 MB), buffers (20 MB); "
        "give at least 347 MB."
    )
    Budget(330_000_000, budget.parts).check()


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


def test_a_cgroup_v2_tree_is_read_up_to_its_root_and_no_further(tmp_path):
    write(tmp_path / "proc", "0::/a/b/c\n")
    write(tmp_path / "memory.max", "100\n")  # above the mount: not a group
    write(tmp_path / "fs/memory.max", "900\n")  # of a container, whose root is not the machine's
    write(tmp_path / "fs/a/memory.max", "800\n")
    write(tmp_path / "fs/a/b/memory.max", "max\n")
    write(tmp_path / "fs/a/b/c/memory.max", "max\n")
    write(tmp_path / "fs/a/b/c/d/memory.max", "1\n")  # somebody else's, below
    assert cgroup_limit(tmp_path / "proc", tmp_path / "fs") == 800
    write(tmp_path / "proc", "0::/\n")  # as seen from within a namespace of its own
    assert cgroup_limit(tmp_path / "proc", tmp_path / "fs") == 900


def test_both_versions_at_once_and_lines_that_make_no_sense(tmp_path):
    write(tmp_path / "proc", "\n?\n7:memory:/x\n1:name=systemd:/x:y\n0::/x\n")
    write(tmp_path / "fs/memory/x/memory.limit_in_bytes", "600\n")
    write(tmp_path / "fs/unified/x/memory.max", "500\n")
    assert cgroup_limit(tmp_path / "proc", tmp_path / "fs") == 500
    write(tmp_path / "fs/unified/x/memory.max", "junk\n")
    assert cgroup_limit(tmp_path / "proc", tmp_path / "fs") == 600


def test_the_default_limit_respects_the_cgroup(monkeypatch):
    monkeypatch.setattr(sparrowboost.runtime.memory, "cgroup_limit", lambda: 400_000_000)
    assert resolve_limit(None) == 320_000_000
    monkeypatch.setattr(sparrowboost.runtime.memory, "cgroup_limit", lambda: None)
    assert resolve_limit(None) > 0


def test_cgroup_v1_limits_are_found_and_huge_ones_mean_none(tmp_path):
    write(tmp_path / "proc", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n")
    write(tmp_path / "fs/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert cgroup_limit(tmp_path / "proc", tmp_path / "fs") is None
    # In a container the path that /proc names is not there, its root is.
    write(tmp_path / "fs/memory/memory.limit_in_bytes", "500000000\n")
    assert cgroup_limit(tmp_path / "proc", tmp_path / "fs") == 500_000_000


def test_without_cgroups_there_is_no_limit(tmp_path):
    assert cgroup_limit(tmp_path / "nothing", tmp_path) is None


def test_the_default_limit_is_a_modest_share_of_what_is_allowed(monkeypatch):
    monkeypatch.setattr(sparrowboost.runtime.memory, "machine_memory", lambda: 16 * 10**9)
    assert resolve_limit(None) == 4 * 10**9
    assert resolve_limit(None, held=10**9) == 5 * 10**9  # the caller's
    assert resolve_limit(None, held=14 * 10**9) == 12_800_000_000  # but not more than there is
    assert resolve_limit("1GB") == 10**9


def test_a_small_container_is_used_to_a_larger_share(monkeypatch):
    for machine, limit in ((512, 409), (1_000, 800), (2_000, 1_000), (4_000, 1_000)):
        monkeypatch.setattr(sparrowboost.runtime.memory, "machine_memory", lambda m=machine: m * MB)
        assert resolve_limit(None) // MB == limit
        assert resolve_limit(None, held=machine * MB) <= 0.8 * machine * MB


def test_a_refusal_says_where_a_limit_comes_from_that_nobody_set(monkeypatch):
    monkeypatch.setattr(sparrowboost.runtime.memory, "machine_memory", lambda: 512 * MB)
    monkeypatch.setattr(sparrowboost.runtime.budget, "machine_memory", lambda: 512 * MB)
    with pytest.raises(MemoryLimitError) as caught:
        Budget(resolve_limit(None), {"libraries": 450 * MB}).check()
    assert "the default, 410 MB of the 512 MB that this machine" in str(caught.value)
    assert "give at least 473 MB." in str(caught.value)
    with pytest.raises(MemoryLimitError, match="more than the 512 MB that there are"):
        Budget(10**9, {"libraries": 2 * 10**9}).check()


def test_a_process_knows_what_it_holds():
    before = rss()
    with mmap.mmap(-1, 40_000_000) as ballast:  # not from an allocator that may hold free memory
        ballast.write(b"x" * 40_000_000)
        assert rss() - before > 35_000_000
        assert peak_rss() >= rss() - 1_000_000


FREED = """
import numpy as np
from sparrowboost.runtime.memory import tune_allocators, rss

tune_allocators()
for _ in range(2):  # malloc learns from what is freed, and would keep more the second time
    before = rss()
    arrays = [np.ones(8_000_000, np.uint8) for _ in range(5)]
    pin = bytearray(100_000)  # after them: what is before it cannot be cut off
    taken = rss() - before
    del arrays
    print(taken, rss() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others have no such option")
def test_large_arrays_go_back_to_the_system_when_they_are_freed():
    done = subprocess.run([sys.executable, "-c", FREED], check=True, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        taken, kept = map(int, line.split())
        assert taken > 35_000_000 and kept < 5_000_000


ALLOCATORS = """
import sys
import numpy as np, pyarrow, sparrowboost

pools = [pyarrow.default_memory_pool().backend_name]
X = np.random.default_rng(0).normal(size=(2_000, 3))
y = X[:, 0] > 0
for limit in (None, "2GB"):
    sparrowboost.SparrowClassifier(n_estimators=2, memory_limit=limit).fit(X, y)
    dataset = sparrowboost.ingest(X, label=y, memory_limit=limit, verbose=0)
    model = sparrowboost.train(dataset, n_estimators=2, memory_limit=limit, verbose=0)
    sparrowboost.evaluate(model, X, label=y, memory_limit=limit, verbose=0)
    pools.append(pyarrow.default_memory_pool().backend_name)
print(*pools)
"""


@pytest.mark.slow
def test_the_allocators_change_only_where_the_user_sets_a_limit():
    env = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    words = [sys.executable, "-c", ALLOCATORS]
    done = subprocess.run(words, env=env, check=True, capture_output=True, text=True)
    before, without, limited = done.stdout.split()
    assert before != "system", "Arrow has no other pool: this tests nothing"
    assert without == before and limited == "system"


def test_the_memory_held_is_measured_and_nothing_released(monkeypatch):
    monkeypatch.setattr(sparrowboost.runtime.memory, "release", pytest.fail)
    monkeypatch.setattr(sparrowboost.runtime.memory, "release_code", pytest.fail)
    assert 0 <= held() - rss() < 100_000_000


COMPILED = """
import numba
from sparrowboost.runtime.memory import release_code, rss

double = numba.njit(lambda x: 2 * x)
print(double(2), rss())
release_code()
print(double(3), rss())
print(double(0.25))  # compiled anew
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/self/smaps")


@pytest.mark.slow
@linux
def test_the_compilers_code_is_released_and_read_again_when_it_is_needed():
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], check=True, capture_output=True, text=True
    )
    (four, before), (six, after), (half,) = map(str.split, done.stdout.splitlines())
    assert (four, six, half) == ("4", "6", "0.5")
    assert int(before) - int(after) > 30_000_000


@linux
def test_only_pages_that_are_as_in_their_file_are_released(tmp_path):
    file, size = tmp_path / "libwritten.so", 64_000_000
    file.write_bytes(b"a" * size)
    with file.open("rb") as stream:
        maps = [mmap.mmap(stream.fileno(), size, mmap.MAP_PRIVATE) for _ in range(2)]
    clean, written = maps
    written[:1] = b"b"
    for one in maps:  # as a library's pages are once its addresses are written into them
        start = ctypes.addressof(ctypes.c_char.from_buffer(one))
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start), size, mmap.PROT_READ) == 0
    assert (clean[:1], written[:1]) == (b"a", b"b")
    rest = zlib.crc32(b"a" * (size - 1))
    assert [zlib.crc32(memoryview(one)[1:]) for one in maps] == [rest, rest]  # all are read now
    release_code("none has this name")  # what it takes itself is there before
    before = rss()
    release_code(file.name)
    assert 0.9 * size < before - rss() < 1.1 * size
    assert (clean[:1], written[:1]) == (b"a", b"b")
    assert [zlib.crc32(memoryview(one)[1:]) for one in maps] == [rest, rest]


CHILD = """
import sys, json, sparrowboost
from sparrowboost.runtime.memory import peak_rss
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


@pytest.mark.slow
@pytest.mark.parametrize(("group", "growth"), [(100_000, 10_000_000), (3_000_000, 27_000_000)])
def test_peak_memory_stays_below_the_limit_and_flat_as_rows_grow(tmp_path, group, growth):
    warm_up(WORK_DTYPES)  # compiles here what a child would, if need be
    peaks = []
    for n in (200_000, 2_000_000):
        source = write_rows(tmp_path / "t.parquet", n, group)
        rows, peak = peak_of(source, "400MB")
        assert rows == n
        peaks.append(peak)
    assert max(peaks) < 400_000_000
    # Ten times the rows, in ten times the row groups or in one that is ten times as large: the
    # same peak, except for what allocators keep.
    assert max(peaks) - min(peaks) < growth
