"""Async components on the local runtime: they end cleanly with the run, whatever they are doing."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.local.running import HANG_S, begin, run
from tests.local.test_restarts import Impatient
from tests.tasks.streams import Line, Script, lines
from tupletree import Bolt, Collector, KeyedState, TaskContext, Topology, bolt


def one_bolt(body: object, script: Script) -> Topology:
    t = Topology("waiting")
    t.bolt("made", body).fields(t.spout("lines", script), "text")  # type: ignore[arg-type]  # any kind of bolt
    return t


class Waiting(Bolt[Line]):
    """Waits for ever, and records what happens to it."""

    concurrency = 5
    story: list[str]
    begun: threading.Event

    async def open(self, context: TaskContext) -> None:
        self.loop = asyncio.get_running_loop()
        self.story.append("open")

    async def process(self, value: Line, collector: Collector[Any]) -> None:
        assert asyncio.get_running_loop() is self.loop
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.story.append(f"{value.text} is cancelled")

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.story.append("close")


def waiting() -> type[Waiting]:
    class Fresh(Waiting):
        story: list[str] = []  # noqa: RUF012 - this class is for one test
        begun = threading.Event()

    return Fresh


def test_a_stop_cancels_the_calls_that_run_and_closes_the_bolt_when_they_have_ended(tmp_path: Path) -> None:
    body, script = waiting(), Script([lines("a", "b")], ends=False)
    handle = begin(one_bolt(body, script), tmp_path / "state")
    assert body.begun.wait(HANG_S)
    handle.stop(drain_timeout_s=0.1)
    assert handle.wait(HANG_S).acked == 0
    assert body.story == ["open", "a is cancelled", "b is cancelled", "close"]
    assert [failure.kind.value for _, failure in script.failed] == ["stopped", "stopped"]


def test_a_restart_ends_the_calls_and_closes_the_bolt_before_it_is_opened_again(tmp_path: Path) -> None:
    body = waiting()

    class Breaking(Script):
        def next(self) -> object:  # type: ignore[override]  # as its base gives it
            if body.begun.is_set() and body.story.count("open") == 1:
                raise RuntimeError("broken")
            return super().next()

    handle = begin(one_bolt(body, Breaking([lines("a")], ends=False)), tmp_path / "state")
    handle._policy = Impatient()  # type: ignore[assignment]
    assert body.begun.wait(HANG_S)
    while body.story.count("open") < 2:
        handle._control.wake.wait(0.01)
    handle.stop(drain_timeout_s=0.1)
    assert body.story[:4] == ["open", "a is cancelled", "close", "open"]
    assert body.story[-1] == "close"


def test_state_is_kept_over_a_restart_without_what_a_cancelled_call_did_to_it(tmp_path: Path) -> None:
    begun, seen = threading.Event(), list[list[str]]()

    @bolt(state=list)
    async def gather(line: Line, total: KeyedState[list[str]]) -> None:
        total.value.append(line.text)
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        seen.append(total.value)

    class Breaking(Script):
        def next(self) -> object:  # type: ignore[override]  # as its base gives it
            if begun.is_set() and self.ends is False:
                type(self).ends = True
                raise RuntimeError("broken")
            return super().next()

    script = Breaking([lines("a")], ends=False)
    del script.ends
    Breaking.ends = False
    handle = begin(one_bolt(gather, script), tmp_path / "state", backoff_initial_ms=0.0)
    handle._policy = Impatient()  # type: ignore[assignment]
    assert handle.wait(HANG_S).acked == 1
    assert seen == [["a"]]


def test_a_task_that_a_call_starts_and_that_raises_system_exit_ends_no_other_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def exiting() -> None:
        raise SystemExit(3)

    @bolt(concurrency=4)
    async def starts(line: Line) -> None:
        if line.text == "destinations":
            await asyncio.ensure_future(exiting())
        await asyncio.sleep(0.01)

    script = Script([lines("a", "destinations", "b")])
    summary = run(one_bolt(starts, script), tmp_path / "state", max_attempts=1)
    assert (summary.acked, summary.dead) == (2, 1)
    assert "raised an exception that would end the program" in caplog.text


def test_a_call_that_never_ends_is_cancelled_when_its_message_is_over_and_keeps_no_finite_run(tmp_path: Path) -> None:
    body, script = waiting(), Script([lines("a")])
    assert run(one_bolt(body, script), tmp_path / "state", max_attempts=1, message_timeout_s=0.2).dead == 1
    assert body.story == ["open", "a is cancelled", "close"]
