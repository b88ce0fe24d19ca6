"""Scenarios: windows and joins hold tuples, and settle every message once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from tupletree.errors import PermanentError
from tupletree.testing.conformance.messages import numbered
from tupletree.testing.conformance.observed import Observed
from tupletree.testing.conformance.runtime import Need
from tupletree.testing.conformance.scenario import Bench, Scenario
from tupletree.topology.components import Held as Kept
from tupletree.topology.components import HoldingBolt, Release, TaskContext
from tupletree.topology.decorators import bolt
from tupletree.topology.window_decorators import join_bolt, window_bolt
from tupletree.topology.windows import Window

LAG_S = 1000.0
"""Longer than all messages together, for a runtime may bring them in any order: windows are over at the end."""


class Reading(msgspec.Struct, frozen=True):
    """A message, at its number in seconds."""

    number: int
    sensor: str
    at: float


class Reply(msgspec.Struct, frozen=True):
    """What some readings are answered with."""

    number: int
    at: float


class Held(msgspec.Struct, frozen=True):
    """What was held together."""

    key: str
    start: int
    numbers: list[int]


def readings(count: int) -> list[Reading]:
    """Of two sensors in turn."""
    return [Reading(number, "ab"[number % 2], float(number)) for number in range(count)]


def held(window: Window[Reading]) -> Held:
    """What is in a window."""
    return Held(window.key or "", int(window.start_s), sorted(reading.number for reading in window))


@bolt
def at_second_try(reading: Reading, context: TaskContext) -> Reading:
    """Every seventh reading fails at first."""
    if reading.number % 7 == 3 and context.attempt == 1:
        raise ConnectionError("try again")
    return reading


@window_bolt(length_s=20, slide_s=10, timestamp="at", late="fail", lag_s=LAG_S, per_key=True, extend_timeout=True)
def sliding(window: Window[Reading]) -> Held:
    """The readings of a sensor in 20 seconds, every 10 seconds."""
    return held(window)


def with_pauses(reading: Reading) -> float:
    """When a reading was, if nothing happens for half a minute after each nine."""
    return reading.at + 30.0 * (reading.number // 9)


@window_bolt(gap_s=10, timestamp=with_pauses, late="fail", lag_s=LAG_S, per_key=True, extend_timeout=True)
def between_pauses(window: Window[Reading]) -> Held:
    """The readings of a sensor until nothing comes for ten seconds."""
    return held(window)


@window_bolt(count=4, extend_timeout=True)
def by_four(window: Window[Reading]) -> Held:
    """Any four readings."""
    return held(window)


@window_bolt(length_s=0.3)
def by_arrival(readings: list[Reading]) -> Iterator[Reading]:
    """All readings, later."""
    yield from readings


@bolt
def refuse_five(one: Held) -> Held:
    """Fail what reading 5 is in."""
    if 5 in one.numbers:
        raise PermanentError("not with 5")
    return one


@join_bolt(within_s=30, timestamp="at", late="fail", lag_s=LAG_S, extend_timeout=True)
def answered(reading: Reading, reply: Reply) -> Held:
    """Each reading with each reply to it."""
    return Held("both", int(reply.at), [reading.number])


@join_bolt(within_s=30, timestamp="at", late="fail", lag_s=LAG_S, extend_timeout=True)
def perhaps_answered(reading: Reading, reply: Reply | None) -> Held:
    """Each reading, with a reply or without."""
    return Held("both" if reply else "alone", int(reply.at) if reply else 0, [reading.number])


def rows_of(seen: Observed, sink: str) -> list[tuple[str, int, tuple[int, ...]]]:
    """What a sink got, in order."""
    return sorted((row["key"], row["start"], tuple(row["numbers"])) for row in seen.rows(sink))


class SlidingWindows(Scenario):
    """Each window of each key is seen once, with every tuple of it, those of messages that failed at first too."""

    name = "sliding-windows"
    needs = frozenset({Need.WINDOWS})
    count = 45

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Reading, numbered(readings(self.count)))
        tried = bench.bolt("try", at_second_try, parallelism=2).shuffle(source)
        bench.sink("out").shuffle(bench.bolt("sliding", sliding, parallelism=2).fields(tried, "sensor"))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        expected = [
            (sensor, start, numbers)
            for sensor in "ab"
            for start in range(-10, self.count, 10)
            if (numbers := self._numbers(sensor, start))
        ]
        seen.expect_equal(rows_of(seen, "out"), sorted(expected), "windows")
        seen.expect_verdicts("source", acked=range(self.count))

    def _numbers(self, sensor: str, start: int) -> tuple[int, ...]:
        return tuple(
            one.number for one in readings(self.count) if one.sensor == sensor and start <= one.at < start + 20
        )


class SessionWindows(Scenario):
    """Each session of each key is seen once, with every tuple of it, those of messages that failed at first too."""

    name = "session-windows"
    needs = frozenset({Need.WINDOWS})
    count = 45

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Reading, numbered(readings(self.count)))
        tried = bench.bolt("try", at_second_try, parallelism=2).shuffle(source)
        bench.sink("out").shuffle(bench.bolt("sessions", between_pauses, parallelism=2).fields(tried, "sensor"))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        expected = []
        for first in range(0, self.count, 9):
            for sensor in "ab":
                session = [one for one in readings(self.count)[first : first + 9] if one.sensor == sensor]
                expected.append((sensor, int(with_pauses(session[0])), tuple(one.number for one in session)))
        seen.expect_equal(rows_of(seen, "out"), sorted(expected), "sessions")
        seen.expect_verdicts("source", acked=range(self.count))


class CountWindows(Scenario):
    """Ten messages come in windows of four, four and two; if a window fails behind the bolt, so do all its messages."""

    name = "count-windows"
    needs = frozenset({Need.WINDOWS})

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Reading, numbered(readings(10)))
        fours = bench.bolt("four", by_four).global_(source)
        bench.sink("out").shuffle(bench.bolt("refuse", refuse_five).shuffle(fours))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        rows = [row["numbers"] for row in seen.rows("out")]
        living = sorted(number for numbers in rows for number in numbers)
        seen.expect(len(set(living)) == len(living) and 5 not in living, "each message once, without 5", rows)
        seen.expect(all(len(numbers) <= 4 for numbers in rows), "at most four in a window", rows)
        seen.expect(6 <= len(living) <= 8, "six or eight messages that came out", rows)
        seen.expect_verdicts("source", acked=living, dead=[one for one in range(10) if one not in living])


class ArrivalWindows(Scenario):
    """What windows by arrival hold goes out by the clock."""

    name = "arrival-windows"
    needs = frozenset({Need.WINDOWS})

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Reading, numbered(readings(20)))
        later = bench.bolt("later", by_arrival, parallelism=2).shuffle(source)
        bench.sink("out").shuffle(later)

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=range(20))
        seen.expect_equal(seen.tally("out", "number"), Counter(range(20)), "readings")


class Join(Scenario):
    """Pairs come out once, what matched nothing comes out alone, and both sides are acked."""

    name = "join"
    needs = frozenset({Need.WINDOWS})
    replies = (3, 4, 4, 12)

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Reading, numbered(readings(15)))
        replies: Sequence[Reply] = [Reply(number, number + 20.0) for number in self.replies] + [Reply(5, 99.0)]
        answers = bench.spout("answers", Reply, numbered(replies))
        tried = bench.bolt("try", at_second_try).shuffle(source)
        inner = bench.bolt("inner", answered, parallelism=2).fields(tried, "number").fields(answers, "number")
        outer = bench.bolt("outer", perhaps_answered, parallelism=3).fields(tried, "number").fields(answers, "number")
        bench.sink("inner-out").shuffle(inner)
        bench.sink("outer-out").shuffle(outer)

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        both = sorted(("both", number + 20, (number,)) for number in self.replies)
        alone = sorted(("alone", 0, (number,)) for number in range(15) if number not in self.replies)
        seen.expect_equal(rows_of(seen, "inner-out"), both, "pairs")
        seen.expect_equal(rows_of(seen, "outer-out"), sorted(both + alone), "pairs, and readings without reply")
        seen.expect_verdicts("source", acked=range(15))
        seen.expect_verdicts("answers", acked=range(5))


class InThrees(HoldingBolt[Reading]):
    """Releases three readings together, and after a while, or at a flush, what there is; reading 5 fails."""

    output_types = (Held,)

    def open(self, context: TaskContext) -> None:  # noqa: ARG002 - the contract's
        """See `HoldingBolt`."""
        self._kept: list[Kept[Reading]] = []

    def take(self, tuples: Sequence[Kept[Reading]]) -> Iterator[Release]:
        """See `HoldingBolt`."""
        for one in tuples:
            if one.value.number == 5:
                yield Release([one], error=PermanentError("not 5"))
            else:
                self._kept.append(one)
        while len(self._kept) >= 3:
            three, self._kept = self._kept[:3], self._kept[3:]
            yield self._released(three)

    def due_s(self) -> float | None:
        """See `HoldingBolt`."""
        return min(one.since_s for one in self._kept) + 0.3 if self._kept else None

    def check(self, time_s: float) -> Iterator[Release]:
        """See `HoldingBolt`."""
        due_s = self.due_s()
        return self.flush(time_s) if due_s is not None and due_s <= time_s else iter(())

    def flush(self, time_s: float) -> Iterator[Release]:  # noqa: ARG002 - the contract's
        """See `HoldingBolt`."""
        kept, self._kept = self._kept, []
        if kept:
            yield self._released(kept)

    def forget(self, tuples: Sequence[Kept[Reading]]) -> None:
        """See `HoldingBolt`."""
        self._kept = [one for one in self._kept if one not in tuples]

    @staticmethod
    def _released(kept: Sequence[Kept[Reading]]) -> Release:
        return Release(kept, [Held("", 0, sorted(one.value.number for one in kept))])


class HeldByHand(Scenario):
    """What a bolt holds by hand comes out together, once, those of messages that failed at first too."""

    name = "held-by-hand"
    needs = frozenset({Need.WINDOWS})
    count = 40

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Reading, numbered(readings(self.count)))
        tried = bench.bolt("try", at_second_try, parallelism=2).shuffle(source)
        bench.sink("out").shuffle(bench.bolt("threes", InThrees, parallelism=2).shuffle(tried))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        rows = [row["numbers"] for row in seen.rows("out")]
        seen.expect(all(len(numbers) <= 3 for numbers in rows), "at most three together", rows)
        living = [number for number in range(self.count) if number != 5]
        seen.expect_equal(sorted(number for numbers in rows for number in numbers), living, "readings")
        seen.expect_verdicts("source", acked=living, dead=[5])


HOLDING: tuple[Scenario, ...] = (
    SlidingWindows(),
    SessionWindows(),
    CountWindows(),
    ArrivalWindows(),
    Join(),
    HeldByHand(),
)
