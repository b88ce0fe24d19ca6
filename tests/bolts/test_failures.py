"""What user code raises becomes a failure of its roots, and of nothing else."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from tests.bolts.frame_bench import Count, Word, done, emitted, frame, task_of, words
from tupletree import Collector, KeyedState, PermanentError, TaskContext, bolt
from tupletree.state.cells import ValueCell
from tupletree.tracking.outcomes import Failure, FailureKind


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class UnspeakableError(Exception):
    """Its text is a way out of the process."""

    def __str__(self) -> str:
        raise SystemExit(3)


class LockedError(Exception):
    """Cannot be pickled: it holds a lock."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


class Wordy(str):
    __slots__ = ()

    def __len__(self) -> int:
        raise RuntimeError


class SlyError(Exception):
    def __str__(self) -> str:
        return Wordy("sly")


def raising(make: Callable[[], BaseException]) -> Any:
    @bolt
    def breaks(word: Word) -> Word:
        if word.text == "boom":
            raise make()
        return word

    return breaks


ANYTHING: list[Callable[[], BaseException]] = [
    lambda: ValueError("bad"),
    TimeoutError,
    StopIteration,
    StopAsyncIteration,
    GeneratorExit,
    lambda: SystemExit(1),
    asyncio.CancelledError,
    MemoryError,
    RecursionError,
    UnprintableError,
    UnspeakableError,
    LockedError,
    SlyError,
    lambda: ValueError("\ud800 lone"),
    lambda: ValueError("x" * 100_000),
    lambda: BaseExceptionGroup("several", [ValueError("one"), SystemExit(2)]),
]


@pytest.mark.parametrize("make", ANYTHING)
def test_whatever_a_bolt_raises_fails_the_root_in_hand_alone_and_travels_as_text(
    make: Callable[[], BaseException],
) -> None:
    worked = task_of(raising(make)).work(frame((1, words("a")), (2, words("b", "boom", "c")), (3, words("d"))))

    assert emitted(worked) == [(1, Word("a")), (3, Word("d"))]
    assert done(worked) == {99: {1, 3}}
    failure = worked.failures.pop(2)
    assert not worked.failures
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(failure), type=Failure) == failure
    assert failure.error_type.rpartition(".")[2] == type(make()).__qualname__
    assert (failure.kind, failure.component, failure.task_id) == (FailureKind.ERROR, "bolt", 7)
    assert failure.failing_tuple == "Word(text='boom')"
    assert not failure.permanent
    assert len(failure.error) < 3_000
    assert len(failure.traceback) < 9_000


def test_an_interrupt_that_a_bolt_raises_is_its_messages_failure() -> None:
    """A true one goes to the main thread, where no bolt of a runtime works."""
    worked = task_of(raising(KeyboardInterrupt)).work(frame((1, words("boom"))))
    assert worked.failures[1].error_type == "KeyboardInterrupt"


def test_the_traceback_begins_in_the_users_code() -> None:
    failure = task_of(raising(lambda: ValueError("bad"))).work(frame((1, words("boom")))).failures[1]

    assert "raise make()" in failure.traceback
    assert failure.traceback.endswith("ValueError: bad\n")
    assert "bolts/plain.py" not in failure.traceback


def test_a_permanent_error_is_marked_so_that_nobody_retries() -> None:
    class HopelessError(PermanentError):
        pass

    failures = task_of(raising(lambda: HopelessError("never"))).work(frame((1, words("boom")))).failures

    assert failures[1].permanent
    assert "never" in failures[1].error


def test_a_tuple_whose_repr_raises_is_named_by_its_type() -> None:
    class Shy(Word, frozen=True):
        def __repr__(self) -> str:
            raise GeneratorExit

    failures = task_of(raising(ValueError)).work(frame((1, [Shy("boom")]))).failures

    assert "Shy" in failures[1].failing_tuple
    assert "GeneratorExit" in failures[1].failing_tuple


@bolt
def spell(word: Word) -> Iterator[Word]:
    for letter in word.text:
        if letter == "!":
            raise ValueError(word.text)
        yield Word(letter)


def test_nothing_leaks_of_a_generator_that_raises_midway() -> None:
    worked = task_of(spell).work(frame((1, words("ab")), (2, words("cd!e")), (3, words("f"))))

    assert emitted(worked) == [(1, Word("a")), (1, Word("b")), (3, Word("f"))]


def test_nothing_leaks_of_earlier_tuples_of_the_same_segment() -> None:
    worked = task_of(spell).work(frame((1, words("ab", "c!", "de")), (2, words("f"))))

    assert emitted(worked) == [(2, Word("f"))]


def test_nothing_leaks_of_a_root_that_stands_in_several_segments() -> None:
    worked = task_of(spell).work(frame((1, words("a")), (2, words("b")), (1, words("!"))))

    assert emitted(worked) == [(2, Word("b"))]
    assert done(worked) == {99: {2}}


def test_the_rest_of_a_failed_root_is_left_alone() -> None:
    seen = []

    @bolt
    def watch(word: Word) -> None:
        seen.append(word.text)
        if word.text == "boom":
            raise ValueError

    task_of(watch).work(frame((1, words("boom", "never")), (2, words("b")), (1, words("nor this"))))

    assert seen == ["boom", "b"]


def test_the_first_failure_of_a_root_wins() -> None:
    worked = task_of(raising(lambda: ValueError("x"))).work(frame(((1, 2), words("boom")), ((2, 3), words("boom"))))

    assert set(worked.failures) == {1, 2, 3}
    assert worked.failures[1] is worked.failures[2]
    assert worked.failures[3] is not worked.failures[2]


def test_a_tuple_of_several_roots_fails_all_of_them() -> None:
    worked = task_of(raising(ValueError)).work(frame((1, words("a")), ((1, 2), words("boom")), ((2, 3), words("b"))))

    assert set(worked.failures) == {1, 2}
    # Root 3 still needs the tuple that it shares with a failed root.
    assert emitted(worked) == [((2, 3), Word("b"))]
    assert done(worked) == {99: {3}}


def test_untracked_tuples_fail_one_by_one_and_are_counted_instead() -> None:
    worked = task_of(spell).work(frame((0, words("ab", "c!", "d")), (1, words("e")), (0, words("!"))))

    assert emitted(worked) == [(0, Word("a")), (0, Word("b")), (0, Word("d")), (1, Word("e"))]
    assert not worked.failures
    assert worked.stray_count == 2
    assert [stray.failing_tuple for stray in worked.strays] == ["Word(text='c!')", "Word(text='!')"]
    assert done(worked) == {99: {1}}


def test_an_untracked_tuple_that_makes_an_undeclared_value_goes_nowhere() -> None:
    @bolt
    def odd(word: Word) -> Word:
        return 5 if word.text == "b" else word  # type: ignore[return-value]  # the fault under test

    worked = task_of(odd).work(frame((0, words("a", "b", "c"))))

    assert emitted(worked) == [(0, Word("a")), (0, Word("c"))]
    assert worked.stray_count == 1


@bolt
def says(word: Word) -> Iterator[Word]:
    for letter in word.text:
        if letter == "!":
            raise ValueError(word.text)
        yield Word(letter)


@bolt(state=int)
def counts(word: Word, total: KeyedState[int]) -> Count | None:
    total.value += 1
    if word.text == "c":
        raise ValueError(word.text)
    return None if word.text == "d" else Count(word.text, total.value)


@pytest.mark.parametrize("seed", range(100))
def test_of_frames_with_a_tuple_per_message_each_failing_one_takes_its_own_output_along_alone(seed: int) -> None:
    chance = random.Random(seed)
    roots = [chance.randint(0, 12) for _ in range(chance.randint(1, 12))]
    texts = [chance.choice(("a", "ab", "", "a!", "!", "abc")) for _ in roots]
    singles = frame(*((root, words(text)) for root, text in zip(roots, texts)))
    failed, called = set[int](), list[tuple[int, str]]()
    for root, text in zip(roots, texts):
        if root not in failed:
            called.append((root, text))
            failed |= {root} & {root * ("!" in text)} - {0}
    expected = [(root, Word(letter)) for root, text in called if "!" not in text for letter in text]

    worked = task_of(says).work(singles)

    assert emitted(worked) == [one for one in expected if one[0] not in failed]
    assert set(worked.failures) == failed
    assert done(worked).get(99, set()) == {*roots} - failed - {0}


@pytest.mark.parametrize("seed", range(50))
def test_the_same_with_keyed_state(seed: int) -> None:
    chance = random.Random(seed)
    roots = chance.sample(range(1, 20), chance.randint(1, 12))
    texts = [chance.choice("abcd") for _ in roots]
    cell = ValueCell({}, int)

    worked = task_of(counts, state=cell).work(frame(*((root, words(text)) for root, text in zip(roots, texts))))

    so_far = Counter[str]()
    expected = []
    for root, text in zip(roots, texts):
        so_far[text] += text != "c"
        if text in "ab":
            expected.append((root, Count(text, so_far[text])))
    assert emitted(worked) == expected
    assert set(worked.failures) == {root for root, text in zip(roots, texts) if text == "c"}
    assert cell.changed == {text: count for text, count in so_far.items() if count}


def test_of_many_strays_only_a_few_are_kept() -> None:
    worked = task_of(raising(ValueError)).work(frame((0, words(*["boom"] * 1_000))))

    assert worked.stray_count == 1_000
    assert len(worked.strays) < 10


def test_an_untracked_tuple_fails_with_a_collector_as_without() -> None:
    @bolt
    def spell_out(word: Word, out: Collector[Word]) -> None:
        for letter in word.text:
            if letter == "!":
                raise ValueError
            out.emit(Word(letter))

    worked = task_of(spell_out).work(frame((0, words("ab", "c!", "d"))))

    assert emitted(worked) == [(0, Word("a")), (0, Word("b")), (0, Word("d"))]
    assert worked.stray_count == 1


@bolt(state=int)
def tally(word: Word, total: KeyedState[int]) -> Count:
    total.value += 1
    assert total.key == word.text
    if total.value == 3:
        raise ValueError("three")
    return Count(word.text, total.value)


@bolt(state=int)
def tally_by_hand(word: Word, total: KeyedState[int], out: Collector[Count]) -> None:
    total.value += 1
    assert total.key == word.text
    if total.value == 3:
        raise ValueError("three")
    out.emit(Count(word.text, total.value))


@pytest.mark.parametrize("counting", [tally, tally_by_hand])
def test_each_tuple_finds_the_state_of_its_own_key_also_after_a_failure(counting: Any) -> None:
    cell = ValueCell({"a": 1}, int)
    worked = task_of(counting, state=cell).work(
        frame((1, words("a", "b")), (2, words("a", "never")), (3, words("b")), (4, words("c")))
    )

    assert emitted(worked) == [(1, Count("a", 2)), (1, Count("b", 1)), (3, Count("b", 2)), (4, Count("c", 1))]
    assert set(worked.failures) == {2}
    # The value that the failing call had set was not taken back.
    assert cell.changed == {"a": 2, "b": 2, "c": 1}


@pytest.mark.parametrize("counting", [tally, tally_by_hand])
def test_a_tuple_whose_key_cannot_be_made_fails_before_the_bolt_sees_it(counting: Any) -> None:
    cell = ValueCell({}, int)
    nameless = Word(5)  # type: ignore[arg-type]  # the fault under test
    worked = task_of(counting, state=cell).work(
        frame(
            (1, words("a")),
            (2, [Word("b"), nameless, Word("b")]),
            (0, [Word("u"), nameless, Word("v")]),
            (2, words("b")),
            (3, words("c")),
        )
    )

    counted = [(1, "a"), (0, "u"), (0, "v"), (3, "c")]
    assert emitted(worked) == [(root, Count(text, 1)) for root, text in counted]
    assert set(worked.failures) == {2}
    assert "Word.text" in worked.failures[2].error
    assert worked.stray_count == 1
    assert cell.changed == {"a": 1, "u": 1, "v": 1, "c": 1}
    assert done(worked) == {99: {1, 3}}


def test_a_bolt_learns_the_attempt_of_the_message_in_hand() -> None:
    places: list[TaskContext] = []

    @bolt
    def ask(word: Word, context: TaskContext) -> Count:
        places.append(context)
        return Count(word.text, context.attempt)

    @bolt
    def ask_by_hand(word: Word, context: TaskContext, out: Collector[Count]) -> None:
        places.append(context)
        out.emit(Count(word.text, context.attempt))

    for asking in (ask, ask_by_hand):
        task = task_of(asking, attempts={2: 3, 4: 2})
        worked = task.work(
            frame((1, words("first")), (2, words("third")), ((4, 2, 1), words("highest")), (0, words("untracked")))
        )

        assert {value.word: value.count for _, value in emitted(worked)} == {
            "first": 1,
            "third": 3,
            "highest": 3,
            "untracked": 1,
        }
        assert places[-1].attempt == 0  # outside of a call


def test_a_bolt_without_auto_fail_leaves_the_tuple_open_and_its_error_is_on_record() -> None:
    @bolt(auto_fail=False)
    def careless(word: Word) -> Word:
        if word.text == "boom":
            raise ValueError("ignored")
        return word

    task = task_of(careless)
    worked = task.work(frame((1, words("a")), (2, words("boom")), (3, words("b"))))

    assert emitted(worked) == [(1, Word("a")), (3, Word("b"))]
    assert done(worked) == {99: {1, 3}}
    assert not worked.failures
    assert [stray.error for stray in worked.strays] == ["ignored"]
    assert task.unsettled() == [2]


def test_a_bolt_without_auto_ack_keeps_every_tuple_open() -> None:
    @bolt(auto_ack=False)
    def hoarder(word: Word) -> Word:
        return word

    task = task_of(hoarder)
    worked = task.work(frame((1, words("a")), ((2, 3), words("b")), (0, words("c"))))

    assert emitted(worked) == [(1, Word("a")), ((2, 3), Word("b")), (0, Word("c"))]
    assert done(worked) == {}
    assert task.unsettled() == [1, 2, 3]


def deep(depth: int) -> None:
    if depth:
        deep(depth - 1)
    raise ValueError(f"at {depth}")


@pytest.mark.parametrize(
    "make",
    [
        lambda: deep(0),
        lambda: deep(3),
        lambda: compile("a b", "text", "exec"),
        lambda: (_ for _ in ()).throw(ExceptionGroup("many", [ValueError("one")])),
    ],
)
def test_the_traceback_is_what_python_would_print_the_first_time_and_later(make: Callable[[], object]) -> None:
    import traceback

    from tupletree.bolts.failures import FailureMaker

    for _ in range(3):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is
            make()
        whole = "".join(traceback.format_exception(caught.value))
        assert FailureMaker("bolt", 1).of("value", caught.value).traceback == whole


def test_a_cause_is_told_with_its_error() -> None:
    from tupletree.bolts.failures import FailureMaker

    with pytest.raises(KeyError) as caught:
        relabel()
    text = FailureMaker("bolt", 1).of("value", caught.value).traceback
    assert "at 0" in text
    assert "direct cause" in text


def relabel() -> None:
    try:
        deep(0)
    except ValueError as error:
        raise KeyError("outer") from error
