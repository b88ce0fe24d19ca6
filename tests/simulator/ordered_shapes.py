"""Topologies with ordered inputs, and the world that they work in, for `tests.simulator.ordered`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tupletree import KeyedState, PermanentError, Spout, TaskContext, Topology, Window, bolt, window_bolt
from tupletree.errors import ConnectorError, EndOfInput
from tupletree.ids import MessageId
from tupletree.sinks import jsonl
from tupletree.topology.builder import BoltHandle
from tupletree.topology.components import Emit
from tupletree.topology.splits import Split, SplitSpout
from tupletree.tracking.outcomes import Failure

KEYS = {"one": "first", "two": "second", "three": "third"}
"""Ordered bolt → the field that it is grouped by."""


class Event(msgspec.Struct, frozen=True, gc=False):
    world: str
    source: str
    number: int
    first: str
    second: str
    third: str


class Seen(msgspec.Struct):
    numbers: list[tuple[str, int]] = []


class Row(msgspec.Struct, frozen=True, gc=False):
    ordered_bolt: str
    key: str
    source: str
    number: int


@dataclass
class World:
    """What lies outside of the run.

    Attributes:
        events: source → its messages.
        left: (where, source, number) → how many more calls fail there.
        failing: where → how often any call fails.
        poison: (source, number) → where it fails for good.
        replayed: (source, number) of dead messages that were replayed, and so emitted anew behind others.
    """

    name: str
    chance: Random
    events: dict[str, list[Event]] = field(default_factory=dict)
    left: dict[tuple[str, str, int], int] = field(default_factory=dict)
    failing: dict[str, float] = field(default_factory=dict)
    poison: dict[tuple[str, int], str] = field(default_factory=dict)
    replayed: set[tuple[str, int]] = field(default_factory=set)
    dead: Counter[tuple[str, int]] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    is_over: Callable[[], bool] = lambda: False

    def call(self, where: str, event: Event) -> None:
        """Fails for good, some times, or now and then."""
        if self.poison.get((event.source, event.number)) == where:
            raise PermanentError(f"{where} never takes {event.number}")
        place = where, event.source, event.number
        if self.left.get(place, 0) > 0:
            self.left[place] -= 1
            raise ValueError(f"{where} is to fail {event.number}")
        if self.chance.random() < self.failing.get("away", 0.0):
            raise ConnectorError("it is not available now")
        if self.chance.random() < self.failing.get(where, 0.0):
            raise ConnectionError(f"{where} stumbles over {event.number}")

    def needs(self, ordered_bolt: str, event: Event) -> set[int]:
        """What must be in the state of its key before a message is worked there."""
        key = getattr(event, KEYS[ordered_bolt])
        return {
            one.number
            for one in self.events[event.source][: event.number]
            if getattr(one, KEYS[ordered_bolt]) == key
            and (one.source, one.number) not in self.poison.keys() | self.replayed
            and self.reaches(ordered_bolt, one)
        }

    def reaches(self, ordered_bolt: str, event: Event) -> bool:
        """Whether a message comes to an ordered bolt at all."""
        return ordered_bolt == "one" or event.number % 5 != 4


WORLDS: dict[str, World] = {}


class Giving(Spout[Event]):
    """Gives the messages of its source, from a position."""

    def __init__(self, world: str, source: str) -> None:
        self.world, self.source, self.at = world, source, 0

    def open(self, context: TaskContext) -> None:
        self.source = f"{self.source}{context.task_index}"

    def next(self) -> list[Emit[Event]]:
        world = WORLDS[self.world]
        events = world.events[self.source]
        if self.at >= len(events):
            raise EndOfInput
        begin, self.at = self.at, min(self.at + world.chance.randint(1, 6), len(events))
        return [Emit(events[at], at) for at in range(begin, self.at)]

    def snapshot(self) -> Any:
        return self.at

    def restore(self, position: Any) -> None:
        self.at = position

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        world = WORLDS[self.world]
        if not world.is_over():
            assert isinstance(message_id, int)
            world.dead[self.source, message_id] += 1


class Pieces(SplitSpout[Event]):
    """The same in pieces that executors read."""

    def __init__(self, world: str, source: str) -> None:
        self.world, self.source, self.at = world, f"{source}0", 0

    def plan(self, max_rows: int, max_bytes: int) -> Sequence[Split] | None:
        world = WORLDS[self.world]
        events = world.events[self.source]
        if self.at >= len(events):
            raise EndOfInput
        begin, self.at = self.at, min(self.at + min(max_rows, world.chance.randint(1, 6)), len(events))
        return [Split(self.at - begin, begin, self.source)]

    def read(self, split: Split) -> Iterator[Event]:
        yield from WORLDS[self.world].events[self.source][split.first : split.first + split.rows]

    def snapshot(self) -> Any:
        return self.at

    def restore(self, position: Any) -> None:
        self.at = position

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        world = WORLDS[self.world]
        if not world.is_over():
            assert isinstance(message_id, tuple)
            world.dead[self.source, int(str(message_id[1]))] += 1


def passing(name: str) -> Any:
    @bolt
    def work(event: Event) -> Event:
        WORLDS[event.world].call(name, event)
        return copy(event)

    return work


def check_needs(name: str, event: Event, seen: set[tuple[str, int]]) -> None:
    world = WORLDS[event.world]
    there = {number for source, number in seen if source == event.source}
    if world.needs(name, event) - there:
        world.wrong[name] += 1
        raise PermanentError(f"{event.number} came to {name} before what it needs")


def ordered_bolt(name: str) -> Any:
    @bolt(state=Seen)
    def work(event: Event, seen: KeyedState[Seen]) -> Event | None:
        check_needs(name, event, {(source, number) for source, number in seen.value.numbers})
        seen.value = Seen([*seen.value.numbers, (event.source, event.number)])
        WORLDS[event.world].call(name, event)
        return copy(event) if WORLDS[event.world].reaches("two", event) else None

    return work


@bolt(state=Seen)
def at_last(event: Event, seen: KeyedState[Seen]) -> Row:
    check_needs("one", event, {(source, number) for source, number in seen.value.numbers})
    seen.value = Seen([*seen.value.numbers, (event.source, event.number)])
    WORLDS[event.world].call("one", event)
    return Row("one", event.first, event.source, event.number)


def row_bolt(name: str) -> Any:
    @bolt
    def work(event: Event) -> Row:
        WORLDS[event.world].call(name, event)
        return Row(name, getattr(event, KEYS[name]), event.source, event.number)

    return work


def row_bolt_async(name: str) -> Any:
    @bolt(concurrency=3)
    async def work(event: Event) -> Row:
        await asyncio.sleep(0)
        WORLDS[event.world].call(name, event)
        return Row(name, getattr(event, KEYS[name]), event.source, event.number)

    return work


@bolt
def fan_out(event: Event) -> Iterator[Event]:
    world = WORLDS[event.world]
    for share in range(event.number % 3 + 1):
        yield msgspec.structs.replace(event, third="efg"[share])
    world.call("fan", event)


@bolt
def end(event: Event) -> Row:
    WORLDS[event.world].call("end", event)
    return Row("end", event.first, event.source, event.number)


@window_bolt(count=3, per_key=True, extend_timeout=True)
def gather(window: Window[Event]) -> list[Row]:
    for event in window:
        WORLDS[event.world].call("gather", event)
    return [Row("gather", event.first, event.source, event.number) for event in window]


def spouts(t: Topology, world: World, made: type[Giving | Pieces] = Giving) -> list[Any]:
    names = sorted({source[:-1] for source in world.events})
    tasks = {name: sum(source.startswith(name) for source in world.events) for name in names}
    return [t.spout(name, made(world.name, name), parallelism=tasks[name]) for name in names]


def out(t: Topology, folder: Path, rows: BoltHandle, name: str = "rows") -> None:
    t.sink(name, jsonl(folder / name), parallelism=1).shuffle(rows)


def grouped(bolt_: BoltHandle, sources: Sequence[Any], name: str) -> BoltHandle:
    for source in sources:
        bolt_ = bolt_.fields(source, KEYS[name], ordered=True)
    return bolt_


def direct(t: Topology, world: World, folder: Path, wide: Callable[[], int]) -> None:
    one = grouped(t.bolt("one", ordered_bolt("one"), parallelism=wide()), spouts(t, world), "one")
    out(t, folder, t.bolt("end", end, parallelism=wide()).shuffle(one))


def parsed(t: Topology, world: World, folder: Path, wide: Callable[[], int]) -> None:
    parse = t.bolt("parse", passing("parse"), parallelism=wide())
    for source in spouts(t, world):
        parse = parse.shuffle(source)
    one = grouped(t.bolt("one", ordered_bolt("one"), parallelism=wide()), [parse], "one")
    out(t, folder, t.bolt("end", end, parallelism=wide()).shuffle(one))


def to_rows(t: Topology, world: World, folder: Path, wide: Callable[[], int]) -> None:
    """The sink is directly behind the ordered bolt, which has state."""
    parse = t.bolt("parse", passing("parse"), parallelism=wide())
    for source in spouts(t, world):
        parse = parse.shuffle(source)
    out(t, folder, grouped(t.bolt("one", at_last, parallelism=wide()), [parse], "one"))


def crossed(t: Topology, world: World, folder: Path, wide: Callable[[], int]) -> None:
    one = grouped(t.bolt("one", ordered_bolt("one"), parallelism=wide()), spouts(t, world), "one")
    between = t.bolt("between", passing("between"), parallelism=wide()).shuffle(one)
    two = grouped(t.bolt("two", ordered_bolt("two"), parallelism=wide()), [between], "two")
    out(t, folder, t.bolt("end", end, parallelism=wide()).shuffle(two))


def branched(t: Topology, world: World, folder: Path, wide: Callable[[], int]) -> None:
    """Two ways to one ordered bolt of which each message takes one, and a third that leads elsewhere."""

    @bolt
    def odd(event: Event) -> Event | None:
        WORLDS[event.world].call("odd", event)
        return copy(event) if event.number % 2 else None

    @bolt
    def even(event: Event) -> Event | None:
        WORLDS[event.world].call("even", event)
        return None if event.number % 2 else copy(event)

    sources = spouts(t, world)
    ways = [t.bolt("odd", odd, parallelism=wide()), t.bolt("even", even, parallelism=wide())]
    beside = t.bolt("beside", passing("beside"), parallelism=wide())
    for source in sources:
        ways = [ways[0].shuffle(source), ways[1].local_or_shuffle(source)]
        beside = beside.shuffle(source)
    one = grouped(t.bolt("one", ordered_bolt("one"), parallelism=wide()), ways, "one")
    out(t, folder, t.bolt("end", end, parallelism=wide()).shuffle(one))
    t.sink("others", jsonl(folder / "others")).shuffle(beside)


def fanned(t: Topology, world: World, folder: Path, wide: Callable[[], int]) -> None:
    fan = t.bolt("fan", fan_out, parallelism=wide())
    for source in spouts(t, world):
        fan = fan.shuffle(source)
    three = grouped(t.bolt("three", row_bolt("three"), parallelism=wide()), [fan], "three")
    out(t, folder, three)


def side_by_side(t: Topology, world: World, folder: Path, wide: Callable[[], int]) -> None:
    parse = t.bolt("parse", passing("parse"), parallelism=wide())
    for source in spouts(t, world):
        parse = parse.shuffle(source)
    out(t, folder, grouped(t.bolt("one", row_bolt_async("one"), parallelism=wide()), [parse], "one"))


def in_pieces(t: Topology, world: World, folder: Path, wide: Callable[[], int]) -> None:
    parse = t.bolt("parse", passing("parse"), parallelism=wide())
    for source in spouts(t, world, Pieces):
        parse = parse.shuffle(source)
    one = grouped(t.bolt("one", ordered_bolt("one"), parallelism=wide()), [parse], "one")
    out(t, folder, t.bolt("end", end, parallelism=wide()).shuffle(one))


def windowed(t: Topology, world: World, folder: Path, wide: Callable[[], int]) -> None:
    one = grouped(t.bolt("one", ordered_bolt("one"), parallelism=wide()), spouts(t, world), "one")
    out(t, folder, t.bolt("gather", gather, parallelism=2).fields(one, "first"))


SHAPES = (direct, parsed, crossed, branched, fanned, side_by_side, in_pieces, windowed, to_rows)
