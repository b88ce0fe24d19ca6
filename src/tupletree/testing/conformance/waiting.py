"""Scenarios: components that wait, side by side, and are as correct as those that do not."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

from tupletree.errors import PermanentError
from tupletree.testing.conformance.messages import Count, KeyedItem, Sum, numbered
from tupletree.testing.conformance.observed import Observed
from tupletree.testing.conformance.runtime import Need
from tupletree.testing.conformance.scenario import Bench, Scenario
from tupletree.topology.components import Bolt, Collector, KeyedState, TaskContext
from tupletree.topology.decorators import bolt

ITEMS = [KeyedItem(number % 3, number) for number in range(24)]


@bolt(concurrency=8, state=list)
async def count_slowly(item: KeyedItem, seen: KeyedState[list[int]]) -> Count:
    """Touch the state, wait, and fail some of the items for good."""
    seen.value.append(item.number)
    for _ in range(item.number % 4):
        await asyncio.sleep(0)
    if item.number % 8 == 7:
        raise PermanentError("after it touched the state")
    return Count(item.key, len(seen.value))


class AsyncState(Scenario):
    """A key has one call at a time, however many go on, and a call that fails leaves no trace in its state."""

    name = "async-state"
    needs = frozenset({Need.ASYNC_BOLTS})

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", KeyedItem, numbered(ITEMS))
        bench.sink("out").shuffle(bench.bolt("count", count_slowly, parallelism=2).fields(source, "key"))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        dead = [7, 15, 23]
        seen.expect_verdicts("source", acked=[one for one in range(24) if one not in dead], dead=dead)
        counts: dict[int, list[int]] = defaultdict(list)
        for row in seen.rows("out"):
            counts[row["key"]].append(row["count"])
        lives = Counter(item.key for item in ITEMS if item.number not in dead)
        expected = {key: list(range(1, lives[key] + 1)) for key in lives}
        seen.expect_equal({key: sorted(counts[key]) for key in sorted(counts)}, expected, "counts of each key")


class SlowThirds(Bolt[KeyedItem]):
    """Keeps items, and settles every three of them together, after it has waited."""

    auto_ack = False
    concurrency = 5

    async def open(self, context: TaskContext) -> None:  # noqa: ARG002 - as its base has it
        """Wait here too."""
        await asyncio.sleep(0)
        self.kept: list[KeyedItem] = []

    async def process(self, value: KeyedItem, collector: Collector[Sum]) -> None:
        """Keep it, or settle three."""
        await asyncio.sleep(0)
        self.kept.append(value)
        if len(self.kept) < 3:
            return
        kept, self.kept = self.kept, []
        collector.emit(Sum([one.number for one in kept]), anchors=kept)
        await asyncio.sleep(0)
        for one in kept:
            collector.ack(one)


class AsyncByHand(Scenario):
    """A call settles tuples that other calls have kept, while others go on."""

    name = "async-by-hand"
    needs = frozenset({Need.ASYNC_BOLTS, Need.LASTING_BOLTS})

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", KeyedItem, numbered(ITEMS))
        bench.sink("out").shuffle(bench.bolt("thirds", SlowThirds).shuffle(source))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=range(24))
        summed = Counter(number for row in seen.rows("out") for number in row["numbers"])
        seen.expect_equal(summed, Counter(range(24)), "items in sums")


@bolt
def fail_sixths_once(item: KeyedItem, context: TaskContext) -> KeyedItem:
    """Fail every sixth item at its first attempt, and item 23 always."""
    if item.number == 23:
        raise PermanentError("never")
    if item.number % 6 == 0 and context.attempt == 1:
        raise ValueError("not yet")
    return item


class WaitingSource(Scenario):
    """A spout that waits gives everything, is told of everything, and gives again what failed before it ends."""

    name = "waiting-source"
    needs = frozenset({Need.ASYNC_SPOUTS})

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", KeyedItem, numbered(ITEMS), parallelism=2, replay="source", waits=True)
        bench.sink("out").shuffle(bench.bolt("fail", fail_sixths_once, parallelism=2).shuffle(source))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        heard = seen.heard("source")
        seen.expect_equal(heard.acked, Counter(range(23)), "acks that source heard")
        failed = Counter({0: 1, 6: 1, 12: 1, 18: 1, 23: 1})
        seen.expect_equal(seen.failed("source"), failed, "fails that source heard")
        given = Counter(range(24)) + Counter((0, 6, 12, 18))
        seen.expect_equal(heard.given, given, "messages that source gave")
        seen.expect_equal(seen.tally("out", "number"), Counter(range(23)), "rows")
        life = [event for event in heard.events if event != "next"]
        seen.expect_equal(
            Counter(life), Counter(("open", "activate", "deactivate", "close") * 2), "what it went through"
        )
        seen.expect(life[0] == "open" and life[-1] == "close", "open first, close last", life)


WAITING: tuple[Scenario, ...] = (AsyncState(), AsyncByHand(), WaitingSource())
