"""A broker that is away holds up nobody else, and misses nothing."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.routes.running.pipelines import Asked, adapter
from tests.routes.running.test_pipelines import HANG_S, RUNTIMES, pipeline, route, states
from tests.until import until
from tupletree.errors import ConnectorError
from tupletree.queues import Broker, Delivery, Message, connect
from tupletree.queues.contract import RefusedConnectionError
from tupletree.queues.sqlite import SqliteBroker
from tupletree.routes.messages import Settlement
from tupletree.routes.pipeline import Pipeline, PipelineRun
from tupletree.routes.running import outgoing
from tupletree.routes.running import services as running_services
from tupletree.routes.running.services import Services


def test_while_an_output_is_away_the_others_go_on_and_nothing_is_lost_or_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "AGAIN_S", 0.02)
    b = f"sqlite:///{tmp_path}/b.db?busy_timeout_s=0.05"
    p = pipeline(
        tmp_path / "home",
        route("one", adapter(Asked), out=("q.a", "q.b")),
        route("two", adapter(Asked)),
        route("a", inbound="q.a"),
        route("b", inbound="q.b"),
        queues={"q.b": b},
    )
    with p.run() as run:
        assert run.execute({}, route="one").wait(HANG_S).total == 3
        lock = sqlite3.connect(tmp_path / "b.db", isolation_level=None, check_same_thread=False)
        lock.execute("BEGIN IMMEDIATE")
        begun = [run.execute({}, route="one") for _ in range(5)]
        until(lambda: states(run)["a"]["done"] > 1)
        assert run.execute({}, route="two").wait(HANG_S).state == "completed"
        assert states(run)["b"].get("pending")
        lock.execute("ROLLBACK")
        lock.close()
        assert {one.wait(HANG_S).state for one in begun} == {"completed"}
        assert states(run) == {name: {"done": 6 if name != "two" else 1} for name in ("one", "two", "a", "b")}


def test_an_input_that_is_away_when_its_message_is_settled_hears_of_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "AGAIN_S", 0.02)
    b = f"sqlite:///{tmp_path}/b.db?busy_timeout_s=0.05"
    p = pipeline(
        tmp_path / "home",
        route("one", adapter(Asked, say="a", seconds=0.3)),
        route("two", adapter(Asked)),
        queues={"q.one": b},
    )
    Asked.calls.clear()
    with p.run() as run:
        begun = run.execute({"do": {"a": "wait"}}, route="one")
        until(lambda: any(one.startswith("a ") for one in Asked.calls))
        lock = sqlite3.connect(tmp_path / "b.db", isolation_level=None, check_same_thread=False)
        lock.execute("BEGIN IMMEDIATE")
        assert begun.wait(HANG_S).state == "completed", "the ledger knows"
        assert run.execute({}, route="two").wait(HANG_S).state == "completed"
        assert run.services.broker("q.one").depth("q.one").leased == 1
        lock.execute("ROLLBACK")
        lock.close()
        until(lambda: run.services.broker("q.one").depth("q.one").open == 0)


@pytest.mark.parametrize("start", RUNTIMES)
def test_a_broker_that_shuts_the_pipeline_out_is_waited_for(
    tmp_path: Path, start: Callable[[Pipeline], PipelineRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was for its queue died after five tries, and a route that read there was restarted until its run ended."""
    monkeypatch.setattr(outgoing, "AGAIN_S", 0.02)
    refused: list[str] = []
    is_out = threading.Event()

    class Guarded(SqliteBroker):
        def take(self, queue: str, limit: int, *, lease_s: float, max_bytes: int) -> list[Delivery]:
            self._ask(queue, "lease")
            return super().take(queue, limit, lease_s=lease_s, max_bytes=max_bytes)

        def publish(self, queue: str, messages: Sequence[Message]) -> int:
            self._ask(queue, "publish")
            return super().publish(queue, messages)

        def _ask(self, queue: str, what: str) -> None:
            if is_out.is_set() and queue == "q.two":
                refused.append(what)
                raise RefusedConnectionError("NOPERM")

    def connects(url: str) -> Broker:
        broker = connect(url)
        if url == b:
            broker.__class__ = Guarded
        return broker

    b = f"sqlite:///{tmp_path}/b.db"
    monkeypatch.setattr(running_services, "connect", connects)
    p = pipeline(
        tmp_path / "home",
        route("one", adapter(Asked), out=("q.two",)),
        route("two", adapter(Asked)),
        queues={"q.two": b},
    )
    with start(p) as run:
        assert run.execute({}, route="one").wait(HANG_S).total == 2
        is_out.set()
        begun = run.execute({}, route="one")
        until(lambda: refused.count("publish") > 2 * outgoing.REFUSED_TRIES and "lease" in refused)
        handle = run.handle
        assert handle is not None
        until(lambda: handle.progress().state == "waiting")
        is_out.clear()
        assert begun.wait(HANG_S).state == "completed"
        assert states(run) == {"one": {"done": 2}, "two": {"done": 2}}


@pytest.mark.parametrize("start", RUNTIMES)
def test_a_broker_that_cannot_be_reached_once_the_ledger_has_settled_gets_the_settlement_again(
    tmp_path: Path, start: Callable[[Pipeline], PipelineRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has not told this broker anything yet connects to it first, and settling may be repeated."""
    refused: list[str] = []
    settle, broker_at = Services.settle, Services.broker_at
    settling = threading.local()

    def settles(services: Services, settlements: Sequence[Settlement]) -> None:
        settling.first = len(refused) < 3
        try:
            settle(services, settlements)
        finally:
            settling.first = False

    def connects(services: Services, url: str) -> Broker:
        if url == b and getattr(settling, "first", False):
            settling.first = False
            refused.append(url)
            raise ConnectorError("the broker does not answer")
        return broker_at(services, url)

    b = f"sqlite:///{tmp_path}/b.db"
    monkeypatch.setattr(Services, "settle", settles)
    monkeypatch.setattr(Services, "broker_at", connects)
    routes = route("one", adapter(Asked), out=("q.two",)), route("two", adapter(Asked))
    p = pipeline(tmp_path / "home", *routes, queues={"q.one": b})
    Asked.calls.clear()
    with start(p) as run:
        begun = [run.execute({}, route="one") for _ in range(3)]
        assert {one.wait(HANG_S).state for one in begun} == {"completed"}
        assert states(run) == {"one": {"done": 3}, "two": {"done": 3}}
        until(lambda: not any(run.services.broker(f"q.{name}").depth(f"q.{name}").open for name in ("one", "two")))
    assert len(refused) == 3
    assert sum(one.startswith(" ") for one in Asked.calls) == 6
