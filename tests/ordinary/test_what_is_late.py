"""Nothing is late that was not late at its source: runs at random, held to the order in which the source gave messages.

The oracle sees no attempts: a message is late at its source if all its windows had ended `lag_s` before the latest
message that the source gave before it. Whatever is slow or fails on the way, no other message may be late; where
nothing is under way when a message goes out, exactly these are.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from tests.ordinary.conftest import HANG_S, begin_in_process
from tupletree import Spout, TaskContext, Topology, Window, batch_bolt, bolt, testing, window_bolt
from tupletree.errors import EndOfInput
from tupletree.sinks import jsonl, read_rows
from tupletree.topology.components import Emit
from tupletree.tracking.outcomes import Outcome

COUNT = 60

Pair = tuple[float, int]
"""(start of a window, number of a message in it)."""


class Event(msgspec.Struct, frozen=True):
    number: int
    at: float


class Held(msgspec.Struct, frozen=True):
    start: float
    numbers: list[int]


class Source(Spout[Event]):
    """Gives messages one by one, after so many rests each; None: at random."""

    def __init__(self, events: list[Event], seed: int, rests: int | None = None) -> None:
        self.events, self.random, self.rests = [*events], Random(seed), rests
        self.rested = 0

    def next(self) -> Emit[Event] | None:
        if not self.events:
            raise EndOfInput
        self.rested += 1
        if self.random.random() < 0.6 if self.rests is None else self.rested < self.rests:
            return None
        self.rested = 0
        event = self.events.pop(0)
        return Emit(event, event.number)


class Story:
    """What happens on the way, by a seed."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.length, self.lag = random.choice([5, 20]), random.choice([0, 3, 15])
        self.slide = random.choice([self.length, self.length // 5 + 1])
        now, self.events = 0.0, []
        for number in range(COUNT):
            now += random.choice([0, 1, 2, 10])
            self.events.append(Event(number, max(0.0, now - random.choice([0, 0, 0, 2, 8, 30]))))
        self.failures = {number: random.choice([0, 0, 0, 0, 1, 2, 3]) for number in range(COUNT)}
        self.slowness = {number: random.choice([0.0, 0.01, 0.3, 2.0]) for number in range(COUNT)}
        self.batches = random.random() < 0.5

    def pairs(self) -> tuple[set[Pair], set[Pair]]:
        """All (window, message), and those of them whose window was not over when the source gave the message."""
        latest, every, in_time = -1e9, set(), set()
        for event in self.events:
            start = event.at // self.slide * self.slide
            while start > event.at - self.length:
                every.add((start, event.number))
                if start + self.length > latest - self.lag:
                    in_time.add((start, event.number))
                start -= self.slide
            latest = max(latest, event.at)
        return every, in_time

    def late_at_source(self) -> set[int]:
        return {*range(COUNT)} - {number for _, number in self.pairs()[1]}

    def check(self, late: set[Any], rows: list[Held]) -> None:
        every, in_time = self.pairs()
        assert late <= self.late_at_source()
        published = [(row.start, number) for row in rows for number in row.numbers]
        assert len(published) == len({*published})
        assert in_time <= {*published} <= every
        whole = [row.start for row in rows if any((row.start, number) in in_time for number in row.numbers)]
        assert len(whole) == len({*whole}), "no window comes twice, but for what was late at its source and tried again"

    def topology(self, source: Spout[Event], out: Any) -> Topology:
        failures, slowness = self.failures, self.slowness

        @bolt(concurrency=8)
        async def slow(event: Event, context: TaskContext) -> Event:
            await asyncio.sleep(slowness[event.number])
            if context.attempt <= failures[event.number]:
                raise RuntimeError("try again")
            return event

        @batch_bolt(size=7, max_age_s=0.5)
        def batched(events: list[Event]) -> list[Event]:
            return [*events]

        @window_bolt(
            length_s=self.length, slide_s=self.slide, timestamp="at", lag_s=self.lag, late="fail", extend_timeout=True
        )
        def gather(window: Window[Event]) -> Held:
            return Held(window.start_s, sorted(one.number for one in window))

        t = Topology("what-is-late")
        passed: Any = t.bolt("slow", slow, parallelism=2).shuffle(t.spout("events", source))
        if self.batches:
            passed = t.bolt("batched", batched, parallelism=2).shuffle(passed)
        t.sink("out", jsonl(out)).shuffle(t.bolt("gather", gather).global_(passed))
        return t


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_late_that_was_not_late_at_its_source(seed: int) -> None:
    story = Story(seed)
    run = testing.run(story.topology(Source(story.events, seed), "never"), seed=seed)
    late = {one.message_id for one in run.messages["events"] if one.outcome is Outcome.DEAD}
    story.check(late, run.outputs["out"])


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(8, 300))
def test_nothing_is_late_that_was_not_late_at_its_source_by_many_seeds(seed: int) -> None:
    test_nothing_is_late_that_was_not_late_at_its_source(seed)


def test_what_was_late_at_its_source_is_late_where_nothing_is_slow_and_nothing_fails() -> None:
    total = 0
    for seed in range(4):
        story = Story(seed)
        story.failures, story.slowness, story.batches = (
            dict.fromkeys(range(COUNT), 0),
            dict.fromkeys(range(COUNT), 0.0),
            False,
        )
        run = testing.run(story.topology(Source(story.events, seed, rests=8), "never"))
        late = {one.message_id for one in run.messages["events"] if one.outcome is Outcome.DEAD}
        assert late == story.late_at_source()
        total += len(late)
    assert total > 4, "some are"


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(8, 60))
def test_on_spark_by_many_seeds(tmp_path: Path, seed: int) -> None:
    test_on_spark_as_well(tmp_path, seed)


@pytest.mark.parametrize("seed", [6, 7])
def test_on_spark_as_well(tmp_path: Path, seed: int) -> None:
    story = Story(seed)
    story.slowness = {number: min(0.02, slow) for number, slow in story.slowness.items()}
    topology = story.topology(Source(story.events, seed), tmp_path / "out")
    options = {"epoch_max_messages": 5, "backoff_initial_ms": 20.0, "backoff_max_ms": 100.0}
    ended = begin_in_process(topology, tmp_path / "state", **options).wait(HANG_S)
    assert ended.open == 0
    rows = [Held(row["start"], row["numbers"]) for row in read_rows(tmp_path / "out")]
    story.check({*range(COUNT)} - {number for row in rows for number in row.numbers}, rows)
