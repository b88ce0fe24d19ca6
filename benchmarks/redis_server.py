"""A Redis server of the benchmarks' own: on a free port of this machine, in a folder that is thrown away."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["redis_server"]

START_S = 10.0


@contextlib.contextmanager
def redis_server(folder: Path, *, durable: bool) -> Iterator[str]:
    """Its URL, while it is entered.

    Args:
        folder: empty; for its files.
        durable: append every write to a file, which is fsynced once a second; else memory alone.

    Raises:
        RuntimeError: it is not installed, or does not start.
    """
    program = shutil.which("redis-server")
    if program is None:
        raise RuntimeError("no redis-server: apt-get install redis-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    options += ["--appendonly", "yes", "--appendfsync", "everysec"] if durable else ["--appendonly", "no"]
    server = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await(server, port)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.kill()
        server.wait()


def _await(server: subprocess.Popen[bytes], port: int) -> None:
    until_s = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < until_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.sendall(b"PING\r\n")
            if connection.recv(16).startswith(b"+PONG"):
                return
        time.sleep(0.02)
    raise RuntimeError(f"redis-server does not answer on port {port}")
