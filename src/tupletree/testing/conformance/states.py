"""Scenarios of state: a map and a list per key, and a value per task."""

from __future__ import annotations

from collections import Counter

from tupletree.testing.conformance.messages import KeyedItem, numbered
from tupletree.testing.conformance.observed import Observed
from tupletree.testing.conformance.scenario import Bench, Scenario
from tupletree.topology.components import Bolt, Collector, TaskState
from tupletree.topology.decorators import bolt
from tupletree.topology.states import ListState, MapState


@bolt
def pass_on(item: KeyedItem) -> KeyedItem:
    """Give it on, by another task."""
    return item


@bolt
def count_in_map(item: KeyedItem, counts: MapState[int, int]) -> KeyedItem:
    """Count what a key came with."""
    counts[item.number] = counts.get(item.number, 0) + 1
    return KeyedItem(item.number, counts[item.number])


@bolt
def keep_three(item: KeyedItem, last: ListState[int]) -> KeyedItem:
    """Keep the last three numbers of a key; tell how many there are."""
    last.append(item.number)
    del last[:-3]
    return KeyedItem(item.key, len(last))


class Seen(Bolt[KeyedItem]):
    """Counts the tuples of its task, of all keys."""

    state_default = int
    seen: TaskState[int]

    def process(self, value: KeyedItem, collector: Collector[KeyedItem]) -> None:
        """Count one."""
        self.seen.value += 1
        collector.emit(KeyedItem(value.key, self.seen.value))


class Kinds(Scenario):
    """State is what it says: maps and lists per key, which are never each other's, and a value per task."""

    name = "kinds-of-state"

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        items = [KeyedItem(number % 4, number // 4 % 3) for number in range(48)]
        source = bench.spout("source", KeyedItem, numbered(items))
        passed = bench.bolt("pass", pass_on, parallelism=2).shuffle(source)
        for name, what in (("map", count_in_map), ("list", keep_three)):
            bench.sink(f"{name}-out").shuffle(bench.bolt(name, what, parallelism=2).fields(passed, "key"))
        bench.sink("task-out").shuffle(bench.bolt("task", Seen, parallelism=3).all(passed))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=range(48))
        counted = Counter({(number, count): 4 for number in range(3) for count in range(1, 5)})
        seen.expect_equal(seen.tally("map-out", "key", "number"), counted, "counts in maps")
        lengths = Counter({(key, length): 1 if length < 3 else 10 for key in range(4) for length in (1, 2, 3)})
        seen.expect_equal(seen.tally("list-out", "key", "number"), lengths, "lengths of lists")
        each = Counter({(count,): 3 for count in range(1, 49)})
        rows = Counter({(count,): times for count, times in seen.tally("task-out", "number").items()})
        seen.expect_equal(rows, each, "counts of tasks")


STATES: tuple[Scenario, ...] = (Kinds(),)
