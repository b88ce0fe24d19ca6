"""What is away for a while costs no message an attempt: minutes on virtual time, moments on real runtimes."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import sqlalchemy as sa

from tests.databases import need_postgres, postgres, query
from tests.local.running import begin
from tests.tasks.driving import Driver
from tests.until import until
from tupletree import (
    AsyncSpout,
    Bolt,
    Collector,
    Emit,
    EndOfInput,
    KeyedState,
    Spout,
    Topology,
    arrow_bolt,
    batch_bolt,
    bolt,
    testing,
)
from tupletree.clock import ManualClock
from tupletree.errors import ConnectorError, OutageLimitError
from tupletree.sinks import jsonl, sql
from tupletree.tasks import stalls
from tupletree.topology.components import Sink, SinkBatch, TaskContext
from tupletree.tracking.outages import LONGEST_PAUSE_S
from tupletree.tracking.outcomes import Failure, FailureKind


class M(msgspec.Struct, frozen=True):
    n: int


class R(msgspec.Struct, frozen=True):
    n: int


class Numbers(Spout[M]):
    """Messages 0 to n-1; remembers what it hears."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.acked: list[Any] = []
        self.failed: list[tuple[Any, Failure]] = []
        self.i = 0

    def open(self, context: TaskContext) -> None:
        self.i = 0

    def next(self) -> Emit[M]:
        if self.i >= self.n:
            raise EndOfInput
        self.i += 1
        return Emit(M(self.i - 1), self.i - 1)

    def ack(self, message_id: Any) -> None:
        self.acked.append(message_id)

    def fail(self, message_id: Any, failure: Failure) -> None:
        self.failed.append((message_id, failure))


class Service:
    """Something outside. It is away until `back_s`, by the clock that it is given; `calls` are those that it served."""

    def __init__(self, away_s: float = 0.0) -> None:
        self.away_s = away_s
        self.clock: Callable[[], float] = time.monotonic
        self.until_s = 0.0
        self.refused: list[float] = []
        self.calls: list[Any] = []

    def goes_away(self) -> None:
        self.until_s = self.clock() + self.away_s

    def call(self, what: Any) -> Any:
        now_s = self.clock()
        if now_s < self.until_s:
            self.refused.append(now_s)
            raise ConnectorError("the service is away")
        self.calls.append((now_s, what))
        return what

    @property
    def back_after_s(self) -> float:
        """How long after its return it was called."""
        first_s: float = min(now_s for now_s, _ in self.calls if now_s >= self.until_s)
        return first_s - self.until_s


SERVICE = Service()


def set_service(away_s: float, clock: Callable[[], float]) -> None:
    """Let it be away from now on, for so long."""
    SERVICE.__init__(away_s)  # type: ignore[misc]  # anew for each test
    SERVICE.clock = clock
    SERVICE.goes_away()


class Plain(Sink[R]):
    """Writes to a list."""

    def __init__(self) -> None:
        self.rows: list[R] = []

    def write(self, batch: SinkBatch[R]) -> None:
        self.rows += batch.rows


class CarryOver(Sink[R]):
    """Writes to a list, by way of the service; names each batch that it was given."""

    def __init__(self) -> None:
        self.rows: list[R] = []
        self.ids: list[str] = []

    def write(self, batch: SinkBatch[R]) -> None:
        self.ids.append(batch.id)
        SERVICE.call(batch.id)
        self.rows += batch.rows


@bolt
def same(m: M) -> R:
    return R(m.n)


def drive(topology: Topology, away_s: float) -> Driver:
    """Run a topology on virtual time while the service is away from the start."""
    drivers: list[Driver] = []
    set_service(away_s, lambda: drivers[0].now_s if drivers else 1000.0)
    drivers.append(Driver(topology))
    drivers[0].run()
    return drivers[0]


def check_all_acked(driver: Driver, source: Numbers) -> None:
    """All messages ended well in their first attempt, soon after the outage; it was called often, and not too often."""
    counters = driver.spouts[0].pending.counters
    assert sorted(source.acked) == list(range(source.n))
    assert (counters.acked, counters.failed, counters.retried, counters.dead) == (source.n, 0, 0, 0)
    assert not source.failed
    assert SERVICE.back_after_s <= LONGEST_PAUSE_S
    assert len(SERVICE.refused) <= 10 + SERVICE.away_s / LONGEST_PAUSE_S * 4
    assert any("the service is away" in note for note in driver.notes)
    assert any("the outage is over after" in note for note in driver.notes)


AWAY_S = 300.0


def topology(source: Spout[M], **options: Any) -> Topology:
    return Topology("outage", options={"message_timeout_s": 5.0, "max_attempts": 2, **options})


def test_a_sink_that_is_down_for_minutes_costs_no_message_anything() -> None:
    source, sink = Numbers(300), CarryOver()
    t = topology(source)
    t.sink("out", sink).shuffle(t.bolt("same", same).shuffle(t.spout("s", source)))
    driver = drive(t, AWAY_S)
    check_all_acked(driver, source)
    assert sorted(row.n for row in sink.rows) == list(range(300))
    assert len(dict.fromkeys(sink.ids)) < len(sink.ids) // 10  # the same batch comes again, under the same id


@bolt
def asks(m: M) -> R:
    SERVICE.call(m.n)
    return R(m.n)


@bolt
def asks_for_each(m: M) -> Iterator[R]:
    yield R(m.n)
    SERVICE.call(m.n)
    yield R(-m.n)


@bolt
def asks_by_hand(m: M, out: Collector[R]) -> None:
    out.emit(R(m.n))
    SERVICE.call(m.n)
    out.emit(R(-m.n))


@bolt(auto_ack=False)
def asks_and_acks(m: M, out: Collector[R]) -> None:
    SERVICE.call(m.n)
    out.emit(R(m.n))
    out.ack(m)


class Asks(Bolt[M]):
    def process(self, m: M, out: Collector[R]) -> None:
        out.emit(R(m.n))
        SERVICE.call(m.n)


class CannotOpen(Bolt[M]):
    def open(self, context: TaskContext) -> None:
        SERVICE.call("open")

    def process(self, m: M, out: Collector[R]) -> None:
        out.emit(R(m.n))


@bolt(state=int)
def counts(m: M, total: KeyedState[int]) -> R:
    total.value += 1
    SERVICE.call(m.n)
    return R(m.n + 1000 * total.value)


@batch_bolt(size=7)
def asks_in_batches(batch: list[M]) -> list[R]:
    SERVICE.call([m.n for m in batch])
    return [R(m.n) for m in batch]


@arrow_bolt(inputs=M, outputs=R)
def asks_in_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    SERVICE.call(batch.num_rows)
    return batch


NUMBERS = list(range(50))
TWICE = sorted([*NUMBERS, *(-n for n in NUMBERS)])


@pytest.mark.parametrize(
    ("work", "rows"),
    [
        (asks, NUMBERS),
        (asks_for_each, TWICE),
        (asks_by_hand, TWICE),
        (asks_and_acks, NUMBERS),
        (Asks, NUMBERS),
        (CannotOpen, NUMBERS),
        (asks_in_batches, NUMBERS),
        (asks_in_columns, NUMBERS),
    ],
)
@pytest.mark.parametrize("away_s", [0.0, 0.3, AWAY_S])
def test_a_bolt_whose_service_is_away_fails_no_message(work: Any, rows: list[int], away_s: float) -> None:
    source, sink = Numbers(50), Plain()
    t = topology(source)
    t.sink("out", sink).shuffle(t.bolt("work", work).shuffle(t.spout("s", source)))
    driver = drive(t, away_s)
    assert sorted(row.n for row in sink.rows) == rows
    if away_s:
        check_all_acked(driver, source)


@pytest.mark.parametrize("away_s", [0.3, AWAY_S])
def test_state_counts_a_call_once_that_met_an_outage(away_s: float) -> None:
    source, sink = Numbers(50), Plain()
    t = topology(source)
    t.sink("out", sink).shuffle(t.bolt("counts", counts).fields(t.spout("s", source), "n"))
    driver = drive(t, away_s)
    check_all_acked(driver, source)
    assert sorted(row.n for row in sink.rows) == [1000 + n for n in NUMBERS]


def test_the_call_that_met_the_outage_is_made_again_and_no_other() -> None:
    """It goes away within a frame, and within the tuples of one message."""

    @bolt
    def five(m: M) -> Iterator[R]:
        for i in range(5):
            yield R(10 * m.n + i)

    seen: list[int] = []

    @bolt
    def work(r: R) -> R:
        if r.n in {3, 27, 28}:
            if r.n not in seen:
                SERVICE.goes_away()
            seen.append(r.n)
        SERVICE.call(r.n)
        return r

    source, sink = Numbers(9), Plain()
    t = topology(source)
    t.sink("out", sink).shuffle(t.bolt("work", work).shuffle(t.bolt("five", five).shuffle(t.spout("s", source))))
    driver = Driver(t)
    set_service(0.0, lambda: driver.now_s)
    SERVICE.away_s = 60.0
    driver.run()
    served = [what for _, what in SERVICE.calls]
    assert served == [10 * m + i for m in range(9) for i in range(5)]
    assert sorted(row.n for row in sink.rows) == served
    counters = driver.spouts[0].pending.counters
    assert (counters.acked, counters.failed) == (9, 0)


class Opens(Bolt[M]):
    async def open(self, context: TaskContext) -> None:
        SERVICE.call("open")

    async def process(self, m: M, out: Collector[R]) -> None:
        await asyncio.sleep(0.01)
        out.emit(R(m.n))


@bolt(concurrency=4)
async def waits(m: M) -> R:
    await asyncio.sleep(0.01 * (m.n % 3))
    SERVICE.call(m.n)
    return R(m.n)


@bolt(concurrency=4)
async def waits_by_hand(m: M, out: Collector[R]) -> None:
    out.emit(R(m.n))
    await asyncio.sleep(0.01)
    SERVICE.call(m.n)


@bolt(state=int, concurrency=4)
async def counts_and_waits(m: M, total: KeyedState[int]) -> R:
    total.value += 1
    await asyncio.sleep(0.01)
    SERVICE.call(m.n)
    return R(m.n if total.value == 1 else -1)


@pytest.mark.parametrize("work", [waits, waits_by_hand, counts_and_waits, Opens])
@pytest.mark.parametrize("away_s", [0.3, AWAY_S])
def test_an_async_bolt_whose_service_is_away_fails_no_message(work: Any, away_s: float) -> None:
    t = topology(Numbers(0))
    worked = t.bolt("work", work)
    numbers = t.spout("s", Numbers(0))
    _ = worked.fields(numbers, "n") if work is counts_and_waits else worked.shuffle(numbers)
    t.sink("out", Plain()).shuffle(worked)
    clock = ManualClock()
    set_service(away_s, clock.monotonic)
    ended = testing.run(t, {"s": [M(n) for n in NUMBERS]}, clock=clock)
    assert sorted(row.n for row in ended.outputs["out"]) == NUMBERS
    assert all(message.acked and message.attempts == 1 for message in ended.messages["s"])
    assert SERVICE.back_after_s <= LONGEST_PAUSE_S
    assert len(SERVICE.refused) <= 14 + away_s / LONGEST_PAUSE_S * 2


@bolt(concurrency=4)
async def hangs_for_a_while(m: M) -> R:
    await asyncio.sleep(1.5)  # of virtual time: how long a service lets a client wait that is about to go away
    SERVICE.call(m.n)
    return R(m.n)


def test_no_message_times_out_in_the_calls_that_probe_whether_an_outage_is_over() -> None:
    t = Topology("hangs", options={"message_timeout_s": 4.0, "max_attempts": 1})
    t.sink("out", Plain()).shuffle(t.bolt("work", hangs_for_a_while).shuffle(t.spout("s", Numbers(0))))
    clock = ManualClock()
    set_service(120.0, clock.monotonic)
    ended = testing.run(t, {"s": [M(n) for n in range(9)]}, clock=clock)
    assert [(message.acked, message.attempts) for message in ended.messages["s"]] == [(True, 1)] * 9
    assert sorted(row.n for row in ended.outputs["out"]) == [*range(9)]


def test_a_probe_that_is_cancelled_does_not_end_an_outage() -> None:
    began: list[tuple[float, int]] = []
    clock = ManualClock()

    @bolt(concurrency=4)
    async def hangs_once(m: M) -> R:
        began.append((clock.monotonic(), m.n))
        number = len(began)
        await asyncio.sleep(1000.0 if number == 5 else 0.5)  # of virtual time; the fifth is the first probe
        if number <= 4:
            raise ConnectorError("away")
        return R(m.n)

    t = Topology("cancelled", options={"processing_timeout_s": 5.0, "message_timeout_s": None})
    t.sink("out", Plain()).shuffle(t.bolt("work", hangs_once).shuffle(t.spout("s", Numbers(0))))
    ended = testing.run(t, {"s": [M(n) for n in range(4)]}, clock=clock)
    assert all(message.acked for message in ended.messages["s"])
    (probed_s, _), (again_s, _), *rest = began[4:]
    assert again_s - probed_s >= 5.0
    assert all(began_s >= again_s + 0.5 for began_s, _ in rest), "one call probes, and the others wait for it"


class Broker(Numbers):
    """Is away in turns: for `next`, `ack` and `fail`."""

    def next(self) -> Emit[M]:
        SERVICE.call("next")
        return super().next()

    def ack(self, message_id: Any) -> None:
        SERVICE.call("ack")
        super().ack(message_id)
        if message_id in {3, 7}:
            SERVICE.goes_away()

    def fail(self, message_id: Any, failure: Failure) -> None:
        SERVICE.call("fail")
        super().fail(message_id, failure)


class Idle(Broker):
    """Answers its first call, with nothing: before that it could only end the start."""

    was_asked = False

    def next(self) -> Any:
        if not self.was_asked:
            self.was_asked = True
            return None
        return super().next()


@pytest.mark.parametrize("away_s", [0.3, AWAY_S])
def test_a_spout_whose_broker_is_away_goes_on_when_it_is_back_and_others_do_not_wait(away_s: float) -> None:
    source, other = Idle(50), Numbers(2_000)
    t = topology(source)
    same_of = t.bolt("same", same)
    t.sink("out", Plain()).shuffle(same_of.shuffle(t.spout("s", source)).shuffle(t.spout("other", other)))
    driver = Driver(t)
    set_service(away_s, lambda: driver.now_s)
    began_s = driver.now_s
    while len(other.acked) < 2_000:
        driver.settle()
        driver.now_s += 0.01
    assert driver.now_s < began_s + away_s
    driver.run()
    assert sorted(source.acked) == list(range(50))
    assert not source.failed
    counters = driver.spouts[0].pending.counters
    assert (counters.acked, counters.failed) == (50, 0)
    assert driver.spouts[0].wait.count == 2  # the broker is away again while what it is to hear is told


def test_a_source_that_replays_by_itself_hears_of_its_failures_after_the_outage() -> None:
    class Again(Broker):
        def __init__(self, n: int) -> None:
            super().__init__(n)
            self.again: list[int] = []

        def next(self) -> Emit[M]:
            if self.again:
                return Emit(M(self.again[0]), self.again.pop(0))
            return super().next()

        def fail(self, message_id: Any, failure: Failure) -> None:
            super().fail(message_id, failure)
            self.again.append(message_id)

    failed: list[int] = []

    @bolt
    def flaky(m: M) -> R:
        if m.n % 5 == 0 and m.n not in failed:
            failed.append(m.n)
            SERVICE.goes_away()
            raise ValueError("once")
        return R(m.n)

    source, sink = Again(20), Plain()
    t = topology(source)
    t.sink("out", sink).shuffle(t.bolt("flaky", flaky).shuffle(t.spout("s", source, replay="source")))
    driver = Driver(t)
    set_service(0.0, lambda: driver.now_s)
    SERVICE.away_s = AWAY_S
    driver.run()
    assert sorted(row.n for row in sink.rows) == list(range(20))
    assert sorted(source.acked) == list(range(20))


def test_an_async_spout_whose_broker_is_away_goes_on_when_it_is_back() -> None:
    class AsyncBroker(AsyncSpout[M]):
        i = 0

        async def next(self) -> Emit[M]:
            await asyncio.sleep(0.01)
            SERVICE.call("next")
            if self.i >= 30:
                raise EndOfInput
            self.i += 1
            return Emit(M(self.i - 1), self.i - 1)

        async def ack(self, message_id: Any) -> None:
            SERVICE.call("ack")
            heard.append(message_id)
            if message_id in {3, 7}:
                SERVICE.goes_away()

    heard: list[int] = []
    t = Topology("async", options={"message_timeout_s": 0.5, "max_attempts": 1})
    t.sink("out", Plain()).shuffle(t.bolt("same", same).shuffle(t.spout("s", AsyncBroker())))
    set_service(0.0, time.monotonic)
    SERVICE.away_s = 0.7
    handle = begin(t, Path(tempfile.mkdtemp()) / "state")
    summary = handle.wait(20.0)
    assert sorted(heard) == list(range(30))
    assert (summary.acked, summary.failed) == (30, 0)
    assert handle.progress().outage_counts["s"] >= 2


def test_acks_that_raise_something_else_are_all_told_after_the_restart(tmp_path: Path) -> None:
    raised: list[int] = []
    heard: list[int] = []

    class Bad(Numbers):
        def ack(self, message_id: Any) -> None:
            heard.append(message_id)
            if message_id == 3 and not raised:
                raised.append(3)
                raise ConnectionError("no connector error")

        def snapshot(self) -> int:
            return self.i

        def restore(self, position: int) -> None:
            self.i = position

    source = Bad(10)
    t = Topology("bad")
    t.sink("out", Plain()).shuffle(t.bolt("same", same).shuffle(t.spout("s", source)))
    summary = begin(t, tmp_path / "state").wait(20.0)
    assert summary.acked == 10
    assert set(heard) == set(range(10))


def test_rows_that_a_sink_refuses_stay_refused_when_it_goes_away_before_the_others_are_written() -> None:
    from tupletree.sinks.files import RowError, SinkRowsError

    class Strict(CarryOver):
        def write(self, batch: SinkBatch[R]) -> None:
            bad = [RowError(place, "odd") for place, row in enumerate(batch.rows) if row.n % 2]
            if bad:
                raise SinkRowsError("strict", bad)
            super().write(batch)

    source, sink = Numbers(20), Strict()
    t = topology(source, max_attempts=1)
    t.sink("out", sink).shuffle(t.bolt("same", same).shuffle(t.spout("s", source)))
    driver = drive(t, AWAY_S)
    assert sorted(row.n for row in sink.rows) == list(range(0, 20, 2))
    assert sorted(died.message_id for died in driver.died) == list(range(1, 20, 2))


def test_an_outage_that_lasts_longer_than_its_limit_ends_the_run_with_open_messages(tmp_path: Path) -> None:
    class Down(Sink[R]):
        def write(self, batch: SinkBatch[R]) -> None:
            raise ConnectorError("the database is down")

    source = Numbers(20)
    t = Topology("limit")
    t.sink("out", Down()).shuffle(t.bolt("same", same).shuffle(t.spout("s", source)))
    handle = begin(t, tmp_path / "state", outage_limit_s=0.3, message_timeout_s=0.2)
    with pytest.raises(OutageLimitError, match="the database is down") as caught:
        handle.wait(20.0)
    assert caught.value.exit_code == 1
    progress = handle.progress()
    assert (progress.acked, progress.dead, progress.open, progress.failed) == (0, 0, 20, 20)
    assert progress.state == "failed"


def test_a_run_says_what_it_waits_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from tupletree.cli.runs.status import print_status
    from tupletree.runtimes.control import status_of

    set_service(3.0, time.monotonic)
    source, sink = Numbers(10), CarryOver()
    t = Topology("seen")
    t.sink("out", sink).shuffle(t.bolt("same", same).shuffle(t.spout("s", source)))
    with caplog.at_level(logging.WARNING):
        handle = begin(t, tmp_path / "state")
        until(lambda: handle.progress().outages)
        progress = handle.progress()
        assert progress.state == "waiting"
        assert [one.component for one in progress.outages] == ["out"]
        assert "the service is away" in progress.outages[0].error
        until(lambda: status_of(tmp_path / "state").progress["state"] == "waiting")
        print_status(tmp_path / "state", status_of(tmp_path / "state"))
        summary = handle.wait(20.0)
    assert (summary.acked, summary.failed, summary.dead) == (10, 0, 0)
    assert handle.progress().outages == ()
    assert handle.progress().outage_counts == {"out": 1}
    assert any(record.outages for record in handle.recent_progress())
    assert "out: it waits, for something outside is not available: ConnectorError: the service is away" in caplog.text
    assert "out: it goes on: the outage is over after" in caplog.text


@pytest.mark.parametrize("where", ["a sink", "a bolt", "a sink that is slow and not away"])
def test_an_outage_whose_calls_take_long_fails_no_message_that_waits_for_their_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A server that is gone lets each call wait for its connection, and all else on the thread waits for the call."""
    monkeypatch.setattr(stalls, "GRACE_S", 0.05)
    gone_until_s = time.monotonic() + 4.0
    calls = count()

    def call() -> None:
        if (left_s := gone_until_s - time.monotonic()) > 0:
            # Beyond the message timeout, but for the first call.
            time.sleep(min(left_s, 0.9 if next(calls) else 0.1))  # executors keep real time while they are in a call
            if where != "a sink that is slow and not away":
                raise ConnectorError("it does not answer")

    class Written(Sink[R]):
        def write(self, batch: SinkBatch[R]) -> None:
            if where != "a bolt":
                call()

    @bolt
    def asks(m: M) -> R:
        if where == "a bolt" and m.n == 500:
            call()
        return R(m.n)

    t = Topology("waits")
    numbers = t.spout("s", Numbers(1_000))
    t.sink("out", Written()).shuffle(t.bolt("asks", asks).shuffle(numbers)).shuffle(
        t.bolt("same", same).shuffle(numbers)
    )
    handle = begin(t, tmp_path / "state", message_timeout_s=0.4, max_attempts=1)
    summary = handle.wait(60.0)
    assert time.monotonic() > gone_until_s
    assert (summary.acked, summary.failed, summary.dead) == (1_000, 0, 0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes where it may not")
def test_a_folder_that_cannot_be_written_for_a_while_kills_no_message(tmp_path: Path) -> None:
    _check_folder(tmp_path, lambda out: out.chmod(0o500), lambda out: out.chmod(0o700))


def test_a_full_disk_kills_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = threading.Event()
    real = os.fsync

    def fsync(file: int) -> None:
        if full.is_set() and "/rows/_tt-" in str(Path(f"/proc/self/fd/{file}").readlink()):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    _check_folder(tmp_path, lambda _: full.set(), lambda _: full.clear())


def _check_folder(tmp_path: Path, close: Callable[[Path], None], open_again: Callable[[Path], None]) -> None:
    source = Numbers(1_000)
    out = tmp_path / "rows"
    out.mkdir()

    @bolt
    def closing(m: M) -> R:
        if m.n == 0:
            close(out)
        return R(m.n)

    t = Topology("folder")
    t.sink("out", jsonl(out)).shuffle(t.bolt("closing", closing).shuffle(t.spout("s", source)))
    handle = begin(t, tmp_path / "state", message_timeout_s=0.3, max_attempts=2)
    time.sleep(0.8)  # longer than both attempts have by real time: the folder is away for all of it
    assert [one.component for one in handle.progress().outages] == ["out"]
    open_again(out)
    began_s = time.monotonic()
    summary = handle.wait(20.0)
    assert time.monotonic() - began_s < 4.0
    assert (summary.acked, summary.failed, summary.dead) == (1_000, 0, 0)
    assert sum(len(path.read_bytes().splitlines()) for path in out.glob("*.jsonl")) == 1_000


def test_a_stop_during_an_outage_says_so_ends_when_its_time_is_up_and_drops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Down(Sink[R]):
        def write(self, batch: SinkBatch[R]) -> None:
            raise ConnectorError("down")

    source = Numbers(50)
    t = Topology("stopped")
    t.sink("out", Down()).shuffle(t.bolt("same", same).shuffle(t.spout("s", source)))
    handle = begin(t, tmp_path / "state")
    until(lambda: handle.progress().outages and handle.progress().open == 50)
    began_s = time.monotonic()
    handle.stop(0.5)
    assert 0.4 < time.monotonic() - began_s < 3.0
    summary = handle.wait(5.0)
    assert (summary.acked, summary.dead, summary.open) == (0, 0, 50)
    assert "stopped: stopping, for 0.5 s at most: messages wait for out" in caplog.text
    assert sorted(message_id for message_id, _ in source.failed) == [*range(50)], "they are failed to their source"
    assert {failure.kind for _, failure in source.failed} == {FailureKind.STOPPED}


@pytest.mark.parametrize("away_s", [2.0, pytest.param(20.0, marks=pytest.mark.nightly)])
def test_a_database_that_is_stopped_and_started_again_loses_and_doubles_no_row(tmp_path: Path, away_s: float) -> None:
    """A bolt that asks it, and the SQL sink."""
    need_postgres()
    with postgres() as server:
        engine = sa.create_engine(server.url, pool_pre_ping=True)

        @bolt
        def looks_up(m: M) -> R:
            time.sleep(0.001)  # so that messages are left when the server stops
            if m.n % 10 == 0:
                try:
                    with engine.connect() as connection:
                        connection.execute(sa.text("select 1"))
                except sa.exc.DBAPIError as error:
                    raise ConnectorError("the database is away", got=str(error)) from error
            return R(m.n)

        source = Numbers(3_000)
        t = Topology("database")
        t.sink("out", sql(server.url, "rows", message_type=R)).shuffle(
            t.bolt("looks_up", looks_up).shuffle(t.spout("s", source))
        )
        handle = begin(t, tmp_path / "state", message_timeout_s=1.0, max_attempts=1)
        until(lambda: handle.progress().acked)
        server.stop()
        time.sleep(away_s)  # the server is away for as long in real time: that is the test
        assert {one.component for one in handle.progress().outages} == {"out", "looks_up"}
        assert handle.progress().state == "waiting"
        server.start()
        back_s = time.monotonic()
        until(lambda: not handle.progress().outages)
        assert time.monotonic() - back_s < 2.0 + LONGEST_PAUSE_S  # two of them, one behind the other
        summary = handle.wait(60.0)
        assert (summary.acked, summary.failed, summary.dead) == (3_000, 0, 0)
        assert query(server.url, "select count(*), count(distinct n) from rows") == [(3_000, 3_000)]
        engine.dispose()
