"""A child that its broker will never take is dead, with its reason and its body; nothing is tried for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.routes.running.pipelines import Asked, adapter
from tests.routes.running.test_pipelines import HANG_S, RUNTIMES, Split, pipeline, route, states
from tests.until import until
from tupletree.queues import Message, RefusedMessage, RefusedMessagesError, UnknownQueueError, register_scheme
from tupletree.queues.contract import NotCapableError
from tupletree.queues.registry import _schemes
from tupletree.queues.sqlite import SqliteBroker
from tupletree.queues.urls import QueueUrl
from tupletree.routes.pipeline import Pipeline, PipelineRun
from tupletree.routes.running import queue_spout

Start = Callable[[Pipeline], PipelineRun]


class Picky(SqliteBroker):
    """Refuses bodies that hold a 3, and cannot say why it does not take a 5."""

    def publish(self, queue: str, messages: Sequence[Message]) -> int:
        refused = [
            RefusedMessage(at, one.id, "no threes") for at, one in enumerate(messages) if b'"number":3' in one.body
        ]
        if refused:
            raise RefusedMessagesError(refused, where=self.where)
        if any(b'"number":5' in one.body for one in messages):
            raise NotCapableError("no fives", where=self.where)
        return super().publish(queue, messages)


@pytest.fixture(autouse=True)
def picky() -> Iterator[None]:
    def opening(url: QueueUrl) -> SqliteBroker:
        return Picky(Path(url.path))

    register_scheme("picky", opening)
    yield
    del _schemes["picky"]


class Hesitant(SqliteBroker):
    """Takes each message alone, at its second try."""

    seen: set[str] = set()  # noqa: RUF012 - shared on purpose

    def publish(self, queue: str, messages: Sequence[Message]) -> int:
        if len(messages) > 1 or messages[0].id not in self.seen:
            self.seen |= {one.id for one in messages if len(messages) == 1}
            raise NotCapableError("not now", where=self.where)
        return super().publish(queue, messages)


def test_attempts_to_publish_a_message_are_forgotten_once_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_spout, "OUTBOX_S", 0.0)
    monkeypatch.setattr(queue_spout, "CANCEL_S", 0.01)
    Hesitant.seen.clear()
    register_scheme("hesitant", lambda url: Hesitant(Path(url.path)))
    p = pipeline(
        tmp_path / "home",
        route("one", adapter(Split), out=("q.two",)),
        route("two", adapter(Asked)),
        queues={"q.two": f"hesitant:///{tmp_path}/b.db"},
    )
    try:
        with p.run() as run:
            assert run.execute({"count": 3}, route="one").wait(HANG_S).state == "completed"
            assert len(Hesitant.seen) == 3
            until(lambda: not run.services._outgoing._tries)
    finally:
        del _schemes["hesitant"]


@pytest.mark.parametrize("start", RUNTIMES)
def test_what_a_broker_refuses_is_dead_with_its_reason_and_the_others_are_published(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_spout, "OUTBOX_S", 0.0)
    monkeypatch.setattr(queue_spout, "CANCEL_S", 0.01)
    p = pipeline(
        tmp_path / "home",
        route("one", adapter(Split), out=("q.two",)),
        route("two", adapter(Asked)),
        queues={"q.two": f"picky:///{tmp_path}/b.db"},
    )
    with start(p) as run:
        begun = run.execute({"count": 8}, route="one")
        ended = begun.wait(HANG_S)
        assert (ended.state, ended.total, ended.dead) == ("completed_with_dead_letters", 9, 2)
        until(lambda: states(run)["two"] == {"done": 6, "dead": 2})
        three, five = run.services.ledger.messages(begun.id, state="dead")
        assert three.reason == "its broker refused it: no threes"
        assert "5 attempts to publish it failed" in five.reason
        assert "no fives" in five.reason
        assert run.services.ledger.outbox() == []


class Renewed(SqliteBroker):
    """Was set up anew before its first message: its queues are gone until they are declared."""

    declared = 0

    def declare(self, queue: str, *, ordered: bool = False) -> None:
        super().declare(queue, ordered=ordered)
        Renewed.declared += 1

    def publish(self, queue: str, messages: Sequence[Message]) -> int:
        if Renewed.declared < 2:
            raise UnknownQueueError("no such queue", where=self.where)
        return super().publish(queue, messages)


def test_a_queue_that_is_gone_is_declared_again_and_no_message_dies_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Renewed.declared = 0
    register_scheme("renewed", lambda url: Renewed(Path(url.path)))
    p = pipeline(
        tmp_path / "home",
        route("one", adapter(Split), out=("q.two",)),
        route("two", adapter(Asked)),
        queues={"q.two": f"renewed:///{tmp_path}/b.db"},
    )
    try:
        with p.run() as run:
            ended = run.execute({"count": 3}, route="one").wait(HANG_S)
            assert (ended.state, ended.dead) == ("completed", 0)
    finally:
        del _schemes["renewed"]
    assert Renewed.declared == 2
    assert "queue q.two is not there any more" in caplog.text


def test_so_it_is_in_the_embedded_queue_whose_children_are_published_with_their_settlement(tmp_path: Path) -> None:
    p = pipeline(tmp_path / "home", route("one", adapter(Split), out=("q.two",)), route("two", adapter(Asked)))
    with p.run() as run:
        broker = run.services.broker("q.two")
        can = broker.capabilities
        broker.capabilities = msgspec.structs.replace(can, max_body_bytes=12)
        begun = run.execute({"count": 12}, route="one")
        ended = begun.wait(HANG_S)
        assert (ended.state, ended.total, ended.dead) == ("completed_with_dead_letters", 13, 2)
        assert states(run)["two"] == {"done": 10, "dead": 2}
        dead = run.services.ledger.messages(begun.id, state="dead")
        assert {one.reason for one in dead} == {"its broker refused it: the body has 13 bytes, at most 12 fit"}
        broker.capabilities = can
        assert len(run.services.ledger.replay([one.id for one in dead])) == 2, "their bodies are kept"
        assert begun.wait(HANG_S).state == "completed"
