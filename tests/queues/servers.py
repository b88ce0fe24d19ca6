"""Real servers for tests, on free ports of the loopback interface, and what is done where there is none."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

REQUIRED = os.environ.get("TESTS_REQUIRE", "").replace(",", " ").split()


def need(program: str, name: str, install: str) -> str:
    """The program's path. Without it the test is skipped, or fails where the machine must have it."""
    found = shutil.which(program)
    if found is None:
        reason = f"no {program} here: {install}"
        if name in REQUIRED:
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class RedisServer:
    """A Redis server that writes through to its disk. It can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.program = need("redis-server", "redis", "make redis")
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, *options: str) -> None:
        command = [self.program, "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ends_s = time.monotonic() + 20
        while time.monotonic() < ends_s:
            assert self.process.poll() is None, "the server ended at once"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError("the server does not answer")

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="tt-redis-") as folder:
        server = RedisServer(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.kill()
