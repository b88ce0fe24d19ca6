"""Leases that end while a message is worked: the message comes to one end, and is lost in none."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from tests.routes.running.pipelines import Config, adapter
from tests.routes.running.test_pipelines import HANG_S, pipeline, route, states, until
from tupletree.queues.sqlite import SqliteBroker
from tupletree.routes import Adapter, AdapterResult, PipelineContext


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
