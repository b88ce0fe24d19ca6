"""The clock was wrong, or that of another machine is behind: what waits for a time does not wait for the difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ordinary.conftest import begin_in_process
from tests.spark.tapped import wait_until
from tupletree import TaskContext, Topology, bolt, run
from tupletree.clock import SystemClock
from tupletree.errors import RetryAfter
from tupletree.runtimes.api import RunHandle
from tupletree.runtimes.local import runtime as local_runtime
from tupletree.runtimes.spark import runtime as spark_runtime
from tupletree.sinks import foreach
from tupletree.sources import Line, text_lines

HANG_S = 20.0
"""Far less than the clock was set back by."""


class Stepped(SystemClock):
    """The machine's clock, after somebody set it."""

    by_s = 3600.0

    def wall(self) -> float:
        return super().wall() + self.by_s


@bolt
def asks_for_a_pause(line: Line, context: TaskContext) -> Line:
    if line.number == 2 and context.attempt == 1:
        raise RetryAfter(0.5)
    return line


@pytest.mark.parametrize("runtime", ["local", "spark"])
def test_a_message_that_waits_for_its_next_attempt_over_a_restart_waits_no_longer(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_runtime, "SystemClock", Stepped)
    monkeypatch.setattr(spark_runtime, "SystemClock", Stepped)
    (tmp_path / "in.txt").write_text("a\nb\nc\n")
    state, rows = tmp_path / "state", list[str]()

    def begin() -> RunHandle:
        t = Topology("stepped")
        lines = t.bolt("asks", asks_for_a_pause).shuffle(t.spout("lines", text_lines([tmp_path / "in.txt"])))
        t.sink("out", foreach(lambda batch: rows.extend(row.text for row in batch))).shuffle(lines)
        if runtime == "spark":
            return begin_in_process(t, state)
        return run(t, runtime="local", state_dir=state, options={"durable": True, "drain_timeout_s": 0.0})

    first = begin()
    wait_until(first, lambda progress: progress.failed >= 1 and progress.acked == 2)
    first.stop(0.0)
    assert first.wait(HANG_S).open == 1
    monkeypatch.setattr(Stepped, "by_s", 0.0)
    summary = begin().wait(HANG_S)
    assert (summary.acked, summary.failed, summary.open) == (3, 1, 0)
    assert sorted(rows) == ["a", "b", "c"]
