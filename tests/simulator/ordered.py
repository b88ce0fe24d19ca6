"""Topologies with ordered inputs for the simulation of the Spark protocol, and an oracle of what must be in order.

An ordered bolt keeps, by key, the messages that it has worked, and fails for good what comes before something that it
needs. So the oracle reads state and rows: what is committed is in order for each key and source, and only what always
fails is dead, whatever was tried again, put back, run again, killed, and started with another parallelism.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.simulator.ordered_shapes import KEYS, SHAPES, WORLDS, Event, World, windowed
from tests.simulator.protocol import BrokenRuleError
from tupletree import Topology
from tupletree.config import resolve_options
from tupletree.runtimes.deadletters import request_replay
from tupletree.runtimes.run import stored_state
from tupletree.sinks import read_rows
from tupletree.testing.spark_protocol import Moment, ProtocolFaults, ProtocolSimulation

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


def simulate(seed: int, place: Path, faults: ProtocolFaults | None = None, shape: str = "") -> ProtocolSimulation:
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
    simulation = ProtocolSimulation(topology, options, place, seed, faults or ProtocolFaults(), oracle.check)
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

    def check(self, moment: Moment, simulation: ProtocolSimulation) -> None:
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
        simulation: ProtocolSimulation,
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
        # Of one that was replayed its source may be told again that it had died; that it is acked now, the totals say.
        self._require(
            {*world.dead} - world.replayed == dead, f"dead: {sorted(world.dead)}, and what always fails: {sorted(dead)}"
        )
        self._require(
            (totals.acked, totals.dead) == (len(every) - len(dead), len(dead)),
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
            last = "end" if spec.components.keys() & {"end", "gather"} else "one"
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

    def _state(self, simulation: ProtocolSimulation) -> dict[tuple[str, str], list[tuple[str, int]]]:
        return {
            (one.name, entry.key): [tuple(pair) for pair in entry.value["numbers"]]
            for one in stored_state(simulation.state_dir)[1]
            for entry in one.entries()
        }

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise BrokenRuleError(what)
