"""What holds a message is told while it is held: by `why` of one, by status and progress of how many."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.cli.conftest import Run
from tests.local.running import begin
from tests.ordinary.conftest import begin_in_process
from tests.tasks.streams import Line, Word
from tests.until import until
from tupletree import (
    Bolt,
    Emit,
    KeyedState,
    Retry,
    Sink,
    SinkBatch,
    Spout,
    TaskContext,
    Topology,
    batch_bolt,
    bolt,
    window_bolt,
)
from tupletree.cli.progress import progress_line
from tupletree.clock import ManualClock
from tupletree.errors import ConnectorError
from tupletree.runtimes.local.runtime import LocalRun
from tupletree.runtimes.local.whereabouts import ANSWER_S, whereabouts
from tupletree.runtimes.metrics import RunCollector
from tupletree.runtimes.run import why
from tupletree.runtimes.spark.settle import accounts
from tupletree.sinks import foreach
from tupletree.sources import items
from tupletree.tracking.holds import Hold, added_up
from tupletree.tracking.outcomes import Outcome
from tupletree.tracking.records import MessageStatus

HANG_S = 20.0
FREE = threading.Event()


class Timed(msgspec.Struct, frozen=True):
    """A moment."""

    time_s: float


class Given(Spout[Line]):
    """Gives three messages with the same text, and does not end."""

    def open(self, context: TaskContext) -> None:
        self.left = [Emit(Line("same"), name) for name in ("a", "b", "c")]

    def next(self) -> list[Emit[Line]]:
        given, self.left = self.left, []
        return given


@window_bolt(length_s=86_400.0)
def per_day(lines: list[Line]) -> Word:
    return Word(str(len(lines)))


@batch_bolt(size=100, max_age_s=3_600.0)
def hundred(lines: list[Line]) -> list[Word]:
    return [Word(line.text) for line in lines]


@bolt
def fails(line: Line) -> Word:
    raise ValueError(line.text)


@bolt(concurrency=1)
async def fetch(line: Line) -> Word:
    await asyncio.sleep(3_600.0)
    return Word(line.text)


@bolt(concurrency=8, state=int)
async def by_key(line: Line, total: KeyedState[int]) -> Word:
    total.value += 1
    await asyncio.sleep(3_600.0)
    return Word(line.text)


@bolt(blocking=True)
def slow(line: Line) -> Word:
    FREE.wait(HANG_S)
    return Word(line.text)


@bolt
def away(line: Line) -> Word:
    raise ConnectorError("the service is down")


@bolt
def plain(line: Line) -> Word:
    return Word(line.text)


class Away(Sink[Word]):
    """Is not available."""

    def write(self, batch: SinkBatch[Word]) -> None:
        raise ConnectorError("the table is locked")


@contextmanager
def held_by(kind: Any, place: Path, *, sink: Any = None) -> Iterator[LocalRun]:
    """A run of three messages with the same text, whose bolt holds them."""
    t = Topology("holding")
    lines = t.spout("lines", Given())
    worker = t.bolt("worker", kind, retry=Retry(backoff_s=3_600.0, max_s=3_600.0) if kind is fails else None)
    words = worker.fields(lines, "text") if kind is by_key else worker.shuffle(lines)
    t.sink("out", sink or foreach(lambda _: None)).shuffle(words)
    FREE.clear()
    handle = begin(t, place, message_timeout_s=None)
    try:
        yield handle
    finally:
        FREE.set()
        handle.stop(0.0)
        handle.wait(HANG_S)


def notes(handle: LocalRun, message: str, part: str) -> str:
    """What is told of a message as soon as this is part of it."""
    found = until(lambda: [one for one in handle.whereabouts(message) if part in one.note])
    return str(found[0].note)


@pytest.mark.parametrize(
    ("kind", "told", "counted"),
    [
        (per_day, ("held by worker since ", " until "), "3 tuples held by worker, the first until "),
        (hundred, ("held by worker since ", " until "), "3 tuples held by worker, the first until "),
        (fails, ("waiting for attempt 2 at ",), "3 messages waiting for another attempt, the first at "),
        (fetch, ("in an async call of worker since ",), "1 async call of worker under way, the first since "),
        (away, ("waiting for worker, which waits for the end of an outage",), ""),
    ],
)
def test_it_is_told_of_one_and_counted_of_all(
    kind: Any, told: tuple[str, ...], counted: str, tmp_path: Path, run: Run
) -> None:
    with held_by(kind, tmp_path / "state") as handle:
        note = notes(handle, "a", told[0])
        assert all(part in note for part in told)
        last = why(tmp_path / "state", "lines/a")[-1]
        assert (last.what, last.attempt) == ("open" if kind is fails else "in flight", 1)
        assert told[0] in last.detail
        if kind in (per_day, hundred, fails):
            until(lambda: counted in progress_line(handle.progress()))
        if counted:
            until(lambda: [one for one in handle.progress().holds if one.counted().startswith(counted)])
            until(lambda: counted in run("status", "--state-dir", tmp_path / "state").out)
        asked = run("why", "a", "--state-dir", tmp_path / "state")
        assert (asked.code, told[0] in asked.out) == (0, True)
    if kind in (fails, fetch, away):  # the stop left it open, and ended no window or batch with it
        assert "open: the run stopped" in run("why", "a", "--state-dir", tmp_path / "state").out


@window_bolt(length_s=86_400.0, timestamp="time_s")
def by_event_time(values: list[Timed]) -> Word:
    return Word(str(len(values)))


class TimedValues(Spout[Timed]):
    """Gives two of one day, and does not end."""

    def open(self, context: TaskContext) -> None:
        self.left = [Emit(Timed(1_000.0), "a"), Emit(Timed(5_000.0), "b")]

    def next(self) -> list[Emit[Timed]]:
        given, self.left = self.left, []
        return given

    def snapshot(self) -> int:
        return len(self.left)


def test_on_spark_open_messages_are_told_of_after_each_epoch_and_after_the_end(tmp_path: Path, run: Run) -> None:
    t = Topology("on-spark")
    days = t.bolt("per_day", by_event_time).shuffle(t.spout("times", TimedValues()))
    failing = t.bolt("failing", fails, retry=Retry(backoff_s=3_600.0, max_s=3_600.0)).shuffle(t.spout("lines", Given()))
    t.sink("out", foreach(lambda _: None)).shuffle(days).shuffle(failing)
    place = tmp_path / "state"
    handle = begin_in_process(t, place, message_timeout_s=None)
    # What is tried again may bring earlier times, so that event time has not begun.
    held = "held by per_day, the first until event time is 1970-01-02 00:00:00 UTC"
    until(lambda: f"2 tuples {held}" in [one.counted() for one in handle.progress().holds])
    retries = until(lambda: [one for one in handle.progress().holds if one.kind == "retry"])
    assert retries[0].counted().startswith("3 messages waiting for another attempt, the first at ")
    record = until(handle.recent_progress)[-1]
    assert {one.kind for one in record.holds} == {"held", "retry"}
    status = until(lambda: next((out for out in [run("status", "--state-dir", place).out] if held in out), ""))
    assert "3 messages waiting for another attempt" in status
    handle.stop(5.0)
    assert handle.wait(HANG_S).open == 5
    last = why(place, "times/b")[-1]
    assert last.what == "open"
    assert last.detail.startswith("held by per_day since ")
    assert last.detail.endswith(f"(2 tuples {held})")
    assert "attempt 2 from " in run("why", "lines/b", "--state-dir", place).out


@bolt
def waits_for_the_file(line: Line) -> Line:
    until(Path(line.text).exists)
    return line


def test_an_epoch_that_is_worked_for_long_says_how_many_messages_wait_for_its_end(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "LONG_EPOCH_S", 0.0)
    t = Topology("long")
    lines = t.spout("lines", items([Line(str(tmp_path / "file"))] * 3))
    t.sink("out", foreach(lambda _: None)).shuffle(t.bolt("waits", waits_for_the_file).shuffle(lines))
    handle = begin_in_process(t, tmp_path / "state")
    [hold] = until(lambda: [one for one in handle.progress().holds if one.kind == "epoch"])
    assert (hold.count, hold.key) == (3, "0")
    assert hold.counted().startswith("3 messages in epoch 0, which is worked since ")
    assert str(hold).startswith("in epoch 0, which is worked since ")
    until(lambda: "3 messages in epoch 0" in run("status", "--state-dir", tmp_path / "state").out)
    (tmp_path / "file").touch()
    assert handle.wait(HANG_S).acked == 3
    assert handle.progress().holds == ()


def test_what_waits_behind_others_is_told_apart(tmp_path: Path) -> None:
    with held_by(fetch, tmp_path / "fetch") as handle:
        notes(handle, "a", "in an async call of worker")
        assert notes(handle, "b", "waiting") == "waiting for one of the calls of worker to end"
        assert {(one.kind, one.count) for one in handle.progress().holds} == {("call", 1), ("turn", 2)}
    with held_by(by_key, tmp_path / "by_key") as handle:
        notes(handle, "a", "in an async call of worker")
        assert notes(handle, "b", "behind") == "waiting for a call of worker, behind key same"
    with held_by(slow, tmp_path / "slow") as handle:
        assert notes(handle, "a", "in a call of").startswith("in a call of worker since ")
        assert notes(handle, "c", "queue") == "in the queue of worker"


def test_a_message_that_is_done_but_for_its_rows_says_so(tmp_path: Path) -> None:
    with held_by(plain, tmp_path / "state", sink=Away()) as handle:
        done = "done but for its rows, which wait to be written"
        until(lambda: [one.note for one in handle.whereabouts("a")] == [done])
        assert Hold("write", "lines", 3) in until(lambda: handle.progress().holds)


def test_records_and_metrics_have_what_is_held(tmp_path: Path) -> None:
    with held_by(hundred, tmp_path / "state") as handle:
        until(lambda: handle.recent_progress() and handle.recent_progress()[-1].holds)
        (held,) = handle.recent_progress()[-1].holds
        assert (held.kind, held.component, held.count) == ("held", "worker", 3)
        collected = {one.name: one for one in RunCollector(handle, "holding", "local").collect()}
        (sample,) = collected["tupletree_held"].samples
        labels = {"topology": "holding", "runtime": "local", "component": "worker", "kind": "held"}
        assert (sample.labels, sample.value) == (labels, 3)


def test_who_is_not_open_is_nowhere(tmp_path: Path) -> None:
    with held_by(per_day, tmp_path / "state") as handle:
        notes(handle, "a", "held")
        assert handle.whereabouts("nothing") == handle.whereabouts("out/a") == []
        assert handle.whereabouts("2.5") == []  # JSON, but no id
        (fact,) = handle.whereabouts("a")
        assert handle.whereabouts(f"{fact.root:016x}")[0].message_id == "a"


def test_executors_that_are_stuck_are_waited_for_together() -> None:
    """Each of two questions takes no longer than one of them: the thread that asks writes the status, too."""
    clock = ManualClock()

    class Stuck(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            assert timeout is not None
            clock.advance(timeout)
            raise TimeoutError

    def executor(answer: Callable[[], Future[Any]]) -> Any:
        return SimpleNamespace(submit=lambda _: answer(), in_call=lambda root: [Hold("work", f"worker {root}")])

    def standing() -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_result([MessageStatus(3, 7, outcome=Outcome.OPEN, attempt=1, root=5, first_emitted_s=0.0)])
        return answer

    stuck = [executor(Stuck) for _ in range(6)]
    spouts = [SimpleNamespace(task=SimpleNamespace(task_id=number, component="lines")) for number in range(4)]
    owners = [*stuck[:3], executor(standing)]
    assembly: Any = SimpleNamespace(spouts=lambda: spouts, owners=owners, executors=stuck)
    (fact,) = whereabouts(assembly, "7", clock)
    assert (fact.message_id, fact.note.count("worker 5")) == (7, 1)
    assert clock.monotonic() == 2 * ANSWER_S


class Kept(Bolt[Line]):
    """Settles by hand, some time."""

    auto_ack = False

    def process(self, line: Line) -> None:
        """Keep it."""


def test_a_bolt_that_settles_by_hand_is_named(tmp_path: Path) -> None:
    t = Topology("by-hand")
    t.bolt("worker", Kept).shuffle(t.spout("lines", Given()))
    handle = begin(t, tmp_path / "state")
    assert notes(handle, "a", "held") == "held by worker"
    handle.stop(0.0)
    handle.wait(HANG_S)


def test_holds_of_several_tasks_are_added_up() -> None:
    one, other = Hold("held", "w", 2, until_s=20.0), Hold("held", "w", 3, until_s=10.0)
    (both,) = added_up([one, other, Hold("call", "f", 0)])
    assert both == Hold("held", "w", 5, until_s=10.0)
    assert both.counted() == "5 tuples held by w, the first until 1970-01-01 00:00:10 UTC"
    in_event_time = Hold("held", "w", until_s=20.0, in_event_time=True, watermark_s=5.0)
    until = "until event time is 1970-01-01 00:00:20 UTC; it has come to 1970-01-01 00:00:05 UTC"
    assert str(in_event_time) == f"held by w {until}"
    assert in_event_time.counted() == f"1 tuple held by w, the first {until}"
