"""Which calls can meet an outage, and which task waits for its end."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.local.running import HANG_S, begin
from tests.ordinary.conftest import begin_in_process
from tests.tasks.streams import Line, Word
from tupletree import (
    ConnectorError,
    Emit,
    EndOfInput,
    Spout,
    TaskContext,
    Topology,
    bolt,
    testing,
)
from tupletree.clock import ManualClock
from tupletree.errors import TupletreeError
from tupletree.sinks import foreach, jsonl, read_rows
from tupletree.sources import items
from tupletree.topology.components import Sink, SinkBatch

AWAY_S = 20.0


@bolt
def asks(line: Line, context: TaskContext) -> Word:
    if context.task_index == 0 and context.epoch_time_s < STARTED_S[0] + AWAY_S:
        raise ConnectorError("the service is away")
    return Word(f"{context.task_index} {context.epoch_time_s - STARTED_S[0] >= AWAY_S}")


STARTED_S = [0.0]


def test_each_task_finds_out_by_itself_and_the_others_go_on() -> None:
    clock = ManualClock(wall=1_000_000.0)
    STARTED_S[0] = clock.wall()
    t = Topology("tasks", options={"max_spout_pending": 10})
    asked = t.bolt("asks", asks, parallelism=2).shuffle(t.spout("lines", items([Line("")] * 10)))
    t.sink("out", foreach(lambda _: None)).shuffle(asked)
    ended = testing.run(t, clock=clock)
    assert all(message.acked and message.attempts == 1 for message in ended.messages["lines"])
    rows = sorted(word.word for word in ended.outputs["out"])
    assert set(rows) == {"0 True", "1 False"}


class CannotOpen(Sink[Line]):
    """Its service is away when it is opened."""

    def open(self, context: TaskContext) -> None:
        raise ConnectorError("the service is away")

    def write(self, batch: SinkBatch[Line]) -> None:
        raise AssertionError("it was not opened")


@pytest.mark.parametrize("start", [begin, begin_in_process])
def test_a_sink_that_cannot_be_opened_ends_the_start_at_once(tmp_path: Path, start: Any) -> None:
    t = Topology("opens")
    t.sink("out", CannotOpen()).shuffle(t.spout("lines", items([Line("a")])))
    with pytest.raises(TupletreeError, match="the service is away"):
        start(t, tmp_path / "state").wait(HANG_S)


class Counted(Spout[Line]):
    """Emits one line at a time, and remembers which were acked."""

    acked: ClassVar[list[Any]] = []

    def open(self, context: TaskContext) -> None:
        self.left = 12

    def next(self) -> Emit[Line]:
        if not self.left:
            raise EndOfInput
        self.left -= 1
        return Emit(Line(str(self.left)), self.left)

    def ack(self, message_id: Any) -> None:
        Counted.acked.append(message_id)

    def snapshot(self) -> int:
        return self.left

    def restore(self, position: Any) -> None:
        self.left = position


def test_a_state_directory_that_is_full_for_a_while_costs_no_message_an_attempt_on_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Counted.acked.clear()
    sync, full = os.fsync, list[float]()

    def fsync(file: int) -> None:
        if Counted.acked and len(full) < 3:
            full.append(time.monotonic())
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(file)

    monkeypatch.setattr(os, "fsync", fsync)
    t = Topology("full")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.spout("lines", Counted()))
    handle = begin_in_process(t, tmp_path / "state", epoch_max_messages=2)
    summary = handle.wait(HANG_S)
    assert len(full) == 3
    assert (summary.acked, summary.failed, summary.open) == (12, 0, 0)
    assert {*Counted.acked} == {*range(12)}
    assert sorted(row["text"] for row in read_rows(tmp_path / "out")) == sorted(map(str, range(12)))
