"""Which bolt is slow is told while the run goes on: tuples and time of each, by status, metrics and the handle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.local.running import HANG_S, begin
from tests.ordinary.conftest import begin_in_process
from tests.tasks.streams import Line, Script, Word, lines
from tests.until import until
from tupletree import Emit, Topology, Window, batch_bolt, bolt, window_bolt
from tupletree.runtimes.api import RunHandle
from tupletree.runtimes.metrics import RunCollector
from tupletree.sinks import foreach
from tupletree.sources import items

SLOW_S = 0.005
Begin = Callable[..., RunHandle]
EACH = pytest.mark.parametrize("begins", [begin, begin_in_process], ids=["local", "in process"])


@bolt
def split(line: Line) -> list[Word]:
    return [Word(word) for word in line.text.split()]


@bolt
def slow(word: Word) -> Word:
    time.sleep(SLOW_S)  # it is the time that is told
    return word


@bolt(concurrency=8)
async def asks(word: Word) -> Word:
    await asyncio.sleep(SLOW_S)  # as above
    return word


@batch_bolt(size=10, max_age_s=0.01)
def gather(words: list[Word]) -> None:
    time.sleep(SLOW_S)  # as above


@window_bolt(count=5)
def window(words: Window[Word]) -> Word:
    time.sleep(SLOW_S)  # as above
    return Word(str(len(words.tuples)))


@EACH
def test_tuples_and_time_of_each_bolt_are_told(tmp_path: Path, begins: Begin) -> None:
    t = Topology("slow")
    words = t.bolt("split", split).shuffle(t.spout("lines", items([Line("a b c d e")] * 10)))
    t.sink("out", foreach(lambda _: None)).shuffle(t.bolt("slow", slow, parallelism=2).shuffle(words))
    t.sink("asked", foreach(lambda _: None)).shuffle(t.bolt("asks", asks).shuffle(words))
    t.bolt("gather", gather).shuffle(words)
    t.sink("windows", foreach(lambda _: None)).shuffle(t.bolt("window", window).shuffle(words))
    handle = begins(t, tmp_path / "state")
    assert handle.wait(HANG_S).acked == 10
    work = handle.progress().work
    assert {name: done.tuples for name, done in work.items()} == {
        "split": 10,
        **dict.fromkeys(("slow", "asks", "gather", "window"), 50),
    }
    assert work["slow"].seconds >= 50 * SLOW_S
    assert work["gather"].seconds >= 5 * SLOW_S
    assert work["window"].seconds >= 10 * SLOW_S
    assert work["slow"].tuple_ms >= 1000 * SLOW_S
    assert work["split"].tuple_ms < work["slow"].tuple_ms
    collected = {one.name: one for one in RunCollector(handle, "slow", "any").collect()}
    counted = {one.labels["component"]: one.value for one in collected["tupletree_bolt_tuples"].samples}
    assert counted == {name: done.tuples for name, done in work.items()}


@EACH
def test_status_has_a_line_for_each_bolt_the_slowest_first(tmp_path: Path, begins: Begin, run: Run) -> None:
    t = Topology("slow")
    words = t.bolt("split", split).shuffle(
        t.spout("lines", Script([[Emit(Line("a b"), number)] for number in range(20)], ends=False))
    )
    t.sink("out", foreach(lambda _: None)).shuffle(t.bolt("slow", slow).shuffle(words))
    handle = begins(t, tmp_path / "state")
    until(lambda: "slow" in handle.progress().work and handle.progress().acked == 20)
    until(lambda: "40 tuples" in run("status", "--state-dir", tmp_path / "state").out)
    first, second = (
        line for line in run("status", "--state-dir", tmp_path / "state").out.splitlines() if " bolt " in line
    )
    handle.stop()
    assert first.split()[:2] == ["bolt", "slow"]
    assert "ms per tuple, 40 tuples, " in first
    assert second.split()[:2] == ["bolt", "split"]


def test_after_a_restart_the_numbers_go_on(tmp_path: Path) -> None:
    class Breaking(Script):
        def next(self) -> Any:
            given = super().next()
            if given is None and self.life.count("open") == 1:
                raise OSError("the source broke")
            return given

    t = Topology("slow")
    script = Breaking([lines("a", "b", "c")], ends=False)
    t.sink("out", foreach(lambda _: None)).shuffle(t.bolt("split", split).shuffle(t.spout("lines", script)))
    handle = begin(t, tmp_path / "state", backoff_initial_ms=1.0)
    until(lambda: handle.progress().work.get("split") is not None and script.life.count("open") == 2)
    assert handle.progress().work["split"].tuples >= 3
    handle.stop()
