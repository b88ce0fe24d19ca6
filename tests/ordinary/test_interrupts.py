"""A KeyboardInterrupt that user code raises is no Ctrl-C: it fails its message, and neither ends nor restarts a run."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.local.running import begin
from tests.local.running import run as run_locally
from tests.ordinary.conftest import InProcess
from tests.spark.conftest import RunTopology
from tests.tasks.streams import Line, Script, Word, lines
from tupletree import AsyncSpout, Collector, Topology, batch_bolt, bolt, testing
from tupletree.errors import TupletreeError
from tupletree.runtimes import deadletters
from tupletree.runtimes.api import RunHandle
from tupletree.sinks import foreach
from tupletree.sources import items

ERRORS: dict[str, type[BaseException]] = {"ctrl-c": KeyboardInterrupt, "exit": SystemExit, "close": GeneratorExit}


@bolt
def plain(line: Line) -> Word:
    if line.text in ERRORS:
        raise ERRORS[line.text](line.text)
    return Word(line.text)


@bolt
def emitting(line: Line, collector: Collector[Word]) -> None:
    collector.emit(plain(line))


@bolt(concurrency=2)
async def waiting(line: Line) -> Word:
    return plain(line)


@batch_bolt(size=3)
def batched(batch: list[Line]) -> list[Word]:
    return [plain(line) for line in batch]


def take(batch: object) -> None:
    pass


KINDS: dict[str, Any] = {"plain": plain, "emitting": emitting, "waiting": waiting, "batched": batched}
TEXTS = ["a", *ERRORS, "b", "c"]


def every_kind() -> Topology:
    t = Topology("interrupts")
    source = t.spout("lines", items([Line(text) for text in TEXTS]))
    for name, kind in KINDS.items():
        t.sink(f"{name}_out", foreach(take)).shuffle(t.bolt(name, kind).shuffle(source))
    return t


def check(summary: Any, state: Path) -> None:
    assert (summary.acked, summary.dead, summary.open) == (3, 3, 0)
    types = sorted(letter.failure.error_type for letter in deadletters.read(state))
    assert types == ["GeneratorExit", "KeyboardInterrupt", "SystemExit"]


def test_an_interrupt_that_a_bolt_raises_fails_its_message_locally(tmp_path: Path) -> None:
    check(run_locally(every_kind(), tmp_path, max_attempts=2, max_restarts=0), tmp_path)


def test_an_interrupt_that_a_bolt_raises_fails_its_message_in_the_stages_of_spark(
    tmp_path: Path, in_process: InProcess
) -> None:
    check(in_process(every_kind(), tmp_path / "state", max_attempts=2, max_restarts=0), tmp_path / "state")


@pytest.mark.spark
def test_an_interrupt_that_a_bolt_raises_fails_its_message_on_spark(tmp_path: Path, run_topology: RunTopology) -> None:
    check(run_topology(every_kind(), tmp_path / "state", max_attempts=2, max_restarts=0), tmp_path / "state")


def test_an_interrupt_that_a_bolt_raises_fails_its_message_in_a_test() -> None:
    ended = testing.run(every_kind(), options={"max_attempts": 2})
    assert [one.acked for one in ended.messages["lines"]] == [True, False, False, False, True, True]


class Interrupting(Script):
    def next(self) -> Any:
        if self.asked == 1:
            self.asked += 1
            raise KeyboardInterrupt
        return super().next()


class InterruptingAsync(AsyncSpout[Line]):
    async def next(self) -> Any:
        raise KeyboardInterrupt


def test_an_interrupt_that_a_spout_raises_is_a_fault_and_does_not_reach_who_waits(tmp_path: Path) -> None:
    spouts: tuple[Any, ...] = (Interrupting(lines("a", "b")), InterruptingAsync())
    for number, spout in enumerate(spouts):
        t = Topology("interrupting")
        t.bolt("plain", plain, unconsumed=Word).shuffle(t.spout("lines", spout))
        with pytest.raises(TupletreeError, match="KeyboardInterrupt"):
            run_locally(t, tmp_path / str(number), max_restarts=0)


def _press_and_wait(handle: RunHandle) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    handle.wait(10)


def test_a_true_interrupt_reaches_who_waits_and_not_the_bolts(tmp_path: Path) -> None:
    at_work = threading.Event()

    @bolt(blocking=True)
    def slow(line: Line) -> Word:
        at_work.set()
        time.sleep(0.3)  # it is at work when the signal comes
        return Word(line.text)

    t = Topology("slow")
    t.bolt("slow", slow, unconsumed=Word).shuffle(t.spout("lines", items([Line("a")])))
    handle = begin(t, tmp_path)
    at_work.wait(10)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            _press_and_wait(handle)
    finally:
        signal.signal(signal.SIGINT, before)
    assert handle.wait(10).acked == 1


def test_a_true_interrupt_ends_a_test_run_also_where_a_bolt_is_at_work() -> None:
    @bolt
    def pressed(line: Line) -> Word:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)  # the handler of signals has its turn
        return Word(line.text)

    t = Topology("pressed")
    t.bolt("pressed", pressed, unconsumed=Word).shuffle(t.spout("lines", items([Line("a")] * 3)))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            testing.run(t)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@bolt
def press_in_worker(line: Line) -> Word:
    os.kill(os.getpid(), signal.SIGINT)
    return Word(line.text)


@pytest.mark.spark
def test_a_true_interrupt_leaves_a_worker_of_spark_at_work(tmp_path: Path, run_topology: RunTopology) -> None:
    """Ctrl-C reaches every process of a terminal; the driver drains, and needs its workers for that."""
    t = Topology("pressed")
    source = t.spout("lines", items([Line("a"), Line("b")]))
    t.sink("out", foreach(take)).shuffle(t.bolt("press", press_in_worker).shuffle(source))
    summary = run_topology(t, tmp_path / "state", max_attempts=1, max_restarts=0)
    assert (summary.acked, summary.failed) == (2, 0)
