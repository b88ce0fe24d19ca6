"""Queues on a real RabbitMQ server."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.queues.asked_of_each import priced_from_one_queue_into_another
from tests.queues.servers import RabbitServer
from tests.queues.test_sources_and_sinks import Runner, run_local, run_spark
from tupletree.errors import ConfigError
from tupletree.queues import (
    Broker,
    Failure,
    Letter,
    Message,
    NotCapableError,
    RefusedMessagesError,
    connect,
    open_queue,
)
from tupletree.queues.urls import parse_url
from tupletree.testing.queue_conformance import SCENARIOS, BrokerUnderTest, QueueScenario, check

pika = pytest.importorskip("pika")
from tupletree.queues.rabbitmq import RabbitBroker, consuming, open_rabbitmq  # noqa: E402
from tupletree.queues.rabbitmq.wire import LONGEST_DELAY_S, delay_step_ms, ready_queue_of  # noqa: E402

pytestmark = pytest.mark.xdist_group("rabbitmq")

CANNOT = {
    "a message moved while delayed stays delayed and exists once": "refused",
    "a message with a time of day comes at that time": "refused",
    "a queue says which messages it holds": "refused",
    "an id is known for a time after its ack": "not asked",
    "an id that the queue holds is not stored again": "not asked",
    "any connection may settle a handle": "not asked",
    "looking at messages leases none": "refused",
    "messages of a key come in order and one at a time": "refused",
    "moved messages are in one queue only": "refused",
    "statements of the caller run in the same transaction": "refused",
}


class RabbitQueue(BrokerUnderTest):
    """Leases end by the connection's clock, which the test moves; delays are the server's, and take their time."""

    name = "rabbitmq"
    lease_s = 0.5

    def __init__(self, server: RabbitServer) -> None:
        self.url = parse_url(f"{server.url}?max_lease_s=8")
        self.ahead_s = 0.0
        self.brokers: list[RabbitBroker] = []

    def connect(self, *, skew_s: float = 0.0) -> Broker:
        broker = open_rabbitmq(self.url)
        broker._client.clock = lambda: time.monotonic() + self.ahead_s
        self.brokers.append(broker)
        return broker

    def advance(self, seconds: float) -> None:
        links = [broker._client._link for broker in self.brokers]
        if any(name.startswith("tupletree.delay.") for link in links if link is not None for name in link.known):
            time.sleep(seconds + 0.1)  # the server's clock is not ours to set
        else:
            self.ahead_s += seconds
        for broker in self.brokers:
            broker._client.look_after_leases()
        time.sleep(0.03)  # what goes back is told and not asked: others see it a moment later


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_the_queue_on_rabbitmq_does_all_that_it_says(scenario: QueueScenario, rabbitmq: RabbitServer) -> None:
    assert check(scenario, RabbitQueue(rabbitmq)) == CANNOT.get(str(scenario), "held")


def test_texts_that_do_not_fit_where_others_look_for_them_arrive_as_they_were(rabbitmq: RabbitServer) -> None:
    published = [
        Message(id="ü" * 256, body=b"1", key="k"),
        Message(id="name", headers={"n" * 300: "long", "x-death": "a word of the server's", "tupletree": "ours"}),
        Message(id="type", content_type="t" * 300),
        Message(id="none", content_type="", headers={"": "no name"}),
        Message(id="large", headers={"text": "ž" * 49_000}),
    ]
    with open_queue(f"{rabbitmq.url}?queue=texts") as queue:
        queue.publish(published)
        assert [one.message for one in queue.lease(10)] == published


def test_headers_that_fit_no_frame_are_refused_and_a_reason_that_does_not_is_cut(rabbitmq: RabbitServer) -> None:
    largest = Message(id="largest", body=b"x", headers={"text": "ž" * 49_500})
    with (
        open_queue(f"{rabbitmq.url}?queue=frames") as queue,
        pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as theirs,
    ):
        with pytest.raises(RefusedMessagesError, match="at most 100,000 fit") as refused:
            queue.publish([largest, Message(id="larger", headers={"text": "ž" * 51_000})])
        assert [one.position for one in refused.value.refused] == [1]
        assert queue.depth().ready == 0
        queue.publish([largest])
        channel = theirs.channel()
        channel.confirm_delivery()
        beyond = pika.BasicProperties(message_id="theirs", headers={"text": "x" * 130_000})  # what a frame can hold
        channel.basic_publish("", ready_queue_of("frames"), b"y", beyond)
        leased = queue.lease(10)
        assert {one.message.id for one in leased} == {"largest", "theirs"}
        queue.fail([Failure(handle=one.handle, delay_s=0.01, reason="«é»" * 300_000) for one in leased])
        leased = queue.lease(1, wait_s=20) + queue.lease(1, wait_s=20)
        assert {one.deliveries for one in leased} == {2}
        assert not queue.dead_letter([Letter(handle=one.handle, reason="«é»" * 300_000) for one in leased])
        letters = {one.message.id: one for one in queue.peek("dead")}
        assert letters["largest"].message == largest
        assert letters["largest"].reason.startswith("«é»" * 1000)
        assert letters["theirs"].message.headers == {"text": "x" * 130_000}


def test_urls_of_rabbitmq_are_taken_apart_and_wrong_ones_named() -> None:
    for text, expected in (
        ("amqp://127.0.0.1?timeout=3", "did you mean 'timeout_s'?"),
        ("amqp://127.0.0.1?max_lease_s=0", "wrong value for max_lease_s"),
        ("amqps://me:hunter2@127.0.0.1?heartbeat_s=soon", "a number"),
    ):
        with pytest.raises(ConfigError) as raised:
            connect(text)
        assert expected in str(raised.value)
        assert "hunter" not in str(raised.value)


def test_other_programs_read_and_write_messages_as_they_are_used_to(rabbitmq: RabbitServer) -> None:
    with (
        open_queue(f"{rabbitmq.url}?queue=others") as queue,
        pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as theirs,
    ):
        channel = theirs.channel()
        channel.confirm_delivery()
        name = ready_queue_of("others")
        named = pika.BasicProperties(
            message_id="theirs", content_type="text/x", headers={"n": 7, "b": b"\xff", "t": "é"}
        )
        channel.basic_publish("", name, b"\xff", named)
        channel.basic_publish("", name, b"plain")
        first, second = queue.lease(10)
        assert (first.message.id, first.message.body, first.message.content_type) == ("theirs", b"\xff", "text/x")
        assert first.message.headers == {"n": "7", "b": "\ufffd", "t": "é"}
        assert second.message.id not in {"", "theirs"}
        queue.ack([first.handle, second.handle])
        queue.publish([Message(id="ours", body=b"x", content_type="text/y", headers={"naïve": "日本語"}, key="k")])
        _, properties, body = channel.basic_get(name, auto_ack=True)
        assert (properties.message_id, properties.content_type, body) == ("ours", "text/y", b"x")
        assert properties.headers["naïve"] == "日本語"
        assert properties.headers["tupletree-key"] == "k"
        assert properties.delivery_mode == 2


def test_dead_letters_are_shown_moved_and_deleted(rabbitmq: RabbitServer) -> None:
    with open_queue(f"{rabbitmq.url}?queue=dead") as queue, connect(rabbitmq.url) as other:
        published = [Message(id=f"m{number}", body=b"x", headers={"n": str(number)}) for number in range(5)]
        queue.publish(published)
        queue.dead_letter([Letter(handle=one.handle, reason=f"«{one.message.id}»") for one in queue.lease(5)])
        for _ in range(3):  # a look changes nothing
            shown = other.peek("dead", "dead", 2, after=1)
            assert [(one.message, one.reason, one.deliveries) for one in shown] == [
                (published[1], "«m1»", 1),
                (published[2], "«m2»", 1),
            ]
        assert other.move("dead", "dead", state="dead", ids=["m2"]) == 1
        assert other.move("dead", "dead", state="dead", limit=1) == 1
        again = queue.lease(9)
        assert [(one.message, one.deliveries) for one in again] == [(published[2], 1), (published[0], 1)]
        assert [one.message.id for one in other.peek("dead", "dead")] == ["m1", "m3", "m4"]
        assert other.purge("dead", states=["dead"]) == 3
        assert queue.depth().dead == 0
        with pytest.raises(NotCapableError):
            other.purge("dead")
        with pytest.raises(ConfigError):
            other.move("dead", "dead", state="leased")


def test_delays_are_rounded_up_to_steps_and_never_down(rabbitmq: RabbitServer) -> None:
    for number in range(1, 4000):
        delay_s = number**3 / 1000
        step_ms = delay_step_ms(delay_s)
        assert step_ms >= delay_s * 1000 - 1e-3
        assert step_ms <= max(10, delay_s * 1000 * 1.34)
    assert delay_step_ms(LONGEST_DELAY_S) < 2**32
    with open_queue(f"{rabbitmq.url}?queue=far") as queue:
        with pytest.raises(RefusedMessagesError, match="cannot be kept"):
            queue.publish([Message(), Message(delay_s=LONGEST_DELAY_S * 2)])
        assert queue.depth().ready == 0
        queue.publish([Message()])
        [leased] = queue.lease()
        with pytest.raises(ConfigError, match="cannot keep"):
            queue.fail([Failure(handle=leased.handle, delay_s=LONGEST_DELAY_S * 2)])
        assert not queue.ack([leased.handle])


def test_what_failed_with_a_delay_comes_with_its_count_and_as_it_was(rabbitmq: RabbitServer) -> None:
    message = Message(id="again", body=b"x", content_type="text/x", headers={"n": "1"}, key="k")
    with open_queue(f"{rabbitmq.url}?queue=counted") as queue:
        queue.publish([message])
        for deliveries in range(1, 6):
            [leased] = queue.lease(wait_s=20)
            assert (leased.message, leased.deliveries) == (message, deliveries)
            queue.fail([Failure(handle=leased.handle, delay_s=0.01 * (deliveries % 2), reason="why")])


def test_a_lease_that_is_over_goes_back_by_itself_and_its_handle_is_refused(rabbitmq: RabbitServer) -> None:
    with open_queue(f"{rabbitmq.url}?queue=over") as queue, connect(rabbitmq.url) as other:
        queue.publish([Message(id="a"), Message(id="b")])
        short, long = queue.lease(1, lease_s=0.2)[0], queue.lease(1, lease_s=60)[0]
        [again] = other.lease("over", 2, wait_s=20)
        assert (again.message.id, again.deliveries) == (short.message.id, 2)
        assert [*queue.ack([short.handle, long.handle])] == [short.handle]
        assert not other.ack([again.handle])


def test_what_comes_after_its_consumer_was_cancelled_is_for_the_next_lease(rabbitmq: RabbitServer) -> None:
    with open_queue(f"{rabbitmq.url}?queue=late") as queue:
        assert isinstance(queue.broker, RabbitBroker)
        queue.publish([Message(id="early")])
        [early] = queue.lease()
        link = queue.broker._client._link
        assert link is not None
        channel = link.consuming[ready_queue_of("late")]
        frame = SimpleNamespace(method=SimpleNamespace(consumer_tag="tupletree-0", delivery_tag=2))
        header = SimpleNamespace(properties=pika.BasicProperties(message_id="late"))
        done = threading.Event()

        def deliver() -> None:
            channel.requests.channel._on_deliver(frame, header, b"late")
            done.set()

        queue.broker._client._loop.call_soon_threadsafe(deliver)
        assert done.wait(5)
        assert queue.depth().ready == 1  # here, for the next lease
        assert [one.message.id for one in queue.lease(5, wait_s=5)] == ["late"]
        assert not queue.ack([early.handle])


def test_what_was_sent_ahead_of_a_consumer_that_stops_is_soon_with_others(rabbitmq: RabbitServer) -> None:
    with open_queue(f"{rabbitmq.url}?queue=ahead") as queue, connect(rabbitmq.url) as other:
        assert isinstance(queue.broker, RabbitBroker)
        queue.publish([Message(id=str(number)) for number in range(400)])
        mine = [*queue.lease(50, lease_s=600), *queue.lease(50, lease_s=600)]
        link = queue.broker._client._link
        assert link is not None
        assert link.consuming[ready_queue_of("ahead")].spare == 150
        theirs: list[str] = []
        while len(theirs) < 300:
            leased = other.lease("ahead", 50, lease_s=600, wait_s=20)
            assert leased
            theirs += [one.message.id for one in leased]
        assert Counter([one.message.id for one in mine] + theirs) == Counter(map(str, range(400)))
        assert not queue.ack([one.handle for one in mine])


def test_many_consumers_of_one_queue_share_its_messages(rabbitmq: RabbitServer) -> None:
    ids = [f"m{number}" for number in range(2000)]
    with open_queue(f"{rabbitmq.url}?queue=many") as queue:
        assert queue.publish([Message(id=one) for one in ids]) == 2000
        seen: list[str] = []

        def consume(connection: Broker) -> None:
            while leased := connection.lease("many", 37, lease_s=60):
                refused = connection.ack([one.handle for one in leased])
                seen.extend(one.message.id for one in leased if one.handle not in refused)

        with connect(rabbitmq.url) as other:  # two threads of each connection
            threads = [threading.Thread(target=consume, args=[one]) for one in (queue.broker, other) * 2]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        assert Counter(seen) == Counter(ids)


def test_a_million_bytes_for_each_of_a_hundred_messages_are_leased_as_far_as_they_fit(
    rabbitmq: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming, "KEPT_S", 600.0)
    with open_queue(f"{rabbitmq.url}?queue=wide") as queue:
        queue.publish([Message(id=str(number), body=b"x" * 1_000_000) for number in range(40)])
        seen: list[str] = []
        while leased := queue.lease(100, max_bytes=5_000_000):
            assert sum(len(one.message.body) for one in leased) <= 5_000_000
            # Large ones are on their way when a lease is complete: on a busy machine the server had one back once.
            assert {one.deliveries for one in leased} <= {1, 2}
            seen += [one.message.id for one in leased]
            assert not queue.ack([one.handle for one in leased])
        assert sorted(seen, key=int) == [str(number) for number in range(40)]


@pytest.mark.parametrize("runner", [run_local, run_spark], ids=["local", "spark"])
def test_a_topology_reads_one_queue_and_writes_another(rabbitmq: RabbitServer, tmp_path: Path, runner: Runner) -> None:
    priced_from_one_queue_into_another(lambda name: f"{rabbitmq.url}?queue={name}", tmp_path, runner)
