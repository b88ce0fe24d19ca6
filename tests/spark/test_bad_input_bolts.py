"""Bolts that misbehave: each costs its own message, with a clear dead letter, and never the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from tests.spark.conftest import SPARK_NIGHTLY, RunTopology
from tests.spark.helpers_semantics import HEARD, Feed, finish
from tupletree import Bolt, Collector, Emit, KeyedState, TaskContext, Topology, bolt
from tupletree.ids import MessageId
from tupletree.sinks import jsonl
from tupletree.testing.conformance.messages import numbered


class Ask(msgspec.Struct, frozen=True):
    what: str


class Answer(msgspec.Struct, frozen=True):
    what: str
    how: str


class Stray(msgspec.Struct, frozen=True):
    what: str


class UnprintableError(Exception):
    def __str__(self) -> NoReturn:
        raise RuntimeError("no text")

    __repr__ = __str__


class UnpicklableError(Exception):
    def __init__(self) -> None:
        super().__init__("holds what cannot be pickled")
        self.handle = lambda: self

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot be pickled")


class SurrogateError(Exception):
    def __init__(self) -> None:
        super().__init__("half a \ud800 pair, a NUL \0 and a long tail " + "x" * 100_000)


RAISE: dict[str, Callable[[], BaseException]] = {
    "TimeoutError": TimeoutError,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "GeneratorExit": GeneratorExit,
    "SystemExit": lambda: SystemExit(3),
    "asyncio.exceptions.CancelledError": asyncio.CancelledError,
    "BaseException": lambda: BaseException("as bare as can be"),
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    f"{__name__}.UnprintableError": UnprintableError,
    f"{__name__}.UnpicklableError": UnpicklableError,
    f"{__name__}.SurrogateError": SurrogateError,
    "ExceptionGroup": lambda: ExceptionGroup("several", [ValueError("one"), TypeError("two")]),
}
"""Error type as a dead letter names it → what raises."""

WRONG: dict[str, Callable[[], Any]] = {
    "text": lambda: "a text",
    "number": lambda: 7,
    "stray": lambda: Stray("an undeclared class"),
    "list": lambda: [Answer("in", "a list")],
    "class": lambda: Answer,
    "unprintable": UnprintableError,
}
"""What is returned where an `Answer` was declared."""


def misbehave(what: str) -> Any:
    """Return something wrong, or raise, as asked; None for the well-behaved."""
    if what in RAISE:
        error = RAISE[what]()
        raise error
    print("a bolt may print", what)
    return WRONG[what]() if what in WRONG else None


@bolt
def function(ask: Ask) -> Answer:
    return misbehave(ask.what) or Answer(ask.what, "function")


@bolt
def generator(ask: Ask) -> Iterator[Answer]:
    yield Answer(ask.what, "generator")
    wrong = misbehave(ask.what)
    if wrong is not None:
        yield wrong


@bolt
def collecting(ask: Ask, out: Collector[Answer]) -> None:
    out.emit(Answer(ask.what, "collecting"))
    wrong = misbehave(ask.what)
    if wrong is not None:
        out.emit(wrong)


class OfClass(Bolt[Ask]):
    def process(self, value: Ask, collector: Collector[Answer]) -> Answer:
        return misbehave(value.what) or Answer(value.what, "class")

    def close(self) -> None:
        raise RuntimeError("closing fails, and what was done stands")


@bolt(state=int)
def stateful(ask: Ask, total: KeyedState[int]) -> Answer:
    total.value += 1
    return misbehave(ask.what) or Answer(f"{ask.what}", f"state-{total.value}")


@SPARK_NIGHTLY
@pytest.mark.parametrize("style", ["function", "generator", "collecting", "class", "stateful"])
def test_whatever_a_bolt_raises_or_returns_costs_its_own_message_only(
    run_topology: RunTopology, tmp_path: Path, style: str
) -> None:
    good = [f"good {number}" for number in range(20)]
    wrong = [*RAISE, *WRONG]
    t = Topology(f"bad-{style}")
    source = t.spout("source", Feed(t.name, Ask, [Emit(Ask(what), what) for what in (*good[:10], *wrong, *good[10:])]))
    bolts: dict[str, Any] = {
        "function": function,
        "generator": generator,
        "collecting": collecting,
        "class": OfClass,
        "stateful": stateful,
    }
    answers = t.bolt("bad", bolts[style], parallelism=2).fields(source, "what")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(answers)
    result = finish(run_topology, t, tmp_path, max_attempts=2)
    how = "state-1" if style == "stateful" else style
    assert result.tally("out", "what", "how") == dict.fromkeys([(what, how) for what in good], 1)
    dead = result.dead
    assert dead.keys() == set(wrong)
    assert {dead[name].attempts for name in RAISE} == {2}
    assert {dead[name].attempts for name in WRONG} == {1}, "no other attempt would help"
    for name in RAISE:
        # A generator that lets StopIteration out raises RuntimeError: Python says so.
        expected = "RuntimeError" if style == "generator" and name == "StopIteration" else name
        assert dead[name].failure.error_type == expected
        assert dead[name].failure.component == "bad"
        assert dead[name].failure.failing_tuple == f"Ask(what={name!r})"
        assert len(dead[name].failure.error) < 3000
    for name in WRONG:
        text = dead[name].failure.error
        assert "Answer" in text or "Answer" in dead[name].failure.traceback, (name, text)


class FailsToOpen(Bolt[Ask]):
    def open(self, context: TaskContext) -> None:
        self.index = context.task_index
        if self.index == 1:
            raise ConnectionError("the database of task 1 is away")

    def process(self, value: Ask, collector: Collector[Answer]) -> Answer:
        return Answer(value.what, f"task-{self.index}")


class FailsToOpenOddly(FailsToOpen):
    def open(self, context: TaskContext) -> None:
        self.index = context.task_index
        if self.index == 1:
            raise SystemExit(1)


class FailsToBeMade(FailsToOpen):
    def __init__(self) -> None:
        raise ConnectionError("nothing is ever made")


@SPARK_NIGHTLY
@pytest.mark.parametrize(
    ("broken", "error_type"),
    [(FailsToOpen, "ConnectionError"), (FailsToOpenOddly, "SystemExit"), (FailsToBeMade, "ConnectionError")],
)
def test_a_bolt_that_cannot_be_opened_fails_the_messages_of_its_task(
    run_topology: RunTopology, tmp_path: Path, broken: type[FailsToOpen], error_type: str
) -> None:
    t = Topology(broken.__name__)
    source = t.spout("source", Feed(t.name, Ask, numbered([Ask(str(number)) for number in range(40)])))
    answers = t.bolt("broken", broken, parallelism=2).shuffle(source)
    t.sink("out", jsonl(tmp_path / "out")).shuffle(answers)
    result = finish(run_topology, t, tmp_path, max_attempts=2)
    assert result.summary.dead >= 1
    assert {letter.failure.error_type for letter in result.letters} == {error_type}
    if broken is FailsToBeMade:
        assert result.summary.dead == 40
    else:
        assert set(result.tally("out", "how")) == {"task-0"}
        assert result.summary.acked == sum(result.tally("out", "what").values())


@bolt
def fan_out(ask: Ask) -> Iterator[Answer]:
    return (Answer(ask.what, str(child)) for child in range(10_000))


@bolt
def refuse_last(answer: Answer) -> Answer:
    if answer.what == "refused" and answer.how == "9999":
        raise ValueError("the last child of this one")
    return answer


@SPARK_NIGHTLY
def test_a_fan_out_of_ten_thousand_children_is_one_message_that_goes_through_or_not(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    ids: list[MessageId] = [0, "", False, b"", (), (0, "a", (b"\xff", True)), -1, "\ud800", 2**70, "refused"]
    t = Topology("fan-out")
    asks = [Ask("refused" if message_id == "refused" else str(place)) for place, message_id in enumerate(ids)]
    source = t.spout("source", Feed("fan-out", Ask, [Emit(ask, one) for ask, one in zip(asks, ids, strict=True)]))
    children = t.bolt("fan", fan_out, parallelism=2).shuffle(source)
    kept = t.bolt("refuse", refuse_last, parallelism=2).fields(children, "how")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(kept)
    result = finish(run_topology, t, tmp_path, max_attempts=2)
    assert result.dead.keys() == {"refused"}
    # Every kind of message id is its own message, and comes back as it was given.
    heard = HEARD["fan-out"].acked
    assert sorted(map(repr, heard)) == sorted(map(repr, ids[:-1]))
    tally = result.tally("out", "what")
    assert tally == dict.fromkeys(map(str, range(len(ids) - 1)), 10_000)
    assert set(result.tally("out", "what", "how").values()) == {1}
