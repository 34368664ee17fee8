"""What every benchmark needs: a fresh process for each run, its peak memory, and the machine.

A run in a process of its own has a peak RSS of its own, and nothing left warm by the run before.
Megabytes are 10**6 bytes, as in the library's ``memory_limit``.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

STDERR_LINES = 20  # of a failed child, enough to hold the traceback's end
MB = 10**6


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_rss_mb() -> float:
    """The most memory that this process (not its children) has held so far."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / MB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / MB  # macOS counts bytes


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def memory_bytes() -> int:
    """Of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def commit() -> str | None:
    """Of the source that is measured, with a + if it was changed since."""
    try:
        name = _git("rev-parse", "--short", "HEAD")
        changed = _git("diff", "--quiet", "HEAD", "--", "../src")
    except OSError:  # git is not installed
        return None
    return None if name.returncode else name.stdout.strip() + "+" * (changed.returncode != 0)


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    argv = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def machine(packages: Sequence[str]) -> dict[str, Any]:
    """Where the numbers come from: hardware, system, versions of the named distributions."""
    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "memory_mb": round(memory_bytes() / MB),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
    }


def _version(name: str) -> str | None:
    for package in (name, f"{name}-cpu"):  # XGBoost has two
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:  # on PYTHONPATH, not installed
            pass
    return None


def command() -> str:
    """The command line of this run, without where on this machine its data lies."""
    words = ["python", *sys.argv]
    for option in ("--data", "--shared"):
        if option in words:
            place = words.index(option)
            del words[place : place + 2]
    return " ".join(words)


def run_child(argv: Sequence[str]) -> dict[str, Any]:
    """Run ``python *argv`` and return the JSON object on the last line of its output."""
    done = subprocess.run([sys.executable, *argv], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join(done.stderr.splitlines()[-STDERR_LINES:])
        raise RuntimeError(f"{' '.join(argv)}: exit code {done.returncode}\n{tail}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def interleave(contestants: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Round 1 of all, round 2 of all, ...: a slow spell of the machine hits everyone alike."""
    for number in range(1, rounds + 1):
        for name in contestants:
            yield number, name


def write_json(path: Path, payload: dict[str, Any]) -> None:
    """Write a result file."""
    write_text(path, json.dumps(payload, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file in one step, so that a crash leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)
