"""A window by event time waits for what is under way to it, so that nothing is late that was not late at its source.

Locally on virtual time. On Spark an epoch is worked to its end before the watermark follows, so there it is about
tuples that are kept beyond their epoch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.ordinary.conftest import InProcess
from tupletree import Collector, Spout, TaskContext, Topology, Window, batch_bolt, bolt, testing, window_bolt
from tupletree.errors import ConnectorError, EndOfInput
from tupletree.sinks import jsonl, read_rows
from tupletree.sources import items
from tupletree.topology.components import Emit
from tupletree.tracking.outcomes import Outcome


class Event(msgspec.Struct, frozen=True):
    number: int
    at: float


class Held(msgspec.Struct, frozen=True):
    start: float
    numbers: list[int]


def slowness(number: int) -> float:
    """Seconds, different for neighbours, the same in every run: 0.1 to 0.4."""
    return 0.1 + (number * 7919 % 31) / 100


def windowed(t: Topology, passed: Any, *, lag_s: float, late: Any = "fail", **settings: Any) -> None:
    @window_bolt(length_s=300, timestamp="at", lag_s=lag_s, late=late, extend_timeout=True, **settings)
    def gather(window: Window[Event]) -> Held:
        return Held(window.start_s, sorted(one.number for one in window))

    t.sink("out", jsonl("never")).shuffle(t.bolt("gather", gather).global_(passed))


def in_windows(events: Sequence[Event]) -> list[Held]:
    starts = sorted({one.at // 300 * 300 for one in events})
    return [Held(start, [one.number for one in events if one.at // 300 * 300 == start]) for start in starts]


def by_start(rows: Sequence[Held]) -> list[Held]:
    return sorted(rows, key=lambda row: row.start)


IN_ORDER = [Event(number, 60.0 * number) for number in range(100)]


@pytest.mark.parametrize("lag_s", [60.0, 0.0])
def test_async_calls_in_front_of_a_window_make_nothing_late(lag_s: float) -> None:
    """O2."""

    @bolt(concurrency=50)
    async def enrich(event: Event) -> Event:
        await asyncio.sleep(slowness(event.number))
        return event

    t = Topology("enriched")
    windowed(t, t.bolt("enrich", enrich).shuffle(t.spout("events", items(IN_ORDER))), lag_s=lag_s)
    run = testing.run(t, {"events": IN_ORDER})
    assert [one.outcome for one in run.messages["events"]] == [Outcome.ACKED] * 100
    assert by_start(run.outputs["out"]) == in_windows(IN_ORDER)


def test_async_calls_that_fail_and_are_tried_again_make_no_window_come_twice() -> None:
    """O4: the watermark waits from when a message first went out, and not from when it failed."""

    @bolt(concurrency=50)
    async def flaky(event: Event, context: TaskContext) -> Event:
        await asyncio.sleep(slowness(event.number))
        if event.number % 10 == 3 and context.attempt <= event.number % 4:
            raise RuntimeError("try again")
        return event

    t = Topology("flaky")
    windowed(t, t.bolt("flaky", flaky).shuffle(t.spout("events", items(IN_ORDER))), lag_s=0.0)
    run = testing.run(t, {"events": IN_ORDER})
    assert [one.outcome for one in run.messages["events"]] == [Outcome.ACKED] * 100
    assert by_start(run.outputs["out"]) == in_windows(IN_ORDER)


def test_a_slow_branch_beside_a_quick_one_makes_nothing_late() -> None:
    """The messages are in the window already, by another way."""

    @bolt(concurrency=20)
    async def slow(event: Event) -> Event:
        await asyncio.sleep(slowness(event.number))
        return Event(event.number + 1000, event.at)

    @window_bolt(length_s=300, timestamp="at", extend_timeout=True)
    def gather(window: Window[Event]) -> Held:
        return Held(window.start_s, sorted(one.number for one in window))

    t = Topology("branches")
    events = t.spout("events", items(IN_ORDER))
    window = t.bolt("gather", gather).global_(events).global_(t.bolt("slow", slow).shuffle(events))
    t.sink("out", jsonl("never")).shuffle(window)
    run = testing.run(t, {"events": IN_ORDER})
    assert all(one.outcome is Outcome.ACKED for one in run.messages["events"])
    later = [Event(one.number + 1000, one.at) for one in IN_ORDER]
    assert by_start(run.outputs["out"]) == in_windows([*IN_ORDER, *later])


@pytest.mark.parametrize("kind", ["batch", "collector", "batch and async"])
def test_bolts_that_keep_tuples_make_nothing_late(kind: str) -> None:
    """One of two tasks has a tuple in hand for a second, while the other one hands on what came later."""

    @batch_bolt(size=40, max_age_s=1.0)
    def batched(events: list[Event]) -> list[Event]:
        return [*events]

    kept: list[Event] = []

    @bolt(auto_ack=False)
    def collected(event: Event, collector: Collector[Event]) -> None:
        kept.append(event)
        for one in kept[: 1 if len(kept) == 5 or event.number == 99 else 0]:
            collector.emit(one, anchors=[one])
            collector.ack(one)
            kept.remove(one)
        if event.number == 99:
            while kept:
                collector.emit(kept[0], anchors=[kept[0]])
                collector.ack(kept.pop(0))

    @bolt(concurrency=20)
    async def slow(event: Event) -> Event:
        await asyncio.sleep(slowness(event.number))
        return event

    t = Topology("kept")
    events = t.spout("events", items(IN_ORDER))
    if kind == "batch and async":
        passed: Any = t.bolt("slow", slow).shuffle(t.bolt("batch", batched, parallelism=3).fields(events, "number"))
    elif kind == "batch":
        passed = t.bolt("batch", batched, parallelism=3).fields(events, "number")
    else:
        passed = t.bolt("collected", collected).global_(events)
    windowed(t, passed, lag_s=0.0)
    run = testing.run(t, {"events": IN_ORDER})
    assert all(one.outcome is Outcome.ACKED for one in run.messages["events"])
    assert by_start(run.outputs["out"]) == in_windows(IN_ORDER)


def test_an_outage_in_front_of_a_window_makes_nothing_late() -> None:
    """One of two tasks waits for the end of an outage; the other one does not meet it."""
    tries: list[int] = []

    @bolt
    def calling(event: Event) -> Event:
        if event.number == 3 and len(tries) < 3:
            tries.append(event.number)
            raise ConnectorError("the service is away")
        return event

    t = Topology("outage")
    passed = t.bolt("calling", calling, parallelism=2).fields(t.spout("events", items(IN_ORDER)), "number")
    windowed(t, passed, lag_s=0.0)
    run = testing.run(t, {"events": IN_ORDER})
    assert [(one.outcome, one.attempts) for one in run.messages["events"]] == [(Outcome.ACKED, 1)] * 100
    assert len(tries) == 3
    assert by_start(run.outputs["out"]) == in_windows(IN_ORDER)


class Slowly(Spout[Event]):
    """Events in order, one every few milliseconds, so that they are in many epochs."""

    def __init__(self, count: int) -> None:
        self.count, self.number, self.due_s = count, 0, 0.0

    def next(self) -> Emit[Event] | None:
        if self.number == self.count:
            raise EndOfInput
        if time.monotonic() < self.due_s:
            return None
        self.due_s = time.monotonic() + 0.03
        self.number += 1
        return Emit(Event(self.number - 1, 60.0 * (self.number - 1)), self.number - 1)


def test_batches_that_outlive_their_epoch_make_nothing_late_on_spark(tmp_path: Path, in_process: InProcess) -> None:
    @batch_bolt(size=2, max_age_s=0.4)
    def batched(events: list[Event]) -> list[Event]:
        return [*events]

    @window_bolt(length_s=300, timestamp="at", extend_timeout=True)
    def gather(window: Window[Event]) -> Held:
        return Held(window.start_s, sorted(one.number for one in window))

    def one_alone(event: Event, tasks: int) -> int:
        return int(event.number == 2) % tasks

    t = Topology("kept-on-spark")
    passed = t.bolt("batch", batched, parallelism=2).custom(t.spout("events", Slowly(20)), one_alone)
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.bolt("gather", gather).global_(passed))
    ended = in_process(t, tmp_path / "state")
    assert (ended.acked, ended.dead, ended.open) == (20, 0, 0)
    rows = [Held(row["start"], row["numbers"]) for row in read_rows(tmp_path / "out")]
    assert by_start(rows) == in_windows([Event(number, 60.0 * number) for number in range(20)])
