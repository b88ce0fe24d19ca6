"""Scenarios about settling parents with their children, and about the order of keys."""

from __future__ import annotations

import secrets
from typing import Any

from tupletree.queues import Failure, LeaseLostError, Letter, Message, UnknownQueueError
from tupletree.testing.queue_conformance.harness import Bench, empty, equal, must, scenario


@scenario()
def children_are_published_and_their_parents_acked(bench: Bench) -> None:
    """In one call, to several queues."""
    bench.publish(b"parent 1", b"parent 2", b"fails")
    out, other = bench.another(), bench.another()
    first, second, failing = bench.lease()
    bench.broker.settle(
        acks=[first.handle, second.handle],
        failures=[Failure(handle=failing.handle)],
        publish={out: [Message(id="child 1"), Message(id="child 2")], other: [Message(id="child 3")]},
    )
    equal([one.message.id for one in bench.lease(queue=out)], ["child 1", "child 2"], "children are there")
    equal([one.message.id for one in bench.lease(queue=other)], ["child 3"], "in each queue")
    [again] = bench.lease()
    must(again.message.body == b"fails" and again.deliveries == 2, "what failed comes again", again)


@scenario()
def children_that_cannot_be_published_leave_their_parents_unsettled(bench: Bench) -> None:
    """Nothing is acked whose children are not stored."""
    bench.publish(b"parent")
    [parent] = bench.lease()
    try:
        bench.broker.settle(acks=[parent.handle], publish={bench.queue + "x": [Message()]})
    except UnknownQueueError:
        pass
    else:
        must(False, "UnknownQueueError is raised")
    bench.let_leases_end()
    equal(len(bench.lease()), 1, "the parent comes again")


@scenario("fencing")
def parents_whose_lease_is_lost_are_named(bench: Bench) -> None:
    """With `atomic_settle` nothing else happens either."""
    bench.publish(b"lost", b"held")
    out = bench.another()
    lost = bench.lease(1)[0]
    bench.let_leases_end()
    new, held = bench.lease()
    try:
        bench.broker.settle(acks=[lost.handle, held.handle], publish={out: [Message(id="child")]})
    except LeaseLostError as error:
        must(error.handles == (lost.handle,), "the lost one is named", error.handles)
    else:
        must(False, "LeaseLostError is raised")
    if bench.can.atomic_settle:
        equal(bench.broker.depth(out).open, 0, "no child is published")
        empty(bench.broker.ack([held.handle]), "the other parent is not settled")
    empty(bench.broker.ack([new.handle]), "the new lease is untouched")


def _within(bench: Bench) -> None:
    bench.broker.settle(within=lambda transaction: transaction)


@scenario("runs_sql", otherwise=_within)
def statements_of_the_caller_run_in_the_same_transaction(bench: Bench) -> None:
    """What they raise undoes all; what they publish is part of it. They make a table of their own, and drop it."""
    bench.publish(b"parent")
    [parent] = bench.lease()
    out = bench.another()

    ledger = f"ledger_{secrets.token_hex(6)}"  # of this time: on a server the last one's may be there still

    def write(transaction: Any) -> None:
        transaction.execute(f"CREATE TABLE {ledger} (id VARCHAR(20) PRIMARY KEY)")
        # No parameters: each driver writes them its own way.
        transaction.execute(f"INSERT INTO {ledger} VALUES ('parent')")  # noqa: S608 - a name of ours
        transaction.publish(out, [Message(id="child")])

    def write_and_break(transaction: Any) -> None:
        write(transaction)
        raise ZeroDivisionError("the ledger refuses")

    try:
        bench.broker.settle(acks=[parent.handle], within=write_and_break)
    except ZeroDivisionError:
        pass
    else:
        must(False, "what the caller raises comes out")
    equal(bench.broker.depth(out).open, 0, "nothing of it is there")
    bench.broker.settle(acks=[parent.handle], within=write)  # the ledger would be there already
    equal(bench.broker.depth(out).ready, 1, "now it is")
    equal(bench.broker.depth(bench.queue).open, 0, "and the parent is acked")
    bench.broker.settle(within=lambda transaction: transaction.execute(f"DROP TABLE {ledger}"))


def _ordered(bench: Bench) -> None:
    bench.another(ordered=True)


@scenario("key_order", otherwise=_ordered)
def messages_of_a_key_come_in_order_and_one_at_a_time(bench: Bench) -> None:
    """Also when one fails, is delayed, or its holder dies; other keys, and messages without one, go on."""
    queue = bench.another(ordered=True)
    keys = ["a", "b", "a", "", "a", "", "b"]
    bench.broker.publish(queue, [Message(id=f"{number}{key}", key=key) for number, key in enumerate(keys)])
    leased = {one.message.id: one.handle for one in bench.lease(queue=queue)}
    must([*leased] == ["0a", "1b", "3", "5"], "the first of each key, and all without a key", [*leased])
    bench.broker.fail([Failure(handle=leased["0a"], delay_s=bench.lease_s / 2)])
    bench.broker.ack([leased["1b"], leased["3"], leased["5"]])
    [after] = bench.lease(queue=queue)
    must(after.message.id == "6b", "a failed message holds up its key, no other", after)
    bench.advance(bench.lease_s * 0.6)
    equal([one.message.id for one in bench.lease(queue=queue)], ["0a"], "it comes before its followers")
    bench.let_leases_end()  # its holder died
    leased_again = bench.lease(queue=queue)
    [first] = [one for one in leased_again if one.message.key == "a"]
    must(first.message.id == "0a", "still before its followers", first)
    bench.broker.ack([one.handle for one in leased_again if one is not first])
    bench.broker.dead_letter([Letter(handle=first.handle, reason="poison")])
    bench.broker.publish(queue, [Message(id="7a", key="a")])
    for expected in ("2a", "4a", "7a"):
        come = [one for one in bench.lease(queue=queue) if one.message.key == "a"]
        must([one.message.id for one in come] == [expected], f"{expected} is next", come)
        bench.broker.ack([come[0].handle])
    depth = bench.broker.depth(queue)
    must((depth.open, depth.dead) == (0, 1), "nothing is left behind", depth)


SETTLING = (
    children_are_published_and_their_parents_acked,
    children_that_cannot_be_published_leave_their_parents_unsettled,
    parents_whose_lease_is_lost_are_named,
    statements_of_the_caller_run_in_the_same_transaction,
    messages_of_a_key_come_in_order_and_one_at_a_time,
)
