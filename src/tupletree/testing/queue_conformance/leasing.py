"""Scenarios about leases: who has a message, for how long, and what a holder that was too slow can still do."""

from __future__ import annotations

from tupletree.queues import Delivery, Failure, Letter, Message
from tupletree.testing.queue_conformance.harness import Bench, empty, equal, must, scenario


@scenario()
def consumers_share_a_queue_and_no_message(bench: Bench) -> None:
    """In about the order of publishing, and never more than were asked for."""
    bench.publish(*(b"%d" % number for number in range(30)))
    other = bench.connect()
    first, second = bench.broker.lease(bench.queue, 10), other.lease(bench.queue, 10)
    must(len(first) <= 10 and len(second) <= 10, "a lease takes no more than its limit")
    both = [*first, *second, *bench.lease()]
    must(sorted(int(one.message.body) for one in both) == list(range(30)), "each message has one holder", both)
    equal(len({one.handle for one in both}), 30, "each lease has a handle of its own")
    empty(bench.broker.lease(bench.queue, 10), "there is no other message")


@scenario()
def a_consumer_that_dies_with_ten_gives_all_ten_back(bench: Bench) -> None:
    """When their leases end, not before; each with the number of its delivery."""
    bench.publish(*(b"%d" % number for number in range(10)))
    dying = bench.connect()
    held = bench.lease(10, broker=dying)
    must(len(held) == 10, "it holds ten", held)
    empty(bench.lease(), "a lease holds")
    dying.close()
    if bench.can.leases_survive:
        empty(bench.lease(), "a lease holds though its holder is gone")
        bench.let_leases_end()
    again = bench.broker.lease(bench.queue, 10, lease_s=bench.lease_s, wait_s=bench.lease_s * 0.8)
    again += bench.lease()
    must(sorted(one.message.id for one in again) == sorted(one.message.id for one in held), "all ten come back", again)
    must({one.deliveries for one in again} == {2}, "it is their second delivery", again)


@scenario()
def of_two_consumers_one_dies_between_work_and_ack(bench: Bench) -> None:
    """The other one gets its message and acks it; then it is gone for good."""
    bench.publish(b"work")
    dying = bench.connect()
    [lost] = bench.lease(broker=dying)
    bench.let_leases_end()
    [again] = bench.lease()
    must(again.message.id == lost.message.id, "it comes again", again)
    empty(bench.broker.ack([again.handle]), "the ack is taken")
    bench.let_leases_end()
    empty(bench.lease(), "it is gone")
    equal(bench.broker.depth(bench.queue).open, 0, "nothing is left")


@scenario("fencing")
def the_handle_of_an_old_lease_is_refused(bench: Bench) -> None:
    """By every operation: the message belongs to its new holder."""
    bench.publish(b"slow")
    [old] = bench.lease()
    bench.let_leases_end()
    [new] = bench.lease()
    must(new.handle != old.handle, "each lease has a handle of its own", (old, new))
    equal([*bench.broker.ack([old.handle])], [old.handle], "a late ack is refused")
    equal([*bench.broker.fail([Failure(handle=old.handle)])], [old.handle], "a late fail is refused")
    if bench.can.extend:
        equal([*bench.broker.extend([old.handle], 1000)], [old.handle], "a late extension is refused")
    if bench.can.dead_letters:
        letter = Letter(handle=old.handle, reason="late")
        equal([*bench.broker.dead_letter([letter])], [old.handle], "a late dead letter is refused")
    empty(bench.lease(), "the new lease is untouched")
    equal([*bench.broker.ack([old.handle, new.handle])], [old.handle], "of a batch the others are taken")
    equal(bench.broker.depth(bench.queue).open, 0, "it is done")


@scenario("fencing")
def a_handle_is_good_for_one_end(bench: Bench) -> None:
    """What was failed cannot be acked, and what was acked cannot be failed."""
    bench.publish(b"a", b"b")
    first, second = bench.lease()
    bench.broker.fail([Failure(handle=first.handle)])
    equal([*bench.broker.ack([first.handle])], [first.handle], "an ack after a fail is refused")
    bench.broker.ack([second.handle])
    equal([*bench.broker.fail([Failure(handle=second.handle)])], [second.handle], "a fail after an ack is refused")
    equal([one.message.body for one in bench.lease()], [b"a"], "the first verdict counts")


def _extended(bench: Bench) -> None:
    bench.publish(b"x")
    bench.broker.extend([one.handle for one in bench.lease()])


@scenario("extend", otherwise=_extended)
def a_slow_handler_that_extends_its_lease_runs_once(bench: Bench) -> None:
    """At three times the lease."""
    bench.publish(b"slow", b"quick")
    slow, quick = bench.lease()
    other = bench.connect() if bench.can.by_message else bench.broker
    for _ in range(6):
        bench.advance(bench.lease_s / 2)
        empty(bench.broker.extend([slow.handle], bench.lease_s), "an extension within the lease is taken")
        come = bench.lease(broker=other)
        must(all(one.message.id == quick.message.id for one in come), "an extended message stays with its holder", come)
        other.ack([one.handle for one in come])
    empty(bench.broker.ack([slow.handle]), "its ack is taken")
    equal(bench.broker.depth(bench.queue).open, 0, "both are done")


@scenario()
def no_lease_lasts_longer_than_the_broker_says(bench: Bench) -> None:
    """However often it is extended; what the broker grants is what it says."""
    if not bench.can.extend or bench.can.max_lease_s > bench.lease_s * 20:
        return
    bench.publish(b"slow")
    [slow] = bench.broker.lease(bench.queue, lease_s=bench.can.max_lease_s * 2)
    must(slow.lease_s <= bench.can.max_lease_s, "the delivery says how long the lease is", slow)
    bench.advance(bench.can.max_lease_s * 0.6)
    empty(bench.broker.extend([slow.handle], bench.can.max_lease_s), "an extension within the lease is taken")
    empty(bench.lease(broker=bench.connect()), "it holds")
    bench.advance(bench.can.max_lease_s * 0.6)
    equal([*bench.broker.extend([slow.handle])], [slow.handle], "then it is refused")
    equal(len(bench.lease()), 1, "and the message comes again")


@scenario()
def what_a_lease_leaves_is_for_others_when_the_broker_says(bench: Bench) -> None:
    """At once; or, where a connection may hold more, when its lease would be over."""
    bench.publish(b"small", *(b"x" * 600 for _ in range(4)))
    [small] = bench.broker.lease(bench.queue, 1, lease_s=bench.lease_s)
    first = bench.broker.lease(bench.queue, 4, lease_s=bench.lease_s, max_bytes=1000)
    must(len(first) == 1, "max_bytes bounds a lease", first)
    other = bench.connect() if bench.can.by_message else bench.broker
    others = bench.lease(broker=other)
    if bench.can.holds_only_leased:
        must(len(others) == 3, "others get the rest at once", others)
    bench.broker.extend([small.handle, first[0].handle], bench.lease_s * 3) if bench.can.extend else None
    bench.let_leases_end()
    come = {one.message.id for one in [*others, *bench.lease(broker=other)]}
    kept = {small.message.id, first[0].message.id} if bench.can.extend else set()
    must(len(come - kept) >= 3 and not come & kept, "in the end they are there for others", (come, kept))


@scenario()
def a_handle_is_settled_where_the_broker_says(bench: Bench) -> None:
    """By any connection; or by the one that leased it alone, and the others refuse it."""
    bench.publish(b"a")
    [delivery] = bench.lease()
    refused = bench.connect().ack([delivery.handle])
    must([*refused] == ([] if bench.can.ack_anywhere else [delivery.handle]), "another connection's ack", refused)
    if not bench.can.ack_anywhere:
        empty(bench.broker.ack([delivery.handle]), "the connection that leased it settles it")
    bench.let_leases_end()
    empty(bench.lease(), "it is done")


@scenario("ack_anywhere")
def any_connection_may_settle_a_handle(bench: Bench) -> None:
    """As plain text it goes from the executor that leased to the one that acks."""
    bench.publish(b"a")
    leasing = bench.connect()
    [delivery] = leasing.lease(bench.queue, lease_s=bench.lease_s)
    leasing.close()
    empty(bench.connect().ack([str(delivery.handle)]), "an ack by another connection is taken")
    equal(bench.broker.depth(bench.queue).open, 0, "it is done")


@scenario()
def a_lease_that_waits_takes_what_is_there_at_once(bench: Bench) -> None:
    """And comes back empty when its time is over."""
    started_s = bench.broker.monotonic()
    empty(bench.broker.lease(bench.queue, wait_s=0.2), "there is nothing")
    must(bench.broker.monotonic() - started_s >= 0.19, "it waited")
    bench.publish(b"a")
    started_s = bench.broker.monotonic()
    equal(len(bench.broker.lease(bench.queue, 5, wait_s=60)), 1, "it takes what is there")
    must(bench.broker.monotonic() - started_s < 30, "and does not wait for more")


@scenario("delay")
def a_lease_that_waits_takes_a_message_whose_time_comes(bench: Bench) -> None:
    """Where time is real it takes as long."""
    bench.broker.publish(bench.queue, [Message(id="soon", delay_s=0.3)])
    leased: list[Delivery] = bench.broker.lease(bench.queue, wait_s=60)
    must([one.message.id for one in leased] == ["soon"], "it comes to the one that waits", leased)


LEASING = (
    consumers_share_a_queue_and_no_message,
    a_consumer_that_dies_with_ten_gives_all_ten_back,
    of_two_consumers_one_dies_between_work_and_ack,
    the_handle_of_an_old_lease_is_refused,
    a_handle_is_good_for_one_end,
    a_slow_handler_that_extends_its_lease_runs_once,
    no_lease_lasts_longer_than_the_broker_says,
    what_a_lease_leaves_is_for_others_when_the_broker_says,
    a_handle_is_settled_where_the_broker_says,
    any_connection_may_settle_a_handle,
    a_lease_that_waits_takes_what_is_there_at_once,
    a_lease_that_waits_takes_a_message_whose_time_comes,
)
