"""The word count on a standalone master with two workers gives what it gives on one machine's threads."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.spark.counting import ROOT
from tupletree.runtimes.java import find_java
from tupletree.sinks import read_rows

SPARK_HOME = Path(pyspark.__file__).parent
START_S = 60.0
RUN_S = 240.0


class Cluster:
    """A master and two workers, each a process of its own on the loopback address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, self._web_port = _free_port(), _free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = f"spark://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start all three and wait until the master knows both workers."""
        web = ["--webui-port", str(self._web_port)]
        self._spawn("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(self._port), *web)
        for number in (1, 2):
            work = self._folder / f"work{number}"
            size = ["--cores", "1", "--memory", "1g", "--work-dir", str(work), "--webui-port", str(_free_port())]
            self._spawn("org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", *size, self.master)
        until = time.monotonic() + START_S
        while self._alive_workers() < 2:
            if time.monotonic() > until:
                raise TimeoutError("the cluster did not start")
            time.sleep(0.2)  # another process has to start: there is no clock to inject

    def _spawn(self, *command: str) -> None:
        environment = {
            **os.environ,
            "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        log = (self._folder / f"cluster{len(self._processes)}.log").open("wb")
        self._processes.append(
            subprocess.Popen(
                [str(SPARK_HOME / "bin" / "spark-class"), *command],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        )
        log.close()

    def _alive_workers(self) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._web_port}/json/", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (urllib.error.URLError, ConnectionError):
            return 0

    def stop(self) -> None:
        """Kill them all, executors included."""
        for process in self._processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    started = Cluster(tmp_path)
    try:
        started.start()
        yield started
    finally:
        started.stop()


def test_a_standalone_cluster_of_two_workers_counts_the_same_words(cluster: Cluster, tmp_path: Path) -> None:
    lines = [f"alpha beta {'poison ' if number % 50 == 0 else ''}w{number % 7}" for number in range(2_000)]
    text = tmp_path / "text.txt"
    text.write_text("\n".join(lines) + "\n")
    command = [str(Path(sys.executable).with_name("tupletree")), "run", str(ROOT / "examples" / "word_count.py")]
    settings = ["--set", f"paths={text}", "--set", f"out={tmp_path / 'out'}", "--set", "poison=poison"]
    options = ["--option", "backoff_initial_ms=1", "--option", "epoch_max_messages=500"]
    done = subprocess.run(
        [
            *command,
            *settings,
            *options,
            "--master",
            cluster.master,
            "--state-dir",
            str(tmp_path / "state"),
            "--summary",
            "json",
        ],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 3, done.stderr[-3000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["emitted"], summary["acked"], summary["dead"], summary["open"]) == (2_000, 1_960, 40, 0)
    expected = Counter(word for line in lines if "poison" not in line for word in line.split())
    rows = [(row["word"], row["count"]) for row in read_rows(tmp_path / "out")]
    assert sorted(rows) == sorted((word, number) for word, most in expected.items() for number in range(1, most + 1))
