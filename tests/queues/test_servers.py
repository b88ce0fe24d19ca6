"""Servers of tests: they end with the process that started them, however that ends, and answer each thread."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.queues.servers import KafkaCluster
from tests.until import until

STARTS = """
import os, sys
from pathlib import Path
from tests.queues.servers import Server

server = Server(Path(sys.argv[1]))
command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", sys.argv[1], str(server.port)]
server.run(command, {**os.environ} if sys.argv[2] == "group" else None)
print(server.port, flush=True)
sys.stdin.read()
"""


def is_there(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("kind", ["process", "group"])
def test_a_server_ends_with_a_test_process_that_is_killed(tmp_path: Path, kind: str) -> None:
    root = Path(__file__).parents[2]
    program = [sys.executable, "-c", STARTS, str(tmp_path), kind]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root, env=environment
    ) as starting:
        assert starting.stdout is not None
        port = int(starting.stdout.readline())
        assert is_there(port)
        starting.kill()
        starting.wait()
        until(lambda: not is_there(port))


ANSWERS = "import sys; print('host:1', flush=True); [print(0, flush=True) for _ in sys.stdin]"


def test_threads_that_tell_a_cluster_something_at_once_have_an_answer_each() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ANSWERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        cluster = KafkaCluster(process)

        def tell() -> None:
            for number in range(500):
                cluster.tell("delete", number)

        with ThreadPoolExecutor(8) as threads:
            told = [threads.submit(tell) for _ in range(8)]
            try:
                for one in told:
                    one.result(60)
            finally:
                process.kill()  # which ends those that wait for an answer
