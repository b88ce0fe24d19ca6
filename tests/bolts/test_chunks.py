"""What comes of a frame in parts is what comes of it as a whole, and nobody holds more than a part of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.bolts.frame_bench import Bad, Count, Segment, Word, done, frame, task_of, words
from tupletree import Collector, KeyedState, bolt
from tupletree.bolts.chunks import CHECK, FIRST
from tupletree.bolts.effects import Output, Worked
from tupletree.data.frames import Root, all_failed, segments_of
from tupletree.errors import PermanentError
from tupletree.state.cells import ValueCell

ROOM = 100


class Outlet:
    """Keeps what leaves, in order, and how much of it at once."""

    def __init__(self, most: int = 10**9) -> None:
        self.sent: list[tuple[Root, Any]] = []
        self.held: list[tuple[Root, Any]] = []
        self.largest = 0
        self._most = most

    def room_for(self, stream: str, value: Any) -> int:
        assert stream == type(value).__name__
        return ROOM

    def send(self, outputs: list[Output]) -> None:
        assert not self.held, "what comes before a call is sent before its parts"
        self.sent += self._tuples(outputs)

    def hold(self, outputs: list[Output]) -> None:
        self.held += self._tuples(outputs)
        if len(self.held) > self._most:
            raise PermanentError("more than it may")

    def settle(self, *, counts: bool) -> None:
        if counts:
            self.sent += self.held
        self.held = []

    def _tuples(self, outputs: list[Output]) -> list[tuple[Root, Any]]:
        self.largest = max([self.largest, *(len(output.values) for output in outputs)])
        return [
            (root, value)
            for output in outputs
            for root, values in segments_of(output.values, output.roots, output.ends)
            for value in values
        ]


def in_parts(task: Any, given_frame: Any, outlet: Outlet) -> Worked:
    """Work a frame in parts; the last one."""
    last = Worked()
    for part in task.parts(given_frame, outlet):
        outlet.send(part.outputs)
        last = part
    assert not outlet.held
    return last


def made(word: Word) -> Iterator[Word]:
    """As many words as the text says; an error follows them if it says that, too."""
    for number in range(int(word.text.rstrip("!"))):
        yield Word(f"{word.text} {number}")
    if word.text.endswith("!"):
        raise ValueError("broke")


@bolt
def explode(word: Word) -> Iterator[Word]:
    return made(word)


@bolt
def listed(word: Word) -> list[Word]:
    return list(made(word))


@bolt(state=int)
def counted(word: Word, total: KeyedState[int]) -> Iterator[Word]:
    total.value += 1
    yield from made(word)
    total.value += 1


@bolt
def by_hand(word: Word, out: Collector[Word]) -> None:
    for one in made(word):
        out.emit(one)


TEXTS = st.builds(
    lambda number, mark: f"{number}{mark}",
    st.one_of(st.integers(0, 5), st.integers(0, 300)),
    st.sampled_from(["", "", "!"]),
)
ROOTS: st.SearchStrategy[Root] = st.one_of(st.integers(0, 4), st.just((1, 2)), st.just((3, 4)))
SEGMENTS = st.lists(st.tuples(ROOTS, st.lists(st.builds(Word, TEXTS), min_size=1, max_size=3)), min_size=1, max_size=8)

MOST_OF_A_CALL = 3 * FIRST - 1
"""A chunk is measured where a root ends, and within a call after each FIRST tuples from the second FIRST on. So each
call may add as many as these to what was too few for a chunk."""

LARGEST = [
    (1, words(str(MOST_OF_A_CALL))),
    (2, words(str(CHECK - 1 - MOST_OF_A_CALL))),
    (3, words(*[str(MOST_OF_A_CALL)] * 3)),
]


@pytest.mark.parametrize("exploding", [explode, listed, by_hand, counted])
@settings(deadline=None, max_examples=60)
@given(pieces=SEGMENTS)
@example(pieces=LARGEST)
def test_the_parts_of_a_frame_are_what_it_gives_as_a_whole(exploding: Any, pieces: list[Segment]) -> None:
    cells: list[Any] = [ValueCell({}, int) if exploding is counted else None for _ in range(2)]
    whole, outlet = Outlet(), Outlet()
    expected = task_of(exploding, state=cells[0]).work(frame(*pieces))
    whole.send(expected.outputs)
    found = in_parts(task_of(exploding, state=cells[1]), frame(*pieces), outlet)

    failures = expected.failures
    # A root that failed may have sent what earlier calls of it emitted; whoever hears of the failure drops that.
    assert [one for one in outlet.sent if not all_failed(one[0], failures)] == whole.sent
    assert {root: failure.error for root, failure in found.failures.items()} == {
        root: failure.error for root, failure in failures.items()
    }
    assert done(found) == done(expected)
    assert found.stray_count == expected.stray_count
    assert not any(value.text.partition(" ")[0].endswith("!") for _, value in outlet.sent)
    if cells[0] is not None:
        assert cells[1].changed == cells[0].changed
    if exploding is explode:
        most = CHECK - 1 + MOST_OF_A_CALL * max(len(values) for _, values in pieces)
        assert outlet.largest <= most
        assert outlet.largest == most or pieces != LARGEST, "this example reaches the bound"


@pytest.mark.parametrize("exploding", [explode, counted])
def test_a_call_that_gives_very_much_is_taken_from_part_by_part(exploding: Any) -> None:
    outlet = Outlet()
    cell = ValueCell({}, int) if exploding is counted else None
    in_parts(task_of(exploding, state=cell), frame((1, words("3")), (2, words("10000", "3")), (3, words("2"))), outlet)
    assert outlet.largest <= CHECK + 2 * FIRST
    assert [root for root, _ in outlet.sent] == [1] * 3 + [2] * 10_003 + [3] * 2


def test_what_a_giant_gave_before_it_failed_is_dropped() -> None:
    outlet = Outlet()
    worked = in_parts(task_of(explode), frame((1, words("3")), (2, words("10000!")), (3, words("2"))), outlet)
    assert [root for root, _ in outlet.sent] == [1] * 3 + [3] * 2
    assert set(worked.failures) == {2}
    assert done(worked) == {99: {1, 3}}


def test_an_untracked_giant_that_fails_takes_none_of_its_neighbours_along() -> None:
    outlet = Outlet()
    worked = in_parts(task_of(explode), frame((0, words("500", "10000!", "500"))), outlet)
    assert [value.text for _, value in outlet.sent] == [f"500 {number}" for number in range(500)] * 2
    assert worked.stray_count == 1


def test_a_call_that_gives_more_than_it_may_fails_alone() -> None:
    outlet = Outlet(most=1_000)
    worked = in_parts(task_of(explode), frame((1, words("500")), (2, words("10000")), (3, words("500"))), outlet)
    assert [root for root, _ in outlet.sent] == [1] * 500 + [3] * 500
    assert worked.failures[2].permanent
    assert worked.failures[2].error == "more than it may"


def test_a_giant_that_gives_what_no_stream_carries_fails() -> None:
    @bolt
    def odd(word: Word) -> Iterator[Word]:
        yield from words(*["a"] * 10_000)
        yield Count("x", 1)  # type: ignore[misc]  # the fault under test
        yield from words(*["a"] * 10_000)

    outlet = Outlet()
    worked = in_parts(task_of(odd), frame((1, words("x"))), outlet)
    assert outlet.sent == []
    assert "Count" in worked.failures[1].error


def test_the_streams_of_a_giant_keep_their_order() -> None:
    @bolt
    def both(word: Word) -> Iterator[Word | Bad]:
        for number in range(int(word.text)):
            yield Bad(str(number)) if number % 3 else Word(str(number))

    outlet = Outlet()
    in_parts(task_of(both), frame((1, words("5000"))), outlet)
    for kind, numbers in ((Word, range(0, 5000, 3)), (Bad, [one for one in range(5000) if one % 3])):
        assert [int(value.text) for _, value in outlet.sent if type(value) is kind] == [*numbers]


def test_a_task_that_is_left_between_two_parts_ends_without_a_failure() -> None:
    worked = task_of(explode).parts(frame(*[(root, words("300")) for root in (1, 2, 3)]), Outlet())
    assert next(worked).failures == {}
    worked.close()  # type: ignore[attr-defined]  # it is a generator
