"""Scenarios: how a run begins and ends, ticks, and state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from tupletree.testing.conformance.feeding import STILL_INACTIVE
from tupletree.testing.conformance.messages import Count, Item, numbered_items
from tupletree.testing.conformance.observed import Observed
from tupletree.testing.conformance.runtime import Need, RuntimeUnderTest
from tupletree.testing.conformance.scenario import Bench, Scenario
from tupletree.topology.components import Bolt, Collector, KeyedState, TaskContext
from tupletree.topology.decorators import bolt


class Note(msgspec.Struct, frozen=True):
    """Something that a bolt noticed."""

    what: str
    number: int


class LifeCycle(Scenario):
    """A spout is opened, activated, asked, deactivated and closed, in this order, each task once."""

    name = "life-cycle"

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Item, numbered_items(10), parallelism=2)
        bench.sink("out").shuffle(source)

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=range(10))
        events = seen.heard("source").events
        once = {event: count for event, count in Counter(events).items() if event != "next"}
        seen.expect_equal(once, dict.fromkeys(("open", "activate", "deactivate", "close"), 2), "events of two tasks")
        order = [events.index(event) for event in ("open", "activate", "next")]
        order += [len(events) - 1 - events[::-1].index(event) for event in ("next", "deactivate", "close")]
        seen.expect_equal(order, sorted(order), "events in order")


class InactiveStart(Scenario):
    """Spouts that start inactive are opened and not asked for anything until they are activated."""

    name = "inactive-start"
    needs = frozenset({Need.INACTIVE_START})
    starts_inactive = True

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Item, numbered_items(10))
        bench.sink("out").shuffle(source)

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=range(10))
        events = [event for event in seen.heard("source").events if event != "deactivate"]
        seen.expect_equal(events[:4], ["open", STILL_INACTIVE, "activate", "next"], "the first events")


class Ticking(Bolt[Item]):
    """Holds messages until it was told three times that time passed; ticks are anchored to nothing."""

    auto_ack = False
    output_types = (Note,)

    def open(self, context: TaskContext) -> None:  # noqa: ARG002 - it needs no context
        """Start to count."""
        self.held: list[Item] = []
        self.ticks = 0

    def process(self, value: Item, collector: Collector[Note]) -> None:  # noqa: ARG002 - not yet
        """Hold it."""
        self.held.append(value)

    def tick(self, collector: Collector[Note]) -> None:
        """Count, and ack from the third tick with messages held on."""
        collector.emit(Note("tick", self.ticks))
        self.ticks += bool(self.held)
        if self.ticks >= 3:
            for item in self.held:
                collector.emit(Note("item", item.number), anchors=[item])
                collector.ack(item)
            self.held.clear()


class Ticks(Scenario):
    """A bolt that asks for ticks gets them, also when nothing else comes; what it emits then has no message."""

    name = "ticks"
    needs = frozenset({Need.TICKS, Need.LASTING_BOLTS})

    def options(self, runtime: RuntimeUnderTest) -> Mapping[str, Any]:
        """Ticks for bolts that name no interval."""
        return {"tick_interval_s": runtime.timeout_s / 10}

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Item, numbered_items(10))
        bench.sink("out").shuffle(bench.bolt("tick", Ticking).shuffle(source))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=range(10))
        rows = seen.tally("out", "what", "number")
        items = Counter({number: count for (what, number), count in rows.items() if what == "item"})
        seen.expect_equal(items, Counter(range(10)), "rows of messages")
        seen.expect(any(what == "tick" for what, _ in rows), "rows of ticks", rows)


class Told(Bolt[Item]):
    """Says that time passed; never acks message 0, so that there is time to pass."""

    auto_ack = False
    output_types = (Note,)

    def process(self, value: Item, collector: Collector[Note]) -> None:
        """Pass it on, unless it is the one that is never acked."""
        if value.number:
            collector.emit(Note("item", value.number))
            collector.ack(value)

    def tick(self, collector: Collector[Note]) -> None:
        """Say so."""
        collector.emit(Note("tick", 0))


class TicksAlone(Scenario):
    """Ticks come while no message does, and what a bolt emits then has no message."""

    name = "ticks-alone"
    needs = frozenset({Need.TICKS})

    def options(self, runtime: RuntimeUnderTest) -> Mapping[str, Any]:
        """Several ticks within a timeout, and one attempt."""
        timeout_s = runtime.timeout_s
        return {"tick_interval_s": timeout_s / 5, "message_timeout_s": timeout_s, "max_attempts": 1}

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Item, numbered_items(4))
        bench.sink("out").shuffle(bench.bolt("told", Told).shuffle(source))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=range(1, 4), dead=[0])
        rows = seen.tally("out", "what", "number")
        seen.expect(rows.pop(("tick", 0), 0) > 0, "rows of ticks", rows)
        seen.expect_equal(rows, Counter(("item", number) for number in range(1, 4)), "rows of messages")


@bolt
def key_of(item: Item) -> Count:
    """Give it a key."""
    return Count(item.number % 4, 0)


@bolt(state=int)
def count_key(item: Count, total: KeyedState[int]) -> Count:
    """Count the key."""
    total.value += 1
    return Count(item.key, total.value)


class KeyedCounts(Scenario):
    """Every key has one value, wherever its tuples come from: running counts without a gap and without a double."""

    name = "keyed-counts"

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Item, numbered_items(40), parallelism=2)
        keyed = bench.bolt("key", key_of, parallelism=3).shuffle(source)
        bench.sink("out").shuffle(bench.bolt("count", count_key, parallelism=2).fields(keyed, "key"))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=range(40))
        expected = Counter((key, count) for key in range(4) for count in range(1, 11))
        seen.expect_equal(seen.tally("out", "key", "count"), expected, "rows")


LIFE: tuple[Scenario, ...] = (LifeCycle(), InactiveStart(), Ticks(), TicksAlone(), KeyedCounts())
