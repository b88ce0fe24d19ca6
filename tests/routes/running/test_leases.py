"""Leases that end while a message is worked: the message comes to one end, and is lost in none."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from tests.routes.running.pipelines import Asked, Config, adapter
from tests.routes.running.test_pipelines import HANG_S, pipeline, route, states
from tests.until import until
from tupletree.errors import ConnectorError
from tupletree.queues import Delivery
from tupletree.queues.sqlite import SqliteBroker
from tupletree.routes import Adapter, AdapterResult, PipelineContext, Work
from tupletree.routes.ledger import Ledger
from tupletree.routes.running.queue_spout import QueueSpout


class Slow(Adapter[Config]):
    """Waits for the test, and fails at first if the payload says so."""

    calls: list[int] = []  # noqa: RUF012 - shared on purpose
    may_end = threading.Event()

    async def process(self, context: PipelineContext) -> AdapterResult:
        self.calls.append(context.attempt)
        await asyncio.to_thread(Slow.may_end.wait, HANG_S)
        if context.attempt == 1 and context.message.payload["fails"]:
            raise ValueError("at first")
        return AdapterResult(context.message)


@pytest.mark.parametrize("fails", [False, True])
def test_a_message_that_is_delivered_again_while_it_is_worked_is_neither_worked_twice_nor_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(SqliteBroker, "extend", lambda *_: None)  # a broker on which leases cannot be extended
    Slow.calls.clear()
    Slow.may_end.clear()
    p = pipeline(tmp_path, route("one", adapter(Slow), lease_seconds=0.1))
    with p.run() as run:
        begun = run.execute({"fails": fails}, route="one")
        until(lambda: any(row.lost for row in run.services.ledger.messages(begun.id)))
        Slow.may_end.set()
        assert begun.wait(HANG_S).state == "completed"
        assert states(run, begun.id) == {"one": {"done": 1}}
        until(lambda: run.services.broker("q.one").depth("q.one").open == 0)
    assert Slow.calls == ([1, 2] if fails else [1])


def test_leases_are_extended_again_after_an_unexpected_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def extend(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            raise ValueError("a fault of the broker's")

    monkeypatch.setattr(SqliteBroker, "extend", extend)
    Slow.calls.clear()
    Slow.may_end.clear()
    with pipeline(tmp_path, route("one", adapter(Slow), lease_seconds=0.1)).run() as run:
        begun = run.execute({"fails": False}, route="one")
        until(lambda: len(calls) > 1)
        Slow.may_end.set()
        assert begun.wait(HANG_S).state == "completed"


def test_leases_are_extended_while_the_ledger_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extended: list[object] = []
    asked, is_back = threading.Event(), threading.Event()

    def hang(*_: object) -> frozenset[str]:
        asked.set()
        assert is_back.wait(HANG_S)
        return frozenset()

    monkeypatch.setattr(SqliteBroker, "extend", lambda *arguments: extended.append(arguments))
    monkeypatch.setattr(Ledger, "cancelled", hang)
    Slow.calls.clear()
    Slow.may_end.clear()
    with pipeline(tmp_path, route("one", adapter(Slow), lease_seconds=0.1)).run() as run:
        begun = run.execute({"fails": False}, route="one")
        try:
            assert asked.wait(HANG_S)
            before = len(extended)
            until(lambda: len(extended) > before + 3)
        finally:
            is_back.set()
            Slow.may_end.set()
        assert begun.wait(HANG_S).state == "completed"


@pytest.mark.parametrize("away", [True, False])
def test_a_lease_that_is_cancelled_while_it_fails_is_cancelled_and_no_error_of_its_broker(
    tmp_path: Path, away: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    p = pipeline(tmp_path, route("one", adapter(Asked)))
    leasing, may_end = threading.Event(), threading.Event()

    def lease(*_: object) -> tuple[list[Work], dict[str, Delivery]]:
        leasing.set()
        may_end.wait(HANG_S)
        if away:
            raise ConnectorError("away")
        return [], {}

    with p.open() as run:
        spout = QueueSpout(run._run, "one")
        monkeypatch.setattr(type(run.services), "lease", lease)

        async def cancelled() -> bool:
            await spout.open(None)  # type: ignore[arg-type]  # it does not look at it
            task = asyncio.ensure_future(spout.next())
            await asyncio.to_thread(leasing.wait, HANG_S)
            task.cancel()
            await asyncio.sleep(0)
            may_end.set()
            await asyncio.wait([task])
            await spout.close()
            return task.cancelled()

        assert asyncio.run(cancelled())
    assert ("a lease that was cancelled is not given back: away" in caplog.text) == away
