"""Any frame, any failing tuples: dispatch against the rule that it carries out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bolts.frame_bench import Word, done, emitted, frame, task_of
from tupletree import Collector, bolt
from tupletree.data.frames import Root, roots_of


@bolt
def twice(word: Word) -> Iterator[Word]:
    yield word
    if word.text.startswith("!"):
        raise ValueError
    yield word


@bolt
def twice_by_hand(word: Word, out: Collector[Word]) -> None:
    out.emit(word)
    if word.text.startswith("!"):
        out.fail(word)
        raise ValueError
    out.emit(word)


@bolt
def twice_as_list(word: Word) -> list[Word]:
    return [word, 5 if word.text.startswith("!") else word]  # type: ignore[list-item]  # an undeclared class


roots = st.one_of(
    st.integers(0, 4),
    st.lists(st.integers(1, 4), min_size=2, max_size=3, unique=True).map(tuple),
)
pieces = st.lists(st.tuples(roots, st.lists(st.booleans(), min_size=1, max_size=3)), max_size=8)


@pytest.mark.parametrize("doubling", [twice, twice_as_list])
@settings(deadline=None)
@given(pieces=pieces)
def test_what_comes_out_is_what_the_roots_that_live_have_made(doubling: Any, pieces: list[Any]) -> None:
    numbered = _numbered(pieces)

    worked = task_of(doubling).work(frame(*numbered))

    failed, alive = _expected(numbered)
    assert set(worked.failures) <= failed
    tracked = [(root, value) for root, value in emitted(worked) if roots_of(root)]
    # A tuple that shares only some of its roots with a failure comes out, for the others still need it.
    for root, value in tracked:
        assert not value.text.startswith("!")
        assert not set(roots_of(root)) <= set(worked.failures)
    untracked = [value for root, value in emitted(worked) if not roots_of(root)]
    assert untracked == [word for root, word in _tuples(numbered) if root == 0 and word.text[0] != "!" for _ in "12"]
    assert {root for root, _ in tracked for root in roots_of(root)} >= alive
    assert worked.stray_count == sum(root == 0 and word.text[0] == "!" for root, word in _tuples(numbered))
    everything = {one for root, _ in numbered for one in roots_of(root)}
    assert done(worked).get(99, set()) == everything - set(worked.failures)


@settings(deadline=None)
@given(pieces=pieces)
def test_a_bolt_by_hand_and_a_plain_one_say_the_same_of_tracked_roots(pieces: list[Any]) -> None:
    numbered = [(root, values) for root, values in _numbered(pieces) if root != 0]

    plain, by_hand = task_of(twice).work(frame(*numbered)), task_of(twice_by_hand).work(frame(*numbered))

    assert emitted(by_hand) == emitted(plain)
    assert set(by_hand.failures) == set(plain.failures)
    assert done(by_hand).get(99, set()) == done(plain).get(99, set())


def _numbered(pieces: list[tuple[Root, list[bool]]]) -> list[tuple[Root, list[Word]]]:
    numbers = iter(range(1_000))
    return [(root, [Word(f"{'!' * bad}{next(numbers)}") for bad in flags]) for root, flags in pieces]


def _tuples(numbered: list[tuple[Root, list[Word]]]) -> list[tuple[Root, Word]]:
    return [(root, word) for root, values in numbered for word in values]


def _expected(numbered: list[tuple[Root, list[Word]]]) -> tuple[set[int], set[int]]:
    """Roots of which some tuple breaks, and those of which none does."""
    failed = {one for root, word in _tuples(numbered) if word.text.startswith("!") for one in roots_of(root)}
    return failed, {one for root, _ in numbered for one in roots_of(root)} - failed
