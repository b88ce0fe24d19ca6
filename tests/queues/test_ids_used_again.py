"""Ids that are used again: a message that is published under the id of one that is over is worked, not acked for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crashes import crashing
from tests.queues.test_sources_and_sinks import CONTEXT, HANG_S, Order, invoices_of, price, url_of
from tests.queues.test_sources_that_were_not_told import OtherConsumer, started, unconfirmed
from tests.until import until
from tupletree import AsyncSpout, Emit, TaskContext, Topology
from tupletree.errors import EndOfInput
from tupletree.ids import MessageId
from tupletree.queues import Delivery, Failure, Letter, Message, Queue, open_queue
from tupletree.runtimes.api import RunHandle
from tupletree.sinks import queue_sink
from tupletree.sources import broker_spout, queue
from tupletree.tracking.outcomes import Failure as Verdict
from tupletree.tracking.outcomes import FailureKind

DEAD = Verdict(kind=FailureKind.ERROR, error="no", permanent=True)

Settle = Callable[[Queue, Delivery], object]

WAYS: dict[str, Settle] = {
    "acked": lambda orders, other: orders.ack([other.handle]),
    "purged": lambda orders, _: orders.purge(states=["leased"]),
    "moved": lambda orders, other: (
        orders.dead_letter([Letter(handle=other.handle, reason="no")]),
        orders.broker.declare("elsewhere"),
        orders.move("elsewhere", state="dead"),
    ),
}
"""How a message leaves a queue though its ack was refused."""


def url_in(place: Path) -> str:
    return f"sqlite:///{place}/shop.db?queue=orders&remembers_acked_s=0"


def in_loop(place: Path, work: Callable[[Any, Queue], Any]) -> None:
    async def connected() -> None:
        spout = queue(url_in(place))
        await spout.open(CONTEXT)
        with open_queue(url_in(place)) as orders:
            await work(spout, orders)
        await spout.close()

    asyncio.run(connected())


async def given_by(spout: Any) -> list[object]:
    return [one.message_id for one in await spout.next() or ()]


async def taken_by_another(spout: Any, orders: Queue) -> Delivery:
    """The message is out here, and its lease has ended; another consumer has it."""
    orders.publish([Message(id="order-0")])
    assert await given_by(spout) == ["order-0"]
    orders.fail([Failure(handle=spout._out["order-0"].handle)])
    [other] = orders.lease(lease_s=HANG_S)
    return other


def settle(spout: Any, is_dead: bool) -> None:
    if is_dead:
        spout.fail("order-0", DEAD)
    else:
        spout.ack("order-0")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_dead", [False, True], ids=["acked here", "dead here"])
@pytest.mark.parametrize("is_first", [True, False], ids=["before", "after"])
def test_a_message_is_worked_whose_id_was_that_of_one_that_another_consumer_settled_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, is_dead: bool, is_first: bool
) -> None:
    monkeypatch.setattr(broker_spout, "OTHER_S", -1.0)  # as if the second one was published much later

    async def work(spout: Any, orders: Queue) -> None:
        other = await taken_by_another(spout, orders)
        settle(spout, is_dead)
        if is_first:
            WAYS[way](orders, other)
        await spout.flush()
        assert [*spout.not_told()] == ([] if is_first else ["order-0"])
        if not is_first:
            WAYS[way](orders, other)
        assert orders.depth().open == 0
        assert orders.publish([Message(id="order-0")]) == 1
        assert await given_by(spout) == ["order-0"]
        assert [*spout.not_told()] == []

    in_loop(tmp_path, work)


@pytest.mark.parametrize("is_dead", [False, True], ids=["acked", "dead"])
def test_what_an_earlier_process_settled_and_the_broker_knows_to_be_over_is_forgotten(
    tmp_path: Path, is_dead: bool
) -> None:
    async def work(spout: Any, orders: Queue) -> None:
        orders.publish([Message(id="order-1")])
        for message_id in ("order-0", "order-1"):  # as the journal says, after each start
            spout.fail(message_id, DEAD) if is_dead else spout.ack(message_id)
        await spout.flush()
        assert [*spout.not_told()] == ["order-1"]
        orders.publish([Message(id="order-0")])
        assert await given_by(spout) == ["order-0"]
        await spout.flush()
        assert (orders.depth().dead, orders.depth().ready) == (is_dead, 0)

    in_loop(tmp_path, work)


@pytest.mark.parametrize("is_moved", [False, True], ids=["delivered", "moved"])
def test_the_same_message_is_not_worked_again_whatever_its_broker_counts_or_its_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_moved: bool
) -> None:
    async def work(spout: Any, orders: Queue) -> None:
        other = await taken_by_another(spout, orders)
        spout.ack("order-0")
        await spout.flush()
        if is_moved:  # it is counted anew
            orders.dead_letter([Letter(handle=other.handle, reason="no")])
            assert orders.move("orders", state="dead") == 1
        else:  # the clock was set
            orders.fail([Failure(handle=other.handle, counts=False)])
            monkeypatch.setattr(broker_spout, "OTHER_S", -1.0)
        assert await given_by(spout) == []
        assert orders.depth().open == 0

    in_loop(tmp_path, work)


READERS = pytest.mark.parametrize("read_on", ["driver", "executors"])


def priced(place: Path, read_on: Any, **settings: Any) -> RunHandle:
    t = Topology("pricing")
    spout = queue(url_in(place), Order, read_on=read_on, **settings)
    t.sink("invoices", queue_sink(url_of(place, "invoices"))).shuffle(
        t.bolt("price", price).shuffle(t.spout("orders", spout))
    )
    return started(t, place)


def work(place: Path, *numbers: int) -> None:
    """Publish these, and wait until each has one invoice more."""
    expected = invoices_of(place) + Counter(numbers)
    with open_queue(url_in(place)) as orders:
        bodies = [Message(id=f"order-{at}", body=b'{"number": %d, "pears": 1}' % at) for at in numbers]
        assert orders.publish(bodies) == len(numbers)
        until(lambda: invoices_of(place) == expected, what=lambda: invoices_of(place))
        until(lambda: orders.depth().open == 0)


def stopped(handle: RunHandle) -> None:
    handle.stop()
    handle.wait(HANG_S)


@READERS
def test_after_a_kill_ids_are_kept_no_longer_than_their_messages_may_come_again_and_may_be_used_again(
    tmp_path: Path, read_on: str
) -> None:
    with open_queue(url_in(tmp_path)) as orders:
        orders.publish([Message(id=f"order-{at}", body=b'{"number": %d, "pears": 1}' % at) for at in range(3)])
        with crashing("callbacks.after"):
            priced(tmp_path, read_on).wait(HANG_S)
        until(lambda: orders.depth().open == 0)
    assert unconfirmed(tmp_path) == {"order-0", "order-1", "order-2"}
    handle = priced(tmp_path, read_on)
    work(tmp_path, 7)  # from now on the broker was asked
    work(tmp_path, 8)  # and from now on all has come that it had given before
    for again in range(2):
        work(tmp_path, 0, 1)
        work(tmp_path, 7)
        assert invoices_of(tmp_path) == Counter({0: 2 + again, 1: 2 + again, 2: 1, 7: 2 + again, 8: 1})
    stopped(handle)
    assert unconfirmed(tmp_path) <= {"order-0", "order-1", "order-7"}


@READERS
def test_what_a_killed_process_had_out_is_told_when_it_comes_again_and_kept_no_longer(
    tmp_path: Path, read_on: str
) -> None:
    with open_queue(url_in(tmp_path)) as orders:
        orders.publish([Message(id=f"order-{at}", body=b'{"number": %d, "pears": 1}' % at) for at in range(3)])
        with crashing("epoch.after_log"):
            priced(tmp_path, read_on, lease_s=1.0).wait(HANG_S)
    handle = priced(tmp_path, read_on)
    with open_queue(url_in(tmp_path)) as orders:
        until(lambda: orders.depth().open == 0)
    for number in (7, 8, 9):
        work(tmp_path, number)
    assert unconfirmed(tmp_path) <= {"order-8", "order-9"}
    work(tmp_path, 0, 1)
    stopped(handle)
    assert invoices_of(tmp_path) == Counter({0: 2, 1: 2, 2: 1, 7: 1, 8: 1, 9: 1})


@READERS
def test_in_a_run_a_message_is_worked_whose_id_was_that_of_one_that_another_consumer_acked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_on: str
) -> None:
    monkeypatch.setattr(broker_spout, "OTHER_S", -1.0)  # as if the second one was published much later
    with monkeypatch.context() as patching:
        other = OtherConsumer(url_in(tmp_path), patching)
        handle = priced(tmp_path, read_on)
        with open_queue(url_in(tmp_path)) as orders:
            orders.publish([Message(id="order-0", body=b'{"number": 0, "pears": 1}')])
            until(lambda: other.refused)
            assert [*other.queue.broker.ack([one.handle for one in other.taken])] == []
    work(tmp_path, 0)
    stopped(handle)
    assert invoices_of(tmp_path) == Counter({0: 2})


class GivenBefore(AsyncSpout[Order]):
    """Gives one message; in a later process again, in a `next` that had it before its ack and returns after that."""

    message_type = Order

    def __init__(self, *, is_later: bool) -> None:
        self.is_later = is_later

    async def open(self, context: TaskContext) -> None:
        self.acked = asyncio.Event()
        self.given = 0

    async def next(self) -> Emit[Order]:
        if self.given == 1:
            raise EndOfInput
        if self.is_later:
            await self.acked.wait()
        self.given += 1
        return Emit(Order(0, 1), "order-0")

    def ack(self, message_id: MessageId) -> None:
        self.acked.set()

    def not_told(self) -> list[MessageId]:
        return []


def test_a_delivery_that_a_source_gave_before_it_was_told_of_the_message_is_no_new_message(tmp_path: Path) -> None:
    def handle(*, is_later: bool) -> RunHandle:
        t = Topology("pricing")
        orders = t.spout("orders", GivenBefore(is_later=is_later))
        t.sink("invoices", queue_sink(url_of(tmp_path, "invoices"))).shuffle(t.bolt("price", price).shuffle(orders))
        return started(t, tmp_path)

    with crashing("epoch.after_log"):
        handle(is_later=False).wait(HANG_S)
    assert handle(is_later=True).wait(HANG_S).open == 0
    assert invoices_of(tmp_path) == Counter({0: 1})
