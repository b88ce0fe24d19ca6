"""Files of called sinks: what a sink has, what it still has to be given, and what is lost. No Spark is needed."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tupletree import Topology
from tupletree.clock import SystemClock
from tupletree.config import Options
from tupletree.errors import CheckpointError
from tupletree.routing.plan import Plan
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.entries import OutputFile
from tupletree.runtimes.spark.format.sidecars import sidecar_of, write_sidecar
from tupletree.runtimes.spark.format.spool import Spool, lasting_fingerprint, make_spools
from tupletree.runtimes.spark.settle.outages import Outages
from tupletree.runtimes.spark.settle.sink_delivery import SinkDelivery
from tupletree.runtimes.spark.settle.sink_thread import SinkThread
from tupletree.sinks import foreach, jsonl, parquet
from tupletree.sources import items
from tupletree.topology.changes.fingerprint import differences
from tupletree.topology.components import Sink, SinkBatch
from tupletree.tracking.retry import RetryPolicy


class Item(msgspec.Struct, frozen=True):
    number: int


class Starts:
    """The starts of one run, each with the same spools and a sink that notes what it is given."""

    def __init__(self, spools: Path) -> None:
        self.spools = spools
        self.given: list[int] = []
        self.writers: list[str] = []
        self.calls = 0
        self.refused: set[int] = set()
        self.slow_s: float | None = None
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        topology = Topology("t")
        topology.sink("out", foreach(self.take)).shuffle(topology.spout("s", items([Item(1)])))
        self.plan = Plan.of(topology.build(), Options(), partitions=1)
        make_spools(spools, self.plan.spec)

    def take(self, batch: SinkBatch[Item]) -> None:
        self.calls += 1
        self.may_go_on.wait()
        numbers = [row.number for row in batch.rows]
        if not self.refused.isdisjoint(numbers):
            raise ValueError("refused")
        self.given += numbers
        self.writers.append(batch.writer)

    def start(self) -> SinkDelivery:
        called = SinkDelivery(
            self.plan,
            "0123456789",
            self.spools,
            RetryPolicy.from_options(Options(max_attempts=1)),
            SinkThread(self.slow_s),
            Outages(SystemClock(), None),
            lambda: 0.5,
        )
        called.open(0.0, 6, may_wait=False)
        return called

    def candidate(self, *numbers: int) -> OutputFile:
        path = self.spools / "out" / f"_part-{numbers[0]}.rows"
        Spool([Item]).write_candidate(path, [*map(Item, numbers)])
        layout = wire.pack_layout(numbers, range(1, len(numbers) + 1))
        write_sidecar(sidecar_of(path), layout, lasting=True)
        return OutputFile("out", path.name, "", len(numbers), 0)


@pytest.fixture
def starts(tmp_path: Path) -> Starts:
    return Starts(tmp_path)


def test_a_sink_that_has_a_batch_is_not_given_it_by_a_later_start(starts: Starts) -> None:
    one, other = starts.candidate(1), starts.candidate(2)
    first = starts.start()
    assert first.deliver(7, 0.0, one) is None
    first.close()
    second = starts.start()
    assert second.deliver(7, 0.0, one) is None
    assert second.deliver(7, 0.0, other) is None
    second.forget(7, [one, other])
    second.close()
    third = starts.start()
    assert [third.deliver(7, 0.0, output) for output in (one, other)] == [None, None]
    third.close()
    assert starts.given == [1, 2]
    assert list((starts.spools / "out").iterdir()) == []


def test_rows_whose_file_is_lost_before_a_sink_has_them_are_missed(starts: Starts) -> None:
    delivered, lost = starts.candidate(1), starts.candidate(2)
    first = starts.start()
    first.deliver(7, 0.0, delivered)
    first.forget(7, [delivered])
    (starts.spools / "out" / lost.candidate).unlink()
    with pytest.raises(CheckpointError, match="missing") as caught:
        first.deliver(8, 0.0, lost)
    first.close()
    assert lost.candidate in str(caught.value)


def test_rows_of_a_task_that_is_no_more_are_written_by_another_under_the_same_name(starts: Starts) -> None:
    """The run was killed between the commit and the call, and goes on with fewer tasks."""
    outputs = [starts.candidate(number) for number in (1, 2)]
    for index, output in enumerate(outputs):
        output.task_index = index
    first = starts.start()
    assert [first.deliver(7, 0.0, output) for output in outputs] == [None, None]
    first.close()
    assert starts.given == [1, 2]
    assert starts.writers == ["0123456789-out-0000", "0123456789-out-0001"]


def test_good_rows_are_written_however_many_bad_ones_a_batch_has(starts: Starts) -> None:
    starts.refused = set(range(1, 600, 3))
    first = starts.start()
    refusals = first.deliver(7, 0.0, starts.candidate(*range(1, 600)))
    first.close()
    assert refusals is not None
    assert refusals.failures.keys() == starts.refused
    assert sorted(starts.given) == sorted(set(range(1, 600)) - starts.refused)


def test_a_sink_that_always_fails_is_not_asked_for_every_row(starts: Starts) -> None:
    starts.refused = set(range(1, 3000))
    first = starts.start()
    refusals = first.deliver(7, 0.0, starts.candidate(*range(1, 3000)))
    first.close()
    assert refusals is not None
    assert refusals.failures.keys() == starts.refused
    assert starts.calls < 150


def test_a_sink_that_is_stuck_in_a_call_is_named_with_its_stack(
    starts: Starts, caplog: pytest.LogCaptureFixture
) -> None:
    class GoOn(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            starts.may_go_on.set()

    starts.slow_s = 0.05
    starts.may_go_on.clear()
    first = starts.start()
    handler = GoOn(logging.WARNING)
    logging.getLogger("tupletree.spark").addHandler(handler)
    try:
        assert first.deliver(7, 0.0, starts.candidate(1)) is None
    finally:
        logging.getLogger("tupletree.spark").removeHandler(handler)
        first.close()
    assert "sink out has been in one call" in caplog.text
    assert "may_go_on.wait()" in caplog.text


def test_a_sink_of_another_kind_is_a_difference_and_another_place_is_none(tmp_path: Path) -> None:
    """What a killed run committed for a sink that is called would never be found by one that writes files."""

    def described(sink: Sink[Item]) -> dict[str, dict[str, Any]]:
        t = Topology("t")
        t.sink("out", sink).shuffle(t.spout("s", items([Item(1)])))
        return lasting_fingerprint(t.build())

    called, files = described(foreach(print)), described(jsonl(tmp_path / "one"))
    assert list(map(str, differences(called, files))) == ["out: sink changed from calls to .jsonl files"]
    assert list(map(str, differences(files, described(parquet(tmp_path))))) == [
        "out: sink changed from .jsonl files to .parquet files"
    ]
    assert differences(files, described(jsonl(tmp_path / "other"))) == []


def test_rows_that_a_sink_has_are_not_looked_for_when_a_part_of_their_files_is_there_again(starts: Starts) -> None:
    """The machine crashed, and of the removals that were not synced some have happened."""
    output = starts.candidate(1)
    candidate = starts.spools / "out" / output.candidate
    content = candidate.read_bytes()
    first = starts.start()
    assert first.deliver(7, 0.0, output) is None
    first.forget(7, [output])
    first.close()
    candidate.write_bytes(content)  # without its sidecar
    second = starts.start()
    assert second.deliver(7, 0.0, output) is None
    second.close()
    assert starts.given == [1]
