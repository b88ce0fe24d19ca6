"""Slots: the global gate before the route's, none held while waiting, none lost, and what the latency makes of them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tupletree.routes.document.spec import Backpressure, Inbound, Limits, PipelineSpec, RouteSpec
from tupletree.routes.running.gates import Gates


def gates(most: int, *limits: int, clock: Sequence[float] = (0.0,), backpressure: Backpressure | None = None) -> Gates:
    routes = {
        name: RouteSpec(name, Inbound(queue=f"q{name}", concurrency=limit), backpressure=backpressure or Backpressure())
        for name, limit in zip("abcdef", limits)
    }
    return Gates(PipelineSpec("p", routes, limits=Limits(max_handlers=most)), lambda: clock[0])


def test_a_route_gets_no_more_slots_than_its_own_nor_than_all_have_together() -> None:
    g = gates(5, 4, 4)
    assert (g.take("a"), g.take("b"), g.take("a")) == (4, 1, 0)


def test_the_smaller_of_prefetch_and_concurrency_counts() -> None:
    inbounds = [Inbound(queue="q", concurrency=4, prefetch=prefetch) for prefetch in (2, 8, None)]
    assert [one.in_flight for one in inbounds] == [2, 4, 4]


def test_slots_that_were_not_needed_are_free_at_once_and_those_who_wait_are_told() -> None:
    g, told = gates(4, 4, 4), []
    g.listen("a", lambda: told.append("a"))
    g.listen("b", lambda: told.append("b"))
    assert (g.take("a"), g.take("b")) == (4, 0)
    g.fill("a", 4, ["m"])
    assert told == ["b"], "and not the route that gave them back"
    assert g.take("b") == 3
    g.fill("b", 3, ["n"])
    g.release("a", "m")
    assert told[-1] == "a"


def test_the_route_that_waits_longest_is_served_first() -> None:
    g = gates(2, 2, 2, 2)
    assert g.take("a") == 2
    g.fill("a", 2, ["m1", "m2"])
    assert (g.take("b"), g.take("c")) == (0, 0)
    g.release("a", "m1")
    assert g.take("a") == 0, "two wait, and one slot is free"
    assert g.take("c") == 0
    assert g.take("b") == 1


def test_what_adapters_hold_takes_no_slot_and_is_released_once() -> None:
    g = gates(2, 2)
    g.fill("a", g.take("a"), ["m1", "m2"])
    assert g.take("a") == 0
    g.hold("a", ["m1"])
    assert g.status()["a"].held == 1
    g.fill("a", g.take("a"), ["m3"])
    g.release("a", "m1")
    g.release("a", "m1")
    assert (g.status()["a"].in_flight, g.status()["a"].held) == (2, 0)
    assert g.take("a") == 0


def test_concurrency_follows_the_target_latency() -> None:
    clock = [0.0]
    g = gates(100, 8, clock=clock, backpressure=Backpressure(target_latency_ms=500, max_concurrency=12))

    def work(seconds: float) -> int:
        for _ in range(3):
            slots = g.take("a")
            g.take("a")  # finds none: the gate was full
            g.fill("a", slots, [f"m{number}" for number in range(slots)])
            clock[0] += seconds
            for number in range(slots):
                g.release("a", f"m{number}")
        return g.status()["a"].limit

    slow = work(2.0)
    assert slow < 8
    assert work(2.0) < slow
    assert max(work(0.4) for _ in range(40)) == 12


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=60), st.integers(1, 6))
def test_no_order_of_events_loses_a_slot_or_gives_too_many(events: list[tuple[str, int]], most: int) -> None:
    g = gates(most, 2, 3, 4)
    out: dict[str, list[str]] = {"a": [], "b": [], "c": []}
    reserved = dict.fromkeys("abc", 0)
    count = 0
    for route, what in events:
        if what == 0:
            reserved[route] += g.take(route)
        elif what == 1 and reserved[route]:
            used = [f"m{count + one}" for one in range(reserved[route] // 2)]
            count += len(used)
            g.fill(route, reserved[route], used)
            out[route] += used
            reserved[route] = 0
        elif what == 2 and out[route]:
            g.release(route, out[route].pop())
        elif what == 3 and out[route]:
            g.hold(route, out[route][:1])
            g.release(route, out[route].pop(0))
        taken = sum(map(len, out.values())) + sum(reserved.values())
        assert taken <= most
        assert all(len(out[one]) + reserved[one] <= limit for one, limit in zip("abc", (2, 3, 4)))
    for route in "abc":
        g.fill(route, reserved[route], [])
        for message in out[route]:
            g.release(route, message)
    while not all(g.take(route) == 0 for route in "abc"):
        pass
    assert sum(one.in_flight for one in g.status().values()) == 0
