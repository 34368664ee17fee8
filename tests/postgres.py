"""A PostgreSQL server of its own for tests, on loopback, in a folder that goes with it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path

import pytest

from helpers import NOBODY

SECONDS = 30  # to start and to stop


def find_programs() -> Path | None:
    """The folder of initdb and postgres; Debian keeps them out of the path."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += map(Path, sorted(glob("/usr/lib/postgresql/*/bin"), reverse=True))
    return next((folder for folder in folders if (folder / "postgres").is_file()), None)


@contextmanager
def postgres_server() -> Iterator[str]:
    """The address of a running server; skips the tests where PostgreSQL is not installed."""
    programs = find_programs()
    if programs is None:
        pytest.skip("needs PostgreSQL's server (apt install postgresql)")
    # PostgreSQL does not run as root.
    who = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="sparrow-postgres-") as place:
        folder = Path(place)
        if who:
            os.chown(folder, NOBODY, NOBODY)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
        subprocess.run(
            [programs / "initdb", "-D", folder / "data", "-U", "tester", "-A", "trust",
             "--no-sync", "--encoding=UTF8", "--locale=C"],
            check=True, timeout=SECONDS, **quiet, **who,
        )  # fmt: skip
        with socket.socket() as some:
            some.bind(("127.0.0.1", 0))
            port = some.getsockname()[1]
        options = {
            "listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": folder,
            "fsync": "off", "max_connections": 10,
        }  # fmt: skip
        given = [f"--{name}={value}" for name, value in options.items()]
        server = subprocess.Popen(
            [programs / "postgres", "-D", folder / "data", *given], **quiet, **who
        )
        try:
            _wait(programs, port)
            yield f"postgresql://tester:secret@127.0.0.1:{port}/postgres"
        finally:
            server.terminate()
            server.wait(SECONDS)


def _wait(programs: Path, port: int) -> None:
    ask = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
    for _ in range(20 * SECONDS):
        if subprocess.run(ask, check=False).returncode == 0:
            return
        time.sleep(0.05)
    raise TimeoutError("PostgreSQL does not answer")
