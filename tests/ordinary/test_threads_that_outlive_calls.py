"""A thread that a bolt started emits after its call has ended: it is not done, and is told and counted."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.local.running import run
from tests.ordinary.conftest import InProcess
from tests.tasks.streams import Gathering, Line, Script, Word, lines
from tupletree import Bolt, Collector, ProcessingError, Topology
from tupletree.sinks import foreach
from tupletree.sources import items


class Late(Bolt[Line]):
    """Its thread emits when the task is closed, and keeps the error to itself, as a future does."""

    output_types = (Word,)

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.closing = threading.Event()

    def process(self, value: Line, collector: Collector[Word]) -> None:
        def emit() -> None:
            self.closing.wait()
            try:
                collector.emit(Word(value.text))
            except ProcessingError:
                return

        self.threads.append(threading.Thread(target=emit))
        self.threads[-1].start()

    def close(self) -> None:
        self.closing.set()
        for thread in self.threads:
            thread.join()


def test_emits_of_threads_that_outlive_the_last_call_are_told_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script, sink = Script([lines("a", "b", "c")]), Gathering()
    t = Topology("late-threads")
    t.sink("out", sink).shuffle(t.bolt("late", Late).shuffle(t.spout("lines", script)))
    summary = run(t, tmp_path / "state")
    assert (summary.acked, len(sink.rows)) == (3, 0)
    assert summary.untracked_failed == 3
    assert "late: 3 errors" in caplog.text
    assert "an emit outside of a call has no effect" in caplog.text
    assert "wait for the bolt's own threads" in caplog.text


def test_on_spark_they_are_told_and_counted_too(
    tmp_path: Path, in_process: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    t = Topology("late-threads")
    late = t.bolt("late", Late).shuffle(t.spout("lines", items([Line(text) for text in "abc"])))
    t.sink("out", foreach(lambda _: None)).shuffle(late)
    summary = in_process(t, tmp_path)
    assert (summary.acked, summary.untracked_failed) == (3, 3)
    assert "an emit outside of a call has no effect" in caplog.text
