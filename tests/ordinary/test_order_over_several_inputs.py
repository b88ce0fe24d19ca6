"""O8: ordered inputs one after the other keep the order of the source for each of their keys, whatever is tried again.

The oracle is the source: its messages are numbered, so for each bolt and key the numbers must come in ascending order.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import msgspec
import pytest

from tupletree import Collector, Topology, Window, bolt, testing, window_bolt
from tupletree.sinks import foreach, jsonl
from tupletree.sources import items
from tupletree.testing.simulator.faults import Faults


class Event(msgspec.Struct, frozen=True):
    number: int
    first: str
    second: str
    third: str


SOME = [Event(0, "a", "c", "e")]
"""In place of what each test gives."""


class Count(msgspec.Struct, frozen=True):
    count: int


class Notes:
    """Fails some calls, and notes the others: bolt and key → the numbers in the order of their first good calls."""

    def __init__(self, fails: dict[tuple[str, int], int]) -> None:
        self.left = dict(fails)
        self.worked: dict[tuple[str, str], list[int]] = defaultdict(list)

    def call(self, name: str, key: str, number: int) -> None:
        if self.left.get((name, number), 0) > 0:
            self.left[name, number] -= 1
            raise ValueError(f"{name} is to fail {number}")
        if number not in self.worked[name, key]:
            self.worked[name, key].append(number)

    def out_of_order(self, acked: set[int]) -> dict[tuple[str, str], list[int]]:
        """A call that nobody waits for any more may end after the death of its message: these do not count."""
        found = {key: [number for number in numbers if number in acked] for key, numbers in self.worked.items()}
        return {key: numbers for key, numbers in found.items() if any(a > b for a, b in pairwise(numbers))}


BOLTS = ("one", "two", "three", "left", "right")


def events(random: Random, count: int = 16) -> list[Event]:
    return [Event(number, random.choice("ab"), random.choice("cd"), random.choice("ef")) for number in range(count)]


def random_fails(random: Random, count: int = 16) -> dict[tuple[str, int], int]:
    return {(name, number): random.choice((0,) * 5 + (1, 2, 99)) for name in BOLTS for number in range(count)}


def passing(notes: Notes, name: str, key: str) -> Any:
    @bolt
    def work(event: Event) -> Event:
        notes.call(name, getattr(event, key), event.number)
        return copy(event)

    return work


def two_keys(notes: Notes) -> Topology:
    t = Topology("two-keys")
    one = t.bolt("one", passing(notes, "one", "first"), parallelism=2)
    one.fields(t.spout("events", items(SOME)), "first", ordered=True)
    two = t.bolt("two", passing(notes, "two", "second"), parallelism=2).fields(one, "second", ordered=True)
    t.sink("out", foreach(lambda _: None)).shuffle(two)
    return t


def two_keys_async(notes: Notes) -> Topology:
    @bolt(concurrency=5)
    async def work(event: Event) -> Event:
        await asyncio.sleep(0.01 * (event.number * 7 % 5))
        notes.call("one", event.first, event.number)
        return event

    t = Topology("two-keys-async")
    one = t.bolt("one", work).fields(t.spout("events", items(SOME)), "first", ordered=True)
    two = t.bolt("two", passing(notes, "two", "second"), parallelism=2).fields(one, "second", ordered=True)
    t.sink("out", foreach(lambda _: None)).shuffle(two)
    return t


def three_in_a_row(notes: Notes) -> Topology:
    """With a filter between the first two, and a bolt that emits several tuples of different keys before the third."""

    @bolt
    def keep_some(event: Event) -> Event | None:
        notes.call("left", event.first, event.number)
        return event if event.number % 4 else None

    @bolt
    def split(event: Event, out: Collector[Event]) -> None:
        notes.call("two", event.second, event.number)
        for third in "efg"[: 1 + event.number % 3]:
            out.emit(msgspec.structs.replace(event, third=third))

    t = Topology("three")
    one = t.bolt("one", passing(notes, "one", "first"), parallelism=2)
    one.fields(t.spout("events", items(SOME)), "first", ordered=True)
    kept = t.bolt("left", keep_some, parallelism=2).shuffle(one)
    two = t.bolt("two", split, parallelism=2).fields(kept, "second", ordered=True)
    three = t.bolt("three", passing(notes, "three", "third"), parallelism=2).fields(two, "third", ordered=True)
    t.sink("out", foreach(lambda _: None)).shuffle(three)
    return t


def joined_again(notes: Notes) -> Topology:
    t = Topology("joined")
    one = t.bolt("one", passing(notes, "one", "first"), parallelism=2)
    one.fields(t.spout("events", items(SOME)), "first", ordered=True)
    left = t.bolt("left", passing(notes, "left", "third"), parallelism=2).fields(one, "third", ordered=True)
    right = t.bolt("right", passing(notes, "right", "third"), parallelism=2).shuffle(one)
    two = t.bolt("two", passing(notes, "two", "second"), parallelism=2)
    two.fields(left, "second", ordered=True).fields(right, "second", ordered=True)
    t.sink("out", foreach(lambda _: None)).shuffle(two)
    return t


ALL = [two_keys, two_keys_async, three_in_a_row, joined_again]


def ordered_bolts(make: Callable[[Notes], Topology]) -> Iterator[str]:
    spec = make(Notes(random_fails(Random(0)))).build()
    for name, component in spec.components.items():
        if any(source.grouping.ordered for source in component.inputs):
            yield name


def check(make: Callable[[Notes], Topology], notes: Notes, acked: set[int]) -> None:
    ordered = {*ordered_bolts(make)}
    wrong = {key: numbers for key, numbers in notes.out_of_order(acked).items() if key[0] in ordered}
    assert not wrong


def test_what_fails_in_the_first_of_two_inputs_with_different_keys_is_waited_for_in_the_second() -> None:
    notes = Notes({("one", 0): 2})
    given = [Event(number, "ab"[number % 2], "same", "") for number in range(12)]
    run = testing.run(two_keys(notes), {"events": given})
    assert notes.worked["one", "b"] == [1, 3, 5, 7, 9, 11]
    assert notes.worked["two", "same"] == [*range(12)]
    assert [message.attempts for message in run.messages["events"]] == [3] + [1] * 11


def test_what_is_emitted_before_a_message_that_failed_does_not_wait_for_it_in_the_second() -> None:
    """Also what came to the first input in one frame with it."""
    order: list[tuple[str, int]] = []
    notes = Notes({("one", 6): 2})

    @bolt
    def one(event: Event) -> Event:
        order.append(("one", event.number))
        return msgspec.structs.replace(event, first=passing_first(event))

    def passing_first(event: Event) -> str:
        notes.call("one", event.first, event.number)
        return event.first

    @bolt
    def two(event: Event) -> None:
        order.append(("two", event.number))

    t = Topology("before")
    first = t.bolt("one", one).fields(t.spout("events", items(SOME)), "first", ordered=True)
    t.bolt("two", two).fields(first, "second", ordered=True)
    testing.run(t, {"events": [Event(number, "abcdefghijkl"[number], "same", "") for number in range(12)]})
    last_try = max(place for place, call in enumerate(order) if call == ("one", 6))
    assert [number for name, number in order[:last_try] if name == "two"] == [*range(6)]
    assert [number for name, number in order if name == "two"] == [*range(12)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", ALL)
def test_the_order_holds_over_several_inputs(make: Callable[[Notes], Topology], seed: int) -> None:
    """Few messages may be in flight, so that those that wait fill the limit: that is no deadlock."""
    random = Random(seed)
    notes = Notes(random_fails(random))
    options = {"max_spout_pending": random.choice((2, 5, 100)), "max_attempts": 4}
    run = testing.run(make(notes), {"events": events(random)}, options=options)
    messages = run.messages["events"]
    assert all(message.acked or message.dead for message in messages)
    check(make, notes, {number for number, message in enumerate(messages) if message.acked})


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("make", ALL)
def test_the_order_holds_over_several_inputs_under_faults(make: Callable[[Notes], Topology], seed: int) -> None:
    """Everything arrives in any order, is lost, repeated and late; tasks die. The simulator holds it to an end."""
    random = Random(1000 + seed)
    notes = Notes(random_fails(random))
    given = events(random)
    faults = replace(Faults(), crash=0.0)
    result = testing.simulate(lambda: make(notes), {"events": given}, seed=seed, faults=faults)
    check(make, notes, {*result.acked.get("events", ())})


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 60))
@pytest.mark.parametrize("make", ALL)
def test_the_order_holds_over_several_inputs_under_many_faults(make: Callable[[Notes], Topology], seed: int) -> None:
    test_the_order_holds_over_several_inputs(make, seed)
    test_the_order_holds_over_several_inputs_under_faults(make, seed)


def test_windows_behind_each_of_two_inputs_are_no_deadlock() -> None:
    notes = Notes({("one", 1): 1, ("two", 4): 2, ("one", 9): 1})

    @window_bolt(count=4, per_key=True, extend_timeout=True)
    def gather(window: Window[Event]) -> Count:
        return Count(len(window))

    t = Topology("windows", options={"max_spout_pending": 9})
    one = t.bolt("one", passing(notes, "one", "first")).fields(t.spout("events", items(SOME)), "first", ordered=True)
    two = t.bolt("two", passing(notes, "two", "second")).fields(one, "second", ordered=True)
    gathered = t.bolt("gather", gather).fields(two, "first")
    t.sink("out", jsonl("never")).shuffle(t.bolt("gather_one", gather).fields(one, "first")).shuffle(gathered)
    given = [Event(number, "ab"[number % 2], "cd"[number // 2 % 2], "") for number in range(24)]
    run = testing.run(t, {"events": given})
    assert all(message.acked for message in run.messages["events"])
    assert not notes.out_of_order({*range(24)})
