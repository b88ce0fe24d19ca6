"""Scenarios about publishing: what arrives, what is known already, what is refused, what comes later."""

from __future__ import annotations

from collections.abc import Callable

from tupletree.errors import ConnectorError
from tupletree.queues import Message, NotCapableError, RefusedMessagesError, UnknownQueueError
from tupletree.testing.queue_conformance.harness import Bench, empty, equal, must, scenario


@scenario()
def a_message_arrives_as_it_was_published(bench: Bench) -> None:
    """Bodies of 0 bytes and of all bytes, headers and ids in any script."""
    published = [
        Message(id="empty", body=b""),
        Message(id="bytes", body=bytes(range(256)) * 20, content_type="image/png"),
        Message(
            id="Größe ≥ 3 ✓ 'quoted' \0 end", body="žluťoučký".encode(), headers={"naïve": "日本語 \n\t'\"", "": ""}
        ),
        Message(id="keyed", body=b"3", key="client/ü:1"),
    ]
    equal(bench.broker.publish(bench.queue, published), 4, "publish says how many messages were new")
    leased = bench.lease()
    must([one.message for one in leased] == published, "messages arrive whole and in their order", leased)
    must({one.deliveries for one in leased} == {1}, "the first delivery is number 1", leased)
    empty(bench.broker.ack([one.handle for one in leased]), "an ack within the lease is not refused")
    bench.let_leases_end()
    empty(bench.lease(), "what was acked never comes again")


@scenario()
def what_was_published_is_there_for_another_connection(bench: Bench) -> None:
    """Durable when publish returns, also if the publisher stops without closing."""
    publisher = bench.connect()
    publisher.publish(bench.queue, [Message(id="1", body=b"a"), Message(id="2", body=b"b")])
    publisher.close()
    publisher.close()
    equal([one.message.body for one in bench.lease(broker=bench.connect())], [b"a", b"b"], "all of it is there")


@scenario()
def a_queue_that_is_not_declared_is_named(bench: Bench) -> None:
    """For every operation; and a closed connection is an error of its own."""
    missing = bench.queue + "x"
    asked: dict[str, Callable[[], object]] = {
        "publish": lambda: bench.broker.publish(missing, [Message()]),
        "lease": lambda: bench.broker.lease(missing),
        "depth": lambda: bench.broker.depth(missing),
    }
    for name, ask in asked.items():
        try:
            ask()
        except UnknownQueueError as error:
            must(missing in str(error), f"{name} names the queue", str(error))
            must(not error.is_outage, "waiting does not help")
        else:
            must(False, f"{name} of a queue that is not declared raises UnknownQueueError")
    try:
        must(bench.queue in bench.broker.queues(), "queues() has those that are declared")
        must(bench.can.lists_queues, "a broker that lists its queues says so")
    except NotCapableError:
        must(not bench.can.lists_queues, "a broker that does not list its queues says so")
    bench.broker.declare(bench.queue)
    closed = bench.connect()
    closed.close()
    try:
        closed.publish(bench.queue, [Message()])
    except ConnectorError:
        return
    must(False, "a closed connection raises ConnectorError")


@scenario()
def messages_that_cannot_be_stored_are_refused_together(bench: Bench) -> None:
    """All of them are named, and nothing of their batch is published."""
    wrong = {
        1: Message(id="", body=b"x"),
        3: Message(id="surrogate \udc80", body=b"x"),
        4: Message(id="x" * 1000, body=b"x"),
        5: Message(id="header", headers={"a": "\ud800"}),
        6: Message(id="delay", delay_s=-1.0),
    }
    batch = [wrong.get(position, Message(id=f"good-{position}")) for position in range(8)]
    try:
        bench.broker.publish(bench.queue, batch)
    except RefusedMessagesError as error:
        must({one.position for one in error.refused} == set(wrong), "each is named by its position", error.refused)
    else:
        must(False, "RefusedMessagesError is raised")
    equal(bench.broker.depth(bench.queue).open, 0, "nothing of the batch is published")
    equal(bench.broker.publish(bench.queue, []), 0, "an empty batch is fine")


@scenario()
def a_large_message_in_a_batch_of_ten_arrives_or_is_refused_by_name(bench: Bench) -> None:
    """20 MB; where it does not fit, the nine others can be published. `max_bytes` bounds what is leased at once."""
    large = 4
    batch = [
        Message(id=f"m{number}", body=b"x" * (bench.large_bytes if number == large else 10)) for number in range(10)
    ]
    if bench.large_bytes > bench.can.max_body_bytes:
        try:
            bench.broker.publish(bench.queue, batch)
        except RefusedMessagesError as error:
            must([one.position for one in error.refused] == [large], "the large one is named", error.refused)
        else:
            must(False, "a body beyond max_body_bytes raises RefusedMessagesError")
        del batch[large]
    bench.broker.publish(bench.queue, batch)
    first = bench.broker.lease(bench.queue, 10, lease_s=bench.lease_s, max_bytes=1000)
    must(sum(len(one.message.body) for one in first) <= 1000, "max_bytes bounds a lease")
    leased = {one.message.id: one.message.body for one in [*first, *bench.lease(10 - len(first))]}
    equal(leased, {one.id: one.body for one in batch}, "each arrives, the one beyond max_bytes by itself")


@scenario("idempotent_publish")
def an_id_that_the_queue_holds_is_not_stored_again(bench: Bench) -> None:
    """Publish, crash, publish again: one message. Also within a batch, while it is leased, and in another queue."""
    one = [Message(id="order-1", body=b"a")]
    equal(bench.broker.publish(bench.queue, one), 1, "the first is new")
    equal(bench.connect().publish(bench.queue, [Message(id="order-1", body=b"b"), *one]), 0, "the second is known")
    [delivery] = bench.lease()
    must(delivery.message.body == b"a", "the first body stays", delivery)
    equal(bench.broker.publish(bench.queue, one), 0, "it is known while it is leased")
    twice = [Message(id="order-2"), Message(id="order-2"), Message(id="order-3")]
    equal(bench.broker.publish(bench.queue, twice), 2, "an id that is twice in a batch is one message")
    other = bench.another()
    equal(bench.broker.publish(other, one), 1, "ids are those of a queue")


@scenario("remembers_acked_s")
def an_id_is_known_for_a_time_after_its_ack(bench: Bench) -> None:
    """A publisher that crashed may be slower than the consumer."""
    batch = [Message(id=f"order-{number}") for number in range(20)]
    bench.broker.publish(bench.queue, batch)
    bench.broker.ack([one.handle for one in bench.lease()])
    equal(bench.broker.publish(bench.queue, batch), 0, "acked ids are known")
    equal(bench.broker.depth(bench.queue).open, 0, "nothing is stored")
    bench.advance(bench.can.remembers_acked_s + 1)
    equal(bench.broker.publish(bench.queue, batch), 20, "later they are new")
    equal(len(bench.lease()), 20, "and delivered")


def _delayed(bench: Bench) -> None:
    bench.broker.publish(bench.queue, [Message(delay_s=bench.lease_s)])


@scenario("delay", otherwise=_delayed)
def a_delayed_message_comes_when_its_time_has_come(bench: Bench) -> None:
    """Not before, and it holds up no other."""
    later, now = Message(id="later", delay_s=bench.lease_s * 2), Message(id="now")
    bench.broker.publish(bench.queue, [later, now])
    depth = bench.broker.depth(bench.queue)
    if "delayed" in bench.can.states:
        must((depth.ready, depth.delayed) == (1, 1), "it counts as delayed", depth)
    else:
        must(depth.open == (2 if bench.can.counts_open else 1), "it counts as the broker says", depth)
    [first] = bench.lease()
    must(first.message.id == "now", "others pass it by", first)
    bench.broker.ack([first.handle])
    bench.advance(bench.lease_s)
    empty(bench.lease(), "it does not come before its time")
    bench.advance(bench.lease_s * 1.05)
    equal(bench.broker.depth(bench.queue).ready, 1, "then it counts as ready")
    equal([one.message.id for one in bench.lease()], ["later"], "it comes when its time has come")


def _timed(bench: Bench) -> None:
    bench.broker.publish(bench.queue, [Message(not_before_s=2e9)])


@scenario("absolute_time", otherwise=_timed)
def a_message_with_a_time_of_day_comes_at_that_time(bench: Bench) -> None:
    """By the clock of the broker's host; a time that is over means at once."""
    bench.publish(b"tells the time")
    [delivery] = bench.lease()
    due_s = delivery.published_s + bench.lease_s * 2
    bench.broker.publish(bench.queue, [Message(id="later", not_before_s=due_s), Message(id="past", not_before_s=1.0)])
    equal([one.message.id for one in bench.lease()], ["past"], "a time that is over means at once")
    bench.advance(bench.lease_s * 0.5)
    empty(bench.lease(), "it does not come before its time")
    bench.advance(bench.lease_s * 1.6)
    must("later" in {one.message.id for one in bench.lease()}, "it comes at its time")


@scenario("delay")
def clocks_of_callers_that_are_five_minutes_apart_change_nothing(bench: Bench) -> None:
    """Leases and delays are counted by the broker's host."""
    ahead, behind = bench.connect(skew_s=300.0), bench.connect(skew_s=-300.0)
    ahead.publish(bench.queue, [Message(id="later", delay_s=bench.lease_s), Message(id="now")])
    [first] = bench.lease(broker=ahead)
    must(first.message.id == "now" and not bench.lease(broker=behind), "a lease holds for one that is behind")
    empty(bench.lease(broker=ahead), "a delay holds for a caller whose clock is ahead")
    (behind if bench.can.ack_anywhere else ahead).ack([first.handle])
    bench.let_leases_end()
    equal([one.message.id for one in bench.lease(broker=behind)], ["later"], "a delay ends for one that is behind")
    bench.let_leases_end()
    equal([one.message.id for one in bench.lease(broker=ahead)], ["later"], "a lease ends for one that is ahead")


PUBLISHING = (
    a_message_arrives_as_it_was_published,
    what_was_published_is_there_for_another_connection,
    a_queue_that_is_not_declared_is_named,
    messages_that_cannot_be_stored_are_refused_together,
    a_large_message_in_a_batch_of_ten_arrives_or_is_refused_by_name,
    an_id_that_the_queue_holds_is_not_stored_again,
    an_id_is_known_for_a_time_after_its_ack,
    a_delayed_message_comes_when_its_time_has_come,
    a_message_with_a_time_of_day_comes_at_that_time,
    clocks_of_callers_that_are_five_minutes_apart_change_nothing,
)
