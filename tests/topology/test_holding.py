"""Windows and joins as they are declared: what their hints mean, and every way to get them wrong."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from tupletree import Collector, KeyedState, Topology, TopologyError, Window, join_bolt, window_bolt
from tupletree.sources import items
from tupletree.topology.decorators import FunctionBolt
from tupletree.topology.render import to_text
from tupletree.topology.windows import JoinSpec, WindowSpec


class Order(msgspec.Struct, frozen=True):
    order_id: int
    at: dt.datetime
    customer: str = ""


class Payment(msgspec.Struct, frozen=True):
    order: int
    at: float
    note: str = ""


class Total(msgspec.Struct, frozen=True):
    orders: int


def count(window: Window[Order]) -> Total:
    return Total(len(window))


def count_list(orders: list[Order]) -> Iterator[Total]:
    yield Total(len(orders))


def match(order: Order, payment: Payment | None) -> Total:
    return Total(1)


def faults(bolt: FunctionBolt[..., Any]) -> str:
    return "\n".join(str(finding) for finding in bolt.describe().findings)


def test_a_window_or_a_list_is_what_the_hint_says() -> None:
    spec, listed = window_bolt(count=2)(count).spec, window_bolt(count=2)(count_list).spec
    assert isinstance(spec.holding, WindowSpec)
    assert isinstance(listed.holding, WindowSpec)
    assert (spec.holding.as_list, listed.holding.as_list) == (False, True)
    assert (spec.returns, listed.returns) == ("value", "many")
    assert spec.input_types == listed.input_types == (Order,)


def test_the_hints_say_which_join_it_is() -> None:
    spec = join_bolt(within_s=5)(match).spec
    assert isinstance(spec.holding, JoinSpec)
    assert spec.holding.parameters == ("order", "payment")
    assert spec.holding.sides == ((Order,), (Payment,))
    assert spec.holding.optional == (False, True)
    assert spec.input_types == (Order, Payment)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "a window has a length_s, a count or a gap_s"),
        ({"length_s": 5, "count": 5}, "a window has a length_s, a count or a gap_s"),
        ({"length_s": 5, "gap_s": 5}, "a window has a length_s, a count or a gap_s"),
        ({"count": 5, "gap_s": 5}, "a window has a length_s, a count or a gap_s"),
        ({"gap_s": 0}, "gap_s is not right"),
        ({"gap_s": float("nan")}, "gap_s is not right"),
        ({"gap_s": 5, "slide_s": 1}, "sessions do not slide, so they have no slide_s"),
        ({"gap_s": 5, "slide_count": 1}, "sessions do not slide, so they have no slide_count"),
        ({"gap_s": 5, "max_length_s": 4}, "max_length_s is shorter than the gap"),
        ({"gap_s": 5, "max_length_s": float("inf")}, "max_length_s is not right"),
        ({"length_s": 5, "max_length_s": 9}, "max_length_s is for sessions"),
        ({"count": 5, "max_length_s": 9}, "max_length_s is for sessions"),
        ({"gap_s": 5, "lag_s": 1}, "are for event time"),
        ({"length_s": 0}, "length_s is not right"),
        ({"length_s": float("inf")}, "length_s is not right"),
        ({"length_s": 5, "slide_s": 6}, "slide_s is longer than the window"),
        ({"length_s": 5, "slide_count": 1}, "slide_count is for count windows"),
        ({"count": 0}, "count is too small"),
        ({"count": 2, "slide_count": 3}, "slide_count is more than the window holds"),
        ({"count": 2, "slide_s": 1.0}, "slide_s is for windows by time"),
        ({"count": 2, "timestamp": "at"}, "a count window goes by arrival"),
        ({"length_s": 5, "lag_s": 1}, "are for event time"),
        ({"length_s": 5, "timestamp": "at", "lag_s": -1}, "lag_s is not right"),
        ({"length_s": 5, "timestamp": "at", "idle_s": 0}, "idle_s is not right"),
        ({"length_s": 5, "timestamp": "at", "late": "never"}, "late is not right"),
    ],
)
def test_settings_that_make_no_sense_are_said_at_build_time(settings: dict[str, Any], said: str) -> None:
    assert said in faults(window_bolt(**settings)(count))


def test_late_tuples_need_a_stream_that_carries_no_results() -> None:
    def orders(window: Window[Order]) -> Iterator[Order]:
        yield from window

    assert "late tuples would come out among the results" in faults(
        window_bolt(length_s=5, timestamp="at", late="emit")(orders)
    )
    outputs = window_bolt(length_s=5, timestamp="at", late="emit")(count).describe().outputs
    assert [schema.cls for schema in outputs] == [Total, Order]


def test_a_join_takes_two_classes() -> None:
    def one(order: Order) -> Total:
        return Total(1)

    def same(order: Order, other: Order) -> Total:
        return Total(1)

    assert "a join takes two tuples" in faults(join_bolt(within_s=5)(one))
    assert "both sides of the join take the same class" in faults(join_bolt(within_s=5)(same))


def test_a_holding_bolt_settles_and_keeps_state_by_itself() -> None:
    def stateful(window: Window[Order], seen: KeyedState[int]) -> Total:
        return Total(1)

    def collecting(window: Window[Order], out: Collector[Total]) -> None: ...

    async def waiting(window: Window[Order]) -> Total:
        return Total(1)

    def plain(order: Order) -> Total:
        return Total(1)

    assert "neither KeyedState nor Collector" in faults(window_bolt(count=2)(stateful))
    assert "neither KeyedState nor Collector" in faults(window_bolt(count=2)(collecting))
    assert "cannot be async" in faults(window_bolt(count=2)(waiting))
    assert "Window[T] or list[T]" in faults(window_bolt(count=2)(plain))


def built(bolt: FunctionBolt[..., Any], subscribe: Callable[..., Any]) -> str:
    t = Topology("orders")
    orders = t.spout("orders", items([], message_type=Order))
    payments = t.spout("payments", items([], message_type=Payment))
    handle = t.bolt("bolt", bolt, unconsumed=Total)
    subscribe(handle, orders, payments)
    with pytest.raises(TopologyError) as refused:
        t.build()
    return str(refused.value)


def test_what_goes_by_key_is_grouped_by_it() -> None:
    said = built(window_bolt(count=2, per_key=True)(count), lambda bolt, orders, _: bolt.shuffle(orders))
    assert "the bolt keeps tuples by key, but orders.Order is not grouped by its key" in said
    said = built(
        join_bolt(within_s=5)(match), lambda bolt, orders, pays: bolt.fields(orders, "customer").fields(pays, "order")
    )
    assert "the inputs of a bolt with tuples by key have different keys" in said


def test_the_timestamp_is_a_field_that_is_a_time() -> None:
    by_name = window_bolt(length_s=5, timestamp="att")(count)
    said = built(by_name, lambda bolt, orders, _: bolt.shuffle(orders))
    assert "has no field 'att'" in said
    assert "did you mean 'at'?" in said
    by_text = window_bolt(length_s=5, timestamp="customer")(count)
    assert "field 'customer' is no time" in built(by_text, lambda bolt, orders, _: bolt.shuffle(orders))


def test_a_join_reads_both_sides() -> None:
    said = built(join_bolt(within_s=5)(match), lambda bolt, orders, _: bolt.fields(orders, "order_id"))
    assert "a join needs both sides" in said
    assert "Payment" in said


def test_a_drawing_says_what_a_window_or_join_holds_tuples_by() -> None:
    t = Topology("drawn")
    orders, payments = (
        t.spout("orders", items([], message_type=Order)),
        t.spout("pays", items([], message_type=Payment)),
    )
    session = window_bolt(gap_s=30, max_length_s=3600, per_key=True, timestamp="at")(count)
    t.bolt("visits", session, parallelism=2, unconsumed=True).fields(orders, "customer")
    joined = t.bolt("matched", join_bolt(within_s=5)(match), unconsumed=True)
    joined.fields(orders, "order_id").fields(payments, "order")
    drawn = to_text(t.build())
    assert "bolt visits ×2 with a window(gap_s=30, max_length_s=3600, timestamp=at, per_key=True) → " in drawn
    assert "bolt matched ×1 with a join(within_s=5) → " in drawn
