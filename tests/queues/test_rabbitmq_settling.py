"""What becomes of a message of RabbitMQ whose lease ends, or whose channel closes, while its copy is stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import SimpleNamespace

import pytest

from tests.queues.servers import RabbitServer
from tests.queues.test_rabbitmq_faults import cut, lease_all
from tupletree.errors import ConnectorError
from tupletree.queues import Delivery, Failure, Letter, Message, Queue, connect, open_queue

pika = pytest.importorskip("pika")
from tupletree.queues.rabbitmq.channels import Confirmed, Requests  # noqa: E402
from tupletree.queues.rabbitmq.client import RabbitClient, ServerLink  # noqa: E402
from tupletree.queues.rabbitmq.wire import Parcel, ready_queue_of  # noqa: E402

pytestmark = pytest.mark.xdist_group("rabbitmq")

Trouble = Callable[[RabbitClient, ServerLink], Awaitable[None]]
Settle = Callable[[Queue, Delivery], Sequence[str]]


def fail(queue: Queue, leased: Delivery) -> Sequence[str]:
    return queue.fail([Failure(handle=leased.handle, delay_s=0.01)])


def bury(queue: Queue, leased: Delivery) -> Sequence[str]:
    return queue.dead_letter([Letter(handle=leased.handle, reason="poison")])


WAYS = pytest.mark.parametrize("settle", [fail, bury])


@pytest.fixture
def after_publish(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Trouble], None]]:
    """What happens once, when messages are stored and their publisher has not gone on."""
    publish = RabbitClient.publish
    troubles: list[Trouble] = []

    async def publish_and_wait(self: RabbitClient, link: ServerLink, parcels: Sequence[Parcel], queue: str) -> None:
        await publish(self, link, parcels, queue)
        if troubles:
            await troubles.pop()(self, link)

    monkeypatch.setattr(RabbitClient, "publish", publish_and_wait)
    yield troubles.append
    assert not troubles


async def let_leases_end(client: RabbitClient, link: ServerLink) -> None:
    client.clock = lambda: time.monotonic() + 100.0
    for channel in link.consuming.values():
        channel._clock = client.clock
    client._end_leases()
    await asyncio.sleep(0.1)


async def let_leases_end_and_break(client: RabbitClient, link: ServerLink) -> None:
    await let_leases_end(client, link)
    raise ConnectorError("the server did not confirm in time")


async def lose_connection(_: RabbitClient, link: ServerLink) -> None:
    cut(link)
    await link.over.wait()


def close_channel(queue: str) -> Trouble:
    async def close(_: RabbitClient, link: ServerLink) -> None:
        requests, closed = link.consuming[ready_queue_of(queue)].requests, asyncio.Event()
        requests.on_end(lambda _: closed.set())
        requests.close()
        await closed.wait()

    return close


@WAYS
def test_a_lease_that_ends_while_the_copy_is_stored_is_settled_all_the_same(
    rabbitmq: RabbitServer, after_publish: Callable[[Trouble], None], settle: Settle
) -> None:
    name = f"ends-{settle.__name__}"
    with open_queue(f"{rabbitmq.url}?queue={name}") as queue, connect(rabbitmq.url) as other:
        queue.publish([Message(id="one")])
        [leased] = queue.lease(lease_s=50)
        after_publish(let_leases_end)
        assert not settle(queue, leased)
        assert lease_all(other, name, 1.0) == (["one"] if settle is fail else [])
        assert [one.message.id for one in other.peek(name, "dead")] == (["one"] if settle is bury else [])


@WAYS
def test_a_lease_that_ended_while_its_copy_was_not_confirmed_goes_back(
    rabbitmq: RabbitServer, after_publish: Callable[[Trouble], None], settle: Settle
) -> None:
    name = f"unsure-{settle.__name__}"
    with open_queue(f"{rabbitmq.url}?queue={name}") as queue, connect(rabbitmq.url) as other:
        queue.publish([Message(id="one")])
        [leased] = queue.lease(lease_s=50)
        after_publish(let_leases_end_and_break)
        with pytest.raises(ConnectorError, match="did not confirm"):
            settle(queue, leased)
        assert lease_all(other, name) == (["one", "one"] if settle is fail else ["one"])
        assert [*settle(queue, leased)] == [leased.handle]


@WAYS
def test_a_channel_that_closes_while_the_copy_is_stored_is_a_refused_handle(
    rabbitmq: RabbitServer, after_publish: Callable[[Trouble], None], settle: Settle
) -> None:
    name = f"closes-{settle.__name__}"
    with open_queue(f"{rabbitmq.url}?queue={name}") as queue:
        queue.publish([Message(id="one")])
        [leased] = queue.lease()
        after_publish(close_channel(name))
        assert [*settle(queue, leased)] == [leased.handle]
        [again] = queue.lease(1, wait_s=20)
        assert again.message.id == "one"


@pytest.mark.parametrize("delay_s", [0.0, 0.01])
def test_failures_of_two_queues_are_told_though_the_channel_of_the_second_closes_meanwhile(
    rabbitmq: RabbitServer, after_publish: Callable[[Trouble], None], delay_s: float
) -> None:
    first, second = f"first-{delay_s}", f"second-{delay_s}"
    with open_queue(f"{rabbitmq.url}?queue={first}") as queue:
        broker = queue.broker
        broker.declare(second)
        handles = []
        for name in (first, second):
            broker.publish(name, [Message(id=name)])
            handles += [one.handle for one in broker.lease(name)]
        after_publish(close_channel(second))
        failures = [Failure(handle=handles[0], delay_s=0.01), Failure(handle=handles[1], delay_s=delay_s)]
        assert [*broker.fail(failures)] == handles[1:]
        assert lease_all(broker, first) == [first]
        assert lease_all(broker, second) == [second]


def test_letters_whose_connection_breaks_while_they_are_moved_are_an_outage_and_none_is_lost(
    rabbitmq: RabbitServer, after_publish: Callable[[Trouble], None]
) -> None:
    with open_queue(f"{rabbitmq.url}?queue=moved") as queue:
        queue.publish([Message(id="one")])
        bury(queue, queue.lease()[0])
        after_publish(lose_connection)
        with pytest.raises(ConnectorError) as away:
            queue.move("moved", state="dead")
        assert away.value.is_outage
        assert lease_all(queue.broker, "moved") == ["one"]


class Wire:
    """A channel that hears what the test lets the server say."""

    is_open = True

    def __init__(self) -> None:
        self.sent = 0

    def add_on_close_callback(self, _: object) -> None:
        """It does not close."""

    def basic_publish(self, *_: object, **__: object) -> None:
        self.sent += 1


def test_a_publish_to_the_same_missing_queue_does_not_hide_that_an_earlier_one_came_back() -> None:
    async def publish() -> None:
        wire = Wire()
        confirmed = Confirmed(Requests(wire))
        lost = Parcel("", "nowhere", b"", None)
        first = asyncio.create_task(confirmed.publish([lost], 10.0, "here"))
        await asyncio.sleep(0)
        confirmed._hear_return(None, pika.spec.Basic.Return(routing_key="nowhere"), None, b"")
        second = asyncio.create_task(confirmed.publish([lost, Parcel("", "there", b"", None)], 10.0, "here"))
        await asyncio.sleep(0)
        assert wire.sent == 3
        confirm(confirmed, 1)
        assert await first == {"nowhere"}
        confirmed._hear_return(None, pika.spec.Basic.Return(routing_key="nowhere"), None, b"")
        confirm(confirmed, 3)
        assert await second == {"nowhere"}
        third = asyncio.create_task(confirmed.publish([Parcel("", "nowhere", b"", None)], 10.0, "here"))
        await asyncio.sleep(0)
        confirm(confirmed, 4)
        assert await third == set()  # it has been declared meanwhile
        assert not confirmed._waiting

    asyncio.run(publish())


def confirm(confirmed: Confirmed, tag: int) -> None:
    confirmed._hear_confirm(SimpleNamespace(method=pika.spec.Basic.Ack(delivery_tag=tag, multiple=True)))
