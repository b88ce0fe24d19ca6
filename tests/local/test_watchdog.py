"""The watchdog of a run: what hangs, and messages that can never be settled, are logged."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from tests.local.running import begin
from tests.tasks.driving import Driver
from tests.tasks.streams import Line, Script, Word, lines
from tests.until import PATIENCE_S, until
from tupletree import Collector, Topology, bolt
from tupletree.clock import ManualClock
from tupletree.config import Options
from tupletree.runtimes.local.assembly import Assembly
from tupletree.runtimes.local.watchdog import STALL_S, Watchdog
from tupletree.topology.components import Sink, SinkBatch


@bolt(auto_ack=False)
def lose_ten(line: Line, out: Collector[Word]) -> None:
    if not line.text.startswith("lost"):
        out.ack(line)


def test_with_timeouts_off_ten_lost_tuples_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    texts = [*("fine" for _ in range(90)), *(f"lost {number}" for number in range(10))]
    t = Topology("losing")
    t.bolt("lose", lose_ten, unconsumed=Word).shuffle(t.spout("lines", Script([lines(*texts)], ends=False)))
    options = Options(message_timeout_s=None)
    driver, clock = Driver(t, options), ManualClock()
    watch = Watchdog(Assembly(driver.plan, driver.machines, [], []), options, clock)
    watch.look()
    driver.settle()
    watch.look()
    clock.advance(STALL_S - 1.0)
    watch.look()
    assert caplog.text == ""
    clock.advance(2.0)
    watch.look()
    assert "10 messages are open, the oldest 90, 91, 92, 93, 94, 95, 96, 97, 98, 99" in caplog.text
    clock.advance(STALL_S)
    watch.look()
    assert len(caplog.records) == 1


def test_a_sink_that_has_been_in_one_call_for_long_is_named_with_its_stack(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    is_named = threading.Event()

    class Stuck(Sink[Line]):
        def write(self, batch: SinkBatch[Line]) -> None:
            assert is_named.wait(PATIENCE_S)

    t = Topology("stuck")
    t.sink("out", Stuck()).shuffle(t.spout("lines", Script([lines("a", "b")])))
    handle = begin(t, tmp_path / "state", processing_timeout_s=0.2)
    until(lambda: "has worked at one step for" in caplog.text)
    is_named.set()
    assert handle.wait(PATIENCE_S).acked == 2
    assert re.search(r"out, task \d+, has worked at one step for \d+ s; other tasks[\s\S]*is_named\.wait", caplog.text)
