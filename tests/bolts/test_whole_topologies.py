"""Windows and joins in whole topologies, on virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tupletree import (
    Emit,
    EndOfInput,
    Outcome,
    Spout,
    TaskContext,
    Topology,
    TopologyError,
    Window,
    bolt,
    join_bolt,
    testing,
    window_bolt,
)
from tupletree.ids import MessageId
from tupletree.sinks import foreach
from tupletree.sources import items


class Login(msgspec.Struct, frozen=True):
    address: str
    at: float


class Failures(msgspec.Struct, frozen=True):
    address: str
    start_s: float
    count: int


class Order(msgspec.Struct, frozen=True):
    order_id: int
    at: float


class Payment(msgspec.Struct, frozen=True):
    order: int
    at: float


class Paid(msgspec.Struct, frozen=True):
    order_id: int
    after_s: float | None


@window_bolt(length_s=300, timestamp="at", late="fail", lag_s=10.0, per_key=True, extend_timeout=True)
def failures(logins: Window[Login]) -> Failures:
    return Failures(logins.key, logins.start_s, len(logins))


@join_bolt(within_s=60, timestamp="at", late="fail", extend_timeout=True)
def paid(order: Order, payment: Payment | None) -> Paid:
    return Paid(order.order_id, payment.at - order.at if payment else None)


def windows(window: Any = failures, **options: Any) -> Topology:
    t = Topology("logins", options=options)
    logins = t.spout("logins", items([], message_type=Login))
    counted = t.bolt("failures", window, parallelism=2)
    counted.fields(logins, "address")
    t.sink("out", foreach(print)).shuffle(counted.stream(Failures))
    return t


def joins() -> Topology:
    t = Topology("orders")
    orders = t.spout("orders", items([], message_type=Order))
    payments = t.spout("payments", items([], message_type=Payment))
    t.sink("out", foreach(print)).shuffle(t.bolt("paid", paid).fields(orders, "order_id").fields(payments, "order"))
    return t


def test_failed_logins_are_counted_per_address_and_five_minutes() -> None:
    logins = [Login("a", 10.0), Login("b", 20.0), Login("a", 299.0), Login("a", 310.0), Login("a", 298.0)]
    run = testing.run(windows(), {"logins": logins})
    assert sorted(run.outputs["out"], key=str) == [
        Failures("a", 0.0, 3),
        Failures("a", 300.0, 1),
        Failures("b", 0.0, 1),
    ]
    assert all(message.acked for message in run.messages["logins"])


def test_an_order_is_joined_with_its_payment_and_one_without_comes_out_alone() -> None:
    run = testing.run(
        joins(),
        {"orders": [Order(1, 0.0), Order(2, 5.0), Order(3, 9.0)], "payments": [Payment(2, 15.0), Payment(1, 70.0)]},
    )
    assert sorted(run.outputs["out"], key=str) == [Paid(1, None), Paid(2, 10.0), Paid(3, None)]
    assert all(message.acked for spout in ("orders", "payments") for message in run.messages[spout])


def test_a_message_that_is_tried_again_is_in_its_window_once() -> None:
    @bolt
    def shaky(login: Login, context: TaskContext) -> Login:
        if login.at == 20.0 and context.attempt == 1:
            raise ConnectionError("try again")
        return login

    t = Topology("logins", options={"backoff_initial_ms": 100.0})
    source = t.spout("logins", items([], message_type=Login))
    passed = t.bolt("shaky", shaky).shuffle(source)
    t.sink("out", foreach(print)).shuffle(t.bolt("failures", failures).fields(passed, "address"))
    run = testing.run(t, {"logins": [Login("a", at) for at in (10.0, 20.0, 30.0, 700.0)]})
    assert sorted(run.outputs["out"], key=str) == [Failures("a", 0.0, 3), Failures("a", 600.0, 1)]


def test_a_message_that_fails_behind_its_window_leaves_the_other_windows_and_comes_back() -> None:
    @window_bolt(count=2)
    def pairs(logins: list[Login]) -> Failures:
        return Failures(logins[0].address, 0.0, len(logins))

    tried: list[Failures] = []

    @bolt
    def refuse_once(pair: Failures) -> Failures:
        tried.append(pair)
        if len(tried) == 1:
            raise ConnectionError("try again")
        return pair

    t = Topology("logins")
    source = t.spout("logins", items([], message_type=Login))
    pair = t.bolt("pairs", pairs).shuffle(source)
    t.sink("out", foreach(print)).shuffle(t.bolt("refuse", refuse_once).shuffle(pair))
    run = testing.run(t, {"logins": [Login("a", 1.0), Login("b", 2.0)]})
    assert len(run.outputs["out"]) == 1
    assert [message.attempts for message in run.messages["logins"]] == [2, 2]


class OneByOne(Spout[Login]):
    """Two messages, and when the window of the first is over, one that belongs to it."""

    def open(self, context: TaskContext) -> None:
        self._times = [1.0, 1000.0]
        self._more = [2.0]

    def next(self) -> Emit[Login] | None:
        if not self._times and not self._more:
            raise EndOfInput
        if not self._times:
            return None
        at = self._times.pop(0)
        return Emit(Login("a", at), str(at))

    def ack(self, message_id: MessageId) -> None:
        self._times += self._more
        self._more.clear()


def test_late_messages_are_dead_at_once_and_say_why() -> None:
    t = Topology("logins")
    t.sink("out", foreach(print)).shuffle(t.bolt("failures", failures).fields(t.spout("logins", OneByOne()), "address"))
    run = testing.run(t)
    late = run.messages["logins"][2]
    assert [message.outcome for message in run.messages["logins"]] == [Outcome.ACKED, Outcome.ACKED, Outcome.DEAD]
    assert late.failure is not None
    assert "the tuple came too late" in late.failure.error
    assert late.attempts == 1


def test_a_window_that_is_longer_than_the_timeout_must_extend_it() -> None:
    @window_bolt(length_s=40, per_key=True)
    def long(logins: Window[Login]) -> Failures:
        return Failures(logins.key, logins.start_s, len(logins))

    with pytest.raises(TopologyError, match="would time out while they wait here") as refused:
        testing.run(windows(long), {"logins": []})
    assert "extend_timeout=True" in str(refused.value)
    testing.run(windows(long, message_timeout_s=50.0), {"logins": []})
    testing.run(windows(long, message_timeout_s=None), {"logins": []})


def test_a_count_window_larger_than_what_may_be_open_is_refused_where_it_can_be_known() -> None:
    @window_bolt(count=300, per_key=True)
    def large(logins: Window[Login]) -> Failures:
        return Failures(logins.key, logins.start_s, len(logins))

    with pytest.raises(TopologyError, match="the window never fills"):
        testing.run(windows(large, max_spout_pending=100), {"logins": []})
    testing.run(windows(large, max_spout_pending=300), {"logins": []})

    @bolt
    def many(login: Login) -> Iterator[Login]:
        yield from [login] * 3

    t = Topology("logins", options={"max_spout_pending": 100})
    multiplied = t.bolt("many", many).shuffle(t.spout("logins", items([], message_type=Login)))
    t.sink("out", foreach(print)).shuffle(t.bolt("large", large).fields(multiplied, "address"))
    run = testing.run(t, {"logins": [Login("a", 0.0)] * 100})
    assert run.outputs["out"] == [Failures("a", run.outputs["out"][0].start_s, 300)]


@window_bolt(length_s=600, extend_timeout=True)
def long(logins: Window[Login]) -> Failures:
    return Failures("all", logins.start_s, len(logins))


class Once(Spout[Login]):
    """One message; then nothing, but it does not end."""

    def open(self, context: TaskContext) -> None:
        self._sent = False

    def next(self) -> Emit[Login] | None:
        if self._sent:
            return None
        self._sent = True
        return Emit(Login("a", 0.0), 1)


def test_messages_that_wait_longer_than_the_timeout_live_on_where_it_is_extended() -> None:
    t = Topology("logins", options={"message_timeout_s": 10.0})
    t.sink("out", foreach(print)).shuffle(t.bolt("long", long).shuffle(t.spout("logins", Once())))
    run = testing.run(t, at_most_s=700.0)
    assert [window.count for window in run.outputs["out"]] == [1]
    (message,) = run.messages["logins"]
    assert (message.acked, message.attempts) == (True, 1)


def test_a_window_may_hold_more_messages_than_are_open_elsewhere() -> None:
    logins = [Login("a", float(second)) for second in range(320)]
    run = testing.run(windows(), {"logins": logins})
    assert sorted(run.outputs["out"], key=str) == [Failures("a", 0.0, 300), Failures("a", 300.0, 20)]
