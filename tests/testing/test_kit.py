"""The test kit: what a user's test sees of a run."""

from __future__ import annotations

import asyncio
import doctest
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tupletree import (
    Anchored,
    Bolt,
    Collector,
    ConfigError,
    Emit,
    EndOfInput,
    KeyedState,
    Outcome,
    PermanentError,
    Spout,
    TaskContext,
    Tick,
    Topology,
    TupletreeError,
    arrow_bolt,
    batch_bolt,
    bolt,
    testing,
)
from tupletree.clock import ManualClock
from tupletree.sinks import foreach, jsonl
from tupletree.sources import Line, items, text_lines
from tupletree.testing.kit import run as kit


class Word(msgspec.Struct, frozen=True):
    text: str


class Count(msgspec.Struct, frozen=True):
    word: str
    count: int


@bolt
def split(line: Line) -> Iterator[Word]:
    for word in line.text.split():
        yield Word(word)


@bolt(state=int)
def count(word: Word, total: KeyedState[int]) -> Count:
    total.value += 1
    return Count(word.text, total.value)


def word_count() -> Topology:
    t = Topology("word-count")
    lines = t.spout("lines", text_lines(["is-never-read.txt"]))
    words = t.bolt("split", split, parallelism=2).shuffle(lines)
    counts = t.bolt("count", count, parallelism=2).fields(words, "text")
    t.sink("out", jsonl("is-never-written")).shuffle(counts)
    return t


def one_bolt(function: Any, **options: Any) -> Topology:
    t = Topology("one", options=options)
    t.sink("out", jsonl("out")).shuffle(t.bolt("bolt", function).shuffle(t.spout("lines", items([Line("")]))))
    return t


def is_boom(line: Line) -> bool:
    return line.text == "boom"


def test_the_example_of_the_design() -> None:
    assert list(split(Line("a b"))) == [Word("a"), Word("b")]
    run = testing.run(word_count(), {"lines": [Line("a a"), Line("boom")]}, fail={"split": is_boom})
    assert run.outputs["out"] == [Count("a", 1), Count("a", 2)]
    assert run.messages["lines"][1].outcome is Outcome.DEAD


def test_the_example_in_the_docstring() -> None:
    assert doctest.testmod(kit).attempted > 0
    assert doctest.testmod(kit).failed == 0


def test_it_takes_milliseconds_whatever_time_passes() -> None:
    word_count().build()
    started_s = time.perf_counter()
    run = testing.run(
        word_count(), {"lines": [Line("x")]}, fail={"split": lambda _: True}, options={"backoff_initial_ms": 60_000}
    )
    assert run.seconds > 30
    assert time.perf_counter() - started_s < 1.0


def test_a_dead_message_has_its_attempts_its_failure_and_its_letter() -> None:
    run = testing.run(word_count(), {"lines": [Line("boom")]}, fail={"split": lambda _: ValueError("no such word")})
    (message,) = run.messages["lines"]
    assert (message.dead, message.acked, message.attempts) == (True, False, 5)
    assert message.failure is not None
    assert (message.failure.component, message.failure.error_type) == ("split", "ValueError")
    (letter,) = run.dead
    assert (letter.spout, letter.message_id, letter.payload) == ("lines", 0, {"text": "boom", "path": "", "number": 0})


def test_a_permanent_failure_is_not_tried_again() -> None:
    run = testing.run(word_count(), {"lines": [Line("boom")]}, fail={"split": lambda _: PermanentError("never")})
    assert run.messages["lines"][0].attempts == 1


def test_the_tree_of_a_message_is_printed_tuple_by_tuple() -> None:
    run = testing.run(word_count(), {"lines": [Line("to be")]}, fail={"count": lambda word: word.text == "be"})
    assert run.messages["lines"][0].tree.splitlines() == [
        "lines  Line(text='to be', path='', number=0)  dead, attempt 5",
        "└─ split[0]  Line(text='to be', path='', number=0)  acked",
        "   ├─ count[0]  Word(text='to')  not settled",
        "   └─ count[0]  Word(text='be')  failed: tupletree.testing.kit.tracing.InjectedError: the test made it fail",
    ]


class Pairs(Bolt[Word]):
    auto_ack = False

    def open(self, context: TaskContext) -> None:
        self.kept: list[Word] = []

    def process(self, value: Word, collector: Collector[Count]) -> None:
        self.kept.append(value)
        if len(self.kept) == 2:
            collector.emit(Count(" ".join(one.text for one in self.kept), 2), anchors=self.kept)
            for one in self.kept:
                collector.ack(one)
            self.kept.clear()


def pairs() -> Topology:
    t = Topology("pairs")
    words = t.bolt("split", split).shuffle(t.spout("lines", items([Line("")])))
    t.sink("out", jsonl("out")).shuffle(t.bolt("pairs", Pairs).global_(words))
    return t


def test_a_tuple_of_two_parents_is_in_both_trees() -> None:
    run = testing.run(pairs(), {"lines": [Line("a"), Line("b")]})
    assert run.outputs["out"] == [Count("a b", 2)]
    for message in run.messages["lines"]:
        assert message.acked
        assert "pairs[0]" in message.tree
        assert message.tree.endswith("out[0]  Count(word='a b', count=2)  row")


def test_what_a_bolt_keeps_outside_of_open_is_a_warning() -> None:
    run = testing.run(pairs(), {"lines": [Line("a b")]})
    assert [warning.split(":")[0] for warning in run.warnings] == ["bolt 'pairs' changed `self.kept` outside of `open`"]
    assert testing.run(word_count(), {"lines": [Line("a")]}).warnings == []


def test_a_tuple_that_is_never_acked_times_out_until_the_message_is_dead() -> None:
    run = testing.run(pairs(), {"lines": [Line("a")]}, options={"max_attempts": 1})
    assert run.messages["lines"][0].dead
    assert 30.0 <= run.seconds <= 46.0
    assert "not settled" in run.messages["lines"][0].tree


def test_a_run_that_is_stopped_leaves_messages_open() -> None:
    run = testing.run(pairs(), {"lines": [Line("a")]}, options={"message_timeout_s": None}, at_most_s=100.0)
    assert run.messages["lines"][0].outcome is Outcome.OPEN
    assert run.seconds == pytest.approx(100.0)


@bolt
async def slow(line: Line) -> AsyncIterator[Word]:
    await asyncio.sleep(10.0)
    yield Word(line.text)
    await asyncio.sleep(10.0)


@bolt
async def hung(line: Line) -> Word:
    await asyncio.Event().wait()
    return Word(line.text)


def test_async_bolts_sleep_on_virtual_time() -> None:
    run = testing.run(one_bolt(slow), {"lines": [Line("a")]})
    assert run.outputs["out"] == [Word("a")]
    assert run.seconds == pytest.approx(20.0)
    assert "out[0]  Word(text='a')  row" in run.messages["lines"][0].tree


def test_an_async_call_that_never_ends_times_out() -> None:
    run = testing.run(one_bolt(hung, max_attempts=1), {"lines": [Line("a")]})
    assert run.messages["lines"][0].dead


@batch_bolt(size=3)
def together(lines: list[Line]) -> list[Word]:
    return [Word(line.text) for line in lines]


def test_batches_are_flushed_at_the_end_and_one_bad_tuple_fails_alone() -> None:
    inputs = {"lines": [Line(text) for text in "abcd"]}
    run = testing.run(one_bolt(together, max_attempts=1), inputs, fail={"bolt": lambda line: line.text == "b"})
    assert [word.text for word in run.outputs["out"]] == ["a", "c", "d"]
    assert [message.dead for message in run.messages["lines"]] == [False, True, False, False]


@batch_bolt(size=2)
def unless_x(lines: list[Line]) -> list[Word] | None:
    return None if lines[0].text == "x" else [Word(line.text) for line in lines]


@batch_bolt(size=2)
def joined(lines: list[Line]) -> Word | None:
    return None if lines[0].text == "x" else Word("".join(line.text for line in lines))


@pytest.mark.parametrize(("subject", "given"), [(unless_x, ["a", "b", "c"]), (joined, ["ab", "c"])])
def test_a_batch_bolt_may_give_nothing_or_one_tuple_for_a_whole_batch(subject: Any, given: list[str]) -> None:
    run = testing.run(one_bolt(subject, max_attempts=1), {"lines": [Line(text) for text in "abxyc"]})
    assert [word.text for word in run.outputs["out"]] == given
    assert not any(message.dead for message in run.messages["lines"])


@bolt(tick_interval_s=5.0)
def every_five(value: Line | Tick) -> Word | None:
    return Word("tick") if isinstance(value, Tick) else None


def test_ticks_come_for_as_long_as_the_run_is_to_take() -> None:
    run = testing.run(one_bolt(every_five), {"lines": [Line("a")]}, at_least_s=16.0)
    assert run.outputs["out"] == [Word("tick")] * 3


def test_the_clock_of_the_test_moves_along() -> None:
    clock = ManualClock(wall=1000.0)
    run = testing.run(one_bolt(slow), {"lines": [Line("a")]}, clock=clock)
    assert clock.wall() == pytest.approx(1000.0 + run.seconds)


def test_inputs_may_name_their_ids_and_may_be_untracked() -> None:
    inputs = {"lines": [Emit(Line("a"), "first"), Emit(Line("b"), None)]}
    run = testing.run(word_count(), inputs)
    assert [(one.message_id, one.outcome) for one in run.messages["lines"]] == [
        ("first", Outcome.ACKED),
        (None, Outcome.ACKED),
    ]
    assert len(run.outputs["out"]) == 2


def test_without_ackers_everything_is_acked_on_emit() -> None:
    run = testing.run(word_count(), {"lines": [Line("a")]}, options={"acker_tasks": 0}, fail={"split": lambda _: True})
    assert run.messages["lines"][0].acked
    assert run.outputs["out"] == []
    assert "1 errors that fail no message" in run.notes[0]


def test_a_source_that_replays_by_itself_is_stood_in_for() -> None:
    t = Topology("replayed", options={"max_attempts": 3})
    lines = t.spout("lines", items([Line("")]), replay="source")
    t.sink("out", jsonl("out")).shuffle(t.bolt("split", split).shuffle(lines))
    run = testing.run(t, {"lines": [Line("a"), Line("boom")]}, fail={"split": lambda line: line.text == "boom"})
    assert [(one.outcome, one.attempts) for one in run.messages["lines"]] == [(Outcome.ACKED, 1), (Outcome.DEAD, 3)]


def test_spouts_that_are_not_replaced_run_as_they_are() -> None:
    t = Topology("as-it-is")
    t.sink("out", jsonl("out")).shuffle(t.bolt("split", split).shuffle(t.spout("lines", items([Line("a"), Line("b")]))))
    run = testing.run(t)
    assert run.outputs["out"] == [Word("a"), Word("b")]
    assert [one.message_id for one in run.messages["lines"]] == [0, 1]


class Endless(Spout[Line]):
    def next(self) -> Emit[Line]:
        return Emit(Line("again"))


class Ending(Spout[Line]):
    def next(self) -> None:
        raise EndOfInput


def test_a_spout_that_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tupletree.testing.kit.run.MAX_STEPS", 1000)
    t = Topology("endless")
    t.sink("out", jsonl("out")).shuffle(t.bolt("split", split).shuffle(t.spout("lines", Endless())))
    with pytest.raises(TupletreeError, match="does not come to an end"):
        testing.run(t)


@pytest.mark.parametrize(
    ("inputs", "fail", "fault"),
    [
        ({"lined": []}, {}, "names no spout"),
        ({"split": []}, {}, "names no spout"),
        ({}, {"out": bool}, "names no bolt"),
    ],
)
def test_names_that_do_not_exist_are_errors(inputs: Any, fail: Any, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        testing.run(word_count(), inputs, fail=fail)


class Broken(Bolt[Line]):
    def open(self, context: TaskContext) -> None:
        raise OSError("no such device")

    def process(self, value: Line, collector: Collector[Word]) -> Word:
        return Word("")


def test_a_bolt_that_cannot_be_opened_fails_its_messages() -> None:
    run = testing.run(one_bolt(Broken), {"lines": [Line("a")]})
    assert run.messages["lines"][0].failure is not None
    assert run.messages["lines"][0].failure.error == "no such device"


def test_equal_calls_give_equal_runs() -> None:
    runs = [
        testing.run(word_count(), {"lines": [Line("a b"), Line("c")]}, fail={"count": lambda word: word.text == "c"})
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


@arrow_bolt(outputs=Word)
def split_columns(batch: pa.RecordBatch) -> Anchored:
    lines: list[Any] = batch["text"].to_pylist()
    words = [(row, word) for row, line in enumerate(lines) for word in line.split()]
    return Anchored(pa.RecordBatch.from_pydict({"text": [word for _, word in words]}), [row for row, _ in words])


def test_an_arrow_bolt_is_traced_by_its_anchors_and_fails_on_demand() -> None:
    t = Topology("columns")
    words = t.bolt("split", split_columns).shuffle(t.spout("lines", items([Line("")])))
    t.sink("out", jsonl("out")).shuffle(words)
    lines = [Line("a b"), Line("c"), Line("d")]
    run = testing.run(t, {"lines": lines}, fail={"split": lambda line: line.text == "c"})
    assert run.outputs["out"] == [Word("a"), Word("b"), Word("d")]
    assert [one.outcome for one in run.messages["lines"]] == [Outcome.ACKED, Outcome.DEAD, Outcome.ACKED]
    assert run.messages["lines"][0].tree.count("out[0]") == 2
    assert "split[0]" in run.messages["lines"][0].tree


def test_a_sink_for_dead_letters_is_not_called() -> None:
    t = Topology("letters")
    t.bolt("refuses", refuses).shuffle(t.spout("lines", items([Line("a")])))
    t.dead_letters(foreach(lambda _: pytest.fail("it was called")))
    assert testing.run(t, options={"max_attempts": 1}).messages["lines"][0].dead


@bolt
def refuses(line: Line) -> None:
    raise ValueError("refused")
