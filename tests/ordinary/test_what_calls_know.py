"""Calls and sinks know which message they work for, from where its tuple came, and which attempt it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from tests.local.running import run as run_locally
from tests.ordinary.conftest import InProcess
from tests.tasks.streams import Line, Script, Word
from tupletree import (
    Bolt,
    Collector,
    KeyedState,
    Sink,
    SinkBatch,
    TaskContext,
    Tick,
    Topology,
    arrow_bolt,
    batch_bolt,
    bolt,
    testing,
)
from tupletree.errors import ProcessingError
from tupletree.ids import MessageId
from tupletree.sinks import foreach
from tupletree.sources import items
from tupletree.topology.components import Emit
from tupletree.tracking.outcomes import Outcome

TEXTS = ("a", "b c", "flaky", "d")
IDS: tuple[MessageId, ...] = (("f", 1), b"\x01", "c", 2**70)


class Known(list[tuple[Any, ...]]):
    """What calls saw: (bolt, message id, attempt, component, stream)."""

    def note(self, name: str, context: TaskContext) -> None:
        self.append((name, context.message_id, context.attempt, context.source_component, context.source_stream))

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return sorted((one[1:] for one in self if one[0] == name), key=repr)


KNOWN = Known()
"""The runs of these tests share the process: what is sent to a stage finds it by its module."""


@bolt
def plain(line: Line, context: TaskContext) -> Iterable[Word]:
    KNOWN.note("plain", context)
    if line.text == "flaky" and context.attempt < 3:
        raise ValueError("not yet")
    return map(Word, line.text.split())


@bolt
async def waits(word: Word, context: TaskContext) -> Word:
    KNOWN.note("waits before", context)
    await asyncio.sleep(0)
    KNOWN.note("waits", context)
    return word


class Shouts(Bolt[Word]):
    """Knows its context from `open` on."""

    def open(self, context: TaskContext) -> None:
        KNOWN.append(("outside", context.message_id, context.attempt, context.source_component, context.source_stream))
        self.context = context

    def process(self, word: Word, collector: Collector[Word]) -> None:
        collector.ack(word)
        KNOWN.note("Shouts", self.context)


@arrow_bolt(inputs=Word, outputs=Word)
def columns(batch: pa.RecordBatch, context: TaskContext) -> pa.RecordBatch:
    KNOWN.append(("columns", context.message_ids, context.source_component, context.source_stream))
    return batch


class Told(Sink[Word]):
    """Asks for ids."""

    names_messages = True
    given: ClassVar[list[tuple[str, tuple[MessageId, ...]]]] = []

    def write(self, batch: SinkBatch[Word]) -> None:
        assert batch.message_ids is not None
        self.given.extend(zip((row.word for row in batch.rows), batch.message_ids, strict=True))


class Unasked(Sink[Word]):
    """Does not."""

    given: ClassVar[list[Any]] = []

    def write(self, batch: SinkBatch[Word]) -> None:
        self.given.append(batch.message_ids)


@batch_bolt(size=2)
def pairs(batch: list[Word], context: TaskContext) -> list[Word]:
    KNOWN.append(("pairs", sorted(context.message_ids, key=repr), context.source_component))
    try:
        KNOWN.append(("one of several", context.message_id))
    except ProcessingError as error:
        KNOWN.append(("refused", error.findings[0].next_step))
    return batch[:1]


@bolt(tick_interval_s=0.01)
def ticked(value: Word | Tick, context: TaskContext) -> None:
    if isinstance(value, Tick):
        KNOWN.note("tick", context)


def topology(told: Sink[Word], unasked: Sink[Word]) -> Topology:
    t = Topology("known").options(backoff_initial_ms=1.0)
    spout = t.spout("lines", Script(Emit(Line(text), message_id) for text, message_id in zip(TEXTS, IDS, strict=True)))
    words = t.bolt("plain", plain).shuffle(spout)
    waiting = t.bolt("waits", waits).shuffle(words)
    t.bolt("shouts", Shouts, unconsumed=Word).shuffle(words)
    arrow = t.bolt("columns", columns).shuffle(words)
    paired = t.bolt("pairs", pairs).shuffle(words)
    t.bolt("ticked", ticked).shuffle(words)
    t.sink("told", told).shuffle(waiting).shuffle(arrow).shuffle(paired)
    t.sink("unasked", unasked).shuffle(waiting)
    return t


def check(run: Callable[[Topology], Any]) -> None:
    for seen in (KNOWN, Told.given, Unasked.given):
        seen.clear()
    assert run(topology(Told(), Unasked())).acked == 4
    by_word = {"a": IDS[0], "b": IDS[1], "c": IDS[1], "flaky": IDS[2], "d": IDS[3]}
    expected = [(IDS[0], 1), (IDS[1], 1), (IDS[2], 1), (IDS[2], 2), (IDS[2], 3), (IDS[3], 1)]
    assert KNOWN.of("plain") == sorted(((*one, "lines", "Line") for one in expected), key=repr)
    later = [(one, 3 if one == "c" else 1, "plain", "Word") for one in by_word.values()]
    for name in ("waits before", "waits", "Shouts"):
        assert KNOWN.of(name) == sorted(later, key=repr), name
    assert {one[1:] for one in KNOWN if one[0] == "outside"} == {(None, 0, "", "")}
    assert {one for given in KNOWN if given[0] == "columns" for one in given[1]} == {*IDS}
    assert {given[2:] for given in KNOWN if given[0] == "columns"} == {("plain", "Word")}
    together = [one[1] for one in KNOWN if one[0] == "pairs"]
    assert {one for ids in together for one in ids} == {*IDS}
    assert all(len({*map(repr, ids)}) == len(ids) for ids in together)
    assert {one[2] for one in KNOWN if one[0] == "pairs"} == {""}
    assert len([one for one in KNOWN if one[0] == "refused"]) == len([ids for ids in together if len(ids) > 1]) > 0
    assert all(one[1:] == (None, 1, "", "") for one in KNOWN if one[0] == "tick")
    singles = [(word, ids) for word, ids in Told.given if len(ids) == 1]
    assert {ids for word, ids in singles if word != "b"} == {(by_word[word],) for word in ("a", "c", "flaky", "d")}
    assert all(ids == (by_word[word],) for word, ids in singles)
    assert any(len(ids) == 2 for _, ids in Told.given)
    assert {*Unasked.given} == {None}


def test_locally_calls_and_sinks_know_their_messages(tmp_path: Path) -> None:
    check(lambda t: run_locally(t, tmp_path))


def test_on_spark_calls_and_sinks_know_their_messages(tmp_path: Path, in_process: InProcess) -> None:
    check(lambda t: in_process(t, tmp_path))


def test_a_message_that_is_open_since_an_earlier_epoch_is_known(tmp_path: Path, in_process: InProcess) -> None:
    check(lambda t: in_process(t, tmp_path, epoch_max_messages=1))


@bolt
async def takes_long(line: Line, context: TaskContext) -> None:
    try:
        await asyncio.sleep(5.0)
    finally:  # it is cancelled when its message is over
        KNOWN.note("late", context)


def test_a_call_knows_its_message_to_its_end_though_the_attempt_timed_out() -> None:
    KNOWN.clear()
    t = Topology("late")
    t.bolt("late", takes_long).shuffle(t.spout("lines", items([Line("")])))
    options = {"message_timeout_s": 1.0, "max_attempts": 1}
    ended = testing.run(t, {"lines": [Emit(Line("a"), "the id")]}, options=options, at_least_s=10.0)
    assert ended.messages["lines"][0].outcome is Outcome.DEAD
    assert [one[1] for one in KNOWN] == ["the id"]


def test_rows_that_executors_read_are_known_by_their_split(tmp_path: Path, in_process: InProcess) -> None:
    for seen in (KNOWN, Told.given):
        seen.clear()
    t = Topology("rows")
    words = t.bolt("plain", plain).shuffle(t.spout("lines", items([Line("a"), Line("b c"), Line("flaky")])))
    t.sink("told", Told()).shuffle(words)
    assert in_process(t, tmp_path / "spark").acked == 3
    on_spark = sorted(Told.given)
    Told.given.clear()
    assert run_locally(t, tmp_path / "local", backoff_initial_ms=1.0).acked == 3
    assert on_spark == sorted(Told.given)
    assert [word for word, _ in on_spark] == ["a", "b", "c", "flaky"]
    assert len({ids for _, ids in on_spark}) == 3


def test_a_batch_is_gone_through_row_by_row(tmp_path: Path, in_process: InProcess) -> None:
    rows: list[Word] = []
    t = Topology("rows")
    words = t.bolt("words", plain).shuffle(t.spout("lines", items([Line("a b c")])))
    t.sink("out", foreach(rows.extend)).shuffle(words)
    run_locally(t, tmp_path / "local")
    assert rows == [Word("a"), Word("b"), Word("c")]
    rows.clear()
    in_process(t, tmp_path / "spark")
    assert rows == [Word("a"), Word("b"), Word("c")]
    assert len(SinkBatch("id", rows)) == 3


@bolt
def first(line: Line, context: TaskContext) -> Word:
    note_source("first", context)
    return Word(line.text)


@bolt(concurrency=4)
async def second(word: Word, context: TaskContext) -> Word:
    await asyncio.sleep(0)
    note_source("second", context)
    return word


@bolt(state=int)
def third(word: Word, total: KeyedState[int], context: TaskContext) -> Word:
    total.value += 1
    note_source("third", context)
    return word


@arrow_bolt(inputs=Word, outputs=Word)
def fourth(batch: pa.RecordBatch, context: TaskContext) -> pa.RecordBatch:
    note_source("fourth", context)
    return batch


@batch_bolt(size=2)
def fifth(batch: list[Word], context: TaskContext) -> list[Word]:
    note_source("fifth", context)
    return batch


SOURCES: set[tuple[str, str, int, tuple[int, ...]]] = set()
"""(bolt, source component, source task, tasks of that component)."""


def note_source(name: str, context: TaskContext) -> None:
    component = context.source_component
    tasks = tuple(context.tasks_of(component)) if component else ()
    SOURCES.add((name, component, context.source_task, tasks))


def test_a_call_knows_the_task_that_its_tuple_comes_from(tmp_path: Path, in_process: InProcess) -> None:
    t = Topology("sources")
    lines = t.spout("lines", items([Line(text) for text in "abcdefgh"]), parallelism=2)
    words = t.bolt("first", first, parallelism=2).fields(lines, "text")
    words = t.bolt("second", second, parallelism=2).fields(words, "word")
    words = t.bolt("third", third, parallelism=2).fields(words, "word")
    words = t.bolt("fourth", fourth, parallelism=2).fields(words, "word")
    t.sink("out", foreach(lambda _: None)).shuffle(t.bolt("fifth", fifth).shuffle(words))
    for name, run in (("local", run_locally), ("spark", in_process)):
        SOURCES.clear()
        assert run(t, tmp_path / name).acked == 8
        assert {one[:3] for one in SOURCES if one[0] == "fifth"} == {("fifth", "", -1)}
        known = {one for one in SOURCES if one[0] != "fifth"}
        assert {one[:2] for one in known} == {
            ("first", "lines"),
            ("second", "first"),
            ("third", "second"),
            ("fourth", "third"),
        }
        assert all(task in tasks for _, _, task, tasks in known), known
        assert len({task for bolt_name, _, task, _ in known if bolt_name == "first"}) == 2
