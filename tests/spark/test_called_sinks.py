"""Sinks that are called, on Spark: a function gets the rows of a committed epoch, again until it has accepted them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.spark.conftest import RunTopology, StartTopology
from tests.spark.helpers_semantics import HEARD, Feed, Result, finish
from tupletree import Topology, batch_bolt, bolt
from tupletree.errors import ConnectorError, PermanentError
from tupletree.runtimes import deadletters
from tupletree.runtimes.spark.settle import sink_thread
from tupletree.sinks import foreach, jsonl
from tupletree.sinks.files import RowError, SinkRowsError
from tupletree.testing.conformance.messages import numbered
from tupletree.topology.components import Sink, SinkBatch, TaskContext
from tupletree.tracking.outcomes import FailureKind

Write = Callable[[SinkBatch["Number"]], None]


class Number(msgspec.Struct, frozen=True):
    number: int


@bolt
def odd_ones_fail(value: Number) -> Number:
    if value.number % 2:
        raise ValueError("odd")
    return value


@bolt
def twice(value: Number) -> Iterator[Number]:
    yield value
    yield Number(value.number + 1000)


class Calls:
    """A function for `foreach` that remembers its batches. One for all tasks, as functions are not copied."""

    def __init__(self, refuse: Callable[[SinkBatch[Number]], None] | None = None) -> None:
        self.offered: list[SinkBatch[Number]] = []
        self.taken: list[SinkBatch[Number]] = []
        self._refuse = refuse

    def __deepcopy__(self, memo: object) -> Calls:
        return self

    def __call__(self, batch: SinkBatch[Number]) -> None:
        self.offered.append(batch)
        if self._refuse is not None:
            self._refuse(batch)
        self.taken.append(batch)

    def tally(self) -> Counter[int]:
        return Counter(row.number for batch in self.taken for row in batch.rows)


def numbers_topology(name: str, write: Write | Sink[Number], out: Path, batch: int = 100) -> Topology:
    """Numbers that go to the given sink as they are, and to files."""
    t = Topology(name)
    source = t.spout("source", Feed(name, Number, numbered([Number(number) for number in range(60)]), batch))
    passed = t.bolt("pass", twice, parallelism=2).shuffle(source)
    t.sink("called", write if isinstance(write, Sink) else foreach(write), parallelism=2).shuffle(passed)
    t.sink("files", jsonl(out / "files")).shuffle(passed)
    return t


def both(numbers: range | list[int]) -> Counter[int]:
    return Counter([*numbers, *(number + 1000 for number in numbers)])


def test_a_function_gets_the_rows_of_messages_that_completed_in_batches_with_ids_of_their_own(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    calls = Calls()
    t = Topology("calls")
    source = t.spout("source", Feed("calls", Number, numbered([Number(number) for number in range(60)]), batch=20))
    good = t.bolt("good", odd_ones_fail, parallelism=2).shuffle(source)
    t.sink("called", foreach(calls), parallelism=2).shuffle(good)
    result = finish(run_topology, t, tmp_path, epoch_max_messages=25, max_attempts=2)
    assert calls.tally() == Counter(range(0, 60, 2))
    assert result.summary.outputs == {"called": 30}
    assert len({batch.id for batch in calls.taken}) == len(calls.taken) > 2
    assert all(one.id.startswith(f"{one.writer}-{one.number:08d}-") for one in calls.taken)
    assert list((tmp_path / "state" / "spools" / "called").iterdir()) == []
    assert Counter(HEARD["calls"].acked) == Counter(range(0, 60, 2))


def refuse_thirteen_and_forty(batch: SinkBatch[Number]) -> None:
    if {13, 40} & {row.number for row in batch.rows}:
        raise ValueError("no such number")


def check_refused(result: Result, name: str, refused: set[int]) -> None:
    """Refused messages are dead with their payload and reason, and their source hears only that."""
    assert result.dead.keys() == refused
    for number, letter in result.dead.items():
        assert letter.payload == {"number": number}
        assert (letter.failure.kind, letter.failure.component) == (FailureKind.PUBLISH, "called")
        assert "committed" in letter.note
        assert str(number) in letter.failure.failing_tuple
        assert "tupletree/runtimes" not in letter.failure.traceback
    assert Counter(HEARD[name].acked) == Counter(set(range(60)) - refused)
    assert {number for number, _ in HEARD[name].failed} == refused
    assert all(failure.permanent for _, failure in HEARD[name].failed)


def test_rows_that_a_function_refuses_are_found_and_their_messages_die_while_all_others_are_taken(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    calls = Calls(refuse_thirteen_and_forty)
    t = numbers_topology("refusing", calls, tmp_path, batch=30)
    result = finish(run_topology, t, tmp_path, epoch_max_messages=30, max_attempts=2)
    check_refused(result, "refusing", {13, 40})
    # 1013 and 1040 may have been taken before their message failed: a call cannot be taken back.
    assert {**calls.tally(), 1013: 1, 1040: 1} == {
        **both([n for n in range(60) if n not in {13, 40}]),
        1013: 1,
        1040: 1,
    }
    assert result.tally("files", "number") == both(range(60))
    assert result.summary.outputs["called"] + 4 >= calls.tally().total() >= result.summary.outputs["called"]
    assert {letter.attempts for letter in result.letters} == {1}


def test_a_call_that_fails_for_a_while_is_made_again_with_the_same_batch(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    failing = 3

    def fail_at_first(_: SinkBatch[Number]) -> None:
        nonlocal failing
        failing -= 1
        if failing >= 0:
            raise OSError("not yet")

    calls = Calls(fail_at_first)
    result = finish(run_topology, numbers_topology("for-a-while", calls, tmp_path), tmp_path, max_attempts=4)
    assert result.dead == {}
    assert calls.offered[0] == calls.offered[3]
    assert calls.tally() == both(range(60))


def test_a_sink_that_names_the_rows_it_refuses_gets_the_others_in_a_batch_of_the_same_id(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    def name_them(batch: SinkBatch[Number]) -> None:
        bad = [at for at, row in enumerate(batch.rows) if row.number in {5, 1006}]
        if bad:
            raise SinkRowsError("a test", [RowError(at, "too odd", "OddError") for at in bad])

    calls = Calls(name_them)
    result = finish(run_topology, numbers_topology("naming", calls, tmp_path), tmp_path)
    check_refused(result, "naming", {5, 6})
    assert all(letter.failure.error == "OddError: too odd" for letter in result.letters)
    assert not {5, 1006} & calls.tally().keys()
    refused = [batch for batch in calls.offered if batch not in calls.taken]
    assert refused
    for batch in refused:
        (again,) = [one for one in calls.taken if one.id == batch.id]
        left_out = {row.number for row in batch.rows} - {row.number for row in again.rows}
        assert left_out & {5, 1006}
        assert left_out <= {5, 1005, 6, 1006}, "only rows of messages that are dead"


class Whole(Sink[Number]):
    """Guarantees exactly once, so half a batch must never come."""

    promise = "exactly_once"
    offered: list[SinkBatch[Number]]

    def open(self, context: TaskContext) -> None:
        type(self).offered = []

    def write(self, batch: SinkBatch[Number]) -> None:
        self.offered.append(batch)
        raise PermanentError("never")


def test_a_batch_for_a_sink_that_guarantees_exactly_once_is_never_halved_and_a_permanent_error_is_not_tried_again(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    t = Topology("whole")
    source = t.spout("source", Feed("whole", Number, numbered([Number(1), Number(2), Number(3)])))
    t.sink("called", Whole(), parallelism=1).shuffle(source)
    result = finish(run_topology, t, tmp_path)
    assert result.dead.keys() == {0, 1, 2}
    assert [len(batch.rows) for batch in Whole.offered] == [3]


def test_a_sink_that_always_fails_ends_the_run_and_the_next_start_calls_it_with_the_same_batch(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    down = True

    def be_down(_: SinkBatch[Number]) -> None:
        if down:
            raise ConnectorError("the service is down", where="nowhere")

    calls = Calls(be_down)
    with pytest.raises(ConnectorError, match="the service is down"):
        run_topology(numbers_topology("down", calls, tmp_path), tmp_path / "state", max_attempts=2, outage_limit_s=0.5)
    assert calls.taken == []
    assert HEARD["down"].acked == []
    first = calls.offered[0]
    down = False
    result = finish(run_topology, numbers_topology("down", calls, tmp_path), tmp_path, max_attempts=2)
    assert result.dead == {}
    assert first in calls.taken
    assert calls.tally() == both(range(60))


class Held(msgspec.Struct, frozen=True):
    number: int


class Late(msgspec.Struct, frozen=True):
    number: int


class Total(msgspec.Struct, frozen=True):
    total: int


@bolt
def fan_out(value: Number) -> Iterator[Number | Held | Late]:
    yield value
    yield Held(value.number)
    if value.number % 4 == 3:
        yield Late(value.number)


@batch_bolt(size=4, max_age_s=600.0)
def add_up(values: list[Held]) -> Total:
    return Total(sum(value.number for value in values))


@batch_bolt(size=2, max_age_s=600.0)
def hold_back(values: list[Late]) -> None:
    """Keeps every fourth message open for longer than the others."""


def test_a_message_whose_row_is_refused_while_another_row_of_it_waits_dies_when_it_would_be_acked(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    down = True

    def refuse_zero(batch: SinkBatch[Number]) -> None:
        numbers = {row.number for row in batch.rows}
        if 0 in numbers:
            raise ValueError("no zero")
        if down and 7 in numbers:
            raise ConnectorError("down when all is complete")

    calls = Calls(refuse_zero)

    def topology() -> Topology:
        t = Topology("waiting")
        source = t.spout("source", Feed("waiting", Number, numbered([Number(number) for number in range(8)]), batch=2))
        fanned = t.bolt("fan_out", fan_out).shuffle(source)
        t.sink("called", foreach(calls), parallelism=1).shuffle(fanned.stream(Number))
        totals = t.bolt("add_up", add_up, parallelism=1).global_(fanned.stream(Held))
        t.bolt("hold_back", hold_back, parallelism=1).global_(fanned.stream(Late))
        t.sink("totals", jsonl(tmp_path / "totals")).shuffle(totals)
        return t

    settings = {"epoch_max_messages": 2, "max_spout_pending": 20, "max_attempts": 1, "outage_limit_s": 0.5}
    with pytest.raises(ConnectorError, match="when all is complete"):
        run_topology(topology(), tmp_path / "state", **settings)
    # Zero is complete by then, and refused, but the total that it is part of waits for three: it cannot be dead yet.
    assert deadletters.read(tmp_path / "state") == []
    assert HEARD["waiting"].failed == []
    down = False
    result = finish(run_topology, topology(), tmp_path, **settings)
    assert result.dead.keys() == {0}
    assert result.letters[0].failure.kind is FailureKind.PUBLISH
    assert calls.tally() == Counter(range(1, 8))
    assert result.tally("totals", "total") == Counter([6, 22])
    assert set(HEARD["waiting"].acked) == set(range(1, 8))
    assert result.summary.outputs == {"called": 7, "totals": 2}


def test_a_stop_ends_although_a_sink_is_stuck_in_a_call_and_the_next_start_makes_it_again(
    start_topology: StartTopology, run_topology: RunTopology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_thread, "_LEAVE_S", 0.1)
    stuck, release = threading.Event(), threading.Event()

    def get_stuck(_: SinkBatch[Number]) -> None:
        if not release.is_set():
            stuck.set()
            release.wait(60.0)
            raise ValueError("the call of a run that is over")

    calls = Calls(get_stuck)
    handle = start_topology(numbers_topology("stuck", calls, tmp_path), tmp_path / "state")
    assert stuck.wait(60.0)
    handle.stop(0.1)
    assert handle.wait(60.0).open == 0
    assert HEARD["stuck"].acked == []
    release.set()
    result = finish(run_topology, numbers_topology("stuck", calls, tmp_path), tmp_path)
    assert result.dead == {}
    assert set(calls.tally()) == set(both(range(60)))
    assert calls.offered[0] in calls.taken
