"""Whoever connects or leaves a variable costs a run neither threads nor its life."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tasks.streams import Line
from tupletree import Emit, Spout, Topology
from tupletree.config import resolve_options
from tupletree.errors import ConfigError, EndOfInput
from tupletree.runtimes import metrics
from tupletree.runtimes.api import Progress, RunHandle, RunRequest
from tupletree.runtimes.local.runtime import start
from tupletree.runtimes.progress import Reporter
from tupletree.sinks import foreach


class Handle(RunHandle):
    """A run that has numbers, and nothing else."""

    def __init__(self) -> None:
        super().__init__(Reporter("t", None))

    def progress(self) -> Progress:
        return Progress(state="processing")


for _name in set(RunHandle.__abstractmethods__) - {"progress"}:
    setattr(Handle, _name, None)
Handle.__abstractmethods__ = frozenset()


class Named(Spout[Line]):
    """One message with a payload and an id that are told from all else."""

    def __init__(self) -> None:
        self.left = 1

    def next(self) -> Emit[Line]:
        if not self.left:
            raise EndOfInput
        self.left -= 1
        return Emit(Line("card-17"), "order-4")


@pytest.fixture
def port() -> Iterator[int]:
    with metrics.serve_metrics(Handle(), "t", "local", 0) as port:  # type: ignore[abstract]
        yield port


def ask(port: int, host: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/metrics", headers={"Host": host})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:{}", 200), ("localhost:{}", 200), ("localhost", 200), ("evil.example:{}", 403), ("127.0.0.1.x", 403)],
)
def test_metrics_are_for_this_host(host: str, status: int, port: int) -> None:
    assert ask(port, host.format(port)) == status


def test_metrics_hold_no_payloads_and_no_ids(tmp_path: Path) -> None:
    t = Topology("orders")
    t.sink("out", foreach(lambda batch: None)).shuffle(t.spout("source", Named()))
    request = RunRequest(t, resolve_options(), None, tmp_path / "state", append=False, master="", redact=None)
    handle = start(request)
    handle.wait(30.0)
    with metrics.serve_metrics(handle, "orders", "local", 0) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
    assert 'tupletree_messages_total{outcome="acked",runtime="local",topology="orders"} 1.0' in text
    assert "card-17" not in text
    assert "order-4" not in text


def test_clients_that_say_nothing_take_a_bounded_number_of_threads(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    silent = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(30)]
    closed = 0
    for client in silent[metrics.MAX_REQUESTS :]:  # closed at once: the first ones wait to be heard
        try:
            closed += client.recv(1) == b""
        except OSError:
            closed += 1
    assert closed == 30 - metrics.MAX_REQUESTS
    assert threading.active_count() <= before + metrics.MAX_REQUESTS
    for client in silent:
        client.close()


def test_a_client_that_says_nothing_is_left_after_a_while(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert metrics._Handler.timeout == 5.0
    monkeypatch.setattr(metrics._Handler, "timeout", 0.05)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        assert client.recv(1) == b""


@pytest.mark.parametrize(("variables", "survives"), [({}, True), ({"PYTEST_VERSION": "8"}, False)])
def test_a_crash_is_asked_for_by_tests_only(variables: dict[str, str], survives: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    program = "from tupletree.runtimes.crash_points import crash_point as c; c('epoch.after_log')"
    variables = {**environment, "TT_CRASH_AT": "epoch.after_log", "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    done = subprocess.run([sys.executable, "-c", program], env=variables, check=False)
    assert (done.returncode == 0) is survives


@pytest.mark.parametrize("option", ["drain_timeout_s", "message_timeout_s", "backoff_max_ms"])
@pytest.mark.parametrize("value", [-5.0, 1e308, float("inf"), float("nan")])
def test_no_option_takes_a_time_before_now_or_beyond_all_bounds(option: str, value: float) -> None:
    with pytest.raises(ConfigError, match="at most 31,536,000"):
        resolve_options(code={option: value})


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_metrics_for_other_hosts_are_warned_of(host: str, caplog: pytest.LogCaptureFixture, *, warns: bool) -> None:
    with metrics.serve_metrics(Handle(), "t", "local", 0, host):  # type: ignore[abstract]
        assert ("every host that reaches this machine can read them" in caplog.text) is warns
