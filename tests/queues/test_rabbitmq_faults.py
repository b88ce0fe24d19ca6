"""What becomes of queues on a RabbitMQ server that dies, of connections that drop, and of logins that are refused."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.queues.servers import RabbitServer, need, rabbit_server
from tests.queues.test_sources_and_sinks import Order, Runner, price, run_local, run_spark
from tests.until import until
from tupletree import Topology
from tupletree.errors import ConnectorError
from tupletree.queues import Broker, Failure, Letter, Message, UnknownQueueError, connect, open_queue, url_of
from tupletree.queues.contract import RefusedConnectionError
from tupletree.sinks import queue_sink
from tupletree.sources import queue as queue_source

pika = pytest.importorskip("pika")
from tupletree.queues.rabbitmq import RabbitBroker, client  # noqa: E402
from tupletree.queues.rabbitmq.client import RabbitClient, ServerLink  # noqa: E402
from tupletree.queues.rabbitmq.wire import Parcel, ready_queue_of  # noqa: E402

pytestmark = pytest.mark.xdist_group("rabbitmq")


def link_of(broker: Broker) -> ServerLink:
    assert isinstance(broker, RabbitBroker)
    link = broker._client._link
    assert link is not None
    return link


def cut(link: ServerLink) -> None:
    link.connection._transport._sock.shutdown(socket.SHUT_RDWR)


def drop(broker: Broker) -> None:
    """The connection breaks, as by a network that fails."""
    link = link_of(broker)
    assert isinstance(broker, RabbitBroker)
    cut(link)
    until(link.over.is_set)


def lease_all(broker: Broker, queue: str, wait_s: float = 20.0) -> list[str]:
    """The ids of all that is ready, acked; waits for the first."""
    seen: list[str] = []
    while leased := broker.lease(queue, 100, lease_s=600, wait_s=0.5 if seen else wait_s):
        refused = broker.ack([one.handle for one in leased])
        seen += [one.message.id for one in leased if one.handle not in refused]
    return seen


def test_a_server_that_is_killed_with_twenty_in_flight_loses_nothing_and_refuses_their_handles(
    rabbitmq: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "KEEPING_S", 2.0)
    with open_queue(f"{rabbitmq.url}?queue=killed&timeout_s=30") as queue:
        ids = [f"m{number}" for number in range(300)]
        queue.publish([Message(id=one, body=one.encode()) for one in ids])
        queue.publish([Message(id="delayed", delay_s=0.01)])
        done: list[str] = []
        for _ in range(3):
            leased = queue.lease(50, lease_s=3600)
            assert not queue.ack([one.handle for one in leased[:30]])
            done += [one.message.id for one in leased[:30]]
            queue.dead_letter([Letter(handle=one.handle, reason="x") for one in leased[30:32]])
            done += [one.message.id for one in leased[30:32]]
            queue.fail([Failure(handle=one.handle) for one in leased[32:]])
        flying = queue.lease(20, lease_s=3600)
        rabbitmq.kill()
        with pytest.raises(ConnectorError) as away:
            queue.depth()
        assert away.value.is_outage
        with pytest.raises(ConnectorError) as away:
            queue.publish([Message(id="lost?")])
        assert away.value.is_outage
        rabbitmq.start()
        assert [*queue.ack([one.handle for one in flying])] == [one.handle for one in flying]
        found = Counter(done + lease_all(queue.broker, "killed"))
        assert {*ids, "delayed"} <= {*found}
        assert {*found} <= {*ids, "delayed", "lost?"}
        assert not queue.broker.capabilities.durable_acks
        assert max(found.values()) <= 2  # what was acked just before the kill may come again
        assert queue.depth().dead >= 6


def test_a_connection_that_drops_three_times_in_three_seconds_loses_nothing(rabbitmq: RabbitServer) -> None:
    with open_queue(f"{rabbitmq.url}?queue=drops") as queue:
        ids = [f"m{number}" for number in range(200)]
        queue.publish([Message(id=one) for one in ids])
        done: list[str] = []
        for _ in range(3):
            leased = queue.lease(40, lease_s=600, wait_s=20)
            assert len(leased) >= 20
            assert not queue.ack([one.handle for one in leased[:20]])
            done += [one.message.id for one in leased[:20]]
            drop(queue.broker)
            late = [one.handle for one in leased[20:]]
            assert [*queue.ack(late)] == late
            assert [*queue.fail([Failure(handle=one) for one in late])] == late
            assert [*queue.dead_letter([Letter(handle=one, reason="x") for one in late])] == late
            assert [*queue.broker.extend(late)] == late
        assert Counter(done + lease_all(queue.broker, "drops")) == Counter(ids)
        assert queue.depth().dead == 0


def test_a_lease_that_waits_while_its_connection_drops_says_so_at_once(rabbitmq: RabbitServer) -> None:
    with open_queue(f"{rabbitmq.url}?queue=waits") as queue:
        queue.lease()
        dropping = threading.Timer(0.2, drop, [queue.broker])
        dropping.start()
        began_s = time.monotonic()
        with pytest.raises(ConnectorError):
            queue.lease(wait_s=60)
        assert time.monotonic() - began_s < 9  # no timeout was waited for
        dropping.join()


def test_a_lease_that_waits_ends_with_its_connection(rabbitmq: RabbitServer) -> None:
    queue = open_queue(f"{rabbitmq.url}?queue=closed-under-a-lease")  # no other test of this server has it
    closing = threading.Timer(0.2, queue.close)
    closing.start()
    with pytest.raises(ConnectorError, match="closed"):
        queue.lease(wait_s=60)
    closing.join()


def test_a_queue_that_is_deleted_under_a_lease_that_waits_is_named(rabbitmq: RabbitServer) -> None:
    with open_queue(f"{rabbitmq.url}?queue=deleted") as queue:
        queue.publish([Message(id="gone")])
        [gone] = queue.lease()

        def delete() -> None:
            with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as theirs:
                theirs.channel().queue_delete(ready_queue_of("deleted"))

        deleting = threading.Timer(0.2, delete)
        deleting.start()
        with pytest.raises(ConnectorError):
            queue.lease(wait_s=60)
        deleting.join()
        with pytest.raises(UnknownQueueError, match="deleted"):
            queue.lease()
        with pytest.raises(UnknownQueueError, match="deleted"):
            queue.publish([Message()])
        with pytest.raises(UnknownQueueError, match="deleted"):
            queue.publish([Message(delay_s=1.0)])
        with pytest.raises(UnknownQueueError, match="deleted"):
            queue.publish([])
        assert [*queue.ack([gone.handle])] == [gone.handle]


def test_a_crash_between_the_copy_of_a_delayed_failure_and_its_ack_leaves_the_message_twice_under_one_id(
    rabbitmq: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = RabbitClient.publish

    async def publish_and_die(self: RabbitClient, link: ServerLink, parcels: Sequence[Parcel], queue: str) -> None:
        await publish(self, link, parcels, queue)
        cut(link)

    with open_queue(f"{rabbitmq.url}?queue=twice") as queue:
        queue.publish([Message(id="one", body=b"x")])
        [leased] = queue.lease()
        with monkeypatch.context() as patched:
            patched.setattr(RabbitClient, "publish", publish_and_die)
            with pytest.raises(ConnectorError):
                queue.fail([Failure(handle=leased.handle, delay_s=0.01)])
        seen: list[str] = []
        while len(seen) < 2:
            seen += lease_all(queue.broker, "twice")
        assert seen == ["one", "one"]


def test_a_crash_between_a_dead_letter_and_its_ack_leaves_the_letter_and_the_message(
    rabbitmq: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = RabbitClient.publish

    async def publish_and_die(self: RabbitClient, link: ServerLink, parcels: Sequence[Parcel], queue: str) -> None:
        await publish(self, link, parcels, queue)
        cut(link)

    with open_queue(f"{rabbitmq.url}?queue=letter") as queue:
        queue.publish([Message(id="one", body=b"x")])
        [leased] = queue.lease()
        with monkeypatch.context() as patched:
            patched.setattr(RabbitClient, "publish", publish_and_die)
            with pytest.raises(ConnectorError):
                queue.dead_letter([Letter(handle=leased.handle, reason="poison")])
        [again] = queue.lease(wait_s=20)
        assert (again.message.id, again.deliveries) == ("one", 2)
        assert not queue.dead_letter([Letter(handle=again.handle, reason="poison")])
        assert {one.message.id for one in queue.peek("dead")} == {"one"}
        assert queue.depth().ready == 0


def test_a_password_with_every_sign_is_taken_and_a_wrong_one_refused_and_neither_is_shown(
    rabbitmq: RabbitServer,
) -> None:
    rabbitmq.control("add_user", "ann", "p@ss/w:rd?&")
    place = f"127.0.0.1:{rabbitmq.port}"
    right = f"amqp://ann:p%40ss%2Fw%3Ard%3F%26@{place}?queue=q"
    with pytest.raises(RefusedConnectionError) as refused:  # she may not yet use anything
        open_queue(right)
    assert not refused.value.is_outage
    rabbitmq.control("set_permissions", "ann", ".*", ".*", ".*")
    with open_queue(right) as queue:
        assert queue.publish([Message(id="1")]) == 1
        assert "p@ss" not in f"{queue.broker!r} {queue}"
        assert "p%40ss" not in f"{queue.broker!r} {queue}"
    with pytest.raises(RefusedConnectionError, match="refuses it") as refused:
        connect(f"amqp://ann:s3cret@{place}")
    assert "s3cret" not in f"{refused.value!r} {refused.value}"
    with pytest.raises(RefusedConnectionError, match="nowhere"):
        connect(f"{rabbitmq.url}/nowhere")


def test_a_server_that_is_not_there_is_an_outage() -> None:
    for url in (
        "amqp://127.0.0.1:1?timeout_s=5",
        "amqps://127.0.0.1:1?timeout_s=5",
        "amqp://no-such-host.invalid?timeout_s=5",
    ):
        with pytest.raises(ConnectorError) as away:
            connect(url)
        assert away.value.is_outage


def test_a_message_that_is_larger_than_the_server_takes_is_no_outage(rabbitmq: RabbitServer) -> None:
    with open_queue(f"{rabbitmq.url}?queue=huge&max_body_bytes=500000000") as queue:
        with pytest.raises(ConnectorError, match="max_body_bytes=") as refused:
            queue.publish([Message(body=bytes(135_000_000))])
        assert not refused.value.is_outage
        assert queue.publish([Message(id="small")]) == 1
        assert [one.message.id for one in queue.lease(5)] == ["small"]


@pytest.mark.nightly
def test_a_connection_is_encrypted_and_a_certificate_that_nobody_vouches_for_is_not_taken() -> None:
    need("openssl", "rabbitmq", "apt-get install openssl")
    with rabbit_server(is_encrypted=True) as server:
        url = f"amqps://localhost:{server.port}?queue=q"
        with open_queue(f"{url}&ca_file={server.folder / 'certificate.pem'}") as queue:
            queue.publish([Message(id="1", body=b"x" * 3_000_000)])
            assert [len(one.message.body) for one in queue.lease()] == [3_000_000]
        with pytest.raises(RefusedConnectionError, match=r"(?i)certificate"):
            open_queue(url)


@pytest.mark.nightly
def test_a_message_that_the_server_gives_up_is_a_dead_letter(rabbitmq: RabbitServer) -> None:
    rabbitmq.control("set_policy", "limited", "limited", '{"delivery-limit": 2}', "--apply-to", "queues")
    with open_queue(f"{rabbitmq.url}?queue=limited") as queue:
        queue.publish([Message(id="poison", body=b"x")])
        while leased := queue.lease(wait_s=1.0):
            queue.fail([Failure(handle=one.handle) for one in leased])
        [letter] = queue.peek("dead")
        assert (letter.message.id, letter.reason) == ("poison", "the server: delivery_limit")


@pytest.mark.nightly
def test_a_server_that_takes_no_messages_for_want_of_memory_is_an_outage_that_says_so(rabbitmq: RabbitServer) -> None:
    with open_queue(f"{rabbitmq.url}?queue=alarm&timeout_s=2") as queue:
        rabbitmq.control("set_vm_memory_high_watermark", "absolute", "1")
        try:
            time.sleep(3.0)  # the server looks at its memory now and then
            with pytest.raises(ConnectorError, match="no messages now") as away:
                queue.publish([Message(body=b"x")])
            assert away.value.is_outage
        finally:
            rabbitmq.control("set_vm_memory_high_watermark", "absolute", "1GB")

        def is_taken() -> bool:
            with contextlib.suppress(ConnectorError):
                return queue.publish([Message(body=b"x")]) == 1
            return False

        until(is_taken)


def _pricing(url: str) -> Topology:
    t = Topology("pricing")
    orders = t.spout("orders", queue_source(url_of(url, "to-price"), Order, follow=False))
    t.sink("invoices", queue_sink(url_of(url, "priced"), id="order")).shuffle(t.bolt("price", price).shuffle(orders))
    return t


def _priced(url: str, tmp_path: Path, runner: Runner, count: int, trouble: Callable[[Broker], None]) -> None:
    """All good orders are priced, at least once, and the others dead, though there is trouble in the middle of it."""
    good = {number for number in range(count) if number % 100 != 7}
    with open_queue(url_of(url, "to-price")) as orders, open_queue(url_of(url, "priced")) as invoices:
        orders.publish(
            [Message(id=f"m{n}", body=b'{"number":%d,"pears":%d}' % (n, n if n in good else -1)) for n in range(count)]
        )
        troubling = threading.Thread(target=trouble, args=[invoices.broker])
        troubling.start()
        runner(_pricing(url), tmp_path)
        troubling.join()
        while orders.depth().ready:  # came back when the input had ended
            runner(_pricing(url), tmp_path)
        priced: Counter[int] = Counter()
        while leased := invoices.lease(1000, lease_s=3600, wait_s=1.0):
            priced.update(msgspec.json.decode(one.message.body)["order"] for one in leased)
        assert {*priced} == good
        assert {one.message.id for one in orders.peek("dead", count)} == {f"m{n}" for n in range(count)} - {
            f"m{n}" for n in good
        }
        assert orders.depth().open == 0


@pytest.mark.parametrize("runner", [run_local, run_spark], ids=["local", "spark"])
def test_a_run_whose_connections_drop_three_times_goes_on(
    rabbitmq: RabbitServer, tmp_path: Path, runner: Runner
) -> None:
    def trouble(broker: Broker) -> None:
        for number in range(1, 4):
            until(lambda: _count(broker) >= 100 * number)  # noqa: B023 - called before the next number
            rabbitmq.control("close_all_connections", "as by a network that fails")

    _priced(_place(rabbitmq, runner), tmp_path, runner, 1500, trouble)


@pytest.mark.nightly
@pytest.mark.parametrize("runner", [run_local, run_spark], ids=["local", "spark"])
def test_a_run_whose_server_is_killed_goes_on(
    rabbitmq: RabbitServer, tmp_path: Path, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "KEEPING_S", 2.0)

    def trouble(broker: Broker) -> None:
        for number in range(1, 3):
            until(lambda: _count(broker) >= 500 * number)  # noqa: B023 - called before the next number
            rabbitmq.kill()
            rabbitmq.start()

    _priced(_place(rabbitmq, runner), tmp_path, runner, 6000, trouble)


def _place(server: RabbitServer, runner: Runner) -> str:
    """A virtual host of its own."""
    name = f"{runner.__name__}-{time.monotonic_ns()}"
    server.control("add_vhost", name)
    server.control("set_permissions", "--vhost", name, "guest", ".*", ".*", ".*")
    return f"{server.url}/{name}"


def _count(broker: Broker) -> int:
    with contextlib.suppress(ConnectorError):
        return broker.depth("priced").ready
    return 0
