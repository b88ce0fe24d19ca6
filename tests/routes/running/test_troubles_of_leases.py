"""What goes wrong around a lease or a slot leaves no message behind, and hides nothing from adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.routes.running.pipelines import Batch, Config, Gathering, adapter
from tests.routes.running.test_pipelines import HANG_S, RUNTIMES, pipeline, route, states
from tests.until import until
from tupletree.errors import ConnectorError
from tupletree.queues import Failure, Message
from tupletree.queues.sqlite import SqliteBroker
from tupletree.routes import Adapter, AdapterResult, PipelineContext
from tupletree.routes.document.spec import ErrorHandling
from tupletree.routes.ledger.ledger import Ledger
from tupletree.routes.messages import Settlement
from tupletree.routes.pipeline import PipelineRun
from tupletree.routes.running import outgoing


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[object]:
    """The first call of a method meets an outage. Returns its calls."""
    calls: list[object] = []
    method = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise ConnectorError("away")
        return method(*arguments, **named)

    monkeypatch.setattr(owner, name, call)
    return calls


def elsewhere(home: Path) -> PipelineRun:
    """A pipeline whose queue is not in the ledger's file, connected to."""
    return pipeline(home / "home", route("one"), queues={"q.one": f"sqlite:///{home}/b.db"}).open()


def test_what_was_leased_is_worked_though_its_broker_could_not_be_told_of_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "AGAIN_S", 0.02)
    with elsewhere(tmp_path) as run:
        services, broker = run.services, run.services.broker("q.one")
        [one] = services.run.routes
        broker.publish("q.one", [Message(id="first", body=b"1")])
        [first], _ = services.lease(one, 1)
        services.ledger.settle([Settlement(messages=first.messages, outcome="done")], services.rules)
        broker.fail([Failure(handle=first.messages[0].handle)])  # its process ended before it was acked
        broker.publish("q.one", [Message(id="second", body=b"2")])
        acks = fail_once(monkeypatch, SqliteBroker, "ack")
        works, _ = services.lease(one, 10)
        assert [work.body for work in works] == [b"2"]
        until(lambda: len(acks) == 2)


def test_what_is_leased_while_the_ledger_is_away_goes_back_to_its_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with elsewhere(tmp_path) as run:
        [one] = run.services.run.routes
        run.services.broker("q.one").publish("q.one", [Message(id="first", body=b"1")])
        fail_once(monkeypatch, Ledger, "arrive")
        with pytest.raises(ConnectorError):
            run.services.lease(one, 10)
        works, _ = run.services.lease(one, 10)
        assert [work.messages[0].attempt for work in works] == [1]


def test_an_execution_that_was_cancelled_is_known_as_such_whatever_other_routes_ask(tmp_path: Path) -> None:
    with pipeline(tmp_path, route("one"), route("two")).open() as run:
        cancelled, live = run.execute({}, route="one"), run.execute({}, route="two")
        cancelled.cancel()
        run.services.look_for_cancelled("one", [cancelled.id])
        run.services.look_for_cancelled("two", [live.id])
        assert run.services.is_cancelled(cancelled.id)
        assert not run.services.is_cancelled(live.id)


class Labelled(Adapter[Config]):
    """Gives its message a header, at first one that no broker takes."""

    header = "caf\udce9"

    async def process(self, context: PipelineContext) -> AdapterResult:
        return AdapterResult(context.message.with_headers(name=Labelled.header))


@pytest.mark.parametrize("start", RUNTIMES)
@pytest.mark.parametrize("keeps", [None, "dead"])
def test_a_message_that_died_of_a_header_has_its_payload_when_it_is_tried_again(
    tmp_path: Path, start: Any, keeps: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Labelled, "header", "caf\udce9")
    handling = ErrorHandling(max_retries=0, dead_letter_queue=keeps)
    p = pipeline(tmp_path, route("one", adapter(Labelled), out=("out",), error_handling=handling))
    with start(p) as run:
        begun = run.execute({"number": 1})
        assert begun.wait(HANG_S).state == "failed"
        if keeps:
            [letter] = run.services.broker(keeps).peek(keeps)
            assert letter.message.body == b'{"number":1}'
        Labelled.header = "café"
        [dead] = run.services.ledger.messages(begun.id, state="dead")
        run.services.ledger.replay([dead.id])
        assert begun.wait(HANG_S).state == "completed"
        [out] = run.services.broker("out").peek("out")
        assert out.message.body == b'{"number":1}'


def test_what_a_batch_made_of_several_holds_no_slot_while_an_adapter_holds_it(tmp_path: Path) -> None:
    """The message that lets all go on is the last: it must find a slot."""
    p = pipeline(tmp_path, route("one", adapter(Batch, size=2), adapter(Gathering), out=("out",), at_once=2))
    with p.run() as run:
        for number in range(6):
            run.execute({"number": number, "do": "together"})
        until(lambda: run.services.gates.status()["one"].held == 6)
        assert states(run)["one"] == {"held": 6} or until(lambda: states(run)["one"] == {"held": 6})
