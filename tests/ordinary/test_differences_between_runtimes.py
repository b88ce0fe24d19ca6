"""What the table "Differences between the runtimes" says of each: the same topology, run as either does."""

from __future__ import annotations

import datetime as dt
import decimal
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.local.running import run as run_locally
from tests.ordinary.conftest import InProcess
from tests.tasks.streams import Line, Word
from tupletree import (
    Bolt,
    Collector,
    Emit,
    EndOfInput,
    KeyedState,
    PermanentError,
    Split,
    SplitSpout,
    Spout,
    TaskContext,
    Topology,
    bolt,
)
from tupletree.runtimes.api import Summary
from tupletree.sinks import foreach
from tupletree.sources import items
from tupletree.topology.components import SinkBatch
from tupletree.tracking.outcomes import Failure

Run = Callable[..., Summary]

SEEN: list[Any] = []
"""What calls and sinks saw. The stages of these runs are in this process, and find it by this module."""


@pytest.fixture(params=["local", "spark"])
def run(request: pytest.FixtureRequest, in_process: InProcess, tmp_path: Path) -> Run:
    def begin(topology: Topology, **options: object) -> Summary:
        SEEN.clear()
        settings = {"backoff_initial_ms": 1.0, **options}
        if request.param == "local":
            return run_locally(topology, tmp_path / "state", **settings)
        return in_process(topology, tmp_path / "state", **settings)

    begin.runtime = request.param  # type: ignore[attr-defined]  # which one it is
    return begin


def is_spark(run: Run) -> bool:
    return bool(run.runtime == "spark")  # type: ignore[attr-defined]


def note(batch: SinkBatch[Any]) -> None:
    SEEN.extend(batch.rows)


class Counts(Bolt[Line]):
    """Counts in an attribute, which is no declared state."""

    def open(self, context: TaskContext) -> None:
        self.calls = 0
        SEEN.append("open")

    def process(self, value: Line, collector: Collector[Word]) -> None:
        self.calls += 1
        collector.emit(Word(str(self.calls)))


class Ones(Spout[Line]):
    """Gives one message at a time, so that epochs end."""

    def open(self, context: TaskContext) -> None:
        self.given = 0

    def next(self) -> Emit[Line]:
        if self.given == 6:
            raise EndOfInput
        self.given += 1
        return Emit(Line(""), self.given)


def test_a_bolt_is_opened_once_locally_and_for_each_run_of_an_epoch_on_spark(run: Run) -> None:
    t = Topology("opened")
    counted = t.bolt("count", Counts).shuffle(t.spout("lines", Ones()))
    t.sink("out", foreach(note)).shuffle(counted)
    assert run(t, epoch_max_messages=2).acked == 6
    rows = sorted(row.word for row in SEEN if row != "open")
    if is_spark(run):
        assert SEEN.count("open") >= 3
        assert set(rows) == {"1", "2"}, "each epoch counts from the start"
    else:
        assert SEEN.count("open") == 1
        assert rows == ["1", "2", "3", "4", "5", "6"]


class Box(msgspec.Struct):
    """A message that a bolt can change."""

    numbers: list[int]


@bolt
def changes(box: Box, context: TaskContext) -> None:
    SEEN.append([*box.numbers])
    box.numbers.append(context.attempt)
    if context.attempt < 3:
        raise ValueError("again")


def test_a_message_that_a_bolt_changes_is_changed_locally_and_as_it_was_on_spark(run: Run) -> None:
    t = Topology("changed")
    t.bolt("changes", changes).shuffle(t.spout("boxes", items([Box([0])])))
    assert run(t).acked == 1
    assert ([[0], [0], [0]] if is_spark(run) else [[0], [0, 1], [0, 1, 2]]) == SEEN


class Made(msgspec.Struct):
    """The same, made by a bolt."""

    numbers: list[int]


@bolt
def makes(box: Box) -> Made:
    return Made([0])


@bolt
def changes_it(made: Made) -> None:
    made.numbers.append(1)


@bolt
def sees_it(made: Made) -> None:
    SEEN.append([*made.numbers])


def test_bolts_of_one_stage_share_the_object_and_those_behind_an_exchange_on_spark_do_not(run: Run) -> None:
    t = Topology("shared")
    made = t.bolt("makes", makes).shuffle(t.spout("boxes", items([Box([0])])))
    t.bolt("changes", changes_it).shuffle(made)
    t.bolt("sees", sees_it).shuffle(made)
    t.bolt("elsewhere", sees_it, parallelism=3).all(made)
    assert run(t).acked == 1
    assert [0, 1] in SEEN
    if is_spark(run):
        assert [0] in SEEN, "one of three tasks is in the other partition"


@bolt(state=int)
def counts(line: Line, total: KeyedState[int]) -> Word:
    total.value += 1
    return Word(str(total.value))


@bolt
def fails_once(word: Word, context: TaskContext) -> Word:
    if context.attempt == 1:
        raise ValueError("after its message touched state")
    return word


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_what_a_failed_attempt_did_to_state_stays_locally_and_is_taken_back_on_spark(run: Run, guarantee: str) -> None:
    t = Topology("touched")
    lines = t.spout("lines", items([Line("a")]))
    counted = t.bolt("count", counts).fields(lines, "text")
    t.sink("out", foreach(note)).shuffle(t.bolt("fails", fails_once).shuffle(counted))
    assert run(t, state_guarantee=guarantee).acked == 1
    assert [Word("1" if is_spark(run) and guarantee == "exactly_once" else "2")] == SEEN


@bolt(state=tuple)
def assigns_then_fails(line: Line, seen: KeyedState[tuple[int, ...]], context: TaskContext) -> Word:
    seen.value = (*seen.value, context.attempt)
    if context.attempt == 1:
        raise ValueError("in the call that touched state")
    return Word(repr([*seen.value]))


@bolt(state=list)
def appends_then_fails(line: Line, seen: KeyedState[list[int]], context: TaskContext) -> Word:
    seen.value.append(context.attempt)
    if context.attempt == 1:
        raise ValueError("in the call that touched state")
    return Word(repr(seen.value))


@pytest.mark.parametrize("work", [assigns_then_fails, appends_then_fails])
def test_the_call_that_raises_leaves_nothing_in_state_but_locally_what_it_changed_in_place(run: Run, work: Any) -> None:
    t = Topology("raised")
    lines = t.spout("lines", items([Line("a")]))
    t.sink("out", foreach(note)).shuffle(t.bolt("work", work).fields(lines, "text"))
    assert run(t).acked == 1
    assert [Word("[2]" if is_spark(run) or work is assigns_then_fails else "[1, 2]")] == SEEN


class Price(msgspec.Struct, frozen=True):
    price: decimal.Decimal
    takes: dt.timedelta = dt.timedelta(0)


@bolt
def makes_others(line: Line) -> Price:
    if line.text == "long":
        return Price(decimal.Decimal(1), dt.timedelta.max)
    return Price(1 if line.text == "int" else decimal.Decimal(1))  # type: ignore[arg-type]  # that is the fault


def test_a_value_of_another_type_than_declared_passes_locally_and_fails_on_spark(run: Run) -> None:
    t = Topology("typed")
    prices = t.bolt("prices", makes_others, parallelism=2).shuffle(
        t.spout("lines", items([Line("right"), Line("int"), Line("long")]))
    )
    t.sink("out", foreach(note)).shuffle(t.bolt("looks", looks, parallelism=2).fields(prices, "price"))
    summary = run(t, max_attempts=1)
    assert (summary.acked, summary.dead) == ((1, 2) if is_spark(run) else (3, 0))


@bolt
def looks(price: Price) -> Word:
    return Word(str(price.price))


class Step(msgspec.Struct, frozen=True):
    key: str
    number: int


@bolt
def steps(line: Line) -> Iterator[Step]:
    first = int(line.text) * 3
    for number in range(first, first + 3):
        yield Step("abc"[number % 3], number)


@bolt
def sees(step: Step) -> None:
    SEEN.append(step)


def test_tuples_of_one_task_reach_a_key_in_the_order_in_which_they_were_emitted(run: Run) -> None:
    t = Topology("order")
    made = t.bolt("steps", steps).shuffle(t.spout("lines", items([Line(str(n)) for n in range(40)])))
    t.bolt("sees", sees, parallelism=3).fields(made, "key")
    assert run(t, epoch_max_messages=15).acked == 40
    by_key = defaultdict(list)
    for step in SEEN:
        by_key[step.key].append(step.number)
    assert {key: (numbers == sorted(numbers), len(numbers)) for key, numbers in by_key.items()} == dict.fromkeys(
        "abc", (True, 40)
    )


class Open(Spout[Line]):
    """Notes how many of its messages are open."""

    def open(self, context: TaskContext) -> None:
        self.given = self.open_now = 0

    def next(self) -> Emit[Line]:
        if self.given == 60:
            raise EndOfInput
        self.given += 1
        self.open_now += 1
        SEEN.append(self.open_now)
        return Emit(Line(""), self.given)

    def ack(self, message_id: Any) -> None:
        self.open_now -= 1


def test_without_a_limit_at_most_two_epochs_of_messages_are_open_on_spark_and_no_epoch_limits_them_locally(
    run: Run,
) -> None:
    t = Topology("open")
    t.bolt("changes", sees_lines).shuffle(t.spout("lines", Open()))
    assert run(t, epoch_max_messages=5).acked == 60
    assert max(one for one in SEEN if isinstance(one, int)) <= (10 if is_spark(run) else 60)


@bolt
def sees_lines(line: Line) -> None: ...


@bolt(state=int)
def notes(line: Line, total: KeyedState[int], out: Collector[Word | Line]) -> None:
    total.value += 1
    out.emit(Word("belongs to no message"), anchors=())
    out.emit(line)


@bolt
def refuses(line: Line) -> None:
    raise PermanentError("after its message touched state")


def test_what_a_message_emitted_unanchored_goes_with_it_on_spark_where_its_epoch_runs_again(run: Run) -> None:
    t = Topology("unanchored")
    noted = t.bolt("notes", notes).fields(t.spout("lines", items([Line("a")])), "text")
    t.bolt("refuses", refuses).shuffle(noted.stream(Line))
    t.sink("out", foreach(note)).shuffle(noted.stream(Word))
    assert run(t).dead == 1
    assert SEEN == [] if is_spark(run) else [Word("belongs to no message")] == SEEN


class Pieces(SplitSpout[Line]):
    """Five lines, of which one is refused; notes what it is told."""

    def open(self, context: TaskContext) -> None:
        self.planned = False

    def plan(self, max_rows: int, max_bytes: int) -> list[Split]:
        if self.planned:
            raise EndOfInput
        self.planned = True
        return [Split(rows=5, first=0)]

    def read(self, split: Split) -> Iterator[Line]:
        return (Line("refused" if number == 3 else "") for number in range(split.rows))

    def fail(self, message_id: Any, failure: Failure) -> None:
        SEEN.append(message_id)

    def snapshot(self) -> bool:
        return self.planned

    def restore(self, position: Any) -> None:
        self.planned = position


@bolt
def refuses_one(line: Line) -> None:
    if line.text == "refused":
        raise PermanentError("refused")


def test_a_source_that_executors_read_is_told_of_dead_messages(run: Run) -> None:
    t = Topology("pieces")
    t.bolt("refuses", refuses_one).shuffle(t.spout("lines", Pieces()))
    summary = run(t)
    assert (summary.acked, summary.dead) == (4, 1)
    assert SEEN == [3]


@bolt
def repeated(line: Line) -> Iterator[Word]:
    yield from (Word(str(number) * 1_000) for number in range(int(line.text.strip())))


@bolt
def same(word: Word) -> Word:
    return word


@pytest.mark.parametrize("option", ["message_max_bytes", "call_max_bytes"])
def test_how_long_a_message_is_and_what_a_call_emits_is_limited_on_spark(run: Run, option: str) -> None:
    """Locally nothing is encoded, so nothing is measured. One message is long, and the call for another emits much."""
    t = Topology("long")
    lines = t.spout("lines", items([Line("1"), Line("5000"), Line("2" + " " * 20_000)]))
    words = t.bolt("same", same, parallelism=2).fields(t.bolt("repeated", repeated).shuffle(lines), "word")
    t.sink("out", foreach(note)).shuffle(words)
    # What fits in the memory of a stage is not measured.
    summary = run(t, **{option: 10_000, "stage_memory_bytes": 0})
    rows = len(SEEN)
    if not is_spark(run):
        assert (summary.acked, summary.dead, rows) == (3, 0, 5_003)
    elif option == "message_max_bytes":
        assert (summary.acked, summary.dead, rows) == (2, 1, 5_001)
    else:
        assert (summary.acked, summary.dead, rows) == (2, 1, 3)
