"""How a message is tried again that failed is the bolt's own choice, and what a service asks for is kept to."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.local.running import run as run_locally
from tests.ordinary.conftest import InProcess
from tests.tasks.driving import Driver
from tests.tasks.streams import Line, Word
from tupletree import (
    Bolt,
    Collector,
    ConnectorError,
    Emit,
    EndOfInput,
    Retry,
    RetryAfter,
    Spout,
    TaskContext,
    Topology,
    TopologyError,
    arrow_bolt,
    batch_bolt,
    bolt,
    testing,
)
from tupletree.sinks import foreach
from tupletree.sources import items
from tupletree.testing.kit.reports import MessageReport
from tupletree.topology.components import Sink, SinkBatch
from tupletree.tracking.outcomes import Failure

RAISES: dict[str, Callable[[], BaseException]] = {
    "value": lambda: ValueError("bad"),
    "unicode": lambda: UnicodeError("bad"),
    "key": lambda: KeyError("bad"),
    "timeout": lambda: TimeoutError("slow"),
    "reset": lambda: ConnectionResetError("gone"),
    "file": lambda: FileNotFoundError("no file"),
    "away": lambda: ConnectorError("away"),
    "later": lambda: RetryAfter(60, "busy"),
}
CALLS: list[float] = []
"""When calls were made, by the run's clock."""


def meet(text: str, context: TaskContext) -> None:
    CALLS.append(context.epoch_time_s)
    name, _, times = text.partition(" ")
    if name in RAISES and len(CALLS) <= int(times or 1_000):
        error = RAISES[name]()
        raise error


@bolt
def plain(line: Line, context: TaskContext) -> Word:
    meet(line.text, context)
    return Word(line.text)


@bolt
async def waits(line: Line, context: TaskContext) -> Word:
    meet(line.text, context)
    return Word(line.text)


@batch_bolt(size=1)
def batches(lines: list[Line], context: TaskContext) -> list[Word]:
    meet(lines[0].text, context)
    return [Word(lines[0].text)]


@arrow_bolt(inputs=Line, outputs=Word)
def columns(lines: pa.RecordBatch, context: TaskContext) -> pa.RecordBatch:
    meet(lines["text"][0].as_py(), context)
    return pa.RecordBatch.from_pydict({"word": lines["text"]})


class ByHand(Bolt[Line]):
    auto_ack = False

    def open(self, context: TaskContext) -> None:
        self.context = context

    def process(self, line: Line, collector: Collector[Word]) -> None:
        try:
            meet(line.text, self.context)
        except ConnectorError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it met fails the tuple
            collector.fail(line, error)
        else:
            collector.emit(Word(line.text))
            collector.ack(line)


EVERY_KIND = [plain, waits, batches, columns, ByHand]


def of(work: Any, retry: Retry | None) -> Topology:
    t = Topology("policy")
    done = t.bolt("work", work, retry=retry).shuffle(t.spout("lines", items([Line("")])))
    t.sink("out", foreach(lambda _: None)).shuffle(done)
    return t


def try_one(
    text: str, retry: Retry | None = None, work: Any = plain, **options: Any
) -> tuple[MessageReport, list[float]]:
    """One message on virtual time: what became of it, and the pauses between its calls."""
    CALLS.clear()
    settings = {"backoff_jitter": 0.0, **options}
    ended = testing.run(of(work, retry), {"lines": [Line(text)]}, options=settings, at_most_s=36_000.0)
    return ended.messages["lines"][0], [round(later - before, 1) for before, later in pairwise(CALLS)]


@pytest.mark.parametrize("work", EVERY_KIND)
def test_a_bolt_chooses_attempts_and_pauses_by_class_of_exception(work: Any) -> None:
    on: dict[type[BaseException], Retry] = {ValueError: Retry.NEVER, KeyError: Retry(attempts=3, factor=10)}
    policy = Retry(attempts=6, backoff_s=1, max_s=5, on=on)
    dead, pauses = try_one("timeout", policy, work)
    assert (dead.dead, dead.attempts, pauses) == (True, 6, [1, 2, 4, 5, 5])
    assert try_one("unicode", policy, work)[0].attempts == 1
    dead, pauses = try_one("key", policy, work)
    assert (dead.attempts, pauses) == (3, [1, 5])


@pytest.mark.parametrize("work", EVERY_KIND)
def test_a_call_that_asks_for_a_pause_gets_it(work: Any) -> None:
    acked, pauses = try_one("later 2", None, work, backoff_max_ms=10.0)
    assert (acked.acked, acked.attempts, pauses) == (True, 3, [60, 60])
    dead, pauses = try_one("later", Retry(attempts=2, max_s=1), work)
    assert (dead.dead, pauses) == (True, [60])
    assert dead.failure is not None
    assert dead.failure.error.startswith("busy")


def test_a_service_that_is_flaky_has_two_minutes_by_default_and_what_else_fails_has_not() -> None:
    for name in ("timeout", "reset"):
        dead, pauses = try_one(name)
        assert (dead.attempts, pauses) == (5, [0.5, 3, 18, 108])
    for name in ("value", "file"):
        dead, pauses = try_one(name)
        assert (dead.attempts, pauses) == (5, [0.1, 0.2, 0.4, 0.8])
    assert try_one("timeout", Retry(backoff_s=1))[1] == [1, 2, 4, 8]
    assert try_one("timeout", Retry(attempts=3))[1] == [0.5, 3]
    assert try_one("timeout", service_backoff_initial_ms=100.0, service_backoff_factor=1.0)[1] == [0.1] * 4


@pytest.mark.parametrize("work", EVERY_KIND)
def test_any_exception_can_be_an_outage_that_no_message_is_to_blame_for(work: Any) -> None:
    if work is ByHand:
        return  # it fails its tuples itself
    acked, pauses = try_one("key 40", Retry(on={LookupError: Retry.OUTAGE}), work, max_attempts=1)
    assert (acked.acked, acked.attempts, len(pauses)) == (True, 1, 40)
    assert max(pauses) <= 1.5


@pytest.mark.parametrize("work", EVERY_KIND)
def test_a_bolt_may_count_an_outage_as_a_failure(work: Any) -> None:
    dead, _ = try_one("away", Retry(on={ConnectorError: Retry(attempts=2)}), work)
    assert (dead.dead, dead.attempts) == (True, 2)


def test_other_bolts_go_by_the_options() -> None:
    t = Topology("two")
    lines = t.spout("lines", items([Line("")]))
    first = t.bolt("first", plain, retry=Retry(attempts=8, backoff_s=0)).shuffle(lines)

    @bolt
    def second(word: Word) -> None:
        raise ValueError(word.word)

    t.bolt("second", second).shuffle(first)
    CALLS.clear()
    ended = testing.run(t, {"lines": [Line("value 2")]}, options={"max_attempts": 3})
    assert ended.messages["lines"][0].attempts == 3


# --- on Spark ---------------------------------------------------------------------------------------------------------


def timed(text: str, retry: Retry | None, run: Callable[[Topology], Any]) -> tuple[Any, list[float]]:
    CALLS.clear()
    t = Topology("policy")
    done = t.bolt("work", wall, retry=retry).shuffle(t.spout("lines", items([Line(text)])))
    t.sink("out", foreach(lambda _: None)).shuffle(done)
    return run(t), [later - before for before, later in pairwise(CALLS)]


@bolt
def wall(line: Line) -> Word:
    CALLS.append(time.monotonic())
    name, _, times = line.text.partition(" ")
    if name == "soon":
        raise RetryAfter(0.2)
    if name in RAISES and len(CALLS) <= int(times or 1_000):
        error = RAISES[name]()
        raise error
    return Word(line.text)


@pytest.mark.parametrize("runtime", ["local", "spark"])
def test_both_runtimes_keep_to_the_policy(tmp_path: Path, in_process: InProcess, runtime: str) -> None:
    def run(t: Topology) -> Any:
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        return run_locally(t, place) if runtime == "local" else in_process(t, place)

    on: dict[type[BaseException], Retry] = {ValueError: Retry.NEVER, LookupError: Retry.OUTAGE}
    policy = Retry(attempts=3, backoff_s=0.01, on=on)
    summary, pauses = timed("timeout", policy, run)
    assert (summary.dead, summary.failed) == (1, 3)
    assert max(pauses) < 2.0
    summary, _ = timed("unicode", policy, run)
    assert (summary.dead, summary.failed) == (1, 1)
    summary, _ = timed("key 3", policy, run)
    assert (summary.acked, summary.failed) == (1, 0)
    summary, pauses = timed("soon", policy, run)
    assert (summary.dead, summary.failed) == (1, 3)
    assert len(pauses) == 2
    assert min(pauses) >= 0.2


# --- whose rule it is -------------------------------------------------------------------------------------------------


class Asked(Spout[Line]):
    """Emits its message again when it is told that an attempt failed, and notes what it is told."""

    def open(self, context: TaskContext) -> None:
        self.left = 1

    def next(self) -> Emit[Line] | None:
        if self.left:
            self.left = 0
            return Emit(Line("value"), 1)
        if len(TOLD) == 2:
            raise EndOfInput
        return None

    def fail(self, message_id: Any, failure: Failure) -> None:
        TOLD.append(failure)
        self.left = not failure.permanent


TOLD: list[Failure] = []


def test_a_source_that_replays_finds_the_rule_of_the_bolt_in_the_failure() -> None:
    TOLD.clear()
    t = Topology("asked")
    t.sink("out", Refusing()).shuffle(
        t.bolt("work", plain, retry=Retry(attempts=2, backoff_s=7.0)).shuffle(
            t.spout("lines", Asked(), replay="source")
        )
    )
    Driver(t).run()
    rules = [failure.retry for failure in TOLD]
    assert [(rule.attempts, rule.backoff_s) for rule in rules if rule is not None] == [(2, 7.0)] * 2


class Refusing(Sink[Word]):
    def write(self, batch: SinkBatch[Word]) -> None:
        raise ValueError("refused")


@bolt(auto_ack=False)
def keeps(line: Line, out: Collector[Word]) -> None:
    """Never settles its tuple, so that its message times out."""


@pytest.mark.parametrize(("work", "kind"), [(plain, "publish_failed"), (keeps, "timeout")])
def test_what_times_out_or_is_refused_by_a_sink_goes_by_the_options(work: Any, kind: str) -> None:
    t = Topology("options", options={"max_attempts": 3, "message_timeout_s": 1.0})
    done = t.bolt("work", work, retry=Retry(attempts=5, backoff_s=60.0)).shuffle(t.spout("lines", items([Line("")])))
    t.sink("out", Refusing()).shuffle(done)
    driver = Driver(t)
    began_s = driver.now_s
    driver.run()
    assert [(died.attempts, died.failure.kind.value) for died in driver.died] == [(3, kind)]
    assert driver.now_s - began_s < 60.0


# --- sinks ------------------------------------------------------------------------------------------------------------


class Flaky(Sink[Word]):
    """Raises for its first calls, and notes when it was called."""

    def __init__(self, error: BaseException, times: int) -> None:
        self.error, self.times = error, times

    def write(self, batch: SinkBatch[Word]) -> None:
        CALLS.append(time.monotonic())
        if len(CALLS) <= self.times:
            raise self.error


@pytest.mark.parametrize("runtime", ["local", "spark"])
def test_a_sink_has_a_policy_of_its_own(tmp_path: Path, in_process: InProcess, runtime: str) -> None:
    def written(error: BaseException, times: int, retry: Retry | None) -> Any:
        CALLS.clear()
        t = Topology("sinks")
        t.sink("out", Flaky(error, times), retry=retry).shuffle(
            t.bolt("same", same).shuffle(t.spout("s", items([Line("")])))
        )
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        return run_locally(t, place) if runtime == "local" else in_process(t, place)

    on: dict[type[BaseException], Retry] = {KeyError: Retry.NEVER, LookupError: Retry.OUTAGE}
    policy = Retry(attempts=3, backoff_s=0.01, on=on)
    assert (written(ValueError("busy"), 2, policy).acked, len(CALLS)) == (1, 3)
    assert (written(ValueError("busy"), 9, policy).dead, len(CALLS)) == (1, 3)
    assert (written(KeyError("no"), 9, policy).dead, len(CALLS)) == (1, 1)
    ended = written(LookupError("away"), 4, policy)
    assert (ended.acked, ended.failed, len(CALLS)) == (1, 0, 5)
    assert (written(RetryAfter(0.2), 1, None).acked, len(CALLS)) == (1, 2)
    assert CALLS[1] - CALLS[0] >= 0.2


@bolt
def same(line: Line) -> Word:
    return Word(line.text)


def test_what_a_sink_is_given_is_checked() -> None:
    t = Topology("wrong")
    t.sink("out", foreach(print), retry=Retry(attempts=0)).shuffle(t.spout("s", items([Line("")])))
    with pytest.raises(TopologyError, match="retry= is out of range: attempts"):
        t.build()
