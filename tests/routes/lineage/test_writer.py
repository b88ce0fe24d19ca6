"""The writer of lineage is never in the way: what it loses, it counts and says once, and it goes on by itself."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from tests.routes.lineage.records import call, calls_of, write
from tupletree.clock import ManualClock
from tupletree.errors import ConfigError, ConnectorError
from tupletree.routes.lineage import Level, Lineage, LineageSink, LineageWriter, open_store, store_beside
from tupletree.routes.lineage.rows import class_of, seconds_of_class
from tupletree.routes.messages import CallRecord
from tupletree.topology.components import SinkBatch, SinkContext


class Kept:
    """A store in memory that fails as it is told."""

    where = "kept:"
    most_rows = 10

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.is_away = False
        self.refuses = ""
        self.rested: list[float] = []
        self.closed = 0

    def open(self) -> None:
        self._check()

    def write(self, records: Sequence[CallRecord]) -> None:
        self._check()
        if any(record.message == self.refuses for record in records):
            raise ValueError("not this one")
        self.batches.append([record.message for record in records])

    def rest(self, now_s: float) -> float:
        self.rested.append(now_s)
        return 0.0 if len(self.rested) == 1 else 30.0

    def close(self) -> None:
        self.closed += 1

    def _check(self) -> None:
        if self.is_away:
            raise ConnectorError("away")


def made(store: Kept, clock: ManualClock, capacity: int = 100) -> LineageWriter:
    return LineageWriter(lambda: store, "ingest", capacity=capacity, interval_s=1.0, clock=clock, threaded=False)


def many(count: int, start: int = 0) -> list:  # type: ignore[type-arg]
    return [call(f"m{number}") for number in range(start, start + count)]


def test_rows_wait_for_more_of_them_for_an_interval_at_most() -> None:
    store, clock = Kept(), ManualClock()
    writer = made(store, clock)
    writer.put(many(3))
    assert writer.step() == 1.0
    clock.advance(0.9)
    writer.put(many(3, 3))
    assert writer.step() == pytest.approx(0.1)
    clock.advance(0.1)
    assert writer.step() == 0.0
    assert [len(one) for one in store.batches] == [6]
    writer.put(many(25))  # more than a batch: at once
    clock.advance(0.0)
    writer.step()
    writer.step()
    assert [len(one) for one in store.batches] == [6, 10, 10]
    assert writer.counts.waiting == 5


def test_what_does_not_fit_the_buffer_is_lost_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    store, clock = Kept(), ManualClock()
    writer = made(store, clock, capacity=15)
    with caplog.at_level(logging.INFO, "tupletree.routes"):
        writer.put(many(20))
        writer.put(many(5))
    assert (writer.counts.lost, writer.counts.waiting) == (10, 15)
    assert len(caplog.records) == 1
    assert "5 are lost" in caplog.text
    for _ in range(3):
        writer.step(at_once=True)
    writer.put(many(20))  # another time, said again
    assert len(caplog.records) == 2


def test_a_store_that_is_away_is_tried_ever_more_rarely_and_goes_on_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    store, clock = Kept(), ManualClock()
    store.is_away = True
    writer = made(store, clock, capacity=30)
    writer.put(many(20))
    pauses = []
    with caplog.at_level(logging.INFO, "tupletree.routes"):
        for _ in range(9):
            clock.advance(pause := writer.step())
            pauses.append(pause)
        writer.put(many(20, 20))
        store.is_away = False
        while writer.counts.waiting:
            clock.advance(writer.step())
    assert pauses == [1.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]  # the first is for more rows
    assert writer.counts.written == 30
    assert writer.counts.lost == 10
    assert [name for batch in store.batches for name in batch] == [f"m{number}" for number in range(30)]
    said = [record.getMessage().partition(";")[0] for record in caplog.records]
    assert said[0] == "lineage cannot be written now"
    assert said[-1] == "lineage is written again"
    assert len(said) == 3  # and that the buffer was full
    assert "10 records were lost" in caplog.text


def test_a_row_that_the_store_refuses_is_lost_alone(caplog: pytest.LogCaptureFixture) -> None:
    store, clock = Kept(), ManualClock()
    store.refuses = "m3"
    writer = made(store, clock)
    writer.put(many(8))
    writer.step(at_once=True)
    assert (writer.counts.written, writer.counts.lost, writer.counts.waiting) == (7, 1, 0)
    assert {name for batch in store.batches for name in batch} == {f"m{n}" for n in range(8)} - {"m3"}
    assert "of message 'm3'" in caplog.text


def test_while_nothing_waits_the_store_does_what_is_due_by_time() -> None:
    store, clock = Kept(), ManualClock(wall=10_000.0)
    writer = made(store, clock)
    writer.put(many(1))
    writer.step(at_once=True)
    assert writer.step() == 0.0  # it has more to do
    assert writer.step() == 30.0
    clock.advance(10.0)
    assert writer.step() == 20.0
    clock.advance(20.0)
    writer.step()
    assert store.rested == [10_000.0, 10_000.0, 10_030.0]


def test_at_the_end_what_waits_is_written_and_a_store_that_is_away_costs_its_rows() -> None:
    store, clock = Kept(), ManualClock()
    writer = made(store, clock)
    writer.put(many(25))
    writer.close()
    assert (writer.counts.written, store.closed) == (25, 1)
    writer = made(store, clock)
    store.is_away = True
    writer.put(many(25))
    writer.close()
    assert (writer.counts.written, writer.counts.lost, writer.counts.waiting) == (0, 25, 0)


def test_a_store_that_hangs_keeps_nobody_waiting() -> None:
    store = Kept()
    released = threading.Event()
    store.open = released.wait  # type: ignore[method-assign,assignment]
    writer = LineageWriter(lambda: store, "ingest", capacity=5, interval_s=0.0)
    for _ in range(100):
        writer.put(many(10))
    writer.close(timeout_s=0.01)
    assert writer.counts.lost == 1000
    released.set()


def test_the_sink_keeps_what_its_level_says_and_may_be_sent_to_another_process(tmp_path: Path) -> None:
    records = [call(f"m{n}", execution=f"e{n % 50}", status="failed" if n == 7 else "completed") for n in range(1000)]
    written = {}
    for level in ("off", "failures", "sampled:0.2", "full"):
        url = f"sqlite:///{tmp_path}/{level[:4]}.db"
        sink: LineageSink = pickle.loads(pickle.dumps(LineageSink(url, "ingest", level=level)))
        sink.open(cast("SinkContext", None))
        sink.write(SinkBatch("b1", records))
        sink.close()
        written[level] = sink.counts.written
        if level == "sampled:0.2":
            with Lineage.open(url) as lineage:
                counts = [one.calls for n in range(50) for one in _stats(lineage, f"e{n}")]
            assert set(counts) == {20}  # all of an execution, or nothing
    assert written["off"] == 0
    assert written["failures"] == 1
    assert 0 < written["sampled:0.2"] < 500
    assert written["full"] == 1000


def _stats(lineage: Lineage, execution: str) -> list:  # type: ignore[type-arg]
    try:
        return lineage.stats(execution)
    except ConfigError:
        return []


def test_a_message_of_several_executions_is_sampled_with_any_of_them() -> None:
    level = Level.parse("sampled:0.5")
    sampled = next(f"e{n}" for n in range(99) if level.samples([f"e{n}"]))
    other = next(f"e{n}" for n in range(99) if not level.samples([f"e{n}"]))
    assert not level.keeps(call("m", execution=other))
    assert level.keeps(call("m", execution=other, executions=[other, sampled]))


@pytest.mark.parametrize(
    "text", ["", "all", "sampled", "sampled:2", "sampled:-1", "sampled:nan", "full:1", "sampled:x"]
)
def test_a_level_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no level of lineage"):
        LineageSink("sqlite:///x.db", "ingest", level=text)


@pytest.mark.parametrize("url", ["mysql://u:secret@h/d", "no url secret", "parquet:"])
def test_a_store_that_is_none_is_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        open_store(url, "ingest")
    assert "secret" not in str(raised.value)


def test_a_ledger_in_a_sqlite_file_has_its_lineage_in_a_file_beside_it() -> None:
    assert store_beside("sqlite:////var/run/pipeline.db") == "sqlite:////var/run/pipeline.lineage.db"
    assert store_beside("sqlite:///q.db?timeout=3") == "sqlite:///q.lineage.db"
    assert store_beside("postgresql+psycopg://u@h/d") == "postgresql+psycopg://u@h/d"


def test_a_duration_that_is_read_from_its_class_is_right_within_a_few_percent() -> None:
    for seconds in (2e-6, 0.00123, 0.5, 17.0, 90_000.0):
        assert seconds_of_class(class_of(seconds)) == pytest.approx(seconds, rel=0.0225)
    assert class_of(-1.0) == class_of(float("nan")) == 0
    assert class_of(1e300) == 1023


def test_errors_with_what_no_database_takes_are_written_all_the_same(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/lineage.db"
    write(url, calls_of("m", "r", "a", status="failed", error="\0 \ud800 " + "x" * 5000))
    with Lineage.open(url) as lineage:
        (failure,) = lineage.failures()
    assert failure.error.startswith("\\x00 \\ud800 x")
    assert len(failure.error) < 2_100


def test_a_store_that_could_not_be_opened_is_closed_before_the_next_one_is_made() -> None:
    store, clock = Kept(), ManualClock()
    store.is_away = True
    writer = made(store, clock)
    writer.put(many(1))
    clock.advance(1.0)
    writer.step()
    clock.advance(writer.step())
    writer.step()
    assert store.closed == 2
