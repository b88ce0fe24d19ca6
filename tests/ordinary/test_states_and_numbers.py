"""States and numbers of a run say what is so: paused, restarting, untracked, delivered twice, open after a stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.local.running import HANG_S, begin
from tests.local.running import run as run_locally
from tests.ordinary.conftest import InProcess, begin_in_process
from tests.tasks.streams import Line, Script, Word
from tests.until import until
from tupletree import Emit, EndOfInput, Spout, TaskContext, Topology, bolt
from tupletree.ids import MessageId
from tupletree.runtimes import run as api_run
from tupletree.runtimes.api import RunHandle
from tupletree.runtimes.control import progress_in, status_of
from tupletree.runtimes.metrics import RunCollector
from tupletree.sinks import foreach
from tupletree.sources import items


@bolt
def good(line: Line) -> Word:
    return Word(line.text)


@bolt
def bad(line: Line) -> Word:
    raise ValueError("boom")


@bolt
def twice_bad(line: Line, context: TaskContext) -> Word:
    if context.attempt < 3:
        raise ValueError("not yet")
    return Word(line.text)


def of(spout: Any, work: Any, **options: Any) -> Topology:
    t = Topology("numbers").options(**options)
    t.sink("out", foreach(lambda _: None)).shuffle(t.bolt("work", work).shuffle(t.spout("lines", spout)))
    return t


def until_it_is(handle: RunHandle, state: str) -> None:
    until(lambda: handle.progress().state == state, what=handle.progress)


class Doubled(Spout[Line]):
    """Gives each id twice in one list: the first is open where all of it goes out at once."""

    def open(self, context: TaskContext) -> None:
        self.given = False

    def next(self) -> list[Emit[Line]]:
        if self.given:
            raise EndOfInput
        self.given = True
        return [Emit(Line(str(number % 5)), number % 5) for number in range(10)]


class Anonymous(Doubled):
    def next(self) -> list[Emit[Line]]:
        return [Emit(one.value, None) for one in super().next()]


def check_numbers(run: Callable[..., Any]) -> None:
    anonymous = run(of(Anonymous(), bad))
    assert (anonymous.emitted, anonymous.untracked, anonymous.untracked_failed) == (0, 10, 10)
    # A given limit: without one the first messages go out one by one, and an id that comes after its verdict is new.
    doubled = run(of(Doubled(), good), max_spout_pending=128)
    assert (doubled.emitted, doubled.acked, doubled.joined, doubled.untracked) == (5, 5, 5, 0)


def test_untracked_messages_their_failures_and_second_deliveries_are_counted_locally(tmp_path: Path) -> None:
    folders = iter(range(9))
    check_numbers(lambda t, **options: run_locally(t, tmp_path / str(next(folders)), **options))
    tuned_off = run_locally(of(items([Line("a")] * 5), bad), tmp_path / "off", acker_tasks=0)
    assert (tuned_off.emitted, tuned_off.untracked, tuned_off.untracked_failed) == (0, 5, 5)
    shown = progress_in(status_of(tmp_path / "off"))
    assert (shown.untracked, shown.untracked_failed) == (5, 5)


def test_untracked_messages_their_failures_and_second_deliveries_are_counted_on_spark(
    tmp_path: Path, in_process: InProcess
) -> None:
    folders = iter(range(9))
    check_numbers(lambda t, **options: in_process(t, tmp_path / str(next(folders)), **options))


def test_a_paused_run_says_so_in_progress_status_and_metrics(tmp_path: Path) -> None:
    handle = begin(of(Script([], ends=False), good), tmp_path)
    until_it_is(handle, "processing")
    handle.pause()
    assert handle.progress().state == "paused"
    (states,) = [one for one in RunCollector(handle, "t", "local").collect() if one.name == "tupletree_state"]
    assert {one.labels["state"] for one in states.samples if one.value} == {"paused"}
    handle.resume()
    assert handle.progress().state == "processing"
    handle.pause()
    handle.stop()
    assert handle.wait(HANG_S).open == 0
    assert handle.progress().state == "stopped"


class Breaking(Spout[Line]):
    def next(self) -> None:
        raise RuntimeError("the source broke")


def test_a_run_that_waits_for_its_restart_says_so(tmp_path: Path) -> None:
    handle = begin(of(Breaking(), good), tmp_path)
    until_it_is(handle, "restarting")
    handle.stop()
    handle.wait(HANG_S)


def test_after_a_stop_progress_and_status_have_the_numbers_of_the_summary(tmp_path: Path) -> None:
    at_work, go_on = threading.Event(), threading.Event()

    @bolt(blocking=True)
    def stuck(line: Line) -> Word:
        at_work.set()
        go_on.wait(HANG_S)
        return Word(line.text)

    handle = begin(of(items([Line("a")] * 20), stuck), tmp_path)
    assert at_work.wait(HANG_S)
    threading.Timer(0.3, go_on.set).start()
    handle.stop(0.1)
    summary = handle.wait(HANG_S)
    assert summary.open > 0
    assert summary.left.total == summary.open
    for shown in (handle.progress(), progress_in(status_of(tmp_path))):
        assert (shown.emitted, shown.acked, shown.open) == (summary.emitted, summary.acked, summary.open)


def test_the_error_of_an_attempt_that_is_made_again_is_logged_and_not_once_per_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tupletree"):
        topology = of(items([Line(str(number)) for number in range(100)]), twice_bad)
        assert run_locally(topology, tmp_path, backoff_initial_ms=1.0).acked == 100
    told = [record.getMessage() for record in caplog.records if "ValueError: not yet" in record.getMessage()]
    assert told == ["work: attempt 1 of message 0 failed (error) and is made again: ValueError: not yet"]


class Stopping(Script):
    """Stops the run when it hears its first ack. Of the class, because a run works with a copy of a spout."""

    handles: ClassVar[list[RunHandle]] = []
    heard: ClassVar[list[MessageId]] = []

    def ack(self, message_id: MessageId) -> None:
        self.heard.append(message_id)
        if len(self.heard) == 1:
            (handle,) = self.handles
            handle.pause()
            handle.resume()
            handle.stop()


def test_a_source_may_stop_the_run_when_it_hears_an_ack_and_still_hears_the_rest(tmp_path: Path) -> None:
    source = Stopping([[Emit(Line(str(number)), number) for number in range(10)]], ends=False)
    handle = api_run.run(of(source, good), runtime="local", state_dir=tmp_path, active=False)
    Stopping.handles.append(handle)
    begun_s = time.monotonic()
    handle.resume()
    summary = handle.wait(HANG_S)
    assert (summary.acked, summary.open, len(Stopping.heard)) == (10, 0, 10)
    assert time.monotonic() - begun_s < 3.0


def test_a_progress_listener_may_stop_the_run(tmp_path: Path) -> None:
    handle = begin(of(Script([], ends=False), good), tmp_path)
    took_s: list[float] = []

    def listener(_: object) -> None:
        begun_s = time.monotonic()
        handle.stop()
        took_s.append(time.monotonic() - begun_s)

    handle.on_progress(listener)
    handle.wait(HANG_S)
    assert took_s[0] < 1.0


@pytest.mark.parametrize("begins", [begin, begin_in_process], ids=["local", "in process"])
def test_messages_that_wait_for_their_retry_keep_their_place_in_max_spout_pending(
    tmp_path: Path, begins: Callable[..., RunHandle]
) -> None:
    """The first three are tried again and again while seven are not asked for."""
    script = Script([[Emit(Line("a"), number)] for number in range(10)])
    waits = {"max_attempts": 1_000, "backoff_initial_ms": 1.0, "backoff_max_ms": 1.0}
    handle = begins(of(script, bad), tmp_path, max_spout_pending=3, **waits)
    until(lambda: handle.progress().failed >= 100)
    assert handle.progress().emitted == handle.progress().open == 3
    handle.stop()
    assert handle.wait(HANG_S).emitted == 3


def test_options_may_be_a_plain_dict(tmp_path: Path) -> None:
    topology = of(items([Line("a")]), bad, max_attempts=5)
    handle = api_run.run(
        topology, runtime="local", options={"max_attempts": 2, "backoff_initial_ms": 1}, state_dir=tmp_path
    )
    assert handle.wait(HANG_S).failed == 2


def test_a_wrong_name_in_a_dict_of_options_is_named(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="max_attempts"):
        api_run.run(of(items([Line("a")]), bad), runtime="local", options={"max_atempts": 2}, state_dir=tmp_path)


def test_a_stop_on_spark_says_what_the_open_messages_wait_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    topology = of(items([Line("a"), Line("b")]), bad)
    handle = begin_in_process(topology, tmp_path, backoff_initial_ms=60_000.0, backoff_max_ms=60_000.0)
    until(lambda: handle.progress().failed >= 2)
    handle.pause()
    assert handle.progress().state == "paused"
    begun_s = time.time()
    handle.stop()
    summary = handle.wait(HANG_S)
    assert (summary.open, summary.left.waiting, summary.left.in_flight) == (2, 2, 0)
    assert summary.left.next_attempt_s is not None
    assert begun_s < summary.left.next_attempt_s < begun_s + 90.0
    told = [record.getMessage() for record in caplog.records if "ValueError: boom" in record.getMessage()]
    assert told == ["work: attempt 1 of message 0 failed (error) and is made again: ValueError: boom"]


class StoppingRun:
    """A progress listener that stops a run."""

    def __init__(self, handle: RunHandle) -> None:
        self.handle = handle
        self.took_s: list[float] = []

    def __call__(self, _: object) -> None:
        begun_s = time.monotonic()
        self.handle.stop()
        self.took_s.append(time.monotonic() - begun_s)


def test_a_progress_listener_may_stop_a_run_on_spark(tmp_path: Path) -> None:
    handle = begin_in_process(of(Script([[Emit(Line("a"), 1)]], ends=False), good), tmp_path)
    listener = StoppingRun(handle)
    handle.on_progress(listener)
    assert handle.wait(HANG_S).acked == 1
    assert listener.took_s[0] < 1.0


class Prefetching(Spout[Line]):
    """One line; notes when it is told that it is asked no more, and fails at that if it is to."""

    told: ClassVar[threading.Event]
    worked: ClassVar[threading.Event]
    life: ClassVar[list[str]]

    def __init__(self, breaks: bool) -> None:
        self.breaks = breaks

    def open(self, context: TaskContext) -> None:
        self.given = False

    def next(self) -> Emit[Line] | None:
        if self.given:
            return None
        self.given = True
        return Emit(Line("a"), 1)

    def deactivate(self) -> None:
        self.life.append("deactivate")
        self.told.set()
        if self.breaks:
            raise RuntimeError("the client is gone")

    def ack(self, message_id: MessageId) -> None:
        self.life.append("ack")

    def close(self) -> None:
        self.life.append("close")


@bolt(blocking=True)
def until_the_source_was_told(line: Line) -> Word:
    Prefetching.worked.set()
    assert Prefetching.told.wait(HANG_S)
    return Word(line.text)


@pytest.mark.parametrize("begins", [begin, begin_in_process], ids=["local", "in process"])
@pytest.mark.parametrize("breaks", [False, True], ids=["", "and cannot hear it"])
def test_a_source_is_told_at_the_begin_of_a_drain_that_it_is_asked_no_more(
    tmp_path: Path, begins: Callable[..., RunHandle], breaks: bool
) -> None:
    """A source that fetches ahead stops doing so while what is under way is worked; its acks come after that."""
    Prefetching.told, Prefetching.worked, Prefetching.life = threading.Event(), threading.Event(), []
    handle = begins(of(Prefetching(breaks), until_the_source_was_told), tmp_path)
    assert Prefetching.worked.wait(HANG_S)
    handle.stop()
    summary = handle.wait(HANG_S)
    assert (summary.acked, summary.open) == (1, 0)
    assert Prefetching.life == ["deactivate", "ack", "close"]
