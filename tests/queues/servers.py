"""Real servers for tests, on free ports of the loopback interface, and what is done where there is none."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.until import until

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


class Watcher:
    """Kills a process, or a group by its negative number, if this process dies without having ended it."""

    def __init__(self, target: int) -> None:
        command = ["sh", "-c", 'read _; kill -s KILL -- "$0"', str(target)]  # it reads to the end, which is ours
        self._shell = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def dismiss(self) -> None:
        self._shell.kill()
        self._shell.communicate()


class Server:
    """A server that can be killed and started again. It does not outlive this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.watcher: Watcher | None = None

    def run(
        self, command: list[str], environment: dict[str, str] | None = None, *, stdin: int = subprocess.DEVNULL
    ) -> None:
        """Start it, and return when it answers. What it prints can be read where it is told something."""
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=stdin,
            stdout=stdin,
            stderr=subprocess.DEVNULL,
            start_new_session=environment is not None,  # a kill meets what it started, too
        )
        self.watcher = Watcher(self.process.pid if environment is None else -self.process.pid)
        ends_s = time.monotonic() + 60
        while time.monotonic() < ends_s:
            assert self.process.poll() is None, "the server ended at once"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)  # another process has to start
        raise AssertionError("the server does not answer")

    def kill(self) -> None:
        if self.watcher is not None:
            self.watcher.dismiss()
            self.watcher = None
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
        until(self._is_loaded)

    def _is_loaded(self) -> bool:
        """It answers before it has read its file."""
        with socket.create_connection(("127.0.0.1", self.port)) as asking:
            asking.sendall(b"PING\r\n")
            return not asking.recv(64).startswith(b"-LOADING")


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="tt-redis-") as folder:
        server = RedisServer(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.kill()


class RabbitServer(Server):
    """A RabbitMQ server with a port mapper, cookie and database of its own. It can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        found = Path(need("rabbitmq-server", "rabbitmq", "make rabbitmq"))
        # Debian's program on PATH changes to a user of its own, whose files are those of the machine's server.
        own = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
        self.program = str(own if own.exists() else found)
        self.mapper: subprocess.Popen[bytes] | None = None
        settings = ["loopback_users.guest = true", "disk_free_limit.absolute = 50MB", "log.file.level = warning"]
        settings += ["raft.wal_max_size_bytes = 33554432", "vm_memory_high_watermark.absolute = 1GB"]
        (folder / "rabbitmq.conf").write_text("\n".join(settings) + "\n")
        (folder / "enabled_plugins").write_text("[].\n")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))},
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(free_port()),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"tt{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "logs"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_ALLOW_INPUT": "true",  # the Erlang machine in the place of the script, so that a kill meets it
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput +S 2:2 +sbwt none",
        }

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self.port}"

    def encrypt(self) -> Path:
        """Listen with TLS alone, with a certificate of its own; returns that."""
        certificate, key = self.folder / "certificate.pem", self.folder / "key.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
        subprocess.run(command, check=True, capture_output=True)
        settings = [
            "listeners.tcp = none",
            f"listeners.ssl.1 = 127.0.0.1:{self.port}",
            "ssl_options.verify = verify_none",
        ]
        settings += [f"ssl_options.cacertfile = {certificate}", f"ssl_options.certfile = {certificate}"]
        settings += [f"ssl_options.keyfile = {key}"]
        with (self.folder / "rabbitmq.conf").open("a") as configuration:
            configuration.write("\n".join(settings) + "\n")
        del self.environment["RABBITMQ_NODE_PORT"], self.environment["RABBITMQ_NODE_IP_ADDRESS"]
        return certificate

    def start(self) -> None:
        if self.mapper is None:  # started by the server it would be a daemon that nobody ends
            command = [shutil.which("epmd") or "epmd", "-port", self.environment["ERL_EPMD_PORT"]]
            self.mapper = subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL)
            self.mapper_watcher = Watcher(self.mapper.pid)
            until(self._is_mapped)
        self.run([self.program], self.environment)

    def _is_mapped(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", int(self.environment["ERL_EPMD_PORT"]))) == 0

    def control(self, *command: str) -> None:
        """What `rabbitmqctl` does."""
        program = Path(self.program).with_name("rabbitmqctl")
        code, said = 64, ""
        for _ in range(3):
            if code == 64:  # seen on a busy machine: the command is a node of its own, and did not become one
                done = subprocess.run(
                    [program, *command], check=False, env=self.environment, capture_output=True, text=True
                )
                code, said = done.returncode, done.stdout + done.stderr
        assert code == 0, f"rabbitmqctl {' '.join(command)}: {code}\n{said}"

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
        super().kill()

    def end(self) -> None:
        self.kill()
        if self.mapper is not None:
            self.mapper_watcher.dismiss()
            self.mapper.kill()
            self.mapper.wait()


@contextmanager
def rabbit_server(*, is_encrypted: bool = False) -> Iterator[RabbitServer]:
    with tempfile.TemporaryDirectory(prefix="tt-rabbit-", ignore_cleanup_errors=True) as folder:
        server = RabbitServer(Path(folder))
        try:
            if is_encrypted:
                server.encrypt()
            server.start()
            yield server
        finally:
            server.end()


class KafkaCluster:
    """librdkafka's mock cluster of one broker, in a process of its own: in memory, and without some requests.

    It answers producers, consumers, groups and committed offsets over the network as a broker does. It has no request
    that makes a topic, so `declare` is told to ask here, and gives no time of storing.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.address = process.stdout.readline().strip()
        self._lock = threading.RLock()  # consumers ask from threads of their own

    @property
    def url(self) -> str:
        return f"kafka://{self.address}"

    def tell(self, *words: object) -> None:
        """A command of tests/queues/kafka_cluster.py."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self._lock:
            self.process.stdin.write(" ".join(map(str, words)) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline().strip()
        assert answer == "0", answer

    def made_for(self, client: Any, settings: Mapping[str, object], partitions: Mapping[str, int]) -> None:
        """In the place of `KafkaClient.make`."""
        with self._lock:
            there = client.topics()
            for topic in settings:
                if topic not in there:
                    self.tell("topic", topic, partitions[topic])


@contextmanager
def kafka_cluster() -> Iterator[KafkaCluster]:
    """`declare` asks it for topics, in this process."""
    from tupletree.queues.kafka.client import KafkaClient

    command = [sys.executable, "-m", "tests.queues.kafka_cluster"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        cluster = KafkaCluster(process)
        with pytest.MonkeyPatch.context() as patching:
            patching.setattr(KafkaClient, "make", lambda *given: cluster.made_for(*given))  # noqa: PLW0108 - a method of ours is not bound to a client
            yield cluster
        assert process.stdin is not None
        process.stdin.close()  # it ends with that, as it does when this process dies


class SqsServer(Server):
    """moto's server of SQS, which keeps all in memory. It can be killed and started again, and has forgotten all then.

    Attributes:
        ahead_s: how far its clock was moved.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ahead_s = 0.0

    @property
    def url(self) -> str:
        return f"sqs://eu-west-1?endpoint=http://127.0.0.1:{self.port}"

    def start(self, *queues: str) -> None:
        """With these queues, by their names at the service."""
        self.run([sys.executable, "-m", "tests.queues.sqs_server", str(self.port), *queues], stdin=subprocess.PIPE)

    def tell(self, *words: object) -> None:
        """A command of tests/queues/sqs_server.py."""
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())
        self.process.stdin.flush()
        assert self.process.stdout.readline().strip() == b"0"

    def advance(self, seconds: float) -> None:
        """Move its clock."""
        self.tell("advance", seconds)
        self.ahead_s += seconds

    def kill(self) -> None:
        process = self.process
        super().kill()
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


@contextmanager
def sqs_server(*queues: str) -> Iterator[SqsServer]:
    with tempfile.TemporaryDirectory(prefix="tt-sqs-") as folder:
        server = SqsServer(Path(folder))
        server.start(*queues)
        try:
            yield server
        finally:
            server.kill()


NOBODYS_LOGIN = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "nobodys-s3cret"}
"""moto takes any."""
