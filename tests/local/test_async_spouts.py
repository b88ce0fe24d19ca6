"""Async spouts on the local runtime: on one event loop, and ended cleanly whatever they wait for."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.local.running import HANG_S, begin, run
from tests.local.test_restarts import Impatient
from tupletree import AsyncSpout, Emit, EndOfInput, Failure, Topology, bolt
from tupletree.errors import TupletreeError
from tupletree.ids import MessageId
from tupletree.runtimes.local.event_loop import CallRunner
from tupletree.sources import Line


@bolt
def work(line: Line) -> None:
    """Nothing to do."""


def sourced(spout: AsyncSpout[Line], body: Any = work) -> Topology:
    t = Topology("sourced")
    t.bolt("work", body).shuffle(t.spout("lines", spout))
    return t


class Queue(AsyncSpout[Line]):
    """Waits for what the test puts into it; the loop that opened it is the one that everything runs on."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.waits = threading.Event()
        self.opened = threading.Event()
        self.heard = threading.Event()
        self.shared: list[Any] = []  # loop and queue, for the test

    async def open(self, context: object) -> None:
        self.shared[:] = [asyncio.get_running_loop(), asyncio.Queue()]
        self.story.append("open")
        self.opened.set()

    async def next(self) -> Emit[Line] | None:
        self.waits.set()
        try:
            given: str = await self.shared[1].get()
        except asyncio.CancelledError:
            self.story.append("cancelled")
            raise
        if given == "end":
            raise EndOfInput
        return Emit(Line(given), given)

    def ack(self, message_id: MessageId) -> None:
        assert asyncio.get_running_loop() is self.shared[0]
        self.story.append(f"ack {message_id!s}")
        self.heard.set()

    async def fail(self, message_id: MessageId, failure: Failure) -> None:
        self.story.append(f"fail {message_id!s}: {failure.kind.value}")
        self.heard.set()

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.story.append("close")

    def put(self, *texts: str) -> None:
        assert self.opened.wait(HANG_S)
        loop, queue = self.shared
        for text in texts:
            loop.call_soon_threadsafe(queue.put_nowait, text)


def test_messages_are_emitted_as_they_come_until_the_end(tmp_path: Path) -> None:
    source = Queue()
    handle = begin(sourced(source), tmp_path / "state")
    source.put("a", "b")
    assert source.heard.wait(HANG_S)
    source.put("c", "end")
    assert handle.wait(HANG_S).acked == 3
    assert source.story == ["open", "ack a", "ack b", "ack c", "close"]


def test_a_stop_cancels_a_next_that_waits(tmp_path: Path) -> None:
    source = Queue()
    handle = begin(sourced(source), tmp_path / "state")
    assert source.waits.wait(HANG_S)
    handle.stop()
    assert handle.wait(HANG_S).open == 0
    assert source.story == ["open", "cancelled", "close"]


def test_what_a_cancelled_next_gives_is_failed_to_the_source(tmp_path: Path) -> None:
    class Stubborn(Queue):
        async def next(self) -> Emit[Line] | None:
            try:
                return await super().next()
            except asyncio.CancelledError:
                return Emit(Line("late"), "late")

    source = Stubborn()
    handle = begin(sourced(source), tmp_path / "state")
    assert source.waits.wait(HANG_S)
    handle.stop()
    assert source.story == ["open", "cancelled", "fail late: stopped", "close"]


def test_while_it_is_paused_what_a_next_gives_waits(tmp_path: Path) -> None:
    source = Queue()
    handle = begin(sourced(source), tmp_path / "state")
    assert source.waits.wait(HANG_S)
    handle.pause()
    source.put("a")
    done = threading.Event()
    source.shared[0].call_soon_threadsafe(lambda: source.shared[0].call_later(0.05, done.set))
    assert done.wait(HANG_S)
    assert handle.progress().emitted == 0
    handle.resume()
    assert source.heard.wait(HANG_S)
    source.put("end")
    assert handle.wait(HANG_S).acked == 1


def test_one_that_cannot_be_opened_ends_the_run_at_once(tmp_path: Path) -> None:
    class Closed(Queue):
        async def open(self, context: object) -> None:
            self.story.append("open")
            raise ConnectionError("no broker")

    source = Closed()
    with pytest.raises(TupletreeError, match="'lines' cannot be opened: ConnectionError: no broker"):
        run(sourced(source), tmp_path / "state")
    assert source.story == ["open", "close"]


@pytest.mark.parametrize("place", ["next", "ack"])
def test_one_that_breaks_is_closed_and_opened_again_at_its_position(tmp_path: Path, place: str) -> None:
    story: list[str] = []

    class Counting(AsyncSpout[Line]):
        broken = False
        at = 0

        async def open(self, context: object) -> None:
            story.append("open")

        async def next(self) -> Emit[Line]:
            if self.at == 3:
                raise EndOfInput
            if place == "next" and self.at == 2:
                self.break_once()
            self.at += 1
            return Emit(Line(str(self.at)), self.at)

        async def ack(self, message_id: MessageId) -> None:
            if place == "ack":
                self.break_once()

        def break_once(self) -> None:
            if not Counting.broken:
                Counting.broken = True
                raise OSError("gone")

        def snapshot(self) -> int:
            return self.at

        def restore(self, position: Any) -> None:
            self.at = position

        async def close(self) -> None:
            await asyncio.sleep(0.01)
            story.append("close")

    handle = begin(sourced(Counting()), tmp_path / "state")
    handle._policy = Impatient()  # type: ignore[assignment]
    summary = handle.wait(HANG_S)
    assert (summary.emitted, summary.acked) == (3, 3)
    assert story == ["open", "close", "open", "close"]


def test_an_ack_that_never_ends_is_named_and_does_not_block_a_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CallRunner.settle, "__defaults__", (0.4,))
    reached = threading.Event()

    class Hanging(Queue):
        async def ack(self, message_id: MessageId) -> None:  # type: ignore[override]  # either may be
            reached.set()
            await asyncio.Event().wait()

    source = Hanging()
    handle = begin(sourced(source), tmp_path / "state")
    source.put("a", "b")
    assert reached.wait(HANG_S)
    handle.stop(drain_timeout_s=0.1)
    handle.wait(HANG_S)
    assert "callbacks of async components have not ended" in caplog.text
    assert source.story[-1] == "close"


def test_ten_thousand_messages_in_batches_are_each_acked_once(tmp_path: Path) -> None:
    acked: list[MessageId] = []

    class Batches(AsyncSpout[Line]):
        at = 0

        async def next(self) -> list[Emit[Line]]:
            if self.at == 10_000:
                raise EndOfInput
            await asyncio.sleep(0)
            batch = [Emit(Line("x"), number) for number in range(self.at, self.at + 50)]
            self.at += 50
            return batch

        def ack(self, message_id: MessageId) -> None:
            acked.append(message_id)

    assert run(sourced(Batches()), tmp_path / "state", max_spout_pending=500).acked == 10_000
    assert sorted(acked) == list(range(10_000))
