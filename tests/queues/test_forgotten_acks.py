"""Acks that a killed broker forgets, as NATS and RabbitMQ may: the process that acked tells it again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tupletree.bolts.effects import TaskPlace
from tupletree.errors import ConnectorError
from tupletree.queues import Delivery, Failure, Letter, Message, Queue, open_queue
from tupletree.queues.sqlite import SqliteBroker
from tupletree.queues.sqlite.file import QueueFile
from tupletree.sources import queue
from tupletree.tracking.outcomes import Failure as Verdict
from tupletree.tracking.outcomes import FailureKind

CONTEXT = TaskPlace("t", "orders", 1, 0, 1)

Limited = Callable[[bool], None]


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Limited:
    """Makes brokers say that they may forget acks; and whether an id that is known is stored again.

    As servers do, they give the same time of publishing each time: the embedded queue's is by a clock of the host,
    which it reads again for each lease.
    """
    monkeypatch.setattr(QueueFile, "unix_s", lambda _, at_ms: at_ms / 1000)

    def make_so(knows_ids: bool) -> None:
        made = SqliteBroker.__init__

        def make(self: SqliteBroker, *arguments: Any, **named: Any) -> None:
            made(self, *arguments, **named)
            self.capabilities = replace(self.capabilities, durable_acks=False, idempotent_publish=knows_ids)

        monkeypatch.setattr(SqliteBroker, "__init__", make)

    return make_so


def url_in(place: Path) -> str:
    return f"sqlite:///{place}/shop.db?queue=orders&remembers_acked_s=0"


def publish(orders: Queue) -> None:
    assert orders.publish([Message(id="order-0")]) == 1


def ids_of(given: object) -> list[object]:
    assert isinstance(given, list)
    return [one.message_id for one in given]


async def ack_and_forget(spout: Any, orders: Queue) -> None:
    """Ack the message, which is ready again: the broker forgot it."""
    forgotten: list[str] = []

    def forget(_: SqliteBroker, handles: Sequence[str]) -> Sequence[str]:
        forgotten.extend(handles)
        return ()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteBroker, "ack", forget)
        spout.ack("order-0")
        await spout.flush()
    [handle] = forgotten
    orders.fail([Failure(handle=handle)])


@pytest.mark.parametrize("knows_ids", [True, False], ids=["as NATS", "as RabbitMQ"])
def test_an_ack_that_its_broker_forgot_is_told_again_and_the_message_is_not_worked_again(
    tmp_path: Path, forgetful: Limited, knows_ids: bool
) -> None:
    """A message that is published later under the same id is another one, and is worked."""
    forgetful(knows_ids)

    async def lease() -> None:
        spout = queue(url_in(tmp_path))
        await spout.open(CONTEXT)
        with open_queue(url_in(tmp_path)) as orders:
            for _ in range(2):
                publish(orders)
                assert ids_of(await spout.next()) == ["order-0"]
                await ack_and_forget(spout, orders)
                assert await spout.next() is None
                await spout.flush()
                assert orders.depth().open == 0
        await spout.close()

    asyncio.run(lease())


@pytest.mark.parametrize("raises", [False, True], ids=["told", "told though the call raised"])
def test_a_dead_letter_that_its_broker_forgot_is_acked_and_one_that_is_moved_back_is_worked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgetful: Limited, raises: bool
) -> None:
    """The letter is there, for it was written first; that the message is done was forgotten."""
    forgetful(True)
    published_s = 1e9
    lease_timed, written = Queue.lease, SqliteBroker.dead_letter

    def lease_anew(self: Queue, *arguments: Any, **named: Any) -> list[Delivery]:
        return [replace(one, published_s=published_s) for one in lease_timed(self, *arguments, **named)]

    def write_and_break(self: SqliteBroker, letters: Sequence[Letter]) -> Sequence[str]:
        written(self, letters)
        raise ConnectorError("the connection was lost after")

    monkeypatch.setattr(Queue, "lease", lease_anew)

    async def lease() -> None:
        nonlocal published_s
        spout = queue(url_in(tmp_path))
        await spout.open(CONTEXT)
        with open_queue(url_in(tmp_path)) as orders:
            publish(orders)
            assert ids_of(await spout.next()) == ["order-0"]
            spout.fail("order-0", Verdict(kind=FailureKind.ERROR, error="no", permanent=True))
            if raises:
                with monkeypatch.context() as patched:
                    patched.setattr(SqliteBroker, "dead_letter", write_and_break)
                    with pytest.raises(ConnectorError):
                        await spout.flush()
            await spout.flush()
            orders.broker.declare("elsewhere")
            orders.move("elsewhere", state="dead")  # the letter is no more in the way of what the broker forgot
            publish(orders)
            assert await spout.next() is None
            await spout.flush()
            assert (orders.depth().open, orders.depth().dead) == (0, 0)
            published_s += 0.01  # as of a message that was moved
            publish(orders)
            assert ids_of(await spout.next()) == ["order-0"]
        await spout.close()

    asyncio.run(lease())


def test_without_a_time_of_publishing_what_comes_again_may_be_another_message_and_is_worked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgetful: Limited
) -> None:
    """As what other programs publish to RabbitMQ without a timestamp."""
    forgetful(False)
    lease_timed = Queue.lease

    def lease_untimed(self: Queue, *arguments: Any, **named: Any) -> list[Delivery]:
        return [replace(one, published_s=0.0) for one in lease_timed(self, *arguments, **named)]

    monkeypatch.setattr(Queue, "lease", lease_untimed)

    async def lease() -> None:
        spout = queue(url_in(tmp_path))
        await spout.open(CONTEXT)
        with open_queue(url_in(tmp_path)) as orders:
            publish(orders)
            assert ids_of(await spout.next()) == ["order-0"]
            await ack_and_forget(spout, orders)
            assert ids_of(await spout.next()) == ["order-0"]
        await spout.close()

    asyncio.run(lease())


def test_many_acks_push_out_no_outcome_that_an_earlier_process_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgetful: Limited
) -> None:
    monkeypatch.setattr(sys.modules["tupletree.sources.broker_spout"], "MAX_SETTLED", 2)
    forgetful(True)

    async def lease() -> None:
        spout = queue(url_in(tmp_path))
        await spout.open(CONTEXT)
        with open_queue(url_in(tmp_path)) as orders:
            publish(orders)
            [held] = orders.lease(lease_s=600)
            spout.ack("order-0")  # as the journal says; the process that leased it was killed
            orders.publish([Message(id=str(number)) for number in range(3)])
            for message_id in ids_of(await spout.next()):
                spout.ack(message_id)  # type: ignore[arg-type]
            await spout.flush()
            assert list(spout._acked) == ["1", "2"]
            orders.fail([Failure(handle=held.handle)])
            assert await spout.next() is None
            assert orders.depth().open == 0
        await spout.close()

    asyncio.run(lease())
