"""Scenarios: what is never acked times out, not before T, and not later than the runtime's bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from tupletree.testing.conformance.messages import Item, numbered_items
from tupletree.testing.conformance.observed import Observed
from tupletree.testing.conformance.runtime import Need, RuntimeUnderTest
from tupletree.testing.conformance.scenario import Bench, Scenario
from tupletree.topology.components import Bolt, Collector, TaskContext
from tupletree.topology.decorators import bolt
from tupletree.tracking.outcomes import FailureKind

CLOCK_SLACK_S = 0.01
"""Ages are differences of wall-clock readings, timeouts go by monotonic time."""


class Held(msgspec.Struct, frozen=True):
    """What a bolt held, and for how long."""

    number: int
    seconds: float
    ticks: int


@bolt(auto_ack=False)
def ack_even(item: Item, out: Collector[Item]) -> None:
    """Never ack every other tuple."""
    if item.number % 2 == 0:
        out.emit(item)
        out.ack(item)


class AlternateUnacked(Scenario):
    """Of tuples that are acked in turns, the others time out: not before T, and at the latest at the bound."""

    name = "alternate-unacked"

    def options(self, runtime: RuntimeUnderTest) -> Mapping[str, Any]:
        """One attempt, so that a letter tells how long it took."""
        return {"message_timeout_s": runtime.timeout_s, "max_attempts": 1}

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Item, numbered_items(10))
        bench.sink("out").shuffle(bench.bolt("ack", ack_even, parallelism=2).shuffle(source))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=[0, 2, 4, 6, 8], dead=[1, 3, 5, 7, 9])
        seen.expect_equal(seen.tally("out", "number"), Counter([0, 2, 4, 6, 8]), "rows")
        earliest_s, latest_s = seen.runtime.timeout_s, seen.runtime.latest_expiry_s(seen.options)
        for letter in seen.letters("source").values():
            seen.expect_equal(letter.failure.kind, FailureKind.TIMEOUT, "the failure")
            age_s = letter.died_s - letter.first_emitted_s
            in_time = earliest_s - CLOCK_SLACK_S <= age_s <= latest_s + CLOCK_SLACK_S
            seen.expect(in_time, f"a timeout between {earliest_s} and {latest_s} s", age_s)


class TimesOutThenWorks(Scenario):
    """A timeout is a failed attempt like any other: the message comes again, with the next attempt's number."""

    name = "times-out-then-works"

    def options(self, runtime: RuntimeUnderTest) -> Mapping[str, Any]:
        """Two attempts at most."""
        return {"message_timeout_s": runtime.timeout_s, "max_attempts": 2}

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Item, numbered_items(4))
        bench.sink("out").shuffle(bench.bolt("forget", forget_once).shuffle(source))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=range(4))
        expected = Counter([(0, 1), (1, 2), (2, 1), (3, 2)])
        seen.expect_equal(seen.tally("out", "number", "ticks"), expected, "rows")


@bolt(auto_ack=False)
def forget_once(item: Item, context: TaskContext, out: Collector[Held]) -> None:
    """Never ack odd items on their first attempt."""
    if item.number % 2 == 0 or context.attempt > 1:
        out.emit(Held(item.number, 0.0, context.attempt))
        out.ack(item)


class Holding(Bolt[Item]):
    """Holds every tuple for some ticks, renewing the timeouts of even ones at each."""

    auto_ack = False
    output_types = (Held,)
    renews = True
    ticks_to_hold = 0

    def open(self, context: TaskContext) -> None:
        """Keep the clock."""
        self.context = context
        self.held: dict[Item, tuple[float, int]] = {}

    def process(self, value: Item, collector: Collector[Held]) -> None:  # noqa: ARG002 - not yet
        """Hold it."""
        self.held[value] = (self.context.epoch_time_s, 0)

    def tick(self, collector: Collector[Held]) -> None:
        """Renew what is held, and ack what was held for long enough."""
        for item, (since_s, ticks) in list(self.held.items()):
            self.held[item] = (since_s, ticks + 1)
            if self.renews and item.number % 2 == 0:
                collector.reset_timeout(item)
            if ticks + 1 == self.ticks_to_hold:
                del self.held[item]
                collector.ack(item)
                seconds = self.context.epoch_time_s - since_s
                collector.emit(Held(item.number, seconds, ticks + 1), anchors=())


class HoldingFor2HalfTimeouts(Holding):
    """Five ticks of T/2."""

    ticks_to_hold = 5


class Renewed(Scenario):
    """A timeout that a bolt renews keeps a message open for longer than 2T; one that it does not renew ends in time."""

    name = "renewed"
    needs = frozenset({Need.TICKS, Need.LASTING_BOLTS})

    def options(self, runtime: RuntimeUnderTest) -> Mapping[str, Any]:
        """Ticks twice within T, and one attempt."""
        return {
            "message_timeout_s": runtime.timeout_s,
            "tick_interval_s": runtime.timeout_s / 2,
            "max_attempts": 1,
        }

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Item, numbered_items(4))
        bench.sink("out").shuffle(bench.bolt("hold", HoldingFor2HalfTimeouts).shuffle(source))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=[0, 2], dead=[1, 3])
        held_s = {row["number"]: row["seconds"] for row in seen.rows("out") if row["number"] % 2 == 0}
        seen.expect_equal(set(held_s), {0, 2}, "renewed items that were acked")
        longer = all(seconds > 2 * seen.runtime.timeout_s - CLOCK_SLACK_S for seconds in held_s.values())
        seen.expect(longer, "held for more than 2T", held_s)


class HoldingForLong(Holding):
    """Ten ticks, and no renewal."""

    renews = False
    ticks_to_hold = 10


class Disabled(Scenario):
    """Without a message timeout a tuple may be held for as long as it takes."""

    name = "disabled"
    needs = frozenset({Need.TICKS, Need.LASTING_BOLTS})

    def options(self, runtime: RuntimeUnderTest) -> Mapping[str, Any]:
        """No timeout; ten ticks last longer than it takes a timeout of the other scenarios to come."""
        return {"message_timeout_s": None, "tick_interval_s": runtime.timeout_s / 4, "max_attempts": 1}

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Item, numbered_items(4))
        bench.sink("out").shuffle(bench.bolt("hold", HoldingForLong).shuffle(source))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=range(4))
        seen.expect_equal(seen.tally("out", "number", "ticks"), Counter((one, 10) for one in range(4)), "rows")


TIMEOUTS: tuple[Scenario, ...] = (AlternateUnacked(), TimesOutThenWorks(), Renewed(), Disabled())
