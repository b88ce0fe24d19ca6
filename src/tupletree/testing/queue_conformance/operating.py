"""Scenarios about what operators do: counting, looking, moving, deleting."""

from __future__ import annotations

from tupletree.errors import ConfigError
from tupletree.queues import Depth, Failure, Letter, Message
from tupletree.testing.queue_conformance.harness import Bench, empty, equal, must, scenario


@scenario()
def the_depth_counts_each_message_once(bench: Bench) -> None:
    """Of the states that the broker counts; where it counts all that are open, the others are ready."""
    bench.publish(b"acked", b"leased", b"failed", b"dead", b"ready 1", b"ready 2")
    acked, _, failed, dead = bench.lease(4)
    bench.broker.ack([acked.handle])
    expected = {"ready": 2, "leased": 3, "delayed": 0, "dead": 0}
    if bench.can.retry_delay:
        bench.broker.fail([Failure(handle=failed.handle, delay_s=bench.lease_s * 3)])
        expected |= {"leased": expected["leased"] - 1, "delayed": 1}
    if bench.can.dead_letters:
        bench.broker.dead_letter([Letter(handle=dead.handle, reason="poison")])
        expected |= {"leased": expected["leased"] - 1, "dead": 1}
    counted = {name: number for name, number in expected.items() if name in bench.can.states}
    if bench.can.counts_open:
        counted["ready"] += sum(expected[one] for one in ("leased", "delayed") if one not in counted)
    depth = bench.connect().depth(bench.queue)
    must(depth == Depth(**counted), "each is counted where it is", depth)
    bench.let_leases_end()
    depth = bench.broker.depth(bench.queue)
    ready = 2 + expected["leased"]
    if bench.can.counts_open and "delayed" not in bench.can.states:
        ready += expected["delayed"]
    must(depth.ready == ready, "a lease that ended counts as ready, though no consumer leased since", depth)


def _peeked(bench: Bench) -> None:
    bench.broker.peek(bench.queue)


@scenario("peek:ready", otherwise=_peeked)
def looking_at_messages_leases_none(bench: Bench) -> None:
    """In the order in which they come."""
    published = bench.publish(*(b"%d" % number for number in range(8)))
    first, last = bench.broker.peek(bench.queue, limit=5), bench.broker.peek(bench.queue, limit=5, after=5)
    must([one.message for one in [*first, *last]] == published, "all, page by page", (first, last))
    must({(one.state, one.deliveries) for one in first} == {("ready", 0)}, "ready, and not delivered", first)
    leased = bench.lease()
    must({one.deliveries for one in leased} == {1}, "a look is no delivery", leased)
    empty(bench.broker.peek(bench.queue), "none is ready now")
    if "leased" in bench.can.peek:
        equal(len(bench.broker.peek(bench.queue, "leased")), 8, "they are leased")
    bench.broker.fail([Failure(handle=one.handle, reason="why not") for one in leased])
    equal({one.reason for one in bench.broker.peek(bench.queue)}, {"why not"}, "the last failure's reason is shown")


def _found(bench: Bench) -> None:
    bench.broker.find(bench.queue, ["a"])


@scenario("find", otherwise=_found)
def a_queue_says_which_messages_it_holds(bench: Bench) -> None:
    """In any state; what was acked is not held, though its id may be known still."""
    first, second, third = bench.publish(b"1", b"2", b"3")
    asked = [third.id, "missing", first.id, second.id]
    equal(bench.broker.find(bench.queue, asked), {first.id, second.id, third.id}, "those that it has")
    one, other = bench.lease(2)
    bench.broker.ack([one.handle])
    equal(bench.broker.find(bench.queue, asked), {other.message.id, third.id}, "also one that is leased")
    if bench.can.dead_letters:
        bench.broker.dead_letter([Letter(handle=other.handle, reason="poison")])
        equal(bench.broker.find(bench.queue, asked), {other.message.id, third.id}, "also a dead letter")
    equal(bench.broker.find(bench.another(), asked), set(), "another queue has none of them")
    equal(bench.broker.find(bench.queue, []), set(), "none was asked for")


def _moved(bench: Bench) -> None:
    bench.broker.move(bench.queue, bench.another())


@scenario("move:ready", otherwise=_moved)
def moved_messages_are_in_one_queue_only(bench: Bench) -> None:
    """Also if the move is made again, as after a crash; what the target holds is not there twice."""
    target = bench.another()
    batch = [Message(id=str(number), body=b"%d" % number, headers={"n": str(number)}) for number in range(10)]
    bench.broker.publish(bench.queue, batch)
    held = bench.can.idempotent_publish
    if held:
        bench.broker.publish(target, batch[4:5])
    equal(bench.broker.move(bench.queue, target, limit=3), 3, "a limit")
    equal(bench.broker.move(bench.queue, target, ids=["9", "missing"]), 1, "by id")
    equal(bench.broker.move(bench.queue, target), 6, "the rest")
    equal(bench.broker.move(bench.queue, target), 0, "nothing is left to move")
    equal(bench.broker.depth(bench.queue).open, 0, "the source is empty")
    leased = bench.lease(queue=target)
    must(min(leased, key=lambda one: one.message.id).message == batch[0], "messages are as they were", leased)
    must(sorted(one.message.id for one in leased) == sorted(one.id for one in batch), "each is there once", leased)
    try:
        bench.broker.move(target, bench.queue, state="leased")
    except ConfigError:
        return
    must(False, "leased messages cannot be moved: ConfigError")


def _moved_delayed(bench: Bench) -> None:
    bench.broker.move(bench.queue, bench.another(), state="delayed")


@scenario("move:delayed", "delay", otherwise=_moved_delayed)
def a_message_moved_while_delayed_stays_delayed_and_exists_once(bench: Bench) -> None:
    """In the queue that it was moved to."""
    target = bench.another()
    bench.broker.publish(bench.queue, [Message(id="later", delay_s=bench.lease_s)])
    equal(bench.broker.move(bench.queue, target, state="delayed"), 1, "it is moved")
    must(not bench.lease() and not bench.lease(queue=target), "its time has not come")
    bench.advance(bench.lease_s * 1.05)
    empty(bench.lease(), "it left the source")
    equal(len(bench.lease(queue=target)), 1, "it comes from the target")


@scenario("move:dead", "dead_letters")
def a_dead_letter_can_go_back_to_work(bench: Bench) -> None:
    """To its own queue or another; its deliveries are counted again from 0.

    Where acks may be forgotten its time of publishing tells it from a message that is delivered again.
    """
    bench.publish(b"a", b"b")
    leased = bench.lease()
    before = {one.message.body: one.published_s for one in leased}
    bench.broker.dead_letter([Letter(handle=one.handle, reason="poison") for one in leased])
    other = bench.another()
    equal(bench.broker.move(bench.queue, bench.queue, state="dead", limit=1), 1, "one goes back")
    equal(bench.broker.move(bench.queue, other, state="dead"), 1, "the other one elsewhere")
    for queue, body in ((bench.queue, b"a"), (other, b"b")):
        [again] = bench.lease(queue=queue)
        must((again.message.body, again.deliveries) == (body, 1), "as at the first time", again)
        is_anew = again.published_s - before[body] > 0.001
        must(bench.can.durable_acks or is_anew, "published anew, as acks may be forgotten", again)
    equal(bench.broker.depth(bench.queue).dead, 0, "no dead letter is left")


def _purged(bench: Bench) -> None:
    bench.broker.purge(bench.queue)


@scenario("purge:ready", otherwise=_purged)
def purged_messages_are_gone_and_may_be_published_again(bench: Bench) -> None:
    """Those of the states that are named, and no others."""
    batch = [Message(id=str(number)) for number in range(5)]
    bench.broker.publish(bench.queue, batch)
    [leased] = bench.lease(1)
    states = [one for one in bench.can.purge if one in {"ready", "delayed"}]
    equal(bench.broker.purge(bench.queue, states=states), 4, "what is ready")
    empty(bench.lease(), "it is gone")
    empty(bench.broker.ack([leased.handle]), "what is leased stays")
    equal(bench.broker.publish(bench.queue, batch[1:]), 4, "their ids are new again")


OPERATING = (
    the_depth_counts_each_message_once,
    looking_at_messages_leases_none,
    a_queue_says_which_messages_it_holds,
    moved_messages_are_in_one_queue_only,
    a_message_moved_while_delayed_stays_delayed_and_exists_once,
    a_dead_letter_can_go_back_to_work,
    purged_messages_are_gone_and_may_be_published_again,
)
