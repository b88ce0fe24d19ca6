"""A systematic fault does not turn a whole input into dead letters: the run stops, or pauses, and says why."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.local.running import HANG_S, begin
from tests.ordinary.conftest import begin_in_process
from tests.tasks.streams import Line, Word
from tupletree import Emit, EndOfInput, PermanentError, Spout, TaskContext, Topology, bolt
from tupletree.cli.run import exit_code_of
from tupletree.config import Options
from tupletree.errors import ConfigError
from tupletree.runtimes.api import RunHandle, Summary
from tupletree.runtimes.control import status_of
from tupletree.sinks import foreach

RUNTIMES = ["local", "spark"]
COUNT = 3_000
IS_FIXED = threading.Event()
"""The fault is repaired: what runs in a stage of these tests runs in this process."""


@bolt
def picky(line: Line) -> Word:
    if line.text == "bad" and not IS_FIXED.is_set():
        raise PermanentError("never")
    return Word(line.text)


class Tens(Spout[Line]):
    """Gives ten at a time, from a position."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def open(self, context: TaskContext) -> None:
        self.at = 0

    def next(self) -> list[Emit[Line]]:
        if self.at >= len(self.texts):
            raise EndOfInput
        start, self.at = self.at, self.at + 10
        return [Emit(Line(text), start + number) for number, text in enumerate(self.texts[start : self.at])]

    def snapshot(self) -> int:
        return self.at

    def restore(self, position: int) -> None:
        self.at = position


def of(texts: list[str]) -> Topology:
    t = Topology("limited")
    t.sink("out", foreach(lambda _: None)).shuffle(t.bolt("picky", picky).shuffle(t.spout("lines", Tens(texts))))
    return t


def start(runtime: str, texts: list[str], place: Path, **options: Any) -> RunHandle:
    return (begin if runtime == "local" else begin_in_process)(of(texts), place, **options)


def ended(runtime: str, texts: list[str], place: Path, **options: Any) -> Summary:
    return start(runtime, texts, place, **options).wait(HANG_S)


@pytest.fixture(autouse=True)
def is_broken() -> None:
    IS_FIXED.clear()


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("limit", [20, "20", "10%", "0.5 %", 0])
def test_a_run_whose_messages_all_die_is_stopped(tmp_path: Path, runtime: str, limit: Any) -> None:
    # What is open when the limit is met may die, too: on Spark two epochs' messages at the most.
    summary = ended(runtime, ["bad"] * COUNT, tmp_path, max_dead=limit, epoch_max_messages=128)
    at_least = 101 if "%" in str(limit) else int(limit) + 1
    assert at_least - 1 <= summary.dead <= at_least + 512
    assert summary.reason.endswith(f"are dead: more than max_dead ({limit})")
    assert exit_code_of(summary, interrupted=False) == 5
    assert exit_code_of(summary, interrupted=True) == 130
    assert status_of(tmp_path).progress["reason"] == summary.reason


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(("limit", "share"), [("20%", 5), (5_000, 50), (None, 50)])
def test_a_run_within_the_limit_goes_on_to_its_end(tmp_path: Path, runtime: str, limit: Any, share: int) -> None:
    texts = ["bad" if number % (100 // share) == 0 else "good" for number in range(COUNT)]
    summary = ended(runtime, texts, tmp_path, max_dead=limit)
    assert (summary.dead, summary.open, summary.reason) == (COUNT * share // 100, 0, "")
    assert exit_code_of(summary, interrupted=False) == 3


def test_a_run_on_spark_that_was_stopped_goes_on_when_the_fault_is_repaired(tmp_path: Path) -> None:
    first = ended("spark", ["bad"] * COUNT, tmp_path, max_dead=20)
    IS_FIXED.set()
    second = ended("spark", ["bad"] * COUNT, tmp_path, max_dead=20)
    assert (second.dead, second.acked, second.reason) == (first.dead, COUNT - first.dead, "")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_run_can_pause_instead_and_counts_anew_when_it_is_resumed(tmp_path: Path, runtime: str) -> None:
    handle = start(runtime, ["bad"] * COUNT, tmp_path, max_dead=20, on_max_dead="pause")
    seen = threading.Event()

    def look(_: object) -> None:
        if handle.progress().state == "paused":
            seen.set()

    handle.on_progress(look)
    assert seen.wait(HANG_S)
    progress = handle.progress()
    assert "more than max_dead (20)" in progress.reason
    assert progress.dead < COUNT
    IS_FIXED.set()
    handle.resume()
    summary = handle.wait(HANG_S)
    assert (summary.acked + summary.dead, summary.open, summary.reason) == (COUNT, 0, "")
    assert summary.acked > 0


@pytest.mark.parametrize("limit", ["", "many", "1.5", "100%", "-1", -1, 1.5, "% 1", True])
def test_what_is_no_limit_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Options(max_dead=limit)
    assert "a whole number of messages, or a share such as 1%" in caught.value.findings[0].expected + str(caught.value)
