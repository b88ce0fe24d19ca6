"""A bolt is called as often as a service allows, and nobody's message dies of the wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.local.running import run as run_locally
from tests.ordinary.conftest import InProcess
from tests.tasks.streams import Line, Word
from tupletree import (
    Bolt,
    Collector,
    ConnectorError,
    TaskContext,
    Tick,
    Topology,
    TopologyError,
    batch_bolt,
    bolt,
    testing,
)
from tupletree.clock import ManualClock
from tupletree.runtimes.spark.worker import pacing
from tupletree.sinks import foreach
from tupletree.sources import items

CALLS: list[float] = []
"""When calls were made, by the run's clock."""


@bolt
def words(line: Line) -> Iterator[Word]:
    return map(Word, line.text.split())


@bolt
def plain(word: Word, context: TaskContext) -> Word:
    CALLS.append(context.epoch_time_s)
    return word


@bolt(blocking=True)
def blocking(word: Word, context: TaskContext) -> Word:
    CALLS.append(context.epoch_time_s)
    return word


@bolt(concurrency=8)
async def waits(word: Word, context: TaskContext) -> Word:
    CALLS.append(context.epoch_time_s)
    return word


@bolt(tick_interval_s=0.1)
def ticked(word: Word | Tick, context: TaskContext) -> Word | None:
    if isinstance(word, Tick):
        return None
    CALLS.append(context.epoch_time_s)
    return word


class ByHand(Bolt[Word]):
    def open(self, context: TaskContext) -> None:
        self.context = context

    def process(self, word: Word, collector: Collector[Word]) -> None:
        CALLS.append(self.context.epoch_time_s)
        collector.emit(word)
        collector.ack(word)


class Waits(Bolt[Word]):
    def open(self, context: TaskContext) -> None:
        self.context = context

    async def process(self, word: Word, collector: Collector[Word]) -> None:
        CALLS.append(self.context.epoch_time_s)
        collector.emit(word)


EVERY_KIND = [plain, blocking, waits, ticked, ByHand, Waits]


def of(work: Any, max_rate: float | None, parallelism: int = 1) -> Topology:
    t = Topology("limited")
    split = t.bolt("words", words).shuffle(t.spout("lines", items([Line("")])))
    done = t.bolt("work", work, max_rate=max_rate, parallelism=parallelism).shuffle(split)
    t.sink("out", foreach(lambda _: None)).shuffle(done)
    return t


@pytest.mark.parametrize("work", EVERY_KIND)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_bolt_is_called_at_its_rate_however_many_tuples_come(work: Any, parallelism: int) -> None:
    CALLS.clear()
    lines = [Line("a b c d e f g h i j"), *(Line(f"word{number}") for number in range(20))]
    ended = testing.run(of(work, 10.0, parallelism), {"lines": lines})
    assert all(message.acked and message.attempts == 1 for message in ended.messages["lines"])
    assert len(CALLS) == 30
    calls = sorted(CALLS)
    for start_s in calls:
        assert sum(start_s <= at_s < start_s + 1.0 for at_s in calls) <= 10 + parallelism
    assert 2.0 <= calls[-1] - calls[0] <= 4.0


def test_messages_that_wait_for_their_turn_do_not_time_out() -> None:
    CALLS.clear()
    lines = [Line(f"word{number}") for number in range(100)]
    options = {"max_spout_pending": 100, "message_timeout_s": 2.0, "max_attempts": 1}
    for work in (plain, waits):
        ended = testing.run(of(work, 1.0), {"lines": lines}, options=options)
        assert all(message.acked for message in ended.messages["lines"])
        assert ended.seconds >= 98.0


@pytest.mark.parametrize("work", EVERY_KIND)
def test_on_spark_a_stage_waits_before_each_call(
    tmp_path: Path, in_process: InProcess, monkeypatch: pytest.MonkeyPatch, work: Any
) -> None:
    CALLS.clear()
    clock, slept = ManualClock(), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(seconds)

    async def come(self: pacing.Pacing) -> None:
        self.wait()

    monkeypatch.setattr(pacing, "monotonic", clock.monotonic)
    monkeypatch.setattr(pacing, "sleep", sleep)
    monkeypatch.setattr(pacing.Pacing, "come", come)
    t = Topology("limited")
    texts = [Line("a b c d e f g h i j"), *(Line(f"word{number}") for number in range(20))]
    split = t.bolt("words", words).shuffle(t.spout("lines", items(texts)))
    done = t.bolt("work", work, max_rate=10.0, parallelism=2).shuffle(split)
    t.sink("out", foreach(lambda _: None)).shuffle(done)
    assert in_process(t, tmp_path).acked == 21
    assert len(CALLS) == 30
    # In one process the two tasks come one after the other; each waits as if the other were called, too.
    assert 30 * 0.2 - 1e-6 <= sum(slept) <= 30 * 0.2 + 2.0


def test_a_run_with_real_clocks_keeps_the_rate(tmp_path: Path) -> None:
    CALLS.clear()
    t = Topology("limited")
    split = t.bolt("words", words).shuffle(t.spout("lines", items([Line(f"word{number}") for number in range(20)])))
    done = t.bolt("work", plain, max_rate=100.0).shuffle(split)
    t.sink("out", foreach(lambda _: None)).shuffle(done)
    assert run_locally(t, tmp_path).acked == 20
    assert max(CALLS) - min(CALLS) >= 0.13


@batch_bolt(size=2)
def batches(batch: list[Word]) -> None: ...


@pytest.mark.parametrize(
    ("work", "max_rate", "what"),
    [
        (plain, 0, "out of range"),
        (plain, -1.0, "out of range"),
        (plain, float("nan"), "out of range"),
        (plain, True, "out of range"),
        (plain, "10", "out of range"),
        (batches, 10.0, "calls have several"),
    ],
)
def test_what_cannot_be_limited_is_said_at_once(work: Any, max_rate: Any, what: str) -> None:
    t = Topology("wrong")
    t.bolt("work", work, max_rate=max_rate, unconsumed=Word).shuffle(
        t.bolt("words", words).shuffle(t.spout("lines", items([Line("")])))
    )
    with pytest.raises(TopologyError) as caught:
        t.build()
    assert Counter(what in finding.what for finding in caught.value.findings)[True] == 1


@bolt
def fails_once(word: Word, context: TaskContext) -> None:
    CALLS.append(context.epoch_time_s)
    if context.attempt == 1:
        raise ValueError("again")


@bolt
def asks(word: Word, context: TaskContext) -> None:
    CALLS.append(context.epoch_time_s)
    if context.epoch_time_s - CALLS[0] < 5.0:
        raise ConnectorError("the service is away")


def test_calls_of_later_attempts_count_and_those_that_look_for_the_end_of_an_outage_do_not() -> None:
    CALLS.clear()
    lines = [Line(f"word{number}") for number in range(20)]
    testing.run(
        without_rows(fails_once), {"lines": lines}, options={"max_spout_pending": 20, "backoff_initial_ms": 1.0}
    )
    assert len(CALLS) == 40
    assert max(CALLS) - min(CALLS) >= 39 / RATE - 0.1
    CALLS.clear()
    testing.run(without_rows(asks), {"lines": lines[:2]})
    assert len(CALLS) > 5.0 * RATE, "the rate alone would allow fewer in the 5 s of the outage"


RATE = 0.5


def without_rows(work: Any) -> Topology:
    t = Topology("limited")
    t.bolt("work", work, max_rate=RATE).shuffle(t.bolt("words", words).shuffle(t.spout("lines", items([Line("")]))))
    return t
