"""A memory cgroup of its own for a child process: what goes over the limit is killed by the kernel.

Only a group proves a limit. A peak RSS that was read afterwards says nothing of a process that
would have been killed, and an address-space limit counts what is never touched. Tests of the memory
limit and benchmarks use the same groups.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
# By version: limit, limit of memory and swap together (or of swap), peak, file that counts kills.
V1 = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max_usage_in_bytes",
      "memory.oom_control")  # fmt: skip
V2 = ("memory.max", "memory.swap.max", "memory.peak", "memory.events")


@dataclass(frozen=True)
class Finished:
    """How a child ended."""

    returncode: int
    stdout: str
    stderr: str
    peak_bytes: int | None  # of the group, page cache included; None where it is not counted
    kills: int


class Group:
    """A group with a hard limit of memory, and no swap."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        hard, swap, self._peak, self._kills = V2 if (path / V2[0]).exists() else V1
        (path / hard).write_text(str(limit))
        if (path / swap).exists():  # else the kernel does not count swap
            (path / swap).write_text("0" if swap == V2[1] else str(limit))

    def run(self, argv: Sequence[str], env: dict[str, str] | None = None) -> Finished:
        """Run a command in the group."""
        # The shell moves itself and then becomes the command: all of its memory is counted.
        join = f'echo $$ > "{self.path / "cgroup.procs"}" && exec "$@"'
        done = subprocess.run(
            ["sh", "-c", join, "sh", *argv],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **(env or {})},
        )
        peak = self.path / self._peak
        counts = dict(line.split() for line in (self.path / self._kills).read_text().splitlines())
        return Finished(
            done.returncode,
            done.stdout,
            done.stderr,
            int(peak.read_text()) if peak.exists() else None,
            int(counts.get("oom_kill", 0)),
        )


@contextmanager
def memory_group(limit: int) -> Iterator[Group]:
    """A new group; a LookupError says why there can be none."""
    path = _make()
    try:
        yield Group(path, limit)
    finally:
        path.rmdir()


def _make() -> Path:
    name = f"sparrow-{secrets.token_hex(4)}"
    reasons = []
    for parent in _parents():
        path = parent / name
        try:
            path.mkdir()
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror}")
            continue
        try:
            if not any((path / files[0]).exists() for files in (V1, V2)):
                raise OSError(0, "does not hand on the memory controller")
            _try_to_join(path)
        except OSError as error:
            path.rmdir()
            reasons.append(f"{parent}: {error.strerror}")
            continue
        return path
    raise LookupError("; ".join(reasons) or "no memory controller is mounted")


def _try_to_join(path: Path) -> None:
    """An OSError, if a process of ours may not enter a group."""
    join = f'echo $$ > "{path / "cgroup.procs"}"'
    if subprocess.run(["sh", "-c", join], check=False, capture_output=True).returncode:
        raise OSError(0, "no process may be moved there")


def _parents() -> Iterator[Path]:
    """Where a group could be made: the top of v1's tree; in v2's, here or further up.

    In v2 only the part of the tree that was delegated to this user may be written to.
    """
    if not Path("/proc/self/cgroup").exists():
        return
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield ROOT / "memory"
        elif controllers == "" and (ROOT / "cgroup.controllers").exists():
            here = ROOT / group.lstrip("/")
            yield from (level for level in (here, *here.parents) if level.is_relative_to(ROOT))
