"""Long loops: whatever happens however often, memory, threads and handles go back to where they were."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest

from tests.local.running import HANG_S, begin
from tests.scenarios.story import Story
from tests.tasks.streams import Gathering, Line, Script, Word, lines
from tupletree import Collector, Emit, Topology, bolt

pytestmark = pytest.mark.stress


def open_handles() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


@bolt(auto_ack=False)
def misbehave(line: Line, out: Collector[Word]) -> None:
    """Fail it, or never say anything about it."""
    if line.text == "fail":
        out.fail(line, "on purpose")


def test_after_200000_failures_and_50000_timeouts_nothing_is_tracked_any_more() -> None:
    failing = [Emit(Line("fail"), number) for number in range(200_000)]
    silent = [Emit(Line("silence"), number) for number in range(200_000, 250_000)]
    messages = failing + silent
    script = Script((messages[start : start + 1000] for start in range(0, len(messages), 1000)), ends=False)
    t = Topology("misbehaving")
    t.sink("out", Gathering()).shuffle(t.bolt("misbehave", misbehave).shuffle(t.spout("lines", script)))
    story = Story(t, max_attempts=1, max_spout_pending=1000, epoch_max_messages=1000)
    story.settle(limit=10_000_000)
    while script.steps or story.spout.open_count:
        story.wait(60.0)
        story.died.clear()
    assert len(script.failed) == 250_000
    assert len({message_id for message_id, _ in script.failed}) == 250_000
    story.wait(120.0)  # until late words would have been forgotten
    assert story.ackers[0].size == 0
    assert (story.spout.pending.size, story.attempts) == (0, {})
    assert story.sinks[0].held == 0


def test_a_hundred_starts_and_stops_leave_no_thread_and_no_handle(tmp_path: Path) -> None:
    @bolt(blocking=True)
    def split(line: Line) -> Word:
        return Word(line.text)

    def once(number: int) -> None:
        acked = threading.Event()

        class Telling(Script):
            def ack(self, message_id: object) -> None:
                acked.set()

        t = Topology("again")
        t.sink("out", Gathering()).shuffle(
            t.bolt("split", split, parallelism=3).shuffle(t.spout("lines", Telling([lines("a")], ends=False)))
        )
        handle = begin(t, tmp_path / f"state-{number}")
        assert acked.wait(HANG_S)
        handle.stop()
        handle.wait(HANG_S)

    once(0)
    gc.collect()
    threads, handles = threading.active_count(), open_handles()
    for number in range(1, 101):
        once(number)
    gc.collect()
    assert threading.active_count() == threads
    assert open_handles() == handles
