"""Logs of different years read side by side: with a watermark by partition none of them makes the others late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from tests.ordinary.conftest import HANG_S, begin_in_process
from tests.spark.tapped import wait_until
from tupletree import Spout, TaskContext, Topology, Window, bolt, testing, window_bolt
from tupletree.errors import EndOfInput, TopologyError
from tupletree.sinks import jsonl, read_rows
from tupletree.sources import items
from tupletree.topology.components import Emit
from tupletree.tracking.outcomes import Outcome

YEAR_S = 365 * 86400.0
COUNT = 150


class Entry(msgspec.Struct, frozen=True):
    number: int
    log: str
    at: float


class Minute(msgspec.Struct, frozen=True):
    log: str
    start: float
    numbers: list[int]


class Logs(Spout[Entry]):
    """The entries of three logs, each in its order, in turns; with a rest before each."""

    def __init__(self, entries: Sequence[Entry], rests: int) -> None:
        self.entries, self.rests = entries, rests
        self.position = self.rested = 0

    def next(self) -> Emit[Entry] | None:
        if self.position == len(self.entries):
            raise EndOfInput
        self.rested += 1
        if self.rested <= self.rests:
            return None
        self.rested = 0
        entry = self.entries[self.position]
        self.position += 1
        return Emit(entry, entry.number)

    def snapshot(self) -> Any:
        return self.position

    def restore(self, position: Any) -> None:
        self.position = position


class Story:
    """By a seed: what is in the logs, and which calls fail how often."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        at = {"old": 0.0, "new": 2 * YEAR_S, "other": YEAR_S}
        self.entries, turn = [], [*at]
        for number in range(COUNT):
            turn = random.sample([*at], 3) if number % 3 == 0 else turn[1:]  # none is silent for long
            log = turn[0]
            at[log] += random.choice((1.0, 5.0, 20.0))
            self.entries.append(Entry(number, log, at[log]))
        self.failures = {number: random.choice((0, 0, 0, 0, 0, 1, 2)) for number in range(COUNT)}
        self.raises = {entry.at // 60 * 60 for entry in random.sample(self.entries, 5)}

    def minutes(self) -> Counter[tuple[str, float, tuple[int, ...]]]:
        found: dict[tuple[str, float], list[int]] = {}
        for entry in self.entries:
            found.setdefault((entry.log, entry.at // 60 * 60), []).append(entry.number)
        return Counter((log, start, tuple(numbers)) for (log, start), numbers in found.items())

    def topology(self, rests: int, idle_s: float, out: Any, *, by_partition: bool = True) -> Topology:
        failures, raises = self.failures, {*self.raises}

        @bolt
        def flaky(entry: Entry, context: TaskContext) -> Entry:
            if context.attempt <= failures[entry.number]:
                raise RuntimeError("before")
            return entry

        @window_bolt(
            length_s=60,
            per_key=True,
            timestamp="at",
            partition="log" if by_partition else None,
            idle_s=idle_s,
            late="fail",
            extend_timeout=True,
        )
        def per_minute(window: Window[Entry]) -> Minute:
            if window.start_s in raises:
                raises.discard(window.start_s)
                raise RuntimeError("inside")
            return Minute(window.key, window.start_s, [entry.number for entry in window])

        t = Topology("logs", options={"max_attempts": 20})
        entries = t.bolt("flaky", flaky, parallelism=2).shuffle(t.spout("logs", Logs(self.entries, rests)))
        t.sink("out", jsonl(out)).shuffle(t.bolt("minutes", per_minute, parallelism=2).fields(entries, "log"))
        return t


@pytest.mark.parametrize("seed", range(4))
def test_on_the_local_runtime_no_log_makes_another_late(seed: int) -> None:
    story = Story(seed)
    run = testing.run(story.topology(6, 5.0, "never"), seed=seed)
    assert run.seconds > 30.0, "windows end meanwhile"
    assert all(one.outcome is Outcome.ACKED for one in run.messages["logs"])
    rows = Counter((row.log, row.start, tuple(row.numbers)) for row in run.outputs["out"])
    assert rows == story.minutes()
    without = testing.run(story.topology(6, 5.0, "never", by_partition=False), seed=seed)
    assert sum(one.outcome is Outcome.DEAD for one in without.messages["logs"]) > COUNT // 10


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4, 60))
def test_on_the_local_runtime_no_log_makes_another_late_by_many_seeds(seed: int) -> None:
    test_on_the_local_runtime_no_log_makes_another_late(seed)


def test_a_partition_is_a_field_that_is_there() -> None:
    @window_bolt(length_s=60, timestamp="at", partition="logg", idle_s=5)
    def per_minute(window: Window[Entry]) -> Minute:
        return Minute("", 0.0, [])

    t = Topology("misspelt")
    entries = t.spout("logs", items([], message_type=Entry))
    t.bolt("minutes", per_minute, unconsumed=True).shuffle(entries)
    with pytest.raises(TopologyError, match="Entry has no field 'logg'") as refused:
        t.build()
    assert "did you mean 'log'?" in str(refused.value)


@pytest.mark.parametrize("seed", range(2))
def test_on_spark_no_log_makes_another_late_after_a_restart_too(tmp_path: Path, seed: int) -> None:
    story = Story(seed)
    options = {"epoch_max_messages": 10, "backoff_initial_ms": 20.0, "backoff_max_ms": 100.0}
    first = begin_in_process(story.topology(3, 1.0, tmp_path / "out"), tmp_path / "state", **options)
    wait_until(first, lambda progress: progress.emitted >= COUNT // 2)
    first.stop(10.0)
    first.wait(HANG_S)
    ended = begin_in_process(story.topology(3, 1.0, tmp_path / "out"), tmp_path / "state", **options).wait(HANG_S)
    assert (ended.open, ended.dead) == (0, 0)
    rows = Counter((row["log"], row["start"], tuple(row["numbers"])) for row in read_rows(tmp_path / "out"))
    assert rows == story.minutes()
