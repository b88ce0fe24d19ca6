"""Tuples that come too late for a window: none kills a message, all are counted, and the log says what to do."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tupletree
from tests.ordinary.conftest import HANG_S, begin_in_process
from tupletree import Spout, Topology, Window, testing, window_bolt
from tupletree.errors import EndOfInput
from tupletree.sinks import jsonl, read_rows
from tupletree.topology.components import Emit
from tupletree.tracking.outcomes import Outcome

WALL_S = 1_700_000_000.0
"""Where the clock of `testing.run` begins."""


class Event(msgspec.Struct, frozen=True):
    number: int
    at: float


class Held(msgspec.Struct, frozen=True):
    start: float
    numbers: list[int]


class OneByOne(Spout[Event]):
    """Each goes out after the one before it came to its window."""

    def __init__(self, times: list[float], every_s: float) -> None:
        self.times, self.every_s = times, every_s
        self.number, self.due_s, self.rests = 0, 0.0, False

    def next(self) -> Emit[Event] | None:
        self.rests = not self.rests
        if self.rests or time.monotonic() < self.due_s:
            return None
        self.due_s = time.monotonic() + self.every_s
        if self.number == len(self.times):
            raise EndOfInput
        self.number += 1
        return Emit(Event(self.number - 1, self.times[self.number - 1]), self.number - 1)


def windowed(times: list[float], out: Any = "never", every_s: float = 0.0, **settings: Any) -> Topology:
    @window_bolt(length_s=60, timestamp="at", extend_timeout=True, **settings)
    def per_minute(window: Window[Event]) -> Held:
        return Held(window.start_s, [one.number for one in window])

    t = Topology("late-tuples")
    t.sink("out", jsonl(out)).shuffle(
        t.bolt("per_minute", per_minute).global_(t.spout("events", OneByOne(times, every_s)))
    )
    return t


TWO_ARE_LATE = [0.0, 100.0, 110.0, 110.0, 10.0, 200.0, 210.0, 210.0, 20.0, 230.0]


@pytest.mark.parametrize("runtime", ["local", "spark"])
def test_late_tuples_are_dropped_and_counted_by_component(
    tmp_path: Path, runtime: str, caplog: pytest.LogCaptureFixture
) -> None:
    """O5, O6."""
    t = windowed(TWO_ARE_LATE, tmp_path / "out", every_s=0.02)
    if runtime == "local":
        handle = tupletree.run(t, runtime="local", state_dir=tmp_path / "state")
    else:
        handle = begin_in_process(t, tmp_path / "state", epoch_max_messages=1)
    with caplog.at_level(logging.WARNING):
        ended = handle.wait(HANG_S)
    assert (ended.acked, ended.dead, ended.untracked_failed) == (10, 0, 0)
    assert handle.progress().late == {"per_minute": 2}
    records = handle.recent_progress()
    assert sum(one.late for one in records) == 2
    assert max(one.watermarks.get("per_minute", 0.0) for one in records) == 230.0
    assert [row["numbers"] for row in read_rows(tmp_path / "out")] == [[0], [1, 2, 3], [5, 6, 7, 9]]
    assert "came too late and " in caplog.text
    assert "a lag_s above 50 would have waited for it" in caplog.text


def test_the_reason_names_the_lag_that_would_have_been_enough() -> None:
    run = testing.run(windowed(TWO_ARE_LATE, late="fail"))
    dead = [one for one in run.messages["events"] if one.outcome is Outcome.DEAD]
    assert [one.message_id for one in dead] == [4, 8]
    assert dead[1].failure is not None
    assert "a lag_s above 150 would have waited for it" in dead[1].failure.error
    enough = testing.run(windowed(TWO_ARE_LATE, late="fail", lag_s=150.1))
    assert all(one.outcome is Outcome.ACKED for one in enough.messages["events"])


FROM_THE_FUTURE = [WALL_S, WALL_S + 30 * 86_400.0, WALL_S + 10.0, WALL_S + 70.0]


def test_a_timestamp_from_the_future_is_named_as_the_reason() -> None:
    run = testing.run(windowed(FROM_THE_FUTURE, late="fail"))
    dead = [one for one in run.messages["events"] if one.outcome is Outcome.DEAD]
    assert len(dead) == 2
    assert all(one.failure is not None and "set max_ahead_s" in one.failure.error for one in dead)


def test_with_max_ahead_s_a_timestamp_from_the_future_moves_no_watermark() -> None:
    run = testing.run(windowed(FROM_THE_FUTURE, max_ahead_s=3600.0))
    outcomes = [one.outcome for one in run.messages["events"]]
    assert outcomes == [Outcome.ACKED, Outcome.DEAD, Outcome.ACKED, Outcome.ACKED]
    failure = run.messages["events"][1].failure
    assert failure is not None
    assert failure.permanent
    assert "too far ahead of the clock" in failure.error
    assert sorted(number for row in run.outputs["out"] for number in row.numbers) == [0, 2, 3]
