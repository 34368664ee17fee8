"""Memory in bytes: the user's limit, the machine's memory, and what this process holds."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import resource
import sys
from pathlib import Path

import numpy as np

from sparrowboost.runtime.errors import MemoryLimitError

UNITS = {
    "": 1, "B": 1,
    "K": 10**3, "KB": 10**3, "KIB": 2**10,
    "M": 10**6, "MB": 10**6, "MIB": 2**20,
    "G": 10**9, "GB": 10**9, "GIB": 2**30,
    "T": 10**12, "TB": 10**12, "TIB": 2**40,
}  # fmt: skip

DEFAULT_SHARE = 0.25  # leaves memory for the page cache and for other processes
# Of a small machine or container, a larger share, up to this size: Python and its libraries alone
# take 200 MB.
SMALL_SHARE, SMALL_BYTES = 0.8, 1_000_000_000
CODE_BYTES = 20_000_000  # libraries that are not loaded yet, and what allocators keep
# Minimum size of an array that malloc maps by itself. Row blocks are smaller: mapping each of them
# would make ingest half as slow again.
MAPPED_BYTES = 4 << 20
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
COMPILER = "libllvmlite"
MAPPING = re.compile(
    r"^(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) (?P<access>\S+) \S+ \S+ \S+ *(?P<file>.*)\n"
    r"(?:\w+:.*\n)*?Anonymous: *(?P<written>\d+) kB\n"
    r"(?:\w+:.*\n)*?Swap: *(?P<swapped>\d+) kB\n",
    re.MULTILINE,
)


def parse_size(size: int | float | str) -> int:
    """Bytes of a size such as ``"512MB"``, ``"1.5 GiB"`` or ``2**30``.

    Examples
    --------
    >>> parse_size("512MB"), parse_size("2GiB"), parse_size(1000)
    (512000000, 2147483648, 1000)
    """
    if isinstance(size, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*", size)
        if match is None or match[2].upper() not in UNITS:
            raise MemoryLimitError(
                f"memory size {size!r} is not understood; write a number and a unit, "
                "such as '512MB', '2GiB' or '1.5G'."
            )
        size = float(match[1]) * UNITS[match[2].upper()]
    number = isinstance(size, int | float | np.number) and not isinstance(size, bool)
    if not number or not 0 < size < float("inf"):
        raise MemoryLimitError(f"memory size must be positive and finite, got {size!r}.")
    return int(size)


def format_size(n_bytes: float) -> str:
    """A readable size, in the units that `parse_size` reads.

    Examples
    --------
    >>> format_size(512_000_000), format_size(1_234_567_890), format_size(17)
    ('512 MB', '1.23 GB', '17 B')
    """
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if n_bytes >= factor:
            digits = ".3g" if n_bytes < 999.5 * factor else ".0f"
            return f"{n_bytes / factor:{digits}} {unit}"
    return f"{n_bytes:.0f} B"


def _read_limit(path: Path) -> int | None:
    """The limit in a cgroup file, None where there is none."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    # v2 writes "max", v1 a number near 2**63, for "no limit".
    return int(text) if text.isdigit() and int(text) < 2**60 else None


def cgroup_limit(
    proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """The smallest memory limit of this process's cgroups (v1 and v2), None if unlimited.

    Any parent group may have a limit, so all of them are read. In a container the path in
    /proc may not be visible; then the root of the mount has the limit.
    """
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        if line.count(":") < 2:
            continue
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            bases, name = [root, root / "unified"], "memory.max"
        elif "memory" in controllers.split(","):
            bases, name = [root / "memory"], "memory.limit_in_bytes"
        else:
            continue
        for base in bases:
            here = base / group.lstrip("/")
            for level in (here, *here.parents):
                limits.append(_read_limit(level / name))
                if level == base:
                    break
    return min((limit for limit in limits if limit is not None), default=None)


def machine_memory() -> int:
    """Bytes that this process may use: the machine's memory, or the limit of its cgroup."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(physical, cgroup_limit() or physical)


class DefaultLimit(int):
    """A limit that the user did not set: the process's allocators stay as they are."""


def default_limit(machine: int, held: int = 0) -> DefaultLimit:
    """The limit in bytes where a process may use `machine` bytes, and its caller holds some.

    Examples
    --------
    >>> [format_size(default_limit(n)) for n in (64 * 10**9, 2 * 10**9, 512 * 10**6)]
    ['16 GB', '1 GB', '410 MB']
    """
    small = int(machine * SMALL_SHARE)
    share = max(int(machine * DEFAULT_SHARE), min(small, SMALL_BYTES))
    return DefaultLimit(min(share + held, max(share, small)))


def resolve_limit(memory_limit: int | float | str | None, held: int = 0) -> int:
    """The user's limit in bytes; without one, a modest share of what the machine allows.

    `held` bytes are the caller's, and do not count.
    """
    if memory_limit is None:
        return default_limit(machine_memory(), held)
    return parse_size(memory_limit) + held


def name_limit(limit: int) -> str:
    """A limit for messages: its size, and where it comes from if the user did not set it.

    Examples
    --------
    >>> name_limit(512_000_000)
    'memory_limit 512 MB'
    """
    if not isinstance(limit, DefaultLimit):
        return f"memory_limit {format_size(limit)}"
    return (
        f"no memory_limit (--memory) is given, and the default, {format_size(limit)} of the "
        f"{format_size(machine_memory())} that this machine or container has,"
    )


def apply_limit(memory_limit: int | float | str | None) -> int:
    """The limit in bytes. One that the user set also changes the process's allocators."""
    if isinstance(memory_limit, DefaultLimit):
        return memory_limit
    if memory_limit is not None:
        tune_allocators()
    return resolve_limit(memory_limit)


def tune_allocators() -> None:
    """Make the process's allocators return memory to the system as soon as it is freed.

    Arrow uses malloc: an ingest of 20 columns peaks 25 MB higher with Arrow's own pool, and is no
    faster. And malloc maps large arrays, such as those of samples, one by one: by default it stops
    doing so once one was freed, and a training with 19 samples took 55 MB more.
    """
    import pyarrow

    pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of the GNU C library only
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(M_TRIM_THRESHOLD, 2 * MAPPED_BYTES)  # malloc keeps this ratio, too


def release() -> None:
    """Return memory to the system that is not in use: free memory, and the compiler's code."""
    import pyarrow

    for backend in pyarrow.supported_memory_backends():  # Arrow uses some whatever pool is set
        getattr(pyarrow, f"{backend}_memory_pool")().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of the GNU C library only
    if trim is not None:
        trim(0)
    release_code()


# By library. To find them takes 10 ms, as long as training on a small table. Python unloads no
# library, so they stay where they are.
_code_areas: dict[str, list[tuple[int, int]]] = {}


def release_code(library: str = COMPILER) -> None:
    """Release the pages of a library's code (Linux only). They are read again when they are needed.

    The compiler's code is the largest part of a process's resident memory (70 MB), and is not run
    once the kernels are loaded.
    """
    areas = _code_areas.get(library) or mappings_of(library)
    if areas:
        _code_areas[library] = areas
        drop_pages(areas)


def drop_pages(areas: list[tuple[int, int]]) -> None:
    """Release the pages of some mappings; they must be there still, as `mappings_of` found them."""
    if not areas:
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for start, n_bytes in areas:
        madvise(start, n_bytes, mmap.MADV_DONTNEED)


def mappings_of(library: str) -> list[tuple[int, int]]:
    """Start and length of the mappings of a library or file whose pages can be released.

    These are read-only and as in the library's file. The changes in others would be lost.
    """
    areas: list[tuple[int, int]] = []
    try:
        text = Path("/proc/self/smaps").read_text()
    except OSError:
        return areas
    for area in MAPPING.finditer(text):
        as_in_file = area["written"] == "0" and area["swapped"] == "0" and "w" not in area["access"]
        if as_in_file and library in area["file"]:
            start, end = int(area["start"], 16), int(area["end"], 16)
            areas.append((start, end - start))
    return areas


def rss() -> int:
    """Bytes of memory that this process holds now."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # macOS has no /proc: the peak is the closest figure
        return peak_rss()
    return pages * os.sysconf("SC_PAGE_SIZE")


def held() -> int:
    """Bytes that the process holds now, and those of libraries that are still to be loaded.

    Plans of memory start from it. Call `release` first, so that only what is in use counts.
    """
    return rss() + CODE_BYTES


def peak_rss() -> int:
    """The maximum of bytes of memory that this process has held."""
    try:
        match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        match = None
    if match is not None:
        return int(match[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
