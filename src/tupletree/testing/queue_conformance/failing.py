"""Scenarios about failures: messages that are given back, and those that are dead."""

from __future__ import annotations

from tupletree.queues import Failure, Letter
from tupletree.testing.queue_conformance.harness import Bench, empty, equal, must, scenario


@scenario()
def a_failed_message_comes_again_at_once(bench: Bench) -> None:
    """With the number of its delivery, and as it was."""
    [published] = bench.publish(b"a")
    for delivery in range(1, 6):
        [leased] = bench.lease()
        must(leased.deliveries == delivery, f"it is delivery {delivery}", leased)
        must(leased.message == published, "the message is as it was", leased)
        empty(bench.broker.fail([Failure(handle=leased.handle)]), "a fail within the lease is not refused")


def _delayed(bench: Bench) -> None:
    bench.publish(b"a")
    bench.broker.fail([Failure(handle=one.handle, delay_s=bench.lease_s) for one in bench.lease()])


@scenario("retry_delay", otherwise=_delayed)
def a_message_that_failed_with_a_delay_comes_when_it_is_over(bench: Bench) -> None:
    """Many failures stay within the backoff, and each of a batch has its own."""
    bench.publish(*(b"%d" % number for number in range(10)))
    leased = bench.lease()
    bench.broker.fail(
        [Failure(handle=one.handle, delay_s=bench.lease_s * (1 + number % 2)) for number, one in enumerate(leased)]
    )
    empty(bench.lease(), "none comes before its time")
    if "delayed" in bench.can.states:
        equal(bench.broker.depth(bench.queue).delayed, 10, "they count as delayed")
    bench.advance(bench.lease_s * 1.05)
    equal(len(bench.lease()), 5, "those of the short delay come first")
    bench.advance(bench.lease_s * 1.1)
    equal({one.deliveries for one in bench.lease()}, {2, 3}, "then the others, and those whose second lease ended")


@scenario()
def work_that_was_cancelled_counts_as_the_broker_says(bench: Bench) -> None:
    """As on a stop: not at all, or as any other failure."""
    bench.publish(b"a")
    for deliveries in range(1, 4):
        [leased] = bench.lease()
        must(leased.deliveries == (1 if bench.can.uncounted else deliveries), "deliveries are counted so", leased)
        bench.broker.fail([Failure(handle=leased.handle, counts=False)])


@scenario()
def one_poison_among_a_hundred_holds_up_no_other(bench: Bench) -> None:
    """It fails again and again, the others are done."""
    bench.publish(*(b"poison" if number == 50 else b"good" for number in range(100)))
    done, poison = 0, 0
    for _ in range(10):
        leased = bench.lease(20)
        good = [one.handle for one in leased if one.message.body == b"good"]
        bench.broker.ack(good)
        bad = [Failure(handle=one.handle, reason="poison") for one in leased if one.message.body == b"poison"]
        bench.broker.fail(bad)
        done, poison = done + len(good), poison + len(bad)
    must(done == 99, "the others are done", done)
    must(poison >= 1, "the poison was tried")
    equal(bench.broker.depth(bench.queue).open, 1, "the poison is still there")


@scenario()
def messages_that_are_all_rejected_come_again_without_a_hidden_pause(bench: Bench) -> None:
    """No delay was asked for, so there is none."""
    bench.publish(*(b"%d" % number for number in range(20)))
    started_s = bench.broker.monotonic()
    for _ in range(5):
        leased = bench.lease()
        must(len(leased) == 20, "all come again at once", len(leased))
        bench.broker.fail([Failure(handle=one.handle) for one in leased])
    must(bench.broker.monotonic() - started_s < bench.lease_s, "it does not take a lease's time")


def _dead(bench: Bench) -> None:
    bench.publish(b"a")
    bench.broker.dead_letter([Letter(handle=one.handle, reason="poison") for one in bench.lease()])


@scenario("dead_letters", otherwise=_dead)
def a_dead_letter_never_comes_again(bench: Bench) -> None:
    """It is counted, and kept with its body and its reason."""
    bench.publish(b"poison", b"good")
    poison, good = bench.lease()
    empty(bench.broker.dead_letter([Letter(handle=poison.handle, reason="no JSON: «é»")]), "it is taken")
    bench.broker.ack([good.handle])
    bench.let_leases_end()
    empty(bench.lease(), "it does not come again")
    depth = bench.broker.depth(bench.queue)
    must((depth.dead, depth.open) == (1, 0), "it counts as dead", depth)
    if "dead" in bench.can.peek:
        [stored] = bench.broker.peek(bench.queue, "dead")
        must(stored.message == poison.message, "it is kept whole", stored)
        must((stored.state, stored.reason, stored.deliveries) == ("dead", "no JSON: «é»", 1), "with its reason", stored)


FAILING = (
    a_failed_message_comes_again_at_once,
    a_message_that_failed_with_a_delay_comes_when_it_is_over,
    work_that_was_cancelled_counts_as_the_broker_says,
    one_poison_among_a_hundred_holds_up_no_other,
    messages_that_are_all_rejected_come_again_without_a_hidden_pause,
    a_dead_letter_never_comes_again,
)
