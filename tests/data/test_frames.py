"""The layout of frames."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tupletree.data.frames import (
    Frame,
    Root,
    all_failed,
    apart,
    done_roots,
    join_segments,
    roots_of,
    segments_of,
    select,
    without,
)

roots = st.one_of(st.integers(0, 3), st.lists(st.integers(1, 3), min_size=2, unique=True).map(tuple))
pieces = st.lists(st.tuples(roots, st.lists(st.sampled_from([1, 2.0, "x", b"y"]), max_size=3)), max_size=6)


def frame(pieces: list[tuple[Root, list[Any]]]) -> Frame:
    return Frame(3, "split", "Word", *join_segments(pieces), 77)


def tuples(a_frame: Frame) -> list[tuple[Root, Any]]:
    return [(root, value) for root, values in a_frame.segments() for value in values]


def flat(pieces: list[tuple[Root, list[Any]]]) -> list[tuple[Root, Any]]:
    return [(root, value) for root, values in pieces for value in values]


def is_well_formed(a_frame: Frame) -> bool:
    return (
        len(a_frame.roots) == len(a_frame.ends)
        and all(before < after for before, after in zip([0, *a_frame.ends], a_frame.ends))
        and (a_frame.ends[-1] if a_frame.ends else 0) == len(a_frame.values)
    )


@given(pieces)
def test_segments_joined_keep_every_tuple_with_its_root_in_order(pieces: list[tuple[Root, list[Any]]]) -> None:
    joined = frame(pieces)

    assert tuples(joined) == flat(pieces)
    assert is_well_formed(joined)
    assert all(before != after for before, after in zip(joined.roots, joined.roots[1:]))


@given(pieces, st.sets(st.integers(0, 3)))
def test_a_tuple_is_left_out_only_when_all_its_roots_have_failed(
    pieces: list[tuple[Root, list[Any]]], failed: set[int]
) -> None:
    left = without(frame(pieces), failed)

    def lives(root: Root) -> bool:
        return not roots_of(root) or not set(roots_of(root)) <= failed

    assert tuples(left) == [(root, value) for root, value in flat(pieces) if lives(root)]
    assert is_well_formed(left)
    assert left.id == 77


@given(pieces)
def test_untracked_tuples_set_apart_are_alone_and_the_others_as_they_were(
    pieces: list[tuple[Root, list[Any]]],
) -> None:
    joined = frame(pieces)
    parted = apart(joined)

    assert tuples(parted) == tuples(joined)
    assert is_well_formed(parted)
    assert all(len(values) == 1 for root, values in parted.segments() if root == 0)
    tracked = [(root, values) for root, values in joined.segments() if root != 0]
    assert [(root, values) for root, values in parted.segments() if root != 0] == tracked


@given(pieces)
def test_selecting_a_class_takes_exactly_its_tuples(pieces: list[tuple[Root, list[Any]]]) -> None:
    joined = frame(pieces)
    values, kept, ends = select(joined.values, joined.roots, joined.ends, str)

    chosen = [(root, value) for root, part in segments_of(values, kept, ends) for value in part]
    assert chosen == [(root, value) for root, value in flat(pieces) if type(value) is str]


@given(pieces, st.sets(st.integers(1, 3)))
def test_the_roots_that_are_done_are_those_that_did_not_fail(
    pieces: list[tuple[Root, list[Any]]], failed: set[int]
) -> None:
    joined = frame(pieces)

    named = {one for root in done_roots(joined, dict.fromkeys(failed)) for one in roots_of(root)}
    assert named == {one for root in joined.roots for one in roots_of(root)} - failed


def test_an_untracked_segment_never_fails_as_a_whole() -> None:
    assert not all_failed(0, {0})
    assert not all_failed((1, 2), {1})
    assert all_failed((1, 2), {1, 2, 3})
