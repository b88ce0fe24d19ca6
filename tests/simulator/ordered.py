"""Topologies with ordered inputs for the simulation of the Spark protocol, and an oracle of what must be in order.

An ordered bolt keeps, by key, the messages that it has worked, and fails for good what comes before something that it
needs. So the oracle reads state and rows: what is committed is in order for each key and source, and only what always
fails is dead, whatever was tried again, put back, run again, killed, and started with another parallelism.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tests.simulator.protocol import BrokenRuleError
from tupletree import KeyedState, PermanentError, Spout, TaskContext, Topology, Window, bolt, window_bolt
from tupletree.config import resolve_options
from tupletree.errors import ConnectorError, EndOfInput
from tupletree.runtimes.deadletters import request_replay
from tupletree.runtimes.run import stored_state
from tupletree.sinks import jsonl, read_rows
from tupletree.testing.spark_protocol import Moment, ProtocolFaults, Simulation
from tupletree.topology.builder import BoltHandle
from tupletree.topology.components import Emit, MessageId
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


SHAPES = (direct, parsed, crossed, branched, fanned, side_by_side, in_pieces, windowed)

OPTIONS = {
    "backoff_initial_ms": 5.0,
    "backoff_max_ms": 20.0,
    "service_backoff_initial_ms": 5.0,
    "service_backoff_max_ms": 40.0,
    "spout_idle_wait_ms": 5.0,
    "max_restarts": 0,
    "max_attempts": 200,
    "processing_timeout_s": None,
    "message_timeout_s": 3600.0,
}

PLACES = ("parse", "one", "between", "two", "three", "end", "fan", "odd", "even", "beside", "gather")


def add_events(world: World, sources: Sequence[str]) -> None:
    """As many more for each of these sources; some fail a few times, and some for good."""
    chance = world.chance
    many = chance.choice((8, 20, 35))
    numbers = {source: range(len(one := world.events.get(source, [])), len(one) + many) for source in sources}
    for source in sources:
        world.events.setdefault(source, []).extend(
            Event(world.name, source, at, chance.choice("ab"), chance.choice("cd"), "e") for at in numbers[source]
        )
    once = chance.choice((0.0, 0.05, 0.15))
    for source in sources:
        for at in numbers[source]:
            for where in PLACES:
                if chance.random() < once / 3:
                    world.left[where, source, at] = chance.randint(1, 14)
            if chance.random() < 0.05:
                world.poison[source, at] = chance.choice(("parse", "one", "between", "two", "end"))


def replay_all(world: World, state_dir: Path) -> None:
    """Dead letters are replayed, their cause is gone, and there is more to come."""
    request_replay(state_dir, None)
    world.replayed |= {*world.dead}
    world.poison.clear()
    world.dead.clear()
    add_events(world, [*world.events])


def world_of(seed: int, shape: str) -> World:
    chance = Random(f"ordered {seed}")
    world = World(f"{shape} {seed}", chance)
    sources = ["a0"] if shape == "in_pieces" else chance.choice((["a0"], ["a0"], ["a0", "b0"], ["a0", "a1"]))
    add_events(world, sources)
    rate = chance.choice((0.0, 0.0, 0.03, 0.1))
    away = chance.choice((0.0, 0.0, 0.0, 0.01))
    world.failing = {where: rate for where in PLACES if chance.random() < 0.4}
    world.failing["away"] = away
    return world


def simulate(seed: int, place: Path, faults: ProtocolFaults | None = None, shape: str = "") -> Simulation:
    """Simulate a seed; raises BrokenRuleError, with the seed, or what ended the run."""
    make = next(one for one in SHAPES if one.__name__ == shape) if shape else SHAPES[seed % len(SHAPES)]
    world = WORLDS[f"{make.__name__} {seed}"] = world_of(seed, make.__name__)
    chance = Random(f"options {seed}")
    limits: dict[str, Any] = {
        "epoch_max_messages": chance.choice((3, 7, 20)),
        "stage_memory_bytes": chance.choice((1 << 20, 1 << 26)),
    }
    limits["state_guarantee"] = chance.choice(("exactly_once", "exactly_once", "at_least_once"))
    if make is not windowed:
        limits["max_spout_pending"] = chance.choice((None, None, 5))
        limits["message_timeout_s"] = chance.choice((3600.0, 3600.0, 0.05))
    options = resolve_options(code={**OPTIONS, **limits})

    def topology(folder: Path) -> Topology:
        t = Topology(f"ordered-{make.__name__}")
        make(t, world, folder, lambda: chance.randint(1, 3))
        return t

    oracle = Oracle(world)
    simulation = Simulation(topology, options, place, seed, faults or ProtocolFaults(), oracle.check)
    world.is_over = lambda: simulation.is_over
    try:
        simulation.run()
        if world.dead:
            simulation.run(lambda: replay_all(world, simulation.state_dir))
            simulation.counts["replayed"] += len(world.replayed)
    except BaseException as error:
        error.add_note(f"seed {seed}, {world.name}: {dict(simulation.counts)}")
        raise
    finally:
        del WORLDS[world.name]
    simulation.counts.update({f"wrong order at {name}": times for name, times in world.wrong.items()})
    return simulation


class Oracle:
    """What must be true at each moment."""

    def __init__(self, world: World) -> None:
        self.world = world

    def check(self, moment: Moment, simulation: Simulation) -> None:
        rows = self._rows(simulation.folder / "rows")
        for (where, key), numbers in rows.items():
            if where in KEYS:  # rows of an ordered bolt, in the order of the files
                self._check_line(f"rows of {where} for {key}", numbers)
        if moment is Moment.CRASH:
            return
        state = self._state(simulation)
        for (component, key), numbers in state.items():
            self._check_line(f"the state of {component} for {key}", numbers)
        if moment is Moment.END:
            self._check_end(rows, state, simulation)

    def _check_end(
        self,
        rows: dict[tuple[str, str], list[tuple[str, int]]],
        state: dict[tuple[str, str], list[tuple[str, int]]],
        simulation: Simulation,
    ) -> None:
        incarnation = simulation.incarnation
        assert incarnation is not None
        spec = incarnation.parts.plan.spec
        world = self.world
        where_it_dies = {one: where for one, where in world.poison.items() if where in spec.components}
        every = {(one.source, one.number): one for events in world.events.values() for one in events}
        dead = {
            one
            for one, where in where_it_dies.items()
            if where in ("parse", "one") or self.world.reaches("two", every[one])
        }
        totals = incarnation.parts.accounts.totals
        self._require({*world.dead} == dead, f"dead: {sorted(world.dead)}, and what always fails: {sorted(dead)}")
        self._require(
            totals.acked == len(every) - len(dead) and (totals.dead == len(dead) or bool(world.replayed)),
            f"acked {totals.acked}, dead {totals.dead}, of {len(every)} with {len(dead)} that always fail",
        )
        acked = [one for place, one in every.items() if place not in dead]
        for name_ in ("one", "two"):
            if name_ in spec.components and getattr(spec.components[name_].body, "state", None):
                expected = Counter(
                    (getattr(one, KEYS[name_]), one.source, one.number) for one in acked if world.reaches(name_, one)
                )
                found = Counter(
                    (key, source, number)
                    for (name, key), numbers in state.items()
                    if name == name_
                    for source, number in numbers
                )
                self._require(found == expected, f"{name_} has {found - expected} too much, lacks {expected - found}")
        if "three" in spec.components:
            wanted = Counter((one.source, one.number, share) for one in acked for share in "efg"[: one.number % 3 + 1])
        else:
            last = "one" if spec.components["one"].body.is_async else "end"
            wanted = Counter(
                (one.source, one.number, one.first) for one in acked if last == "one" or world.reaches("two", one)
            )
        shown = Counter((source, number, key) for (_, key), numbers in rows.items() for source, number in numbers)
        self._require(shown == wanted, f"rows: {shown - wanted} too much, {wanted - shown} missing")

    def _check_line(self, what: str, line: list[tuple[str, int]]) -> None:
        by_source: dict[str, list[int]] = defaultdict(list)
        self._require(len(line) == len({*line}), f"{what} have something twice: {line}")
        for source, number in line:
            if (source, number) not in self.world.replayed:
                by_source[source].append(number)
        for source, numbers in by_source.items():
            self._require(numbers == sorted({*numbers}), f"{what} are out of order for {source}: {numbers}")

    def _rows(self, folder: Path) -> dict[tuple[str, str], list[tuple[str, int]]]:
        found: dict[tuple[str, str], list[tuple[str, int]]] = defaultdict(list)
        for row in read_rows(folder) if folder.exists() else ():
            found[row["ordered_bolt"], row["key"]].append((row["source"], row["number"]))
        return found

    def _state(self, simulation: Simulation) -> dict[tuple[str, str], list[tuple[str, int]]]:
        return {
            (one.name, entry.key): [tuple(pair) for pair in entry.value["numbers"]]
            for one in stored_state(simulation.state_dir)[1]
            for entry in one.entries()
        }

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise BrokenRuleError(what)
