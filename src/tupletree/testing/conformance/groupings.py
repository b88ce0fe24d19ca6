"""Scenarios: who gets which tuple, and that every copy of it is accounted for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import msgspec

from tupletree.testing.conformance.messages import numbered
from tupletree.testing.conformance.observed import Observed
from tupletree.testing.conformance.scenario import Bench, Scenario
from tupletree.topology.builder import BoltHandle, Source
from tupletree.topology.components import Collector, Resource, TaskContext
from tupletree.topology.decorators import bolt
from tupletree.topology.states import ListState

COUNT = 60
WIDTH = 3
KEYS = 5


class Item(msgspec.Struct, frozen=True):
    """A message."""

    number: int
    key: int
    via: str


class Seen(msgspec.Struct, frozen=True):
    """Which task saw which copy."""

    task_index: int
    number: int
    key: int
    via: str


class Targets(msgspec.Struct, frozen=True):
    """Ids of the tasks to choose from."""

    ids: list[int]


@bolt
def relay(item: Item) -> Item:
    """Pass on, so that a bolt is the producer."""
    return Item(item.number, item.key, "bolt")


@bolt
def see(item: Item, context: TaskContext) -> Seen:
    """Say where it arrived."""
    return Seen(context.task_index, item.number, item.key, item.via)


@bolt
def choose_task(item: Item, targets: Resource[Targets], out: Collector[Item]) -> None:
    """Emit to one task by its id."""
    out.emit_direct(targets.ids[item.number % len(targets.ids)], Item(item.number, item.key, "bolt"))


def choose(item: Item, tasks: int) -> int | list[int]:
    """Drop a third, send a third to one task and a third to every task."""
    return [[], item.number % tasks, list(range(tasks))][item.number % 3]  # type: ignore[return-value]  # one of them


Subscribe = Callable[[BoltHandle, Source], object]
Judge = Callable[[Observed, Counter[Any]], None]


class EachGrouping(Scenario):
    """Two spout tasks and two bolt tasks send to three; each task that is to get a copy gets it, once."""

    def __init__(self, grouping: str, subscribe: Subscribe, judge: Judge) -> None:
        self.name = f"grouping-{grouping}"
        self._subscribe = subscribe
        self._judge = judge

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        items = [Item(number, number % KEYS, "spout") for number in range(COUNT)]
        source = bench.spout("source", Item, numbered(items), parallelism=2)
        relayed = bench.bolt("relay", relay, parallelism=2).shuffle(source)
        seer = bench.bolt("see", see, parallelism=WIDTH)
        self._subscribe(seer, source)
        self._subscribe(seer, relayed)
        bench.sink("seen").shuffle(seer)

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=range(COUNT))
        self._judge(seen, seen.tally("seen", "task_index", "number", "via"))


class DirectGrouping(Scenario):
    """The producer names the task; that task gets the tuple, and no other."""

    name = "grouping-direct"

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Item, numbered([Item(number, 0, "spout") for number in range(COUNT)]))
        targets = Targets(bench.task_ids("see"))
        chooser = bench.bolt("choose", choose_task, parallelism=2, resources={"targets": targets}).shuffle(source)
        bench.sink("seen").shuffle(bench.bolt("see", see, parallelism=WIDTH).direct(chooser))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=range(COUNT))
        expected = Counter((number % WIDTH, number) for number in range(COUNT))
        seen.expect_equal(seen.tally("seen", "task_index", "number"), expected, "deliveries")


class Placed(msgspec.Struct, frozen=True):
    """The place of a message among those of its key, as a bolt with state has met them."""

    key: int
    number: int
    place: int


@bolt
def stumble_before(item: Item, context: TaskContext) -> Item:
    """Fail the first attempts of some messages, before they have a key anywhere."""
    if item.number % 13 == 6 and context.attempt < 3:
        raise ValueError("before the ordered input")
    return Item(item.number, item.key, "bolt")


@bolt
def place(item: Item, met: ListState[int], context: TaskContext) -> Placed:
    """Fail the first attempt of some messages; note the others in the order in which they come."""
    if item.number % 11 == 4 and context.attempt == 1:
        raise ValueError("at the ordered input")
    met.append(item.number)
    return Placed(item.key, item.number, len(met))


class OrderedGrouping(Scenario):
    """What comes later for a key waits for what is tried again before it, at the ordered input and before it."""

    name = "grouping-fields-ordered"

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        items = [Item(number, number % KEYS, "spout") for number in range(COUNT)]
        source = bench.spout("source", Item, numbered(items))
        before = bench.bolt("before", stumble_before, parallelism=2).shuffle(source)
        placed = bench.bolt("place", place, parallelism=WIDTH).fields(before, "key", ordered=True)
        bench.sink("placed").shuffle(placed)

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=range(COUNT))
        expected = Counter((number % KEYS, number, number // KEYS + 1) for number in range(COUNT))
        seen.expect_equal(seen.tally("placed", "key", "number", "place"), expected, "places of messages")


_ONCE = Counter((number, via) for number in range(COUNT) for via in ("spout", "bolt"))


def _each_once(seen: Observed, deliveries: Counter[Any]) -> None:
    seen.expect_equal(Counter((number, via) for _, number, via in deliveries.elements()), _ONCE, "deliveries")


def _spread(seen: Observed, deliveries: Counter[Any]) -> None:
    _each_once(seen, deliveries)
    seen.expect_equal({task for task, *_ in deliveries}, set(range(WIDTH)), "tasks with something to do")


def _at_most(tasks: int) -> Judge:
    def judge(seen: Observed, deliveries: Counter[Any]) -> None:
        _each_once(seen, deliveries)
        homes: dict[int, set[int]] = defaultdict(set)
        for task, number, _ in deliveries:
            homes[number % KEYS].add(task)
        seen.expect(all(len(home) <= tasks for home in homes.values()), f"at most {tasks} tasks for a key", homes)

    return judge


def _first_task(seen: Observed, deliveries: Counter[Any]) -> None:
    _each_once(seen, deliveries)
    seen.expect_equal({task for task, *_ in deliveries}, {0}, "tasks with something to do")


def _every_task(seen: Observed, deliveries: Counter[Any]) -> None:
    expected = Counter((task, number, via) for number, via in _ONCE for task in range(WIDTH))
    seen.expect_equal(deliveries, expected, "deliveries")


def _as_chosen(seen: Observed, deliveries: Counter[Any]) -> None:
    expected = Counter(
        (task, number, via) for number, via in _ONCE for task in [[], [number % WIDTH], range(WIDTH)][number % 3]
    )
    seen.expect_equal(deliveries, expected, "deliveries")


GROUPINGS: tuple[Scenario, ...] = (
    EachGrouping("shuffle", BoltHandle.shuffle, _spread),
    EachGrouping("none", BoltHandle.none, _each_once),
    EachGrouping("local-or-shuffle", BoltHandle.local_or_shuffle, _each_once),
    EachGrouping("fields", lambda seer, source: seer.fields(source, "key"), _at_most(1)),
    EachGrouping("partial-key", lambda seer, source: seer.partial_key(source, "key"), _at_most(2)),
    EachGrouping("all", BoltHandle.all, _every_task),
    EachGrouping("global", BoltHandle.global_, _first_task),
    EachGrouping("custom", lambda seer, source: seer.custom(source, choose), _as_chosen),
    DirectGrouping(),
    OrderedGrouping(),
)
