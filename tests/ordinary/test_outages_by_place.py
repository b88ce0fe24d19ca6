"""Which calls can meet an outage, and which task waits for its end."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.local.running import HANG_S, begin
from tests.ordinary.conftest import begin_in_process
from tests.tasks.streams import Line, Word
from tests.until import until
from tupletree import (
    AsyncSpout,
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
from tupletree.durable import write_once
from tupletree.errors import OutageLimitError, TupletreeError
from tupletree.runtimes.api import RunHandle
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


def test_a_state_directory_that_takes_no_settle_entry_for_a_while_is_one_outage_on_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = list[float]()

    def write_or_refuse(path: Path, *given: Any) -> bool:
        if path.parent.name == "settles" and path.name.endswith("2.settle") and len(refused) < 4:
            refused.append(time.monotonic())
            raise OSError(errno.EPERM, "Operation not permitted")
        return write_once(path, *given)

    monkeypatch.setattr("tupletree.runtimes.spark.format.entries.write_once", write_or_refuse)
    t = Topology("refused")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.spout("lines", Counted()))
    handle = begin_in_process(t, tmp_path / "state", epoch_max_messages=2, max_attempts=1, max_restarts=0)
    summary = handle.wait(HANG_S)
    assert len(refused) == 4
    assert (summary.acked, summary.failed, summary.open) == (12, 0, 0)
    assert handle.progress().outage_counts == {"state directory": 1}
    assert handle.progress().outages == ()
    assert caplog.text.count("it goes on") == 1


IS_AWAY = threading.Event()


@bolt
def asks_a_service(line: Line) -> Word:
    if IS_AWAY.is_set():
        raise ConnectorError("the service is away")
    return Word(line.text)


class Called(Sink[Word]):
    """Its service may be away, too."""

    rows: ClassVar[list[str]] = []

    def write(self, batch: SinkBatch[Word]) -> None:
        if IS_AWAY.is_set():
            raise ConnectorError("the service is away")
        Called.rows += [row.word for row in batch.rows]


@bolt
def as_it_is(line: Line) -> Word:
    return Word(line.text)


@pytest.mark.parametrize("work", [asks_a_service, as_it_is])
def test_a_stop_during_an_outage_on_spark_ends_when_its_time_is_up_and_its_messages_stay_open(
    tmp_path: Path, work: Any
) -> None:
    def begin_again() -> RunHandle:
        t = Topology("stopped")
        t.sink("out", Called()).shuffle(t.bolt("work", work).shuffle(t.spout("lines", Counted())))
        return begin_in_process(t, tmp_path / "state")

    Counted.acked.clear()
    Called.rows.clear()
    IS_AWAY.set()
    handle = begin_again()
    until(lambda: handle.progress().outages)
    began_s = time.monotonic()
    handle.stop(0.5)
    summary = handle.wait(HANG_S)
    assert time.monotonic() - began_s < 5.0
    assert (Counted.acked, Called.rows) == ([], [])
    assert (summary.failed, summary.dead, summary.emitted - summary.acked) == (0, 0, summary.open)
    IS_AWAY.clear()
    ended = begin_again().wait(HANG_S)
    assert (ended.acked, ended.dead, ended.open) == (12, 0, 0)
    assert sorted(Counted.acked) == [*range(12)]
    assert sorted(Called.rows) == sorted(map(str, range(12)))


class Leaves(Spout[Line]):
    """Gives a message, and is away from then on; that nothing is to be flushed tells nothing of it."""

    def open(self, context: TaskContext) -> None:
        self.calls = CALLS
        self.calls.clear()

    def next(self) -> Emit[Line]:
        self.calls.append(time.monotonic())
        if len(self.calls) > 1:
            raise ConnectorError("the broker is away")
        return Emit(Line("a"), 1)

    def flush(self) -> None:
        """What was told is durable."""


class LeavesAsync(AsyncSpout[Line]):
    def open(self, context: TaskContext) -> None:
        CALLS.clear()

    async def next(self) -> Emit[Line]:
        CALLS.append(time.monotonic())
        if len(CALLS) > 1:
            raise ConnectorError("the broker is away")
        return Emit(Line("a"), 1)

    async def flush(self) -> None:
        """What was told is durable."""


CALLS: list[float] = []


@pytest.mark.parametrize("spout", [Leaves, LeavesAsync])
@pytest.mark.parametrize("start", [begin, begin_in_process], ids=["local", "in process"])
def test_a_source_that_is_away_is_asked_after_longer_pauses_and_told_of_once_and_for_so_long_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, start: Any, spout: Any
) -> None:
    t = Topology("leaves")
    t.sink("out", foreach(lambda _: None)).shuffle(t.spout("lines", spout()))
    with pytest.raises(OutageLimitError, match="the broker is away"):
        start(t, tmp_path / "state", outage_limit_s=1.5).wait(HANG_S)
    assert 3 <= len(CALLS) < 15
    told = [record.getMessage() for record in caplog.records if "it waits" in record.getMessage()]
    assert len(told) <= 2, told
    assert not [record for record in caplog.records if "it goes on" in record.getMessage()]
