"""A topology that changes at random at its starts, in the simulation of the Spark protocol, and an oracle.

At each start some of these happen, by the seed: components get other names, other numbers of tasks, wider classes of
another module; a branch and a source are added and dropped, and so is a bolt that holds tuples. Messages fail, for good
or now and then, and the process crashes anywhere. The oracle knows what was given, told and read, and when a change was
accepted.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tests.simulator.protocol import OPTIONS, BrokenRuleError
from tests.spark.upgrading import module, state_of
from tupletree import Sink, Spout, Topology
from tupletree.config import resolve_options
from tupletree.errors import EndOfInput
from tupletree.ids import MessageId
from tupletree.runtimes.deadletters import letters_of
from tupletree.runtimes.spark.format.spool import lasting_fingerprint
from tupletree.runtimes.spark.format.statedir import stored_fingerprint
from tupletree.sinks import jsonl, read_rows
from tupletree.testing.spark_protocol import Moment, ProtocolFaults, ProtocolSimulation
from tupletree.topology.changes.upgrades import Words
from tupletree.topology.components import Emit, SinkBatch
from tupletree.tracking.outcomes import Failure

KEYS = 4
OTHER = 1_000
"""What the numbers of the second source begin with."""

SOURCE = """
import msgspec
from datetime import datetime
from tests.simulator import upgrading
from tupletree import KeyedState, batch_bolt, bolt

class Note(msgspec.Struct, frozen=True):
    world: str
    number: int
    key: int

class Counted(msgspec.Struct, frozen=True):
    world: str
    number: int
    key: int
    total: int

class Total(msgspec.Struct):
    count: int = 0

@bolt(state=Total)
def count(note: Note, total: KeyedState[Total]) -> Counted:
    value = total.value
    value.count += 1
    total.value = value
    upgrading.WORLDS[note.world].meet("count", note.number)
    return Counted(note.world, note.number, note.number % KEYS, value.count)

@bolt
def copied(counted: Counted) -> Counted:
    upgrading.WORLDS[counted.world].meet("copied", counted.number)
    return counted

@bolt
def echoed(counted: Counted) -> Counted:
    upgrading.WORLDS[counted.world].meet("echoed", counted.number)
    return Counted(counted.world, -1 - counted.number, counted.key, counted.total)

@batch_bolt(size=5, max_age_s=0.2)
def gathered(counted: list[Counted]) -> list[Counted]:
    return counted
""".replace("KEYS", str(KEYS))

WIDER = (
    SOURCE.replace("    key: int\n", '    key: int\n    lang: str = "?"\n', 1)
    .replace("    total: int\n", "    total: int\n    at: datetime | None = None\n")
    .replace("    count: int = 0\n", "    count: int = 0\n    seen: list[int] = []\n")
)
WIDEST = WIDER.replace("seen: list[int] = []\n", "seen: list[int] = []\n    at: datetime | None = None\n").replace(
    'lang: str = "?"\n', 'lang: str = "?"\n    tags: tuple[str, ...] = ()\n'
)
VERSIONS = [SOURCE, WIDER, WIDEST]

WORLDS: dict[str, World] = {}


@dataclass
class World:
    """What lies outside of the run, and what the topology is at present.

    Attributes:
        given: the highest number that each source has given to a run that logged it; by name of the source.
        names: what each component is called.
        tasks: how many tasks bolts and sinks have.
        has: `branch`, `other`, `held` and `echo` (a second input of what holds), if they are there.
        version: of the classes.
        settled_at_drop: `held` or `echo` → source messages that were settled when it was dropped.
        was_dropped: what of `has` was dropped.
        from_number: part → the first number that was not given yet when it was added.
    """

    name: str
    chance: Random
    count: int
    modules: list[Any]
    poison: set[int]
    failing: float
    names: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, int] = field(default_factory=dict)
    has: set[str] = field(default_factory=set)
    version: int = 0
    heard: Counter[tuple[str, int]] = field(default_factory=Counter)
    taken: dict[str, list[int]] = field(default_factory=dict)
    given: dict[str, int] = field(default_factory=dict)
    was_dropped: set[str] = field(default_factory=set)
    settled_at_drop: dict[str, set[int]] = field(default_factory=dict)
    from_number: int | None = None
    renamed: int = 0
    renames: dict[str, str] = field(default_factory=dict)
    drops: set[str] = field(default_factory=set)
    changes: Counter[str] = field(default_factory=Counter)
    is_over: Callable[[], bool] = lambda: False

    def meet(self, where: str, number: int) -> None:
        """A call for a message: it may fail."""
        if number in self.poison and where == "count":
            raise ValueError(f"{number} always fails")
        if self.chance.random() < self.failing:
            raise ConnectionError(f"{where} of {number}")

    def called(self, part: str) -> str:
        return self.names.get(part, part)

    @property
    def classes(self) -> Any:
        return self.modules[self.version]

    # --- changes ------------------------------------------------------------------------------------------------

    def change(self) -> None:
        """Make some changes; `renames` and `drops` say them."""
        self.renames, self.drops = {}, set()
        before = set(self.has)
        for _ in range(self.chance.choice((0, 1, 1, 2, 3))):
            what = self.chance.choice(
                ("rename", "rename", "widen", "tasks", "tasks", "branch", "other", "held", "echo")
            )
            if what in ("branch", "other", "held"):
                self._add_or_drop(what, before)
            elif what == "echo":
                self._drop_echo()
            elif what == "widen" and self.version < len(self.modules) - 1:
                self.version += 1
                self.changes[what] += 1
            elif what == "tasks":
                self.tasks[self.chance.choice(("count", "copied", "rows"))] = self.chance.randint(1, 4)
                self.changes[what] += 1
            elif what == "rename":
                self._rename(self.chance.choice(("notes", "count", "gathered", "rows", "table")))

        if "echoed" in self.drops and "held" in self.has:
            self.drops.add(f"{self.called('gathered')}.echoed.Counted")

    def _drop_echo(self) -> None:
        """An input of a holder is gone: its messages go on without what is held of it."""
        if "echo" in self.has:
            self.has.remove("echo")
            self.was_dropped.add("echo")
            self.drops.add("echoed")
            self.settled_at_drop["echo"] = {number for _, number in self.heard}
            self.changes["drop echo"] += 1

    def _rename(self, part: str) -> None:
        if (part == "gathered" and "held" not in self.has) or self.called(part) in self.renames.values():
            return
        self.renamed += 1
        self.renames[self.called(part)] = self.names[part] = f"{part}{self.renamed}"
        self.changes["rename"] += 1

    def _add_or_drop(self, what: str, before: set[str]) -> None:
        if (what in self.has) is not (what in before):
            return  # it was added or dropped in this very change
        parts = {"branch": ("copied", "copies"), "other": ("other",), "held": ("gathered", "holder")}[what]
        if what in self.has and not set(map(self.called, parts)) & set(self.renames.values()):
            self.has.remove(what)
            self.was_dropped.add(what)
            self.drops.update(map(self.called, parts))
            if what == "held":
                self.settled_at_drop["held"] = {number for _, number in self.heard}
                self._drop_echo()
            self.changes[f"drop {what}"] += 1
        elif what not in self.has and what not in self.was_dropped:
            self.has.add(what)
            if what == "branch":
                self.from_number = self.given.get("notes", 0)
            self.changes[f"add {what}"] += 1


class Numbers(Spout[Any]):
    """Gives a world's numbers from a first one on, in order, from a position."""

    def __init__(self, world: str, first: int) -> None:
        self.world, self.first, self.at = world, first, 0
        self.message_type = WORLDS[world].classes.Note

    def next(self) -> list[Emit[Any]]:
        world = WORLDS[self.world]
        if self.at >= world.count:
            raise EndOfInput
        begin, self.at = self.at, min(self.at + world.chance.randint(1, 6), world.count)
        source = "other" if self.first else "notes"
        world.given[source] = max(world.given.get(source, 0), self.at)
        numbers = range(self.first + begin, self.first + self.at)
        return [Emit(world.classes.Note(self.world, number, number % KEYS), number) for number in numbers]

    def snapshot(self) -> Any:
        return self.at

    def restore(self, position: Any) -> None:
        self.at = position

    def ack(self, message_id: MessageId) -> None:
        self._tell("acked", message_id)

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        self._tell("dead", message_id)

    def _tell(self, what: str, message_id: MessageId) -> None:
        world = WORLDS[self.world]
        assert isinstance(message_id, int)
        if not world.is_over():
            world.heard[what, message_id] += 1


class Table(Sink[Any]):
    """Something outside: it has each batch once, by its id."""

    promise = "at_least_once"

    def write(self, batch: SinkBatch[Any]) -> None:
        world = WORLDS[batch.rows[0].world]
        if not world.is_over():
            world.taken[batch.id] = [row.number for row in batch.rows]


def topology(world: World, folder: Path) -> Topology:
    """The topology as it is at present."""
    classes, called = world.classes, world.called
    t = Topology("changing")
    notes = t.spout(called("notes"), Numbers(world.name, 0))
    counts = t.bolt(called("count"), classes.count, parallelism=world.tasks.get("count", 2)).fields(notes, "key")
    if "other" in world.has:
        counts.fields(t.spout("other", Numbers(world.name, OTHER)), "key")
    t.sink(called("rows"), jsonl(folder / "rows"), parallelism=world.tasks.get("rows", 2)).shuffle(counts)
    t.sink(called("table"), Table()).shuffle(counts)
    if "branch" in world.has:
        copied = t.bolt("copied", classes.copied, parallelism=world.tasks.get("copied", 1)).shuffle(counts)
        t.sink("copies", jsonl(folder / "copies")).shuffle(copied)
    if "held" in world.has:
        held = t.bolt(called("gathered"), classes.gathered, parallelism=2).fields(counts, "key")
        if "echo" in world.has:
            held.fields(t.bolt("echoed", classes.echoed).shuffle(counts), "key")
        t.sink("holder", jsonl(folder / "holder")).shuffle(held)
    return t


class Oracle:
    """Compares what a run says with what its world knows."""

    def __init__(self, world: World) -> None:
        self._world = world

    def check(self, moment: Moment, simulation: ProtocolSimulation) -> None:
        self._nothing_twice(simulation.folder)
        if moment is Moment.END:
            self._nothing_lost(simulation)

    def _nothing_twice(self, folder: Path) -> None:
        for sink in ("rows", "copies", "holder"):
            twice = [number for number, times in _numbers(folder / sink).items() if times > 1]
            _rule(not twice, f"{sink}: {twice} are there twice")
        table = Counter(number for batch in self._world.taken.values() for number in batch)
        _rule(all(times == 1 for times in table.values()), f"table: {table} has rows twice")

    def _nothing_lost(self, simulation: ProtocolSimulation) -> None:
        world, folder = self._world, simulation.folder
        good = set(range(world.count)) - world.poison
        acked = {number for what, number in world.heard if what == "acked"}
        dead = {number for what, number in world.heard if what == "dead"}
        _rule(not acked & dead, f"{acked & dead} are both acked and dead")
        _rule({*range(world.count)} <= acked | dead, f"{set(range(world.count)) - acked - dead} have no outcome")
        _rule(dead >= world.poison & {*range(world.count)}, "poison was acked")
        good -= dead
        if "other" in world.has:
            others = set(range(OTHER, OTHER + world.count))
            _rule(others <= acked | dead, f"{others - acked - dead} of the other source have no outcome")
            good |= others - dead
        rows = set(_numbers(folder / "rows"))
        _rule(good <= rows, f"rows: {good - rows} are missing")
        _rule(not rows & dead, f"rows: {rows & dead} are dead")
        table = {number for batch in world.taken.values() for number in batch}
        _rule(rows == table, f"table and rows differ in {rows ^ table}")
        self._parts(folder, good, dead)
        self._state(simulation, rows)

    def _parts(self, folder: Path, good: set[int], dead: set[int]) -> None:
        world = self._world
        mine = {number for number in good if number < OTHER}
        if "branch" in world.has and world.from_number is not None:
            copies = set(_numbers(folder / "copies"))
            wanted = {number for number in mine if number >= world.from_number}
            _rule(wanted <= copies, f"copies: {wanted - copies} are missing, given after the branch was added")
        rows = set(_numbers(folder / "holder"))
        found = {"held": {one for one in rows if one >= 0}, "echo": {-1 - one for one in rows if one < 0}}
        for part, held in found.items():
            if part in world.has:
                _rule(mine <= held, f"holder: {mine - held} are missing of {part}")
            _rule(not held & dead, f"holder: {held & dead} of {part} are dead")
            if part in world.was_dropped:
                settled = {number for number in world.settled_at_drop[part] if number < OTHER} & mine
                _rule(settled <= held, f"holder: {settled - held} are missing of {part}, settled before it was dropped")

    def _state(self, simulation: ProtocolSimulation, rows: set[int]) -> None:
        """Each message that is not dead is counted once, whatever the state was called and written as."""
        world = self._world
        found = {key: value["count"] for key, value in state_of(simulation.folder, world.called("count")).items()}
        wanted = Counter(number % KEYS for number in rows)
        # What a message of the dropped source did to state stays, also where its rows waited and are gone with it.
        lost = {key: found.get(key, 0) - wanted[key] for key in range(KEYS)}
        most = Counter(n % KEYS for n in range(OTHER, OTHER + world.given.get("other", 0)) if n not in rows)
        may_differ = "other" in world.was_dropped
        fits = all(0 <= lost[key] <= (most[key] if may_differ else 0) for key in range(KEYS))
        _rule(fits, f"the state is {found}, and the rows make {dict(wanted)}")
        letters = {letter.message_id for letter in letters_of(simulation.state_dir).values()}
        _rule({number for what, number in world.heard if what == "dead"} <= letters, "a dead letter is missing")


def _numbers(folder: Path) -> Counter[int]:
    return Counter(row["number"] for row in read_rows(folder)) if folder.exists() else Counter()


def _rule(holds: bool, text: str) -> None:
    if not holds:
        raise BrokenRuleError(text)


def simulate(seed: int, place: Path, faults: ProtocolFaults | None = None) -> World:
    """Simulate a seed; raises BrokenRuleError, with the seed, or what ended the run."""
    chance = Random(f"world {seed}")
    count = chance.choice((12, 25, 40))
    modules = [module(f"{seed}_{number}", source) for number, source in enumerate(VERSIONS)]
    poison = {number for number in range(count) if chance.random() < 0.05}
    world = WORLDS[str(seed)] = World(
        str(seed), chance, count, modules, poison, chance.choice((0.0, 0.03, 0.1)), has={"held", "other", "echo"}
    )
    limits = {"epoch_max_messages": chance.choice((3, 7, 20))}
    soon = {"service_backoff_initial_ms": 5.0, "service_backoff_max_ms": 20.0, "max_attempts": 6}
    options = resolve_options(code={**OPTIONS, **limits, **soon})

    def make(folder: Path) -> Topology:
        """Change it, unless the last change is not accepted yet: the process crashed before."""
        state = folder / "state"
        if (state / "tupletree.json").exists():
            stored, _ = stored_fingerprint(state, "changing")
            if stored == plain(topology(world, folder)):
                world.change()
        return topology(world, folder)

    def words() -> Words:
        return Words(world.renames, frozenset(world.drops))

    simulation = ProtocolSimulation(
        make, options, place, seed, faults or ProtocolFaults(crashes=8), Oracle(world).check, words
    )
    world.is_over = lambda: simulation.is_over
    try:
        simulation.run()
    except BaseException as error:
        error.add_note(f"seed {seed}: {dict(world.changes)}, {dict(simulation.counts)}")
        raise
    finally:
        del WORLDS[world.name]
        for one in modules:
            del sys.modules[one.__name__]
    return world


def plain(t: Topology) -> Any:
    """The fingerprint as it is stored."""
    return msgspec.json.decode(msgspec.json.encode(lasting_fingerprint(t.build())))
