"""What a bolt gives back, and what becomes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.bolts.frame_bench import Bad, Count, Word, component_of, done, emitted, frame, task_of, words
from tupletree import Bolt, Collector, KeyedState, Resource, TaskContext, bolt
from tupletree.bolts.effects import TaskPlace
from tupletree.bolts.plain import BoltTask
from tupletree.errors import InternalError
from tupletree.state.cells import ValueCell


@bolt
def shout(word: Word) -> Word:
    return Word(word.text.upper())


@bolt
def only_long(word: Word) -> Word | None:
    return word if len(word.text) > 1 else None


@bolt
def letters(word: Word) -> Iterator[Word | Bad]:
    for letter in word.text:
        yield Bad(letter) if letter == "!" else Word(letter)


@bolt
def listed(word: Word) -> list[Word]:
    return [Word(letter) for letter in word.text]


@bolt
def swallow(word: Word) -> None:
    del word


def test_a_returned_tuple_is_anchored_to_the_tuple_in_hand() -> None:
    worked = task_of(shout).work(frame((1, words("a", "b")), (2, words("c"))))

    assert emitted(worked) == [(1, Word("A")), (1, Word("B")), (2, Word("C"))]
    assert done(worked) == {99: {1, 2}}
    assert not worked.failures


def test_none_is_no_tuple_and_still_settles_the_input() -> None:
    worked = task_of(only_long).work(frame((1, words("a")), (2, words("bb"))))

    assert emitted(worked) == [(2, Word("bb"))]
    assert done(worked) == {99: {1, 2}}


def test_a_bolt_without_outputs_acks() -> None:
    worked = task_of(swallow).work(frame((1, words("a"))))

    assert worked.outputs == []
    assert done(worked) == {99: {1}}


@pytest.mark.parametrize("many", [letters, listed])
def test_many_tuples_share_the_root_of_their_input(many: Any) -> None:
    worked = task_of(many).work(frame((1, words("ab")), (2, words("")), (3, words("c"))))

    assert emitted(worked) == [(1, Word("a")), (1, Word("b")), (3, Word("c"))]
    assert done(worked) == {99: {1, 2, 3}}


def test_tuples_of_several_classes_go_to_their_own_streams_in_order() -> None:
    worked = task_of(letters).work(frame((1, words("a!b")), (2, words("!")), (3, words("c"))))

    assert [(output.stream, output.values, output.roots, output.ends) for output in worked.outputs] == [
        ("Bad", [Bad("!"), Bad("!")], [1, 2], [1, 2]),
        ("Word", words("a", "b", "c"), [1, 3], [2, 3]),
    ]


def test_none_among_many_fails_the_tuple() -> None:
    @bolt
    def holes(word: Word) -> Iterator[Word]:
        yield word
        yield None  # type: ignore[misc]  # the fault under test

    worked = task_of(holes).work(frame((1, words("a"))))

    assert worked.outputs == []
    assert "NoneType" in worked.failures[1].error


def test_one_value_of_an_undeclared_class_fails_its_root_alone() -> None:
    @bolt
    def odd(word: Word) -> Word:
        return Count("x", 1) if word.text == "b" else word  # type: ignore[return-value]  # the fault under test

    worked = task_of(odd).work(frame((1, words("a")), (2, words("a", "b", "c")), (3, words("d"))))

    assert emitted(worked) == [(1, Word("a")), (3, Word("d"))]
    assert list(worked.failures) == [2]
    assert "bench.Count" in worked.failures[2].error
    assert "Word" in worked.failures[2].error
    assert done(worked) == {99: {1, 3}}


def test_a_stream_that_is_left_with_no_tuple_sends_no_output() -> None:
    @bolt
    def odd(word: Word) -> Iterator[Word | Bad]:
        if word.text == "b":
            yield Bad("lost with its root")
            yield 3  # type: ignore[misc]  # the fault under test
        else:
            yield word

    worked = task_of(odd).work(frame((1, words("a")), (2, words("b"))))

    assert [(output.stream, output.values) for output in worked.outputs] == [("Word", words("a"))]


def test_a_subclass_is_not_the_declared_class_because_it_would_arrive_without_what_it_added() -> None:
    class Louder(Word, frozen=True):
        volume: int = 11

    @bolt
    def loud(word: Word) -> Word:
        return Louder(word.text)

    worked = task_of(loud).work(frame((1, words("a"))))

    assert worked.outputs == []
    assert "Louder" in worked.failures[1].error


def test_a_named_tuple_is_one_tuple_and_not_many() -> None:
    class Pair(NamedTuple):
        left: str
        right: str

    @bolt
    def pair(word: Word) -> Pair:
        return Pair(word.text, word.text)

    assert emitted(task_of(pair).work(frame((1, words("a"))))) == [(1, Pair("a", "a"))]


def test_a_bolt_that_declares_no_output_fails_when_it_returns_one() -> None:
    @bolt
    def secretive(word: Word) -> None:
        return word  # type: ignore[return-value]  # the fault under test

    worked = task_of(secretive).work(frame((1, words("a"))))

    assert "it has no outputs" in worked.failures[1].error


def test_what_is_injected_may_stand_anywhere_among_the_parameters() -> None:
    @bolt(state=int)
    def mixed(
        context: TaskContext, total: KeyedState[int], word: Word, greeting: Resource[str], punctuation: str = "!"
    ) -> Word:
        total.value += 1
        return Word(f"{greeting} {word.text}{punctuation} {total.value} {context.component}")

    task = task_of(mixed, resources={"greeting": "hi"}, state=ValueCell({}, int))

    assert emitted(task.work(frame((1, words("a", "a"))))) == [(1, Word("hi a! 1 bolt")), (1, Word("hi a! 2 bolt"))]


class Echo(Bolt[Word]):
    """Answers as the word says."""

    def process(self, value: Word, collector: Collector[Word]) -> Iterator[Word] | None:
        return iter(words("x", "y")) if value.text == "many" else None


class One(Bolt[Word]):
    def process(self, value: Word, collector: Collector[Word]) -> Word:
        return value


class Generating(Bolt[Word]):
    def process(self, value: Word, collector: Collector[Word]) -> Iterator[Word]:
        collector.emit(Word("before"))
        yield value
        collector.emit(Word("after"))


class Silent(Bolt[Word]):
    def process(self, value: Word, collector: Collector[Word]) -> None:
        pass


def test_the_process_of_a_class_bolt_may_return_nothing_one_or_many() -> None:
    assert emitted(task_of(Silent).work(frame((1, words("a"))))) == []
    assert emitted(task_of(One).work(frame((1, words("a"))))) == [(1, Word("a"))]
    worked = task_of(Echo).work(frame((1, words("nothing")), (2, words("many"))))
    assert emitted(worked) == [(2, Word("x")), (2, Word("y"))]
    assert done(worked) == {99: {1, 2}}


def test_yields_and_emits_keep_their_order() -> None:
    worked = task_of(Generating).work(frame((1, words("a"))))

    assert [value.text for _, value in emitted(worked)] == ["before", "a", "after"]


class Remembering(Bolt[Word]):
    state_default = int
    total: KeyedState[int]
    greeting: Resource[str]

    def open(self, context: TaskContext) -> None:
        self.seen = (self.greeting, self.total is not None, context.task_id)

    def process(self, value: Word, collector: Collector[Count]) -> Count:
        self.total.value += 1
        assert self.seen == ("hi", True, 7)
        return Count(str(self.total.key), self.total.value)


def test_a_class_bolt_finds_state_and_resources_in_its_attributes_before_it_is_opened() -> None:
    task = task_of(Remembering, resources={"greeting": "hi"}, state=ValueCell({"a": 4}, int))

    worked = task.work(frame((1, words("a", "b", "a"))))

    assert [value for _, value in emitted(worked)] == [Count("a", 5), Count("b", 1), Count("a", 6)]


def test_a_class_bolt_is_made_when_it_is_opened_so_that_a_constructor_may_fail_like_open() -> None:
    class Unwilling(Bolt[Word]):
        def __init__(self) -> None:
            raise ConnectionError("no database")

        def process(self, value: Word, collector: Collector[Word]) -> None: ...

    component = component_of(Silent)
    with pytest.raises(ConnectionError, match="no database"):
        task_of(None, component=_with_target(component, Unwilling))


def test_a_class_bolt_that_was_not_opened_is_our_fault_and_fails_no_message() -> None:
    task = BoltTask(component_of(Silent), TaskPlace("bench", "bolt", 7, 0, 1))

    with pytest.raises(InternalError, match="before it was opened"):
        task.work(frame((1, words("a"))))


def test_closing_a_class_bolt_reaches_it_also_when_its_open_failed() -> None:
    closed = []

    class HalfOpen(Bolt[Word]):
        def open(self, context: TaskContext) -> None:
            raise ConnectionError

        def process(self, value: Word, collector: Collector[Word]) -> None: ...

        def close(self) -> None:
            closed.append(True)

    task = BoltTask(component_of(HalfOpen), TaskPlace("bench", "bolt", 7, 0, 1))
    with pytest.raises(ConnectionError):
        task.open()
    task.close()

    assert closed == [True]


def _with_target(component: Any, target: Any) -> Any:
    return dataclasses.replace(component, body=dataclasses.replace(component.body, target=target))
