"""A Spark cluster on this machine: a standalone master and two workers, processes on the loopback address."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pyspark

from tests.java_archive import archive_options
from tupletree.durable import private_folder, write_file
from tupletree.runtimes.java import find_java

__all__ = ["SPARK_HOME", "Cluster", "parent_of"]

SPARK_HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).resolve().parents[1]
START_S = 120.0

SHORT_LIVED = {"JAVA_TOOL_OPTIONS": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {archive_options()}".rstrip()}
"""Environment of a JVM that lives for seconds: the second compiler would never pay for itself."""


class Cluster:
    """A master and two workers of one core each, which ask each other, the driver and its executors for a secret.

    `stop` ends them all, executors included.

    Args:
        folder: for logs, settings and work directories.
        search_path: where workers find modules beside those of their Python.

    Attributes:
        master: its URL.
        secret: what all of them must know.
        variables: of the environment, with which a driver knows it.
    """

    def __init__(self, folder: Path, search_path: Sequence[Path] = (ROOT / "src", ROOT)) -> None:
        self._folder = folder
        self._search_path = search_path
        self._port, self._web_port = _free_port(), _free_port()
        self._master: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self._spawned = 0
        self.master = f"spark://127.0.0.1:{self._port}"
        self.secret = secrets.token_hex(32)
        self.variables = {"SPARK_CONF_DIR": str(self._settings())}

    def _settings(self) -> Path:
        """The folder of settings, as docs/operations.md says it: no command line has the secret."""
        settings = private_folder(self._folder / "conf")
        lines = [
            "spark.authenticate true",
            f"spark.authenticate.secret {self.secret}",
            "spark.network.crypto.enabled true",
        ]
        write_file(settings / "spark-defaults.conf", "\n".join(lines).encode())
        return settings

    @property
    def processes(self) -> list[int]:
        """Master, workers, executors and what they started."""
        mine = [process.pid for process in filter(None, [self._master, *self.workers])]
        return [pid for one in mine for pid in (one, *descendants(one))]

    def start(self) -> None:
        """Start all three and wait until the master knows both workers."""
        ports = ["--port", str(self._port), "--webui-port", str(self._web_port)]
        self._master = self._spawn("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", *ports)
        for _ in range(2):
            self.add_worker()
        self.await_workers(2)

    def add_worker(self) -> None:
        """Start one more worker."""
        work = self._folder / f"work{self._spawned}"
        size = ["--cores", "1", "--memory", "1g", "--work-dir", str(work), "--webui-port", str(_free_port())]
        name = "org.apache.spark.deploy.worker.Worker"
        self.workers.append(self._spawn(name, "--host", "127.0.0.1", *size, self.master))

    def await_workers(self, count: int) -> None:
        """Wait until the master knows this many living workers."""
        until = time.monotonic() + START_S
        while self.count_workers() != count:
            if time.monotonic() > until:
                raise TimeoutError(f"the cluster has {self.count_workers()} workers, not {count}")
            time.sleep(0.2)  # another process has to start or be missed: there is no clock to inject

    def kill_worker(self) -> None:
        """Kill a worker with its executors and their Python processes, as when its machine goes."""
        worker = self.workers.pop(0)
        victims = [worker.pid, *descendants(worker.pid)]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        worker.wait()

    def kill_executor(self) -> None:
        """Kill the JVM of one executor of the newest application; its worker starts another."""
        executors = [pid for worker in self.workers for pid in descendants(worker.pid) if _is_executor(pid)]
        os.kill(max(executors, key=_application_of), signal.SIGKILL)

    def count_executors(self) -> int:
        """How many executors were started for the newest application, those that ended included."""
        folders = [path for path in self._folder.glob("work*/app-*/*") if path.name.isdigit()]
        newest = max((path.parent.name for path in folders), default="")
        return sum(1 for path in folders if path.parent.name == newest)

    def count_workers(self) -> int:
        """How many workers the master believes to be alive."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._web_port}/json/", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except OSError:  # it does not listen yet, or does not answer
            return 0

    def _spawn(self, *command: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            **SHORT_LIVED,
            **self.variables,
            "PYTHONPATH": os.pathsep.join(map(str, self._search_path)),
        }
        self._spawned += 1
        with (self._folder / f"cluster{self._spawned}.log").open("wb") as log:
            program = str(SPARK_HOME / "bin" / "spark-class")
            return subprocess.Popen(
                [program, *command], env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def stop(self) -> None:
        """Kill them all, executors included."""
        for process in filter(None, [self._master, *self.workers]):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def parent_of(pid: int) -> int:
    """The process that started another."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *descendants(child)]
    return found


def _is_executor(pid: int) -> bool:
    return b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()


def _application_of(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return words[words.index("--app-id") + 1]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
