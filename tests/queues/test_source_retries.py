"""Messages that fail for now are worked again before the input of a queue ends, whatever its broker can count."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from tests.queues.servers import RabbitServer, nats_server, redis_server
from tests.queues.test_sources_and_sinks import CONTEXT, RUNTIMES, Order, Runner, ids_of
from tupletree import EndOfInput, Topology, bolt
from tupletree.queues import Depth, Message, open_queue
from tupletree.queues.sqlite import SqliteBroker
from tupletree.sources import queue
from tupletree.sources.broker_spout import LONGEST_PAUSE_S, RETURN_S
from tupletree.tracking.outcomes import Failure as Verdict
from tupletree.tracking.outcomes import FailureKind

pytestmark = pytest.mark.xdist_group("rabbitmq")

WORKED: Counter[int] = Counter()


@bolt
def fails_once(order: Order) -> None:
    """Fails order 3 once."""
    WORKED[order.number] += 1
    if order.number == 3 and WORKED[3] == 1:
        raise ValueError("the service had a moment")


@pytest.fixture(params=["sqlite", "nats", "redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a queue that is not there yet, without its name."""
    with ExitStack() as servers:
        match request.param:
            case "sqlite":
                yield f"sqlite:///{tmp_path}/shop.db?queue="
            case "nats":
                pytest.importorskip("nats")
                yield f"{servers.enter_context(nats_server()).url}?queue="
            case "redis":
                yield f"{servers.enter_context(redis_server()).url}?queue="
            case _:
                pytest.importorskip("pika")
                yield f"{request.getfixturevalue('rabbitmq').url}?queue="


@RUNTIMES
@pytest.mark.parametrize("replay", ["source", "runtime"])
def test_a_message_that_fails_once_is_worked_again_before_the_input_ends_and_nothing_is_left(
    broker: str, tmp_path: Path, runtime: Runner, replay: Literal["source", "runtime"]
) -> None:
    WORKED.clear()
    url = f"{broker}once-{replay}-{runtime.__name__}"
    t = Topology("retrying")
    orders = t.spout("orders", queue(url, Order, follow=False), replay=replay)
    t.bolt("fails_once", fails_once).shuffle(orders)
    with open_queue(url) as inbound:
        inbound.publish([Message(id=f"m{n}", body=b'{"number":%d,"pears":1}' % n) for n in range(5)])
        ended = runtime(t, tmp_path)
        assert (ended.acked, ended.dead, ended.open) == (5, 0, 0)
        assert Counter({0: 1, 1: 1, 2: 1, 3: 2, 4: 1}) == WORKED
        assert inbound.lease(10, wait_s=2.0) == []  # longer than the delay of a first failure
        assert (inbound.depth().ready, inbound.depth().dead) == (0, 0)


DROPS: list[Callable[[], None]] = []


@bolt
def fails_at_first(order: Order) -> None:
    """Fails every fifth order at its first attempt; meanwhile connections drop."""
    WORKED[order.number] += 1
    if WORKED.total() in {250, 600, 1000} and DROPS:
        DROPS.pop()()
    if order.number % 5 == 0 and WORKED[order.number] == 1:
        raise ValueError("the service had a moment")


@RUNTIMES
def test_what_fails_while_connections_drop_is_worked_again_and_the_queue_is_empty_in_the_end(
    rabbitmq: RabbitServer, tmp_path: Path, runtime: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tupletree.queues.rabbitmq.client import RabbitClient, ServerLink

    WORKED.clear()
    links: list[ServerLink] = []
    connected = RabbitClient._connected

    async def connect(self: RabbitClient) -> ServerLink:
        link = await connected(self)
        if link not in links:
            links.append(link)
        return link

    def drop() -> None:
        for link in links:
            if link.connection.is_open:
                link.connection._transport._sock.shutdown(socket.SHUT_RDWR)

    monkeypatch.setattr(RabbitClient, "_connected", connect)
    DROPS[:] = [drop] * 3
    count = 1000
    url = f"{rabbitmq.url}?queue=drops-{runtime.__name__}"

    def make() -> Topology:
        t = Topology("retrying")
        orders = t.spout("orders", queue(url, Order, follow=False), replay="source")
        t.bolt("fails_at_first", fails_at_first).shuffle(orders)
        return t

    with open_queue(url) as inbound:
        inbound.publish([Message(id=f"m{n}", body=b'{"number":%d,"pears":1}' % n) for n in range(count)])
    ended = runtime(make(), tmp_path)
    assert not DROPS
    assert (ended.dead, ended.open) == (0, 0)
    assert {*WORKED} == {*range(count)}
    assert all(WORKED[number] >= 2 for number in range(0, count, 5))
    with open_queue(url) as inbound:
        while inbound.depth().ready:  # came back when the input had ended
            assert runtime(make(), tmp_path).dead == 0
        assert (inbound.depth().ready, inbound.depth().dead) == (0, 0)


def verdict(*, permanent: bool = False) -> Verdict:
    return Verdict(kind=FailureKind.ERROR, error="the service had a moment", permanent=permanent)


@pytest.fixture
def blind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A queue of a broker that knows of ready messages and dead ones alone."""
    counted, made = SqliteBroker.depth, SqliteBroker.__init__

    def make(self: SqliteBroker, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        self.capabilities = replace(self.capabilities, states=("ready", "dead"), counts_open=False)

    def depth(self: SqliteBroker, name: str) -> Depth:
        found = counted(self, name)
        return Depth(ready=found.ready, dead=found.dead)

    monkeypatch.setattr(SqliteBroker, "__init__", make)
    monkeypatch.setattr(SqliteBroker, "depth", depth)
    return f"sqlite:///{tmp_path}/shop.db?queue=orders"


def publish(url: str) -> None:
    with open_queue(url) as orders:
        orders.publish([Message(id="m", body=b'{"number":1,"pears":1}')])


def test_an_input_does_not_end_before_a_failure_is_told_to_its_broker(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db?queue=orders"
    publish(url)

    async def work() -> None:
        spout = queue(url, Order, follow=False)
        await spout.open(CONTEXT)
        assert ids_of(await spout.next()) == ["m"]
        spout.fail("m", verdict())
        assert await spout.next() is None
        await spout.close()

    asyncio.run(work())


def test_a_message_that_went_back_and_that_another_consumer_took_holds_the_end_up_for_some_seconds_only(
    blind: str,
) -> None:
    publish(blind)

    async def work() -> None:
        spout = queue(blind, Order, follow=False)
        await spout.open(CONTEXT)
        assert ids_of(await spout.next()) == ["m"]
        spout.fail("m", verdict())
        await spout.flush()
        assert await spout.next() is None
        with open_queue(blind) as other:
            [taken] = other.lease(wait_s=20)
            assert taken.message.id == "m"
            assert await spout.next() is None
            let_go_by(RETURN_S + 1.0)
            with pytest.raises(EndOfInput):
                await spout.next()
        await spout.close()

    asyncio.run(work())


@pytest.mark.parametrize("comes", [True, False])
def test_what_an_earlier_process_gave_back_is_waited_for_as_long_as_its_delay_may_last(
    blind: str, *, comes: bool
) -> None:
    async def work() -> None:
        spout = queue(blind, Order, follow=False)
        await spout.open(CONTEXT)
        spout.fail("m", verdict())
        await spout.flush()
        assert await spout.next() is None
        let_go_by(LONGEST_PAUSE_S)
        assert await spout.next() is None
        if comes:
            publish(blind)
            assert ids_of(await spout.next()) == ["m"]
            spout.ack("m")
            await spout.flush()
        else:
            let_go_by(LONGEST_PAUSE_S)
        with pytest.raises(EndOfInput):
            await spout.next()
        await spout.close()

    asyncio.run(work())


def test_what_is_dead_is_not_waited_for(blind: str) -> None:
    async def work() -> None:
        spout = queue(blind, Order, follow=False)
        await spout.open(CONTEXT)
        spout.fail("m", verdict())
        spout.fail("m", verdict(permanent=True))
        with pytest.raises(EndOfInput):
            await spout.next()
        await spout.close()

    asyncio.run(work())


def let_go_by(seconds: float) -> None:
    """The running loop's clock goes on."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    loop.time = lambda: clock() + seconds  # type: ignore[method-assign]  # so a loop's clock is set
