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


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class Server:
    """A server that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, command: list[str]) -> None:
        """Start it, and return when it answers."""
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ends_s = time.monotonic() + 20
        while time.monotonic() < ends_s:
            assert self.process.poll() is None, "the server ended at once"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)  # another process has to start
        raise AssertionError("the server does not answer")

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None


class NatsServer(Server):
    """A NATS server with JetStream."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.program = need("nats-server", "nats", "make nats")

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self, *options: str) -> None:
        self.run([self.program, "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder), *options])


@contextmanager
def nats_server(*options: str) -> Iterator[NatsServer]:
    with tempfile.TemporaryDirectory(prefix="tt-nats-") as folder:
        server = NatsServer(Path(folder))
        server.start(*options)
        try:
            yield server
        finally:
            server.kill()


class RedisServer(Server):
    """A Redis server that writes through to its disk. It can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.program = need("redis-server", "redis", "make redis")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, *options: str) -> None:
        command = [self.program, "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always", *options]
        self.run(command)


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="tt-redis-") as folder:
        server = RedisServer(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.kill()
